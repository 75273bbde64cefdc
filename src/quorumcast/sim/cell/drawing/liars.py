"""Nodes that misbehave: brokers among the f that may, publishers, subscribers, and their plots."""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.entry import Role
from quorumcast.sim.cell.aimed import MANGLE
from quorumcast.sim.cell.cells import SUBSCRIBERS
from quorumcast.sim.cell.drawing.scene import ORDERS, Scene
from quorumcast.sim.cell.drawing.world import pause
from quorumcast.sim.cell.harm import (
    ACCOMPLICES,
    ORDERING_ACCOMPLICES,
    applicable,
    entry_of,
    faults_of,
)


def draw_lie(scene: Scene, fault: str) -> None:
    """One fault of the catalogue, by those who can commit it."""
    rng = scene.rng
    entry = entry_of(fault)
    if entry is None:
        return
    start = rng.choice((0, 0, scene.moment()))
    percent = rng.choice((100, 100, 60, 25))
    match entry.role:
        case Role.BROKER:
            if scene.long:
                _shake(scene, fault)
            for victim in scene.victims:
                scene.lie(victim, fault, start, percent, _aims(scene, fault))
        case Role.PUBLISHER:
            for lie in (fault, *_mangling(scene, Role.PUBLISHER)):
                scene.lie(scene.publishers[-1], lie, start, percent)
            # A lying publisher is worst with lying brokers at its side (Freeman §7.3.4).
            if rng.randrange(2):
                help_ = ORDERING_ACCOMPLICES if entry.only_under else ACCOMPLICES
                accomplice = rng.choice(help_)
                for victim in scene.victims:
                    scene.lie(victim, accomplice, start, percent)
        case Role.SUBSCRIBER:
            scene.lie(scene.subscribers[-1], fault, start, percent)


def draw_lying_brokers(scene: Scene) -> None:
    """Each broker that may lie does so in its own way, and some in two ways at once."""
    rng = scene.rng
    faults = faults_of(Role.BROKER, scene.policy)
    for victim in scene.victims:
        for fault in (*rng.sample(faults, rng.choice((1, 1, 2))), *_mangling(scene, Role.BROKER)):
            start = rng.choice((0, 0, scene.moment()))
            scene.lie(victim, fault, start, rng.choice((100, 60, 25)), _aims(scene, fault))


def draw_lying_clients(scene: Scene) -> None:
    """One publisher, one subscriber or both, with others to whom promises are made."""
    rng = scene.rng
    publishers, subscribers = (
        faults_of(r, scene.policy) for r in (Role.PUBLISHER, Role.SUBSCRIBER)
    )
    who = rng.choice(("publisher", "subscriber", "both"))
    if publishers and who != "subscriber" and scene.publishers[-1] not in scene.liars:
        for fault in (rng.choice(publishers), *_mangling(scene, Role.PUBLISHER)):
            scene.lie(scene.publishers[-1], fault, 0, rng.choice((100, 50)))
    if len(scene.subscribers) > 1 and who != "publisher":
        scene.lie(scene.subscribers[-1], rng.choice(subscribers), 0, rng.choice((100, 50)))


def draw_intruder(scene: Scene) -> None:
    """A client with the rights of everybody that says whatever comes to its mind."""
    intruder = SUBSCRIBERS[-1]
    if intruder not in scene.bystanders:
        scene.bystanders = (*scene.bystanders, intruder)
        for fault in (MANGLE[Role.SUBSCRIBER], "trespass"):
            scene.lie(intruder, fault, 0, scene.rng.choice((100, 50, 20)))
        scene.act(scene.rng.randrange(20), "join", intruder, ORDERS)


def draw_conspiracy(scene: Scene) -> None:
    """One publisher, f brokers; some of the others and some readers get the other story."""
    rng = scene.rng
    others = scene.correct
    misled = tuple(rng.sample(others, rng.randrange(1, len(others))))
    readers = tuple(reader for reader in scene.subscribers if rng.randrange(2))
    percent = rng.choice((100, 40))
    scene.lie(scene.publishers[-1], "equivocating-publisher", 0, percent, misled, plot="plot")
    for victim in scene.victims:
        scene.lie(victim, "two-faced", 0, 100, (*misled, *readers), plot="plot")


def _mangling(scene: Scene, role: Role) -> Sequence[str]:
    """Half of those that lie also say everything once more with one thing altered."""
    fits = applicable(MANGLE[role], scene.policy)
    return (MANGLE[role],) if fits and scene.rng.randrange(2) else ()


def _aims(scene: Scene, fault: str) -> tuple[NodeId, ...]:
    return (scene.rng.choice(scene.clients),) if fault == "censor-node" else ()


def _shake(scene: Scene, fault: str) -> None:
    """Liars lead first, and correct brokers stand still now and then: leaders change."""
    rng = scene.rng
    if fault.endswith("leader") and rng.randrange(3):
        scene.victims = list(scene.names[: scene.f])
    for _ in range(rng.randrange(3)):
        pause(scene, [rng.choice(scene.correct)])
