"""What faulty nodes did, for labels: which differences count, and towards whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, CAROL, STREAM, Cell, digests

from quorumcast.broadcast.messages import Ack, ChainRun, Contents, Echo, Open, Publish, Pull, Ready
from quorumcast.cell.messages import Attest, Missed, Positions, Survey, Vote
from quorumcast.cell.serving.served_streams import MAX_UNUSED
from quorumcast.core.ids import NodeId
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Send
from quorumcast.core.quorum import Protection
from quorumcast.faults.contract import Later
from quorumcast.faults.diagnosis import Model, diagnose
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.messages import Item, Offer, Propose, Write
from quorumcast.sim.cell.labels.deeds import Deed, Deeds
from quorumcast.sim.cell.labels.labelled import ideal_clauses, statuses
from quorumcast.sim.cell.labels.observed import ObservedRun
from quorumcast.watch.turnout import OVERDUE_MS

CELL = Cell(Policy.named("brb"))
MODEL = Model(CELL.manifest.broker_ids, 1)
BROKERS = (B1, B2, B3, B4)
#: Long after everything.
END = 100_000


def record() -> Deeds:
    """Everybody can be reached, and every client listens."""
    deeds = Deeds(lambda node, peer: True, CELL.manifest)
    for client in (ALICE, BOB, CAROL):
        deeds.knowledge.on_join(client, STREAM.channel)
    return deeds


def shown(deeds: Deeds, number: int, versions: dict[NodeId, bytes]) -> None:
    """A publisher means to show b"1" to everybody, and shows these instead."""
    wanted: list[Effect] = [Send(BROKERS, Publish(STREAM, number, digests(b"1")), (b"1",))]
    done = [
        Send((peer,), Publish(STREAM, number, digests(body)), (body,))
        for peer, body in versions.items()
    ]
    deeds.compare(ALICE, "any", wanted, list(done), 0)


def named(deeds: Deeds) -> tuple[str, ...]:
    clauses, _ = ideal_clauses(deeds.done(END), deeds.differences(), is_settled=True)
    return diagnose(clauses, MODEL).named


def test_publisher_that_tells_everybody_the_same_does_not_lie_whatever_its_machine_meant() -> None:
    deeds = record()
    for number in (1, 2, 3):
        shown(deeds, number, dict.fromkeys(BROKERS, b"other"))
    assert (deeds.done(END), deeds.differences()) == ({}, {})


@pytest.mark.parametrize(
    ("misled", "plain"), [((B4,), ()), ((B3, B4), (ALICE,)), ((B2, B3, B4), ())]
)
def test_two_versions_are_plain_if_more_than_f_brokers_were_shown_either(
    misled: tuple[NodeId, ...], plain: tuple[str, ...]
) -> None:
    deeds = record()
    for number in (1, 2, 3):
        shown(deeds, number, {b: b"other" if b in misled else b"1" for b in BROKERS})
    assert named(deeds) == plain


def test_two_signed_versions_are_plain_whoever_was_shown_them() -> None:
    deeds = record()
    for number in (1, 2, 3):
        bodies = [label(STREAM, number) + body for body in (b"1", b"other")]
        offers = [Offer(STREAM, number, digests(body), b"s" * 64) for body in bodies]
        wanted: list[Effect] = [Send(BROKERS, offers[0], (bodies[0],))]
        done = [Send((B1, B2, B3), offers[0], (bodies[0],)), Send((B4,), offers[1], (bodies[1],))]
        deeds.compare(ALICE, "any", wanted, list(done), 0)
    assert deeds.done(END) == {}
    assert named(deeds) == (ALICE,)


def test_contents_that_do_not_match_are_a_deed_and_no_version() -> None:
    deeds = record()
    wanted: list[Effect] = [Send((B1,), Publish(STREAM, 1, digests(b"1")), (b"1",))]
    deeds.compare(
        ALICE, "any", wanted, [Send((B1,), Publish(STREAM, 1, digests(b"1")), (b"other",))], 0
    )
    ((key, count),) = deeds.done(END).items()
    assert (key.deed, key.towards, count) == (Deed.ALTERED, B1, 1)


def test_what_is_dropped_while_packets_get_lost_is_no_deed() -> None:
    deeds = record()
    for number, now in enumerate((0, 10_000, 20_000), 1):
        wanted: list[Effect] = [Send((B2,), Vote(STREAM, number, digests(b"1")))]
        deeds.compare(B1, "any", wanted, [], now)
    deeds.knowledge.on_loss(B1, B2, 10_000 + OVERDUE_MS)
    deeds.knowledge.on_loss(B1, B3, 20_000)
    assert list(deeds.done(END).values()) == [2]


def test_run_that_is_kept_from_a_broker_counts_if_the_broker_learns_of_it_in_time() -> None:
    deeds = record()
    for number in (1, 2, 3):
        wanted: list[Effect] = [Send((B1,), Publish(STREAM, number, digests(b"1")), (b"1",))]
        deeds.compare(ALICE, "any", wanted, [], 0)
    deeds.knowledge.on_receive(B1, B2, Echo(STREAM, 1, b"r" * 32), 0)
    batch = (Item(STREAM, 2, digests(b"1")),)
    deeds.knowledge.on_receive(B1, B2, Propose(Protection.BYZANTINE, 0, 1, batch), END)
    assert list(deeds.done(END).values()) == [1]


def test_stream_that_is_kept_from_a_broker_counts_if_the_broker_learns_of_it() -> None:
    deeds = record()
    for peer in (B1, B2):
        deeds.compare(ALICE, "any", [Send((peer,), Open(STREAM, 1, fresh=True))], [], 0)
    deeds.knowledge.on_receive(B1, B3, Echo(STREAM, 7, b"r" * 32), 0)
    assert [key.towards for key in deeds.done(END)] == [B1]


@pytest.mark.parametrize(
    ("chains", "plain"),
    [([(B1, B2, B3)], ()), ([(B1, B2, B3), (B4, B2, B1), (B3, B2, B4)], (B2,))],
)
def test_who_keeps_runs_back_on_a_chain_is_told_from_its_neighbours_by_other_chains(
    chains: list[tuple[NodeId, ...]], plain: tuple[str, ...]
) -> None:
    deeds = record()
    for chain in chains:
        for number in (1, 2, 3):
            onward = ChainRun(STREAM, number, digests(b"1"), chain, ())
            deeds.compare(B2, "any", [Send(chain[2:], onward, (b"1",))], [], 0)
    assert {key.before for key in deeds.done(END)} == {chain[0] for chain in chains}
    assert named(deeds) == plain


def test_acknowledgement_of_a_run_on_a_chain_may_lack_because_of_whoever_comes_before() -> None:
    deeds = record()
    run = ChainRun(STREAM, 1, digests(b"1"), (B3, B1, B2), ())
    deeds.compare(B1, "any", [Send((B2,), run), Send((ALICE,), Ack(STREAM, 1, 10))], [], 0)
    deeds.compare(B1, "any", [Send((ALICE,), Ack(STREAM.history, 1, 10))], [], 0)
    lacking = {(key.towards, key.history, key.before) for key in deeds.done(END)}
    assert lacking == {(B2, False, B3), (ALICE, False, B3), (ALICE, True, "")}


def test_who_is_late_on_a_chain_may_have_been_handed_it_late() -> None:
    deeds = record()
    for number in (1, 2, 3):
        vote = Vote(STREAM, number, digests(b"1"), (B1, B3, B2))
        for onward in (Send((BOB,), vote), Send((CAROL,), vote)):
            deeds.compare(B2, "any", [onward], [Later(onward, 30)], number * 1000)
    assert {(key.deed, key.before) for key in deeds.done(END)} == {(Deed.DELAYED, B3)}
    assert named(deeds) == ()


def test_what_is_only_put_off_is_no_report_against_anybody() -> None:
    deeds = record()
    for number in (1, 2, 3):
        vote = Send((BOB, CAROL), Vote(STREAM, number, digests(b"1")))
        deeds.compare(B2, "any", [vote], [Later(vote, 500)], number * 1000)
    done = deeds.done(END)
    assert {(key.deed, key.node) for key in done} == {(Deed.DELAYED, B2)}
    assert ideal_clauses(done, {}, is_settled=True) == ([], {})
    run = SimpleNamespace(
        manifest=CELL.manifest, faulty={B2: "slow", B3: "slow"}, deeds=done, differences={}
    )
    found = statuses(cast(ObservedRun, run), MODEL, {})
    assert found == {B2: ("slow", "late"), B3: ("slow", "idle")}


@pytest.mark.parametrize(("misled", "plain"), [((B4,), ()), ((B2, B3, B4), (B1,)), ((B3, B4), ())])
def test_leader_that_proposes_different_things_is_told_from_the_few_that_it_tells_otherwise(
    misled: tuple[NodeId, ...], plain: tuple[str, ...]
) -> None:
    # One of three is as likely to lie about what it was told; what all are told is no secret.
    deeds = record()
    for instance in (1, 2, 3):
        meant, other = (
            Propose(Protection.BYZANTINE, 0, instance, (Item(STREAM, instance, digests(body)),))
            for body in (b"1", b"other")
        )
        done = [Send((peer,), other if peer in misled else meant) for peer in (B2, B3, B4)]
        deeds.compare(B1, "any", [Send((B2, B3, B4), meant)], list(done), 0)
    assert named(deeds) == plain


def test_leader_that_splits_six_brokers_in_halves_is_plain() -> None:
    cell = Cell(Policy.named("brb"), n=7, f=2)
    deeds = Deeds(lambda node, peer: True, cell.manifest)
    leader, *others = cell.manifest.broker_ids
    for instance in (1, 2, 3):
        meant, other = (
            Write(Protection.BYZANTINE, 0, instance, digests(body)) for body in (b"1", b"other")
        )
        done = [Send((peer,), meant if at < 3 else other) for at, peer in enumerate(others)]
        deeds.compare(leader, "any", [Send(tuple(others), meant)], list(done), 0)
    clauses, _ = ideal_clauses(deeds.done(END), deeds.differences(), is_settled=True)
    assert diagnose(clauses, Model(cell.manifest.broker_ids, 2)).named == (leader,)


def test_streams_within_the_limit_are_no_deed_and_those_beyond_are() -> None:
    deeds = record()
    for incarnation in range(2, 2 + MAX_UNUSED + 2):
        stream = msgspec.structs.replace(STREAM, incarnation=incarnation)
        extra = Send((B1,), Open(stream, 1, fresh=True))
        deeds.compare(ALICE, "any", [], [extra], 0)
    assert [(key.deed, count) for key, count in deeds.done(END).items()] == [(Deed.ADDED, 3)]


def test_who_is_kept_from_the_same_words_again_and_again_lacks_them_once() -> None:
    deeds = record()
    for now in (0, 1000, 2000):
        wanted: list[Effect] = [
            Send((B2,), Echo(STREAM, 1, b"r" * 32)),
            Send((B2,), Positions(STREAM.channel, ())),
        ]
        deeds.compare(B1, "any", wanted, [], now)
    assert {key.message: count for key, count in deeds.done(END).items()} == {
        "Echo": 1,
        "Positions": 3,
    }


@pytest.mark.parametrize("delay_ms", [None, 30])
def test_what_is_not_asked_or_asked_late_is_no_deed(delay_ms: int | None) -> None:
    deeds = record()
    for message in (
        Pull(STREAM, 1, 1),
        Attest(STREAM, 1),
        Survey(STREAM.channel),
        Missed(STREAM, 1, 1),
    ):
        asked = Send((B2,), message)
        deeds.compare(B1, "any", [asked], [] if delay_ms is None else [Later(asked, delay_ms)], 0)
    assert deeds.done(END) == {}


@pytest.mark.parametrize(("shown_at", "count"), [(0, 0), (2, 1)])
def test_run_that_its_publisher_shows_before_anybody_speaks_of_it_was_not_kept_back(
    shown_at: int, count: int
) -> None:
    deeds = record()
    run = Publish(STREAM, 1, digests(b"1"))
    deeds.compare(ALICE, "any", [Send((B1,), run, (b"1",))], [], 0)
    deeds.knowledge.on_receive(B1, ALICE, run, shown_at)
    deeds.knowledge.on_receive(B1, B2, Echo(STREAM, 1, b"r" * 32), 1)
    assert sum(deeds.done(END).values()) == count


@pytest.mark.parametrize(
    ("shown", "proposed", "deeds_done"), [(True, True, 0), (False, True, 1), (False, False, 0)]
)
def test_offer_that_a_leader_proposed_is_missed_by_who_has_it_from_nobody_else(
    shown: bool, proposed: bool, deeds_done: int
) -> None:
    """A broker that has not proposed it may not have it, and then says nothing either."""
    deeds = record()
    offer = Offer(STREAM, 1, digests(b"1"), b"s" * 64)
    if proposed:
        proposal: Effect = Send((B1,), Propose(Protection.BYZANTINE, 0, 1, (offer.item,)))
        deeds.compare(B2, "any", [proposal], [proposal], 500)
    deeds.compare(B2, "any", [Send((B1,), offer, (b"1",))], [], 1000)
    if shown:
        deeds.knowledge.on_receive(B1, ALICE, offer, 0)
    assert sum(deeds.done(END).values()) == deeds_done


@pytest.mark.parametrize(
    ("first", "second", "reordered"),
    [
        (Vote(STREAM, 1, digests(b"1")), Vote(STREAM, 2, digests(b"2")), [Deed.REORDERED]),
        (Ready(STREAM, 1, b"r" * 32), Ready(STREAM, 2, b"s" * 32), []),
        (Ack(STREAM, 1, 1, 9), Ack(STREAM, 2, 1, 9), [Deed.REORDERED]),
        (Ack(STREAM, 1, 1, 9), Ack(STREAM, 1, 1, 10), []),
    ],
)
def test_only_what_is_said_in_the_order_of_its_numbers_can_be_out_of_order(
    first: Vote | Ready | Ack, second: Vote | Ready | Ack, reordered: list[Deed]
) -> None:
    deeds = record()
    before, after = Send((B2,), first), Send((B2,), second)
    deeds.compare(B1, "any", [before], [Later(before, 20)], 0)
    deeds.compare(B1, "any", [after], [after], 5)
    done = [key.deed for key in deeds.done(END)]
    assert [deed for deed in done if deed is not Deed.DELAYED] == reordered


@pytest.mark.parametrize(("peer", "instead", "deed"), [
    (B2, (), None), (B2, (b"2",), Deed.ALTERED), (BOB, (), Deed.DROPPED),
])  # fmt: skip
def test_broker_that_gets_no_contents_cannot_tell_whether_the_other_has_them(
    peer: NodeId, instead: tuple[bytes, ...], deed: Deed | None
) -> None:
    """A subscriber can: it asks for what the other has voted for."""
    deeds = record()
    contents = Contents(STREAM, 1, digests(b"1"))
    done: list[Effect | Later] = [Send((peer,), contents, instead)] if instead else []
    deeds.compare(B1, "any", [Send((peer,), contents, (b"1",))], done, 0)
    assert {key.deed for key in deeds.done(END)} == ({deed} if deed else set())


def test_what_is_done_to_a_liar_or_to_who_cannot_be_reached_is_no_deed() -> None:
    deeds = Deeds(lambda node, peer: peer == B3, CELL.manifest)
    vote = Vote(STREAM, 1, digests(b"1"))
    deeds.compare(B1, "any", [Send((B2, B3), vote)], [], 0)
    assert [key.towards for key in deeds.done(END)] == [B3]


@pytest.mark.parametrize(
    "message",
    [Vote(STREAM, 1, digests(b"1")), Positions(STREAM.channel, ())],
    ids=["vote", "answer"],
)
def test_what_is_kept_from_who_does_not_listen_is_no_deed(message: Vote | Positions) -> None:
    deeds = record()
    deeds.knowledge.on_leave(BOB, STREAM.channel, 0)
    deeds.compare(B1, "any", [Send((B2, BOB, CAROL), message)], [], 0)
    assert [key.towards for key in deeds.done(END)] == [B2, CAROL]
    deeds.knowledge.on_join(BOB, STREAM.channel)
    deeds.compare(B1, "any", [Send((BOB,), message)], [], 10)
    assert BOB in [key.towards for key in deeds.done(END)]


@pytest.mark.parametrize(("stayed_ms", "missed"), [(OVERDUE_MS - 1, [B2]), (OVERDUE_MS, [B2, BOB])])
def test_who_leaves_before_it_would_have_come_does_not_miss_it(
    stayed_ms: int, missed: list[NodeId]
) -> None:
    deeds = record()
    wanted: list[Effect] = [Send((B2, BOB), Vote(STREAM, 1, digests(b"1")))]
    deeds.compare(B1, "any", wanted, [], 100)
    deeds.knowledge.on_leave(BOB, STREAM.channel, 100 + stayed_ms)
    assert [key.towards for key in deeds.done(END)] == missed


@pytest.mark.parametrize(
    ("after_ms", "upto", "deed"),
    [
        (OVERDUE_MS, 3, Deed.DELAYED),
        (OVERDUE_MS + 1, 3, Deed.DROPPED),
        (OVERDUE_MS, 2, Deed.DROPPED),
    ],
)
def test_acknowledgement_that_the_next_one_includes_is_late_and_not_missing(
    after_ms: int, upto: int, deed: Deed
) -> None:
    """No publisher can tell it from an acknowledgement that has a long way to come."""
    deeds = record()
    deeds.compare(B1, "any", [Send((ALICE,), Ack(STREAM, 3, 10))], [], 5000)
    said: Effect = Send((ALICE,), Ack(STREAM, upto, 10))
    deeds.compare(B1, "any", [said], [said], 5000 + after_ms)
    assert [key.deed for key in deeds.done(END)] == [deed]
