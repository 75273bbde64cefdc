"""The audit of one simulated run without Spark: observations as the job adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from quorumcast.pipeline.audit.charges import Feature
from quorumcast.watch.observation import DOWN, LOST, Observation

#: Parts of a run, as in `pipeline.audit.job`.
PARTS = 8


def features_of(rows: Sequence[Observation], began: int | None = None) -> list[Feature]:
    """Features of the rows of all observers; each row is one, with the part of the run it is in."""
    spans: dict[str, tuple[int, int]] = {}
    for row in rows:
        first, last = spans.get(row.observer, (row.t_ms, row.until_ms))
        spans[row.observer] = (min(first, row.t_ms), max(last, row.until_ms))
    begin = median_low(first for first, _ in spans.values()) if began is None else began
    whole = median_low(last for _, last in spans.values()) - begin + 1
    return [
        _feature(row, min(max(PARTS * (row.t_ms - begin) // whole, 0), PARTS - 1))
        for row in rows
        if row.kind != "link" or row.reason in (DOWN, LOST)
    ]


def _feature(row: Observation, part: int) -> Feature:
    fields = [name for name in Feature.__struct_fields__ if hasattr(row, name)]
    bucket = row.number if row.kind in ("came", "answered") else 0
    return Feature(**{name: getattr(row, name) for name in fields}, slot=part, bucket=bucket)
