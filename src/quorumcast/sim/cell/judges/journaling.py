"""Journals: a correct broker cannot contradict itself after a restart (no amnesia).

On channels with a journal, a broker writes each vote, echo, chained run, signature and attestation
to its disk before it sends it. The checker reads the simulated disk at the moment of sending. No
record replaces a longer one, or one that says something else.

A lying publisher makes an exception: its cell may settle another run than a broker vouched for. The
broker then replaces its record, and settled publications need not be on the disk, since no
subscriber can have accepted anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorumcast.broadcast.messages import ChainRun, Echo, Matches
from quorumcast.cell.messages import Checkpoint, Regained, Vote
from quorumcast.cell.serving.journal import Attested, Vouched, VouchedAgainstEcho
from quorumcast.core.ids import Lane, NodeId, Stream, split_digests
from quorumcast.core.machine import Persist, Send
from quorumcast.core.statements import SegmentStatement, parse_statement
from quorumcast.crypto.digest import root
from quorumcast.ordering.consensus import Voted
from quorumcast.ordering.messages import Accept, Write
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.kernel.judging import EffectChecker


class Journaled(EffectChecker):
    """Every binding message of a broker is in its journal before it is sent, and stays there."""

    name = "Journal"
    watches = frozenset(
        (Accept, ChainRun, Checkpoint, Echo, Matches, Persist, Regained, Vote, Write)
    )

    def __init__(self) -> None:
        #: Messages already checked; journals are compacted later.
        self._found: dict[tuple[object, ...], None] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Send | Persist) -> None:
        if facts.manifest_of(node).broker(node) is None:
            return
        if isinstance(effect, Persist):
            if isinstance(effect.record, Vouched | Attested):
                self._replacement(facts, node, effect.record)
            return
        match effect.message:
            case Echo(stream=stream, first=first, run=run):
                if self._is_new(facts, node, stream, first, run):
                    self._echo(facts, node, stream, first, run)
            case ChainRun() | Regained() | Vote() as message:
                stream = message.stream
                for number, digest in enumerate(split_digests(message.digests), message.first):
                    if self._is_new(facts, node, stream, number, digest):
                        self._number(facts, node, stream, number, digest)
            case Matches(stream=stream, first=first, count=count):
                for number in range(first, first + count):
                    if self._is_new(facts, node, stream, number, b"result"):
                        self._result(facts, node, stream, number)
            case Checkpoint(statement=statement):
                said = parse_statement(statement.payload)
                if isinstance(said, SegmentStatement) and self._is_new(
                    facts, node, said.stream, said.first, said.root
                ):
                    self._segment(facts, node, said)
            case Write() | Accept() as vote:
                terms = facts.manifest_of(node).logs.get(vote.log)
                place = (node, facts.disk_of(node), vote)
                if terms is not None and terms.durable and place not in self._found:
                    self._found[place] = None
                    self._vote(facts, node, vote)
            case _:
                pass

    def _is_new(
        self, facts: CellFacts, node: NodeId, stream: Stream, number: int, value: bytes
    ) -> bool:
        """Whether a value is journaled on this channel and is sent for the first time."""
        entry = facts.manifest_of(node).channel(stream.channel)
        if entry is None or not entry.policy.journal or entry.policy.total:
            return False
        place = (node, facts.disk_of(node), stream, number, value)
        if place in self._found:
            return False
        self._found[place] = None
        return True

    def _replacement(self, facts: CellFacts, node: NodeId, record: Vouched | Attested) -> None:
        held = facts.on_disk(node, type(record), record.owner).get(record.place)
        if not isinstance(held, Vouched | Attested):
            return
        lies = not facts.adversary.is_correct(record.stream.publisher)
        entry = facts.manifest_of(node).channel(record.stream.channel)
        # An echo binds for ever; elsewhere the cell may settle what a lying publisher told others.
        history = record.stream.lane is Lane.HISTORY
        binds = (
            isinstance(record, Vouched)
            and entry is not None
            and (history or entry.policy.whole_runs)
        )
        if not record.digests.startswith(held.digests) and (
            binds or not lies or len(record.digests) < len(held.digests)
        ):
            what = f"{type(record).__name__} of {record.stream} {record.first}"
            facts.violate(self.name, f"{node} replaces {what} by something else")

    def _echo(self, facts: CellFacts, node: NodeId, stream: Stream, first: int, run: bytes) -> None:
        record = facts.on_disk(node, Vouched, str(stream)).get(first)
        if not isinstance(record, Vouched) or root(first, record.digests) != run:
            facts.violate(self.name, f"{node} echoes {stream} {first}, not in its journal")

    def _number(
        self, facts: CellFacts, node: NodeId, stream: Stream, number: int, digest: bytes
    ) -> None:
        if number > _settled_otherwise(facts, stream) and (number, digest) not in _journaled(
            facts, node, stream
        ):
            facts.violate(self.name, f"{node} vouches for {stream} {number}, not in its journal")

    def _result(self, facts: CellFacts, node: NodeId, stream: Stream, number: int) -> None:
        """A vote for a result names no digest: the broker has vouched for some publication."""
        known = dict.fromkeys(n for n, _ in _journaled(facts, node, stream))
        # What retention has dropped since is not there either.
        dropped = number < min(known, default=0)
        if number > _settled_otherwise(facts, stream) and number not in known and not dropped:
            facts.violate(self.name, f"{node} judges {stream} {number}, not in its journal")

    def _segment(self, facts: CellFacts, node: NodeId, said: SegmentStatement) -> None:
        known = dict(_journaled(facts, node, said.stream))
        digests = [known.get(n, b"") for n in range(said.first, said.first + said.count)]
        last = said.first + said.count - 1
        kept = root(said.first, b"".join(digests)) == said.root
        if not kept and last > _settled_otherwise(facts, said.stream):
            facts.violate(self.name, f"{node} signs {said.stream} {last}, not in its journal")

    def _vote(self, facts: CellFacts, node: NodeId, vote: Write | Accept) -> None:
        record = facts.on_disk(node, Voted, vote.log.value).get(vote.instance)
        kept = isinstance(record, Voted) and (
            record.accepted == (vote.regency, vote.value)
            if isinstance(vote, Accept)
            else (vote.value, vote.regency) in record.written
        )
        if not kept:
            what = type(vote).__name__
            facts.violate(
                self.name, f"{node} says {what} in instance {vote.instance}, not in its journal"
            )


def _settled_otherwise(facts: CellFacts, stream: Stream) -> int:
    """Up to this number the cell may have settled something else than a broker vouched for."""
    lies = not facts.adversary.is_correct(stream.publisher)
    return facts.settled_by_any(stream) if lies else 0


def _journaled(facts: CellFacts, node: NodeId, stream: Stream) -> Iterator[tuple[int, bytes]]:
    """The digests of a stream in a broker's journal, by number; later records come last."""
    for kind in (Vouched, VouchedAgainstEcho, Attested):
        for record in facts.on_disk(node, kind, str(stream)).values():
            if isinstance(record, Vouched | Attested):
                yield from enumerate(split_digests(record.digests), record.first)
