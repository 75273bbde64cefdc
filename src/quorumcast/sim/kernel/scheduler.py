"""Deterministic virtual time: a heap of actions, one random generator and a running trace hash.

Every event of a simulation is an action on this heap. Actions of the same millisecond run in the
order in which they were scheduled, and every random choice comes from `rng`, so a seed determines
the whole run. The trace hash covers everything observable: equal seeds give equal hashes on every
machine and under every PYTHONHASHSEED. So no code of the simulator iterates a set.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable

from quorumcast.core.ids import Millis

Action = Callable[[], None]


class Scheduler:
    """The clock and event queue of a world."""

    __slots__ = ("_hash", "_heap", "_sequence", "now", "rng", "steps")

    def __init__(self, seed: int | str) -> None:
        self.now = Millis(0)
        self.rng = random.Random(seed)
        #: Actions carried out so far.
        self.steps = 0
        #: (due, sequence, action); the sequence breaks ties by age.
        self._heap: list[tuple[int, int, Action]] = []
        self._sequence = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def after(self, delay_ms: int, action: Action) -> None:
        """Schedule an action after a delay (0: after all actions that are due already)."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + max(delay_ms, 0), self._sequence, action))

    def run_until(self, until: int, max_steps: int = 1_000_000) -> None:
        """Run all actions due until this time, but at most `max_steps`."""
        budget = self.steps + max_steps
        heap = self._heap
        while heap and heap[0][0] <= until and self.steps < budget:
            due, _, action = heapq.heappop(heap)
            self.now = Millis(due)
            self.steps += 1
            action()
        self.now = Millis(max(self.now, until))

    def fork(self, purpose: str) -> random.Random:
        """A separate generator for one purpose, so that its draws do not shift other draws."""
        return random.Random(f"{purpose}/{self.rng.getrandbits(64)}")

    def note(self, data: bytes) -> None:
        """Add an observable event to the trace hash."""
        self._hash.update(self.now.to_bytes(8, "big"))
        self._hash.update(data)

    @property
    def trace_hash(self) -> str:
        """The hash of all observable events so far."""
        return self._hash.hexdigest()
