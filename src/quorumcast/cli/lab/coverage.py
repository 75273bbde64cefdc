"""`quorumcast sim --coverage`: protocol states that scenarios reach, and those they never do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from quorumcast.cli.common import console, print_json
from quorumcast.cli.options import ScenarioOptions
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.sim.coverage.explore import Exploration
    from quorumcast.sim.coverage.states import ProtocolState


def run_coverage(which: ScenarioOptions, *, seeds: int, steer: bool, json_: bool) -> None:
    """Run scenarios and print the reached states; exit code 1 if a property was violated."""
    from quorumcast.manifest.policy import POLICY_NAMES
    from quorumcast.sim.campaign import replay_command
    from quorumcast.sim.coverage.explore import explore
    from quorumcast.sim.coverage.states import known_states

    if seeds < 1 or which.start < 0:
        raise UsageError("--seeds is 1 or more, --start 0 or more")
    with ProgressDisplay() as shown:
        exploration = explore(
            seeds,
            which.start,
            which.one_policy,
            which.one_adversary,
            steer=steer,
            progress=lambda so_far: shown(
                f"{so_far.scenarios:,} of {seeds:,} scenarios, "
                f"{len(so_far.transitions):,} transitions"
            ),
        )
    policies = POLICY_NAMES if which.one_policy is None else (which.policy,)
    unreached = exploration.unreached(policies)
    known = sum(state.policy in policies for state in known_states())
    replays = [replay_command(outcome) for outcome in exploration.failed]
    if json_:
        print_json(
            {
                "scenarios": exploration.scenarios,
                "transitions": len(exploration.transitions),
                "growth": exploration.growth,
                "known_states": known,
                "unreached": unreached,
                "violations": len(replays),
                "failures": replays,
            }
        )
    else:
        _print(exploration, known, unreached, replays)
    if replays:
        raise typer.Exit(1)


def _print(
    exploration: Exploration, known: int, unreached: list[ProtocolState], replays: list[str]
) -> None:
    out = console()
    colour = "red" if replays else "green"
    out.print(
        f"[{colour}]{len(replays)} violations[/] in {exploration.scenarios:,} scenarios; "
        f"{len(exploration.transitions):,} distinct transitions; "
        f"{known - len(unreached)} of {known} known states reached"
    )
    for outcome, replay in zip(exploration.failed, replays, strict=True):
        first = outcome.violations[0]
        out.print(f"{first.property}: {first.detail}", markup=False)
        out.print(f"  {replay}", markup=False)
    grouped: dict[tuple[str, str], list[str]] = {}
    for state in unreached:
        grouped.setdefault((state.role, state.what), []).append(state.policy)
    if grouped:
        out.print("never reached:")
    for (role, what), policies in grouped.items():
        out.print(f"  {role:10} {what:32} {', '.join(policies)}", markup=False, highlight=False)
