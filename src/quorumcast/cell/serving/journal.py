"""The journal: what a broker wrote to disk before it vouched for it, and never contradicts.

On a channel with a journal, the digests of a run are on disk before the broker votes, echoes, signs
or forwards. When retention removes publications, the broker records where the rest begins
(`Released`) and removes older digests, so the journal stays as short as the ledger. After a restart
the ledger begins there: the broker compares what it retained, and never vouches again for numbers
that it released. The records of a publisher's streams of which nothing is left give way to one
record (`Ended`).
"""

from __future__ import annotations

import msgspec

from quorumcast.broadcast.contract import match
from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.messages import ChainRun, Contents, Publish
from quorumcast.broadcast.signed_history import read_history
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, NodeId, Stream, split_digests
from quorumcast.core.limits import MAX_ENDED, MAX_NUMBER
from quorumcast.core.machine import Effect, Forget, Receive, Record
from quorumcast.crypto.digest import Hasher, root


class StreamRecord(Record, frozen=True, tag=True):
    """Base of the records about one lane of a stream."""

    stream: Stream

    @property
    def owner(self) -> str:
        return str(self.stream)


class DigestRecord(StreamRecord, frozen=True, tag=True):
    """Base of the records that hold the digests of consecutive numbers."""

    first: int
    digests: bytes

    @property
    def place(self) -> int:
        return self.first


class Vouched(DigestRecord, frozen=True, tag=True):
    """A run that this broker is about to vouch for by an echo, a vote or a chain MAC.

    It never vouches for another run in its place, except in `VouchedAgainstEcho`.
    """


class VouchedAgainstEcho(Vouched, frozen=True, tag=True):
    """A run that this broker is about to vote for, although it has echoed another one there.

    The record of the echo stays on disk. After a restart the broker echoes neither run again.
    """


class Attested(DigestRecord, frozen=True, tag=True):
    """Numbers that this broker is about to sign or fetched from peers; their runs are unknown."""


class Released(StreamRecord, frozen=True, tag=True):
    """The numbers of a lane below this one are not retained any longer."""

    below: int


class Settled(StreamRecord, frozen=True, tag=True):
    """The numbers of a lane up to this one are settled: the publisher need not repeat them.

    Without this record, a broker that lost its contents together with more than f others would wait
    for ever for peers that know.
    """

    upto: int


class Ended(Record, frozen=True, tag=True):
    """The streams of a publisher on a channel up to this incarnation are over."""

    channel: Channel
    publisher: NodeId
    incarnation: int
    #: Incarnation and next number of the newest streams among them.
    ends: tuple[tuple[int, int], ...] = ()
    #: Streams up to this incarnation begin only by state transfer from other brokers.
    closed: int = -1

    @property
    def owner(self) -> str:
        return f"{self.channel}/{self.publisher}"


VouchRecord = Vouched | Attested

_DIGEST_RECORDS: tuple[type[Record], ...] = (Vouched, VouchedAgainstEcho, Attested)
_STREAM_RECORDS: tuple[type[Record], ...] = (*_DIGEST_RECORDS, Released, Settled)


class EndedStreams(msgspec.Struct):
    """Streams of one publisher on one channel of which nothing is retained any longer."""

    #: Incarnations up to this one are over.
    upto: int = -1
    #: Incarnations up to this one begin only by state transfer: this broker has dropped some of
    #: which nothing was settled, and does not remember what it vouched for in them.
    closed: int = -1
    #: The next number of each, by incarnation; at most MAX_ENDED.
    ends: dict[int, int] = {}

    def add(self, incarnation: int, end: int) -> None:
        """A stream has ended before a number.

        Beyond MAX_ENDED the oldest stream is added to the next one, so that a subscriber that was
        away still learns how many publications it may have missed.
        """
        self.upto = max(self.upto, incarnation)
        self.ends[incarnation] = end
        if len(self.ends) > MAX_ENDED:
            oldest, following = sorted(self.ends)[:2]
            # Numbers begin at 1: a stream that ended before a number has one publication less.
            both = self.ends.pop(oldest) + self.ends[following] - 1
            # A liar may end each stream at the last number, and the sum must fit into a message.
            self.ends[following] = min(both, MAX_NUMBER)

    def learn(self, incarnation: int, end: int) -> bool:
        """Record where a stream ended, as peers say; True if that was unknown.

        Not beyond MAX_ENDED: a stream that was added to the next one must not be counted twice.
        """
        if incarnation not in self.ends and len(self.ends) >= MAX_ENDED:
            return False
        is_news = self.ends.get(incarnation, 0) < end
        if is_news:
            self.add(incarnation, end)
        return is_news


class JournaledLane(msgspec.Struct):
    """The journal of one lane of a stream."""

    #: Digests by number.
    digests: dict[int, bytes] = {}
    #: The first number of the run that a number belongs to, where the run is known.
    starts: dict[int, int] = {}
    #: How many publications the run at a number has.
    lengths: dict[int, int] = {}
    #: The numbers at which a run won against the one that this broker echoed.
    against_echo: set[int] = set()
    #: The first retained number, and the last settled one.
    released: int = 1
    settled: int = 0


class JournaledStream(msgspec.Struct, frozen=True):
    """The number of retained publications of a stream in the journal, and the next number."""

    stream: Stream
    count: int
    next: int


class Journal:
    """What a broker vouched for in earlier lives, and which records are on disk."""

    __slots__ = ("_by_publisher", "_echoed", "_lanes", "_unsynced", "_written")

    def __init__(self) -> None:
        #: What earlier lives vouched for.
        self._lanes: dict[Stream, JournaledLane] = {}
        #: The data lanes of the same streams.
        self._by_publisher: dict[tuple[Channel, NodeId], dict[Stream, None]] = {}
        #: The length, in numbers, of the longest record of each kind that begins at a number.
        self._written: dict[Stream, dict[tuple[type[Record], int], int]] = {}
        #: The digests of each run that was echoed, where brokers echo. Each has a record.
        self._echoed: dict[Stream, dict[int, bytes]] = {}
        #: The records that are being written; no more than writes are under way.
        self._unsynced: dict[tuple[type[Record], Stream, int], VouchRecord] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __len__(self) -> int:
        return sum(len(lane.digests) for lane in self._lanes.values())

    @property
    def echoes(self) -> int:
        """How many runs it knows to have been echoed."""
        return sum(map(len, self._echoed.values()))

    @property
    def addresses(self) -> int:
        """How many records the journal has."""
        return sum(map(len, self._written.values()))

    # --------------------------------------------------- reading and writing

    def remember(self, record: Vouched | Attested | Released | Settled) -> None:
        """Load a record that a restart found."""
        lane = self._lanes.setdefault(record.stream, JournaledLane())
        data = record.stream.data
        self._by_publisher.setdefault((data.channel, data.publisher), {})[data] = None
        if isinstance(record, Released):
            lane.released = record.below
            return
        if isinstance(record, Settled):
            lane.settled = record.upto
            return
        digests = split_digests(record.digests)
        self._written.setdefault(record.stream, {})[type(record), record.first] = len(digests)
        numbers = range(record.first, record.first + len(digests))
        # The record of the echo may come before or after this one.
        if isinstance(record, VouchedAgainstEcho):
            lane.against_echo.add(record.first)
            for number in range(record.first, record.first + lane.lengths.get(record.first, 0)):
                lane.digests.pop(number, None)
                lane.starts.pop(number, None)
        elif isinstance(record, Vouched):
            self._echoed.setdefault(record.stream, {})[record.first] = record.digests
            if record.first in lane.against_echo:
                return
        lane.digests.update(zip(numbers, digests, strict=True))
        if isinstance(record, Vouched):
            lane.starts.update(dict.fromkeys(numbers, record.first))
            lane.lengths[record.first] = len(digests)

    def keep_echo(self, record: Vouched) -> Vouched:
        """The record to write where brokers echo: of another kind if its run was not echoed.

        It then does not replace the record of the echo. Otherwise a restarted broker would take
        the run that it voted for as the one that it had echoed, and echo that one as well.
        """
        echoed = self._echoed.setdefault(record.stream, {})
        if echoed.setdefault(record.first, record.digests) != record.digests:
            record = VouchedAgainstEcho(record.stream, record.first, record.digests)
        return record

    def extended(self, record: VouchRecord, ledger: Ledger) -> VouchRecord | None:
        """The record to write, extended so that it never replaces a longer one.

        Where the digests to extend it with are not held, the longer record says the same already,
        as a broker never contradicts its journal. The result is then the longer record while that
        is being written, and None once it is on disk.
        """
        kind, stream, first = type(record), record.stream, record.first
        written, count = self._written.setdefault(stream, {}), len(record.digests) // DIGEST_SIZE
        longest = written.get((kind, first), 0)
        if longest <= count:
            written[kind, first] = count
            self._unsynced[kind, stream, first] = record
            return record
        digests = ledger.digests(first, longest)
        if digests is None:
            known = self.digests(stream, first, longest)
            digests = b"".join(d for d in known if d is not None)
        if len(digests) != longest * DIGEST_SIZE:
            return self._unsynced.get((kind, stream, first))
        return kind(stream, first, digests)

    def synced(self, record: VouchRecord) -> None:
        """Note that a record is on disk."""
        key = (type(record), record.stream, record.first)
        if self._unsynced.get(key) == record:
            del self._unsynced[key]

    def released(self, stream: Stream) -> int:
        """The first retained number of a lane; 1 if nothing was released."""
        lane = self._lanes.get(stream)
        return 1 if lane is None else lane.released

    def settled(self, stream: Stream) -> int:
        """The last number of a lane that an earlier life knew to be settled; 0 if none."""
        lane = self._lanes.get(stream)
        return 0 if lane is None else lane.settled

    def digests(self, stream: Stream, first: int, count: int) -> list[bytes | None]:
        """The digests that this broker vouched for in a range; None where there is none."""
        lane = self._lanes.get(stream)
        digests = {} if lane is None else lane.digests
        return [digests.get(number) for number in range(first, first + count)]

    def publisher_streams(self, data: Stream) -> list[JournaledStream]:
        """The streams of the same publisher and channel in the journal."""
        found: list[JournaledStream] = []
        for stream in self._by_publisher.get((data.channel, data.publisher), ()):
            lane = self._lanes.get(stream, JournaledLane())
            retained = [number for number in lane.digests if number >= lane.released]
            last = max(retained, default=lane.released - 1)
            found.append(JournaledStream(stream, len(retained), last + 1))
        return found

    def overrule(self, stream: Stream, first: int, digests: bytes) -> None:
        """Replace digests by those that the cell has settled; the caller writes them next."""
        lane = self._lanes.setdefault(stream, JournaledLane())
        lane.digests.update(enumerate(split_digests(digests), first))

    # ------------------------------------------------------------ forgetting

    def release(self, stream: Stream, below: int, longest: int) -> list[Effect]:
        """Forget what a lane no longer retains, in memory and on disk.

        No record has more than `longest` numbers. So one that begins before `below - longest` ends
        before `below` and is removed. The others stay, and no shorter record may replace them.
        """
        removed = max(below - longest, 0)
        self._forget(stream, below, removed)
        if not removed:
            return []
        return [Forget(kind, str(stream), removed) for kind in _DIGEST_RECORDS]

    def erase(self, stream: Stream) -> list[Effect]:
        """Forget everything about a stream that is over, on disk if it was written there."""
        lanes, end = (stream.data, stream.history), MAX_NUMBER + 1
        for lane in lanes:
            self._forget(lane, end, end)
        return [Forget(kind, str(lane), end) for lane in lanes for kind in _STREAM_RECORDS]

    def _forget(self, stream: Stream, below: int, removed: int) -> None:
        """Forget numbers before `below`, and records that begin before `removed`."""
        written = self._written.get(stream, {})
        for key in [key for key in written if key[1] < removed]:
            del written[key]
        if not written:
            self._written.pop(stream, None)
        echoed = self._echoed.get(stream, {})
        for first in [first for first in echoed if first < removed]:
            del echoed[first]
        if not echoed:
            self._echoed.pop(stream, None)
        lane = self._lanes.get(stream)
        if lane is None:
            return
        for number in [number for number in lane.digests if number < below]:
            del lane.digests[number]
            lane.starts.pop(number, None)
            lane.lengths.pop(number, None)
            lane.against_echo.discard(number)
        if not lane.digests:
            del self._lanes[stream]
            if stream.data not in self._lanes and stream.data.history not in self._lanes:
                self._by_publisher[stream.channel, stream.publisher].pop(stream.data, None)

    # ------------------------------------------------------------- comparing

    def contradicted_by(
        self, event: Receive, data: Stream, hash_: Hasher, *, whole_runs: bool
    ) -> bool:
        """Whether a run, or a history, contradicts what was vouched for before a restart.

        `whole_runs`: votes are about whole runs, so a run that is cut differently contradicts, too.
        """
        message = event.message
        if not isinstance(message, Publish | ChainRun | Contents):
            return False
        if self._contradicts(message.stream, message.first, message.digests, whole_runs=whole_runs):
            return True
        if message.stream.lane is not Lane.HISTORY or not event.bodies:
            return False
        if not match(split_digests(message.digests), event.bodies, hash_):
            return False  # altered on the wire, perhaps; the carrier refuses it
        found = read_history(event.bodies[0], data)
        if found is None:
            return False
        _, statement = found
        return self._contradicts(data, statement.first, statement.digests, whole_runs=False)

    def may_not_echo(self, stream: Stream, first: int, run_root: bytes) -> bool:
        """Whether an earlier life echoed a run with another root at a number.

        Every echo has a record, so a number without one was not echoed. Settled numbers are echoed
        again like others: if more than f brokers lost a run, the publisher alone can bring it back.
        """
        lane, echoed = self._lanes.get(stream), self._echoed.get(stream, {}).get(first)
        if lane is not None and first in lane.against_echo:
            return True
        return echoed is not None and root(first, echoed) != run_root

    def _contradicts(self, stream: Stream, first: int, digests: bytes, *, whole_runs: bool) -> bool:
        lane = self._lanes.get(stream)
        if lane is None:
            return False
        known, numbered = lane.digests, enumerate(split_digests(digests), first)
        if any(known.get(number, digest) != digest for number, digest in numbered):
            return True
        if not whole_runs:
            return False
        count = len(digests) // DIGEST_SIZE
        return lane.lengths.get(first, count) != count or any(
            lane.starts.get(number, first) != first for number in range(first, first + count)
        )
