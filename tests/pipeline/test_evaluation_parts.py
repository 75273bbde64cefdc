"""Parts of the evaluation that need no Spark: finding traces, histograms, documents, the report."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.synthetic_traces import SCHEMA, synthesize
from typer.testing import CliRunner

from quorumcast.charts.formatting import amount, percent, times
from quorumcast.charts.svg import Bar, Series, bars, lines, ticks
from quorumcast.cli.main import command_tree
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.evaluation.figures import DELIVERY
from quorumcast.pipeline.evaluation.histogram import ACCURACY, bucket, middle, percentile
from quorumcast.pipeline.evaluation.model import Evaluation, ScenarioResult, Spread
from quorumcast.pipeline.evaluation.page import page
from quorumcast.pipeline.evaluation.runs import Trace, find_traces
from quorumcast.pipeline.evaluation.summary import scenario_of, summarize
from quorumcast.traces.form import (
    Header,
    Listening,
    Parameter,
    ProcessUse,
    read_header,
    write_header,
)

# ------------------------------------------------------------------ finding traces


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    synthesize(tmp_path / "t", rows=500)
    return tmp_path / "t"


def refused(*places: Path) -> str:
    with pytest.raises(UsageError) as caught:
        find_traces(places)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_traces_are_found_below_a_directory_and_once(trace: Path) -> None:
    (found,) = find_traces([trace.parent, trace])
    assert found.header == read_header(trace)
    assert found.rows == sum(pq.read_metadata(path).num_rows for path in trace.glob("*.parquet"))


def test_directory_that_is_not_there_or_empty_is_one_sentence(tmp_path: Path) -> None:
    assert "is no directory" in refused(tmp_path / "nowhere")
    assert "holds no trace" in refused(tmp_path)


def test_run_that_was_cut_short_is_one_sentence(trace: Path) -> None:
    write_header(trace, msgspec.structs.replace(read_header(trace), from_ns=0, upto_ns=0))
    assert "did not come to its end: run it again" in refused(trace)


def test_cell_without_a_policy_is_one_sentence(trace: Path) -> None:
    write_header(trace, msgspec.structs.replace(read_header(trace), parameters={"brokers": 4}))
    assert "does not describe a cell" in refused(trace)


def test_trace_without_files_or_rows_is_one_sentence(trace: Path) -> None:
    for path in trace.glob("*.parquet"):
        path.unlink()
    assert "no Parquet file" in refused(trace)
    pq.write_table(SCHEMA.empty_table(), trace / "b.parquet")
    assert "is empty" in refused(trace)


def test_damaged_file_is_one_sentence(trace: Path) -> None:
    path = trace / "subscriber-1.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert re.search(
        r"subscriber-1\.parquet is damaged \(.+\): trace that run again", refused(trace)
    )


def test_file_of_something_else_is_one_sentence(trace: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), trace / "x.parquet")
    assert "does not have the columns of a trace" in refused(trace)


def test_file_of_another_run_is_one_sentence(trace: Path, tmp_path: Path) -> None:
    synthesize(tmp_path / "other", rows=500, run="another")
    (tmp_path / "other" / "subscriber-1.parquet").rename(trace / "stray.parquet")
    assert "stray.parquet belongs to another run" in refused(trace)


def test_copy_of_a_trace_is_one_sentence(trace: Path, tmp_path: Path) -> None:
    synthesize(tmp_path / "copy", rows=500)
    assert "are traces of one and the same run: name one of them" in refused(tmp_path)


def test_report_that_cannot_be_written_is_refused_before_the_work(
    trace: Path, tmp_path: Path
) -> None:
    output = str(tmp_path / "nowhere" / "report.html")
    arguments = ["pipeline", "evaluate", str(trace), "--output", output]
    result = CliRunner().invoke(command_tree(), arguments)
    assert result.exit_code != 0
    assert "cannot be written: name a file in a directory that exists" in str(result.exception)


# --------------------------------------------------------------------- histograms


@given(st.integers(0, 2**62))
def test_bucket_holds_its_values_and_its_middle_is_near_all_of_them(value: int) -> None:
    lowest = bucket(value)
    assert bucket(lowest) == lowest <= value
    assert abs(middle(lowest) - value) <= value * ACCURACY


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=300), st.floats(0.001, 1.0))
def test_percentile_of_buckets_is_that_of_values_within_the_accuracy(
    values: list[int], share: float
) -> None:
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket(value)] = counts.get(bucket(value), 0) + 1
    exact = np.quantile(values, share, method="inverted_cdf")
    assert percentile(counts, share) == pytest.approx(exact, rel=ACCURACY * 1.0001)


def test_percentile_of_nothing_is_nothing() -> None:
    assert percentile({}, 0.5) is None


# ------------------------------------------------------------- words and pictures


def test_figures_keep_three_digits_and_never_round_to_all_or_nothing() -> None:
    assert [amount(v) for v in (None, 0.1234, 1.234, 12.34, 1234.5, 7)] == [
        "–", "0.123", "1.23", "12.3", "1,234", "7",
    ]  # fmt: skip
    assert [percent(v) for v in (None, 0.0, 1.0, 0.999999, 0.0000001, 0.5, 1.07)] == [
        "–", "0%", "100%", "99.99%", "0.01%", "50.00%", "107.00%",
    ]  # fmt: skip
    assert times(2.5) == "× 2.50"


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_lie_in_the_range_and_are_few(least: float, span: float) -> None:
    found = ticks(least, least + span)
    assert 1 <= len(found) <= 7
    assert all(least - span * 1e-6 <= tick <= least + span * (1 + 1e-6) for tick in found)


def test_plots_are_well_formed_whatever_the_names_and_values() -> None:
    odd = '<script>"&'
    pictures = [
        lines([Series(odd, [(1.0, 0.0)])], x_label=odd, y_label=odd),
        lines(
            [Series("a", [(0.5, 1.0), (700.0, 3.0)])], x_label="x", y_label="y", logarithmic=True
        ),
        bars([Bar(odd, 0.0, odd, 9, 5.0), Bar("x" * 99, 3.0)], label=odd),
    ]
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg")
        assert not [element for element in root.iter() if element.tag.endswith("script")]
        assert "nan" not in picture
    assert lines([], x_label="", y_label="") == bars([], label="") == ""


# ---------------------------------------------------------------------- scenarios

HEADER = Header(
    run="r", source="bench", version="0", system="cell", publishers=("publisher-1",),
    parameters={
        "policy": "ab", "brokers": 4, "alpha": 0, "publishers": 1, "batch": 1, "f": 1,
        "subscribers": 1, "channels": 1, "size": 56,
    },
    upto_ns=10**9,
)  # fmt: skip


def header_for(*, source: str = "bench", fault: str = "", **parameters: Parameter) -> Header:
    changed = {**HEADER.parameters, **parameters}
    return msgspec.structs.replace(HEADER, source=source, fault=fault, parameters=changed)


def line_for(**changes: Any) -> ScenarioResult:
    """A line without any rows."""
    return summarize([Trace(Path("x"), header_for(**changes), 1)], []).lines[0]


def test_scenario_leaves_out_what_a_seed_drew() -> None:
    one = msgspec.structs.replace(
        HEADER, source="sim", parameters={"policy": "ab"}, drawn={"f": 2}, fault="drop", seed=1
    )
    other = msgspec.structs.replace(one, drawn={"f": 1}, seed=2)
    assert scenario_of(one) == scenario_of(other)
    assert hash(scenario_of(one)) == hash(scenario_of(other))
    assert scenario_of(HEADER) != scenario_of(header_for(batch=100))


def test_scenario_is_named_by_the_words_of_a_cell_or_by_the_parameters_of_a_system() -> None:
    cell = line_for(alpha=100, batch=0, subscribers=2, rate=50.0, tls=True, fault="drop")
    assert cell.name == "ab, α=100, n=4, 2 subscribers, natural batches, 50/s, tls, drop"
    header = Header(
        run="r", source="sim", version="0", system="ring", fault="mute", upto_ns=1,
        parameters={"nodes": 5, "speed": 0.5, "fair": True, "slow": False, "shape": "round"},
    )  # fmt: skip
    (ring,) = summarize([Trace(Path("x"), header, 1)], []).lines
    assert ring.name == "simulated ring, nodes=5, speed=0.5, fair, shape=round, mute"


def test_scenarios_are_in_the_order_of_their_parameters_whatever_these_are() -> None:
    odd: tuple[dict[str, Parameter], ...] = ({"n": "many"}, {"n": 7}, {"n": 4}, {"m": 1}, {})
    headers = [header_for(batch=100), header_for(), header_for(fault="drop")]
    headers += [msgspec.structs.replace(HEADER, system="ring", parameters=each) for each in odd]
    lines_ = summarize([Trace(Path("x"), header, 1) for header in headers], []).lines
    assert [line.name for line in lines_] == [
        "ab, n=4", "ab, n=4, drop", "ab, n=4, batches of 100",
        "ring", "ring, m=1", "ring, n=4", "ring, n=7", "ring, n=many",
    ]  # fmt: skip


def test_freeman_is_beside_his_own_scenarios_and_no_others() -> None:
    figures = {(row.figure, row.theirs) for row in line_for().beside}
    assert figures == {
        ("throughput", 11_000), ("latency, mean", 0.7), ("latency, deviation", 1.0),
        ("latency, 99 %", 2.4),
    }  # fmt: skip
    assert [row.theirs for row in line_for(policy="ab", brokers=7, f=2).beside] == [7400]
    for other in ({"size": 57}, {"batch": 0}, {"fault": "drop"}, {"channels": 4}, {"rate": 5.0}):
        assert line_for(**other).beside == []
    assert line_for(source="sim").beside == []
    elsewhere = msgspec.structs.replace(HEADER, system="ring")
    assert summarize([Trace(Path("x"), elsewhere, 1)], []).lines[0].beside == []


def test_fit_broker_is_beside_its_own_tests_and_no_others() -> None:
    same = {"policy": "total", "channels": 10, "subscribers": 2, "size": 253}
    (row,) = line_for(**same).beside
    assert (row.document, row.theirs) == ("FIT-Broker, normal: Byzantine, ordered", 4201)
    (row,) = line_for(**same, fault="crash-recover").beside
    assert row.theirs == 3960
    (row,) = line_for(**same, brokers=7, f=2).beside
    assert row.theirs == 2667
    (row,) = line_for(**same, batch=100).beside
    assert row.theirs == 292_397
    assert line_for(**{**same, "subscribers": 3}).beside == []


def test_run_in_which_nothing_arrived_has_dashes_and_no_figures() -> None:
    line = line_for()
    assert (line.owed, line.delivered, line.coverage, line.latency.count) == (0, 0, None, 0)
    assert line.publications_per_s == 0.0


def test_coverage_counts_from_what_was_published_and_from_what_was_injected() -> None:
    header = msgspec.structs.replace(header_for(batch=10), events=400)
    row = {
        "part": DELIVERY, "run": header.run, "channel": "c", "node": "s", "owed": 30,
        "delivered": 24, "times": 24, "by_history": 0, "accepted": 24, "bytes": 0, "count": 0,
        "hops": 0,
    }  # fmt: skip
    (line,) = summarize([Trace(Path("x"), header, 1)], [row]).lines
    # 30 publications of the 40 that the application injected.
    assert (line.coverage, line.coverage_of_injected) == (0.8, 0.6)
    natural = msgspec.structs.replace(header_for(batch=0), events=400)
    (line,) = summarize([Trace(Path("x"), natural, 1)], [row]).lines
    assert (line.coverage, line.coverage_of_injected) == (0.8, None)


def test_processes_are_shown_by_node_and_spread_over_all_runs() -> None:
    runs = [
        msgspec.structs.replace(HEADER, processes={"b1": ProcessUse("broker", cpu, 0.5, memory)})
        for cpu, memory in ((1.5, 70.0), (2.5, 90.0))
    ]
    listening = [msgspec.structs.replace(run, listening=(Listening("b1", "c"),)) for run in runs]
    (line,) = summarize([Trace(Path("x"), run, 1) for run in listening], []).lines
    (node,) = line.nodes
    assert (node.cpu_s, node.memory_mb) == (4.0, 90.0)
    assert line.memory_by_node == Spread(160.0, 80.0, 10.0, 90.0, 90.0)
    assert line_for().memory_by_node is None


def test_run_over_slow_links_has_them_in_its_name_and_no_paper_beside() -> None:
    line = line_for(weather="20 ms")
    assert line.name == "ab, n=4, 20 ms"
    assert line.beside == []


class Looking(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path", "circle", "rect"):
            self.open.append(tag)
        names = {name for name, _ in attrs}
        if tag in ("script", "link", "img", "iframe") or names & {"src", "href", "onclick"}:
            self.outside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle", "rect"):
            assert self.open.pop() == tag


def test_report_needs_nothing_else_and_closes_what_it_opens() -> None:
    lines_ = [line_for(), line_for(policy="brb"), line_for(policy="<b>", fault="drop")]
    found = Evaluation(traces=3, rows=3, accuracy=ACCURACY, lines=lines_)
    text = page(found)
    looking = Looking()
    looking.feed(text)
    assert looking.open == []
    assert looking.outside == []
    assert "url(" not in text
    assert "<b>" not in text
    assert "All scenarios: n=4." in text
