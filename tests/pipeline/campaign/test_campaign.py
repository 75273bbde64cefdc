"""What a campaign does with a seed, and which ways to fail it looks into, without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quorumcast.cli.main import main
from quorumcast.pipeline.campaign import scenarios
from quorumcast.pipeline.campaign.run import MAX_PER_PROPERTY, choose_modes, failure_modes
from quorumcast.pipeline.campaign.scenarios import (
    FAILURE_COLUMNS,
    OK,
    RAISED,
    RAISING,
    RESULT_COLUMNS,
    VIOLATED,
    ScenarioChoice,
    investigate,
    run_seed,
    run_seeds,
)
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.systems import perform, planted, run_scenario

QUICK = ScenarioChoice(policy="direct", adversary="none")


def test_row_of_a_seed_is_what_the_simulator_says() -> None:
    row = run_seed(3, QUICK)
    outcome = run_scenario(3, "direct", "none")
    assert row.keys() == set(RESULT_COLUMNS.names)
    assert (row["verdict"], row["property"], row["detail"]) == (OK, "", "")
    assert row["trace_hash"] == outcome.trace_hash
    assert row["messages"] == outcome.messages > 0
    assert row["simulated_ms"] == outcome.simulated_ms
    assert (row["policy"], row["adversary"]) == ("direct", "none")
    assert row["brokers"] >= 3


def test_scenario_that_raises_is_a_verdict_and_the_task_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(plan: CellPlan) -> Any:
        if plan.seed == 5:
            raise RuntimeError("out of luck")
        return perform(plan)

    monkeypatch.setattr(scenarios, "perform", broken)
    told: list[bool] = []
    batch = pa.record_batch([pa.array([4, 5, 6])], names=["id"])
    (answer,) = run_seeds(iter([batch]), QUICK, told.append)
    rows = answer.to_pylist()
    assert [row["verdict"] for row in rows] == [OK, RAISED, OK]
    assert told == [False, True, False]
    assert rows[1]["property"] == RAISING
    assert rows[1]["detail"].startswith("RuntimeError: out of luck (broken, line ")
    found = investigate({**rows[1], "seed": 5, "count": 1}, QUICK)
    assert (found["seed"], found["plan"]) == (5, b"")


def test_investigation_finds_the_smallest_seed_and_a_shorter_plan() -> None:
    with planted("no-dedup"):
        row = next(row for row in (run_seed(s, QUICK) for s in range(30, 60)) if row["property"])
    way = {name: row[name] for name in ("seed", "policy", "adversary", "property", "detail")}
    found = investigate({**way, "count": 1}, ScenarioChoice(variant="no-dedup"))
    assert found.keys() == set(FAILURE_COLUMNS.names)
    assert found["seed"] < row["seed"]
    assert 0 < found["acts_left"] < found["acts"]
    with planted("no-dedup"):
        again = run_seed(found["seed"], QUICK)
    assert again["property"] == "Uniqueness"


def test_way_to_fail_is_known_by_its_smallest_seed() -> None:
    groups = [
        {
            "property": "FIFO",
            "policy": "ab",
            "verdict": VIOLATED,
            "seed": s,
            "count": n,
            "detail": d,
        }
        for s, n, d in ((9, 2, "late"), (4, 1, "early"))
    ]
    other = {**groups[0], "policy": "brb", "count": 1}
    good = {**groups[0], "property": "", "verdict": OK, "seed": 0, "count": 99}
    found = failure_modes([*groups, other, good])
    assert [(row["policy"], row["seed"], row["count"]) for row in found] == [
        ("ab", 4, 3),
        ("brb", 9, 1),
    ]
    assert found[0]["detail"] == "early"


def test_mistake_that_breaks_everything_hides_no_other() -> None:
    ways = [{"property": "FIFO", "policy": str(n)} for n in range(20)]
    chosen = choose_modes([*ways, {"property": "Validity", "policy": "ab"}])
    assert [row["property"] for row in chosen] == ["FIFO"] * MAX_PER_PROPERTY + ["Validity"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "gossip"], "there is no policy 'gossip'"),
        (["--adversary", "gremlins"], "there is no adversary 'gremlins'"),
        (["--policy", "direct", "--adversary", "conspiracy"], "does not claim to withstand"),
        (["--known-bad", "nothing"], "there is no variant 'nothing'"),
        (["--scenarios", "0"], "--scenarios is 1 or more"),
        (["--start", str(2**63)], "seeds end at 9,223,372,036,854,775,807"),
    ],
)
def test_wrong_campaign_is_one_sentence_before_anything_starts(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "campaign", "-o", str(tmp_path / "c"), *arguments]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1
    assert not (tmp_path / "c").exists()
