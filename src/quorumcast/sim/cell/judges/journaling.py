"""Journals: a correct broker says nothing that it could take back after a restart.

On channels with a journal, what a broker votes for, echoes, passes down a chain, signs or gives its
final word on is on its disk before the word leaves. The checker reads the disk when the word leaves
and needs no crash to find out.

A history may correct a broker. What the cell has settled need not be on the disk: nobody can have
accepted anything else, and a broker that restarts gets it from the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorumcast.broadcast.messages import ChainRun, Echo
from quorumcast.cell.messages import Checkpoint, Regained, Vote
from quorumcast.cell.serving.pledges import Attested, Vouched
from quorumcast.core.ids import NodeId, Stream, split_digests
from quorumcast.core.machine import Effect, Send
from quorumcast.core.statements import SegmentStatement, parse_statement
from quorumcast.crypto.digest import root
from quorumcast.ordering.consensus import Voted
from quorumcast.ordering.messages import Accept, Write
from quorumcast.sim.cell.judges.facts import CellFacts


class Journaled:
    """What a broker stands by is in its journal before it says so."""

    name = "Journal"
    watches: frozenset[type] = frozenset(
        (Accept, ChainRun, Checkpoint, Echo, Regained, Vote, Write)
    )

    def __init__(self) -> None:
        #: What was found in journals; they are shortened later.
        self._found: dict[tuple[object, ...], None] = {}

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Effect) -> None:
        """A correct node is about to do this."""
        if not isinstance(effect, Send) or facts.manifest.broker(node) is None:
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
            case Checkpoint(statement=statement):
                said = parse_statement(statement.payload)
                if isinstance(said, SegmentStatement) and self._is_new(
                    facts, node, said.stream, said.first, said.root
                ):
                    self._segment(facts, node, said)
            case Write() | Accept() as word:
                durable = any(
                    entry.policy.durable and entry.policy.log is word.log
                    for entry in facts.manifest.channels
                )
                place = (node, facts.disk_of(node), word)
                if durable and place not in self._found:
                    self._found[place] = None
                    self._vote(facts, node, word)
            case _:
                pass

    def at_end(self, facts: CellFacts) -> None:
        """Nothing more."""

    def _is_new(
        self, facts: CellFacts, node: NodeId, stream: Stream, number: int, value: bytes
    ) -> bool:
        """Whether this word binds a broker, and is said for the first time."""
        entry = facts.manifest.channel(stream.channel)
        if entry is None or not entry.policy.journal or entry.policy.total:
            return False
        place = (node, facts.disk_of(node), stream, number, value)
        if place in self._found:
            return False
        self._found[place] = None
        return True

    def _echo(self, facts: CellFacts, node: NodeId, stream: Stream, first: int, run: bytes) -> None:
        record = facts.on_disk(node, Vouched, str(stream)).get(first)
        if not isinstance(record, Vouched) or root(first, record.digests) != run:
            facts.violate(self.name, f"{node} echoes {stream} {first}, not in its journal")

    def _number(
        self, facts: CellFacts, node: NodeId, stream: Stream, number: int, digest: bytes
    ) -> None:
        if number > facts.settled_by_any(stream) and (number, digest) not in _pledged(
            facts, node, stream
        ):
            facts.violate(self.name, f"{node} vouches for {stream} {number}, not in its journal")

    def _segment(self, facts: CellFacts, node: NodeId, said: SegmentStatement) -> None:
        known = dict(_pledged(facts, node, said.stream))
        digests = [known.get(n, b"") for n in range(said.first, said.first + said.count)]
        last = said.first + said.count - 1
        kept = root(said.first, b"".join(digests)) == said.root
        if not kept and last > facts.settled_by_any(said.stream):
            facts.violate(self.name, f"{node} signs {said.stream} {last}, not in its journal")

    def _vote(self, facts: CellFacts, node: NodeId, word: Write | Accept) -> None:
        record = facts.on_disk(node, Voted, word.log.value).get(word.instance)
        kept = isinstance(record, Voted) and (
            record.accepted == (word.regency, word.value)
            if isinstance(word, Accept)
            else (word.value, word.regency) in record.written
        )
        if not kept:
            what = type(word).__name__
            facts.violate(
                self.name, f"{node} says {what} in instance {word.instance}, not in its journal"
            )


def _pledged(facts: CellFacts, node: NodeId, stream: Stream) -> Iterator[tuple[int, bytes]]:
    """What a broker's disk binds it to on a stream, the latest word last."""
    for kind in (Vouched, Attested):
        for record in facts.on_disk(node, kind, str(stream)).values():
            if isinstance(record, Vouched | Attested):
                yield from enumerate(split_digests(record.digests), record.first)
