"""First epochs and next ones."""

from __future__ import annotations

import pytest
from tests.manifest.cells import IDENTITIES, MANIFEST, NEWS, cell

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.crypto.directory import PublicKeys
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import add_broker, add_client, next_epoch, rotate

CAROL = Identity(NodeId("carol"), b"c" * 32)


def test_cell_from_repeatable_seeds_is_repeatable() -> None:
    manifest, identities = cell()
    assert manifest == MANIFEST
    assert {name: one.seed for name, one in identities.items()} == {
        name: one.seed for name, one in IDENTITIES.items()
    }
    assert len({one.seed for one in IDENTITIES.values()}) == len(IDENTITIES) == 6


def test_cell_without_seeds_has_fresh_identities() -> None:
    one, other = cell(seed_source=None)[0], cell(seed_source=None)[0]
    assert one.brokers[0].verify_key != other.brokers[0].verify_key


def test_cell_with_identities_uses_them() -> None:
    alice = Identity(NodeId("alice"), b"a" * 32)
    manifest, identities = cell(identities={alice.name: alice})
    assert identities[alice.name] is alice
    assert manifest.clients[0].verify_key == alice.verify_key
    assert manifest.clients[1] == MANIFEST.clients[1]


def test_cell_of_every_identity_has_a_keyring() -> None:
    for identity in IDENTITIES.values():
        assert MANIFEST.keyring(identity).knows(NodeId("b1"))


def test_cell_that_is_unsound_is_refused() -> None:
    with pytest.raises(UsageError, match="needs 4 brokers"):
        cell(3, 1)


def test_cell_with_the_same_name_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="the node 'b1' appears twice"):
        cell(clients=["alice", "b1"])


def test_next_epoch_changes_what_it_is_told_and_the_epoch() -> None:
    following = next_epoch(MANIFEST, channels=(NEWS,))
    assert (following.epoch, following.channels) == (2, (NEWS,))
    assert following.brokers == MANIFEST.brokers
    assert next_epoch(following).epoch == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cell": "other"}, "cannot choose its 'cell'; make a new cell instead"),
        ({"epoch": 9}, "cannot choose its 'epoch'"),
        ({"kept_terms": ()}, "cannot choose its 'kept_terms'"),
        ({"colour": "red"}, "a manifest has no 'colour'; it has cell, epoch, f, brokers"),
        ({"f": 2}, "needs 7 brokers"),
    ],
)
def test_next_epoch_of_nonsense_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        next_epoch(MANIFEST, **changes)


def test_add_client_gives_it_the_rights_of_every_client() -> None:
    following = add_client(MANIFEST, CAROL.name, CAROL)
    assert following.epoch == 2
    assert following.may_publish("carol", "news")
    assert not following.may_publish("carol", "orders")
    assert following.keyring(CAROL).identity is CAROL


def test_add_client_of_a_known_name_is_refused() -> None:
    with pytest.raises(UsageError, match="there is a client 'alice' already; choose another"):
        add_client(MANIFEST, NodeId("alice"), CAROL)
    with pytest.raises(UsageError, match=r"'b1' already; .* with 'quorumcast epoch rotate b1'"):
        add_client(MANIFEST, NodeId("b1"), CAROL)


def test_add_broker_of_a_known_name_or_address_is_refused() -> None:
    with pytest.raises(UsageError, match="there is a broker 'b1' already; choose another name"):
        add_broker(MANIFEST, NodeId("b1"), CAROL, "localhost", 9999)
    there = MANIFEST.brokers[0]
    with pytest.raises(UsageError, match=f"'b1' has the address {there.address} already"):
        add_broker(MANIFEST, NodeId("b9"), CAROL, there.host, there.port)


@pytest.mark.parametrize("name", ["b2", "bob"])
def test_rotate_gives_new_keys_to_that_node_only(name: str) -> None:
    node = NodeId(name)
    fresh = Identity(node, b"f" * 32)
    following = rotate(MANIFEST, node, PublicKeys(fresh.verify_key, fresh.exchange_key))
    assert following.epoch == 2
    assert following.keyring(fresh).identity is fresh
    with pytest.raises(UsageError, match="has other keys"):
        following.keyring(IDENTITIES[node])
    assert [one for one in following.nodes if one.id != node] == [
        one for one in MANIFEST.nodes if one.id != node
    ]


def test_rotate_broker_forgets_the_certificate_of_the_old_key() -> None:
    node = NodeId("b1")
    following = rotate(MANIFEST, node, Identity(node, b"f" * 32), certificate="PEM")
    assert following.brokers[0].certificate == "PEM"
    assert rotate(following, node, Identity(node, b"g" * 32)).brokers[0].certificate == ""


def test_rotate_of_a_stranger_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no node 'carol' in cell 'demo'; it has b1, .*alice"):
        rotate(MANIFEST, CAROL.name, CAROL)
