"""Work for predicates: who pays, in advance, and what happens to those who cannot."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cell.test_content import CHEAP, TRAFFIC, WANTED, Rows
from tests.support.cells import ALICE, B1, BOB, CAROL, ORDERS, STREAM, Cell, limited, publish
from tests.support.rows import COLUMNS, rows_body

from quorumcast.broadcast.application import DeliverGap, Submit
from quorumcast.broadcast.messages import Cursor, Matches
from quorumcast.cell.filters import READ_AT_ONCE
from quorumcast.cell.messages import Positions, Refuse, Subscribe, Unsubscribe
from quorumcast.cell.serving import filtered_readers, known_filters
from quorumcast.cell.serving.audience import REPLAYS, REPLAYS_MS
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.filtered_readers import COVER_MS, CUT_US
from quorumcast.cell.serving.known_filters import (
    CHANGE_US,
    CHARACTER_US,
    PREDICATE_US,
    READ_MS,
    KnownFilters,
    ReadOn,
)
from quorumcast.cell.serving.work import (
    COUNT_MS,
    INCOME_US,
    MOST_US,
    POOL_INCOME_US,
    POOL_MOST_US,
    WorkAccounts,
)
from quorumcast.cell.subscribing.subscriber import REFRESH_MS
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.limits import MAX_CLIENT_TEXT, MAX_FILTER_TEXT, MAX_PREDICATES
from quorumcast.core.machine import (
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    SetTimer,
    Suspect,
    TimerFired,
)
from quorumcast.manifest.manifest import ChannelEntry, ChannelOrigin
from quorumcast.manifest.policy import Policy

NOW = Millis(1_000_000)
PRICES: ChannelEntry = Cell(limited("ab"), schema=COLUMNS).manifest.channels[0]


def asking(*where: str) -> Subscribe:
    return Subscribe(ORDERS, (), True, where=where)


# ------------------------------------------------------------------ accounts


def test_work_is_paid_for_in_advance() -> None:
    work = WorkAccounts()
    assert work.may_ask(BOB, MOST_US, NOW)
    work.spend((BOB,), MOST_US - 100)
    assert work.may_ask(BOB, 100, NOW)
    assert not work.may_ask(BOB, 101, NOW)
    assert work.may_ask(BOB, 101, Millis(NOW + 1))
    assert work.may_ask(CAROL, MOST_US, Millis(NOW + 1))


def test_what_costs_more_than_a_full_account_is_done_once_and_leaves_a_debt() -> None:
    work = WorkAccounts()
    assert work.may_ask(BOB, 3 * MOST_US, NOW)
    work.spend((BOB,), 3 * MOST_US)
    back = 2 * MOST_US // INCOME_US
    assert not work.may_ask(BOB, 0, Millis(NOW + back))
    assert work.may_ask(BOB, 0, Millis(NOW + back + 1))
    assert not work.may_ask(BOB, 3 * MOST_US, Millis(NOW + back + MOST_US // INCOME_US - 1))


def test_seats_of_a_client_have_one_account_and_sharers_pay_a_share_each() -> None:
    work = WorkAccounts()
    seats = (NodeId("bob#1"), NodeId("bob#2"))
    assert all(work.may_ask(reader, 1, NOW) for reader in (*seats, CAROL))
    assert len(work) == 2
    work.spend((*seats, CAROL), 3 * MOST_US // 2)
    assert not work.may_ask(NodeId("bob#3"), 1, NOW)
    work.spend((CAROL, seats[0]), 1)  # not for nothing
    assert not work.may_ask(CAROL, MOST_US // 2, Millis(NOW))


def test_many_clients_leave_time_to_those_that_ask_for_little() -> None:
    """Each takes no more than its share, and together they would take more than all."""
    work = WorkAccounts()
    greedy = [NodeId(f"c{n}") for n in range(20)]
    now, done = NOW, [0, 0]
    for half in (0, 1):
        for _ in range(1500):
            now = Millis(now + 1)
            for client in greedy:
                if work.may_ask(client, 500, now):
                    work.spend((client,), 500)
                    done[half] += 500
            assert work.may_ask(BOB, 20, now)
            work.spend((BOB,), 20)
    # First they use up what they saved.
    assert done[0] <= POOL_MOST_US + len(greedy) * MOST_US // 2
    assert POOL_INCOME_US * 3 // 4 < done[1] / 1500 <= POOL_INCOME_US


def test_accounts_that_are_full_again_are_forgotten() -> None:
    work = WorkAccounts()
    for number in range(100):
        client = NodeId(f"c{number}")
        assert work.may_ask(client, 1, NOW)
        work.spend((client,), 1000 if number else 10 * MOST_US)
    assert work.may_ask(BOB, 1, Millis(NOW + COUNT_MS))
    assert len(work) == 2  # bob, and the one in debt


# ---------------------------------------------------------------- predicates


def test_flood_of_changes_takes_a_fifth_of_the_time() -> None:
    known, now, read = KnownFilters(), NOW, 0
    where = "price < 1000000 AND name = 'some name'"
    price_us = CHANGE_US + PREDICATE_US + CHARACTER_US * len(where)
    assert known.work.may_ask(BOB, MOST_US, NOW)
    known.work.spend((BOB,), MOST_US)
    for number in range(1000):
        now = Millis(NOW + number)
        read += known.learn(BOB, PRICES, asking(f"{where[:-7]}{number:06}'"), now)
    assert INCOME_US * 900 <= read * price_us <= INCOME_US * 1000
    assert 0 < read < 1000
    assert len(known) == 1


def test_rows_that_a_channel_carries_on_are_paid_for_with_each_change() -> None:
    carried = " OR ".join(f"price = {n}" for n in range(500))
    origin = ChannelOrigin("top", bytes(32), ORDERS, carried)
    entry = replace(PRICES, policy=Policy.named("relay"), origin=origin)
    known = KnownFilters()
    assert known.learn(BOB, entry, asking(*CHEAP), NOW)
    assert not known.work.may_ask(BOB, MOST_US - CHARACTER_US * len(carried), NOW)


def test_predicates_that_take_too_long_are_refused_with_a_sentence() -> None:
    patterns = " OR ".join(f"name LIKE '%{n}_'" for n in range(130))
    with pytest.raises(UsageError, match=r"take about 1,\d* ms for 65,536 rows, and may take 1,0"):
        KnownFilters().learn(BOB, PRICES, asking(patterns), NOW)
    shorter = " OR ".join(f"name LIKE '%{n}_'" for n in range(100))
    assert KnownFilters().learn(BOB, PRICES, asking(shorter), NOW)


MANY = tuple(f"price = {number} AND name = 'some name'" for number in range(200))


def test_many_predicates_are_read_a_few_at_a_time() -> None:
    broker = Cell(limited("ab"), schema=COLUMNS).broker()
    assert broker.handle(Receive(BOB, asking(*MANY)), NOW) == [SetTimer(ReadOn(), READ_MS)]
    assert broker.sizes()["being_read"] == 1
    # Others are served meanwhile, and who asks again is not read again.
    assert told(broker.handle(Receive(CAROL, asking(*CHEAP)), NOW)) == [Positions]
    assert broker.handle(Receive(BOB, asking(*MANY)), NOW) == []
    turns = 0
    while not (answer := told(effects := broker.handle(TimerFired(ReadOn()), NOW))):
        assert effects == [SetTimer(ReadOn(), READ_MS)]
        turns += 1
    assert turns == sum(map(len, MANY)) // READ_AT_ONCE - 1
    assert answer == [Positions]
    assert broker.sizes()["being_read"] == 0
    assert broker.sizes()["groups"] == 2


@pytest.mark.parametrize("whole_first", [True, False])
def test_request_for_a_few_streams_does_not_replace_one_for_all(whole_first: bool) -> None:
    """It came while the predicates of the other one were being read."""
    broker = Cell(limited("ab"), schema=COLUMNS).broker()
    theirs = Stream(ORDERS, CAROL, 1)
    for stream in (STREAM, theirs):
        sent = publish(1, rows_body((5, 20)), sender=stream.publisher, stream=stream)
        broker.handle(sent, NOW)
    whole = replace(asking(*MANY), cursors=(Cursor(STREAM, 1), Cursor(theirs, 1)))
    few = replace(whole, cursors=(Cursor(STREAM, 1),), few=True)
    for asked in (whole, few) if whole_first else (few, whole):
        broker.handle(Receive(BOB, asked), NOW)
    effects: list[Effect] = []
    while broker.sizes()["being_read"]:
        effects = broker.handle(TimerFired(ReadOn()), NOW)
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    assert [m.few for m in messages if isinstance(m, Positions)] == [False]
    assert {m.stream for m in messages if isinstance(m, Matches)} == {STREAM, theirs}


def test_request_for_a_span_does_not_replace_one_for_all() -> None:
    known = KnownFilters()
    whole = replace(asking(*MANY), cursors=(Cursor(STREAM, 1),))
    for asked in (whole, replace(whole, until=9)):
        known.learn(BOB, PRICES, asked, NOW)
    found = None
    while found is None:
        found = known.read_on()
    assert found[2] == whole


def test_requests_for_other_streams_are_answered_together_when_predicates_are_read() -> None:
    known = KnownFilters()
    theirs = Stream(ORDERS, CAROL, 1)
    for cursor in (Cursor(STREAM, 1), Cursor(theirs, 1), Cursor(STREAM, 2)):
        known.learn(BOB, PRICES, replace(asking(*MANY), cursors=(cursor,), few=True), NOW)
    found = None
    while found is None:
        found = known.read_on()
    asked = found[2]
    assert isinstance(asked, Subscribe)
    assert (asked.cursors, asked.few) == ((Cursor(STREAM, 2), Cursor(theirs, 1)), True)


def told(effects: list[Effect]) -> list[type]:
    return [type(effect.message) for effect in effects if isinstance(effect, Send)]


def test_predicate_that_is_wrong_is_refused_when_it_is_reached() -> None:
    broker = Cell(limited("ab"), schema=COLUMNS).broker()
    broker.handle(Receive(BOB, asking(*MANY, "nonsense")), NOW)
    effects: list[Effect] = [SetTimer(ReadOn(), READ_MS)]
    while effects == [SetTimer(ReadOn(), READ_MS)]:
        effects = broker.handle(TimerFired(ReadOn()), NOW)
    assert told(effects) == [Refuse]
    assert broker.sizes()["being_read"] == 0


@pytest.mark.parametrize("gone", [Disconnected(BOB), Receive(BOB, Unsubscribe(ORDERS))])
def test_predicates_of_a_node_that_left_are_read_no_further(gone: Event) -> None:
    broker = Cell(limited("ab"), schema=COLUMNS).broker()
    broker.handle(Receive(BOB, asking(*MANY)), NOW)
    broker.handle(gone, NOW)
    assert broker.sizes()["being_read"] == 0
    assert broker.handle(TimerFired(ReadOn()), NOW) == []


def test_other_predicates_take_the_place_of_those_that_are_being_read() -> None:
    known = KnownFilters()
    assert known.learn(BOB, PRICES, asking(*MANY), NOW)
    assert known.learn(BOB, PRICES, asking(*CHEAP), NOW)
    assert not known.is_reading(BOB, ORDERS)
    found = known.get(BOB, ORDERS)
    assert found is not None
    assert found.where == CHEAP


def read_all(known: KnownFilters) -> None:
    while known.is_reading(BOB, ORDERS):
        known.read_on()


def test_client_has_so_many_characters_of_predicates_on_all_channels_and_seats() -> None:
    known, now = KnownFilters(), NOW
    text = "price = 1" + " " * (MAX_FILTER_TEXT // 4)
    texts = tuple(text[: MAX_FILTER_TEXT // 4 - n] for n in range(4))
    for seat in range(MAX_CLIENT_TEXT // MAX_FILTER_TEXT):
        now = Millis(now + 10_000)
        assert known.learn(NodeId(f"bob#{seat + 1}"), PRICES, asking(*texts), now)
    now = Millis(now + 10_000)
    with pytest.raises(UsageError, match="bob have more than 524,288 characters"):
        known.learn(NodeId("bob#9"), PRICES, asking(*texts), now)
    assert known.learn(CAROL, PRICES, asking(*texts), now)
    # In place of others there is room.
    assert known.learn(NodeId("bob#1"), PRICES, asking(*reversed(texts)), Millis(now + 10_000))


def test_most_predicates_that_a_node_may_have_are_affordable() -> None:
    rng = random.Random(1)
    names = [f"name = 'n{rng.randrange(10**6)}'" for _ in range(MAX_PREDICATES)]
    ranges = [f"price BETWEEN {n} AND {n + 9}" for n in range(MAX_PREDICATES)]
    for texts in (names, ranges):
        known = KnownFilters()
        assert known.learn(BOB, PRICES, asking(*texts), NOW)
        read_all(known)
        found = known.get(BOB, ORDERS)
        assert found is not None
        assert len(found.filter.predicates) == MAX_PREDICATES


def test_subscriber_that_asks_for_too_much_is_told_why() -> None:
    broker = Cell(limited("ab"), schema=COLUMNS).broker()
    patterns = " OR ".join(f"name LIKE '%{n}_'" for n in range(130))
    told = broker.handle(Receive(BOB, asking(patterns)), NOW)
    (refused,) = (s.message for s in told if isinstance(s, Send))
    assert isinstance(refused, Refuse)
    assert "ask for more rows" in refused.reason


def test_subscriptions_beyond_the_replays_of_a_node_are_dropped_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Cell(limited("ab"), schema=COLUMNS).broker()
    read: list[tuple[str, ...]] = []
    learn = KnownFilters.learn

    def noted(known: KnownFilters, *asked: Any) -> bool:
        read.append(asked[2].where)
        return learn(known, *asked)

    monkeypatch.setattr(KnownFilters, "learn", noted)
    texts = [(f"price = {number}",) for number in range(REPLAYS + 3)]
    told = [broker.handle(Receive(BOB, asking(*where)), NOW) for where in texts]
    assert read == texts[:REPLAYS]
    assert told[REPLAYS:] == [[Drop(DropReason.OVER_LIMIT, BOB)]] * 3
    again = Receive(BOB, asking(*texts[-1]))
    broker.handle(again, Millis(NOW + REPLAYS_MS))
    assert read[-1] == texts[-1]


# ------------------------------------------------------------------- readers


def accounts(rows: Rows) -> int:
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    return broker.sizes()["accounts"]


def test_reader_in_debt_is_served_later_and_others_do_not_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filtered_readers, "CUT_US", MOST_US)
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.join(CAROL, "price = 15")
    for prices in TRAFFIC:
        rows.publish(prices, for_ms=300)
    assert len(rows.prices(BOB)) < len(WANTED)
    assert rows.prices(CAROL) == [(5, [15])]
    for _ in range(len(WANTED)):
        rows.network.run(2 * MOST_US // INCOME_US)
    assert rows.prices(BOB) == WANTED
    assert not rows.of(BOB, DeliverGap)
    assert not rows.of(BOB, Suspect)
    assert not rows.of(CAROL, Suspect)


def test_reader_in_debt_costs_nothing_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_readers, "CUT_US", 3 * MOST_US)
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.join(CAROL, "price = 15")
    rows.publish((5, 20, 30))
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    before = broker.predicate_work()[ORDERS].rows_looked_at
    rows.publish((5, 20, 30), (6, 20, 30))
    after = broker.predicate_work()[ORDERS].rows_looked_at
    assert after - before == 6  # for carol alone


def test_costly_replay_is_given_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_readers, "CUT_US", 0)
    monkeypatch.setattr(known_filters.KnownFilter, "work_us", lambda _, rows: 40_000 * rows)
    monkeypatch.setattr(known_filters, "PAID_ROWS", 1)
    rows = Rows("ab")
    rows.publish(*([(5, 20, 30)] * 16), for_ms=500)
    rows.join(BOB, *CHEAP, start=0)
    rows.network.run(REFRESH_MS)
    got = len(rows.prices(BOB))
    assert 0 < got < 16
    for _ in range(40):
        rows.network.run(REFRESH_MS)
    assert [number for number, _ in rows.prices(BOB)] == list(range(1, 17))


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What brokers charge, in the order in which they do."""
    found: list[int] = []
    spend = WorkAccounts.spend

    def noted(work: WorkAccounts, readers: tuple[NodeId, ...], work_us: int) -> None:
        found.append(work_us)
        spend(work, readers, work_us)

    monkeypatch.setattr(WorkAccounts, "spend", noted)
    return found


def test_publications_that_are_decoded_again_are_paid_for(
    paid: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtered_readers, "OPEN_US", MOST_US // 100)
    rows = Rows("ab")
    rows.publish((5, 20, 30), (6, 20, 30))
    rows.join(BOB, *CHEAP, start=0)
    rows.network.run(REFRESH_MS)
    assert rows.prices(BOB) == [(1, [5]), (2, [6])]
    # Twice, since what cannot be paid for is halved and decoded anew.
    assert sum(one >= 2 * 2 * MOST_US // 100 for one in paid) == len(rows.cell.manifest.broker_ids)


def test_publications_that_cannot_be_paid_for_are_not_decoded(
    paid: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumcast.cell.serving.work.INCOME_US", 0)
    monkeypatch.setattr(filtered_readers, "OPEN_US", MOST_US // 4)
    rows = Rows("ab")
    rows.publish((5, 20, 30), (6, 20, 30))
    rows.join(BOB, *CHEAP, start=0)  # has paid for being read, and no longer has all of it
    rows.network.run(REFRESH_MS)
    assert rows.prices(BOB) == []
    assert max(paid) < MOST_US


def test_results_that_are_known_are_paid_for_when_they_are_told_again(paid: list[int]) -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((5, 20, 30), (20,), (6, 20, 30))
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    first = Cursor(next(iter(broker.streams())), 1)
    paid.clear()
    again = replace(asking(*CHEAP), cursors=(first,))
    told = broker.handle(Receive(BOB, again), Millis(rows.network.now))
    (said,) = [s.message for s in told if isinstance(s, Send) and isinstance(s.message, Matches)]
    assert said.places == (0, 2)
    assert paid == [3 * CUT_US]


def test_subscribers_of_the_same_rows_need_only_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumcast.cell.serving.work.INCOME_US", 0)
    monkeypatch.setattr(filtered_readers.FilterGroup, "work_us", lambda _, rows: MOST_US)
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.join(CAROL, *CHEAP)  # each has paid for being read, and no longer has all of it
    rows.publish((5, 20, 30), for_ms=20)
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    assert broker.predicate_work()[ORDERS].rows_looked_at == 3


def test_long_run_is_not_looked_at_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_filters.KnownFilter, "work_us", lambda _, rows: MOST_US * rows // 5)
    monkeypatch.setattr(
        filtered_readers.FilterGroup, "work_us", lambda _, rows: MOST_US * rows // 5
    )
    monkeypatch.setattr(known_filters, "PAID_ROWS", 1)
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.network.run(MOST_US // INCOME_US)
    rows.publish((5, 20, 30), (6, 20, 30), (7, 20, 30), (8, 20, 30))
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    looked = 0
    for _ in range(200):
        before, looked = looked, broker.predicate_work()[ORDERS].rows_looked_at
        assert looked - before <= 3  # one publication
        rows.network.run(REFRESH_MS // 2)
    assert [number for number, _ in rows.prices(BOB)] == [1, 2, 3, 4]
    assert not rows.of(BOB, DeliverGap)


def test_groups_share_the_time_that_there_is_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    half_us = filtered_readers.RUN_US // 2 + 1
    monkeypatch.setattr(filtered_readers.FilterGroup, "work_us", lambda _, rows: half_us)
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.join(CAROL, "price = 15")
    rows.publish((5, 15, 20, 30), for_ms=20)
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    assert broker.predicate_work()[ORDERS].rows_looked_at == 4  # for one of the two
    rows.network.run(10 * REFRESH_MS)
    assert rows.prices(BOB) == [(1, [5])]
    assert rows.prices(CAROL) == [(1, [15])]


def test_large_cuts_are_paid_for_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_readers, "CUT_BYTES", 1)
    rows = Rows("ab")
    rows.join(BOB, "price < 29000")
    large = rows_body(range(60_000))
    for _ in range(2):
        rows.network.happen(ALICE, Submit(ORDERS, (large,)))
        rows.network.run(20)
    rows.publish((5, 50_000, 60_000))
    assert [number for number, _ in rows.prices(BOB)] == [1, 2]
    rows.network.run(2 * MOST_US // INCOME_US)
    assert [number for number, _ in rows.prices(BOB)] == [1, 2, 3]


def test_accounts_of_those_that_left_are_swept() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((5, 20, 30), for_ms=2 * COVER_MS)
    assert accounts(rows) == 1
    rows.network.stop(BOB)
    rows.network.run(COUNT_MS)
    rows.join(CAROL, *CHEAP)
    assert accounts(rows) == 1
