"""The notary: a broker's signed word on each segment of a stream.

Per stream and segment (256 numbers by default) a broker signs one statement and sends it to the
subscribers of the channel: cheap enough for every publication to be provable, since one signature
stands for many. What is not a whole segment yet is signed on request.

A broker signs a number only once its word on it is final: when it was vouched for (Bracha, direct,
authenticated, chain) or, with histories, when a history settled it.
"""

from __future__ import annotations

from quorumcast.broadcast.contract import Carrier
from quorumcast.core.ids import Stream
from quorumcast.core.statements import Basis, SegmentStatement, Signed, canonical
from quorumcast.crypto.digest import root
from quorumcast.crypto.keyring import Keyring


def segment_start(number: int, segment: int) -> int:
    """The first number of the segment that a number lies in."""
    return (number - 1) // segment * segment + 1


class Notary:
    """Signs segments of one stream."""

    __slots__ = ("_basis", "_keyring", "_last", "_segment", "_signed_upto", "_stream")

    def __init__(self, stream: Stream, keyring: Keyring, basis: Basis, segment: int) -> None:
        self._stream = stream
        self._keyring = keyring
        self._basis = basis
        self._segment = segment
        #: End of the last whole segment that was signed, or passed over for want of its start.
        self._signed_upto = 0
        #: The newest statement made on request, with its epoch and number, so that repeating the
        #: request costs nothing. One of an earlier epoch is worth nothing in this.
        self._last: tuple[tuple[int, int, int], Signed] | None = None

    def newly_whole(self, carrier: Carrier) -> list[Signed]:
        """Statements on segments that have become whole and final."""
        if carrier.ledger.next <= self._signed_upto + self._segment:
            return []  # asked with every message: what is final takes longer to find out
        final = carrier.final
        signed: list[Signed] = []
        # At once past what will never be whole: a publisher may open its stream at any number.
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
        """A statement on the segment of a number, up to that number: alike at every broker.

        Whoever joined in the middle of a segment knows it only from there (`since`).
        """
        first = max(since, segment_start(number, self._segment))
        if not first <= number <= carrier.final:
            return None
        asked = (self._keyring.epoch, first, number)
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
            cell=self._keyring.cell,
            epoch=self._keyring.epoch,
            broker=self._keyring.identity.name,
            stream=self._stream,
            first=first,
            count=count,
            root=root(first, digests),
            basis=self._basis,
        )
        return self._keyring.identity.sign(canonical(statement))
