"""What is no longer retained may still be needed: a restart executes again since the checkpoint."""

from __future__ import annotations

from tests.support.cells import B1, B2, B3, B4
from tests.support.ordering import Hall, agree

from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)


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
    for member in BROKERS:
        hall.stop(member)
    for member in BROKERS:
        hall.start(member)
    hall.run(3000)
    hall.offer(first, b"last")
    hall.run(3000)
    assert agree(hall, *BROKERS)[-1] == b"last"
    assert {hall.sequencer(member).executed for member in BROKERS} == {8}


def test_publications_that_are_not_retained_leave_the_disk_with_the_next_checkpoint() -> None:
    limits = Limits(
        retained_publications=8, window=8, segment=4, vote_window=8, pipeline=4, checkpoint=4
    )
    hall = Hall(Policy.named("total", limits=limits), durable=True).begin()
    for first in range(1, 161, 8):
        hall.offer(first, *(b"a%d" % number for number in range(first, first + 8)))
        hall.run(300)
    kept = [record for record in hall.disks[B2].records if record[0].__name__ == "Stored"]
    assert len(kept) <= 6  # those retained, and those since the checkpoint
