"""Digests of contents: the one hash that is made of every publication.

The manifest names the algorithm, because the fastest one depends on the machine: SHA-256 wins
where the processor has instructions for it, BLAKE3 where it has wide vectors instead (see
docs/adr/0003-digests.md for the measurements).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from blake3 import blake3

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Digest

Hasher = Callable[[bytes], Digest]


def _sha256(contents: bytes) -> Digest:
    return Digest(hashlib.sha256(contents).digest())


def _blake3(contents: bytes) -> Digest:
    return Digest(blake3(contents).digest())


def _blake2b(contents: bytes) -> Digest:
    return Digest(hashlib.blake2b(contents, digest_size=32).digest())


HASHERS: dict[str, Hasher] = {"sha256": _sha256, "blake3": _blake3, "blake2b": _blake2b}


def hasher(name: str) -> Hasher:
    """The digest function that a manifest names."""
    try:
        return HASHERS[name]
    except KeyError:
        raise UsageError(
            f"unknown digest {name!r}: the manifest may name {', '.join(HASHERS)}"
        ) from None


def root(first: int, digests: bytes) -> bytes:
    """One digest for a run: what Bracha's echoes carry and what brokers sign."""
    return hashlib.sha256(first.to_bytes(8, "big") + digests).digest()
