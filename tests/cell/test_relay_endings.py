"""Relayed streams of which nothing is left: readers of the child hear how much they lost."""

from __future__ import annotations

import pytest
from tests.support.cells import digests
from tests.support.tree_network import CellPlan, TreeNetwork

from quorumcast.broadcast.relayed import Relayed, RelayedGap, RelayEvent
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import Policy

FEW = Limits(retained_publications=4, window=4, segment=4)
EARLY, LATE, NEWEST = (Stream(Channel("orders"), NodeId("alice"), life) for life in (5, 9, 12))


def relayed(stream: Stream, *bodies: bytes) -> Relayed:
    return Relayed(stream, 1, digests(*bodies), bodies)


@pytest.mark.parametrize(
    "late", [RelayedGap(EARLY, 1, 3), relayed(EARLY, b"a", b"b", b"c")], ids=["gap", "contents"]
)
def test_life_that_comes_when_a_later_one_is_over_is_announced_as_lost(late: RelayEvent) -> None:
    """An uplink hears of a publisher's lives in any order; retention ends them in theirs."""
    cells = TreeNetwork(
        CellPlan("top", Policy.named("ab"), n=4),
        CellPlan("leaf", Policy.named("relay", limits=FEW), parent="top"),
    )
    leaf = cells["leaf"]
    leaf.subscribe()
    cells.run(500)
    for event in (relayed(LATE, b"1", b"2"), relayed(NEWEST, b"3", b"4", b"5", b"6"), late):
        for broker in leaf.brokers:
            leaf.happen(broker, event)
        cells.run(100)
    assert all(leaf.broker(name).has_ended(LATE) for name in leaf.brokers)
    cells.run(3000)
    assert leaf.got() == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert leaf.lost() == [(EARLY, 1, 3)]


def test_end_of_a_life_that_all_cells_above_have_lost_is_announced_as_lost() -> None:
    """The cell in the middle restarts, once the top has dropped the rest of a life for the next."""
    cells = TreeNetwork(
        CellPlan("top", Policy.named("ab", limits=FEW), n=4),
        CellPlan("leaf", Policy.named("relay", limits=FEW), parent="top"),
        CellPlan("below", Policy.named("relay", limits=FEW), parent="leaf"),
    )
    top, leaf, below = cells["top"], cells["leaf"], cells["below"]
    top.publisher(incarnation=5)
    below.subscribe()
    cells.run(200)
    top.publish(b"a", b"b")
    cells.run(400)
    assert below.got() == [b"a", b"b"]
    for name in leaf.brokers:
        cells.stop("leaf", name)
    top.publish(b"c", b"d")
    cells.run(400)
    top.stop(NodeId("alice"))
    top.publisher(incarnation=9)
    cells.run(200)
    top.publish(b"1", b"2", b"3", b"4")
    cells.run(400)
    for name in leaf.brokers:
        cells.start("leaf", name, wiped=True)
    cells.run(20_000)
    assert below.got() == [b"a", b"b", b"1", b"2", b"3", b"4"]
    assert below.lost() == [(EARLY, 3, 4)]
