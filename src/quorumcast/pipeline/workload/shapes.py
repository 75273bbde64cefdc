"""Generates workloads of a given shape; each event can be computed without the others.

A `Shape` has the number of events and subscribers of each topic. Nodes publish on topics that they
subscribe to, and if there are enough events every subscriber of a topic publishes on it. So it is
in Pulsarcast's workload (§5.2), whose users subscribe to the topics that they wrote to. `REDDIT` is
the shape of that workload as its author published it.
"""

from __future__ import annotations

from functools import cached_property
from math import inf

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast.bench.workload import EVENT_COLUMNS, SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_BODY_BYTES
from quorumcast.pipeline.workload.draws import (
    MOST,
    Floats,
    Ints,
    apportioned,
    hashes,
    inclusion,
    ranks_at,
    shuffled,
    uniform,
    weights,
)
from quorumcast.pipeline.workload.recipes import LATEST_S


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The proportions of a workload, independent of its size."""

    name: str
    #: Relative number of events of each topic, most popular first.
    events: tuple[float, ...]
    #: Share of the nodes that subscribe to each topic.
    subscribed: tuple[float, ...]
    #: Pairs of a number of subscriptions and how many of 100 nodes have it; if empty, random.
    spread: tuple[tuple[int, int], ...] = ()
    #: Standard deviation of the weights with which nodes publish; their mean is 1.
    unequal: float = 0.0


#: 17,611 events, 23 topics, 100 nodes, 762 subscriptions.
REDDIT = Shape(
    name="reddit",
    events=(
        10559, 3195, 2095, 1270, 103, 93, 78, 55, 54, 35, 22, 10, 10, 7, 5, 4, 3, 3, 3, 3, 2, 1, 1,
    ),
    subscribed=(
        1.0, 1.0, 1.0, 1.0, 0.69, 0.56, 0.57, 0.43, 0.38, 0.29, 0.20, 0.09, 0.10, 0.07, 0.05, 0.03,
        0.03, 0.03, 0.03, 0.03, 0.02, 0.01, 0.01,
    ),
    spread=((5, 6), (6, 14), (7, 26), (8, 29), (9, 18), (10, 5), (11, 2)),
    unequal=0.078,
)  # fmt: skip
REDDIT_EVENTS, REDDIT_NODES = 17_611, 100
#: Up to here, events per topic are exact as floating-point numbers.
MOST_EVENTS = 10**12


def shape_of(
    topics: int, distribution: str, exponent: float, subscriptions: str, mean: float
) -> Shape:
    """Return a shape with this popularity of topics, and `mean` subscriptions per node."""
    popularity = weights(distribution, topics, exponent)
    chosen = inclusion(weights(subscriptions, topics, exponent), mean)
    return Shape(
        name=f"{distribution} over {topics} topics",
        events=tuple(map(float, popularity)),
        subscribed=tuple(map(float, chosen)),
    )


def check_size(events: int, nodes: int, rate: float) -> None:
    """Raise `UsageError` if a workload would not fit into memory, or its times into a column."""
    if nodes > MOST or events > MOST_EVENTS or events / rate > LATEST_S:
        raise UsageError(
            f"that is too large: at most {MOST:,} nodes and {MOST_EVENTS:,} events, within "
            f"{LATEST_S:.0e} seconds"
        )


class Generator:
    """Generates events and subscriptions of a shape."""

    def __init__(
        self, shape: Shape, *, events: int, nodes: int, seed: int, rate: float, size: int
    ) -> None:
        if nodes < 1 or not 0 < rate < inf or size < 0:
            raise UsageError("--nodes is 1 or more, --rate more than 0 and --size 0 or more")
        check_size(events, nodes, rate)
        if size > MAX_BODY_BYTES:
            raise UsageError(f"--size is at most {MAX_BODY_BYTES:,}: no publication holds more")
        if events < len(shape.events):
            raise UsageError(f"--events is {len(shape.events)} or more: one for each topic")
        self.shape = shape
        self.events = events
        self.nodes = nodes
        self.seed = seed
        self._gap_ms = 1000 / rate
        self._size = size
        #: Events by topic.
        self.counts = apportioned(np.array(shape.events), events, least=1)
        self._ends = np.cumsum(self.counts)
        #: The subscribers of each topic, as numbers of nodes from 0.
        self.audiences = self._audiences()

    @cached_property
    def names(self) -> list[str]:
        """The topics."""
        width = len(str(len(self.counts)))
        return [f"topic-{rank:0{width}}" for rank in range(1, len(self.counts) + 1)]

    @property
    def deliveries(self) -> int:
        """Events times subscribers, topic by topic."""
        audiences = zip(self.counts, self.audiences, strict=True)
        return sum(int(count) * len(audience) for count, audience in audiences)

    def _audiences(self) -> list[Ints]:
        wanted = np.clip(np.rint(np.array(self.shape.subscribed) * self.nodes), 1, self.nodes)
        left = self._wanted_subscriptions()
        found: list[Ints] = [np.empty(0, np.int64)] * len(wanted)
        for topic in np.argsort(-wanted, kind="stable"):
            draws = np.log(1 - uniform(self.seed, f"subscribers of {topic}", np.arange(self.nodes)))
            # Drawn without replacement, in proportion to the subscriptions a node still needs.
            keys = draws / np.maximum(left, 1e-9)
            chosen = np.argsort(-keys, kind="stable")[: int(wanted[topic])]
            left[chosen] -= 1
            # Shuffled, since nodes that need most subscriptions come first.
            order = np.argsort(hashes(self.seed, f"audience of {topic}", chosen))
            found[int(topic)] = chosen[order]
        return found

    def _wanted_subscriptions(self) -> Floats:
        if not self.shape.spread:
            return np.full(self.nodes, float(len(self.counts)))
        numbers = np.array([number for number, _ in self.shape.spread], np.float64)
        many = apportioned(np.array([n for _, n in self.shape.spread], np.float64), self.nodes)
        order = np.argsort(hashes(self.seed, "spread", np.arange(self.nodes)))
        wanted = np.empty(self.nodes)
        wanted[order] = np.repeat(numbers, many)
        return wanted

    @cached_property
    def _choices(self) -> list[Floats]:
        """Cumulative weights of each topic's publishers."""
        places = np.arange(self.nodes)
        radius = np.sqrt(-2 * np.log(1 - uniform(self.seed, "weight, radius", places)))
        turn = 2 * np.pi * uniform(self.seed, "weight, angle", places)
        normal = radius * np.cos(turn)
        heavy = np.maximum(1 + self.shape.unequal * normal, 0.1)
        return [np.cumsum(heavy[audience]) for audience in self.audiences]

    # ------------------------------------------------------------------ tables

    def event_columns(self, places: Ints) -> pa.RecordBatch:
        """Return the events with these numbers, from 0 on."""
        slots = shuffled(self.seed, "order of events", places, self.events)
        topics = np.searchsorted(self._ends, slots, side="right")
        within = slots - (self._ends - self.counts)[topics]
        draws = uniform(self.seed, "publisher", places)
        nodes = np.empty(len(places), np.int64)
        for topic in np.unique(topics):
            here = topics == topic
            audience, nth = self.audiences[topic], within[here]
            drawn = audience[ranks_at(self._choices[topic], draws[here])]
            # Each subscriber publishes one of a topic's first events.
            nodes[here] = np.where(
                nth < len(audience), audience[np.minimum(nth, len(audience) - 1)], drawn
            )
        return pa.record_batch(
            [
                pa.array((places * self._gap_ms).astype(np.int64)),
                pa.array(places, pa.int64()),
                pa.array(node_names(nodes)),
                pa.array(self.names).take(pa.array(topics)),
                pa.array(np.full(len(places), self._size, np.int32)),
            ],
            schema=EVENT_COLUMNS,
        )

    def subscription_table(self) -> pa.Table:
        """Return the subscriptions."""
        lengths = [len(audience) for audience in self.audiences]
        topics = np.repeat(np.arange(len(self.names)), lengths)
        return pa.table(
            [
                pa.array(self.names).take(pa.array(topics)),
                pa.array(node_names(np.concatenate(self.audiences))),
            ],
            schema=SUBSCRIPTION_COLUMNS,
        )

    def topic_table(self) -> pa.Table:
        """Return the topics; each is created by its first subscriber."""
        return pa.table(
            [
                self.names,
                node_names(np.array([audience[0] for audience in self.audiences])),
                self.counts,
                [len(audience) for audience in self.audiences],
            ],
            schema=TOPIC_COLUMNS,
        )


def node_names(places: Ints) -> list[str]:
    """Return node-1 for 0, and so on."""
    return [f"node-{place + 1}" for place in places.tolist()]
