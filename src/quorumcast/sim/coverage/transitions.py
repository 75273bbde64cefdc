"""Transitions of machines, seen from outside: an event, and an effect that it led to.

A machine takes events and returns effects, so a watcher sees every transition without a change to
the machines. Transitions of different policies, quorum sizes and kinds of harm are distinct: a
leader change among seven brokers with Byzantine faults is not the same as one among four brokers
that only crash.
"""

from __future__ import annotations

import msgspec

from quorumcast.cell.serving.broker import Broker
from quorumcast.core.ids import Lane, Millis, NodeId, Stream
from quorumcast.core.machine import (
    Drop,
    Effect,
    Event,
    Persist,
    Persisted,
    Receive,
    Restored,
    Send,
    SetTimer,
    Suspect,
    TimerFired,
)
from quorumcast.core.message import Message
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.world import CellWorld, role_of


class Transition(msgspec.Struct, frozen=True, order=True):
    """One event and one of the effects that followed."""

    policy: str
    #: Number of brokers and f: "4/1".
    size: str
    #: Kind of harm in the run (`harm_of`).
    harm: str
    role: str
    #: With total order: whether the broker leads or lags, and whether the leader has changed.
    phase: str
    event: str
    effect: str


def harm_of(plan: CellPlan) -> str:
    """The kind of harm in a run: nothing, the world, lying brokers, lying clients, or both."""
    roles = {
        CATALOGUE[corruption.fault].role if corruption.fault in CATALOGUE else Role.BROKER
        for corruption in plan.corruptions
    }
    if not roles:
        return "nothing" if plan.adversary in ("", "none") else "world"
    if roles == {Role.BROKER}:
        return "brokers lie"
    return "brokers and clients lie" if Role.BROKER in roles else "clients lie"


def message_name(message: Message) -> str:
    """The kind of a message, with its lane if that is the history lane."""
    stream: Stream | None = getattr(message, "stream", None)
    lane = "/history" if stream is not None and stream.lane is Lane.HISTORY else ""
    return type(message).__name__ + lane


def event_name(event: Event) -> str:
    """The kind of an event."""
    match event:
        case Receive(message=message):
            return message_name(message)
        case TimerFired(timer=timer):
            return type(timer).__name__
        case Persisted(record=record) | Restored(record=record):
            return f"{type(event).__name__} {type(record).__name__}"
        case _:
            return type(event).__name__


def effect_name(effect: Effect) -> str:
    """The kind of an effect, with the reason where there is one."""
    match effect:
        case Send(message=message):
            return f"Send {message_name(message)}"
        case Drop(reason=reason) | Suspect(reason=reason):
            return f"{type(effect).__name__} {reason.value}"
        case Persist(record=subject) | SetTimer(timer=subject):
            return f"{type(effect).__name__} {type(subject).__name__}"
        case _:
            return type(effect).__name__


class TransitionProbe:
    """Watches one run and collects its transitions."""

    def __init__(self, plan: CellPlan, world: CellWorld) -> None:
        self._where = (plan.policy.name, f"{plan.brokers}/{plan.f}", harm_of(plan))
        self._ordered = plan.policy.total
        self._world = world
        #: Role, phase and kind of the event that each node took last.
        self._last: dict[NodeId, tuple[str, str, str]] = {}
        self._roles: dict[NodeId, str] = {}
        self.seen: dict[Transition, None] = {}

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """A machine is about to take this event."""
        last = self._last[node] = (self._role(node), self._phase(node), event_name(event))
        self.seen[Transition(*self._where, *last, "")] = None

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        """A node has carried out this effect."""
        last = self._last.get(node)
        if last is not None:
            self.seen[Transition(*self._where, *last, effect_name(effect))] = None

    def _role(self, node: NodeId) -> str:
        if node not in self._roles:
            self._roles[node] = role_of(self._world.nodes[node].machine)
        return self._roles[node]

    def _phase(self, node: NodeId) -> str:
        if not self._ordered or self._roles[node] != "broker":
            return ""
        machine = self._world.nodes[node].machine
        logs = machine.logs() if isinstance(machine, Broker) else {}
        phases = []
        for log in logs.values():
            phases.append("leads" if log.leader == node else "follows")
            phases += ["after a leader change"] if log.regency else []
            phases += ["behind"] if log.executed != log.decided else []
        return ", ".join(phases)


def transitions_of(plan: CellPlan) -> tuple[CellRun, TransitionProbe]:
    """A run of a plan that has not started, and the probe that watches it."""
    run = CellRun(plan)
    probe = TransitionProbe(plan, run.world)
    run.world.watch(probe)
    return run, probe
