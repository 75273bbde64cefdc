"""Going on with a stream: the publisher's side where an earlier life may have published before it.

Whoever goes on submits everything again, from number 1, in the same bytes. Brokers say how far the
stream has been ordered, and with which chain of digests (`ordering.state`). What was ordered is not
sent again; where the numbers submitted reach a broker's word, the chains are compared.

Nothing that brokers say is believed on the word of fewer than f+1 (crash: one). So many words that
say otherwise, and the stream is given up: its contents are not what they were, or a later epoch of
its line has begun. So many that say the same at the end of it, and it is concluded: one of them is
correct, so exactly this has been ordered, by whichever life, once.

Every publication is a run of its own: runs are never cut anew, and lives differ in how much waits
at a time.
"""

from __future__ import annotations

from quorumcast.broadcast.outlet import OutRun
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Concluded, Contradicted, Effect
from quorumcast.core.messages import Ack
from quorumcast.core.quorum import Quorums
from quorumcast.crypto.digest import Hasher
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.outlet import OfferOut
from quorumcast.ordering.state import chained, extent_root


class ResumedOut(OfferOut):
    """Offers of a stream that may have been ordered in part."""

    __slots__ = ("_chains", "_concluding", "_ended", "_words")

    def __init__(
        self,
        stream: Stream,
        brokers: tuple[NodeId, ...],
        quorums: Quorums,
        policy: Policy,
        hash_: Hasher,
        keyring: Keyring,
    ) -> None:
        super().__init__(stream, brokers, quorums, policy, hash_, keyring)
        #: What stands for everything up to a number; from the last acknowledged run on.
        self._chains = {0: b""}
        #: The last word of each broker.
        self._words: dict[NodeId, Ack] = {}
        #: Whether everything has been submitted.
        self._concluding = False
        #: Whether the application has been told how it ended.
        self._ended = False

    def conclude(self) -> list[Effect]:
        """Everything has been submitted: tell the application when all of it is ordered."""
        self._concluding = True
        return self._judge()

    def on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        self._words[broker] = ack
        if self._denies(ack) is not None:
            return self._judge()  # neither counted nor served
        return super().on_ack(broker, ack) + self._judge()

    def _send_new(self, run: OutRun) -> list[Effect]:
        self._chains[run.last] = chained(self._chains[run.first - 1], extent_root(run.digests))
        for broker, ack in self._words.items():
            progress = self._progress.get(broker)
            if progress is None or ack.upto < run.last:
                continue
            # It has been ordered; what it was will turn out where the broker's word ends.
            progress.acked = max(progress.acked, run.last)
            if progress.sent == run.first:
                progress.sent = run.last + 1
        return [*super()._send_new(run), *self._advance(), *self._judge()]

    def _forget(self) -> None:
        super()._forget()
        kept = self.base - 1
        for number in [number for number in self._chains if number < kept]:
            del self._chains[number]

    def _denies(self, ack: Ack) -> int | None:
        """The number about which a broker says otherwise; 0: the stream is over; None: nowhere."""
        if not ack.credit:
            return 0
        if ack.upto >= self.next:
            return self.next if self._concluding else None
        known = self._chains.get(ack.upto)
        return None if known is None or known == ack.chain else ack.upto

    def _judge(self) -> list[Effect]:
        """Whether enough brokers deny what is submitted, or stand by all of it."""
        if self._ended:
            return []
        words = [ack for broker, ack in self._words.items() if broker in self._progress]
        denied = sorted(number for ack in words if (number := self._denies(ack)) is not None)
        if len(denied) >= self._quorum:
            self._ended = True
            # The lowest may be a liar's; one of the lowest so many is a correct broker's.
            return [Contradicted(self.stream, denied[self._quorum - 1])]
        last = self.next - 1
        agreed = [ack for ack in words if ack.upto == last and ack.chain == self._chains[last]]
        if self._concluding and len(agreed) >= self._quorum:
            self._ended = True
            return [Concluded(self.stream)]
        return []
