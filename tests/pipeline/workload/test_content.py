"""Subscriptions by content: the densities of DT-1 and DT-2, and a matcher with a plain twin."""

import re

import numpy as np
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.workload.content import (
    DT1,
    DT2,
    ContentGenerator,
    ContentShape,
    Matcher,
)

SMALL = ContentShape(name="small", subscriptions=200, density=0.2, predicates=2)


def plain_matches(predicates: str, row: list[int]) -> bool:
    """The predicates read by a person."""
    for term in predicates.split(" and "):
        found = re.fullmatch(r"a(\d+) (=|<=|>=) (\d+)", term)
        assert found, term
        value, bound = row[int(found[1]) - 1], int(found[3])
        holds = {"=": value == bound, "<=": value <= bound, ">=": value >= bound}[found[2]]
        if not holds:
            return False
    return True


def test_matches_are_those_that_a_person_would_count() -> None:
    generator = ContentGenerator(SMALL, events=300, nodes=10, seed=3, rate=100)
    places = np.arange(300)
    values = generator.values_at(places)
    counted = generator.event_columns(places)["matches"].to_pylist()
    texts = generator.predicates()
    plain = [sum(plain_matches(text, row) for text in texts) for row in values.tolist()]
    assert counted == plain
    assert {text.count(" and ") for text in texts} == {0, 1}


def test_matcher_counts_more_than_one_block() -> None:
    low, high = np.array([[1, 2], [3, 1]]), np.array([[1, 2], [3, 3]])
    values = np.array([[1, 2], [3, 1], [1, 1], [3, 2]] * 600)
    assert Matcher(low, high, 3).count(values).tolist() == [1, 1, 0, 1] * 600
    assert Matcher(low, high, 3).count(values[:0]).tolist() == []


@pytest.mark.parametrize("shape", [DT1, DT2], ids=lambda shape: shape.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_density_is_the_documents_within_one_percent(shape: ContentShape, seed: int) -> None:
    generator = ContentGenerator(shape, events=4000, nodes=120, seed=seed, rate=100)
    matches = generator.event_columns(np.arange(4000))["matches"].to_numpy()
    assert len(generator.subscription_table()) == shape.subscriptions
    assert matches.mean() / shape.subscriptions == pytest.approx(shape.density, rel=0.01)


def test_values_and_predicates_follow_zipf() -> None:
    generator = ContentGenerator(DT1, events=5000, nodes=10, seed=1, rate=100)
    values = generator.values_at(np.arange(5000))
    for column in values.T:
        counts = np.bincount(column, minlength=33)
        assert counts[1] / counts[10] == pytest.approx(10, rel=0.05)
    named = [int(n) for text in generator.predicates() for n in re.findall(r"= (\d+)", text)]
    assert named.count(1) > 1.5 * named.count(2) > 0


def test_density_out_of_reach_is_refused_with_what_is_possible() -> None:
    shape = ContentShape(name="x", subscriptions=100, density=0.9, predicates=3)
    with pytest.raises(UsageError, match=r"can match .* to .* of the subscriptions, not 90.0%"):
        ContentGenerator(shape, events=10, nodes=10, seed=1, rate=1)
