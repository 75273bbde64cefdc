"""Drives one machine: turns the world into events and carries out effects in the order given.

The driver adds nothing to what the machine decides. It keeps timers (by value, so setting one again
moves it), hands records to the store and carries out what waited for them, lets installed faults
tamper with effects before they happen, counts, and passes on what is meant for the application.

Hot path: one packet → `receive` → for each message `machine.handle` → effects by type from one
table. No task, future or lock is made per message. A timer that moves later costs one dictionary
write: the armed handle stays and, when it fires too early, is armed again for the rest.
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
    Receive,
    Record,
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
from quorumcast.runtime.telemetry import Telemetry
from quorumcast.traces.recorder import Notes, Recorder, note_hooks

#: Timers that ran out while a machine was held fire so long after its release.
AFTER_HOLD_MS = 250
#: For nodes that vouch for no publications: no message is of the base class itself.
NONE_COUNTED: tuple[type[Message], Callable[[Any], int]] = (Message, lambda message: 0)
#: With fewer armed handles than this, one whose timer was cancelled is left to run out.
MOST_IDLE_HANDLES = 256


class Store(Protocol):
    """Where records go."""

    def load(self) -> list[Record]:
        """Every record that the disk held at the start, in the order of writing."""

    def save(self, record: Record, done: Callable[[], None], *, lazy: bool = False) -> None:
        """Keep a record, at once or with the next that is not lazy, and say when it is safe."""

    def forget(self, kind: type[Record], owner: str, below: int, since: int = 0) -> None:
        """Remove the records of a kind and owner below a place, after what was saved before."""

    def watch(self, on_full: Callable[[bool], None]) -> None:
        """Say there when the disk has become full, and when it has room again."""


@runtime_checkable
class Adopting(Protocol):
    """A machine that can go on in a new epoch of its system."""

    def adopt(self, epoch: Any, keyring: Keyring, /) -> list[Effect]:
        """Take a new epoch (a cell's manifest, say) and its keys; what is under way goes on."""


class MachineWatcher(Protocol):
    """Who sees all that a machine does."""

    def on_handled(self, event: Event, effects: list[Effect], now: Millis) -> None:
        """It took an event and asks for these effects."""

    def on_held(self, now: Millis) -> None:
        """It hears nothing from now on."""

    def on_released(self, now: Millis) -> None:
        """It hears again, first what has come meanwhile."""

    def on_adopted(self, epoch: Any, effects: list[Effect], now: Millis, /) -> None:
        """It goes on in a new epoch, and asks for these effects."""


class Driver:
    """One machine and its surroundings."""

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
        #: Installed faults, in the order in which they tamper; empty in an honest node.
        self.faults: tuple[Fault, ...] = ()
        self._watchers: tuple[MachineWatcher, ...] = ()
        #: Where what they do is counted, if anybody wants to know.
        self.tally: DeedTally | None = None
        #: The kind of message with which this node vouches for publications, and for how many.
        self._voucher, self._count = publications
        self._handle = machine.handle
        self._links = links
        self._send = links.send
        self._store: Store | None = None
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        #: When each set timer is due; what is not in here does not fire.
        self._due: dict[Timer, float] = {}
        #: Armed handles; one per timer, never later than the timer is due.
        self._armed: dict[Timer, asyncio.TimerHandle] = {}
        self._later: set[asyncio.TimerHandle] = set()
        self.stopped = False
        #: Timers that ran out while the machine was held; None when it is not.
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
        """Keep there what the machine wants kept; `restore` follows."""
        self._store = store
        store.watch(lambda full: self.feed(Storage(full)))

    def observe(self, kind: type, look: Callable[[Any], None]) -> None:
        """Show effects of this kind to somebody just before they are carried out."""
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
        """Show there every event that the machine takes, and the effects that it asks for."""
        handle = self._handle

        def watched(event: Event, now: Millis) -> list[Effect]:
            effects = handle(event, now)
            watcher.on_handled(event, effects, now)
            return effects

        self._handle = watched
        self._watchers = (*self._watchers, watcher)

    def now(self) -> Millis:
        """The loop's clock."""
        return Millis(int(self._loop.time() * 1000))

    # -------------------------------------------------------------- events in

    def restore(self) -> int:
        """Feed the machine what the disk held; before anything else."""
        records = self._store.load() if self._store is not None else []
        for record in records:
            self.feed(Restored(record))
        return len(records)

    def feed(self, event: Event) -> None:
        """One event from the application or the world."""
        if self.stopped:
            return
        try:
            effects = self._handle(event, self.now())
            if effects:
                self.carry_out(effects)
        except UsageError:
            raise  # the application's mistake, not the machine's
        except Exception as error:
            self._fail(error)

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """All messages of one packet."""
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
        # A machine that raises has broken an invariant of its own: it must not go on.
        self.stop()
        if self._on_failure is None:
            raise error
        self._on_failure(error)

    # ------------------------------------------------------------- effects out

    def carry_out(self, effects: list[Effect]) -> None:
        """Do what the machine says, in order; what nobody listens for is nobody's business."""
        doing: Sequence[Effect | Later] = effects
        for fault in self.faults:
            doing = self._tampered(fault, doing)
        table = self._table
        for effect in doing:
            action = table.get(type(effect))
            if action is not None:
                action(effect)

    def _tampered(self, fault: Fault, effects: Sequence[Effect | Later]) -> list[Effect | Later]:
        """What is put off already is not tampered with again."""
        result: list[Effect | Later] = [e for e in effects if isinstance(e, Later)]
        present: list[Effect] = [e for e in effects if not isinstance(e, Later)]
        done = fault.tamper(list(present), self.now())
        if self.tally is not None:
            self.tally.compare(present, done)
        return done + result

    def _on_send(self, effect: Send) -> None:
        message = effect.message
        if type(message) is self._voucher:
            self.telemetry.publications += self._count(message)
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
            self.feed(TimerFired(timer))
        else:
            self._postponed[timer] = None

    def _on_persist(self, effect: Persist) -> None:
        if self._store is None:
            self._persisted(effect)  # nobody promised durability: the node was given no store
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
        """Stop the machine's clock: timers wait until `release`, except for these."""
        if self._postponed is None:
            self._postponed, self._running = {}, running
            for watcher in self._watchers:
                watcher.on_held(self.now())

    def release(self) -> None:
        """Let the clock run on; timers that ran out get a moment for what peers say meanwhile."""
        if self._postponed is None:
            return
        postponed, self._postponed = self._postponed, None
        for watcher in self._watchers:
            watcher.on_released(self.now())
        for timer in postponed:
            self._on_set_timer(SetTimer(timer, AFTER_HOLD_MS))

    def adopt(self, epoch: Any, keyring: Keyring) -> None:
        """Go on in a new epoch with the same machine."""
        if isinstance(self.machine, Adopting):
            try:
                effects = self.machine.adopt(epoch, keyring)
                for watcher in self._watchers:
                    watcher.on_adopted(epoch, effects, self.now())
                self.carry_out(effects)
            except Exception as error:
                self._fail(error)

    def stop(self) -> None:
        """No event goes in any more, no timer fires."""
        self.stopped = True
        for handle in [*self._armed.values(), *self._later]:
            handle.cancel()
        self._armed.clear()
        self._due.clear()
        self._later.clear()
