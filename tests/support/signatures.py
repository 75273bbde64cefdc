"""Ed25519 verification that remembers what held.

Verification is a pure function of key, signature and payload. Every node of a simulated cell checks
the same signatures, which is a seventh of the time of an observed run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


@lru_cache(maxsize=1024)
def _verify(key: bytes, signature: bytes, payload: bytes) -> None:
    """Raise if the signature does not hold; what raises is not remembered."""
    Ed25519PublicKey.from_public_bytes(key).verify(signature, payload)


class CachingPublicKey(NamedTuple):
    """Stands in for `Ed25519PublicKey` where signatures are checked."""

    key: bytes

    @classmethod
    def from_public_bytes(cls, key: bytes) -> CachingPublicKey:
        return cls(key)

    def verify(self, signature: bytes, payload: bytes) -> None:
        _verify(self.key, signature, payload)
