"""The filter of one node on one channel: the rows for which one of its predicates is true."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import PREDICATE_ID_SIZE
from quorumcast.core.limits import MAX_FILTER_TEXT, MAX_PREDICATES
from quorumcast.matching.columns import BatchView, Columns
from quorumcast.matching.conjunctions import MAX_CONJUNCTIONS
from quorumcast.matching.evaluate import Rows, rows_in
from quorumcast.matching.kernels import MatchingCost, cost_of
from quorumcast.matching.nodes import Conjunction, OneOf, Prefix
from quorumcast.matching.predicate import Predicate, parse_predicate

#: From so many microseconds per 1,000 rows on a filter is costly.
COSTLY_US = 1000.0
#: What a conjunction costs in an index, beside its residual: one that names values, and one that
#: most rows may satisfy.
_NAMED, _WIDE = MatchingCost(0.5, 0), MatchingCost(3, 0)
#: What any evaluation costs, and the rows of a batch: plainly, and in an index.
_PLAIN, _INDEXED = MatchingCost(0, 40), MatchingCost(0, 5)
_PLAIN_BATCH, _INDEXED_BATCH = 4096, 1024
#: The predicates of a filter share so many conjunctions, and each may have a few in any case. ANDs
#: of ORs multiply, and it takes a second to make and to index 40,000 conjunctions.
_CONJUNCTIONS, _LEAST_CONJUNCTIONS = 1024, 4
_PERSON = b"qc-filter"


class Filter(msgspec.Struct, frozen=True, eq=False):
    """The OR of a node's predicates on a channel, each there once, in the order of their ids."""

    predicates: tuple[Predicate, ...]
    columns: Columns
    #: 16 bytes over the ids of the predicates and the columns of the channel.
    id: bytes
    #: What it takes alone, and beside others in an index.
    plain: MatchingCost
    indexed: MatchingCost

    @property
    def schema(self) -> pa.Schema:
        """The columns of the channel."""
        return self.columns.schema

    def work_us(self, rows: int, *, plain: bool) -> int:
        """About how many microseconds it takes to find the matching ones of so many rows."""
        cost, batch = (self.plain, _PLAIN_BATCH) if plain else (self.indexed, _INDEXED_BATCH)
        return int(cost.batch_us * (1 + rows // batch) + cost.rows_us * rows / 1000)

    @property
    def is_costly(self) -> bool:
        """Whether it takes a microsecond per row or more, whatever index there is."""
        return min(self.plain.rows_us, self.indexed.rows_us) >= COSTLY_US

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """The rows of a batch that the node gets, ascending."""
        view = BatchView(self.columns, batch)
        found = self.predicates[0].mask(view)
        for predicate in self.predicates[1:]:
            found = np.logical_or(found, predicate.mask(view))
        return rows_in(found)


def make_filter(texts: Sequence[str], schema: pa.Schema | Columns, who: str) -> Filter:
    """The filter of these predicates; raise `UsageError`, which names each as `who`."""
    steps = filter_steps(texts, schema, who)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Filter = end.value
            return made


def filter_steps(
    texts: Sequence[str], schema: pa.Schema | Columns, who: str
) -> Generator[int, None, Filter]:
    """Make the filter in steps: each reads one predicate, and yields how long the next one is."""
    if not texts:
        raise UsageError(f"{who} is missing: name at least one, or TRUE for all rows")
    if len(texts) > MAX_PREDICATES:
        raise UsageError(
            f"{who} is one of {len(texts):,}, and a node has at most {MAX_PREDICATES:,} on a "
            "channel: join some of them with OR"
        )
    size = sum(map(len, texts))
    if len(texts) > 1 and size > MAX_FILTER_TEXT:
        raise UsageError(
            f"{who} is one of {len(texts):,}, which have {size:,} characters together, and those "
            f"of a node have at most {MAX_FILTER_TEXT:,} on a channel: ask for more rows, and "
            "filter what comes"
        )
    columns = schema if isinstance(schema, Columns) else Columns(schema)
    most = max(_LEAST_CONJUNCTIONS, min(MAX_CONJUNCTIONS, _CONJUNCTIONS // len(texts)))
    by_id: dict[bytes, Predicate] = {}
    for text in dict.fromkeys(texts):
        if by_id:
            yield len(text)
        predicate = parse_predicate(text, columns, who, conjunctions=most)
        by_id[predicate.id] = predicate
    predicates = tuple(by_id[name] for name in sorted(by_id))
    conjunctions = [one for predicate in predicates for one in predicate.conjunctions]
    residuals = [one.residual for one in conjunctions if one.residual is not None]
    meanings = [predicate.meaning for predicate in predicates]
    return Filter(
        predicates=predicates,
        columns=columns,
        id=_named(predicates, columns),
        plain=MatchingCost.total([_PLAIN, *(cost_of(meaning, columns) for meaning in meanings)]),
        indexed=MatchingCost.total(
            [
                _INDEXED,
                *map(_filed_cost, conjunctions),
                *(cost_of(residual, columns) for residual in residuals),
            ]
        ),
    )


def _filed_cost(conjunction: Conjunction) -> MatchingCost:
    named = any(isinstance(one, OneOf | Prefix) for one in conjunction.constraints)
    return _NAMED if named else _WIDE


def _named(predicates: Sequence[Predicate], columns: Columns) -> bytes:
    named = hashlib.blake2b(digest_size=PREDICATE_ID_SIZE, person=_PERSON)
    for name, kind in zip(columns.names, columns.types, strict=True):
        for part in (name.encode(), str(kind).encode()):
            named.update(len(part).to_bytes(4, "big") + part)
    named.update(b"".join(predicate.id for predicate in predicates))
    return named.digest()
