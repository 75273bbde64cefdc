"""The messages of a cell beside those of its protocols, and the family of all its messages."""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Cursor,
    Custom,
    Echo,
    Matches,
    Open,
    Outlived,
    Publish,
    Pull,
    Ready,
    Voucher,
)
from quorumcast.core import limits
from quorumcast.core.ids import DIGEST_SIZE, Count, Positive, Stream
from quorumcast.core.message import ChannelName, Digests, Displaced, Message, Order
from quorumcast.core.statements import Evidence, Signed
from quorumcast.crypto.session import Family
from quorumcast.ordering.messages import (
    Accept,
    Chunk,
    ChunkQuery,
    Fetch,
    Fetched,
    LogPart,
    LogQuery,
    Offer,
    Past,
    PastQuery,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Sync,
    Write,
)

PredicateText = Annotated[str, Meta(max_length=limits.MAX_PREDICATE_TEXT)]


class Finish(Message, frozen=True, array_like=True):
    """I publish nothing more on this channel for now: another client may have my place."""

    channel: ChannelName


class Refuse(Message, frozen=True, array_like=True):
    """I will not serve you on this channel, and why.

    `listening`: whether it is about subscribing (True), publishing (False) or both (None).
    """

    channel: ChannelName
    reason: Annotated[str, Meta(max_length=200)]
    listening: bool | None = None


class Position(msgspec.Struct, frozen=True, array_like=True):
    """What a broker holds of a stream: base … next-1; if asked for a time, oldest … next-1.

    `over`: the broker will never hold `next`, nor anything after it.
    """

    stream: Stream
    base: Positive
    next: Positive
    oldest: Count = 0
    over: bool = False


class Subscribe(Message, frozen=True, array_like=True):
    """Send me votes on this channel, from these cursors on; repeated whenever in doubt.

    With `since` (microseconds), `Position.base` in the answer is the first number of that time, or
    one before it. With `until`: only numbers before that one, once. `join` tells the subscriptions
    of one node apart. With `where`: only what matches one of these predicates, as `Matches`.
    `few`: about the streams of these cursors; what was asked for of others stays as it is.
    """

    channel: ChannelName
    cursors: Annotated[tuple[Cursor, ...], Meta(max_length=limits.MAX_STREAMS_NAMED)]
    bodies: bool
    since: Count = 0
    until: Count = 0
    join: Count = 0
    where: Annotated[tuple[PredicateText, ...], Meta(max_length=limits.MAX_PREDICATES)] = ()
    few: bool = False


class Unsubscribe(Message, frozen=True, array_like=True):
    """Send me nothing more on this channel."""

    channel: ChannelName


class Positions(Message, frozen=True, array_like=True):
    """The answer to a subscription: every stream of the channel that this broker knows.

    Or those that it was asked about (`few`). `join` is that of the `Subscribe` that it answers, and
    so is `bodies`: whether votes come with contents from here on.
    """

    channel: ChannelName
    positions: Annotated[tuple[Position, ...], Meta(max_length=limits.MAX_STREAMS_NAMED)]
    join: Count = 0
    bodies: bool = False
    few: bool = False


class Vote(Message, frozen=True, array_like=True):
    """I vouch for a run (READY in Bracha); with bodies for subscribers that asked for them.

    On a chain, `order` names the chain and `vouchers` carry the MACs of the other last brokers.
    """

    stream: Stream
    first: Positive
    digests: Digests
    order: Order = ()
    vouchers: Annotated[tuple[Voucher, ...], Meta(max_length=limits.MAX_CHAIN)] = ()


class Reached(Message, frozen=True, array_like=True):
    """I have accepted everything before these numbers: publishers need not wait for me there.

    Sent only on channels on which publishers wait for subscribers (`wait_ms`).
    """

    channel: ChannelName
    cursors: Annotated[tuple[Cursor, ...], Meta(max_length=limits.MAX_STREAMS_NAMED)]


class Missed(Message, frozen=True, array_like=True):
    """I know these publications from a history; the fast path did not bring them."""

    stream: Stream
    first: Positive
    count: Positive


class Attest(Message, frozen=True, array_like=True):
    """Sign for the segment that holds this number, up to it; I know it from `first` on."""

    stream: Stream
    number: Positive
    first: Positive = 1


class Checkpoint(Message, frozen=True, array_like=True):
    """A signed statement about a segment."""

    statement: Signed


class Survey(Message, frozen=True, array_like=True):
    """Which publications of this channel are final with you? Answered with `Positions`.

    `life` is mine: I may have forgotten what I sent in an earlier one.
    """

    channel: ChannelName
    life: Annotated[bytes, Meta(max_length=DIGEST_SIZE)] = b""


class Regain(Message, frozen=True, array_like=True):
    """Send me the digests of these publications, or their contents as well."""

    stream: Stream
    first: Positive
    count: Annotated[int, Meta(ge=1, le=limits.MAX_RUN)]
    bodies: bool = False


class Regained(Message, frozen=True, array_like=True):
    """The final digests of publications, perhaps with their bodies."""

    stream: Stream
    first: Positive
    digests: Digests


class Taken(Message, frozen=True, array_like=True):
    """I am in an epoch (of a log: I have executed its decision): signed, as a proof for others."""

    statement: Signed


class Accusation(Message, frozen=True, array_like=True):
    """This proves that a node lied; verify it yourself."""

    evidence: Evidence


CellMessage = (
    Open | Finish | Publish | ChainRun | Ack | Outlived | Refuse | Echo | Ready | Subscribe
    | Unsubscribe | Positions | Vote | Matches | Pull | Contents | Custom | Missed | Attest
    | Checkpoint | Survey | Regain | Regained | Displaced | Offer | Propose | Write | Accept
    | Stop | StopData | Sync | Standing | Fetch | Fetched | LogQuery | LogPart | StateHead
    | ChunkQuery | Chunk | Taken | PastQuery | Past | Accusation | Reached
)  # fmt: skip

#: What brokers tell a client only as a publisher. `Refuse` may be about either of its roles.
ONLY_FOR_PUBLISHERS = frozenset({Ack, Outlived})

#: Everything that the nodes of a cell say to one another.
CELL_FAMILY = Family("cell", *get_args(CellMessage))
