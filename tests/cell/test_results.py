"""What was evaluated is told again without being evaluated again, and is forgotten in time."""

import pytest
from tests.cell.test_content import CHEAP, Rows
from tests.support.cells import B1, BOB, CAROL, ORDERS
from tests.support.rows import SCHEMA, rows_body, wanted

from quorumcast.broadcast.ledger import StoredRun
from quorumcast.broadcast.messages import Matches
from quorumcast.cell import results
from quorumcast.cell.results import KnownResults
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.subscribing.subscriber import REFRESH_MS
from quorumcast.core.ids import DIGEST_SIZE, NodeId, Stream
from quorumcast.crypto.digest import hasher
from quorumcast.matching.selection import OpenedRun, Selected

STREAM = Stream(ORDERS, NodeId("alice"), 1)
FILTER, OTHER = wanted(*CHEAP), wanted("price = 20")
digest_of = hasher("sha256")
#: Numbers 1 to 8: a cut, nothing, whole, a cut, …
PRICES = [(5, 20, 30, 40), (20,), (1, 2), (50, 6, 20), (7,), (8, 20, 20), (20, 20), (9, 60, 70)]


def held(first: int, stop: int) -> StoredRun:
    bodies = tuple(rows_body(prices) for prices in PRICES[first - 1 : stop - 1])
    return StoredRun(first, b"".join(map(digest_of, bodies)), bodies)


def selected(run: StoredRun) -> dict[bytes, Selected]:
    opened = OpenedRun(SCHEMA, run.digests, run.bodies)
    return {one.id: opened.select(one) for one in (FILTER, OTHER)}


def noted(*bounds: tuple[int, int]) -> KnownResults:
    known = KnownResults()
    for first, stop in bounds:
        run = held(first, stop)
        known.note(STREAM, run, selected(run))
    return known


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_what_is_known_is_what_evaluation_gives(first: int, count: int) -> None:
    run = held(first, min(first + count, 9))
    fresh = selected(run)[FILTER.id]
    found = noted((1, 3), (3, 4), (4, 9)).find(FILTER.id, STREAM, run)
    assert found is not None
    assert found.count == len(run.bodies)
    assert found.places == fresh.places
    votes = [fresh.votes[p * DIGEST_SIZE : (p + 1) * DIGEST_SIZE] for p in fresh.places]
    assert found.values == votes
    assert found.bodies == [fresh.body(place) for place in fresh.places]


def test_only_the_beginning_that_is_known_is_told() -> None:
    known = noted((1, 3), (3, 5), (6, 8))
    found = known.find(FILTER.id, STREAM, held(2, 9))
    assert found is not None
    assert (found.count, found.places) == (3, [1, 2])
    assert known.find(FILTER.id, STREAM, held(5, 9)) is None
    assert known.find(wanted("price = 1").id, STREAM, held(1, 3)) is None
    assert known.find(FILTER.id, Stream(ORDERS, NodeId("alice"), 2), held(1, 3)) is None


def test_other_publications_under_the_same_numbers_are_not_known() -> None:
    other = rows_body((5, 5, 5))
    run = held(1, 3)
    changed = StoredRun(1, run.digests[:DIGEST_SIZE] + digest_of(other), (run.bodies[0], other))
    found = noted((1, 2), (2, 3)).find(FILTER.id, STREAM, changed)
    assert found is not None
    assert found.count == 1


def test_oldest_results_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_BYTES", 40_000)
    known = KnownResults()
    run = held(1, 9)
    for number in range(100):
        known.note(Stream(ORDERS, NodeId("alice"), number), run, selected(run))
        assert len(known) < 10
    assert known.find(FILTER.id, Stream(ORDERS, NodeId("alice"), 99), run) is not None
    assert known.find(FILTER.id, Stream(ORDERS, NodeId("alice"), 1), run) is None


def test_votes_and_places_of_all_groups_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = tuple(rows_body((price, 1000, 2000)) for price in range(64))
    run = StoredRun(1, b"".join(map(digest_of, bodies)), bodies)
    opened = OpenedRun(SCHEMA, run.digests, run.bodies)
    groups = [wanted(f"price = {price}") for price in range(64)]
    known, kept = KnownResults(), {one.id: opened.select(one) for one in groups}
    cuts = sum(one.cut_bytes for one in kept.values())
    # The publications twice, and of each group the votes and the place that it matches.
    most = 2 * sum(map(len, bodies)) + cuts + 64 * (64 * DIGEST_SIZE + 2 * results.RESULT_BYTES)
    monkeypatch.setattr(results, "MOST_BYTES", most)
    known.note(STREAM, run, kept)
    assert not len(known)
    monkeypatch.setattr(results, "MOST_BYTES", 2 * most)
    known.note(STREAM, run, kept)
    assert len(known) == 1


def test_newest_results_are_found_without_a_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, run = KnownResults(), held(1, 2)
    kept = selected(run)
    for number in range(1, 1001):
        known.note(STREAM, StoredRun(number, run.digests, run.bodies), kept)
    looked: list[int] = []

    def stop(self: results.EvaluatedRun) -> int:
        looked.append(self.first)
        return self.first + 1

    monkeypatch.setattr(results.EvaluatedRun, "stop", property(stop))
    for number in (1, 500, 1000):
        assert known.find(FILTER.id, STREAM, StoredRun(number, run.digests, run.bodies))
    assert len(looked) < 20


def test_votes_that_were_lost_come_again_without_evaluation() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.join(CAROL, "price = 20")
    rows.network.losses.append(
        lambda node, reader, send: reader == BOB and isinstance(send.message, Matches)
    )
    rows.publish(*PRICES)
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    before = broker.predicate_work()[ORDERS].rows_looked_at
    assert before == 2 * sum(map(len, PRICES))
    rows.network.losses.clear()
    rows.network.run(20 * REFRESH_MS)
    assert rows.prices(BOB) == [
        (1, [5]), (3, [1, 2]), (4, [6]), (5, [7]), (6, [8]), (8, [9]),
    ]  # fmt: skip
    assert broker.predicate_work()[ORDERS].rows_looked_at == before
