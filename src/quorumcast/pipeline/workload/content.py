"""Workloads that subscribe by content: publications with attributes, subscriptions with predicates.

PubliyPrime §6.1 measures with two sets that follow the Zipf distribution: DT-1 with 6,552
subscriptions, of which a publication matches 9 % on average, and DT-2 with 19,472, of which it
matches 53 %. It does not say what their attributes are. Ours: values 1 … 32 of five attributes,
drawn by Zipf for publications and for subscriptions. A subscription is a conjunction of predicates
on different attributes, popular ones more often: `=`, `<=` or `>=` the value drawn.

How many predicates are `=` decides how dense the matching is, steadily, so that share is found by
bisection for the density that is wanted, by arithmetic over the distributions. Whether publications
then really match so many is counted (`Matcher`), and compared by who generates.

Counting: for each attribute and value a row of bits says which subscriptions accept it. A
publication's row is the AND of its attributes' rows, and its matches are the bits that are left.
"""

from __future__ import annotations

from functools import cached_property
from math import inf

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

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

#: How far the counted density may be from the one that is wanted.
TOLERANCE = 0.01

CONTENT_SUBSCRIPTION_COLUMNS = pa.schema(
    [("id", pa.int64()), ("node", pa.string()), ("predicates", pa.string())]
)

Bits = npt.NDArray[np.uint8]


class ContentShape(msgspec.Struct, frozen=True, kw_only=True):
    """Subscriptions by content, and how many of them a publication is to match."""

    name: str
    subscriptions: int
    #: The share of the subscriptions that a publication matches, on average.
    density: float
    #: Predicates of a subscription at most.
    predicates: int
    attributes: int = 5
    values: int = 32
    exponent: float = 1.0


#: PubliyPrime §6.1, Fig. 6: sparse and dense.
DT1 = ContentShape(name="dt1", subscriptions=6_552, density=0.09, predicates=3)
DT2 = ContentShape(name="dt2", subscriptions=19_472, density=0.53, predicates=1)


def event_columns(shape: ContentShape) -> pa.Schema:
    """The columns of publications: attributes a1, a2, … and how many subscriptions match."""
    attributes = [(f"a{index + 1}", pa.int32()) for index in range(shape.attributes)]
    return pa.schema(
        [
            ("at_ms", pa.int64()),
            ("id", pa.int64()),
            ("node", pa.string()),
            *attributes,
            ("matches", pa.int64()),
        ]
    )


class ContentGenerator:
    """The subscriptions and publications of a shape."""

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
        #: The share of the predicates that name one value.
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
        # Popular attributes are asked for more often, each at most once by a subscription.
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
        """The subscriptions, for people."""
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
        """Everybody's subscriptions."""
        ids = np.arange(self.shape.subscriptions)
        owners = (hashes(self.seed, "subscriber", ids) % np.uint64(self.nodes)).astype(np.int64)
        return pa.table(
            [pa.array(ids), node_names(owners), self.predicates()],
            schema=CONTENT_SUBSCRIPTION_COLUMNS,
        )

    # ------------------------------------------------------------------ publications

    @cached_property
    def _value_ends(self) -> Ints:
        """How far each value goes when all events are laid out by value."""
        return np.cumsum(apportioned(self._popularity, self.events))

    def values_at(self, places: Ints) -> Ints:
        """The attributes of the events at these places: each value as often as it should be."""
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
        """The events at these places of the whole order, with their matches counted."""
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

    @cached_property
    def matcher(self) -> Matcher:
        """Counts matches with these subscriptions."""
        return Matcher(self.low, self.high, self.shape.values)


class Matcher:
    """How many of many subscriptions a publication matches."""

    #: Publications whose rows of bits are in memory at once.
    BLOCK = 1024

    def __init__(self, low: Ints, high: Ints, values: int) -> None:
        every = np.arange(1, values + 1)[:, None]
        #: By attribute: for each value a row of bits, one for each subscription.
        self._accepting: list[Bits] = [
            np.packbits((low[:, a] <= every) & (every <= high[:, a]), axis=1)
            for a in range(low.shape[1])
        ]

    def count(self, values: Ints) -> Ints:
        """Matches of each publication, given its attributes in a row."""
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
