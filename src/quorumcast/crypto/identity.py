"""A node's identity: one 32-byte seed, from which its signing and key-exchange keys are derived."""

from __future__ import annotations

import secrets
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quorumcast.core.ids import NodeId, at_seat
from quorumcast.core.statements import Signed

SEED_SIZE = 32
#: Cached answers of `can_exchange`: several times the nodes of the largest cells.
KEYS_REMEMBERED = 4096


def derive(secret: bytes, info: bytes) -> bytes:
    """32 bytes for one purpose out of a secret."""
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


class Identity:
    """A node's name and private keys; a directory lists the public ones."""

    __slots__ = ("_exchange", "_seed", "_signing", "name")

    def __init__(self, name: NodeId, seed: bytes) -> None:
        self.name = name
        self._seed = seed
        self._signing = Ed25519PrivateKey.from_private_bytes(derive(seed, b"quorumcast ed25519"))
        self._exchange = X25519PrivateKey.from_private_bytes(derive(seed, b"quorumcast x25519"))

    @classmethod
    def generate(cls, name: NodeId) -> Identity:
        """A new identity from the operating system's randomness."""
        return cls(name, secrets.token_bytes(SEED_SIZE))

    def at_seat(self, seat: int) -> Identity:
        """The same identity for another process beside this one."""
        return Identity(at_seat(self.name, seat), self._seed)

    @property
    def seed(self) -> bytes:
        """The secret from which all keys are derived."""
        return self._seed

    @property
    def signing_key(self) -> Ed25519PrivateKey:
        """The key for certificates; use `sign` for statements."""
        return self._signing

    @property
    def verify_key(self) -> bytes:
        """The public Ed25519 key."""
        return self._signing.public_key().public_bytes_raw()

    @property
    def exchange_key(self) -> bytes:
        """The public X25519 key."""
        return self._exchange.public_key().public_bytes_raw()

    def sign(self, payload: bytes) -> Signed:
        """The payload with our name and signature."""
        return Signed(self.name, payload, self._signing.sign(payload))

    def shared_secret(self, peer_exchange_key: bytes) -> bytes:
        """The secret that only we and that peer can compute."""
        return self._exchange.exchange(X25519PublicKey.from_public_bytes(peer_exchange_key))


#: Any key will do: low-order points yield no secret with any of them.
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(32))


@lru_cache(KEYS_REMEMBERED)  # every new manifest checks every node, most of them again
def can_exchange(exchange_key: bytes) -> bool:
    """Whether a public key yields a shared secret: a low-order point does not."""
    try:
        _ANY_KEY.exchange(X25519PublicKey.from_public_bytes(exchange_key))
    except ValueError:
        return False
    return True


def signature_holds(signed: Signed, verify_key: bytes) -> bool:
    """Whether the holder of that key signed this payload."""
    try:
        Ed25519PublicKey.from_public_bytes(verify_key).verify(signed.signature, signed.payload)
    except (InvalidSignature, ValueError):
        return False
    return True
