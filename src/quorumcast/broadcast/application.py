"""What applications ask of publishers and subscribers, and what they are told."""

from __future__ import annotations

from quorumcast.broadcast.messages import Cursor
from quorumcast.core.ids import Channel, Digest, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Bodies, Effect, Event
from quorumcast.core.statements import Receipt


class Submit(Event, frozen=True):
    """The application publishes these contents, each a publication of its own."""

    channel: Channel
    bodies: Bodies
    #: Whether they overtake what waits already.
    urgent: bool = False
    #: The incarnation of the stream to resume; 0 is the publisher's own.
    resumed: int = 0


class Join(Event, frozen=True):
    """The application subscribes to a channel.

    It hears what comes from now on (`start` None), everything that is still held (0), or, where
    there is one order, everything from a position on. With `since`, which goes with `start` 0, it
    hears of what is held no less than everything from the first publication of that time on. With
    `until`, where there is one order, it hears nothing from that position on. With `cursors`, these
    streams go on at their numbers, and what is no longer held from there on is a gap. With `where`,
    it hears only of the rows that match one of these predicates.
    """

    channel: Channel
    start: int | None = None
    since: int = 0
    until: int = 0
    cursors: tuple[Cursor, ...] = ()
    where: tuple[str, ...] = ()


class Select(Event, frozen=True):
    """The application wants other rows from now on: what it has not been told yet; () for all."""

    channel: Channel
    where: tuple[str, ...] = ()


class Leave(Event, frozen=True):
    """The application ends its subscription."""

    channel: Channel


class Prove(Event, frozen=True):
    """The application wants a receipt of a publication that it accepted."""

    stream: Stream
    number: int
    contents: bytes


class Recall(Event, frozen=True):
    """The application wants positions of a channel that it listens to once more."""

    channel: Channel
    first: int
    count: int


class Waive(Event, frozen=True):
    """The application does not wait for these positions any more."""

    channel: Channel
    first: int
    count: int


# ------------------------------------------------------ what applications are told


class Deliver(Effect, frozen=True):
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
    #: If `body` is a cut (`matching.cut`) of the publication: what was voted for; else b"".
    cut: bytes = b""
    #: The id of all predicates that selected the cut; b"" if there is none.
    where: bytes = b""

    @property
    def place(self) -> tuple[Stream, int]:
        """The stream whose order it belongs to, and its number there."""
        if not self.position:
            return self.stream, self.number
        return total_order(self.stream.channel), self.position

    @property
    def provable(self) -> tuple[Stream, int, bytes]:
        """The stream, number and contents that brokers sign for, or a cut of these contents."""
        if not self.position:
            return self.stream, self.number, self.body
        contents = self.body if self.cut else label(self.stream, self.number) + self.body
        return total_order(self.stream.channel), self.position, contents


class Passed(Effect, frozen=True):
    """At none of these numbers anything matches the predicates of the subscription."""

    stream: Stream
    first: int
    upto: int


class DeliverGap(Effect, frozen=True):
    """Publications that no f+1 brokers hold any longer; never lost silently."""

    stream: Stream
    first: int
    upto: int


class Acknowledged(Effect, frozen=True):
    """Enough brokers hold every publication of this stream up to a number."""

    stream: Stream
    upto: int


class Renewed(Effect, frozen=True):
    """A publisher goes on with a later stream: f+1 brokers know a later life of it than its own.

    Its clock was set back, or that of an earlier life was ahead. Nothing was acknowledged under
    the former stream, and everything keeps its number in the new one.
    """

    stream: Stream
    former: Stream


class Proven(Effect, frozen=True):
    """The receipt that the application asked for."""

    receipt: Receipt


class Recalled(Effect, frozen=True):
    """A position that was recalled, or news that it is gone or that nothing is carried on there."""

    channel: Channel
    position: int
    found: Deliver | None
    #: If it is gone: the oldest position that is not; otherwise 0.
    oldest: int = 0


class Refused(Effect, frozen=True):
    """Enough brokers refuse to serve this node on a channel."""

    channel: Channel
    reason: str


class Concluded(Effect, frozen=True):
    """A resumed stream is at its end, and all of it is ordered."""

    stream: Stream


class Contradicted(Effect, frozen=True):
    """A stream cannot be resumed, because enough brokers contradict it.

    At `number` something else was ordered than is offered now, or (0) a later epoch has begun.
    """

    stream: Stream
    number: int
