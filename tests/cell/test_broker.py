"""The broker: rights, subscriptions, votes, replays, acknowledgements, journal. n = 4, f = 1."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.cells import (
    AB,
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    BRB,
    CAROL,
    CHAIN,
    LANE,
    ORDERS,
    STREAM,
    T0,
    Cell,
    accused,
    bodies,
    chain_run,
    contents,
    delivered,
    digests,
    feed,
    is_sendable,
    limited,
    messages,
    publish,
    reasons,
    sent,
    suspects,
)

from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Cursor,
    Echo,
    Open,
    Outlived,
    Publish,
    Pull,
    Ready,
)
from quorumcast.cell.messages import (
    Attest,
    Checkpoint,
    Missed,
    Position,
    Positions,
    Refuse,
    Regain,
    Regained,
    Subscribe,
    Survey,
    Unsubscribe,
    Vote,
)
from quorumcast.cell.serving.audience import REPLAYS, REPLAYS_MS
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.journal import Attested, Journal, Settled, Vouched, VouchedAgainstEcho
from quorumcast.cell.serving.served_streams import WrittenTotals
from quorumcast.core.envelope import write_envelope
from quorumcast.core.ids import Channel, Millis, NodeId, Stream, resumable
from quorumcast.core.limits import MAX_ENDED, MAX_NAME, MAX_NUMBER, MAX_RUN, Limits
from quorumcast.core.machine import (
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Forget,
    Persist,
    Persisted,
    Receive,
    Record,
    Restored,
    Send,
    Suspect,
    Suspicion,
    Timer,
    TimerFired,
)
from quorumcast.core.statements import Basis, SegmentStatement, parse_statement
from quorumcast.crypto.digest import root
from quorumcast.manifest.policy import Policy
from quorumcast.sim.kernel.disk import Disk
from quorumcast.sim.kernel.scheduler import Scheduler

WINDOW = Limits().window
ORDER = (B1, B2, B3)
#: Asking for replays less often than a broker refuses to serve them.
APART_MS = 1000


def subscribe(
    reader: NodeId = BOB, *cursors: Cursor, bodies: bool = True, channel: Channel = ORDERS
) -> Receive:
    return Receive(reader, Subscribe(channel, cursors, bodies))


def broker(policy: Policy = AB, *readers: NodeId, me: NodeId = B1) -> Broker:
    made = Cell(policy).broker(me)
    for reader in readers:
        made.handle(subscribe(reader, bodies=reader == BOB), T0)
    return made


def echo(sender: NodeId, stream: Stream = STREAM, first: int = 1) -> Receive:
    return Receive(sender, Echo(stream, first, root(first, digests(b"a"))))


def test_broker_that_cannot_tell_yet_what_is_ordered_does_not_say_that_nothing_is() -> None:
    """A subscriber that believed it began with the oldest position instead of the next one."""
    made = broker(Policy.named("total"))
    assert messages(made.handle(subscribe(BOB), T0), Positions) == []


# ------------------------------------------------------------------- rights


def test_broker_publication_without_right_is_refused_with_a_reason() -> None:
    made = Cell(AB, publishers=(CAROL,)).broker()
    effects = made.handle(publish(1, b"a"), T0)
    assert reasons(effects) == [DropReason.NO_RIGHT]
    (refusal,) = sent(effects)
    assert refusal.to == (ALICE,)
    assert isinstance(refusal.message, Refuse)
    assert "no right" in refusal.message.reason
    assert made.sizes()["streams"] == 0


def test_broker_subscription_without_right_is_refused_with_a_reason() -> None:
    made = Cell(AB, subscribers=(CAROL,)).broker()
    for message in (Subscribe(ORDERS, (), True), Pull(STREAM, 1, 1), Attest(STREAM, 1)):
        effects = made.handle(Receive(BOB, message), T0)
        assert reasons(effects) == [DropReason.NO_RIGHT]
        assert len(messages(effects, Refuse)) == 1
    assert made.sizes()["subscribers"] == 0
    assert reasons(made.handle(Receive(BOB, Missed(STREAM, 1, 1)), T0)) == [DropReason.NO_RIGHT]


def test_broker_who_misses_what_it_does_not_know_of_is_told_no_more_than_that() -> None:
    """A subscriber tells every broker what it missed, of streams that some gave up meanwhile."""
    effects = broker(AB, BOB).handle(Receive(BOB, Missed(STREAM, 1, 1)), T0)
    assert effects == [Drop(DropReason.UNKNOWN_STREAM, BOB)]


def test_broker_asked_for_a_time_answers_with_the_first_number_of_it() -> None:
    made = broker(AB, BOB)
    for number, stamp in enumerate((10, 30, 20, 40), 1):
        made.handle(publish(number, write_envelope(stamp)), T0)
    later = Millis(0)
    for since, base in ((1, 1), (20, 2), (31, 4), (41, 5)):
        later = Millis(later + REPLAYS_MS)
        effects = made.handle(Receive(BOB, Subscribe(ORDERS, (), False, since, join=7)), later)
        assert messages(effects, Positions) == [
            Positions(ORDERS, (Position(STREAM, base, 5, 1),), 7)
        ]


def test_broker_asked_for_times_too_often_looks_no_further() -> None:
    made = broker(AB)
    request = Receive(BOB, Subscribe(ORDERS, (), False, 1))
    answers = [made.handle(request, T0) for _ in range(REPLAYS + 1)]
    assert [reasons(effects) for effects in answers[REPLAYS:]] == [[DropReason.OVER_LIMIT]]


def test_broker_unknown_channel_is_refused_with_a_reason() -> None:
    made = broker()
    for event in (
        subscribe(channel=Channel("nowhere")),
        publish(1, b"a", stream=Stream(Channel("nowhere"), ALICE, 1)),
    ):
        effects = made.handle(event, T0)
        assert reasons(effects) == [DropReason.UNKNOWN_CHANNEL]
        assert len(messages(effects, Refuse)) == 1


def test_broker_refusal_of_a_very_long_name_can_be_decoded() -> None:
    effects = broker().handle(subscribe(channel=Channel("x" * MAX_NAME)), T0)
    assert all(is_sendable(m) for m in messages(effects, Refuse))


def test_broker_client_that_speaks_for_another_is_refused() -> None:
    effects = broker().handle(publish(1, b"a", sender=BOB), T0)
    assert effects == [Drop(DropReason.WRONG_SENDER, BOB)]


def test_broker_message_that_is_not_for_brokers_is_unexpected() -> None:
    event = Receive(B2, Ack(STREAM, 1, 1))
    assert broker().handle(event, T0) == [Drop(DropReason.UNEXPECTED, B2)]
    assert broker().handle(Connected(BOB), T0) == []


def test_broker_history_on_a_channel_without_history_is_refused() -> None:
    """Else the MACs of a chain would cover one lane and the votes name another."""
    made = broker(CHAIN, me=B1)
    vouchers = Cell(CHAIN).vouchers(ALICE, (B1, B2), 1, (b"a",), ORDER, stream=LANE)
    effects = made.handle(chain_run(ALICE, 1, (b"a",), ORDER, vouchers, stream=LANE), T0)
    assert sent(effects, ChainRun) == []
    assert len(reasons(effects)) == 1
    plain = broker(AB, BOB)
    assert sent(plain.handle(publish(1, b"a", stream=LANE), T0), Vote) == []


# -------------------------------------------------------------------- votes


def test_broker_votes_with_bodies_for_those_who_asked_for_them() -> None:
    effects = broker(AB, BOB, CAROL).handle(publish(1, b"a"), T0)
    vote = Vote(STREAM, 1, digests(b"a"))
    assert effects == [
        Send((BOB,), vote, (b"a",)),
        Send((CAROL,), vote),
        Send((ALICE,), Ack(STREAM, 1, 1 + WINDOW)),
    ]


def test_broker_without_subscribers_only_acknowledges() -> None:
    assert broker().handle(publish(1, b"a"), T0) == [Send((ALICE,), Ack(STREAM, 1, 1 + WINDOW))]


def test_broker_subscriber_that_left_or_disconnected_gets_no_more_votes() -> None:
    for goodbye in (Receive(BOB, Unsubscribe(ORDERS)), Disconnected(BOB)):
        made = broker(AB, BOB)
        made.handle(goodbye, T0)
        assert sent(made.handle(publish(1, b"a"), T0), Vote) == []
        assert made.subscribers() == {ORDERS: {}}


def test_broker_last_of_a_chain_votes_with_the_others_macs_and_the_bodies() -> None:
    cell = Cell(CHAIN)
    made = broker(CHAIN, BOB, CAROL, me=B3)
    vouchers = (
        *cell.vouchers(B1, (B3,), 1, (b"a",), ORDER),
        *cell.vouchers(B2, (B3, BOB, CAROL), 1, (b"a",), ORDER),
    )
    effects = made.handle(chain_run(B2, 1, (b"a",), ORDER, vouchers), T0)
    assert sent(effects, Vote) == [
        Send(
            (reader,),
            Vote(
                STREAM,
                1,
                digests(b"a"),
                ORDER,
                cell.vouchers(B2, (reader,), 1, (b"a",), ORDER),
            ),
            (b"a",),
        )
        for reader in (BOB, CAROL)
    ]


# ---------------------------------------------------------- acknowledgements


def test_broker_publisher_that_spoke_is_always_answered() -> None:
    made = broker()
    assert made.handle(Receive(ALICE, Open(STREAM, 1, 1)), T0) == [
        Send((ALICE,), Ack(STREAM, 0, WINDOW))
    ]
    made.handle(publish(1, b"a"), T0)
    assert made.handle(publish(1, b"a"), T0) == [
        Drop(DropReason.DUPLICATE, ALICE),
        Send((ALICE,), Ack(STREAM, 1, 1 + WINDOW)),
    ]


def test_broker_without_history_gives_no_credit_beyond_two_alpha() -> None:
    made = broker(limited("ab+history"))
    (ack,) = messages(made.handle(publish(1, b"a", b"b"), T0), Ack)[-1:]
    assert ack == Ack(STREAM, 2, 4)
    effects = made.handle(publish(3, b"c", b"d", b"e"), T0)
    assert reasons(effects) == [DropReason.BLOCKED]
    assert messages(effects, Ack)[-1:] == [Ack(STREAM, 2, 4)]


def test_broker_missed_publications_are_counted_once_and_passed_on() -> None:
    made = broker(limited("ab+history"), BOB, CAROL)
    made.handle(publish(1, *bodies(1, 4)), T0)
    (ack,) = messages(made.handle(Receive(BOB, Missed(STREAM, 1, 2)), T0), Ack)
    assert isinstance(ack, Ack)
    assert ack.missed == 2
    assert made.handle(Receive(CAROL, Missed(STREAM, 1, 2)), T0) == []
    (ack,) = messages(made.handle(Receive(CAROL, Missed(STREAM, 2, 2)), T0), Ack)
    assert isinstance(ack, Ack)
    assert ack.missed == 3


def test_broker_subscriber_that_always_misses_something_is_believed_ever_more_rarely() -> None:
    """It may be lying, and its word makes publishers change their chains."""
    made = broker(AB, BOB, CAROL)
    believed = []
    for number in range(1, 5001):
        made.handle(publish(number, b"x"), T0)
        effects = made.handle(Receive(BOB, Missed(STREAM, number, 1)), T0)
        if reasons(effects) == [DropReason.OVER_LIMIT]:
            assert messages(effects, Ack) == []
        else:
            believed.append(number)
    assert believed == [*range(1, 9), 264, 776, 1800, 3848]
    (ack,) = messages(made.handle(Receive(CAROL, Missed(STREAM, 5000, 1)), T0), Ack)
    assert isinstance(ack, Ack)
    assert ack.missed == len(believed) + 1
    assert made.sizes()["complaints"] == 2


def test_broker_missed_publications_that_do_not_exist_are_ignored() -> None:
    made = broker(limited("ab+history"), BOB)
    made.handle(publish(1, b"a"), T0)
    assert made.handle(Receive(BOB, Missed(STREAM, 1, 2**62)), T0) == []
    assert made.handle(Receive(BOB, Missed(STREAM, 2**62, 2**62)), T0) == []


# ------------------------------------------------------- subscribing, replays


def test_broker_says_that_what_histories_speak_of_is_over_before_it_has_it() -> None:
    """Else who begins here would wait for it, and the histories that speak of it were over."""
    policy = limited("ab+history")
    made, body = broker(policy), Cell(policy).history(1, 1, b"a", b"b")
    ready = Ready(LANE, 1, root(1, digests(body)))
    made.handle(publish(1, body, stream=LANE), T0)
    before = messages(made.handle(subscribe(), T0), Positions)
    readies = [Receive(peer, ready) for peer in (B2, B3, B4)]
    feed(made.handle, *readies, contents(B2, 1, body, stream=LANE))
    after = messages(made.handle(subscribe(), T0), Positions)
    assert before == [
        Positions(ORDERS, (Position(STREAM, 1, 1), Position(LANE, 1, 1)), bodies=True)
    ]
    assert after == [Positions(ORDERS, (Position(STREAM, 1, 3), Position(LANE, 1, 2)), bodies=True)]


def test_broker_reports_what_it_has_acknowledged_though_it_is_not_delivered_yet() -> None:
    """Else a reader of the past that begins now would end before it."""
    made = broker(Policy.named("brb"))
    made.handle(Receive(ALICE, Open(STREAM, 1, 1)), T0)
    (ack,) = messages(made.handle(publish(1, b"a", b"b"), T0), Ack)
    assert isinstance(ack, Ack)
    assert (ack.upto, ack.settled) == (2, 0)
    assert messages(made.handle(subscribe(), T0), Positions) == [
        Positions(ORDERS, (Position(STREAM, 1, 3),), bodies=True)
    ]


def test_broker_subscription_is_answered_with_positions() -> None:
    made = broker(limited("ab+history"))
    made.handle(publish(1, b"a", b"b"), T0)
    assert made.handle(subscribe(), T0) == [
        Send((BOB,), Positions(ORDERS, (Position(STREAM, 1, 3), Position(LANE, 1, 1)), bodies=True))
    ]


def test_broker_cursor_is_answered_with_votes_from_there() -> None:
    made = broker()
    made.handle(publish(1, b"a", b"b"), T0)
    full = made.handle(subscribe(BOB, Cursor(STREAM, 2)), T0)
    assert sent(full, Vote) == [Send((BOB,), Vote(STREAM, 2, digests(b"b")), (b"b",))]
    bare = made.handle(subscribe(CAROL, Cursor(STREAM, 1), bodies=False), T0)
    assert sent(bare, Vote) == [Send((CAROL,), Vote(STREAM, 1, digests(b"a", b"b")))]


def test_broker_asked_for_a_few_streams_names_the_lives_of_their_publishers_alone() -> None:
    made = broker()
    theirs, later = Stream(ORDERS, CAROL, 1), Stream(ORDERS, ALICE, 2)
    for stream in (STREAM, theirs, later):
        made.handle(publish(1, b"a", stream=stream, sender=stream.publisher), T0)
    few = Subscribe(ORDERS, (Cursor(STREAM, 1),), False, few=True)
    named = (Position(STREAM, 1, 2), Position(later, 1, 2))
    assert made.handle(Receive(BOB, few), T0) == [
        Send((BOB,), Positions(ORDERS, named, few=True)),
        Send((BOB,), Vote(STREAM, 1, digests(b"a"))),
    ]


def test_broker_asked_for_a_few_streams_keeps_how_far_a_subscriber_is_behind_on_others() -> None:
    made = broker(limited("ab", replay=3))
    theirs = Stream(ORDERS, CAROL, 1)
    for stream in (STREAM, theirs):
        made.handle(publish(1, *bodies(1, 10), stream=stream, sender=stream.publisher), T0)
    made.handle(subscribe(BOB, Cursor(STREAM, 1), Cursor(theirs, 1)), T0)
    assert made.subscribers() == {ORDERS: {BOB: 14}}
    made.handle(Receive(BOB, Subscribe(ORDERS, (Cursor(STREAM, 5),), False, few=True)), T0)
    assert made.subscribers() == {ORDERS: {BOB: 10}}


def test_broker_forgets_who_was_behind_on_lives_that_have_ended() -> None:
    made = broker(limited("ab", replay=4, retained_publications=64, streams_per_publisher=2))
    made.handle(subscribe(BOB), T0)
    for life in range(1, 20):
        stream, now = Stream(ORDERS, ALICE, life), Millis(T0 + 100 * life)
        made.handle(publish(1, *bodies(1, 20), stream=stream), now)
        asked = Subscribe(ORDERS, (Cursor(stream, 1),), False, few=True)
        made.handle(Receive(BOB, asked), now)
    assert made.sizes()["behind"] == len(made.streams()) == 2
    assert made.subscribers() == {ORDERS: {BOB: 32}}


def test_broker_cursor_at_the_end_or_on_an_unknown_stream_replays_nothing() -> None:
    made = broker()
    made.handle(publish(1, b"a"), T0)
    elsewhere = Stream(Channel("news"), ALICE, 1)
    cursors = (Cursor(STREAM, 2), Cursor(Stream(ORDERS, ALICE, 9), 1), Cursor(elsewhere, 1))
    assert sent(made.handle(subscribe(BOB, *cursors), T0), Vote) == []


def test_broker_replay_is_bounded_and_told_where_it_ended() -> None:
    made = broker(limited("ab", replay=3))
    made.handle(publish(1, *bodies(1, 10)), T0)
    (vote,) = messages(made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0), Vote)
    assert vote == Vote(STREAM, 1, digests(*bodies(1, 3)))


def test_broker_subscriber_that_is_behind_lags_until_it_asks_for_the_rest() -> None:
    made = broker(limited("ab", replay=3))
    made.handle(publish(1, *bodies(1, 10)), T0)
    made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0)
    assert made.subscribers() == {ORDERS: {BOB: 7}}
    for _ in range(REPLAYS):  # the last one is refused, and tells nothing
        made.handle(subscribe(BOB, Cursor(STREAM, 5)), T0)
    assert made.subscribers() == {ORDERS: {BOB: 3}}
    made.handle(subscribe(BOB, Cursor(STREAM, 8)), Millis(REPLAYS_MS))
    assert made.subscribers() == {ORDERS: {BOB: 0}}


def test_broker_counts_what_was_written_over_all_lives_of_a_publisher() -> None:
    made = broker(limited("ab", retained_publications=2))
    made.handle(publish(1, b"a", b"bc"), T0)
    made.handle(publish(1, b"a", b"bc"), T0)  # again
    made.handle(publish(3, b"def"), T0)
    later = Stream(ORDERS, ALICE, 9)
    made.handle(Receive(ALICE, Publish(later, 1, digests(b"g")), (b"g",)), T0)
    assert made.written() == {ORDERS: WrittenTotals(4, 7)}


def test_broker_replay_is_no_longer_than_what_a_subscriber_counts_votes_for() -> None:
    made = broker(limited("ab", replay=8, vote_window=4, window=4))
    made.handle(publish(1, *bodies(1, 4)), T0)
    made.handle(publish(5, *bodies(5, 4)), T0)
    (vote,) = messages(made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0), Vote)
    assert vote == Vote(STREAM, 1, digests(*bodies(1, 4)))


def test_broker_replay_of_what_is_forgotten_starts_at_the_oldest_held() -> None:
    made = broker(limited("ab", retained_publications=2))
    made.handle(publish(1, *bodies(1, 5)), T0)
    (vote,) = messages(made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0), Vote)
    assert vote == Vote(STREAM, 4, digests(*bodies(4, 2)))


def test_broker_replays_are_served_only_so_often() -> None:
    made = broker()
    for _ in range(REPLAYS):
        assert reasons(made.handle(subscribe(), T0)) == []
    assert made.handle(subscribe(), Millis(REPLAYS_MS - 1)) == [Drop(DropReason.OVER_LIMIT, BOB)]
    assert reasons(made.handle(subscribe(), Millis(REPLAYS_MS))) == []


def test_broker_cursors_of_one_stream_are_served_once() -> None:
    """A thousand cursors in one small message must not be answered with a thousand replays."""
    made = broker()
    made.handle(publish(1, *bodies(1, 10)), T0)
    effects = made.handle(subscribe(BOB, *[Cursor(STREAM, 1)] * 1000), T0)
    assert len(sent(effects, Vote)) == 1


def test_broker_of_a_chain_votes_again_wherever_it_stands_in_it() -> None:
    """By another chain it may have come to the others: 2f+1 equal words do without the way."""
    for me in (B1, B2):
        cell, made = Cell(CHAIN), broker(CHAIN, me=me)
        if me == B1:
            event = chain_run(
                ALICE, 1, (b"a",), ORDER, cell.vouchers(ALICE, (B1, B2), 1, (b"a",), ORDER)
            )
        else:
            vouchers = [cell.vouchers(a, (B2,), 1, (b"a",), ORDER) for a in (ALICE, B1)]
            event = chain_run(B1, 1, (b"a",), ORDER, vouchers[0] + vouchers[1])
        made.handle(event, T0)
        effects = made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0)
        assert messages(effects, Vote) == [Vote(STREAM, 1, digests(b"a"), ORDER)]


def test_broker_pull_of_a_subscriber_is_answered() -> None:
    made = broker(AB, BOB)
    made.handle(publish(1, b"a", b"b"), T0)
    assert made.handle(Receive(BOB, Pull(STREAM, 2, 9)), T0) == [
        Send((BOB,), Contents(STREAM, 2, digests(b"b")), (b"b",))
    ]
    unknown = Receive(BOB, Pull(Stream(ORDERS, ALICE, 9), 1, 1))
    assert reasons(made.handle(unknown, T0)) == [DropReason.UNKNOWN_STREAM]


# --------------------------------------------------------------- statements


def test_broker_whole_segment_is_signed_for_the_subscribers() -> None:
    made = broker(limited("ab", segment=2), BOB, CAROL)
    assert sent(made.handle(publish(1, b"a"), T0), Checkpoint) == []
    (send,) = sent(made.handle(publish(2, b"b"), T0), Checkpoint)
    assert send.to == (BOB, CAROL)
    assert isinstance(send.message, Checkpoint)
    statement = parse_statement(send.message.statement.payload)
    assert isinstance(statement, SegmentStatement)
    assert (statement.first, statement.count, statement.basis) == (1, 2, Basis.FORWARDED)


def test_broker_request_for_a_statement_is_answered_as_far_as_it_is_final() -> None:
    made = broker(limited("ab+history"), BOB)
    made.handle(publish(1, b"a"), T0)
    assert reasons(made.handle(Receive(BOB, Attest(STREAM, 1)), T0)) == [DropReason.NOT_HELD]
    plain = broker(AB, BOB)
    plain.handle(publish(1, b"a"), T0)
    assert len(sent(plain.handle(Receive(BOB, Attest(STREAM, 1)), T0), Checkpoint)) == 1
    unknown = Receive(BOB, Attest(Stream(ORDERS, ALICE, 9), 1))
    assert reasons(plain.handle(unknown, T0)) == [DropReason.NOT_HELD]


# ------------------------------------------------------------------ journals


JOURNAL = Policy.named("ab", journal=True)


def journal_of(effects: list[Effect]) -> list[Record]:
    return [e.record for e in effects if isinstance(e, Persist)]


def restarted(policy: Policy, *before: Receive, me: NodeId = B1) -> Broker:
    """A broker after a restart, with what it had written before."""
    records = journal_of(feed(broker(policy, BOB, me=me).handle, *before))
    assert records
    made = broker(policy, BOB, me=me)
    for record in records:
        assert made.handle(Restored(record), T0) == []
    return made


def test_broker_lets_go_of_its_journal_with_what_it_no_longer_retains() -> None:
    """The cost of standing by everything does not grow with the stream."""
    limits = {"retained_publications": 4, "window": 4, "segment": 4}
    made = broker(replace(limited("ab", **limits), journal=True))
    scheduler = Scheduler("journal")
    disk = Disk(scheduler, 0)
    for number in range(1, 3 * MAX_RUN):
        for effect in made.handle(publish(number, b"%d" % number), T0):
            if isinstance(effect, Persist):
                disk.write(effect.record, lambda: None)
            elif isinstance(effect, Forget):
                disk.forget(effect.kind, effect.owner, effect.below, effect.since)
    scheduler.run_until(Millis(1), 10**6)
    assert len(disk.durable) <= MAX_RUN + MAX_RUN // 4 + 8
    assert made.sizes()["journaled"] == 0
    again = broker(replace(limited("ab", **limits), journal=True))
    for record in disk.durable:
        again.handle(Restored(record), T0)
    for number in (1, 2 * MAX_RUN, 3 * MAX_RUN - 1):
        again.handle(Receive(ALICE, Open(STREAM, number, number)), T0)
        effects = again.handle(publish(number, b"other"), T0)
        assert [e for e in effects if isinstance(e, Persist)] == []


def test_broker_with_a_journal_votes_only_after_the_disk_has_it() -> None:
    effects = broker(JOURNAL, BOB).handle(publish(1, b"a"), T0)
    (persist,) = [e for e in effects if isinstance(e, Persist)]
    assert persist.then == (Send((BOB,), Vote(STREAM, 1, digests(b"a")), (b"a",)),)
    assert sent(effects, Vote) == []


def test_broker_on_a_chain_with_a_journal_passes_on_only_after_the_disk_has_it() -> None:
    """The MACs in the message vouch to successors and subscribers alike."""
    policy = Policy.named("chain", journal=True)
    vouchers = Cell(policy).vouchers(ALICE, (B1, B2), 1, (b"a",), ORDER)
    effects = broker(policy).handle(chain_run(ALICE, 1, (b"a",), ORDER, vouchers), T0)
    assert sent(effects, ChainRun) == []
    (persist,) = [e for e in effects if isinstance(e, Persist)]
    assert [type(e.message) for e in persist.then if isinstance(e, Send)] == [ChainRun]


def test_broker_keeps_to_its_journal_after_a_restart() -> None:
    made = restarted(JOURNAL, publish(1, b"a"))
    assert made.handle(publish(1, b"b"), T0) == [
        Drop(DropReason.CONFLICT, ALICE),
        Suspect(ALICE, Suspicion.EQUIVOCATION, STREAM),
    ]
    assert reasons(made.handle(publish(1, b"a"), T0)) == []


def test_broker_keeps_to_its_journal_for_runs_that_others_pass_on() -> None:
    """f+1 echoes are enough to echo a run, but not against an echo of an earlier life."""
    policy = Policy.named("brb", journal=True)

    def passed_on(of: bytes) -> list[Effect]:
        made = restarted(policy, publish(1, b"a"))
        word = Echo(STREAM, 1, root(1, digests(of)))
        feed(made.handle, Receive(B2, word), Receive(B3, word))
        return made.handle(contents(B2, 1, of), T0)

    assert reasons(passed_on(b"b")) == [DropReason.CONFLICT]
    assert len(sent(synced(passed_on(b"a")), Echo)) == 1


def test_broker_keeps_to_its_journal_towards_histories_too() -> None:
    """Else it could echo a history that denies what a subscriber accepted with its vote."""
    policy = Policy.named("ab+history", alpha=2, journal=True)
    cell = Cell(policy)
    made = restarted(policy, publish(1, b"a"))
    lie = publish(1, cell.history(1, 1, b"b"), stream=LANE)
    effects = feed(made.handle, lie, contents(B2, 1, b"b"))
    assert sent(effects, Echo) == []
    assert suspects(effects) == [ALICE]
    truth = publish(1, cell.history(1, 1, b"a"), stream=LANE)
    assert len(sent(synced(feed(made.handle, publish(1, b"a"), truth)), Echo)) == 1


def test_broker_compares_no_history_with_its_journal_that_was_altered() -> None:
    """Altered on the wire, it names other digests than its publisher wrote."""
    policy = Policy.named("ab+history", alpha=2, journal=True)
    true, other = (Cell(policy).history(1, 1, contents) for contents in (b"a", b"b"))
    made = restarted(policy, publish(1, b"a"))
    made.handle(publish(1, b"a"), T0)
    altered = Receive(ALICE, Publish(LANE, 1, digests(true)), (other,))
    effects = made.handle(altered, T0)
    assert (reasons(effects), suspects(effects)) == ([DropReason.BAD_BODY], [])


def test_broker_journal_says_up_to_where_a_stream_is_settled() -> None:
    made = broker(Policy.named("brb", journal=True))
    word = root(1, digests(b"a"))
    run = (publish(1, b"a"), *(Receive(peer, Ready(STREAM, 1, word)) for peer in (B2, B3)))
    records = journal_of(feed(made.handle, *run))
    assert [r for r in records if isinstance(r, Settled)] == [Settled(STREAM, 1)]


def test_broker_with_a_journal_echoes_only_what_the_disk_holds() -> None:
    """A broker that forgot its echo could echo another run: two of its words would count."""
    policy = Policy.named("brb", journal=True)
    effects = broker(policy).handle(publish(1, b"a"), T0)
    assert sent(effects, Echo) == []
    (record,) = [e.record for e in effects if isinstance(e, Persist)]
    assert record == Vouched(STREAM, 1, digests(b"a"))
    assert len(sent(synced(effects), Echo)) == 1


@pytest.mark.parametrize(
    ("first", "run"), [(1, (b"a",)), (1, (b"a", b"b", b"c")), (2, (b"b",)), (2, (b"b", b"c"))]
)
def test_broker_with_a_journal_echoes_no_run_that_is_cut_differently(
    first: int, run: tuple[bytes, ...]
) -> None:
    """Votes are about runs: with two cuts of one run both could gather enough echoes."""
    made = broker(Policy.named("brb", journal=True))
    made.handle(Restored(Vouched(STREAM, 1, digests(b"a", b"b"))), T0)
    made.handle(Receive(ALICE, Open(STREAM, first, first)), T0)
    effects = made.handle(publish(first, *run), T0)
    assert reasons(effects) == [DropReason.CONFLICT]
    assert suspects(effects) == [ALICE]
    again = broker(Policy.named("brb", journal=True))
    again.handle(Restored(Vouched(STREAM, 1, digests(b"a", b"b"))), T0)
    assert len(sent(synced(again.handle(publish(1, b"a", b"b"), T0)), Echo)) == 1


def test_broker_with_a_journal_is_ready_only_once_the_disk_holds_its_echo() -> None:
    """It counts its own echo: a crash in between, and it could echo another run."""
    made = broker(Policy.named("brb", journal=True))
    made.handle(publish(1, b"a"), T0)
    made.handle(echo(B2), T0)
    effects = made.handle(echo(B3), T0)
    assert sent(effects, Ready) == []
    assert len(sent(synced(effects), Ready)) == 1


def test_broker_with_a_journal_echoes_and_delivers_in_one_turn_only_what_the_disk_holds() -> None:
    """The contents come last, when everybody else is ready: the run is done with at once."""
    made = broker(Policy.named("brb", journal=True))
    word = Ready(STREAM, 1, root(1, digests(b"a")))
    effects = feed(made.handle, *(Receive(peer, word) for peer in (B2, B3, B4)))
    effects += made.handle(contents(B2, 1, b"a"), T0)
    assert sent(effects, Echo) == sent(effects, Ready) == []
    assert [len(sent(synced(effects), kind)) for kind in (Echo, Ready)] == [1, 1]


def test_broker_of_a_log_says_nothing_of_streams_that_a_liar_speaks_of_beside_it() -> None:
    """f+1 acknowledgements of nothing would end what a publisher goes on with."""
    made = broker(Policy.named("total"))
    for event in (replace(publish(1, b"a"), sender=B2), publish(1, b"a"), echo(B2)):
        assert made.handle(event, T0) == [Drop(DropReason.UNKNOWN_STREAM, event.sender)]


def test_broker_vouches_for_nothing_on_a_lane_that_a_channel_does_not_have() -> None:
    """A client that lies asks for histories where there are none."""
    made = broker(AB, BOB)
    made.handle(publish(1, b"a"), T0)
    assert sent(made.handle(subscribe(BOB, Cursor(LANE, 1)), Millis(APART_MS)), Vote) == []
    assert sent(made.handle(Receive(BOB, Pull(LANE, 1, 1)), T0), Contents) == []
    assert sent(made.handle(Receive(B2, Regain(LANE, 1, 1)), T0), Regained) == []


def test_broker_with_a_journal_repeats_only_what_the_disk_holds() -> None:
    made = broker(Policy.named("ab", journal=True))
    effects = made.handle(publish(1, b"a"), T0)
    (record,) = [e.record for e in effects if isinstance(e, Persist)]
    asked = subscribe(BOB, Cursor(STREAM, 1))
    assert sent(made.handle(asked, T0), Vote) == []
    surveyed = Receive(B2, Survey(ORDERS, b""))
    assert [p.positions for p in positions(made.handle(surveyed, T0))] == [()]
    made.handle(Persisted(record), T0)
    assert len(sent(made.handle(asked, Millis(APART_MS)), Vote)) == 1


def test_broker_with_a_journal_replays_only_what_the_disk_holds_where_it_let_go_of_the_rest() -> (
    None
):
    """The question begins before what is retained, and the last run is not on disk yet."""
    made = broker(replace(limited("ab", retained_publications=2, window=2), journal=True))
    (record,) = [
        e.record for e in made.handle(publish(1, b"a", b"b"), T0) if isinstance(e, Persist)
    ]
    made.handle(Persisted(record), T0)
    made.handle(publish(3, b"c"), T0)
    effects = made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0)
    assert messages(effects, Vote) == [Vote(STREAM, 2, digests(b"b"))]


def test_broker_never_replaces_a_journal_record_by_a_shorter_one() -> None:
    """A publisher that repeats half of a run must not make the journal forget the rest."""
    policy = Policy.named("chain", journal=True)
    cell, made = Cell(policy), broker(policy)
    longer, shorter = (b"a", b"b"), (b"a",)
    records: list[Record] = []
    for run in (longer, shorter):
        vouchers = cell.vouchers(ALICE, (B1, B2), 1, run, ORDER)
        effects = made.handle(chain_run(ALICE, 1, run, ORDER, vouchers), T0)
        records += [e.record for e in effects if isinstance(e, Persist)]
    assert records == [Vouched(STREAM, 1, digests(*longer))] * 2


def test_broker_keeps_its_word_on_a_channel_that_was_removed_meanwhile() -> None:
    cell = Cell(JOURNAL)
    without = replace(cell.manifest, channels=())
    made = Broker(without, cell.keyring(B1), life=b"another")
    made.handle(Restored(Vouched(STREAM, 1, digests(b"a"))), T0)
    made.adopt(replace(cell.manifest, epoch=2), cell.keyring(B1))
    assert reasons(made.handle(publish(1, b"other"), T0)) == [DropReason.CONFLICT]


def test_broker_with_a_journal_signs_only_what_the_disk_holds() -> None:
    made = broker(Policy.named("ab", journal=True), BOB)
    made.handle(publish(1, b"a"), T0)
    effects = made.handle(Receive(BOB, Attest(STREAM, 1)), T0)
    assert sent(effects, Checkpoint) == []
    assert len(sent(synced(effects), Checkpoint)) == 1


def test_journal_waits_for_a_longer_record_that_cannot_be_extended_from_the_ledger() -> None:
    """A broker signs a segment of what a history names, and does not hold the rest of it yet."""
    journal, ledger = Journal(), Ledger(Limits())
    longer = Attested(STREAM, 1, digests(b"a", b"b"))
    shorter = Attested(STREAM, 1, digests(b"a"))
    assert journal.extended(longer, ledger) == longer
    assert journal.extended(shorter, ledger) == longer
    journal.synced(longer)
    assert journal.extended(shorter, ledger) is None


def test_journal_replaces_no_record_by_a_shorter_one_that_is_partly_released() -> None:
    """A broker signs a segment again of which it no longer retains everything."""
    journal, ledger = Journal(), Ledger(Limits())
    signed = Attested(STREAM, 1, digests(b"a", b"b", b"c", b"d"))
    assert journal.extended(signed, ledger) == signed
    journal.synced(signed)
    assert journal.release(STREAM, 4, longest=4) == []
    assert journal.extended(Attested(STREAM, 1, b""), ledger) is None
    forgotten = journal.release(STREAM, 6, longest=4)
    assert Forget(Attested, str(STREAM), 2) in forgotten
    assert journal.addresses == 0


def test_broker_with_a_journal_echoes_nothing_else_when_others_have() -> None:
    """It is ready for what enough others echoed, and had itself echoed another run before."""
    made = restarted(replace(BRB, journal=True), publish(1, b"b"))
    run = Contents(STREAM, 1, digests(b"a"))
    effects = feed(made.handle, echo(B2), echo(B3), echo(B4), Receive(B2, run, (b"a",)))
    said = [*effects, *synced(effects)]
    assert messages(said, Ready) == [Ready(STREAM, 1, root(1, digests(b"a")))]
    assert messages(said, Echo) == []


def test_broker_journals_a_shorter_run_that_won_against_the_one_it_echoed() -> None:
    """The journal kept the longer run, and the broker voted for what it did not hold."""
    made = broker(replace(BRB, journal=True), BOB)
    made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0)
    made.handle(publish(1, b"x", b"y"), T0)
    won = Contents(STREAM, 1, digests(b"a"))
    effects = feed(made.handle, echo(B2), echo(B3), echo(B4), Receive(B2, won, (b"a",)))
    vouched = [e for e in effects if isinstance(e, Persist) and isinstance(e.record, Vouched)]
    assert [e.record for e in vouched][-1] == VouchedAgainstEcho(STREAM, 1, digests(b"a"))
    assert messages(effects, Vote) == []
    assert messages(synced(effects), Vote) == [Vote(STREAM, 1, digests(b"a"))]


@pytest.mark.parametrize("order", [0, 1])
def test_broker_that_voted_against_its_echo_never_echoes_there_again(order: int) -> None:
    """It took the run that had won for the one that it had echoed, and echoed both."""
    echoed = Vouched(STREAM, 1, digests(b"x", b"y"))
    records: list[Record] = [echoed, VouchedAgainstEcho(STREAM, 1, digests(b"a"))]
    for _ in range(2):  # the second restart finds what the first life wrote
        made = broker(replace(BRB, journal=True), BOB)
        for record in records if order else records[::-1]:
            made.handle(Restored(record), T0)
        made.handle(subscribe(BOB, Cursor(STREAM, 1)), T0)
        effects = feed(made.handle, publish(1, b"a"), echo(B2), echo(B3), echo(B4))
        said = [*effects, *synced(effects)]
        assert messages(said, Echo) == []
        assert messages(said, Vote) == [Vote(STREAM, 1, digests(b"a"))]
        written = [e.record for e in effects if isinstance(e, Persist)]
        assert echoed not in written
        records += [record for record in written if record not in records]
        assert reasons(made.handle(publish(1, b"x", b"y"), T0)) == [DropReason.CONFLICT]


def test_restarted_broker_echoes_again_the_settled_run_that_it_echoed() -> None:
    """All brokers had settled a run and lost it: each waited for ever for the others' echoes."""
    made = broker(replace(BRB, journal=True))
    for record in (Vouched(STREAM, 1, digests(b"a")), Settled(STREAM, 1)):
        made.handle(Restored(record), T0)
    effects = made.handle(publish(1, b"a"), T0)
    said = messages([*effects, *synced(effects)], Echo)
    assert said == [Echo(STREAM, 1, root(1, digests(b"a")))]


@pytest.mark.parametrize("order", [0, 1])
def test_restarted_broker_does_not_echo_a_run_that_was_settled_against_its_echo(order: int) -> None:
    """It fetched from its peers what the cell had settled."""
    records: list[Record] = [
        Vouched(STREAM, 1, digests(b"b")),
        Attested(STREAM, 1, digests(b"a")),
    ]
    made = broker(replace(BRB, journal=True))
    for record in (*(records if order else records[::-1]), Settled(STREAM, 1)):
        made.handle(Restored(record), T0)
    effects = made.handle(publish(1, b"a"), T0)
    assert messages([*effects, *synced(effects)], Echo) == []


def test_journal_remembers_what_was_settled_while_less_of_it_is_settled_again() -> None:
    """After a second restart no broker knew, and none went on where its publisher still was."""
    settled = Settled(STREAM, 2)
    made = broker(replace(BRB, journal=True))
    made.handle(Restored(settled), T0)
    digest = root(1, digests(b"a"))
    others = [Receive(b, kind(STREAM, 1, digest)) for kind in (Echo, Ready) for b in (B2, B3, B4)]
    effects = feed(made.handle, publish(1, b"a"), *others)
    assert made.streams()[STREAM].settled == 1
    again = broker(replace(BRB, journal=True))
    for record in (settled, *(e.record for e in effects if isinstance(e, Persist))):
        again.handle(Restored(record), T0)
    effects = feed(again.handle, Receive(ALICE, Open(STREAM, 3, 3)), publish(3, b"c"))
    said = messages([*effects, *synced(effects)], Echo)
    assert said == [Echo(STREAM, 3, root(3, digests(b"c")))]


def test_broker_journals_no_later_numbers_for_a_delivered_run_that_retention_removed() -> None:
    """A straggler repeats its echo of a run of which the beginning is not retained any more."""
    limits = {"retained_publications": 4, "window": 4, "segment": 4}
    made = broker(replace(limited("brb", **limits), journal=True))
    records: list[Record] = []
    for first, run in ((1, (b"a", b"b", b"c", b"d")), (5, (b"e", b"f"))):
        digest = root(first, digests(*run))
        votes = [
            Receive(b, kind(STREAM, first, digest)) for kind in (Echo, Ready) for b in (B2, B3, B4)
        ]
        effects = feed(made.handle, publish(first, *run), *votes)
        records += [e.record for e in effects if isinstance(e, Persist)]
    assert Vouched(STREAM, 1, digests(b"a", b"b", b"c", b"d")) in records
    again = made.handle(Receive(B2, Echo(STREAM, 1, root(1, digests(b"a", b"b", b"c", b"d")))), T0)
    assert messages([*again, *synced(again)], Ready) == [
        Ready(STREAM, 1, root(1, digests(b"a", b"b", b"c", b"d")))
    ]
    assert [e.record for e in again if isinstance(e, Persist)] == []


def test_broker_journals_a_run_before_its_echo_although_retention_removes_it_at_once() -> None:
    """The contents came last: two runs were echoed and delivered in the same turn."""
    limits = {"retained_publications": 4, "window": 4, "segment": 4}
    made = broker(replace(limited("brb", **limits), journal=True))
    runs = ((1, (b"a", b"b")), (3, (b"c", b"d", b"e")))
    votes = [
        Receive(b, kind(STREAM, first, root(first, digests(*run))))
        for first, run in runs
        for kind in (Echo, Ready)
        for b in (B2, B3, B4)
    ]
    later, earlier = (
        Receive(B2, Contents(STREAM, first, digests(*run)), run) for first, run in reversed(runs)
    )
    feed(made.handle, *votes, later)
    effects = made.handle(earlier, T0)
    assert messages(effects, Echo) == []
    (said,) = (e for e in effects if isinstance(e, Persist) and messages([*e.then], Echo))
    assert said.record == Vouched(STREAM, 1, digests(b"a", b"b"))


def positions(effects: list[Effect]) -> list[Positions]:
    return [s.message for s in sent(effects, Positions) if isinstance(s.message, Positions)]


def synced(effects: list[Effect]) -> list[Effect]:
    """What follows once the disk holds everything."""
    return [e for effect in effects if isinstance(effect, Persist) for e in effect.then]


def test_broker_forged_run_against_the_journal_does_not_make_the_publisher_a_suspect() -> None:
    made = restarted(JOURNAL, publish(1, b"a"))
    effects = made.handle(publish(1, b"b", sender=B2), T0)
    assert suspects(effects) == []


# ------------------------------------------------------------------- limits


def test_broker_streams_of_a_publisher_are_bounded_and_the_oldest_gives_way() -> None:
    made = broker(limited("ab", streams_per_publisher=2))
    for incarnation in range(1, 10):
        made.handle(publish(1, b"a", stream=Stream(ORDERS, ALICE, incarnation)), T0)
    assert [s.incarnation for s in made.streams()] == [8, 9]


def test_broker_ends_a_life_of_which_nothing_is_left_and_says_so() -> None:
    """Retention counts over all lives; a subscriber that missed one must hear of it."""
    policy = limited("ab", retained_publications=4, window=4, segment=4)
    made = broker(policy, BOB)
    lives = [Stream(ORDERS, ALICE, 2 * n) for n in range(1, 5)]
    for life in lives:
        made.handle(publish(1, b"a", b"b", stream=life), T0)
    assert list(made.streams()) == lives[2:]
    ended, held = [Position(life, 3, 3, over=True) for life in lives[:2]], lives[2:]
    told = Positions(ORDERS, (*ended, *(Position(life, 1, 3) for life in held)), bodies=True)
    assert messages(made.handle(subscribe(), T0), Positions) == [told]
    assert made.handle(publish(3, b"c", stream=lives[0]), T0) == [
        Drop(DropReason.UNKNOWN_STREAM, ALICE)
    ]


def test_broker_with_a_journal_remembers_which_lives_are_over() -> None:
    policy = replace(limited("ab", retained_publications=4, window=4, segment=4), journal=True)
    made = broker(policy)
    scheduler = Scheduler("journal")
    disk = Disk(scheduler, 0)
    for n in range(1, 5):
        for effect in made.handle(publish(1, b"a", b"b", stream=Stream(ORDERS, ALICE, 2 * n)), T0):
            if isinstance(effect, Persist):
                disk.write(effect.record, lambda: None)
            elif isinstance(effect, Forget):
                disk.forget(effect.kind, effect.owner, effect.below, effect.since)
    scheduler.run_until(Millis(1), 10**6)
    again = broker(policy)
    for record in disk.durable:
        again.handle(Restored(record), T0)
    old = Stream(ORDERS, ALICE, 2)
    assert again.handle(publish(1, b"other", stream=old), T0) == [
        Drop(DropReason.UNKNOWN_STREAM, ALICE)
    ]
    ended = tuple(Position(Stream(ORDERS, ALICE, n), 3, 3, over=True) for n in (2, 4))
    assert messages(again.handle(subscribe(), T0), Positions) == [
        Positions(ORDERS, ended, bodies=True)
    ]
    assert str(old) not in {record.owner for record in disk.durable}


def test_broker_stream_that_gave_way_never_comes_back() -> None:
    """Opened anew it would vouch, and sign, for other contents in place of those it forgot."""
    made = broker(limited("ab", streams_per_publisher=2), BOB)
    target = Stream(ORDERS, ALICE, 100)
    made.handle(publish(1, b"x", stream=target), T0)
    for incarnation in (1, 2, 3, 101, 102):
        made.handle(publish(1, b"x", stream=Stream(ORDERS, ALICE, incarnation)), T0)
    assert made.handle(publish(1, b"y", stream=target), T0) == [
        Drop(DropReason.UNKNOWN_STREAM, ALICE)
    ]
    assert [s.incarnation for s in made.streams()] == [101, 102]


def opened(incarnation: int, base: int = 1, fresh: int = 1) -> Receive:
    return Receive(ALICE, Open(Stream(ORDERS, ALICE, incarnation), base, fresh))


@pytest.mark.parametrize("policy", ["ab", "brb", "ab+history", "chain"])
def test_broker_earlier_life_of_a_publisher_is_told_the_latest(policy: str) -> None:
    made = broker(limited(policy))
    made.handle(opened(100), T0)
    earlier = Stream(ORDERS, ALICE, 98)
    assert made.handle(opened(98), T0) == [
        Drop(DropReason.OUTLIVED, ALICE),
        Send((ALICE,), Outlived(earlier, 100)),
    ]
    assert made.served(earlier) is None
    for same in (101, 100, 102):
        assert not messages(made.handle(opened(same), T0), Outlived)
    # The other stream of the latest life is not an earlier one.
    assert not messages(made.handle(opened(103), T0), Outlived)
    assert not messages(made.handle(opened(102), T0), Outlived)


def test_broker_earlier_life_that_is_under_way_goes_on() -> None:
    """This broker has forgotten it, and others have not."""
    made = broker()
    made.handle(opened(100), T0)
    assert not messages(made.handle(opened(98, base=1, fresh=7), T0), Outlived)
    assert made.served(Stream(ORDERS, ALICE, 98)) is not None


def test_broker_life_that_only_another_broker_speaks_of_is_not_the_latest() -> None:
    made = broker(BRB)
    invented = Stream(ORDERS, ALICE, 1 << 60)
    made.handle(Receive(B2, Echo(invented, 1, bytes(32))), T0)
    assert not messages(made.handle(opened(98), T0), Outlived)


@pytest.mark.parametrize("policy", ["ab", "brb", "ab+history"])
def test_broker_streams_that_were_opened_and_not_used_give_way_first(policy: str) -> None:
    """Programs that fail before they publish anything must not cost what was published before."""
    made = broker(limited(policy, streams_per_publisher=2))
    made.handle(publish(1, b"x", stream=Stream(ORDERS, ALICE, 1)), T0)
    for incarnation in range(2, 10):
        made.handle(Receive(ALICE, Open(Stream(ORDERS, ALICE, incarnation), 1, 1)), T0)
    assert [s.incarnation for s in made.streams()] == [1, 8, 9]
    # One that gave way so is as good as new when its publisher does use it.
    made.handle(publish(1, b"y", stream=Stream(ORDERS, ALICE, 7)), T0)
    assert [s.incarnation for s in made.streams()] == [1, 9, 7]


def test_broker_older_streams_do_not_displace_younger_ones() -> None:
    made = broker(limited("ab", streams_per_publisher=2))
    for incarnation in (100, 101, 1, 2):
        made.handle(publish(1, b"x", stream=Stream(ORDERS, ALICE, incarnation)), T0)
    assert [s.incarnation for s in made.streams()] == [100, 101]


def test_broker_streams_that_a_liar_invents_displace_only_its_own() -> None:
    made = broker(limited("brb", streams_per_publisher=2))
    made.handle(publish(1, b"a"), T0)
    for incarnation in range(2, 50):
        made.handle(echo(B2, Stream(ORDERS, ALICE, incarnation)), T0)
        made.handle(echo(B2, Stream(ORDERS, CAROL, incarnation)), T0)
    assert STREAM in made.streams()
    assert made.sizes()["streams"] == 5


def test_broker_invented_streams_are_not_passed_on_as_hearsay() -> None:
    made = broker(BRB)
    made.handle(echo(B2, Stream(ORDERS, ALICE, 77)), T0)
    assert messages(made.handle(subscribe(), T0), Positions) == [Positions(ORDERS, (), bodies=True)]


def test_broker_stream_without_right_is_not_opened_for_a_broker_either() -> None:
    made = broker(BRB)
    effects = made.handle(echo(B2, Stream(ORDERS, NodeId("mallory"), 1)), T0)
    assert reasons(effects) == [DropReason.NO_RIGHT]
    assert made.sizes()["streams"] == 0


@pytest.mark.parametrize("name", ["ab", "brb", "chain", "ab+history", "direct"])
def test_broker_stream_opened_at_the_end_of_all_numbers_harms_nobody(name: str) -> None:
    """What the broker then tells others must be decodable, and take no time."""
    made = broker(limited(name), BOB)
    top = 2**62
    effects = feed(
        made.handle,
        Receive(ALICE, Open(STREAM, top, 1)),
        Receive(ALICE, Open(STREAM, 1, top)),
        Receive(ALICE, Open(LANE, top, top)),
        publish(top, b"a", b"b"),
        Receive(B2, Echo(STREAM, top, root(1, b""))),
        Receive(B2, Ready(STREAM, top, root(1, b""))),
    )
    effects += made.handle(subscribe(BOB, Cursor(STREAM, 1)), Millis(APART_MS))
    assert [m for s in sent(effects) if not is_sendable(m := s.message)] == []


def test_broker_is_bounded_against_everything_one_client_can_send() -> None:
    policy = limited("ab+history", window=8, retained_publications=8, streams_per_publisher=2)
    cell, made = Cell(policy), broker(policy, BOB)
    for i in range(1, 300):
        stream = Stream(ORDERS, ALICE, i)
        feed(
            made.handle,
            Receive(ALICE, Open(stream, i, i)),
            publish(1, b"x", stream=stream),
            publish(1, cell.history(1, 1, b"x"), stream=stream.history),
            publish(i, b"%d" % i),
            publish(i, cell.history(i, 1, b"%d" % i), stream=LANE),
            subscribe(ALICE, Cursor(stream, i)),
            Receive(ALICE, Missed(stream, i, i)),
            Receive(ALICE, Attest(stream, i)),
            Receive(ALICE, Pull(stream, i, 1)),
            now=i * APART_MS,
        )
    assert made.sizes()["streams"] == 2
    assert max(made.sizes().values()) <= 64


def test_broker_remembers_where_so_many_streams_of_a_publisher_ended() -> None:
    made = broker(limited("ab", streams_per_publisher=2))
    for incarnation in range(1, 300):
        made.handle(publish(1, b"a", stream=Stream(ORDERS, ALICE, incarnation)), T0)
    assert made.sizes()["ended"] == MAX_ENDED


@pytest.mark.parametrize("name", ["ab", "chain", "direct"])
def test_broker_streams_that_ended_at_the_last_numbers_are_told_of_in_decodable_messages(
    name: str,
) -> None:
    made = broker(limited(name, streams_per_publisher=2), BOB)
    for incarnation in range(2, 2 * MAX_ENDED + 40, 2):
        stream = Stream(ORDERS, ALICE, incarnation)
        last = MAX_NUMBER - 9
        feed(
            made.handle,
            Receive(ALICE, Open(stream, last, last)),
            publish(last, b"a", stream=stream),
        )
    (told,) = messages(made.handle(subscribe(BOB), Millis(APART_MS)), Positions)
    assert isinstance(told, Positions)
    assert len(told.positions) > MAX_ENDED
    assert is_sendable(told)


def test_broker_is_bounded_against_everything_one_broker_can_send() -> None:
    policy = limited("brb", window=8, retained_publications=8, streams_per_publisher=2)
    made = broker(policy, BOB)
    made.handle(publish(1, b"a"), T0)
    effects: list[Effect] = []
    for i in range(1, 300):
        for stream in (STREAM, Stream(ORDERS, ALICE, i + 1)):
            effects += feed(
                made.handle,
                echo(B4, stream, i),
                Receive(B4, Ready(stream, i, root(i, digests(b"%d" % i)))),
                Receive(B4, Pull(stream, i, 1)),
                contents(B4, i, b"%d" % i, stream=stream),
                publish(i, b"%d" % i, sender=B4, stream=stream),
            )
    assert made.sizes()["streams"] == 3
    assert max(made.sizes().values()) <= 17
    assert set(suspects(effects)) <= {B4}
    assert accused(effects) == []
    assert delivered(effects) == []


def test_broker_timer_of_a_stream_that_is_gone_is_ignored() -> None:
    class Strange(Timer, frozen=True, tag=True):
        pass

    assert broker().handle(TimerFired(Strange()), T0) == []


def test_broker_publish_without_bodies_is_a_bad_run() -> None:
    effects = broker().handle(Receive(ALICE, Publish(STREAM, 1, digests(b"a"))), T0)
    assert reasons(effects) == [DropReason.BAD_RUN]


def test_broker_begins_no_stream_that_would_be_later_than_all_lives() -> None:
    """Streams that are resumed are of a log: elsewhere one would outlive its publisher's clock."""
    made, resumed = broker(AB), Stream(ORDERS, ALICE, resumable(1, 1))
    refused = made.handle(Receive(ALICE, Open(resumed, 1, 1)), T0)
    assert reasons(refused) == [DropReason.UNKNOWN_STREAM]
    assert messages(made.handle(Receive(ALICE, Open(STREAM, 1, 1)), T0), Ack)
