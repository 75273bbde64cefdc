"""What a broker lacks of the streams of its peers: the ranges after and before what it holds.

Ranges that could not be fetched are left out until a peer reports something new.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.cell.serving.journal import Journal
from quorumcast.cell.serving.recovering.holdings import Holdings, own_report, recoverable
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import Lane, Stream
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View


class Lacks:
    """What one broker lacks, by what its peers have reported."""

    __slots__ = ("_failed", "_given_up", "_holdings", "_journal", "_served", "_view")

    def __init__(
        self, view: View, served: ServedStreams, journal: Journal, holdings: Holdings
    ) -> None:
        self._view = view
        self._served = served
        self._journal = journal
        self._holdings = holdings
        #: Streams for which nothing can be fetched before, or after (True), what is held, for now.
        self._given_up: dict[tuple[Stream, bool], None] = {}
        #: Streams that are served, of which the range before what is held was given up before.
        self._failed: dict[Stream, None] = {}

    def give_up(self, stream: Stream, *, after: bool) -> None:
        """Note that nothing can be fetched after, or before, what is held of a stream."""
        self._given_up[stream, after] = None
        if not after:
            self._failed = {s: None for s in self._failed if self._served.get(s.data)}
            self._failed[stream] = None

    def try_again(self, streams: Iterable[Stream]) -> None:
        """Peers have reported something new of these."""
        for stream in streams:
            self._given_up.pop((stream, False), None)
            self._given_up.pop((stream, True), None)

    def has_failed(self, stream: Stream) -> bool:
        """Whether peers did not bring what they seemed to hold before what this broker holds."""
        return (stream, False) in self._given_up

    def is_late(self, stream: Stream) -> bool:
        """Whether peers have something of a stream that this broker lacks."""
        return bool(self.wanted(stream)) or self._holdings.ahead_of(self._served.get(stream))

    def entry(self, stream: Stream) -> ChannelEntry | None:
        """The channel of a lane that a broker can fetch from peers from the beginning.

        Histories also on a chain: every broker that delivered one may vote on it.
        """
        entry = self._view.channel(stream.channel)
        if entry is None or not (recoverable(entry) or stream.lane is Lane.HISTORY):
            return None
        return entry

    def expected(self, stream: Stream) -> bool:
        """Whether subscribers may wait for what peers hold and this broker does not.

        They do not wait for a second attempt: liars may claim for ever to hold what comes before.
        """
        if self.ahead(stream) is not None:
            return True
        return stream not in self._failed and self.before(stream) is not None

    def wanted(self, stream: Stream) -> tuple[int, int] | None:
        """What peers hold and this broker does not, after or before what it holds."""
        return self.ahead(stream) or self.before(stream)

    def ahead(self, stream: Stream) -> tuple[int, int] | None:
        """The range after what is held, first and one past the last."""
        entry, served = self._view.channel(stream.channel), self._served.get(stream.data)
        if entry is None or (stream, True) in self._given_up:
            return None
        if served is not None and served.continues(stream.lane):
            carrier = served.lane(stream.lane)
            held, end = carrier.front, self._holdings.end(entry, stream)
            if stream.lane is Lane.DATA and not recoverable(entry):
                # A broker outside the chain lacks everything; one that restarts, only the past.
                end = min(end, carrier.ledger.unrepeated)
        else:
            if stream.lane is Lane.HISTORY or not recoverable(entry):
                return None
            if served is None and self._served.over(stream):
                return None
            held = 1 if served is None else served.carrier.ledger.next
            end = self._holdings.boundary(entry, stream)
        return (held, end) if end > held else None

    def before(self, stream: Stream) -> tuple[int, int] | None:
        """The range before what is held, as far as it would be retained."""
        entry, served = self.entry(stream), self._served.get(stream.data)
        if entry is None or served is None or (stream, False) in self._given_up:
            return None
        carrier = served.lane(stream.lane)
        ledger, end = carrier.ledger, carrier.final_from
        own = own_report(entry, self._journal, stream, end)
        first = max(self._holdings.beginning(entry, stream, end, own), ledger.floor)
        if first < end:
            first = max(first, end - ledger.room)
        return (first, end) if first < end else None
