"""Pledges: what a broker vouched for in an earlier life, by its journal, and never contradicts.

Before a broker vouches for a run on a channel with a journal, the run's digests are on disk. The
journal is kept as short as the ledger: when retention lets go of publications, the broker writes
down where the rest begins (`Released`) and removes the digests before it. After a restart the
ledger begins there. So the broker stands by everything it ever vouched for: it compares what it
retained, and never speaks again about what it let go of. The cost does not grow with the stream.

    Vouched    a run that this broker is about to vouch for: its echo, its vote, its chain MAC
    Attested   numbers that it is about to sign or took over from its peers; their runs are unknown
    Released   where the retained part of a lane begins
    Settled    up to where this broker knows that the cell has settled a lane
    Ended      the streams of a publisher of which nothing is retained any longer
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


class Vouched(Record, frozen=True, tag=True):
    """A run that this broker is about to vouch for; it never vouches for another in its place."""

    stream: Stream
    first: int
    digests: bytes

    @property
    def owner(self) -> str:
        return str(self.stream)

    @property
    def place(self) -> int:
        return self.first


class Attested(Record, frozen=True, tag=True):
    """Numbers whose digests this broker is about to sign, or took over from its peers."""

    stream: Stream
    first: int
    digests: bytes

    @property
    def owner(self) -> str:
        return str(self.stream)

    @property
    def place(self) -> int:
        return self.first


class Released(Record, frozen=True, tag=True):
    """The numbers of a lane below this one are not retained any longer."""

    stream: Stream
    below: int

    @property
    def owner(self) -> str:
        return str(self.stream)

    @property
    def place(self) -> int:
        return 0


class Settled(Record, frozen=True, tag=True):
    """The numbers of a lane up to this one are settled: the publisher need not repeat them.

    Without it, a broker that lost its contents together with more than f others would wait for
    ever for peers that know.
    """

    stream: Stream
    upto: int

    @property
    def owner(self) -> str:
        return str(self.stream)

    @property
    def place(self) -> int:
        return 0


class Ended(Record, frozen=True, tag=True):
    """The streams of a publisher on a channel up to this incarnation are over."""

    channel: Channel
    publisher: NodeId
    incarnation: int
    #: Incarnation and next number of the newest streams among them.
    ends: tuple[tuple[int, int], ...] = ()
    #: Streams up to this incarnation begin only by the word of other brokers.
    closed: int = -1

    @property
    def owner(self) -> str:
        return f"{self.channel}/{self.publisher}"

    @property
    def place(self) -> int:
        return 0


Pledge = Vouched | Attested


class EndedStreams(msgspec.Struct):
    """Streams of one publisher on one channel of which nothing is retained any longer."""

    #: Incarnations up to this one are over.
    upto: int = -1
    #: Incarnations up to this one begin only by the word of other brokers: this one has given up
    #: some of which it had settled nothing, and does not remember what it said of them.
    closed: int = -1
    #: The next number of each, by incarnation; at most MAX_ENDED.
    ends: dict[int, int] = {}

    def add(self, incarnation: int, end: int) -> None:
        """A stream has ended before a number.

        What no longer fits in is counted to the next one: a subscriber that was away for so many
        lives is told of as many publications as it may have missed.
        """
        self.upto = max(self.upto, incarnation)
        self.ends[incarnation] = end
        if len(self.ends) > MAX_ENDED:
            oldest, following = sorted(self.ends)[:2]
            self.ends[following] += self.ends.pop(oldest) - 1

    def learn(self, incarnation: int, end: int) -> bool:
        """Peers know where a stream ended; True if that is news.

        Not where no more fits in: what was counted to the next one must not be counted twice.
        """
        known = self.ends.get(incarnation, 0 if len(self.ends) < MAX_ENDED else end)
        if known < end:
            self.add(incarnation, end)
        return known < end


class _Lane(msgspec.Struct):
    """What the journal says of one lane of a stream."""

    #: Digests by number.
    digests: dict[int, bytes] = {}
    #: The first number of the run that a number belongs to, where the run is known.
    starts: dict[int, int] = {}
    #: How many publications the run at a number has.
    lengths: dict[int, int] = {}
    #: Where the retained part begins, and what is settled ends.
    released: int = 1
    settled: int = 0


class Life(msgspec.Struct, frozen=True):
    """What the journal says of one stream: publications that are retained, and the next number."""

    stream: Stream
    count: int
    next: int


class Pledges:
    """The journal of an earlier life, by stream and lane; as much as was retained."""

    __slots__ = ("_lanes", "_owners", "_written")

    def __init__(self) -> None:
        self._lanes: dict[Stream, _Lane] = {}
        #: The data lanes of the same streams, by channel and publisher.
        self._owners: dict[tuple[Channel, NodeId], dict[Stream, None]] = {}
        #: How many numbers the longest record at an address has, this life's included; as many
        #: addresses per lane as the journal has.
        self._written: dict[Stream, dict[tuple[type[Record], int], int]] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __len__(self) -> int:
        return sum(len(lane.digests) for lane in self._lanes.values())

    def remember(self, record: Vouched | Attested | Released | Settled) -> None:
        """Take in a record that a restart found."""
        lane = self._lanes.setdefault(record.stream, _Lane())
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
        lane.digests.update(zip(numbers, digests, strict=True))
        if isinstance(record, Vouched):
            lane.starts.update(dict.fromkeys(numbers, record.first))
            lane.lengths[record.first] = len(digests)

    def whole(self, record: Pledge, ledger: Ledger) -> Pledge | None:
        """The record to write: never one that is shorter than what the journal has there.

        None if the journal has more, which nobody can read again: it says the same already.
        """
        written = self._written.setdefault(record.stream, {})
        key, count = (type(record), record.first), len(record.digests) // DIGEST_SIZE
        longest = written.get(key, 0)
        if longest <= count:
            written[key] = count
            return record
        digests = ledger.digests(record.first, longest)
        if digests is None:
            known = self.of(record.stream, record.first, longest)
            digests = b"".join(d for d in known if d is not None)
        if len(digests) != longest * DIGEST_SIZE:
            return None
        return type(record)(record.stream, record.first, digests)

    @property
    def addresses(self) -> int:
        """How many records the journal has."""
        return sum(map(len, self._written.values()))

    def released(self, stream: Stream) -> int:
        """Where the retained part of a lane begins; 1 if nothing was let go of."""
        lane = self._lanes.get(stream)
        return 1 if lane is None else lane.released

    def settled(self, stream: Stream) -> int:
        """Up to where an earlier life knew that a lane is settled; 0 if it did not."""
        lane = self._lanes.get(stream)
        return 0 if lane is None else lane.settled

    def of(self, stream: Stream, first: int, count: int) -> list[bytes | None]:
        """The digests that this broker vouched for in a range; None where it does not know."""
        lane = self._lanes.get(stream)
        digests = {} if lane is None else lane.digests
        return [digests.get(number) for number in range(first, first + count)]

    def overrule(self, stream: Stream, first: int, digests: bytes) -> None:
        """Stand by what the cell has settled from now on; the journal gets to know it next."""
        lane = self._lanes.setdefault(stream, _Lane())
        lane.digests.update(enumerate(split_digests(digests), first))

    def forget(self, stream: Stream, below: int) -> None:
        """The ledger of this life has moved on and compares by itself from here on."""
        written = self._written.get(stream, {})
        for key in [key for key in written if key[1] < below]:
            del written[key]
        if not written:
            self._written.pop(stream, None)
        lane = self._lanes.get(stream)
        if lane is None:
            return
        for number in [number for number in lane.digests if number < below]:
            del lane.digests[number]
            lane.starts.pop(number, None)
            lane.lengths.pop(number, None)
        if not lane.digests:
            del self._lanes[stream]
            if stream.data not in self._lanes and stream.data.history not in self._lanes:
                self._owners[stream.channel, stream.publisher].pop(stream.data, None)

    def lives(self, data: Stream) -> list[Life]:
        """The streams of the same publisher and channel of which the journal knows."""
        found: list[Life] = []
        for stream in self._owners.get((data.channel, data.publisher), ()):
            lane = self._lanes.get(stream, _Lane())
            retained = [number for number in lane.digests if number >= lane.released]
            found.append(Life(stream, len(retained), max(retained, default=lane.released - 1) + 1))
        return found

    def broken_by(self, event: Receive, data: Stream, *, whole_runs: bool) -> bool:
        """Whether a run, or a history, denies what was vouched for before a restart.

        `whole_runs`: votes are about whole runs, so a run that is cut differently denies it too.
        """
        message = event.message
        if not isinstance(message, Publish | ChainRun | Contents):
            return False
        if self._denied(message.stream, message.first, message.digests, whole_runs=whole_runs):
            return True
        if message.stream.lane is not Lane.HISTORY or not event.bodies:
            return False
        found = read_history(event.bodies[0], data)
        return found is not None and self._denied(
            data, found[1].first, found[1].digests, whole_runs=False
        )

    def may_not_echo(self, stream: Stream, first: int, run: bytes) -> bool:
        """Whether an earlier life may have echoed another run at a number than that of this root.

        Of what was settled the journal holds what the cell settled on, not what this broker had
        echoed. Nobody needs its echo any more.
        """
        if first <= self.settled(stream):
            return True
        lane = self._lanes.get(stream)
        count = 0 if lane is None else lane.lengths.get(first, 0)
        known = [digest for digest in self.of(stream, first, count) if digest is not None]
        return count > 0 and len(known) == count and root(first, b"".join(known)) != run

    def _denied(self, stream: Stream, first: int, digests: bytes, *, whole_runs: bool) -> bool:
        lane = self._lanes.get(stream)
        if lane is None:
            return False
        known = lane.digests
        if any(
            known.get(number, digest) != digest
            for number, digest in enumerate(split_digests(digests), first)
        ):
            return True
        if not whole_runs:
            return False
        count = len(digests) // DIGEST_SIZE
        return lane.lengths.get(first, count) != count or any(
            lane.starts.get(number, first) != first for number in range(first, first + count)
        )


def shorten(stream: Stream, below: int, longest: int) -> list[Effect]:
    """Remove from the journal what a lane no longer retains.

    A record has `longest` numbers at most, so one that begins so far below ends below as well.
    """
    if below <= longest:
        return []
    return [Forget(kind, str(stream), below - longest) for kind in (Vouched, Attested)]


def erase(stream: Stream) -> list[Effect]:
    """Remove everything about a stream that is over from the journal."""
    kinds: tuple[type[Record], ...] = (Vouched, Attested, Released, Settled)
    return [
        Forget(kind, str(lane), MAX_NUMBER + 1)
        for lane in (stream.data, stream.history)
        for kind in kinds
    ]
