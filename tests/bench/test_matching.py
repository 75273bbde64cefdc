"""The suite `matching`: what is measured, what it is compared with, and what counts as sound."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from quorumcast.bench.matching import (
    MatchingRow,
    MatchingWorkload,
    measure,
    run_matching,
    ten_matches,
)
from quorumcast.cli.lab.matching import workload_of
from quorumcast.matching.indexing.index import Index, Matched
from quorumcast.pipeline.workload.content import ContentShape

SMALL = ContentShape(name="dt1", subscriptions=300, density=0.09, predicates=3)


def test_matching_suite_measures_all_workloads_and_finds_nothing_wrong() -> None:
    stages: list[str] = []
    rows = run_matching([lambda: workload_of(SMALL, 200)], stages.append, sizes=(40, 80))
    assert [row.workload for row in rows] == [
        *("40 predicates", "80 predicates", "DT-1: 300 predicates"),
    ]
    assert [row.predicates for row in rows] == [40, 80, 300]
    assert [row.wrong for row in rows] == [0, 0, 0]
    assert rows[0].growth == 1.0
    assert rows[2].growth is None
    assert rows[2].matches_per_event == pytest.approx(0.09 * 300, rel=0.1)
    assert len(stages) == 9
    for row in rows:
        assert row.events_per_s > 0
        assert row.matched_per_s >= row.events_per_s
        assert row.single_per_s > 0


@pytest.mark.parametrize("predicates", [1000, 3000])
def test_matching_suite_events_match_ten(predicates: int) -> None:
    """As often as the workload says, by a way that knows no predicates."""
    workload = ten_matches(predicates, events=500)
    assert measure(workload, lambda stage: None).matches_per_event == pytest.approx(10, rel=0.1)


def test_matching_suite_notices_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("n", pa.int64())])
    events = pa.RecordBatch.from_pylist([{"n": n} for n in range(9)], schema=schema)
    workload = MatchingWorkload("small", ["n < 5", "n = 3"], events, matches=6)
    quiet = measure(workload, lambda stage: None)
    assert (quiet.wrong, quiet.matches_per_event) == (0, 0.67)
    assert measure(msgspec.structs.replace(workload, matches=7), lambda stage: None).wrong == 1
    monkeypatch.setattr(Index, "match", lambda self, batch: Matched(2, []))
    wrong = measure(workload, lambda stage: None)
    assert wrong.wrong == 6 + 2
    assert not wrong.sound


ROW = MatchingRow(
    workload="w",
    predicates=10_000,
    matches_per_event=10.0,
    parse_s=1.0,
    build_s=1.0,
    matched_per_s=1.0,
    events_per_s=1.0,
    single_per_s=1.0,
    plain_per_s=1.0,
    speedup=200.0,
    growth=1.0,
)


@pytest.mark.parametrize(
    ("changed", "sound"),
    [
        ({}, True),
        ({"growth": 3.1}, False),
        ({"speedup": 99.0}, False),
        ({"speedup": 99.0, "predicates": 1_000}, True),
        ({"speedup": 2.0, "growth": None}, True),
        ({"wrong": 1}, False),
    ],
)
def test_matching_suite_beyond_a_budget_is_not_sound(
    changed: dict[str, object], sound: bool
) -> None:
    assert msgspec.structs.replace(ROW, **changed).sound is sound
