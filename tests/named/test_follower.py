"""Roots of a reader that starts late, trusted authors, and concurrent `Create` operations."""

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
from quorumcast.named.follower import MAX_BUFFERED, Follower, charter_reader
from quorumcast.named.operations import (
    AnyOperation,
    ClaimPositions,
    Configure,
    Create,
    Heartbeat,
    OpenSession,
    SubscriptionSettings,
    WriteSnapshot,
    encode,
)
from quorumcast.named.state import SubscriptionState
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
    charters = charter_reader("test", PLAN.manifest.operator, "orders", "billing")
    return Follower("billing", None, since, lambda author: author in members, charters)


def feed(made: Follower, *log: tuple[int, NodeId, AnyOperation]) -> Follower:
    for position, author, operation in log:
        made.read(position, author, [encode(made.shared, made.name, operation)])
    return made


def test_group_is_created_by_a_member_with_a_signed_charter() -> None:
    made = feed(shared(), (1, BOB, Create(0, 7, SubscriptionSettings(99), charter())))
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
def test_group_created_without_membership_or_valid_charter_is_ignored(
    author: NodeId, data: bytes
) -> None:
    assert feed(shared(), (1, author, Create(0, 7, SubscriptionSettings(), data))).state is None


def test_second_of_two_concurrent_creates_has_no_effect() -> None:
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 1, SubscriptionSettings(), charter())),
        (2, BOB, OpenSession(5)),
        (3, CAROL, Create(0, 9, SubscriptionSettings(), charter())),
        (4, BOB, ClaimPositions(5, 2, 9)),
    ]
    one = feed(shared(), *log)
    assert one.state is not None
    assert (one.state.root, one.state.next) == (1, 3)
    # Who begins behind the first cannot tell, and does not guess.
    assert feed(shared(since=3), *log[2:]).state is None


def test_create_that_knows_the_present_root_replaces_the_state() -> None:
    made = feed(
        shared(),
        (1, BOB, Create(0, 1, SubscriptionSettings(), charter())),
        (2, BOB, OpenSession(5)),
        (3, CAROL, Create(2, 9, SubscriptionSettings(), charter())),
    )
    assert made.state is not None
    assert (made.state.root, made.state.next, made.state.sessions) == (3, 9, {})


def test_member_of_a_newer_manifest_joins_and_a_removed_member_cannot_return() -> None:
    new = charter("carol", "dave", epoch=2)
    made = feed(
        shared(),
        (1, BOB, Create(0, 1, SubscriptionSettings(), charter())),
        (2, BOB, OpenSession(5)),
        (3, BOB, ClaimPositions(5, 2, 9)),
        (4, DAVE, OpenSession(6)),
        (5, DAVE, Configure(SubscriptionSettings(), new)),
        (6, DAVE, OpenSession(6)),
        (7, BOB, Configure(SubscriptionSettings(), charter())),
        (8, BOB, Create(7, 1, SubscriptionSettings(), charter())),
        (9, BOB, OpenSession(7)),
    )
    assert made.state is not None
    assert made.state.allowed == ("carol", "dave")
    assert list(made.state.sessions) == ["dave"]
    assert made.state.returned == {1: 1, 2: 1}


def test_reader_of_all_operations_accepts_former_members() -> None:
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 4, SubscriptionSettings(), charter())),
        (2, DAVE, Configure(SubscriptionSettings(), charter("dave", epoch=2))),
        (3, BOB, Create(2, 1, SubscriptionSettings(), charter())),  # void: an older charter
    ]
    made = feed(shared(members=("dave",)), *log)
    assert made.state is not None
    assert (made.state.next, made.state.allowed) == (4, ("dave",))
    # Who has not cannot know what came between.
    assert feed(shared(since=2, members=("dave",)), *log[1:]).state is None


def test_snapshot_of_an_outsider_is_no_root() -> None:
    snapshot = SubscriptionState(1, 5, ("bob", "carol"), SubscriptionSettings(), epoch=1).snapshot()
    assert feed(shared(10), (12, DAVE, WriteSnapshot(10, snapshot))).state is None
    made = feed(shared(10), (12, CAROL, WriteSnapshot(10, snapshot)))
    assert made.state is not None
    assert made.state.next == 5


def test_snapshot_older_than_the_first_read_operation_is_no_root() -> None:
    snapshot = SubscriptionState(1, 5, ("bob", "carol"), SubscriptionSettings(), epoch=1).snapshot()
    assert feed(shared(10), (12, CAROL, WriteSnapshot(8, snapshot))).state is None
    assert feed(shared(10), (12, CAROL, WriteSnapshot(9, snapshot))).state is not None
    assert feed(shared(10), (12, CAROL, WriteSnapshot(12, snapshot))).state is None


def test_snapshot_that_a_create_has_replaced_is_no_root() -> None:
    """Carol begins anew while bob writes the state down: who reads both must not go with bob."""
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 1, SubscriptionSettings(), charter())),
        (2, BOB, OpenSession(5)),
        (3, BOB, ClaimPositions(5, 2, 90)),
        (4, BOB, Heartbeat(5)),
    ]
    before = feed(shared(), *log).state
    assert before is not None
    log.append((5, CAROL, Create(2, 50, SubscriptionSettings(), charter())))
    log.append((6, BOB, WriteSnapshot(4, before.snapshot())))
    whole = feed(shared(), *log)
    assert whole.state is not None
    assert whole.state.next == 50
    later = feed(shared(since=4), *log[3:])
    assert later.state is None
    log.append((7, CAROL, WriteSnapshot(6, whole.state.snapshot())))
    later = feed(shared(since=4), *log[3:])
    assert later.state is not None
    assert later.state.snapshot() == whole.state.snapshot()


def test_member_of_a_newer_manifest_may_recreate_the_subscription() -> None:
    made = feed(
        shared(),
        (1, BOB, Create(0, 1, SubscriptionSettings(), charter())),
        (2, DAVE, Create(1, 9, SubscriptionSettings(), charter("bob", "dave", epoch=2))),
    )
    assert made.state is not None
    assert (made.state.next, made.state.allowed) == (9, ("bob", "dave"))


def test_reader_without_a_root_buffers_no_more_than_its_bound() -> None:
    made = shared(10)
    feed(made, *((position, BOB, Heartbeat(1)) for position in range(10, 12 + MAX_BUFFERED)))
    assert made.sizes() == {"buffered": MAX_BUFFERED}
    snapshot = SubscriptionState(1, 5, ("bob", "carol"), SubscriptionSettings(), epoch=1).snapshot()
    end = 12 + MAX_BUFFERED
    assert feed(made, (end, CAROL, WriteSnapshot(10, snapshot))).state is None
    assert feed(made, (end + 1, CAROL, WriteSnapshot(12, snapshot))).state is not None


def test_private_subscription_ignores_other_clients() -> None:
    made = Follower("mine", ALICE, 1, lambda author: author == ALICE)
    feed(made, (1, BOB, Create(0, 1, SubscriptionSettings())))
    assert made.state is None
    made = Follower("mine", ALICE, 1, lambda author: author == ALICE)
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, BOB, Create(0, 1, SubscriptionSettings())),
        (2, ALICE, Create(1, 4, SubscriptionSettings(2))),
        (3, BOB, OpenSession(1)),
        (4, ALICE, OpenSession(2)),
        (5, ALICE, Configure(SubscriptionSettings(7))),
        (6, BOB, Configure(SubscriptionSettings(8))),
    ]
    state = feed(made, *log).state
    assert state is not None
    assert (state.next, list(state.sessions)) == (4, ["alice"])
    assert state.settings.max_attempts == 7


def test_seats_of_a_client_are_consumers_of_its_private_subscription() -> None:
    one, two, other = NodeId("alice#1"), NodeId("alice#2"), NodeId("bob#1")
    made = Follower("mine", ALICE, 1, lambda author: True)
    log: list[tuple[int, NodeId, AnyOperation]] = [
        (1, one, Create(0, 4, SubscriptionSettings())),
        (2, one, OpenSession(1)),
        (3, two, OpenSession(2)),
        (4, other, OpenSession(3)),
    ]
    state = feed(made, *log).state
    assert state is not None
    assert list(state.sessions) == [one, two]
    group = feed(
        shared(), (1, NodeId("bob#1"), Create(0, 4, SubscriptionSettings(), charter()))
    ).state
    assert group is not None


def test_next_epoch_may_change_groups() -> None:
    orders, companion = PLAN.manifest.channels
    changed = replace(orders, groups=())
    check_successor(PLAN.manifest, next_epoch(PLAN.manifest, channels=(changed, companion)))
