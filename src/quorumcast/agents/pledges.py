"""Pledges: what a broker vouched for before a restart, by its journal, and never contradicts."""

from __future__ import annotations

from quorumcast.broadcast.signed_history import read_history
from quorumcast.core.ids import Lane, Stream, split_digests
from quorumcast.core.machine import Receive, Record
from quorumcast.core.messages import ChainRun, Publish


class Vouched(Record, frozen=True, tag=True):
    """This broker is about to vouch for a run and must never vouch for another in its place."""

    stream: Stream
    first: int
    digests: bytes


class Pledges:
    """Digests by stream and number."""

    __slots__ = ("_by_stream",)

    def __init__(self) -> None:
        #: As many of each stream as are retained.
        self._by_stream: dict[Stream, dict[int, bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_stream)

    def __len__(self) -> int:
        return sum(map(len, self._by_stream.values()))

    def remember(self, record: Vouched, retained: int) -> None:
        """What the journal says; of the newest publications, as many as are retained."""
        pledges = self._by_stream.setdefault(record.stream, {})
        pledges.update(enumerate(split_digests(record.digests), record.first))
        for stale in sorted(pledges)[:-retained]:
            del pledges[stale]

    def of(self, stream: Stream, first: int, count: int) -> list[bytes | None]:
        """What this broker vouched for in a range; None where it does not know."""
        pledges = self._by_stream.get(stream, {})
        return [pledges.get(number) for number in range(first, first + count)]

    def broken_by(self, event: Receive, data: Stream) -> bool:
        """Whether a run, or a history, denies what was vouched for before a restart."""
        message, pledges = event.message, self._by_stream.get(data)
        if not pledges or not isinstance(message, Publish | ChainRun):
            return False
        first, digests = message.first, message.digests
        if message.stream.lane is Lane.HISTORY:
            found = read_history(event.bodies[0], data) if event.bodies else None
            if found is None:
                return False
            first, digests = found[1].first, found[1].digests
        return any(
            pledges.get(number, digest) != digest
            for number, digest in enumerate(split_digests(digests), first)
        )
