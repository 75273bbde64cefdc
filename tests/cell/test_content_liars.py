"""Content subscriptions among liars: every fault of the catalogue, and what it leaves behind.

Alice publishes prices, bob wants cheap ones, carol dear ones. One broker lies, or carol does.
"""

from __future__ import annotations

import random

import pytest
from tests.cell.test_content import CHEAP, Rows
from tests.support.cells import ALICE, B1, B4, BOB, CAROL, ORDERS, STREAM, T0
from tests.support.rows import prices_of

from quorumcast.broadcast.application import Deliver, DeliverGap, Select
from quorumcast.broadcast.messages import Matches
from quorumcast.cell.subscribing.silence import LEAST_SILENCE_MS
from quorumcast.cell.subscribing.subscriber import REFRESH_MS
from quorumcast.core.cuts import digest_of_cut
from quorumcast.core.ids import DIGEST_SIZE, NodeId
from quorumcast.core.machine import Drop, DropReason, Send, Suspect, Suspicion
from quorumcast.faults.cell import matching
from quorumcast.faults.cell.catalogue import CATALOGUE, make_fault
from quorumcast.faults.cell.entry import FaultContext, Role

#: The broker that bob has contents from.
SOURCE = B4
DEAR = ("price > 100",)
#: Publications with nothing, with a cut, and with more than half of the rows.
TRAFFIC = (
    (11, 12, 13),
    (5, 11, 12, 6, 15, 16),
    (1, 2),
    (13, 14, 3),
    (150, 15, 20),
    (4,),
    (7, 8, 9, 30, 31, 32),
)
CHEAP_ROWS = [(2, [5, 6]), (3, [1, 2]), (4, [3]), (6, [4]), (7, [7, 8, 9])]
DEAR_ROWS = [(5, [150])]

OF_BROKERS = [name for name, entry in CATALOGUE.items() if entry.role is Role.BROKER]
OF_RESULTS = [name for name in OF_BROKERS if CATALOGUE[name].of_rows]
OF_SUBSCRIBERS = [name for name, entry in CATALOGUE.items() if entry.role is Role.SUBSCRIBER]


def lying(rows: Rows, node: NodeId, fault: str, percent: int = 100) -> None:
    """Let a node commit a fault from now on."""
    cell = rows.cell
    context = FaultContext(
        node, cell.manifest, cell.keyring(node), random.Random(7), percent=percent
    )
    rows.network.faults[node] = make_fault(fault, context)


def carried(policy: str, liar: NodeId, fault: str) -> Rows:
    """A cell in which somebody lies, after some traffic."""
    rows = Rows(policy)
    lying(rows, liar, fault)
    rows.join(BOB, *CHEAP)
    rows.join(CAROL, *DEAR)
    for prices in TRAFFIC:
        rows.publish(prices, for_ms=300)
    rows.network.run(8 * REFRESH_MS)
    return rows


def applies(fault: str, policy: str) -> bool:
    entry = CATALOGUE[fault]
    return policy in entry.valid_under and policy in (entry.only_under or (policy,))


def trials() -> list[tuple[str, str, NodeId]]:
    """Each fault of a broker under one policy, those about results under all."""
    found: list[tuple[str, str, NodeId]] = []
    for index, fault in enumerate(OF_BROKERS):
        fit = [policy for policy in ("ab", "brb", "total") if applies(fault, policy)]
        for policy in fit if fault in OF_RESULTS else fit[index % len(fit) :][:1]:
            found.append((fault, policy, (SOURCE, B1)[len(found) % 2]))
    return found


@pytest.mark.parametrize(("fault", "policy", "liar"), trials())
def test_subscriber_misses_nothing_whatever_a_broker_does(
    fault: str, policy: str, liar: NodeId
) -> None:
    rows = carried(policy, liar, fault)
    assert rows.prices(BOB) == CHEAP_ROWS
    assert rows.prices(CAROL) == DEAR_ROWS
    assert not rows.of(BOB, DeliverGap)
    for node in (BOB, CAROL):
        assert {who for who, _ in rows.suspected(node)} <= {liar, ALICE}


#: What each fault is suspected of, by subscribers of a channel that settles.
LEFT = {
    "omit-rows": Suspicion.DISSENT,
    "omit-matches": Suspicion.OMITS,
    "pad-rows": Suspicion.DISSENT,
    "false-coverage": Suspicion.OMITS,
    "other-predicate": Suspicion.OMITS,
    "stale-predicate": Suspicion.SILENT,
}


def test_every_fault_of_results_is_listed() -> None:
    assert LEFT.keys() == set(OF_RESULTS)


@pytest.mark.parametrize("fault", OF_RESULTS)
def test_broker_is_suspected_of_what_it_does(fault: str) -> None:
    rows = Rows("brb")
    lying(rows, B4, fault)
    rows.join(BOB, *CHEAP)
    rows.publish(TRAFFIC[1], for_ms=300)
    rows.network.happen(BOB, Select(ORDERS, ("price < 20",)))
    rows.network.run(4 * REFRESH_MS)
    for prices in TRAFFIC:
        rows.publish(prices, for_ms=300)
    if LEFT[fault] is Suspicion.SILENT:
        for _ in range(0, 2 * LEAST_SILENCE_MS, 1000):
            rows.publish((5,), for_ms=1000)
    rows.network.run(8 * REFRESH_MS)
    assert (B4, LEFT[fault]) in rows.suspected(BOB)
    assert {who for who, _ in rows.suspected(BOB)} == {B4}


def test_votes_under_a_predicate_of_before_are_dropped() -> None:
    rows = Rows("ab")
    lying(rows, B4, "stale-predicate")
    rows.join(BOB, *CHEAP)
    rows.publish(TRAFFIC[1])
    rows.network.happen(BOB, Select(ORDERS, DEAR))
    rows.publish(TRAFFIC[4], for_ms=300)
    rows.network.run(2 * REFRESH_MS)
    assert rows.prices(BOB) == [(1, [5, 6]), (2, [150])]
    dropped = {(d.reason, d.sender) for d in rows.of(BOB, Drop) if isinstance(d, Drop)}
    assert (DropReason.OTHER_PREDICATE, B4) in dropped
    assert not any(
        reason is DropReason.OTHER_PREDICATE and sender != B4 for reason, sender in dropped
    )


@pytest.mark.parametrize("fault", OF_SUBSCRIBERS)
def test_others_get_their_rows_whatever_a_subscriber_does(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "PATTERNS", 20)
    rows = carried("ab", CAROL, fault)
    # It may publish as well: that is nonsense, and goes whole to everybody.
    rows.told = [
        (node, told)
        for node, told in rows.told
        if not (isinstance(told, Deliver) and told.stream.publisher == CAROL)
    ]
    assert rows.prices(BOB) == CHEAP_ROWS
    assert not rows.of(BOB, DeliverGap)
    assert not rows.of(BOB, Suspect)


def told_instead(fault: str) -> Send:
    """What a source of contents sends instead of a cut with the prices 5 and 6."""
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish(TRAFFIC[1])
    sent = [s for s in rows.of(SOURCE, Send) if isinstance(s, Send)]
    honest = next(s for s in sent if isinstance(s.message, Matches) and s.bodies)
    lying(rows, SOURCE, fault)
    (lie,) = rows.network.faults[SOURCE].tamper([honest], T0)
    assert isinstance(lie, Send)
    return lie


@pytest.mark.parametrize(("fault", "prices"), [("omit-rows", [5]), ("pad-rows", [5, 6, 6])])
def test_rows_left_out_or_added_are_a_cut_like_any_other(fault: str, prices: list[int]) -> None:
    lie = told_instead(fault)
    assert isinstance(lie.message, Matches)
    assert prices_of(lie.bodies[0]) == prices
    assert digest_of_cut(lie.bodies[0]) == lie.message.values[:DIGEST_SIZE]


@pytest.mark.parametrize("fault", ["omit-matches", "drop-kind", "lie-acks", "drop"])
def test_fault_that_withholds_votes_withholds_results(fault: str) -> None:
    rows = Rows("ab")
    cell, vote = rows.cell, Send((BOB,), Matches(STREAM, 1, 1, b"id", (0,), bytes(32)))
    setting = FaultContext(
        B4, cell.manifest, cell.keyring(B4), random.Random(1), victims=("Matches",)
    )
    left = make_fault(fault, setting).tamper([vote], T0)
    assert left in ([], [Send((BOB,), Matches(STREAM, 1, 1, b"id"))])
