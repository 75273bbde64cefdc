"""Traces of simulated runs: what they say is what the world knows, and nothing changes for it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from quorumcast.cli.main import command_tree
from quorumcast.sim.systems import run_scenario
from quorumcast.traces.form import read_header

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("policy", ["ab+history", "chain", "total"])
def test_traced_run_is_the_same_run_and_tells_all_of_it(tmp_path: Path, policy: str) -> None:
    plain = run_scenario(8, policy, "none")
    traced = run_scenario(8, policy, "none", tmp_path)
    assert traced == plain
    directory = tmp_path / "seed-8"
    header = read_header(directory)
    rows = pq.read_table(directory / "run.parquet").to_pylist()
    assert (header.source, header.system, header.seed, header.fault) == ("sim", "cell", 8, "")
    assert header.parameters == {"policy": policy}
    assert header.drawn.keys() >= {"brokers", "f"}
    assert {row["run"] for row in rows} == {header.run}
    correct = [row for row in rows if row["node"] not in header.faulty]
    assert sum(row["kind"] == "accepted" for row in correct) == plain.deliveries > 0
    # What was sent without a session was never a message on the wire.
    assert sum(row["number"] for row in rows if row["kind"] == "sent") >= plain.messages
    published = {
        (row["channel"], row["publisher"], row["incarnation"], row["number"])
        for row in correct
        if row["kind"] == "published" and row["role"] == "publisher" and row["lane"] == 0
    }
    assert len(published) == header.events
    assert header.listening
    assert max(row["t_ns"] for row in rows) < header.upto_ns


@pytest.mark.parametrize(("seed", "policy"), [(5, "ab"), (5, "total"), (2, "relay")])
def test_traced_readers_with_predicates_are_owed_what_matches(
    tmp_path: Path, seed: int, policy: str
) -> None:
    outcome = run_scenario(seed, policy, "none", tmp_path)
    assert outcome.filtered_readers > 0
    (directory,) = tmp_path.iterdir()
    header = read_header(directory)
    rows = pq.read_table(directory / "run.parquet").to_pylist()
    about: dict[str, dict[tuple[str, ...], int]] = {"accepted": {}, "passed": {}}
    published: dict[tuple[str, ...], int] = {}
    for row in rows:
        what = (row["channel"], row["publisher"], row["incarnation"], row["number"])
        if row["kind"] in about and row["lane"] == 0:
            about[row["kind"]][(*what, row["node"])] = row["t_ns"]
        elif row["kind"] == "published" and row["lane"] == 0:
            published[what] = min(row["t_ns"], published.get(what, row["t_ns"]))
    assert about["passed"]
    assert not about["passed"].keys() & about["accepted"].keys()
    owed = {
        (*what, listening.node)
        for listening in header.listening
        for what, sent_ns in published.items()
        if what[0] == listening.channel and sent_ns >= listening.since_ns
    }
    # Nothing is lost; some who listened have left.
    assert owed - about["passed"].keys() <= about["accepted"].keys()


def test_command_line_traces_every_seed_in_a_directory_of_its_own(tmp_path: Path) -> None:
    arguments = ["sim", "--seeds", "2", "--policy", "ab", "--adversary", "none", "--workers", "1"]
    result = CliRunner().invoke(command_tree(), [*arguments, "--trace", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert [read_header(tmp_path / f"seed-{seed}").seed for seed in (0, 1)] == [0, 1]


def test_known_bad_variants_leave_no_traces_and_say_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(command_tree(), ["sim", "--known-bad", "--trace", str(tmp_path)])
    assert result.exit_code != 0
    assert "leave out --trace" in str(result.exception)
