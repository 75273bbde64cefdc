"""The catalogue of single mistakes fits the code, and mistakes are found as it says."""

import ast
from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.sim.mutants.mistakes import (
    Mistake,
    chosen_policies,
    line_of,
    plant,
    read_catalogue,
)
from quorumcast.sim.mutants.planting import probed
from quorumcast.sim.mutants.run import Hunt, Report, Verdict, entries, in_turn, test_files
from quorumcast.sim.mutants.worker import Hangs, limited

#: Not to be taken for a test.
test_files.__test__ = False  # type: ignore[attr-defined]

CATALOGUE = read_catalogue()
TESTS = Path(__file__).parents[1]
ROOMS = ("core", "crypto", "broadcast", "ordering", "agents", "named", "manifest")
SOURCE = """def low(x):
    if x < 1:
        return 0
    return x


def high(x):
    if x < 1:
        return 1
    return x
"""


def mistake(**changes: str) -> Mistake:
    given = {"id": "m", "file": "core/ids.py", "find": "x < 1", "replace": "x < 2", "why": "w"}
    return Mistake(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_mistake_of_the_catalogue_fits_the_code_and_compiles(entry: Mistake) -> None:
    compile(entry.source(), entry.file, "exec")
    probes = probed(entry.text(), {entry.id: line_of(entry, entry.text())})
    assert ast.unparse(probes).count(f"__mistake_reached__('{entry.id}')") == 1
    assert chosen_policies(entry.policies, POLICY_NAMES), "no policy reaches it"
    assert entry.find != entry.replace
    assert not (entry.equivalent and entry.missed)


def test_catalogue_has_mistakes_in_every_room_told_apart() -> None:
    names = [entry.id for entry in CATALOGUE]
    assert len(names) == len(set(names)) >= 120
    assert {entry.room for entry in CATALOGUE} == set(ROOMS)
    tried = [entry.id for entry in entries()]
    assert len(tried) == len(set(tried)) > len(names), "the known-bad variants are tried as well"


def test_plant_snippet_that_is_gone_or_stands_twice_says_so() -> None:
    with pytest.raises(UsageError, match="stands 2 times"):
        plant(mistake(), SOURCE)
    with pytest.raises(UsageError, match="stands 0 times"):
        plant(mistake(find="y < 1"), SOURCE)
    with pytest.raises(UsageError, match="has no 'middle'"):
        plant(mistake(within="middle"), SOURCE)


def test_plant_within_a_function_changes_that_function_alone() -> None:
    source = plant(mistake(within="high"), SOURCE)
    assert source == SOURCE.replace("def high(x):\n    if x < 1:", "def high(x):\n    if x < 2:")
    assert line_of(mistake(within="high"), SOURCE) == 8


def test_probes_stand_before_the_statements_of_their_lines() -> None:
    source = ast.unparse(probed(SOURCE, {"test": 8, "one": 9, "last": 10}))
    assert source.partition("def high")[2].split("\n")[1:] == [
        "    __mistake_reached__('test')",
        "    if x < 1:",
        "        __mistake_reached__('one')",
        "        return 1",
        "    __mistake_reached__('last')",
        "    return x",
    ]


def hunted(*only: str, seeds: int = 10) -> Report:
    return Hunt(entries(only=only), seeds=seeds, jobs=2, minutes=5).run()


@pytest.mark.sim
def test_hunt_mistakes_that_users_meet_at_once_are_caught() -> None:
    report = hunted(
        "labels-number", "labels-incarnation", "outlet-no-repeat", "publisher-retransmit"
    )
    for result in report.results:
        assert result.verdict is Verdict.CAUGHT, result
        assert result.by is not None
        assert result.reached > 0
    assert report.total.caught == report.total.mistakes == len(report.results)
    assert not report.failed


@pytest.mark.sim
def test_hunt_equivalent_mistake_goes_unnoticed_and_counts_for_nothing() -> None:
    report = hunted("mac-reader", seeds=4)
    assert [result.verdict for result in report.results] == [Verdict.EQUIVALENT]
    assert (report.total.equivalent, report.total.missed, report.failed) == (1, 0, [])


@pytest.mark.sim
def test_hunt_mistake_that_nobody_reaches_fails_only_without_a_reason() -> None:
    (listed,) = hunted("epochs-follows", seeds=2).results
    assert (listed.verdict, listed.reached, listed.scenarios) == (Verdict.EXPECTED, 0, 2)
    assert listed.reason


@pytest.mark.sim
def test_hunt_variant_that_seeds_miss_is_caught_by_its_own_plan() -> None:
    report = hunted("foreign-statement", seeds=1)
    assert [result.verdict for result in report.results] == [Verdict.BY_PLAN]


@pytest.mark.sim
def test_hunt_mistake_that_seeds_miss_is_caught_by_a_unit_test() -> None:
    hunt = Hunt(entries(only=["evidence-signer"]), seeds=1, jobs=1, minutes=5, tests=TESTS)
    (result,) = hunt.run().results
    assert result.verdict is Verdict.BY_TEST
    assert result.by is not None
    assert result.by.by.startswith("tests/crypto/test_")


def test_hunt_without_time_says_that_it_is_not_finished() -> None:
    report = Hunt(entries(only=["labels-number"]), seeds=3, jobs=1, minutes=0).run()
    assert [result.verdict for result in report.failed] == [Verdict.UNFINISHED]


def test_entries_unknown_room_or_mistake_is_refused() -> None:
    with pytest.raises(UsageError, match="no room 'cellar'"):
        entries(rooms=["cellar"])
    with pytest.raises(UsageError, match="no mistake 'none'"):
        entries(only=["none"])


def test_in_turn_every_room_has_its_part_of_the_first_entries() -> None:
    every = entries()
    mixed = in_turn(every)
    assert sorted(entry.id for entry in mixed) == sorted(entry.id for entry in every)
    first = {entry.room for entry in mixed[:30]}
    assert first == {*ROOMS, "known-bad"}


def test_limited_endless_loop_is_ended() -> None:
    def loop() -> None:
        while True:
            pass

    with pytest.raises(Hangs), limited(0.05):
        loop()


def test_unit_tests_of_a_mistake_begin_with_those_that_name_its_module() -> None:
    first, rest = test_files(TESTS, mistake(file="ordering/regency.py"))
    assert any(path.endswith("ordering/test_regency.py") for path in first)
    assert any(path.endswith("ordering/test_log.py") for path in rest)
    assert not set(first) & set(rest)
