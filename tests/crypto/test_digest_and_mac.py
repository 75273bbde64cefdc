"""Algorithms by name: the right ones, none of the broken ones."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from blake3 import blake3

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE
from quorumcast.crypto.digest import HASHERS, REPRODUCTION_HASHERS, hasher, root
from quorumcast.crypto.mac import MAC_SIZE, MACS, REPRODUCTION_MACS, mac_factory, same

REFERENCES = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake3": lambda data: blake3(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data, digest_size=32).digest(),
}
MAC_REFERENCES = {
    "blake2b": lambda key, data: hashlib.blake2b(data, key=key, digest_size=MAC_SIZE).digest(),
    "hmac-sha256": lambda key, data: hmac.new(key, data, "sha256").digest()[:MAC_SIZE],
    "hmac-sha512": lambda key, data: hmac.new(key, data, "sha512").digest()[:MAC_SIZE],
    "hmac-md5": lambda key, data: hmac.new(key, data, "md5").digest(),
    "hmac-sha1": lambda key, data: hmac.new(key, data, "sha1").digest()[:MAC_SIZE],
}


@pytest.mark.parametrize("name", HASHERS)
def test_hasher_by_name_is_the_algorithm_of_that_name(name: str) -> None:
    digest = hasher(name)(b"contents")
    assert digest == REFERENCES[name](b"contents")
    assert len(digest) == DIGEST_SIZE


def test_hasher_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown digest 'crc': .*sha256, blake3, blake2b"):
        hasher("crc")


@pytest.mark.parametrize("name", REPRODUCTION_HASHERS)
def test_hasher_for_reproduction_is_padded_and_is_refused_otherwise(name: str) -> None:
    digest = hasher(name, reproduction=True)(b"contents")
    assert digest.rstrip(b"\0") == hashlib.new(name, b"contents").digest().rstrip(b"\0")
    assert len(digest) == DIGEST_SIZE
    with pytest.raises(UsageError, match=rf"'{name}' is broken .*use sha256, blake3, blake2b"):
        hasher(name)


def test_root_of_a_run_depends_on_its_place_and_every_digest() -> None:
    run = bytes(64)
    roots = {root(1, run), root(2, run), root(1, run[:32]), root(1, run[:-1] + b"x")}
    assert len(roots) == 4


@pytest.mark.parametrize("name", [*MACS, *REPRODUCTION_MACS])
def test_mac_by_name_is_the_algorithm_of_that_name(name: str) -> None:
    mac = mac_factory(name, reproduction=True)(b"k" * 32)
    assert mac(b"one") == MAC_REFERENCES[name](b"k" * 32, b"one")
    assert mac(b"two") == MAC_REFERENCES[name](b"k" * 32, b"two"), "a state was used twice"
    assert len(mac(b"one")) == MAC_SIZE


@pytest.mark.parametrize("name", REPRODUCTION_MACS)
def test_mac_for_reproduction_is_refused_otherwise(name: str) -> None:
    with pytest.raises(UsageError, match=rf"'{name}' is broken .*use blake2b, hmac-sha256"):
        mac_factory(name)


@pytest.mark.parametrize("reproduction", [False, True])
def test_mac_unknown_name_lists_the_known_ones(reproduction: bool) -> None:
    with pytest.raises(UsageError, match=r"unknown MAC 'rot13': .*blake2b, hmac-sha256"):
        mac_factory("rot13", reproduction=reproduction)


def test_same_differs_by_one_bit_or_length_is_false() -> None:
    assert same(b"abc", b"abc")
    assert not same(b"abc", b"abb")
    assert not same(b"abc", b"abcd")
    assert not same(b"", b"abc")
