"""A broker's relayed channels: what its uplinks accepted goes into streams that it serves.

Only the broker's own uplink, or f+1 other brokers (`recovery`), can bring a relayed stream: nobody
in this cell publishes on it.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Cursor
from quorumcast.broadcast.relayed import (
    Attach,
    Follow,
    RelayCarrier,
    Relayed,
    RelayedGap,
    RelayEvent,
)
from quorumcast.cell.serving.journal import Journal
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import DIGEST_SIZE, Stream, split_digests
from quorumcast.core.machine import Drop, DropReason, Effect
from quorumcast.manifest.view import View


class Relays:
    """The relayed channels of one broker."""

    __slots__ = ("_journal", "_served", "_view")

    def __init__(self, view: View, served: ServedStreams, journal: Journal) -> None:
        self._view = view
        self._served = served
        self._journal = journal

    def handle(self, event: RelayEvent) -> tuple[ServedStream | None, list[Effect]]:
        """Take an event of an uplink; returns the stream that it concerns, and what follows."""
        match event:
            case Attach(channel=channel):
                return None, [Follow(channel, self._cursors(channel))]
            case Relayed(stream=stream) if not self._contradicts(event):
                served = self._open(stream)
                if served is None or not isinstance(served.carrier, RelayCarrier):
                    return None, []
                effects = served.carrier.take(event)
            case RelayedGap(stream=stream, upto=upto):
                served = self._open(stream)
                if served is None or not isinstance(served.carrier, RelayCarrier):
                    return None, []
                served.carrier.resume(upto + 1)
                effects = []
            case Relayed(stream=stream):
                return None, [Drop(DropReason.CONFLICT, stream.publisher)]
            case _:
                return None, []
        # It counts as genuine from now on, which may make it one too many.
        return self._open(stream), effects

    def _open(self, stream: Stream) -> ServedStream | None:
        """The stream of a relayed channel; None if it is over, or the channel is not one."""
        entry = self._view.channel(stream.channel)
        if entry is None or not entry.policy.relayed:
            return None
        served = self._served.get(stream)
        if served is not None and served.genuine:
            return served
        return self._served.open(stream, entry, self._view.me)

    def _contradicts(self, run: Relayed) -> bool:
        """Whether this broker vouched for something else in an earlier life."""
        journaled = self._journal.digests(run.stream, run.first, len(run.digests) // DIGEST_SIZE)
        said = split_digests(run.digests)
        return any(
            known not in (None, digest) for known, digest in zip(journaled, said, strict=True)
        )

    def _cursors(self, channel: str) -> tuple[Cursor, ...]:
        """Where this broker goes on with the streams of which it holds something."""
        return tuple(
            Cursor(served.stream, served.carrier.ledger.next)
            for served in self._served.all()
            if served.stream.channel == channel and len(served.carrier.ledger)
        )
