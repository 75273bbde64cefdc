"""Where a reader may begin, whom it believes, and what two creators at once agree on."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from quorumcast.core.ids import Channel, NodeId
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.manifest import ChannelEntry, Group
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.successor import check_successor
from quorumcast.named.follower import MAX_EARLY, Follower, charters_of
from quorumcast.named.operations import (
    AnyOperation,
    Beat,
    Claim,
    Configure,
    Create,
    Join,
    Settings,
    Snapshot,
    encode,
)
from quorumcast.named.state import State
from quorumcast.testing.cells import CellSetup

ALICE, BOB, CAROL, DAVE = (NodeId(name) for name in ("alice", "bob", "carol", "dave"))
TOTAL = Policy.named("total")
GROUP = Group("billing", ("bob", "carol"), max_attempts=3)
PLAN = CellSetup(
    channels={
        "orders": ChannelEntry(Channel("orders"), TOTAL, groups=(GROUP,)),
        "orders/subscriptions": TOTAL,
    }
)


def charter(*members: str, epoch: int = 1, plan: CellSetup = PLAN) -> bytes:
    manifest = plan.manifest
    if members:
        orders, companion = manifest.channels
        changed = replace(orders, groups=(replace(GROUP, members=members),))
        manifest = replace(manifest, channels=(changed, companion))
    manifest = replace(manifest, epoch=epoch)
    return msgspec.json.encode(sign_manifest(manifest, plan.operator))


def shared(since: int = 1, members: tuple[str, ...] = GROUP.members) -> Follower:
    charters = charters_of("test", PLAN.manifest.operator, "orders", "billing")
    return Follower("billing", None, since, lambda author: author in members, charters)


def feed(made: Follower, *log: tuple[int, NodeId, AnyOperation]) -> Follower:
    for position, author, operation in log:
        made.take(position, author, [encode(made.shared, made.name, operation)])
    return made


def test_group_is_created_by_a_member_with_what_the_operator_signed() -> None:
    made = feed(shared(), (1, BOB, Create(0, 7, Settings(99), charter())))
    assert made.state is not None
    assert (made.state.next, made.state.settings.max_attempts) == (7, 3)
    assert made.state.allowed == ("bob", "carol")


def forged() -> bytes:
    signed = sign_manifest(PLAN.manifest, PLAN.operator)
    orders, companion = PLAN.manifest.channels
    changed = replace(orders, groups=(replace(GROUP, members=("dave",)),))
    manifest = replace(PLAN.manifest, channels=(changed, companion))
    return msgspec.json.encode(replace(signed, manifest=manifest))


def of_another_operator() -> bytes:
    other = CellSetup(cell="other")
    manifest = replace(PLAN.manifest, operator=other.operator.verify_key)
    return msgspec.json.encode(sign_manifest(manifest, other.operator))


@pytest.mark.parametrize(
    ("author", "data"),
    [
        (DAVE, charter()),
        (DAVE, forged()),
        (BOB, of_another_operator()),
        (BOB, b""),
        (BOB, b"{}"),
    ],
)
def test_nobody_else_creates_a_group(author: NodeId, data: bytes) -> None:
    assert feed(shared(), (1, author, Create(0, 7, Settings(), data))).state is None


def test_of_two_that_create_at_once_the_first_counts_for_everybody() -> None:
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 1, Settings(), charter())),
        (2, BOB, Join(5)),
        (3, CAROL, Create(0, 9, Settings(), charter())),
        (4, BOB, Claim(5, 2, 9)),
    ]
    one = feed(shared(), *log)
    assert one.state is not None
    assert (one.state.root, one.state.next) == (1, 3)
    # Who begins behind the first cannot tell, and does not guess.
    assert feed(shared(since=3), *log[2:]).state is None


def test_create_after_everything_was_read_begins_anew() -> None:
    made = feed(
        shared(),
        (1, BOB, Create(0, 1, Settings(), charter())),
        (2, BOB, Join(5)),
        (3, CAROL, Create(2, 9, Settings(), charter())),
    )
    assert made.state is not None
    assert (made.state.root, made.state.next, made.state.members) == (3, 9, {})


def test_member_of_a_newer_manifest_enters_by_itself_and_the_expelled_cannot_go_back() -> None:
    new = charter("carol", "dave", epoch=2)
    made = feed(
        shared(),
        (1, BOB, Create(0, 1, Settings(), charter())),
        (2, BOB, Join(5)),
        (3, BOB, Claim(5, 2, 9)),
        (4, DAVE, Join(6)),
        (5, DAVE, Configure(Settings(), new)),
        (6, DAVE, Join(6)),
        (7, BOB, Configure(Settings(), charter())),
        (8, BOB, Create(7, 1, Settings(), charter())),
        (9, BOB, Join(7)),
    )
    assert made.state is not None
    assert made.state.allowed == ("carol", "dave")
    assert list(made.state.members) == ["dave"]
    assert made.state.pool == {1: 1, 2: 1}


def test_whoever_read_everything_follows_members_that_are_no_longer() -> None:
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 4, Settings(), charter())),
        (2, DAVE, Configure(Settings(), charter("dave", epoch=2))),
        (3, BOB, Create(2, 1, Settings(), charter())),  # void: an older charter
    ]
    made = feed(shared(members=("dave",)), *log)
    assert made.state is not None
    assert (made.state.next, made.state.allowed) == (4, ("dave",))
    # Who has not cannot know what came between.
    assert feed(shared(since=2, members=("dave",)), *log[1:]).state is None


def test_snapshot_is_believed_from_members_alone() -> None:
    picture = State(1, 5, ("bob", "carol"), Settings(), epoch=1).picture()
    assert feed(shared(10), (12, DAVE, Snapshot(10, picture))).state is None
    made = feed(shared(10), (12, CAROL, Snapshot(10, picture)))
    assert made.state is not None
    assert made.state.next == 5


def test_snapshot_before_what_was_read_is_of_no_use() -> None:
    picture = State(1, 5, ("bob", "carol"), Settings(), epoch=1).picture()
    assert feed(shared(10), (12, CAROL, Snapshot(8, picture))).state is None
    assert feed(shared(10), (12, CAROL, Snapshot(9, picture))).state is not None
    assert feed(shared(10), (12, CAROL, Snapshot(12, picture))).state is None


def test_snapshot_of_what_was_begun_anew_meanwhile_misleads_nobody() -> None:
    """Carol begins anew while bob writes the state down: who reads both must not go with bob."""
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 1, Settings(), charter())),
        (2, BOB, Join(5)),
        (3, BOB, Claim(5, 2, 90)),
        (4, BOB, Beat(5)),
    ]
    before = feed(shared(), *log).state
    assert before is not None
    log.append((5, CAROL, Create(2, 50, Settings(), charter())))
    log.append((6, BOB, Snapshot(4, before.picture())))
    whole = feed(shared(), *log)
    assert whole.state is not None
    assert whole.state.next == 50
    later = feed(shared(since=4), *log[3:])
    assert later.state is None
    log.append((7, CAROL, Snapshot(6, whole.state.picture())))
    later = feed(shared(since=4), *log[3:])
    assert later.state is not None
    assert later.state.picture() == whole.state.picture()


def test_member_of_a_newer_manifest_may_begin_anew() -> None:
    made = feed(
        shared(),
        (1, BOB, Create(0, 1, Settings(), charter())),
        (2, DAVE, Create(1, 9, Settings(), charter("bob", "dave", epoch=2))),
    )
    assert made.state is not None
    assert (made.state.next, made.state.allowed) == (9, ("bob", "dave"))


def test_reader_without_a_root_keeps_no_more_than_its_bound() -> None:
    made = shared(10)
    feed(made, *((position, BOB, Beat(1)) for position in range(10, 12 + MAX_EARLY)))
    assert made.sizes() == {"early": MAX_EARLY}
    picture = State(1, 5, ("bob", "carol"), Settings(), epoch=1).picture()
    end = 12 + MAX_EARLY
    assert feed(made, (end, CAROL, Snapshot(10, picture))).state is None
    assert feed(made, (end + 1, CAROL, Snapshot(12, picture))).state is not None


def test_private_subscription_listens_to_its_owner_alone() -> None:
    made = Follower("mine", ALICE, 1, lambda author: author == ALICE)
    feed(made, (1, BOB, Create(0, 1, Settings())))
    assert made.state is None
    made = Follower("mine", ALICE, 1, lambda author: author == ALICE)
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 1, Settings())),
        (2, ALICE, Create(1, 4, Settings(2))),
        (3, BOB, Join(1)),
        (4, ALICE, Join(2)),
        (5, ALICE, Configure(Settings(7))),
        (6, BOB, Configure(Settings(8))),
    ]
    state = feed(made, *log).state
    assert state is not None
    assert (state.next, list(state.members)) == (4, ["alice"])
    assert state.settings.max_attempts == 7


def test_seats_of_a_client_are_consumers_of_what_is_its_own() -> None:
    one, two, other = NodeId("alice#1"), NodeId("alice#2"), NodeId("bob#1")
    made = Follower("mine", ALICE, 1, lambda author: True)
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, one, Create(0, 4, Settings())),
        (2, one, Join(1)),
        (3, two, Join(2)),
        (4, other, Join(3)),
    ]
    state = feed(made, *log).state
    assert state is not None
    assert list(state.members) == [one, two]
    group = feed(shared(), (1, NodeId("bob#1"), Create(0, 4, Settings(), charter()))).state
    assert group is not None


def test_next_epoch_may_change_groups() -> None:
    orders, companion = PLAN.manifest.channels
    changed = replace(orders, groups=())
    check_successor(PLAN.manifest, next_epoch(PLAN.manifest, channels=(changed, companion)))
