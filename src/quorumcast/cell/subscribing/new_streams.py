"""The streams of a channel that too few brokers have named yet, and the first votes on them.

A stream is followed once f+1 brokers have named it, mostly by voting on it. The votes until then
are kept and counted afterwards. Otherwise every new stream would cost a request to all brokers, and
its first publication would wait for their answers.

Each broker has room of its own, in which its newest streams displace its oldest. A lying broker
that votes on streams that do not exist displaces nothing of others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable

import msgspec

from quorumcast.broadcast.messages import Matches
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import DIGEST_SIZE, Lane, NodeId, Stream, holder
from quorumcast.core.machine import Receive

#: Bytes of votes, with their contents, that are kept of each broker.
EARLY_BYTES = 256 * 1024
#: What a vote takes beside digests and contents, and so does each broker that it names.
OVERHEAD = 512


class NewStreams:
    """Streams (data lanes) of one channel that are named and not followed yet."""

    __slots__ = ("_by_broker", "_named", "_per_publisher", "fresh", "votes")

    def __init__(self, *, per_publisher: bool) -> None:
        #: Which brokers have named a stream.
        self._named: dict[Stream, dict[NodeId, None]] = {}
        #: What each broker has named, the oldest first. For each publisher apart: one that opens
        #: streams without end at single brokers must not use up what these may name of others. On a
        #: relayed channel any identity may be a publisher, so there it is for all of them.
        self._by_broker: dict[tuple[NodeId, NodeId | None], dict[Stream, None]] = {}
        self._per_publisher = per_publisher
        #: Their votes.
        self.votes = EarlyVotes()
        #: Those that are followed since the last `take`, and which brokers had named them.
        self.fresh: dict[Stream, dict[NodeId, None]] = {}

    def __len__(self) -> int:
        """The number of streams."""
        return len(self._named)

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"named": len(self._named), "early": len(self.votes)}

    def name(self, broker: NodeId, data: Stream, enough: int, most: int) -> bool:
        """Note that a broker named a stream; True if it is followed from now on.

        Of the streams that it named alone the oldest beyond `most` are forgotten.
        """
        named = self._named.setdefault(data, {})
        named[broker] = None
        mine = self._by_broker.setdefault(self._key(broker, data), {})
        mine[data] = None
        if len(named) >= enough:  # also if the broker named it when more were needed
            self.fresh[data] = dict(named)
            for namer in self.fresh[data]:
                self._unname(namer, data)
            return True
        while len(mine) > most:
            oldest = next(iter(mine))
            self.votes.forget(broker, oldest)
            self._unname(broker, oldest)
        return False

    def retain(self, brokers: Collection[NodeId]) -> None:
        """Go on with the members of a new epoch."""
        self.votes.clear()
        for broker, stream in [(b, s) for (b, _), mine in self._by_broker.items() for s in mine]:
            if broker not in brokers:
                self._unname(broker, stream)

    def _key(self, broker: NodeId, data: Stream) -> tuple[NodeId, NodeId | None]:
        return broker, NodeId(holder(data.publisher)) if self._per_publisher else None

    def _unname(self, broker: NodeId, data: Stream) -> None:
        key = self._key(broker, data)
        del self._named[data][broker], self._by_broker[key][data]
        if not self._named[data]:
            del self._named[data]
        if not self._by_broker[key]:
            del self._by_broker[key]

    def take(self, followed: Iterable[Stream]) -> tuple[list[Receive], list[Stream]]:
        """The votes kept of what is `fresh`, and the streams to ask brokers for.

        Of those that are followed these are the ones of which brokers cast votes that were not
        kept. And all lives of a publisher that has begun another one, so that none is given up
        before it is complete.
        """
        votes: list[Receive] = []
        unsure: dict[NodeId, None] = {}
        followed = list(followed)
        lives = Counter(stream.publisher for stream in followed if stream.lane is Lane.DATA)
        for data, namers in self.fresh.items():
            kept, complete = self.votes.take(data, namers)
            votes += kept
            if not complete or lives[data.publisher] > 1:
                unsure[data.publisher] = None
        self.fresh.clear()
        return votes, [stream for stream in followed if stream.publisher in unsure]


class Kept(msgspec.Struct):
    """The votes of a broker on one stream, from number 1 on, and what it votes on next."""

    votes: list[Receive]
    next: dict[Lane, int]


class EarlyVotes:
    """The votes on streams of one channel that are not followed yet."""

    __slots__ = ("_kept", "_room")

    def __init__(self) -> None:
        #: By broker and data lane. A stream is missing if a vote on it was lost or displaced.
        self._kept: dict[NodeId, OrderedDict[Stream, Kept]] = {}
        #: The bytes that each broker has left.
        self._room: dict[NodeId, int] = {}

    def __len__(self) -> int:
        """The number of votes."""
        return sum(len(one.votes) for kept in self._kept.values() for one in kept.values())

    def keep(self, event: Receive) -> None:
        """Keep a vote, unless its broker has voted on what lies before it and that is not here."""
        vote, broker = event.message, event.sender
        if not isinstance(vote, Vote | Matches):
            return
        kept, data = self._kept.setdefault(broker, OrderedDict()), vote.stream.data
        if data not in kept and vote.first == 1 and vote.stream.lane is Lane.DATA:
            kept[data] = Kept([], dict.fromkeys(Lane, 1))
        known = kept.get(data)
        if known is None:
            return
        if vote.first > known.next[vote.stream.lane]:
            self.forget(broker, data)
            return
        count = vote.count if isinstance(vote, Matches) else len(vote.digests) // DIGEST_SIZE
        known.votes.append(event)
        known.next[vote.stream.lane] = max(known.next[vote.stream.lane], vote.first + count)
        self._room[broker] = self._room.get(broker, EARLY_BYTES) - _size(event)
        while self._room[broker] < 0:
            self.forget(broker, next(iter(kept)))

    def take(self, data: Stream, namers: Iterable[NodeId]) -> tuple[list[Receive], bool]:
        """The votes on a stream that is followed now; whether all that `namers` cast are there."""
        taken = {broker: self.forget(broker, data) for broker in self._kept}
        complete = all(taken.get(namer) for namer in namers)
        return [vote for votes in taken.values() for vote in votes], complete

    def clear(self, broker: NodeId | None = None) -> None:
        """Keep nothing of a broker, or of all: it may cast votes again, or lose some."""
        for gone in [*self._kept] if broker is None else [broker]:
            self._kept.pop(gone, None)
            self._room.pop(gone, None)

    def forget(self, broker: NodeId, data: Stream) -> list[Receive]:
        """Keep no votes of a broker on a stream any more; returns those that were kept."""
        known = self._kept.get(broker, OrderedDict()).pop(data, None)
        if known is None:
            return []
        if known.votes:
            self._room[broker] += sum(map(_size, known.votes))
        return known.votes


def _size(event: Receive) -> int:
    match event.message:
        case Vote(digests=digests, order=order, vouchers=vouchers):
            return OVERHEAD * (1 + len(order) + len(vouchers)) + len(digests) + _length(event)
        case Matches(values=values):
            return OVERHEAD + len(values) + _length(event)
        case _:
            return OVERHEAD


def _length(event: Receive) -> int:
    return sum(map(len, event.bodies))
