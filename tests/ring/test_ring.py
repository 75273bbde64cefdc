"""The token ring runs in both drivers, is found by name, judged, attacked, shrunk and traced."""

from __future__ import annotations

import json

import pytest
from tests.ring.ring import ANY_SENDER, Ring, draw

from quorumcast.cli.main import main
from quorumcast.pipeline.campaign.scenarios import ScenarioChoice, investigate, run_seed
from quorumcast.sim.campaign import replay_of
from quorumcast.sim.shrink import decode_plan, encode_plan, shrink
from quorumcast.sim.systems import perform, planted, try_variant
from quorumcast.testing.bed import Bed, free_ports

RING = "tests.ring.ring:SYSTEM"


def test_sim_finds_the_ring_by_name_and_no_violation(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["sim", "--system", RING, "--seeds", "60", "--workers", "1", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["violations"], report["scenarios"]) == (0, 0, 60)
    assert report["adversaries"].keys() == {"none", "crash", "double"}
    assert report["deliveries"] > 1_000


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("rings", "there is no system 'rings'"),
        ("tests.ring.ring:RING", "there is no system 'tests.ring.ring:RING'"),
        ("tests.ring.ring:draw", "'tests.ring.ring:draw' is not a system: it is a function"),
        ("", "there is no system ''"),
    ],
)
def test_sim_system_that_is_none_is_refused_in_a_sentence(
    system: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--system", system, "--seeds", "1"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--adversary", "doubel"), ("--policy", "ab")])
def test_sim_adversary_or_policy_that_the_ring_does_not_know_is_refused_in_a_sentence(
    options: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--system", RING, "--seeds", "1", "--workers", "1", *options]) == 2
    assert "these adversaries: none, crash, double" in capsys.readouterr().err


def test_replay_of_a_ring_names_its_system_and_draws_the_same_plan() -> None:
    plan = draw(5)
    assert draw(5, None, plan.adversary) == plan
    assert replay_of(perform(plan)) == (
        f"quorumcast sim --system {RING} --start 5 --seeds 1 --adversary {plan.adversary}"
    )


def test_known_bad_variant_of_the_ring_is_caught_and_its_attack_is_otherwise_clean() -> None:
    catch = try_variant(ANY_SENDER)
    assert (catch.caught, catch.by, catch.clean) == (True, "One holder", True)


def test_failing_plan_of_the_ring_is_written_and_read() -> None:
    with planted("any-sender", RING):
        found = shrink(draw(0, None, "double"), "One holder", max_runs=5)
        assert found is not None
        plan = decode_plan(encode_plan(found.plan))
        assert plan == found.plan
        assert perform(plan).violations
    assert not perform(plan).violations


def test_campaign_looks_into_a_failure_of_a_system_without_policies() -> None:
    choice = ScenarioChoice(system=RING, variant="any-sender")
    with choice.planted():
        rows = (run_seed(seed, choice) for seed in range(30))
        row = next(row for row in rows if row["property"] == "One holder")
    found = investigate({**row, "count": 1}, choice)
    with choice.planted():
        assert perform(decode_plan(found["plan"])).violations


def test_ring_of_processes_goes_on_after_kill_9_and_no_number_is_used_twice() -> None:
    ports = free_ports(4)
    names = Ring(4).names

    def start(bed: Bed, name: str) -> int:
        return bed.spawn_announced(
            name,
            "tests.ring.ring",
            lambda ready: [
                name, str(bed.directory), str(ready), str(bed.lifeline), *map(str, ports),
            ],
        )  # fmt: skip

    def numbers(bed: Bed, name: str) -> list[int]:
        return [int(line) for line in bed.log_path(name).read_text().split("\n")[:-1]]

    with Bed() as bed:
        for name, pipe in [(name, start(bed, name)) for name in names]:
            bed.wait_announced(name, pipe)
        bed.wait_until(lambda: all(len(numbers(bed, name)) > 3 for name in names), "no turns")
        bed.kill(names[1])
        before = {name: len(numbers(bed, name)) for name in names}
        bed.wait_announced(names[1], start(bed, names[1]))
        bed.wait_until(
            lambda: all(len(numbers(bed, name)) > before[name] + 3 for name in names), "no turns"
        )
        entered = sorted(number for name in names for number in numbers(bed, name))
    assert len(entered) == len(set(entered))
