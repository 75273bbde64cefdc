"""Draws that follow from a seed and a key alone."""

import numpy as np
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.workload.draws import (
    DISTRIBUTIONS,
    apportioned,
    inclusion,
    ranks_at,
    shuffled,
    uniform,
    weights,
)


def test_uniform_is_the_same_however_the_keys_are_cut() -> None:
    whole = uniform(7, "node", np.arange(1000))
    cut = np.concatenate([uniform(7, "node", np.arange(a, a + 100)) for a in range(0, 1000, 100)])
    assert np.array_equal(whole, cut)
    assert (whole >= 0).all()
    assert (whole < 1).all()


def test_uniform_is_even_and_purposes_and_seeds_are_strangers() -> None:
    draws = uniform(1, "a", np.arange(20_000))
    counts = np.histogram(draws, 20, (0, 1))[0]
    # 1,000 in each are expected, with a deviation of 31.
    assert counts.min() > 850
    assert counts.max() < 1150
    for other in (uniform(1, "b", np.arange(20_000)), uniform(2, "a", np.arange(20_000))):
        assert abs(np.corrcoef(draws, other)[0, 1]) < 0.03


@pytest.mark.parametrize("count", [1, 2, 5, 64, 1000, 17_611])
def test_shuffled_places_are_a_permutation(count: int) -> None:
    places = shuffled(3, "order", np.arange(count), count)
    assert np.array_equal(np.sort(places), np.arange(count))
    cut = [shuffled(3, "order", np.arange(count)[i::3], count) for i in range(3)]
    assert np.array_equal(np.sort(np.concatenate(cut)), np.arange(count))
    assert np.array_equal(cut[0], places[::3])


def test_shuffled_leaves_no_order() -> None:
    places = shuffled(3, "order", np.arange(10_000), 10_000)
    assert abs(np.corrcoef(places, np.arange(10_000))[0, 1]) < 0.05


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_weights_sum_up_to_one(name: str) -> None:
    for count in (1, 2, 23, 1000):
        found = weights(name, count)
        assert len(found) == count
        assert found.sum() == pytest.approx(1)
        assert (found > 0).all()


def test_weights_have_the_form_of_their_law() -> None:
    assert weights("zipf", 10)[0] / weights("zipf", 10)[4] == pytest.approx(5)
    assert weights("zipf", 10, 2)[0] / weights("zipf", 10, 2)[4] == pytest.approx(25)
    assert len(set(weights("uniform", 10))) == 1
    bell = weights("normal", 11)
    assert bell.argmax() == 5
    assert np.allclose(bell, bell[::-1])
    # Draws from x^-3: the share above x falls with x^-2, so rank r is at r^(-1/2).
    law = weights("powerlaw", 1000, 3)
    assert law[0] / law[100] == pytest.approx((100.5 / 0.5) ** 0.5)


@pytest.mark.parametrize(
    ("name", "count", "exponent", "sentence"),
    [
        ("poisson", 5, 0.0, "no distribution 'poisson'; choose one of uniform"),
        ("zipf", 0, 0.0, "1 or more"),
        ("zipf", 5, -1.0, "more than 0"),
        ("zipf", 5, float("nan"), "more than 0"),
        ("zipf", 5, float("inf"), "more than 0"),
        ("zipf", 5, 900.0, "choose the usual one"),
        ("powerlaw", 5, 0.5, "above 1"),
        ("powerlaw", 5, 1.0001, "choose the usual one"),
    ],
)
def test_weights_of_nothing_known_are_refused(
    name: str, count: int, exponent: float, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        weights(name, count, exponent)


def test_ranks_follow_the_weights() -> None:
    shares = weights("zipf", 5)
    ranks = ranks_at(np.cumsum(shares), uniform(1, "rank", np.arange(50_000)))
    assert np.bincount(ranks) / 50_000 == pytest.approx(shares, abs=0.01)
    assert ranks_at(np.cumsum(shares), np.array([0.0, 1.0])).tolist() == [0, 4]


def test_apportioned_sums_up_and_gives_everybody_the_least() -> None:
    assert apportioned(np.array([3.0, 2.0, 1.0]), 6).tolist() == [3, 2, 1]
    assert apportioned(np.array([1.0, 1.0, 1.0]), 10).sum() == 10
    poor = apportioned(np.array([1000.0, 1.0, 1.0]), 50, least=2)
    assert poor.tolist() == [46, 2, 2]
    with pytest.raises(UsageError, match="too few"):
        apportioned(np.array([1.0, 1.0]), 1, least=1)


def test_inclusion_has_the_mean_that_is_asked_for() -> None:
    chances = inclusion(weights("zipf", 23), 7.62)
    assert chances.sum() == pytest.approx(7.62)
    assert chances.max() == 1
    assert (np.diff(chances) <= 0).all()
    assert inclusion(weights("zipf", 4), 4) == pytest.approx(1)
    with pytest.raises(UsageError, match="5 of 4 topics"):
        inclusion(weights("zipf", 4), 5)
