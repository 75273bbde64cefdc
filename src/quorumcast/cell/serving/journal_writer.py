"""Writes the journal, before the broker sends what the journal must know, and keeps it short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorumcast.broadcast.messages import ChainRun, Echo, Ready
from quorumcast.cell.messages import Checkpoint
from quorumcast.cell.serving.journal import (
    Attested,
    Journal,
    Released,
    Settled,
    Vouched,
    VouchRecord,
)
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import Effect, Persist, Send
from quorumcast.core.statements import SegmentStatement, Signed, parse_statement
from quorumcast.manifest.view import View


class JournalWriter:
    """Turns what a broker is about to send into records of its journal."""

    __slots__ = ("_journal", "_served", "_view")

    def __init__(self, view: View, journal: Journal, served: ServedStreams) -> None:
        self._view = view
        self._journal = journal
        self._served = served

    def write(
        self, served: ServedStream, record: VouchRecord, then: Sequence[Effect]
    ) -> list[Effect]:
        """Carry out effects once the journal holds a record of what they vouch for."""
        if isinstance(record, Vouched) and served.echoes(record.stream.lane):
            record = self._journal.keep_echo(record)
        extended = self._journal.extended(record, served.ledger(record.stream.lane))
        if extended is None:
            return list(then)
        served.writing(extended)
        return [Persist(extended, tuple(then))]

    def write_first(self, served: ServedStream, effect: Effect) -> list[Effect]:
        """Journal first what an effect vouches for: a chain run with our MACs, an echo, a ready.

        A ready vouches as well: it rests on this broker's own echo.
        """
        if not served.entry.policy.journal or not isinstance(effect, Send):
            return [effect]
        records: list[VouchRecord] = []
        match effect.message:
            case ChainRun(first=first, digests=digests):
                records = [Vouched(served.stream, first, digests)]
            case Echo(stream=stream, first=first, run=run) if self._journal.may_not_echo(
                stream, first, run
            ):
                # It may be ready for what others echoed, but never contradicts its own echo.
                return []
            case Echo() | Ready() as vote:
                records = served.echoed(vote)
            case _:
                pass
        if not records:
            return [effect]
        # Records reach the disk in order: once it has the last of them, it has them all.
        *others, last = records
        first_ones = [done for record in others for done in self.write(served, record, ())]
        return [*first_ones, *self.write(served, last, (effect,))]

    def send_signed(
        self, served: ServedStream, signed: Signed, readers: tuple[NodeId, ...]
    ) -> list[Effect]:
        """Send a signed statement once the journal holds what it says.

        A broker that signed, forgot and signed something else would convict itself.
        """
        checkpoint = Send(readers, Checkpoint(signed))
        statement = parse_statement(signed.payload)
        if not served.entry.policy.journal or not isinstance(statement, SegmentStatement):
            return [checkpoint]
        digests = served.carrier.ledger.digests(statement.first, statement.count) or b""
        record = Attested(served.stream, statement.first, digests)
        return self.write(served, record, (checkpoint,))

    def release(self, served: ServedStream) -> list[Effect]:
        """Keep the journal as short as the ledger, and up to date about what is settled."""
        effects: list[Effect] = []
        for stream, carrier in served.lanes() if served.entry.policy.settles else ():
            # What an earlier life lost is settled again from the start; its record stays till then.
            known = max(served.settled[stream.lane], self._journal.settled(stream))
            served.settled[stream.lane] = max(known, carrier.settled)
            if carrier.settled > known:
                effects.append(Persist(Settled(stream, carrier.settled)))
        longest = max(MAX_RUN, served.entry.policy.limits.segment)
        for stream, below in served.released():
            gone = self._journal.release(stream, below, longest)
            effects += [Persist(Released(stream, below)), *gone]
        return effects

    def note_endings(self, endings: Iterable[Stream]) -> list[Effect]:
        """Replace the journal records of streams that ended by a record of their end."""
        effects: list[Effect] = []
        for ended in endings:
            entry = self._view.channel(ended.channel)
            erased = self._journal.erase(ended)
            if entry is not None and entry.policy.journal:
                effects += [Persist(self._served.ended(ended)), *erased]
        return effects
