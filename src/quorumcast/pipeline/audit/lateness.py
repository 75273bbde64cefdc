"""Lateness: how much later than others a node sends its messages. It is never a charge.

No observer can tell a distant node from one that delays messages. So the audit only reports the
median lateness of the slowest node beside that of the next slowest, per observer and message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from quorumcast.pipeline.audit.charges import Case
from quorumcast.watch.turnout import BUCKETS

#: Least number of messages for a median lateness.
MIN_TIMED = 10


class Lateness(msgspec.Struct, frozen=True):
    """The lateness of one node with one type of message at one observer."""

    node: str
    observer: str
    message: str
    #: The buckets of the median of this node, and of the next slowest node.
    late_ms: int
    others_ms: int
    count: int
    t_ms: int
    until_ms: int

    @property
    def text(self) -> str:
        """The measurement in words; the last bucket has no upper bound."""
        late = [f"{ms} ms" if ms in BUCKETS[:-1] else f"more than {BUCKETS[-2]} ms"
                for ms in (self.late_ms, self.others_ms)]  # fmt: skip
        return f"{self.message}: half come within {late[0]}, of the next slowest within {late[1]}"


def lateness(case: Case) -> Iterator[Lateness]:
    """Yield the slowest node per observer and message, if it is slower than all others."""
    histograms: dict[tuple[str, str], dict[str, Counter[int]]] = {}
    spans: dict[tuple[str, str, str], tuple[int, int]] = {}
    for f in case.features:
        if f.kind == "came" and f.bucket:
            by_node = histograms.setdefault((f.observer, f.message), {})
            by_node.setdefault(f.accused, Counter())[f.bucket] += f.count
            first, last = spans.get((f.observer, f.message, f.accused), (f.t_ms, f.until_ms))
            span = (min(first, f.t_ms), max(last, f.until_ms))
            spans[f.observer, f.message, f.accused] = span
    for (observer, message), by_node in histograms.items():
        timed = {n: _median(c) for n, c in by_node.items() if c.total() >= MIN_TIMED}
        if len(timed) < 2:
            continue
        *_, next_ms, latest_ms = sorted(timed.values())
        for node, late_ms in timed.items():
            if late_ms == latest_ms > next_ms:
                count, span = by_node[node].total(), spans[observer, message, node]
                yield Lateness(node, observer, message, late_ms, next_ms, count, *span)


def _median(histogram: Counter[int]) -> int:
    """Return the bucket that contains the median."""
    ordered = sorted(histogram)
    reached = accumulate(histogram[bound] for bound in ordered)
    half = histogram.total() / 2
    return next(bound for bound, so_far in zip(ordered, reached, strict=True) if so_far >= half)
