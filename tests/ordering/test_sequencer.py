"""Whole logs: four sequencers connected in memory, one may be silent, away, or without its memory.

A message takes 10 ms, a write 2 ms; a checkpoint is made every four decisions.
"""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    CAROL,
    ORDERS,
    STREAM,
    T0,
    messages,
    reasons,
    sent,
)
from tests.support.ordering import (
    BOBS,
    TOTAL_CRASH,
    Hall,
    agree,
    item,
    labelled,
    offer,
    publish,
    said,
)

from quorumcast.broadcast.messages import Ack, Open, Outlived
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import (
    Connected,
    Drop,
    DropReason,
    Receive,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
)
from quorumcast.core.quorum import Protection
from quorumcast.ordering.leader_change import (
    CALM_MS,
    LEADER_TIMEOUT_MS,
    MAX_LEADER_TIMEOUT_MS,
)
from quorumcast.ordering.messages import (
    Accept,
    Fetch,
    LogPart,
    Offer,
    Propose,
    Standing,
    Stop,
    Sync,
    Write,
)
from quorumcast.ordering.sequencer import IDLE_TICK_MS, TICK_MS, Tick

BYZANTINE = Protection.BYZANTINE
FOUR = (B1, B2, B3, B4)


# ---------------------------------------------------------- the way of an offer


def test_offer_to_all_gets_the_same_position_everywhere() -> None:
    hall = Hall().begin()
    hall.offer(1, b"a", b"b")
    hall.offer(1, b"x", stream=BOBS)
    hall.run(100)
    assert sorted(agree(hall, *FOUR)) == [b"a", b"b", b"x"]
    assert hall.suspected() == set()


def test_offer_takes_three_message_delays_and_is_acknowledged_by_all() -> None:
    hall = Hall().begin()
    hall.seen.clear()
    hall.offer(1, b"a")
    hall.run(30)
    assert [hall.order(member) for member in FOUR] == [[b"a"]] * 4
    acks = said(hall, Ack)
    assert acks == [Ack(STREAM, 1, 1 + 1024, 1)] * 4
    kinds = [said(hall, kind) for kind in (Propose, Write, Accept)]
    assert [len(found) for found in kinds] == [1, 4, 4]


def test_offer_in_a_crash_log_takes_two_delays_and_no_writes() -> None:
    hall = Hall(TOTAL_CRASH, n=3).begin()
    hall.offer(1, b"a")
    hall.run(20)
    assert agree(hall, B1, B2, B3) == [b"a"]
    assert said(hall, Write) == []


def test_offers_that_wait_share_a_batch() -> None:
    hall = Hall(window=1).begin()
    hall.offer(1, b"a")
    for number in range(2, 30):
        hall.offer(number, b"x")
    hall.run(200)
    assert len(agree(hall, *FOUR)) == 29
    assert hall.sequencer(B1).standing().decided == 2


def test_offers_are_pipelined_within_the_window() -> None:
    hall = Hall(window=3).begin()
    for number in range(1, 7):
        hall.offer(number, b"x")
    proposed = [p.instance for p in said(hall, Propose) if isinstance(p, Propose)]
    assert proposed == [1, 2, 3]
    hall.run(100)
    assert len(agree(hall, *FOUR)) == 6


def test_offer_that_reached_one_broker_alone_is_passed_to_the_leader_and_ordered() -> None:
    """The others fetch from their peers what the publisher did not send them."""
    hall = Hall().begin()
    hall.offer(1, b"a", to=(B3,))
    hall.run(1500)
    assert agree(hall, *FOUR) == [b"a"]
    assert said(hall, Stop) == []


def test_offer_that_one_broker_alone_holds_is_passed_on_although_others_get_their_turn() -> None:
    """A publisher crashed amid an offer: no leader is to blame for what it was not shown."""
    hall = Hall().begin()
    hall.offer(1, b"a", to=(B3,))
    for number in range(1, 200):
        hall.offer(number, b"x", stream=BOBS)
        hall.run(40)
    assert agree(hall, *FOUR).index(b"a") < 50
    assert said(hall, Stop) == []
    passed = [effect for node, effect in hall.seen
              if node == B3 and isinstance(effect, Send) and isinstance(effect.message, Offer)
              and effect.to == (B1,)]  # fmt: skip
    assert len(passed) == 1, "now and then, not all the time"


def test_offer_repeated_after_it_was_ordered_is_only_acknowledged() -> None:
    hall = Hall().begin()
    hall.offer(1, b"a")
    hall.run(100)
    message, bodies = offer(hall.cell, 1, b"a")
    effects = hall.sequencer(B2).handle(Receive(ALICE, message, bodies), T0)
    assert effects[:2] == [
        Drop(DropReason.DUPLICATE, ALICE),
        Send((ALICE,), Ack(STREAM, 1, 1025, 1)),
    ]
    hall.run(500)
    assert agree(hall, *FOUR) == [b"a"]


def test_two_stories_of_one_publisher_one_is_ordered_and_it_is_suspected() -> None:
    hall = Hall().begin()
    for member, body in zip(FOUR, (b"x", b"x", b"y", b"y"), strict=True):
        hall.offer(1, body, to=(member,))
    hall.run(2000)
    assert len(agree(hall, *FOUR)) == 1
    hall.offer(2, b"z")
    hall.offer(2, b"other")
    assert Suspect(ALICE, Suspicion.EQUIVOCATION, STREAM, 2) in [e for _, e in hall.seen]


@pytest.mark.parametrize(
    "stories",
    [
        ([(1, b"x", b"y")], [(1, b"x"), (2, b"y")]),
        ([(1, b"x"), (2, b"y")], [(1, b"x", b"y")]),
        ([(1, b"x"), (2, b"y", b"z")], [(1, b"x", b"y"), (3, b"z")]),
        ([(1, b"x")], [(1, b"y")]),
    ],
    ids=["cut", "joined", "shifted", "altered"],
)
def test_story_that_a_broker_was_told_otherwise_is_had_from_the_leader_at_once(
    stories: tuple[list[tuple[int, *tuple[bytes, ...]]], list[tuple[int, *tuple[bytes, ...]]]],
) -> None:
    """Two message delays more than if it had been told the same, whatever the clock says."""
    hall = Hall().begin()
    leader, others = B1, (B2, B3, B4)
    for told, members in ((stories[1], others), (stories[0], (leader,))):
        for first, *contents in told:
            hall.offer(first, *contents, to=members)
    hall.run(70)
    expected = [body for _, *contents in stories[0] for body in contents]
    assert agree(hall, *FOUR) == expected
    asked = {e.to for _, e in hall.seen if isinstance(e, Send) and isinstance(e.message, Fetch)}
    assert asked == {(leader,)}


def test_run_that_has_not_come_yet_is_waited_for() -> None:
    hall = Hall().begin()
    hall.offer(1, b"x", to=(B1, B2, B3))
    hall.run(30)
    hall.offer(1, b"x", to=(B4,))
    hall.run(30)
    assert agree(hall, *FOUR) == [b"x"]
    assert said(hall, Fetch) == []


def test_second_story_does_not_take_the_place_of_one_that_was_voted_for() -> None:
    """A lying publisher and a lying broker: otherwise nobody could execute what was decided."""
    hall = Hall().begin()
    hall.losses.append(lambda _, to, send: isinstance(send.message, Accept))
    hall.offer(1, b"x")
    hall.run(60)  # written by all
    hall.stop(B4)
    other, bodies = offer(hall.cell, 1, b"y")
    for member in (B1, B2, B3):
        hall.happen(member, Receive(B4, other, bodies))
    hall.losses.clear()
    hall.run(4000)
    assert agree(hall, B1, B2, B3) == [b"x"]


@pytest.mark.parametrize(
    ("sender", "message", "reason"),
    [
        (BOB, Offer(STREAM, 1, item(1, b"a").digests), DropReason.WRONG_SENDER),
        (BOB, Open(STREAM, 1, 1), DropReason.WRONG_SENDER),
        (BOB, Write(BYZANTINE, 0, 1, bytes(32)), DropReason.WRONG_SENDER),
        (BOB, Stop(BYZANTINE, 1), DropReason.WRONG_SENDER),
        (B2, Vote(STREAM, 1, bytes(32)), DropReason.UNEXPECTED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_message_that_its_sender_may_not_send_is_dropped(
    sender: NodeId, message: object, reason: DropReason
) -> None:
    hall = Hall().begin()
    event = Receive(sender, message, labelled(1, b"a"))  # type: ignore[arg-type]
    assert reasons(hall.sequencer(B1).handle(event, T0)) == [reason]


def test_offer_or_proposal_without_the_right_to_publish_is_dropped() -> None:
    hall = Hall().begin()
    stream = msgspec.structs.replace(STREAM, channel="secret")
    message, bodies = offer(hall.cell, 1, b"a", stream=stream)
    found = hall.sequencer(B2).handle(Receive(ALICE, message, bodies), T0)
    assert reasons(found) == [DropReason.NO_RIGHT]
    proposal = Propose(BYZANTINE, 0, 1, (item(1, b"a", stream=stream),))
    assert reasons(hall.sequencer(B2).handle(Receive(B1, proposal), T0)) == [DropReason.NO_RIGHT]


def test_open_is_answered_with_how_far_the_stream_has_been_ordered() -> None:
    hall = Hall().begin()
    hall.offer(1, b"a")
    hall.run(100)
    found = hall.sequencer(B2).handle(Receive(ALICE, Open(STREAM, 1, 1)), T0)
    assert messages(found, Ack) == [Ack(STREAM, 1, 1025, 1)]


# ------------------------------------------------------------------ beginning


def test_nobody_proposes_before_enough_have_listened() -> None:
    hall = Hall()
    hall.offer(1, b"a")
    hall.run(2000)
    assert said(hall, Propose) == []
    hall.begin()
    hall.run(1000)
    assert agree(hall, *FOUR) == [b"a"]


@pytest.mark.parametrize("hall", [Hall(), Hall(TOTAL_CRASH, n=3)], ids=["total", "total-crash"])
def test_log_begins_although_one_broker_never_comes(hall: Hall) -> None:
    *rest, last = hall.members
    hall.stop(last)
    for one, other in combinations(rest, 2):
        hall.connect(one, other)
    hall.run(1000)
    hall.offer(1, b"a")
    hall.run(500)
    assert agree(hall, *rest) == [b"a"]


def test_log_goes_on_when_a_broker_that_came_last_is_needed_at_once() -> None:
    """A leader that had begun without it would leave it out of the first instance for ever."""
    hall = Hall(TOTAL_CRASH, n=3)
    one, other, last = hall.members
    hall.connect(one, other)
    hall.offer(1, b"a")
    hall.run(300)
    assert said(hall, Propose) == []
    hall.connect(one, last)
    hall.connect(other, last)
    hall.run(20)
    hall.stop(other)
    hall.run(1000)
    assert agree(hall, one, last) == [b"a"]


def test_idle_log_ticks_slowly_and_a_busy_one_fast() -> None:
    hall = Hall().begin()
    hall.run(2000)
    hall.seen.clear()
    hall.run(IDLE_TICK_MS)
    timers = [e for _, e in hall.seen if isinstance(e, SetTimer)]
    assert timers
    assert set(timers) == {SetTimer(Tick(BYZANTINE), IDLE_TICK_MS)}
    hall.stop(B1)
    hall.offer(1, b"a")
    hall.run(IDLE_TICK_MS + TICK_MS)
    assert SetTimer(Tick(BYZANTINE), TICK_MS) in [e for _, e in hall.seen]


# -------------------------------------------------------------- silent leaders


@pytest.mark.parametrize("durable", [False, True])
def test_silent_leader_is_replaced_and_nothing_is_lost(durable: bool) -> None:
    hall = Hall(durable=durable).begin()
    before = publish(hall, 1, 3)
    hall.stop(B1)
    hall.offer(4, b"a4")
    hall.run(3000)
    assert agree(hall, B2, B3, B4) == [*before, b"a4"]
    assert hall.sequencer(B3).leader == B2
    assert len(said(hall, Sync)) >= 1


def test_silent_leader_of_a_crash_log_is_replaced() -> None:
    hall = Hall(TOTAL_CRASH, n=3).begin()
    publish(hall, 1, 3)
    hall.stop(B1)
    hall.offer(4, b"a4")
    hall.run(3000)
    assert agree(hall, B2, B3) == [b"a1", b"a2", b"a3", b"a4"]


def test_two_silent_leaders_of_seven_are_replaced_one_after_the_other() -> None:
    hall = Hall(n=7, f=2).begin()
    hall.stop(B1)
    hall.stop(B2)
    hall.offer(1, b"a")
    hall.run(6000)
    rest = hall.members[2:]
    assert agree(hall, *rest) == [b"a"]
    assert {hall.sequencer(member).leader for member in rest} == {B3}


def test_decision_that_one_broker_alone_saw_survives_the_leader() -> None:
    """b4 hears every accept and nobody else does; then the leader dies."""
    hall = Hall().begin()
    hall.losses.append(lambda _, to, send: isinstance(send.message, Accept) and to != B4)
    hall.offer(1, b"a")
    hall.run(60)
    assert [hall.order(member) for member in FOUR] == [[], [], [], [b"a"]]
    hall.losses.clear()
    hall.stop(B1)
    hall.offer(1, b"x", stream=BOBS)
    hall.run(4000)
    assert agree(hall, B2, B3, B4) == [b"a", b"x"]
    for member in (B2, B3, B4):
        assert len(dict(hall.vouched(member))) == len(hall.vouched(member)) == 2


@pytest.mark.parametrize(
    ("hall", "ahead"), [(Hall(TOTAL_CRASH, n=3), (B1,)), (Hall(), (B1, B2))], ids=["crash", "total"]
)
def test_leader_that_crashes_ahead_of_most_is_replaced(
    hall: Hall, ahead: tuple[NodeId, ...]
) -> None:
    """The others know how far it was, and too few are left that could tell them what it decided."""
    hall.begin()
    hall.losses += [
        lambda _, to, send: isinstance(send.message, Accept | LogPart) and to not in ahead,
        lambda _, to, send: isinstance(send.message, Propose) and to == hall.members[-1],
    ]
    hall.offer(1, b"a")
    hall.run(IDLE_TICK_MS + 2 * TICK_MS)
    rest = [member for member in hall.members if member not in ahead]
    assert all(hall.order(member) == [b"a"] for member in ahead)
    assert all(hall.sequencer(member).catch_up.behind() for member in rest)
    hall.stop(B1)
    hall.losses.clear()
    hall.offer(1, b"x", stream=BOBS)
    hall.run(2 * MAX_LEADER_TIMEOUT_MS)
    assert agree(hall, *hall.members[1:]) == [b"a", b"x"]


def test_broker_that_is_behind_lets_the_leader_work() -> None:
    hall = Hall(TOTAL_CRASH, n=3).begin()
    hall.losses.append(
        lambda _, to, send: isinstance(send.message, Propose | Accept | LogPart) and to == B3
    )
    published = publish(hall, 1, 30, each_ms=TICK_MS)
    assert hall.sequencer(B3).catch_up.behind()
    hall.losses.clear()
    hall.run(1000)
    assert agree(hall, B1, B2, B3) == published
    assert said(hall, Stop) == []


def test_leader_that_leaves_out_a_publisher_is_replaced() -> None:
    hall = Hall().begin()
    hall.losses.append(
        lambda node, to, send: (
            isinstance(send.message, Offer) and send.message.stream == BOBS and to == B1
        )
    )
    hall.offer(1, b"x", stream=BOBS, to=(B2, B3, B4))
    number = 0
    while hall.order(B2).count(b"x") == 0 and number < 200:
        number += 1
        hall.offer(number, b"a")
        hall.run(100)
    assert b"x" in agree(hall, B2, B3, B4)
    assert hall.sequencer(B2).leader != B1


def test_publisher_that_leaves_out_a_number_does_not_unseat_leaders() -> None:
    hall = Hall().begin()
    hall.offer(2, b"b")
    hall.run(20_000)
    assert said(hall, Stop) == []


def test_publisher_that_signs_nothing_does_not_unseat_leaders() -> None:
    hall = Hall().begin()
    message, bodies = offer(hall.cell, 1, b"a", signer=CAROL)
    for member in FOUR:
        hall.happen(member, Receive(ALICE, message, bodies))
    hall.run(20_000)
    assert said(hall, Stop) == []
    assert agree(hall, *FOUR) == []


def test_leader_timeout_grows_while_no_leader_makes_progress() -> None:
    hall = Hall().begin()
    hall.losses.append(lambda _, to, send: isinstance(send.message, Propose | Sync))
    hall.offer(1, b"a")
    hall.run(40_000)
    moved = max(hall.sequencer(member).standing().regency for member in FOUR)
    assert 3 <= moved <= 14  # at the first pace it would be some sixty
    hall.losses.clear()
    hall.run(12_000)
    assert agree(hall, *FOUR) == [b"a"]


def slow_votes(hall: Hall, delay_ms: int) -> None:
    """Let each vote take so long, as if disks were slow."""

    def slow(sender: NodeId, reader: NodeId, send: Send) -> bool:
        is_vote = isinstance(send.message, Write | Accept)
        if is_vote:
            event = Receive(sender, send.message, send.bodies)
            hall.later(delay_ms, reader, lambda: hall.happen(reader, event))
        return is_vote

    hall.losses.append(slow)


def test_leaders_of_a_slow_cell_are_replaced_until_the_timeout_fits() -> None:
    """If each order took the timeout back, every other leader would be replaced."""
    hall = Hall().begin()
    slow_votes(hall, LEADER_TIMEOUT_MS // 2 + TICK_MS)
    published = publish(hall, 1, 20, each_ms=2 * LEADER_TIMEOUT_MS)
    hall.run(2 * LEADER_TIMEOUT_MS)
    assert agree(hall, *FOUR) == published
    assert hall.sequencer(B1).standing().regency == 1


def test_leader_timeout_is_short_again_after_calm_times() -> None:
    hall = Hall().begin()
    slow_votes(hall, LEADER_TIMEOUT_MS // 2 + TICK_MS)
    publish(hall, 1, 3, each_ms=2 * LEADER_TIMEOUT_MS)
    assert hall.sequencer(B1).leader == B2
    hall.losses.clear()
    published = 3 + 2 * CALM_MS // TICK_MS
    publish(hall, 4, published - 3, each_ms=TICK_MS)
    hall.stop(B2)
    hall.offer(published + 1, b"x")
    hall.run(LEADER_TIMEOUT_MS + 3 * TICK_MS)
    assert hall.order(B1)[-1] == b"x"


def test_offers_that_the_leader_has_proposed_are_not_forwarded() -> None:
    hall = Hall().begin()
    slow_votes(hall, LEADER_TIMEOUT_MS // 2 - TICK_MS)
    publish(hall, 1, 3)
    hall.run(LEADER_TIMEOUT_MS)
    assert len(agree(hall, *FOUR)) == 3
    assert said(hall, Offer) == []


def test_offers_are_forwarded_once_in_half_a_timeout() -> None:
    hall = Hall().begin()
    hall.losses.append(lambda _, to, send: isinstance(send.message, Offer) and to == B1)
    hall.offer(1, b"a", to=(B2, B3, B4))
    hall.run(LEADER_TIMEOUT_MS - TICK_MS // 2)
    assert len(said(hall, Offer)) == 3


# ------------------------------------------------------------------- the rest


def test_connected_peer_is_told_how_far_this_broker_is() -> None:
    hall = Hall().begin()
    publish(hall, 1, 2)
    found = sent(hall.sequencer(B1).handle(Connected(B2), T0), Standing)
    assert [send.to for send in found] == [(B2,)]
    message = found[0].message
    assert isinstance(message, Standing)
    assert (message.decided, message.fresh) == (2, False)
    assert sent(hall.sequencer(B1).handle(Connected(ALICE), T0), Standing) == []


def test_lost_messages_are_said_again_until_all_is_well() -> None:
    hall = Hall().begin()
    lost = [0]

    def every_third(node: NodeId, to: NodeId, send: Send) -> bool:
        lost[0] += 1
        return lost[0] % 3 == 0

    hall.losses.append(every_third)
    contents = publish(hall, 1, 12, each_ms=200)
    hall.run(6000)
    hall.losses.clear()
    hall.run(6000)
    assert agree(hall, *FOUR) == contents
    assert hall.suspected() == set()
    assert hall.logs[B1].stream.channel == ORDERS


def test_sequencer_earlier_life_of_a_publisher_is_told_the_latest() -> None:
    hall = Hall().begin()
    latest, earlier = Stream(ORDERS, ALICE, 100), Stream(ORDERS, ALICE, 98)
    hall.offer(1, b"late", stream=latest)
    hall.run(500)
    hall.happen(B2, Receive(ALICE, Open(earlier, 1, 1)))
    hall.happen(B2, Receive(ALICE, Open(Stream(ORDERS, ALICE, 101), 1, 1)))
    hall.happen(B2, Receive(ALICE, Open(latest, 1, 1)))
    assert said(hall, Outlived, B2) == [Outlived(earlier, 100)]
