"""`quorumcast bench --suite freeman`: the short table, and the sweep into a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.common import table
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.bench.freeman.sweep import FreemanRow
    from quorumcast.bench.plan import BenchPlan
    from quorumcast.bench.run import Progress


class SweepOptions(msgspec.Struct, kw_only=True):
    """The sweeps of the suites `freeman` and `fit`."""

    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="With --suite freeman: all that he measured, for hours, into --output; repeat the "
            "command to go on where it was interrupted. With --suite fit: 1 to 10 publishers per "
            "channel, polls four times a second, a crash every minute, for about two hours.",
        ),
    ] = False
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --full: rows, and index.html; of --suite fit, fit.json."
        ),
    ] = None
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="With --suite freeman --full: only four, seven, topics, seven-topics, drop, "
            "alter, percent, latency or alpha; may be repeated."
        ),
    ] = None

    def check(self, suite: str) -> None:
        """Refuse what has no effect."""
        if (self.full or self.output) and suite not in ("freeman", "fit"):
            raise UsageError(
                "--full and --output are for '--suite freeman' and '--suite fit'; leave them out"
            )
        if self.part and suite != "freeman":
            raise UsageError("--part is for '--suite freeman'; leave it out")
        if suite == "freeman" and self.full and self.output is None:
            raise UsageError("--full needs --output DIR, where rows are kept")
        if suite == "freeman" and not self.full and (self.output or self.part):
            raise UsageError("--output and --part are for the sweep; add --full")


def run(
    plan: BenchPlan, runs: int, sweep: SweepOptions, progress: Progress
) -> tuple[object, list[Table], bool]:
    """Measure; returns rows, tables, and whether all promises were kept."""
    from quorumcast.bench.freeman.page import write_report
    from quorumcast.bench.freeman.sweep import FreemanSweep, run_freeman, summary

    title = "Freeman §7: one event of 56 bytes per publication; median of the runs"
    if sweep.output is None:
        rows = run_freeman(plan, runs, progress)
    else:
        output = sweep.output
        started = FreemanSweep(output, plan, sweep.part or ())
        rows = summary(started.run(runs, progress, written=lambda rows: write_report(output, rows)))
        write_report(output, started.rows)
        title += f"; see {output / 'index.html'}"
    return rows, [rows_table(rows, title)], all(row.sound for row in rows)


def rows_table(rows: list[FreemanRow], title: str) -> Table:
    """A table of rows beside his figures."""
    shown = table(
        "policy",
        right=("brokers", "topics", "publishers", "publ./s", "his", "ratio", "to AB", "mean ms",
               "dev.", "99 %", "his mean", "history", "lost, dup., alt."),
        title=title,
    )  # fmt: skip
    # Ratios to AB are within a part: what was measured at another time is not comparable.
    base = {row.part: row.publications_per_s for row in reversed(rows) if row.policy == "ab"}
    for row in rows:
        fault = f", {row.fault} {row.percent} %" if row.fault else ""
        to_ab = base.get(row.part) or 0.0
        shown.add_row(
            row.name + fault + (f", {row.rate:g}/s" if row.rate else ""),
            *map(str, (row.brokers, row.topics, row.publishers)),
            f"{row.publications_per_s:,.0f}",
            "" if row.freeman_pps is None else f"{row.freeman_pps:,}",
            "" if row.ratio is None else f"{row.ratio}",
            f"{row.publications_per_s / to_ab:.2f}" if to_ab else "",
            *map(_ms, (row.mean_ms, row.deviation_ms, row.p99_ms, row.freeman_mean_ms)),
            f"{row.by_history:.0%}" if row.by_history else "",
            f"{row.lost}, {row.duplicated}, {row.altered}",
            style="" if row.sound else "red",
        )
    return shown


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
