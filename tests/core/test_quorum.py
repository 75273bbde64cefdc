"""Every threshold against its intersection argument, by trying all sets of small cells."""

from __future__ import annotations

from itertools import combinations

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.quorum import (
    Broadcast,
    Protection,
    Quorums,
    accept_votes,
    check_cell,
    largest_f,
    minimum_brokers,
)

CELLS = [(n, f) for n in range(1, 8) for f in range(n)]
BYZANTINE_CELLS = [(n, f) for n, f in CELLS if n >= 3 * f + 1]


def always_share(n: int, size: int, common: int, pool: int | None = None) -> bool:
    """The naive definition: any two sets of that size have that many members in common."""
    sets = [set(chosen) for chosen in combinations(range(pool or n), size)]
    return all(len(one & other) >= common for one in sets for other in sets)


@pytest.mark.parametrize(("n", "f"), BYZANTINE_CELLS)
def test_intersecting_any_two_sets_share_a_correct_broker(n: int, f: int) -> None:
    assert always_share(n, Quorums(n, f).intersecting, f + 1)


@pytest.mark.parametrize(("n", "f"), BYZANTINE_CELLS)
def test_intersecting_one_less_is_too_few(n: int, f: int) -> None:
    assert not always_share(n, Quorums(n, f).intersecting - 1, f + 1)


def test_intersecting_spare_brokers_need_more_than_2f_plus_1() -> None:
    assert Quorums(5, 1).intersecting == 4
    assert not always_share(5, 2 * 1 + 1, 1 + 1)


@pytest.mark.parametrize(("n", "f"), BYZANTINE_CELLS)
def test_thresholds_f_silent_brokers_can_be_waited_for(n: int, f: int) -> None:
    quorums = Quorums(n, f)
    assert quorums.responders == n - f
    for threshold in (
        quorums.intersecting,
        quorums.echo,
        quorums.ready_join,
        quorums.ready_accept,
        quorums.chain_length,
    ):
        assert threshold <= quorums.responders


@pytest.mark.parametrize(("n", "f"), CELLS)
def test_one_correct_smallest_number_that_outnumbers_the_liars(n: int, f: int) -> None:
    assert Quorums(n, f).one_correct - f == 1


@pytest.mark.parametrize(("n", "f"), BYZANTINE_CELLS)
def test_ready_accept_without_the_liars_makes_every_correct_broker_join(n: int, f: int) -> None:
    quorums = Quorums(n, f)
    assert quorums.ready_accept - f == quorums.ready_join


@pytest.mark.parametrize("f", range(3))
def test_chains_from_the_pool_share_a_correct_broker(f: int) -> None:
    quorums = Quorums(3 * f + 3, f)
    assert always_share(quorums.n, quorums.chain_length, f + 1, pool=quorums.chain_pool)


@pytest.mark.parametrize("f", range(1, 3))
def test_chains_from_a_larger_pool_may_share_only_liars(f: int) -> None:
    quorums = Quorums(3 * f + 3, f)
    assert not always_share(quorums.n, quorums.chain_length, f + 1, pool=quorums.chain_pool + 1)


@pytest.mark.parametrize("f", range(4))
def test_chain_reach_covers_a_correct_broker(f: int) -> None:
    assert Quorums(3 * f + 1, f).chain_reach == f + 1


@pytest.mark.parametrize("protection", Protection)
@pytest.mark.parametrize("n", range(1, 30))
def test_largest_f_of_a_cell_is_the_last_that_the_minimum_allows(
    protection: Protection, n: int
) -> None:
    f = largest_f(protection, n)
    assert minimum_brokers(protection, f) <= n < minimum_brokers(protection, f + 1)


@pytest.mark.parametrize(
    ("protection", "broadcast", "expected"),
    [
        (Protection.CRASH, Broadcast.DIRECT, 1),
        (Protection.TRUSTED, Broadcast.DIRECT, 3),
        (Protection.BYZANTINE, Broadcast.AUTHENTICATED, 6),
        (Protection.BYZANTINE, Broadcast.BRACHA, 5),
        (Protection.BYZANTINE, Broadcast.CHAIN, 3),
    ],
)
def test_accept_votes_eight_brokers_two_faulty_follow_the_table(
    protection: Protection, broadcast: Broadcast, expected: int
) -> None:
    assert accept_votes(Quorums(8, 2), protection, broadcast) == expected


@pytest.mark.parametrize("protection", Protection)
@pytest.mark.parametrize("f", range(4))
def test_check_cell_one_broker_short_says_what_to_do(protection: Protection, f: int) -> None:
    needed = minimum_brokers(protection, f)
    check_cell(needed, f, protection, "orders")
    with pytest.raises(UsageError, match=rf"'orders'.* needs {needed} brokers .*add brokers or"):
        check_cell(needed - 1, f, protection, "orders")
