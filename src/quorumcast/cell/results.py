"""The results of predicates on the newest runs, kept so that nothing is evaluated twice.

A subscriber that makes no progress asks again, and most subscribers do so when a broker is busiest.
The results that groups were sent for the newest runs are kept, up to `MOST_BYTES` bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from quorumcast.broadcast.ledger import StoredRun
from quorumcast.core.ids import DIGEST_SIZE, Stream

if TYPE_CHECKING:
    from quorumcast.matching.selection import Selected

#: Bytes that may be kept, about, and what each run, group and match takes beside its contents.
MOST_BYTES = 16 * 1024 * 1024
RESULT_BYTES = 512


class EvaluatedRun(msgspec.Struct, frozen=True, eq=False):
    """A run, and the results for groups, by predicate id."""

    stream: Stream
    first: int
    digests: bytes
    selected: dict[bytes, Selected]
    #: Bytes that it keeps in memory.
    size: int

    @property
    def stop(self) -> int:
        """The number after its last one."""
        return self.first + len(self.digests) // DIGEST_SIZE


class KnownResult(msgspec.Struct):
    """The results for one group at consecutive numbers."""

    count: int = 0
    #: The numbers that match, counted from the first; the value of each, and what to send.
    places: list[int] = msgspec.field(default_factory=list)
    values: list[bytes] = msgspec.field(default_factory=list)
    bodies: list[bytes] = msgspec.field(default_factory=list)

    def add(self, selected: Selected, skip: int, count: int) -> None:
        """Add so many numbers of a run, behind those that are skipped."""
        for place in selected.places:
            if skip <= place < skip + count:
                self.places.append(self.count + place - skip)
                self.values.append(selected.vote(place))
                self.bodies.append(selected.body(place))
        self.count += count


class KnownResults:
    """The newest evaluated runs of all streams."""

    __slots__ = ("_by_stream", "_runs", "_size")

    def __init__(self) -> None:
        #: The oldest first.
        self._runs: deque[EvaluatedRun] = deque()
        self._by_stream: dict[Stream, deque[EvaluatedRun]] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._runs)

    def note(self, stream: Stream, held: StoredRun, selected: dict[bytes, Selected]) -> None:
        """Keep the results on a run."""
        # The rows of a cut stay in memory with the publication, which was copied to be decoded.
        size = 2 * sum(map(len, held.bodies)) + RESULT_BYTES * (1 + len(selected))
        for one in {id(one): one for one in selected.values()}.values():
            size += one.cut_bytes + len(one.votes) + RESULT_BYTES * len(one.places)
        run = EvaluatedRun(stream, held.first, held.digests, selected, size)
        self._runs.append(run)
        self._by_stream.setdefault(stream, deque()).append(run)
        self._size += size
        while self._size > MOST_BYTES:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._runs.popleft()
        self._size -= oldest.size
        there = self._by_stream[oldest.stream]
        there.popleft()
        if not there:
            del self._by_stream[oldest.stream]

    def find(self, name: bytes, stream: Stream, held: StoredRun) -> KnownResult | None:
        """The results that are known for the beginning of a held run; None if there are none."""
        at, stop = held.first, held.stop
        found = KnownResult()
        runs = self._by_stream.get(stream, ())
        # Nearly all come in order. Where they do not, less is found.
        begin = bisect_right(runs, at, key=lambda run: run.first)
        for place in range(max(0, begin - 1), len(runs)):
            run = runs[place]
            selected = run.selected.get(name)
            if not run.first <= at < min(run.stop, stop) or selected is None:
                break
            skip, count = at - run.first, min(run.stop, stop) - at
            before = at - held.first
            known = run.digests[skip * DIGEST_SIZE : (skip + count) * DIGEST_SIZE]
            if known != held.digests[before * DIGEST_SIZE : (before + count) * DIGEST_SIZE]:
                break
            found.add(selected, skip, count)
            at += count
        return found if found.count else None
