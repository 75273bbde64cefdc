"""A small workload of our own: four nodes, three topics, and what is to be delivered."""

from pathlib import Path

import pyarrow as pa

from quorumcast.bench.workload import (
    EVENT_COLUMNS,
    EVENTS,
    SUBSCRIPTION_COLUMNS,
    SUBSCRIPTIONS,
    TOPIC_COLUMNS,
    TOPICS,
    WorkloadHeader,
    write_workload,
)

NODES = ("node-1", "node-2", "node-3", "node-4")
SUBSCRIBERS = {"news": NODES, "cats": NODES[1:3], "quiet": NODES[3:]}
#: Publishers take turns; topics by popularity. Nobody ever says anything on "quiet".
SPOKEN_OF = ("news", "news", "cats", "news")


def small_workload(path: Path, events: int = 60) -> int:
    """Write it; how many deliveries are expected."""
    rows = [
        (20 * number, number, NODES[number % 3], SPOKEN_OF[number % 4], (number * 37) % 90)
        for number in range(events)
    ]
    table = pa.Table.from_pylist(
        [dict(zip(EVENT_COLUMNS.names, row, strict=True)) for row in rows], schema=EVENT_COLUMNS
    )
    pairs = [(topic, node) for topic, nodes in SUBSCRIBERS.items() for node in nodes]
    counts = {topic: sum(row[3] == topic for row in rows) for topic in SUBSCRIBERS}
    deliveries = sum(counts[topic] * len(nodes) for topic, nodes in SUBSCRIBERS.items())
    header = WorkloadHeader(
        name="small",
        seed=0,
        nodes=len(NODES),
        topics=len(SUBSCRIBERS),
        events=events,
        subscriptions=len(pairs),
        deliveries=deliveries,
    )
    topics = [[*counts], ["node-1"] * 3, [*counts.values()], [len(n) for n in SUBSCRIBERS.values()]]
    write_workload(
        path,
        header,
        {
            TOPICS: [pa.table(topics, schema=TOPIC_COLUMNS)],
            SUBSCRIPTIONS: [
                pa.table(list(map(list, zip(*pairs, strict=True))), schema=SUBSCRIPTION_COLUMNS)
            ],
            EVENTS: [table.slice(0, events // 3), table.slice(events // 3)],
        },
    )
    return deliveries
