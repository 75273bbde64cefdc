"""Lateness: how much later than the others a node speaks. A measurement, and never a charge.

A correct node far away is late with everything, and no observer can tell distance from delay. So
the audit shows for each node how late it was, compared with the next slowest of its kind towards
the same observer, and draws no conclusion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from quorumcast.pipeline.audit.charges import Case
from quorumcast.pipeline.audit.thresholds import TIMED_AT_LEAST
from quorumcast.watch.turnout import BUCKETS


class Lateness(msgspec.Struct, frozen=True):
    """How late one node was with one kind of message towards one observer."""

    node: str
    observer: str
    message: str
    #: Upper bounds of the classes of the medians: of this node, and of the next slowest one.
    late_ms: int
    others_ms: int
    count: int
    t_ms: int
    until_ms: int

    @property
    def text(self) -> str:
        """The measurement in words; the last class has no upper bound."""
        late = [f"{ms} ms" if ms in BUCKETS[:-1] else f"more than {BUCKETS[-2]} ms"
                for ms in (self.late_ms, self.others_ms)]  # fmt: skip
        return f"{self.message}: half come within {late[0]}, of the next slowest within {late[1]}"


def lateness(case: Case) -> Iterator[Lateness]:
    """Every node that is later than all others of its kind, towards each observer."""
    classes: dict[tuple[str, str], dict[str, Counter[int]]] = {}
    spans: dict[tuple[str, str, str], tuple[int, int]] = {}
    for f in case.features:
        if f.kind == "came" and f.bucket:
            by_node = classes.setdefault((f.observer, f.message), {})
            by_node.setdefault(f.accused, Counter())[f.bucket] += f.count
            first, last = spans.get((f.observer, f.message, f.accused), (f.t_ms, f.until_ms))
            span = (min(first, f.t_ms), max(last, f.until_ms))
            spans[f.observer, f.message, f.accused] = span
    for (observer, message), by_node in classes.items():
        timed = {n: _median(c) for n, c in by_node.items() if c.total() >= TIMED_AT_LEAST}
        if len(timed) < 2:
            continue
        *_, next_ms, latest_ms = sorted(timed.values())
        for node, late_ms in timed.items():
            if late_ms == latest_ms > next_ms:
                count, span = by_node[node].total(), spans[observer, message, node]
                yield Lateness(node, observer, message, late_ms, next_ms, count, *span)


def _median(classes: Counter[int]) -> int:
    """The class in which half of all are reached."""
    ordered = sorted(classes)
    reached = accumulate(classes[bound] for bound in ordered)
    half = classes.total() / 2
    return next(bound for bound, so_far in zip(ordered, reached, strict=True) if so_far >= half)
