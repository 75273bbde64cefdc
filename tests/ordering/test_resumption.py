"""Streams that are gone on with: what brokers remember of them and what publishers make of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    ORDERS,
    STREAM,
    Cell,
    limited,
    sent,
)
from tests.support.ordering import (
    BOBS,
    TOTAL,
    TOTAL_CRASH,
    Hall,
    agree,
    begun,
    item,
    offer,
    publish,
)

from quorumcast.broadcast.application import Acknowledged, Concluded, Contradicted
from quorumcast.broadcast.messages import Ack, Open
from quorumcast.core.ids import MAX_LINE, MAX_LINE_EPOCH, NodeId, Stream, at_seat, resumable
from quorumcast.core.machine import Drop, DropReason, Effect, Receive, Send
from quorumcast.manifest.policy import Policy
from quorumcast.ordering import state as states
from quorumcast.ordering.execution import STREAMS_OF_A_SEAT, AckTargets
from quorumcast.ordering.messages import Batch, Offer
from quorumcast.ordering.offer_sender import ResumedSender
from quorumcast.ordering.state import LINES_KEPT, STREAMS_KEPT, State, chained, extent_root

BROKERS = (B1, B2, B3, B4)
WINDOW = 100


def epoch(number: int, line: int = 5) -> Stream:
    return Stream(ORDERS, ALICE, resumable(line, number))


RESUMED = epoch(3)


def state() -> State:
    return begun()


def chain(*contents: bytes, stream: Stream = RESUMED) -> bytes:
    """What stands for these publications, each a run of its own."""
    found = b""
    for number, body in enumerate(contents, 1):
        found = chained(found, extent_root(item(number, body, stream=stream).digests))
    return found


# ------------------------------------------------------------------ names


@given(st.integers(0, MAX_LINE), st.integers(0, MAX_LINE_EPOCH))
def test_resumable_incarnation_says_its_line_and_is_never_urgent(line: int, number: int) -> None:
    stream = epoch(number, line)
    assert (stream.line, stream.urgent) == (line, False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stream), type=Stream) == stream


def test_incarnation_by_the_clock_has_no_line() -> None:
    assert STREAM.line is None
    assert Stream(ORDERS, ALICE, 2 * 4_000_000_000_000).line is None


def test_streams_that_are_gone_on_with_are_spoken_for_at_any_seat_and_others_at_none() -> None:
    seat = at_seat(ALICE, 3)
    assert RESUMED.spoken_by(ALICE)
    assert RESUMED.spoken_by(seat)
    assert not RESUMED.spoken_by(BOB)
    assert not RESUMED.spoken_by(at_seat(BOB, 3))
    assert STREAM.spoken_by(ALICE)
    assert not STREAM.spoken_by(seat)
    assert not Stream(ORDERS, seat, RESUMED.incarnation).spoken_by(ALICE)


# ------------------------------------------------------------------ state


def test_state_orders_what_is_submitted_again_once_and_remembers_its_chain() -> None:
    made = state()
    made.apply((item(1, b"a", stream=RESUMED), item(2, b"b", stream=RESUMED)))
    again: Batch = tuple(item(n, b, stream=RESUMED) for n, b in ((1, b"a"), (2, b"b"), (3, b"c")))
    assert [extent.first for extent in made.apply(again)] == [3]
    assert (made.served[RESUMED], made.chains[RESUMED]) == (3, chain(b"a", b"b", b"c"))


def test_state_later_epoch_ends_the_earlier_ones_of_its_line_alone() -> None:
    made = state()
    made.apply((item(1, b"a", stream=epoch(3)), item(1, b"x", stream=epoch(3, line=6))))
    made.apply((item(1, b"b", stream=epoch(4)),))
    assert made.over(epoch(3))
    assert not made.over(epoch(4))
    assert not made.over(epoch(5))
    assert not made.over(epoch(3, line=6))
    assert not made.over(STREAM)
    assert made.apply((item(2, b"late", stream=epoch(3)),)) == []
    assert made.takes((item(1, b"late", stream=epoch(3)),)) == []
    assert set(made.served) == set(made.chains) == {epoch(4), epoch(3, line=6)}


def test_state_both_epochs_of_a_line_in_one_batch_take_what_was_said_to_be_taken() -> None:
    batch: Batch = (item(1, b"new", stream=epoch(4)), item(1, b"old", stream=epoch(3)))
    made = state()
    assert made.takes(batch) == list(batch)
    assert len(made.apply(batch)) == 2
    assert list(made.served) == [epoch(4)]


def test_state_lines_and_incarnations_by_the_clock_do_not_push_each_other_out() -> None:
    made = state()
    made.apply((item(1, b"a", stream=RESUMED),))
    for number in range(1, STREAMS_KEPT + 3):
        clock = Stream(ORDERS, ALICE, number)
        made.apply((item(1, b"a", stream=clock),))
    assert RESUMED in made.served
    assert len(made.served) == STREAMS_KEPT + 1
    assert made.over(Stream(ORDERS, ALICE, 1))
    assert not made.over(epoch(4))


def test_state_line_that_began_longest_ago_is_forgotten_when_there_are_too_many() -> None:
    made = state()
    for line in range(LINES_KEPT):
        made.apply((item(1, b"a", stream=epoch(1, line)),))
    made.apply((item(1, b"a", stream=epoch(2, 0)), item(1, b"a", stream=epoch(1, LINES_KEPT))))
    assert len(made.served) == LINES_KEPT
    assert epoch(1, 1) not in made.served
    assert epoch(2, 0) in made.served


def test_state_that_was_taken_over_forgets_lines_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(states, "LINES_KEPT", 3)
    lived, moved = state(), state()
    for line in (7, 2, 9):
        lived.apply((item(1, b"a", stream=epoch(1, line)),))
    lived.apply((item(1, b"b", stream=epoch(2, 7)),))
    assert moved.load(lived.image())
    assert moved.image() == lived.image()
    for made in (lived, moved):
        made.apply((item(1, b"c", stream=epoch(1, 4)),))
        assert set(made.served) == {epoch(1, 9), epoch(2, 7), epoch(1, 4)}
    assert moved.image() == lived.image()


lives = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=40
)


@given(lives, st.integers(0, 40))
def test_state_taken_over_half_way_ends_the_same(
    batches: list[tuple[int, int, int]], cut: int
) -> None:
    """As many brokers see it: one lived through all of it, one joined in the middle."""
    lived, joined = state(), state()
    placed: dict[tuple[Stream, int], None] = {}
    for index, (line, number, first) in enumerate(batches):
        if index == cut:
            assert joined.load(lived.image())
        batch: Batch = tuple(
            item(n, b"x", stream=epoch(number, line)) for n in range(first, first + 2)
        )
        taken = lived.takes(batch)
        extents = lived.apply(batch)
        assert [(e.stream, e.first) for e in extents] == [(i.stream, i.first) for i in taken]
        for extent in extents:
            assert (extent.stream, extent.first) not in placed
            placed[extent.stream, extent.first] = None
        if index >= cut:
            joined.apply(batch)
            assert joined.image() == lived.image()


# ----------------------------------------------------------------- voices


def test_ack_goes_to_the_seat_that_sent_last_or_else_to_the_publisher() -> None:
    voices = AckTargets()
    assert voices.of(RESUMED) == ALICE
    voices.note(at_seat(ALICE, 1), RESUMED)
    voices.note(at_seat(ALICE, 2), RESUMED)
    assert voices.of(RESUMED) == "alice#2"
    assert len(voices) == 1


def test_ack_targets_of_one_seat_are_bounded() -> None:
    voices = AckTargets()
    for number in range(STREAMS_OF_A_SEAT + 5):
        voices.note(at_seat(ALICE, 1), epoch(number))
    assert len(voices) == STREAMS_OF_A_SEAT
    assert voices.of(epoch(0)) == ALICE
    voices.note(at_seat(ALICE, 2), epoch(STREAMS_OF_A_SEAT))
    voices.note(at_seat(ALICE, 1), epoch(0))
    assert len(voices) == STREAMS_OF_A_SEAT + 1


# ----------------------------------------------------------------- sender


def sender(policy: Policy = TOTAL) -> ResumedSender:
    made = ResumedSender(RESUMED, Cell(policy).view(ALICE), policy)
    for broker in BROKERS:
        assert made.connected(broker) == [Send((broker,), Open(RESUMED, 1, 1))]
    return made


def word(*contents: bytes) -> Ack:
    """What a broker says that has ordered this."""
    upto = len(contents)
    return Ack(RESUMED, upto, upto + WINDOW, upto, chain=chain(*contents))


OVER = Ack(RESUMED, 0, 0)


def said(effects: list[Effect]) -> list[Effect]:
    return [e for e in effects if isinstance(e, Acknowledged | Concluded | Contradicted)]


def offered(effects: list[Effect]) -> list[tuple[int, tuple[NodeId, ...]]]:
    return [(s.message.first, s.to) for s in sent(effects) if isinstance(s.message, Offer)]


def test_sender_what_was_ordered_is_not_sent_again() -> None:
    made = sender()
    for broker in (B1, B2, B3):
        made.on_ack(broker, word(b"a", b"b"))
    made.on_ack(B4, word())
    sends = [offered(made.submit((body,))[1]) for body in (b"a", b"b", b"c")]
    assert sends == [[], [], [(3, BROKERS)]]


def test_sender_what_every_broker_has_ordered_is_not_sent_again() -> None:
    """It is forgotten as soon as it is submitted, and must be passed over before that."""
    made = sender()
    for broker in BROKERS:
        made.on_ack(broker, word(b"a", b"b"))
    sends = [offered(made.submit((body,))[1]) for body in (b"a", b"b", b"c")]
    assert sends == [[], [], [(3, BROKERS)]]


def test_sender_sends_nothing_before_n_minus_f_brokers_have_answered() -> None:
    made = sender()
    for body in (b"a", b"b"):
        assert made.submit((body,))[1] == []
    assert made.on_ack(B4, word()) == made.on_ack(B1, word(b"a")) == []
    assert offered(made.on_ack(B2, word(b"a"))) == [(2, (B1,)), (2, (B2,)), (2, (B4,))]
    assert offered(made.on_ack(B3, word(b"a"))) == [(2, (B3,))]


def test_sender_other_contents_reach_not_even_a_broker_that_hides_what_was_ordered() -> None:
    """Otherwise it could have the next number ordered behind contents that are not ours."""
    for early in (True, False):
        made = sender()
        contents = (b"A", b"b", b"c")
        effects = [e for body in contents[: 2 * early] for e in made.submit((body,))[1]]
        effects += made.on_ack(B4, word())
        for broker in (B1, B2, B3):
            effects += made.on_ack(broker, word(b"a"))
        effects += [e for body in contents[2 * early :] for e in made.submit((body,))[1]]
        assert offered(effects) == []
        assert said(effects)[-1] == Contradicted(RESUMED, 1)


def test_sender_what_was_ordered_is_acknowledged_when_it_is_submitted() -> None:
    made = sender()
    for broker in (B1, B2, B3):
        assert said(made.on_ack(broker, word(b"a", b"b"))) == []
    assert said(made.submit((b"a",))[1]) == [Acknowledged(RESUMED, 1)]
    assert said(made.submit((b"b",))[1]) == [Acknowledged(RESUMED, 2)]
    assert made.conclude() == [Concluded(RESUMED)]


@pytest.mark.parametrize("policy", [TOTAL, TOTAL_CRASH])
def test_sender_is_concluded_by_n_minus_f_brokers(policy: Policy) -> None:
    made = sender(policy)
    made.submit((b"a",))
    assert made.conclude() == []
    assert said(made.on_ack(B1, word(b"a"))) == said(made.on_ack(B2, word(b"a"))) == []
    assert said(made.on_ack(B3, word(b"a"))) == [Acknowledged(RESUMED, 1), Concluded(RESUMED)]
    assert said(made.on_ack(B4, word(b"a"))) == []


def test_sender_where_brokers_only_crash_one_that_contradicts_is_believed() -> None:
    made = sender(TOTAL_CRASH)
    made.submit((b"a",))
    assert said(made.on_ack(B1, word(b"x"))) == [Contradicted(RESUMED, 1)]


def test_sender_of_nothing_is_concluded_if_nothing_was_ordered() -> None:
    made = sender()
    for broker in (B1, B2, B3):
        made.on_ack(broker, word())
    assert made.conclude() == [Concluded(RESUMED)]


def test_sender_other_contents_are_contradicted_and_sent_to_nobody_who_says_so() -> None:
    made = sender()
    made.submit((b"A",))
    assert made.on_ack(B1, word(b"a")) == []
    assert made.on_ack(B2, word(b"a")) == [Contradicted(RESUMED, 1)]
    assert made.on_ack(B3, word(b"a")) == []


def test_sender_contradiction_is_found_where_the_brokers_word_ends() -> None:
    made = sender()
    for broker in BROKERS:
        made.on_ack(broker, word(b"a", b"b", b"c"))
    told = [said(made.submit((body,))[1]) for body in (b"a", b"B", b"c")]
    assert told[2] == [Acknowledged(RESUMED, 3), Contradicted(RESUMED, 3)]


def test_sender_one_broker_alone_neither_contradicts_nor_concludes() -> None:
    made = sender()
    made.submit((b"a",))
    made.conclude()
    for lie in (word(b"x"), word(b"a", b"b"), OVER, Ack(RESUMED, 2**60, 2**61, chain=b"?")):
        assert said(made.on_ack(B4, lie)) == []
    correct = [made.on_ack(broker, word(b"a")) for broker in (B1, B2, B3)]
    assert [said(effects) for effects in correct] == [
        [],
        [],
        [Acknowledged(RESUMED, 1), Concluded(RESUMED)],
    ]


def test_sender_fewer_publications_than_before_are_contradicted_at_the_end() -> None:
    made = sender()
    for broker in BROKERS:
        made.on_ack(broker, word(b"a", b"b"))
    made.submit((b"a",))
    assert made.conclude() == [Contradicted(RESUMED, 2)]


def test_sender_whose_line_has_begun_another_epoch_is_given_up() -> None:
    made = sender()
    assert made.on_ack(B1, OVER) == []
    assert made.on_ack(B2, OVER) == [Contradicted(RESUMED, 0)]


def test_sender_broker_that_was_late_is_compared_by_its_last_word() -> None:
    made = sender()
    for body in (b"a", b"b"):
        made.submit((body,))
    made.conclude()
    told = [
        said([e for b in (B1, B2, B3) for e in made.on_ack(b, word(*contents))])
        for contents in ((), (b"a",), (b"a", b"b"))
    ]
    assert [effects[-1:] for effects in told] == [
        [],
        [Acknowledged(RESUMED, 1)],
        [Concluded(RESUMED)],
    ]


def test_sender_forgets_chains_with_their_runs() -> None:
    made = sender()
    bodies: list[bytes] = []
    for number in range(20):
        bodies.append(b"%d" % number)
        made.submit((bodies[-1],))
        for broker in BROKERS:
            made.on_ack(broker, word(*bodies))
    assert len(made._chains) <= 2
    assert made.conclude() == [Concluded(RESUMED)]


# ------------------------------------------------------------- a whole log


def acks(hall: Hall, to: NodeId, by: NodeId) -> list[Ack]:
    return [
        effect.message
        for node, effect in hall.seen
        if node == by
        and isinstance(effect, Send)
        and effect.to == (to,)
        and isinstance(effect.message, Ack)
    ]


def test_log_tells_the_seat_that_speaks_for_a_stream() -> None:
    hall = Hall().begin()
    seat = at_seat(ALICE, 2)
    for broker in BROKERS:
        hall.happen(broker, Receive(seat, Open(RESUMED, 1, 1)))
    made, bodies = offer(hall.cell, 1, b"a", stream=RESUMED)
    for broker in BROKERS:
        hall.happen(broker, Receive(seat, made, bodies))
    hall.run(500)
    assert [ack.upto for ack in acks(hall, seat, B1)] == [0, 1]
    assert acks(hall, seat, B1)[-1].chain == chain(b"a")


def test_log_answers_whoever_repeats_an_offer_though_another_seat_spoke_last() -> None:
    """Two lives at the same time: none of them may wait for ever."""
    hall = Hall().begin()
    one, other = at_seat(ALICE, 1), at_seat(ALICE, 2)
    made, bodies = offer(hall.cell, 1, b"a", stream=RESUMED)
    for seat in (one, other):
        for broker in BROKERS:
            hall.happen(broker, Receive(seat, Open(RESUMED, 1, 1)))
            hall.happen(broker, Receive(seat, made, bodies))
    hall.run(500)
    assert acks(hall, other, B1)[-1].upto == 1
    hall.happen(B1, Receive(one, made, bodies))
    assert acks(hall, one, B1)[-1].upto == 1
    assert agree(hall, *BROKERS) == [b"a"]


def test_log_takes_streams_from_nobody_elses_seat() -> None:
    hall = Hall().begin()
    made, bodies = offer(hall.cell, 1, b"a", stream=RESUMED)
    bobs = at_seat(BOB, 2)
    for event in (Receive(bobs, made, bodies), Receive(bobs, Open(RESUMED, 1, 1))):
        hall.happen(B1, event)
        assert hall.seen[-1] == (B1, Drop(DropReason.WRONG_SENDER, bobs))
    hall.happen(B1, Receive(at_seat(ALICE, 2), Open(STREAM, 1, 1)))
    assert hall.seen[-1] == (B1, Drop(DropReason.WRONG_SENDER, at_seat(ALICE, 2)))


def test_log_tells_whoever_offers_of_an_epoch_that_is_over() -> None:
    hall = Hall().begin()
    hall.offer(1, b"a", stream=epoch(4))
    hall.run(500)
    hall.offer(1, b"late", stream=RESUMED)
    hall.run(500)
    assert acks(hall, ALICE, B1)[-1] == Ack(RESUMED, 0, 0)
    assert (B1, Drop(DropReason.OUTLIVED, ALICE)) in hall.seen
    assert agree(hall, *BROKERS) == [b"a"]
    assert hall.suspected() == set()


def test_log_remembers_across_the_death_of_every_broker() -> None:
    hall = Hall(durable=True).begin()
    for number, body in enumerate((b"a", b"b"), 1):
        hall.offer(number, body, stream=RESUMED)
        hall.run(200)
    publish(hall, 1, 9)  # two checkpoints
    hall.restart_all()
    hall.run(1500)
    before = agree(hall, *BROKERS)
    for number, body in enumerate((b"a", b"b", b"c"), 1):
        hall.offer(number, body, stream=RESUMED)
        hall.run(3000)
    assert agree(hall, *BROKERS) == [*before, b"c"]
    assert acks(hall, ALICE, B3)[-1].chain == chain(b"a", b"b", b"c")


def test_log_a_new_broker_learns_what_was_ordered_of_every_line() -> None:
    hall = Hall().begin()
    hall.offer(1, b"a", stream=RESUMED)
    hall.run(200)
    hall.stop(B4)
    publish(hall, 1, 30, each_ms=80)
    hall.start(B4, wiped=True)
    hall.run(4000)
    hall.happen(B4, Receive(ALICE, Open(RESUMED, 1, 1)))
    assert acks(hall, ALICE, B4)[-1] == hall_word(hall)


def hall_word(hall: Hall) -> Ack:
    return Ack(RESUMED, 1, 1 + hall.policy.limits.window, 1, chain=chain(b"a"))


def test_log_contents_that_differ_are_never_ordered_beside_the_first() -> None:
    """An earlier life was heard by some brokers, a later one with other contents by the rest."""
    hall = Hall().begin()
    hall.offer(1, b"then", stream=RESUMED, to=(B3, B4))
    hall.offer(1, b"now", stream=RESUMED, to=(B1, B2))
    hall.run(3000)
    assert len(agree(hall, *BROKERS)) == 1


# ------------------------------------------- a line that was forgotten begins again


def begun_again(hall: Hall, *contents: bytes) -> None:
    """Order a publication of one line, of others until it is forgotten, and of the first again."""
    first, *others, again = contents
    hall.offer(1, first, stream=epoch(1, line=1))
    hall.run(300)
    for line, body in enumerate(others, 2):
        hall.offer(1, body, stream=epoch(1, line=line))
        hall.run(300)
    hall.offer(1, again, stream=epoch(1, line=1))
    hall.run(300)


def retaining(publications: int) -> Policy:
    return limited(
        "total",
        retained_publications=publications,
        window=4,
        segment=4,
        vote_window=4,
        replay=4,
        cached_bytes=1,
    )


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("again", [b"a", b"other"])
def test_log_retains_both_lives_of_a_line_that_was_forgotten(
    monkeypatch: pytest.MonkeyPatch, again: bytes, durable: bool
) -> None:
    monkeypatch.setattr(states, "LINES_KEPT", 2)
    hall = Hall(retaining(8), durable=durable).begin()
    begun_again(hall, b"a", b"b", b"c", again)
    assert agree(hall, *BROKERS) == [b"a", b"b", b"c", again]
    publish(hall, 1, 5)  # retention drops the first life alone
    assert agree(hall, *BROKERS)[:3] == [b"b", b"c", again]
    publish(hall, 6, 9)  # and the second one, and with it the last of the line on disk
    assert len(agree(hall, *BROKERS)) == 8
    publish(hall, 15, 9)  # a checkpoint
    lines = [
        owner
        for kind, owner, _ in hall.disks[B1].records
        if kind.__name__ == "Stored" and str(STREAM) != owner
    ]
    assert lines == []


@pytest.mark.parametrize("durable", [False, True])
def test_log_new_broker_gets_both_lives_of_a_line_that_was_forgotten(
    monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    monkeypatch.setattr(states, "LINES_KEPT", 2)
    hall = Hall(retaining(100), durable=durable).begin()
    begun_again(hall, b"a", b"b", b"c", b"other")
    hall.stop(B4)
    publish(hall, 1, 30, each_ms=80)
    hall.start(B4, wiped=True)
    hall.run(4000)
    assert agree(hall, *BROKERS)[:4] == [b"a", b"b", b"c", b"other"]


def test_log_restarts_with_both_lives_of_a_line_that_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(states, "LINES_KEPT", 2)
    hall = Hall(retaining(100), durable=True).begin()
    begun_again(hall, b"a", b"b", b"c", b"other")
    publish(hall, 1, 9)  # two checkpoints
    before = agree(hall, *BROKERS)
    hall.restart_all()
    hall.run(1500)
    assert agree(hall, *BROKERS) == before
    assert before[:4] == [b"a", b"b", b"c", b"other"]


@pytest.mark.parametrize("again", [b"a", b"other"])
@pytest.mark.parametrize("checkpoint", [8, 64])
def test_log_executes_both_lives_of_a_line_again_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, again: bytes, checkpoint: int
) -> None:
    """The last checkpoint is older than the second life, or than both."""
    monkeypatch.setattr(states, "LINES_KEPT", 2)
    hall = Hall(retaining(100), durable=True, checkpoint=checkpoint).begin()
    hall.offer(1, b"a", stream=epoch(1, line=1))
    hall.run(300)
    publish(hall, 1, 8)
    begun_again(hall, b"a", b"b", b"c", again)
    before = agree(hall, *BROKERS)
    assert (before[0], before[-1]) == (b"a", again)
    hall.restart_all()
    hall.run(1500)
    assert agree(hall, *BROKERS) == before


def test_log_late_broker_executes_the_later_life_of_a_line_that_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(states, "LINES_KEPT", 2)
    hall = Hall(retaining(100), durable=True).begin()
    hall.cut_off(B4)
    begun_again(hall, b"a", b"b", b"c", b"other")
    hall.rejoin(B4)
    hall.run(3000)
    assert agree(hall, *BROKERS) == [b"a", b"b", b"c", b"other"]


def test_log_runs_of_a_line_that_get_no_positions_leave_the_disk() -> None:
    hall = Hall(durable=True).begin()
    hall.offer(2, b"b", stream=RESUMED)  # a publisher that lies cuts its runs anew
    hall.run(200)
    hall.offer(1, b"a", b"b", stream=RESUMED)
    hall.run(500)
    publish(hall, 1, 1)
    places = [
        place
        for kind, owner, place in hall.disks[B1].records
        if kind.__name__ == "Stored" and owner == str(RESUMED)
    ]
    assert places == [1]


def test_log_restarts_with_what_retention_dropped_of_a_line_since_the_last_checkpoint() -> None:
    """A restart executes it again, and needs the contents."""
    hall = Hall(retaining(4), durable=True, window=1, checkpoint=64).begin()
    hall.offer(1, b"first", stream=BOBS)
    for stream in (RESUMED, STREAM):  # one batch has all of these
        for number in (1, 2, 3, 4):
            hall.offer(number, b"%d" % number, stream=stream)
    hall.run(500)
    before = agree(hall, *BROKERS)
    assert len(before) == 4
    hall.restart_all()
    hall.run(3000)
    assert agree(hall, *BROKERS) == before
