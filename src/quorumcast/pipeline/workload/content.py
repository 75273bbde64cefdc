"""Generates workloads whose subscriptions are predicates on the attributes of publications.

PubliyPrime §6.1 measures with two Zipf-distributed sets: DT-1 with 6,552 subscriptions, of which a
publication matches 9 % on average, and DT-2 with 19,472, of which it matches 53 %. Their attributes
are not described. Here five attributes have values 1 … 32, drawn by Zipf for publications and
subscriptions. A subscription is a conjunction of predicates (`=`, `<=` or `>=` a value) on
different attributes; popular attributes are more frequent.

The share of `=` predicates determines the density of matches monotonically, so bisection over the
expected density finds it. `Matcher` counts the actual matches: for each attribute and value, a bit
per subscription says whether it accepts the value; a publication matches the AND of its rows.
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumcast.bench.predicates.workload import CONTENT_SUBSCRIPTION_COLUMNS
from quorumcast.bench.workload import (
    BY_CONTENT,
    EVENTS,
    SUBSCRIPTIONS,
    WorkloadHeader,
    write_workload,
)
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.workload.draws import (
    Floats,
    Ints,
    apportioned,
    hashes,
    ranks_at,
    shuffled,
    uniform,
    weights,
)
from quorumcast.pipeline.workload.shapes import check_size, node_names

#: Allowed relative error of the counted density.
TOLERANCE = 0.01

Bits = npt.NDArray[np.uint8]


class ContentShape(msgspec.Struct, frozen=True, kw_only=True):
    """The proportions of a workload with content subscriptions."""

    name: str
    subscriptions: int
    #: Average share of the subscriptions that a publication matches.
    density: float
    #: Most predicates of a subscription.
    predicates: int
    attributes: int = 5
    values: int = 32
    exponent: float = 1.0


#: PubliyPrime §6.1, Fig. 6: sparse and dense.
DT1 = ContentShape(name="dt1", subscriptions=6_552, density=0.09, predicates=3)
DT2 = ContentShape(name="dt2", subscriptions=19_472, density=0.53, predicates=1)


def event_columns(shape: ContentShape) -> pa.Schema:
    """Return the columns of publications: with attributes a1, a2, … and the number of matches."""
    attributes = [(f"a{index + 1}", pa.int32()) for index in range(shape.attributes)]
    before = [("at_ms", pa.int64()), ("id", pa.int64()), ("node", pa.string())]
    return pa.schema([*before, *attributes, ("matches", pa.int64())])


class ContentGenerator:
    """Generates subscriptions and publications of a shape."""

    def __init__(
        self, shape: ContentShape, *, events: int, nodes: int, seed: int, rate: float
    ) -> None:
        if events < 1 or nodes < 1 or not 0 < rate < inf:
            raise UsageError("--events and --nodes are 1 or more and --rate more than 0")
        check_size(events, nodes, rate)
        self.shape = shape
        self.events = events
        self.nodes = nodes
        self.seed = seed
        self._gap_ms = 1000 / rate
        self._popularity = weights("zipf", shape.values, shape.exponent)
        self._cumulative = np.cumsum(self._popularity)
        self._draw()
        #: The share of `=` predicates.
        self.exact = self._calibrate()
        self.low, self.high = self._bounds(self.exact)

    # ------------------------------------------------------------------ subscriptions

    def _draw(self) -> None:
        shape, seed = self.shape, self.seed
        cells = np.arange(shape.subscriptions * shape.attributes)

        def drawn(purpose: str) -> Floats:
            return uniform(seed, purpose, cells).reshape(shape.subscriptions, shape.attributes)

        many = 1 + np.floor(
            uniform(seed, "predicates", np.arange(shape.subscriptions)) * shape.predicates
        )
        # Drawn without replacement: a subscription has at most one predicate per attribute.
        liked = weights("zipf", shape.attributes, shape.exponent)
        keys = np.log(1 - drawn("attribute")) / liked
        places = np.argsort(np.argsort(-keys, axis=1), axis=1)
        self._asked = places < many[:, None]
        self._wanted = ranks_at(self._cumulative, drawn("value").ravel()).reshape(keys.shape) + 1
        self._operator = drawn("operator")
        self._upwards = drawn("direction") < 0.5

    def _bounds(self, exact: float) -> tuple[Ints, Ints]:
        """Return the accepted range of each attribute."""
        equal = self._operator < exact
        low = np.where(equal | self._upwards, self._wanted, 1)
        high = np.where(equal | ~self._upwards, self._wanted, self.shape.values)
        return (
            np.where(self._asked, low, 1).astype(np.int64),
            np.where(self._asked, high, self.shape.values).astype(np.int64),
        )

    def expected_density(self, exact: float) -> float:
        """Return the expected share of subscriptions that a publication matches."""
        low, high = self._bounds(exact)
        upto = np.concatenate([[0.0], self._cumulative])
        return float((upto[high] - upto[low - 1]).prod(axis=1).mean())

    def _calibrate(self) -> float:
        dense, sparse = self.expected_density(0.0), self.expected_density(1.0)
        if not sparse <= self.shape.density <= dense:
            raise UsageError(
                f"with {self.shape.predicates} predicates and {self.shape.values} values a "
                f"publication can match {sparse:.1%} to {dense:.1%} of the subscriptions, not "
                f"{self.shape.density:.1%}; change the number of predicates"
            )
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            too_dense = self.expected_density(middle) > self.shape.density
            low, high = (middle, high) if too_dense else (low, middle)
        return (low + high) / 2

    def predicates(self) -> list[str]:
        """Return the subscriptions as text."""
        low, high, asked = self.low, self.high, self._asked
        found = []
        for row in range(self.shape.subscriptions):
            terms = []
            for attribute in np.flatnonzero(asked[row]):
                least, most = low[row, attribute], high[row, attribute]
                if least == most:
                    term = f"= {least}"
                else:
                    term = f"<= {most}" if least == 1 else f">= {least}"
                terms.append(f"a{attribute + 1} {term}")
            found.append(" and ".join(terms))
        return found

    def subscription_table(self) -> pa.Table:
        """Return all subscriptions."""
        ids = np.arange(self.shape.subscriptions)
        owners = (hashes(self.seed, "subscriber", ids) % np.uint64(self.nodes)).astype(np.int64)
        return pa.table(
            [pa.array(ids), node_names(owners), self.predicates()],
            schema=CONTENT_SUBSCRIPTION_COLUMNS,
        )

    # ------------------------------------------------------------------ publications

    @cached_property
    def _value_ends(self) -> Ints:
        """The last event of each value, plus 1, if events were ordered by value."""
        return np.cumsum(apportioned(self._popularity, self.events))

    def values_at(self, places: Ints) -> Ints:
        """Return the attributes of the events with these numbers; frequencies are exact."""
        columns = [
            np.searchsorted(
                self._value_ends,
                shuffled(self.seed, f"attribute {attribute}", places, self.events),
                side="right",
            )
            for attribute in range(self.shape.attributes)
        ]
        return np.stack(columns, axis=1) + 1

    def event_columns(self, places: Ints) -> pa.RecordBatch:
        """Return the events with these numbers, and their matches."""
        values = self.values_at(places)
        owners = (hashes(self.seed, "publisher", places) % np.uint64(self.nodes)).astype(np.int64)
        return pa.record_batch(
            [
                pa.array((places * self._gap_ms).astype(np.int64)),
                pa.array(places, pa.int64()),
                pa.array(node_names(owners)),
                *(pa.array(column.astype(np.int32)) for column in values.T),
                pa.array(self.matcher.count(values)),
            ],
            schema=event_columns(self.shape),
        )

    def header(self, matches: int) -> WorkloadHeader:
        """Return the header of a workload with so many matches."""
        shape = self.shape
        return WorkloadHeader(
            kind=BY_CONTENT,
            name=shape.name,
            seed=self.seed,
            nodes=self.nodes,
            topics=0,
            events=self.events,
            subscriptions=shape.subscriptions,
            deliveries=matches,
            made={
                "generated": shape.name,
                **{n: getattr(shape, n) for n in ("density", "predicates", "attributes", "values")},
                "zipf": shape.exponent,
            },
        )

    def write(self, path: Path) -> None:
        """Write a workload that fits into memory; without Spark, so that a benchmark can."""
        events = self.event_columns(np.arange(self.events))
        matches = int(pc.sum(events.column("matches")).as_py())
        tables = {
            SUBSCRIPTIONS: [self.subscription_table()],
            EVENTS: [pa.Table.from_batches([events])],
        }
        write_workload(path, self.header(matches), tables)

    @cached_property
    def matcher(self) -> Matcher:
        """Counts matches with these subscriptions."""
        return Matcher(self.low, self.high, self.shape.values)


class Matcher:
    """Counts the subscriptions that a publication matches."""

    #: Publications whose bits are in memory at the same time.
    BLOCK = 1024

    def __init__(self, low: Ints, high: Ints, values: int) -> None:
        every = np.arange(1, values + 1)[:, None]
        #: For each attribute and value: a bit for each subscription.
        self._accepting: list[Bits] = [
            np.packbits((low[:, a] <= every) & (every <= high[:, a]), axis=1)
            for a in range(low.shape[1])
        ]

    def count(self, values: Ints) -> Ints:
        """Return the matches of each publication; a row has its attributes."""
        found = [
            self._count_block(values[start : start + self.BLOCK])
            for start in range(0, len(values), self.BLOCK)
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _count_block(self, values: Ints) -> Ints:
        left = self._accepting[0][values[:, 0] - 1]
        for attribute, accepting in enumerate(self._accepting[1:], 1):
            left &= accepting[values[:, attribute] - 1]
        counts: Ints = np.bitwise_count(left).sum(axis=1, dtype=np.int64)
        return counts
