"""A stream that a publisher publishes: a sender for publications and, perhaps, one for histories.

It cuts what is submitted into runs and decides when a history is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from quorumcast.broadcast.application import Acknowledged
from quorumcast.broadcast.chain_sender import ChainSender
from quorumcast.broadcast.messages import Ack
from quorumcast.broadcast.protocol import protocol_of
from quorumcast.broadcast.sender import FanOutSender, HistorySender
from quorumcast.broadcast.signed_history import history_body
from quorumcast.core.ids import DIGEST_SIZE, Lane, Millis, NodeId, Stream, holder
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import Drop, DropReason, Effect, SetTimer, Timer
from quorumcast.core.statements import HistoryStatement, canonical
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View
from quorumcast.ordering.offer_sender import OfferSender, ResumedSender

RETRANSMIT_MS = 250
#: After this much idleness the tail gets a history of its own.
TAIL_MS = 80
#: The oldest publication without a history gets one after about this long: where the fast path
#: fails, subscribers of a slow publisher would wait until it has published α of them.
HISTORY_MS = 250
#: A busy cell gets fewer histories: after one that took a while to be settled, none is due by time
#: for REST times as long.
REST = 4
#: But one is due so long after the one before, whatever became of that.
LONGEST_MS = 2_000
#: Bytes of contents in one run, which travels as one message. A backlog is cut so that receivers
#: work on the first part while the next is on its way; smaller runs would cost more overhead each,
#: above all under total order.
MAX_RUN_BYTES = 2 * 1024 * 1024
#: A rest of at most this size joins the run before it: a small run has the same overhead.
MAX_REST_BYTES = MAX_RUN_BYTES // 4
#: A history is sent at the latest after 1/HISTORY_PART of the bytes that brokers retain.
HISTORY_PART = 4


class Retransmit(Timer, frozen=True, tag=True):
    """Retransmit what brokers have not acknowledged."""

    stream: Stream


class TailHistory(Timer, frozen=True, tag=True):
    """Cover the publications since the last history if it is time for one."""

    stream: Stream


class PublishedStream:
    """What a publisher keeps for one stream."""

    __slots__ = (
        "_history_bytes",
        "_judged",
        "_keyring",
        "_limit",
        "_missed",
        "_policy",
        "_timed_at",
        "_took_ms",
        "_uncovered",
        "_uncovered_bytes",
        "_view",
        "alpha",
        "covered",
        "data",
        "finished",
        "finishing",
        "history",
        "introduced",
        "last_submit",
        "outlived",
        "retransmitting",
        "stream",
        "tail_set",
    )

    def __init__(
        self,
        view: View,
        entry: ChannelEntry,
        incarnation: int,
        heard: Mapping[NodeId, int] | None = None,
    ) -> None:
        self.stream = Stream(entry.name, view.me, incarnation)
        if self.stream.line is not None:
            # A resumed stream belongs to the client, whichever seat it has this time.
            self.stream = Stream(entry.name, holder(view.me), incarnation)
        self._view = view
        self._keyring = view.keyring
        policy = self._policy = entry.policy
        history: HistorySender | None = None
        if policy.has_history:
            history = HistorySender(self.stream.history, view, policy)
        self.history = history
        self.data: FanOutSender
        protocol = protocol_of(policy)
        if protocol is not None:
            self.data = protocol.sender(self.stream, view, policy, history)
        elif policy.chained:
            self.data = ChainSender(self.stream, view, policy, history, heard)
        elif policy.total:
            kind = OfferSender if self.stream.line is None else ResumedSender
            self.data = kind(self.stream, view, policy)
        else:
            self.data = FanOutSender(self.stream, view, policy, history)
        #: The latest incarnation that each broker knows, if later than this one.
        self.outlived: dict[NodeId, int] = {}
        #: Publications between histories, right now.
        self.alpha = policy.alpha
        #: Every number up to this one is in a history that was sent.
        self.covered = 0
        #: The runs since `covered`: digests, bytes of contents, and when they were submitted.
        self._uncovered: deque[tuple[bytes, int, Millis]] = deque()
        self._uncovered_bytes = 0
        #: When a history was last due by time, and for how long it was seen under way.
        self._timed_at = Millis(-LONGEST_MS)
        self._took_ms = 0
        #: A history is due for so many bytes: brokers echo it only if they retain all of them.
        self._history_bytes = policy.limits.retained_bytes // HISTORY_PART
        #: The count of missed publications when α was last lowered.
        self._missed = 0
        #: The last number that a history covered when α was last raised.
        self._judged = 0
        self._limit = min(MAX_RUN, policy.limits.window, policy.alpha_ceiling or MAX_RUN)
        if self.stream.line is not None:
            self._limit = 1  # every life must cut it into the same runs
        self.last_submit = Millis(0)
        #: Whether brokers have been told of this stream.
        self.introduced = False
        #: Whether the application has closed it; brokers are told once everything has arrived.
        self.finishing = False
        #: Whether everything has arrived; brokers are told when all streams of the channel did.
        self.finished = False
        #: Whether the timers are set.
        self.retransmitting = False
        self.tail_set = False

    @property
    def senders(self) -> tuple[FanOutSender, ...]:
        """The senders of both lanes, or of the only one."""
        return (self.data,) if self.history is None else (self.data, self.history)

    def recount(self) -> list[Effect]:
        """Go on in a new epoch, perhaps with other brokers or limits."""
        entry = self._view.channel(self.stream.channel)
        if entry is not None:
            self._history_bytes = entry.policy.limits.retained_bytes // HISTORY_PART
        effects = self.data.recount()
        if self.history is not None:
            # The application is told of publications, not of histories.
            self.history.recount()
        return effects

    def connected(self, peer: NodeId) -> list[Effect]:
        """Introduce the stream to a broker that can be reached."""
        return [effect for sender in self.senders for effect in sender.connected(peer)]

    def submit(self, bodies: tuple[bytes, ...], now: Millis) -> list[Effect]:
        """Cut what the application publishes into runs and send them."""
        effects: list[Effect] = []
        for run in self._runs(bodies):
            digests, sent = self.data.submit(run)
            effects += sent
            if self.history is not None:
                size = sum(map(len, run))
                self._uncovered.append((digests, size, now))
                self._uncovered_bytes += size
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
        """Send a history if α publications, or many bytes, were sent without one."""
        effects: list[Effect] = []
        while self._uncovered and (
            self.data.reach - self.covered >= self.alpha
            or self._uncovered_bytes >= self._history_bytes
        ):
            sent = self.send_history()
            if not sent:
                break
            effects += sent
        return effects

    def is_history_due(self, now: Millis) -> bool:
        """Whether the publications since the last history have waited long enough for one.

        A history costs brokers the same whatever its length. A publisher of many streams would
        spend a busy cell's time on histories of a few publications each.
        """
        if not self._uncovered:
            return False
        idle, oldest = now - self.last_submit >= TAIL_MS, self._uncovered[0][2]
        if not idle and now - oldest < HISTORY_MS:
            return False
        since_last = now - self._timed_at
        if self.data.settled < self.covered:
            self._took_ms = since_last
        if since_last < LONGEST_MS and (
            self.data.settled < self.covered or since_last < (1 + REST) * self._took_ms
        ):
            return False
        self._timed_at, self._took_ms = now, 0
        return True

    def send_history(self) -> list[Effect]:
        """Sign what was sent and is not in a history yet, and send that through Bracha.

        A history ends where a run ends, within 2α. It names nothing that waits for credit: it would
        wait for that at the brokers, and the credit for the history.
        """
        if self.history is None:
            return []
        most = min(self.data.reach - self.covered, 2 * self._policy.alpha_ceiling) * DIGEST_SIZE
        digests, size = b"", 0
        while self._uncovered and len(digests) + len(self._uncovered[0][0]) <= most:
            if digests and size + self._uncovered[0][1] > 2 * self._history_bytes:
                break
            run, run_size, _ = self._uncovered.popleft()
            digests += run
            size += run_size
        self._uncovered_bytes -= size
        if not digests:
            return []
        statement = HistoryStatement(
            cell=self._keyring.instance,
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
        """Handle an acknowledgement on one of the lanes."""
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
        """Adapt α to what f+1 brokers report; a single one may lie."""
        missed = self.data.missed
        if missed > self._missed:
            self._missed = missed
            self.alpha = max(self._policy.alpha, self.alpha // 2)
        elif self.data.settled > self._judged:
            self._judged = self.covered
            self.alpha = min(self._policy.alpha_ceiling, self.alpha * 2)

    def timers(self) -> list[Effect]:
        """Keep the timers going as long as there is something to wait for."""
        effects: list[Effect] = []
        if not self.retransmitting and any(
            sender.unfinished or sender.watches for sender in self.senders
        ):
            self.retransmitting = True
            effects.append(SetTimer(Retransmit(self.stream), RETRANSMIT_MS))
        if self.history is not None and self._uncovered and not self.tail_set:
            self.tail_set = True
            effects.append(SetTimer(TailHistory(self.stream), TAIL_MS))
        return effects
