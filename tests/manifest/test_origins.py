"""Origins of relayed channels: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.tree_network import ORDERS, CellPlan, identity_in, manifest_of

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import CELL, Channel
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import Broadcast, Protection, accept_votes, minimum_brokers
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.files import parse_manifest, sign_manifest
from quorumcast.manifest.manifest import ChannelEntry, ChannelOrigin, Group, Manifest
from quorumcast.manifest.origins import check_origin, check_tree
from quorumcast.manifest.policy import POLICY_NAMES, RELAYED_NAMES, Policy, like_of
from quorumcast.manifest.successor import check_successor
from quorumcast.manifest.validation import check_manifest

RELAY, ORDERED = Policy.named("relay"), Policy.named("relay-total")
TOP = CellPlan("top", Policy.named("brb"), n=4)
LEAF = CellPlan("leaf", RELAY, parent="top")
KEY = identity_in("top", "operator").verify_key
ORIGIN = ChannelOrigin("top", KEY, ORDERS)


def cells(*plans: CellPlan) -> list[Manifest]:
    return [manifest_of(plan, plans) for plan in plans]


def leaf_with(**changes: Any) -> Manifest:
    """The manifest of a child of which the channel is otherwise."""
    leaf = cells(TOP, LEAF)[1]
    entry = msgspec.structs.replace(leaf.channels[0], **changes)
    return msgspec.structs.replace(leaf, channels=(entry,))


@pytest.mark.parametrize("name", RELAYED_NAMES)
def test_relayed_policy_is_one_of_a_tree_and_not_of_a_cell(name: str) -> None:
    assert name not in POLICY_NAMES
    policy = Policy.parse(f"{name}+journal")
    assert (policy.name, policy.title, policy.relayed) == (name, f"{name}+journal", True)
    assert (policy.log, policy.durable) == (None, False)
    assert policy.total == (name == "relay-total")
    with pytest.raises(UsageError, match="'quorumcast tree' makes such channels"):
        like_of(name)


@pytest.mark.parametrize("broadcast", [Broadcast.RELAY, Broadcast.RELAYED_ORDER])
def test_relayed_channel_needs_2f_plus_1_brokers_and_f_plus_1_votes(broadcast: Broadcast) -> None:
    quorums = cells(TOP, LEAF)[1].quorums
    assert minimum_brokers(Protection.TRUSTED, 2, broadcast) == 5
    assert accept_votes(quorums, Protection.TRUSTED, broadcast) == 2
    for protection in (Protection.BYZANTINE, Protection.CRASH):
        with pytest.raises(UsageError, match="relies on another cell"):
            Policy(protection=protection, broadcast=broadcast).check()


def test_relayed_channel_makes_no_publisher_wait() -> None:
    limits = Limits(wait_ms=1000)
    with pytest.raises(UsageError, match="publishers of another cell do not wait"):
        Policy.named("relay", limits=limits)


BAD_CHANNELS: list[tuple[dict[str, Any], str]] = [
    ({"origin": msgspec.UNSET}, "'relay' and no origin.*'quorumcast tree' makes such channels"),
    ({"policy": Policy.named("direct")}, "the policy 'direct', which publishes it here; make it"),
    ({"publishers": ("alice",)}, "lists publishers, who cannot publish on it here"),
    ({"publishers": ("*",)}, "lists publishers, who cannot publish on it here"),
    ({"origin": ChannelOrigin("", KEY, ORDERS)}, "must name a cell, a channel and the public key"),
    ({"origin": ChannelOrigin("top", b"short", ORDERS)}, "the public key .* .32 bytes"),
    ({"origin": ChannelOrigin("top", KEY, Channel(""))}, "must name a cell, a channel"),
    (
        {"origin": ChannelOrigin("leaf", identity_in("leaf", "operator").verify_key, ORDERS)},
        "has its origin in its own cell 'leaf'; name another cell",
    ),
    (
        {"policy": ORDERED, "origin": ChannelOrigin("top", KEY, Channel("trades"))},
        "carries on the total order of 'trades', whose contents bear that name",
    ),
    ({"groups": (Group("workers", ("bob",)),)}, "comes from cell 'top': make named subscriptions"),
]


@pytest.mark.parametrize(("changes", "expected"), BAD_CHANNELS)
def test_channel_with_an_impossible_origin_is_refused(
    changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        check_manifest(leaf_with(**changes))


def test_two_channels_with_one_origin_are_refused() -> None:
    leaf = cells(TOP, LEAF)[1]
    twin = ChannelEntry(Channel("copies"), RELAY, publishers=(), origin=ORIGIN)
    with pytest.raises(UsageError, match="'orders' and 'copies' carry on the same channel"):
        check_manifest(msgspec.structs.replace(leaf, channels=(*leaf.channels, twin)))


def test_cell_with_the_name_of_its_parent_is_another_cell() -> None:
    top, leaf = cells(TOP, LEAF)
    namesake = msgspec.structs.replace(leaf, cell=top.cell)
    check_manifest(namesake)
    assert namesake.key != top.key
    check_tree([top, namesake])


def test_manifest_without_an_origin_is_signed_as_before() -> None:
    top, leaf = cells(TOP, LEAF)
    assert b"origin" not in msgspec.json.encode(top)
    signed = sign_manifest(leaf, identity_in("leaf", "operator"))
    assert parse_manifest(msgspec.json.encode(signed)) == leaf


def test_epoch_that_changes_an_origin_is_refused() -> None:
    leaf = cells(TOP, LEAF)[1]
    other = msgspec.structs.replace(leaf.channels[0], origin=ChannelOrigin("else", KEY, ORDERS))
    with pytest.raises(UsageError, match="changes where channel 'orders' comes from"):
        check_successor(leaf, next_epoch(leaf, channels=(other,)))


def test_names_of_the_parent_are_not_looked_up_in_the_child() -> None:
    top, leaf = cells(TOP, LEAF)
    assert leaf.may_carry("nobody-here", ORDERS)
    assert not leaf.may_publish("alice", ORDERS)
    assert not leaf.may_carry(CELL, ORDERS)
    assert not leaf.may_carry("alice", "no-such-channel")
    assert top.may_carry("alice", ORDERS)
    assert not top.may_carry("nobody-here", ORDERS)
    ordered = cells(
        CellPlan("top", Policy.named("total"), n=4), CellPlan("leaf", ORDERED, parent="top")
    )[1]
    assert ordered.may_carry(CELL, ORDERS)
    assert not ordered.may_carry("alice", ORDERS)


def test_manifest_names_its_parents() -> None:
    top, leaf = cells(TOP, LEAF)
    assert leaf.parents == {top.key: leaf.channels}
    assert top.parents == {}


@pytest.mark.parametrize(
    ("changes", "above", "expected"),
    [
        ({}, {"cell": "else"}, "does not come from cell 'else' of this operator"),
        ({}, {"operator": bytes(32)}, "does not come from cell 'top' of this operator"),
        ({}, {"channels": ()}, "'orders', which cell 'top' does not have; it has none"),
        ({"policy": ORDERED}, {}, "and 'orders' is a 'brb' channel; make it with 'relay'"),
        ({}, {"digest": "blake2b"}, "cannot vouch for contents under the digest 'blake2b'"),
        ({"schema": (("price", "int64"),)}, {}, "has other columns than 'orders' of cell 'top'"),
    ],
)
def test_origin_that_its_parent_does_not_have_so_is_refused(
    changes: dict[str, Any], above: dict[str, Any], expected: str
) -> None:
    top, leaf = cells(TOP, LEAF)[0], leaf_with(**changes)
    with pytest.raises(UsageError, match=expected):
        check_origin(leaf, leaf.channels[0], msgspec.structs.replace(top, **above))


def test_either_cell_may_add_a_column_first() -> None:
    one, two = (("price", "int64"),), (("price", "int64"), ("size", "int64"))
    for above, below in ((one, two), (two, one)):
        top = cells(TOP, LEAF)[0]
        entry = msgspec.structs.replace(top.channels[0], schema=above)
        leaf = leaf_with(schema=below)
        check_origin(leaf, leaf.channels[0], msgspec.structs.replace(top, channels=(entry,)))


def test_circle_of_cells_is_refused() -> None:
    plans = (
        CellPlan("one", RELAY, parent="three"),
        CellPlan("two", RELAY, parent="one"),
        CellPlan("three", RELAY, parent="two"),
    )
    circle = cells(*plans)
    with pytest.raises(UsageError, match="in a circle: 'orders' of 'one' from 'orders' of 'three'"):
        check_tree(circle)
    check_tree(circle[:2])


def test_tree_of_three_levels_is_allowed() -> None:
    check_tree(cells(TOP, LEAF, CellPlan("twig", RELAY, parent="leaf")))
