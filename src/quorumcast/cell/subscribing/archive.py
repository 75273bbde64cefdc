"""The archive of a subscriber: signed statements of brokers, for receipts and as evidence.

It keeps the statements on the last segments of each stream. Enough equal ones make a receipt. A
statement that f+1 others contradict, where correct brokers cannot differ, is evidence, and so are
two by one broker that contradict each other.
"""

from __future__ import annotations

import msgspec

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.application import Proven
from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Attest
from quorumcast.cell.serving.notary import segment_start
from quorumcast.core.ids import DIGEST_SIZE, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Accuse, Bodies, Drop, DropReason, Effect, Suspect, Suspicion
from quorumcast.core.statements import (
    Basis,
    Evidence,
    EvidenceKind,
    Receipt,
    SegmentStatement,
    Signed,
    contradict,
    outvotes,
)
from quorumcast.crypto.digest import root
from quorumcast.manifest.view import View

#: Receipts that an application may wait for at a time, and the bytes of their contents.
MAX_PENDING = 1024
MAX_PENDING_BYTES = 64 * 1024 * 1024
#: Refreshes after which a receipt is not awaited any longer.
AWAITED_TICKS = 60
#: Ranges of one segment for which statements are kept: the whole one and some asked for.
RANGES = 16

#: First number and count of a range.
Range = tuple[int, int]


def _dissents(witness: SegmentStatement, accused: SegmentStatement) -> bool:
    """Whether a statement contradicts another, also one about what was merely forwarded."""
    return outvotes(witness, msgspec.structs.replace(accused, basis=Basis.SETTLED))


class Awaited(msgspec.Struct):
    """A receipt that the application awaits."""

    contents: bytes
    #: For how many refreshes it has been awaited.
    refreshes: int = 0
    #: The digest that brokers sign for, where other digests of its segment are not known here.
    digest: bytes = b""
    #: Whether only a part of the contents is there.
    is_cut: bool = False


class Archive:
    """Signed statements on one stream."""

    __slots__ = ("_accused", "_limits", "_pending", "_statements", "_view", "stream")

    def __init__(self, stream: Stream, view: View, limits: Limits) -> None:
        self.stream = stream
        self._view = view
        self._limits = limits
        #: Statements by range and broker; kept_segments + RANGES of each broker.
        self._statements: dict[Range, dict[NodeId, tuple[SegmentStatement, Signed]]] = {}
        #: Receipts awaited by number; at most MAX_PENDING, for at most AWAITED_TICKS refreshes.
        self._pending: dict[int, Awaited] = {}
        #: Brokers accused already; one proof is enough.
        self._accused: dict[NodeId, None] = {}

    def forget_statements(self) -> None:
        """Forget statements of another epoch: they make no receipt in this one."""
        self._statements.clear()

    def refresh(self) -> list[int]:
        """Numbers for which receipts are still awaited; those awaited for too long are given up."""
        for awaited in self._pending.values():
            awaited.refreshes += 1
        for number in [n for n, a in self._pending.items() if a.refreshes > AWAITED_TICKS]:
            del self._pending[number]
        return list(self._pending)

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {
            "statements": len(self._statements),
            "proofs": len(self._pending),
            "proof_bytes": self._pending_bytes(),
        }

    def _pending_bytes(self) -> int:
        return sum(len(awaited.contents) for awaited in self._pending.values())

    def want(self, number: int, contents: bytes, *, alone: bool = False) -> bool:
        """Await a receipt; False if too many are awaited already.

        Who subscribes to some rows does not know the digests of other publications, so statements
        have to be about this one `alone`, and may lack its other rows.
        """
        if number not in self._pending and (
            len(self._pending) >= MAX_PENDING
            or self._pending_bytes() + len(contents) > MAX_PENDING_BYTES
        ):
            return False
        awaited = self._pending[number] = Awaited(contents)
        if alone:
            # Not at the top: who has no predicates starts without Arrow.
            from quorumcast.matching.cut import looks_cut, publication_of

            awaited.is_cut = looks_cut(contents)
            known = publication_of if awaited.is_cut else self._view.hash
            awaited.digest = known(contents)
        return True

    def cuts(self) -> list[int]:
        """Numbers for which receipts are awaited and contents are lacking."""
        return [number for number, awaited in self._pending.items() if awaited.is_cut]

    def complete(self, message: Contents, bodies: Bodies) -> None:
        """Use contents that were pulled."""
        for number, body in enumerate(bodies, message.first):
            awaited = self._pending.get(number)
            fits = self._pending_bytes() + len(body) <= MAX_PENDING_BYTES
            if awaited is None or not awaited.is_cut or not fits:
                continue
            if self._view.hash(body) == awaited.digest:
                awaited.contents, awaited.is_cut = body, False

    def file(self, broker: NodeId, statement: SegmentStatement, signed: Signed) -> list[Effect]:
        """Keep a broker's statement, and look for contradictions."""
        if broker in self._accused:
            # To check each further lie would cost the signatures of all witnesses.
            return [Drop(DropReason.CONFLICT, broker)]
        if not self._acceptable(broker, signed, statement):
            return [Drop(DropReason.BAD_RUN, broker)]
        span = (statement.first, statement.count)
        filed = self._statements.setdefault(span, {})
        earlier = filed.get(broker)
        if earlier is not None and earlier[0].root != statement.root:
            if contradict(earlier[0], statement):
                return self._on_conflict(broker, earlier[1], signed)
            alike = (earlier[0].life, earlier[0].log_id) == (statement.life, statement.log_id)
            if alike and statement.basis is Basis.FORWARDED:
                return [Drop(DropReason.DUPLICATE, broker)]
        filed[broker] = (statement, signed)
        self._make_room(broker)
        return self._find_liars(filed)

    def _make_room(self, broker: NodeId) -> None:
        """Remove a broker's oldest statements beyond its limit, never another's."""
        mine = [span for span, filed in self._statements.items() if broker in filed]
        for span in mine[: max(0, len(mine) - self._limits.kept_segments - RANGES)]:
            del self._statements[span][broker]
            if not self._statements[span]:
                del self._statements[span]

    def _acceptable(self, broker: NodeId, signed: Signed, statement: SegmentStatement) -> bool:
        return (
            signed.signer == statement.broker == broker
            and statement.stream == self.stream
            and statement.cell == self._view.keyring.instance
            and statement.epoch == self._view.keyring.epoch
            and 1 <= statement.count <= self._limits.segment
            and statement.first >= 1
            and self._start(statement.first) == self._start(statement.first + statement.count - 1)
        )

    def _start(self, number: int) -> int:
        return segment_start(number, self._limits.segment)

    def ask(self, acceptor: Acceptor, number: int) -> Attest:
        """The request for signatures on a number, from the known beginning of its segment on.

        Brokers that no longer hold the beginning do not answer, so every other request is about the
        number alone.
        """
        awaited = self._pending.get(number)
        alone = awaited is not None and (
            awaited.digest != b"" or (awaited.refreshes > 0 and awaited.refreshes % 2 == 0)
        )
        first = number if alone else max(self._start(number), acceptor.start)
        return Attest(self.stream, number, first)

    def _on_conflict(self, broker: NodeId, first: Signed, second: Signed) -> list[Effect]:
        if not self._holds(first) or not self._holds(second):
            return [Drop(DropReason.BAD_SIGNATURE, broker)]
        return self._accuse(EvidenceKind.CONFLICT, broker, (first, second), ())

    def _find_liars(self, filed: dict[NodeId, tuple[SegmentStatement, Signed]]) -> list[Effect]:
        if len({statement.root for statement, _ in filed.values()}) < 2:
            return []
        effects: list[Effect] = []
        for liar, (statement, signed) in filed.items():
            against = self._witnesses(statement, filed)
            if len(against) >= self._view.quorums.one_correct:
                effects += self._blame(liar, statement, signed, against)
        return effects

    def _witnesses(
        self, accused: SegmentStatement, filed: dict[NodeId, tuple[SegmentStatement, Signed]]
    ) -> list[Signed]:
        """Signed statements, all for one root, that contradict the accused one."""
        by_root: dict[bytes, list[Signed]] = {}
        for statement, signed in filed.values():
            if _dissents(statement, accused) and self._holds(signed):
                by_root.setdefault(statement.root, []).append(signed)
        return max(by_root.values(), key=len, default=[])

    def _blame(
        self, liar: NodeId, said: SegmentStatement, signed: Signed, against: list[Signed]
    ) -> list[Effect]:
        suspicion = Suspect(liar, Suspicion.FALSE_STATEMENT, self.stream, said.first)
        if said.basis is not Basis.SETTLED or not self._holds(signed):
            return [suspicion]
        enough = tuple(against[: self._view.quorums.one_correct])
        return [suspicion, *self._accuse(EvidenceKind.OUTVOTED, liar, (signed,), enough)]

    def _accuse(
        self,
        kind: EvidenceKind,
        liar: NodeId,
        against: tuple[Signed, ...],
        witnesses: tuple[Signed, ...],
    ) -> list[Effect]:
        if liar in self._accused:
            return []
        self._accused[liar] = None
        note = f"statements on a segment of {self.stream}"
        found = Evidence(kind=kind, accused=liar, against=against, witnesses=witnesses, note=note)
        return [Accuse(found)]

    def _holds(self, signed: Signed) -> bool:
        return self._view.keyring.signature_holds(signed)

    # ------------------------------------------------------------- receipts

    def prove(self, acceptor: Acceptor, votes: int) -> list[Effect]:
        """Receipts that have become possible."""
        effects: list[Effect] = []
        for number in list(self._pending):
            receipt = self._receipt(acceptor, number, votes)
            if receipt is not None:
                del self._pending[number]
                effects.append(Proven(receipt))
        return effects

    def _receipt(self, acceptor: Acceptor, number: int, votes: int) -> Receipt | None:
        for (first, count), filed in self._statements.items():
            if not first <= number < first + count or len(filed) < votes:
                continue
            awaited = self._pending[number]
            digests = awaited.digest or acceptor.accepted_run(first, count)
            if digests is None or len(digests) != count * DIGEST_SIZE or awaited.is_cut:
                continue
            expected = root(first, digests)
            by_log: dict[bytes, list[Signed]] = {}
            for said, signed in filed.values():
                if said.root == expected:
                    by_log.setdefault(said.log_id, []).append(signed)
            equal = max(by_log.values(), key=len, default=[])
            if len(equal) < votes:
                continue
            genuine = tuple(signed for signed in equal if self._holds(signed))
            if len(genuine) >= votes:
                return Receipt(
                    stream=self.stream,
                    number=number,
                    contents=self._pending[number].contents,
                    first=first,
                    digests=digests,
                    statements=genuine,
                )
        return None
