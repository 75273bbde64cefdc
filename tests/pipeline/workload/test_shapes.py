"""Generated workloads have the shape that they imitate, for any seed and any cut."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.workload.describe import power_law_exponent
from quorumcast.pipeline.workload.shapes import (
    REDDIT,
    REDDIT_EVENTS,
    REDDIT_NODES,
    Generator,
    shape_of,
)

#: Counted in the workload that Pulsarcast's author published.
DELIVERIES, SUBSCRIPTIONS, DEVIATION = 1_734_851, 762, 1.3325


def reddit(seed: int, events: int = REDDIT_EVENTS, nodes: int = REDDIT_NODES) -> Generator:
    return Generator(REDDIT, events=events, nodes=nodes, seed=seed, rate=100, size=200)


@pytest.mark.parametrize("seed", [1, 2, 3, 99])
def test_reddit_shape_has_the_counts_of_the_real_one(seed: int) -> None:
    generator = reddit(seed)
    events = pa.Table.from_batches([generator.event_columns(np.arange(REDDIT_EVENTS))])
    subscriptions = generator.subscription_table()
    by_topic = Counter(events["topic"].to_pylist())
    audience = Counter(subscriptions["topic"].to_pylist())
    assert len(by_topic) == 23
    assert len(set(events["node"].to_pylist())) == 100
    assert len(subscriptions) == SUBSCRIPTIONS
    assert sorted(by_topic.values(), reverse=True) == list(REDDIT.events)
    assert sum(by_topic[topic] * audience[topic] for topic in by_topic) == DELIVERIES
    assert generator.deliveries == DELIVERIES
    per_node = list(Counter(subscriptions["node"].to_pylist()).values())
    assert len(per_node) == 100
    assert np.std(per_node) == pytest.approx(DEVIATION, rel=0.05)
    assert power_law_exponent(list(by_topic.values())) == pytest.approx(3.166, rel=0.05)


def test_reddit_shape_publishes_only_where_it_subscribes_and_everywhere_there() -> None:
    generator = reddit(5)
    events = generator.event_columns(np.arange(REDDIT_EVENTS))
    published = set(zip(events["topic"].to_pylist(), events["node"].to_pylist(), strict=True))
    rows = generator.subscription_table().to_pylist()
    assert published == {(row["topic"], row["node"]) for row in rows}


def test_events_are_the_same_however_they_are_cut() -> None:
    generator, again = reddit(4), reddit(4)
    whole = pa.Table.from_batches([generator.event_columns(np.arange(3000))])
    cut = [again.event_columns(np.arange(a, a + 250)) for a in range(0, 3000, 250)]
    assert pa.Table.from_batches(cut).equals(whole.combine_chunks())
    other = reddit(6).event_columns(np.arange(3000))
    assert not pa.Table.from_batches([other]).equals(whole)


def test_larger_workload_keeps_the_proportions() -> None:
    generator = reddit(1, events=10 * REDDIT_EVENTS, nodes=300)
    assert generator.deliveries == pytest.approx(30 * DELIVERIES, rel=0.05)
    assert generator.counts.tolist() == [10 * count for count in REDDIT.events]
    assert sum(map(len, generator.audiences)) == pytest.approx(3 * SUBSCRIPTIONS, rel=0.05)


def test_free_shape_follows_its_distributions() -> None:
    shape = shape_of(10, "zipf", 0.0, "uniform", 4.0)
    generator = Generator(shape, events=2929, nodes=50, seed=1, rate=10, size=64)
    assert generator.counts[0] / generator.counts[9] == pytest.approx(10, rel=0.01)
    assert [len(audience) for audience in generator.audiences] == [20] * 10
    batch = generator.event_columns(np.array([0, 2928]))
    assert batch["at_ms"].to_pylist() == [0, 292_800]
    assert batch["size"].to_pylist() == [64, 64]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"events": 22}, "--events is 23 or more"),
        ({"nodes": 0}, "--nodes is 1 or more"),
        ({"rate": 0.0}, "--rate more than 0"),
    ],
)
def test_generator_of_nothing_is_refused(wrong: dict[str, float], sentence: str) -> None:
    usual = {"events": 100, "nodes": 10, "seed": 1, "rate": 10.0, "size": 1}
    with pytest.raises(UsageError, match=sentence):
        Generator(REDDIT, **{**usual, **wrong})  # type: ignore[arg-type]
