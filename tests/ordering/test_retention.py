"""What is no longer retained may still be needed: a restart executes again since the checkpoint."""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, ORDERS, STREAM, Cell
from tests.support.network import Disk
from tests.support.ordering import Hall, agree, offer

from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Forget, Receive
from quorumcast.core.quorum import Protection
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.messages import LogQuery
from quorumcast.ordering.offers import OFFERED_STREAMS, Stored

BROKERS = (B1, B2, B3, B4)


def kept(hall: Hall, member: NodeId) -> list[int]:
    """The first numbers of the offers that a broker has on disk."""
    return [
        place or 0 for kind, _, place in hall.disks[member].records if kind.__name__ == "Stored"
    ]


def test_publications_beyond_retention_since_the_checkpoint_survive_a_restart_of_all() -> None:
    """More is ordered since the last checkpoint than brokers retain."""
    limits = Limits(
        retained_publications=8, window=8, segment=4, vote_window=8, pipeline=4, checkpoint=4
    )
    hall = Hall(Policy.named("total", limits=limits), durable=True).begin()
    first = 1
    for _ in range(7):  # a checkpoint after the fourth
        contents = [b"a%d" % number for number in range(first, first + 8)]
        hall.offer(first, *contents)
        hall.run(300)
        first += 8
    before = agree(hall, *BROKERS)
    assert before == [b"a%d" % number for number in range(49, 57)]
    hall.restart_all()
    hall.run(3000)
    hall.offer(first, b"last")
    hall.run(3000)
    assert agree(hall, *BROKERS)[-1] == b"last"
    assert {hall.sequencer(member).executed for member in BROKERS} == {8}


def test_broker_that_restarts_holds_the_same_runs() -> None:
    limits = Limits(
        retained_publications=8, window=8, segment=4, vote_window=8, pipeline=4, checkpoint=4
    )
    hall = Hall(Policy.named("total", limits=limits), durable=True).begin()
    for first in range(1, 49, 6):
        hall.offer(first, *(b"a%d" % number for number in range(first, first + 6)))
        hall.run(300)
    before = agree(hall, *BROKERS)
    # Retention drops whole runs: of six, two are needed for the eight that must be kept.
    assert before == [b"a%d" % number for number in range(37, 49)]
    for member in BROKERS:
        hall.stop(member)
        hall.start(member)
        hall.run(3000)
    assert agree(hall, *BROKERS) == before


def test_publications_that_are_not_retained_leave_the_disk_with_the_next_checkpoint() -> None:
    limits = Limits(
        retained_publications=8, window=8, segment=4, vote_window=8, pipeline=4, checkpoint=4
    )
    hall = Hall(Policy.named("total", limits=limits), durable=True).begin()
    for first in range(1, 161, 8):
        hall.offer(first, *(b"a%d" % number for number in range(first, first + 8)))
        hall.run(300)
    assert len(kept(hall, B2)) <= 6  # those retained, and those since the checkpoint


# ----------------------------------------------------------------------- late


def run_short(*, checkpoint: int) -> Hall:
    """While the fourth broker is away, more is ordered than the others retain."""
    limits = Limits(retained_publications=8, window=8, segment=4, vote_window=8, pipeline=4)
    hall = Hall(Policy.named("total", limits=limits), checkpoint=checkpoint).begin()
    hall.stop(B4)
    for first in range(1, 41, 8):
        hall.offer(first, *(b"a%d" % number for number in range(first, first + 8)))
        hall.run(300)
    assert hall.sequencer(B1).executed == 5
    return hall


def test_late_broker_gets_a_state_where_nobody_retains_what_it_would_have_to_execute() -> None:
    hall = run_short(checkpoint=64)
    hall.start(B4)
    hall.run(5000)
    assert hall.sequencer(B4).executed == 5
    assert hall.order(B4) == hall.order(B1)
    # It was for handing out alone: nobody says that a checkpoint was due.
    assert hall.sequencer(B1).standing().checkpoint == 0


def test_state_out_of_turn_is_made_for_whoever_is_stuck_and_only_by_the_clock() -> None:
    hall = run_short(checkpoint=64)
    catch_up = hall.sequencer(B1).catch_up

    def made() -> int | None:
        return None if catch_up.spare is None else catch_up.spare.instance

    def ask(first: int, *, stuck: bool) -> None:
        query = LogQuery(Protection.BYZANTINE, first, stuck)
        hall.carry_out(B1, hall.sequencer(B1).handle(Receive(B2, query), Millis(hall.now)))

    ask(1, stuck=False)
    ask(5, stuck=True)  # of this everything is retained
    ask(6, stuck=True)  # nothing was decided there
    hall.run(1000)
    assert made() is None
    ask(1, stuck=True)
    assert made() is None
    hall.run(1000)
    assert made() == 5
    assert catch_up.held == {}


def test_state_out_of_turn_goes_when_a_later_checkpoint_is_stable() -> None:
    hall = run_short(checkpoint=6)
    hall.start(B4)
    hall.run(5000)
    catch_up = hall.sequencer(B1).catch_up
    assert list(catch_up.offered()) == [5]
    hall.offer(41, b"a41")
    hall.run(1000)
    assert list(catch_up.offered()) == [6]


# ------------------------------------------------------------------------ age

LIMITS = Limits(window=8, segment=4, vote_window=8, pipeline=4, checkpoint=4)
AGEING = Policy.named("total", limits=replace(LIMITS, retained_ms=1000))


def test_old_publications_before_the_stable_checkpoint_leave_memory_and_disk() -> None:
    hall = Hall(AGEING, durable=True).begin()
    for first in range(1, 7):
        hall.offer(first, b"a%d" % first)
        hall.run(300)
    hall.run(2000)
    # The checkpoint is at the fourth: who comes late executes the fifth and the sixth.
    assert hall.order(B1) == [b"a5", b"a6"]
    assert sorted(kept(hall, B1)) == [5, 6]
    # It takes no part in what brokers compare.
    assert {hall.sequencer(m).standing().root for m in BROKERS} == {
        hall.sequencer(B1).standing().root
    }


def test_old_publications_since_the_checkpoint_stay_for_whoever_comes_late() -> None:
    hall = Hall(AGEING).begin()
    for first in range(1, 7):
        hall.offer(first, b"a%d" % first)
        hall.run(300)
    hall.run(2000)
    hall.stop(B4)
    hall.start(B4, wiped=True)
    hall.run(5000)
    assert hall.sequencer(B4).executed == 6
    assert hall.order(B4) == [b"a5", b"a6"]


def test_durable_brokers_that_restart_together_go_on_after_what_was_old() -> None:
    hall = Hall(AGEING, durable=True).begin()
    for first in range(1, 7):
        hall.offer(first, b"a%d" % first)
        hall.run(300)
    hall.run(2000)
    hall.restart_all()
    hall.run(3000)
    hall.offer(7, b"last")
    hall.run(3000)
    assert agree(hall, *BROKERS) == [b"a5", b"a6", b"last"]


# ------------------------------------------------------------ never ordered


def test_offers_that_are_let_go_without_having_been_ordered_leave_the_disk() -> None:
    """A publisher whose offers nobody signed, and one with many incarnations."""
    hall = Hall(AGEING, durable=True).begin()
    bad, bodies = offer(hall.cell, 1, b"unsigned", signer=BOB)
    for member in BROKERS:
        hall.happen(member, Receive(STREAM.publisher, bad, bodies))
    hall.run(3000)
    for incarnation in range(2, 12):
        # Each leaves out its first number, so nothing of it can be ordered.
        hall.offer(5, b"late", stream=Stream(ORDERS, ALICE, incarnation))
        hall.run(100)
    hall.offer(1, b"good", stream=Stream(ORDERS, ALICE, 99))
    hall.run(1000)
    owners = {owner for kind, owner, _ in hall.disks[B1].records if kind.__name__ == "Stored"}
    assert str(STREAM) not in owners
    assert str(Stream(ORDERS, ALICE, 2)) not in owners
    assert len(owners) <= OFFERED_STREAMS + 1
    assert agree(hall, *BROKERS) == [b"good"]


def test_offers_between_those_that_were_ordered_leave_the_disk_alone() -> None:
    disk = Disk()
    for first in (1, 2, 3):
        message, bodies = offer(Cell(Policy.named("total")), first, b"x")
        disk.keep(Stored(message, bodies))
    disk.forget(Forget(Stored, str(STREAM), 3, since=2))
    assert [place for _, _, place in disk.records] == [1, 3]
