"""A cut: the rows of one publication that match a predicate, in a form that brokers can vote on.

Brokers of a channel with predicates vote on results. The result for a publication is one of three:

- *nothing*: no row matches, `NOTHING`;
- *whole*: the digest of the publication itself, if more than half of the rows match, if the cut
  would not be shorter than the publication, or if a publication cannot be cut: its contents make
  no sense, or have more than `MAX_MATCHED_ROWS` rows, or a column is not flat;
- a *cut*: a digest of the bytes below.

One of f+1 equal results is a correct broker's, so both the contents and their completeness hold.
Results must therefore depend on values alone. Arrow's own bytes do not: they differ by its version,
and by what was sliced or taken before. These do:

    offset  size  little endian
         0     8  constant: no publication begins like this
         8    32  digest of the publication
        40     4  rows of the publication
        44     4  rows of the cut: at least one, at most half of the publication's
        48     4  length of the head
        52     4  columns
        56        the head: what comes before the Arrow message of the publication (label, envelope)
                  the number of each row in the publication, 4 bytes each, ascending
                  one byte per column: 0, or 1 if the column has nulls
                  the columns

A column is: a bit per row that tells values from nulls, if there are nulls; then a number of fixed
size per row, or a bit, or, for text and bytes, the ends of the values (4 bytes each, the first is
0) and the values one after another. Nulls are zeros, or empty. Every part is padded with zeros to 8
bytes. Columns that come last and are null in every row are left out: a channel may get more
columns, and older publications do not have them.

**A cut of a cut is the cut**: a predicate narrower than the one that cut gives the same bytes as if
the whole publication were at hand. The result *whole* keeps to that as well: with fewer rows a cut
only gets shorter, so nothing goes whole of which a wider predicate gave a cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast.core.cuts import HEADER, MARK, digest_of_cut, looks_cut
from quorumcast.core.envelope import ENVELOPE_BYTES, contents_start, read_envelope
from quorumcast.core.errors import ensure
from quorumcast.core.ids import Digest
from quorumcast.core.limits import MAX_MATCHED_ROWS
from quorumcast.core.publication import decode_batch, decode_older, is_sound
from quorumcast.matching.evaluate import Rows
from quorumcast.matching.normal_form import (
    NormalRows,
    Parts,
    WrittenColumns,
    columns_used,
    has_normal_form,
    padded,
    read_columns,
    taken,
)

#: Rows are taken for so many cuts at once that they have about so many bytes.
_TAKEN_BYTES = 4 * 1024 * 1024


class RowCut:
    """Some rows of a publication, in the form that brokers vote on and send."""

    __slots__ = ("_batch", "_digest", "_places", "_wire", "head", "publication", "rows", "total")

    def __init__(
        self,
        publication: Digest,
        head: bytes,
        total: int,
        rows: Rows,
        batch: pa.RecordBatch,
        places: Rows | None = None,
        wire: bytes | None = None,
    ) -> None:
        self.publication = publication
        self.head = head
        #: Rows of the publication.
        self.total = total
        #: The number of each row in the publication.
        self.rows = rows
        #: A batch that has the rows, and where; None: they are all that it has.
        self._batch = batch
        self._places = places
        self._wire = wire
        self._digest: bytes | None = None

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows."""
        if self._places is not None:
            self._batch, self._places = taken(self._batch, self._places), None
        return self._batch

    @property
    def digest(self) -> bytes:
        """The value that brokers vote for."""
        if self._digest is None:
            self._digest = digest_of_cut(self.encode())
        return self._digest

    def encode(self) -> bytes:
        """The cut as it travels."""
        if self._wire is None:
            columns = NormalRows(self.batch).written(0, len(self.rows))
            self._wire = _wire(self.publication, self.head, self.total, self.rows, columns)
        return self._wire


class OpenedBody(msgspec.Struct, frozen=True):
    """The rows of one publication: all of them, or those of a cut."""

    publication: Digest
    #: What comes before the Arrow message: the label, if there is one, and the envelope.
    head: bytes
    #: Rows of the publication.
    total: int
    #: The rows that are there.
    batch: pa.RecordBatch
    #: Bytes of the body.
    size: int
    #: The cut, if the body is one.
    cut: RowCut | None = None


def open_body(
    schema: pa.Schema, digest: bytes, body: bytes, *, labelled: bool = False
) -> OpenedBody | None:
    """The rows of a body; None if it cannot be cut and goes whole.

    The body is a publication with this digest, or a cut with this digest or of a publication with
    this digest. With total order publications are `labelled`.
    """
    if not has_normal_form(schema):
        return None
    if looks_cut(body):
        cut = decode_cut(body, schema, accepted=digest == digest_of_cut(body))
        if cut is not None and digest in (cut.publication, cut.digest):
            return OpenedBody(cut.publication, cut.head, cut.total, cut.batch, len(body), cut)
        return None
    start = contents_start(body, labelled)
    after = start + ENVELOPE_BYTES
    if read_envelope(body[start:after]) is None:
        return None
    # Behind a label nothing is aligned, unless it is copied.
    message = body[after:] if labelled else memoryview(body)[after:]
    batch = decode_batch(message, schema)
    if batch is None:
        batch = decode_older(message, schema)
    if batch is None or batch.num_rows > MAX_MATCHED_ROWS:
        return None
    return OpenedBody(Digest(digest), body[:after], batch.num_rows, batch, len(body))


def cut_out(opened: OpenedBody, wanted: Sequence[Rows]) -> list[RowCut | None]:
    """The cuts with the rows at each of these places of a body; None where it goes whole.

    Most of what it takes to cut does not depend on the number of rows, and is done for many cuts at
    once.
    """
    few = [places for places in wanted if 2 * len(places) <= opened.total]
    at_once = max(1, _TAKEN_BYTES // max(1, opened.size))
    parts = [few[first : first + at_once] for first in range(0, len(few), at_once)]
    cuts = iter([cut for part in parts for cut in _cuts(opened, part)])
    return [next(cuts) if 2 * len(places) <= opened.total else None for places in wanted]


def _cuts(opened: OpenedBody, wanted: Sequence[Rows]) -> Iterator[RowCut | None]:
    columns = opened.batch.select(range(columns_used(opened.batch)))
    there = NormalRows(taken(columns, np.concatenate(wanted)))
    start = 0
    for places in wanted:
        ensure(len(places) > 0, "a cut has at least one row")
        yield _cut(opened, places, there.written(start, start + len(places)))
        start += len(places)


def _cut(opened: OpenedBody, places: Rows, columns: WrittenColumns) -> RowCut | None:
    publication, head, total, wider = opened.publication, opened.head, opened.total, opened.cut
    if wider is not None and len(places) == len(wider.rows):
        return wider
    rows = places if wider is None else wider.rows[places]
    wire = _wire(publication, head, total, rows, columns)
    if wider is None and len(wire) >= opened.size:
        return None
    return RowCut(publication, head, total, rows, opened.batch, places, wire)


def _wire(
    publication: Digest, head: bytes, total: int, rows: Rows, columns: WrittenColumns
) -> bytes:
    """A cut as it travels."""
    nulls, parts = columns
    header = HEADER.pack(MARK, publication, total, len(rows), len(head), len(nulls))
    return b"".join(map(padded, (header, head, rows.tobytes(), nulls, *parts)))


def decode_cut(body: bytes, schema: pa.Schema, *, accepted: bool = False) -> RowCut | None:
    """The cut in a body; None if a faulty broker wrote nonsense, or wrote it differently.

    An `accepted` one is known to be in normal form: enough brokers voted for its digest. It may
    have more columns, behind those of the schema: a parent cell got them first.
    """
    if not looks_cut(body) or not has_normal_form(schema):
        return None
    try:
        cut = _decoded(body, schema, accepted)
    except (pa.ArrowException, struct.error, ValueError, MemoryError):
        return None
    # A cut has one form: the same rows are always the same bytes.
    return cut if cut is not None and (accepted or cut.encode() == body) else None


def _decoded(body: bytes, schema: pa.Schema, accepted: bool) -> RowCut | None:
    """The cut in a body, if it is sound; whether the body is in normal form is not checked."""
    _, publication, total, count, head_size, columns = HEADER.unpack_from(body)
    if not 0 < 2 * count <= total <= MAX_MATCHED_ROWS:
        return None
    parts = Parts(body, HEADER.size)
    head = parts.bytes(head_size)
    rows = np.frombuffer(parts.buffer(4 * count), np.uint32)
    if rows[-1] >= total or not (rows[1:] > rows[:-1]).all():
        return None
    nulls = parts.bytes(columns)
    batch = read_columns(schema, nulls[: len(schema)] if accepted else nulls, parts, count)
    if not (parts.at_end or (accepted and columns > len(schema))) or not is_sound(batch, schema):
        return None
    return RowCut(Digest(publication), head, total, rows, batch, wire=body if accepted else None)
