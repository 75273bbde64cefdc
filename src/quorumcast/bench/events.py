"""Events whose subscribers notice if one was lost, duplicated, altered or out of order.

An event of `size` bytes is three 64-bit words, little-endian, and a filler:

    word 0   lane << 40 | sequence    its publisher and channel (`BenchPlan.lane`); 1, 2, … on it
    word 1   checksum of words 0 and 2
    word 2   when it was published, in nanoseconds of the machine's monotonic clock
    filler   the same bytes in every event

Making and checking events must cost little beside what is measured. NumPy does both in blocks, for
about 20 ns per event; only a block that fails the check is checked event by event.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD

HEAD = struct.Struct("<QQQ")
LANE_SHIFT = 40
SEQUENCE = (1 << LANE_SHIFT) - 1
_MASK = (1 << 64) - 1
_FACTORS = (0x1E3779B97F4A7C15, 0x42B2AE3D27D4EB4F)
_SALT = 0x27D4EB2F165667C5
_MULTIPLIERS = tuple(map(np.uint64, _FACTORS))
_MASKING = np.uint64(_SALT)
_FILLER = bytes((i * 73 + 41) % 256 for i in range(251))

Words = npt.NDArray[np.uint64]

#: Block lengths for which templates are kept.
_MOST_KEPT = 80


def checksum(place: int, sent_ns: int) -> int:
    """The checksum of one event; `checksums` computes the same for many."""
    return ((place * _FACTORS[0] + sent_ns * _FACTORS[1]) & _MASK) ^ _SALT


def checksums(places: Words, sent_ns: Words) -> Words:
    """The checksums of many events."""
    # Overflow is wanted; NumPy warns of it for scalars, not for arrays.
    return (places * _MULTIPLIERS[0] + sent_ns * _MULTIPLIERS[1]) ^ _MASKING


@lru_cache(maxsize=8)
def _layout(size: int) -> np.dtype[np.void]:
    return np.dtype(
        [("place", "<u8"), ("check", "<u8"), ("sent", "<u8"), ("filler", f"V{size - HEAD.size}")]
    )


@lru_cache(maxsize=_MOST_KEPT)
def _template(count: int, size: int) -> bytes:
    """A block of events in which only the fillers are set."""
    return (bytes(HEAD.size) + filler(size)) * count


@lru_cache(maxsize=_MOST_KEPT)
def _counting(count: int) -> Words:
    return np.arange(count, dtype=np.uint64)


@lru_cache(maxsize=8)
def filler(size: int) -> bytes:
    """The bytes after the three words of an event of this size."""
    rest = size - HEAD.size
    return (_FILLER * (rest // len(_FILLER) + 1))[:rest]


def check_size(size: int) -> None:
    """Raise UsageError if a size is too small for the three words."""
    if size < HEAD.size:
        raise UsageError(
            f"an event of {size} bytes cannot carry its publisher, sequence, time and checksum; "
            f"choose a size of {HEAD.size} or more"
        )


def make_block(lane: int, first: int, count: int, size: int, sent_ns: int) -> bytearray:
    """Events first … first+count-1 of a lane, one after another."""
    made = bytearray(_template(count, size))
    block = np.frombuffer(made, _layout(size))
    places = _counting(count) + np.uint64(lane << LANE_SHIFT | first)
    block["place"] = places
    block["check"] = checksums(places, np.array([sent_ns], np.uint64))
    block["sent"] = sent_ns
    return made


def split(block: bytes | bytearray, size: int) -> list[bytes]:
    """The events of a block as payloads."""
    block = bytes(block)
    return [block[i : i + size] for i in range(0, len(block), size)]


def as_batch(block: bytes | bytearray | memoryview, size: int) -> pa.RecordBatch:
    """The events of a block as one record batch of the default schema."""
    count = len(block) // size
    column = pa.Array.from_buffers(
        pa.binary(), count, [None, _offsets(count, size), pa.py_buffer(block)]
    )
    return pa.record_batch([column], schema=PAYLOAD)


@lru_cache(maxsize=_MOST_KEPT)
def _offsets(count: int, size: int) -> pa.Buffer:
    return pa.array(range(0, (count + 1) * size, size), pa.int32()).buffers()[1]


class EventCounts(msgspec.Struct):
    """A lane's events at one subscriber."""

    #: Distinct unaltered events, in order or not.
    accepted: int = 0
    duplicated: int = 0
    altered: int = 0
    #: Accepted after one with a higher number.
    disordered: int = 0


class LaneCheck:
    """Checks that the events of one lane arrive once, in order and unaltered."""

    def __init__(self, lane: int, size: int) -> None:
        self.lane = lane
        self.size = size
        self.counts = EventCounts()
        #: The lowest number not seen yet.
        self._next = 1
        #: Numbers seen above `_next`: empty unless something went wrong.
        self._ahead: set[int] = set()

    def check(self, data: bytes | pa.Buffer) -> None:
        """Check and count a block of accepted events."""
        whole = memoryview(data)
        count, rest = divmod(len(whole), self.size)
        if not rest and not self._ahead and self._as_expected(whole, count):
            self._next += count
            self.counts.accepted += count
            return
        for start in range(0, len(whole), self.size):
            self.check_one(bytes(whole[start : start + self.size]))

    def _as_expected(self, data: memoryview, count: int) -> bool:
        block = np.frombuffer(data, _layout(self.size))
        places = _counting(count) + np.uint64(self.lane << LANE_SHIFT | self._next)
        fillers = np.frombuffer(data, np.uint8).reshape(count, self.size)[:, HEAD.size :]
        return bool(
            np.array_equal(block["place"], places)
            and np.array_equal(block["check"], checksums(places, block["sent"]))
            and (fillers == np.frombuffer(filler(self.size), np.uint8)).all()
        )

    def check_one(self, payload: bytes) -> None:
        """Check and count one event."""
        counts = self.counts
        if len(payload) != self.size:
            counts.altered += 1
            return
        place, check, sent_ns = HEAD.unpack_from(payload)
        genuine = check == checksum(place, sent_ns) and payload[HEAD.size :] == filler(self.size)
        if not genuine or place >> LANE_SHIFT != self.lane:
            counts.altered += 1
            return
        self.count(place & SEQUENCE)

    def count(self, number: int) -> None:
        """Count an unaltered event."""
        counts = self.counts
        if number < self._next or number in self._ahead:
            counts.duplicated += 1
            return
        counts.accepted += 1
        if number > self._next:
            self._ahead.add(number)
            return
        counts.disordered += bool(self._ahead)
        self._next += 1
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1


def sent_times(data: bytes | pa.Buffer, size: int, step: int) -> list[int]:
    """When every `step`-th event of a block was published."""
    block = np.frombuffer(data, _layout(size), count=len(memoryview(data)) // size)
    times: list[int] = block["sent"][::step].tolist()
    return times
