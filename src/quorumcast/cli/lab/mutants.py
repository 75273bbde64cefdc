"""`quorumcast sim --mutants`: the planted mistakes that drawn scenarios notice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from quorumcast.cli.common import console, print_json, table
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.sim.mutants.run import MutantReport, Result, RoomFigures

#: Characters of a detail in the table.
SHOWN = 100


def run_mutants(
    *,
    only: list[str],
    room: list[str],
    start: int,
    seeds: int,
    jobs: int,
    minutes: float,
    with_tests: bool,
    json_: bool,
) -> None:
    """Run the catalogue and print what noticed each mistake; exit code 1 if nothing noticed one."""
    from quorumcast.sim.mutants.run import Hunt, entries

    if seeds < 1 or start < 0 or jobs < 1 or minutes <= 0:
        raise UsageError("--seeds and --jobs are 1 or more, --start 0 or more, --minutes above 0")
    tests = _tests() if with_tests else None
    with ProgressDisplay() as shown:
        hunt = Hunt(
            entries(room, only),
            start=start,
            seeds=seeds,
            jobs=jobs,
            minutes=minutes,
            tests=tests,
            progress=shown,
        )
        report = hunt.run()
    if json_:
        print_json(_as_json(report))
    else:
        _print(report, seeds)
    if report.failed:
        raise typer.Exit(1)


def _tests() -> Path:
    from quorumcast.sim.mutants.mistakes import PACKAGE

    found = PACKAGE.parents[1] / "tests"
    if not found.is_dir():
        raise UsageError(
            "--with-tests needs the tests of the source tree; run it from a checkout that is "
            "installed with 'make install'"
        )
    return found


def _as_json(report: MutantReport) -> object:
    rooms = {room: _share(share) for room, share in report.rooms.items()}
    return {**msgspec.to_builtins(report), "rooms": rooms, "total": _share(report.total)}


def _share(share: RoomFigures) -> dict[str, object]:
    return {**msgspec.to_builtins(share), "percent": round(share.percent, 1)}


def _print(report: MutantReport, seeds: int) -> None:

    out = console()
    for result in report.results:
        out.print(_line(result), markup=False, highlight=False, soft_wrap=True)
    shown = table("room", "mistakes", "equivalent", "caught", "%", "by plan", "by test", "missed")
    for room, share in [*report.rooms.items(), ("all", report.total)]:
        shown.add_row(
            *(room, str(share.mistakes), str(share.equivalent), str(share.caught)),
            *(f"{share.percent:.0f}", str(share.by_plan), str(share.by_test), str(share.missed)),
        )
    out.print(shown)
    out.print(
        f"{report.total.caught} of {report.total.mistakes - report.total.equivalent} caught by at "
        f"most {seeds} drawn scenarios each, in {report.seconds / 60:.1f} minutes",
        highlight=False,
    )
    for seed, policy in report.unclean:
        out.print(
            f"the code as it is fails too, so this proves nothing: "
            f"quorumcast sim --start {seed} --seeds 1 --policy {policy}",
            markup=False,
        )
    if any(result.verdict.value == "not finished" for result in report.results):
        out.print("time was up before all scenarios were tried: raise --minutes, or lower --seeds")


def _line(result: Result) -> str:
    said = f"{result.id:36} {result.verdict.value}"
    if result.by is not None:
        said += f" by {result.by.by}"
        if result.by.seed >= 0:
            said += f", seed {result.by.seed}, {result.by.policy}, {result.by.adversary}"
    elif result.verdict.value not in ("equivalent", "broken"):
        said += f" by {result.scenarios} scenarios, of which {result.reached} met it"
    if result.by is None:
        said += f": {result.reason or result.why}"
    return said
