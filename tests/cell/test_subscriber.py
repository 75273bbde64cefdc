"""The subscriber: joining, counting, pulling, refreshing, receipts. n = 4, f = 1; b4 sends bodies.

bob's source is b4 at first: subscribers are spread over the brokers by their names.
"""

from __future__ import annotations

import pytest
from tests.support.cells import (
    AB,
    ALICE,
    B1,
    B2,
    B3,
    B4,
    B5,
    BOB,
    CAROL,
    CHAIN,
    LANE,
    ORDERS,
    STREAM,
    T0,
    Cell,
    accused,
    contents,
    delivered,
    digests,
    feed,
    limited,
    messages,
    reasons,
    sent,
    suspects,
    vote,
)

from quorumcast.broadcast.acceptance import Acceptor, rule_for
from quorumcast.broadcast.application import (
    Deliver,
    DeliverGap,
    Join,
    Leave,
    Prove,
    Proven,
    Refused,
)
from quorumcast.broadcast.messages import Cursor, Open, Pull, Voucher
from quorumcast.cell.messages import (
    Attest,
    Checkpoint,
    Missed,
    Position,
    Positions,
    Refuse,
    Subscribe,
    Unsubscribe,
    Vote,
)
from quorumcast.cell.subscribing.archive import MAX_PENDING
from quorumcast.cell.subscribing.fetching import PULL_MS, PULLS_BEFORE_CHANGE, PullDue
from quorumcast.cell.subscribing.rhythm import IDLE_TICKS, QUIET_TICKS
from quorumcast.cell.subscribing.silence import (
    LEAST_SILENCE_MS,
    LEAST_STALL_MS,
    MOST_STALL_MS,
    SilenceWatch,
)
from quorumcast.cell.subscribing.subscriber import (
    ASK_SOON_MS,
    REFRESH_MS,
    AskSoon,
    Refresh,
    Subscriber,
)
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Disconnected,
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
from quorumcast.core.patience import LATE_MS
from quorumcast.core.quorum import Broadcast, Protection, Quorums
from quorumcast.core.statements import EvidenceKind
from quorumcast.crypto.digest import hasher
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)
ORDER = (B1, B2, B3)
HISTORY = limited("ab+history")
REFRESHED = TimerFired(Refresh(ORDERS))
DUE = TimerFired(PullDue(STREAM))


def positions(next_: int = 1, base: int = 1, stream: Stream = STREAM) -> Positions:
    return Positions(ORDERS, (Position(stream, base, next_),))


def subscriber(policy: Policy = AB, start: int = 1, lanes: int = 1) -> Subscriber:
    """One that follows alice's stream from a number on."""
    made = Cell(policy).subscriber()
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    held = (Position(STREAM, 1, start), Position(LANE, 1, 1))[:lanes]
    for broker in BROKERS:
        made.handle(Receive(broker, Positions(ORDERS, held)), T0)
    assert made.joined(ORDERS)
    return made


def test_subscriber_stream_whose_publisher_loses_its_right_ends_with_a_gap() -> None:
    """Whoever waits for what was there when it began must not wait for ever."""
    made = Cell(AB).subscriber()
    made.handle(Join(ORDERS, 0), T0)
    for broker in (B1, B2, B3):
        made.handle(Receive(broker, positions(10)), T0)
    assert made.ends(ORDERS) == {STREAM: 10}
    following = Cell(AB, publishers=(CAROL,))
    assert made.adopt(following.manifest, following.keyring(BOB)) == [DeliverGap(STREAM, 1, 9)]
    assert (made.ends(ORDERS), made.handle(REFRESHED, T0)) == (
        {},
        [SetTimer(Refresh(ORDERS), REFRESH_MS)],
    )


def votes(
    first: int, *run: bytes, by: tuple[NodeId, ...] = (B4, B1, B2), stream: Stream = STREAM
) -> list[Receive]:
    return [vote(broker, first, *run, full=broker == B4, stream=stream) for broker in by]


# ------------------------------------------------------------------ joining


def test_subscriber_join_asks_every_broker_and_one_for_bodies() -> None:
    made = Cell(AB).subscriber()
    for broker in BROKERS:
        assert made.handle(Connected(broker), T0) == []
    assert made.handle(Join(ORDERS), T0) == [
        *(Send((broker,), Subscribe(ORDERS, (), broker == B4)) for broker in BROKERS),
        SetTimer(Refresh(ORDERS), REFRESH_MS),
    ]
    assert made.handle(Join(ORDERS), T0) == []


def test_subscriber_broker_that_connects_later_is_asked() -> None:
    made = Cell(AB).subscriber()
    made.handle(Join(ORDERS), T0)
    assert made.handle(Connected(B2), T0) == [Send((B2,), Subscribe(ORDERS, (), True))]
    assert made.handle(Connected(B3), T0) == [Send((B3,), Subscribe(ORDERS, (), False))]
    assert made.handle(Connected(ALICE), T0) == []


def test_subscriber_unknown_channel_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="no channel 'nowhere'"):
        Cell(AB).subscriber().handle(Join(Channel("nowhere")), T0)


def test_subscriber_leave_tells_the_brokers_and_forgets() -> None:
    made = subscriber()
    assert made.handle(Leave(ORDERS), T0) == [
        Send(BROKERS, Unsubscribe(ORDERS)),
        CancelTimer(Refresh(ORDERS)),
        CancelTimer(AskSoon(ORDERS)),
    ]
    assert made.handle(Leave(ORDERS), T0) == []
    assert reasons(made.handle(vote(B1, 1, b"a"), T0)) == [DropReason.UNKNOWN_CHANNEL]
    assert not made.joined(ORDERS)
    gone = {"interests": 0, "pulling": 0, "recalled": 0, "accused": 0, "refuted": 0}
    assert made.sizes() == gone


def test_subscriber_beginning_known_asks_for_a_replay_from_there() -> None:
    made = Cell(AB).subscriber()
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    for broker in (B1, B2):
        assert made.handle(Receive(broker, positions(5)), T0) == []
    effects = made.handle(Receive(B3, positions(5)), T0)
    assert effects == [
        Send((broker,), Subscribe(ORDERS, (Cursor(STREAM, 5),), broker == B4)) for broker in BROKERS
    ]


def test_subscriber_broker_that_does_not_answer_is_asked_again() -> None:
    made = Cell(AB).subscriber()
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    made.handle(Receive(B1, positions()), T0)
    assert [s.to for s in sent(made.handle(REFRESHED, T0), Subscribe)] == [(B2,), (B3,), (B4,)]


# ------------------------------------------------------------------- voting


def test_subscriber_accepts_at_2f_plus_1_votes_and_not_before() -> None:
    made = subscriber()
    assert delivered(feed(made.handle, *votes(1, b"a", by=(B4, B1)))) == []
    assert made.handle(vote(B2, 1, b"a"), T0) == [
        Deliver(STREAM, 1, digests(b"a"), b"a", (B4, B1, B2))  # type: ignore[arg-type]
    ]


def test_subscriber_never_delivers_twice() -> None:
    made = subscriber()
    events = votes(1, b"a", b"b", by=(B4, B1, B2, B3))
    assert delivered(feed(made.handle, *events, *events)) == [(1, b"a"), (2, b"b")]


def test_subscriber_vote_of_a_client_or_on_an_unknown_channel_is_dropped() -> None:
    made = subscriber()
    assert reasons(made.handle(vote(ALICE, 1, b"a"), T0)) == [DropReason.UNKNOWN_CHANNEL]
    elsewhere = Stream(Channel("news"), ALICE, 1)
    assert reasons(made.handle(vote(B1, 1, b"a", stream=elsewhere), T0)) == [
        DropReason.UNKNOWN_CHANNEL
    ]


def test_subscriber_digests_of_a_crooked_length_are_dropped() -> None:
    crooked = Receive(B1, Vote(STREAM, 1, digests(b"a") + b"x"))
    assert reasons(subscriber().handle(crooked, T0)) == [DropReason.BAD_RUN]


def test_subscriber_order_on_a_channel_without_chains_is_dropped() -> None:
    made = subscriber()
    for stream in (STREAM, Stream(ORDERS, CAROL, 1)):
        effects = made.handle(vote(B1, 1, b"a", stream=stream, order=ORDER), T0)
        assert effects == [Drop(DropReason.BAD_CHAIN, B1)]


def test_subscriber_new_stream_is_accepted_from_the_votes_that_named_it() -> None:
    """Nothing is asked of brokers: with many streams that cost more than all publications."""
    made = subscriber()
    new = Stream(ORDERS, CAROL, 1)
    assert made.handle(vote(B1, 1, b"a", full=True, stream=new), T0) == []
    assert made.handle(vote(B2, 1, b"a", stream=new), T0) == []
    (delivery,) = made.handle(vote(B3, 1, b"a", stream=new), T0)
    assert delivery == Deliver(new, 1, digests(b"a"), b"a", (B1, B2, B3))  # type: ignore[arg-type]


def asked_soon(made: Subscriber, effects: list[Effect]) -> list[Subscribe]:
    """What brokers are asked for when the time has come for which these effects set a timer."""
    assert [e for e in effects if isinstance(e, Send | SetTimer)] == [
        SetTimer(AskSoon(ORDERS), ASK_SOON_MS)
    ]
    due = made.handle(TimerFired(AskSoon(ORDERS)), T0)
    return [e.message for e in due if isinstance(e, Send) and isinstance(e.message, Subscribe)]


def test_subscriber_new_stream_of_which_votes_were_missed_is_asked_for_alone() -> None:
    made = subscriber()
    new = Stream(ORDERS, CAROL, 1)
    assert made.handle(vote(B1, 2, b"b", stream=new), T0) == []
    asked = asked_soon(made, made.handle(vote(B2, 1, b"a", stream=new), T0))
    assert [(m.cursors, m.few) for m in asked] == [((Cursor(new, 1),), True)] * 4


def test_subscriber_stream_that_does_not_move_is_asked_for_while_others_do() -> None:
    """A lying publisher can keep a channel moving."""
    made = subscriber()
    stuck = Stream(ORDERS, CAROL, 1)
    feed(made.handle, *(vote(b, 1, b"a", stream=stuck) for b in (B1, B2)))
    asked: list[tuple[Cursor, ...]] = []
    for number in range(1, 17):
        feed(made.handle, *votes(number, b"x", by=BROKERS))
        requests = messages(made.handle(REFRESHED, T0), Subscribe)
        asked += [m.cursors for m in requests[:1]]  # type: ignore[attr-defined]
    assert asked == [(Cursor(stuck, 1),)] * 4  # 1, 2, 4 and 8 refreshes after the first


def test_subscriber_forgets_what_it_asked_for_and_what_was_reported_of_lives_that_are_over() -> (
    None
):
    made = subscriber()
    (interest,) = made._interests.values()
    for life in range(2, 200):
        new = Stream(ORDERS, ALICE, life)
        feed(made.handle, *(vote(b, 1, b"a", stream=new) for b in BROKERS))
        few = Positions(ORDERS, (Position(new, 1, 2),), few=True)
        feed(made.handle, *(Receive(b, few) for b in BROKERS))
    assert len(interest.requested) <= interest.entry.policy.limits.streams_per_publisher
    assert all(len(held) == 1 for held in interest.reports._held.values())


def test_subscriber_new_stream_is_asked_for_if_a_broker_reconnected_meanwhile() -> None:
    made = subscriber()
    new = Stream(ORDERS, CAROL, 1)
    made.handle(vote(B1, 1, b"a", stream=new), T0)
    made.handle(Connected(B1), T0)
    asked = asked_soon(made, made.handle(vote(B2, 1, b"a", stream=new), T0))
    assert [m.cursors for m in asked] == [(Cursor(new, 1),)] * 4


def test_subscriber_next_life_of_a_publisher_asks_for_all_its_lives_and_no_others() -> None:
    """What the earlier one lacks must come before too many lives make brokers give it up."""
    made = subscriber(start=4)
    feed(made.handle, *(vote(b, 1, b"a", stream=Stream(ORDERS, CAROL, 1)) for b in BROKERS))
    new = Stream(ORDERS, ALICE, 2)
    feed(made.handle, vote(B1, 1, b"a", stream=new))
    effects = made.handle(vote(B2, 1, b"a", stream=new), T0)
    asked = asked_soon(made, effects)
    assert [m.cursors for m in asked] == [(Cursor(STREAM, 4), Cursor(new, 1))] * 4


def test_subscriber_answer_about_a_few_streams_leaves_what_is_known_of_others() -> None:
    """A gap in one stream is found by reports on all of them."""
    made = subscriber(start=3)
    new = Stream(ORDERS, CAROL, 1)
    assert made.handle(Receive(B1, positions(9, 5)), T0) == []
    made.handle(Receive(B1, Positions(ORDERS, (Position(new, 1, 9),), few=True)), T0)
    assert made.handle(Receive(B2, positions(9, 5)), T0) == [DeliverGap(STREAM, 3, 4)]


def test_subscriber_message_of_another_protocol_is_unexpected() -> None:
    event = Receive(B1, Open(STREAM, 1, 1))
    assert subscriber().handle(event, T0) == [Drop(DropReason.UNEXPECTED, B1)]


# ------------------------------------------------------------------- chains


def chain_vote(sender: NodeId, run: bytes, vouchers: tuple[Voucher, ...]) -> Receive:
    return vote(sender, 1, run, full=True, order=ORDER, vouchers=vouchers)


def test_subscriber_on_a_chain_accepts_the_last_brokers_macs() -> None:
    cell, made = Cell(CHAIN), subscriber(CHAIN)
    assert delivered(made.handle(chain_vote(B3, b"a", ()), T0)) == []
    again = chain_vote(B3, b"a", cell.vouchers(B2, (BOB,), 1, (b"a",), ORDER))
    assert delivered(made.handle(again, T0)) == [(1, b"a")]


def test_subscriber_on_a_chain_takes_the_other_broker_at_its_own_word_as_well() -> None:
    made = subscriber(CHAIN)
    made.handle(chain_vote(B3, b"a", ()), T0)
    assert delivered(made.handle(vote(B2, 1, b"a", order=ORDER), T0)) == [(1, b"a")]


def test_subscriber_on_a_chain_bad_mac_is_dropped_and_author_and_sender_suspected() -> None:
    """b3 cannot verify b2's MAC for bob: either of the two may have broken it."""
    effects = subscriber(CHAIN).handle(chain_vote(B3, b"a", (Voucher(B2, BOB, bytes(32)),)), T0)
    assert reasons(effects) == [DropReason.BAD_VOUCHER]
    assert set(suspects(effects)) == {B2, B3}
    assert all(s.among == (B2, B3) for s in effects if isinstance(s, Suspect))
    assert delivered(effects) == []


def test_subscriber_on_a_chain_macs_for_others_or_of_strangers_are_ignored() -> None:
    cell = Cell(CHAIN)
    vouchers = (
        *cell.vouchers(B2, (CAROL,), 1, (b"a",), ORDER),
        *cell.vouchers(B4, (BOB,), 1, (b"a",), ORDER),
        *cell.vouchers(ALICE, (BOB,), 1, (b"a",), ORDER),
    )
    effects = subscriber(CHAIN).handle(chain_vote(B3, b"a", vouchers), T0)
    assert (reasons(effects), suspects(effects), delivered(effects)) == ([], [], [])


def test_subscriber_on_a_chain_vote_without_or_with_a_wrong_order_is_dropped() -> None:
    for order in ((), (B1, B2), (B1, B2, B2), (B1, B2, ALICE)):
        effects = subscriber(CHAIN).handle(vote(B3, 1, b"a", order=order), T0)
        assert reasons(effects) == [DropReason.BAD_CHAIN]


# ------------------------------------------------------------------- bodies


def lacking() -> Subscriber:
    made = subscriber()
    effects = feed(made.handle, *(vote(b, 1, b"a", b"b") for b in (B1, B2, B3)))
    assert effects == [SetTimer(PullDue(STREAM), PULL_MS)]
    return made


def test_subscriber_body_that_does_not_come_is_pulled_from_a_voter() -> None:
    effects = lacking().handle(DUE, T0)
    (pull,) = sent(effects, Pull)
    assert pull.message == Pull(STREAM, 1, 2)
    assert pull.to[0] in (B1, B2, B3)


def test_subscriber_pulled_contents_are_delivered() -> None:
    made = lacking()
    made.handle(DUE, T0)
    assert delivered(made.handle(contents(B2, 1, b"a", b"b"), T0)) == [(1, b"a"), (2, b"b")]
    assert made.handle(DUE, T0) == []


def test_subscriber_pulls_go_round_until_somebody_answers() -> None:
    made = lacking()
    asked = [s.to[0] for _ in range(6) for s in sent(made.handle(DUE, T0), Pull)]
    assert set(asked) >= {B1, B2, B3}


def test_subscriber_false_contents_are_suspected_and_asked_for_elsewhere() -> None:
    made = lacking()
    made.handle(DUE, T0)
    effects = made.handle(contents(B1, 1, b"x", b"b", named=digests(b"a", b"b")), T0)
    assert reasons(effects) == [DropReason.BAD_BODY]
    assert suspects(effects) == [B1]
    assert len(sent(made.handle(DUE, T0), Pull)) == 1


def test_subscriber_source_that_withholds_bodies_is_suspected_and_replaced() -> None:
    made = lacking()
    made.handle(Receive(B4, KNOWS), T0)
    made.handle(vote(B4, 1, b"a", b"b"), T0)
    effects = [e for _ in range(PULLS_BEFORE_CHANGE) for e in made.handle(DUE, T0)]
    assert Suspect(B4, Suspicion.WITHHOLDS, STREAM, 1) in effects
    asked = {s.to[0]: s.message.bodies for s in sent(effects, Subscribe)}  # type: ignore[attr-defined]
    assert asked == {B4: False, B1: True}


KNOWS = Positions(ORDERS, (Position(STREAM, 1, 1),), bodies=True)


def test_subscriber_source_that_voted_before_it_knew_of_it_is_not_suspected() -> None:
    made = lacking()
    made.handle(vote(B4, 1, b"a", b"b"), T0)
    made.handle(Receive(B4, KNOWS), T0)
    effects = [e for _ in range(2 * PULLS_BEFORE_CHANGE) for e in made.handle(DUE, T0)]
    assert suspects(effects) == []
    assert {s.to[0] for s in sent(effects, Subscribe)} >= {B1, B4}


def test_subscriber_source_that_sends_most_bodies_is_not_suspected() -> None:
    """Now and then a broker no longer holds what it has just vouched for."""
    made = subscriber()
    made.handle(Receive(B4, KNOWS), T0)
    effects: list[Effect] = []
    for number in range(1, 4 * PULLS_BEFORE_CHANGE):
        made.handle(vote(B4, number, b"a", full=number % PULLS_BEFORE_CHANGE == 1), T0)
        feed(made.handle, *(vote(b, number, b"a") for b in (B1, B2, B3)))
        effects += made.handle(DUE, T0)
        made.handle(contents(B1, number, b"a"), T0)
        made.handle(DUE, T0)
    assert suspects(effects) == []
    assert sent(effects, Pull)


def test_subscriber_source_that_votes_for_other_contents_is_replaced() -> None:
    """Its bodies are of no use: every number would have to be pulled."""
    made = subscriber()
    asked: list[Effect] = []
    for number in range(1, PULLS_BEFORE_CHANGE + 1):
        made.handle(vote(B4, number, b"altered"), T0)
        feed(made.handle, *(vote(b, number, b"a") for b in (B1, B2, B3)))
        asked += made.handle(DUE, T0)
        made.handle(contents(B1, number, b"a"), T0)
        made.handle(DUE, T0)
    assert [s.to for s in sent(asked, Subscribe)] == [(B4,), (B1,)]
    assert Suspect(B4, Suspicion.WITHHOLDS, STREAM, PULLS_BEFORE_CHANGE) not in asked


def test_subscriber_source_that_has_not_voted_yet_is_replaced_without_suspicion() -> None:
    made = lacking()
    effects = [e for _ in range(PULLS_BEFORE_CHANGE) for e in made.handle(DUE, T0)]
    assert suspects(effects) == []
    asked = {s.to[0]: s.message.bodies for s in sent(effects, Subscribe)}  # type: ignore[attr-defined]
    assert asked == {B4: False, B1: True}


def test_subscriber_bodies_that_keep_coming_are_not_pulled() -> None:
    """The timer was set for a number that has been delivered; another is lacking now."""
    made = lacking()
    bodies = (b"a", b"b")
    made.handle(contents(B1, 1, *bodies), T0)
    feed(made.handle, *(vote(b, 3, b"c") for b in (B1, B2, B3)))
    assert made.handle(DUE, T0) == [SetTimer(PullDue(STREAM), PULL_MS)]


def test_subscriber_source_that_disconnects_is_replaced() -> None:
    effects = subscriber().handle(Disconnected(B4), T0)
    assert [(s.to, s.message.bodies) for s in sent(effects, Subscribe)] == [  # type: ignore[attr-defined]
        ((B1,), True)
    ]


def test_subscriber_last_broker_gone_and_back_is_the_source_again() -> None:
    made = subscriber()
    for broker in BROKERS:
        made.handle(Disconnected(broker), T0)
    (again,) = sent(made.handle(Connected(B2), T0), Subscribe)
    assert (again.to, again.message.bodies) == ((B2,), True)  # type: ignore[attr-defined]


def test_subscriber_contents_of_an_unknown_stream_are_dropped() -> None:
    made = subscriber()
    effects = made.handle(contents(B1, 1, b"a", stream=Stream(ORDERS, ALICE, 9)), T0)
    assert reasons(effects) == [DropReason.UNKNOWN_STREAM]
    assert reasons(made.handle(contents(ALICE, 1, b"a"), T0)) == [DropReason.UNKNOWN_STREAM]


def test_subscriber_pull_of_a_stream_that_is_gone_is_forgotten() -> None:
    made = lacking()
    made.handle(Leave(ORDERS), T0)
    assert made.handle(DUE, T0) == []


# ---------------------------------------------------------------- histories


def test_subscriber_history_settles_what_votes_did_not_and_reports_it() -> None:
    made, cell = subscriber(HISTORY, lanes=2), Cell(HISTORY)
    body = cell.history(1, 1, b"a", b"b")
    made.handle(vote(B4, 1, b"a", b"b", full=True), T0)
    effects = feed(made.handle, *votes(1, body, stream=LANE))
    assert messages(effects, Missed) == [Missed(STREAM, 1, 2)]
    assert [(e.number, e.by_history) for e in effects if isinstance(e, Deliver)] == [
        (1, True),
        (2, True),
    ]


def test_subscriber_history_at_one_vote_below_2f_plus_1_settles_nothing() -> None:
    made, cell = subscriber(HISTORY, lanes=2), Cell(HISTORY)
    body = cell.history(1, 1, b"a")
    effects = feed(made.handle, *votes(1, body, by=(B4, B1), stream=LANE))
    assert messages(effects, Missed) == []


def test_subscriber_history_of_what_it_has_is_silent() -> None:
    made, cell = subscriber(HISTORY, lanes=2), Cell(HISTORY)
    feed(made.handle, *votes(1, b"a"))
    effects = feed(made.handle, *votes(1, cell.history(1, 1, b"a"), stream=LANE))
    assert effects == []


def test_subscriber_history_without_the_body_pulls_it() -> None:
    made, cell = subscriber(HISTORY, lanes=2), Cell(HISTORY)
    effects = feed(made.handle, *votes(1, cell.history(1, 1, b"a"), stream=LANE))
    assert SetTimer(PullDue(STREAM), PULL_MS) in effects
    (pull,) = messages(made.handle(DUE, T0), Pull)
    assert pull == Pull(STREAM, 1, 1)


def test_subscriber_several_histories_at_once_request_what_they_name_once() -> None:
    """Each of them had the next broker asked for the same contents again."""
    made, cell = subscriber(HISTORY, lanes=2), Cell(HISTORY)
    made.handle(vote(B1, 1, b"a", b"b", b"c"), T0)
    histories = [cell.history(number, number, body) for number, body in ((1, b"a"), (2, b"b"))]
    effects = feed(made.handle, *votes(1, *histories, stream=LANE))
    assert messages(effects, Missed) == [Missed(STREAM, 1, 1), Missed(STREAM, 2, 1)]
    assert messages(effects, Pull) == [Pull(STREAM, 1, 2)]


def test_subscriber_history_that_is_none_is_passed_over() -> None:
    made = subscriber(HISTORY, lanes=2)
    assert feed(made.handle, *votes(1, b"nonsense", stream=LANE)) == []


# ------------------------------------------------------------------ refresh


def test_subscriber_stuck_stream_is_asked_for_again_at_once_then_ever_more_rarely() -> None:
    made = subscriber()
    made.handle(REFRESHED, T0)
    made.handle(vote(B1, 1, b"a"), T0)
    asked = [bool(sent(made.handle(REFRESHED, T0), Subscribe)) for _ in range(16)]
    assert asked[0]
    assert sum(asked) < 8


def test_subscriber_quiet_stream_is_asked_about_now_and_then() -> None:
    made = subscriber()
    made.handle(REFRESHED, T0)
    asked = [bool(sent(made.handle(REFRESHED, T0), Subscribe)) for _ in range(2 * QUIET_TICKS)]
    assert sum(asked) == 2


def asked_in(made: Subscriber, refreshes: int) -> int:
    """In how many of so many refreshes brokers are asked."""
    return sum(bool(sent(made.handle(REFRESHED, T0), Subscribe)) for _ in range(refreshes))


def test_subscriber_of_an_idle_channel_asks_ever_more_rarely_until_something_moves() -> None:
    made = subscriber()
    made.handle(REFRESHED, T0)
    assert asked_in(made, IDLE_TICKS) == IDLE_TICKS // QUIET_TICKS
    assert asked_in(made, 2 * IDLE_TICKS) == 2
    feed(made.handle, *votes(1, b"a", by=BROKERS))
    made.handle(REFRESHED, T0)
    assert asked_in(made, QUIET_TICKS) == 1


def test_subscriber_of_an_idle_channel_goes_on_asking_if_a_broker_holds_more() -> None:
    """Its votes may be lost, or others may have forgotten what lies between."""
    made = subscriber()
    made.handle(REFRESHED, T0)
    asked_in(made, IDLE_TICKS)
    made.handle(Receive(B2, positions(2)), T0)
    assert asked_in(made, IDLE_TICKS) == IDLE_TICKS // QUIET_TICKS


def test_subscriber_moving_stream_is_left_alone() -> None:
    made = subscriber()
    for number in range(1, 20):
        feed(made.handle, *votes(number, b"x", by=BROKERS))
        assert made.handle(REFRESHED, T0) == [SetTimer(Refresh(ORDERS), REFRESH_MS)]


def test_subscriber_gap_is_announced_once_and_what_follows_is_delivered() -> None:
    made = subscriber()
    effects = feed(made.handle, *(Receive(b, positions(20, base=9)) for b in BROKERS))
    assert [e for e in effects if isinstance(e, DeliverGap)] == [DeliverGap(STREAM, 1, 8)]
    assert delivered(feed(made.handle, *votes(9, b"i"))) == [(9, b"i")]


def test_subscriber_is_told_of_all_of_a_stream_that_is_over_also_by_brokers_that_lacked_some() -> (
    None
):
    """One broker had four of nine publications when later lives took their place."""
    made = subscriber()
    over = [Positions(ORDERS, (Position(STREAM, end, end, over=True),)) for end in (5, 10, 10)]
    boast = Positions(ORDERS, (Position(STREAM, 10**6, 10**6),))
    effects = feed(made.handle, *map(Receive, BROKERS, (*over, boast)))
    gaps = [e for e in effects if isinstance(e, DeliverGap)]
    assert gaps == [DeliverGap(STREAM, 1, 4), DeliverGap(STREAM, 5, 9)]


def test_subscriber_of_a_chain_is_told_of_a_gap_whatever_spare_brokers_may_hold() -> None:
    """No chain ever reaches the fifth of them, so it counts for nothing that it may hold all."""
    made = Cell(Policy.named("chain"), n=5).subscriber()
    brokers = (*BROKERS, B5)
    made.handle(Join(ORDERS), T0)
    feed(made.handle, *(Receive(broker, positions(1)) for broker in brokers))
    ends = (20, 20, 20, 1, 1)
    told = [positions(end, base=min(9, end)) for end in ends]
    effects = feed(made.handle, *map(Receive, brokers, told))
    assert [e for e in effects if isinstance(e, DeliverGap)] == [DeliverGap(STREAM, 1, 8)]


#: Looks after which a broker that was never slow before is suspected of silence.
SILENT_LOOKS = LEAST_SILENCE_MS // REFRESH_MS + 4


def silent(made: Subscriber, looks: int, late_ms: int = 0) -> list[NodeId]:
    tick = TimerFired(Refresh(ORDERS), late_ms)
    effects = [e for _ in range(looks) for e in made.handle(tick, T0)]
    return [e.node for e in effects if isinstance(e, Suspect) and e.reason is Suspicion.SILENT]


def test_subscriber_broker_that_never_votes_is_suspected_of_silence_once() -> None:
    made = subscriber()
    feed(made.handle, *votes(1, b"a"))
    assert silent(made, LEAST_SILENCE_MS // REFRESH_MS) == []
    assert silent(made, 20) == [B3]


def test_subscriber_broker_that_keeps_silent_on_one_stream_only_is_suspected_later() -> None:
    """Under load the queues of one stream may be long."""
    made = subscriber()
    other = Stream(ORDERS, CAROL, 1)
    feed(made.handle, *votes(1, b"x", by=BROKERS, stream=other))
    feed(made.handle, *votes(1, b"a"))
    found: list[list[NodeId]] = []
    for number in range(1, LEAST_STALL_MS // REFRESH_MS + 8):
        feed(made.handle, *votes(number, b"x", by=BROKERS, stream=other))
        found.append(silent(made, 1))
    assert [broker for brokers in found for broker in brokers] == [B3]
    assert found.index([B3]) * REFRESH_MS >= LEAST_STALL_MS


def test_silence_of_a_broker_that_votes_on_another_channel_is_none() -> None:
    heard = {B3: 0}
    rule = rule_for(Quorums(4, 1), Protection.BYZANTINE, Broadcast.AUTHENTICATED)
    acceptors = {STREAM: Acceptor(STREAM, 1, rule, hasher("sha256"), Limits())}
    found: list[Effect] = []
    watch = SilenceWatch(heard)
    for look in range(2 * SILENT_LOOKS):
        heard[B3] = look
        found += watch.look((B3,), {STREAM: 9}, acceptors, lambda *_: False, 0)[1]
    assert found == []


def test_subscriber_asks_a_silent_broker_before_it_is_suspected() -> None:
    """Its votes may have been lost while the link to us was full."""
    made = subscriber()
    feed(made.handle, *votes(1, b"a"))
    asked = [e for _ in range(SILENT_LOOKS // 2) for e in made.handle(REFRESHED, T0)]
    assert Send((B3,), Subscribe(ORDERS, (Cursor(STREAM, 1),), False, few=True)) in asked
    made.handle(vote(B3, 1, b"a"), T0)
    assert silent(made, 3 * SILENT_LOOKS) == []


def test_subscriber_broker_that_keeps_voting_is_slow_and_not_silent() -> None:
    made = subscriber()
    for number in range(1, 4 * SILENT_LOOKS):
        feed(made.handle, *votes(2 * number - 1, b"a"), *votes(2 * number, b"a"))
        made.handle(vote(B3, number, b"a"), T0)
        assert silent(made, 1) == []


def test_subscriber_broker_that_sends_owed_votes_one_by_one_is_suspected_in_the_end() -> None:
    made = subscriber()
    backlog = MOST_STALL_MS // REFRESH_MS + 8
    for number in range(1, backlog + 1):
        feed(made.handle, *votes(number, b"a"))
    assert silent(made, 1) == []
    found = []
    for number in range(1, backlog):
        made.handle(vote(B3, number, b"a"), T0)
        found.append(silent(made, 1))
    assert [broker for brokers in found for broker in brokers] == [B3]
    assert found.index([B3]) * REFRESH_MS >= MOST_STALL_MS - 2 * REFRESH_MS


def test_subscriber_waits_longer_for_a_broker_that_was_slow_before() -> None:
    made = subscriber()
    number = 0
    for looks in (4, SILENT_LOOKS - 6) * 4:
        number += 1
        feed(made.handle, *votes(number, b"a"))
        assert silent(made, looks) == []
        made.handle(vote(B3, number, b"a"), T0)
        silent(made, 2)
    feed(made.handle, *votes(number + 1, b"a"))
    assert silent(made, 2 * SILENT_LOOKS) == []
    assert silent(made, 4 * SILENT_LOOKS) == [B3]


def test_subscriber_that_is_late_itself_suspects_nobody_of_silence() -> None:
    made = subscriber()
    feed(made.handle, *votes(1, b"a"))
    assert silent(made, 9 * SILENT_LOOKS, LATE_MS + 1) == []
    assert silent(made, SILENT_LOOKS, LATE_MS) == [B3]


def test_subscriber_that_joins_late_suspects_nobody_of_silence() -> None:
    """Nothing has been published since: there was nothing to vote on."""
    assert silent(subscriber(start=50), 3 * SILENT_LOOKS) == []


def test_subscriber_suspects_nobody_of_silence_over_a_gap() -> None:
    made = subscriber()
    feed(made.handle, *(Receive(b, positions(20, base=20)) for b in BROKERS))
    assert silent(made, 3 * SILENT_LOOKS) == []


def test_subscriber_suspects_nobody_of_silence_on_what_brokers_have_dropped() -> None:
    made = subscriber()
    feed(made.handle, *votes(1, b"a"))
    feed(made.handle, *(Receive(b, positions(2, base=2)) for b in BROKERS))
    assert silent(made, 3 * SILENT_LOOKS) == []


# ----------------------------------------------------------------- refusals


def test_subscriber_refusal_is_believed_at_f_plus_1_and_reported_once() -> None:
    made = subscriber()
    effects = [
        e
        for broker in (B1, B1, B2, B2, B3)
        for e in made.handle(Receive(broker, Refuse(ORDERS, "no right")), T0)
    ]
    assert effects == [Refused(ORDERS, "no right")]


def test_subscriber_that_left_and_joins_again_hears_the_refusal_again() -> None:
    made = subscriber()
    for _ in range(2):
        told = [made.handle(Receive(b, Refuse(ORDERS, "no right")), T0) for b in (B1, B2)]
        assert told == [[], [Refused(ORDERS, "no right")]]
        made.handle(Leave(ORDERS), T0)
        made.handle(Join(ORDERS), T0)


def test_subscriber_refusal_by_a_client_or_of_another_channel_is_dropped() -> None:
    made = subscriber()
    for event in (
        Receive(ALICE, Refuse(ORDERS, "no")),
        Receive(B1, Refuse(Channel("invented"), "no")),
    ):
        assert reasons(made.handle(event, T0)) == [DropReason.UNEXPECTED]


# ----------------------------------------------------------------- receipts


def accepted_two() -> Subscriber:
    made = subscriber()
    feed(made.handle, *votes(1, b"p1", b"p2"))
    return made


def test_subscriber_receipt_is_asked_for_proven_and_holds_in_court() -> None:
    cell, made = Cell(AB), accepted_two()
    assert made.handle(Prove(STREAM, 2, b"p2"), T0) == [Send(BROKERS, Attest(STREAM, 2))]
    assert Send(BROKERS, Attest(STREAM, 2)) in made.handle(REFRESHED, T0)
    _, first = cell.segment(B1, 1, b"p1", b"p2")
    assert made.handle(Receive(B1, Checkpoint(first)), T0) == []
    _, second = cell.segment(B2, 1, b"p1", b"p2")
    (proven,) = made.handle(Receive(B2, Checkpoint(second)), T0)
    assert isinstance(proven, Proven)
    assert cell.court.why_receipt_fails(proven.receipt, 2) is None
    assert sent(made.handle(REFRESHED, T0), Attest) == []


def test_subscriber_receipt_that_is_possible_at_once_is_given_at_once() -> None:
    cell, made = Cell(AB), accepted_two()
    for broker in (B1, B2):
        made.handle(Receive(broker, Checkpoint(cell.segment(broker, 1, b"p1", b"p2")[1])), T0)
    (proven,) = made.handle(Prove(STREAM, 1, b"p1"), T0)
    assert isinstance(proven, Proven)


def test_subscriber_receipt_of_an_unknown_stream_is_not_awaited() -> None:
    assert subscriber().handle(Prove(Stream(ORDERS, ALICE, 9), 1, b""), T0) == []


def test_subscriber_liar_is_accused_with_evidence_that_holds() -> None:
    cell, made = Cell(HISTORY), subscriber(HISTORY, lanes=2)
    effects: list[Effect] = []
    for broker, run in ((B4, (b"lie",)), (B1, (b"p1",)), (B2, (b"p1",))):
        effects += made.handle(Receive(broker, Checkpoint(cell.segment(broker, 1, *run)[1])), T0)
    (evidence,) = accused(effects)
    assert (evidence.kind, evidence.accused) == (EvidenceKind.OUTVOTED, B4)
    assert cell.court.why_evidence_fails(evidence) is None


def test_subscriber_checkpoint_that_is_none_is_dropped() -> None:
    cell, made = Cell(AB), subscriber()
    _, signed = cell.segment(B1, 1, b"p1")
    nonsense = type(signed)(B1, b"nonsense", b"")
    assert reasons(made.handle(Receive(B1, Checkpoint(nonsense)), T0)) == [DropReason.BAD_RUN]
    unknown = cell.segment(B1, 1, b"p1", stream=Stream(ORDERS, ALICE, 7))[1]
    assert reasons(made.handle(Receive(B1, Checkpoint(unknown)), T0)) == [DropReason.UNKNOWN_STREAM]
    assert reasons(made.handle(Receive(ALICE, Checkpoint(signed)), T0)) == [
        DropReason.UNKNOWN_STREAM
    ]


# ------------------------------------------------------------------- limits


def test_subscriber_is_bounded_against_everything_one_broker_can_send() -> None:
    policy = limited("ab+history", vote_window=16, segment=4, kept_segments=2)
    cell, made = Cell(policy), subscriber(policy, lanes=2)
    for i in range(1, 400):
        junk = b"%d" % i
        feed(
            made.handle,
            vote(B4, i, junk, full=True),
            vote(B4, 1, junk, full=True),
            vote(B4, 1, junk, full=True, stream=Stream(ORDERS, ALICE, i)),
            contents(B4, 1, junk),
            Receive(B4, positions(i, i, Stream(ORDERS, CAROL, i))),
            Receive(B4, Checkpoint(cell.segment(B4, 4 * i - 3, junk)[1])),
            Receive(B4, Refuse(ORDERS, str(i))),
        )
        made.handle(Prove(STREAM, i, b""), T0)
    sizes = made.sizes()
    assert sizes["orders: acceptors"] == 2
    assert sizes[f"orders: {STREAM}/tallies"] <= 16
    assert sizes[f"orders: {STREAM}/bodies"] <= 16
    assert sizes[f"orders: {STREAM}/pending_bytes"] <= 100
    assert sizes[f"orders: {STREAM}/proofs"] <= MAX_PENDING
    assert max(sizes.values()) < 1024
    assert delivered(feed(made.handle, *votes(1, b"a", by=(B1, B2, B3)))) == []
    made.handle(DUE, T0)
    assert delivered(made.handle(contents(B1, 1, b"a"), T0)) == [(1, b"a")]


def test_subscriber_streams_that_are_over_leave_nothing_behind() -> None:
    """A publisher that restarts for ever must not grow anything here."""
    made = subscriber(limited("ab", streams_per_publisher=2))
    for incarnation in range(2, 60):
        stream = Stream(ORDERS, ALICE, incarnation)
        for _ in range(2):
            feed(made.handle, *(vote(b, 1, b"a", stream=stream) for b in (B1, B2, B3)))
        made.handle(TimerFired(PullDue(stream)), T0)
        feed(made.handle, contents(B1, 1, b"a", stream=stream))
        made.handle(TimerFired(PullDue(stream)), T0)
        made.handle(REFRESHED, T0)
    (interest,) = made._interests.values()
    # As many again as may be followed are displaced and not over yet.
    assert len(interest.acceptors) == 4
    assert len(interest.pulls) <= 4
    assert len(interest.seen) <= 4
