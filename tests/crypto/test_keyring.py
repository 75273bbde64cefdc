"""A voucher covers every field, for one author, one reader, one cell and one epoch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.directories import Peers

from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.statements import Signed
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import MACS, chain_bytes, mac_factory

NAMES = [NodeId("b1"), NodeId("b2"), NodeId("b3")]
B1, B2, B3 = NAMES
IDENTITIES = {name: Identity(name, name.encode().ljust(32, b"-")) for name in NAMES}
STREAM = Stream(Channel("orders"), NodeId("alice"), 7)
RUN: dict[str, Any] = {"stream": STREAM, "first": 5, "digests": b"d" * 64, "order": (B1, B2, B3)}


def keyring(name: NodeId, cell: str = "demo", epoch: int = 1, mac: str = "blake2b") -> Keyring:
    directory = Peers(IDENTITIES.values(), instance=cell, epoch=epoch)
    return Keyring(IDENTITIES[name], directory, mac_factory(mac))


@pytest.mark.parametrize("mac", MACS)
def test_voucher_read_by_its_reader_holds(mac: str) -> None:
    voucher = keyring(B1, mac=mac).vouch(B2, **RUN)
    assert keyring(B2, mac=mac).vouched(B1, voucher, **RUN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", msgspec.structs.replace(STREAM, channel=Channel("order"))),
        ("stream", msgspec.structs.replace(STREAM, publisher=NodeId("bob"))),
        ("stream", msgspec.structs.replace(STREAM, incarnation=8)),
        ("stream", STREAM.history),
        ("first", 6),
        ("digests", b"d" * 32),
        ("digests", b"d" * 63 + b"e"),
        ("order", (B1, B2)),
        ("order", (B1, B3, B2)),
        ("order", ()),
    ],
)
def test_voucher_with_one_field_changed_fails(field: str, value: object) -> None:
    voucher = keyring(B1).vouch(B2, **RUN)
    assert not keyring(B2).vouched(B1, voucher, **{**RUN, field: value})


def test_voucher_of_another_epoch_fails() -> None:
    voucher = keyring(B1, epoch=1).vouch(B2, **RUN)
    assert not keyring(B2, epoch=2).vouched(B1, voucher, **RUN)


def test_voucher_of_another_cell_fails() -> None:
    voucher = keyring(B1, cell="demo").vouch(B2, **RUN)
    assert not keyring(B2, cell="dem").vouched(B1, voucher, **RUN)


def test_voucher_for_another_reader_fails() -> None:
    assert not keyring(B3).vouched(B1, keyring(B1).vouch(B2, **RUN), **RUN)


def test_voucher_said_to_be_of_another_author_fails() -> None:
    assert not keyring(B2).vouched(B3, keyring(B1).vouch(B2, **RUN), **RUN)


def test_voucher_reflected_to_its_author_fails() -> None:
    ours = keyring(B1)
    voucher = ours.vouch(B2, **RUN)
    assert not ours.vouched(B2, voucher, **RUN)
    assert not ours.vouched(B1, ours.vouch(B1, **RUN), **RUN)


def test_voucher_of_a_stranger_fails() -> None:
    assert not keyring(B2).vouched(NodeId("mallory"), b"m" * 16, **RUN)


@given(st.binary(max_size=40))
def test_voucher_of_any_bytes_fails_and_never_raises(mac: bytes) -> None:
    assert not keyring(B2).vouched(B1, mac, **RUN)


names = st.text(max_size=6).map(NodeId)


@given(
    *(
        st.tuples(names, names, names, st.binary(max_size=4), st.lists(names, max_size=3))
        for _ in range(2)
    )
)
def test_chain_bytes_of_different_runs_differ(
    one: tuple[NodeId, NodeId, NodeId, bytes, list[NodeId]],
    other: tuple[NodeId, NodeId, NodeId, bytes, list[NodeId]],
) -> None:
    def covered(run: tuple[NodeId, NodeId, NodeId, bytes, list[NodeId]]) -> bytes:
        author, reader, publisher, digests, order = run
        stream = Stream(Channel("c"), publisher, 0)
        return chain_bytes("demo", 1, author, reader, stream, 1, digests, tuple(order))

    assert (covered(one) == covered(other)) == (one == other)


def test_chain_bytes_text_moved_between_neighbouring_fields_differ() -> None:
    def covered(author: str, reader: str) -> bytes:
        return chain_bytes("c", 1, NodeId(author), NodeId(reader), STREAM, 1, b"", ())

    assert covered("ab", "c") != covered("a", "bc")


def test_secret_is_pairwise_and_kept() -> None:
    ours, theirs = keyring(B1), keyring(B2)
    assert ours.secret(B2) == theirs.secret(B1)
    assert ours.secret(B2) is ours.secret(B2)
    assert ours.secret(B3) != ours.secret(B2)
    assert keyring(B1, epoch=2).secret(B2) != ours.secret(B2)
    assert keyring(B1, cell="other").secret(B2) != ours.secret(B2)


def test_statement_signed_by_a_known_node_holds_under_its_name_only() -> None:
    signed = IDENTITIES[B1].sign(b"payload")
    reader = keyring(B2)
    assert reader.knows(B1)
    assert reader.signature_holds(signed)
    assert not reader.signature_holds(msgspec.structs.replace(signed, signer=B3))
    assert not reader.signature_holds(Signed(NodeId("mallory"), signed.payload, signed.signature))
