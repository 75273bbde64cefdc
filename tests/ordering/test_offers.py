"""What waits to be ordered at a broker, and the leader's choice among it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import ALICE, B2, BOB, CAROL, ORDERS, STREAM, T0, Cell, digests
from tests.support.ordering import BOBS, TOTAL, TOTAL_CRASH, item, labelled, offer

from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.labels import label, unlabel
from quorumcast.core.limits import MAX_BATCH, Limits
from quorumcast.core.machine import Bodies, DropReason
from quorumcast.ordering.messages import Batch, Item, Offer
from quorumcast.ordering.offers import BATCH_PUBLICATIONS, Offers, Stored, WaitingOffer, offer_holds

CELL = Cell(TOTAL)
CAROLS = Stream(ORDERS, CAROL, 1)
names = st.text(min_size=1, max_size=60)


class Desk:
    """Offers with a state that tests can change."""

    def __init__(self, *, signed: bool = True, limits: Limits = Limits(window=8)) -> None:  # noqa: B008
        self.served: dict[Stream, int] = {}
        self.offers = Offers(
            CELL.keyring(B2),
            CELL.manifest.hash,
            signed=signed,
            limits=lambda _: limits,
            served=lambda stream: self.served.get(stream, 0),
        )

    def add(
        self,
        first: int,
        *contents: bytes,
        stream: Stream = STREAM,
        sender: NodeId | None = None,
        signer: NodeId | None = None,
        now: int = 0,
    ) -> DropReason | WaitingOffer:
        made, bodies = offer(CELL, first, *contents, stream=stream, signer=signer)
        return self.offers.add(sender or stream.publisher, made, bodies, Millis(now))

    def serve(self, stream: Stream, upto: int) -> None:
        self.served[stream] = upto
        self.offers.serve(stream, upto)


def runs(batch: Batch) -> list[tuple[Stream, int]]:
    return [(one.stream, one.first) for one in batch]


# ------------------------------------------------------------------ labels


@given(names, names, st.integers(0, 2**62), st.integers(1, 2**62), st.binary(max_size=50))
def test_label_before_contents_reads_back(
    channel: str, publisher: str, incarnation: int, number: int, contents: bytes
) -> None:
    stream = Stream(Channel(channel), NodeId(publisher), incarnation)
    found = unlabel(label(stream, number) + contents)
    assert found is not None
    read, rest = found
    assert (read.channel, read.publisher, read.incarnation, read.number, rest) == (
        channel,
        publisher,
        incarnation,
        number,
        contents,
    )


@given(st.binary(max_size=40))
def test_label_any_bytes_are_read_or_not_and_never_raise(body: bytes) -> None:
    found = unlabel(body)
    assert found is None or body.endswith(found[1])


def test_label_of_another_number_is_no_beginning_of_this_one() -> None:
    """A body that starts with a label has no other label: lengths come first."""
    made = {label(stream, n) for stream in (STREAM, BOBS) for n in range(1, 300)}
    assert len(made) == 598
    assert not any(a != b and b.startswith(a) for a in made for b in list(made)[:40])


# ------------------------------------------------------------- what is taken


def test_offer_of_its_publisher_is_held() -> None:
    desk = Desk()
    held = desk.add(1, b"a", b"b", now=7)
    assert isinstance(held, WaitingOffer)
    assert (held.last, held.arrived, held.offer.item) == (2, 7, item(1, b"a", b"b"))
    assert desk.offers.holds(item(1, b"a", b"b"))
    assert not desk.offers.holds(item(1, b"a", b"x"))
    assert desk.offers.find(STREAM, 1) is held
    assert bool(desk.offers)


def flawed(first: int = 1, **changes: object) -> tuple[Offer, Bodies]:
    made, bodies = offer(CELL, first, b"a", b"b")
    return msgspec.structs.replace(made, **changes), bodies


def test_offer_with_digests_that_are_no_run_is_dropped() -> None:
    made, bodies = flawed()
    for changed, sent in (
        (msgspec.structs.replace(made, digests=made.digests + b"x"), bodies),
        (made, bodies[:1]),
        (made, (*bodies, b"")),
    ):
        assert Desk().offers.add(ALICE, changed, sent, T0) is DropReason.BAD_RUN


def test_offer_with_a_body_that_is_not_its_digest_is_dropped() -> None:
    made, (first, second) = flawed()
    assert Desk().offers.add(ALICE, made, (first, second + b"x"), T0) is DropReason.BAD_BODY


@pytest.mark.parametrize("at", [0, -1], ids=["label", "contents"])
def test_offer_that_was_altered_anywhere_does_not_match_its_digests(at: int) -> None:
    """Altered on the wire: the label, which the digest covers, is not its publisher's mistake."""
    made, (first, second) = flawed()
    altered = bytearray(first)
    altered[at] ^= 1
    assert Desk().offers.add(ALICE, made, (bytes(altered), second), T0) is DropReason.BAD_BODY


@pytest.mark.parametrize(
    "bodies",
    [
        (b"a", b"b"),
        labelled(2, b"a", b"b"),
        labelled(1, b"a", b"b", stream=BOBS),
        labelled(1, b"a", b"b", stream=msgspec.structs.replace(STREAM, incarnation=2)),
    ],
    ids=["none", "numbers", "publisher", "incarnation"],
)
def test_offer_with_a_label_that_is_not_its_own_is_dropped(bodies: Bodies) -> None:
    """Otherwise bob could publish in alice's name: subscribers believe the label."""
    made = Offer(STREAM, 1, digests(*bodies))
    assert Desk(signed=False).offers.add(ALICE, made, bodies, T0) is DropReason.BAD_RUN


def test_offer_on_the_lane_of_histories_is_dropped() -> None:
    """A label names no lane: subscribers would get the same numbers once for each."""
    assert Desk().add(1, b"a", stream=STREAM.history, sender=ALICE) is DropReason.BAD_RUN


def test_offer_passed_on_by_a_broker_must_be_signed_by_its_publisher() -> None:
    desk = Desk()
    assert desk.add(1, b"a", sender=B2, signer=BOB) is DropReason.BAD_SIGNATURE
    assert isinstance(desk.add(1, b"a", sender=B2), WaitingOffer)


def test_offer_passed_on_needs_no_signature_where_brokers_only_crash() -> None:
    made, bodies = flawed(signature=b"")
    assert isinstance(Desk(signed=False).offers.add(B2, made, bodies, T0), WaitingOffer)


@pytest.mark.parametrize(
    "changes",
    [{"first": 2}, {"digests": digests(b"x", b"y")}, {"stream": BOBS}, {"signature": b""}],
    ids=str,
)
def test_offer_signature_covers_every_field(changes: dict[str, object]) -> None:
    made, _ = flawed()
    assert offer_holds(CELL.keyring(B2), made)
    assert not offer_holds(CELL.keyring(B2), msgspec.structs.replace(made, **changes))


def test_offer_beyond_the_window_is_dropped() -> None:
    desk = Desk(limits=Limits(window=8))
    assert desk.add(9, b"a") is DropReason.OUT_OF_WINDOW
    assert isinstance(desk.add(8, b"a"), WaitingOffer)
    desk.serve(STREAM, 1)
    assert isinstance(desk.add(9, b"a"), WaitingOffer)


def test_offers_of_a_stream_are_bounded_in_number_and_bytes() -> None:
    desk = Desk(limits=Limits(window=4, retained_bytes=100))
    assert desk.add(1, b"x" * 100) is DropReason.OVER_LIMIT
    found = [desk.add(first, b"x") for first in range(1, 10)]
    assert sum(isinstance(one, WaitingOffer) for one in found) <= 4
    assert desk.offers.sizes()["offers"] <= 4
    assert desk.offers.sizes()["offered_bytes"] <= 100


def test_offer_repeated_is_a_duplicate_and_a_served_one_too() -> None:
    desk = Desk()
    desk.add(1, b"a")
    assert desk.add(1, b"a") is DropReason.DUPLICATE
    desk.serve(STREAM, 1)
    assert desk.add(1, b"a") is DropReason.DUPLICATE


def test_offer_of_two_stories_the_first_stands_until_a_batch_needs_the_other() -> None:
    desk = Desk()
    desk.add(1, b"a")
    assert desk.add(1, b"b") is DropReason.CONFLICT
    assert desk.offers.holds(item(1, b"a"))
    assert isinstance(
        desk.add(1, b"b", sender=B2), WaitingOffer
    )  # signed: the publisher did say so
    assert desk.offers.holds(item(1, b"b"))


def test_offers_served_are_let_go_with_their_bytes() -> None:
    desk = Desk()
    desk.add(1, b"a", b"b")
    desk.add(3, b"c")
    desk.serve(STREAM, 2)
    assert desk.offers.find(STREAM, 1) is None
    assert desk.offers.sizes()["offers"] == 1
    desk.serve(STREAM, 3)
    assert not any(desk.offers.sizes().values())
    assert not desk.offers


def test_offers_that_are_refused_leave_nothing_behind() -> None:
    """A lying publisher names a new incarnation with every offer that is none."""
    desk = Desk()
    for incarnation in range(100):
        stream = msgspec.structs.replace(STREAM, incarnation=incarnation)
        desk.offers.add(ALICE, Offer(stream, 1, digests(b"x")), (b"x",), T0)
    assert desk.offers.sizes()["queues"] == 0


def test_offers_of_many_incarnations_are_bounded() -> None:
    """Each offer is genuine; nothing that waits gives way, since a batch may name it."""
    desk = Desk(limits=Limits(window=8, streams_per_publisher=2))
    streams = [msgspec.structs.replace(STREAM, incarnation=i) for i in range(5)]
    found = [desk.add(1, b"a", stream=stream) for stream in streams]
    assert [isinstance(one, WaitingOffer) for one in found] == [True, True, False, False, False]
    assert found[-1] is DropReason.OVER_LIMIT
    assert isinstance(desk.add(1, b"z", stream=BOBS), WaitingOffer)
    desk.serve(streams[0], 1)
    assert isinstance(desk.add(1, b"a", stream=streams[4]), WaitingOffer)


def test_genuine_offers_are_those_that_their_publisher_signed() -> None:
    desk = Desk()
    desk.add(1, b"a", signer=BOB, now=1)
    desk.add(1, b"z", stream=BOBS, now=2)
    desk.add(3, b"y", stream=BOBS, now=3)  # something is left out before it
    assert [held.offer.stream for held in desk.offers.genuine(8)] == [BOBS]
    assert desk.offers.find(STREAM, 1) is None
    assert desk.offers.sizes()["queues"] == 1
    assert desk.offers.genuine(0) == []


def test_stored_offer_has_the_address_of_its_run() -> None:
    made, bodies = flawed()
    record = Stored(made, bodies)
    assert (record.owner, record.place) == ("orders/alice@1", 1)


# ----------------------------------------------------------------- choosing


def test_choice_takes_what_follows_and_leaves_what_has_a_gap_before_it() -> None:
    desk = Desk()
    desk.add(1, b"a", b"b")
    desk.add(3, b"c")
    desk.add(5, b"e")
    assert runs(desk.offers.choose()) == [(STREAM, 1), (STREAM, 3)]
    assert desk.offers.choose() == ()
    desk.add(4, b"d")
    assert runs(desk.offers.choose()) == [(STREAM, 4), (STREAM, 5)]


def test_choice_goes_on_after_what_was_served() -> None:
    desk = Desk()
    desk.served[STREAM] = 4
    desk.add(5, b"e")
    assert desk.offers.choose() == (item(5, b"e"),)


def test_choice_checks_the_signature_of_what_came_from_the_publisher() -> None:
    """A proposal must be acceptable to brokers that take it from others."""
    desk = Desk()
    assert isinstance(desk.add(1, b"a", signer=BOB), WaitingOffer)
    desk.add(1, b"z", stream=BOBS)
    assert runs(desk.offers.choose()) == [(BOBS, 1)]
    assert desk.offers.find(STREAM, 1) is None


def test_choice_in_a_new_regency_begins_after_what_is_under_way() -> None:
    desk = Desk()
    for number in range(1, 5):
        desk.add(number, b"%d" % number)
    assert len(desk.offers.choose()) == 4
    desk.offers.begin([(item(1, b"1"), item(2, b"2"))])
    assert runs(desk.offers.choose()) == [(STREAM, 3), (STREAM, 4)]
    desk.offers.begin([])
    assert len(desk.offers.choose()) == 4


def many(desk: Desk, stream: Stream, count: int) -> None:
    """One publication per run, already proven."""
    for first in range(1, count + 1):
        bodies = labelled(first, b"", stream=stream)
        desk.offers.add(stream.publisher, Offer(stream, first, digests(*bodies)), bodies, T0)


def test_choice_of_long_runs_leaves_room_for_others() -> None:
    desk = Desk(signed=False, limits=Limits(window=BATCH_PUBLICATIONS))
    for first in range(1, BATCH_PUBLICATIONS, 1024):
        bodies = labelled(first, *[b""] * 1024)
        desk.offers.add(ALICE, Offer(STREAM, first, digests(*bodies)), bodies, T0)
    many(desk, BOBS, 2)
    chosen = desk.offers.choose()
    assert runs(chosen).count((BOBS, 1)) == 1
    assert sum(len(one.digests) // 32 for one in chosen) <= BATCH_PUBLICATIONS


def test_choice_of_many_short_runs_leaves_room_for_others() -> None:
    """A batch has room for MAX_BATCH runs: nobody may take all of it."""
    desk = Desk(signed=False, limits=Limits(window=MAX_BATCH))
    many(desk, STREAM, MAX_BATCH)
    many(desk, BOBS, 2)
    many(desk, CAROLS, 1)
    chosen = desk.offers.choose()
    assert len(chosen) <= MAX_BATCH
    assert [run for run in runs(chosen) if run[0] != STREAM] == [(BOBS, 1), (BOBS, 2), (CAROLS, 1)]


def test_choice_among_more_streams_than_a_batch_holds_takes_turns() -> None:
    desk = Desk(signed=False)
    streams = [Stream(ORDERS, NodeId(f"p{i}"), 1) for i in range(MAX_BATCH + 10)]
    for stream in streams:
        many(desk, stream, 2)
    first, second = desk.offers.choose(), desk.offers.choose()
    assert {one.stream for one in (*first, *second)} == set(streams)


# -------------------------------------------------------------- after a restart


@pytest.mark.parametrize("policy", [TOTAL, TOTAL_CRASH], ids=lambda p: str(p.name))
def test_offer_put_back_after_a_restart_waits_and_is_chosen(policy: object) -> None:
    signed = policy is TOTAL
    desk = Desk(signed=signed)
    made, bodies = flawed() if signed else flawed(signature=b"")
    desk.offers.put_back(made, bodies, T0)
    assert desk.offers.choose() == (Item(STREAM, 1, made.digests),)


def test_offers_put_back_beyond_the_window_are_those_that_proposals_name() -> None:
    desk = Desk(limits=Limits(window=4))
    for first in range(1, 7):
        desk.offers.put_back(*offer(CELL, first, b"a"), T0)
    sizes = desk.offers.sizes()
    assert (sizes["offers"], sizes["named_offers"]) == (4, 2)
    desk.offers.unname({item(5, b"a")})
    assert desk.offers.holds(item(5, b"a"))
    assert not desk.offers.holds(item(6, b"a"))


def test_offer_put_back_that_was_served_is_not_kept() -> None:
    desk = Desk()
    desk.served[STREAM] = 2
    desk.offers.put_back(*flawed(), T0)
    assert desk.offers.sizes()["queues"] == 0


# ------------------------------------------------------------------- waiting


def test_oldest_is_the_first_that_could_have_been_ordered() -> None:
    desk = Desk()
    assert desk.offers.oldest() is None
    desk.add(1, b"a", now=50)
    desk.add(1, b"z", stream=BOBS, now=20)
    assert desk.offers.oldest() == 20
    desk.serve(BOBS, 1)
    assert desk.offers.oldest() == 50


def test_oldest_leaves_out_what_nobody_can_order() -> None:
    """A publisher that leaves out a number must not make brokers lose patience with leaders."""
    desk = Desk()
    desk.add(2, b"b", now=10)
    assert desk.offers.oldest() is None
    desk.add(1, b"a", now=30)
    assert desk.offers.oldest() == 10
