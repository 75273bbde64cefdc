"""Brokers that come and go in a run, and what else goes wrong meanwhile."""

from __future__ import annotations

from quorumcast.core.ids import NodeId
from quorumcast.core.quorum import minimum_brokers
from quorumcast.core.statements import Basis
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.drawing.scene import Scene
from quorumcast.sim.cell.drawing.world import draw_crash_recover, draw_partitions, pause


def hands_on(policy: Policy) -> bool:
    """Whether brokers that stay can hand on to new ones all that subscribers may still lack.

    In a log by its state, and where runs are settled because correct brokers cannot differ: f+1 are
    believed. Not on a chain, where nobody votes without the MACs that came with a number.
    """
    return policy.total or (policy.basis is Basis.SETTLED and not policy.chained)


def outlives_restarts(policy: Policy) -> bool:
    """Whether brokers may restart amid all that: histories under way are kept in memory alone."""
    return hands_on(policy) and not policy.has_history


def draw_members(scene: Scene) -> None:
    """One step after the other, and something else that goes wrong at the same time."""
    rng = scene.rng
    _draw_steps(scene)
    also = rng.choice(("nothing", "crash", "cut", "pause", "lie"))
    if also == "lie" and not hands_on(scene.policy):
        # There who is new counts like one that forgot: f of them are enough.
        return
    if also == "crash" and not outlives_restarts(scene.policy):
        return
    if also == "crash":
        draw_crash_recover(scene)
        # Brokers that left have taken contents with them.
        scene.gaps_allowed = not scene.policy.total
    elif also == "cut":
        draw_partitions(scene)
    elif also == "pause":
        pause(scene, rng.sample(scene.names, rng.randrange(1, len(scene.names))))
    elif also == "lie" and not scene.policy.trusts_publishers:
        fault = rng.choice(("silent", "drop", "alter", "equivocate", "lie-acks"))
        for victim in scene.victims:
            scene.lie(victim, fault)


def _draw_steps(scene: Scene) -> None:
    """Some steps, none of which leaves too few brokers.

    Where `hands_on` says no, a new broker counts like one that forgot, and no more than f go.
    """
    rng, policy = scene.rng, scene.policy
    least = minimum_brokers(policy.protection, scene.f, policy.broadcast)
    members = list(scene.names)
    added = removed = 0
    at = rng.randrange(20, scene.safety_ms // 2)
    for _ in range(rng.randrange(1, 5)):
        # Chains are drawn from the first 3f+1 brokers, which stay.
        going = members[least:] if policy.chained else members
        may_go = hands_on(policy) or removed < scene.f
        if len(members) > least and going and may_go and rng.randrange(2):
            gone = rng.choice(going)
            members.remove(gone)
            removed += 1
            scene.act(at, "remove", gone)
        else:
            added += 1
            members.append(NodeId(f"broker-{len(scene.names) + added}"))
            scene.act(at, "add", members[-1])
        at += rng.randrange(1, scene.safety_ms // 3)
    scene.newcomers = max(added, 1)
