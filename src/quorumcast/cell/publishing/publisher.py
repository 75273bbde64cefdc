"""The publisher: numbers what the application publishes and retransmits it until brokers have it.

A channel has a `PublishedStream`, and a second one for urgent publications. After every α
publications, and for the tail after a moment of idleness, the publisher signs the digests since its
last history and sends them through Bracha. α adapts (Freeman §8.1): it doubles up to `alpha_max`
while histories repair nothing, and halves down to `alpha` when subscribers missed something.

Urgent publications overtake others because they have a stream of their own, with its own numbers
and credit: to everybody else it is the publisher's next incarnation. So incarnations of a publisher
must be at least two apart.

Incarnations grow with the lives of a publisher. They are readings of a clock that may be set back:
where f+1 brokers know a later life, one of them correct, the publisher begins a still later one
(`Renewed`). Nothing has been acknowledged then, and what was submitted keeps its numbers. If an
earlier life used the last incarnation, the application is told so (`Refused`). Its stream for what
is urgent follows into that life when it must, or stays.

A resumed stream, which an earlier life may have begun, has an incarnation that the application
chose; it is removed when it is released.
"""

from __future__ import annotations

from quorumcast.broadcast.application import Refused, Renewed, Submit
from quorumcast.broadcast.messages import Ack, Outlived
from quorumcast.cell.messages import Finish, Refuse
from quorumcast.cell.publishing.published_stream import (
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
from quorumcast.core.tally import reached_by
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View


class Publisher:
    """The machine of a publisher."""

    __slots__ = (
        "_by_stream",
        "_heard",
        "_incarnation",
        "_incarnations",
        "_refusals",
        "_streams",
        "_up",
        "_view",
    )

    def __init__(self, manifest: Manifest, keyring: Keyring, incarnation: int) -> None:
        self._view = View(manifest, keyring)
        self._incarnation = incarnation
        #: Streams that had to begin a later life than the clock gave them, by channel and urgency.
        self._incarnations: dict[tuple[Channel, bool], int] = {}
        #: One stream per channel that the application publishes on, one for what is urgent, and one
        #: for each resumed stream; by channel and incarnation.
        self._streams: dict[tuple[Channel, int], PublishedStream] = {}
        #: The same by the data lanes of their streams.
        self._by_stream: dict[Stream, PublishedStream] = {}
        self._refusals = Refusals()
        #: How many acknowledgements came from each broker.
        self._heard: dict[NodeId, int] = {}
        #: Brokers that can be reached, in the order in which they came.
        self._up: dict[NodeId, None] = {}

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch: other clients, rights, keys, channels, a broker more or less."""
        self._view.adopt(manifest, keyring)
        self._refusals.clear()
        self._up = {peer: None for peer in self._up if peer in manifest.broker_ids}
        return [effect for published in self._streams.values() for effect in published.recount()]

    def room(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> int:
        """How many more publications the buffer of a channel takes."""
        return self._stream(channel, urgent, resumed).data.room

    def stream(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> Stream:
        """The stream on which this publisher publishes to a channel.

        `resumed` is the incarnation of a resumed stream; 0 for its own.
        """
        return self._stream(channel, urgent, resumed).stream

    def published(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> int:
        """The number of the newest publication on a channel."""
        return self._stream(channel, urgent, resumed).data.next - 1

    def lacking(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> list[NodeId]:
        """Brokers that have not acknowledged everything on a channel."""
        return self._stream(channel, urgent, resumed).data.lacking

    def alpha(self, channel: Channel) -> int:
        """Publications between histories right now (0 without histories)."""
        return self._stream(channel).alpha

    def open(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> list[Effect]:
        """Introduce the channel's stream to every broker that can be reached.

        Also to those that refused it before: there may be a place now.
        """
        self._refusals.forget(channel)
        return self._introduce(self._stream(channel, urgent, resumed))

    def conclude(self, channel: Channel, resumed: int) -> list[Effect]:
        """Everything of a resumed stream has been submitted."""
        return self._stream(channel, resumed=resumed).data.conclude()

    def release(self, channel: Channel, resumed: int) -> list[Effect]:
        """Remove a resumed stream that is complete, or given up."""
        published = self._streams.pop((channel, resumed), None)
        if published is None:
            return []
        del self._by_stream[published.stream]
        return self._leave(channel)

    def finish(self, channel: Channel, urgent: bool = False) -> list[Effect]:
        """The application has nothing more to publish for now: cover the tail at once."""
        published = self._stream(channel, urgent)
        effects = published.send_history() + published.timers()
        published.finishing = published.introduced
        return effects + self._maybe_finish(published)

    def _maybe_finish(self, published: PublishedStream) -> list[Effect]:
        """Give up the place on a channel once everything has arrived."""
        if not published.finishing or any(sender.unfinished for sender in published.senders):
            return []
        published.finishing, published.finished = False, True
        return self._leave(published.stream.channel)

    def _leave(self, channel: Channel) -> list[Effect]:
        others = [published for (name, _), published in self._streams.items() if name == channel]
        if not self._up or any(
            published.introduced and not published.finished for published in others
        ):
            return []
        return [Send(tuple(self._up), Finish(channel))]

    def _withdraw(self, published: PublishedStream) -> list[Effect]:
        """Stop publishing on a channel that refused until the application opens it again."""
        published.introduced = False
        for peer in self._up:
            for sender in published.senders:
                sender.disconnected(peer)
        return [Send(tuple(self._up), Finish(published.stream.channel))]

    def sizes(self) -> dict[str, int]:
        return {
            f"{published.stream}/{sender.stream.lane.name.lower()}/{name}": size
            for published in self._streams.values()
            for sender in published.senders
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
            case TimerFired(timer=Retransmit(stream=stream), late_ms=late_ms):
                return self._on_retransmit(stream, late_ms)
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

    def _stream(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> PublishedStream:
        """The stream of a channel; a new one is introduced to brokers with its first `open`."""
        incarnation = resumed or self._incarnation_of(channel, urgent)
        published = self._streams.get((channel, incarnation))
        if published is None:
            entry = channel_entry(self._view.manifest, channel)
            published = PublishedStream(self._view, entry, incarnation, self._heard)
            self._streams[channel, incarnation] = self._by_stream[published.stream] = published
        return published

    def _incarnation_of(self, channel: Channel, urgent: bool) -> int:
        return self._incarnations.get((channel, urgent), self._incarnation + urgent)

    def _introduce(self, published: PublishedStream) -> list[Effect]:
        published.finishing = published.finished = False
        if published.introduced:
            return []
        published.introduced = True
        return [effect for peer in self._up for effect in published.connected(peer)]

    def _on_connected(self, peer: NodeId) -> list[Effect]:
        if peer not in self._view.brokers:
            return []
        self._up[peer] = None
        effects: list[Effect] = []
        for published in self._streams.values():
            if published.introduced:
                effects += published.connected(peer) + published.timers()
        return effects

    def _on_disconnected(self, peer: NodeId) -> list[Effect]:
        if self._up.pop(peer, peer) is None:
            for published in self._streams.values():
                for sender in published.senders:
                    sender.disconnected(peer)
        return []

    def _on_submit(self, event: Submit, now: Millis) -> list[Effect]:
        published = self._stream(event.channel, event.urgent, event.resumed)
        effects = self._introduce(published)
        effects += published.submit(event.bodies, now)
        return effects + published.timers()

    def _on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        published = self._by_stream.get(ack.stream.data)
        if published is None:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        if broker not in self._view.brokers:
            return [Drop(DropReason.WRONG_SENDER, broker)]
        self._heard[broker] = self._heard.get(broker, 0) + 1
        self._refusals.served(ack.stream.channel, broker)
        return published.on_ack(broker, ack) + published.timers() + self._maybe_finish(published)

    def _on_outlived(self, broker: NodeId, message: Outlived, now: Millis) -> list[Effect]:
        """A broker knows a later life of this publisher; f of them may be lying about it."""
        published = self._by_stream.get(message.stream)
        if published is None or broker not in self._view.brokers:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        if published.stream.line is not None:
            return [Drop(DropReason.BAD_RUN, broker)]
        published.outlived[broker] = message.newest
        told, enough = published.outlived.values(), self._view.quorums.one_correct
        if len(told) < enough or published.data.acknowledged or not published.introduced:
            return []
        known = reached_by(told, enough)
        if known > LAST_INCARNATION:
            return [_used_up(published.stream), *self._withdraw(published)]
        return self._renew(published, known, now)

    def _renew(self, published: PublishedStream, known: int, now: Millis) -> list[Effect]:
        """Go on under a later incarnation with everything that was submitted."""
        former, channel = published.stream, published.stream.channel
        urgent = bool((former.incarnation ^ self._incarnation) & 1)
        del self._streams[channel, former.incarnation], self._by_stream[former]
        base = later_life(former.incarnation, known) | (self._incarnation & 1)
        other = self._incarnation_of(channel, not urgent)
        if former.life < other >> 1 >= known >> 1:
            base = other - (not urgent)  # brokers may know it: the other stream has begun that life
        self._incarnations[channel, urgent] = base + urgent
        if (channel, other) not in self._streams:
            self._incarnations[channel, not urgent] = base + (not urgent)
        renewed = self._stream(channel, urgent)
        effects: list[Effect] = [Renewed(renewed.stream, former)]
        if published.introduced:
            effects += self._introduce(renewed)
        renewed.finishing = published.finishing
        if bodies := published.data.contents():
            effects += renewed.submit(bodies, now)
        return effects + renewed.timers()

    def _on_retransmit(self, stream: Stream, late_ms: int) -> list[Effect]:
        published = self._by_stream.get(stream)
        if published is None:
            return []
        published.retransmitting = False
        effects = [effect for sender in published.senders for effect in sender.tick(late_ms)]
        return effects + published.timers()

    def _on_tail(self, stream: Stream, now: Millis) -> list[Effect]:
        published = self._by_stream.get(stream)
        if published is None:
            return []
        published.tail_set = False
        effects: list[Effect] = []
        if published.is_history_due(now):
            effects += published.send_history()
        return effects + published.timers()

    def _on_refuse(self, broker: NodeId, refuse: Refuse) -> list[Effect]:
        if refuse.listening:
            return []  # it is about subscribing, by another machine of this node
        used = {channel for channel, _ in self._streams}
        effects = self._refusals.on_refuse(self._view, used, broker, refuse)
        if any(isinstance(effect, Refused) for effect in effects):
            for (channel, _), published in self._streams.items():
                if channel == refuse.channel:
                    effects += self._withdraw(published)
        return effects


def _used_up(stream: Stream) -> Refused:
    reason = (
        f"{stream.publisher} can publish no more on {stream.channel!r}, because an earlier run of "
        "it used the last incarnation: publish at another seat (connect(..., seat=1)) or with "
        "another identity"
    )
    return Refused(stream.channel, reason)
