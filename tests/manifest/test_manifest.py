"""Who may do what, whose keys are whose, and each manifest that no node should follow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.manifest.cells import IDENTITIES, MANIFEST, NEWS, OPERATOR, ORDERS, cell

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.limits import MAX_CHAIN, MAX_NAME
from quorumcast.core.quorum import Protection, Quorums
from quorumcast.crypto.directory import Address
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.manifest import BrokerEntry, ChannelEntry, LogTerms, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.validation import check_manifest

replace = msgspec.structs.replace
ALICE, B1, B2 = NodeId("alice"), NodeId("b1"), NodeId("b2")


def test_manifest_names_its_brokers_channels_and_quorums() -> None:
    assert MANIFEST.broker_ids == ("b1", "b2", "b3", "b4")
    assert MANIFEST.quorums == Quorums(4, 1)
    assert MANIFEST.channel("orders") is MANIFEST.channels[0]
    assert MANIFEST.channel("gossip") is None
    assert MANIFEST.broker("b2") is MANIFEST.brokers[1]
    assert MANIFEST.broker("alice") is None
    assert MANIFEST.client("alice") is MANIFEST.clients[0]
    assert MANIFEST.client("b2") is None


def test_manifest_replaced_forgets_what_it_looked_up() -> None:
    assert MANIFEST.channel("news") == NEWS
    assert replace(MANIFEST, channels=(ORDERS,)).channel("news") is None


def test_manifest_used_and_unused_are_equal() -> None:
    used, unused = cell()[0], cell()[0]
    assert used.may_publish("alice", "orders")
    assert used == unused
    assert hash(used) == hash(unused)
    assert msgspec.msgpack.encode(used) == msgspec.msgpack.encode(unused)


def test_address_of_ipv6_has_brackets() -> None:
    broker = BrokerEntry(B1, "::1", 7001, b"", b"")
    assert broker.address == "[::1]:7001"
    assert replace(broker, host="localhost").address == "localhost:7001"


@pytest.mark.parametrize(
    ("node", "channel", "publish", "subscribe"),
    [
        ("alice", "orders", True, True),
        ("bob", "orders", False, True),
        ("alice", "news", True, True),
        ("bob", "news", True, True),
        ("b1", "news", False, False),
        ("mallory", "news", False, False),
        ("*", "news", False, False),
        ("alice", "gossip", False, False),
    ],
)
def test_rights_follow_the_channel(node: str, channel: str, publish: bool, subscribe: bool) -> None:
    assert MANIFEST.may_publish(node, channel) is publish
    assert MANIFEST.may_subscribe(node, channel) is subscribe


def test_rights_of_nobody_refuse_everyone() -> None:
    manifest = replace(MANIFEST, channels=(replace(NEWS, publishers=(), subscribers=("bob",)),))
    assert not manifest.may_publish("alice", "news")
    assert not manifest.may_subscribe("alice", "news")
    assert manifest.may_subscribe("bob", "news")


def test_hash_is_the_one_that_the_manifest_names() -> None:
    hashes = {cell(digest=name)[0].hash(b"contents") for name in ("sha256", "blake3", "blake2b")}
    assert len(hashes) == 3


# -------------------------------------------------------------------- keys


def test_keyring_of_two_nodes_understand_one_another() -> None:
    stream = Stream(Channel("orders"), ALICE, 1)
    voucher = MANIFEST.keyring(IDENTITIES[B1]).vouch(B2, stream, 1, b"d" * 32, (B1, B2))
    reader = MANIFEST.keyring(IDENTITIES[B2])
    assert reader.vouched(B1, voucher, stream, 1, b"d" * 32, (B1, B2))
    following = replace(MANIFEST, epoch=2).keyring(IDENTITIES[B2])
    assert not following.vouched(B1, voucher, stream, 1, b"d" * 32, (B1, B2))
    other = replace(MANIFEST, mac="hmac-sha256").keyring(IDENTITIES[B2])
    assert not other.vouched(B1, voucher, stream, 1, b"d" * 32, (B1, B2))


def test_manifest_clients_call_all_brokers_and_brokers_the_later_ones() -> None:
    first, *later = MANIFEST.broker_ids
    assert MANIFEST.calls(NodeId("alice")) == (first, *later)
    assert MANIFEST.calls(first) == tuple(later)
    assert MANIFEST.calls(later[-1]) == ()


def test_manifest_brokers_have_addresses_and_clients_have_none() -> None:
    broker = MANIFEST.brokers[0]
    assert MANIFEST.address(broker.id) == Address(broker.host, broker.port, broker.certificate)
    assert MANIFEST.address(NodeId("alice")) is None
    assert MANIFEST.is_broker(broker.id)
    assert not MANIFEST.is_broker(NodeId("alice"))


def test_manifest_has_the_keys_of_every_node() -> None:
    directory = MANIFEST.keys
    assert list(directory) == list(IDENTITIES)
    for name, identity in IDENTITIES.items():
        assert directory[name].verify_key == identity.verify_key
        assert directory[name].exchange_key == identity.exchange_key


def test_keyring_of_a_stranger_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        MANIFEST.keyring(Identity(NodeId("mallory"), b"m" * 32))
    assert str(caught.value) == (
        "'mallory' is not in epoch 1 of cell 'demo'; ask its operator to add it"
    )


@pytest.mark.parametrize("name", [ALICE, B1])
def test_keyring_of_other_keys_is_refused(name: NodeId) -> None:
    with pytest.raises(UsageError, match=f"identity of '{name}' has other keys than epoch 1 .*use"):
        MANIFEST.keyring(Identity(name, b"m" * 32))


# ------------------------------------------------------------------- check


def first_broker(**changes: Any) -> dict[str, Any]:
    return {"brokers": (replace(MANIFEST.brokers[0], **changes), *MANIFEST.brokers[1:])}


def first_client(**changes: Any) -> dict[str, Any]:
    return {"clients": (replace(MANIFEST.clients[0], **changes), *MANIFEST.clients[1:])}


def only_channel(name: str = "c", policy: str = "ab", **changes: Any) -> dict[str, Any]:
    return {"channels": (ChannelEntry(Channel(name), Policy.named(policy), **changes),)}


def kept(log: Protection, pipeline: int = 8) -> dict[str, Any]:
    return {"kept_terms": (LogTerms(log, durable=True, pipeline=pipeline, checkpoint=64),)}


LONG = "x" * (MAX_NAME + 1)
UNSOUND: list[tuple[dict[str, Any], str]] = [
    ({"cell": ""}, "a cell has no name; give it one"),
    ({"cell": LONG}, "the cell name 'xxxxxxxxxxxxxxxx'… has 129 characters; 128 are allowed"),
    ({"cell": "a\0b"}, "must start with a letter or digit"),
    ({"epoch": 0}, "epoch 0 is not an epoch; the first one is 1"),
    ({"epoch": 2**63}, "is not an epoch"),
    ({"f": -1}, "f=-1 makes no sense; say how many"),
    ({"f": 4, "channels": ()}, "f=4 leaves no correct broker among 4; add brokers or lower f"),
    (kept(Protection.TRUSTED), "the kept terms of the 'trusted-publishers' log: total order prot"),
    (
        kept(Protection.CRASH, pipeline=0),
        "the kept terms of the 'crash' log: limit 'pipeline' must",
    ),
    ({"f": 2}, r"'orders' .* needs 7 brokers to tolerate f=2, but the cell has 4; add .* f to 1"),
    ({"brokers": ()}, "cell 'demo' has no brokers; name at least one"),
    ({"digest": "crc"}, "unknown digest 'crc': the manifest may name sha256"),
    ({"digest": "md5"}, "'md5' is broken .*; use sha256, .* 'init --reproduce-freeman'"),
    ({"digest": "sha1", "reproduction": False}, "'sha1' is broken"),
    ({"mac": "hmac-sha1", "reproduction": False}, "'hmac-sha1' is broken"),
    ({"mac": "hmac-md5"}, "'hmac-md5' is broken .*; use blake2b"),
    ({"mac": "none"}, "unknown MAC 'none': the manifest may name blake2b"),
    ({"operator": b"short"}, "operator's key is not an Ed25519 public key of 32 bytes"),
    (first_broker(id=""), "a node has no name; give it one"),
    (first_broker(id="b/1"), "'b/1' must start with .* digits or any of _ . : [+] -$"),
    (first_broker(id="b2"), "the node 'b2' appears twice; rename or remove one"),
    (first_client(id="b2"), "the node 'b2' appears twice; rename or remove one"),
    (first_client(id="*"), r"'\*' must start with a letter or digit"),
    (first_client(id="al ice"), "'al ice' must start with a letter or digit"),
    (first_client(id="alice\n"), "must start with a letter or digit"),
    (first_client(id=LONG), "the node name .* has 129 characters"),
    (first_client(verify_key=b"short"), "keys of 'alice' are unusable; make its identity anew"),
    (first_client(exchange_key=b"short"), "keys of 'alice' are unusable"),
    (first_client(exchange_key=bytes(32)), "keys of 'alice' are unusable"),
    (first_broker(exchange_key=bytes(32)), "keys of 'b1' are unusable"),
    (first_broker(host=""), "'b1' has no host; name one"),
    (first_broker(port=0), "'b1' has port 0; choose one from 1 to 65535"),
    (first_broker(port=65536), "'b1' has port 65536; choose one from 1 to 65535"),
    (first_broker(port=7002), "the address 'localhost:7002' appears twice; rename or remove one"),
    (only_channel(""), "a channel has no name; give it one"),
    (only_channel(LONG), "the channel name .* has 129 characters"),
    (only_channel("/c"), "'/c' must start with .* any of _ . : [+] -, /$"),
    ({"channels": (NEWS, NEWS)}, "the channel 'news' appears twice"),
    (only_channel(publishers=("eve",)), r"'c' gives rights to 'eve', .*add .* or write '\*'"),
    (only_channel(subscribers=("b1",)), "'c' gives rights to 'b1', which is not a client"),
    (only_channel(schema=(("a", "int63"),)), "channel 'c': column 'a' has the unknown type"),
    (
        {"channels": (replace(NEWS, policy=replace(NEWS.policy, alpha=5)),)},
        "channel 'news': broadcast 'brb' takes no history",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), UNSOUND)
def test_check_unsound_manifest_is_refused_with_a_way_out(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_manifest(replace(MANIFEST, **changes))


def test_check_names_at_their_limits_pass() -> None:
    check_manifest(
        replace(
            MANIFEST,
            **first_broker(id="x" * MAX_NAME, port=65535, host="::1"),
            **only_channel("plant/1.temp:c+d_e-f"),
        )
    )


@pytest.mark.parametrize(
    ("policy", "n", "f"),
    [("direct-crash", 3, 2), ("direct", 5, 2), ("ab", 7, 2), ("brb", 4, 1), ("chain", 1, 0)],
)
def test_check_smallest_cell_of_a_policy_passes_and_one_less_is_refused(
    policy: str, n: int, f: int
) -> None:
    def made(brokers: int) -> Manifest:
        return cell(brokers, f, channels=list(only_channel(policy=policy)["channels"]))[0]

    assert made(n).quorums == Quorums(n, f)
    with pytest.raises(UsageError, match=r"needs \d brokers|has no brokers|no correct broker"):
        made(n - 1)


def test_check_chain_longer_than_a_message_can_name_is_refused() -> None:
    f = MAX_CHAIN // 2
    channel = ChannelEntry(Channel("c"), Policy.named("chain"))
    with pytest.raises(UsageError, match=f"'c' would need chains of {2 * f + 1} .*lower f or"):
        cell(3 * f + 1, f, channels=[channel])
    cell(3 * f - 2, f - 1, channels=[channel])


def test_operator_of_the_manifest_is_a_public_key() -> None:
    assert MANIFEST.operator == OPERATOR.verify_key
