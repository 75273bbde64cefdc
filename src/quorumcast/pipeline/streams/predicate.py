"""The option `where`: a predicate that brokers apply as far as they can, and executors in full.

Spark does not push filters down to streaming sources in Python. The language is that of all
predicates (`matching/grammar.py`), on the columns that Spark sees. Brokers know the columns of the
channel only, and are asked for what the predicate says about those (`Where.asked_of`). Executors
apply all of it to what comes, before it enters the JVM.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from quorumcast.cell.filters import filter_of
from quorumcast.core.errors import UsageError
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.matching.canonical import CanonicalTexts, all_of, any_of
from quorumcast.matching.columns import BatchView, Columns
from quorumcast.matching.domain import ValueFamily
from quorumcast.matching.evaluate import rows_in
from quorumcast.matching.nodes import TRUE, AllOf, AnyOf, Compared, Meaning, Test
from quorumcast.matching.predicate import parse_predicate

OPTION = "option 'where'"
#: Bytes of the text. It may be longer than what brokers take, who are not asked then.
_MAX_BYTES = 1024 * 1024


class Where:
    """The option `where` on record batches of one schema, which may have more columns."""

    def __init__(self, text: str, schema: pa.Schema, *, always: str | None = None) -> None:
        """Rows with a value in the column `always` pass, whatever the predicate says.

        Raise `UsageError` if the text is no predicate on the schema.
        """
        self._predicate = parse_predicate(text, schema, OPTION, _MAX_BYTES)
        self._always = always

    def asked_of(self, entry: ChannelEntry) -> str | None:
        """What brokers are asked for of a channel; None: everything.

        They know the channel's columns, which come first here. A test on another column counts as
        true for them. What a predicate means has no NOT, so that lets more rows pass, never fewer.
        """
        columns = self._predicate.columns
        own = len(entry.schema)
        texts = CanonicalTexts(columns)
        known = _weakened(
            self._predicate.meaning, lambda test: _is_known(test, own, columns), texts
        )
        if known == TRUE:
            return None
        text = texts.of(known)
        try:
            filter_of(entry, (text,))
        except UsageError:  # too long, or brokers take no predicate on this channel
            return None
        return text

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the predicate is true."""
        columns = self._predicate.columns
        view = BatchView(columns, batch.select(columns.names))
        found = self._predicate.mask(view)
        if self._always is not None:
            always = view.present(columns.names.index(self._always))
            found = np.ones(view.rows, np.bool_) if always is None else found | always
        return batch if found.all() else batch.take(pa.array(rows_in(found)))


def _is_known(test: Test, own: int, columns: Columns) -> bool:
    """Whether brokers decide a test as executors do, with the channel's first `own` columns."""
    if not isinstance(test, Compared):
        return test.column < own
    # Spark has decimals for `uint64`: executors round them beside a float, brokers do not.
    families = {columns.domains[side].family for side in (test.left, test.right)}
    return max(test.left, test.right) < own and families != {ValueFamily.DECIMAL, ValueFamily.FLOAT}


def _weakened(meaning: Meaning, known: Callable[[Test], bool], texts: CanonicalTexts) -> Meaning:
    """The same with TRUE instead of each test that is not known."""
    match meaning:
        case AllOf(parts=parts):
            return all_of([_weakened(part, known, texts) for part in parts], texts)
        case AnyOf(parts=parts):
            return any_of([_weakened(part, known, texts) for part in parts], texts)
        case _:
            return meaning if known(meaning) else TRUE
