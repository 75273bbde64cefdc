"""What decided batches make of it: the positions of every channel, and who has been served.

Deterministic: brokers that apply the same batches have the same state, byte for byte, and the
digest of it is what they compare at checkpoints. A run that was ordered before is not ordered
again; one that does not begin right after what was ordered of its stream gets no positions: its
publisher has to repeat what lies between, and correct ones never cut a run anew.

The contents themselves are not in here: `chain` stands for all of them, and extents say which
offers the newest positions came from, for whoever has to fetch them again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

import msgspec

from quorumcast.core.ids import DIGEST_SIZE, EPOCHS, Channel, NodeId, Stream
from quorumcast.core.messages import Item

#: Incarnations of a publisher on a channel that are told apart.
STREAMS_KEPT = 4
#: Bytes of one chunk of a transferred state.
CHUNK_BYTES = 64 * 1024


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Where a channel's order has got to."""

    next: int = 1
    #: Stands for everything that was ever ordered on the channel.
    chain: bytes = b""


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """Where an offer lies in the order."""

    position: int
    stream: Stream
    first: int
    count: int
    #: Stands for the digests of the offer.
    root: bytes

    @property
    def next(self) -> int:
        """The position after it."""
        return self.position + self.count


def extent_root(digests: bytes) -> bytes:
    """What stands for the digests of an offer."""
    return hashlib.sha256(digests).digest()


class _Image(msgspec.Struct, frozen=True, array_like=True):
    served: tuple[tuple[Stream, int], ...]
    over: tuple[tuple[Channel, NodeId, int], ...]
    heads: tuple[tuple[Channel, Head], ...]
    extents: tuple[tuple[Channel, tuple[Extent, ...]], ...]
    #: The newest epoch that was ordered, and the instance in which it was.
    epoch: tuple[int, int] = (0, 0)
    #: The digest of its manifest.
    manifest: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_images: msgspec.msgpack.Decoder[_Image] = msgspec.msgpack.Decoder(_Image)


class State:
    """The replicated state of one log."""

    __slots__ = ("_over", "_retained", "epoch", "extents", "heads", "manifest", "served", "since")

    def __init__(self, retained: Callable[[Channel], int]) -> None:
        #: How many positions of a channel brokers keep.
        self._retained = retained
        #: Up to which number each stream has been ordered; a few incarnations per publisher.
        self.served: dict[Stream, int] = {}
        #: Incarnations up to this one are over, by channel and publisher.
        self._over: dict[tuple[Channel, NodeId], int] = {}
        self.heads: dict[Channel, Head] = {}
        #: The offers that the newest positions of each channel came from, in order.
        self.extents: dict[Channel, deque[Extent]] = {}
        #: The newest epoch that was ordered, and the instance in which it was; 0 if none was.
        self.epoch = self.since = 0
        #: The digest of its manifest: there may be two for one epoch.
        self.manifest = b""

    def head(self, channel: Channel) -> Head:
        """Where a channel's order has got to."""
        return self.heads.get(channel, Head())

    def over(self, stream: Stream) -> bool:
        """Whether this incarnation has ended."""
        return stream.incarnation <= self._over.get((stream.channel, stream.publisher), -1)

    def takes(self, batch: tuple[Item, ...]) -> list[Item]:
        """The runs of a batch that will get positions: their contents are needed."""
        served: dict[Stream, int] = {}
        taken: list[Item] = []
        for item in batch:
            stream, last = item.stream, item.first + len(item.digests) // DIGEST_SIZE - 1
            upto = served.get(stream, self.served.get(stream, 0))
            if item.first == upto + 1 and not self.over(stream) and stream != EPOCHS:
                taken.append(item)
                served[stream] = last
        return taken

    def apply(self, batch: tuple[Item, ...]) -> list[Extent]:
        """Give positions to what is new in a batch."""
        placed: list[Extent] = []
        for item in batch:
            stream = item.stream
            served = self.served.get(stream, 0)
            count = len(item.digests) // DIGEST_SIZE
            if item.first != served + 1 or self.over(stream) or stream == EPOCHS:
                continue
            head = self.head(stream.channel)
            root = extent_root(item.digests)
            extent = Extent(head.next, stream, item.first, count, root)
            placed.append(extent)
            chain = hashlib.sha256(head.chain + root).digest()
            self.heads[stream.channel] = Head(extent.next, chain)
            self._extend(stream.channel, extent)
            self.served[stream] = item.first + count - 1
            if not served:
                self._retire(stream)
        return placed

    def enter(self, epoch: int, instance: int, manifest: bytes = b"") -> bool:
        """A manifest was ordered; whether it is a newer one."""
        if epoch <= self.epoch:
            return False
        self.epoch, self.since, self.manifest = epoch, instance, manifest
        return True

    def _extend(self, channel: Channel, extent: Extent) -> None:
        extents = self.extents.setdefault(channel, deque())
        extents.append(extent)
        while extents[0].next <= extent.next - self._retained(channel):
            extents.popleft()

    def _retire(self, stream: Stream) -> None:
        owner = (stream.channel, stream.publisher)
        known = sorted(s for s in self.served if (s.channel, s.publisher) == owner)
        for stale in known[:-STREAMS_KEPT]:
            del self.served[stale]
            self._over[owner] = max(self._over.get(owner, -1), stale.incarnation)

    # ------------------------------------------------------------- transfer

    def image(self) -> bytes:
        """The whole state in one canonical encoding."""
        return _encode(
            _Image(
                tuple(sorted(self.served.items())),
                tuple(sorted((*owner, upto) for owner, upto in self._over.items())),
                tuple(sorted(self.heads.items())),
                tuple(sorted((name, tuple(found)) for name, found in self.extents.items())),
                (self.epoch, self.since),
                self.manifest,
            )
        )

    def adopt(self, image: bytes) -> bool:
        """Become the state that an image shows; False if it shows none."""
        try:
            found = _images.decode(image)
        except msgspec.MsgspecError:
            return False
        self.served = dict(found.served)
        self._over = {(channel, node): upto for channel, node, upto in found.over}
        self.heads = dict(found.heads)
        self.extents = {channel: deque(extents) for channel, extents in found.extents}
        self.epoch, self.since = found.epoch
        self.manifest = found.manifest
        return True


def cut(image: bytes) -> tuple[bytes, ...]:
    """An image in chunks; an empty one is one empty chunk."""
    return tuple(
        image[start : start + CHUNK_BYTES] for start in range(0, max(len(image), 1), CHUNK_BYTES)
    )


def root_of(chunks: tuple[bytes, ...]) -> bytes:
    """The digest of a state by the digests of its chunks."""
    return hashlib.sha256(b"".join(chunks)).digest()


def digest_of(chunk: bytes) -> bytes:
    """The digest of one chunk."""
    return hashlib.sha256(chunk).digest()
