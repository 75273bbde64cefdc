"""Drives one machine: feeds it events and carries out its effects in order.

The driver decides nothing. It keeps timers (by value, so setting one again moves it), gives records
to the store, lets installed faults change effects before they are carried out, counts, and passes
application effects on.

Hot path: one packet → `receive` → for each message `machine.handle` → effects by type from one
table. No task, future or lock is made per message. Moving a timer later costs one dictionary write:
the armed handle stays and, when it fires too early, is armed again for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import (
    Accuse,
    CancelTimer,
    Connected,
    Dial,
    DialFailure,
    Disconnected,
    Drop,
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
    Storage,
    Suspect,
    Timer,
    TimerFired,
    Unreachable,
)
from quorumcast.core.message import Message
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Opened
from quorumcast.faults.cell.tally import DeedTally
from quorumcast.faults.contract import Fault, Later
from quorumcast.runtime.links.contract import Links
from quorumcast.runtime.store.contract import Store
from quorumcast.runtime.telemetry import Telemetry
from quorumcast.traces.recorder import Notes, Recorder, note_hooks

#: Timers that expired while a machine was held fire this long after its release.
AFTER_HOLD_MS = 250
#: For nodes that count no publications: no message is of the base class itself.
NONE_COUNTED: tuple[type[Message], Callable[[Any], int]] = (Message, lambda send: 0)
#: With fewer armed handles than this, the handle of a cancelled timer is left to expire.
MOST_IDLE_HANDLES = 256


@runtime_checkable
class Adopting(Protocol):
    """A machine that can adopt a new epoch of its system."""

    def adopt(self, epoch: Any, keyring: Keyring, /) -> list[Effect]:
        """Adopt a new epoch (of a cell: its manifest) and its keys; what is under way goes on."""


class MachineWatcher(Protocol):
    """Is shown everything that a machine does."""

    def on_handled(self, event: Event, effects: list[Effect], now: Millis) -> None:
        """The machine handled an event and returned these effects."""

    def on_held(self, now: Millis) -> None:
        """The machine's clock stands still from now on."""

    def on_released(self, now: Millis) -> None:
        """The machine's clock goes on; messages that arrived meanwhile come first."""

    def on_adopted(self, epoch: Any, effects: list[Effect], now: Millis, /) -> None:
        """The machine adopted a new epoch and returned these effects."""


class Driver:
    """Connects one machine with links, timers, a store and an application."""

    def __init__(
        self,
        machine: Machine,
        links: Links,
        *,
        telemetry: Telemetry | None = None,
        application: dict[type, Callable[[Any], None]] | None = None,
        publications: tuple[type[Message], Callable[[Any], int]] = NONE_COUNTED,
        store: Store | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.machine = machine
        self.telemetry = telemetry or Telemetry()
        #: Installed faults, in the order in which they are applied; empty in a correct node.
        self.faults: tuple[Fault, ...] = ()
        self._watchers: tuple[MachineWatcher, ...] = ()
        #: Counts what installed faults do; None if nobody asked for that.
        self.tally: DeedTally | None = None
        #: The type of message that vouches for publications, and a function that counts them in the
        #: `Send` of one.
        self._voucher, self._count = publications
        self._handle = machine.handle
        self._links = links
        self._send = links.send
        self._store: Store | None = None
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        #: When each timer is due; a timer that is not in here does not fire.
        self._due: dict[Timer, float] = {}
        #: Armed handles, one per timer, none later than its timer is due.
        self._armed: dict[Timer, asyncio.TimerHandle] = {}
        self._later: set[asyncio.TimerHandle] = set()
        self.stopped = False
        #: Timers that expired while the machine was held; None when it is not held.
        self._postponed: dict[Timer, None] | None = None
        self._running: tuple[type[Timer], ...] = ()
        self._table: dict[type, Callable[[Any], None]] = {
            Send: self._on_send,
            SetTimer: self._on_set_timer,
            CancelTimer: self._on_cancel_timer,
            Persist: self._on_persist,
            Forget: self._on_forget,
            Dial: lambda effect: links.dial(effect.peer),
            Hangup: lambda effect: links.hangup(effect.peer),
            Drop: self._on_drop,
            Suspect: self._on_suspect,
            Accuse: self._on_accuse,
            Later: self._on_later,
        }
        for kind, callback in (application or {}).items():
            own = self._table.get(kind)
            self._table[kind] = callback if own is None else self._both(own, callback)
        if store is not None:
            self.use(store)

    def use(self, store: Store) -> None:
        """Persist records in this store from now on; `restore` follows."""
        self._store = store
        if isinstance(self.machine, ReadsArchive):
            self.machine.read_from(store.archive)
        store.watch(lambda full: self.feed(Storage(full)))

    def observe(self, kind: type, look: Callable[[Any], None]) -> None:
        """Call `look` with each effect of this kind just before it is carried out."""
        action = self._table.get(kind)
        self._table[kind] = look if action is None else self._both(look, action)

    @staticmethod
    def _both(first: Callable[[Any], None], then: Callable[[Any], None]) -> Callable[[Any], None]:
        def both(effect: Any) -> None:
            first(effect)
            then(effect)

        return both

    def record(self, recorder: Recorder, notes: Notes, me: NodeId) -> None:
        """Trace what this driver carries out, after faults have changed it."""
        for kind, hook in note_hooks(recorder, notes, me).items():
            self.observe(kind, hook)

    def watch(self, watcher: MachineWatcher) -> None:
        """Show a watcher every event that the machine handles, and its effects."""
        handle = self._handle

        def watched(event: Event, now: Millis) -> list[Effect]:
            effects = handle(event, now)
            watcher.on_handled(event, effects, now)
            return effects

        self._handle = watched
        self._watchers = (*self._watchers, watcher)

    def now(self) -> Millis:
        """The clock of the event loop."""
        return Millis(int(self._loop.time() * 1000))

    # -------------------------------------------------------------- events in

    def restore(self) -> int:
        """Feed the machine the records from disk, before any other event; returns their number."""
        records = self._store.load() if self._store is not None else []
        for record in records:
            self.feed(Restored(record))
        return len(records)

    def feed(self, event: Event) -> None:
        """Let the machine handle one event."""
        if self.stopped:
            return
        try:
            effects = self._handle(event, self.now())
            if effects:
                self.carry_out(effects)
        except UsageError:
            raise  # a mistake of the caller, not of the machine
        except Exception as error:
            self._fail(error)

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Let the machine handle all messages of one packet."""
        if self.stopped:
            return
        now = Millis(int(self._loop.time() * 1000))
        handle = self._handle
        try:
            for message, bodies in opened:
                effects = handle(Receive(peer, message, bodies), now)
                if effects:
                    self.carry_out(effects)
        except Exception as error:
            self._fail(error)

    def peer_up(self, peer: NodeId) -> None:
        """A peer can be reached (again)."""
        self.feed(Connected(peer))

    def peer_down(self, peer: NodeId) -> None:
        """A peer cannot be reached for now."""
        self.feed(Disconnected(peer))

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """A dialed peer cannot be reached."""
        self.feed(Unreachable(peer, reason))

    def _fail(self, error: Exception) -> None:
        # A machine that raises has broken an invariant: it must not go on.
        self.stop()
        if self._on_failure is None:
            raise error
        self._on_failure(error)

    # ------------------------------------------------------------- effects out

    def carry_out(self, effects: list[Effect]) -> None:
        """Carry out effects in order; those without a handler are ignored."""
        doing: Sequence[Effect | Later] = effects
        for fault in self.faults:
            doing = self._tampered(fault, doing)
        table = self._table
        for effect in doing:
            action = table.get(type(effect))
            if action is not None:
                action(effect)

    def _tampered(self, fault: Fault, effects: Sequence[Effect | Later]) -> list[Effect | Later]:
        """Apply one fault to all effects but those that an earlier fault has delayed."""
        result: list[Effect | Later] = [e for e in effects if isinstance(e, Later)]
        present: list[Effect] = [e for e in effects if not isinstance(e, Later)]
        done = fault.tamper(list(present), self.now())
        if self.tally is not None:
            self.tally.compare(present, done)
        return done + result

    def _on_send(self, effect: Send) -> None:
        message = effect.message
        if type(message) is self._voucher:
            self.telemetry.publications += self._count(effect)
        self._send(effect.to, message, effect.bodies)

    def _on_later(self, later: Later) -> None:
        def act() -> None:
            self._later.discard(handle)
            action = self._table.get(type(later.effect))
            if action is not None and not self.stopped:
                action(later.effect)

        handle = self._loop.call_later(later.after_ms / 1000, act)
        self._later.add(handle)

    def _on_set_timer(self, effect: SetTimer) -> None:
        timer = effect.timer
        due = self._loop.time() + effect.after_ms / 1000
        self._due[timer] = due
        armed = self._armed.get(timer)
        if armed is None:
            self._armed[timer] = self._loop.call_at(due, self._fire, timer)
        elif armed.when() > due:
            armed.cancel()
            self._armed[timer] = self._loop.call_at(due, self._fire, timer)

    def _on_cancel_timer(self, effect: CancelTimer) -> None:
        timer = effect.timer
        if self._due.pop(timer, None) is not None and len(self._armed) > MOST_IDLE_HANDLES:
            self._armed.pop(timer).cancel()

    def _fire(self, timer: Timer) -> None:
        del self._armed[timer]
        due = self._due.get(timer)
        if due is None or self.stopped:
            return
        if due - self._loop.time() > 0.001:
            self._armed[timer] = self._loop.call_at(due, self._fire, timer)
            return
        del self._due[timer]
        if self._postponed is None or isinstance(timer, self._running):
            self.feed(TimerFired(timer, max(0, int((self._loop.time() - due) * 1000))))
        else:
            self._postponed[timer] = None

    def _on_persist(self, effect: Persist) -> None:
        if self._store is None:
            self._persisted(effect)  # a node without a store promises no durability
        else:
            self._store.save(effect.record, lambda: self._persisted(effect), lazy=effect.lazy)

    def _persisted(self, effect: Persist) -> None:
        if self.stopped:
            return
        try:
            self.carry_out(list(effect.then))
        except Exception as error:
            self._fail(error)
            return
        self.feed(Persisted(effect.record))

    def _on_forget(self, effect: Forget) -> None:
        if self._store is not None:
            self._store.forget(effect.kind, effect.owner, effect.below, effect.since)

    def _on_drop(self, effect: Drop) -> None:
        self.telemetry.dropped += 1
        self.telemetry.drops[effect.reason.value] += 1

    def _on_suspect(self, effect: Suspect) -> None:
        self.telemetry.suspicions[effect.node, effect.reason.value] += 1

    def _on_accuse(self, effect: Accuse) -> None:
        self.telemetry.accusations[effect.evidence.accused] += 1

    # ---------------------------------------------------------- holding, ending

    def hold(self, *running: type[Timer]) -> None:
        """Stop the machine's clock: timers wait until `release`, except those of these types."""
        if self._postponed is None:
            self._postponed, self._running = {}, running
            for watcher in self._watchers:
                watcher.on_held(self.now())

    def release(self) -> None:
        """Let the clock go on; expired timers fire after messages that wait had time to arrive."""
        if self._postponed is None:
            return
        postponed, self._postponed = self._postponed, None
        for watcher in self._watchers:
            watcher.on_released(self.now())
        for timer in postponed:
            self._on_set_timer(SetTimer(timer, AFTER_HOLD_MS))

    def adopt(self, epoch: Any, keyring: Keyring) -> None:
        """Let the machine adopt a new epoch, if it can."""
        if isinstance(self.machine, Adopting):
            try:
                effects = self.machine.adopt(epoch, keyring)
                for watcher in self._watchers:
                    watcher.on_adopted(epoch, effects, self.now())
                self.carry_out(effects)
            except Exception as error:
                self._fail(error)

    def stop(self) -> None:
        """Handle no more events, and cancel all timers."""
        self.stopped = True
        for handle in [*self._armed.values(), *self._later]:
            handle.cancel()
        self._armed.clear()
        self._due.clear()
        self._later.clear()
