"""`quorumcast bench --workload`: a workload of topics or of predicates, replayed in a cell."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.common import facts_table, table
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.bench.plan import BenchPlan
    from quorumcast.bench.predicates.replay import ContentReport
    from quorumcast.bench.replay import ReplayPlan, ReplayReport

#: Workloads of predicates that are made if there is no such directory.
DT1, DT2, TEN = "dt1", "dt2", "ten"
MADE = (DT1, DT2, TEN)
#: Their nodes, their events if none are named, and the predicates of TEN.
_NODES, _EVENTS, _PREDICATES = 20, 2_000, 10_000


class ReplayOptions(msgspec.Struct, kw_only=True):
    """What is replayed."""

    workload: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Replay a workload of 'quorumcast pipeline workload': its nodes, events and "
            "subscriptions. If there is no such directory: 'dt1', 'dt2' or 'ten', which have "
            "predicates and 20 nodes.",
        ),
    ] = None
    processes: Annotated[
        int, typer.Option(help="With --workload: processes that its nodes are shared out to.")
    ] = 2
    predicates: Annotated[
        int, typer.Option(help="With a workload of predicates: so many; 0 is all.")
    ] = 0
    joined: Annotated[
        bool,
        typer.Option(
            "--joined",
            help="With a workload of predicates: one subscription per node, for the rows that "
            "match any of its predicates.",
        ),
    ] = False


def run(plan: BenchPlan, options: ReplayOptions, events: int) -> tuple[object, list[Table], bool]:
    """Replay; returns figures, tables, and whether all promises were kept."""
    from quorumcast.bench.replay import WINDOW, ReplayPlan, run_replay
    from quorumcast.bench.workload import BY_CONTENT, read_header

    with ProgressDisplay() as shown, _workload(options, events) as (path, predicates):
        replay = ReplayPlan(
            workload=str(path.resolve()),
            cell=plan,
            processes=options.processes,
            events=events,
            rate=plan.rate,
            window=plan.window or WINDOW,
            predicates=predicates,
            joined=options.joined,
        )
        replay.check()
        if read_header(path).kind == BY_CONTENT:
            return _contents(replay, shown)
        if predicates or options.joined:
            raise UsageError("--predicates and --joined are for workloads of predicates")
        report = run_replay(replay, shown)
    return report, [_topics_table(report)], report.sound(replay)


@contextlib.contextmanager
def _workload(options: ReplayOptions, events: int) -> Iterator[tuple[Path, int]]:
    """The directory of the workload, and how many of its predicates are wanted."""
    path = options.workload or Path()
    if str(path) not in MADE and not path.exists():
        raise UsageError(
            f"there is no workload in {path}: make one with 'quorumcast pipeline workload', or "
            f"choose one of {', '.join(MADE)}"
        )
    if path.exists():
        yield path, options.predicates
        return
    if min(events, options.predicates) < 0:
        raise UsageError("--events and --predicates are 0 or more")
    with tempfile.TemporaryDirectory(prefix="quorumcast-workload-") as directory:
        made = Path(directory) / path
        make(str(path), made, events or _EVENTS, options.predicates)
        yield made, 0


def make(name: str, path: Path, events: int, predicates: int = 0) -> None:
    """Make one of the workloads that have a name."""
    from quorumcast.bench.matching import ten_matches
    from quorumcast.bench.predicates.workload import write_rows
    from quorumcast.pipeline.workload import content

    if name == TEN:
        ten = ten_matches(predicates or _PREDICATES, events)
        write_rows(path, name, ten.events, ten.predicates, _NODES)
        return
    shape = content.DT1 if name == DT1 else content.DT2
    if predicates:
        shape = msgspec.structs.replace(shape, subscriptions=predicates)
    content.ContentGenerator(shape, events=events, nodes=_NODES, seed=1, rate=100.0).write(path)


def _contents(
    replay: ReplayPlan, shown: ProgressDisplay
) -> tuple[ContentReport, list[Table], bool]:
    from quorumcast.bench.predicates.replay import EVENT_WINDOW, SINGLE_WINDOW, run_content_replay

    window = EVENT_WINDOW if replay.cell.batch > 1 else SINGLE_WINDOW
    replay = msgspec.structs.replace(replay, window=replay.cell.window or window)
    report = run_content_replay(replay, shown)
    return report, [_contents_table(report)], report.sound(replay)


def _contents_table(report: ContentReport) -> Table:
    latency, saved = report.latency_ms, report.saved
    facts = {
        "readers": f"{report.subscriptions:,} subscriptions of {report.nodes} nodes, with "
        f"{report.predicates:,} predicates",
        "published": f"{report.published:,} events in {report.publications:,} publications, in "
        f"{report.seconds:,.1f} s",
        "events/s": f"{report.events_per_s:,.0f}",
        "rows delivered": f"{report.delivered:,} of {report.expected:,} "
        f"({report.deliveries_per_s:,.0f}/s)",
        "lost, duplicated, altered, irrelevant": f"{report.lost}, {report.duplicated}, "
        f"{report.altered}, {report.irrelevant}; disordered {report.disordered}",
        "latency": f"median {latency.p50} ms, 99 % {latency.p99} ms",
        "processor time per event": ", ".join(
            f"{role} {used} µs" for role, used in report.processor_us.items()
        ),
        f"{saved.where} ({saved.rows_share:.1%} of the rows)": f"{saved.bytes:,} bytes, beside "
        f"{saved.bytes_of_everything:,} without a predicate",
    }
    if saved.bytes_share is not None:
        facts["its share of the bytes"] = f"{saved.bytes_share:.1%}"
    if report.suspicions:
        facts["suspected"] = str(report.suspicions)
    if report.correct_suspected:
        facts["correct nodes suspected"] = str(report.correct_suspected)
    if report.lacking:
        facts["why"] = report.lacking
    fault = f", {report.fault}" if report.fault else ""
    title = f"{report.workload}: {report.policy}, {report.brokers} brokers{fault}"
    return facts_table(title, facts)


def _topics_table(report: ReplayReport) -> Table:
    latency = report.latency_ms
    shown = table(
        "topic",
        right=("events", "subscribers", "expected", "delivered", "fulfilled"),
        title=f"{report.workload}: {report.policy}, {report.brokers} brokers",
    )
    for name, topic in sorted(report.topics.items(), key=lambda item: -item[1].published):
        counts = (topic.published, topic.subscribers, topic.expected, topic.delivered)
        share = f"{topic.delivered / topic.expected:.1%}" if topic.expected else ""
        shown.add_row(name, *(f"{count:,}" for count in counts), share)
    shown.caption = (
        f"{report.published:,} events, {report.delivered:,} of {report.expected:,} deliveries in "
        f"{report.seconds:,.1f} s ({report.deliveries_per_s:,.0f} deliveries/s); latency median "
        f"{latency.p50} ms, 99 % {latency.p99} ms; lost {report.lost}, duplicated "
        f"{report.duplicated}, altered {report.altered}, disordered {report.disordered}"
    )
    if report.coverage is not None and report.coverage_of_injected is not None:
        shown.caption += (
            f"; fulfilled {report.coverage:.1%} of what was published, "
            f"{report.coverage_of_injected:.1%} of what was injected"
        )
    if report.correct_suspected:
        shown.caption += f"; correct nodes suspected: {report.correct_suspected}"
    if report.lacking:
        shown.caption += f". {report.lacking}"
    return shown
