"""Retention by time: an idle broker lets go of what is old, and never of what it still needs."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    BOB,
    CHAIN,
    ORDERS,
    STREAM,
    T0,
    Cell,
    bodies,
    limited,
    messages,
    publish,
)

from quorumcast.cell.messages import Attest, Checkpoint, Position, Positions, Subscribe
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.served_streams import LONGEST_MS, SHRINK_MS, ServedStreams, Sweep
from quorumcast.core.ids import Millis, total_order
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Connected, Effect, Forget, Receive, SetTimer, TimerFired
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.log import OrderedLog
from quorumcast.ordering.past import Placed

SPAN = 8_000


def sweeps(effects: list[Effect]) -> list[int]:
    return [e.after_ms for e in effects if isinstance(e, SetTimer) and e.timer == Sweep()]


def pass_time(broker: Broker, since: int, until: int) -> None:
    for now in range(since, until + 1, SPAN // 8):
        assert sweeps(broker.handle(TimerFired(Sweep()), Millis(now))) == [SPAN // 8]


def base(broker: Broker) -> int:
    return broker.streams()[STREAM].base


def test_broker_without_a_time_limit_sets_no_timer() -> None:
    made = Cell(Policy.named("ab")).broker()
    assert sweeps(made.handle(Connected(B2), T0)) == []


def test_broker_with_a_time_limit_looks_now_and_then_with_one_timer() -> None:
    made = Cell(limited("ab", retained_ms=SPAN)).broker()
    assert sweeps(made.handle(Connected(B2), T0)) == [SPAN // 8]
    assert sweeps(made.handle(Connected(ALICE), T0)) == []
    rarely = Cell(limited("ab", retained_ms=10**9)).broker()
    assert sweeps(rarely.handle(Connected(B2), T0)) == [LONGEST_MS]


def test_broker_that_is_idle_lets_go_of_what_is_old_and_says_so_to_subscribers() -> None:
    made = Cell(limited("ab", retained_ms=SPAN)).broker()
    made.handle(publish(1, *bodies(1, 3)), T0)
    pass_time(made, 0, SPAN - SPAN // 8)
    assert base(made) == 1
    pass_time(made, SPAN, SPAN)
    assert base(made) == 4
    (told,) = messages(made.handle(Receive(BOB, Subscribe(ORDERS, (), True)), T0), Positions)
    assert told == Positions(ORDERS, (Position(STREAM, 4, 4),), bodies=True)


def test_broker_with_histories_keeps_what_none_has_settled() -> None:
    made = Cell(limited("ab+history", retained_ms=SPAN)).broker()
    made.handle(publish(1, *bodies(1, 3)), T0)
    pass_time(made, 0, 4 * SPAN)
    assert base(made) == 1


def test_broker_of_a_bare_chain_keeps_a_window_that_others_may_lack() -> None:
    limits = Limits(retained_ms=SPAN, window=4)
    assert CHAIN.limits != limits
    chain = msgspec.structs.replace(CHAIN, limits=limits)
    made = Cell(chain).broker(B1)
    served = made._served.open(STREAM, made._view.channels[0], ALICE)
    assert served is not None
    for body in bodies(1, 10):
        served.carrier.ledger.extend([made._view.hash(body)], [body])
    pass_time(made, 0, 4 * SPAN)
    assert base(made) == 7


def test_broker_takes_another_time_limit_with_the_next_epoch() -> None:
    cell = Cell(limited("ab"))
    made = cell.broker()
    made.handle(publish(1, *bodies(1, 3)), T0)
    entry = cell.manifest.channels[0]
    shorter = msgspec.structs.replace(entry, policy=limited("ab", retained_ms=SPAN))
    following = msgspec.structs.replace(cell.manifest, epoch=2, channels=(shorter,))
    effects = made.adopt(following, cell.keyring(B1))
    assert sweeps(effects) == [SPAN // 8]
    pass_time(made, 0, SPAN)
    assert base(made) == 4


def adopted(cell: Cell, made: Broker, policy: Policy) -> list[Effect]:
    entry = msgspec.structs.replace(cell.manifest.channels[0], policy=policy)
    following = msgspec.structs.replace(cell.manifest, epoch=2, channels=(entry,))
    return made.adopt(following, cell.keyring(B1))


@pytest.mark.parametrize("name", ["direct", "ab"])
def test_broker_takes_lower_limits_with_the_next_epoch_in_turns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServedStreams.shrink, "__defaults__", (3,))
    cell = Cell(limited(name))
    made = cell.broker()
    made.handle(publish(1, *bodies(1, 8)), T0)
    effects = adopted(cell, made, limited(name, retained_publications=4))
    assert sweeps(effects) == [SHRINK_MS]
    assert sweeps(made.handle(TimerFired(Sweep()), T0)) == [SHRINK_MS]
    assert base(made) == 4
    assert sweeps(made.handle(TimerFired(Sweep()), T0)) == []
    assert base(made) == 5
    (told,) = messages(made.handle(Receive(BOB, Subscribe(ORDERS, (), True)), T0), Positions)
    assert told == Positions(ORDERS, (Position(STREAM, 5, 9),), bodies=True)


def test_broker_takes_higher_limits_with_the_next_epoch() -> None:
    cell = Cell(limited("ab", retained_publications=4))
    made = cell.broker()
    made.handle(publish(1, *bodies(1, 4)), T0)
    assert sweeps(adopted(cell, made, limited("ab", retained_publications=6))) == []
    made.handle(publish(5, *bodies(5, 3)), T0)
    assert base(made) == 2


def test_broker_leaves_what_is_old_on_a_channel_with_total_order_to_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log keeps on disk until its next checkpoint what a restart needs."""
    monkeypatch.setattr(OrderedLog, "trim", lambda *_: [Forget(Placed, ORDERS, 9)])
    made = Cell(limited("total", retained_ms=SPAN)).broker()
    assert made._served.open(total_order(ORDERS), made._view.channels[0], B1) is not None
    assert sweeps(made.handle(Connected(B2), T0)) == []
    assert made.handle(TimerFired(Sweep()), Millis(SPAN)) == []


def test_broker_that_lost_the_beginning_of_a_segment_signs_for_a_number_alone() -> None:
    made = Cell(limited("direct", retained_ms=SPAN)).broker()
    made.handle(publish(1, *bodies(1, 3)), T0)
    pass_time(made, 0, SPAN)
    made.handle(publish(4, *bodies(4, 2)), T0)
    whole = made.handle(Receive(BOB, Attest(STREAM, 5, 1)), Millis(SPAN))
    alone = made.handle(Receive(BOB, Attest(STREAM, 5, 5)), Millis(SPAN))
    assert (len(messages(whole, Checkpoint)), len(messages(alone, Checkpoint))) == (0, 1)


@pytest.mark.parametrize("name", ["ab", "brb", "chain+history", "total"])
def test_policy_with_a_time_too_short_is_refused(name: str) -> None:
    with pytest.raises(Exception, match="too short for what is under way"):
        Policy.named(name, limits=Limits(retained_ms=999))
