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
from quorumcast.core.quorum import Protection
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


class Finish(Message, frozen=True, array_like=True):
    """I publish nothing more on this channel for now: somebody else may have my place."""

    channel: ChannelName


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

    Of a stream that is gone on with, `chain` stands for what I hold; without credit it is over.
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


class Refuse(Message, frozen=True, array_like=True):
    """I will not serve you on this channel, and why.

    `listening` says whether it is about listening or about publishing; None: about both.
    """

    channel: ChannelName
    reason: Annotated[str, Meta(max_length=200)]
    listening: bool | None = None


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
    """What a broker holds of a stream: base … next-1; if asked for a time, oldest … next-1.

    Of a stream that is `over` the broker will never hold `next`, nor anything after it.
    """

    stream: Stream
    base: Positive
    next: Positive
    oldest: Count = 0
    over: bool = False


class Subscribe(Message, frozen=True, array_like=True):
    """Send me votes on this channel, from these cursors on; repeated whenever in doubt.

    Asked for a time (microseconds), `Position.base` is the first number of it, or one before it.
    With `until`: only numbers before that one, once.
    """

    channel: ChannelName
    cursors: Annotated[tuple[Cursor, ...], Meta(max_length=limits.MAX_STREAMS_NAMED)]
    bodies: bool
    since: Count = 0
    until: Count = 0


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
    """Sign for the segment that holds this number, up to it; I know it from `first` on."""

    stream: Stream
    number: Positive
    first: Positive = 1


class Checkpoint(Message, frozen=True, array_like=True):
    """A signed statement about a segment."""

    statement: Signed


# broker ↔ broker, without total order: what one has lost and others retain


class Survey(Message, frozen=True, array_like=True):
    """Of which publications on this channel are you sure? (Answered with `Positions`.)

    I am in this life: what I said in an earlier one I may have forgotten.
    """

    channel: ChannelName
    life: Annotated[bytes, Meta(max_length=DIGEST_SIZE)] = b""


class Regain(Message, frozen=True, array_like=True):
    """What are these publications? Their digests, or their contents as well."""

    stream: Stream
    first: Positive
    count: Annotated[int, Meta(ge=1, le=limits.MAX_RUN)]
    bodies: bool = False


class Regained(Message, frozen=True, array_like=True):
    """My final word on publications, perhaps with their bodies."""

    stream: Stream
    first: Positive
    digests: Digests


# total order: publisher → broker, broker ↔ broker


class Item(msgspec.Struct, frozen=True, array_like=True):
    """A run by name: part of a batch."""

    stream: Stream
    first: Positive
    digests: Digests

    @property
    def last(self) -> int:
        """The number of its last publication."""
        return self.first + len(self.digests) // DIGEST_SIZE - 1


class Offer(Message, frozen=True, array_like=True):
    """A run to be ordered, with its bodies; signed where brokers may lie, for it is passed on."""

    stream: Stream
    first: Positive
    digests: Digests
    signature: Annotated[bytes, Meta(max_length=64)] = b""

    @property
    def item(self) -> Item:
        """Its name in a batch."""
        return Item(self.stream, self.first, self.digests)


Batch = Annotated[tuple[Item, ...], Meta(max_length=limits.MAX_BATCH)]


class Propose(Message, frozen=True, array_like=True):
    """The leader of a regency: let this batch be decided in this instance."""

    log: Protection
    regency: Count
    instance: Positive
    batch: Batch


class Write(Message, frozen=True, array_like=True):
    """I hold what the leader proposed, and was told of no other value in this regency."""

    log: Protection
    regency: Count
    instance: Positive
    value: RunDigest


class Accept(Message, frozen=True, array_like=True):
    """A quorum wrote this value (crash: the leader proposed it); I will stand by it."""

    log: Protection
    regency: Count
    instance: Positive
    value: RunDigest


class Stop(Message, frozen=True, array_like=True):
    """I have lost patience with the leaders before this regency."""

    log: Protection
    regency: Positive


class StopData(Message, frozen=True, array_like=True):
    """What I stand by, signed, for the leader of a new regency."""

    log: Protection
    statement: Signed


class Sync(Message, frozen=True, array_like=True):
    """The new leader: these are the words on which my first proposals rest."""

    log: Protection
    regency: Positive
    statements: Annotated[tuple[Signed, ...], Meta(max_length=limits.MAX_CHAIN)]


class Standing(Message, frozen=True, array_like=True):
    """How far I am; said now and then, so that nobody stays behind unnoticed."""

    log: Protection
    regency: Count
    decided: Count
    #: The highest instance of which I have heard.
    heard: Count
    #: Whether I know on what the proposals of this regency rest.
    synced: bool = True
    #: Whether I still listen, because I may have forgotten what I did.
    fresh: bool = False
    #: The newest checkpoint that I made, and the digest of the state there.
    checkpoint: Count = 0
    root: Annotated[bytes, Meta(max_length=DIGEST_SIZE)] = b""
    #: Members that were past listening when I heard from them: who of them listens now forgot.
    awake: Annotated[tuple[NodeName, ...], Meta(max_length=limits.MAX_CHAIN)] = ()
    #: The life of this broker as far as the log goes: its disk keeps it, if there is one …
    life: Annotated[bytes, Meta(max_length=DIGEST_SIZE)] = b""
    #: … and the life that began when it was started.
    started: Annotated[bytes, Meta(max_length=DIGEST_SIZE)] = b""


class Fetch(Message, frozen=True, array_like=True):
    """Send me the batches with these values, and these offers."""

    log: Protection
    values: Annotated[tuple[RunDigest, ...], Meta(max_length=limits.MAX_FETCH)] = ()
    offers: Annotated[tuple[Cursor, ...], Meta(max_length=limits.MAX_FETCH)] = ()


class Fetched(Message, frozen=True, array_like=True):
    """A batch that was asked for."""

    log: Protection
    batch: Batch


class LogQuery(Message, frozen=True, array_like=True):
    """What was decided from this instance on?"""

    log: Protection
    first: Positive
    #: I get no further with the log: a state would help.
    stuck: bool = False


class LogPart(Message, frozen=True, array_like=True):
    """What I know to be decided from an instance on."""

    log: Protection
    first: Positive
    batches: Annotated[tuple[Batch, ...], Meta(max_length=limits.MAX_BATCH)]


class StateHead(Message, frozen=True, array_like=True):
    """I no longer hold the log that you ask for; here is the state at a checkpoint, by digests."""

    log: Protection
    checkpoint: Positive
    chunks: Annotated[tuple[RunDigest, ...], Meta(max_length=limits.MAX_CHUNKS)]


class ChunkQuery(Message, frozen=True, array_like=True):
    """Send me this chunk of the state at that checkpoint."""

    log: Protection
    checkpoint: Positive
    index: Count


class Chunk(Message, frozen=True, array_like=True):
    """A chunk of the state, as the one body of this message."""

    log: Protection
    checkpoint: Positive
    index: Count


class Taken(Message, frozen=True, array_like=True):
    """An epoch has been decided, and I go by it: signed, so that others can show it."""

    statement: Signed


# any node that is called → its caller; heard by links, not by machines


class Displaced(Message, frozen=True, array_like=True):
    """Another process has proven your identity and takes your place here: this link is over."""


AnyMessage = (
    Open | Finish | Publish | ChainRun | Ack | Outlived | Refuse | Echo | Ready | Subscribe
    | Unsubscribe | Positions | Vote | Pull | Contents | Missed | Attest | Checkpoint | Survey
    | Regain | Regained | Displaced | Offer | Propose | Write | Accept | Stop | StopData | Sync
    | Standing | Fetch | Fetched | LogQuery | LogPart | StateHead | ChunkQuery | Chunk | Taken
)  # fmt: skip
