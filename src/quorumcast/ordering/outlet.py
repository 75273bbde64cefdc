"""The publisher's side of total order: labelled, signed offers to every broker.

An offer is acknowledged once f+1 brokers (crash: one) say that it has been ordered: one of them is
correct, so a quorum stands by it, and on a durable channel has it on disk.
"""

from __future__ import annotations

from quorumcast.broadcast.outlet import FanOut, OutRun
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.labels import label, unlabel
from quorumcast.core.machine import Bodies, Effect
from quorumcast.core.messages import AnyMessage, Offer
from quorumcast.core.quorum import OrderQuorums, Protection, Quorums
from quorumcast.crypto.digest import Hasher
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.offers import sign_offer


class OfferOut(FanOut):
    """Every run to every broker, to be ordered."""

    __slots__ = ("_keyring", "_signed")

    def __init__(
        self,
        stream: Stream,
        brokers: tuple[NodeId, ...],
        quorums: Quorums,
        policy: Policy,
        hash_: Hasher,
        keyring: Keyring,
    ) -> None:
        self._keyring = keyring
        self._signed = policy.protection is Protection.BYZANTINE
        super().__init__(stream, brokers, quorums, policy, hash_)

    def _acknowledging(self, quorums: Quorums) -> int:
        return OrderQuorums(quorums.n, quorums.f, self._signed).believe

    def contents(self) -> Bodies:
        found = [unlabel(body) for body in super().contents()]
        return tuple([labelled[1] for labelled in found if labelled is not None])

    def submit(self, bodies: Bodies) -> tuple[bytes, list[Effect]]:
        labelled = [
            label(self.stream, number) + body for number, body in enumerate(bodies, self.next)
        ]
        return super().submit(tuple(labelled))

    def _seal(self, first: int, digests: bytes) -> bytes:
        return sign_offer(self._keyring, self.stream, first, digests) if self._signed else b""

    def _message(self, run: OutRun) -> AnyMessage:
        return Offer(self.stream, run.first, run.digests, run.seal)
