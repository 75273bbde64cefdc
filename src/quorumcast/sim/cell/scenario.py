"""From a seed to a whole configuration: cell, policy, weather, workload and adversary.

Everything is drawn, so that a campaign over many seeds visits combinations that nobody would write
down. `policy` and `adversary` narrow the draw. An adversary is the name of a fault in the catalogue
or of an aimed attack, or something that the world does: see `harm.WORLD`. The ingredients are in
`drawing`, a file for each kind; what they add to is a `Scene`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.sim.cell.drawing import clients, world
from quorumcast.sim.cell.drawing.beside import draw_beside
from quorumcast.sim.cell.drawing.cells import set_scene
from quorumcast.sim.cell.drawing.leaders import draw_leaders
from quorumcast.sim.cell.drawing.liars import draw_conspiracy, draw_lie
from quorumcast.sim.cell.drawing.links import draw_links
from quorumcast.sim.cell.drawing.members import draw_members
from quorumcast.sim.cell.drawing.scene import ORDERS, QUOTES, Scene
from quorumcast.sim.cell.harm import ADVERSARIES, faults_of
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import MAX_STEPS

__all__ = ["ADVERSARIES", "ORDERS", "QUOTES", "draw"]

#: How long promises may take, after the last progress and for each millisecond of the slowest link.
PATIENCE_MS, LONG_PATIENCE_MS, PATIENCE_PER_MS = 12_000, 20_000, 40


def _come_late(scene: Scene) -> None:
    """f brokers lie, and readers come at any time."""
    clients.draw_late_readers(scene)
    faults = faults_of(Role.BROKER, scene.policy)
    if faults:
        draw_lie(scene, scene.rng.choice(faults))


def _nothing(scene: Scene) -> None:
    """Only what comes beside it, if anything does."""


#: What each adversary of the world does; every other name is a fault.
HARMS: dict[str, Callable[[Scene], None]] = {
    "none": _nothing,
    "crash": world.draw_crash,
    "crash-recover": world.draw_crash_recover,
    "amnesia": world.draw_amnesia,
    "twin": world.draw_twins,
    "partition": world.draw_partitions,
    "disconnect": world.draw_cuts,
    "wire": world.draw_forgeries,
    "conspiracy": draw_conspiracy,
    "restarting-clients": clients.draw_crashes,
    "blackout": world.draw_blackout,
    "pause": world.draw_pauses,
    "rolling": world.draw_rolling,
    "members": draw_members,
    "latecomers": _come_late,
    "wiped": world.draw_wiped,
    "isolation": world.draw_isolation,
    "lives": clients.draw_lives,
    "retelling": world.draw_retelling,
    "leaders": draw_leaders,
    "theft": world.draw_theft,
    "several": _nothing,
}


def draw(
    seed: int, policy: str | None = None, adversary: str | None = None, *, beside: bool = True
) -> CellPlan:
    """The plan that a seed stands for; `beside`: whether it has more than its adversary."""
    if policy is not None and policy not in POLICY_NAMES:
        raise UsageError(f"there is no policy {policy!r}; choose one of {', '.join(POLICY_NAMES)}")
    if adversary is not None and adversary not in ADVERSARIES:
        raise UsageError(
            f"there is no adversary {adversary!r}; choose one of {', '.join(ADVERSARIES)}"
        )
    scene = set_scene(seed, policy, adversary)
    clients.draw_readers(scene)
    clients.draw_workload(scene)
    weather = _draw_weather(scene)
    harm = HARMS.get(scene.adversary)
    if harm is None:
        draw_lie(scene, scene.adversary)
    else:
        harm(scene)
    if beside and scene.adversary != "none":
        draw_beside(scene)
    clients.draw_resumptions(scene)
    return _plan(scene, weather)


def _plan(scene: Scene, weather: Weather) -> CellPlan:
    rng = scene.rng
    slow = scene.long or scene.policy.total or scene.adversary == "rolling"
    slowest_ms = max((link.latency_ms for link in weather.links), default=0)
    return CellPlan(
        seed=scene.seed,
        policy=scene.policy,
        brokers=len(scene.names),
        f=scene.f,
        weather=weather,
        publishers=scene.publishers,
        subscribers=(*scene.subscribers, *scene.bystanders),
        channels=scene.channels,
        acts=tuple(sorted(scene.acts, key=lambda act: act.at_ms)),
        corruptions=tuple(scene.corruptions),
        doomed=tuple(scene.doomed),
        calm_at_ms=scene.safety_ms,
        patience_ms=(LONG_PATIENCE_MS if slow else PATIENCE_MS) + PATIENCE_PER_MS * slowest_ms,
        sync_ms=rng.choice((0, 2, 5, 20)),
        coalesce_ms=rng.choice((0, 0, 1, 3)),
        finale=rng.choice((1, 3)),
        adversary=scene.adversary,
        gaps_allowed=scene.gaps_allowed,
        newcomers=scene.newcomers,
        resuming=scene.resuming,
        documents=True,
        max_steps=4 * MAX_STEPS,
    )


def _draw_weather(scene: Scene) -> Weather:
    rng = scene.rng
    # Drawn apart from the rest; an attacker on the wire may be beside everything.
    wire = scene.adversary == "wire" or random.Random(f"wire {scene.seed}").randrange(4) == 0
    rough = rng.randrange(2)
    return Weather(
        latency_ms=rng.choice((0, 1, 1, 3, 10)),
        jitter_ms=rng.choice((0, 2, 5, 20)),
        loss=rng.choice((0, 10, 50, 150)) * rough,
        duplication=rng.choice((0, 20, 100)) * rough + 100 * wire,
        reordering=rng.choice((0, 20, 100)) * rough + 50 * wire,
        corruption=100 * wire,
        replay=100 * wire,
        reflected=_reflected(scene) if wire else (),
        # Drawn apart from the rest.
        links=draw_links(
            random.Random(f"links {scene.seed}"), scene.names, scene.clients, scene.safety_ms
        ),
    )


def _reflected(scene: Scene) -> tuple[tuple[NodeId, NodeId], ...]:
    pairs = [(one, other) for one in scene.names for other in scene.names if one != other]
    return tuple(scene.rng.sample(pairs, scene.rng.randrange(len(pairs))))
