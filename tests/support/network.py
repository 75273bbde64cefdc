"""A perfect network in memory: machines, their disks, a clock, messages that take `HOP_MS`.

Deterministic: what is due at the same time happens in the order in which it was caused. Nothing is
lost unless a test says so (`losses`); nothing is reordered. A disk keeps a record after `DISK_MS`.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Disconnected,
    Effect,
    Event,
    Forget,
    Machine,
    Persist,
    Persisted,
    R,
    Receive,
    Record,
    Restored,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)

HOP_MS = 10
DISK_MS = 2

#: Whether a message from a node to another is lost.
Loss = Callable[[NodeId, NodeId, Send], bool]
#: An event for a machine, or something that its surroundings do.
Due = Event | Callable[[], None]


class Disk:
    """Records by address, in the order in which they were first written."""

    def __init__(self) -> None:
        self.records: dict[tuple[type[Record], str, int | None], Record] = {}

    def keep(self, record: Record) -> None:
        self.records[type(record), record.owner, record.place] = record

    def forget(self, effect: Forget) -> None:
        gone = [
            (kind, owner, place)
            for kind, owner, place in self.records
            if (kind, owner) == (effect.kind, effect.owner)
            and effect.since <= (place or 0) < effect.below
        ]
        for address in gone:
            del self.records[address]

    # ------------------------------------------------ reading archived records

    def get(self, kind: type[R], owner: str, place: int) -> R | None:
        found = self.records.get((kind, owner, place))
        return found if isinstance(found, kind) else None

    def last(self, kind: type[R], owner: str, below: int) -> R | None:
        places = [place for place in self._places(kind, owner) if place < below]
        return self.get(kind, owner, max(places)) if places else None

    def first(self, kind: type[R], owner: str, since: int) -> R | None:
        places = [place for place in self._places(kind, owner) if place >= since]
        return self.get(kind, owner, min(places)) if places else None

    def owners(self, kind: type[Record]) -> list[str]:
        return list(dict.fromkeys(owner for known, owner, _ in self.records if known is kind))

    def _places(self, kind: type[Record], owner: str) -> list[int]:
        return [place or 0 for known, who, place in self.records if (known, who) == (kind, owner)]


class Network:
    """Machines and what is on its way between them."""

    def __init__(self, watch: Callable[[int, NodeId, Effect], None]) -> None:
        self.now = 0
        self.machines: dict[NodeId, Machine] = {}
        self.links: set[frozenset[NodeId]] = set()
        self.losses: list[Loss] = []
        self.disks: defaultdict[NodeId, Disk] = defaultdict(Disk)
        self._watch = watch
        #: What is due: when, in which order, at which node, what, and over which link.
        self._queue: list[tuple[int, int, NodeId, Due, frozenset[NodeId] | None]] = []
        self._order = 0
        self._timers: dict[tuple[NodeId, Timer], int] = {}
        #: What a node can send in a millisecond; None: everything.
        self.bytes_per_ms: int | None = None
        #: When each node will have sent all that it has to send.
        self._sent_at: defaultdict[NodeId, int] = defaultdict(int)
        #: Records on their way to each disk.
        self._writing: defaultdict[NodeId, deque[Persist]] = defaultdict(deque)

    # ----------------------------------------------------------------- links

    def connect(self, one: NodeId, other: NodeId) -> None:
        self.links.add(frozenset((one, other)))
        self.happen(one, Connected(other))
        self.happen(other, Connected(one))

    def disconnect(self, one: NodeId, other: NodeId) -> None:
        link = frozenset((one, other))
        self.links.discard(link)
        self._queue = [entry for entry in self._queue if entry[4] != link]
        heapq.heapify(self._queue)
        self.happen(one, Disconnected(other))
        self.happen(other, Disconnected(one))

    def cut_off(self, node: NodeId) -> None:
        """Cut every link of a node."""
        for other in list(self.machines):
            if frozenset((node, other)) in self.links:
                self.disconnect(node, other)

    # ----------------------------------------------------------------- lives

    def stop(self, node: NodeId) -> None:
        """A node dies; what it had not written is lost."""
        self.cut_off(node)
        del self.machines[node]
        self._writing[node].clear()
        self._queue = [entry for entry in self._queue if entry[2] != node]
        heapq.heapify(self._queue)
        for key in [key for key in self._timers if key[0] == node]:
            del self._timers[key]

    def restore(self, node: NodeId) -> None:
        """Give a new machine what its disk holds."""
        for record in list(self.disks[node].records.values()):
            if not record.archived:
                self.happen(node, Restored(record))

    # ---------------------------------------------------------------- events

    def happen(self, node: NodeId, event: Event) -> None:
        """Let a machine handle an event now."""
        if isinstance(event, Persisted):
            written = self._writing[node].popleft()
            self.disks[node].keep(written.record)
            self.carry_out(node, list(written.then))
        self.carry_out(node, self.machines[node].handle(event, Millis(self.now)))

    def carry_out(self, node: NodeId, effects: list[Effect]) -> None:
        for effect in effects:
            self._watch(self.now, node, effect)
            match effect:
                case Send():
                    self._send(node, effect)
                case SetTimer(timer=timer, after_ms=after_ms):
                    self._timers[node, timer] = self._push(
                        self.now + after_ms, node, TimerFired(timer), None
                    )
                case CancelTimer(timer=timer):
                    self._timers.pop((node, timer), None)
                case Persist(record=record):
                    self._writing[node].append(effect)
                    self._push(self.now + DISK_MS, node, Persisted(record), None)
                case Forget():
                    self.disks[node].forget(effect)
                case _:
                    pass

    def run(self, for_ms: int) -> None:
        """Let time pass."""
        until = self.now + for_ms
        while self._queue and self._queue[0][0] <= until:
            at, order, node, event, _ = heapq.heappop(self._queue)
            self.now = at
            if isinstance(event, TimerFired):
                if self._timers.get((node, event.timer)) != order:
                    continue
                del self._timers[node, event.timer]
            if callable(event):
                event()
            else:
                self.happen(node, event)
        self.now = until

    def later(self, after_ms: int, node: NodeId, act: Callable[[], None]) -> None:
        """Do something for a node after a while, unless it dies before."""
        self._push(self.now + after_ms, node, act, None)

    def reaches(self, node: NodeId, reader: NodeId, send: Send) -> bool:
        """Whether a message arrives."""
        linked = frozenset((node, reader)) in self.links
        return linked and not any(lost(node, reader, send) for lost in self.losses)

    def _send(self, node: NodeId, send: Send) -> None:
        for reader in send.to:
            if self.reaches(node, reader, send):
                event = Receive(node, send.message, send.bodies)
                at = self._sent(node, send) + HOP_MS
                self._push(at, reader, event, frozenset((node, reader)))

    def _sent(self, node: NodeId, send: Send) -> int:
        """When a message has left, after all that its sender has to send before."""
        if self.bytes_per_ms is not None:
            took_ms = sum(map(len, send.bodies)) // self.bytes_per_ms
            self._sent_at[node] = max(self.now, self._sent_at[node]) + took_ms
        return max(self.now, self._sent_at[node])

    def _push(self, at: int, node: NodeId, event: Due, link: frozenset[NodeId] | None) -> int:
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, node, event, link))
        return self._order
