"""Figures of evaluations, equal to what a plain computation makes of the same rows."""

import json
import math
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.synthetic_traces import synthesize
from typer.testing import CliRunner

from quorumcast.cli.main import command_tree
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.pipeline.evaluation import figures
from quorumcast.pipeline.evaluation.histogram import ACCURACY
from quorumcast.pipeline.evaluation.model import Evaluation, ScenarioResult
from quorumcast.pipeline.evaluation.page import page
from quorumcast.pipeline.evaluation.runs import find_traces
from quorumcast.pipeline.evaluation.summary import evaluate
from quorumcast.sim.systems import run_scenario
from quorumcast.traces.form import Header, Listening, read_header, write_header
from quorumcast.traces.recorder import Recorder, TraceWriter, note_hooks

# The first query of a process compiles for as long as it works, and longer on a busy machine.
pytestmark = pytest.mark.timeout(400)

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("traces")
    synthesize(root / "honest", run="honest", rows=30_000, policy="ab+history")
    synthesize(
        root / "lossy", run="lossy", rows=20_000, policy="ab+history", fault="drop", mean_ms=6.0,
        lost=0.1, by_history=0.25, seed=2,
    )  # fmt: skip
    for seed in (1, 2):
        synthesize(
            root / "twice" / f"{seed}", run=f"run {seed}", rows=5000, policy="brb", seed=seed,
            mean_ms=seed,
        )  # fmt: skip
    simulated = {"total": "none", "chain": "none", "ab+history": "drop"}
    for policy, adversary in simulated.items():
        run_scenario(15, policy, adversary, root / f"sim-{policy}")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def evaluation(spark: SparkSession, places: dict[str, Path]) -> Evaluation:
    return evaluate(spark, find_traces(places.values()))


class Plain:
    """The same figures, row by row."""

    def __init__(self, directory: Path) -> None:
        self.header: Header = read_header(directory)
        tables = [pq.read_table(path) for path in sorted(directory.glob("*.parquet"))]
        rows: list[dict[str, Any]] = [row for table in tables for row in table.to_pylist()]
        header = self.header
        sent: dict[tuple[Any, ...], int] = {}
        accepted: dict[tuple[Any, ...], tuple[int, bool]] = {}
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.on_channel: Counter[str] = Counter()
        self.forwarded: Counter[str] = Counter()
        self.places = 0
        for row in sorted(rows, key=lambda row: int(row["t_ns"])):
            key = tuple(row[name] for name in ("channel", "publisher", "incarnation", "number"))
            self.places = max(self.places, row["place"])
            if row["kind"] == "sent":
                self.messages[row["node"]] += row["number"]
                self.bytes[row["node"]] += row["bytes"]
                self.received[row["peer"]] += row["number"]
                self.on_channel[row["channel"]] += row["number"]
            elif row["lane"]:
                continue
            elif row["kind"] == "published" and row["node"] in header.publishers:
                sent.setdefault(key, row["t_ns"])
            elif row["kind"] == "accepted":
                accepted.setdefault((*key, row["node"]), (row["t_ns"], row["by_history"]))
            elif row["kind"] == "forwarded":
                self.forwarded[row["node"]] += 1
        self.owed = self.delivered = self.by_history = 0
        self.latencies: list[int] = []
        per_node: Counter[str] = Counter({each.node: 0 for each in header.listening})
        self.by_second: defaultdict[int, int] = defaultdict(int)
        channels = {each.channel for each in header.listening}
        self.publications = sum(key[0] in channels for key in sent)
        for each in header.listening:
            for key, at in sent.items():
                if key[0] != each.channel or at < each.since_ns:
                    continue
                self.owed += 1
                if (*key, each.node) not in accepted:
                    continue
                then, by_history = accepted[(*key, each.node)]
                self.delivered += 1
                self.by_history += by_history
                if at >= header.from_ns:
                    self.latencies.append(then - at)
                if header.from_ns <= then < header.upto_ns:
                    per_node[each.node] += 1
                    self.by_second[(then - header.from_ns) // 10**9] += 1
        self.seconds = (header.upto_ns - header.from_ns) / 1e9
        self.rate = min(per_node.values()) / self.seconds
        self.listeners = len(per_node)


NAMES = {
    "honest": ("bench", "ab+history", ""),
    "lossy": ("bench", "ab+history", "drop"),
    "sim-total": ("sim", "total", ""),
    "sim-chain": ("sim", "chain", ""),
    "sim-ab+history": ("sim", "ab+history", "drop"),
}


def policy_of(line: ScenarioResult) -> object:
    return line.scenario.parameters.get("policy")


def line_of(evaluation: Evaluation, name: str) -> ScenarioResult:
    (line,) = [
        line
        for line in evaluation.lines
        if (line.scenario.source, policy_of(line), line.scenario.fault) == NAMES[name]
    ]
    return line


def directory_of(places: dict[str, Path], name: str) -> Path:
    return places[name] / "seed-15" if name.startswith("sim") else places[name]


def test_session_of_the_caller_is_the_active_one_afterwards(
    spark: SparkSession, places: dict[str, Path]
) -> None:
    """Otherwise Spark looks for the formats of the caller in a session that does not know them."""
    spark.createDataFrame([], "nothing int")
    evaluate(spark, find_traces([places["twice"]]))
    assert SparkSession.getActiveSession() is spark


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_a_plain_computation(
    evaluation: Evaluation, places: dict[str, Path], name: str
) -> None:
    line, plain = line_of(evaluation, name), Plain(directory_of(places, name))
    assert plain.latencies, "nothing would be compared"
    assert line.publications == plain.publications
    assert (line.owed, line.delivered, line.by_history) == (
        plain.owed, plain.delivered, plain.by_history,
    )  # fmt: skip
    assert line.coverage == plain.delivered / plain.owed
    assert line.publications_per_s == pytest.approx(plain.rate, abs=1e-3)
    whole = int(plain.seconds)
    assert [second.publications_per_s for second in line.series] == [
        plain.by_second[second] / plain.listeners for second in range(whole)
    ]
    latencies = np.sort(np.array(plain.latencies)) / 1e6
    assert line.latency.count == len(latencies)
    assert line.latency.mean == pytest.approx(latencies.mean(), rel=1e-12)
    assert line.latency.deviation == pytest.approx(latencies.std(), rel=1e-9)
    assert (line.latency.least, line.latency.most) == (latencies[0], latencies[-1])
    for figure, share in SHARES.items():
        exact = latencies[max(math.ceil(share * len(latencies) - 1e-9), 1) - 1]
        assert getattr(line.latency, figure) == pytest.approx(exact, rel=ACCURACY)
    assert sum(count for _, count in line.histogram) == len(latencies)
    for node in line.nodes:
        assert node.messages_sent == plain.messages[node.node]
        assert node.bytes_sent == plain.bytes[node.node]
        assert node.messages_received == plain.received[node.node]
        assert node.forwarded == plain.forwarded[node.node]
    assert {row.node for row in line.nodes} >= plain.messages.keys() | plain.forwarded.keys()
    assert sum(row.messages for row in line.messages) == sum(plain.messages.values())
    for channel in line.channels:
        assert channel.messages == plain.on_channel[channel.channel]
        # Synthetic messages name no channel.
        assert (channel.bytes > channel.messages > 0) == name.startswith("sim")
    assert line.bytes_per_delivery == sum(plain.bytes.values()) / plain.delivered


def test_hops_are_steps_of_the_protocol_or_the_length_of_the_chain(
    evaluation: Evaluation, places: dict[str, Path]
) -> None:
    total, chain = line_of(evaluation, "sim-total"), line_of(evaluation, "sim-chain")
    assert total.hops == {5: total.delivered}
    length = 2 * int(read_header(places["sim-chain"] / "seed-15").drawn["f"]) + 1
    assert chain.hops == {length + 1: chain.delivered}
    assert Plain(places["sim-chain"] / "seed-15").places == length
    lossy = line_of(evaluation, "lossy")
    assert lossy.hops == {2: lossy.delivered - lossy.by_history, 3: lossy.by_history}


def test_fault_costs_what_its_figures_are_to_those_without(evaluation: Evaluation) -> None:
    honest, lossy = line_of(evaluation, "honest"), line_of(evaluation, "lossy")
    assert honest.cost is None
    assert lossy.cost is not None
    assert lossy.cost.rate == lossy.publications_per_s / honest.publications_per_s
    assert lossy.latency.mean is not None
    assert honest.latency.mean is not None
    assert lossy.cost.mean_latency == lossy.latency.mean / honest.latency.mean > 2
    # Without a fault-free run of the same scenario nobody knows.
    assert line_of(evaluation, "sim-ab+history").cost is None


def test_correct_cell_of_the_simulator_fulfils_every_subscription(evaluation: Evaluation) -> None:
    for name in ("sim-total", "sim-chain", "sim-ab+history"):
        assert line_of(evaluation, name).coverage == 1.0


def test_runs_of_one_scenario_are_counted_together(
    evaluation: Evaluation, places: dict[str, Path]
) -> None:
    (line,) = [line for line in evaluation.lines if policy_of(line) == "brb"]
    first, second = Plain(places["twice"] / "1"), Plain(places["twice"] / "2")
    assert line.runs == 2
    assert line.delivered == first.delivered + second.delivered
    both = np.array(first.latencies + second.latencies) / 1e6
    assert line.latency.mean == pytest.approx(both.mean(), rel=1e-12)
    assert line.latency.deviation == pytest.approx(both.std(), rel=1e-9)
    assert line.publications_per_s == pytest.approx((first.rate + second.rate) / 2, abs=1e-3)


class Letter(Message, frozen=True, array_like=True):
    """A message of a made-up system in which postmen pass letters on."""

    number: int


class Read(Effect, frozen=True):
    """Somebody has read a letter that went through so many hands."""

    number: int
    hops: int


POST = Stream(Channel("post"), NodeId("ann"), 1)


def note_letter(recorder: Recorder, me: NodeId, send: Any) -> None:
    kind = "published" if me == POST.publisher else "passed_on"
    for peer in send.to:
        recorder.note(kind, POST, send.message.number, 1, peer)


def note_reading(recorder: Recorder, me: NodeId, read: Read) -> None:
    recorder.note("accepted", POST, read.number, 1, "", hops=read.hops, size=10)


def post_letters(
    directory: Path, run: str, *, pace_ns: int, fault: str = "", passed: tuple[int, ...] = ()
) -> None:
    """Ann writes two letters; Bob reads both, after two and three hops, and Cid the first one.

    Some have nothing for Cid.
    """
    ann, bob, cid, postman = map(NodeId, ("ann", "bob", "cid", "postman"))
    happened = [
        (ann, Send((postman,), Letter(1))),
        (postman, Send((bob, cid), Letter(1))),
        (bob, Read(1, 2)),
        (cid, Read(1, 2)),
        (ann, Send((postman,), Letter(2))),
        (bob, Read(2, 3)),
    ]
    directory.mkdir()
    writer = TraceWriter(directory / "all.parquet", run, count(0, pace_ns).__next__)
    for node, effect in happened:
        recorder = writer.recorder("postman" if node == postman else "correspondent", node)
        note_hooks(recorder, {Letter: note_letter, Read: note_reading}, node)[type(effect)](effect)
    for number in passed:
        writer.recorder("correspondent", cid).note("passed", POST, number, 1, "")
    writer.close()
    header = Header(
        run=run, source="bench", version="0", system="post", parameters={"postmen": 1},
        fault=fault, publishers=("ann",), upto_ns=10**9, events=2,
        listening=(Listening("bob", "post"), Listening("cid", "post")),
    )  # fmt: skip
    write_header(directory, header)


def test_system_that_is_no_cell_is_evaluated_beside_cells(
    spark: SparkSession, places: dict[str, Path], tmp_path: Path
) -> None:
    post_letters(tmp_path / "calm", "calm", pace_ns=1_000_000)
    post_letters(tmp_path / "slow", "slow", pace_ns=3_000_000, fault="snow")
    found = evaluate(spark, find_traces([tmp_path, places["sim-chain"]]))
    calm, slow, cell = found.lines
    assert [calm.name, slow.name] == ["post, postmen=1", "post, postmen=1, snow"]
    assert cell.scenario.system == "cell"
    assert (calm.publications, calm.owed, calm.delivered, calm.coverage) == (2, 4, 3, 0.75)
    assert (calm.hops, calm.mean_hops) == ({2: 2, 3: 1}, 7 / 3)
    assert (calm.latency.count, calm.latency.least, calm.latency.most) == (3, 1.0, 4.0)
    assert calm.contents_bytes == 30
    assert {(row.message, row.messages) for row in calm.messages} == {("Letter", 4)}
    postman = next(row for row in calm.nodes if row.node == "postman")
    assert (postman.role, postman.messages_sent, postman.messages_received) == ("postman", 2, 2)
    assert postman.passed_on == 2
    assert slow.cost is not None
    assert slow.cost.mean_latency == pytest.approx(3.0)
    assert not calm.beside
    assert "post, postmen=1" in page(found)


def test_publications_that_were_passed_rightly_were_not_owed(
    spark: SparkSession, tmp_path: Path
) -> None:
    # The first letter was accepted all the same, and the third was never owed.
    post_letters(tmp_path / "post", "post", pace_ns=1_000_000, passed=(1, 2, 3))
    (line,) = evaluate(spark, find_traces([tmp_path])).lines
    assert (line.publications, line.owed, line.delivered, line.coverage) == (2, 3, 3, 1.0)
    assert (line.unowed, line.repeated) == (0, 0)
    assert line.contents_bytes == 30


def test_system_without_publications_has_its_messages_evaluated(
    spark: SparkSession, tmp_path: Path
) -> None:
    for seed in (1, 2):
        run_scenario(seed, None, "double", tmp_path, system="tests.ring.ring:SYSTEM")
    (line,) = evaluate(spark, find_traces([tmp_path])).lines
    assert line.name == "simulated tests.ring.ring:SYSTEM, double"
    assert (line.runs, line.seeds) == (2, [1, 2])
    assert {row.message for row in line.messages} == {"Token", "Got"}
    assert {row.role for row in line.nodes} == {"node"}
    assert sum(row.messages_sent for row in line.nodes) == sum(
        row.messages for row in line.messages
    )
    assert (line.owed, line.coverage, line.hops, line.cost) == (0, None, {}, None)


def test_every_row_is_read_once_and_what_is_shuffled_is_not_sorted(
    spark: SparkSession, places: dict[str, Path]
) -> None:
    traces = find_traces([places["sim-chain"], places["twice"]])
    session = figures.session_for(spark, traces)
    session.conf.set("spark.sql.adaptive.enabled", "false")  # a plan that stays as it is
    query: Any = figures.summed(figures.rows_of(session, traces), figures.owed(session, traces))
    query.collect()
    plan = query._jdf.queryExecution().executedPlan()
    # Those of publications and acceptances, and of the sums of traffic and of deliveries.
    assert plan.toString().count("Exchange hashpartitioning") == 4
    assert "Sort" not in plan.toString()
    leaves = [plan.collectLeaves().apply(i) for i in range(plan.collectLeaves().size())]
    scans = [leaf for leaf in leaves if leaf.nodeName().startswith("Scan parquet")]
    read = [scan.metrics().get("numOutputRows").get().value() for scan in scans]
    assert len(read) == 3
    assert sum(read) == sum(trace.rows for trace in traces)


def test_tasks_grow_in_number_with_rows_and_not_in_size(
    spark: SparkSession, places: dict[str, Path]
) -> None:
    (trace,) = find_traces([places["honest"]])
    session = figures.session_for(spark, [msgspec.structs.replace(trace, rows=10_000_000)])
    assert session.conf.get("spark.sql.shuffle.partitions") == "20"
    assert session.conf.get("spark.sql.adaptive.coalescePartitions.enabled") == "false"
    # A session of somebody else keeps its settings.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_damage_that_only_reading_shows_is_one_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    synthesize(tmp_path, rows=2000)
    path = tmp_path / "subscriber-1.parquet"
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 3] = bytes(len(data) // 3 - 4)
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"^Spark could not read the traces \(.+\): trace"):
        evaluate(spark, find_traces([tmp_path]))


def test_command_line_prints_json_and_writes_a_report(
    spark: SparkSession, places: dict[str, Path], tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    arguments = ["pipeline", "evaluate", str(places["honest"]), str(places["lossy"])]
    result = CliRunner().invoke(command_tree(), [*arguments, "--output", str(report), "--json"])
    assert result.exit_code == 0, result.output
    told = msgspec.convert(json.loads(result.stdout), Evaluation, strict=False)
    assert [line.scenario.fault for line in told.lines] == ["", "drop"]
    written = report.read_text(encoding="utf-8")
    assert "What faults cost" in written
    assert "ab+history" in written
