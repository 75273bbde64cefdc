"""`quorumcast bench`: measure a cell of real processes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.common import JsonOption, console, print_json
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.bench.plan import Plan, Report
    from quorumcast.bench.suite import Line

EXAMPLE = "Example:  quorumcast bench --policy ab+history --alpha 100 --batch 0 --seconds 5 --json"

FREEMAN = "freeman"


def bench(
    policy: Annotated[
        str, typer.Option(help="ab, brb, chain, direct, direct-crash, ab+history, chain+history.")
    ] = "ab+history",
    alpha: Annotated[int, typer.Option(help="Publications between histories.")] = 100,
    brokers: Annotated[int, typer.Option(help="Broker processes.")] = 4,
    f: Annotated[int | None, typer.Option("--f", help="Faulty ones; the most.")] = None,
    publishers: Annotated[int, typer.Option(help="Publisher processes.")] = 1,
    subscribers: Annotated[int, typer.Option(help="Subscriber processes.")] = 1,
    channels: Annotated[int, typer.Option(help="Channels; everybody uses all.")] = 1,
    size: Annotated[int, typer.Option(help="Bytes per event.")] = 56,
    batch: Annotated[
        int, typer.Option(help="Events per publication; 0 lets the client pack single events.")
    ] = 1,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0,
    warmup: Annotated[float, typer.Option(help="Seconds before that.")] = 1.0,
    rate: Annotated[
        float, typer.Option(help="Events per second and publisher; 0: as fast as accepted.")
    ] = 0.0,
    window: Annotated[int, typer.Option(help="Events un-accepted at most; 0 chooses.")] = 0,
    fault: Annotated[
        str,
        typer.Option(help="What broker-1 (or f brokers) does wrong; 'kill' is kill -9, restart."),
    ] = "",
    digest: Annotated[str, typer.Option(help="auto, sha256, blake3 or blake2b.")] = "auto",
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt all links.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write Parquet traces here.")
    ] = None,
    suite: Annotated[
        str, typer.Option(help="'freeman': his policies side by side, against his figures.")
    ] = "",
    runs: Annotated[int, typer.Option(help="With --suite: runs per line; the median counts.")] = 1,
    json_: JsonOption = False,
) -> None:
    """Start real processes, measure, and check that nothing was lost, repeated or altered.

    Exit code 1 if something was, except where a fault makes that the expected result (AB or chain
    without history, a liar, and publishers that skip a broker: nothing can arrive).
    """
    from quorumcast.bench.plan import Plan

    plan = Plan(
        policy=policy,
        alpha=alpha,
        brokers=brokers,
        f=f,
        publishers=publishers,
        subscribers=subscribers,
        channels=channels,
        size=size,
        batch=batch,
        seconds=seconds,
        warmup=warmup,
        rate=rate,
        window=window,
        fault=fault,
        digest=digest,
        tls=tls,
        trace=str(trace.resolve()) if trace else "",
    )
    if suite:
        _suite(suite, plan, runs, json_)
    else:
        _single(plan, json_)


def _single(plan: Plan, json_: bool) -> None:
    import msgspec

    from quorumcast.bench.run import run_bench

    if json_:
        report = run_bench(plan)
        print_json(msgspec.to_builtins(report))
    else:
        with console(stderr=True).status("") as shown:
            report = run_bench(plan, lambda stage: shown.update(stage))
        _print(report)
    if not sound(plan, report):
        raise typer.Exit(1)


def sound(plan: Plan, report: Report) -> bool:
    """Whether the cell kept its promises."""
    if report.duplicated or report.altered or report.disordered:
        return False
    return report.lost == 0 or not plan.promises_delivery()


def _print(report: Report) -> None:
    from rich.table import Table

    table = Table(show_header=False, title=f"{report.policy}, {report.brokers} brokers")
    latency = report.latency_ms
    shown: dict[str, Any] = {
        "publications/s": f"{report.publications_per_s:,.0f}",
        "events/s": f"{report.events_per_s:,.0f}",
        "latency": f"median {latency.p50} ms, 99 % {latency.p99} ms, mean {latency.mean} ms",
        "processor": f"{report.cpu_us_per_event} µs per event {report.cpu_us_per_event_by_role}",
        "published": f"{report.published:,}",
        "delivered": f"{report.delivered:,} ({report.by_history:,} publications by history)",
        "lost, duplicated, altered": f"{report.lost}, {report.duplicated}, {report.altered}",
    }
    if report.suspicions:
        shown["suspected"] = str(report.suspicions)
    if report.evidence:
        shown["evidence"] = str(report.evidence)
    for name, value in shown.items():
        table.add_row(name, value)
    console().print(table)


def _suite(name: str, plan: Plan, runs: int, json_: bool) -> None:
    import msgspec

    from quorumcast.bench.suite import run_freeman

    if name != FREEMAN:
        raise UsageError(f"there is no suite {name!r}; the only one is {FREEMAN!r}")
    if runs < 1:
        raise UsageError("--runs must be 1 or more")
    if json_:
        print_json(msgspec.to_builtins(run_freeman(plan, runs)))
        return
    with console(stderr=True).status("") as shown:
        lines = run_freeman(plan, runs, lambda stage: shown.update(stage))
    console().print(_suite_table(lines))


def _suite_table(lines: list[Line]) -> Any:
    from rich.table import Table

    table = Table(title="One event of 56 bytes per publication; median of the runs")
    table.add_column("policy")
    for column in ("brokers", "publications/s", "Freeman", "ratio", "median ms", "to AB, n=4"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(
            line.name,
            str(line.brokers),
            f"{line.publications_per_s:,.0f}",
            f"{line.freeman_pps:,}" if line.freeman_pps else "",
            f"{line.ratio}" if line.ratio else "",
            f"{line.latency_p50_ms}",
            f"{line.to_ab}",
        )
    return table
