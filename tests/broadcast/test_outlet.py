"""The publisher side: `FanOut` (Freeman, algorithms 1 and 4) and `ChainOut` (algorithm 7)."""

from __future__ import annotations

import pytest
from tests.support.cells import (
    AB,
    ALICE,
    B1,
    B2,
    B3,
    B4,
    CHAIN,
    STREAM,
    Cell,
    bodies,
    digests,
    limited,
    messages,
    sent,
    suspects,
)

from quorumcast.broadcast.application import Acknowledged
from quorumcast.broadcast.chain_outlet import ChainOut
from quorumcast.broadcast.messages import Ack, ChainRun, Open, Publish
from quorumcast.broadcast.outlet import (
    PATIENCE,
    REPEAT_BURST,
    REPEAT_BYTES,
    RUNS_UNDER_WAY,
    FanOut,
    HistoryOut,
)
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Send, Suspect, Suspicion
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)
FAR = 10_000


def fan_out(policy: Policy = AB, up: tuple[NodeId, ...] = BROKERS, credit: int = FAR) -> FanOut:
    """An outlet whose brokers in `up` have answered its introduction."""
    made = FanOut(STREAM, Cell(policy).view(ALICE), policy)
    answer(made, up, credit)
    return made


def chain_out(policy: Policy = CHAIN, up: tuple[NodeId, ...] = BROKERS) -> ChainOut:
    made = ChainOut(STREAM, Cell(policy).view(ALICE), policy)
    answer(made, up, FAR)
    return made


def answer(outlet: FanOut, up: tuple[NodeId, ...], credit: int) -> None:
    for broker in up:
        outlet.connected(broker)
        outlet.on_ack(broker, ack(0, credit))


def ack(upto: int, credit: int = FAR, settled: int = 0, missed: int = 0) -> Ack:
    return Ack(STREAM, upto, credit, settled, missed)


def firsts(effects: list[Effect], kind: type = Publish) -> list[int]:
    found = messages(effects, kind)
    return [m.first for m in found if isinstance(m, Publish | ChainRun)]


# ------------------------------------------------------------------ FanOut


def test_fan_out_run_goes_to_every_broker() -> None:
    """Algorithm 1: for all replicas."""
    digests_, effects = fan_out().submit((b"a", b"b"))
    assert digests_ == digests(b"a", b"b")
    assert effects == [Send(BROKERS, Publish(STREAM, 1, digests(b"a", b"b")), (b"a", b"b"))]


def test_fan_out_numbers_run_on() -> None:
    outlet = fan_out()
    outlet.submit((b"a", b"b"))
    _, effects = outlet.submit((b"c",))
    assert firsts(effects) == [3]
    assert outlet.next == 4


def test_fan_out_broker_is_introduced_before_it_is_sent_anything() -> None:
    outlet = fan_out(up=())
    assert outlet.connected(B1) == [Send((B1,), Open(STREAM, 1, 1))]
    assert outlet.submit((b"a",))[1] == []
    assert outlet.on_ack(B1, ack(0)) == [
        Send((B1,), Publish(STREAM, 1, digests(b"a")), (b"a",)),
    ]


def test_fan_out_run_beyond_a_brokers_credit_waits_for_it() -> None:
    outlet = fan_out(credit=2)
    outlet.submit((b"a",))
    assert outlet.submit((b"b", b"c"))[1] == []
    assert sent(outlet.on_ack(B2, ack(1, 3))) == [
        Send((B2,), Publish(STREAM, 2, digests(b"b", b"c")), (b"b", b"c"))
    ]


def test_fan_out_acknowledged_at_n_minus_f_and_not_before() -> None:
    outlet = fan_out()
    outlet.submit((b"a",))
    assert outlet.on_ack(B1, ack(1)) == []
    assert outlet.on_ack(B2, ack(1)) == []
    assert outlet.on_ack(B3, ack(1)) == [Acknowledged(STREAM, 1)]
    assert outlet.on_ack(B4, ack(1)) == []


def test_fan_out_one_liar_cannot_acknowledge_for_others() -> None:
    outlet = fan_out()
    outlet.submit((b"a",))
    outlet.on_ack(B1, ack(1))
    for _ in range(5):
        assert outlet.on_ack(B2, ack(2**62, 2**62, 2**62)) == []
    assert outlet.acknowledged == 0
    outlet.on_ack(B3, ack(1))
    assert outlet.acknowledged == 1, "and not beyond what was published"


def test_fan_out_settled_by_enough_counts_as_held() -> None:
    outlet = fan_out()
    outlet.submit((b"a",))
    outlet.on_ack(B1, ack(0, settled=1))
    outlet.on_ack(B2, ack(0, settled=1))
    assert Acknowledged(STREAM, 1) in outlet.on_ack(B3, ack(0, settled=1))


def test_fan_out_room_shrinks_with_what_is_not_acknowledged() -> None:
    outlet = fan_out(limited("ab", publisher_buffer=4))
    outlet.submit(bodies(1, 3))
    assert outlet.room == 1
    for broker in (B1, B2, B3):
        outlet.on_ack(broker, ack(3))
    assert outlet.room == 4


def test_fan_out_room_is_bounded_in_bytes() -> None:
    outlet = fan_out(limited("ab", publisher_bytes=10))
    outlet.submit((b"x" * 10,))
    assert outlet.room == 0


def test_fan_out_runs_are_kept_for_the_slow_as_long_as_there_is_room() -> None:
    outlet = fan_out(limited("ab", publisher_buffer=8))
    for number in range(1, 50):
        outlet.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            outlet.on_ack(broker, ack(number))
    assert outlet.sizes()["runs"] == 4
    assert outlet.base == 46


def test_fan_out_runs_are_forgotten_when_all_hold_them() -> None:
    outlet = fan_out()
    outlet.submit((b"a",))
    for broker in (B4, B3, B2, B1):
        outlet.on_ack(broker, ack(1))
    outlet.submit((b"b",))
    for broker in BROKERS:
        outlet.on_ack(broker, ack(2))
    assert outlet.base > 1
    assert outlet.sizes()["run_bytes"] <= 1


def test_fan_out_tick_repeats_what_a_broker_does_not_acknowledge() -> None:
    outlet = fan_out()
    outlet.submit((b"a",))
    outlet.submit((b"b",))
    for broker in (B1, B2, B3):
        outlet.on_ack(broker, ack(2))
    outlet.on_ack(B4, ack(1))
    assert outlet.tick() == []  # it has just moved
    assert outlet.tick() == [Send((B4,), Publish(STREAM, 2, digests(b"b")), (b"b",))]


def test_fan_out_tick_repeats_whole_runs_as_they_were_cut() -> None:
    outlet = fan_out()
    outlet.submit((b"a", b"b"))
    outlet.on_ack(B4, ack(1))
    outlet.tick()
    assert {m.first for m in messages(outlet.tick(), Publish) if isinstance(m, Publish)} == {1}


def test_fan_out_tick_reminds_ever_more_rarely() -> None:
    outlet = fan_out()
    outlet.submit((b"a",))
    for broker in (B1, B2, B3):
        outlet.on_ack(broker, ack(1))
    reminded = [bool(outlet.tick()) for _ in range(4 * PATIENCE)]
    ticks = [tick for tick, said in enumerate(reminded, 1) if said]
    assert ticks == [1, 3, PATIENCE, 2 * PATIENCE, 3 * PATIENCE, 4 * PATIENCE]


def test_fan_out_tick_does_not_bother_the_disconnected_or_the_done() -> None:
    outlet = fan_out()
    outlet.submit((b"a",))
    outlet.disconnected(B4)
    for broker in (B1, B2, B3):
        outlet.on_ack(broker, ack(1))
    assert outlet.tick() == []
    assert not outlet.unfinished


def test_fan_out_broker_that_comes_back_goes_on_where_it_says() -> None:
    outlet = fan_out()
    for number in (1, 2, 3):
        outlet.submit(bodies(number, 1))
    outlet.on_ack(B1, ack(3))
    outlet.disconnected(B1)
    assert outlet.connected(B1) == [Send((B1,), Open(STREAM, 1, 4))]
    assert firsts(outlet.on_ack(B1, ack(1))) == [2, 3]


@pytest.mark.parametrize("policy", ["ab+history", "brb"])
def test_fan_out_broker_that_forgot_takes_part_again_in_what_is_not_settled(policy: str) -> None:
    """Received is not settled: brokers that restart in turn would never settle it."""
    outlet = fan_out(limited(policy))
    for number in (1, 2, 3):
        outlet.submit(bodies(number, 1))
    for broker in BROKERS:
        outlet.on_ack(broker, ack(3, settled=1))
    outlet.disconnected(B1)
    assert outlet.connected(B1) == [Send((B1,), Open(STREAM, 2, 2))]
    assert firsts(outlet.on_ack(B1, ack(1, settled=1))) == [2, 3]


def test_fan_out_broker_behind_the_buffer_is_introduced_anew() -> None:
    outlet = fan_out(limited("ab", publisher_buffer=4))
    for number in range(1, 9):
        outlet.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            outlet.on_ack(broker, ack(number))
    assert sent(outlet.tick(), Open) == [Send((B4,), Open(STREAM, outlet.base, 1))]
    assert firsts(outlet.on_ack(B4, ack(outlet.base - 1))) == list(range(outlet.base, 9))


@pytest.mark.parametrize("policy", ["brb", "ab+history"])
def test_fan_out_keeps_what_enough_brokers_received_and_have_not_settled(policy: str) -> None:
    """Settling it may need a broker that never got it, and nobody else brings it there."""
    outlet = fan_out(limited(policy, publisher_buffer=4))
    for number in range(1, 9):
        outlet.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            outlet.on_ack(broker, ack(number, settled=2))
    assert outlet.base == 3
    for broker in (B1, B2, B3):
        outlet.on_ack(broker, ack(8, settled=8))
    assert outlet.base > 3


def test_fan_out_lying_acks_do_not_make_it_send_everything_again_and_again() -> None:
    """A broker that takes back what it acknowledged is served from the tick on, in bursts."""
    outlet = fan_out()
    for number in range(1, 201):
        outlet.submit(bodies(number, 1))
    outlet.on_ack(B4, ack(200))
    effects: list[Effect] = []
    for _ in range(20):
        effects += outlet.on_ack(B4, ack(0, 0))
        effects += outlet.on_ack(B4, ack(0, 2**62))
        effects += outlet.on_ack(B4, ack(200, 2**62))
    assert len(sent(effects)) <= 200
    outlet.on_ack(B4, ack(0))
    ticks = [len([s for s in sent(outlet.tick()) if s.to == (B4,)]) for _ in range(2)]
    assert ticks == [REPEAT_BURST, 0]


def repeating(outlet: FanOut, kind: type = Publish) -> list[int]:
    """The runs that a slow broker gets again in one tick."""
    for number in range(1, 201):
        outlet.submit(bodies(number, 1))
    return firsts(outlet.tick(), kind)


def test_fan_out_repeats_go_on_only_as_they_are_acknowledged() -> None:
    """A broker that was only slow acknowledges all of it, one by one, and gets nothing twice."""
    outlet = fan_out(up=(B4,))
    assert repeating(outlet) == list(range(1, REPEAT_BURST + 1))
    assert not [e for upto in range(1, REPEAT_BURST) for e in sent(outlet.on_ack(B4, ack(upto)))]
    following = list(range(REPEAT_BURST + 1, 2 * REPEAT_BURST + 1))
    assert firsts(outlet.on_ack(B4, ack(REPEAT_BURST))) == following
    assert firsts(outlet.on_ack(B4, ack(200))) == []


def test_fan_out_repeats_are_bounded_in_bytes() -> None:
    outlet = fan_out(up=(B4,))
    for _ in range(8):
        outlet.submit((bytes(REPEAT_BYTES // 2),))
    assert firsts(outlet.tick()) == [1, 2, 3]


def test_fan_out_bracha_broker_is_sent_so_many_runs_before_it_has_delivered_the_first() -> None:
    outlet = fan_out(Policy.named("brb"), up=(B1,))
    runs = range(1, RUNS_UNDER_WAY + 9)
    sent_first = [first for n in runs for first in firsts(outlet.submit(bodies(n, 1))[1])]
    assert sent_first == list(runs[:RUNS_UNDER_WAY])
    assert firsts(outlet.on_ack(B1, ack(RUNS_UNDER_WAY, settled=5))) == list(runs[-8:-3])
    outlet.on_ack(B1, ack(RUNS_UNDER_WAY + 5, settled=5))
    # The word on what was delivered may have got lost: it is asked for, and nothing is repeated.
    assert [type(s.message) for _ in range(2) for s in sent(outlet.tick())] == [Open]


def test_chain_out_repeats_go_on_only_as_the_whole_chain_acknowledges_them() -> None:
    outlet = chain_out()
    assert repeating(outlet, ChainRun) == list(range(1, REPEAT_BURST + 1))
    for broker in outlet.order[:-1]:
        assert firsts(outlet.on_ack(broker, ack(REPEAT_BURST)), ChainRun) == []
    following = list(range(REPEAT_BURST + 1, 2 * REPEAT_BURST + 1))
    assert firsts(outlet.on_ack(outlet.order[-1], ack(REPEAT_BURST)), ChainRun) == following


# ---------------------------------------------------------------- ChainOut


def test_chain_out_run_goes_to_the_head_with_macs_for_the_first_f_plus_1() -> None:
    """Algorithm 7."""
    cell = Cell(CHAIN)
    _, (send,) = chain_out().submit((b"a",))
    assert isinstance(send, Send)
    assert (send.to, send.bodies) == ((B1,), (b"a",))
    order = (B1, B2, B3)
    expected = cell.vouchers(ALICE, (B1, B2), 1, (b"a",), order)
    assert send.message == ChainRun(STREAM, 1, digests(b"a"), order, expected)


def test_chain_out_needs_the_credit_of_the_whole_chain() -> None:
    outlet = chain_out()
    outlet.on_ack(B3, ack(0, 1))
    assert outlet.submit((b"a", b"b"))[1] == []
    assert firsts(outlet.on_ack(B3, ack(0, 2)), ChainRun) == [1]


def test_chain_out_acknowledged_when_the_whole_chain_holds_it() -> None:
    outlet = chain_out()
    outlet.submit((b"a",))
    assert outlet.on_ack(B1, ack(1)) == []
    assert outlet.on_ack(B2, ack(1)) == []
    assert outlet.on_ack(B3, ack(1)) == [Acknowledged(STREAM, 1)]


def test_chain_out_first_stall_repeats_the_second_changes_the_chain() -> None:
    outlet = chain_out()
    outlet.submit((b"a",))
    outlet.on_ack(B1, ack(1))
    assert firsts(outlet.tick(), ChainRun) == [1]
    assert outlet.order == (B1, B2, B3)
    effects = outlet.tick()
    assert outlet.order != (B1, B2, B3)
    assert firsts(effects, ChainRun) == [1]
    assert suspects(effects) == [B1, B2]


def test_chain_out_neighbours_of_the_break_are_blamed() -> None:
    outlet = chain_out()
    outlet.submit((b"a",))
    outlet.on_ack(B1, ack(1))
    outlet.on_ack(B2, ack(1))
    outlet.tick()
    effects = outlet.tick()
    assert [e for e in effects if isinstance(e, Suspect)] == [
        Suspect(B2, Suspicion.BROKEN_CHAIN, STREAM, 1, (B2, B3)),
        Suspect(B3, Suspicion.BROKEN_CHAIN, STREAM, 1, (B2, B3)),
    ]
    assert outlet.order == (B1, B2, B4), "of equals the one further down stands aside"


def culprits(effects: list[Effect]) -> set[tuple[NodeId, ...]]:
    return {effect.among for effect in effects if isinstance(effect, Suspect)}


def test_chain_out_who_had_a_run_before_may_not_have_got_it_by_this_chain() -> None:
    """b4 is new to the chain and lacks what b1 and b2 had: b1 may keep the repetition from b2."""
    outlet = chain_out()
    outlet.submit((b"a",))
    for broker in (B1, B2):
        outlet.on_ack(broker, ack(1))
    outlet.tick()
    outlet.tick()
    assert outlet.order == (B1, B2, B4)
    outlet.tick()
    assert culprits(outlet.tick()) == {(B1, B2, B4)}


def test_chain_out_histories_bring_what_chains_do_not() -> None:
    """That b2 has it does not say that b1 passed it on."""
    policy = Policy.named("chain+history")
    view = Cell(policy).view(ALICE)
    histories = HistoryOut(STREAM.history, view, policy)
    outlet = ChainOut(STREAM, view, policy, histories)
    answer(outlet, BROKERS, FAR)
    outlet.submit((b"a",))
    for broker in (B1, B2):
        outlet.on_ack(broker, ack(1))
    outlet.tick()
    assert culprits(outlet.tick()) == {(B1, B2, B3)}


def test_chain_out_nobody_can_say_who_kept_from_subscribers_what_the_chain_has() -> None:
    outlet = chain_out()
    outlet.submit((b"a",))
    outlet.on_ack(B1, ack(1, missed=1))
    effects = outlet.on_ack(B2, ack(1, missed=1))
    assert (suspects(effects), culprits(effects)) == ([B2, B3], {()})


def test_chain_out_points_accumulate_until_the_dropper_stands_aside() -> None:
    """b2 takes everything and passes nothing on, whoever comes after it."""
    outlet = chain_out()
    outlet.submit((b"a",))
    for _ in range(12):
        place = outlet.order.index(B2) if B2 in outlet.order else 2
        for broker in outlet.order[: place + 1]:
            outlet.on_ack(broker, ack(1))
        outlet.tick()
    assert outlet.order == (B1, B3, B4)
    assert outlet.acknowledged == 1


def test_chain_out_disconnected_broker_alone_is_blamed() -> None:
    outlet = chain_out()
    outlet.submit((b"a",))
    outlet.on_ack(B1, ack(1))
    outlet.disconnected(B3)
    outlet.tick()
    assert suspects(outlet.tick()) == [B3]
    assert outlet.order == (B1, B2, B4)


def test_chain_out_broker_that_gives_too_little_credit_stands_aside() -> None:
    """One liar answers, and acknowledges, but never gives credit for a whole run."""
    outlet = chain_out()
    for broker in BROKERS:
        outlet.on_ack(broker, ack(0, 1 if broker == B3 else FAR))
    assert outlet.submit((b"a", b"b"))[1] == []
    outlet.tick()
    effects = outlet.tick()
    assert suspects(effects) == [B3]
    assert outlet.order == (B1, B2, B4)
    assert firsts(effects, ChainRun) == [1]


def test_chain_out_nobody_is_blamed_when_more_than_f_are_short_of_credit() -> None:
    """All correct brokers wait for a history: that is no break of the chain."""
    outlet = chain_out(limited("chain+history"))
    outlet.submit(bodies(1, 2))
    outlet.submit(bodies(3, 2))
    for broker in (B1, B2, B3):
        outlet.on_ack(broker, ack(4, 4))
    outlet.submit(bodies(5, 2))
    assert [suspects(outlet.tick()) for _ in range(8)] == [[]] * 8


def test_chain_out_missed_told_by_f_brokers_changes_nothing() -> None:
    outlet = chain_out()
    outlet.submit((b"a",))
    assert suspects(outlet.on_ack(B4, ack(0, missed=2**62))) == []
    assert outlet.order == (B1, B2, B3)


def test_chain_out_missed_told_by_f_plus_1_brokers_changes_the_chain_once() -> None:
    outlet = chain_out()
    outlet.submit((b"a",))
    outlet.on_ack(B4, ack(0, missed=1))
    assert suspects(outlet.on_ack(B1, ack(0, missed=1))) == [B2, B3]
    assert outlet.order == (B1, B2, B4)
    assert suspects(outlet.on_ack(B2, ack(0, missed=1))) == []


def test_chain_out_broker_new_to_the_chain_is_introduced_to_the_buffer() -> None:
    outlet = chain_out(limited("chain", publisher_buffer=4))
    for number in range(1, 9):
        outlet.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            outlet.on_ack(broker, ack(number))
    outlet.submit(bodies(9, 1))
    outlet.disconnected(B2)
    outlet.tick()
    outlet.tick()
    effects = outlet.tick()
    assert outlet.order == (B1, B3, B4)
    assert sent(effects, Open)[:1] == [Send((B4,), Open(STREAM, outlet.base, 1))]


def test_chain_out_chain_is_drawn_from_3f_plus_1_only() -> None:
    """Two chains of 2f+1 out of 3f+1 share a correct broker; with a fifth one they may not."""
    view = Cell(CHAIN, n=5).view(ALICE)
    outlet = ChainOut(STREAM, view, CHAIN)
    answer(outlet, view.brokers, FAR)
    outlet.submit((b"a",))
    seen = set()
    for _ in range(40):
        outlet.tick()
        seen.add(outlet.order)
    assert len(seen) > 1
    assert {broker for order in seen for broker in order} <= set(BROKERS)


# ------------------------------------------------------------------ the buffer


def test_fan_out_keeps_no_more_than_its_buffer_for_brokers_that_are_slow() -> None:
    outlet = fan_out(limited("ab", publisher_buffer=8))
    for number in range(1, 5):
        outlet.submit(bodies(number, 1))
    for broker in (B1, B2, B3):
        outlet.on_ack(broker, ack(4))
    assert outlet.sizes()["runs"] == 4  # for the one that is slow
    assert outlet.room == 8
    for number in range(5, 13):
        outlet.submit(bodies(number, 1))
    assert (outlet.room, outlet.sizes()["runs"], outlet.base) == (0, 8, 5)


def test_fan_out_has_no_room_for_ever_more_that_is_acknowledged_and_not_settled() -> None:
    """One broker is slow, and another lies about what is settled."""
    outlet = fan_out(limited("brb", publisher_buffer=4))
    number = 0
    while outlet.room > 0:
        number += 1
        outlet.submit(bodies(number, 1))
        for broker in (B1, B2):
            outlet.on_ack(broker, ack(number, settled=number))
        outlet.on_ack(B3, ack(number))
    assert (number, outlet.sizes()["runs"]) == (8, 8)
    effects = outlet.on_ack(B4, ack(8, settled=8))
    assert Acknowledged(STREAM, 8) in effects  # whoever waits for room is told
    assert outlet.room == 4


def test_chain_out_that_rewound_and_has_no_credit_has_reached_what_is_acknowledged() -> None:
    """Otherwise no history would name it: nobody asks for what the whole chain has."""
    outlet = chain_out()
    outlet.submit((b"a",))
    outlet.submit((b"b",))
    for broker in BROKERS:
        outlet.on_ack(broker, ack(1))
    outlet.tick()
    outlet.on_ack(outlet.order[0], ack(1, credit=0))
    outlet.tick()
    assert outlet.reach == 1
    for broker in BROKERS:
        outlet.on_ack(broker, ack(2, credit=0))
    assert (outlet.acknowledged, outlet.reach) == (2, 2)
