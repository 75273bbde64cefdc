"""Bracha's broadcast at a broker (Freeman, algorithm 5), n = 4 and f = 1 unless said otherwise.

b1 is the machine under test: echo quorum 3, ready at 2 readies, delivered at 3.
"""

from __future__ import annotations

import pytest
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    BRB,
    LANE,
    STREAM,
    T0,
    Cell,
    bodies,
    contents,
    digests,
    feed,
    limited,
    messages,
    publish,
    reasons,
    sent,
    suspects,
)

from quorumcast.broadcast.bracha import RETRY_MS, Bracha
from quorumcast.broadcast.contract import RetransmitRuns, Vouch
from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Open, Publish, Pull, Ready
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import (
    Drop,
    DropReason,
    Effect,
    Receive,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    TimerFired,
)
from quorumcast.crypto.digest import root
from quorumcast.manifest.policy import Policy

PEERS = (B2, B3, B4)
RETRY = SetTimer(RetransmitRuns(STREAM), RETRY_MS)
FIRED = TimerFired(RetransmitRuns(STREAM))


def bracha(policy: Policy = BRB) -> Bracha:
    return Bracha(STREAM, Cell(policy).around())


def run(first: int, *contents: bytes) -> bytes:
    return root(first, digests(*contents))


def echo(sender: NodeId, first: int, *of: bytes) -> Receive:
    return Receive(sender, Echo(STREAM, first, run(first, *of)))


def ready(sender: NodeId, first: int, *of: bytes) -> Receive:
    return Receive(sender, Ready(STREAM, first, run(first, *of)))


def through(broker: Bracha, first: int, *of: bytes) -> list[Effect]:
    """A run is published to b1 and every other broker does its part."""
    return feed(
        broker.handle,
        publish(first, *of),
        *(echo(peer, first, *of) for peer in PEERS),
        *(ready(peer, first, *of) for peer in PEERS),
    )


# ------------------------------------------------------------------ SEND


def test_bracha_first_send_is_echoed_to_all_others() -> None:
    """Algorithm 5, lines 7–11."""
    assert bracha().handle(publish(1, b"a"), T0) == [
        Send(PEERS, Echo(STREAM, 1, run(1, b"a"))),
        RETRY,
    ]


def test_bracha_second_send_is_not_echoed_again() -> None:
    """Algorithm 5, line 8."""
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    assert broker.handle(publish(1, b"a"), T0) == [Drop(DropReason.DUPLICATE, ALICE)]


def test_bracha_other_send_for_a_number_is_refused_and_suspected() -> None:
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    assert broker.handle(publish(1, b"b"), T0) == [
        Drop(DropReason.CONFLICT, ALICE),
        Suspect(ALICE, Suspicion.EQUIVOCATION, STREAM, 1),
    ]


def test_bracha_other_send_for_a_delivered_number_is_refused_and_suspected() -> None:
    broker = bracha()
    through(broker, 1, b"a")
    assert reasons(broker.handle(publish(1, b"b"), T0)) == [DropReason.CONFLICT]
    assert reasons(broker.handle(publish(1, b"a"), T0)) == [DropReason.DUPLICATE]


def test_bracha_send_inside_a_run_that_was_echoed_is_not_echoed() -> None:
    """A correct broker's echoes never overlap: that is what keeps two runs from overlapping."""
    broker = bracha()
    broker.handle(publish(1, b"a", b"b", b"c"), T0)
    assert sent(broker.handle(publish(2, b"x"), T0)) == []
    assert sent(broker.handle(publish(3, b"c", b"d"), T0)) == []


def test_bracha_send_out_of_turn_or_by_another_is_dropped() -> None:
    broker = bracha()
    assert broker.handle(publish(2, b"b"), T0) == [Drop(DropReason.OUT_OF_TURN, ALICE)]
    assert broker.handle(publish(1, b"a", sender=B2), T0) == [Drop(DropReason.WRONG_SENDER, B2)]
    assert broker.sizes()["instances"] == 0


def test_bracha_send_with_a_wrong_body_is_dropped() -> None:
    event = Receive(ALICE, publish(1, b"a").message, (b"b",))
    assert bracha().handle(event, T0) == [Drop(DropReason.BAD_BODY, ALICE)]


def test_bracha_sends_are_pipelined_before_the_first_is_delivered() -> None:
    broker = bracha()
    effects = feed(broker.handle, publish(1, b"a"), publish(2, b"b"))
    assert [m.first for m in messages(effects, Echo) if isinstance(m, Echo)] == [1, 2]
    assert broker.upto == 2


# ------------------------------------------------------------------ ECHO


def test_bracha_echoes_one_below_the_quorum_are_not_enough() -> None:
    """Algorithm 5, line 16: more than (n+f)/2, that is 3 of 4 with our own."""
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    assert broker.handle(echo(B2, 1, b"a"), T0) == []


def test_bracha_quorum_of_echoes_makes_it_ready_and_vouch() -> None:
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    broker.handle(echo(B2, 1, b"a"), T0)
    assert broker.handle(echo(B3, 1, b"a"), T0) == [
        Send(PEERS, Ready(STREAM, 1, run(1, b"a"))),
        Vouch(STREAM, 1, digests(b"a")),
    ]


def test_bracha_quorum_of_echoes_is_reported_once() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), echo(B2, 1, b"a"), echo(B3, 1, b"a"))
    assert broker.handle(echo(B4, 1, b"a"), T0) == []


def test_bracha_repeated_echo_counts_once() -> None:
    """Algorithm 5, line 14."""
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), echo(B2, 1, b"a"))
    assert broker.handle(echo(B2, 1, b"a"), T0) == [Drop(DropReason.DUPLICATE, B2)]


def test_bracha_second_echo_for_another_run_is_suspected_and_not_counted() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), echo(B2, 1, b"b"), echo(B3, 1, b"a"))
    assert broker.handle(echo(B2, 1, b"a"), T0) == [
        Drop(DropReason.CONFLICT, B2),
        Suspect(B2, Suspicion.EQUIVOCATION, STREAM, 1),
    ]


def test_bracha_echo_of_a_client_is_refused() -> None:
    assert bracha().handle(echo(BOB, 1, b"a"), T0) == [Drop(DropReason.WRONG_SENDER, BOB)]


def test_bracha_larger_cell_needs_the_larger_quorum() -> None:
    """n = 5, f = 1: ⌈(n+f+1)/2⌉ = 4; with 2f+1 = 3 two runs could both gather enough."""
    broker = Bracha(STREAM, Cell(BRB, n=5).around())
    feed(broker.handle, publish(1, b"a"), echo(B2, 1, b"a"))
    assert sent(broker.handle(echo(B3, 1, b"a"), T0), Ready) == []
    assert len(sent(broker.handle(echo(B4, 1, b"a"), T0), Ready)) == 1


# ----------------------------------------------------------------- READY


def test_bracha_f_readies_are_not_enough_to_join() -> None:
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    assert broker.handle(ready(B2, 1, b"a"), T0) == []


def test_bracha_f_plus_1_readies_make_it_join() -> None:
    """Algorithm 5, lines 24–27, before any echo has come."""
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), ready(B2, 1, b"a"))
    assert broker.handle(ready(B3, 1, b"a"), T0) == [
        Send(PEERS, Ready(STREAM, 1, run(1, b"a"))),
        Vouch(STREAM, 1, digests(b"a")),
    ]


def test_bracha_two_readies_are_not_delivered_three_are() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), echo(B2, 1, b"a"), echo(B3, 1, b"a"))
    broker.handle(ready(B2, 1, b"a"), T0)
    assert (broker.settled, broker.final, broker.sizes()["instances"]) == (0, 0, 1)
    broker.handle(ready(B3, 1, b"a"), T0)
    assert (broker.settled, broker.final, broker.sizes()["instances"]) == (1, 1, 0)


def test_bracha_repeated_and_conflicting_readies_do_not_count() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), ready(B2, 1, b"a"))
    assert reasons(broker.handle(ready(B2, 1, b"a"), T0)) == [DropReason.DUPLICATE]
    assert broker.handle(ready(B2, 1, b"b"), T0) == [
        Drop(DropReason.CONFLICT, B2),
        Suspect(B2, Suspicion.EQUIVOCATION, STREAM, 1),
    ]
    assert broker.handle(ready(BOB, 1, b"a"), T0) == [Drop(DropReason.WRONG_SENDER, BOB)]
    assert broker.ledger.next == 1


def test_bracha_readies_for_two_runs_do_not_add_up() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), ready(B2, 1, b"a"))
    assert sent(broker.handle(ready(B3, 1, b"b"), T0)) == []


def test_bracha_late_ready_for_a_delivered_run_is_normal_and_a_second_one_is_not() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), *(echo(peer, 1, b"a") for peer in PEERS))
    feed(broker.handle, ready(B2, 1, b"a"), ready(B3, 1, b"a"))
    assert broker.handle(ready(B4, 1, b"a"), T0) == []
    for peer in (B2, B4):
        assert reasons(broker.handle(ready(peer, 1, b"a"), T0)) == [DropReason.DUPLICATE]


def test_bracha_late_echo_for_a_delivered_run_is_answered_only_when_it_is_repeated() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), echo(B2, 1, b"a"), echo(B3, 1, b"a"))
    feed(broker.handle, ready(B2, 1, b"a"), ready(B3, 1, b"a"))
    assert broker.handle(echo(B4, 1, b"a"), T0) == []
    for peer in (B2, B4):
        again = broker.handle(echo(peer, 1, b"a"), T0)
        assert again == [Send((peer,), Ready(STREAM, 1, run(1, b"a")))]


def test_bracha_runs_are_vouched_for_in_order() -> None:
    broker = bracha()
    feed(broker.handle, publish(1, b"a"), publish(2, b"b"))
    later = feed(broker.handle, *(ready(peer, 2, b"b") for peer in PEERS))
    assert [e for e in later if isinstance(e, Vouch)] == []
    effects = feed(broker.handle, *(ready(peer, 1, b"a") for peer in (B2, B3)))
    assert [e for e in effects if isinstance(e, Vouch)] == [
        Vouch(STREAM, 1, digests(b"a")),
        Vouch(STREAM, 2, digests(b"b")),
    ]
    broker.handle(ready(B4, 1, b"a"), T0)
    assert broker.settled == 2


# -------------------------------------------------------------- contents


def skipped() -> tuple[Bracha, list[Effect]]:
    """A broker that the publisher left out learns of the run by two readies."""
    broker = bracha()
    return broker, feed(broker.handle, ready(B2, 1, b"a", b"b"), ready(B3, 1, b"a", b"b"))


def test_bracha_skipped_broker_pulls_the_contents_and_says_nothing_before_it_has_them() -> None:
    _, effects = skipped()
    assert sent(effects) == [Send((B2,), Pull(STREAM, 1, MAX_RUN))]


def test_bracha_broker_that_is_behind_its_publisher_pulls_nothing_that_is_on_its_way() -> None:
    """On a busy machine a broker that was late pulled every run besides, and was later still."""
    broker = bracha()
    broker.handle(publish(1, b"x"), T0)
    late = feed(broker.handle, ready(B2, 2, b"a", b"b"), ready(B3, 2, b"a", b"b"))
    assert sent(late) == []
    effects = broker.handle(publish(2, b"a", b"b"), T0)
    assert messages(effects, Ready) == [Ready(STREAM, 2, run(2, b"a", b"b"))]
    feed(broker.handle, ready(B2, 4, b"c"), ready(B3, 4, b"c"))
    late = [e for _ in range(3) for e in broker.handle(TimerFired(RetransmitRuns(STREAM)), T0)]
    assert Pull(STREAM, 4, MAX_RUN) in messages(late, Pull)


def test_bracha_skipped_broker_repeats_nothing_that_it_has_not_said() -> None:
    broker, _ = skipped()
    effects = [e for _ in range(2) for e in broker.handle(TimerFired(RetransmitRuns(STREAM)), T0)]
    assert sent(effects) == [Send((B3,), Pull(STREAM, 1, MAX_RUN))]


def test_bracha_pulled_contents_are_echoed_and_vouched_for() -> None:
    broker, _ = skipped()
    assert broker.handle(contents(B2, 1, b"a", b"b"), T0) == [
        Send(PEERS, Echo(STREAM, 1, run(1, b"a", b"b"))),
        Send(PEERS, Ready(STREAM, 1, run(1, b"a", b"b"))),
        Vouch(STREAM, 1, digests(b"a", b"b")),
    ]


def test_bracha_skipped_broker_that_the_publisher_reaches_late_is_ready() -> None:
    broker, _ = skipped()
    effects = broker.handle(publish(1, b"a", b"b"), T0)
    assert [type(effect.message) for effect in sent(effects)] == [Echo, Ready]


def test_bracha_publisher_that_denies_what_the_cell_decided_is_suspected() -> None:
    broker, _ = skipped()
    assert broker.handle(publish(1, b"x"), T0) == [
        Drop(DropReason.CONFLICT, ALICE),
        Suspect(ALICE, Suspicion.EQUIVOCATION, STREAM, 1),
    ]


def test_bracha_pulled_contents_of_another_run_are_dropped_without_suspicion() -> None:
    """A correct broker may have been sent another run by a lying publisher."""
    broker, _ = skipped()
    assert broker.handle(contents(B2, 1, b"x"), T0) == [Drop(DropReason.BAD_RUN, B2)]


def test_bracha_pulled_contents_with_a_wrong_body_are_suspected() -> None:
    broker, _ = skipped()
    assert broker.handle(contents(B2, 1, b"a", b"x", named=digests(b"a", b"b")), T0) == [
        Drop(DropReason.BAD_BODY, B2),
        Suspect(B2, Suspicion.BAD_BODY, STREAM, 1),
    ]


def test_bracha_contents_that_nobody_asked_for_are_dropped() -> None:
    broker = bracha()
    assert reasons(broker.handle(contents(B2, 1, b"a"), T0)) == [DropReason.DUPLICATE]
    broker.handle(publish(1, b"a"), T0)
    assert reasons(broker.handle(contents(B2, 1, b"b"), T0)) == [DropReason.DUPLICATE]


def test_bracha_run_that_f_plus_1_others_echo_is_echoed_without_the_publisher() -> None:
    """The publisher crashed when n-f brokers had acknowledged the run, one of them a liar."""
    broker = bracha()
    feed(broker.handle, echo(B2, 1, b"a"), echo(B3, 1, b"a"))
    broker.handle(FIRED, T0)
    assert messages(broker.handle(FIRED, T0), Pull) == [Pull(STREAM, 1, MAX_RUN)]
    effects = broker.handle(contents(B2, 1, b"a"), T0)
    assert sent(effects, Echo) == [Send(PEERS, Echo(STREAM, 1, run(1, b"a")))]
    assert messages(effects, Ready) == [Ready(STREAM, 1, run(1, b"a"))]
    assert suspects(broker.handle(publish(1, b"b"), T0)) == [ALICE]


@pytest.mark.parametrize(
    ("first", "heard"),
    [
        (1, (echo(B2, 1, b"a"),)),
        (1, (echo(B2, 1, b"a"), echo(B3, 1, b"b"))),
        (2, (echo(B2, 2, b"a"), echo(B3, 2, b"a"))),
        (1, (publish(1, b"b"), echo(B2, 1, b"a"), echo(B3, 1, b"a"))),
    ],
    ids=["f echoes", "different echoes", "not the next run", "another from the publisher"],
)
def test_bracha_run_by_hearsay_is_not_echoed_if(first: int, heard: tuple[Receive, ...]) -> None:
    broker = bracha()
    feed(broker.handle, *heard)
    assert reasons(broker.handle(contents(B2, first, b"a"), T0)) == [DropReason.DUPLICATE]
    assert broker.sizes()["instance_bytes"] == sum(isinstance(e.message, Publish) for e in heard)


def test_bracha_history_by_hearsay_is_not_echoed() -> None:
    """A broker echoes a history only if it agrees with what the broker forwarded."""
    broker = Bracha(LANE, Cell(BRB).around())
    for peer in (B2, B3):
        broker.handle(Receive(peer, Echo(LANE, 1, run(1, b"a"))), T0)
    passed_on = contents(B2, 1, b"a", stream=LANE)
    assert reasons(broker.handle(passed_on, T0)) == [DropReason.DUPLICATE]


def test_bracha_pull_again_goes_to_another_source() -> None:
    broker, _ = skipped()
    broker.handle(FIRED, T0)  # the run has been waiting for less than an interval
    assert [s.to for s in sent(broker.handle(FIRED, T0), Pull)] == [(B3,)]


def test_bracha_pull_is_answered_by_an_echoer_and_by_one_that_is_done() -> None:
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    answer = Send((B4,), Contents(STREAM, 1, digests(b"a")), (b"a",))
    assert broker.handle(Receive(B4, Pull(STREAM, 1, MAX_RUN)), T0) == [answer]
    through(broker, 1, b"a")
    assert broker.handle(Receive(B4, Pull(STREAM, 1, MAX_RUN)), T0) == [
        Send((B4,), Ready(STREAM, 1, run(1, b"a"))),
        answer,
    ]


def test_bracha_pull_of_the_unknown_or_by_a_client_is_dropped() -> None:
    broker = bracha()
    assert reasons(broker.handle(Receive(B4, Pull(STREAM, 1, 1)), T0)) == [DropReason.NOT_HELD]
    assert reasons(broker.handle(Receive(BOB, Pull(STREAM, 1, 1)), T0)) == [DropReason.WRONG_SENDER]


# ----------------------------------------------------------------- retry


def test_bracha_stuck_run_is_repeated_after_a_whole_interval() -> None:
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    assert broker.handle(FIRED, T0) == [RETRY]
    assert broker.handle(FIRED, T0) == [
        Send(PEERS, Echo(STREAM, 1, run(1, b"a"))),
        Send((B2,), Pull(STREAM, 1, MAX_RUN)),
        RETRY,
    ]


def test_bracha_nothing_under_way_sets_no_timer() -> None:
    broker = bracha()
    through(broker, 1, b"a")
    assert broker.handle(FIRED, T0) == []


def test_bracha_done_broker_answers_a_stragglers_echo_with_its_ready() -> None:
    broker = bracha()
    through(broker, 1, b"a")
    assert broker.handle(echo(B4, 1, b"a"), T0) == [Send((B4,), Ready(STREAM, 1, run(1, b"a")))]


def test_bracha_broker_that_missed_a_run_altogether_asks_how_it_ended() -> None:
    """Every echo and ready of run 1 was lost on a broken link; only run 2 is heard of.

    The publisher left this broker out, so nobody but its peers can help, and they are done.
    """
    broker = bracha()
    feed(broker.handle, *(ready(peer, 2, b"b") for peer in PEERS), contents(B2, 2, b"b"))
    broker.handle(FIRED, T0)  # run 2 has not waited for long yet
    broker.handle(FIRED, T0)  # nor has run 1, of which we know only that it must exist
    asked = messages(broker.handle(FIRED, T0), Pull)
    assert 1 in [pull.first for pull in asked if isinstance(pull, Pull)]
    feed(broker.handle, ready(B2, 1, b"a"), ready(B3, 1, b"a"), contents(B2, 1, b"a"))
    assert broker.ledger.next == 3


# ------------------------------------------------------------------ open


def test_bracha_open_skips_and_forgets_what_lies_before() -> None:
    broker = bracha()
    broker.handle(echo(B2, 3, b"c"), T0)
    assert broker.handle(Receive(ALICE, Open(STREAM, 5, 1)), T0) == []
    assert (broker.upto, broker.settled, broker.sizes()["instances"]) == (4, 4, 0)
    assert broker.handle(Receive(B2, Open(STREAM, 9, 1)), T0) == [Drop(DropReason.WRONG_SENDER, B2)]


def test_bracha_message_of_another_protocol_is_unexpected() -> None:
    event = Receive(B2, ChainRun(STREAM, 1, digests(b"a"), (), ()))
    assert bracha().handle(event, T0) == [Drop(DropReason.UNEXPECTED, B2)]


# ------------------------------------------------------------ adversaries


def test_bracha_window_of_instances_is_bounded_against_a_flood_of_echoes() -> None:
    broker = bracha(limited("brb", window=8))
    effects = feed(broker.handle, *(echo(B2, first, b"x") for first in range(1, 100)))
    assert broker.sizes()["instances"] == 9
    assert reasons(effects) == [DropReason.OUT_OF_WINDOW] * 90


def test_bracha_done_is_bounded() -> None:
    broker = bracha(limited("brb", window=8, retained_publications=8))
    for number in range(1, 40):
        through(broker, number, *bodies(number, 1))
    assert broker.settled == 39
    assert broker.sizes() == {"ledger": 8, "instances": 0, "instance_bytes": 0, "done": 8}


def test_bracha_echo_inside_a_run_does_not_stall_the_stream() -> None:
    """A liar echoes an instance that no correct broker will ever speak of."""
    broker = bracha(limited("brb", window=8))
    for first in range(1, 200, 2):
        broker.handle(echo(B4, first + 1, b"nothing"), T0)
        feed(
            broker.handle,
            publish(first, *bodies(first, 2)),
            *(echo(peer, first, *bodies(first, 2)) for peer in (B2, B3)),
            *(ready(peer, first, *bodies(first, 2)) for peer in (B2, B3)),
        )
        assert broker.settled == first + 1
    assert broker.sizes()["instances"] == 0


def test_bracha_contents_that_are_never_delivered_are_bounded_in_bytes() -> None:
    """A lying publisher tells only this broker, with bodies as large as they may be."""
    broker = bracha(limited("brb", window=100, retained_bytes=1000))
    effects = feed(
        broker.handle, *(publish(n, bytes([n]) * 300) for n in range(1, 50)), publish(4, b"d" * 300)
    )
    assert broker.sizes()["instance_bytes"] <= 1000
    assert DropReason.OVER_LIMIT in reasons(effects)


def test_bracha_contents_pulled_ahead_of_their_turn_are_bounded_in_bytes() -> None:
    """Runs that others are ready for and this broker has lost."""
    broker = bracha(limited("brb", window=100, retained_bytes=1000))
    runs = {number: bytes([number]) * 300 for number in range(1, 9)}
    for number, body in runs.items():
        feed(broker.handle, ready(B2, number, body), ready(B3, number, body))
    effects = feed(broker.handle, *(contents(B2, n, runs[n]) for n in range(2, 9)))
    assert reasons(effects) == [DropReason.OVER_LIMIT] * 4
    assert broker.sizes()["instance_bytes"] == 900
    for number in (1, *range(5, 9)):
        feed(broker.handle, contents(B2, number, runs[number]))
    assert broker.ledger.next == 9


def test_bracha_over_its_byte_limit_it_goes_on_when_room_is_made() -> None:
    broker = bracha(limited("brb", window=100, retained_bytes=1000))
    feed(broker.handle, *(publish(n, bytes([n]) * 300) for n in range(1, 6)))
    for number in range(1, 4):
        through(broker, number, bytes([number]) * 300)
    assert broker.settled == 3
    assert broker.sizes()["instance_bytes"] == 0
    assert len(sent(broker.handle(publish(4, b"\4" * 300), T0), Echo)) == 1


@pytest.mark.parametrize("liar", PEERS)
def test_bracha_one_liar_cannot_make_it_ready_or_suspect_others(liar: NodeId) -> None:
    broker = bracha()
    effects = feed(
        broker.handle,
        *(echo(liar, 1, bytes([i])) for i in range(5)),
        *(ready(liar, 1, bytes([i])) for i in range(5)),
        contents(liar, 1, b"\0"),
        Receive(liar, Pull(STREAM, 1, MAX_RUN)),
    )
    assert sent(effects) == []
    assert set(suspects(effects)) == {liar}
    assert broker.ledger.next == 1


def test_bracha_me_is_not_among_its_peers() -> None:
    """A message in our own name that comes from outside would count our vote twice."""
    broker = bracha()
    broker.handle(publish(1, b"a"), T0)
    assert reasons(broker.handle(echo(B1, 1, b"a"), T0)) == [DropReason.DUPLICATE]
