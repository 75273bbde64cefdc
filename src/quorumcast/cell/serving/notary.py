"""The notary: signs a broker's statements about segments of a stream.

Per stream and segment (256 numbers by default) a broker signs one statement and sends it to the
subscribers of the channel, so that every publication is provable at little cost. Part of a segment
is signed on request. A broker signs a number only once its digest is final: when it was vouched for
(Bracha, direct, authenticated, chain) or, with histories, when a history settled it.

A broker that restarts without a journal has forgotten what it signed. So a statement names the life
in which it was made, and statements of two lives are never held against a broker
(docs/threat-model.md, "Signed statements").
"""

from __future__ import annotations

from quorumcast.broadcast.contract import Carrier
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.statements import Basis, SegmentStatement, Signed, canonical
from quorumcast.crypto.digest import root
from quorumcast.crypto.keyring import Keyring


def segment_start(number: int, segment: int) -> int:
    """The first number of the segment that a number lies in."""
    return (number - 1) // segment * segment + 1


class Notary:
    """Signs segments of one stream.

    `peers` are the lives of the other brokers: as known when the stream began here, or, where
    brokers remember more than one life (a journal or a log), as known at any time.
    """

    __slots__ = (
        "_basis",
        "_keyring",
        "_last",
        "_life",
        "_segment",
        "_signed_upto",
        "_stream",
        "peers",
    )

    def __init__(
        self,
        stream: Stream,
        keyring: Keyring,
        basis: Basis,
        segment: int,
        life: bytes,
        peers: dict[NodeId, bytes],
    ) -> None:
        self._life = life
        #: At most one life per broker.
        self.peers = peers
        self._stream = stream
        self._keyring = keyring
        self._basis = basis
        self._segment = segment
        #: End of the last whole segment that was signed, or skipped because its start is missing.
        self._signed_upto = 0
        #: The newest statement made on request, with its epoch, numbers and the lives of others, so
        #: that repeating the request costs nothing.
        self._last: tuple[tuple[object, ...], Signed] | None = None

    def newly_whole(self, carrier: Carrier) -> list[Signed]:
        """Statements on segments that have become whole and final."""
        if carrier.ledger.next <= self._signed_upto + self._segment:
            return []  # called with every message, and `final` takes longer to compute
        final = carrier.final
        signed: list[Signed] = []
        # Skip what will never be whole at once: a publisher may open its stream at any number.
        passed = carrier.final_from - 1 + self._segment - 1
        self._signed_upto = max(self._signed_upto, passed // self._segment * self._segment)
        while self._signed_upto + self._segment <= final:
            first = self._signed_upto + 1
            self._signed_upto += self._segment
            statement = self._sign(carrier, first, self._segment)
            if statement is not None:
                signed.append(statement)
        return signed

    def attest(self, carrier: Carrier, number: int, since: int = 1) -> Signed | None:
        """A statement on the segment of a number, up to that number: the same at every broker.

        A subscriber that joined in the middle of a segment knows it only from there (`since`).
        """
        first = max(since, segment_start(number, self._segment))
        if not first <= number <= carrier.final:
            return None
        asked = (self._keyring.epoch, first, number, *self.peers.values())
        if self._last is None or self._last[0] != asked:
            signed = self._sign(carrier, first, number - first + 1)
            if signed is None:
                return None
            self._last = (asked, signed)
        return self._last[1]

    def _sign(self, carrier: Carrier, first: int, count: int) -> Signed | None:
        digests = carrier.ledger.digests(first, count)
        if digests is None or first < carrier.final_from:
            return None
        statement = SegmentStatement(
            cell=self._keyring.instance,
            epoch=self._keyring.epoch,
            broker=self._keyring.identity.name,
            stream=self._stream,
            first=first,
            count=count,
            root=root(first, digests),
            basis=self._basis,
            life=self._life,
            log_id=carrier.log_id,
            peers=tuple(sorted(self.peers.items())),
        )
        return self._keyring.identity.sign(canonical(statement))
