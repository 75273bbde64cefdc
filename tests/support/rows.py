"""Publications with rows, for tests of predicates: one column of names and one of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from quorumcast.core.envelope import write_envelope
from quorumcast.core.ids import Stream
from quorumcast.core.labels import label
from quorumcast.core.publication import batch_of_rows, encode_batch
from quorumcast.manifest.schema import arrow_schema
from quorumcast.matching.cut import decode_cut
from quorumcast.matching.filter import Filter, make_filter

COLUMNS = (("name", "string"), ("price", "int64"))
SCHEMA: pa.Schema = arrow_schema(COLUMNS)
NONSENSE = b"no record batch"


def rows_body(prices: Sequence[int], stream: Stream | None = None, number: int = 0) -> bytes:
    """Contents with one row per price; behind a label if a stream is named."""
    rows = [{"name": f"n{price}", "price": price} for price in prices]
    before = label(stream, number) if stream else b""
    return encode_batch(batch_of_rows(rows, SCHEMA), before + write_envelope(1_000_000))


def wanted(*where: str) -> Filter:
    """What these predicates ask of the channel."""
    return make_filter(where, SCHEMA, "the predicate")


def prices_of(body: bytes) -> list[int]:
    """The prices in a cut."""
    cut = decode_cut(body, SCHEMA)
    assert cut is not None
    found: list[int] = cut.batch.column("price").to_pylist()
    return found
