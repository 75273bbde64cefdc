"""Names and numbers: who speaks, on which stream, about which publication."""

from __future__ import annotations

import enum
from functools import lru_cache
from struct import Struct
from typing import Annotated, NewType

import msgspec
from msgspec import Meta

from quorumcast.core.limits import MAX_NAME, MAX_RUN, MAX_SEATS

#: The name of a broker, publisher or subscriber, as the manifest has it ("broker-1", "alice").
NodeId = NewType("NodeId", str)
#: The name of a channel ("orders").
Channel = NewType("Channel", str)
#: A publication's place in its publisher's stream: 1, 2, 3, …
Number = NewType("Number", int)
#: Time of the driver's clock in milliseconds; machines never read a clock of their own.
Millis = NewType("Millis", int)
#: SHA-256 of a publication's contents: the one hash that is made of it.
Digest = NewType("Digest", bytes)

DIGEST_SIZE = 32
#: What brokers vote for where no event of a publication matches a predicate: no digest is zero.
NOTHING = Digest(bytes(DIGEST_SIZE))
#: The id of a predicate, or of all predicates that a node has on a channel.
PREDICATE_ID_SIZE = 16
#: Most digests for which a splitter is kept: a peer may send byte strings of any length.
_MOST_SPLIT = 2 * MAX_RUN

#: Integers from a peer are bounded where they are decoded: nothing later can overflow eight bytes.
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]


_SEATS = frozenset(str(seat) for seat in range(1, MAX_SEATS + 1))


def at_seat(client: NodeId, seat: int) -> NodeId:
    """The name of a client at one of its seats; seat 0 is the client itself."""
    return NodeId(f"{client}#{seat}") if seat else client


def holder(node: str) -> NodeId:
    """Whose keys and rights a node has: those of the client whose seat it takes, or its own.

    Processes that share an identity would displace one another; at seats each has a name, links
    and streams of its own.
    """
    client, _, seat = node.partition("#")
    return NodeId(client if seat in _SEATS else node)


#: Incarnations from here on are not the clock's: an application chose line and epoch (`resumable`).
_RESUMABLE = 1 << 61
_EPOCH_BITS = 30
MAX_LINE = MAX_LINE_EPOCH = (1 << _EPOCH_BITS) - 1


#: The last incarnation of a clock: however far ahead it is, so many more lives may follow.
MAX_INCARNATION = _RESUMABLE - (1 << 20)
#: The last incarnation after which another life can begin.
LAST_INCARNATION = _RESUMABLE - 4


def later_life(incarnation: int, known: int) -> int:
    """The incarnation of a life that is later than both of these; even, as whatever is not urgent.

    A life has two incarnations: an even one, and the odd one after it for what is urgent.
    """
    return ((max(incarnation, known) >> 1) + 1) << 1


def resumable(line: int, epoch: int) -> int:
    """The incarnation of one epoch of a line: a publisher that names both again resumes it.

    Within a line a later epoch ends the earlier ones. Even, as whatever is not urgent.
    """
    return _RESUMABLE | line << _EPOCH_BITS + 1 | epoch << 1


class Lane(enum.IntEnum):
    """Each stream has two lanes: what was published, and the histories that vouch for it."""

    DATA = 0
    HISTORY = 1


#: The name under which a cell itself publishes: the stream of a channel's total order.
CELL = NodeId("*")


class Stream(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One publisher's numbered sequence on one channel.

    `incarnation` tells the runs of one publisher apart: a publisher that restarts without its
    memory starts a new stream at number 1 instead of re-using numbers, which would make an honest
    restart look like equivocation.
    """

    channel: Annotated[Channel, Meta(max_length=MAX_NAME)]
    publisher: Annotated[NodeId, Meta(max_length=MAX_NAME)]
    incarnation: Count
    lane: Lane = Lane.DATA

    @property
    def data(self) -> Stream:
        """The lane that carries what was published."""
        return self if self.lane is Lane.DATA else msgspec.structs.replace(self, lane=Lane.DATA)

    @property
    def history(self) -> Stream:
        """The lane that carries the histories of this stream."""
        if self.lane is Lane.HISTORY:
            return self
        return msgspec.structs.replace(self, lane=Lane.HISTORY)

    @property
    def line(self) -> int | None:
        """The line that this stream is an epoch of; None if the clock chose its incarnation."""
        if self.incarnation < _RESUMABLE:
            return None
        return self.incarnation >> _EPOCH_BITS + 1 & MAX_LINE

    def spoken_by(self, node: NodeId) -> bool:
        """Whether a node may speak as the publisher of this stream.

        Resumed streams belong to a client, whichever seat it takes this time.
        """
        return node == self.publisher or (
            self.line is not None and "#" in node and holder(node) == self.publisher
        )

    @property
    def life(self) -> int:
        """What the two streams of one life of a publisher have in common; it grows with lives."""
        return self.incarnation >> 1

    @property
    def urgent(self) -> bool:
        """Whether this is the stream on which its publisher overtakes itself: an odd incarnation.

        The one before it is the publisher's other stream of the same life.
        """
        return bool(self.incarnation & 1)

    def __str__(self) -> str:
        suffix = "" if self.lane is Lane.DATA else "/history"
        return f"{self.channel}/{self.publisher}@{self.incarnation}{suffix}"


#: The stream on which a cell orders its own manifests; the numbers are epochs.
EPOCHS = Stream(Channel(CELL), CELL, 0)
#: The stream on which a log orders the lives of its brokers, from which it gets its id.
GENESIS = Stream(Channel(CELL), CELL, 1)


def total_order(channel: Channel) -> Stream:
    """The stream whose numbers are the positions of a channel's total order."""
    return Stream(channel, CELL, 0)


def split_digests(digests: bytes) -> list[Digest]:
    """The digests of a run, which travel as one byte string; the last part may be too short."""
    count, rest = divmod(len(digests), DIGEST_SIZE)
    if rest or count > _MOST_SPLIT:
        return [Digest(digests[i : i + DIGEST_SIZE]) for i in range(0, len(digests), DIGEST_SIZE)]
    return list(_splitter(count).unpack(digests))


@lru_cache(128)
def _splitter(count: int) -> Struct:
    """Splits so many digests: in one call, where slicing them takes twenty times as long."""
    return Struct(f"{DIGEST_SIZE}s" * count)
