"""Subscribers with predicates get exactly the rows that match, and come to the end.

What should have come out is a plain twin's word (`twin`), on what correct publishers published and,
of lying ones, on what correct brokers hold.
"""

from __future__ import annotations

from quorumcast.broadcast.application import Deliver, Passed, Recalled
from quorumcast.broadcast.messages import Matches
from quorumcast.cell.filters import results_of
from quorumcast.core.cuts import looks_cut
from quorumcast.core.ids import NodeId, Stream, split_digests, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Send
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.matching.cut import decode_cut
from quorumcast.sim.cell.judges.due import demanded
from quorumcast.sim.cell.judges.facts import CellFacts, may_publish, may_subscribe
from quorumcast.sim.cell.judges.readers import Reader
from quorumcast.sim.cell.judges.twin import RowResult, within
from quorumcast.sim.kernel.judging import EffectChecker

#: The property that a subscriber gets nothing else than what matches.
RELEVANCE_BY_ROW = "Relevance by row"


class Completeness(EffectChecker):
    """A reader gets exactly the matching rows of every publication that it passes.

    It gets a publication whole only by the rule: more than half of the rows match, a cut would be
    no shorter, or nobody can tell.
    """

    name = "Completeness"
    watches = frozenset((Deliver, Passed, Recalled))

    def __init__(self) -> None:
        #: Numbers that readers passed, each with what they asked for.
        self._passed: dict[tuple[Stream, int], dict[tuple[str, ...], NodeId]] = {}

    def on_effect(
        self, facts: CellFacts, node: NodeId, effect: Deliver | Passed | Recalled
    ) -> None:
        if isinstance(effect, Recalled):
            self._recall(facts, node, effect)
            return
        reader = facts.reader(node, effect.stream.channel)
        entry = facts.manifest_of(node).channel(effect.stream.channel)
        if reader is None or entry is None:
            return
        if not reader.asked:
            if isinstance(effect, Passed) or effect.cut:
                what = f"{node}, which wants everything, got a part of {effect.stream}"
                facts.violate(RELEVANCE_BY_ROW, what)
            return
        if isinstance(effect, Passed):
            self._skip(facts, reader, entry, effect.stream, effect.upto)
            return
        place, number = effect.place
        self._skip(facts, reader, entry, place, number - 1)
        self._judge(facts, node, entry, reader.asked, effect)

    def _recall(self, facts: CellFacts, node: NodeId, effect: Recalled) -> None:
        """A recalled position has the rows that its cell carries on, whatever the reader wants."""
        entry = facts.manifest_of(node).channel(effect.channel)
        if entry is None or not entry.carried:
            return
        asked = within(entry.carried, ())
        if effect.found is not None:
            self._judge(facts, node, entry, asked, effect.found)
        elif not effect.oldest:
            self._nothing(facts, entry, total_order(effect.channel), effect.position, asked, node)

    # ------------------------------------------------------------ what was passed

    def _skip(
        self, facts: CellFacts, reader: Reader, entry: ChannelEntry, stream: Stream, upto: int
    ) -> None:
        """A reader says that nothing matches from what it was told last up to a number."""
        known = reader.upto(stream)
        for number in range(known + 1, upto + 1) if known else ():
            self._passed.setdefault((stream, number), {})[reader.asked] = reader.node
            self._nothing(facts, entry, stream, number, reader.asked, reader.node)

    def _nothing(
        self,
        facts: CellFacts,
        entry: ChannelEntry,
        stream: Stream,
        number: int,
        where: tuple[str, ...],
        node: NodeId,
    ) -> None:
        there = facts.contents(stream, number)
        results = [facts.twin.result(entry, where, contents) for contents in there]
        if results and all(result.matches for result in results):
            rows = results[0].rows
            facts.violate(
                self.name,
                f"{node} passed {stream} {number}, of which the rows {rows} match {where}",
            )

    # --------------------------------------------------------- what was delivered

    def _judge(
        self,
        facts: CellFacts,
        node: NodeId,
        entry: ChannelEntry,
        asked: tuple[str, ...],
        effect: Deliver,
    ) -> None:
        """A delivery is what the twin makes of the publication with this digest."""
        hash_ = facts.manifest_of(node).hash
        there = facts.contents(effect.stream, effect.number)
        if not effect.cut:
            before = label(effect.stream, effect.number) if effect.position else b""
            there.append(before + effect.body)
        for contents in there:
            if hash_(contents) == effect.digest:
                expected = facts.twin.result(entry, asked, contents)
                what = f"{node} got {{}} of {effect.stream} {effect.number} for {asked}"
                self._compare(facts, what, entry, effect, expected)
                return

    def _compare(
        self,
        facts: CellFacts,
        what: str,
        entry: ChannelEntry,
        effect: Deliver,
        expected: RowResult,
    ) -> None:
        if effect.cut == (expected.value if looks_cut(expected.body) else b""):
            same = effect.body == expected.body if effect.cut else expected.matches
            if same:
                return
        due = expected.rows
        if not effect.cut:
            facts.violate(RELEVANCE_BY_ROW, what.format("all") + f", where {due} match")
            return
        cut = decode_cut(effect.body, entry.arrow_schema())
        got = None if cut is None else tuple(cut.rows.tolist())
        lacks = due is None or got is None or set(due) - set(got) or got == due
        name = self.name if lacks else RELEVANCE_BY_ROW
        facts.violate(name, what.format(f"the rows {got}") + f", where {due} match")

    def at_end(self, facts: CellFacts) -> None:
        """What some passed must not match in what others accepted whole."""
        for reader in facts.readers:
            for stream, bodies in reader.whole.items():
                entry = facts.manifest_of(reader.node).channel(stream.channel)
                if entry is None:
                    continue
                for number, contents in bodies.items():
                    for where, node in self._passed.get((stream, number), {}).items():
                        if facts.twin.result(entry, where, contents).matches:
                            what = f"{node} passed {stream} {number}, which {reader} accepted"
                            facts.violate(self.name, f"{what}, and rows match {where}")


class SoundResults(EffectChecker):
    """Correct brokers vote for what the twin makes of what they hold."""

    name = "Sound results"
    watches = frozenset((Matches,))

    def on_effect(self, facts: CellFacts, node: NodeId, effect: Send) -> None:
        said = effect.message
        if not isinstance(said, Matches):
            return
        entry = facts.manifest_of(node).channel(said.stream.channel)
        if entry is None:
            return
        results = results_of(said, effect.bodies)
        if results is None:
            facts.violate(self.name, f"{node} sends a vote on {said.stream} that makes no sense")
            return
        for reader in effect.to:
            asked = facts.asked_by(reader, said.stream.channel)
            if facts.twin.id_of(entry, asked) != said.where:
                continue  # it has left, or asks for other rows by now
            for number, value in enumerate(split_digests(results[0]), said.first):
                for contents in facts.known_to(node, said.stream, number):
                    if facts.twin.result(entry, asked, contents).value != value:
                        what = f"{said.stream} {number} for {asked}"
                        facts.violate(self.name, f"{node} votes wrongly on {what}")


class Coverage:
    """Once traffic has ended, every reader with predicates has passed everything."""

    name = "Coverage"

    def pending(self, facts: CellFacts) -> str | None:
        for reader in facts.present():
            entry = facts.manifest_of(reader.node).channel(reader.channel)
            if entry is None or not reader.asked or reader.standing_at is None:
                continue
            if not may_subscribe(facts.manifest_of(reader.node), reader.node, reader.channel):
                continue
            if entry.policy.total:
                order = total_order(reader.channel)
                last = {order: facts.ordered(order)}
                if reader.start is None and last[order] <= reader.ordered:
                    continue  # it began behind all of it
            else:
                last = self._due(facts, reader)
            for stream, upto in last.items():
                if reader.upto(stream) < upto:
                    return f"{reader} is at {stream} {reader.upto(stream)}, and {upto} is the last"
        return None

    def _due(self, facts: CellFacts, reader: Reader) -> dict[Stream, int]:
        """The last number of each live stream of a correct publisher."""
        due = {}
        for stream, published in facts.published.items():
            publisher = stream.publisher
            live = stream not in facts.ended and facts.adversary.is_correct(publisher)
            if stream.channel != reader.channel or not live or not published:
                continue
            _, when = published[-1]
            newer = reader.standing_at is not None and when > reader.standing_at
            if newer and may_publish(facts.manifest_of(publisher), publisher, stream.channel):
                due[stream] = demanded(facts, stream)
        return due
