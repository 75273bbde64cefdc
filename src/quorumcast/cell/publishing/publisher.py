"""The publisher: numbers what the application publishes and sees it through to the brokers.

A `PublishedStream` per channel, and a second one for urgent publications, each have a sender and,
where the policy has a history, another for the histories. After every α publications, and for the
tail after a moment of idleness, the publisher signs the digests since its last history and sends
them through Bracha.

Adaptive α (Freeman §8.1): it doubles up to `alpha_max` while histories repair nothing and halves
down to `alpha` when subscribers say that they missed something.

Urgent publications overtake what waits because they are a stream of their own, with its own numbers
and its own credit: to everybody else it is one more incarnation of the publisher, the one after its
own. So incarnations of a publisher that ever calls anything urgent must be at least two apart.

Incarnations grow with the lives of a publisher. They are readings of a clock that may be set back:
where f+1 brokers know a later life, one of them being correct, the publisher begins one that is
later still, and says so (`Renewed`). Nothing has been acknowledged then, and what was submitted
keeps its numbers. If there is no later one, because an earlier life claimed the last incarnation,
the application is told so (`Refused`).

A stream that an earlier life may have begun (`ordering.resumption`) is a line of its own as well,
under an incarnation that the application chose; it goes when it is released.
"""

from __future__ import annotations

from quorumcast.broadcast.application import Refused, Renewed, Submit
from quorumcast.broadcast.messages import Ack, Outlived
from quorumcast.cell.messages import Finish, Refuse
from quorumcast.cell.publishing.published_stream import (
    TAIL_MS,
    PublishedStream,
    Retransmit,
    TailHistory,
)
from quorumcast.cell.refusals import Refusals, channel_entry
from quorumcast.core.ids import (
    LAST_INCARNATION,
    Channel,
    Millis,
    NodeId,
    Stream,
    later_life,
)
from quorumcast.core.machine import (
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    TimerFired,
)
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View


class Publisher:
    """The machine of a publisher."""

    __slots__ = (
        "_by_stream",
        "_incarnation",
        "_incarnations",
        "_lines",
        "_refusals",
        "_up",
        "_view",
    )

    def __init__(self, manifest: Manifest, keyring: Keyring, incarnation: int) -> None:
        self._view = View(manifest, keyring)
        self._incarnation = incarnation
        #: Channels on which it had to begin a later life than its clock said.
        self._incarnations: dict[Channel, int] = {}
        #: One line per channel that the application publishes on, one for what is urgent, and one
        #: for each stream that it goes on with; by channel and incarnation.
        self._lines: dict[tuple[Channel, int], PublishedStream] = {}
        #: The same by the data lanes of their streams.
        self._by_stream: dict[Stream, PublishedStream] = {}
        self._refusals = Refusals()
        #: Brokers that can be reached, in the order in which they came.
        self._up: dict[NodeId, None] = {}

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch: other clients, rights, keys, channels, a broker more or less."""
        self._view.adopt(manifest, keyring)
        self._refusals.clear()
        self._up = {peer: None for peer in self._up if peer in manifest.broker_ids}
        return [effect for line in self._lines.values() for effect in line.recount()]

    def room(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> int:
        """How many more publications the buffer of a channel takes."""
        return self._line(channel, urgent, resumed).data.room

    def stream(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> Stream:
        """The stream on which this publisher publishes to a channel.

        `resumed` is the incarnation of one that an earlier life may have begun; 0 for its own.
        """
        return self._line(channel, urgent, resumed).stream

    def published(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> int:
        """The number of the newest publication on a channel."""
        return self._line(channel, urgent, resumed).data.next - 1

    def alpha(self, channel: Channel) -> int:
        """Publications between histories right now (0 without histories)."""
        return self._line(channel).alpha

    def open(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> list[Effect]:
        """Introduce the channel's stream to every broker that can be reached.

        Also to those that refused it before: there may be a place now.
        """
        self._refusals.forget(channel)
        return self._introduce(self._line(channel, urgent, resumed))

    def conclude(self, channel: Channel, resumed: int) -> list[Effect]:
        """Everything of a stream that was gone on with has been submitted."""
        return self._line(channel, resumed=resumed).data.conclude()

    def release(self, channel: Channel, resumed: int) -> list[Effect]:
        """A stream that was gone on with is done with, or given up."""
        line = self._lines.pop((channel, resumed), None)
        if line is None:
            return []
        del self._by_stream[line.stream]
        return self._leave(channel)

    def finish(self, channel: Channel, urgent: bool = False) -> list[Effect]:
        """The application has nothing more to publish for now: cover the tail at once."""
        line = self._line(channel, urgent)
        effects = line.send_history() + line.timers()
        line.finishing = line.introduced
        return effects + self._maybe_finish(line)

    def _maybe_finish(self, line: PublishedStream) -> list[Effect]:
        """Leave the place on a channel to others, once everything has arrived."""
        if not line.finishing or any(sender.unfinished for sender in line.senders):
            return []
        line.finishing, line.finished = False, True
        return self._leave(line.stream.channel)

    def _leave(self, channel: Channel) -> list[Effect]:
        others = [line for (name, _), line in self._lines.items() if name == channel]
        if not self._up or any(line.introduced and not line.finished for line in others):
            return []
        return [Send(tuple(self._up), Finish(channel))]

    def _withdraw(self, line: PublishedStream) -> list[Effect]:
        """Refused: say nothing more on a channel until the application opens it again."""
        line.introduced = False
        for peer in self._up:
            for sender in line.senders:
                sender.disconnected(peer)
        return [Send(tuple(self._up), Finish(line.stream.channel))]

    def sizes(self) -> dict[str, int]:
        return {
            f"{line.stream}/{sender.stream.lane.name.lower()}/{name}": size
            for line in self._lines.values()
            for sender in line.senders
            for name, size in sender.sizes().items()
        }

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=Ack() as message):
                return self._on_ack(event.sender, message)
            case Submit():
                return self._on_submit(event, now)
            case Connected(peer=peer):
                return self._on_connected(peer)
            case Disconnected(peer=peer):
                return self._on_disconnected(peer)
            case TimerFired(timer=Retransmit(stream=stream)):
                return self._on_retransmit(stream)
            case TimerFired(timer=TailHistory(stream=stream)):
                return self._on_tail(stream, now)
            case Receive(message=Refuse() as message):
                return self._on_refuse(event.sender, message)
            case Receive(message=Outlived() as message):
                return self._on_outlived(event.sender, message, now)
            case Receive():
                return [Drop(DropReason.UNEXPECTED, event.sender)]
            case _:
                return []

    def _line(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> PublishedStream:
        """The line of a channel; a new one is introduced to brokers with its first `open`."""
        incarnation = resumed or self._incarnations.get(channel, self._incarnation) + urgent
        line = self._lines.get((channel, incarnation))
        if line is None:
            entry = channel_entry(self._view.manifest, channel)
            line = PublishedStream(self._view, entry, incarnation)
            self._lines[channel, incarnation] = self._by_stream[line.stream] = line
        return line

    def _introduce(self, line: PublishedStream) -> list[Effect]:
        line.finishing = line.finished = False
        if line.introduced:
            return []
        line.introduced = True
        return [effect for peer in self._up for effect in line.connected(peer)]

    def _on_connected(self, peer: NodeId) -> list[Effect]:
        if peer not in self._view.brokers:
            return []
        self._up[peer] = None
        effects: list[Effect] = []
        for line in self._lines.values():
            if line.introduced:
                effects += line.connected(peer) + line.timers()
        return effects

    def _on_disconnected(self, peer: NodeId) -> list[Effect]:
        if self._up.pop(peer, peer) is None:
            for line in self._lines.values():
                for sender in line.senders:
                    sender.disconnected(peer)
        return []

    def _on_submit(self, event: Submit, now: Millis) -> list[Effect]:
        line = self._line(event.channel, event.urgent, event.resumed)
        effects = self._introduce(line)
        effects += line.submit(event.bodies, now)
        return effects + line.timers()

    def _on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        line = self._by_stream.get(ack.stream.data)
        if line is None:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        if broker not in self._view.brokers:
            return [Drop(DropReason.WRONG_SENDER, broker)]
        self._refusals.served(ack.stream.channel, broker)
        return line.on_ack(broker, ack) + line.timers() + self._maybe_finish(line)

    def _on_outlived(self, broker: NodeId, message: Outlived, now: Millis) -> list[Effect]:
        """A broker knows a later life of this publisher; f of them may be lying about it."""
        line = self._by_stream.get(message.stream)
        if line is None or broker not in self._view.brokers:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        if line.stream.line is not None:
            return [Drop(DropReason.BAD_RUN, broker)]
        line.outlived[broker] = message.newest
        told = sorted(line.outlived.values(), reverse=True)
        enough = self._view.quorums.one_correct
        if len(told) < enough or line.data.acknowledged or not line.introduced:
            return []
        known = told[enough - 1]
        if known > LAST_INCARNATION:
            return [_used_up(line.stream), *self._withdraw(line)]
        return self._renew(line, known, now)

    def _renew(self, line: PublishedStream, known: int, now: Millis) -> list[Effect]:
        """Go on under a later incarnation with everything that was submitted."""
        former, channel = line.stream, line.stream.channel
        urgent = bool((former.incarnation ^ self._incarnation) & 1)
        base = later_life(former.incarnation, known) | (self._incarnation & 1)
        base = self._incarnations[channel] = max(self._incarnations.get(channel, 0), base)
        del self._lines[channel, former.incarnation], self._by_stream[former]
        renewed = self._line(channel, urgent)
        effects: list[Effect] = [Renewed(renewed.stream, former)]
        if line.introduced:
            effects += self._introduce(renewed)
        renewed.finishing = line.finishing
        if bodies := line.data.contents():
            effects += renewed.submit(bodies, now)
        return effects + renewed.timers()

    def _on_retransmit(self, stream: Stream) -> list[Effect]:
        line = self._by_stream.get(stream)
        if line is None:
            return []
        line.retransmitting = False
        effects: list[Effect] = []
        for sender in line.senders:
            effects += sender.tick()
        return effects + line.timers()

    def _on_tail(self, stream: Stream, now: Millis) -> list[Effect]:
        line = self._by_stream.get(stream)
        if line is None:
            return []
        line.tail_set = False
        effects: list[Effect] = []
        if now - line.last_submit >= TAIL_MS:
            effects += line.send_history()
        return effects + line.timers()

    def _on_refuse(self, broker: NodeId, refuse: Refuse) -> list[Effect]:
        if refuse.listening:
            return []  # this node listens as well
        used = {channel for channel, _ in self._lines}
        effects = self._refusals.hear(self._view, used, broker, refuse)
        if any(isinstance(effect, Refused) for effect in effects):
            for (channel, _), line in self._lines.items():
                if channel == refuse.channel:
                    effects += self._withdraw(line)
        return effects


def _used_up(stream: Stream) -> Refused:
    reason = (
        f"{stream.publisher} can begin no later life on {stream.channel!r}, because an earlier one "
        "claimed the last incarnation: publish at another seat (connect(..., seat=1)) or with "
        "another identity"
    )
    return Refused(stream.channel, reason)
