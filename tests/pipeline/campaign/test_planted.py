"""A campaign on Spark from the command line: a planted mistake is found, made small, replayed."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.progress import heard

from quorumcast.cli.main import main
from quorumcast.pipeline.campaign.scenarios import OK, VIOLATED


def test_planted_mistake_is_found_made_small_and_replayed(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = heard(monkeypatch, "quorumcast.cli.pipeline.campaign")
    output = tmp_path / "campaign"
    arguments = ["pipeline", "campaign", "--scenarios", "4", "--start", "7", "-o", str(output)]
    narrow = ["--policy", "direct", "--adversary", "none", "--known-bad", "no-dedup"]
    assert main([*arguments, *narrow, "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert any(line.startswith("4 of 4 scenarios, ") for line in said)
    assert "looking into 1 of 1 ways to fail" in captured.err
    assert report["scenarios"] == 4
    assert report["scenarios_per_s"] > 0
    assert report["violations"] > 0
    rows = pq.read_table(output / "results").to_pylist()
    assert [row["seed"] for row in rows] == list(range(7, 11))
    assert {row["verdict"] for row in rows} <= {OK, VIOLATED}
    assert sum(row["verdict"] == VIOLATED for row in rows) == report["violations"]
    failure = report["failures"][0]
    assert failure["property"] == "Uniqueness"
    assert failure["seed"] == 0  # of the same policy and adversary, before those of the campaign
    assert failure["seed"] < min(row["seed"] for row in rows if row["verdict"] != OK)
    assert failure["acts_left"] < failure["acts"]
    assert failure == json.loads((output / "failures.json").read_text())[0]
    for replay in (failure["replay"], failure["replay_plan"]):
        assert main([*replay.split()[1:], "--json"]) == 1
        assert "Uniqueness" in capsys.readouterr().out
        # Without the mistake there is nothing to find.
        correct = replay.replace(" --variant no-dedup", "").split()[1:]
        assert main([*correct, "--json"]) == 0
        capsys.readouterr()
    assert main([*arguments, "--policy", "direct"]) == 2
    assert "is there already" in capsys.readouterr().err
