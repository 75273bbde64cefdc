"""The publisher's side of total order: labelled, signed offers to every broker.

The label names stream and number. It precedes the contents, and the digests that are signed and
ordered cover it (`core.labels`).

An offer is acknowledged once n-f brokers say that it has been ordered. One of them is correct, so a
quorum accepted it, and on a durable channel has it on disk: for that f+1 would be enough. But a
reader of the past asks n-f brokers where the order ends. At least one correct broker is among any
n-f of these and any n-f of those, so the reader hears of what was acknowledged before it began.
"""

from __future__ import annotations

from quorumcast.broadcast.application import Concluded, Contradicted
from quorumcast.broadcast.messages import Ack
from quorumcast.broadcast.sender import BrokerProgress, FanOutSender, PendingRun
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.labels import label, unlabel
from quorumcast.core.machine import Bodies, Effect
from quorumcast.core.message import Message
from quorumcast.core.tally import reached_by
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offers import sign_offer
from quorumcast.ordering.state import chained, extent_root


class OfferSender(FanOutSender):
    """Offers every run to every broker."""

    __slots__ = ()

    def submit(self, bodies: Bodies) -> tuple[bytes, list[Effect]]:
        labelled = [
            label(self.stream, number) + body for number, body in enumerate(bodies, self.next)
        ]
        return super().submit(tuple(labelled))

    def contents(self) -> Bodies:
        """What was submitted and can still be repeated, without labels."""
        pairs = [unlabel(body) for body in super().contents()]
        return tuple([pair[1] for pair in pairs if pair is not None])

    def _seal(self, first: int, digests: bytes) -> bytes:
        if self._policy.crash_only:
            return b""
        return sign_offer(self._view.keyring, self.stream, first, digests)

    def _message(self, run: PendingRun) -> Message:
        return Offer(self.stream, run.first, run.digests, run.seal)


class ResumedSender(OfferSender):
    """Offers of a resumed stream: an earlier life of the publisher may have got part of it ordered.

    The application submits everything again, from number 1, in the same bytes. Brokers say how far
    the stream is ordered, and with which chain of digests (`ordering.state`). What is ordered is
    not sent again; at the number that a broker names, its chain is compared with ours.

    Only f+1 brokers (crash: one) are believed. If so many report another chain, or a later epoch
    of the stream, the publisher gives the stream up. If n-f report the same chain at its end, the
    stream is concluded: exactly this was ordered, once.

    Nothing is sent before n-f brokers have answered. Otherwise a broker that lags or lies could
    have the next number ordered before f+1 others report that earlier numbers had other contents.

    Every publication is a run of its own (`PublishedStream` sees to it), because runs are never cut
    anew and two lives differ in how much waits at a time.
    """

    __slots__ = ("_acks", "_chains", "_concluding", "_ended", "_ordered")

    def __init__(self, stream: Stream, view: View, policy: Policy) -> None:
        super().__init__(stream, view, policy)
        #: Up to this number earlier lives had it ordered; None until n-f brokers have answered.
        self._ordered: int | None = None
        #: The hash chain of everything up to a number, from the last acknowledged run on.
        self._chains = {0: b""}
        #: The last Ack of each broker.
        self._acks: dict[NodeId, Ack] = {}
        #: Whether everything has been submitted.
        self._concluding = False
        #: Whether the application has been told how it ended.
        self._ended = False

    def conclude(self) -> list[Effect]:
        """Everything has been submitted: tell the application when all of it is ordered."""
        self._concluding = True
        return self._maybe_end()

    def on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        self._acks[broker] = ack
        effects: list[Effect] = []
        if self._denied_number(ack) is None:  # a broker that denies is neither counted nor served
            effects += super().on_ack(broker, ack)
        effects += self._maybe_end()
        if self._ordered is None and len(self._current_acks()) >= self._view.quorums.responders:
            self._ordered = reached_by((ack.upto for ack in self._current_acks()), self._believed)
            for other, progress in self._progress.items():
                if progress.connected and progress.credit:
                    effects += self._pump(other, progress, len(self._runs))
        return effects

    # ----------------------------------------------------------------- sending

    @property
    def _may_send(self) -> bool:
        return self._ordered is not None and not self._ended

    def _send_new(self, run: PendingRun) -> list[Effect]:
        self._chains[run.last] = chained(self._chains[run.first - 1], extent_root(run.digests))
        for broker, ack in self._acks.items():
            progress = self._progress.get(broker)
            if progress is not None and ack.upto >= run.last:
                # It has been ordered; the chain in the broker's Ack shows with which contents.
                progress.acked = max(progress.acked, run.last)
        self._skip_ordered()  # it looks at runs that `_advance` may forget
        effects = [*self._advance(), *self._maybe_end()]
        return [*effects, *super()._send_new(run)] if self._may_send else effects

    def _pump(self, broker: NodeId, progress: BrokerProgress, burst: int) -> list[Effect]:
        self._skip_ordered()
        return super()._pump(broker, progress, burst) if self._may_send else []

    def _skip_ordered(self) -> None:
        """Send nobody what earlier lives had ordered: a broker that lacks it asks the others."""
        for progress in self._progress.values():
            upto = max(self._ordered or 0, progress.acked)
            while (run := self._runs.get(progress.sent)) is not None and run.last <= upto:
                progress.sent = run.last + 1

    def _forget(self) -> None:
        super()._forget()
        kept = self.base - 1
        for number in [number for number in self._chains if number < kept]:
            del self._chains[number]

    # -------------------------------------------------------- what brokers say

    def _maybe_end(self) -> list[Effect]:
        """End if enough brokers deny what is submitted, or confirm all of it."""
        if self._ended:
            return []
        acks = self._current_acks()
        denied = sorted(number for ack in acks if (number := self._denied_number(ack)) is not None)
        if len(denied) >= self._believed:
            self._ended = True
            # One of the `_believed` lowest is a correct broker's. A chain that differs at its
            # number differs at all later ones.
            return [Contradicted(self.stream, denied[self._believed - 1])]
        last = self.next - 1
        agreed = [ack for ack in acks if ack.upto == last and ack.chain == self._chains[last]]
        if self._concluding and len(agreed) >= self._needed:
            self._ended = True
            return [Concluded(self.stream)]
        return []

    @property
    def _believed(self) -> int:
        """So many brokers that say the same are believed."""
        return self._view.quorums.of_log(self._policy.protection).believe

    def _current_acks(self) -> list[Ack]:
        """The last Acks of brokers that are in the cell now."""
        return [ack for broker, ack in self._acks.items() if broker in self._progress]

    def _denied_number(self, ack: Ack) -> int | None:
        """The number at which a broker has ordered something else; None if it reports no such one.

        0 if it has closed the stream, because a later epoch has begun: it gives no credit then.
        """
        if not ack.credit:
            return 0
        if ack.upto >= self.next:
            return self.next if self._concluding else None
        known = self._chains.get(ack.upto)
        return None if known is None or known == ack.chain else ack.upto
