"""`quorumcast bench`: measure a cell of real processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from quorumcast.cli.common import console, facts_table, print_json, table
from quorumcast.cli.lab import freeman, matching, replay
from quorumcast.cli.lab.freeman import SweepOptions
from quorumcast.cli.lab.replay import ReplayOptions
from quorumcast.cli.options import JsonOption, ObserveOption
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.bench import soak
    from quorumcast.bench.plan import BenchPlan, BenchReport
    from quorumcast.bench.run import Progress

EXAMPLE = "bench --policy ab+history --alpha 10-512 --batch 0 --seconds 5 --json"

FREEMAN = "freeman"
FAULTS = "faults"
FIT = "fit"
SOAK = "soak"
FLOODS = "floods"
RETENTION = "retention"
MATCHING = "matching"
TREE = "tree"
#: Figures for programs, tables for people, and whether all promises were kept.
SuiteResult: TypeAlias = "tuple[object, list[Table], bool]"
SUITES = (FREEMAN, FAULTS, FIT, SOAK, FLOODS, RETENTION, MATCHING, TREE)


class PlanOptions(msgspec.Struct, kw_only=True):
    """What is measured; the fields are those of a `BenchPlan`."""

    policy: Annotated[
        str,
        typer.Option(
            help="ab, brb, chain, direct, direct-crash, ab+history, chain+history, total, "
            "total-crash."
        ),
    ] = "ab+history"
    alpha: Annotated[
        str,
        typer.Option(
            help="Publications between histories: 100, or 10-512 for a number that adapts; "
            "100-1024 if left out."
        ),
    ] = ""
    brokers: Annotated[int, typer.Option(help="Broker processes.")] = 4
    f: Annotated[int | None, typer.Option("--f", help="Faulty ones; the most.")] = None
    publishers: Annotated[int, typer.Option(help="Publisher processes.")] = 1
    subscribers: Annotated[int, typer.Option(help="Subscriber processes.")] = 1
    channels: Annotated[int, typer.Option(help="Channels; everybody uses all.")] = 1
    size: Annotated[int, typer.Option(help="Bytes per event.")] = 56
    batch: Annotated[
        int, typer.Option(help="Events per publication; 0 lets the client pack single events.")
    ] = 1
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0
    warmup: Annotated[float, typer.Option(help="Seconds before that.")] = 1.0
    rate: Annotated[
        float, typer.Option(help="Events per second and publisher; 0: as fast as accepted.")
    ] = 0.0
    window: Annotated[int, typer.Option(help="Events un-accepted at most; 0 chooses.")] = 0
    poll_every: Annotated[
        float, typer.Option(help="Seconds between two polls of a subscriber; 0 reads at once.")
    ] = 0.0
    fault: Annotated[
        str,
        typer.Option(
            help="What f brokers or one more client do: crash, crash-recover, lie, or a fault of "
            "'quorumcast faults list'."
        ),
    ] = ""
    crash_every: Annotated[
        float, typer.Option(help="With crash-recover: again so often, in seconds; 0 is once.")
    ] = 0.0
    percent: Annotated[int, typer.Option(help="Percentage of messages that the fault affects.")] = (
        100
    )
    latency: Annotated[
        float, typer.Option(metavar="MS", help="One-way delay put into every link.")
    ] = 0.0
    jitter: Annotated[
        float, typer.Option(metavar="MS", help="Up to so much more, drawn for each write.")
    ] = 0.0
    loss: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="Packets that are lost. TCP repeats them, so each costs its link a retransmission "
            "timeout: the round trip and 200 ms.",
        ),
    ] = 0.0
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:NAME=MS[,jitter=MS][,loss=PERCENT]",
            help="The delays of one link; what is left out is as above. May be repeated.",
        ),
    ] = None
    digest: Annotated[
        str, typer.Option(help="auto, sha256, blake3 or blake2b; Freeman's md5 or sha1.")
    ] = "auto"
    mac: Annotated[
        str,
        typer.Option(help="blake2b, hmac-sha256 or hmac-sha512; Freeman's hmac-md5 or hmac-sha1."),
    ] = "blake2b"
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt all links.")] = False
    durable: Annotated[
        bool, typer.Option(help="Brokers write what they vouch for to disk first.")
    ] = False
    trace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write Parquet traces here.")
    ] = None
    observe: ObserveOption = None

    def plan(self) -> BenchPlan:
        """The plan; checks the fault."""
        from quorumcast.bench.plan import LIE, BenchPlan, lie_of
        from quorumcast.manifest.policy import parse_alpha

        fault = lie_of(self.policy) if self.fault == LIE else self.fault
        if self.fault == LIE and not fault:
            raise UsageError(f"{self.policy!r} withstands no lies; try '--fault crash'")
        trace = str(self.trace.resolve()) if self.trace else ""
        observe = str(self.observe) if self.observe else ""
        alpha, alpha_max = parse_alpha(self.alpha)
        fields = msgspec.structs.asdict(self)
        others = {
            "links": tuple(fields.pop("link") or ()),
            "alpha": alpha,
            "alpha_max": alpha_max,
            "fault": fault,
            "trace": trace,
            "observe": observe,
        }
        return BenchPlan(**(fields | others))


def bench(
    measured: PlanOptions,
    sweep: SweepOptions,
    replayed: ReplayOptions,
    suite: Annotated[
        str,
        typer.Option(
            help="'freeman': his policies side by side, against his figures (all: --full). "
            "'faults': every fault of the catalogue against the fault-free rate. "
            "'fit': FIT-Broker's five tests of its four kinds, against its figures. "
            "'soak': total order while brokers are killed, paused, cut off and wiped. "
            "'floods': what a client that floods brokers leaves to the others. "
            "'tree': cells one below another, as shares of the root alone. "
            "'retention': what it costs to keep ten million events, or --events. "
            "'matching': up to 100,000 predicates on events, without a cell."
        ),
    ] = "",
    runs: Annotated[int, typer.Option(help="With --suite: runs per line; the median counts.")] = 1,
    events: Annotated[
        int,
        typer.Option(
            help="So many events of each publisher, not --seconds. With --workload: the first so "
            "many; 0 is all. With --suite retention: how many are kept."
        ),
    ] = 0,
    json_: JsonOption = False,
) -> None:
    """Start real processes, measure, and check that nothing was lost, repeated or altered.

    Exit code 1 if something was, except where a fault makes that the expected result (AB or chain
    without history, a liar, and publishers that skip a broker: there are too few votes), and if
    without a fault a node was suspected.
    """
    plan = measured.plan()
    counted = msgspec.structs.replace(plan, events=events)
    sweep.check(suite)
    workload = replayed.workload
    if measured.alpha and not suite and not plan.channel_policy().has_history:
        raise UsageError(f"--alpha is for policies with histories; leave it out of {plan.policy!r}")
    if plan.observe and (
        workload is not None or suite in (FIT, SOAK, FLOODS, RETENTION, MATCHING, TREE)
    ):
        raise UsageError(
            f"--observe is for single runs and the suites {FREEMAN!r} and {FAULTS!r}; leave it out"
        )
    if plan.weather and suite in (SOAK, FLOODS, RETENTION, MATCHING, TREE):
        raise UsageError("--latency, --jitter, --loss and --link are not for this; leave them out")
    if workload is not None:
        if suite:
            raise UsageError("a suite has a workload of its own; leave out --workload or --suite")
        figures, tables, sound = replay.run(plan, replayed, events)
        _show(figures, tables, sound=sound, json_=json_)
    elif suite == RETENTION:
        _retention(events, json_)
    elif suite == MATCHING:
        _matching(json_)
    elif suite:
        _suite(suite, counted if suite == FREEMAN else plan, runs, sweep, json_)
    else:
        _single(counted, json_)


def _single(plan: BenchPlan, json_: bool) -> None:
    from quorumcast.bench.run import run_bench

    with ProgressDisplay() as shown:
        report = run_bench(plan, shown)
    _show(report, [_single_table(report)], sound=report.sound(plan), json_=json_)


def _show(figures: object, tables: Iterable[Table], *, sound: bool, json_: bool) -> None:
    """Print figures for programs, or tables for people; exit code 1 if a promise was broken."""
    if json_:
        print_json(figures)
    for shown in () if json_ else tables:
        console().print(shown)
    if not sound:
        raise typer.Exit(1)


def _single_table(report: BenchReport) -> Table:
    latency = report.latency_ms
    facts = {
        "publications/s": f"{report.publications_per_s:,.0f}",
        "events/s": f"{report.events_per_s:,.0f}",
        "latency": f"median {latency.p50} ms, 99 % {latency.p99} ms, mean {latency.mean} ms, "
        f"deviation {latency.deviation} ms",
        "processor": f"{report.cpu_us_per_event} µs per event {report.cpu_us_per_event_by_role}",
        "published": f"{report.published:,}",
        "delivered": f"{report.delivered:,} ({report.by_history:,} publications by history)",
        "lost, duplicated, altered": f"{report.lost}, {report.duplicated}, {report.altered}",
    }
    if report.weather:
        facts["delay of links"] = report.weather
    if report.suspicions:
        facts["suspected"] = str(report.suspicions)
    if report.correct_suspected:
        facts["correct nodes suspected"] = str(report.correct_suspected)
    if report.evidence:
        facts["evidence"] = str(report.evidence)
    return facts_table(f"{report.policy}, {report.brokers} brokers", facts)


def _suite(name: str, plan: BenchPlan, runs: int, sweep: SweepOptions, json_: bool) -> None:
    if name not in SUITES:
        raise UsageError(f"there is no suite {name!r}; {did_you_mean(name, SUITES)}")
    if runs < 1:
        raise UsageError("--runs must be 1 or more")
    suites: dict[str, Callable[[BenchPlan, int, Progress], SuiteResult]]
    suites = {FAULTS: _faults, FIT: partial(_fit, sweep), SOAK: _soak, FLOODS: _floods}
    suites[TREE] = _tree
    with ProgressDisplay() as progress:
        if name == FREEMAN:
            figures, tables, sound = freeman.run(plan, runs, sweep, progress)
        else:
            figures, tables, sound = suites[name](plan, runs, progress)
    _show(figures, tables, sound=sound, json_=json_)


def _fit(sweep: SweepOptions, plan: BenchPlan, runs: int, progress: Progress) -> SuiteResult:
    from quorumcast.bench.papers import FitRow, run_fit

    def keep(rows: list[FitRow]) -> None:
        if sweep.output is not None:
            sweep.output.mkdir(parents=True, exist_ok=True)
            (sweep.output / "fit.json").write_bytes(msgspec.json.encode(rows))

    lines = run_fit(plan, runs, progress, full=sweep.full, keep=keep)
    shown = table(
        *("test", "kind"),
        right=(
            *("brokers", "publishers", "events/s", "FIT-Broker", "its best", "ratio"),
            *("to normal", "lost, dup., alt."),
        ),
        title="FIT-Broker §5.2: events of 253 bytes, ten channels, two subscribers each",
    )
    for line in lines:
        shown.add_row(
            line.test,
            line.kind,
            str(line.brokers),
            str(line.publishers),
            f"{line.events_per_s:,.0f}",
            f"{line.fit_events_per_s:,}" if line.fit_events_per_s else "",
            f"{line.fit_best:,}" if line.fit_best else "",
            f"{line.ratio}" if line.ratio else "",
            f"{line.to_normal}" if line.to_normal else "",
            f"{line.lost}, {line.duplicated}, {line.altered}",
            style="" if line.sound else "red",
        )
    return lines, [shown], all(line.sound for line in lines)


def _soak(plan: BenchPlan, runs: int, progress: Progress) -> SuiteResult:
    import tempfile

    from quorumcast.bench.soak import RATE, SoakPlan, run_soak

    reports = []
    for seed in range(1, runs + 1):
        bad_hour = SoakPlan(
            policy=plan.policy,
            brokers=plan.brokers,
            f=plan.tolerated(),
            seconds=plan.seconds,
            rate=plan.rate or RATE,
            size=plan.size,
            seed=seed,
        )
        with tempfile.TemporaryDirectory(prefix="quorumcast-soak-") as directory:
            reports.append(run_soak(bad_hour, Path(directory), progress))
    tables = [_soak_table(report) for report in reports]
    return reports, tables, all(report.sound for report in reports)


def _tree(plan: BenchPlan, runs: int, progress: Progress) -> SuiteResult:
    from quorumcast.bench.tree import CALM_RATE, run_tree

    lines = run_tree(plan, runs, progress)
    shown = table(
        *("policy", "brokers"),
        right=(
            *("pubs/s", "of the root", "with liars", "of that", f"ms at {CALM_RATE:g}/s", "99 %"),
            *("last level", "lost, dup., alt."),
        ),
        title="trees: publications of one event from the root to a reader of the last cell",
    )
    for line in lines:
        latencies = (line.latency_p50, line.latency_p99, line.added_p50)
        shown.add_row(
            line.policy,
            "+".join(map(str, line.cells)),
            f"{line.publications_per_s:,.0f}",
            f"{line.share:.0%}" if line.share else "",
            f"{line.lying_per_s:,.0f}",
            f"{line.lying_share:.0%}" if line.lying_share else "",
            *("" if ms is None else f"{ms:,.2f}" for ms in latencies),
            f"{line.lost}, {line.duplicated}, {line.altered}",
            style="" if line.sound else "red",
        )
    return lines, [shown], all(line.sound for line in lines)


def _retention(events: int, json_: bool) -> None:
    import tempfile

    from quorumcast.bench import retained

    with (
        ProgressDisplay() as progress,
        tempfile.TemporaryDirectory(prefix="quorumcast-retention-") as directory,
    ):
        report = retained.run_retention(events or retained.FULL_RUN, Path(directory), progress)
    facts = {
        "published": f"{report.publish_events_per_s:,.0f} events/s",
        "replayed": f"{report.replay_events_per_s:,.0f} events/s "
        f"(at least {retained.LEAST_REPLAYED_PER_S:,.0f})",
        "lost, disordered": f"{report.lost}, {report.disordered}",
        "memory of a broker": "{} MB; restarted {} MB; after the replay {} MB".format(
            *report.memory_mb
        )
        + f" (at most {retained.MOST_MEMORY_MB:.0f})",
        "store of a broker": f"{report.store_mb} MB, {report.store_ratio} of the events' bytes "
        f"(at most {retained.MOST_STORE_RATIO})",
        "restart of all": f"{report.restart_s} s",
        "wiped under load": f"votes after {report.votes_after_s} s "
        f"(at most {retained.LONGEST_REJOIN_S:.0f}), complete after {report.complete_after_s} s; "
        f"publishers kept {report.share_meanwhile:.0%} (at least {retained.LEAST_KEPT:.0%})",
        "half, and nothing": f"on disk after {report.halved_after_s} s and "
        f"{report.deleted_after_s} s (at most {retained.LONGEST_REMOVAL_S:.0f})",
        "beyond the budget": ", ".join(report.exceeded) or "nothing",
    }
    title = f"{report.events:,} events of {report.bytes_per_event} bytes, total+durable, 4 brokers"
    if report.events < retained.FULL_RUN:
        title += f"; times and rates are judged at {retained.FULL_RUN:,}"
    judged = {"exceeded": report.exceeded, "sound": report.sound}
    figures = {**msgspec.to_builtins(report), **judged}
    _show(figures, [facts_table(title, facts)], sound=report.sound, json_=json_)


def _matching(json_: bool) -> None:
    with ProgressDisplay() as progress:
        figures, tables, sound = matching.run(progress)
    _show(figures, tables, sound=sound, json_=json_)


def _soak_table(report: soak.SoakReport) -> Table:
    suffered = ", ".join(f"{count} {harm}" for harm, count in report.harms.items())
    facts = {
        "suffered": f"{suffered} in {report.seconds:g} s",
        "published, acknowledged": f"{report.published:,}, {report.acknowledged:,}",
        "lost, duplicated, disordered": f"{sum(report.lost.values())}, "
        f"{sum(report.duplicated.values())}, {report.disordered}",
        "longest silence": f"{report.longest_silence_s} s",
        "memory, early and late": "{} MB, {} MB".format(*report.memory_mb),
        "store, early and late": "{} MB, {} MB".format(*report.store_mb),
    }
    return facts_table(f"{report.policy}, {report.brokers} brokers, durable", facts)


def _faults(plan: BenchPlan, runs: int, progress: Progress) -> SuiteResult:
    from quorumcast.bench.faults import BUDGET, run_faults

    lines = run_faults(plan, runs, progress)
    shown = table(
        *("fault", "of a"),
        right=("events/s", "share", "processor", "lost, dup., alt."),
        title=f"{plan.policy}, {plan.brokers} brokers: what a fault leaves of the fault-free rate",
        caption=f"red: under {BUDGET:.0%} of the fault-free rate, or a promise was broken",
    )
    shown.add_column("suspicions")
    shown.add_column("evidence", justify="right")
    for line in lines:
        under = line.share is None or line.share < BUDGET
        shown.add_row(
            line.fault,
            line.role,
            f"{line.events_per_s:,.0f}",
            f"{line.share:.0%}" if line.share is not None else "",
            f"x {line.cpu_ratio:.2f}" if line.cpu_ratio is not None else "",
            f"{line.lost}, {line.duplicated}, {line.altered}",
            "; ".join(
                f"{suspect} {', '.join(reasons)}" for suspect, reasons in line.suspicions.items()
            ),
            str(line.evidence),
            style="red" if under or not line.sound else "",
        )
    return lines, [shown], all(line.sound for line in lines)


def _floods(plan: BenchPlan, runs: int, progress: Progress) -> SuiteResult:
    from quorumcast.bench.floods import LEAST_KEPT, LONGEST_ANSWER_S, MOST_SHARE, run_floods

    chosen = msgspec.structs.replace(plan, fault="", flood=plan.fault)
    lines = [line for _ in range(runs) for line in run_floods(chosen, progress)]
    shown = table(
        *("flood", "policy"),
        right=(
            *("events/s alone", "beside it", "its share", "kept"),
            *("status page", "paused", "disconnected", "lost"),
        ),
        title="What a client that floods brokers leaves to the others",
        caption=f"red: more than {MOST_SHARE:.0%} of the brokers' time for the flood, less than "
        f"{LEAST_KEPT:.0%} of what the rest allows for the others, a status page that took longer "
        f"than {LONGEST_ANSWER_S:g} s, or a loss",
    )
    for line in lines:
        shown.add_row(
            line.flood,
            line.policy,
            f"{line.alone_per_s:,.0f}",
            f"{line.events_per_s:,.0f}",
            f"{line.share:.0%}",
            f"{line.kept:.0%}",
            f"{line.status_page_s:.2f} s",
            str(line.paused),
            str(line.disconnected),
            str(line.lost),
            style="" if line.sound else "red",
        )
    figures = [{**msgspec.to_builtins(line), "sound": line.sound} for line in lines]
    return figures, [shown], all(line.sound for line in lines)
