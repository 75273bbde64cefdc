"""The labels of real runs: what the deeds of a faulty node would tell an audit that knew all."""

from collections import Counter

import pytest

from quorumcast.bench.labels import status_of
from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.tally import SLIGHT, TalliedDeed

BROKERS = [f"b{i}" for i in range(1, 5)]


def deeds(*towards: str, message: str = "Echo", count: int = SLIGHT) -> Counter[TalliedDeed]:
    return Counter({TalliedDeed(message, NodeId(peer), "alice"): count for peer in towards})


@pytest.mark.parametrize(
    ("node", "done", "splits", "status"),
    [
        ("b4", deeds(), False, "idle"),
        ("b4", deeds("b1", "b2", "bob", count=SLIGHT - 1), False, "slight"),
        ("b4", deeds("b1"), False, "word-against-word"),
        ("b4", deeds("bob"), False, "word-against-word"),
        ("b4", deeds("b1", "bob"), False, "word-against-word"),
        ("b4", deeds("b1", "b2"), False, "plain"),
        ("b4", deeds("bob", "carol"), False, "plain"),
        # Alice may have told brokers different things, and is one liar for all of them …
        ("b4", deeds("bob", "carol", message="Vote"), True, "word-against-word"),
        ("b4", deeds("bob", "carol", message="Positions"), True, "plain"),
        # … but no excuse for herself.
        ("alice", deeds("b1", "b2", "b3", message="ChainRun"), True, "plain"),
    ],
)
def test_deeds_are_plain_unless_their_victims_may_be_the_liars(
    node: str, done: Counter[TalliedDeed], splits: bool, status: str
) -> None:
    assert status_of(node, done, BROKERS, 1, splits=splits) == status
