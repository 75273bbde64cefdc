"""Everything that nodes say to one another.

A message type is one frozen `Struct`: the form in memory, the form on the wire and the validating
decoder are the same definition. Contents of publications (*bodies*) travel beside the message and
are bound to it by the digests inside it, so a MAC over the message covers them at the price of the
one hash that every contents needs anyway.

The unit of all protocols is the *run*: consecutive publications of one stream, `first` and their
digests as one byte string. A run of one is the normal case at low load.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.core import limits
from quorumcast.core.ids import DIGEST_SIZE, Channel, Count, NodeId, Positive, Stream
from quorumcast.core.statements import Signed

Digests = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE * limits.MAX_RUN)]
RunDigest = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
ChannelName = Annotated[Channel, Meta(max_length=limits.MAX_NAME)]
NodeName = Annotated[NodeId, Meta(max_length=limits.MAX_NAME)]
Order = Annotated[tuple[NodeName, ...], Meta(max_length=limits.MAX_CHAIN)]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages; the tag on the wire is the class name."""


# publisher → broker


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


# broker → publisher


class Ack(Message, frozen=True, array_like=True):
    """I hold every number up to `upto`; you may send up to `credit`.

    `settled` is covered by history, `missed` counts what subscribers learned only from history,
    `history_wanted` is Freeman's HISTORY and `blocked` his BLOCKED.
    """

    stream: Stream
    upto: Count
    credit: Count
    settled: Count = 0
    missed: Count = 0
    history_wanted: bool = False
    blocked: bool = False


class Refuse(Message, frozen=True, array_like=True):
    """I will not serve you on this channel, and why."""

    channel: ChannelName
    reason: Annotated[str, Meta(max_length=200)]


# broker ↔ broker


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


# subscriber ↔ broker; brokers pull from one another with the same two messages


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The next number that a subscriber wants of a stream."""

    stream: Stream
    next: Positive


class Position(msgspec.Struct, frozen=True, array_like=True):
    """What a broker holds of a stream: base … next-1."""

    stream: Stream
    base: Positive
    next: Positive


class Subscribe(Message, frozen=True, array_like=True):
    """Send me votes on this channel, from these cursors on; repeated whenever in doubt."""

    channel: ChannelName
    cursors: Annotated[tuple[Cursor, ...], Meta(max_length=limits.MAX_STREAMS_NAMED)]
    bodies: bool


class Unsubscribe(Message, frozen=True, array_like=True):
    """Send me nothing more on this channel."""

    channel: ChannelName


class Positions(Message, frozen=True, array_like=True):
    """The answer to a subscription: every stream of the channel that this broker knows."""

    channel: ChannelName
    positions: Annotated[tuple[Position, ...], Meta(max_length=limits.MAX_STREAMS_NAMED)]


class Vote(Message, frozen=True, array_like=True):
    """This broker vouches for a run (READY in Bracha); with bodies for those who asked for them.

    On a chain, `order` names the chain and `vouchers` carry the MACs of the other last brokers.
    """

    stream: Stream
    first: Positive
    digests: Digests
    order: Order = ()
    vouchers: Annotated[tuple[Voucher, ...], Meta(max_length=limits.MAX_CHAIN)] = ()


class Pull(Message, frozen=True, array_like=True):
    """Send me what you hold of these publications."""

    stream: Stream
    first: Positive
    count: Annotated[int, Meta(ge=1, le=limits.MAX_RUN)]


class Contents(Message, frozen=True, array_like=True):
    """A run that was pulled, with its bodies."""

    stream: Stream
    first: Positive
    digests: Digests


class Missed(Message, frozen=True, array_like=True):
    """History taught me these publications; the fast path did not bring them."""

    stream: Stream
    first: Positive
    count: Positive


class Attest(Message, frozen=True, array_like=True):
    """Sign for the segment that holds this number, as far as you can."""

    stream: Stream
    number: Positive


class Checkpoint(Message, frozen=True, array_like=True):
    """A signed statement about a segment."""

    statement: Signed


AnyMessage = (
    Open
    | Publish
    | ChainRun
    | Ack
    | Refuse
    | Echo
    | Ready
    | Subscribe
    | Unsubscribe
    | Positions
    | Vote
    | Pull
    | Contents
    | Missed
    | Attest
    | Checkpoint
)
