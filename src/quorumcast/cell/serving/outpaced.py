"""Streams of which it may turn out yet that enough peers hold what is lacking: they may be late.

A broker that restarts is told by each peer what it holds. Of a stream that its publisher has not
opened here again, and that too few peers speak of to be believed, it cannot tell whether it forgot
it or somebody lies. The publisher may be about to bring it to the other peers; if it is taken for a
lie at once, and the next broker restarted, it is lost. So it is waited for, for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from quorumcast.cell.serving.desks import Desks
from quorumcast.cell.serving.holdings import Holdings
from quorumcast.cell.serving.lost_range import own_words
from quorumcast.cell.serving.pledges import Pledges
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.manifest.manifest import ChannelEntry

#: Ticks that a publisher has to open its stream, or to go on with it, before peers are asked.
GRACE = 6
#: Ticks in which a stream that moves must get where enough peers were: a publisher that lies may
#: show this broker a little now and then, and keep it behind for ever.
MOVING_GRACE = 2 * GRACE


class Pace(msgspec.Struct, frozen=True):
    """Where a stream is, and since when it has not come further."""

    #: The next number, and for how many ticks it has been that.
    at: int
    still: int = 0
    #: Where enough peers were, and for how many ticks it has not come there.
    goal: int = 0
    late: int = 0

    def tick(self, at: int, end: int) -> Pace:
        """A while later: the next number here, and where enough peers end."""
        still = self.still + 1 if at == self.at else 0
        late = self.late + 1 if at < self.goal else 0
        return Pace(at, still, self.goal if late else end, late)

    @property
    def stands(self) -> bool:
        """Whether it does not move by itself."""
        return self.still >= GRACE

    @property
    def lags(self) -> bool:
        """Whether it does not get by itself where others are."""
        return self.stands or self.late >= MOVING_GRACE


#: Ticks after which peers are not waited for any longer.
UNANSWERED = 20


class Outpaced:
    """What one broker waits for without knowing whether it is there."""

    __slots__ = ("_desks", "_entry", "_holdings", "_pledges", "_reached", "_rumours", "_ticks")

    def __init__(
        self,
        desks: Desks,
        holdings: Holdings,
        pledges: Pledges,
        entry: Callable[[Stream], ChannelEntry | None],
    ) -> None:
        self._desks = desks
        self._holdings = holdings
        self._pledges = pledges
        self._entry = entry
        #: For how many ticks each has been waited for while its peers came no further.
        self._ticks: dict[Stream, int] = {}
        #: How far they ever were, all together.
        self._reached: dict[Stream, int] = {}
        #: Streams of peers' first accounts, as long as they may be what this broker forgot; of each
        #: peer, channel and publisher at most streams_per_publisher.
        self._rumours: dict[Stream, None] = {}

    def hear_first(self, streams: Iterable[Stream]) -> None:
        """What a peer speaks of on a channel when it is asked first.

        Not later, when a liar could name others for ever; nor more than a correct broker can have.
        """
        named: dict[NodeId, int] = {}
        for stream in streams:
            entry = self._entry(stream)
            count = named[stream.publisher] = named.get(stream.publisher, 0) + 1
            if stream.lane is Lane.HISTORY:
                continue
            if entry is not None and count <= entry.policy.limits.streams_per_publisher:
                self._rumours[stream] = None

    def now(self) -> dict[Stream, None]:
        """The streams that are waited for."""
        return {stream: None for stream in self._known() if self.includes(stream)}

    def includes(self, stream: Stream) -> bool:
        """Whether peers may still turn out to hold what is lacking of a stream."""
        entry, desk = self._entry(stream), self._desks.get(stream.data)
        if entry is None or self._ticks.get(stream, 0) >= UNANSWERED:
            return False
        if desk is None or not desk.ledger(stream.lane).begun:
            known = stream.lane is Lane.HISTORY or self._desks.over(stream)
            return self._holdings.believed(entry, stream) and not known
        carrier = desk.lane(stream.lane)
        end = carrier.final_from
        own = own_words(entry, self._pledges, stream, end)
        return end > carrier.ledger.floor and not self._holdings.reach(entry, stream, end, own)

    def watch(self, streams: Iterable[Stream], every: int) -> bool:
        """A tick has passed for these; True if peers are to be asked again about one of them.

        That is at the first tick, and after `every` more.
        """
        due = False
        for stream in streams:
            if self.includes(stream):
                waited = 0 if self._comes_closer(stream) else self._ticks.get(stream, 0)
                ticks = self._ticks[stream] = waited + 1
                due |= ticks % every == 1 and ticks < UNANSWERED
            else:
                self._rumours.pop(stream, None)
        return due

    def _comes_closer(self, stream: Stream) -> bool:
        """Whether peers have come closer than ever to where this broker begins.

        One that is far from the publisher may take long, and must not be taken for one that never
        comes. What liars claim ends where this broker begins.
        """
        desk = self._desks.get(stream.data)
        end = 0 if desk is None else desk.lane(stream.lane).final_from
        reached = sum(min(word.next, end) for word in self._holdings.of(stream).values())
        closer = reached > self._reached.get(stream, 0)
        if closer:
            self._reached[stream] = reached
        return closer

    def known(self) -> dict[Stream, None]:
        """Streams that this broker or a peer has, or may have; others are forgotten."""
        known = self._known()
        self._ticks = {stream: ticks for stream, ticks in self._ticks.items() if stream in known}
        self._reached = {stream: n for stream, n in self._reached.items() if stream in known}
        return known

    def _known(self) -> dict[Stream, None]:
        """Streams that this broker or a peer has, or may have."""
        mine = [stream for desk in self._desks.all() for stream, _ in desk.lanes()]
        return dict.fromkeys((*mine, *self._holdings.streams(), *self._rumours))
