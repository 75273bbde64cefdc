"""Byzantine nodes: brokers among the f that may be faulty, clients, and conspiracies of both."""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.entry import Role
from quorumcast.sim.cell.aimed import MANGLE
from quorumcast.sim.cell.cells import SUBSCRIBERS
from quorumcast.sim.cell.drawing.draft import ORDERS, Draft
from quorumcast.sim.cell.drawing.world import pause
from quorumcast.sim.cell.harm import (
    ACCOMPLICES,
    ORDERING_ACCOMPLICES,
    applicable,
    entry_of,
    faults_of,
)


def draw_fault(draft: Draft, fault: str) -> None:
    """Inject one fault of the catalogue into nodes of its role."""
    rng = draft.rng
    entry = entry_of(fault)
    if entry is None:
        return
    start = rng.choice((0, 0, draft.random_time()))
    percent = rng.choice((100, 100, 60, 25))
    match entry.role:
        case Role.BROKER:
            if draft.long:
                _provoke_leader_changes(draft, fault)
            for broker in draft.corruptible:
                draft.corrupt(broker, fault, start, percent, _victims(draft, fault))
        case Role.PUBLISHER:
            for one in (fault, *_mangling(draft, Role.PUBLISHER)):
                draft.corrupt(draft.publishers[-1], one, start, percent)
            # A lying publisher is worst with lying brokers as accomplices (Freeman §7.3.4).
            if rng.randrange(2):
                accomplice = rng.choice(ORDERING_ACCOMPLICES if entry.only_under else ACCOMPLICES)
                for broker in draft.corruptible:
                    draft.corrupt(broker, accomplice, start, percent)
        case Role.SUBSCRIBER:
            draft.corrupt(draft.subscribers[-1], fault, start, percent)


def draw_faulty_brokers(draft: Draft) -> None:
    """Inject a fault of its own, or two, into each broker that may be faulty."""
    rng = draft.rng
    faults = faults_of(Role.BROKER, draft.policy)
    for broker in draft.corruptible:
        for fault in (*rng.sample(faults, rng.choice((1, 1, 2))), *_mangling(draft, Role.BROKER)):
            start = rng.choice((0, 0, draft.random_time()))
            draft.corrupt(broker, fault, start, rng.choice((100, 60, 25)), _victims(draft, fault))


def draw_faulty_clients(draft: Draft) -> None:
    """Corrupt one publisher, one subscriber or both; a second subscriber stays correct."""
    rng = draft.rng
    publishers, subscribers = (
        faults_of(r, draft.policy) for r in (Role.PUBLISHER, Role.SUBSCRIBER)
    )
    who = rng.choice(("publisher", "subscriber", "both"))
    if publishers and who != "subscriber" and draft.publishers[-1] not in draft.corrupted:
        for fault in (rng.choice(publishers), *_mangling(draft, Role.PUBLISHER)):
            draft.corrupt(draft.publishers[-1], fault, 0, rng.choice((100, 50)))
    if len(draft.subscribers) > 1 and who != "publisher":
        draft.corrupt(draft.subscribers[-1], rng.choice(subscribers), 0, rng.choice((100, 50)))


def draw_intruder(draft: Draft) -> None:
    """Add a subscriber that sends altered messages and forbidden requests."""
    intruder = SUBSCRIBERS[-1]
    if intruder not in draft.extra_subscribers:
        draft.extra_subscribers = (*draft.extra_subscribers, intruder)
        for fault in (MANGLE[Role.SUBSCRIBER], "trespass"):
            draft.corrupt(intruder, fault, 0, draft.rng.choice((100, 50, 20)))
        draft.act(draft.rng.randrange(20), "join", intruder, ORDERS)


def draw_conspiracy(draft: Draft) -> None:
    """One publisher and f brokers show another version to some brokers and subscribers."""
    rng = draft.rng
    others = draft.correct
    misled = tuple(rng.sample(others, rng.randrange(1, len(others))))
    readers = tuple(reader for reader in draft.subscribers if rng.randrange(2))
    percent = rng.choice((100, 40))
    draft.corrupt(draft.publishers[-1], "equivocating-publisher", 0, percent, misled, plot="plot")
    for broker in draft.corruptible:
        draft.corrupt(broker, "two-faced", 0, 100, (*misled, *readers), plot="plot")


def _mangling(draft: Draft, role: Role) -> Sequence[str]:
    """For half of the faulty nodes, the fault that repeats messages with one thing altered."""
    fits = applicable(MANGLE[role], draft.policy)
    return (MANGLE[role],) if fits and draft.rng.randrange(2) else ()


def _victims(draft: Draft, fault: str) -> tuple[NodeId, ...]:
    return (draft.rng.choice(draft.clients),) if fault == "censor-node" else ()


def _provoke_leader_changes(draft: Draft, fault: str) -> None:
    """Let faulty brokers lead first, and pause correct ones, so that leaders change."""
    rng = draft.rng
    if fault.endswith("leader") and rng.randrange(3):
        draft.corruptible = list(draft.brokers[: draft.f])
    for _ in range(rng.randrange(3)):
        pause(draft, [rng.choice(draft.correct)])
