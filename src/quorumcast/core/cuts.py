"""What a cut looks like from outside: enough to check it, without reading its rows.

A *result* is what predicates make of a publication, and what brokers of a channel with predicates
vote for: `NOTHING`, the digest of the publication, or that of a cut. `matching.cut` describes the
form of cuts, and reads and writes them; that needs Arrow.
"""

from __future__ import annotations

import hashlib
import struct

from quorumcast.core.ids import DIGEST_SIZE, NOTHING, Digest

#: An envelope that begins like this has an impossible time, a label an impossible length.
MARK = b"\xff\xff\xff\xffcut\x01"
HEADER = struct.Struct("<8s32sIIII")
_PERSON = b"quorumcast cut"


def looks_cut(body: bytes) -> bool:
    """Whether a body claims to be a cut; a publication that does makes no sense."""
    return body.startswith(MARK) and len(body) >= HEADER.size


def publication_of(body: bytes) -> Digest:
    """The digest of the publication in a body that looks like a cut."""
    return Digest(body[len(MARK) : len(MARK) + DIGEST_SIZE])


def head_of(body: bytes) -> bytes:
    """Label and envelope in a body that looks like a cut: what a publication begins with."""
    length: int = HEADER.unpack_from(body)[4]
    return body[HEADER.size : HEADER.size + length]


def digest_of_cut(body: bytes) -> Digest:
    """The value that brokers vote for if this is the cut."""
    return Digest(hashlib.blake2b(body, digest_size=DIGEST_SIZE, person=_PERSON).digest())


def is_result(body: bytes, value: Digest) -> bool:
    """Whether this value is that of nothing, with no contents, or of a cut with these."""
    if value == NOTHING:
        return not body
    return looks_cut(body) and digest_of_cut(body) == value
