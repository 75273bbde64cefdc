"""Properties of total order: one sequence for all subscribers, and no acknowledged loss.

`TotalOrder` is a safety property, `Durability` a liveness property. A publication of an ordered
channel is delivered with its position. A range of positions that a subscriber gives up is announced
as a gap of the channel's own stream.
"""

from __future__ import annotations

from quorumcast.broadcast.application import Deliver, DeliverGap, Passed, Recalled
from quorumcast.core.ids import CELL, Channel, Digest, NodeId, Stream, total_order
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.judges.readers import Reader
from quorumcast.sim.kernel.judging import EffectChecker


class TotalOrder(EffectChecker):
    """All correct subscribers of a totally ordered channel accept parts of one sequence.

    Each position has one publication and each publication one position. Each reader accepts
    position after position, with no unannounced gap. Each publisher's numbers are consecutive in
    the sequence.
    """

    name = "Total order"
    watches = frozenset((Deliver, DeliverGap, Passed, Recalled))

    def __init__(self) -> None:
        #: The publication accepted at each position: stream, number, digest.
        self._order: dict[tuple[Channel, int], tuple[Stream, int, Digest]] = {}
        #: The position of each publication.
        self._places: dict[tuple[Stream, int], int] = {}
        #: The last position of each reader, by the reader's id().
        self._last: dict[int, int] = {}

    def on_effect(
        self, facts: CellFacts, node: NodeId, effect: Deliver | DeliverGap | Passed | Recalled
    ) -> None:
        match effect:
            case Passed(stream=stream, upto=upto) if stream.publisher == CELL:
                self._last[id(facts.reader(node, stream.channel))] = upto
            case DeliverGap(stream=stream, first=first, upto=upto) if stream.publisher == CELL:
                self._step(facts, node, stream.channel, first, upto)
            case Recalled(found=None, channel=channel, position=position, oldest=oldest):
                entry = facts.manifest_of(node).channel(channel)
                if not oldest and entry is not None and entry.carried:
                    return  # nothing is carried on there, as `Completeness` checks
                if position > facts.let_go(total_order(channel), node):
                    facts.violate(self.name, f"{node} was told that {channel} {position} is gone")
            case Recalled(found=found):
                self._recall(facts, node, found)
            case Deliver(stream=stream):
                entry = facts.manifest_of(node).channel(stream.channel)
                if effect.position:
                    self._place(facts, node, effect)
                    self._skip(facts, node, stream.channel, effect.position)
                    self._step(facts, node, stream.channel, effect.position, effect.position)
                elif entry is not None and entry.policy.total:
                    facts.violate(self.name, f"{node} accepted {stream} {effect.number} anywhere")
            case _:
                pass

    def _recall(self, facts: CellFacts, node: NodeId, found: Deliver | None) -> None:
        """A recalled position holds the publication that others accept there, sooner or later."""
        if found is not None:
            what = (found.stream, found.number, found.digest)
            known = self._order.setdefault((found.stream.channel, found.position), what)
            if known != what:
                facts.violate(self.name, f"{node} reads {what[:2]} again where {known[:2]} was")

    def _place(self, facts: CellFacts, node: NodeId, effect: Deliver) -> None:
        channel, position = effect.stream.channel, effect.position
        what = (effect.stream, effect.number, effect.digest)
        known = self._order.setdefault((channel, position), what)
        if known != what:
            facts.violate(
                self.name,
                f"{node} accepted {effect.stream} {effect.number} at position {position} of "
                f"{channel}, where {known[0]} {known[1]} was accepted before",
            )
        place = self._places.setdefault((effect.stream, effect.number), position)
        if place != position:
            facts.violate(
                self.name, f"{effect.stream} {effect.number} is at {place} and at {position}"
            )

    def _skip(self, facts: CellFacts, node: NodeId, channel: Channel, position: int) -> None:
        """What matches predicates follows on what does not, of which `Completeness` knows."""
        reader = facts.reader(node, channel)
        last = self._last.get(id(reader))
        if reader is not None and reader.asked and last is not None and last < position:
            self._last[id(reader)] = position - 1

    def _step(
        self, facts: CellFacts, node: NodeId, channel: Channel, first: int, upto: int
    ) -> None:
        reader = id(facts.reader(node, channel))
        last = self._last.get(reader)
        if last is not None and first != last + 1:
            facts.violate(self.name, f"{node} came to position {first} after {last} of {channel}")
        self._last[reader] = upto

    def at_end(self, facts: CellFacts) -> None:
        """Check that the numbers of each stream are consecutive along the sequence."""
        reached: dict[Stream, tuple[int, int]] = {}
        begun: dict[Channel, int] = {}
        for (channel, position), (stream, number, _) in sorted(
            self._order.items(), key=lambda entry: entry[0]
        ):
            if begun.get(channel, position - 1) != position - 1:
                # No reader accepted the positions in between, so their numbers are unknown.
                reached = {s: at for s, at in reached.items() if s.channel != channel}
            begun[channel] = position
            before, where = reached.get(stream, (number - 1, 0))
            if number != before + 1:
                facts.violate(
                    self.name,
                    f"{stream} {number} at {position} follows on {before} at {where}",
                )
            reached[stream] = (number, position)


class Durability:
    """Every acknowledged publication reaches every standing subscriber, whatever crashed.

    Unlike Validity, this includes publishers that have crashed since and no longer retransmit.
    """

    name = "Durability"

    def pending(self, facts: CellFacts) -> str | None:
        """The first acknowledged publication that a reader lacks, or None."""
        for stream, upto in facts.acknowledged.items():
            if not facts.adversary.is_correct(stream.publisher):
                continue
            for reader in facts.present():
                if reader.channel != stream.channel:
                    continue
                missing = self._missing(facts, reader, stream, upto)
                if missing is not None:
                    return f"{reader} has not accepted {stream} {missing}, acknowledged as safe"
        return None

    def _missing(self, facts: CellFacts, reader: Reader, stream: Stream, upto: int) -> int | None:
        if reader.standing_at is None:
            return None
        published = facts.published.get(stream, ())
        for number in facts.missing(reader, stream, 1, min(upto, len(published))):
            if published[number - 1][1] > reader.standing_at:
                return number
        return None
