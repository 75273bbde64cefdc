"""One seed, two keys; signatures that hold and those that do not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.core.ids import NodeId
from quorumcast.core.statements import Signed
from quorumcast.crypto.identity import (
    KEYS_REMEMBERED,
    Identity,
    can_exchange,
    derive,
    signature_holds,
)

ALICE = Identity(NodeId("alice"), b"a" * 32)
BOB = Identity(NodeId("bob"), b"b" * 32)
SIGNED = ALICE.sign(b"payload")

LOW_ORDER_POINTS = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


def test_identity_same_seed_has_the_same_keys() -> None:
    again = Identity(NodeId("alice"), ALICE.seed)
    assert again.verify_key == ALICE.verify_key
    assert again.exchange_key == ALICE.exchange_key


def test_identity_generated_twice_has_other_keys() -> None:
    one, other = Identity.generate(NodeId("x")), Identity.generate(NodeId("x"))
    assert len({one.seed, other.seed, one.verify_key, other.verify_key}) == 4


def test_derive_other_purpose_gives_other_keys() -> None:
    assert derive(b"s", b"one") != derive(b"s", b"two")
    assert derive(b"s", b"one") != derive(b"t", b"one")


def test_shared_secret_is_the_same_from_both_sides_and_nobody_elses() -> None:
    carol = Identity(NodeId("carol"), b"c" * 32)
    shared = ALICE.shared_secret(BOB.exchange_key)
    assert shared == BOB.shared_secret(ALICE.exchange_key)
    assert shared != carol.shared_secret(BOB.exchange_key)


def test_signature_of_the_signer_holds_for_its_key_only() -> None:
    assert SIGNED.signer == "alice"
    assert signature_holds(SIGNED, ALICE.verify_key)
    assert not signature_holds(SIGNED, BOB.verify_key)
    assert not signature_holds(msgspec.structs.replace(SIGNED, payload=b"other"), ALICE.verify_key)


@given(st.integers(0, 511))
def test_signature_with_one_bit_flipped_does_not_hold(bit: int) -> None:
    flipped = bytearray(SIGNED.signature)
    flipped[bit // 8] ^= 1 << bit % 8
    forged = msgspec.structs.replace(SIGNED, signature=bytes(flipped))
    assert not signature_holds(forged, ALICE.verify_key)


@given(st.binary(max_size=80), st.binary(max_size=40))
def test_signature_any_bytes_never_raises(signature: bytes, key: bytes) -> None:
    signed = Signed(NodeId("alice"), b"payload", signature)
    assert not signature_holds(signed, ALICE.verify_key)
    assert not signature_holds(SIGNED, key)


@pytest.mark.parametrize("key", [*LOW_ORDER_POINTS, b"", bytes(31), b"x" * 33])
def test_can_exchange_with_a_key_that_yields_no_secret_is_false(key: bytes) -> None:
    assert not can_exchange(key)
    with pytest.raises(ValueError, match=r"."):
        ALICE.shared_secret(key)


def test_can_exchange_with_an_identity_is_true() -> None:
    assert can_exchange(ALICE.exchange_key)


def test_can_exchange_with_many_keys_remembers_a_bounded_number_and_answers_alike() -> None:
    can_exchange.cache_clear()
    for number in range(KEYS_REMEMBERED + 10):
        assert not can_exchange(number.to_bytes(4))  # no key at all, and told at once
    assert can_exchange.cache_info().currsize == KEYS_REMEMBERED
    for _ in range(2):
        assert can_exchange(ALICE.exchange_key)
        assert not can_exchange(bytes(32))
    assert can_exchange.cache_info().hits == 2
