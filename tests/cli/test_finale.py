"""What the demonstration says of an audit."""

from __future__ import annotations

from itertools import permutations

from quorumcast.cli.lab.finale import named


def test_deed_that_is_proven_is_not_told_as_suspected_whatever_comes_first() -> None:
    rows = [
        {"node": "b1", "deed": "altered", "standing": "proven"},
        {"node": "b1", "deed": "altered", "standing": "suspected"},
        {"node": "b1", "deed": "dropped", "standing": "suspected"},
        {"node": "b2", "deed": "dropped", "standing": "disputed"},
        {"node": "b3", "deed": "late", "standing": "measured"},
    ]
    for order in permutations(rows):
        assert named(order) == {"b1": {"altered": "proven", "dropped": "suspected"}}
