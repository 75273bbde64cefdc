"""The contract of every protocol machine: an event and the time in, effects out.

    def handle(self, event: Event, now: Millis) -> list[Effect]

A machine never blocks, awaits, logs, reads a clock, draws from a global generator, or raises on
what a peer sent. The simulator and the runtime are two drivers of the same machines: they turn the
world into events and carry out effects in the order given. What must wait for the disk is inside
`Persist.then`. Timers are values, so a stale one is recognised by its content.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from quorumcast.core.ids import Channel, Digest, Millis, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.messages import AnyMessage
from quorumcast.core.statements import Evidence, Receipt, Signed

Bodies = tuple[bytes, ...]


class Timer(msgspec.Struct, frozen=True, tag=True):
    """Base of all timers; two equal timers are the same timer."""


class Record(msgspec.Struct, frozen=True, tag=True):
    """Base of all records that a machine asks its driver to keep on disk.

    `owner` and `place` are its address: the next record of its kind with the same address replaces
    it, and `Forget` removes those that are no longer needed.
    """

    @property
    def owner(self) -> str:
        """Whose record it is, among those of its kind."""
        return ""

    @property
    def place(self) -> int:
        """Where it lies among the records of its owner."""
        return 0


# ------------------------------------------------------------------ events


class Receive(msgspec.Struct, frozen=True):
    """A message from a peer whose identity the driver has verified."""

    sender: NodeId
    message: AnyMessage
    bodies: Bodies = ()


class Connected(msgspec.Struct, frozen=True):
    """A peer can be reached (again); whatever was under way before may be lost."""

    peer: NodeId


class Disconnected(msgspec.Struct, frozen=True):
    """A peer cannot be reached for now."""

    peer: NodeId


class TimerFired(msgspec.Struct, frozen=True):
    """A timer set earlier has run out."""

    timer: Timer


class Persisted(msgspec.Struct, frozen=True):
    """A record has reached the disk; the driver has already carried out its `then`."""

    record: Record


class Restored(msgspec.Struct, frozen=True):
    """A record that the disk held when the node started again."""

    record: Record


class Storage(msgspec.Struct, frozen=True):
    """The disk is full, or has room again; what a full disk did not take waits and is not lost."""

    full: bool


class Submit(msgspec.Struct, frozen=True):
    """The application publishes these contents, each a publication of its own."""

    channel: Channel
    bodies: Bodies
    #: Whether they overtake what waits already.
    urgent: bool = False
    #: The incarnation of the stream to go on with; 0 is the publisher's own.
    resumed: int = 0


class Join(msgspec.Struct, frozen=True):
    """The application subscribes to a channel.

    It hears what comes from now on (`start` None), everything that is still held (0), or, where
    there is one order, everything from a position on. With `since`, which goes with `start` 0, it
    hears of what is held no less than everything from the first publication of that time on. With
    `until`, where there is one order, it hears nothing from that position on.
    """

    channel: Channel
    start: int | None = None
    since: int = 0
    until: int = 0


class Leave(msgspec.Struct, frozen=True):
    """The application ends its subscription."""

    channel: Channel


class Prove(msgspec.Struct, frozen=True):
    """The application wants a receipt of a publication that it accepted."""

    stream: Stream
    number: int
    contents: bytes


class Recall(msgspec.Struct, frozen=True):
    """The application wants positions of a channel that it listens to once more."""

    channel: Channel
    first: int
    count: int


class Waive(msgspec.Struct, frozen=True):
    """The application does not wait for these positions any more."""

    channel: Channel
    first: int
    count: int


class Renewal(msgspec.Struct, frozen=True):
    """The operator's manifest file has a newer epoch; the driver has read and checked it."""

    data: bytes


class Passage(msgspec.Struct, frozen=True):
    """Somebody shows a manifest and the words of brokers that go by it; nothing is checked yet."""

    data: bytes
    words: tuple[Signed, ...]


Event = (
    Receive
    | Connected
    | Disconnected
    | TimerFired
    | Persisted
    | Restored
    | Storage
    | Submit
    | Join
    | Leave
    | Prove
    | Recall
    | Waive
    | Renewal
    | Passage
)

# ----------------------------------------------------------------- effects


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


class Suspicion(enum.Enum):
    """Why a node is suspected; never a proof, always revocable."""

    DISSENT = "dissent"
    SILENT = "silent"
    BAD_BODY = "bad-body"
    WITHHOLDS = "withholds-body"
    BAD_VOUCHER = "bad-voucher"
    EQUIVOCATION = "equivocation"
    BROKEN_CHAIN = "broken-chain"
    WITHOUT_HISTORY = "without-history"
    FALSE_STATEMENT = "false-statement"


class Send(msgspec.Struct, frozen=True):
    """Send one message, with its bodies, to each of these nodes."""

    to: tuple[NodeId, ...]
    message: AnyMessage
    bodies: Bodies = ()


class SetTimer(msgspec.Struct, frozen=True):
    """Fire this timer after a while; setting it again moves it."""

    timer: Timer
    after_ms: int


class CancelTimer(msgspec.Struct, frozen=True):
    """Forget a timer; it need not have been set."""

    timer: Timer


class Persist(msgspec.Struct, frozen=True):
    """Keep a record on disk, and carry out `then` once it is safe there.

    Records reach the disk in the order given. For a *lazy* one nobody waits: it comes along with
    the next that somebody waits for, at the latest after a moment.
    """

    record: Record
    then: tuple[Effect, ...] = ()
    lazy: bool = False


class Forget(msgspec.Struct, frozen=True):
    """Records of this kind and owner below a place are no longer needed on disk.

    Or, with `since`, those from one place on and below another.
    """

    kind: type[Record]
    owner: str
    below: int
    since: int = 0


class Vouch(msgspec.Struct, frozen=True):
    """A broadcast machine's word to its broker: these publications may be vouched for."""

    stream: Stream
    first: int
    digests: bytes
    order: tuple[NodeId, ...] = ()


class Deliver(msgspec.Struct, frozen=True):
    """A subscriber accepted a publication and its turn has come."""

    stream: Stream
    number: int
    digest: Digest
    body: bytes
    #: Brokers that voted for it, and brokers that voted otherwise, when it was accepted.
    votes: tuple[NodeId, ...]
    dissent: tuple[NodeId, ...] = ()
    by_history: bool = False
    #: Its place in the channel's total order; 0 where there is none.
    position: int = 0

    @property
    def place(self) -> tuple[Stream, int]:
        """The stream whose order it belongs to, and its number there."""
        if not self.position:
            return self.stream, self.number
        return total_order(self.stream.channel), self.position

    @property
    def provable(self) -> tuple[Stream, int, bytes]:
        """The stream, number and contents that brokers sign for."""
        if not self.position:
            return self.stream, self.number, self.body
        contents = label(self.stream, self.number) + self.body
        return total_order(self.stream.channel), self.position, contents


class Gap(msgspec.Struct, frozen=True):
    """Publications that no f+1 brokers hold any longer; never lost silently."""

    stream: Stream
    first: int
    upto: int


class Acknowledged(msgspec.Struct, frozen=True):
    """Enough brokers hold every publication of this stream up to a number."""

    stream: Stream
    upto: int


class Renewed(msgspec.Struct, frozen=True):
    """A publisher goes on with a later stream: f+1 brokers know a later life of it than its own.

    Its clock was set back, or that of an earlier life was ahead. Nothing was acknowledged under
    the former stream, and everything keeps its number in the new one.
    """

    stream: Stream
    former: Stream


class Proven(msgspec.Struct, frozen=True):
    """The receipt that the application asked for."""

    receipt: Receipt


class Recalled(msgspec.Struct, frozen=True):
    """A position that was recalled, or news that it is gone."""

    channel: Channel
    position: int
    found: Deliver | None
    #: If it is gone: the oldest position that is not.
    oldest: int = 0


class Refused(msgspec.Struct, frozen=True):
    """Enough brokers refuse to serve this node on a channel."""

    channel: Channel
    reason: str


class Concluded(msgspec.Struct, frozen=True):
    """A stream that was gone on with is at its end, and all of it is ordered."""

    stream: Stream


class Contradicted(msgspec.Struct, frozen=True):
    """A stream cannot be gone on with, because enough brokers say otherwise of it.

    At `number` something else was ordered than is offered now, or (0) a later epoch has begun.
    """

    stream: Stream
    number: int


class Suspect(msgspec.Struct, frozen=True):
    """A node behaved as no correct node should, but nothing proves it to a third party."""

    node: NodeId
    reason: Suspicion
    stream: Stream | None = None
    number: int = 0
    #: One of these did it, or whoever suspects them; empty if that cannot be said.
    among: tuple[NodeId, ...] = ()


class Accuse(msgspec.Struct, frozen=True):
    """A node lied, and this proves it."""

    evidence: Evidence


class Adopt(msgspec.Struct, frozen=True):
    """The time has come to go by this manifest: `adopt` it, and greet everybody anew.

    `words` prove to others that it was decided; none where nothing has to be.
    """

    data: bytes
    words: tuple[Signed, ...] = ()


class Drop(msgspec.Struct, frozen=True):
    """Something that a peer sent was ignored, and why."""

    reason: DropReason
    sender: NodeId


Effect = (
    Send
    | SetTimer
    | CancelTimer
    | Persist
    | Forget
    | Vouch
    | Deliver
    | Gap
    | Acknowledged
    | Renewed
    | Proven
    | Recalled
    | Refused
    | Concluded
    | Contradicted
    | Suspect
    | Accuse
    | Drop
    | Adopt
)


class Machine(Protocol):
    """Anything that a driver can drive."""

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        """Take one event, say what is to be done."""
        ...

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds, for the check that all are bounded."""
        ...
