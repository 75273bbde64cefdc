"""Message authentication codes from pre-keyed states, and the canonical bytes that they cover.

Keyed BLAKE2b is the default: from a copied pre-keyed state it costs about a microsecond. HMAC with
SHA-256 and SHA-512 are alternatives. HMAC with MD5 and SHA-1 exist only to reproduce the figures of
Freeman (2016, §6.6 and §7.1); only the manifest of a reproduction may name them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId, Stream

#: Computes the MAC of some bytes under a fixed key.
Mac = Callable[[bytes], bytes]

MAC_SIZE = 16


def _blake2b(key: bytes) -> Mac:
    keyed = hashlib.blake2b(key=key, digest_size=MAC_SIZE)

    def compute(data: bytes) -> bytes:
        state = keyed.copy()
        state.update(data)
        return state.digest()

    return compute


def _hmac(algorithm: str) -> Callable[[bytes], Mac]:
    def keyed(key: bytes) -> Mac:
        return lambda data: hmac.digest(key, data, algorithm)[:MAC_SIZE]

    return keyed


MACS: dict[str, Callable[[bytes], Mac]] = {
    "blake2b": _blake2b,
    "hmac-sha256": _hmac("sha256"),
    "hmac-sha512": _hmac("sha512"),
}

#: Broken algorithms, for reproducing published figures only.
REPRODUCTION_MACS: dict[str, Callable[[bytes], Mac]] = {
    "hmac-md5": _hmac("md5"),
    "hmac-sha1": _hmac("sha1"),
}


def mac_factory(name: str, *, reproduction: bool = False) -> Callable[[bytes], Mac]:
    """The MAC of that name, as a function from key to `Mac`."""
    if name in MACS:
        return MACS[name]
    if name in REPRODUCTION_MACS:
        if reproduction:
            return REPRODUCTION_MACS[name]
        raise UsageError(
            f"the MAC {name!r} is broken and only serves to reproduce old figures; "
            f"use {', '.join(MACS)}, or make a cell for that with 'init --reproduce-freeman'"
        )
    raise UsageError(f"unknown MAC {name!r}: the manifest may name {', '.join(MACS)}")


def same(mac: bytes, expected: bytes) -> bool:
    """Compare two MACs in constant time."""
    return hmac.compare_digest(mac, expected)


def chain_bytes(
    cell: str,
    epoch: int,
    author: NodeId,
    reader: NodeId,
    stream: Stream,
    first: int,
    digests: bytes,
    order: tuple[NodeId, ...],
) -> bytes:
    """The bytes that the MAC of a chain broker covers: every field that its reader uses.

    Fields are length-prefixed, so no two different runs have the same bytes.
    """
    fields = [
        b"quorumcast chain 1",
        cell.encode(),
        epoch.to_bytes(8, "big"),
        author.encode(),
        reader.encode(),
        stream.channel.encode(),
        stream.publisher.encode(),
        stream.incarnation.to_bytes(8, "big"),
        bytes([stream.lane]),
        first.to_bytes(8, "big"),
        digests,
        *(name.encode() for name in order),
    ]
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)
