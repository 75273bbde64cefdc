"""A perfect network in memory: machines, a clock, messages that all arrive after `HOP_MS`.

Deterministic: what is due at the same time happens in the order in which it was caused. Nothing is
lost unless a test says so (`rules`); nothing is reordered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Disconnected,
    Effect,
    Event,
    Machine,
    Persist,
    Receive,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)

HOP_MS = 10

#: Whether a message from a node to another is lost.
Loss = Callable[[NodeId, NodeId, Send], bool]


class Network:
    """Machines and what is on its way between them."""

    def __init__(self, watch: Callable[[int, NodeId, Effect], None]) -> None:
        self.now = 0
        self.machines: dict[NodeId, Machine] = {}
        self.links: set[frozenset[NodeId]] = set()
        self.losses: list[Loss] = []
        self._watch = watch
        self._queue: list[tuple[int, int, NodeId, Event, frozenset[NodeId] | None]] = []
        self._order = 0
        self._timers: dict[tuple[NodeId, Timer], int] = {}

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

    def happen(self, node: NodeId, event: Event) -> None:
        """Let a machine handle an event now."""
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
                case Persist(then=then):
                    self.carry_out(node, list(then))
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
            self.happen(node, event)
        self.now = until

    def _send(self, node: NodeId, send: Send) -> None:
        for reader in send.to:
            link = frozenset((node, reader))
            if link not in self.links or any(lost(node, reader, send) for lost in self.losses):
                continue
            self._push(self.now + HOP_MS, reader, Receive(node, send.message, send.bodies), link)

    def _push(self, at: int, node: NodeId, event: Event, link: frozenset[NodeId] | None) -> int:
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, node, event, link))
        return self._order
