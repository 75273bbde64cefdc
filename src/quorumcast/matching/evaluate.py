"""Plain evaluation of a predicate on a record batch, and so the reference for every faster way.

    rows = evaluate(parse_predicate("price < 3", schema, "the predicate"), batch)

Indexes must find the same rows; checkers of completeness use this module and never an index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumcast.matching.columns import BatchView, Bools
from quorumcast.matching.predicate import Predicate

#: Numbers of rows of a batch, ascending.
Rows = npt.NDArray[np.uint32]


def evaluate(predicate: Predicate, batch: pa.RecordBatch) -> Rows:
    """The rows for which a predicate is true; the batch has the columns of its schema."""
    return rows_in(predicate.mask(BatchView(predicate.columns, batch)))


def rows_in(mask: Bools) -> Rows:
    """The numbers of the rows that a mask marks."""
    return np.flatnonzero(mask).astype(np.uint32)
