"""The suite `matching`: many predicates on events, in one process and without a cell.

Each line is a workload. Its events are matched in batches of 1,000 and one at a time, by the index
(`matching.indexing`) and plainly: by the typed kernels of each predicate, which is the twin that
the index must equal. The plain way is measured on a sample of the predicates and scaled up. Both
take turns within one run, and processor time counts, so that other load does not change their
ratio.

Three workloads have 1,000, 10,000 and 100,000 predicates of which an event matches ten. They have
budgets: what an event costs with the most predicates beside what it costs with the fewest
(*growth*), and the plain way beside the index (*speed-up*), from 10,000 predicates on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast.bench.run import Progress
from quorumcast.matching.columns import Columns
from quorumcast.matching.filter import Filter, make_filter
from quorumcast.matching.indexing.index import Index

SIZES = (1_000, 10_000, 100_000)
#: Events of a batch, and those that are matched one at a time in a round.
BATCH, SINGLE = 1_000, 50
ROUNDS = 7
#: Predicates that are evaluated plainly in each round.
SAMPLE = 50
#: The budgets.
MOST_GROWTH = 3.0
LEAST_SPEEDUP = 100.0
#: Predicates from which on the speed-up is judged.
JUDGED = 10_000

_COLUMNS = pa.schema(
    [
        ("symbol", pa.string()),
        ("account", pa.int64()),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
    ]
)


class MatchingWorkload(msgspec.Struct, frozen=True):
    """Predicates, and a batch of events."""

    name: str
    predicates: Sequence[str]
    events: pa.RecordBatch
    #: How many pairs of predicate and event match, if that is known otherwise.
    matches: int | None = None


class MatchingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One workload."""

    workload: str
    predicates: int
    matches_per_event: float
    parse_s: float
    build_s: float
    #: In batches: until it is known what matches, and until the matches are listed as well.
    matched_per_s: float
    events_per_s: float
    single_per_s: float
    plain_per_s: float
    #: The plain way beside the index, in batches.
    speedup: float
    #: Processor time per event beside that of the first workload of its kind.
    growth: float | None = None
    #: Predicates of the sample for which the index found other events, and matches that are missing
    #: or too many where their number is known.
    wrong: int = 0

    @property
    def sound(self) -> bool:
        """Whether the index was right, and the ratios are within their budgets."""
        fast = self.growth is None or self.predicates < JUDGED or self.speedup >= LEAST_SPEEDUP
        return not self.wrong and fast and (self.growth or 0) <= MOST_GROWTH


def ten_matches(predicates: int, events: int = BATCH, seed: int = 1) -> MatchingWorkload:
    """Half of the predicates name a symbol and prices, others an account, or a range of prices."""
    draw = random.Random(seed)
    keys = max(1, predicates // 20)
    texts = []
    for _ in range(predicates):
        kind, low = draw.random(), draw.uniform(0, 50)
        if kind < 0.5:
            symbol = f"symbol = 'S{draw.randrange(keys)}'"
            texts.append(f"{symbol} AND price >= {low:.3f} AND price <= {low + 50:.3f}")
        elif kind < 0.8:
            account = f"account = {draw.randrange(keys)}"
            texts.append(f"{account} AND quantity >= {draw.randrange(1000)}")
        else:
            # Two of ten matches, which a fifth of the predicates must give.
            texts.append(f"price > {2 * low:.5f} AND price < {2 * low + 1000 / predicates:.5f}")
    rows = np.random.default_rng(seed)
    symbols = [f"S{number}" for number in rows.integers(0, keys, events).tolist()]
    columns = [
        pa.array(symbols),
        pa.array(rows.integers(0, keys, events)),
        pa.array(rows.random(events) * 100),
        pa.array(rows.integers(0, 1000, events).astype(np.int32)),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)
    return MatchingWorkload(f"{predicates:,} predicates", texts, batch)


def run_matching(
    others: Sequence[Callable[[], MatchingWorkload]] = (),
    progress: Progress = lambda stage: None,
    sizes: Sequence[int] = SIZES,
) -> list[MatchingRow]:
    """Workloads of ten matches per event, and others, which have no budgets."""
    rows: list[MatchingRow] = []
    for size in sizes:
        row = measure(ten_matches(size), progress)
        first = rows[0] if rows else row
        growth = round(first.events_per_s / row.events_per_s, 2)
        rows.append(msgspec.structs.replace(row, growth=growth))
    return rows + [measure(make(), progress) for make in others]


def measure(workload: MatchingWorkload, progress: Progress) -> MatchingRow:
    """All figures of one workload."""
    progress(f"{workload.name}: reading them")
    start = time.process_time()
    columns = Columns(workload.events.schema)
    filters = [make_filter((text,), columns, "the predicate") for text in workload.predicates]
    parsed = time.process_time()
    progress(f"{workload.name}: making the index")
    index = Index(filters)
    built = time.process_time()
    progress(f"{workload.name}: measuring")
    events = workload.events
    rounds = [_round(index, filters, events, number) for number in range(ROUNDS)]
    matched, listed, single, plain = (median(times) for times in zip(*rounds, strict=True))
    found, wrong = _check(index, filters, workload)
    return MatchingRow(
        workload=workload.name,
        predicates=len(filters),
        matches_per_event=round(found / events.num_rows, 2),
        parse_s=round(parsed - start, 2),
        build_s=round(built - parsed, 2),
        matched_per_s=round(1 / matched),
        events_per_s=round(1 / listed),
        single_per_s=round(1 / single),
        plain_per_s=round(1 / plain, 1),
        speedup=round(median(times[3] / times[1] for times in rounds), 1),
        wrong=wrong,
    )


def _round(
    index: Index, filters: Sequence[Filter], events: pa.RecordBatch, number: int
) -> tuple[float, float, float, float]:
    """Processor seconds per event: matched, matched and listed, one at a time, and plainly."""
    start = time.process_time()
    matched = index.match(events)
    known = time.process_time()
    matched.pairs()
    listed = time.process_time()
    sample = _sample(filters, number)
    for one in sample:
        one.rows(events)
    plain = time.process_time()
    alone = [events.slice(row, 1) for row in range(min(SINGLE, events.num_rows))]
    begin = time.process_time()
    for event in alone:
        index.match(event).pairs()
    single = time.process_time() - begin
    scale = len(filters) / len(sample) / events.num_rows
    each = 1 / events.num_rows
    return (
        (known - start) * each,
        (listed - start) * each,
        single / len(alone),
        (plain - listed) * scale,
    )


def _sample(filters: Sequence[Filter], number: int) -> Sequence[Filter]:
    """Predicates from all over the workload, other ones for each number."""
    step = max(1, len(filters) // SAMPLE)
    return [filters[(place + number) % len(filters)] for place in range(0, len(filters), step)]


def _check(index: Index, filters: Sequence[Filter], workload: MatchingWorkload) -> tuple[int, int]:
    """How many pairs the index finds, and how much is wrong with them."""
    found, rows = index.match(workload.events).pairs()
    wrong = 0 if workload.matches is None else abs(len(found) - workload.matches)
    for number in range(0, len(filters), max(1, len(filters) // SAMPLE)):
        first, last = np.searchsorted(found, (number, number + 1))
        wrong += rows[first:last].tolist() != filters[number].rows(workload.events).tolist()
    return len(found), wrong
