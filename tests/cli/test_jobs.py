"""`sim`, `bench` and `demo` from the command line, as short as they get."""

import json
from typing import Any

import pytest
from tests.support.progress import heard

from quorumcast.cli.main import main

pytestmark = pytest.mark.runtime


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_sim_seeds_print_the_account_of_a_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "sim", "--seeds", "4", "--workers", "1")
    assert report["scenarios"] == 4
    assert report["violations"] == 0
    assert {"simulated_s", "messages", "faults_injected", "false_accusations"} <= report.keys()


def test_sim_policy_of_a_tree_runs_trees(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "sim", "--seeds", "1", "--workers", "1", "--policy", "relay")
    assert report["policies"] == {"relay": 1}
    assert report["violations"] == 0


def test_sim_counts_its_scenarios(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = heard(monkeypatch, "quorumcast.cli.lab.sim")
    assert answer(capsys, "sim", "--seeds", "3", "--workers", "1")["scenarios"] == 3
    assert said == ["1 of 3 scenarios", "2 of 3 scenarios", "3 of 3 scenarios"]


def test_sim_mutants_says_what_noticed_a_mistake_and_fails_if_nothing_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = answer(capsys, "sim", "--mutants", "--only", "labels-number", "--seeds", "5")
    assert report["total"]["percent"] == 100.0
    (result,) = report["results"]
    assert result["verdict"] == "caught"
    assert result["by"]["by"] == "Authenticity"
    missed = ["sim", "--mutants", "--only", "evidence-signer", "--seeds", "1"]
    assert main(missed) == 1
    assert "missed by 1 scenarios" in capsys.readouterr().out


def test_sim_coverage_names_states_that_nobody_reached(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--seeds", "3", "--policy", "brb", "--adversary", "none", "--steer")
    report = answer(capsys, "sim", "--coverage", *options)
    assert report["growth"][-1] == report["transitions"] > 0
    assert {"policy": "brb", "role": "broker", "what": "drops: conflict"} in report["unreached"]
    assert len(report["unreached"]) < report["known_states"]


def test_bench_prints_the_figures_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(
        capsys, "bench", "--policy", "direct", "--brokers", "3", "--seconds", "0.5",
        "--warmup", "0.1", "--rate", "200",
    )  # fmt: skip
    assert {"publications_per_s", "events_per_s", "cpu_us_per_event"} <= report.keys()
    assert {"p50", "p99", "mean", "deviation"} <= set(report["latency_ms"])
    assert (report["lost"], report["duplicated"], report["altered"]) == (0, 0, 0)


def test_faults_list_shows_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    names = {entry["name"] for entry in answer(capsys, "faults", "list")}
    assert {"alter", "drop", "silent", "skip-broker"} <= names
