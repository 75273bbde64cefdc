"""The publisher: numbers what the application publishes and sees it through to the brokers.

One `Line` per channel, and a second one for what is urgent: an outlet for the publications and,
where the policy has a history, another for the histories. After every α publications, and for the
tail after a moment of idleness, the publisher signs the digests since its last history and sends
them through Bracha.

Adaptive α (Freeman §8.1): it doubles up to `alpha_max` while histories repair nothing and halves
down to `alpha` when subscribers say that they missed something.

Urgent publications overtake what waits because they are a stream of their own, with its own numbers
and its own credit: to everybody else it is one more incarnation of the publisher, the one after its
own. So incarnations of a publisher that ever calls anything urgent must be at least two apart.
"""

from __future__ import annotations

from collections import deque

from quorumcast.agents.refusals import Refusals, channel_entry
from quorumcast.broadcast.chain_outlet import ChainOut
from quorumcast.broadcast.outlet import FanOut, HistoryOut
from quorumcast.broadcast.signed_history import history_body
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import (
    Acknowledged,
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Refused,
    Send,
    SetTimer,
    Submit,
    Timer,
    TimerFired,
)
from quorumcast.core.messages import Ack, Finish, Refuse
from quorumcast.core.quorum import Broadcast
from quorumcast.core.statements import HistoryStatement, canonical
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.ordering.outlet import OfferOut

RETRANSMIT_MS = 250
#: After this much idleness the tail gets a history of its own.
TAIL_MS = 80
#: Bytes of contents in one run, which travels as one message: a backlog is cut so that readers work
#: on the first part while the next is on its way, and need no buffers for more. In smaller parts
#: what each run costs by itself, above all where it is ordered, begins to show.
MAX_RUN_BYTES = 2 * 1024 * 1024
#: A rest of no more than this goes with the run before it: ordering a small run costs as much.
MAX_REST_BYTES = MAX_RUN_BYTES // 4


class Retransmit(Timer, frozen=True, tag=True):
    """See whether brokers acknowledge what they were sent."""

    stream: Stream


class TailHistory(Timer, frozen=True, tag=True):
    """Cover the publications since the last history if no more have come."""

    stream: Stream


class Line:
    """What a publisher keeps for one stream."""

    __slots__ = (
        "_judged",
        "_keyring",
        "_limit",
        "_missed",
        "_policy",
        "_uncovered",
        "alpha",
        "covered",
        "data",
        "finished",
        "finishing",
        "history",
        "introduced",
        "last_submit",
        "retransmitting",
        "stream",
        "tail_set",
    )

    def __init__(self, manifest: Manifest, entry: ChannelEntry, keyring: Keyring, inc: int) -> None:
        me = keyring.identity.name
        self.stream = Stream(entry.name, me, inc)
        self._keyring = keyring
        policy = self._policy = entry.policy
        brokers, quorums, hash_ = manifest.broker_ids, manifest.quorums, manifest.hash
        history: HistoryOut | None = None
        if policy.has_history:
            history = HistoryOut(self.stream.history, brokers, quorums, policy, hash_)
        self.history = history
        self.data: FanOut
        if policy.broadcast is Broadcast.CHAIN:
            self.data = ChainOut(self.stream, brokers, quorums, policy, hash_, keyring, history)
        elif policy.broadcast is Broadcast.CONSENSUS:
            self.data = OfferOut(self.stream, brokers, quorums, policy, hash_, keyring)
        else:
            self.data = FanOut(self.stream, brokers, quorums, policy, hash_, history)
        #: Publications between histories, right now.
        self.alpha = policy.alpha
        #: Every number up to this one is in a history that was sent.
        self.covered = 0
        #: Digests of the runs since `covered`.
        self._uncovered: deque[bytes] = deque()
        #: What subscribers were said to have missed at the last history.
        self._missed = 0
        #: The last history that α was adapted to.
        self._judged = 0
        self._limit = min(MAX_RUN, policy.limits.window, policy.alpha_ceiling or MAX_RUN)
        self.last_submit = Millis(0)
        #: Whether brokers have been told of this stream.
        self.introduced = False
        #: Whether the application has closed it, and brokers are told once everything has arrived.
        self.finishing = False
        #: Whether it has said so; the place goes when every line of the channel has.
        self.finished = False
        #: Whether the timers are set.
        self.retransmitting = False
        self.tail_set = False

    @property
    def outlets(self) -> tuple[FanOut, ...]:
        """The lanes of this line."""
        return (self.data,) if self.history is None else (self.data, self.history)

    def adopt(self, manifest: Manifest) -> list[Effect]:
        """Go on in a new epoch, perhaps with other brokers."""
        effects = self.data.adopt(manifest.broker_ids, manifest.quorums)
        if self.history is not None:
            # The application is told of publications, not of histories.
            self.history.adopt(manifest.broker_ids, manifest.quorums)
        return effects

    def connected(self, peer: NodeId) -> list[Effect]:
        """Introduce the stream to a broker."""
        return [effect for outlet in self.outlets for effect in outlet.connected(peer)]

    def submit(self, bodies: tuple[bytes, ...], now: Millis) -> list[Effect]:
        """Cut what the application publishes into runs and send them."""
        effects: list[Effect] = []
        for run in self._runs(bodies):
            digests, sent = self.data.submit(run)
            effects += sent
            if self.history is not None:
                self._uncovered.append(digests)
                effects += self._maybe_send_history()
        self.last_submit = now
        return effects

    def _runs(self, bodies: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
        rest = sum(map(len, bodies))
        if len(bodies) <= self._limit and rest <= MAX_RUN_BYTES:
            return [bodies]
        runs: list[tuple[bytes, ...]] = []
        run: list[bytes] = []
        size = 0
        for body in bodies:
            full = size + len(body) > MAX_RUN_BYTES and rest > MAX_REST_BYTES
            if run and (len(run) >= self._limit or full):
                runs.append(tuple(run))
                run, size = [], 0
            run.append(body)
            size += len(body)
            rest -= len(body)
        runs.append(tuple(run))
        return runs

    def _maybe_send_history(self) -> list[Effect]:
        """A history whenever α publications are on their way without one."""
        effects: list[Effect] = []
        while self._uncovered and self.data.reach - self.covered >= self.alpha:
            sent = self.send_history()
            if not sent:
                break
            effects += sent
        return effects

    def send_history(self) -> list[Effect]:
        """Sign what is on its way and not covered yet, and send it through Bracha.

        A history names only what was sent, and ends where a run ends, within 2α. One that named
        what waits for credit would wait for it at the brokers, and the credit for the history.
        """
        if self.history is None:
            return []
        most = min(self.data.reach - self.covered, 2 * self._policy.alpha_ceiling) * DIGEST_SIZE
        digests = b""
        while self._uncovered and len(digests) + len(self._uncovered[0]) <= most:
            digests += self._uncovered.popleft()
        if not digests:
            return []
        statement = HistoryStatement(
            cell=self._keyring.cell,
            epoch=self._keyring.epoch,
            stream=self.stream,
            index=self.history.next,
            first=self.covered + 1,
            digests=digests,
        )
        self.covered += len(digests) // DIGEST_SIZE
        signed = self._keyring.identity.sign(canonical(statement))
        return self.history.send(history_body(signed), self.covered + 1)

    def on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        """Progress on one of the lanes."""
        if ack.stream.lane is Lane.HISTORY:
            if self.history is None:
                return [Drop(DropReason.UNEXPECTED, broker)]
            # The application is told of publications, not of histories.
            return [e for e in self.history.on_ack(broker, ack) if not isinstance(e, Acknowledged)]
        effects = self.data.on_ack(broker, ack)
        if self.history is not None:
            effects += self._maybe_send_history()
        if self._policy.adaptive:
            self._adapt()
        return effects

    def _adapt(self) -> None:
        """By the word of f+1 brokers: a single one might tell anything."""
        missed = self.data.missed
        if missed > self._missed:
            self._missed = missed
            self.alpha = max(self._policy.alpha, self.alpha // 2)
        elif self.data.settled >= self.covered > self._judged:
            self._judged = self.covered
            self.alpha = min(self._policy.alpha_ceiling, self.alpha * 2)

    def timers(self) -> list[Effect]:
        """Keep the timers going as long as there is something to wait for."""
        effects: list[Effect] = []
        if not self.retransmitting and any(outlet.unfinished for outlet in self.outlets):
            self.retransmitting = True
            effects.append(SetTimer(Retransmit(self.stream), RETRANSMIT_MS))
        if self.history is not None and self._uncovered and not self.tail_set:
            self.tail_set = True
            effects.append(SetTimer(TailHistory(self.stream), TAIL_MS))
        return effects


class Publisher:
    """The machine of a publisher."""

    __slots__ = (
        "_by_stream",
        "_incarnation",
        "_keyring",
        "_lines",
        "_manifest",
        "_refusals",
        "_up",
    )

    def __init__(self, manifest: Manifest, keyring: Keyring, incarnation: int) -> None:
        self._manifest = manifest
        self._keyring = keyring
        self._incarnation = incarnation
        #: One line per channel that the application publishes on, and one for what is urgent.
        self._lines: dict[tuple[Channel, bool], Line] = {}
        #: The same by the data lanes of their streams.
        self._by_stream: dict[Stream, Line] = {}
        self._refusals = Refusals()
        #: Brokers that can be reached, in the order in which they came.
        self._up: dict[NodeId, None] = {}

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch: other clients, rights, keys, channels, a broker more or less."""
        self._manifest = manifest
        self._keyring.adopt(keyring)
        self._refusals.clear()
        self._up = {peer: None for peer in self._up if peer in manifest.broker_ids}
        return [effect for line in self._lines.values() for effect in line.adopt(manifest)]

    def room(self, channel: Channel, urgent: bool = False) -> int:
        """How many more publications the buffer of a channel takes."""
        return self._line(channel, urgent).data.room

    def stream(self, channel: Channel, urgent: bool = False) -> Stream:
        """The stream on which this publisher publishes to a channel."""
        return self._line(channel, urgent).stream

    def published(self, channel: Channel, urgent: bool = False) -> int:
        """The number of the newest publication on a channel."""
        return self._line(channel, urgent).data.next - 1

    def alpha(self, channel: Channel) -> int:
        """Publications between histories right now (0 without histories)."""
        return self._line(channel).alpha

    def open(self, channel: Channel, urgent: bool = False) -> list[Effect]:
        """Introduce the channel's stream to every broker that can be reached.

        Also to those that refused it before: there may be a place now.
        """
        self._refusals.forget(channel)
        return self._introduce(self._line(channel, urgent))

    def finish(self, channel: Channel, urgent: bool = False) -> list[Effect]:
        """The application has nothing more to publish for now: cover the tail at once."""
        line = self._line(channel, urgent)
        effects = line.send_history() + line.timers()
        line.finishing = line.introduced
        return effects + self._maybe_finish(line)

    def _maybe_finish(self, line: Line) -> list[Effect]:
        """Leave the place on a channel to others, once everything has arrived."""
        if not line.finishing or any(outlet.unfinished for outlet in line.outlets):
            return []
        line.finishing, line.finished = False, True
        channel = line.stream.channel
        others = [line for (name, _), line in self._lines.items() if name == channel]
        if not self._up or any(line.introduced and not line.finished for line in others):
            return []
        return [Send(tuple(self._up), Finish(channel))]

    def _withdraw(self, line: Line) -> list[Effect]:
        """Refused: say nothing more on a channel until the application opens it again."""
        line.introduced = False
        for peer in self._up:
            for outlet in line.outlets:
                outlet.disconnected(peer)
        return [Send(tuple(self._up), Finish(line.stream.channel))]

    def sizes(self) -> dict[str, int]:
        return {
            f"{line.stream}/{outlet.stream.lane.name.lower()}/{name}": size
            for line in self._lines.values()
            for outlet in line.outlets
            for name, size in outlet.sizes().items()
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
            case Receive():
                return [Drop(DropReason.UNEXPECTED, event.sender)]
            case _:
                return []

    def _line(self, channel: Channel, urgent: bool = False) -> Line:
        """The line of a channel; a new one is introduced to brokers with its first `open`."""
        line = self._lines.get((channel, urgent))
        if line is None:
            entry = channel_entry(self._manifest, channel)
            line = Line(self._manifest, entry, self._keyring, self._incarnation + urgent)
            self._lines[channel, urgent] = self._by_stream[line.stream] = line
        return line

    def _introduce(self, line: Line) -> list[Effect]:
        line.finishing = line.finished = False
        if line.introduced:
            return []
        line.introduced = True
        return [effect for peer in self._up for effect in line.connected(peer)]

    def _on_connected(self, peer: NodeId) -> list[Effect]:
        if peer not in self._manifest.broker_ids:
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
                for outlet in line.outlets:
                    outlet.disconnected(peer)
        return []

    def _on_submit(self, event: Submit, now: Millis) -> list[Effect]:
        line = self._line(event.channel, event.urgent)
        effects = self._introduce(line)
        effects += line.submit(event.bodies, now)
        return effects + line.timers()

    def _on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        line = self._by_stream.get(ack.stream.data)
        if line is None:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        if broker not in self._manifest.broker_ids:
            return [Drop(DropReason.WRONG_SENDER, broker)]
        self._refusals.served(ack.stream.channel, broker)
        return line.on_ack(broker, ack) + line.timers() + self._maybe_finish(line)

    def _on_retransmit(self, stream: Stream) -> list[Effect]:
        line = self._by_stream.get(stream)
        if line is None:
            return []
        line.retransmitting = False
        effects: list[Effect] = []
        for outlet in line.outlets:
            effects += outlet.tick()
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
        effects = self._refusals.hear(self._manifest, used, broker, refuse)
        if any(isinstance(effect, Refused) for effect in effects):
            for (channel, _), line in self._lines.items():
                if channel == refuse.channel:
                    effects += self._withdraw(line)
        return effects
