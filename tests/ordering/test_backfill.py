"""A broker fetches what was ordered while it was away."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.ordering.test_log import COLD, cold
from tests.support.cells import B1, B2, B3, B4, ORDERS, T0, life_of, reasons
from tests.support.network import Disk
from tests.support.ordering import Hall, agree, offer, publish, said

from quorumcast.core.ids import Channel, Millis, NodeId, total_order
from quorumcast.core.limits import Limits
from quorumcast.core.machine import (
    Drop,
    DropReason,
    Effect,
    Receive,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.core.quorum import Protection
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.backfill import (
    ANSWER_MS,
    MAX_ATTEMPTS,
    PAST_MS,
    PAST_RUNS,
    SELDOM_TICKS,
    Backfill,
)
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.log import OrderedLog
from quorumcast.ordering.messages import Past, PastQuery
from quorumcast.ordering.offers import Offers
from quorumcast.ordering.sequencer import IDLE_TICK_MS, TICK_MS
from quorumcast.ordering.state import chained, extent_root

LIMITS = Limits(window=8, segment=4, vote_window=8, pipeline=4, checkpoint=4)


def backfill(**logs: OrderedLog) -> Backfill:
    """What fetches the past of these channels."""
    around = LogContext(
        COLD.manifest.broker_ids,
        COLD.keyring(B2),
        COLD.manifest.hash,
        limits=lambda _: LIMITS,
        may_publish=lambda stream: True,
        log_of=logs.get,
        life=life_of(B2),
    )
    limits = around.limits
    offers = Offers(around.keyring, around.hash, signed=True, limits=limits, served=lambda _: 0)
    fetched = Backfill(Protection.BYZANTINE, around, offers)
    for log in logs.values():
        fetched.want(log)
    return fetched


def queries(effects: list[Effect]) -> list[tuple[str, str]]:
    """Who is asked for which channel."""
    return [
        (effect.to[0], effect.message.channel)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, PastQuery)
    ]


def lacking(name: str = ORDERS) -> OrderedLog:
    """The order of a channel that lacks everything before a position."""
    log = OrderedLog(total_order(Channel(name)), COLD.around(B2))
    log.ledger.archive = Disk()
    log.skip_to(9, bytes(32))
    return log


def test_no_peer_is_asked_for_two_channels_at_once_and_every_channel_has_its_turn() -> None:
    fetching = backfill(**{name: lacking(name) for name in "abcde"})
    asked = [queries(fetching.ask(Millis(tick * ANSWER_MS))) for tick in range(5)]
    for tick in asked:
        assert len({peer for peer, _ in tick}) == len(tick) == 3
    assert sorted(channel for tick in asked for _, channel in tick) == sorted("abcde" * 3)


def test_peer_answers_again_after_a_while() -> None:
    others = cold((b"a",), (b"b",), (b"c",))
    answers = backfill(**{ORDERS: others.log})
    query = PastQuery(Protection.BYZANTINE, ORDERS, 4)
    assert len(answers.on_query(B1, query, T0)) == 3
    assert reasons(answers.on_query(B1, query, T0)) == [DropReason.OVER_LIMIT]
    later = Millis(T0 + PAST_MS)
    assert len(answers.on_query(B1, query, later)) == 3


def test_what_nobody_sends_is_asked_for_seldom_and_of_everybody() -> None:
    log = lacking()
    fetching = backfill(orders=log)
    now = T0
    for _ in range(MAX_ATTEMPTS):
        assert fetching
        assert len(queries(fetching.ask(now))) == 1
        now = Millis(now + ANSWER_MS)
    assert not fetching  # it keeps nobody from being ready
    asked = [queries(fetching.ask(Millis(now + t * TICK_MS))) for t in range(3 * SELDOM_TICKS)]
    assert {peer for tick in asked for peer, _ in tick} == {B1, B3, B4}
    assert sum(map(len, asked)) == 3
    assert log.filling


def test_broker_that_was_cut_off_while_it_fetched_goes_on() -> None:
    hall = Hall(Policy.named("total", limits=LIMITS), durable=True).begin()
    publish(hall, 1, 100)
    hall.stop(B4)
    hall.start(B4, wiped=True)
    while hall.logs[B4].ledger.next == 1:
        hall.run(5)
    assert hall.logs[B4].ledger.base > 64
    hall.cut_off(B4)
    hall.run(2 * MAX_ATTEMPTS * IDLE_TICK_MS)
    hall.rejoin(B4)
    hall.run(2 * SELDOM_TICKS * IDLE_TICK_MS)
    assert len(agree(hall, B1, B2, B3, B4)) == 100
    assert not hall.logs[B4].filling


def without_memory(delay_ms: int, *, durable: bool) -> tuple[Hall, list[bytes]]:
    """The last broker comes back empty, and what it asks for takes so long."""
    runs = 2 * PAST_RUNS + 5
    hall = Hall(durable=durable, checkpoint=runs // 2).begin()
    hall.stop(B4)
    published = publish(hall, 1, runs)

    def slow(sender: NodeId, reader: NodeId, send: Send) -> bool:
        event = Receive(sender, send.message, send.bodies)
        if isinstance(send.message, Past):
            hall.later(delay_ms, reader, lambda: hall.happen(reader, event))
        return isinstance(send.message, Past)

    hall.losses.append(slow)
    hall.start(B4, wiped=True)
    return hall, published


@pytest.mark.parametrize("durable", [False, True])
def test_past_that_takes_longer_than_a_tick_is_sent_once(durable: bool) -> None:
    hall, published = without_memory(4 * TICK_MS, durable=durable)
    hall.run(5000)
    assert agree(hall, B1, B2, B3, B4) == published
    runs = [past.position for past in said(hall, Past) if isinstance(past, Past)]
    # The first answer is not believed before another peer has sent the same.
    assert PAST_RUNS < len(runs) <= len(set(runs)) + PAST_RUNS


def test_whole_answer_is_followed_by_the_next_request_at_the_next_tick() -> None:
    hall, published = without_memory(0, durable=True)
    while len(said(hall, Past)) < 2 * PAST_RUNS:
        hall.run(1)
    hall.run(3 * TICK_MS)
    assert agree(hall, B1, B2, B3, B4) == published


def test_past_is_taken_once_f_plus_1_brokers_say_that_they_hold_it() -> None:
    """A liar may have kept what a deleted channel of the same name held: its chain goes on."""
    made, bodies = offer(COLD, 1, b"deleted")
    log = OrderedLog(total_order(ORDERS), COLD.around(B2))
    log.ledger.archive = Disk()
    log.skip_to(2, chained(b"", extent_root(made.digests)))
    fetching = backfill(**{ORDERS: log})
    fetching.believe = 2
    past = Past(Protection.BYZANTINE, 1, b"", 1, made.stream, 1, made.digests, made.signature)
    for _ in range(2):
        assert fetching.take(B1, past, bodies, Millis(0)) == [Drop(DropReason.NOT_HELD, B1)]
    # Another broker has begun with the new channel.
    assert fetching.take(B3, replace(past, base=2), bodies, Millis(0)) == [
        Drop(DropReason.NOT_HELD, B3)
    ]
    assert not log.arriving
    fetching.take(B4, past, bodies, Millis(0))
    assert log.arriving


def test_past_that_was_altered_is_no_false_statement() -> None:
    made, bodies = offer(COLD, 1, b"a")
    log = OrderedLog(total_order(ORDERS), COLD.around(B2))
    log.ledger.archive = Disk()
    log.skip_to(2, chained(b"", extent_root(made.digests)))
    fetching = backfill(**{ORDERS: log})
    past = Past(Protection.BYZANTINE, 1, b"", 1, made.stream, 1, made.digests, made.signature)
    assert fetching.take(B1, past, (b"x", *bodies[1:]), Millis(0)) == [
        Drop(DropReason.BAD_BODY, B1),
        Suspect(B1, Suspicion.BAD_BODY, total_order(ORDERS), 1),
    ]
    assert fetching.take(B1, replace(past, chain=b"x"), bodies, Millis(0)) == [
        Drop(DropReason.BAD_RUN, B1),
        Suspect(B1, Suspicion.FALSE_STATEMENT, total_order(ORDERS), 1),
    ]
    assert not log.arriving


def test_peer_that_was_not_asked_does_not_hasten_the_next_request() -> None:
    """A liar that did would use up the patience with others before they can answer."""
    made, bodies = offer(COLD, 1, b"a")
    false = Past(Protection.BYZANTINE, 1, b"", 1, made.stream, 1, made.digests, made.signature)
    fetching = backfill(orders=lacking())
    fetching.believe = 2
    asked: list[tuple[str, str]] = []
    for tick in range(3 * ANSWER_MS // TICK_MS):
        now = Millis(tick * TICK_MS)
        asked += queries(fetching.ask(now))
        fetching.take(B4, false, bodies, now)
    assert len(asked) == 3 + sum(peer == B4 for peer, _ in asked)
    assert fetching


def test_wiped_broker_does_not_hold_what_one_broker_alone_kept() -> None:
    hall = Hall(Policy.named("total", limits=LIMITS), durable=True).begin()
    publish(hall, 1, 40)
    for member in (B2, B3):  # as if the channel had been deleted and created again
        hall.logs[member].ledger.give_up(31)
    hall.stop(B4)
    hall.start(B4, wiped=True)
    hall.run(5000)
    assert hall.logs[B1].ledger.base == 1
    assert hall.logs[B4].ledger.base == 31


def test_fetching_ends_with_a_channel_that_is_created_anew() -> None:
    log = lacking()
    fetching = backfill(**{ORDERS: log})
    log.filling = False
    assert fetching.ask(Millis(0)) == log.stop_filling()
    assert not fetching
