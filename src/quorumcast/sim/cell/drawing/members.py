"""Brokers that are added and removed during a run, with another fault at the same time.

A second channel with total order may be deleted meanwhile.
"""

from __future__ import annotations

import random

from quorumcast.core.ids import NodeId
from quorumcast.core.quorum import minimum_brokers
from quorumcast.core.statements import Basis
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.drawing.draft import Draft
from quorumcast.sim.cell.drawing.world import draw_crash_recover, draw_partitions, pause


def can_pass_on(policy: Policy) -> bool:
    """Whether the remaining brokers can pass on everything that subscribers may still lack.

    A log does so by state transfer. Settled runs are believed if f+1 brokers agree. On a chain
    nobody votes for a run without the MACs that came with it.
    """
    return policy.total or (policy.basis is Basis.SETTLED and not policy.chained)


def outlives_restarts(policy: Policy) -> bool:
    """Whether brokers may restart meanwhile; unfinished histories are kept in memory only."""
    return can_pass_on(policy) and not policy.has_history


def draw_members(draft: Draft) -> None:
    """Add and remove brokers, perhaps delete a channel, and draw another kind of fault."""
    rng = draft.rng
    _draw_steps(draft)
    # A generator of its own, so that older draws stay as they were.
    deletion = random.Random(f"deletion {draft.seed}")
    if draft.policy.total and len(draft.channels) > 1 and deletion.randrange(2):
        at = deletion.randrange(draft.safety_ms // 3, draft.safety_ms)
        draft.act(at, "delete", channel=draft.channels[1].name)
    also = rng.choice(("nothing", "crash", "cut", "pause", "lie"))
    if also == "lie" and not can_pass_on(draft.policy):
        # There a new broker counts like one with amnesia, so there is no room for faulty ones.
        return
    if also == "crash" and not outlives_restarts(draft.policy):
        return
    if also == "crash":
        draw_crash_recover(draft)
        # Removed brokers may have held the only copies.
        draft.gaps_allowed = not draft.policy.total
    elif also == "cut":
        draw_partitions(draft)
    elif also == "pause":
        pause(draft, rng.sample(draft.brokers, rng.randrange(1, len(draft.brokers))))
    elif also == "lie" and not draft.policy.trusts_publishers:
        fault = rng.choice(("silent", "drop", "alter", "equivocate", "lie-acks"))
        for broker in draft.corruptible:
            draft.corrupt(broker, fault)


def _draw_steps(draft: Draft) -> None:
    """Draw steps that never leave too few brokers.

    Unless the others `can_pass_on` their contents, at most f brokers are removed.
    """
    rng, policy = draft.rng, draft.policy
    least = minimum_brokers(policy.protection, draft.f, policy.broadcast)
    members = list(draft.brokers)
    added = removed = 0
    at = rng.randrange(20, draft.safety_ms // 2)
    for _ in range(rng.randrange(1, 5)):
        # Chains are drawn from the first 3f+1 brokers, which stay.
        going = members[least:] if policy.chained else members
        may_go = can_pass_on(policy) or removed < draft.f
        if len(members) > least and going and may_go and rng.randrange(2):
            gone = rng.choice(going)
            members.remove(gone)
            removed += 1
            draft.act(at, "remove", gone)
        else:
            added += 1
            members.append(NodeId(f"broker-{len(draft.brokers) + added}"))
            draft.act(at, "add", members[-1])
        at += rng.randrange(1, draft.safety_ms // 3)
    draft.newcomers = max(added, 1)
