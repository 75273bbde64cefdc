"""Signed histories: how they are written and read, and what two of them with one index prove."""

from __future__ import annotations

import msgspec

from quorumcast.core.ids import DIGEST_SIZE, Stream
from quorumcast.core.machine import Accuse, Drop, DropReason, Effect
from quorumcast.core.statements import (
    Evidence,
    EvidenceKind,
    HistoryStatement,
    Signed,
    parse_statement,
)
from quorumcast.crypto.keyring import Keyring

#: Histories remembered, for evidence and for following their ends.
REMEMBERED = 64

_decoder = msgspec.msgpack.Decoder(Signed)
_encoder = msgspec.msgpack.Encoder()


def history_body(signed: Signed) -> bytes:
    """A signed history as the contents of a publication on the history lane."""
    return _encoder.encode(signed)


def read_history(body: bytes, stream: Stream) -> tuple[Signed, HistoryStatement] | None:
    """The history in a body, if it is one of this stream; its signature is not verified here."""
    try:
        signed = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    statement = parse_statement(signed.payload)
    if (
        not isinstance(statement, HistoryStatement)
        or signed.signer != stream.publisher
        or statement.stream != stream.data
        or statement.index < 1
        or not statement.digests
        or len(statement.digests) % DIGEST_SIZE
    ):
        return None
    return signed, statement


def is_ours(keyring: Keyring, signed: Signed, statement: HistoryStatement) -> bool:
    """Whether the publisher signed this for our cell: elsewhere it may say more.

    One signed in an earlier epoch holds as long as the key does: a history that is under way when
    the epoch changes must not be lost, for the stream would stop at 2α.
    """
    return (
        statement.cell == keyring.instance
        and statement.epoch <= keyring.epoch
        and keyring.signature_holds(signed)
    )


def end_of(statement: HistoryStatement) -> int:
    """The last number that a history covers."""
    return statement.first + len(statement.digests) // DIGEST_SIZE - 1


def named_in(statement: HistoryStatement, numbers: range) -> bytes:
    """The digests that a history names at these numbers, all of which it covers."""
    first, stop = numbers.start - statement.first, numbers.stop - statement.first
    return statement.digests[first * DIGEST_SIZE : stop * DIGEST_SIZE]


class Covered:
    """Numbers that histories cover without a gap between them.

    A broker that came in later cannot tell whether what it forwarded before agrees with the cell.
    """

    __slots__ = ("first", "upto")

    def __init__(self) -> None:
        self.first = 1
        #: By histories, or as enough others report.
        self.upto = 0

    def begin(self, number: int) -> None:
        """Nothing is known of what lies before."""
        self.first, self.upto = number, number - 1

    def add(self, statement: HistoryStatement) -> None:
        """A history will be delivered.

        Numbers that were left out before it are not settled, and correct brokers may differ on
        them.
        """
        if statement.first - 1 > self.upto:
            self.first = statement.first
        self.upto = max(self.upto, end_of(statement))


class Seen:
    """The first signed history per index; another one with the same index proves a lie."""

    __slots__ = ("_accused", "_first", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        #: By index; at most REMEMBERED.
        self._first: dict[int, tuple[Signed, HistoryStatement]] = {}
        #: Whether the publisher was accused already; one proof is enough.
        self._accused = False

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, index: int) -> bool:
        return index in self._first

    def body(self, index: int) -> bytes | None:
        """The history of an index as it was published."""
        seen = self._first.get(index)
        return None if seen is None else history_body(seen[0])

    def end(self, index: int) -> int | None:
        """Where the history of an index ends."""
        seen = self._first.get(index)
        return None if seen is None else end_of(seen[1])

    def add(self, signed: Signed, statement: HistoryStatement, settled: int) -> list[Effect]:
        """Keep a history whose signature holds; nothing is said unless it contradicts another.

        Beyond REMEMBERED the oldest is forgotten if the history after it is settled, else the one
        with the highest index: a lying publisher must not make a broker forget the history that
        the next one has to follow.
        """
        seen = self._first.setdefault(statement.index, (signed, statement))
        if len(self._first) > REMEMBERED:
            oldest = min(self._first)
            del self._first[oldest if oldest < settled else max(self._first)]
        if (seen[1].first, seen[1].digests) == (statement.first, statement.digests):
            # Perhaps in another encoding or epoch: that is no contradiction (`crypto.evidence`).
            return []
        if self._accused:
            return [Drop(DropReason.CONFLICT, signed.signer)]
        self._accused = True
        evidence = Evidence(
            kind=EvidenceKind.CONFLICT,
            accused=signed.signer,
            against=(seen[0], signed),
            note=f"two histories number {statement.index} of {self._stream}",
        )
        return [Accuse(evidence)]
