"""Every threshold against its intersection argument, by trying all sets of small cells."""

from __future__ import annotations

from itertools import combinations

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.quorum import (
    Broadcast,
    OrderQuorums,
    Protection,
    Quorums,
    accept_votes,
    check_cell,
    largest_f,
    minimum_brokers,
    receipt_votes,
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
    assert quorums.ready_accept - f >= quorums.ready_join


def share(sizes: tuple[int, int], pools: tuple[int, int], common: int) -> bool:
    """Whether any two sets, one of each size out of each pool, have that many in common."""
    ones = [set(chosen) for chosen in combinations(range(pools[0]), sizes[0])]
    others = [set(chosen) for chosen in combinations(range(pools[1]), sizes[1])]
    return all(len(one & other) >= common for one in ones for other in others)


@pytest.mark.parametrize(("n", "f"), [cell for cell in BYZANTINE_CELLS if cell[0] < 7])
def test_quorums_of_epochs_one_broker_apart_share_a_correct_broker(n: int, f: int) -> None:
    for kind in (
        (Quorums(n, f).intersecting, Quorums(n + 1, f).intersecting),
        (
            OrderQuorums(n, f, True).decide,
            OrderQuorums(n + 1, f, True).decide,
        ),
    ):
        assert share(kind, (n, n + 1), f + 1)
    crash = OrderQuorums(n, f, False).decide, OrderQuorums(n + 1, f, False).decide
    assert share(crash, (n, n + 1), 1)


def test_quorums_of_epochs_two_brokers_apart_may_share_only_liars() -> None:
    assert not share((Quorums(4, 1).intersecting, Quorums(6, 1).intersecting), (4, 6), 2)


@pytest.mark.parametrize(
    ("n", "f"), [cell for cell in BYZANTINE_CELLS if cell[0] > 3 * cell[1] + 3]
)
def test_quorums_of_epochs_that_differ_in_f_share_a_correct_broker(n: int, f: int) -> None:
    assert share((Quorums(n, f).intersecting, Quorums(n, f + 1).intersecting), (n, n), f + 2)


@pytest.mark.parametrize(("n", "f"), BYZANTINE_CELLS)
def test_ready_accept_survives_a_broker_that_leaves(n: int, f: int) -> None:
    if n > 3 * f + 1:
        assert Quorums(n, f).ready_accept - f - 1 >= Quorums(n - 1, f).ready_join
    if n >= 3 * (f + 1) + 1:
        # One more may lie in the epoch that allows for it.
        assert Quorums(n, f).ready_accept - f - 1 >= Quorums(n, f + 1).ready_join


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
        (Protection.BYZANTINE, Broadcast.BRACHA, 6),
        (Protection.BYZANTINE, Broadcast.CHAIN, 3),
        (Protection.BYZANTINE, Broadcast.CONSENSUS, 3),
        (Protection.CRASH, Broadcast.CONSENSUS, 1),
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


# -------------------------------------------------------------- total order

CONSENSUS = Broadcast.CONSENSUS
CRASH_CELLS = [(n, f) for n, f in CELLS if n >= 2 * f + 1]
ORDERS = [OrderQuorums(n, f, True) for n, f in BYZANTINE_CELLS] + [
    OrderQuorums(n, f, False) for n, f in CRASH_CELLS
]


def liars(quorums: OrderQuorums) -> int:
    return quorums.f if quorums.byzantine else 0


@pytest.mark.parametrize("quorums", ORDERS, ids=str)
def test_order_two_quorums_share_a_correct_broker(quorums: OrderQuorums) -> None:
    assert always_share(quorums.n, quorums.decide, liars(quorums) + 1)
    assert not always_share(quorums.n, quorums.decide - 1, liars(quorums) + 1)


@pytest.mark.parametrize("quorums", ORDERS, ids=str)
def test_order_quorums_are_there_although_f_are_silent(quorums: OrderQuorums) -> None:
    assert quorums.decide <= quorums.responders == quorums.n - quorums.f
    assert quorums.believe <= quorums.responders
    assert quorums.recall <= max(quorums.responders, quorums.n - 1)


@pytest.mark.parametrize("quorums", ORDERS, ids=str)
def test_order_n_minus_f_words_meet_every_quorum_in_a_correct_broker(
    quorums: OrderQuorums,
) -> None:
    """What was decided is known to a correct broker among any that a new leader hears."""
    brokers = range(quorums.n)
    for heard in combinations(brokers, quorums.responders):
        for quorum in combinations(brokers, quorums.decide):
            assert len(set(heard) & set(quorum)) >= liars(quorums) + 1


def test_order_n_minus_f_words_may_miss_every_correct_holder_of_f_plus_1_accepts() -> None:
    """FIT-Broker decides at f+1 STRONGs: b1 and the liar b4 accepted, b2, b3 and b4 are heard."""
    quorums = OrderQuorums(4, 1, True)
    holders, heard, liar = {1, 4}, {2, 3, 4}, {4}
    assert (len(holders), len(heard)) == (quorums.f + 1, quorums.responders)
    assert not (holders & heard) - liar


@pytest.mark.parametrize("quorums", ORDERS, ids=str)
def test_order_believed_words_include_a_true_one(quorums: OrderQuorums) -> None:
    assert quorums.believe - liars(quorums) == 1


@pytest.mark.parametrize("quorums", ORDERS, ids=str)
def test_order_anchored_decisions_can_be_learned_although_f_are_lost(
    quorums: OrderQuorums,
) -> None:
    assert quorums.anchored - quorums.f == quorums.believe
    assert quorums.anchored <= quorums.responders


@pytest.mark.parametrize("quorums", [q for q in ORDERS if q.f], ids=str)
def test_order_recall_meets_every_quorum_that_counted_on_a_forgetful_broker(
    quorums: OrderQuorums,
) -> None:
    """Broker 0 forgot; f-1 of the others lie. One that knows the truth is always heard."""
    others = range(1, quorums.n)
    lying = set(range(1, quorums.f)) if quorums.byzantine else set()
    for heard in combinations(others, quorums.recall):
        for counted in combinations(others, quorums.decide - 1):
            assert (set(heard) & set(counted)) - lying


def test_order_recall_of_n_minus_f_with_itself_is_too_few_where_brokers_crash() -> None:
    """Three brokers: 0 and 1 decided, 0 forgot and hears 2 alone."""
    quorums = OrderQuorums(3, 1, False)
    assert quorums.recall == 2 > quorums.responders - 1


@pytest.mark.parametrize("f", range(4))
def test_order_cells_need_as_many_brokers_as_the_table_says(f: int) -> None:
    assert minimum_brokers(Protection.CRASH, f, CONSENSUS) == 2 * f + 1
    assert minimum_brokers(Protection.BYZANTINE, f, CONSENSUS) == 3 * f + 1
    assert minimum_brokers(Protection.CRASH, f) == f + 1
    for protection in (Protection.CRASH, Protection.BYZANTINE):
        needed = minimum_brokers(protection, f, CONSENSUS)
        assert largest_f(protection, needed, CONSENSUS) == f
        assert largest_f(protection, needed - 1, CONSENSUS) < f or needed == 1
        check_cell(needed, f, protection, "orders", CONSENSUS)
        with pytest.raises(UsageError, match=rf"needs {needed} brokers"):
            check_cell(needed - 1, f, protection, "orders", CONSENSUS)


def test_receipt_votes_include_one_of_a_correct_broker() -> None:
    assert receipt_votes(Quorums(7, 2), Protection.CRASH) == 1
    assert receipt_votes(Quorums(7, 2), Protection.BYZANTINE) == 3
