"""A manifest in a log: decided like anything else, and the log goes on with other brokers."""

from __future__ import annotations

import pytest
from tests.support.cells import B1, B2, B3, B4, B5, T0
from tests.support.ordering import Hall, publish

from quorumcast.core.ids import EPOCHS, Digest, NodeId
from quorumcast.core.machine import DropReason
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.ordering.epochs import Epochs, first_regency, within_epoch
from quorumcast.ordering.execution import Decided
from quorumcast.ordering.messages import Accept, Item, Offer, Propose

SECOND = b"2"


#: Another manifest for the same epoch.
OTHER = b"02"


def follows(data: bytes) -> int:
    """In these tests a manifest is the number of its epoch."""
    return int(data) if data.isdigit() else 0


def short(data: bytes) -> Digest:
    """Stands for a manifest."""
    return Digest(data[:32].ljust(32))


class EpochHall(Hall):
    """A hall of four whose fifth member comes later."""

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__(n=5, durable=durable)
        self.members = self.members[:4]
        for member in (B1, B2, B3, B4, B5):
            del self.machines[member]
        for member in self.members:
            self._found(member)

    def _found(self, me: NodeId) -> None:
        super()._found(me)
        self.around(me).follows = follows

    def around(self, member: NodeId):  # type: ignore[no-untyped-def]
        return self.sequencer(member)._context

    def adopt(self, member: NodeId) -> None:
        """A broker takes the second epoch, with the fifth broker."""
        around = self.around(member)
        around.members, around.epoch = (B1, B2, B3, B4, B5), 2
        self.sequencer(member).begin_epoch(OrderQuorums(5, 1, True))

    def join(self) -> None:
        """The fifth one starts in the second epoch."""
        self.members = (B1, B2, B3, B4, B5)
        self._found(B5)
        around = self.around(B5)
        around.epoch = 2
        self.sequencer(B5).begin_epoch(OrderQuorums(5, 1, True))
        self.sequencer(B5)._consensus.late = False  # as one that starts with the file
        self.rejoin(B5)


def offered(hall: EpochHall, *at: NodeId) -> None:
    for member in at:
        hall.carry_out(member, hall.sequencer(member).offer_epoch(SECOND, T0))


@pytest.mark.parametrize("holders", [(B1, B2, B3, B4), (B3,)])
def test_manifest_that_any_broker_holds_is_executed_by_all(holders: tuple[NodeId, ...]) -> None:
    hall = EpochHall()
    hall.begin()
    before = publish(hall, 1, 3)
    offered(hall, *holders)
    hall.run(3000)
    assert [hall.sequencer(member).passed for member in hall.members] == [SECOND] * 4
    executed = {hall.sequencer(member).executed for member in hall.members}
    publish(hall, 4, 3)
    hall.run(2000)
    # Nothing is executed behind it, and nobody blames a leader for that.
    assert {hall.sequencer(member).executed for member in hall.members} == executed
    assert all(hall.order(member) == before for member in hall.members)
    assert hall.suspected() == set()


def test_of_two_manifests_for_one_epoch_all_go_by_the_one_that_was_decided() -> None:
    hall = EpochHall()
    hall.begin()
    leader = hall.sequencer(B1).leader
    for member in hall.members:
        mine = SECOND if member == leader else OTHER
        hall.carry_out(member, hall.sequencer(member).offer_epoch(mine, T0))
    hall.run(6000)
    decided = {hall.sequencer(member)._execution.state.manifest for member in hall.members}
    (went,) = [data for data in (SECOND, OTHER) if decided == {hall.cell.manifest.hash(data)}]
    assert [hall.sequencer(member).passed for member in hall.members] == [went] * 4


def test_epoch_may_leave_out_those_that_nobody_took() -> None:
    hall = EpochHall()
    hall.begin()
    for member in hall.members:
        hall.carry_out(member, hall.sequencer(member).offer_epoch(b"4", T0))
    hall.run(3000)
    assert [hall.sequencer(member).passed for member in hall.members] == [b"4"] * 4


def test_broker_that_was_handed_the_state_asks_for_the_manifest_in_it() -> None:
    hall = EpochHall()
    hall.begin()
    hall.cut_off(B4)
    for number in range(1, 20):
        publish(hall, number, 1)
    offered(hall, B1, B2, B3)
    hall.run(3000)
    hall.rejoin(B4)
    hall.run(3000)
    assert hall.sequencer(B4).executed == hall.sequencer(B1).executed
    assert hall.sequencer(B4).passed == SECOND


def test_epoch_counts_as_executed_once_the_disk_has_it() -> None:
    hall = EpochHall(durable=True)
    hall.begin()
    offered(hall, *hall.members)
    unsafe = 0
    while not hall.sequencer(B1).passed:
        hall.run(1)
        if hall.sequencer(B1)._execution.halted:
            kept = [r for r in hall.disks[B1].records.values() if isinstance(r, Decided)]
            unsafe += not kept
            assert bool(kept) == (hall.sequencer(B1).passed is not None)
    assert unsafe


def test_log_goes_on_with_the_brokers_of_the_next_epoch() -> None:
    hall = EpochHall()
    hall.begin()
    before = publish(hall, 1, 3)
    offered(hall, *hall.members)
    hall.run(2000)
    hall.offer(4, b"between")
    for member in hall.members:
        hall.adopt(member)
    hall.join()
    for one in (B1, B2, B3, B4):
        for other in (B1, B2, B3, B4):
            if one < other:
                hall.disconnect(one, other)
                hall.connect(one, other)
    hall.run(4000)
    after = publish(hall, 5, 3)
    hall.run(3000)
    for member in (B1, B2, B3, B4, B5):
        assert hall.order(member)[-4:] == [b"between", *after], member
    assert hall.order(B1) == [*before, b"between", *after]
    regencies = {hall.sequencer(member).standing().regency for member in hall.members}
    assert all(regency >= first_regency(2) for regency in regencies)


def test_broker_that_does_not_know_where_its_epoch_began_takes_no_part() -> None:
    hall = EpochHall()
    hall.begin()
    publish(hall, 1, 3)
    hall.adopt(B2)
    consensus = hall.sequencer(B2)._consensus
    assert consensus.late
    leader = consensus.leader
    proposal = Propose(Protection.BYZANTINE, consensus.regency, consensus.decided + 1, ())
    assert not any("Write" in repr(effect) for effect in consensus.on_propose(leader, proposal))


def test_votes_of_an_earlier_epoch_are_out_of_turn() -> None:
    hall = EpochHall()
    hall.begin()
    hall.adopt(B2)
    consensus = hall.sequencer(B2)._consensus
    (drop,) = consensus.on_vote(B1, Accept(Protection.BYZANTINE, 0, 1, b"v" * 32))
    assert "OUT_OF_TURN" in repr(drop)


def test_regencies_of_epochs_never_meet_and_are_shown_from_nought() -> None:
    assert (first_regency(1), within_epoch(first_regency(7) + 3)) == (0, 3)


@pytest.mark.parametrize(
    ("number", "bodies", "expected"),
    [
        (2, (SECOND,), None),
        (1, (b"1",), DropReason.OUT_OF_WINDOW),
        (3, (b"3",), None),
        (2, (b"3",), DropReason.NO_RIGHT),
        (2, (b"nonsense",), DropReason.NO_RIGHT),
        (2, (), DropReason.BAD_RUN),
        (2, (b"2" * (1 << 21),), DropReason.BAD_RUN),
    ],
)
def test_manifest_offered_by_a_broker_is_kept_only_if_it_may_follow(
    number: int, bodies: tuple[bytes, ...], expected: DropReason | None
) -> None:
    epochs = Epochs(short, follows, 1)
    digest = (bodies[0][:32] if bodies else b"").ljust(32)
    offer = Offer(EPOCHS, number, digest)
    assert epochs.add(offer, bodies, T0) == expected
    assert epochs.lacks(Item(EPOCHS, 2, digest)) == (expected is not None)


def test_manifest_that_a_proposal_names_finds_room() -> None:
    epochs = Epochs(short, lambda data: 2, 1)
    offers = [(Offer(EPOCHS, 2, (b"%d" % i).ljust(32)), (b"%d" % i,)) for i in range(40)]
    assert [epochs.add(*offer, T0) for offer in offers[:5]][-1] is DropReason.OVER_LIMIT
    assert epochs.add(*offers[4], T0, named=True) is None
    named = [epochs.add(*offer, T0, named=True) for offer in offers[5:]]
    assert named[-1] is DropReason.OVER_LIMIT


def test_manifests_of_one_epoch_are_bounded() -> None:
    epochs = Epochs(short, lambda data: 2, 1)
    found = [
        epochs.add(Offer(EPOCHS, 2, (b"%d" % i).ljust(32)), (b"%d" % i,), T0) for i in range(6)
    ]
    assert found == [None] * 4 + [DropReason.OVER_LIMIT] * 2
