"""The contract of every protocol machine: an event and the time in, effects out.

    def handle(self, event: Event, now: Millis) -> list[Effect]

A machine never blocks, awaits, logs, reads a clock, draws from a global generator, or raises on
what a peer sent. The simulator and the runtime are two drivers of the same machines: they turn the
world into events and carry out effects in the order given. What must wait for the disk is inside
`Persist.then`. Timers are values, so a stale one is recognised by its content.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec

from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.message import Message
from quorumcast.core.statements import Evidence

Bodies = tuple[bytes, ...]


class Timer(msgspec.Struct, frozen=True, tag=True):
    """Base of all timers; two equal timers are the same timer."""


class Record(msgspec.Struct, frozen=True, tag=True):
    """Base of all records that a machine asks its driver to keep on disk.

    `owner` and `place` are its address: the next record of its kind with the same address replaces
    it, and `Forget` removes those that are no longer needed.

    Records of an *archived* kind are not restored when a node starts: there may be more of them
    than fit into memory. The machine reads those that it needs (`ArchiveReader`).
    """

    archived: ClassVar[bool] = False

    @property
    def owner(self) -> str:
        """Whose record it is, among those of its kind."""
        return ""

    @property
    def place(self) -> int:
        """Where it lies among the records of its owner."""
        return 0


R = TypeVar("R", bound=Record)


class ArchiveReader(Protocol):
    """Reads archived records that have reached the disk, and that no `Forget` has named since.

    The one thing that a machine waits for. An answer is one record, at most a run of publications,
    mostly from the page cache; as an event it would make every replay a conversation with the disk,
    and a machine with many of them under way would have to keep, bound and abandon them all.
    """

    def get(self, kind: type[R], owner: str, place: int) -> R | None:
        """The record at an address; None if there is none, or if the disk has damaged it."""

    def last(self, kind: type[R], owner: str, below: int) -> R | None:
        """The record at the highest place below this one."""

    def first(self, kind: type[R], owner: str, since: int) -> R | None:
        """The record at the lowest place from this one on."""

    def owners(self, kind: type[Record]) -> list[str]:
        """Everybody who has records of a kind."""


# ------------------------------------------------------------------ events


class Event(msgspec.Struct, frozen=True):
    """Base of all events: those below, which every driver knows, and those of a system."""


class Receive(Event, frozen=True):
    """A message from a peer whose identity the driver has verified."""

    sender: NodeId
    message: Message
    bodies: Bodies = ()


class Connected(Event, frozen=True):
    """A peer can be reached (again); whatever was under way before may be lost."""

    peer: NodeId


class Disconnected(Event, frozen=True):
    """A peer cannot be reached for now."""

    peer: NodeId


class DialFailure(enum.Enum):
    """Why a dialed peer could not be reached."""

    #: The directory does not list the peer, or has no address for it.
    UNKNOWN = "unknown-peer"
    #: This node has as many dialed links as it may have.
    OVER_LIMIT = "over-limit"
    #: Nobody answered, or somebody else did; later it may be otherwise.
    NO_ANSWER = "no-answer"
    #: The peer answered and does not want the link.
    REFUSED = "refused"


class Unreachable(Event, frozen=True):
    """A `Dial` has failed; the machine decides whether to try again."""

    peer: NodeId
    reason: DialFailure


class TimerFired(Event, frozen=True):
    """A timer set earlier has run out.

    `late_ms`: how much later than it was due. A node whose timers come late is itself late: its
    processor is busy, or its process was stopped. What others sent in time may wait unread.
    """

    timer: Timer
    late_ms: int = 0


class Persisted(Event, frozen=True):
    """A record has reached the disk; the driver has already carried out its `then`."""

    record: Record


class Restored(Event, frozen=True):
    """A record that the disk held when the node started again."""

    record: Record


class Storage(Event, frozen=True):
    """The disk is full, or has room again; what a full disk did not take waits and is not lost."""

    full: bool


# ----------------------------------------------------------------- effects


class Effect(msgspec.Struct, frozen=True):
    """Base of all effects: those below, which every driver carries out, and those of a system.

    A driver hands effects that it does not know to the application of its node.
    """


class DropReason(enum.Enum):
    """Why something that a peer sent was ignored; counted by drivers, asserted on by tests."""

    UNEXPECTED = "unexpected-message"
    NO_RIGHT = "no-right"
    UNKNOWN_CHANNEL = "unknown-channel"
    UNKNOWN_STREAM = "unknown-stream"
    WRONG_SENDER = "wrong-sender"
    BAD_RUN = "bad-run"
    BAD_BODY = "bad-body"
    BAD_VOUCHER = "bad-voucher"
    BAD_CHAIN = "bad-chain"
    BAD_SIGNATURE = "bad-signature"
    DUPLICATE = "duplicate"
    OUT_OF_TURN = "out-of-turn"
    OUT_OF_WINDOW = "out-of-window"
    BLOCKED = "blocked"
    CONFLICT = "conflict"
    NOT_HELD = "not-held"
    OVER_LIMIT = "over-limit"
    OTHER_LOG = "other-log"
    OUTLIVED = "outlived"
    OTHER_PREDICATE = "other-predicate"


class Suspicion(enum.Enum):
    """Why a node is suspected; never a proof, always revocable."""

    DISSENT = "dissent"
    SPLIT = "split"
    SILENT = "silent"
    BAD_BODY = "bad-body"
    WITHHOLDS = "withholds-body"
    BAD_VOUCHER = "bad-voucher"
    EQUIVOCATION = "equivocation"
    BROKEN_CHAIN = "broken-chain"
    WITHOUT_HISTORY = "without-history"
    FALSE_STATEMENT = "false-statement"
    OMITS = "omits"


class Send(Effect, frozen=True):
    """Send one message, with its bodies, to each of these nodes; lost where there is no link."""

    to: tuple[NodeId, ...]
    message: Message
    bodies: Bodies = ()


class Dial(Effect, frozen=True):
    """Call a peer once: `Connected` follows, or `Unreachable` if there is no link by then.

    Nothing happens if there is a link, if one is under way, or if the directory has one of the two
    nodes keep it: such a link is called again and again anyway.
    """

    peer: NodeId


class Hangup(Effect, frozen=True):
    """End a link after what was sent on it, whoever called, or a call that is under way.

    `Disconnected` follows if there was a link; nothing follows a call that is called off. A link
    that the directory keeps stays: the request is ignored and counted.
    """

    peer: NodeId


class SetTimer(Effect, frozen=True):
    """Fire this timer after a while; setting it again moves it."""

    timer: Timer
    after_ms: int


class CancelTimer(Effect, frozen=True):
    """Forget a timer; it need not have been set."""

    timer: Timer


class Persist(Effect, frozen=True):
    """Keep a record on disk, and carry out `then` once it is safe there.

    Records reach the disk in the order given. For a *lazy* one nobody waits: it comes along with
    the next that somebody waits for, at the latest after a moment.
    """

    record: Record
    then: tuple[Effect, ...] = ()
    lazy: bool = False


class Forget(Effect, frozen=True):
    """Records of this kind and owner below a place are no longer needed on disk.

    Or, with `since`, those from one place on and below another.
    """

    kind: type[Record]
    owner: str
    below: int
    since: int = 0


class Suspect(Effect, frozen=True):
    """A node behaved as no correct node should, but nothing proves it to a third party."""

    node: NodeId
    #: A `Suspicion`, or one of the system.
    reason: enum.Enum
    stream: Stream | None = None
    number: int = 0
    #: One of these did it, or the node that suspects them; empty if that cannot be said.
    among: tuple[NodeId, ...] = ()


class Accuse(Effect, frozen=True):
    """A node lied, and this proves it."""

    evidence: Evidence


class Drop(Effect, frozen=True):
    """Something that a peer sent was ignored, and why: a `DropReason`, or one of the system."""

    reason: enum.Enum
    sender: NodeId


class Machine(Protocol):
    """Anything that a driver can drive."""

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        """Take one event, say what is to be done."""
        ...

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds, for the check that all are bounded."""
        ...


@runtime_checkable
class ReadsArchive(Protocol):
    """A machine with archived records."""

    def read_from(self, archive: ArchiveReader) -> None:
        """Read archived records here; called before any event that has to do with the disk."""
        ...
