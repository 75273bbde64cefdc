"""The publisher side: `FanOutSender` (Freeman, algorithms 1, 4), `ChainSender` (algorithm 7)."""

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
from quorumcast.broadcast.chain_sender import MOST_SILENCE_MS, TICK_MS, ChainSender
from quorumcast.broadcast.messages import Ack, ChainRun, Open, Publish
from quorumcast.broadcast.sender import (
    REPEAT_BURST,
    REPEAT_BYTES,
    REPEAT_TICKS,
    RUNS_UNDER_WAY,
    FanOutSender,
    HistorySender,
)
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Send, Suspect, Suspicion
from quorumcast.core.patience import LATE_MS
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)
FAR = 10_000


def fan_out(
    policy: Policy = AB, up: tuple[NodeId, ...] = BROKERS, credit: int = FAR
) -> FanOutSender:
    """A sender whose brokers in `up` have answered its introduction."""
    made = FanOutSender(STREAM, Cell(policy).view(ALICE), policy)
    answer(made, up, credit)
    return made


def chain_out(policy: Policy = CHAIN, up: tuple[NodeId, ...] = BROKERS) -> ChainSender:
    made = ChainSender(STREAM, Cell(policy).view(ALICE), policy)
    answer(made, up, FAR)
    return made


def answer(sender: FanOutSender, up: tuple[NodeId, ...], credit: int) -> None:
    for broker in up:
        sender.connected(broker)
        sender.on_ack(broker, ack(0, credit))


def ack(upto: int, credit: int = FAR, settled: int = 0, missed: int = 0) -> Ack:
    return Ack(STREAM, upto, credit, settled, missed)


def firsts(effects: list[Effect], kind: type = Publish) -> list[int]:
    found = messages(effects, kind)
    return [m.first for m in found if isinstance(m, Publish | ChainRun)]


# ------------------------------------------------------------------ FanOutSender


def test_fan_out_run_goes_to_every_broker() -> None:
    """Algorithm 1: for all replicas."""
    digests_, effects = fan_out().submit((b"a", b"b"))
    assert digests_ == digests(b"a", b"b")
    assert effects == [Send(BROKERS, Publish(STREAM, 1, digests(b"a", b"b")), (b"a", b"b"))]


def test_fan_out_numbers_run_on() -> None:
    sender = fan_out()
    sender.submit((b"a", b"b"))
    _, effects = sender.submit((b"c",))
    assert firsts(effects) == [3]
    assert sender.next == 4


def test_fan_out_broker_is_introduced_before_it_is_sent_anything() -> None:
    sender = fan_out(up=())
    assert sender.connected(B1) == [Send((B1,), Open(STREAM, 1, 1))]
    assert sender.submit((b"a",))[1] == []
    assert sender.on_ack(B1, ack(0)) == [
        Send((B1,), Publish(STREAM, 1, digests(b"a")), (b"a",)),
    ]


def test_fan_out_run_beyond_a_brokers_credit_waits_for_it() -> None:
    sender = fan_out(credit=2)
    sender.submit((b"a",))
    assert sender.submit((b"b", b"c"))[1] == []
    assert sent(sender.on_ack(B2, ack(1, 3))) == [
        Send((B2,), Publish(STREAM, 2, digests(b"b", b"c")), (b"b", b"c"))
    ]


def test_fan_out_acknowledged_at_n_minus_f_and_not_before() -> None:
    sender = fan_out()
    sender.submit((b"a",))
    assert sender.on_ack(B1, ack(1)) == []
    assert sender.on_ack(B2, ack(1)) == []
    assert sender.on_ack(B3, ack(1)) == [Acknowledged(STREAM, 1)]
    assert sender.on_ack(B4, ack(1)) == []


def test_fan_out_one_liar_cannot_acknowledge_for_others() -> None:
    sender = fan_out()
    sender.submit((b"a",))
    sender.on_ack(B1, ack(1))
    for _ in range(5):
        assert sender.on_ack(B2, ack(2**62, 2**62, 2**62)) == []
    assert sender.acknowledged == 0
    sender.on_ack(B3, ack(1))
    assert sender.acknowledged == 1, "and not beyond what was published"


def test_fan_out_settled_by_enough_counts_as_held() -> None:
    sender = fan_out()
    sender.submit((b"a",))
    sender.on_ack(B1, ack(0, settled=1))
    sender.on_ack(B2, ack(0, settled=1))
    assert Acknowledged(STREAM, 1) in sender.on_ack(B3, ack(0, settled=1))


def test_fan_out_room_shrinks_with_what_is_not_acknowledged() -> None:
    sender = fan_out(limited("ab", publisher_buffer=4))
    sender.submit(bodies(1, 3))
    assert sender.room == 1
    for broker in (B1, B2, B3):
        sender.on_ack(broker, ack(3))
    assert sender.room == 4


def test_fan_out_room_is_bounded_in_bytes() -> None:
    sender = fan_out(limited("ab", publisher_bytes=10))
    sender.submit((b"x" * 10,))
    assert sender.room == 0


def test_fan_out_runs_are_kept_for_the_slow_as_long_as_there_is_room() -> None:
    sender = fan_out(limited("ab", publisher_buffer=8))
    for number in range(1, 50):
        sender.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            sender.on_ack(broker, ack(number))
    assert sender.sizes()["runs"] == 4
    assert sender.base == 46


def test_fan_out_runs_are_forgotten_when_all_hold_them() -> None:
    sender = fan_out()
    sender.submit((b"a",))
    for broker in (B4, B3, B2, B1):
        sender.on_ack(broker, ack(1))
    sender.submit((b"b",))
    for broker in BROKERS:
        sender.on_ack(broker, ack(2))
    assert sender.base > 1
    assert sender.sizes()["run_bytes"] <= 1


def test_fan_out_tick_repeats_what_a_broker_does_not_acknowledge() -> None:
    sender = fan_out()
    sender.submit((b"a",))
    sender.submit((b"b",))
    for broker in (B1, B2, B3):
        sender.on_ack(broker, ack(2))
    sender.on_ack(B4, ack(1))
    assert sender.tick() == []  # it has just moved
    assert sender.tick() == [Send((B4,), Publish(STREAM, 2, digests(b"b")), (b"b",))]


def test_fan_out_tick_repeats_whole_runs_as_they_were_cut() -> None:
    sender = fan_out()
    sender.submit((b"a", b"b"))
    sender.on_ack(B4, ack(1))
    sender.tick()
    assert {m.first for m in messages(sender.tick(), Publish) if isinstance(m, Publish)} == {1}


def test_fan_out_tick_reminds_ever_more_rarely() -> None:
    sender = fan_out()
    sender.submit((b"a",))
    for broker in (B1, B2, B3):
        sender.on_ack(broker, ack(1))
    reminded = [bool(sender.tick()) for _ in range(4 * REPEAT_TICKS)]
    ticks = [tick for tick, said in enumerate(reminded, 1) if said]
    assert ticks == [1, 3, REPEAT_TICKS, 2 * REPEAT_TICKS, 3 * REPEAT_TICKS, 4 * REPEAT_TICKS]


def test_fan_out_tick_does_not_bother_the_disconnected_or_the_done() -> None:
    sender = fan_out()
    sender.submit((b"a",))
    sender.disconnected(B4)
    for broker in (B1, B2, B3):
        sender.on_ack(broker, ack(1))
    assert sender.tick() == []
    assert not sender.unfinished


def test_fan_out_broker_that_comes_back_goes_on_where_it_says() -> None:
    sender = fan_out()
    for number in (1, 2, 3):
        sender.submit(bodies(number, 1))
    sender.on_ack(B1, ack(3))
    sender.disconnected(B1)
    assert sender.connected(B1) == [Send((B1,), Open(STREAM, 1, 4))]
    assert firsts(sender.on_ack(B1, ack(1))) == [2, 3]


@pytest.mark.parametrize("policy", ["ab+history", "brb"])
def test_fan_out_broker_that_forgot_takes_part_again_in_what_is_not_settled(policy: str) -> None:
    """Received is not settled: brokers that restart in turn would never settle it."""
    sender = fan_out(limited(policy))
    for number in (1, 2, 3):
        sender.submit(bodies(number, 1))
    for broker in BROKERS:
        sender.on_ack(broker, ack(3, settled=1))
    sender.disconnected(B1)
    assert sender.connected(B1) == [Send((B1,), Open(STREAM, 2, 2))]
    assert firsts(sender.on_ack(B1, ack(1, settled=1))) == [2, 3]


def test_fan_out_broker_behind_the_buffer_is_introduced_anew() -> None:
    sender = fan_out(limited("ab", publisher_buffer=4))
    for number in range(1, 9):
        sender.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            sender.on_ack(broker, ack(number))
    assert sent(sender.tick(), Open) == [Send((B4,), Open(STREAM, sender.base, 1))]
    assert firsts(sender.on_ack(B4, ack(sender.base - 1))) == list(range(sender.base, 9))


@pytest.mark.parametrize("policy", ["brb", "ab+history"])
def test_fan_out_keeps_what_enough_brokers_received_and_have_not_settled(policy: str) -> None:
    """Settling it may need a broker that never got it, and nobody else brings it there."""
    sender = fan_out(limited(policy, publisher_buffer=4))
    for number in range(1, 9):
        sender.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            sender.on_ack(broker, ack(number, settled=2))
    assert sender.base == 3
    for broker in (B1, B2, B3):
        sender.on_ack(broker, ack(8, settled=8))
    assert sender.base > 3


def test_fan_out_lying_acks_do_not_make_it_send_everything_again_and_again() -> None:
    """A broker that takes back what it acknowledged is served from the tick on, in bursts."""
    sender = fan_out()
    for number in range(1, 201):
        sender.submit(bodies(number, 1))
    sender.on_ack(B4, ack(200))
    effects: list[Effect] = []
    for _ in range(20):
        effects += sender.on_ack(B4, ack(0, 0))
        effects += sender.on_ack(B4, ack(0, 2**62))
        effects += sender.on_ack(B4, ack(200, 2**62))
    assert len(sent(effects)) <= 200
    sender.on_ack(B4, ack(0))
    ticks = [len([s for s in sent(sender.tick()) if s.to == (B4,)]) for _ in range(2)]
    assert ticks == [REPEAT_BURST, 0]


def repeating(sender: FanOutSender, kind: type = Publish) -> list[int]:
    """The runs that a slow broker gets again in one tick."""
    for number in range(1, 201):
        sender.submit(bodies(number, 1))
    return firsts(sender.tick(), kind)


def test_fan_out_repeats_go_on_only_as_they_are_acknowledged() -> None:
    """A broker that was only slow acknowledges all of it, one by one, and gets nothing twice."""
    sender = fan_out(up=(B4,))
    assert repeating(sender) == list(range(1, REPEAT_BURST + 1))
    assert not [e for upto in range(1, REPEAT_BURST) for e in sent(sender.on_ack(B4, ack(upto)))]
    following = list(range(REPEAT_BURST + 1, 2 * REPEAT_BURST + 1))
    assert firsts(sender.on_ack(B4, ack(REPEAT_BURST))) == following
    assert firsts(sender.on_ack(B4, ack(200))) == []


def test_fan_out_repeats_are_bounded_in_bytes() -> None:
    sender = fan_out(up=(B4,))
    for _ in range(8):
        sender.submit((bytes(REPEAT_BYTES // 2),))
    assert firsts(sender.tick()) == [1, 2, 3]


def test_fan_out_bracha_broker_is_sent_so_many_runs_before_it_has_delivered_the_first() -> None:
    sender = fan_out(Policy.named("brb"), up=(B1,))
    runs = range(1, RUNS_UNDER_WAY + 9)
    sent_first = [first for n in runs for first in firsts(sender.submit(bodies(n, 1))[1])]
    assert sent_first == list(runs[:RUNS_UNDER_WAY])
    assert firsts(sender.on_ack(B1, ack(RUNS_UNDER_WAY, settled=5))) == list(runs[-8:-3])
    sender.on_ack(B1, ack(RUNS_UNDER_WAY + 5, settled=5))
    # The word on what was delivered may have got lost: it is asked for, and nothing is repeated.
    assert [type(s.message) for _ in range(2) for s in sent(sender.tick())] == [Open]


def test_chain_out_repeats_go_on_only_as_the_whole_chain_acknowledges_them() -> None:
    sender = chain_out()
    assert repeating(sender, ChainRun) == list(range(1, REPEAT_BURST + 1))
    for broker in sender.order[:-1]:
        assert firsts(sender.on_ack(broker, ack(REPEAT_BURST)), ChainRun) == []
    following = list(range(REPEAT_BURST + 1, 2 * REPEAT_BURST + 1))
    assert firsts(sender.on_ack(sender.order[-1], ack(REPEAT_BURST)), ChainRun) == following


# ---------------------------------------------------------------- ChainSender


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
    sender = chain_out()
    sender.on_ack(B3, ack(0, 1))
    assert sender.submit((b"a", b"b"))[1] == []
    assert firsts(sender.on_ack(B3, ack(0, 2)), ChainRun) == [1]


def test_chain_out_acknowledged_when_the_whole_chain_holds_it() -> None:
    sender = chain_out()
    sender.submit((b"a",))
    assert sender.on_ack(B1, ack(1)) == []
    assert sender.on_ack(B2, ack(1)) == []
    assert sender.on_ack(B3, ack(1)) == [Acknowledged(STREAM, 1)]


def test_chain_out_first_stall_repeats_the_second_changes_the_chain() -> None:
    sender = chain_out()
    sender.submit((b"a",))
    sender.on_ack(B1, ack(1))
    assert firsts(sender.tick(), ChainRun) == [1]
    assert sender.order == (B1, B2, B3)
    effects = sender.tick()
    assert sender.order != (B1, B2, B3)
    assert firsts(effects, ChainRun) == [1]
    assert suspects(effects) == []


SILENCE = MOST_SILENCE_MS // TICK_MS


def blamed(sender: ChainSender, *answering: NodeId, ticks: int = SILENCE + 4) -> list[Suspect]:
    """The suspicions of so many ticks, before each of which these brokers answer again."""
    effects: list[Effect] = []
    for _ in range(ticks):
        effects += sender.tick()
        for broker in answering:
            sender.on_ack(broker, ack(1))
    return [effect for effect in effects if isinstance(effect, Suspect)]


def test_chain_out_broker_next_to_a_break_that_never_answers_is_suspected() -> None:
    sender = chain_out()
    sender.submit((b"a",))
    sender.on_ack(B1, ack(1))
    sender.on_ack(B2, ack(1))
    assert sender.tick()
    sender.tick()
    assert sender.order == (B1, B2, B4), "of equals the one further down stands aside"
    sender.on_ack(B4, ack(1))
    assert sender.acknowledged == 1
    assert sender.watches
    assert blamed(sender, B2) == [Suspect(B3, Suspicion.BROKEN_CHAIN, STREAM, 1, (B2, B3))]
    assert not sender.watches


def test_chain_out_broker_that_was_only_slow_is_not_suspected() -> None:
    """b3 is stopped for a second: the chain changes, and nobody is to blame."""
    sender = chain_out()
    sender.submit((b"a",))
    sender.on_ack(B1, ack(1))
    sender.on_ack(B2, ack(1))
    assert blamed(sender, B1, B2, ticks=4) == []
    assert sender.order != (B1, B2, B3)
    assert blamed(sender, *BROKERS) == []


def broken_twice_behind_b1() -> ChainSender:
    sender = chain_out()
    sender.submit((b"a",))
    sender.on_ack(B1, ack(1))
    for _ in range(4):
        assert suspects(sender.tick()) == []
        for broker in BROKERS:
            sender.on_ack(broker, ack(int(broker == B1)))
    assert B1 not in sender.order
    return sender


def test_chain_out_broker_without_which_the_chain_works_at_once_is_suspected() -> None:
    sender = broken_twice_behind_b1()
    for broker in sender.order:
        sender.on_ack(broker, ack(1))
    assert sender.watches
    assert suspects(sender.tick()) == [B1]
    assert not sender.watches


def test_chain_out_nobody_is_suspected_if_other_chains_stall_as_well() -> None:
    """All brokers are slow."""
    sender = broken_twice_behind_b1()
    for _ in range(4):
        sender.tick()
        for broker in BROKERS:
            sender.on_ack(broker, ack(int(broker == B1)))
    for broker in BROKERS:
        sender.on_ack(broker, ack(1))
    assert suspects(sender.tick()) == []


def test_chain_out_broker_that_acknowledges_on_another_stream_is_not_silent() -> None:
    heard = {B3: 1}
    sender = ChainSender(STREAM, Cell(CHAIN).view(ALICE), CHAIN, heard=heard)
    answer(sender, BROKERS, FAR)
    sender.submit((b"a",))
    sender.on_ack(B1, ack(1))
    sender.on_ack(B2, ack(1))
    sender.tick()
    sender.tick()
    heard[B3] += 1
    sender.on_ack(B4, ack(1))
    assert blamed(sender, B2) == []


def test_chain_out_ticks_that_come_late_are_no_stall() -> None:
    """What brokers sent in time waits unread: it is the publisher that is late."""
    sender = chain_out()
    sender.submit((b"a",))
    assert [sender.tick(LATE_MS + 1) for _ in range(40)] == [[]] * 40
    assert sender.order == (B1, B2, B3)


def test_chain_out_patience_follows_the_stalls_that_were_measured() -> None:
    sender = chain_out()
    order = sender.order
    for number in range(1, 5):
        sender.submit((b"a",))
        for broker in BROKERS[:2]:
            sender.on_ack(broker, ack(number))
        sender.tick()
        sender.on_ack(B3, ack(number))
        assert sender.tick() == []
        assert sender.order == order
    sender.submit((b"b",))
    assert len([sender.tick() for _ in range(4) if sender.order == order]) > 2


def culprits(sender: ChainSender) -> set[tuple[NodeId, ...]]:
    """Among whom the brokers next to the last break are."""
    return {charge.among for charge in sender._charges.values()}


def test_chain_out_who_had_a_run_before_may_not_have_got_it_by_this_chain() -> None:
    """b4 is new to the chain and lacks what b1 and b2 had: b1 may keep the repetition from b2."""
    sender = chain_out()
    sender.submit((b"a",))
    for broker in (B1, B2):
        sender.on_ack(broker, ack(1))
    sender.tick()
    sender.tick()
    assert sender.order == (B1, B2, B4)
    sender.tick()
    sender.tick()
    assert culprits(sender) == {(B2, B3), (B1, B2, B4)}


def test_chain_out_histories_bring_what_chains_do_not() -> None:
    """That b2 has it does not say that b1 passed it on."""
    policy = Policy.named("chain+history")
    view = Cell(policy).view(ALICE)
    histories = HistorySender(STREAM.history, view, policy)
    sender = ChainSender(STREAM, view, policy, histories)
    answer(sender, BROKERS, FAR)
    sender.submit((b"a",))
    for broker in (B1, B2):
        sender.on_ack(broker, ack(1))
    sender.tick()
    sender.tick()
    assert culprits(sender) == {(B1, B2, B3)}


def test_chain_out_what_subscribers_missed_changes_the_chain_and_makes_no_suspect() -> None:
    """Histories overtake the votes of a last broker on a slow link."""
    sender = chain_out()
    sender.submit((b"a", b"b", b"c"))
    sender.on_ack(B1, ack(3, missed=3))
    assert suspects(sender.on_ack(B2, ack(3, missed=3))) == []
    assert sender.order == (B1, B2, B4)


def test_chain_out_points_accumulate_until_the_dropper_stands_aside() -> None:
    """b2 takes everything and passes nothing on, whoever comes after it."""
    sender = chain_out()
    sender.submit((b"a",))
    for _ in range(12):
        place = sender.order.index(B2) if B2 in sender.order else 2
        for broker in sender.order[: place + 1]:
            sender.on_ack(broker, ack(1))
        sender.tick()
    assert sender.order == (B1, B3, B4)
    assert sender.acknowledged == 1


def test_chain_out_disconnected_broker_alone_is_blamed() -> None:
    sender = chain_out()
    sender.submit((b"a",))
    sender.on_ack(B1, ack(1))
    sender.disconnected(B3)
    assert blamed(sender, B1, B2, B4) == [Suspect(B3, Suspicion.BROKEN_CHAIN, STREAM, 1)]
    assert sender.order == (B1, B2, B4)


def test_chain_out_broker_that_gives_too_little_credit_stands_aside() -> None:
    """One liar answers, and acknowledges, but never gives credit for a whole run."""
    sender = chain_out()
    for broker in BROKERS:
        sender.on_ack(broker, ack(0, 1 if broker == B3 else FAR))
    assert sender.submit((b"a", b"b"))[1] == []
    sender.tick()
    effects = sender.tick()
    assert sender.order == (B1, B2, B4)
    assert firsts(effects, ChainRun) == [1]


def test_chain_out_nobody_is_blamed_when_more_than_f_are_short_of_credit() -> None:
    """All correct brokers wait for a history: that is no break of the chain."""
    sender = chain_out(limited("chain+history"))
    sender.submit(bodies(1, 2))
    sender.submit(bodies(3, 2))
    for broker in (B1, B2, B3):
        sender.on_ack(broker, ack(4, 4))
    sender.submit(bodies(5, 2))
    assert [suspects(sender.tick()) for _ in range(8)] == [[]] * 8


def test_chain_out_missed_told_by_f_brokers_changes_nothing() -> None:
    sender = chain_out()
    sender.submit((b"a",))
    assert suspects(sender.on_ack(B4, ack(0, missed=2**62))) == []
    assert sender.order == (B1, B2, B3)


def test_chain_out_missed_told_by_f_plus_1_brokers_changes_the_chain_once() -> None:
    sender = chain_out()
    sender.submit((b"a",))
    sender.on_ack(B4, ack(0, missed=1))
    sender.on_ack(B1, ack(0, missed=1))
    assert sender.order == (B1, B2, B4)
    sender.on_ack(B2, ack(0, missed=1))
    assert sender.order == (B1, B2, B4)


def test_chain_out_broker_new_to_the_chain_is_introduced_to_the_buffer() -> None:
    sender = chain_out(limited("chain", publisher_buffer=4))
    for number in range(1, 9):
        sender.submit(bodies(number, 1))
        for broker in (B1, B2, B3):
            sender.on_ack(broker, ack(number))
    sender.submit(bodies(9, 1))
    sender.disconnected(B2)
    sender.tick()
    sender.tick()
    effects = sender.tick()
    assert sender.order == (B1, B3, B4)
    assert sent(effects, Open)[:1] == [Send((B4,), Open(STREAM, sender.base, 1))]


def test_chain_out_chain_is_drawn_from_3f_plus_1_only() -> None:
    """Two chains of 2f+1 out of 3f+1 share a correct broker; with a fifth one they may not."""
    view = Cell(CHAIN, n=5).view(ALICE)
    sender = ChainSender(STREAM, view, CHAIN)
    answer(sender, view.brokers, FAR)
    sender.submit((b"a",))
    seen = set()
    for _ in range(40):
        sender.tick()
        seen.add(sender.order)
    assert len(seen) > 1
    assert {broker for order in seen for broker in order} <= set(BROKERS)


# ------------------------------------------------------------------ the buffer


def test_fan_out_keeps_no_more_than_its_buffer_for_brokers_that_are_slow() -> None:
    sender = fan_out(limited("ab", publisher_buffer=8))
    for number in range(1, 5):
        sender.submit(bodies(number, 1))
    for broker in (B1, B2, B3):
        sender.on_ack(broker, ack(4))
    assert sender.sizes()["runs"] == 4  # for the one that is slow
    assert sender.room == 8
    for number in range(5, 13):
        sender.submit(bodies(number, 1))
    assert (sender.room, sender.sizes()["runs"], sender.base) == (0, 8, 5)


def test_fan_out_has_no_room_for_ever_more_that_is_acknowledged_and_not_settled() -> None:
    """One broker is slow, and another lies about what is settled."""
    sender = fan_out(limited("brb", publisher_buffer=4))
    number = 0
    while sender.room > 0:
        number += 1
        sender.submit(bodies(number, 1))
        for broker in (B1, B2):
            sender.on_ack(broker, ack(number, settled=number))
        sender.on_ack(B3, ack(number))
    assert (number, sender.sizes()["runs"]) == (8, 8)
    effects = sender.on_ack(B4, ack(8, settled=8))
    assert Acknowledged(STREAM, 8) in effects  # whoever waits for room is told
    assert sender.room == 4


def test_chain_out_that_rewound_and_has_no_credit_has_reached_what_is_acknowledged() -> None:
    """Otherwise no history would name it: nobody asks for what the whole chain has."""
    sender = chain_out()
    sender.submit((b"a",))
    sender.submit((b"b",))
    for broker in BROKERS:
        sender.on_ack(broker, ack(1))
    sender.tick()
    sender.on_ack(sender.order[0], ack(1, credit=0))
    sender.tick()
    assert sender.reach == 1
    for broker in BROKERS:
        sender.on_ack(broker, ack(2, credit=0))
    assert (sender.acknowledged, sender.reach) == (2, 2)
