"""Which brokers and readers come and go in a run, and which publishers live on: drawn, too."""

from __future__ import annotations

import random
from collections.abc import Sequence

from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.quorum import Broadcast, minimum_brokers
from quorumcast.core.statements import Basis
from quorumcast.manifest.policy import Policy
from quorumcast.sim.plan import Act


def hands_on(policy: Policy) -> bool:
    """Whether brokers that stay can hand on to new ones all that subscribers may still lack.

    In a log by its state, and where runs are settled because correct brokers cannot differ: f+1 are
    believed. Not on a chain, where nobody votes without the MACs that came with a number.
    """
    return policy.total or (
        policy.basis is Basis.SETTLED and policy.broadcast is not Broadcast.CHAIN
    )


def outlives_restarts(policy: Policy) -> bool:
    """Whether brokers may restart amid all that: histories under way are kept in memory alone."""
    return hands_on(policy) and not policy.has_history


def draw_steps(
    rng: random.Random, names: Sequence[NodeId], f: int, policy: Policy, during_ms: int
) -> tuple[list[Act], int]:
    """Some steps, none of which leaves too few brokers; and how many brokers they add.

    Where `hands_on` says no, a new broker counts like one that forgot, and no more than f go.
    """
    least = minimum_brokers(policy.protection, f, policy.broadcast)
    members = list(names)
    acts: list[Act] = []
    added = 0
    at = rng.randrange(20, during_ms // 2)
    for _ in range(rng.randrange(1, 5)):
        # Chains are drawn from the first 3f+1 brokers, which stay.
        going = members[least:] if policy.broadcast is Broadcast.CHAIN else members
        may_go = hands_on(policy) or sum(act.what == "remove" for act in acts) < f
        if len(members) > least and going and may_go and rng.randrange(2):
            gone = rng.choice(going)
            members.remove(gone)
            acts.append(Act(at, "remove", gone))
        else:
            added += 1
            members.append(NodeId(f"broker-{len(names) + added}"))
            acts.append(Act(at, "add", members[-1]))
        at += rng.randrange(1, during_ms // 3)
    return acts, added


def draw_lives(seed: int, publishers: Sequence[NodeId], during_ms: int) -> list[Act] | None:
    """Crashes of publishers that go on with their streams afterwards; None: nobody does.

    Drawn apart from the rest: a log must not care whose lives its streams outlast.
    """
    rng = random.Random(f"resuming {seed}")
    if rng.randrange(3):
        return None
    acts: list[Act] = []
    for publisher in publishers:
        for _ in range(rng.randrange(3)):
            at = rng.randrange(60, during_ms)
            acts.append(Act(at, "crash", publisher))
            acts.append(Act(at + rng.randrange(1, 60), "restart", publisher))
    return acts


def draw_late_readers(
    rng: random.Random, readers: Sequence[NodeId], channel: Channel, policy: Policy, during_ms: int
) -> list[Act]:
    """Subscribers that want the past, all that is held or, where there is one order, a part."""
    acts: list[Act] = []
    for reader in readers:
        for _ in range(rng.randrange(3)):
            what = rng.choice(("read", "extract") if policy.total else ("read",))
            acts.append(Act(rng.randrange(during_ms), what, reader, channel, rng.randrange(1, 80)))
    return [*acts, Act(during_ms, "read", readers[-1], channel)]
