"""Selections: the results of predicates on a run of publications.

An `OpenedRun` decodes each body at most once, however many filters are applied to it. Small batches
are joined, so that the kernels of a filter run once per run and not once per publication.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast.core.errors import ensure
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, Digest, split_digests
from quorumcast.core.limits import MAX_MATCHED_ROWS
from quorumcast.core.publication import widened
from quorumcast.matching.cut import OpenedBody, RowCut, cut_out, open_body
from quorumcast.matching.evaluate import Rows
from quorumcast.matching.normal_form import columns_used

if TYPE_CHECKING:
    from quorumcast.matching.indexing.filter_set import FilterSet

#: Rows from which on a batch is long enough to be evaluated alone.
_LONG = 4096
#: Bytes of text that take as long to look at as a row: patterns read every one.
_ROW_BYTES = 64
_TEXTS = (pa.string(), pa.binary())


class RowFilter(Protocol):
    """Finds the rows of a batch that match."""

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """The places of the rows that match, ascending."""


class Selected(msgspec.Struct, frozen=True, eq=False):
    """The result of one filter on a run."""

    #: A value per number of the run: `NOTHING`, the publication's digest, or that of a cut.
    votes: bytes
    #: Which numbers of the run match, counted from 0, ascending.
    places: list[int]
    #: What was cut, by number.
    cuts: dict[int, RowCut]
    #: The bodies of the run, and how many rows each publication has; None if that is not known.
    bodies: Sequence[bytes]
    totals: Sequence[int | None]
    #: How many rows the filter was evaluated on.
    rows_looked_at: int

    def vote(self, place: int) -> bytes:
        """The value of one number."""
        return self.votes[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE]

    def body(self, place: int) -> bytes:
        """The contents to send for a number that matches: the body as it is, or the cut."""
        cut = self.cuts.get(place)
        return self.bodies[place] if cut is None else cut.encode()

    @property
    def cut_bytes(self) -> int:
        """Bytes of all cuts."""
        return sum(len(cut.encode()) for cut in self.cuts.values())

    def rows(self, place: int) -> Rows | None:
        """The numbers of the rows in the publication; None if it goes whole."""
        cut = self.cuts.get(place)
        return None if cut is None else cut.rows

    def total(self, place: int) -> int | None:
        """How many rows the publication has; None if it makes no sense or has too many."""
        return self.totals[place]


class _Joined(msgspec.Struct, frozen=True):
    """The rows of several publications in one batch."""

    batch: pa.RecordBatch
    #: Which numbers of the run these are.
    places: list[int]
    #: The place of the first row of each in the batch, and the place after the last row.
    starts: Rows

    def split(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """The rows that match of each publication that has any, counted from its own first."""
        ends = np.searchsorted(rows, self.starts)
        for index in np.flatnonzero(ends[1:] > ends[:-1]).tolist():
            yield self.places[index], rows[ends[index] : ends[index + 1]] - self.starts[index]


class OpenedRun:
    """The bodies of a run: publications, or what other predicates made of them."""

    __slots__ = (
        "_blank", "_bodies", "_cuts", "_digests", "_joined", "_opened", "_rows", "_totals",
        "_whole", "effort",
    )  # fmt: skip

    def __init__(
        self, schema: pa.Schema, digests: bytes, bodies: Sequence[bytes], *, labelled: bool = False
    ) -> None:
        self._digests = split_digests(digests)
        self._bodies = bodies
        ensure(len(self._digests) == len(bodies), "a run has a digest per body")
        #: The rows of each body; None if it goes whole.
        self._opened = [
            open_body(schema, digest, body, labelled=labelled)
            for digest, body in zip(self._digests, bodies, strict=True)
        ]
        self._joined = list(_join(schema, self._opened))
        #: How many rows a filter is evaluated on.
        self._rows: int = sum(joined.batch.num_rows for joined in self._joined)
        text = sum(_text_bytes(joined.batch) for joined in self._joined)
        #: How many rows with short texts take as long to evaluate as these.
        self.effort: int = self._rows + text // _ROW_BYTES
        self._totals = [None if opened is None else opened.total for opened in self._opened]
        #: The numbers that go whole whatever the filter, and the votes where no row matches.
        self._whole = [
            place
            for place, opened in enumerate(self._opened)
            if opened is None and self._digests[place] != NOTHING
        ]
        self._blank = [NOTHING] * len(bodies)
        for place in self._whole:
            self._blank[place] = self._digests[place]
        #: What was cut, by number and rows.
        self._cuts: dict[tuple[int, bytes], RowCut | None] = {}

    def select(self, wanted: RowFilter) -> Selected:
        """The selection of one filter."""
        found = [
            match for joined in self._joined for match in joined.split(wanted.rows(joined.batch))
        ]
        self._cut(found)
        return self._selected(found)

    def select_all(self, filters: FilterSet) -> dict[bytes, Selected]:
        """The selections of many filters, by id; rows are looked at once for all."""
        nothing = self._selected(())
        chosen = dict.fromkeys(filters, nothing)
        found: dict[bytes, list[tuple[int, Rows]]] = {}
        for joined in self._joined:
            for one, rows in filters.match(joined.batch):
                found.setdefault(one.id, []).extend(joined.split(rows))
        self._cut(match for matches in found.values() for match in matches)
        for name, matches in found.items():
            chosen[name] = self._selected(matches)
        return chosen

    def _selected(self, found: Sequence[tuple[int, Rows]]) -> Selected:
        """The selection in which these rows of these numbers match."""
        votes = list(self._blank)
        places = list(self._whole)
        cuts = {}
        for place, rows in found:
            cut = self._cuts[place, rows.tobytes()]
            if cut is not None:
                cuts[place] = cut
            votes[place] = self._digests[place] if cut is None else Digest(cut.digest)
            places.append(place)
        return Selected(
            b"".join(votes), sorted(places), cuts, self._bodies, self._totals, self._rows
        )

    def _cut(self, found: Iterable[tuple[int, Rows]]) -> None:
        """Cut what is not cut yet; equal rows are cut once for all filters."""
        new: dict[int, dict[bytes, Rows]] = {}
        for place, rows in found:
            name = rows.tobytes()
            if (place, name) not in self._cuts:
                new.setdefault(place, {})[name] = rows
        for place, wanted in new.items():
            if (opened := self._opened[place]) is not None:
                cuts = cut_out(opened, list(wanted.values()))
                self._cuts.update(zip([(place, name) for name in wanted], cuts, strict=True))


def _join(schema: pa.Schema, opened: Sequence[OpenedBody | None]) -> Iterator[_Joined]:
    """All rows, in few batches.

    Columns that come last and are null are left out while batches are joined: an older publication
    of few bytes may lack many columns, and must not take memory for them.
    """
    waiting: dict[int, _Waiting] = {}
    for place, body in enumerate(opened):
        if body is None or not body.batch.num_rows:
            continue
        rows = body.batch.num_rows
        if rows >= _LONG:
            yield _Joined(body.batch, [place], _starts([rows]))
            continue
        columns = columns_used(body.batch)
        group = waiting.setdefault(columns, _Waiting())
        if group.rows + rows > MAX_MATCHED_ROWS:
            yield group.joined(schema)
            group = waiting[columns] = _Waiting()
        group.add(place, body.batch, columns)
    for group in waiting.values():
        yield group.joined(schema)


class _Waiting:
    """Short batches that are going to be joined."""

    __slots__ = ("_batches", "_places", "rows")

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._places: list[int] = []
        self.rows = 0

    def add(self, place: int, batch: pa.RecordBatch, columns: int) -> None:
        """Add the first columns of a batch."""
        narrow = batch if columns == batch.num_columns else batch.select(range(columns))
        self._batches.append(narrow)
        self._places.append(place)
        self.rows += batch.num_rows

    def joined(self, schema: pa.Schema) -> _Joined:
        """All of them, with all columns."""
        whole = self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
        starts = _starts([batch.num_rows for batch in self._batches])
        return _Joined(widened(whole, schema), self._places, starts)


def _text_bytes(batch: pa.RecordBatch) -> int:
    texts = (column for column in batch.columns if column.type in _TEXTS)
    return sum(column.nbytes for column in texts)


def _starts(lengths: Sequence[int]) -> Rows:
    return np.fromiter(accumulate(lengths, initial=0), np.uint32, len(lengths) + 1)
