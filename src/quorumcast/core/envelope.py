"""The envelope: when a publication was made, for how long it is valid, and whether it is urgent.

It is the first 16 bytes of every publication's contents, so it lies under their digest and no
broker can alter it. What it says is the publisher's claim: nobody else's clock is in it.

    offset  size  little endian
         0     8  published_us, signed: microseconds since 1970, UTC
         8     4  valid_ms: for how long it is valid; 0 is for ever
        12     1  flags: bit 0 is urgent; the others are 0
        13     3  0

Sixteen bytes, because what follows is an Arrow message, which wants to be aligned. A header that
breaks one of these rules makes the whole publication nonsense: only a faulty publisher writes it.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta

import msgspec

ENVELOPE_BYTES = 16
URGENT = 1
MAX_VALID_MS = 2**32 - 1
#: More events than fit into one publication: a publisher that claims so lies.
MAX_EVENTS = 2**31 - 1
#: The last microsecond of Python's calendar.
MAX_US = 253_402_300_799_999_999

_HEADER = struct.Struct("<qIB3s")
_RESERVED = b"\0\0\0"
_STAMP = struct.Struct("<q")
#: The length of a label.
_LABEL = struct.Struct(">H")
#: The marker and the length before an Arrow message.
_ARROW_PREFIX_BYTES = 8
_UINT16, _UINT32 = struct.Struct("<H"), struct.Struct("<I")
_INT32, _INT64 = struct.Struct("<i"), struct.Struct("<q")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """What a publisher says of a publication beside its events."""

    published_us: int
    valid_ms: int = 0
    urgent: bool = False

    @property
    def expires_us(self) -> int:
        """The first microsecond at which it is not valid any more; 0 if it always is."""
        return self.published_us + self.valid_ms * 1000 if self.valid_ms else 0


def write_envelope(published_us: int, valid_ms: int = 0, flags: int = 0) -> bytes:
    """The bytes before a publication's events."""
    return _HEADER.pack(published_us, valid_ms, flags, _RESERVED)


def read_envelope(contents: bytes) -> Envelope | None:
    """The envelope of these contents; None if they have none that makes sense."""
    if len(contents) < ENVELOPE_BYTES:
        return None
    published_us, valid_ms, flags, reserved = _HEADER.unpack_from(contents)
    if reserved != _RESERVED or flags & ~URGENT or not 0 <= published_us <= MAX_US:
        return None
    return Envelope(published_us, valid_ms, flags == URGENT)


def contents_start(body: bytes, labelled: bool) -> int:
    """Where the contents of a body begin: with total order behind a label (`core.labels`)."""
    return _LABEL.unpack_from(body)[0] + _LABEL.size if labelled and len(body) > 1 else 0


def stamp_of(body: bytes, labelled: bool) -> int:
    """The time in a body as brokers hold it; -1 if there is none.

    Nobody has checked what a publisher wrote: the answer is a hint of where to look.
    """
    start = contents_start(body, labelled)
    if len(body) < start + ENVELOPE_BYTES:
        return -1
    return int(_STAMP.unpack_from(body, start)[0])


def events_of(body: bytes, labelled: bool) -> int:
    """The number of events that a body as brokers hold it claims to contain; 0 for nonsense.

    It is the length of the record batch: the first field of the header, which is the third field
    of an Arrow message (a flatbuffer: tables begin with the distance to their list of fields).
    """
    message = contents_start(body, labelled) + ENVELOPE_BYTES + _ARROW_PREFIX_BYTES
    try:
        table = message + _UINT32.unpack_from(body, message)[0]
        fields = table - _INT32.unpack_from(body, table)[0]
        header = table + _UINT16.unpack_from(body, fields + 8)[0]
        header += _UINT32.unpack_from(body, header)[0]
        fields = header - _INT32.unpack_from(body, header)[0]
        count: int = _INT64.unpack_from(body, header + _UINT16.unpack_from(body, fields + 4)[0])[0]
    except struct.error:
        return 0
    return count if 0 <= count <= MAX_EVENTS else 0


def time_of(microseconds: int) -> datetime:
    """Microseconds since 1970 as a time that knows its zone; at most the calendar's last."""
    return _EPOCH + timedelta(microseconds=min(microseconds, MAX_US))


def microseconds_of(time: datetime) -> int:
    """A time that knows its zone as microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)
