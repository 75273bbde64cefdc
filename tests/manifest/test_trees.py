"""Making the manifests of a tree of cells."""

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.manifest.trees import TreeDesign, full_tree, make_tree


def plan(levels: int = 2, fanout: int = 2, f: int = 1, **others: object) -> TreeDesign:
    entry = ChannelEntry(Channel("orders"), Policy.named("ab"))
    fields = {"channels": (entry,), "clients": ("alice", "bob"), **others}
    return TreeDesign(shape=full_tree(levels, fanout), f=f, **fields)  # type: ignore[arg-type]


def test_shape_of_a_tree_names_each_cell_by_its_way_from_the_root() -> None:
    assert full_tree(1, 5) == {"root": ""}
    assert full_tree(3, 2) == {
        "root": "",
        "cell-1": "root",
        "cell-2": "root",
        "cell-1-1": "cell-1",
        "cell-1-2": "cell-1",
        "cell-2-1": "cell-2",
        "cell-2-2": "cell-2",
    }


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_root_has_the_brokers_that_its_policy_needs_and_children_have_2f_plus_1(
    policy: str,
) -> None:
    needed = {"direct": 5, "direct-crash": 3, "total-crash": 5}.get(policy, 7)
    entry = ChannelEntry(Channel("orders"), Policy.named(policy))
    cells = make_tree(plan(3, 1, f=2, channels=(entry,)))
    assert [len(cell.manifest.brokers) for cell in cells.values()] == [needed, 5, 5]
    relay = "relay-total" if policy.startswith("total") else "relay"
    below = [cell.manifest.channels[0] for cell in cells.values()][1:]
    assert [entry.policy.name for entry in below] == [relay, relay]
    assert [entry.origin.cell for entry in below if entry.origin] == ["root", "cell-1"]


def test_brokers_of_a_child_may_subscribe_in_the_parent_and_publish_nowhere() -> None:
    private = ChannelEntry(Channel("private"), Policy.named("brb"), ("alice",), ("bob",))
    common = ChannelEntry(Channel("common"), Policy.named("ab"))
    cells = make_tree(plan(channels=(private, common)))
    root, child = cells["root"].manifest, cells["cell-2"]
    assert {one.name for one in child.uplinks.values()} == {
        "cell-2-broker-1",
        "cell-2-broker-2",
        "cell-2-broker-3",
    }
    for identity in child.uplinks.values():
        root.keyring(identity)
        for channel in ("private", "common"):
            assert root.may_subscribe(identity.name, channel)
            assert not root.may_publish(identity.name, channel)
    assert root.may_publish("bob", "common")
    # Readers of the child are those of the root, with other keys.
    assert child.manifest.may_subscribe("bob", "private")
    assert not child.manifest.may_subscribe("alice", "private")
    assert child.identities.keys() & cells["root"].identities.keys() >= {"alice", "bob"}
    assert root.client("bob") != child.manifest.client("bob")


def test_no_two_brokers_of_a_tree_have_one_address() -> None:
    cells = make_tree(plan(3, 2, base_port=9000))
    ports = [broker.port for cell in cells.values() for broker in cell.manifest.brokers]
    assert ports == list(range(9000, 9000 + 4 + 6 * 3))


@pytest.mark.parametrize(
    ("levels", "fanout", "others", "words"),
    [
        (0, 1, {}, "1 level or more"),
        (2, 0, {}, "1 child or more"),
        (2, 2, {"f": -1}, "may be faulty"),
        (40, 3, {}, "make fewer levels or children"),
        (2, 2, {"base_port": 65_530}, "room for 6; .*, or begin at a lower port"),
        (2, 2, {"clients": ("operator",)}, "no node can be called 'operator'"),
        (2, 2, {"clients": ("cell-1-broker-1",)}, "appears twice"),
    ],
)
def test_tree_that_cannot_be_is_refused(
    levels: int, fanout: int, others: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        make_tree(plan(levels, fanout, **others))  # type: ignore[arg-type]
