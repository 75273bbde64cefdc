"""History at a broker (Freeman §5.8, §6.2): α = 2, so HISTORY at 2 and BLOCKED beyond 4."""

from __future__ import annotations

import msgspec
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    LANE,
    STREAM,
    T0,
    Cell,
    accused,
    bodies,
    contents,
    digest,
    digests,
    feed,
    limited,
    messages,
    publish,
    reasons,
    sent,
    suspects,
)

from quorumcast.broadcast.authenticated import Relay
from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.history import (
    ENDS,
    FETCH_MS,
    LONGEST_FETCH_MS,
    PATIENCE,
    WAITING,
    WAITING_NAMES,
    History,
    HistoryFetch,
)
from quorumcast.broadcast.messages import Contents, Echo, Open, Publish, Pull, Ready
from quorumcast.broadcast.signed_history import REMEMBERED, end_of, history_body, read_history
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
from quorumcast.core.statements import EvidenceKind, HistoryStatement, Signed, canonical
from quorumcast.crypto.digest import root

CELL = Cell(limited("ab+history"))
P = bodies(0, 10)  # P[1] is the contents of number 1
H1, H2 = CELL.history(1, 1, *P[1:3]), CELL.history(2, 3, *P[3:5])
FETCH = TimerFired(HistoryFetch(STREAM))
PEERS = (B2, B3, B4)


def history(me: NodeId = B1, cell: Cell = CELL) -> History:
    around = cell.around(me)
    return History(STREAM, around, Relay(STREAM, around))


def told(index: int, body: bytes, sender: NodeId = ALICE) -> Receive:
    """A history as its publisher sends it."""
    return publish(index, body, sender=sender, stream=LANE)


def echoed(sender: NodeId, index: int, body: bytes) -> Receive:
    return Receive(sender, Echo(LANE, index, root(index, digests(body))))


def readied(sender: NodeId, index: int, body: bytes) -> Receive:
    return Receive(sender, Ready(LANE, index, root(index, digests(body))))


def settle(broker: History, index: int, body: bytes) -> list[Effect]:
    """The cell delivers a history."""
    return feed(broker.handle, told(index, body), *(readied(b, index, body) for b in PEERS))


def learn(broker: History, index: int, body: bytes) -> list[Effect]:
    """The cell delivers a history that the publisher did not tell this broker."""
    readies = [readied(b, index, body) for b in PEERS]
    return feed(broker.handle, *readies, contents(B2, index, body, stream=LANE))


# -------------------------------------------------------------- the fast lane


def test_history_fast_publications_are_carried_as_without_it() -> None:
    assert history().handle(publish(1, *P[1:3]), T0) == [Vouch(STREAM, 1, digests(*P[1:3]))]


def test_history_open_that_skips_numbers_gives_no_credit() -> None:
    """A publisher that leaves numbers out must not get round its histories by it."""
    broker = history()
    broker.handle(publish(1, *P[1:5]), T0)
    broker.handle(Receive(ALICE, Open(STREAM, 6, 6)), T0)
    assert (broker.upto, broker.credit) == (4, 4)
    assert reasons(broker.handle(publish(6, P[5]), T0)) == [DropReason.BLOCKED]


def test_history_publications_up_to_two_alpha_are_taken_and_no_more() -> None:
    """BLOCKED (Freeman §6.2, line 21)."""
    broker = history()
    assert broker.credit == 4
    assert reasons(broker.handle(publish(1, *P[1:5]), T0)) == []
    assert broker.handle(publish(5, P[5]), T0) == [
        Drop(DropReason.BLOCKED, ALICE),
        Suspect(ALICE, Suspicion.WITHOUT_HISTORY, STREAM),
    ]
    settle(broker, 1, H1)
    assert (broker.settled, broker.credit) == (2, 6)
    assert reasons(broker.handle(publish(5, P[5]), T0)) == []


def test_history_run_that_crosses_two_alpha_is_blocked_whole() -> None:
    broker = history()
    assert reasons(broker.handle(publish(1, *P[1:6]), T0)) == [DropReason.BLOCKED]
    assert broker.upto == 0


# ------------------------------------------------------------------- echoing


def test_history_that_agrees_is_echoed() -> None:
    broker = history()
    broker.handle(publish(1, *P[1:3]), T0)
    assert sent(broker.handle(told(1, H1), T0)) == [
        Send(PEERS, Echo(LANE, 1, root(1, digests(H1))))
    ]


def test_history_that_denies_what_was_forwarded_is_not_echoed() -> None:
    broker = history()
    broker.handle(publish(1, P[1], b"other"), T0)
    assert broker.handle(told(1, H1), T0) == [
        Drop(DropReason.CONFLICT, ALICE),
        Suspect(ALICE, Suspicion.EQUIVOCATION, STREAM, 1),
    ]


def test_history_that_leaves_out_or_repeats_numbers_is_not_echoed() -> None:
    for second in (CELL.history(2, 4, *P[4:5]), CELL.history(2, 2, *P[2:5])):
        broker = history()
        broker.handle(publish(1, *P[1:5]), T0)
        settle(broker, 1, H1)
        assert reasons(broker.handle(told(2, second), T0)) == [DropReason.CONFLICT]


def test_history_first_one_must_begin_at_the_beginning() -> None:
    broker = history()
    broker.handle(publish(1, *P[1:3]), T0)
    assert reasons(broker.handle(told(1, CELL.history(1, 2, P[2])), T0)) == [DropReason.CONFLICT]


def test_history_longer_than_two_alpha_is_refused() -> None:
    broker = history()
    broker.handle(publish(1, *P[1:5]), T0)
    assert sent(broker.handle(told(1, CELL.history(1, 1, *P[1:5])), T0), Echo) != []
    long = history()
    long.handle(publish(1, *P[1:5]), T0)
    effects = long.handle(told(1, CELL.history(1, 1, *P[1:6])), T0)
    assert sent(effects) == []
    assert len(reasons(effects)) == 1


def test_history_by_another_sender_is_refused() -> None:
    """A lying broker that repeats a genuine history must not take its place in the queue."""
    broker = history()
    assert broker.handle(told(1, H1, sender=B2), T0) == [Drop(DropReason.WRONG_SENDER, B2)]
    assert broker.sizes()["waiting"] == 0


def test_history_with_a_bad_signature_is_refused() -> None:
    signed = msgspec.msgpack.decode(H1, type=Signed)
    forged = history_body(Signed(ALICE, signed.payload, bytes(64)))
    assert history().handle(told(1, forged), T0) == [Drop(DropReason.BAD_SIGNATURE, ALICE)]


def test_history_signed_in_an_earlier_epoch_holds_and_in_a_later_one_does_not() -> None:
    """One under way when the epoch changes must not be lost: the stream would stop at 2α."""
    for epoch, refused in ((1, []), (2, []), (3, [DropReason.BAD_SIGNATURE])):
        cell = Cell(CELL.policy)
        keyring = cell.keyring(B1)
        keyring.epoch = 2
        broker = History(STREAM, cell.around(), Relay(STREAM, cell.around()))
        broker.handle(publish(1, *P[1:3]), T0)
        body = cell.history(1, 1, *P[1:3], epoch=epoch)
        assert reasons(broker.handle(told(1, body), T0)) == refused


def test_history_that_is_none_is_refused() -> None:
    for index, body in (
        (1, b"nonsense"),
        (2, H1),
        (1, CELL.history(1, 1, *P[1:3], signer=BOB)),
        (1, CELL.history(1, 1)),
    ):
        assert history().handle(told(index, body), T0) == [Drop(DropReason.BAD_RUN, ALICE)]
    elsewhere = CELL.history(1, 1, *P[1:3], cell="another")
    assert reasons(history().handle(told(1, elsewhere), T0)) == [DropReason.BAD_SIGNATURE]
    two = Receive(ALICE, Publish(LANE, 1, digests(H1, H2)), (H1, H2))
    assert history().handle(two, T0) == [Drop(DropReason.BAD_RUN, ALICE)]
    none = Receive(ALICE, Publish(LANE, 1, digests(H1)), ())
    assert history().handle(none, T0) == [Drop(DropReason.BAD_RUN, ALICE)]


def test_history_that_was_altered_anywhere_does_not_match_its_digest() -> None:
    for at in range(len(H1)):
        altered = bytearray(H1)
        altered[at] ^= 1
        event = Receive(ALICE, Publish(LANE, 1, digests(H1)), (bytes(altered),))
        assert history().handle(event, T0) == [Drop(DropReason.BAD_BODY, ALICE)]


def padded(size: int) -> bytes:
    """H1 as msgpack lets it be written: unknown fields are ignored, whatever their size."""
    statement = HistoryStatement(
        cell="demo", epoch=1, stream=STREAM, index=1, first=1, digests=digests(*P[1:3])
    )
    fields = msgspec.msgpack.decode(canonical(statement))
    payload = msgspec.msgpack.encode({**fields, "padding": bytes(size)})
    body = history_body(CELL.keyring(ALICE).identity.sign(payload))
    assert read_history(body, STREAM) is not None
    return body


def test_history_padded_to_any_size_is_not_remembered() -> None:
    body = padded(1_000_000)
    broker = history()
    assert reasons(broker.handle(told(1, body), T0)) == [DropReason.BAD_RUN]
    assert broker.sizes()["seen"] == 0


def test_history_signed_in_two_encodings_is_one_history() -> None:
    """Evidence that the court would reject must not be produced."""
    broker = history()
    broker.handle(publish(1, *P[1:3]), T0)
    effects = feed(broker.handle, told(1, H1), told(1, padded(10)))
    assert accused(effects) == []


# ------------------------------------------------------------------ fetching


def test_history_of_what_is_lacking_waits_and_is_fetched() -> None:
    broker = history()
    broker.handle(publish(1, P[1]), T0)
    assert broker.handle(told(1, H1), T0) == [SetTimer(HistoryFetch(STREAM), FETCH_MS)]
    assert sent(broker.handle(FETCH, T0)) == [Send((B2,), Pull(STREAM, 2, 1))]
    assert sent(broker.handle(FETCH, T0)) == [Send((B3,), Pull(STREAM, 2, 1))]
    effects = broker.handle(contents(B3, 2, P[2]), T0)
    assert sent(effects) == [Send(PEERS, Echo(LANE, 1, root(1, digests(H1))))]
    assert Vouch(STREAM, 2, digests(P[2])) in effects  # so that a journal gets to know it
    assert broker.upto == 2


def test_history_of_what_comes_after_a_hole_is_not_fetched() -> None:
    """A lying publisher left out this broker and the history before: it could take nothing."""
    broker = history()
    broker.handle(told(2, H2), T0)
    assert sent(broker.handle(FETCH, T0)) == []
    broker.handle(publish(1, *P[1:3]), T0)
    assert sent(broker.handle(FETCH, T0)) == []  # the fast path moves
    assert sent(broker.handle(FETCH, T0)) == [Send((B2,), Pull(STREAM, 3, 2))]


def test_history_waits_for_a_fast_path_that_is_late_but_not_for_ever() -> None:
    """On a busy machine brokers fetched what was on its way, and fell further behind."""
    cell, run = Cell(limited("ab+history", alpha=8)), bodies(1, 12)
    broker = history(cell=cell)
    broker.handle(told(1, cell.history(1, 1, *run)), T0)
    for number in range(1, PATIENCE + 1):
        broker.handle(publish(number, run[number - 1]), T0)
        assert sent(broker.handle(FETCH, T0)) == []
    broker.handle(publish(PATIENCE + 1, run[PATIENCE]), T0)
    assert sent(broker.handle(FETCH, T0)) == [Send((B2,), Pull(STREAM, PATIENCE + 2, 3))]


def test_history_of_what_is_lacking_is_echoed_when_the_fast_lane_brings_it() -> None:
    broker = history()
    feed(broker.handle, publish(1, P[1]), told(1, H1))
    assert len(sent(broker.handle(publish(2, P[2]), T0), Echo)) == 1
    assert broker.sizes()["waiting"] == 0


def test_history_many_wait_for_a_fast_lane_that_is_late() -> None:
    """On a chain they overtake publications; a publisher with a small α waited for its timer."""
    run = bodies(1, 40)
    cell = Cell(limited("ab+history", alpha=64))
    broker = history(cell=cell)
    for index in range(1, 41):
        broker.handle(told(index, cell.history(index, index, run[index - 1])), T0)
    assert broker.sizes()["waiting"] == 40
    assert len(sent(broker.handle(publish(1, *run), T0), Echo)) == 40
    assert broker.sizes()["waiting"] == 0


def test_history_few_long_ones_wait_for_publications() -> None:
    """A lying publisher sends such as never come."""
    cell = Cell(limited("ab+history", alpha=4))
    broker = history(cell=cell)
    for index in range(1, 41):
        first = 8 * index - 7
        broker.handle(told(index, cell.history(index, first, *bodies(first, 8))), T0)
    assert broker.sizes()["waiting"] == WAITING_NAMES


def test_history_that_waits_is_given_up_when_the_fast_lane_contradicts_it() -> None:
    broker = history()
    feed(broker.handle, publish(1, P[1]), told(1, H1))
    assert sent(broker.handle(publish(2, b"other"), T0), Echo) == []
    assert broker.sizes()["waiting"] == 0


def test_history_that_only_waits_does_not_overrule_what_was_forwarded() -> None:
    """A liar pushes the contents that a waiting history names: no delivery, no correction."""
    broker = history()
    feed(broker.handle, told(1, H1), publish(1, b"voted for"))
    broker.handle(contents(B4, 1, *P[1:3]), T0)
    assert broker.ledger.digest(1) == digests(b"voted for")


def test_history_fetched_body_with_another_hash_is_suspected() -> None:
    broker = history()
    feed(broker.handle, publish(1, P[1]), told(1, H1))
    effects = broker.handle(contents(B2, 2, b"lie", named=digests(P[2])), T0)
    assert effects == [
        Drop(DropReason.BAD_BODY, B2),
        Suspect(B2, Suspicion.BAD_BODY, STREAM, 2),
    ]


def test_history_contents_that_no_history_names_are_ignored() -> None:
    broker = history()
    assert broker.handle(contents(B2, 1, P[1]), T0) == []
    assert broker.upto == 0


def test_history_delivered_elsewhere_is_learned_pulled_and_filled() -> None:
    """Freeman's drop: the publisher left this broker out altogether."""
    broker = history()
    effects = learn(broker, 1, H1)
    assert [e for e in effects if isinstance(e, Vouch)] == [Vouch(LANE, 1, digests(H1))]
    assert (broker.settled, broker.final) == (2, 0)
    assert sent(broker.handle(FETCH, T0)) == [Send((B2,), Pull(STREAM, 1, 2))]
    broker.handle(contents(B2, 1, *P[1:3]), T0)
    assert (broker.upto, broker.final, broker.sizes()["learned"]) == (2, 2, 0)


def test_history_fetched_in_part_is_asked_for_further_at_once() -> None:
    """Large contents come a few at a time: with a pause after each, others would run ahead."""
    broker = history()
    learn(broker, 1, H1)
    broker.handle(FETCH, T0)
    assert sent(broker.handle(contents(B2, 1, P[1]), T0)) == [Send((B3,), Pull(STREAM, 2, 1))]
    assert sent(broker.handle(contents(B2, 1, P[1]), T0)) == []  # nothing new, nothing asked


def test_history_delivered_otherwise_corrects_what_was_forwarded() -> None:
    broker = history()
    broker.handle(publish(1, P[1], b"lie"), T0)
    learn(broker, 1, H1)
    assert (broker.settled, broker.final) == (2, 1)
    broker.handle(contents(B2, 2, P[2]), T0)
    assert (broker.ledger.digest(2), broker.final) == (digest(P[2]), 2)


def test_history_settles_at_2f_plus_1_readies_only() -> None:
    broker = history()
    feed(broker.handle, publish(1, *P[1:3]), told(1, H1), readied(B2, 1, H1), readied(B3, 1, H1))
    assert broker.settled == 2  # ours is the third
    other = history()
    feed(other.handle, publish(1, *P[1:3]), told(1, H1), readied(B2, 1, H1))
    assert other.settled == 0


# ------------------------------------------------------------------ evidence


def test_history_two_for_one_index_are_evidence_against_the_publisher() -> None:
    broker = history()
    broker.handle(publish(1, *P[1:3]), T0)
    rival = CELL.history(1, 1, P[1], b"lie")
    (evidence,) = accused(feed(broker.handle, told(1, H1), told(1, rival)))
    assert (evidence.kind, evidence.accused) == (EvidenceKind.CONFLICT, ALICE)
    assert CELL.court.why_evidence_fails(evidence) is None


def test_history_publisher_is_accused_once_however_often_it_lies() -> None:
    broker = history()
    broker.handle(publish(1, *P[1:3]), T0)
    lies = [told(1, CELL.history(1, 1, P[1], b"lie %d" % i)) for i in range(20)]
    effects = feed(broker.handle, told(1, H1), *lies)
    assert len(accused(effects)) == 1
    assert sent(effects, Echo) == [Send(PEERS, Echo(LANE, 1, root(1, digests(H1))))]


def test_history_echo_for_another_one_is_looked_into_and_proves_the_lie() -> None:
    broker = history()
    feed(broker.handle, publish(1, *P[1:3]), told(1, H1))
    rival = CELL.history(1, 1, P[1], b"lie")
    effects = broker.handle(echoed(B2, 1, rival), T0)
    assert sent(effects, Pull) == [Send((B2,), Pull(LANE, 1, 1))]
    (evidence,) = accused(broker.handle(contents(B2, 1, rival, stream=LANE), T0))
    assert evidence.accused == ALICE
    assert CELL.court.why_evidence_fails(evidence) is None


def test_history_forged_rival_accuses_nobody() -> None:
    broker = history()
    feed(broker.handle, publish(1, *P[1:3]), told(1, H1))
    signed = msgspec.msgpack.decode(CELL.history(1, 1, P[1], b"lie", signer=B2), type=Signed)
    for forged in (
        history_body(Signed(ALICE, signed.payload, signed.signature)),
        CELL.history(1, 1, P[1], b"lie", signer=B2),
        CELL.history(1, 1, P[1], b"lie", cell="another"),
        b"nonsense",
    ):
        effects = broker.handle(contents(B2, 1, forged, stream=LANE), T0)
        assert accused(effects) == []
        assert ALICE not in suspects(effects)


def test_history_gap_between_two_never_makes_brokers_sign_what_is_not_settled() -> None:
    """Sound blame: b1 and b4 were told different things about number 3, which no history names.

    The second history comes before the first is delivered, so no broker can compare their ends
    with what was delivered; both brokers must still not sign number 3 as settled.
    """
    second = CELL.history(2, 4, P[4])
    one, other = history(B1), history(B4)
    for broker, third in ((one, P[3]), (other, b"lie")):
        feed(broker.handle, publish(1, P[1], P[2], third, P[4]), told(1, H1), told(2, second))
        for index, body in ((1, H1), (2, second)):
            peers = [b for b in (B1, B2, B3, B4) if b != broker._view.me]
            readies = [readied(b, index, body) for b in peers]
            feed(broker.handle, *readies, contents(B2, index, body, stream=LANE))
    for broker in (one, other):
        assert not broker.final_from <= 3 <= broker.final


def test_history_gap_before_the_last_one_is_delivered_is_not_echoed() -> None:
    broker = history()
    feed(broker.handle, publish(1, *P[1:5]), told(1, H1))
    assert reasons(broker.handle(told(2, CELL.history(2, 4, P[4])), T0)) == [DropReason.CONFLICT]


def test_history_next_one_is_echoed_before_the_last_one_is_delivered() -> None:
    broker = history()
    feed(broker.handle, publish(1, *P[1:5]), told(1, H1))
    assert len(sent(broker.handle(told(2, H2), T0), Echo)) == 1


# ------------------------------------------------------------- joining later


def test_history_broker_that_joins_later_signs_nothing_before_its_first_history() -> None:
    broker = history()
    feed(
        broker.handle,
        Receive(ALICE, Open(STREAM, 3, 1)),
        Receive(ALICE, Open(LANE, 2, 1)),
        publish(3, *P[3:5]),
    )
    assert broker.settled == 2
    settle(broker, 2, H2)
    assert (broker.settled, broker.final, broker.final_from) == (4, 4, 3)


def test_history_what_is_settled_stays_so_when_the_publisher_goes_on_further_up() -> None:
    """It keeps no longer the histories that this broker missed; its credit must not fall."""
    broker = history()
    broker.handle(publish(1, *P[1:3]), T0)
    settle(broker, 1, H1)
    broker.handle(Receive(ALICE, Open(LANE, 3, 3)), T0)
    assert (broker.settled, broker.final, broker.credit) == (2, 2, 6)
    assert reasons(broker.handle(publish(3, *P[3:6]), T0)) == []


# -------------------------------------------------------------------- limits


def test_history_histories_far_ahead_are_not_remembered() -> None:
    broker = history()
    for index in range(10, 200):
        broker.handle(told(index, CELL.history(index, 1, P[1])), T0)
    assert broker.sizes()["seen"] <= REMEMBERED
    assert broker.sizes()["waiting"] <= WAITING
    feed(broker.handle, publish(1, *P[1:3]))
    settle(broker, 1, H1)
    assert broker.settled == 2


def test_history_that_leaves_out_numbers_is_refused_though_many_others_came_between() -> None:
    """A liar made brokers forget the history before it: subscribers then differed without bound."""
    cell = Cell(limited("ab+history", alpha=64))
    broker = history(cell=cell)
    run = bodies(1, 20)
    broker.handle(publish(1, *run), T0)
    broker.handle(told(1, cell.history(1, 1, *run[:5])), T0)
    for index in range(3, WAITING):
        broker.handle(told(index, cell.history(index, 1000 + index, b"junk")), T0)
    effects = broker.handle(told(2, cell.history(2, 16, *run[15:])), T0)
    assert reasons(effects) == [DropReason.CONFLICT]
    assert sent(effects, Echo) == []


def test_history_whose_predecessor_is_unknown_waits_for_it() -> None:
    broker = history()
    feed(broker.handle, publish(1, *P[1:5]))
    assert broker.handle(told(2, H2), T0) == [SetTimer(HistoryFetch(STREAM), FETCH_MS)]
    assert len(sent(broker.handle(told(1, H1), T0), Echo)) == 2


def test_history_of_what_nobody_holds_is_fetched_ever_more_rarely() -> None:
    """Pulls brought a broker 250 MB/s of other contents, as long as it was up."""
    broker = history()
    learn(broker, 1, H1)
    pauses = [timer.after_ms for _ in range(40) for timer in set_by(broker.handle(FETCH, T0))]
    assert pauses[0] == FETCH_MS
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_FETCH_MS
    broker.handle(publish(1, P[1]), T0)
    broker.handle(FETCH, T0)
    assert [timer.after_ms for timer in set_by(broker.handle(FETCH, T0))] == [FETCH_MS]


def test_history_of_what_came_in_the_end_slows_down_no_later_fetch() -> None:
    broker = history()
    learn(broker, 1, H1)
    for _ in range(12):
        broker.handle(FETCH, T0)
    broker.handle(publish(1, *P[1:3]), T0)
    assert broker.sizes()["learned"] == 0
    broker.handle(FETCH, T0)
    effects = broker.handle(told(2, H2), T0)
    assert [timer.after_ms for timer in set_by(effects)] == [FETCH_MS]


def set_by(effects: list[Effect]) -> list[SetTimer]:
    return [effect for effect in effects if isinstance(effect, SetTimer)]


def test_history_remembers_a_bounded_number_and_goes_on() -> None:
    cell = Cell(limited("ab+history", alpha=1, window=4, retained_publications=8))
    broker = history(cell=cell)
    for number in range(1, REMEMBERED + 20):
        body = cell.history(number, number, b"x")
        broker.handle(publish(number, b"x"), T0)
        settle(broker, number, body)
    sizes = broker.sizes()
    assert broker.settled == REMEMBERED + 19
    assert sizes["seen"] <= REMEMBERED
    assert sizes["ends"] <= ENDS
    assert (sizes["ledger"], sizes["history_ledger"], sizes["history_done"]) == (8, 8, 4)


def test_history_learned_digests_are_forgotten_when_the_publisher_moves_on() -> None:
    broker = history()
    learn(broker, 1, H1)
    assert broker.sizes()["learned"] == 2
    broker.handle(Receive(ALICE, Open(STREAM, 9, 1)), T0)
    assert broker.sizes()["learned"] == 0


def test_history_broker_left_behind_for_too_long_does_not_collect_digests_for_ever() -> None:
    """The publisher left it out and its peers hold no more than eight publications."""
    cell = Cell(limited("ab+history", alpha=1, retained_publications=8))
    broker = history(cell=cell)
    for number in range(1, 60):
        learn(broker, number, cell.history(number, number, b"x"))
    assert broker.settled == 59
    assert broker.sizes()["learned"] == 8
    broker.handle(contents(B2, 52, *[b"x"] * 8), T0)
    assert (broker.upto, broker.sizes()["learned"]) == (59, 0)


def test_history_pulls_are_answered_on_both_lanes() -> None:
    broker = history()
    broker.handle(publish(1, *P[1:3]), T0)
    settle(broker, 1, H1)
    data = broker.handle(Receive(B2, Pull(STREAM, 1, 2)), T0)
    assert messages(data, Contents) == [Contents(STREAM, 1, digests(*P[1:3]))]
    lane = broker.handle(Receive(B2, Pull(LANE, 1, MAX_RUN)), T0)
    assert messages(lane, Contents) == [Contents(LANE, 1, digests(H1))]


def test_history_reads_back_what_was_signed() -> None:
    found = read_history(H2, LANE)
    assert found is not None
    assert (found[1].index, found[1].first, end_of(found[1])) == (2, 3, 4)
