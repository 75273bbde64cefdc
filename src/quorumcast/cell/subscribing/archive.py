"""The archive of a subscriber: signed statements of brokers, for receipts and as evidence.

It keeps the statements on the last segments of each stream. Enough equal ones make a receipt. A
statement that f+1 others contradict, where correct brokers cannot differ, is evidence, and so are
two by one broker that contradict each other.
"""

from __future__ import annotations

import enum

import msgspec

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.application import Proven
from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Attest
from quorumcast.cell.serving.notary import segment_start
from quorumcast.core.cuts import digest_of_cut, looks_cut, publication_of
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


class HeldForm(enum.Enum):
    """What brokers hold, and sign for, compared with what was accepted here."""

    #: The same, of the numbers around it as well.
    RUN = "run"
    #: Publications; here are results on them, perhaps with fewer rows.
    PUBLICATION = "publication"
    #: The results that were accepted here: of a channel that carries on some rows only.
    RESULT = "result"
    #: Results with more rows than were wanted here.
    WIDER_RESULT = "wider result"


class Awaited(msgspec.Struct):
    """A receipt that the application awaits."""

    #: What was accepted, or what brokers hold if that has more rows.
    contents: bytes
    form: HeldForm = HeldForm.RUN
    #: For how many refreshes it has been awaited.
    refreshes: int = 0
    #: The digest that brokers sign for, if that is not known from what was accepted around it.
    digest: bytes = b""
    #: Whether rows that brokers sign for are not there.
    lacks_rows: bool = False
    #: A result with more rows, or the whole publication, from one broker.
    wider: bytes = b""


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

    @property
    def awaits(self) -> bool:
        """Whether receipts are awaited."""
        return bool(self._pending)

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
        return sum(len(one.contents) + len(one.wider) for one in self._pending.values())

    def want(self, number: int, contents: bytes, form: HeldForm = HeldForm.RUN) -> bool:
        """Await a receipt; False if too many are awaited already."""
        if number not in self._pending and (
            len(self._pending) >= MAX_PENDING
            or self._pending_bytes() + len(contents) > MAX_PENDING_BYTES
        ):
            return False
        awaited = self._pending[number] = Awaited(contents, form)
        if form is HeldForm.RUN:
            return True
        awaited.lacks_rows = looks_cut(contents) and form is not HeldForm.RESULT
        if not awaited.lacks_rows:
            is_cut = looks_cut(contents)
            awaited.digest = digest_of_cut(contents) if is_cut else self._view.hash(contents)
        return True

    def lacking(self) -> list[int]:
        """Numbers for which receipts are awaited and rows are lacking."""
        return [number for number, awaited in self._pending.items() if awaited.lacks_rows]

    def complete(self, message: Contents, bodies: Bodies) -> None:
        """Use contents that were pulled."""
        for number, body in enumerate(bodies, message.first):
            awaited = self._pending.get(number)
            if awaited is None or not awaited.lacks_rows:
                continue
            if self._pending_bytes() - len(awaited.wider) + len(body) > MAX_PENDING_BYTES:
                continue
            publication = publication_of(awaited.contents)
            whole = self._view.hash(body) == publication
            if awaited.form is HeldForm.WIDER_RESULT:
                # What brokers hold only the signatures tell: on each refresh it is pulled anew.
                if whole or (looks_cut(body) and publication_of(body) == publication):
                    awaited.wider = body
                    awaited.digest = publication if whole else digest_of_cut(body)
            elif whole:
                awaited.contents, awaited.digest, awaited.lacks_rows = body, publication, False

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
            awaited.form is not HeldForm.RUN
            or (awaited.refreshes > 0 and awaited.refreshes % 2 == 0)
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
            if digests is None or len(digests) != count * DIGEST_SIZE:
                continue
            if awaited.lacks_rows and not awaited.wider:
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
                    contents=awaited.wider or awaited.contents,
                    first=first,
                    digests=digests,
                    statements=genuine,
                )
        return None
