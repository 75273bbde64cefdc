"""The publisher and its lines: runs, histories, adaptive α, refusals. n = 4, f = 1."""

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
    LANE,
    ORDERS,
    STREAM,
    T0,
    Cell,
    bodies,
    digests,
    limited,
    messages,
    reasons,
    sent,
)

from quorumcast.broadcast.application import Acknowledged, Refused, Renewed, Submit
from quorumcast.broadcast.messages import Ack, ChainRun, Open, Outlived, Publish
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.messages import Finish, Refuse, Unsubscribe
from quorumcast.cell.publishing.published_stream import (
    MAX_REST_BYTES,
    MAX_RUN_BYTES,
    RETRANSMIT_MS,
    TAIL_MS,
    Retransmit,
    TailHistory,
)
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, LAST_INCARNATION, Channel, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import (
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Receive,
    Send,
    SetTimer,
    TimerFired,
)
from quorumcast.core.statements import HistoryStatement
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)


def ack(
    broker: NodeId, upto: int, credit: int = 10_000, settled: int = 0, missed: int = 0
) -> Receive:
    return Receive(broker, Ack(STREAM, upto, credit, settled, missed))


def publisher(policy: Policy = AB) -> Publisher:
    """One that all brokers have given credit to."""
    made = Cell(policy).publisher()
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.open(ORDERS)
    for broker in BROKERS:
        made.handle(ack(broker, 0), T0)
        made.handle(Receive(broker, Ack(LANE, 0, 10_000)), T0)
    return made


def submit(to: Publisher, *contents: bytes, now: int = 0) -> list[Effect]:
    return to.handle(Submit(ORDERS, contents), Millis(now))


def histories(effects: list[Effect]) -> list[HistoryStatement]:
    found = [
        read_history(send.bodies[0], STREAM)
        for send in sent(effects, Publish)
        if isinstance(send.message, Publish) and send.message.stream == LANE
    ]
    return [f[1] for f in found if f is not None]


# ------------------------------------------------------------------- runs


def test_publisher_submission_goes_to_all_brokers_and_is_watched() -> None:
    assert submit(publisher(), b"a", b"b") == [
        Send(BROKERS, Publish(STREAM, 1, digests(b"a", b"b")), (b"a", b"b")),
        SetTimer(Retransmit(STREAM), RETRANSMIT_MS),
    ]


def test_publisher_first_submission_introduces_the_stream() -> None:
    made = Cell(AB).publisher()
    made.handle(Connected(B1), T0)
    assert sent(submit(made, b"a")) == [Send((B1,), Open(STREAM, 1, 1))]
    assert sent(made.handle(Connected(B2), T0)) == [Send((B2,), Open(STREAM, 1, 1))]
    assert sent(made.handle(ack(B1, 0), T0)) == [
        Send((B1,), Publish(STREAM, 1, digests(b"a")), (b"a",))
    ]


def test_publisher_urgent_is_a_stream_of_its_own_with_its_own_numbers_and_acks() -> None:
    made = publisher()
    urgent = made.stream(ORDERS, urgent=True)
    assert urgent.incarnation == STREAM.incarnation + 1
    submit(made, b"a", b"b")
    opened = made.handle(Submit(ORDERS, (b"c",), urgent=True), T0)
    assert sent(opened, Open) == [Send((broker,), Open(urgent, 1, 1)) for broker in BROKERS]
    effects = [
        effect
        for broker in BROKERS
        for effect in made.handle(Receive(broker, Ack(urgent, 0, 10)), T0)
    ]
    run = Publish(urgent, 1, digests(b"c"))
    assert [send.message for send in sent(effects)] == [run] * 4
    assert (made.published(ORDERS), made.published(ORDERS, urgent=True)) == (2, 1)
    for broker in (B1, B2):
        assert made.handle(Receive(broker, Ack(urgent, 1, 10)), T0) == []
    assert made.handle(Receive(B3, Ack(urgent, 1, 10)), T0) == [Acknowledged(urgent, 1)]
    assert made.room(ORDERS) == made.room(ORDERS, urgent=True) - 2


def test_publisher_connection_of_a_client_is_ignored() -> None:
    made = publisher()
    assert made.handle(Connected(BOB), T0) == []
    assert made.handle(Disconnected(BOB), T0) == []


def test_publisher_large_submission_is_cut_into_runs() -> None:
    effects = submit(publisher(), *bodies(1, MAX_RUN + 1))
    runs = [m for m in messages(effects, Publish) if isinstance(m, Publish)]
    assert [(m.first, len(m.digests) // 32) for m in runs] == [(1, MAX_RUN), (MAX_RUN + 1, 1)]


def test_publisher_large_bodies_are_cut_into_runs_by_bytes() -> None:
    half = bytes(MAX_RUN_BYTES // 2 + 1)
    effects = submit(publisher(), half, half, b"small")
    runs = [m.first for m in messages(effects, Publish) if isinstance(m, Publish)]
    assert runs == [1, 2]


def test_publisher_small_rest_by_bytes_goes_with_the_run_before_it() -> None:
    full = bytes(MAX_RUN_BYTES)
    for rest, expected in ((MAX_REST_BYTES, [1, 2]), (MAX_REST_BYTES + 1, [1, 2, 3])):
        effects = submit(publisher(), full, full, bytes(rest))
        runs = [m.first for m in messages(effects, Publish) if isinstance(m, Publish)]
        assert runs == expected


def test_publisher_runs_with_history_are_no_longer_than_alpha() -> None:
    """A run longer than 2α would never find credit."""
    effects = submit(publisher(limited("ab+history", alpha=3)), *bodies(1, 8))
    runs = [m for m in messages(effects, Publish) if isinstance(m, Publish) and m.stream == STREAM]
    assert [len(m.digests) // 32 for m in runs] == [3, 3, 2]


def test_publisher_acknowledgement_is_reported_at_n_minus_f() -> None:
    made = publisher()
    submit(made, b"a")
    assert made.handle(ack(B1, 1), T0) == []
    assert made.handle(ack(B2, 1), T0) == []
    assert made.handle(ack(B3, 1), T0) == [Acknowledged(STREAM, 1)]


def test_publisher_ack_about_another_stream_or_by_a_client_is_dropped() -> None:
    made = publisher()
    other = made.stream(ORDERS).__class__(ORDERS, ALICE, 2)
    assert reasons(made.handle(Receive(B1, Ack(other, 1, 1)), T0)) == [DropReason.UNKNOWN_STREAM]
    assert reasons(made.handle(ack(BOB, 1), T0)) == [DropReason.WRONG_SENDER]
    assert reasons(made.handle(Receive(B1, Unsubscribe(ORDERS)), T0)) == [DropReason.UNEXPECTED]
    assert made.handle(Receive(B1, Ack(LANE, 1, 1)), T0) == [Drop(DropReason.UNEXPECTED, B1)]


def test_publisher_retransmits_until_all_that_can_be_reached_are_done() -> None:
    made = publisher()
    submit(made, b"a")
    for broker in (B1, B2, B3):
        made.handle(ack(broker, 1), T0)
    effects = made.handle(TimerFired(Retransmit(STREAM)), T0)
    assert [s.to for s in sent(effects, Publish)] == [(B4,)]
    assert SetTimer(Retransmit(STREAM), RETRANSMIT_MS) in effects
    made.handle(ack(B4, 1), T0)
    assert made.handle(TimerFired(Retransmit(STREAM)), T0) == []


def test_publisher_stale_timers_of_unknown_channels_are_ignored() -> None:
    made = Cell(AB).publisher()
    assert made.handle(TimerFired(Retransmit(STREAM)), T0) == []
    assert made.handle(TimerFired(TailHistory(STREAM)), T0) == []


def test_publisher_unknown_channel_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="no channel 'nowhere'"):
        publisher().handle(Submit(Channel("nowhere"), (b"a",)), T0)


def test_publisher_room_counts_what_is_not_acknowledged() -> None:
    made = publisher(limited("ab", publisher_buffer=10))
    submit(made, *bodies(1, 4))
    assert (made.room(ORDERS), made.published(ORDERS), made.alpha(ORDERS)) == (6, 4, 0)


def test_publisher_on_a_chain_speaks_to_its_head_only() -> None:
    effects = submit(publisher(Policy.named("chain")), b"a")
    assert [s.to for s in sent(effects, ChainRun)] == [(B1,)]


# -------------------------------------------------------------- histories


def test_publisher_history_follows_at_alpha_and_not_before() -> None:
    made = publisher(limited("ab+history", alpha=2))
    assert histories(submit(made, b"p1")) == []
    (statement,) = histories(submit(made, b"p2"))
    assert (statement.index, statement.first, statement.digests) == (1, 1, digests(b"p1", b"p2"))


def test_publisher_histories_follow_one_another_without_gap() -> None:
    made = publisher(limited("ab+history", alpha=2))
    found = histories(submit(made, *bodies(1, 2))) + histories(submit(made, *bodies(3, 2)))
    assert [(h.index, h.first, len(h.digests) // 32) for h in found] == [(1, 1, 2), (2, 3, 2)]


def test_publisher_tail_gets_a_history_after_a_moment_of_idleness() -> None:
    made = publisher(limited("ab+history", alpha=10))
    assert SetTimer(TailHistory(STREAM), TAIL_MS) in submit(made, b"p1", now=5)
    early = made.handle(TimerFired(TailHistory(STREAM)), Millis(TAIL_MS))
    assert histories(early) == []
    assert SetTimer(TailHistory(STREAM), TAIL_MS) in early
    late = made.handle(TimerFired(TailHistory(STREAM)), Millis(5 + TAIL_MS))
    assert [h.digests for h in histories(late)] == [digests(b"p1")]
    assert made.handle(TimerFired(TailHistory(STREAM)), Millis(1000)) == []


def test_publisher_that_is_never_idle_owes_a_history_after_a_while() -> None:
    """At 100 publications/s, α = 1,024 meant ten seconds until the fast path was repaired."""
    assert times_of_histories(settled_after_ms=0, until_ms=1000) == [320, 640, 960]


def test_publisher_owes_fewer_histories_to_a_busy_cell() -> None:
    """A hundred streams of 60 publications/s kept brokers busy with histories alone."""
    assert times_of_histories(settled_after_ms=400, until_ms=5000) == [320, 1920, 3520]


def test_publisher_whose_history_nobody_settles_owes_the_next_one_all_the_same() -> None:
    """The acknowledgement that says so may be lost."""
    assert times_of_histories(settled_after_ms=10_000, until_ms=5000) == [320, 2320, 4320]


def times_of_histories(settled_after_ms: int, until_ms: int) -> list[int]:
    """When a publisher that is never idle sends histories; each is settled after a while."""
    made = publisher(limited("ab+history", alpha=100))
    sent_at: list[int] = []
    settles: dict[int, int] = {}
    submit(made, b"p0", now=0)
    for now in range(TAIL_MS // 2, until_ms, TAIL_MS // 2):
        if now in settles:
            for broker in BROKERS:
                made.handle(ack(broker, settles[now], settled=settles[now]), Millis(now))
        if now % TAIL_MS == 0:
            found = histories(made.handle(TimerFired(TailHistory(STREAM)), Millis(now)))
            sent_at += [now] * len(found)
            for history in found:
                end = history.first + len(history.digests) // DIGEST_SIZE - 1
                settles[now + max(settled_after_ms, TAIL_MS // 2)] = end
        submit(made, b"p%d" % now, now=now)
    return sent_at


def test_publisher_history_is_no_longer_than_two_alpha() -> None:
    made = publisher(limited("ab+history", alpha=2))
    for number in range(1, 20):
        for statement in histories(submit(made, *bodies(number, 1))):
            assert len(statement.digests) // 32 <= 4


def test_publisher_acknowledged_histories_are_not_the_applications_business() -> None:
    made = publisher(limited("ab+history", alpha=1))
    submit(made, b"a")
    effects = [e for b in BROKERS for e in made.handle(Receive(b, Ack(LANE, 1, 100)), T0)]
    assert effects == []


# -------------------------------------------------------------- adaptive α


def adaptive() -> Publisher:
    return publisher(Policy.named("ab+history", alpha=2, alpha_max=8))


def settle(made: Publisher, upto: int, missed: int = 0, brokers: int = 4) -> None:
    for broker in BROKERS[:brokers]:
        made.handle(ack(broker, upto, settled=upto, missed=missed), T0)


def test_publisher_alpha_doubles_while_histories_repair_nothing() -> None:
    """Freeman §8.1."""
    made = adaptive()
    seen = []
    number = 1
    for _ in range(4):
        count = made.alpha(ORDERS)
        submit(made, *bodies(number, count))
        number += count
        settle(made, number - 1)
        seen.append(made.alpha(ORDERS))
    assert seen == [4, 8, 8, 8]


def test_publisher_alpha_doubles_though_the_newest_histories_are_always_under_way() -> None:
    """As on a loaded channel, where α stayed at its lower end for ever."""
    made = adaptive()
    submit(made, *bodies(1, 2))
    seen = []
    for last in (2, 6, 14):
        submit(made, *bodies(last + 1, 8))
        settle(made, last)
        seen.append(made.alpha(ORDERS))
    assert seen == [4, 4, 8]


def test_publisher_alpha_halves_when_subscribers_missed_something() -> None:
    made = adaptive()
    submit(made, *bodies(1, 2))
    settle(made, 2)
    submit(made, *bodies(3, 4))
    settle(made, 6)
    assert made.alpha(ORDERS) == 8
    settle(made, 6, missed=1)
    assert made.alpha(ORDERS) == 4
    settle(made, 6, missed=1)
    assert made.alpha(ORDERS) == 4
    settle(made, 6, missed=9)
    settle(made, 6, missed=10)
    assert made.alpha(ORDERS) == 2, "and no lower than α"


def test_publisher_alpha_is_not_moved_by_f_liars() -> None:
    made = adaptive()
    submit(made, *bodies(1, 2))
    settle(made, 2, brokers=1)
    assert made.alpha(ORDERS) == 2, "one broker alone says that it settled"
    settle(made, 2)
    assert made.alpha(ORDERS) == 4
    made.handle(ack(B4, 2, settled=2, missed=2**61), T0)
    assert made.alpha(ORDERS) == 4, "one broker alone says that something was missed"
    settle(made, 2, missed=1, brokers=3)
    assert made.alpha(ORDERS) == 2, "and the lie does not drown the truth"


# ---------------------------------------------------------------- refusals


def test_publisher_refusal_of_f_brokers_is_not_believed_of_f_plus_1_is() -> None:
    made = publisher()
    assert made.handle(Receive(B1, Refuse(ORDERS, "no right")), T0) == []
    assert made.handle(Receive(B1, Refuse(ORDERS, "no right")), T0) == []
    assert made.handle(Receive(B2, Refuse(ORDERS, "no right")), T0) == [
        Refused(ORDERS, "no right"),
        Send((B1, B2, B3, B4), Finish(ORDERS)),
    ]


def test_publisher_place_goes_when_the_urgent_stream_has_ended_as_well() -> None:
    made = publisher()
    made.open(ORDERS, urgent=True)
    assert made.finish(ORDERS) == []
    assert made.finish(ORDERS, urgent=True) == [Send(BROKERS, Finish(ORDERS))]


def test_publisher_refusal_is_reported_once() -> None:
    made = publisher()
    effects = [
        e
        for broker in (B1, B2, B2, B1, B3)
        for e in made.handle(Receive(broker, Refuse(ORDERS, "no right")), T0)
    ]
    assert effects.count(Refused(ORDERS, "no right")) == 1


def test_publisher_refusals_of_channels_it_never_used_fill_nothing() -> None:
    made = publisher()
    for i in range(500):
        event = Receive(B4, Refuse(Channel(f"invented-{i}"), "no"))
        assert reasons(made.handle(event, T0)) == [DropReason.UNEXPECTED]
    assert reasons(made.handle(Receive(BOB, Refuse(ORDERS, "no")), T0)) == [DropReason.UNEXPECTED]


def test_publisher_buffers_are_bounded_and_named() -> None:
    made = publisher(limited("ab+history", alpha=1, publisher_buffer=8))
    for number in range(1, 60):
        submit(made, b"x")
        settle(made, number, brokers=3)
        for broker in (B1, B2, B3):
            made.handle(Receive(broker, Ack(LANE, number, 10_000, number)), T0)
    sizes = made.sizes()
    assert sizes[f"{STREAM}/data/runs"] <= 5
    assert sizes[f"{STREAM}/history/runs"] <= 5


# ------------------------------------------------------- what histories name


def test_publisher_history_names_only_what_was_sent_and_whole_runs() -> None:
    """One that named what waits for credit would wait for it, and the credit for the history."""
    made = publisher(limited("ab+history", alpha=2))
    for broker in BROKERS:
        made.handle(ack(broker, 0, credit=4), T0)
    effects = submit(made, *bodies(1, 7))
    assert [(h.first, len(h.digests) // 32) for h in histories(effects)] == [(1, 2), (3, 2)]
    tail = made.handle(TimerFired(TailHistory(STREAM)), Millis(TAIL_MS))
    assert histories(tail) == []
    more = [e for b in BROKERS for e in made.handle(ack(b, 4, credit=8, settled=4), T0)]
    assert [(h.first, len(h.digests) // 32) for h in histories(more)] == [(5, 3)]


def test_publisher_sends_a_history_before_brokers_let_go_of_what_it_names() -> None:
    """They retain so many bytes, and echo only what they hold."""
    made = publisher(limited("ab+history", alpha=100, window=100, retained_bytes=4000))
    sent = [h for n in range(8) for h in histories(submit(made, b"%d" % n * 400))]
    assert [(h.first, len(h.digests) // 32) for h in sent] == [(1, 3), (4, 3)]


def test_publisher_sends_histories_by_the_bytes_that_a_new_epoch_retains() -> None:
    made = publisher(limited("ab+history", alpha=100, window=100))
    assert [h for n in range(8) for h in histories(submit(made, b"%d" % n * 400))] == []
    lower = Cell(limited("ab+history", alpha=100, window=100, retained_bytes=4000))
    made.adopt(lower.manifest, lower.keyring(ALICE))
    sent = histories(submit(made, b"more"))
    assert [(h.first, len(h.digests) // 32) for h in sent] == [(1, 5), (6, 4)]


def test_publisher_that_finishes_covers_its_tail_at_once() -> None:
    made = publisher(limited("ab+history", alpha=10))
    assert histories(submit(made, b"a", b"b")) == []
    assert [h.digests for h in histories(made.finish(ORDERS))] == [digests(b"a", b"b")]
    assert histories(made.finish(ORDERS)) == []


# ------------------------------------------------- where a broker begins


def opened(made: Publisher, broker: NodeId) -> list[Open]:
    """How both lanes are introduced to a broker that comes."""
    made.handle(Disconnected(broker), T0)
    found = messages(made.handle(Connected(broker), T0), Open)
    return [message for message in found if isinstance(message, Open)]


@pytest.mark.parametrize("policy", ["ab+history", "chain+history"])
def test_publisher_broker_begins_with_the_first_history_that_it_gets(policy: str) -> None:
    """Acks may be lost on one lane alone. On a chain nobody brings it what no history names."""
    made = publisher(limited(policy, alpha=2))
    for number in (1, 3):
        submit(made, *bodies(number, 2))
    for broker in BROKERS:
        made.handle(ack(broker, 4, settled=2), T0)
        made.handle(Receive(broker, Ack(LANE, 2, 10_000, 2)), T0)
    submit(made, *bodies(5, 2))
    assert opened(made, B4) == [Open(STREAM, 3, 5), Open(LANE, 3, 3)]
    for broker in BROKERS:
        made.handle(Receive(broker, Ack(LANE, 3, 10_000, 2)), T0)
    larger = Cell(limited(policy, alpha=2), n=5)
    made.adopt(larger.manifest, larger.keyring(ALICE))
    assert opened(made, B5) == [Open(STREAM, 3, 5), Open(LANE, 3, 1)]


def test_publisher_broker_beside_a_chain_leaves_out_nothing_that_a_history_waits_for() -> None:
    """The chain holds it, and the buffer is full. The others fetch it from there, and echo."""
    made = publisher(limited("chain+history", alpha=2, publisher_buffer=8))
    for number in (1, 3, 5, 7):
        submit(made, *bodies(number, 2))
        for broker in (B1, B2, B3):
            made.handle(ack(broker, number + 1), T0)
    for broker in BROKERS:
        made.handle(Receive(broker, Ack(LANE, 4, 10_000, 1)), T0)
    assert opened(made, B4) == [Open(STREAM, 1, 3), Open(LANE, 2, 2)]


# ------------------------------------------------------------------------- clocks


LIFE = Stream(ORDERS, ALICE, 10)


def outlived(broker: NodeId, newest: int, stream: Stream = LIFE) -> Receive:
    return Receive(broker, Outlived(stream, newest))


def unheard(policy: Policy = AB) -> Publisher:
    """One that has published twice, and that no broker has answered."""
    made = Cell(policy).publisher(incarnation=LIFE.incarnation)
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    submit(made, b"p1", b"p2")
    return made


def submit_urgent(made: Publisher, *contents: bytes) -> Stream:
    made.handle(Submit(ORDERS, contents, urgent=True), T0)
    return made.stream(ORDERS, urgent=True)


@pytest.mark.parametrize("policy", ["ab", "brb", "ab+history", "chain", "total"])
def test_publisher_that_f_plus_1_brokers_know_later_begins_a_later_life(policy: str) -> None:
    made = unheard(Policy.named(policy))
    assert made.handle(outlived(B1, 900), T0) == []
    effects = made.handle(outlived(B2, 700), T0)
    renewed = Stream(ORDERS, ALICE, 702)
    assert effects[0] == Renewed(renewed, LIFE)
    assert renewed in {m.stream for m in messages(effects, Open) if isinstance(m, Open)}
    assert made.stream(ORDERS) == renewed
    assert made.published(ORDERS) == 2
    assert made.stream(ORDERS, urgent=True).incarnation == 703
    # What was submitted is sent once there is credit, under its number.
    answer = made.handle(Receive(B3, Ack(renewed, 0, 100)), T0)
    firsts = [getattr(e.message, "first", 0) for e in answer if isinstance(e, Send)]
    assert policy == "chain" or firsts[:1] == [1]
    assert reasons(made.handle(outlived(B3, 900), T0)) == [DropReason.UNKNOWN_STREAM]


def test_publisher_with_urgent_publications_brings_both_streams_to_one_later_life() -> None:
    made = unheard()
    urgent = submit_urgent(made, b"u1")
    for broker in (B1, B4):  # one of them is a liar, and says nothing of the urgent stream yet
        made.handle(outlived(broker, 700), T0)
    renewed = made.stream(ORDERS)
    for broker in (B1, B2, B3):
        made.handle(Receive(broker, Ack(renewed, 2, 100)), T0)
    assert submit_urgent(made, b"u2") == urgent
    assert made.published(ORDERS, urgent=True) == 2
    # By now brokers know a later life: the one that this publisher has begun.
    made.handle(outlived(B1, renewed.incarnation, urgent), T0)
    made.handle(outlived(B4, renewed.incarnation, urgent), T0)
    assert made.stream(ORDERS, urgent=True).incarnation == 703
    assert made.published(ORDERS, urgent=True) == 2
    assert made.stream(ORDERS) == renewed
    assert made.published(ORDERS) == 2


def test_publisher_stays_with_its_stream_if_only_the_urgent_one_must_begin_a_later_life() -> None:
    made = unheard()
    urgent = submit_urgent(made, b"u1")
    for broker in (B1, B2, B3):
        made.handle(Receive(broker, Ack(LIFE, 2, 100)), T0)
    for broker in (B1, B2):
        made.handle(outlived(broker, 700, urgent), T0)
    assert made.stream(ORDERS, urgent=True).incarnation == 703
    assert made.stream(ORDERS) == LIFE
    assert made.published(ORDERS) == 2


def test_publisher_f_liars_alone_push_nobody_to_a_later_life() -> None:
    made = unheard()
    for _ in range(3):
        assert made.handle(outlived(B1, LAST_INCARNATION), T0) == []
    assert made.stream(ORDERS) == LIFE


def test_publisher_liar_beside_an_honest_broker_pushes_no_further_than_that_one_knows() -> None:
    made = unheard()
    made.handle(outlived(B1, LAST_INCARNATION), T0)
    made.handle(outlived(B4, 40), T0)
    assert made.stream(ORDERS).incarnation == 42


def test_publisher_is_told_once_that_its_lives_are_used_up_if_f_plus_1_brokers_say_so() -> None:
    made = unheard()
    assert made.handle(outlived(B1, LAST_INCARNATION + 1), T0) == []
    told = [made.handle(outlived(broker, LAST_INCARNATION + 1), T0) for broker in (B2, B3)]
    refused, *_ = told[0]
    assert isinstance(refused, Refused)
    assert "publish at another seat" in refused.reason
    assert told[1] == []
    assert made.stream(ORDERS) == LIFE


def test_publisher_does_not_believe_strangers_about_its_lives() -> None:
    made = unheard()
    for client in (BOB, NodeId("carol")):
        assert reasons(made.handle(outlived(client, 9), T0)) == [DropReason.UNKNOWN_STREAM]
    assert made.stream(ORDERS) == LIFE


def test_publisher_with_acknowledged_publications_stays_with_its_stream() -> None:
    """Under another one their numbers would mean something else."""
    made = publisher()
    submit(made, b"p1")
    for broker in (B1, B2, B3):
        made.handle(ack(broker, 1), T0)
    for broker in BROKERS:
        assert made.handle(outlived(broker, 900, STREAM), T0) == []
    assert made.stream(ORDERS) == STREAM


def test_publisher_that_began_a_later_life_does_so_again_if_it_must() -> None:
    made = unheard()
    for newest in (700, 1000):
        for broker in (B1, B2):
            made.handle(outlived(broker, newest, made.stream(ORDERS)), T0)
    assert made.stream(ORDERS).incarnation == 1002
    assert made.published(ORDERS) == 2
