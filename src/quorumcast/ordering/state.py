"""The replicated state: the positions of every channel, and how far each stream is ordered.

Deterministic: brokers that apply the same batches have the same state, byte for byte, and the
digest of it is what they compare at checkpoints. A run that was ordered before is not ordered
again; one that does not begin right after what was ordered of its stream gets no positions: its
publisher has to repeat what lies between, and correct ones never cut a run anew.

Of a publisher's streams by the clock a few are told apart, and older ones are over. A stream that
its publisher may go on with after any time (`core.ids.resumable`) is over once a later epoch of its
line has begun. It is remembered with a chain of its digests, by which a publisher that has lost its
memory finds out whether what was ordered is what it would publish now. What can be remembered is
bounded: the lines of a client that have begun an epoch last.

The contents themselves are not in here, nor what they consisted of: `chain` stands for all of it.
A broker that lacks what lies before fetches it backwards, and each run that it gets shows what
stood for everything before that one (`ordering.backfill`). So the size of the state, and the cost
of a checkpoint or a transfer, do not grow with what a channel retains.
"""

from __future__ import annotations

import hashlib
from bisect import insort

import msgspec

from quorumcast.core.ids import CELL, DIGEST_SIZE, GENESIS, Channel, NodeId, Stream
from quorumcast.ordering.messages import Item

#: Incarnations of a publisher on a channel that are told apart.
STREAMS_KEPT = 4
#: Lines of a client on a channel that are remembered.
LINES_KEPT = 1024
#: Bytes of one chunk of a transferred state.
CHUNK_BYTES = 64 * 1024


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Where a channel's order has got to."""

    next: int = 1
    #: Stands for everything that was ever ordered on the channel.
    chain: bytes = b""


class Extent(msgspec.Struct, frozen=True):
    """Where an offer lies in the order."""

    position: int
    stream: Stream
    first: int
    #: Stands for everything that lies before it.
    chain: bytes


def log_id_of(item: Item) -> bytes:
    """The id of the log that began with this genesis item."""
    return hashlib.sha256(item.first.to_bytes(8, "big") + item.digests).digest()


def extent_root(digests: bytes) -> bytes:
    """What stands for the digests of an offer."""
    return hashlib.sha256(digests).digest()


def chained(chain: bytes, root: bytes) -> bytes:
    """What stands for everything up to an offer, by what stood for all before it."""
    return hashlib.sha256(chain + root).digest()


class _Image(msgspec.Struct, frozen=True, array_like=True):
    served: tuple[tuple[Stream, int], ...]
    over: tuple[tuple[Channel, NodeId, int], ...]
    heads: tuple[tuple[Channel, Head], ...]
    #: The newest epoch that was ordered, and the instance in which it was.
    epoch: tuple[int, int] = (0, 0)
    #: The digest of its manifest.
    manifest: bytes = b""
    #: The newest stream of each line, how far it is and its chain; by owner, in order of begin.
    lines: tuple[tuple[Stream, int, bytes], ...] = ()
    #: The id of the log, and the instance in which it was decided.
    genesis: tuple[bytes, int] = (b"", 0)


_encode = msgspec.msgpack.Encoder().encode
_images: msgspec.msgpack.Decoder[_Image] = msgspec.msgpack.Decoder(_Image)


class State:
    """The replicated state of one log."""

    __slots__ = (
        "_by_clock",
        "_lines",
        "_over",
        "began",
        "chains",
        "epoch",
        "heads",
        "log_id",
        "manifest",
        "served",
        "since",
    )

    def __init__(self) -> None:
        #: Up to which number each stream has been ordered; a few incarnations and LINES_KEPT lines
        #: per publisher.
        self.served: dict[Stream, int] = {}
        #: The incarnations by the clock among them, by channel and publisher; at most STREAMS_KEPT.
        self._by_clock: dict[tuple[Channel, NodeId], list[int]] = {}
        #: What stands for the digests of each stream of a line.
        self.chains: dict[Stream, bytes] = {}
        #: The newest stream of every line, by channel and publisher, in the order of their begin;
        #: those that are in `chains`.
        self._lines: dict[tuple[Channel, NodeId], dict[int, Stream]] = {}
        #: Incarnations up to this one are over, by channel and publisher.
        self._over: dict[tuple[Channel, NodeId], int] = {}
        self.heads: dict[Channel, Head] = {}
        #: The newest epoch that was ordered, and the instance in which it was; 0 if none was.
        self.epoch = self.since = 0
        #: The digest of its manifest: there may be two for one epoch.
        self.manifest = b""
        #: The id of this log (`ordering.genesis`), and the instance in which it was
        #: decided; nothing gets a position before.
        self.log_id = b""
        self.began = 0

    def begin(self, batch: tuple[Item, ...], instance: int) -> None:
        """Take the id of the log from the first batch that carries a genesis item."""
        if not self.log_id and batch and batch[0].stream == GENESIS:
            self.log_id, self.began = log_id_of(batch[0]), instance

    def head(self, channel: Channel) -> Head:
        """Where a channel's order has got to."""
        return self.heads.get(channel, Head())

    def over(self, stream: Stream) -> bool:
        """Whether this incarnation has ended."""
        if stream.line is not None:
            known = self._lines.get((stream.channel, stream.publisher), {}).get(stream.line)
            return known is not None and known.incarnation > stream.incarnation
        return stream.incarnation <= self._over.get((stream.channel, stream.publisher), -1)

    def may_have_forgotten(self, stream: Stream) -> bool:
        """Whether this may be a line that was ordered before LINES_KEPT others of its publisher."""
        lines = self._lines.get((stream.channel, stream.publisher), ())
        return stream.line is not None and len(lines) >= LINES_KEPT

    def newest(self, stream: Stream) -> int:
        """The newest incarnation of a stream's publisher on its channel, by the clock; or -1."""
        owner = (stream.channel, stream.publisher)
        return max(self._over.get(owner, -1), *self._by_clock.get(owner, ()), -1)

    def takes(self, batch: tuple[Item, ...]) -> list[Item]:
        """The runs of a batch that will get positions: their contents are needed."""
        served: dict[Stream, int] = {}
        taken: list[Item] = []
        if not self.log_id and not (batch and batch[0].stream == GENESIS):
            return taken
        for item in batch:
            stream, last = item.stream, item.last
            upto = served.get(stream, self.served.get(stream, 0))
            if item.first == upto + 1 and not self.over(stream) and stream.publisher != CELL:
                taken.append(item)
                served[stream] = last
        return taken

    def apply(self, batch: tuple[Item, ...]) -> list[Extent]:
        """Give positions to what is new in a batch."""
        placed: list[Extent] = []
        begun: list[Stream] = []
        if not self.log_id:
            return placed
        for item in batch:
            stream = item.stream
            served = self.served.get(stream, 0)
            count = len(item.digests) // DIGEST_SIZE
            if item.first != served + 1 or self.over(stream) or stream.publisher == CELL:
                continue
            head = self.head(stream.channel)
            root = extent_root(item.digests)
            placed.append(Extent(head.next, stream, item.first, head.chain))
            self.heads[stream.channel] = Head(head.next + count, chained(head.chain, root))
            self.served[stream] = item.first + count - 1
            if stream.line is not None:
                self.chains[stream] = chained(self.chains.get(stream, b""), root)
                begun += [] if served else [stream]
            elif not served:
                self._retire(stream)
        for stream in begun:
            # Not before: what the batch takes was found out when none of it had begun.
            self._begin(stream)
        return placed

    def enter(self, epoch: int, instance: int, manifest: bytes = b"") -> bool:
        """A manifest was ordered; whether it is a newer one."""
        if epoch <= self.epoch:
            return False
        self.epoch, self.since, self.manifest = epoch, instance, manifest
        return True

    def _retire(self, stream: Stream) -> None:
        owner = (stream.channel, stream.publisher)
        known = self._by_clock.setdefault(owner, [])
        insort(known, stream.incarnation)
        if len(known) > STREAMS_KEPT:
            stale = known.pop(0)
            del self.served[Stream(*owner, stale)]
            self._over[owner] = max(self._over.get(owner, -1), stale)

    def _begin(self, stream: Stream) -> None:
        """A new epoch of a line: those before it are over, and so is one line too many."""
        line = stream.line
        if line is None:
            return
        lines = self._lines.setdefault((stream.channel, stream.publisher), {})
        known = lines.get(line)
        if known is not None and known > stream:
            known = stream  # both began in one batch
        else:
            lines.pop(line, None)
            lines[line] = stream  # behind all that began before it
        gone = [] if known is None else [known]
        if len(lines) > LINES_KEPT:
            gone.append(lines.pop(next(iter(lines))))
        for stale in gone:
            del self.served[stale], self.chains[stale]

    # ------------------------------------------------------------- transfer

    def image(self) -> bytes:
        """The whole state in one canonical encoding."""
        return _encode(
            _Image(
                tuple(sorted((s, upto) for s, upto in self.served.items() if s.line is None)),
                tuple(sorted((*owner, upto) for owner, upto in self._over.items())),
                tuple(sorted(self.heads.items())),
                (self.epoch, self.since),
                self.manifest,
                tuple(
                    (stream, self.served[stream], self.chains[stream])
                    for _, lines in sorted(self._lines.items())
                    for stream in lines.values()
                ),
                (self.log_id, self.began),
            )
        )

    def load(self, image: bytes) -> bool:
        """Become the state that an image shows; False if it shows none."""
        try:
            found = _images.decode(image)
        except msgspec.MsgspecError:
            return False
        self.served = dict(found.served) | {stream: upto for stream, upto, _ in found.lines}
        self._by_clock = {}
        for stream, _ in found.served:
            owned = self._by_clock.setdefault((stream.channel, stream.publisher), [])
            insort(owned, stream.incarnation)
        self.chains = {stream: chain for stream, _, chain in found.lines}
        self._lines = {}
        for stream in self.chains:
            owner = self._lines.setdefault((stream.channel, stream.publisher), {})
            owner[stream.line or 0] = stream
        self._over = {(channel, node): upto for channel, node, upto in found.over}
        self.heads = dict(found.heads)
        self.epoch, self.since = found.epoch
        self.manifest = found.manifest
        self.log_id, self.began = found.genesis
        return True


class StateImage:
    """The state at an instance, ready to be compared and fetched."""

    __slots__ = ("chunks", "digests", "instance", "root")

    def __init__(self, instance: int, image: bytes) -> None:
        self.instance = instance
        self.chunks = cut(image)
        self.digests = tuple(map(digest_of, self.chunks))
        self.root = root_of(self.digests)


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
