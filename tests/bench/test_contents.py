"""Workloads of predicates: what must arrive, what is wrong with what arrives, and a replay."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quorumcast.bench.plan import BenchPlan
from quorumcast.bench.predicates.replay import ContentReport, run_content_replay
from quorumcast.bench.predicates.replayer import ContentCheck, ContentEvents, publications
from quorumcast.bench.predicates.workload import (
    EVERYTHING,
    SELECTIVE,
    ContentWorkload,
    matches,
    write_rows,
)
from quorumcast.bench.replay import ReplayPlan
from quorumcast.bench.workload import BY_CONTENT, WorkloadHeader, read_header, write_header
from quorumcast.cli.lab.replay import make
from quorumcast.cli.main import main
from quorumcast.core.errors import UsageError

ROWS = pa.RecordBatch.from_pylist(
    [
        {"symbol": f"S{number % 3}", "price": number / 4, "quantity": number % 7}
        for number in range(40)
    ],
    pa.schema([("symbol", pa.string()), ("price", pa.float64()), ("quantity", pa.int32())]),
)
WHERE = [
    "symbol = 'S1' AND price >= 2.25",
    "quantity <= 1",
    "quantity = 3 and price < 5",
    "price > 9",
]


@pytest.fixture
def workload(tmp_path: Path) -> ContentWorkload:
    write_rows(tmp_path, "rows", ROWS, WHERE, 2)
    return ContentWorkload(tmp_path)


def test_readers_must_get_what_a_person_would_select(workload: ContentWorkload) -> None:
    rows = ROWS.to_pylist()
    person = [
        [row["symbol"] == "S1" and row["price"] >= 2.25 for row in rows],
        [row["quantity"] <= 1 for row in rows],
        [row["quantity"] == 3 and row["price"] < 5 for row in rows],
        [row["price"] > 9 for row in rows],
    ]
    readers = workload.readers(joined=False)
    # By node: node-1 has the first and the third predicate.
    assert [reader.node for reader in readers[:4]] == ["node-1", "node-1", "node-2", "node-2"]
    found = [wanted.tolist() for wanted in workload.expected(readers)]
    assert found[:4] == [person[0], person[2], person[1], person[3]]
    assert [reader.node for reader in readers[4:]] == [SELECTIVE, EVERYTHING]
    assert (sum(found[4]), sum(found[5])) == (4, 40)

    joined = workload.readers(joined=True)
    assert [reader.where for reader in joined[:2]] == [(WHERE[0], WHERE[2]), (WHERE[1], WHERE[3])]
    found = [wanted.tolist() for wanted in workload.expected(joined)]
    assert found[0] == [a or b for a, b in zip(person[0], person[2], strict=True)]


@pytest.mark.parametrize(
    "predicate", ["price", "price > 3 or price < 1", "size > 3", "NOT price > 3", "price > 'a' b"]
)
def test_predicate_of_another_form_is_refused(predicate: str) -> None:
    with pytest.raises(UsageError, match="cannot be replayed: a predicate of a workload joins"):
        matches(predicate, {"price": np.array([1.0])})


def test_checker_counts_what_is_lost_repeated_altered_and_irrelevant(
    workload: ContentWorkload,
) -> None:
    events = ContentEvents(workload)
    wanted = np.zeros(40, np.bool_)
    wanted[[0, 2, 6, 8, 9]] = True  # node-2 published 9, node-1 all others of these

    def check() -> ContentCheck:
        return ContentCheck(np.packbits(wanted, bitorder="little"), events)

    def counts(found: ContentCheck) -> tuple[int, int, int, int, int]:
        wrong = (found.duplicated, found.altered, found.irrelevant, found.disordered)
        return (found.accepted, *wrong)

    def rows(*numbers: int) -> pa.RecordBatch:
        return events.rows(np.array(numbers), 7)

    right = check()
    assert right.take("node-1", rows(0, 2, 6)) == 7
    right.take("node-2", rows(9))
    right.take("node-1", rows(8))
    assert counts(right) == (5, 0, 0, 0, 0)
    right.take("node-1", rows(8))
    assert counts(right) == (5, 1, 0, 0, 0)

    twice = check()
    twice.take("node-1", rows(0, 0, 2))
    assert counts(twice) == (2, 1, 0, 0, 0)

    wrong = check()
    wrong.take("node-1", rows(2, 4, 6))  # nobody asked for 4
    wrong.take("node-1", rows(0))  # too late
    wrong.take("node-1", rows(9))  # of node-2
    assert counts(wrong) == (3, 0, 1, 1, 1)

    for column, value in ((1, 8), (0, 2), (3, "S9"), (4, 1.5), (5, -3)):
        batch = rows(0, 2)
        changed = batch.column(column).to_pylist()
        changed[0] = value
        kind = batch.schema.field(column).type
        columns = [*batch.columns]
        columns[column] = pa.array(changed, kind)
        altered = check()
        altered.take("node-1", pa.RecordBatch.from_arrays(columns, schema=batch.schema))
        assert counts(altered) == (1, 0, 1, 0, 0)


def test_publishers_fill_their_batches_in_the_order_of_their_events() -> None:
    found = [
        (name, rows.tolist()) for name, rows in publications(["a", "b", "a", "a", "b", "a"], 2)
    ]
    assert found == [("a", [0, 2]), ("b", [1, 4]), ("a", [3, 5])]
    assert [rows.tolist() for _, rows in publications([*"aba"], 2)] == [[0, 2], [1]]


@pytest.mark.parametrize(("name", "share"), [("dt1", 0.09), ("dt2", 0.53)])
def test_made_workload_matches_as_often_as_its_own_matcher_counted(
    name: str, share: float, tmp_path: Path
) -> None:
    make(name, tmp_path, events=60, predicates=300)
    workload = ContentWorkload(tmp_path)
    found = sum(
        int(wanted.sum()) for wanted in workload.expected(workload.readers(joined=False)[:-2])
    )
    assert found == workload.counted == read_header(tmp_path).deliveries
    assert found / 60 / 300 == pytest.approx(share, rel=0.1)
    assert ContentWorkload(tmp_path, events=20).counted < found  # type: ignore[operator]
    assert ContentWorkload(tmp_path, predicates=299).counted is None


def test_workload_whose_files_do_not_belong_together_is_refused(tmp_path: Path) -> None:
    make("dt1", tmp_path / "a", events=30, predicates=100)
    make("dt1", tmp_path / "b", events=30, predicates=120)
    (tmp_path / "b" / "subscriptions" / "part-00000.parquet").rename(
        tmp_path / "a" / "subscriptions" / "part-00000.parquet"
    )
    with pytest.raises(UsageError, match="its files do not belong together"):
        run_content_replay(ReplayPlan(workload=str(tmp_path / "a")))


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        (BenchPlan(policy="chain"), "the policy 'chain' has no predicates"),
        (BenchPlan(trace="there"), "--trace is for workloads of topics"),
        (BenchPlan(fault="crash"), "'crash' is not for workloads"),
    ],
)
def test_replay_that_cannot_be_is_refused(cell: BenchPlan, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run_content_replay(ReplayPlan(workload=".", cell=cell))


def test_options_for_predicates_are_refused_with_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = WorkloadHeader(
        name="x", seed=1, nodes=1, topics=1, events=0, subscriptions=0, deliveries=0
    )
    write_header(tmp_path, header)
    assert main(["bench", "--workload", str(tmp_path), "--joined"]) == 2
    assert "--predicates and --joined are for workloads of predicates" in capsys.readouterr().err
    assert header.kind != BY_CONTENT


@pytest.mark.runtime
def test_replay_from_the_command_line_delivers_exactly_what_matches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["bench", "--workload", "dt1", "--predicates", "60", "--events", "300"]
    options = [
        "--processes",
        "1",
        "--batch",
        "10",
        "--policy",
        "direct",
        "--fault",
        "omit-rows",
        "--json",
    ]
    assert main([*command, *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["published"], report["subscriptions"], report["nodes"]) == (300, 60, 20)
    assert report["delivered"] == report["expected"] > 1000
    assert (report["lost"], report["duplicated"], report["altered"]) == (0, 0, 0)
    assert (report["irrelevant"], report["disordered"]) == (0, 0)
    assert report["saved"]["rows_share"] == pytest.approx(0.09, abs=0.02)
    assert min(report["saved"]["bytes"], report["saved"]["bytes_of_everything"]) > 0


@pytest.mark.runtime
def test_joined_replay_delivers_rows_that_match_any_predicate_of_a_node(tmp_path: Path) -> None:
    make("ten", tmp_path, events=600, predicates=200)
    plan = ReplayPlan(
        workload=str(tmp_path),
        cell=BenchPlan(policy="total", batch=30),
        joined=True,
        processes=1,
    )
    report: ContentReport = run_content_replay(plan)
    assert (report.subscriptions, report.predicates, report.publications) == (20, 200, 20)
    assert report.delivered == report.expected > 0
    assert report.lost == report.irrelevant == report.altered == report.duplicated == 0
    assert report.saved.bytes_share is not None
