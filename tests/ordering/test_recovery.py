"""Brokers that were away, died, or lost their memory: what a log does about them.

Sequencers connected in memory; a message takes 10 ms, a write 2 ms, a checkpoint is made every four
decisions.
"""

from __future__ import annotations

import pytest
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    T0,
    sent,
)
from tests.support.ordering import (
    BOBS,
    TOTAL,
    TOTAL_CRASH,
    Hall,
    agree,
    item,
    offer,
    publish,
    said,
)

from quorumcast.core.machine import Persist, Receive, Suspect
from quorumcast.core.quorum import Protection
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.consensus import Voted
from quorumcast.ordering.execution import Decided, Snapshot
from quorumcast.ordering.messages import (
    Accept,
    Chunk,
    Fetch,
    LogPart,
    LogQuery,
    Offer,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Write,
)
from quorumcast.ordering.offers import Stored

BYZANTINE = Protection.BYZANTINE
FOUR = (B1, B2, B3, B4)


@pytest.mark.parametrize("policy", [TOTAL, TOTAL_CRASH])
@pytest.mark.parametrize("durable", [False, True])
def test_broker_alone_orders_what_is_offered(policy: Policy, durable: bool) -> None:
    hall = Hall(policy, n=1, f=0, durable=durable).begin()
    before = publish(hall, 1, 9)
    assert hall.order(B1) == before
    hall.stop(B1)
    hall.start(B1)
    if not durable:
        before = []  # the log begins anew
    later = publish(hall, 1 + len(before), 5, each_ms=200)
    assert hall.order(B1) == before + later
    assert hall.suspected() == set()


# -------------------------------------------------------------- being late


def test_broker_that_lost_its_disk_under_load_costs_the_leader_nothing() -> None:
    """Links carry twice the load; nobody fills them with what has been sent already."""
    hall = Hall(durable=True, checkpoint=64).begin()
    publications = 0

    def publish_large(count: int) -> None:
        nonlocal publications
        for _ in range(count):
            publications += 1
            hall.offer(publications, bytes(100_000))
            hall.run(20)

    publish_large(100)
    hall.bytes_per_ms = 10_000
    hall.stop(B4)
    publish_large(10)
    hall.start(B4, wiped=True)
    publish_large(150)
    hall.run(500)
    assert len(agree(hall, *FOUR)) == publications
    assert said(hall, Stop) == []
    fetched = [found for found in said(hall, Offer) if isinstance(found, Offer)]
    assert len(fetched) < 50


def test_late_broker_asks_for_each_offer_once_while_an_answer_comes() -> None:
    hall = Hall(window=64, checkpoint=64).begin()
    hall.cut_off(B4)
    for number in range(1, 31):
        hall.offer(number, bytes(100_000), to=(B1, B2, B3))
        hall.run(20)
    hall.bytes_per_ms = 2_500  # each offer takes 40 ms
    hall.rejoin(B4)
    hall.run(3000)
    assert len(agree(hall, *FOUR)) == 30
    fetched = [found for found in said(hall, Offer) if isinstance(found, Offer)]
    assert len(fetched) < 60


def test_broker_that_was_away_learns_the_log() -> None:
    hall = Hall().begin()
    hall.cut_off(B4)
    contents = publish(hall, 1, 3)
    hall.rejoin(B4)
    hall.run(2000)
    assert agree(hall, *FOUR) == contents
    assert said(hall, LogPart) != []
    assert said(hall, StateHead) == []


def test_broker_that_was_away_for_long_fetches_the_state_and_what_lies_before() -> None:
    hall = Hall().begin()
    hall.cut_off(B4)
    contents = publish(hall, 1, 15)
    hall.rejoin(B4)
    hall.run(4000)
    assert said(hall, Chunk) != []
    assert agree(hall, *FOUR) == contents
    hall.offer(16, b"a16")
    hall.run(200)
    assert agree(hall, *FOUR) == [*contents, b"a16"]
    assert hall.suspected() == set()


def test_broker_without_its_memory_fetches_the_state_and_takes_part_again() -> None:
    hall = Hall().begin()
    contents = publish(hall, 1, 15)
    hall.stop(B4)
    hall.start(B4, wiped=True)
    hall.run(4000)
    assert agree(hall, *FOUR) == contents
    hall.stop(B3)  # now b4 is needed
    contents += publish(hall, 16, 3)
    hall.run(500)
    assert agree(hall, B1, B2, B4) == contents


def test_broker_without_its_memory_does_not_vote_on_what_it_may_have_voted_on() -> None:
    """b4 wrote in instance 1 and forgot it; nobody has decided it yet."""
    hall = Hall().begin()
    hall.losses.append(lambda _, to, send: isinstance(send.message, Accept))
    hall.offer(1, b"a")
    hall.run(60)
    assert len(said(hall, Write, by=B4)) == 1
    hall.stop(B4)
    hall.start(B4, wiped=True)
    hall.seen.clear()
    hall.run(400)
    assert said(hall, Write, by=B4) == []
    hall.losses.clear()
    hall.run(4000)
    assert agree(hall, *FOUR) == [b"a"]
    assert hall.suspected() == set()


def test_leader_without_its_memory_does_not_contradict_itself() -> None:
    hall = Hall().begin()
    publish(hall, 1, 2)
    hall.losses.append(lambda _, to, send: isinstance(send.message, Write | Accept))
    hall.offer(3, b"a3")
    hall.run(60)
    hall.stop(B1)
    hall.losses.clear()
    hall.start(B1, wiped=True)
    hall.offer(4, b"a4")
    hall.run(6000)
    assert agree(hall, *FOUR) == [b"a1", b"a2", b"a3", b"a4"]
    assert hall.suspected() == set()


def test_whole_crash_log_goes_on_when_one_of_three_forgot_everything() -> None:
    hall = Hall(TOTAL_CRASH, n=3).begin()
    contents = publish(hall, 1, 6)
    hall.stop(B3)
    hall.start(B3, wiped=True)
    hall.run(2000)
    hall.stop(B2)
    contents += publish(hall, 7, 3)
    hall.run(1000)
    assert agree(hall, B1, B3) == contents


def test_crash_log_one_broker_without_its_memory_undoes_nothing() -> None:
    """b1 and b3 decided; b3 forgot it, b1 is slow, and b2 never heard of it.

    b2 and b3 are a majority, but b3 hears from one other broker alone, the wrong one.
    """
    hall = Hall(TOTAL_CRASH, n=3).begin()
    hall.cut_off(B2)
    hall.offer(1, b"a", to=(B1, B3))
    hall.run(100)
    assert agree(hall, B1, B3) == [b"a"]
    hall.stop(B3)
    hall.cut_off(B1)
    hall.start(B3, wiped=True)
    hall.disconnect(B1, B3)
    hall.connect(B2, B3)
    hall.offer(1, b"x", stream=BOBS, to=(B2, B3))
    hall.run(6000)
    assert (hall.order(B2), hall.order(B3)) == ([], [])
    hall.rejoin(B1)
    hall.run(6000)
    assert agree(hall, B1, B2, B3) == [b"a", b"x"]


def test_broker_that_still_listens_neither_votes_nor_gives_its_word() -> None:
    hall = Hall()
    me = hall.sequencer(B4)
    message, bodies = offer(hall.cell, 1, b"a")
    me.handle(Receive(ALICE, message, bodies), T0)
    proposal = Propose(BYZANTINE, 0, 1, (item(1, b"a"),))
    assert sent(me.handle(Receive(B1, proposal), T0), Write) == []
    for peer in (B1, B2, B3):
        found = me.handle(Receive(peer, Stop(BYZANTINE, 1)), T0)
        assert sent(found, StopData) == []


# ---------------------------------------------------------------- checkpoints


def test_checkpoints_let_the_log_forget() -> None:
    hall = Hall(durable=True).begin()
    publish(hall, 1, 20)
    hall.run(500)
    for member in FOUR:
        assert hall.sequencer(member).standing().checkpoint == 20
        assert hall.sequencer(member).sizes()["slots"] <= 8
        kept = [r.instance for r in hall.disks[member].records.values() if isinstance(r, Decided)]
        assert kept == list(range(17, 21))


def test_checkpoint_that_no_quorum_is_known_to_have_lets_nothing_go() -> None:
    """Whoever is late then could get neither the log nor a state that enough vouch for."""
    hall = Hall(durable=True).begin()
    hall.losses.append(lambda node, to, send: isinstance(send.message, Standing) and to != B1)
    publish(hall, 1, 10)
    decided = {
        member: [r for r in hall.disks[member].records.values() if isinstance(r, Decided)]
        for member in FOUR
    }
    assert [len(decided[member]) for member in FOUR] == [6, 10, 10, 10]
    hall.losses.clear()
    hall.run(1500)
    assert [hall.sequencer(member).sizes()["slots"] <= 8 for member in FOUR] == [True] * 4


def test_checkpoints_are_alike_everywhere() -> None:
    hall = Hall().begin()
    publish(hall, 1, 9)
    assert len({hall.sequencer(member).standing().root for member in FOUR}) == 1


def test_checkpoint_that_differs_from_a_quorum_is_suspected() -> None:
    hall = Hall().begin()
    publish(hall, 1, 3)
    lie = Standing(BYZANTINE, 0, 4, 4, checkpoint=4, root=bytes(32))
    hall.happen(B1, Receive(B4, lie))
    hall.losses.append(lambda node, to, send: isinstance(send.message, Standing) and node == B4)
    publish(hall, 4, 1)
    hall.run(1000)
    blamed = {e.node for node, e in hall.seen if node == B1 and isinstance(e, Suspect)}
    assert blamed == {B4}


# -------------------------------------------------------------------- restarts


def test_durable_broker_restarted_from_its_disk_is_as_it_was() -> None:
    hall = Hall(durable=True).begin()
    contents = publish(hall, 1, 10)
    hall.run(200)
    before = hall.sequencer(B3).standing()
    hall.stop(B3)
    hall.seen.clear()
    hall.start(B3)
    assert hall.order(B3) == contents
    after = hall.sequencer(B3).standing()
    assert (after.decided, after.regency, after.fresh) == (before.decided, before.regency, False)
    hall.run(1000)
    assert said(hall, LogQuery, by=B3) == []
    assert said(hall, Fetch, by=B3) == []


def test_durable_cell_whose_brokers_all_died_at_once_goes_on() -> None:
    hall = Hall(durable=True).begin()
    contents = publish(hall, 1, 7)
    hall.offer(8, b"a8")
    hall.run(45)  # under way
    hall.restart_all()
    hall.run(5000)
    hall.offer(8, b"a8")
    hall.offer(9, b"a9")
    hall.run(5000)
    assert agree(hall, *FOUR) == [*contents, b"a8", b"a9"]


def test_durable_crash_cell_whose_brokers_all_died_at_once_goes_on() -> None:
    """The publisher is gone as well: what the disks hold of it is ordered all the same."""
    hall = Hall(TOTAL_CRASH, n=3, durable=True).begin()
    contents = publish(hall, 1, 3)
    hall.offer(4, b"a4")
    hall.run(5)
    hall.restart_all()
    hall.run(8000)
    assert agree(hall, *hall.members) == [*contents, b"a4"]


def test_durable_offer_is_on_disk_before_the_vote_that_names_it() -> None:
    hall = Hall(durable=True).begin()
    hall.offer(1, b"a")
    hall.run(200)
    for member in FOUR:
        written = [
            type(e.record) for node, e in hall.seen if node == member and isinstance(e, Persist)
        ]
        assert written.index(Stored) < written.index(Voted) < written.index(Decided)


def test_durable_broker_counts_nothing_that_its_disk_does_not_hold() -> None:
    """Every word that left is on the disk of the broker that said it."""
    hall = Hall(durable=True).begin()
    hall.offer(1, b"a")
    for _ in range(60):
        hall.run(1)
        for member in FOUR:
            held = [r for r in hall.disks[member].records.values() if isinstance(r, Voted)]
            stands = {(0, v) for r in held for v, _ in r.written} | {r.accepted for r in held}
            for word in said(hall, Write, by=member) + said(hall, Accept, by=member):
                assert isinstance(word, Write | Accept)
                assert (word.regency, word.value) in stands
    assert agree(hall, *FOUR) == [b"a"]


def test_durable_leader_restarted_in_its_regency_leads_on_or_is_replaced() -> None:
    hall = Hall(durable=True).begin()
    contents = publish(hall, 1, 3)
    hall.stop(B1)
    hall.start(B1)
    hall.run(100)
    contents += publish(hall, 4, 3)
    hall.run(4000)
    assert agree(hall, *FOUR) == contents
    assert hall.suspected() == set()


def test_durable_leader_restarted_with_a_proposal_under_way_is_not_taken_for_a_liar() -> None:
    """It does not know any more what it proposed: it must not propose something else."""
    hall = Hall(durable=True).begin()
    publish(hall, 1, 2)
    hall.losses.append(lambda _, to, send: isinstance(send.message, Write | Accept))
    hall.offer(3, b"a3")
    hall.run(12)  # the others have heard the proposal
    assert len(said(hall, Propose)) == 3
    hall.stop(B1)
    hall.losses.clear()
    hall.start(B1)
    hall.offer(1, b"x", stream=BOBS)
    hall.run(8000)
    assert sorted(agree(hall, *FOUR)) == [b"a1", b"a2", b"a3", b"x"]
    assert hall.suspected() == set()


def test_snapshot_and_votes_on_disk_are_bounded() -> None:
    hall = Hall(durable=True).begin()
    publish(hall, 1, 40)
    hall.run(500)
    kinds = [type(record) for record in hall.disks[B2].records.values()]
    assert kinds.count(Snapshot) == 1
    assert kinds.count(Voted) <= 12
    assert kinds.count(Decided) <= 12
