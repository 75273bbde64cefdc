"""The journal: what a broker wrote to disk before it vouched for it, and never contradicts.

On a channel with a journal, the digests of a run are on disk before the broker votes, echoes, signs
or forwards. When retention removes publications, the broker records where the rest begins
(`Released`) and removes older digests, so the journal stays as short as the ledger. After a restart
the ledger begins there: the broker compares what it retained, and never vouches again for numbers
that it released.
"""

from __future__ import annotations

import msgspec

from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.messages import ChainRun, Contents, Publish
from quorumcast.broadcast.signed_history import read_history
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, NodeId, Stream, split_digests
from quorumcast.core.limits import MAX_ENDED, MAX_NUMBER
from quorumcast.core.machine import Effect, Forget, Receive, Record
from quorumcast.crypto.digest import root


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
            self.ends[following] += self.ends.pop(oldest) - 1

    def learn(self, incarnation: int, end: int) -> bool:
        """Record where a stream ended, as peers say; True if that was unknown.

        Not beyond MAX_ENDED: a stream that was added to the next one must not be counted twice.
        """
        known = self.ends.get(incarnation, 0 if len(self.ends) < MAX_ENDED else end)
        if known < end:
            self.add(incarnation, end)
        return known < end


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
    """What the journal of earlier lives holds, by stream and lane."""

    __slots__ = ("_echoed", "_lanes", "_owners", "_unsynced", "_written")

    def __init__(self) -> None:
        self._lanes: dict[Stream, JournaledLane] = {}
        #: The data lanes of the same streams, by channel and publisher.
        self._owners: dict[tuple[Channel, NodeId], dict[Stream, None]] = {}
        #: The length of the longest record at each address of the journal, in numbers.
        self._written: dict[Stream, dict[tuple[type[Record], int], int]] = {}
        #: The digests of each run that was echoed, where brokers echo; none without a record.
        self._echoed: dict[Stream, dict[int, bytes]] = {}
        #: The records among them that are being written; no more than writes are under way.
        self._unsynced: dict[tuple[type[Record], Stream, int], VouchRecord] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __len__(self) -> int:
        return sum(len(lane.digests) for lane in self._lanes.values())

    def remember(self, record: Vouched | Attested | Released | Settled) -> None:
        """Load a record that a restart found."""
        lane = self._lanes.setdefault(record.stream, JournaledLane())
        data = record.stream.data
        self._owners.setdefault((data.channel, data.publisher), {})[data] = None
        if isinstance(record, Released):
            lane.released = record.below
            return
        if isinstance(record, Settled):
            lane.settled = record.upto
            return
        digests = split_digests(record.digests)
        self._written.setdefault(record.stream, {})[type(record), record.first] = len(digests)
        numbers = range(record.first, record.first + len(digests))
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

    def beside_echo(self, record: Vouched) -> Vouched:
        """The record to write where brokers echo: of another kind if its run was not echoed.

        It then does not replace the record of the echo. Otherwise a restarted broker would take
        the run that it voted for as the one that it had echoed, and echo that one as well.
        """
        echoed = self._echoed.setdefault(record.stream, {})
        if echoed.setdefault(record.first, record.digests) != record.digests:
            record = VouchedAgainstEcho(record.stream, record.first, record.digests)
        return record

    def whole(self, record: VouchRecord, ledger: Ledger) -> VouchRecord | None:
        """The record to write, extended so that it never replaces a longer one.

        If the digests to extend it with are not held, the journal says the same already: the result
        is the longer record while that is being written, and None once it is on disk.
        """
        written = self._written.setdefault(record.stream, {})
        key, count = (type(record), record.first), len(record.digests) // DIGEST_SIZE
        longest = written.get(key, 0)
        if longest <= count:
            written[key] = count
            self._unsynced[type(record), record.stream, record.first] = record
            return record
        digests = ledger.digests(record.first, longest)
        if digests is None:
            known = self.of(record.stream, record.first, longest)
            digests = b"".join(d for d in known if d is not None)
        if len(digests) != longest * DIGEST_SIZE:
            return self._unsynced.get((type(record), record.stream, record.first))
        return type(record)(record.stream, record.first, digests)

    def synced(self, record: VouchRecord) -> None:
        """Note that a record is on disk."""
        key = (type(record), record.stream, record.first)
        if self._unsynced.get(key) == record:
            del self._unsynced[key]

    @property
    def echoes(self) -> int:
        """How many runs it knows to have been echoed; none without a record."""
        return sum(map(len, self._echoed.values()))

    @property
    def addresses(self) -> int:
        """How many records the journal has."""
        return sum(map(len, self._written.values()))

    def released(self, stream: Stream) -> int:
        """The first retained number of a lane; 1 if nothing was released."""
        lane = self._lanes.get(stream)
        return 1 if lane is None else lane.released

    def settled(self, stream: Stream) -> int:
        """The last number of a lane that an earlier life knew to be settled; 0 if none."""
        lane = self._lanes.get(stream)
        return 0 if lane is None else lane.settled

    def of(self, stream: Stream, first: int, count: int) -> list[bytes | None]:
        """The digests that this broker vouched for in a range; None where there is none."""
        lane = self._lanes.get(stream)
        digests = {} if lane is None else lane.digests
        return [digests.get(number) for number in range(first, first + count)]

    def overrule(self, stream: Stream, first: int, digests: bytes) -> None:
        """Replace digests by those that the cell has settled; the caller writes them next."""
        lane = self._lanes.setdefault(stream, JournaledLane())
        lane.digests.update(enumerate(split_digests(digests), first))

    def release(self, stream: Stream, below: int, longest: int) -> list[Effect]:
        """Forget what a lane no longer retains, in memory and on disk.

        A record has at most `longest` numbers, so one that begins so far below ends below as well.
        Until the disk has lost it, a shorter one must not replace it.
        """
        self._forget(stream, below, max(below - longest, 0))
        if below <= longest:
            return []
        kinds: tuple[type[Record], ...] = (Vouched, VouchedAgainstEcho, Attested)
        return [Forget(kind, str(stream), below - longest) for kind in kinds]

    def erase(self, stream: Stream) -> list[Effect]:
        """Forget everything about a stream that is over, on disk if it was written there."""
        for lane in (stream.data, stream.history):
            self._forget(lane, MAX_NUMBER + 1, MAX_NUMBER + 1)
        kinds: tuple[type[Record], ...] = (Vouched, VouchedAgainstEcho, Attested, Released, Settled)
        lanes = (stream.data, stream.history)
        return [Forget(kind, str(lane), MAX_NUMBER + 1) for lane in lanes for kind in kinds]

    def _forget(self, stream: Stream, below: int, removed: int) -> None:
        """Forget numbers below one, and records on disk that begin below the other."""
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
                self._owners[stream.channel, stream.publisher].pop(stream.data, None)

    def lives(self, data: Stream) -> list[JournaledStream]:
        """The streams of the same publisher and channel in the journal."""
        found: list[JournaledStream] = []
        for stream in self._owners.get((data.channel, data.publisher), ()):
            lane = self._lanes.get(stream, JournaledLane())
            retained = [number for number in lane.digests if number >= lane.released]
            last = max(retained, default=lane.released - 1)
            found.append(JournaledStream(stream, len(retained), last + 1))
        return found

    def contradicted_by(self, event: Receive, data: Stream, *, whole_runs: bool) -> bool:
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
        found = read_history(event.bodies[0], data)
        return found is not None and self._contradicts(
            data, found[1].first, found[1].digests, whole_runs=False
        )

    def may_not_echo(self, stream: Stream, first: int, run: bytes) -> bool:
        """Whether an earlier life may have echoed another run at a number than that of this root.

        For settled numbers the journal holds what the cell settled, which this broker need not have
        echoed. Nobody needs its echo any more.
        """
        lane = self._lanes.get(stream)
        if first <= self.settled(stream) or (lane is not None and first in lane.against_echo):
            return True
        count = 0 if lane is None else lane.lengths.get(first, 0)
        known = [digest for digest in self.of(stream, first, count) if digest is not None]
        return count > 0 and len(known) == count and root(first, b"".join(known)) != run

    def _contradicts(self, stream: Stream, first: int, digests: bytes, *, whole_runs: bool) -> bool:
        lane = self._lanes.get(stream)
        if lane is None:
            return False
        run, known = split_digests(digests), lane.digests
        if any(known.get(number, digest) != digest for number, digest in enumerate(run, first)):
            return True
        if not whole_runs:
            return False
        count = len(digests) // DIGEST_SIZE
        return lane.lengths.get(first, count) != count or any(
            lane.starts.get(number, first) != first for number in range(first, first + count)
        )
