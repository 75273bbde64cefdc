"""Drawing a plan from a seed: cell, policy, network conditions, workload and adversary.

Everything is drawn, so a campaign visits combinations that nobody would write down. `policy` and
`adversary` narrow the draw. An adversary is a fault of the catalogue, an aimed attack, or one of
`harm.WORLD`. The ingredients are in `drawing`; each adds to a `Draft`. An ingredient that was added
later has a random generator of its own, so that older draws stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import like_of
from quorumcast.sim.cell.drawing import clients, world
from quorumcast.sim.cell.drawing.draft import ORDERS, QUOTES, Draft, start_draft
from quorumcast.sim.cell.drawing.epochs import draw_epochs
from quorumcast.sim.cell.drawing.extras import draw_extras
from quorumcast.sim.cell.drawing.faults import draw_conspiracy, draw_fault
from quorumcast.sim.cell.drawing.leaders import draw_leaders
from quorumcast.sim.cell.drawing.links import draw_links
from quorumcast.sim.cell.drawing.members import draw_members
from quorumcast.sim.cell.drawing.rows import draw_rows
from quorumcast.sim.cell.drawing.slow import draw_slow_readers
from quorumcast.sim.cell.harm import ADVERSARIES, faults_of
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import MAX_STEPS

__all__ = ["ADVERSARIES", "ORDERS", "QUOTES", "draw"]

#: Time without progress after which promises are broken, normally and in long scenarios; and the
#: addition for each millisecond of the slowest link.
PATIENCE_MS, LONG_PATIENCE_MS, PATIENCE_PER_MS = 12_000, 20_000, 40


def _draw_latecomers(draft: Draft) -> None:
    """f brokers lie, and subscribers read the past at any time."""
    clients.draw_late_readers(draft)
    faults = faults_of(Role.BROKER, draft.policy)
    if faults:
        draw_fault(draft, draft.rng.choice(faults))


def _nothing(draft: Draft) -> None:
    """Nothing but the extras."""


#: The ingredient of each adversary in `harm.WORLD`; every other name is a fault.
HARMS: dict[str, Callable[[Draft], None]] = {
    "none": _nothing,
    "crash": world.draw_crash,
    "crash-recover": world.draw_crash_recover,
    "amnesia": world.draw_amnesia,
    "twin": world.draw_twins,
    "partition": world.draw_partitions,
    "disconnect": world.draw_cuts,
    "wire": world.draw_forgeries,
    "conspiracy": draw_conspiracy,
    "restarting-clients": clients.draw_client_crashes,
    "blackout": world.draw_blackout,
    "pause": world.draw_pauses,
    "lag": world.draw_lag,
    "rolling": world.draw_rolling,
    "members": draw_members,
    "latecomers": _draw_latecomers,
    "wiped": world.draw_wiped,
    "isolation": world.draw_isolation,
    "lives": clients.draw_incarnations,
    "retelling": world.draw_retelling,
    "leaders": draw_leaders,
    "theft": world.draw_theft,
    "several": _nothing,
}


def draw(
    seed: int, policy: str | None = None, adversary: str | None = None, *, extras: bool = True
) -> CellPlan:
    """The plan of a seed; `extras`: whether it may have more than its adversary."""
    if policy is not None:
        like_of(policy)
    if adversary is not None and adversary not in ADVERSARIES:
        raise UsageError(
            f"there is no adversary {adversary!r}; {did_you_mean(adversary, ADVERSARIES)}"
        )
    draft = start_draft(seed, policy, adversary)
    clients.draw_readers(draft)
    clients.draw_workload(draft)
    weather = _draw_weather(draft)
    harm = HARMS.get(draft.adversary)
    if harm is None:
        draw_fault(draft, draft.adversary)
    else:
        harm(draft)
    if extras and draft.adversary not in ("none", "lag"):
        draw_extras(draft)
    clients.draw_resumptions(draft)
    if extras and draft.adversary != "none":
        clients.draw_prompt_readers(draft)
    if extras:
        draw_epochs(draft)
    if extras and draft.adversary != "lag":
        draw_slow_readers(draft)
    draw_rows(draft)
    return _plan(draft, weather)


def _plan(draft: Draft, weather: Weather) -> CellPlan:
    rng = draft.rng
    slow = draft.long or draft.policy.total or draft.adversary == "rolling"
    slowest_ms = max((link.latency_ms for link in weather.links), default=0)
    # Publishers may wait so long for a subscriber that faulty brokers keep from reading.
    wait_ms = draft.policy.limits.wait_ms
    patience_ms = (LONG_PATIENCE_MS if slow else PATIENCE_MS) + PATIENCE_PER_MS * slowest_ms
    return CellPlan(
        seed=draft.seed,
        policy=draft.policy,
        brokers=len(draft.brokers),
        f=draft.f,
        weather=weather,
        publishers=draft.publishers,
        subscribers=(*draft.subscribers, *draft.extra_subscribers),
        channels=draft.channels,
        acts=tuple(sorted(draft.acts, key=lambda act: act.at_ms)),
        corruptions=tuple(draft.corruptions),
        doomed=tuple(draft.doomed),
        calm_at_ms=draft.safety_ms,
        patience_ms=patience_ms + wait_ms,
        sync_ms=rng.choice((0, 2, 5, 20)),
        coalesce_ms=rng.choice((0, 0, 1, 3)),
        finale=rng.choice((1, 3)),
        restless=_draw_restless(draft, weather),
        adversary=draft.adversary,
        gaps_allowed=draft.gaps_allowed,
        newcomers=draft.newcomers,
        resuming=draft.resuming,
        predicates=draft.predicates,
        documents=True,
        max_steps=4 * MAX_STEPS,
    )


def _draw_restless(draft: Draft, weather: Weather) -> NodeId:
    """In one run of four a correct publisher, if others have streams of their own to be lost."""
    rng = random.Random(f"restless {draft.seed}")
    stopped = [act.node for act in draft.acts if act.what == "stop"]
    able = [one for one in draft.publishers if one not in (*draft.corrupted, *stopped)]
    one_stream = draft.policy.total or len(draft.publishers) < 2
    if rng.randrange(4) or one_stream or weather.links or not able:
        return NodeId("")
    return rng.choice(able)


def _draw_weather(draft: Draft) -> Weather:
    rng = draft.rng
    # An attacker on the wire may be added to every adversary.
    wire = draft.adversary == "wire" or random.Random(f"wire {draft.seed}").randrange(4) == 0
    rough = rng.randrange(2)
    return Weather(
        latency_ms=rng.choice((0, 1, 1, 3, 10)),
        jitter_ms=rng.choice((0, 2, 5, 20)),
        loss=rng.choice((0, 10, 50, 150)) * rough,
        duplication=rng.choice((0, 20, 100)) * rough + 100 * wire,
        reordering=rng.choice((0, 20, 100)) * rough + 50 * wire,
        corruption=100 * wire,
        replay=100 * wire,
        reflected=_reflected(draft) if wire else (),
        links=draw_links(
            random.Random(f"links {draft.seed}"), draft.brokers, draft.clients, draft.safety_ms
        ),
    )


def _reflected(draft: Draft) -> tuple[tuple[NodeId, NodeId], ...]:
    pairs = [(one, other) for one in draft.brokers for other in draft.brokers if one != other]
    return tuple(draft.rng.sample(pairs, draft.rng.randrange(len(pairs))))
