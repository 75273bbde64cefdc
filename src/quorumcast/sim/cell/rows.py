"""Publications with rows: what applications publish on channels with columns.

Every choice is a hash of the run's seed and the publication's number in the run, so that rows do
not shift any other draw. There are nulls, NaN, infinities, -0.0, numbers that no float holds, empty
batches, batches of a time when the channel had fewer columns, and nonsense.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate

import pyarrow as pa

from quorumcast.core.envelope import write_envelope
from quorumcast.core.publication import encode_batch
from quorumcast.manifest.schema import arrow_schema

COLUMNS = (("name", "string"), ("price", "float64"), ("size", "int64"), ("hot", "bool"))
#: The column that a channel may get later.
MORE = ("seen", "int64")
SCHEMA: pa.Schema = arrow_schema((*COLUMNS, MORE))

_NAMES = ("a", "ab", "b", "", "ä", None)
_PRICES = (-0.0, 0.0, 0.5, 1.5, -2.0, 10.25, float("inf"), float("nan"), None)
_SIZES = (0, 1, 2, 3, 7, -1, 2**53, 2**53 + 1, None)
_HOT = (True, False, None)
#: Rows of a publication; many have few, and one in a while has many.
_ROWS = (1, 1, 2, 3, 4, 6, 9, 24)


def rows_body(seed: int | str, count: int, present: int = len(COLUMNS)) -> bytes:
    """The contents of a run's publication; those of any two publications differ.

    `present`: how many columns its publisher knows.
    """
    rng = random.Random(f"rows of {seed}: {count}")
    kind = rng.randrange(16)
    if kind == 0:
        return b"%d: no rows" % count
    rows = 0 if kind == 1 else rng.choice(_ROWS)
    columns = rng.randrange(1, len(COLUMNS)) if kind == 2 else present
    # Where all rows are alike, whole publications match, or none of their rows.
    alike = rng.randrange(4) == 0
    arrays = [make(_drawn(rng, values, rows, alike=alike)) for make, values in _KINDS[:columns]]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(SCHEMA)[:columns]))
    return encode_batch(batch, write_envelope(1_000_000 + count))


def _drawn(rng: random.Random, values: Sequence[object], rows: int, *, alike: bool) -> list[object]:
    if alike:
        return [rng.choice(values)] * rows
    return [rng.choice(values) for _ in range(rows)]


# Columns are made from buffers: making them from Python objects imports pandas, where it is
# installed.


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    packed = sum(flag << place for place, flag in enumerate(flags))
    return pa.py_buffer(packed.to_bytes(len(flags) // 8 + 1, "little"))


def _validity(values: Sequence[object]) -> pa.Buffer:
    return _bits([value is not None for value in values])


def _fixed(code: str, kind: pa.DataType) -> Callable[[list[object]], pa.Array]:
    def make(values: list[object]) -> pa.Array:
        data = struct.pack(f"<{len(values)}{code}", *(0 if v is None else v for v in values))
        return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(data)])

    return make


def _text(values: list[object]) -> pa.Array:
    encoded = [b"" if value is None else str(value).encode() for value in values]
    ends = struct.pack(f"<{len(values) + 1}i", *accumulate(map(len, encoded), initial=0))
    buffers = [_validity(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _truth(values: list[object]) -> pa.Array:
    data = _bits([value is True for value in values])
    return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(values), data])


#: What makes each column, and the values that it is made of.
_KINDS: tuple[tuple[Callable[[list[object]], pa.Array], Sequence[object]], ...] = (
    (_text, _NAMES),
    (_fixed("d", pa.float64()), _PRICES),
    (_fixed("q", pa.int64()), _SIZES),
    (_truth, _HOT),
    (_fixed("q", pa.int64()), _SIZES),
)
