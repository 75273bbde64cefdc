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
from quorumcast.core.ids import DIGEST_SIZE, Lane, NodeId, Stream
from quorumcast.core.machine import Receive

#: Bytes of votes, with their contents, that are kept of each broker.
EARLY_BYTES = 256 * 1024
#: What a vote takes beside digests and contents, and so does each broker that it names.
OVERHEAD = 512


class NewStreams:
    """Streams (data lanes) of one channel that are named and not followed yet."""

    __slots__ = ("_named", "fresh", "votes")

    def __init__(self) -> None:
        #: Which brokers have named a stream; of each publisher at most as many streams by each
        #: broker as a correct one may know of.
        self._named: dict[Stream, dict[NodeId, None]] = {}
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

    def name(self, broker: NodeId, data: Stream, enough: int) -> bool:
        """Note that a broker named a stream; True if it is followed from now on."""
        named = self._named.setdefault(data, {})
        named[broker] = None
        if len(named) < enough:
            return False
        self.fresh[data] = self._named.pop(data)
        return True

    def limit(self, broker: NodeId, publisher: NodeId | None, most: int) -> None:
        """Forget the oldest streams of a publisher, or of all, that a broker has named."""
        mine = [
            stream
            for stream, named in self._named.items()
            if broker in named and publisher in (None, stream.publisher)
        ]
        for stale in mine[: max(0, len(mine) - most)]:
            self.votes.forget(broker, stale)
            del self._named[stale][broker]
            if not self._named[stale]:
                del self._named[stale]

    def retain(self, brokers: Collection[NodeId]) -> None:
        """Go on with the members of a new epoch."""
        self.votes.clear()
        for data, named in list(self._named.items()):
            self._named[data] = {broker: None for broker in named if broker in brokers}
            if not self._named[data]:
                del self._named[data]

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
