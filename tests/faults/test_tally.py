"""The tally of what faults did, from which real runs get their labels."""

import pytest
from tests.support.cells import ALICE, B1, B2, B3, ORDERS, STREAM, digests

from quorumcast.cell.messages import Subscribe, Vote
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.tally import MAX_DEEDS, DeedTally, TalliedDeed
from quorumcast.faults.contract import Later


def vote(number: int, contents: bytes = b"1") -> Vote:
    return Vote(STREAM, number, digests(contents))


ASKS = Subscribe(ORDERS, (), bodies=False)


@pytest.mark.parametrize(
    ("done", "counted"),
    [
        ([Send((B1, B2), vote(1))], {}),
        ([Send((B2,), vote(1)), Send((B1,), vote(1))], {}),
        ([], {B1: 1, B2: 1}),
        ([Send((B1,), vote(1))], {B2: 1}),
        ([Send((B1, B2), vote(1, b"2"))], {B1: 1, B2: 1}),
        ([Send((B1, B2, B3), vote(1))], {B3: 1}),
        ([Send((B1, B2), vote(1)), Send((B1, B2), vote(1))], {B1: 1, B2: 1}),
        ([Later(Send((B1, B2), vote(1)), 50)], {}),  # nobody can tell that from distance
        ([Send((B1, B2), vote(1)), Later(Send((B2, B3), vote(1)), 50)], {B2: 1, B3: 1}),
    ],
)
def test_tally_counts_by_peer_what_was_kept_changed_or_added(
    done: list[Effect | Later], counted: dict[NodeId, int]
) -> None:
    tally = DeedTally()
    tally.compare([Send((B1, B2), vote(1))], done)
    assert tally.deeds == {TalliedDeed("Vote", peer, ALICE): n for peer, n in counted.items()}


def test_tally_who_does_not_ask_has_done_nothing_and_who_asks_too_often_has() -> None:
    tally = DeedTally()
    tally.compare([Send((B1,), ASKS)], [])
    assert not tally.deeds
    tally.compare([], [Send((B1,), ASKS)])
    assert tally.deeds == {TalliedDeed("Subscribe", B1): 1}


def test_tally_tells_histories_apart_and_is_bounded() -> None:
    tally = DeedTally()
    tally.compare([Send((B1,), Vote(STREAM.history, 1, digests(b"1")))], [])
    assert tally.deeds == {TalliedDeed("Vote", B1, ALICE, history=True): 1}
    for number in range(2 * MAX_DEEDS):
        tally.compare([], [Send((NodeId(f"n{number}"),), vote(1))])
    assert len(tally.deeds) == MAX_DEEDS
