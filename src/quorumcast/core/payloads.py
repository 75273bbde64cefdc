"""Opaque events in Arrow's layout, written and read without Arrow.

A publication of a channel without a schema is a record batch of one binary column without nulls.
Arrow lays such a batch out in one way, in which only sizes vary:

    offset  size  little endian
         0    40  constant: the prefix, and the flatbuffer up to its first number
        40     8  length of the body
        48    24  constant
        72     8  rows of the batch
        80    32  constant: the first buffer, which would tell nulls, is empty
       112     8  length of the second buffer, the ends of payloads
       120     8  where the third buffer begins in the body
       128     8  length of the third buffer, the payloads
       136     8  constant
       144     8  rows of the column
       152     8  0 nulls
       160        the body: 0 and the end of each payload, 4 bytes each, padded to 8 bytes;
                  the payloads one after another, padded to 8 bytes

`core.publication` has the general way, through Arrow; `tests/core` compares the two. The general
way has a fixed cost of about 30 µs in each direction, which a publication of one event pays in
full. A program that publishes payloads need not import Arrow either, which takes as long as
everything else that it imports.

Contents in any other layout are left to the general way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from quorumcast.core.envelope import ENVELOPE_BYTES
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_BODY_BYTES, MAX_ROWS

_HEADER = struct.Struct("<40sq24sq32sqqq8sqq")
_START = bytes.fromhex(
    "ffffffff98000000 1400000000000000 0c00160006000500 08000c000c000000 0003040018000000"
)
_BATCH = bytes.fromhex("00000a0018000c00 040008000a000000 4c00000010000000")
_BUFFERS = bytes.fromhex("0000000003000000 0000000000000000 0000000000000000 0000000000000000")
_COLUMN = bytes.fromhex("0000000001000000")
#: Both ends of a single payload: 0, and its length.
_ENDS = struct.Struct("<II")
_LENGTH = struct.Struct("<I").unpack_from
#: Where a single payload begins in the contents, behind envelope and header.
_FIRST = ENVELOPE_BYTES + _HEADER.size + _ENDS.size
#: The longest single payload whose layout is kept.
KEPT_BYTES = 4096
#: Events up to which `encode_payloads` is faster than Arrow.
FEW = 256


def check_size(rows: int, size: int) -> None:
    """Refuse contents with too many events or bytes."""
    if rows > MAX_ROWS:
        raise UsageError(
            f"this publication has {rows:,} events; at most {MAX_ROWS:,} fit into one: "
            "publish smaller batches"
        )
    if size > MAX_BODY_BYTES:
        raise UsageError(
            f"this publication has {size:,} bytes; at most {MAX_BODY_BYTES:,} fit into one: "
            "publish smaller batches"
        )


#: A layout: the bytes between envelope and payload, those after it, and the size of the contents.
_Layout: TypeAlias = tuple[bytes, bytes, int]
#: Layouts of single payloads of up to `KEPT_BYTES`, by length.
_layouts: dict[int, _Layout] = {}


def encode_payload(payload: bytes, envelope: bytes) -> bytes:
    """The contents of a publication of one event."""
    length = len(payload)
    head, padding, _ = _layouts.get(length) or _layout(length)
    body = b"".join((envelope, head, payload, padding))
    if len(body) > MAX_BODY_BYTES:
        check_size(1, len(body))
    return body


def encode_payloads(payloads: Sequence[bytes], envelope: bytes) -> bytes:
    """The contents of a publication of several events; with more than FEW, Arrow is faster."""
    rows = len(payloads)
    ends = [*accumulate(map(len, payloads), initial=0)]
    check_size(rows, ends[-1])  # an end beyond might not fit into 4 bytes
    head = _header(rows, ends[-1]) + struct.pack(f"<{rows + 1}I", *ends) + _pad(4 * rows + 4)
    body = b"".join((envelope, head, *payloads, _pad(ends[-1])))
    check_size(rows, len(body))
    return body


def decode_payload(contents: bytes) -> bytes | None:
    """The payload behind the envelope, if the message has one in this layout."""
    try:
        (length,) = _LENGTH(contents, _FIRST - 4)
    except struct.error:
        return None
    head, padding, size = _layouts.get(length) or _layout(length)
    if (
        len(contents) == size
        and contents.startswith(head, ENVELOPE_BYTES)
        and contents.endswith(padding)
    ):
        return contents[_FIRST : _FIRST + length]
    return None


def _layout(length: int) -> _Layout:
    """The layout of a single payload of this length."""
    padding = _pad(length)
    head = _header(1, length) + _ENDS.pack(0, length)
    layout = head, padding, _FIRST + length + len(padding)
    if length <= KEPT_BYTES:
        _layouts[length] = layout
    return layout


def _header(rows: int, size: int) -> bytes:
    ends = 4 * (rows + 1)
    begin = ends + -ends % 8
    body = begin + size + -size % 8
    numbers = (ends, begin, size)
    return _HEADER.pack(_START, body, _BATCH, rows, _BUFFERS, *numbers, _COLUMN, rows, 0)


def _pad(size: int) -> bytes:
    return bytes(-size % 8)
