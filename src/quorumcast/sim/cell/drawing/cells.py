"""The cell of a scenario: policy and limits, brokers, clients, channels and their rights."""

from __future__ import annotations

import random

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import Protection
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, channel_entry
from quorumcast.sim.cell.drawing.scene import ORDERS, QUOTES, Scene
from quorumcast.sim.cell.harm import ADVERSARIES, JOURNALED, LONG, applicable, entry_of
from quorumcast.sim.cell.plan import small_limits

SIZES = {
    Protection.CRASH: ((2, 1), (2, 1), (3, 2), (3, 1)),
    Protection.TRUSTED: ((3, 1), (3, 1), (5, 2), (4, 1)),
    Protection.BYZANTINE: ((4, 1), (4, 1), (4, 1), (7, 2), (5, 1)),
}


def set_scene(seed: int, policy: str | None, adversary: str | None) -> Scene:
    """The cell, and how long its safety phase lasts."""
    rng = random.Random(f"scenario {seed}")
    pairs = [
        (rules.name, a)
        for rules in map(Policy.named, POLICY_NAMES if policy is None else (policy,))
        for a in (ADVERSARIES if adversary is None else (adversary,))
        if applicable(a, rules)
    ]
    if not pairs:
        raise UsageError(f"policy {policy!r} does not claim to withstand {adversary!r}")
    # Drawn apart from the rest, so that naming both replays what was drawn with neither named.
    policy_name, adversary = random.Random(f"pair {seed}").choice(pairs)
    brief = adversary != "members" and rng.randrange(3) == 0
    rules = _draw_policy(rng, policy_name, brief=brief, journal=adversary in JOURNALED)
    sizes = SIZES[rules.protection]
    if rules.total and rules.crash_only:
        sizes = SIZES[Protection.TRUSTED]  # a majority of 2f+1 must be left
    scene = Scene(seed, rng, adversary, rules, *rng.choice(sizes))
    scene.brief = brief
    entry = entry_of(adversary)
    # Where a client lies there is another one to whom promises are made.
    honest = entry is None or entry.role is Role.BROKER
    scene.publishers = PUBLISHERS[: rng.choice((1, 1, 2, 2, 3) if honest else (1, 2, 2, 3))]
    scene.subscribers = SUBSCRIBERS[: rng.choice((1, 2, 2, 3) if honest else (2, 2, 3))]
    slow = entry is not None and bool(entry.only_under)
    scene.long = slow or adversary in LONG or (rules.total and rng.randrange(3) == 0)
    scene.safety_ms = rng.randrange(1200, 3000) if scene.long else rng.randrange(250, 700)
    _draw_channels(scene)
    return scene


def _draw_policy(rng: random.Random, name: str, *, brief: bool, journal: bool) -> Policy:
    alpha = rng.choice((2, 4, 8) if brief else (4, 4, 8, 16, 32))
    limits = _brief_limits(rng) if brief else small_limits()
    most = min(limits.window, limits.retained_publications // 2)
    adaptive = name.endswith("history") and 2 * alpha <= most and rng.randrange(3) == 0
    return Policy.named(
        name,
        alpha=alpha,
        alpha_max=2 * alpha if adaptive else 0,
        journal=journal or rng.randrange(4) == 0,
        limits=limits,
    )


def _brief_limits(rng: random.Random) -> Limits:
    """So little is retained that every stream outlasts it, and every window is soon full."""
    window = rng.choice((8, 16))
    return Limits(
        retained_publications=rng.choice((16, 24, 32)),
        window=window,
        publisher_buffer=1024,
        vote_window=rng.choice((window, 2 * window, 64)),
        segment=rng.choice((4, 8)),
        kept_segments=4,
        replay=rng.choice((8, 16)),
        pipeline=rng.choice((1, 2, 3)),
        checkpoint=rng.choice((2, 4, 6)),
    )


def _draw_channels(scene: Scene) -> None:
    orders = channel_entry(ORDERS, scene.policy)
    scene.channels = (orders,)
    if scene.rng.randrange(2) == 0:
        # The last publisher and the last subscriber have no right to the second channel.
        few = (
            scene.publishers[:-1] or scene.publishers,
            scene.subscribers[:-1] or scene.subscribers,
        )
        scene.channels = (orders, channel_entry(QUOTES, scene.policy, *few))
