"""A right is taken away while publications wait to be ordered: the log goes on for the others."""

from __future__ import annotations

import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4
from tests.support.ordering import BOBS, TOTAL_CRASH, Hall, agree

from quorumcast.core.ids import NodeId, Stream
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)


def entitle(hall: Hall, publisher: NodeId, *, yes: bool) -> None:
    """A new epoch at every broker: somebody has lost a right, or has it again."""

    def may_publish(stream: Stream) -> bool:
        return yes or stream.publisher != publisher

    for member in hall.members:
        if member in hall.machines:
            hall.sequencer(member)._context.may_publish = may_publish


@pytest.mark.parametrize("policy", [Policy.named("total"), TOTAL_CRASH], ids=["total", "crash"])
def test_offers_that_wait_when_the_right_goes_stop_nobody(policy: Policy) -> None:
    hall = Hall(policy).begin()
    hall.offer(1, b"a1", b"a2", to=(B2, B3, B4))  # the leader knows nothing of it yet
    hall.run(50)
    entitle(hall, ALICE, yes=False)
    hall.offer(1, b"b1", stream=BOBS)
    hall.run(4000)
    assert agree(hall, *BROKERS) == [b"b1"]
    regencies = {hall.sequencer(member).standing().regency for member in BROKERS}
    hall.run(20_000)
    assert {hall.sequencer(member).standing().regency for member in BROKERS} == regencies
    entitle(hall, ALICE, yes=True)
    hall.offer(3, b"a3")
    hall.run(2000)
    assert agree(hall, *BROKERS) == [b"b1", b"a1", b"a2", b"a3"]


def test_proposal_under_way_when_the_right_goes_is_ordered_without_another_leader() -> None:
    hall = Hall().begin()
    hall.offer(1, b"a1")
    hall.run(5)  # proposed, and on its way
    entitle(hall, ALICE, yes=False)
    hall.offer(1, b"b1", stream=BOBS)
    hall.run(500)
    assert sorted(agree(hall, *BROKERS)) == [b"a1", b"b1"]
    assert {hall.sequencer(member).standing().regency for member in BROKERS} == {0}


def test_what_some_have_accepted_is_ordered_although_the_right_is_gone() -> None:
    """Two brokers hold it and have written it; the others must be able to get it from them."""
    hall = Hall().begin()
    hall.offer(1, b"a1", to=(B1, B2, B3))
    hall.run(25)  # three have written, and some have accepted
    accepted = [m for m in BROKERS if hall.sequencer(m)._consensus.slots[1].accepted[1]]
    assert accepted
    hall.cut_off(B1)
    entitle(hall, ALICE, yes=False)
    hall.offer(1, b"b1", stream=BOBS, to=(B2, B3, B4))
    hall.run(8000)
    assert agree(hall, B2, B3, B4) == [b"a1", b"b1"]


def test_right_that_is_gone_lets_nothing_new_in() -> None:
    hall = Hall().begin()
    entitle(hall, ALICE, yes=False)
    hall.offer(1, b"a1")
    hall.offer(1, b"b1", stream=BOBS)
    hall.run(4000)
    assert agree(hall, *BROKERS) == [b"b1"]


def test_offers_of_somebody_without_the_right_survive_a_restart_of_all() -> None:
    """One of them may have been accepted: nobody else could give it to those who must order it."""
    hall = Hall(durable=True).begin()
    hall.offer(1, b"a1")
    hall.run(25)
    hall.restart_all()
    entitle(hall, ALICE, yes=False)
    hall.offer(1, b"b1", stream=BOBS)
    hall.run(8000)
    order = agree(hall, *BROKERS)
    assert b"b1" in order
