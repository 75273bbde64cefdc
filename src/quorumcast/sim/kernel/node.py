"""The driver of one simulated node: it feeds events to the machine and carries out its effects.

It mirrors the asyncio driver in `runtime/`: effects are carried out in order, messages for one peer
are coalesced into one sealed packet, and effects inside `Persist.then` wait for the disk. Effects
of a system go to the callbacks in `application`. If the node is faulty, its fault tampers with each
list of effects before it is carried out.

Under the adversary "twin" a node runs two *copies* of its machine with the same keys: each peer
talks to one copy, neither copy knows of the other, and both are honest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Dial,
    DialFailure,
    Disconnected,
    Effect,
    Event,
    Forget,
    Hangup,
    Machine,
    Persist,
    Persisted,
    ReadsArchive,
    Receive,
    Restored,
    Send,
    SetTimer,
    Timer,
    TimerFired,
    Unreachable,
)
from quorumcast.crypto.session import Opened, Parcel, encode_parcel
from quorumcast.faults.contract import Fault, Later
from quorumcast.sim.kernel.disk import Disk
from quorumcast.sim.kernel.scheduler import Scheduler

#: Number of received messages that a faulty node remembers, for its fault to use.
HEARD = 48
#: Timers that expired while a node was deaf fire this long after it listens again.
AFTER_DEAF_MS = 250


class Wire(Protocol):
    """The network, as a node uses it."""

    def transmit(self, sender: NodeId, receiver: NodeId, parcels: list[Parcel]) -> None:
        """Seal these messages into one packet and send it, if there is a session."""

    def dial(self, caller: NodeId, callee: NodeId) -> None:
        """Call a node once (`core.machine.Dial`)."""

    def hangup(self, end: NodeId, peer: NodeId) -> None:
        """End a link or call (`core.machine.Hangup`)."""


class Watcher(Protocol):
    """An observer outside the machines, such as a checker or a counter."""

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """A machine is about to take this event."""

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        """A node has carried out this effect."""


class SimulatedNode:
    """One node of the world."""

    __slots__ = (
        "_copies",
        "_deaf",
        "_factory",
        "_flushing",
        "_held",
        "_life",
        "_outbox",
        "_postponed",
        "_scheduler",
        "_settings",
        "_side",
        "_timers",
        "_watchers",
        "_wire",
        "application",
        "coalesce_ms",
        "disk",
        "fault",
        "heard",
        "id",
        "left",
        "up",
    )

    def __init__(
        self,
        name: NodeId,
        factory: Callable[[], Machine],
        scheduler: Scheduler,
        wire: Wire,
        watchers: Sequence[Watcher],
        *,
        sync_ms: int = 2,
        coalesce_ms: int = 0,
    ) -> None:
        self.id = name
        self.up = True
        #: Whether the node was removed from the system and never restarts.
        self.left = False
        #: Handlers for the system's own effects, by type.
        self.application: dict[type, Callable[[Any], None]] = {}
        self.fault: Fault | None = None
        #: The last messages received, if the node is faulty.
        self.heard: deque[Receive] = deque(maxlen=HEARD)
        self.disk = Disk(scheduler, sync_ms)
        self.coalesce_ms = coalesce_ms
        self._factory = factory
        self._scheduler = scheduler
        self._wire = wire
        self._watchers = watchers
        #: The machines behind this identity: one, or two for a twin.
        self._copies: list[Machine] = [self._new_machine()]
        #: The copy that a peer talks to; absent: the first.
        self._side: dict[NodeId, int] = {}
        #: The latest setting of each timer, by copy; a firing of an older one is stale.
        self._timers: dict[tuple[int, Timer], int] = {}
        self._settings = 0
        #: Messages that wait for each peer, in the order of first use.
        self._outbox: dict[NodeId, list[Parcel]] = {}
        self._flushing = False
        #: Grows with every crash; actions scheduled in an earlier life are void.
        self._life = 0
        #: Actions that wait for a paused process to resume; None: it is not paused.
        self._held: list[Callable[[], None]] | None = None
        #: Whether its application takes nothing, and timers that expired meanwhile.
        self._deaf = False
        self._postponed: list[Timer] = []

    @property
    def machine(self) -> Machine:
        """The machine (the first copy of a twin)."""
        return self._copies[0]

    # ------------------------------------------------------------- life

    def _new_machine(self) -> Machine:
        machine = self._factory()
        if isinstance(machine, ReadsArchive):
            machine.read_from(self.disk)
        return machine

    def split(self, second_side: Sequence[NodeId]) -> None:
        """Become a twin: a second honest copy serves these peers from now on."""
        self._copies.append(self._new_machine())
        self._side = dict.fromkeys(second_side, 1)

    def crash(self, *, wipe: bool = False, tear: int = 0, corrupt: bool = False) -> None:
        """Stop at once; memory is lost, and the part of the disk that `Disk.crash` says."""
        self.up = False
        self._life += 1
        self._timers.clear()
        self._outbox.clear()
        self._flushing = False
        self._held = None
        self._deaf, self._postponed = False, []
        self.disk.crash(wipe=wipe, tear=tear, corrupt=corrupt)

    def leave(self) -> None:
        """Stop for good: the node was removed from the system."""
        self.crash()
        self.left = True

    def restart(self) -> None:
        """Restart from the records on disk."""
        if self.left:
            return
        self.up = True
        self._copies = [self._new_machine()]
        self._side = {}
        for record in self.disk.load():
            self.feed(Restored(record))

    def pause(self) -> None:
        """Pause the process (SIGSTOP): links stay and time passes, but nothing is handled."""
        if self.up and self._held is None:
            self._held = []

    def resume(self) -> None:
        """Resume: handle at once everything that arrived meanwhile."""
        held, self._held = self._held, None
        for act in held or ():
            act()

    def deafen(self) -> None:
        """Read nothing more, as a client whose application takes nothing: its clock stands still.

        What it is sent is lost, as in a full outbox.
        """
        self._deaf = self.up

    def listen(self) -> bool:
        """Read on; whether it had stopped."""
        deaf, self._deaf = self._deaf, False
        postponed, self._postponed = self._postponed, []
        for timer in postponed:
            self.after(AFTER_DEAF_MS, partial(self.feed, TimerFired(timer)))
        return deaf

    def in_turn(self, act: Callable[[], None]) -> None:
        """Run an action now, or when a paused process resumes."""
        if not self._waits(act):
            act()

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Run an action after a delay, unless the node crashes before."""
        life = self._life

        def due() -> None:
            if life == self._life and not self._waits(due):
                act()

        self._scheduler.after(delay_ms, due)

    def _waits(self, act: Callable[[], None]) -> bool:
        """Whether the process is paused; the action then waits until it resumes."""
        if self._held is None:
            return False
        self._held.append(act)
        return True

    # ----------------------------------------------------------- events

    def feed(self, event: Event, copy: int = 0) -> None:
        """Give an event to a machine and carry out what it asks for."""
        if not self.up or self._waits(lambda: self.feed(event, copy)):
            return
        if self.fault is not None and type(event) is Receive:
            self.heard.append(event)
        now = self._scheduler.now
        for watcher in self._watchers:
            watcher.on_event(self.id, event, now)
        self.carry_out(self._copies[copy].handle(event, now), copy)

    def connected(self, peer: NodeId) -> None:
        """A session with a peer has begun."""
        self._outbox.pop(peer, None)
        self.feed(Connected(peer), self._side.get(peer, 0))

    def disconnected(self, peer: NodeId) -> None:
        """The session with a peer has ended."""
        self._outbox.pop(peer, None)
        self.feed(Disconnected(peer), self._side.get(peer, 0))

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """A dialed peer cannot be reached."""
        self.feed(Unreachable(peer, reason), self._side.get(peer, 0))

    def receive(self, sender: NodeId, opened: Opened) -> None:
        """Messages of an authenticated packet, in order."""
        if self._deaf:
            return
        copy = self._side.get(sender, 0)
        for message, bodies in opened:
            self.feed(Receive(sender, message, bodies), copy)

    # ---------------------------------------------------------- effects

    def carry_out(self, effects: list[Effect], copy: int = 0) -> None:
        """Carry out the machine's effects, or those of its fault instead."""
        if self.fault is None:
            for effect in effects:
                self._do(effect, copy)
            return
        for tampered in self.fault.tamper(effects, self._scheduler.now):
            if isinstance(tampered, Later):
                self.after(tampered.after_ms, partial(self._do, tampered.effect, copy))
            else:
                self._do(tampered, copy)

    def _do(self, effect: Effect, copy: int) -> None:
        if isinstance(effect, Send):
            self._send(effect, copy)
        elif isinstance(effect, SetTimer):
            self._set_timer(effect, copy)
        elif isinstance(effect, CancelTimer):
            self._timers.pop((copy, effect.timer), None)
        elif isinstance(effect, Persist):
            self._persist(effect, copy)
        elif isinstance(effect, Dial | Hangup):
            self._link(effect, copy)
        elif isinstance(effect, Forget):
            self.disk.forget(effect.kind, effect.owner, effect.below, effect.since)
        elif (handler := self.application.get(type(effect))) is not None:
            handler(effect)
        else:
            self._scheduler.note(self.id.encode() + msgspec.msgpack.encode(effect))
        for watcher in self._watchers:
            watcher.on_effect(self.id, effect, self._scheduler.now)

    def _talks_to(self, peer: NodeId, copy: int) -> bool:
        """Whether this copy of a twin serves the peer."""
        return len(self._copies) == 1 or self._side.get(peer, 0) == copy

    def _link(self, effect: Dial | Hangup, copy: int) -> None:
        peer = effect.peer
        if not self._talks_to(peer, copy):
            return
        if isinstance(effect, Dial):
            self._wire.dial(self.id, peer)
            return
        parcels = self._outbox.pop(peer, None)
        if parcels:
            self._wire.transmit(self.id, peer, parcels)
        self._wire.hangup(self.id, peer)

    def _send(self, send: Send, copy: int) -> None:
        parcel = encode_parcel(send.message, send.bodies)
        for peer in send.to:
            if self._talks_to(peer, copy):
                self._outbox.setdefault(peer, []).append(parcel)
        if self._outbox and not self._flushing:
            self._flushing = True
            self.after(self.coalesce_ms, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        outbox, self._outbox = self._outbox, {}
        for peer, parcels in outbox.items():
            self._wire.transmit(self.id, peer, parcels)

    def _set_timer(self, effect: SetTimer, copy: int) -> None:
        key = (copy, effect.timer)
        # Settings only count upwards, so a cancelled and newly set timer is never mistaken for
        # the old one.
        self._settings += 1
        setting = self._timers[key] = self._settings
        due = self._scheduler.now + max(effect.after_ms, 0)

        def fire() -> None:
            if self._timers.get(key) == setting:
                del self._timers[key]
                if self._deaf:
                    self._postponed.append(effect.timer)
                    return
                self.feed(TimerFired(effect.timer, self._scheduler.now - due), copy)

        self.after(effect.after_ms, fire)

    def _persist(self, effect: Persist, copy: int) -> None:
        def done() -> None:
            if self._waits(done):
                return
            self.carry_out(list(effect.then), copy)
            self.feed(Persisted(effect.record), copy)

        self.disk.write(effect.record, done)
