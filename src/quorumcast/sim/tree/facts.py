"""The oracle of a tree: what cells of all levels are judged by.

Readers of every cell are judged relative to what the root's publishers submitted, so everything
that applications do is recorded in one place. What is special about a tree is by which manifest a
node goes, and what its brokers may have lost: less than those of a cell alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from quorumcast.core.ids import CELL, Channel, Millis, NodeId, Stream
from quorumcast.core.statements import Signed, parse_statement
from quorumcast.manifest.manifest import Manifest
from quorumcast.sim.cell.adversary import CellAdversary
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.judges.readers import OwedPast
from quorumcast.sim.tree.plan import ROOT, cell_name_of, home_of, is_uplink


class TreeFacts(CellFacts):
    """The facts that checkers of a tree read."""

    def __init__(self, manifests: Mapping[str, Manifest], adversary: CellAdversary) -> None:
        super().__init__(manifests[ROOT], adversary)
        #: The manifest of each cell by its name, the root first.
        self._by_name = dict(manifests)

    def cells(self) -> Sequence[Manifest]:
        return tuple(self._by_name.values())

    def manifest_of(self, node: NodeId) -> Manifest:
        return self._by_name[cell_name_of(node)]

    def manifests_of(self, node: NodeId) -> Collection[Manifest]:
        return (self.manifest_of(node),)

    def signed_in(self, statements: Sequence[Signed]) -> Manifest:
        """The manifest of the cell in which one of these statements was signed."""
        for signed in statements:
            said = parse_statement(signed.payload)
            for manifest in self._by_name.values():
                if said is not None and manifest.cell == said.cell:
                    return manifest
        return self.manifest

    def known_to(self, broker: NodeId, stream: Stream, number: int) -> list[bytes]:
        """Of a lying publisher's stories those are left out that the broker was not told."""
        held = super().known_to(broker, stream, number)
        entry = self.manifest_of(broker).channel(stream.channel)
        if entry is None or not entry.carried or not held:
            return held
        there = self.contents(stream, number)
        if stream.publisher != CELL and self.adversary.is_correct(stream.publisher):
            return there
        return [one for one in there if self.twin.carried(entry, one).body in held]

    def asked_by(self, node: NodeId, channel: Channel) -> tuple[str, ...]:
        """An uplink asks for what its cell carries on."""
        if not is_uplink(node):
            return super().asked_by(node, channel)
        entry = self._by_name[home_of(node)].channel(channel)
        return (entry.carried,) if entry is not None and entry.carried else ()

    def lost_contents(self, node: NodeId, now: Millis) -> None:
        """What brokers below the root have lost, their parents still have: it comes again."""
        if cell_name_of(node) == ROOT:
            super().lost_contents(node, now)

    def retained(self, channel: Channel, node: NodeId) -> int:
        """The smallest number of publications that a cell on the way to a node retains."""
        name = cell_name_of(node)
        way = [name[:length] for length in range(len(name) + 1)]
        entries = [self._by_name[cell].channel(channel) for cell in way]
        return min(entry.policy.limits.retained_publications for entry in entries if entry)

    def owed_past(self, node: NodeId, channel: Channel) -> OwedPast:
        """Below the root nothing: a cell may be behind its parent, whatever the root acknowledged.

        What its brokers retain is owed all the same (`promises.RetainedPast`).
        """
        if cell_name_of(node) == ROOT:
            return super().owed_past(node, channel)
        return OwedPast({}, {})
