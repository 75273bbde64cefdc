"""A workload replayed by real processes: everything that is expected arrives, once."""

import json
from pathlib import Path

import pytest
from tests.support.workloads import small_workload

from quorumcast.bench import replay
from quorumcast.bench.plan import BenchPlan
from quorumcast.bench.replay import ReplayBed, ReplayPlan, explain, run_replay
from quorumcast.bench.replayer import TopicCheck, make_event, read_event
from quorumcast.cli.main import main
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.evaluation.runs import find_traces
from quorumcast.pipeline.evaluation.summary import name_of, scenario_of


@pytest.mark.runtime
def test_replay_from_the_command_line_delivers_everything_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deliveries = small_workload(tmp_path)
    command = ["bench", "--workload", str(tmp_path), "--policy", "direct", "--brokers", "3"]
    assert main([*command, "--batch", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["published"] == 60
    assert report["expected"] == report["delivered"] == deliveries
    assert (report["lost"], report["duplicated"], report["altered"]) == (0, 0, 0)
    assert report["disordered"] == 0
    assert (report["coverage"], report["coverage_of_injected"]) == (1.0, 1.0)
    assert {use["role"] for use in report["process_use"].values()} == {"broker", "clients"}
    assert report["processor_us"].keys() == {"broker", "clients"}
    assert report["topics"]["cats"] == {
        "published": 15, "subscribers": 2, "expected": 30, "delivered": 30,
    }  # fmt: skip
    assert report["topics"]["quiet"]["expected"] == 0


@pytest.mark.runtime
def test_replay_with_a_lying_broker_delivers_everything_once(tmp_path: Path) -> None:
    small_workload(tmp_path)
    trace = tmp_path / "trace"
    plan = ReplayPlan(
        workload=str(tmp_path),
        cell=BenchPlan(
            policy="ab+history", alpha=5, fault="alter", skip=False, latency=5, trace=str(trace)
        ),
        events=30,
        processes=1,
    )
    report = run_replay(plan)
    assert report.published == 30
    assert report.delivered == report.expected > 0
    assert report.sound(plan)
    assert report.latency_ms.p50 is not None
    assert report.latency_ms.p50 >= 10
    assert (report.duplicated, report.altered, report.disordered) == (0, 0, 0)
    (found,) = find_traces([trace])
    assert found.rows > report.delivered
    assert (found.header.events, found.header.fault) == (30, "alter")
    assert found.header.upto_ns > found.header.from_ns
    assert found.header.processes.keys() == {*(f"broker-{i}" for i in range(1, 5)), "share-0"}
    assert name_of(scenario_of(found.header)) == "ab+history, α=5, n=4, 5 ms, small, alter"


def test_event_says_what_it_is_and_notices_what_was_done_to_it() -> None:
    event = make_event(7, 3, 60, 123_456_789)
    assert len(event) == 60
    assert read_event(event) == (7, 3, 123_456_789)
    assert len(make_event(7, 3, 0, 1)) == 24
    for altered in (event[:-1], event + b"x", event[:30] + b"?" + event[31:], b"", event[1:]):
        assert read_event(altered) is None
    assert read_event(bytes([event[0] ^ 1]) + event[1:]) is None


def test_listener_counts_each_event_once_and_in_its_publishers_order() -> None:
    listener = TopicCheck("news", {"node-1": 4, "node-2": 5})
    for publisher, lane, number in (
        ("node-1", 4, 1), ("node-2", 5, 1), ("node-1", 4, 2), ("node-1", 4, 2), ("node-1", 4, 4),
        ("node-1", 4, 3), ("node-2", 4, 2),
    ):  # fmt: skip
        listener.take(publisher, make_event(lane, number, 30, 1))
    assert listener.total("accepted") == 5
    assert listener.total("duplicated") == 1
    assert listener.total("disordered") == 1
    # Somebody else's lane is not what node-2 sent.
    assert listener.altered == 1


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (ReplayPlan(workload=".", processes=0), "--processes and --window are 1 or more"),
        (ReplayPlan(workload=".", cell=BenchPlan(fault="crash")), "'crash' is not for workloads"),
        (ReplayPlan(workload=".", cell=BenchPlan(fault="pull-flood")), "choose a fault of brokers"),
    ],
)
def test_replay_of_what_cannot_be_is_refused(plan: ReplayPlan, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run_replay(plan)


def test_what_is_missing_is_explained_by_what_was_not_acknowledged_gaps_and_links() -> None:
    assert explain(0, 5, 2, {"node-1": {"broker-1": "refused"}}) == ""
    assert explain(3, 0, 0, {}).startswith("3 deliveries are missing. Everything was acknowledged")
    refused = "broker-1 refused: come back in 32 s"
    said = explain(1200, 3000, 2, {"node-10": {"broker-1": refused, "broker-2": refused}})
    assert "3,000 events were not acknowledged by enough brokers" in said
    assert "told of 2 gaps" in said
    assert f"node-10 has no link to 2 of the brokers (broker-1: {refused}; " in said
    assert "promise or" not in said
    assert explain(1, 0, 0, {f"node-{n}": {"b": "gone"} for n in range(5)}).endswith(
        "2 more nodes lack links."
    )


@pytest.mark.runtime
def test_replay_that_nobody_acknowledges_waits_for_links_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four brokers end when the replay begins."""
    small_workload(tmp_path)
    shown: list[str] = []

    class Halved(ReplayBed):
        def _replay(self, expected: int) -> float:
            for broker in self.brokers[:2]:
                self._cluster.kill(broker)
            return super()._replay(expected)

    monkeypatch.setattr(replay, "ReplayBed", Halved)
    plan = ReplayPlan(
        workload=str(tmp_path),
        cell=BenchPlan(policy="total"),
        events=10,
        processes=1,
        stall_timeout=1.5,
    )
    report = run_replay(plan, shown.append)
    assert report.lost == report.expected > 0
    assert report.unacknowledged == report.published == 10
    assert {len(brokers) for brokers in report.unlinked.values()} == {2}
    assert "10 events were not acknowledged" in report.lacking
    assert "(broker-1: " in report.lacking
    assert any("links down" in stage for stage in shown)
