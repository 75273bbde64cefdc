"""The messages of total order: offers by publishers, consensus among brokers, catching up."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.broadcast.messages import Cursor
from quorumcast.core import limits
from quorumcast.core.ids import DIGEST_SIZE, Count, Positive, Stream
from quorumcast.core.message import ChannelName, Digests, Message, NodeName, RunDigest
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed


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
    """A quorum wrote this value (crash: the leader proposed it); I will not contradict it."""

    log: Protection
    regency: Count
    instance: Positive
    value: RunDigest


class Stop(Message, frozen=True, array_like=True):
    """I ask for this regency: the leaders before it have had their time."""

    log: Protection
    regency: Positive


class StopData(Message, frozen=True, array_like=True):
    """What I decided, accepted and wrote, signed, for the leader of a new regency."""

    log: Protection
    statement: Signed


class Sync(Message, frozen=True, array_like=True):
    """The new leader: these statements justify my first proposals."""

    log: Protection
    regency: Positive
    statements: Annotated[tuple[Signed, ...], Meta(max_length=limits.MAX_CHAIN)]


class Standing(Message, frozen=True, array_like=True):
    """How far I am; sent now and then, so that no member stays behind unnoticed."""

    log: Protection
    regency: Count
    decided: Count
    #: The highest instance of which I have heard.
    heard: Count
    #: Whether I have the Sync of this regency.
    synced: bool = True
    #: Whether I still listen, because I may have forgotten my votes (`amnesia`).
    fresh: bool = False
    #: The newest checkpoint that I made, and the digest of the state there.
    checkpoint: Count = 0
    root: Annotated[bytes, Meta(max_length=DIGEST_SIZE)] = b""
    #: Members that I have seen past listening: one of them that listens now has forgotten.
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


class PastQuery(Message, frozen=True, array_like=True):
    """Send me what you hold of this channel right before this position."""

    log: Protection
    channel: ChannelName
    before: Positive


class Past(Message, frozen=True, array_like=True):
    """A run that was ordered long ago, with its bodies; its offer, and where it lies."""

    log: Protection
    position: Positive
    #: Stands for everything that was ordered before it.
    chain: Annotated[bytes, Meta(max_length=DIGEST_SIZE)]
    #: The oldest position of the channel that I hold.
    base: Positive
    stream: Stream
    first: Positive
    digests: Digests
    signature: Annotated[bytes, Meta(max_length=64)] = b""

    @property
    def offer(self) -> Offer:
        """The offer that it came from."""
        return Offer(self.stream, self.first, self.digests, self.signature)


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
