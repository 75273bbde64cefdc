"""Digests of the contents of publications.

The algorithm is chosen by name, because the fastest one depends on the machine: SHA-256 where the
processor has instructions for it, BLAKE3 where it has wide vectors (docs/adr/0003-digests.md).
MD5 and SHA-1 exist only to reproduce the figures of Freeman (2016, §7.1); only the manifest of a
reproduction may name them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import cast

from blake3 import blake3

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, Digest

Hasher = Callable[[bytes], Digest]


#: Called for every publication: even naming the type of the result (`Digest(…)`) would cost time.
HASHERS: dict[str, Hasher] = {
    "sha256": cast(Hasher, lambda contents: hashlib.sha256(contents).digest()),
    "blake3": cast(Hasher, lambda contents: blake3(contents).digest()),
    "blake2b": cast(Hasher, lambda contents: hashlib.blake2b(contents, digest_size=32).digest()),
}


def _padded(algorithm: str) -> Hasher:
    """A shorter digest, filled up with zeros to the size that messages have room for."""

    def compute(contents: bytes) -> Digest:
        short = hashlib.new(algorithm, contents, usedforsecurity=False).digest()
        return Digest(short.ljust(DIGEST_SIZE, b"\0"))

    return compute


#: Broken algorithms, for reproducing published figures only.
REPRODUCTION_HASHERS: dict[str, Hasher] = {"md5": _padded("md5"), "sha1": _padded("sha1")}


def hasher(name: str, *, reproduction: bool = False) -> Hasher:
    """The digest function of that name."""
    if name in HASHERS:
        return HASHERS[name]
    if name in REPRODUCTION_HASHERS:
        if reproduction:
            return REPRODUCTION_HASHERS[name]
        raise UsageError(
            f"the digest {name!r} is broken and only serves to reproduce old figures; "
            f"use {', '.join(HASHERS)}, or make a cell for that with 'init --reproduce-freeman'"
        )
    raise UsageError(f"unknown digest {name!r}: the manifest may name {', '.join(HASHERS)}")


def root(first: int, digests: bytes) -> bytes:
    """One digest for a run of publications, as Bracha's echoes carry and brokers sign it."""
    return hashlib.sha256(first.to_bytes(8, "big") + digests).digest()
