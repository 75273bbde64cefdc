"""The messages by which publications travel, between publishers, brokers and subscribers.

The unit of all protocols is the *run*: consecutive publications of one stream, `first` and their
digests as one byte string. A run of one is the normal case at low load.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.core import limits
from quorumcast.core.ids import (
    DIGEST_SIZE,
    PREDICATE_ID_SIZE,
    Count,
    Positive,
    Stream,
)
from quorumcast.core.message import Digests, Message, NodeName, Order, RunDigest

#: The id of what a node asks of a channel (`matching.filter`); b"" for everything.
PredicateId = Annotated[bytes, Meta(max_length=PREDICATE_ID_SIZE)]
#: A number of a run, counted from its first.
Place = Annotated[int, Meta(ge=0, lt=limits.MAX_RUN)]


class Open(Message, frozen=True, array_like=True):
    """I publish on this stream and still hold publications from `base` on.

    The broker itself has done its part for everything before `fresh`: if it has lost its memory it
    goes on there. (Not where enough *others* hold everything: f of those may be lying.)
    """

    stream: Stream
    base: Positive
    fresh: Positive


class Publish(Message, frozen=True, array_like=True):
    """A run, with its bodies (Freeman's SEND)."""

    stream: Stream
    first: Positive
    digests: Digests


class Voucher(msgspec.Struct, frozen=True, array_like=True):
    """A chain broker's MAC over a run for one node further down the chain."""

    author: NodeName
    reader: NodeName
    mac: Annotated[bytes, Meta(max_length=64)]


class ChainRun(Message, frozen=True, array_like=True):
    """A run on its way down the chain `order`, with its bodies and the MACs still needed."""

    stream: Stream
    first: Positive
    digests: Digests
    order: Order
    vouchers: Annotated[tuple[Voucher, ...], Meta(max_length=limits.MAX_VOUCHERS)]


class Ack(Message, frozen=True, array_like=True):
    """I hold every number up to `upto`; you may send up to `credit`.

    Of a resumed stream, `chain` stands for what I hold; without credit it is over.
    """

    stream: Stream
    upto: Count
    credit: Count
    #: Covered by history, and what subscribers learned only from history.
    settled: Count = 0
    missed: Count = 0
    chain: Annotated[bytes, Meta(max_length=32)] = b""


class Outlived(Message, frozen=True, array_like=True):
    """I do not begin this stream: the newest life of yours that I know is later than it."""

    stream: Stream
    newest: Count


class Echo(Message, frozen=True, array_like=True):
    """Bracha: this is the run that I was sent."""

    stream: Stream
    first: Positive
    run: RunDigest


class Ready(Message, frozen=True, array_like=True):
    """Bracha: this run will be delivered."""

    stream: Stream
    first: Positive
    run: RunDigest


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The next number that a subscriber wants of a stream."""

    stream: Stream
    next: Positive


class Pull(Message, frozen=True, array_like=True):
    """Send me what you hold of these publications.

    With `where`, the id of my predicate, vote again for its results on them (`Matches`).
    """

    stream: Stream
    first: Positive
    count: Annotated[int, Meta(ge=1, le=limits.MAX_RUN)]
    where: PredicateId = b""


class Contents(Message, frozen=True, array_like=True):
    """A run that was pulled, with its bodies."""

    stream: Stream
    first: Positive
    digests: Digests


class Matches(Message, frozen=True, array_like=True):
    """I vouch for what a subscriber's predicate, `where`, makes of a run.

    Something matches at each of the `places`, counted from `first`: `values` are the digests of
    what, and bodies follow for subscribers that asked for them. Nothing matches elsewhere.
    """

    stream: Stream
    first: Positive
    count: Annotated[int, Meta(ge=1, le=limits.MAX_RUN)]
    where: PredicateId
    places: Annotated[tuple[Place, ...], Meta(max_length=limits.MAX_RUN)] = ()
    values: Annotated[bytes, Meta(max_length=DIGEST_SIZE * limits.MAX_RUN)] = b""


class Custom(Message, frozen=True, array_like=True):
    """A message of a protocol of another package, which alone gives it a meaning.

    No journal knows it, so it must not bind the broker that sends it; votes, echoes and readies do.
    """

    stream: Stream
    kind: Count
    first: Count = 0
    data: Annotated[bytes, Meta(max_length=limits.MAX_CUSTOM_BYTES)] = b""


def highest_number(message: Message) -> int:
    """The highest number that a message about a stream names."""
    match message:
        case Open(base=base, fresh=fresh):
            return max(base, fresh)
        case Publish() | ChainRun() | Echo() | Ready() | Contents() | Pull() | Custom():
            return message.first
        case _:
            return 0
