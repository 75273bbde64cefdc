"""`quorumcast bench --suite matching`: the workloads, and the table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from quorumcast.cli.common import table

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.bench.matching import MatchingWorkload
    from quorumcast.bench.run import Progress
    from quorumcast.pipeline.workload.content import ContentShape

#: Events of DT-1 and DT-2: publications have exact frequencies over all of them.
_EVENTS = 1_000


def run(progress: Progress) -> tuple[object, list[Table], bool]:
    """Measure; returns rows, tables, and whether all promises were kept."""
    from quorumcast.bench.matching import LEAST_SPEEDUP, MOST_GROWTH, run_matching
    from quorumcast.pipeline.workload.content import DT1, DT2

    rows = run_matching([partial(workload_of, shape) for shape in (DT1, DT2)], progress)
    shown = table(
        "workload",
        right=(
            *("matches per event", "events/s", "not listed", "one at a time", "plainly"),
            *("speed-up", "growth", "to make", "wrong"),
        ),
        title="Predicates matched by an index, in batches of 1,000 events; processor time",
        caption=f"red: a wrong result, a speed-up below {LEAST_SPEEDUP:g} with 10,000 predicates "
        f"or more, or an event that costs more than {MOST_GROWTH:g} times as much as with the "
        "fewest",
    )
    for row in rows:
        shown.add_row(
            row.workload,
            f"{row.matches_per_event:,.1f}",
            f"{row.events_per_s:,.0f}",
            f"{row.matched_per_s:,.0f}",
            f"{row.single_per_s:,.0f}",
            f"{row.plain_per_s:,.0f}",
            f"x {row.speedup:,.0f}",
            "" if row.growth is None else f"x {row.growth}",
            f"{row.parse_s + row.build_s:.1f} s",
            str(row.wrong),
            style="" if row.sound else "red",
        )
    figures = [{**msgspec.to_builtins(row), "sound": row.sound} for row in rows]
    return figures, [shown], all(row.sound for row in rows)


def workload_of(shape: ContentShape, events: int = _EVENTS) -> MatchingWorkload:
    """The subscriptions of PubliyPrime's measurements, and as many publications."""
    import numpy as np

    from quorumcast.bench.matching import MatchingWorkload
    from quorumcast.pipeline.workload.content import ContentGenerator

    made = ContentGenerator(shape, events=events, nodes=1, seed=1, rate=1.0)
    batch = made.event_columns(np.arange(events))
    name = f"{shape.name.upper().replace('DT', 'DT-')}: {shape.subscriptions:,} predicates"
    return MatchingWorkload(
        name, made.predicates(), batch, sum(batch.column("matches").to_pylist())
    )
