"""The option `where`: a predicate that filters rows on the executors, before they enter the JVM.

Spark does not push filters down to streaming sources in Python. The language is that of all
predicates (`matching/grammar.py`), on the columns that Spark sees.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from quorumcast.matching.columns import BatchView
from quorumcast.matching.evaluate import rows_in
from quorumcast.matching.predicate import parse_predicate

OPTION = "option 'where'"
#: Bytes of the text. It goes to no broker, so that it may be longer than a node's predicates.
_MAX_BYTES = 1024 * 1024


class Where:
    """The option `where` on record batches of one schema, which may have more columns."""

    def __init__(self, text: str, schema: pa.Schema, *, always: str | None = None) -> None:
        """Rows with a value in the column `always` pass, whatever the predicate says.

        Raise `UsageError` if the text is no predicate on the schema.
        """
        self._predicate = parse_predicate(text, schema, OPTION, _MAX_BYTES)
        self._always = always

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the predicate is true."""
        columns = self._predicate.columns
        view = BatchView(columns, batch.select(columns.names))
        found = self._predicate.mask(view)
        if self._always is not None:
            always = view.present(columns.names.index(self._always))
            found = np.ones(view.rows, np.bool_) if always is None else found | always
        return batch if found.all() else batch.take(pa.array(rows_in(found)))
