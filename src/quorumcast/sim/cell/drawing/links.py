"""Conditions of single links: distance, asymmetry, loss in one direction, and changes of these.

Uniform links hide what a distant node meets: votes after the decision, answers out of order, a
leader that seems silent to some brokers only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from quorumcast.core.ids import NodeId
from quorumcast.sim.kernel.network import LinkWeather

#: Latencies, in milliseconds, from the same rack to another continent.
NEAR_MS = (0, 1, 1, 3)
FAR_MS = (15, 30, 50, 100, 200)
#: Loss in packets per thousand.
LOSSY = (50, 150, 300)

Pair = tuple[NodeId, NodeId]


def draw_links(
    rng: random.Random, brokers: Sequence[NodeId], clients: Sequence[NodeId], during_ms: int
) -> tuple[LinkWeather, ...]:
    """Conditions of links that differ from the rest; in a third of the draws there are none."""
    everyone = (*brokers, *clients)
    pairs = [
        (a, b) for a in everyone for b in everyone if a != b and (a in brokers or b in brokers)
    ]
    kind = rng.choice(("alike", "alike", "far", "one-way", "mixed", "changing"))
    if kind == "far":
        return tuple(_far(rng, rng.choice(everyone), pairs))
    if kind == "one-way":
        chosen = rng.sample(pairs, rng.randrange(1, len(brokers) + 1))
        return tuple(_link(rng, pair, rng.choice(FAR_MS)) for pair in chosen)
    if kind == "mixed":
        return tuple(_link(rng, pair, rng.choice((*NEAR_MS, *FAR_MS))) for pair in pairs)
    if kind == "changing":
        return tuple(_changing(rng, everyone, pairs, during_ms))
    return ()


def _link(rng: random.Random, pair: Pair, latency_ms: int, since_ms: int = 0) -> LinkWeather:
    jitter_ms = rng.choice((0, 2, latency_ms // 2))
    loss = rng.choice((0, 0, 0, rng.choice(LOSSY)))
    return LinkWeather(*pair, latency_ms, jitter_ms, loss, since_ms)


def _far(
    rng: random.Random, node: NodeId, pairs: Sequence[Pair], since_ms: int = 0
) -> list[LinkWeather]:
    """One node is equally far from all others, in both directions."""
    latency_ms = rng.choice(FAR_MS)
    return [LinkWeather(*pair, latency_ms, 2, 0, since_ms) for pair in pairs if node in pair]


def _changing(
    rng: random.Random, everyone: Sequence[NodeId], pairs: Sequence[Pair], during_ms: int
) -> list[LinkWeather]:
    """One node after the other is far away for a while, and single directions change between."""
    changes: list[LinkWeather] = []
    at = 0
    while at < during_ms:
        if rng.randrange(2):
            node = rng.choice(everyone)
            changes += _far(rng, node, pairs, at)
            back = at + rng.randrange(100, 500)
            near_ms = rng.choice(NEAR_MS)
            changes += [LinkWeather(*p, near_ms, 1, 0, back) for p in pairs if node in p]
        else:
            chosen = rng.sample(pairs, min(len(pairs), 3))
            changes += [_link(rng, p, rng.choice((*NEAR_MS, *FAR_MS)), at) for p in chosen]
        at += rng.randrange(50, 400)
    return changes
