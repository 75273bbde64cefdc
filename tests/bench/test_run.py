"""The benchmark with real processes: what it promises is that its account is right, not its speed.

Freeman's scenarios (§7.3.4) are here: one liar, and publishers that skip another broker. With AB
or chain alone nothing arrives; with history everything does, exactly once.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyarrow.parquet as pq
import pytest
from tests.runtime.world import PATIENCE_S, eventually

from quorumcast.bench.plan import CRASHES, BenchPlan
from quorumcast.bench.run import Bench, latency, run_bench
from quorumcast.core.errors import UsageError
from quorumcast.runtime import digests
from quorumcast.runtime.digests import choose_digest
from quorumcast.traces.form import read_header

pytestmark = pytest.mark.runtime

#: Long enough for thousands of publications.
SECONDS = 0.4
WARMUP = 0.1


def brief(**settings: object) -> BenchPlan:
    return BenchPlan(**{"seconds": SECONDS, "warmup": WARMUP, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plan",
    [
        brief(policy="ab", subscribers=2),
        brief(policy="ab+history", batch=0, publishers=2, channels=2, events=301),
        brief(policy="brb", size=57),
        brief(policy="chain", mac="hmac-md5", digest="md5"),
        brief(policy="direct", brokers=3, batch=100),
        brief(policy="direct-crash", brokers=2, rate=200, poll_every=0.05),
    ],
    ids=lambda plan: plan.policy,
)
def test_bench_honest_brokers_nothing_is_lost_repeated_or_altered(plan: BenchPlan) -> None:
    report = run_bench(plan)
    assert report.published > 0
    assert report.published == plan.publishers * plan.events or not plan.events
    assert report.delivered == report.published
    assert report.coverage == 1.0
    assert (report.lost, report.duplicated, report.altered, report.disordered) == (0, 0, 0, 0)
    assert report.events_per_s > 0
    assert report.latency_ms.p50 is not None


@pytest.mark.parametrize("fault", ["drop", "alter"])
@pytest.mark.parametrize("policy", ["ab", "chain"])
def test_bench_liar_and_skipped_broker_without_history_nothing_arrives(
    policy: str, fault: str
) -> None:
    plan = brief(policy=policy, fault=fault, stall_timeout=1.0, window=64)
    report = run_bench(plan)
    assert not plan.promises_delivery()
    assert report.delivered == 0
    assert report.lost == report.published > 0


@pytest.mark.parametrize("fault", ["drop", "alter"])
@pytest.mark.parametrize("policy", ["ab+history", "chain+history"])
def test_bench_liar_and_skipped_broker_with_history_all_arrives_once(
    policy: str, fault: str
) -> None:
    plan = brief(policy=policy, fault=fault, alpha=20)
    report = run_bench(plan)
    assert plan.promises_delivery()
    assert report.delivered == report.published > 0
    assert (report.lost, report.duplicated, report.altered, report.disordered) == (0, 0, 0, 0)
    assert report.by_history > 0


@pytest.mark.parametrize("fault", CRASHES)
def test_bench_broker_killed_for_good_or_restarted_nothing_is_lost_or_repeated(fault: str) -> None:
    report = run_bench(brief(fault=fault, seconds=2.0))
    assert report.delivered == report.published > 0
    assert (report.lost, report.duplicated, report.altered, report.disordered) == (0, 0, 0, 0)


@pytest.mark.parametrize("fault", ["skip-history", "equivocating-publisher", "pull-flood"])
def test_bench_lying_client_only_what_correct_clients_exchange_counts(
    fault: str,
) -> None:
    report = run_bench(brief(fault=fault))
    assert report.delivered == report.published > 0
    assert (report.lost, report.duplicated, report.altered, report.disordered) == (0, 0, 0, 0)


def test_bench_trace_tells_the_way_of_every_publication_and_a_second_goes_beside_it(
    tmp_path: Path,
) -> None:
    plan = brief(policy="ab", rate=100, seconds=0.5, trace=str(tmp_path))
    report = run_bench(plan)
    assert report.trace == str(tmp_path)
    rows = pq.read_table(sorted(tmp_path.glob("*.parquet"))).to_pylist()
    nodes = {"publisher-1", "subscriber-1", *(f"broker-{i}" for i in range(1, 5))}
    assert {path.name.partition(".")[0] for path in tmp_path.glob("*.parquet")} == nodes
    numbers: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        numbers.setdefault((row["node"], row["kind"]), set()).add(row["number"])
    everything = set(range(1, report.published + 1))
    assert numbers["publisher-1", "published"] == everything
    assert numbers["subscriber-1", "accepted"] == everything
    # One broker may come late with any of them: three others had it before it was accepted.
    forwarders = Counter(
        number
        for (_, kind), forwarded in numbers.items()
        for number in forwarded
        if kind == "forwarded"
    )
    assert forwarders.keys() == everything
    assert min(forwarders.values()) >= 3
    header = read_header(tmp_path)
    assert {row["run"] for row in rows} == {header.run}
    parameters = {"policy": "ab", "brokers": 4, "f": 1, "rate": 100}
    assert parameters.items() <= header.parameters.items()
    assert header.events == report.published
    assert 0 < header.from_ns < header.upto_ns
    assert run_bench(plan).trace == str(tmp_path / "run-2")
    assert read_header(tmp_path / "run-2").run != header.run
    assert read_header(tmp_path) == header


def test_bench_clients_observe_their_links_and_which_broker_keeps_its_votes_to_itself(
    tmp_path: Path,
) -> None:
    # A vote counts as missing only after the longest time that distance may explain.
    plan = brief(policy="ab+history", fault="drop", rate=100, seconds=12, observe=str(tmp_path))
    run_bench(plan)
    liar, *_ = plan.faulty_brokers([f"broker-{i}" for i in range(1, 5)])
    files = sorted(tmp_path.glob("*/observations/observer=subscriber-1/*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    up = {row["accused"] for row in rows if (row["kind"], row["reason"]) == ("link", "up")}
    assert up == {f"broker-{i}" for i in range(1, 5)}
    missing = {
        row["accused"] for row in rows if (row["kind"], row["message"]) == ("missing", "Vote")
    }
    assert liar in missing


@pytest.mark.parametrize(
    ("policy", "fault", "status"),
    [("brb", "drop", "plain"), ("total", "silent-leader", "idle"), ("ab", "crash", "world")],
)
def test_bench_labels_come_from_what_was_done(
    tmp_path: Path, policy: str, fault: str, status: str
) -> None:
    # Who leads is not the one who is told to lie.
    plan = brief(policy=policy, fault=fault, rate=100, subscribers=2, observe=str(tmp_path))
    run_bench(plan)
    (place,) = tmp_path.iterdir()
    labels = pq.ParquetFile(place / "labels" / "labels.parquet").read().to_pylist()
    assert {row["run"] for row in labels} == {place.name}
    statuses = {row["node"]: row["status"] for row in labels}
    liar, *_ = plan.faulty_brokers([f"broker-{i}" for i in range(1, 5)])
    assert statuses.pop(liar) == status
    assert set(statuses.values()) <= {"correct", "word-against-word"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"policy": "nonsense"}, "there is no policy 'nonsense'"),
        ({"fault": "nonsense"}, "there is no fault 'nonsense'"),
        ({"size": 8}, "choose a size of 24 or more"),
        ({"brokers": 3, "f": 1}, "needs 4 brokers to tolerate f=1"),
        ({"publishers": 0}, "--publishers must be 1 or more"),
        ({"seconds": 0}, "--seconds must be more than 0"),
        ({"fault": "drop", "percent": 0}, "--percent is 1 to 100"),
        ({"fault": "crash", "percent": 50}, "--percent is for a fault of 'quorumcast faults list'"),
        ({"digest": "crc"}, "unknown digest 'crc'"),
        ({"mac": "none"}, "unknown MAC 'none'"),
    ],
)
def test_bench_impossible_plan_is_refused_in_a_sentence(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        run_bench(brief(**settings))


def test_bench_digest_that_was_chosen_for_a_run_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = choose_digest("auto")
    monkeypatch.delattr(digests, "perf_counter")
    assert choose_digest("auto") == chosen


def test_latency_of_samples_is_in_milliseconds() -> None:
    result = latency([n * 1_000_000 for n in range(1, 102)])
    assert (result.p50, result.p99, result.mean) == (51.0, 100.0, 51.0)
    assert (result.p90, result.p999, result.most, result.deviation) == (91.0, 101.0, 101.0, 29.155)
    assert latency([]).p50 is None


def test_bench_that_is_killed_leaves_no_process_behind() -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "quorumcast", "bench", "--seconds", "600", "--json"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    parent = psutil.Process(bench.pid)
    try:
        # Four brokers, a publisher, a subscriber, and the process that they are forked from.
        assert eventually(lambda: len(parent.children(recursive=True)) == 7)
        started = parent.children(recursive=True)
    finally:
        bench.kill()
        bench.wait()
    _, left = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert left == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_bench_worker_ends_with_whoever_holds_its_lifeline(when: str) -> None:
    lifeline, held = os.pipe()
    # As brokers have it that hold the same one.
    os.set_blocking(lifeline, False)
    code = (
        "import time; from quorumcast.bench.worker import exit_with_parent; "
        f"exit_with_parent({lifeline}); print('begun', flush=True); time.sleep(3600)"
    )
    if when == "before":
        os.close(held)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[lifeline]
    ) as worker:
        assert worker.stdout is not None
        if when == "after":
            assert worker.stdout.readline() == b"begun\n"
            os.close(held)
        try:
            assert worker.wait(PATIENCE_S) == 1
        finally:
            worker.kill()
            os.close(lifeline)


def test_crashes_repeat_until_the_end_of_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = BenchPlan(fault="crash-recover", crash_every=60.0, seconds=150.0)
    plan.check()
    now = 0.0
    killed: list[float] = []
    restarted: list[float] = []
    cluster = SimpleNamespace(
        pid=lambda broker: 1,
        kill=lambda broker: killed.append(now),
        restart=lambda broker: restarted.append(now),
    )
    bench = Bench.__new__(Bench)
    bench.plan = plan
    bench._brokers = [f"broker-{i}" for i in range(1, 5)]
    monkeypatch.setattr(bench, "_cluster", cluster, raising=False)
    processes = SimpleNamespace(retire=lambda pid: None, watch=lambda role, name, pid: None)
    monkeypatch.setattr(bench, "_processes", processes, raising=False)
    monkeypatch.setattr("quorumcast.bench.run.time", SimpleNamespace(monotonic=lambda: now))
    for _ in bench._kill():
        now += 0.5
    assert killed == [60.0, pytest.approx(121.0, abs=1)]
    assert restarted == [pytest.approx(60.5, abs=1), pytest.approx(122.0, abs=1)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"crash_every": 1.0}, "--crash-every is for --fault crash-recover"),
        ({"crash_every": 9.0, "fault": "crash-recover"}, "less than --seconds"),
        ({"poll_every": -1.0}, "--poll-every and --crash-every must be 0 or more"),
    ],
)
def test_polls_and_crashes_that_make_no_sense_are_refused(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        brief(**settings).check()
