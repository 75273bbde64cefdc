"""Digests of the contents of publications.

The algorithm is chosen by name, because the fastest one depends on the machine: SHA-256 where the
processor has instructions for it, BLAKE3 where it has wide vectors (docs/adr/0003-digests.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import cast

from blake3 import blake3

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Digest

Hasher = Callable[[bytes], Digest]


#: Called for every publication: even naming the type of the result (`Digest(…)`) would cost time.
HASHERS: dict[str, Hasher] = {
    "sha256": cast(Hasher, lambda contents: hashlib.sha256(contents).digest()),
    "blake3": cast(Hasher, lambda contents: blake3(contents).digest()),
    "blake2b": cast(Hasher, lambda contents: hashlib.blake2b(contents, digest_size=32).digest()),
}


def hasher(name: str) -> Hasher:
    """The digest function of that name."""
    try:
        return HASHERS[name]
    except KeyError:
        raise UsageError(
            f"unknown digest {name!r}: the manifest may name {', '.join(HASHERS)}"
        ) from None


def root(first: int, digests: bytes) -> bytes:
    """One digest for a run of publications, as Bracha's echoes carry and brokers sign it."""
    return hashlib.sha256(first.to_bytes(8, "big") + digests).digest()
