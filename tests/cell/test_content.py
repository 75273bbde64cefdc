"""Content subscriptions in a cell: every policy that allows them, liars, changes, receipts.

Alice publishes prices; bob wants cheap ones; carol wants everything. b4 may lie.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.support.cell_network import CellNetwork
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, CAROL, ORDERS, Cell, limited, publish
from tests.support.rows import COLUMNS, NONSENSE, SCHEMA, prices_of, rows_body

from quorumcast.broadcast.application import (
    Deliver,
    DeliverGap,
    Join,
    Passed,
    Prove,
    Proven,
    Refused,
    Select,
    Submit,
)
from quorumcast.broadcast.messages import Matches, Pull
from quorumcast.cell.messages import Refuse, Subscribe, Vote
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving import filtered_readers
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.filtered_readers import COVER_MS, COVERED, CoverageDue
from quorumcast.cell.subscribing.subscriber import REFRESH_MS, Refresh, Subscriber
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import PREDICATE_ID_SIZE, Millis, NodeId, Stream, total_order
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import (
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Persist,
    Persisted,
    Receive,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    TimerFired,
)
from quorumcast.core.publication import decode_batch
from quorumcast.faults.contract import Later

CHEAP = ("price < 10",)
POLICIES = ("direct", "direct-crash", "ab", "ab+history", "brb", "total", "total-crash")

Change = Callable[[Send, Matches], list[Effect | Later]]


class Changed:
    """A fault that does something else with every vote for a result."""

    name = "changed"

    def __init__(self, change: Change) -> None:
        self._change = change

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        out: list[Effect | Later] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Matches):
                out += self._change(effect, effect.message)
            else:
                out.append(effect)
        return out


def omit(send: Send, said: Matches) -> list[Effect | Later]:
    """Say that nothing matches."""
    nothing = msgspec.structs.replace(said, places=(), values=b"")
    return [Send(send.to, nothing)]


def withhold(send: Send, said: Matches) -> list[Effect | Later]:
    """Vote, and send no contents."""
    return [Send(send.to, said)]


def silence(send: Send, said: Matches) -> list[Effect | Later]:
    return []


class Rows:
    """A cell whose channel has columns, and what its nodes are told."""

    def __init__(self, policy: str, clients: tuple[NodeId, ...] = ()) -> None:
        clients = (ALICE, BOB, CAROL, *clients)
        self.cell = Cell(limited(policy), clients=clients, schema=COLUMNS)
        self.told: list[tuple[NodeId, Effect]] = []
        self.network = CellNetwork(self.cell, self._watch, lambda *words: None)
        self.published = 0
        for broker in self.cell.manifest.broker_ids:
            self.network.start_broker(broker)
        publisher = self.cell.publisher()
        self.network.enter(ALICE, publisher)
        self.network.carry_out(ALICE, publisher.open(ORDERS))

    def _watch(self, now: int, node: NodeId, effect: Effect) -> None:
        self.told.append((node, effect))

    def join(self, node: NodeId, *where: str, start: int | None = None, until: int = 0) -> None:
        self.network.enter(node, self.cell.subscriber(node))
        self.network.happen(node, Join(ORDERS, start, until=until, where=where))
        self.network.run(20)

    def publish(self, *runs: tuple[int, ...], for_ms: int = 50) -> None:
        """Publish one publication of so many rows each, at once."""
        bodies = tuple(rows_body(prices) for prices in runs)
        self.network.happen(ALICE, Submit(ORDERS, bodies))
        self.network.run(for_ms)

    def of(self, node: NodeId, kind: type) -> list[Effect]:
        return [effect for who, effect in self.told if who == node and isinstance(effect, kind)]

    def prices(self, node: NodeId) -> list[tuple[int, list[int]]]:
        """What a node was told, as numbers and prices."""
        found: list[tuple[int, list[int]]] = []
        for told in self.of(node, Deliver):
            assert isinstance(told, Deliver)
            if told.cut:
                found.append((told.number, prices_of(told.body)))
                continue
            batch = decode_batch(memoryview(told.body)[16:], SCHEMA)
            assert batch is not None
            found.append((told.number, batch.column("price").to_pylist()))
        return found

    def suspected(self, node: NodeId) -> set[tuple[NodeId, object]]:
        return {(s.node, s.reason) for s in self.of(node, Suspect) if isinstance(s, Suspect)}


TRAFFIC = ((11, 12), (5, 11, 12), (1, 2), (13, 14, 3), (15,), (4,))
#: Of each: the cheap rows, or all if they are more than half.
WANTED = [(2, [5]), (3, [1, 2]), (4, [3]), (6, [4])]


@pytest.mark.parametrize("policy", POLICIES)
def test_subscriber_gets_the_rows_that_it_wants_and_knows_how_far_it_is(policy: str) -> None:
    rows = Rows(policy)
    rows.join(BOB, *CHEAP)
    rows.join(CAROL)
    for prices in TRAFFIC:
        rows.publish(prices)
    rows.publish((20,), (21,), for_ms=2 * COVER_MS)
    assert rows.prices(BOB) == WANTED
    assert [number for number, _ in rows.prices(CAROL)] == list(range(1, 9))
    last = rows.of(BOB, Passed)[-1]
    assert isinstance(last, Passed)
    assert last.upto == 8
    assert not rows.of(BOB, Suspect)
    assert not rows.of(BOB, DeliverGap)
    dropped = {d.reason for d in rows.of(BOB, Drop) if isinstance(d, Drop)}
    assert dropped <= {DropReason.UNKNOWN_STREAM}  # before it knew where the stream begins


@pytest.mark.parametrize("policy", POLICIES)
def test_subscriber_of_the_past_gets_the_rows_that_it_wants(policy: str) -> None:
    rows = Rows(policy)
    rows.publish(*TRAFFIC, for_ms=500)
    rows.join(BOB, *CHEAP, start=0)
    rows.network.run(500)
    assert rows.prices(BOB) == WANTED


@pytest.mark.parametrize("policy", [p for p in POLICIES if not p.endswith("crash")])
@pytest.mark.parametrize("lie", [omit, withhold, silence])
def test_subscriber_misses_nothing_though_a_broker_lies(policy: str, lie: Change) -> None:
    rows = Rows(policy)
    rows.network.faults[B4] = Changed(lie)
    rows.join(BOB, *CHEAP)
    for prices in TRAFFIC:
        rows.publish(prices, for_ms=300)
    rows.network.run(8 * REFRESH_MS)
    assert rows.prices(BOB) == WANTED
    blamed = rows.suspected(BOB)
    assert {node for node, _ in blamed} <= {B4, ALICE}
    if lie is omit:
        assert (B4, Suspicion.OMITS) in blamed


def test_broker_that_sends_other_rows_than_it_voted_for_is_named() -> None:
    def altered(send: Send, said: Matches) -> list[Effect | Later]:
        return [Send(send.to, said, tuple([body[:-1] + b"!" for body in send.bodies]))]

    rows = Rows("ab")
    rows.network.faults[B4] = Changed(altered)
    rows.join(BOB, *CHEAP)
    for prices in TRAFFIC:
        rows.publish(prices, for_ms=300)
    assert rows.prices(BOB) == WANTED
    assert (B4, Suspicion.BAD_BODY) in rows.suspected(BOB)


def test_nonsense_of_a_publisher_is_sent_whole() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.network.happen(ALICE, Submit(ORDERS, (NONSENSE, rows_body((5, 20, 30)))))
    rows.network.run(100)
    assert [(e.number, e.cut == b"") for e in rows.of(BOB, Deliver) if isinstance(e, Deliver)] == [
        (1, True),
        (2, False),
    ]


@pytest.mark.parametrize("policy", ["ab+history", "brb", "total"])
def test_other_rows_are_wanted_from_the_next_number_on(policy: str) -> None:
    rows = Rows(policy)
    rows.join(BOB, *CHEAP)
    rows.publish((5, 20, 30), (50, 20, 30))
    rows.network.happen(BOB, Select(ORDERS, ("price >= 30",)))
    rows.publish((6, 20, 30), (7, 20, 31))
    rows.network.happen(BOB, Select(ORDERS))
    rows.publish((8, 20, 30))
    rows.network.happen(BOB, Select(ORDERS, CHEAP))
    rows.publish((9, 20, 30), (60, 20, 30))
    rows.publish((9, 21, 30))
    rows.network.run(2 * REFRESH_MS)
    changed = [(3, [30]), (4, [31]), (5, [8, 20, 30]), (6, [9]), (8, [9])]
    # Number 2 was passed over, or it was still to come when the predicate changed.
    assert rows.prices(BOB) in ([(1, [5]), *changed], [(1, [5]), (2, [50, 30]), *changed])
    assert not rows.suspected(BOB)


def test_votes_on_another_predicate_do_not_count() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((20,))
    stale = Matches(Stream(ORDERS, ALICE, 1), 2, 1, b"other", (), b"")
    for broker in (B1, B2, B3):
        rows.network.happen(BOB, Receive(broker, stale))
    assert [d.reason for d in rows.of(BOB, Drop) if isinstance(d, Drop)] == [
        DropReason.OTHER_PREDICATE
    ] * 3
    whole = Vote(Stream(ORDERS, ALICE, 1), 2, bytes(32))
    rows.network.happen(BOB, Receive(B1, whole))
    assert len(rows.of(BOB, Drop)) == 4


@pytest.mark.parametrize("sender", [BOB, CAROL])
def test_pull_under_another_predicate_is_not_answered(sender: NodeId) -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.join(CAROL)
    rows.publish((5, 20, 30))
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    pull = Pull(next(iter(broker.streams())), 1, 1, bytes(PREDICATE_ID_SIZE - 1) + b"?")
    told = broker.handle(Receive(sender, pull), Millis(rows.network.now))
    assert told == [Drop(DropReason.OTHER_PREDICATE, sender)]


@pytest.mark.parametrize(
    "said",
    [
        Matches(Stream(ORDERS, ALICE, 1), 1, 2, b"", (2,), bytes(32)),
        Matches(Stream(ORDERS, ALICE, 1), 1, 2, b"", (0,), b"1" * 31),
        Matches(Stream(ORDERS, ALICE, 1), 1, 2, b"", (0,), bytes(32)),
        Matches(Stream(ORDERS, ALICE, 1), 1, 2, b"", (1, 0), b"1" * 64),
    ],
)
def test_vote_that_makes_no_sense_is_dropped(said: Matches) -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((20,))
    rows.network.run(COVER_MS)
    named = next(
        s.message.where
        for s in rows.of(B1, Send)
        if isinstance(s, Send) and isinstance(s.message, Matches)
    )
    rows.network.happen(BOB, Receive(B1, msgspec.structs.replace(said, where=named)))
    assert [d.reason for d in rows.of(BOB, Drop) if isinstance(d, Drop)] == [DropReason.BAD_RUN]


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_receipt_of_some_rows_proves_the_whole_publication(policy: str) -> None:
    rows = Rows(policy)
    rows.join(BOB, *CHEAP)
    rows.publish((5, 20, 30))
    (told,) = rows.of(BOB, Deliver)
    assert isinstance(told, Deliver)
    assert told.cut
    rows.network.happen(BOB, Prove(*told.provable))
    rows.network.run(4 * REFRESH_MS)
    (proven,) = rows.of(BOB, Proven)
    assert isinstance(proven, Proven)
    assert rows.cell.court.why_receipt_fails(proven.receipt, 2) is None
    stream = Stream(ORDERS, ALICE, 1)
    labelled = policy == "total"
    expected = rows_body((5, 20, 30), stream if labelled else None, 1)
    assert proven.receipt.contents == expected


@pytest.mark.parametrize("where", [(), ("price < 7",)])
def test_receipt_of_what_was_accepted_before_the_predicates_changed(where: tuple[str, ...]) -> None:
    """The number is known to the earlier acceptor alone, so what is around it is not."""
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((5, 20, 30))
    (told,) = rows.of(BOB, Deliver)
    assert isinstance(told, Deliver)
    rows.network.happen(BOB, Select(ORDERS, where))
    rows.network.run(20)
    rows.network.happen(BOB, Prove(*told.provable))
    rows.network.run(4 * REFRESH_MS)
    (proven,) = rows.of(BOB, Proven)
    assert isinstance(proven, Proven)
    assert proven.receipt.contents == rows_body((5, 20, 30))


def test_range_of_a_total_order_is_read_with_a_predicate() -> None:
    rows = Rows("total")
    rows.publish(*TRAFFIC, for_ms=500)
    rows.join(BOB, *CHEAP, start=2, until=5)
    rows.network.run(500)
    assert rows.prices(BOB) == WANTED[:3]
    order = total_order(ORDERS)
    assert all(
        p.stream == order and p.upto < 5 for p in rows.of(BOB, Passed) if isinstance(p, Passed)
    )


def test_coverage_is_told_after_so_many_numbers_or_so_much_time() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((20,), for_ms=COVER_MS // 2)
    assert not rows.of(BOB, Passed)
    rows.network.run(COVER_MS)
    assert rows.of(BOB, Passed)
    before = len(rows.of(B1, Send))
    rows.network.happen(ALICE, Submit(ORDERS, (rows_body((20,)),) * COVERED))
    rows.network.run(20)
    said = [s.message for s in rows.of(B1, Send)[before:] if isinstance(s, Send)]
    assert [m.count for m in said if isinstance(m, Matches)] == [COVERED]


def test_coverage_that_would_be_too_long_for_one_vote_is_told_before_the_next_run() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    rows.publish((20,), for_ms=2 * COVER_MS)
    stream, quiet, now = next(iter(broker.streams())), COVERED - 1, Millis(rows.network.now)
    dear = rows_body((20,))
    told: list[list[int]] = []
    for first, count in ((2, quiet), (2 + quiet, MAX_RUN)):
        sent = broker.handle(publish(first, *[dear] * count, stream=stream), now)
        said = [send.message for send in sent if isinstance(send, Send)]
        told.append([message.count for message in said if isinstance(message, Matches)])
    assert told == [[], [quiet, MAX_RUN]]


def test_coverage_is_not_told_before_the_journal_holds_it() -> None:
    """A broker that loses power after such a vote could vouch for something else."""
    broker = Cell(msgspec.structs.replace(limited("ab"), journal=True), schema=COLUMNS).broker()
    now = Millis(1_000_000)
    broker.handle(Receive(BOB, Subscribe(ORDERS, (), True, where=CHEAP)), now)
    told = broker.handle(publish(1, rows_body((20,))), now)
    (record,) = [effect.record for effect in told if isinstance(effect, Persist)]
    due = Millis(now + COVER_MS)
    (again,) = broker.handle(TimerFired(CoverageDue()), due)
    assert again == SetTimer(CoverageDue(), COVER_MS)
    broker.handle(Persisted(record), due)
    told = broker.handle(TimerFired(CoverageDue()), Millis(due + COVER_MS))
    assert [type(send.message) for send in told if isinstance(send, Send)] == [Matches]


def test_broker_in_an_epoch_with_more_columns_serves_those_who_asked_since() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((5, 20, 30))
    columns = (*COLUMNS, ("size", "int64"))
    entry = msgspec.structs.replace(rows.cell.manifest.channels[0], schema=columns)
    following = msgspec.structs.replace(rows.cell.manifest, epoch=2, channels=(entry,))
    broker = rows.network.machines[B1]
    assert isinstance(broker, Broker)
    broker.adopt(following, following.keyring(rows.cell.keyring(B1).identity))
    asked = Subscribe(ORDERS, (), True, where=("size IS NULL AND price < 10",))
    broker.handle(Receive(CAROL, asked), Millis(rows.network.now))
    run = publish(2, rows_body((6, 20, 30)), stream=next(iter(broker.streams())))
    told = broker.handle(run, Millis(rows.network.now))
    votes = [send for send in told if isinstance(send, Send) and isinstance(send.message, Matches)]
    assert [send.to for send in votes] == [(CAROL,)]


def test_groups_for_which_there_is_no_time_get_their_rows_by_asking_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    with monkeypatch.context() as patch:
        patch.setattr(filtered_readers, "RUN_US", -1)
        rows.publish(*TRAFFIC)
        assert not rows.of(BOB, Deliver)
        rows.network.run(10 * REFRESH_MS)
    assert rows.prices(BOB) == WANTED


def test_numbers_for_which_there_was_no_time_are_not_covered_by_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((20,))
    with monkeypatch.context() as patch:
        patch.setattr(filtered_readers, "RUN_US", -1)
        rows.publish((5, 20, 30))
    rows.publish((30,))
    rows.network.run(COVER_MS + 10 * REFRESH_MS)
    assert rows.prices(BOB) == [(2, [5])]
    assert not rows.of(BOB, Suspect)


def test_brokers_forget_what_a_subscriber_asked_for_before() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    for price in range(5):
        rows.network.happen(BOB, Select(ORDERS, (f"price > {price}",)))
        rows.network.run(20)
    for name in rows.cell.manifest.broker_ids:
        broker = rows.network.machines[name]
        assert isinstance(broker, Broker)
        work = broker.predicate_work()[ORDERS]
        assert (work.predicates, work.subscribers) == (1, 1)


def test_lost_votes_come_again() -> None:
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.network.losses.append(
        lambda node, reader, send: reader == BOB and isinstance(send.message, Matches)
    )
    rows.publish((5, 20, 30))
    rows.network.losses.clear()
    rows.network.run(10 * REFRESH_MS)
    assert rows.prices(BOB) == [(1, [5])]


def test_broker_that_restarts_votes_for_the_same_rows() -> None:
    rows = Rows("ab+history")
    rows.join(BOB, *CHEAP)
    for broker in (B1, B2, B3, B4):
        rows.publish((5, 20, 30), (20,))
        rows.network.stop(broker)
        rows.network.start_broker(broker)
        rows.network.run(100)
    rows.publish((5, 20, 30))
    rows.network.run(10 * REFRESH_MS)
    assert [number for number, _ in rows.prices(BOB)] == [1, 3, 5, 7, 9]
    assert not rows.suspected(BOB)


def test_predicates_go_by_the_columns_of_the_epoch() -> None:
    columns = (*COLUMNS, ("size", "int64"))
    rows = Rows("ab")
    rows.join(BOB, *CHEAP)
    rows.publish((5, 20, 30))
    entry = msgspec.structs.replace(rows.cell.manifest.channels[0], schema=columns)
    following = msgspec.structs.replace(rows.cell.manifest, epoch=2, channels=(entry,))
    bob = rows.network.machines[BOB]
    assert isinstance(bob, Subscriber)
    before = len(rows.of(BOB, Send))
    keyring = following.keyring(rows.cell.keyring(BOB).identity)
    rows.network.carry_out(BOB, bob.adopt(following, keyring))
    asked = [s.message for s in rows.of(BOB, Send)[before:] if isinstance(s, Send)]
    assert any(isinstance(m, Subscribe) and m.where for m in asked)


def test_reader_of_everything_may_ask_for_some_rows_once_a_column_has_come() -> None:
    rows = Rows("ab")
    rows.join(BOB)
    rows.publish((5, 20, 30))
    entry = rows.cell.manifest.channels[0]
    entry = msgspec.structs.replace(entry, schema=(*COLUMNS, ("size", "int64")))
    following = msgspec.structs.replace(rows.cell.manifest, epoch=2, channels=(entry,))
    for name, machine in rows.network.machines.items():
        assert isinstance(machine, Broker | Publisher | Subscriber)
        keyring = following.keyring(rows.cell.keyring(name).identity)
        rows.network.carry_out(name, machine.adopt(following, keyring))
    rows.network.happen(BOB, Select(ORDERS, CHEAP))
    rows.publish((6, 20, 30), (40, 50))
    assert rows.prices(BOB) == [(1, [5, 20, 30]), (2, [6])]


@pytest.mark.parametrize(
    ("where", "asked"), [((), list(range(1, 21))), (CHEAP, [1, 2, 4, 8, 16])], ids=["all", "some"]
)
def test_request_without_an_answer_is_repeated_ever_more_rarely_if_it_has_predicates(
    where: tuple[str, ...], asked: list[int]
) -> None:
    bob = Cell(limited("ab"), schema=COLUMNS).subscriber()
    bob.handle(Connected(B1), Millis(0))
    bob.handle(Join(ORDERS, where=where), Millis(0))
    refreshed = TimerFired(Refresh(ORDERS))
    told = [bob.handle(refreshed, Millis(REFRESH_MS * tick)) for tick in range(1, 21)]
    sent = [[e for e in effects if isinstance(e, Send)] for effects in told]
    assert [tick for tick, found in enumerate(sent, 1) if found] == asked


@pytest.mark.parametrize(
    ("policy", "schema", "where", "reason"),
    [
        ("chain", COLUMNS, "price < 1", "on a chain"),
        ("ab", (), "price < 1", "carries bytes"),
        ("ab", COLUMNS, "prize < 1", "did you mean 'price'"),
    ],
)
def test_predicate_that_a_channel_cannot_have_is_refused(
    policy: str, schema: tuple[tuple[str, str], ...], where: str, reason: str
) -> None:
    cell = Cell(limited(policy), schema=schema)
    with pytest.raises(UsageError, match=reason):
        cell.subscriber().handle(Join(ORDERS, where=(where,)), Millis(0))
    told = cell.broker().handle(
        Receive(BOB, Subscribe(ORDERS, (), True, where=(where,))), Millis(0)
    )
    (refused,) = (s.message for s in told if isinstance(s, Send))
    assert isinstance(refused, Refuse)
    assert reason in refused.reason
    assert not any(isinstance(effect, Refused) for effect in told)


def test_subscribers_with_many_predicates_get_what_each_of_them_wants() -> None:
    names = [NodeId(f"reader{i}") for i in range(1, 7)]
    wanted = {
        name: tuple(f"price = {100 * (place % 3 + 1) + i}" for i in range(20))
        for place, name in enumerate(names)
    }
    rows = Rows("ab", tuple(names))
    wanted[BOB] = tuple(f"name like '%{i}_'" for i in range(30))  # costly: evaluated alone
    for node, where in wanted.items():
        rows.join(node, *where)
    rows.publish((105, 1, 2), (205, 305, 3, 4, 5), (319, 320, 6, 7))
    rows.join(CAROL, *(f"price = {i}" for i in range(20)), start=0)
    rows.network.run(500)
    for node, where in wanted.items():
        if node != BOB:
            asked = {int(text.split()[-1]) for text in where}
            assert {p for _, prices in rows.prices(node) for p in prices} == asked & {
                105, 205, 305, 319, 320,
            }  # fmt: skip
    assert rows.prices(CAROL) == [(1, [105, 1, 2]), (2, [205, 305, 3, 4, 5]), (3, [6, 7])]
    assert rows.prices(BOB)
    assert not rows.suspected(CAROL)


def test_subscriber_that_is_gone_is_forgotten() -> None:
    cell = Cell(limited("ab"), schema=COLUMNS)
    broker = cell.broker()
    broker.handle(Receive(BOB, Subscribe(ORDERS, (), True, where=CHEAP)), Millis(0))
    assert broker.sizes()["groups"] == broker.sizes()["predicates"] == 1
    broker.handle(Disconnected(BOB), Millis(0))
    assert broker.sizes()["groups"] == broker.sizes()["predicates"] == 0
