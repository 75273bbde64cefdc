"""The catalogue of single mistakes fits the code, and mistakes are found as it says."""

import ast
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.manifest.policy import POLICY_NAMES, RELAYED_NAMES
from quorumcast.sim.cell.known_bad.catalogue import VARIANTS
from quorumcast.sim.mutants.mistakes import (
    Mistake,
    chosen_policies,
    line_of,
    plant,
    read_catalogue,
)
from quorumcast.sim.mutants.probing import probed
from quorumcast.sim.mutants.run import (
    Hunt,
    MutantReport,
    MutantVerdict,
    entries,
    in_turn,
    test_files,
)
from quorumcast.sim.mutants.worker import Answer, Hangs, MutantTask, limited, run_scenarios

#: Not to be taken for a test.
test_files.__test__ = False  # type: ignore[attr-defined]

CATALOGUE = read_catalogue()
TESTS = Path(__file__).parents[1]
ROOMS = ("core", "crypto", "broadcast", "ordering", "cell", "named", "manifest", "matching")
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


@pytest.mark.parametrize("file", sorted({entry.file for entry in CATALOGUE}))
def test_mistakes_of_the_catalogue_fit_the_code_and_compile(file: str) -> None:
    mistakes = [entry for entry in CATALOGUE if entry.file == file]
    probes = ast.unparse(probed(mistakes[0].text(), mistakes))
    for entry in mistakes:
        compile(entry.source(), entry.file, "exec")
        assert f"__mistake_met__('{entry.id}')" in probes
        policies = chosen_policies(entry.policies, POLICY_NAMES, RELAYED_NAMES)
        assert policies, f"no policy reaches {entry.id}"
        assert entry.find != entry.replace
        assert not (entry.equivalent and entry.missed)


def test_catalogue_has_mistakes_in_every_room_told_apart() -> None:
    names = [entry.id for entry in CATALOGUE]
    assert len(names) == len(set(names)) >= 120
    assert {entry.room for entry in CATALOGUE} == set(ROOMS)
    tried = [entry.id for entry in entries()]
    assert len(tried) == len(set(tried)) > len(names), "the known-bad variants are tried as well"


def test_known_bad_variants_patch_attributes_that_exist() -> None:
    for variant in VARIANTS:
        for patch in variant.patches:
            assert patch.attribute in vars(patch.owner), f"{variant.name}: adapt {patch.attribute}"


def test_plant_snippet_that_is_gone_or_occurs_twice_says_so() -> None:
    with pytest.raises(UsageError, match="occurs 2 times"):
        plant(mistake(), SOURCE)
    with pytest.raises(UsageError, match="occurs 0 times"):
        plant(mistake(find="y < 1"), SOURCE)
    with pytest.raises(UsageError, match="has no 'middle'"):
        plant(mistake(within="middle"), SOURCE)


def test_plant_within_a_function_changes_that_function_alone() -> None:
    source = plant(mistake(within="high"), SOURCE)
    assert source == SOURCE.replace("def high(x):\n    if x < 1:", "def high(x):\n    if x < 2:")
    assert line_of(mistake(within="high"), SOURCE) == 8


def test_probe_tells_a_difference_where_looking_twice_changes_nothing() -> None:
    source = ast.unparse(probed(SOURCE, [mistake(within="high")]))
    assert source.partition("def high")[2].split("\n")[1:] == [
        "    try:",
        "        if bool(x < 1) != bool(x < 2):",
        "            __mistake_met__('m')",
        "    except Exception:",
        "        __mistake_met__('m')",
        "    if x < 1:",
        "        return 1",
        "    return x",
    ]


@pytest.mark.parametrize(
    ("find", "replace"),
    [("return x", "pass"), ("return x", "return take(x)"), ("return x", "return (x := 2)")],
)
def test_probe_elsewhere_tells_that_the_statement_is_reached(find: str, replace: str) -> None:
    source = ast.unparse(probed(SOURCE, [mistake(within="high", find=find, replace=replace)]))
    assert source.endswith("        return 1\n    __mistake_met__('m')\n    return x")


def test_policies_of_trees_are_chosen_by_patterns_of_their_own() -> None:
    names = (POLICY_NAMES, RELAYED_NAMES)
    assert chosen_policies(["*"], *names) == POLICY_NAMES
    assert chosen_policies(["ab", "relay*"], *names) == ("ab", "relay", "relay-total")


def hunted(*only: str, seeds: int) -> MutantReport:
    return Hunt(entries(only=only), seeds=seeds, jobs=2, minutes=5).run()


@pytest.mark.sim
def test_hunt_says_what_became_of_each_mistake() -> None:
    """One that scenarios catch, an equivalent one, one that nobody meets, and a known-bad one."""
    caught, by_plan = "labels-number", "foreign-statement"
    report = hunted(caught, "mac-reader", "epochs-follows", by_plan, seeds=2)
    found = {result.id: result for result in report.results}
    assert found[caught].verdict is MutantVerdict.CAUGHT, found[caught]
    assert found[caught].by is not None
    assert found[caught].reached > 0
    assert found["mac-reader"].verdict is MutantVerdict.EQUIVALENT
    unmet = found["epochs-follows"]
    assert (unmet.verdict, unmet.reached, unmet.scenarios) == (MutantVerdict.EXPECTED, 0, 2)
    assert unmet.reason
    assert found[by_plan].verdict is MutantVerdict.BY_PLAN
    total = report.total
    assert (total.caught, total.equivalent, total.missed, total.by_plan) == (1, 1, 1, 1)
    assert not report.failed


@pytest.mark.sim
def test_hunt_mistake_that_seeds_miss_is_caught_by_a_unit_test() -> None:
    hunt = Hunt(entries(only=["evidence-signer"]), seeds=1, jobs=1, minutes=5, tests=TESTS)
    (result,) = hunt.run().results
    assert result.verdict is MutantVerdict.BY_TEST
    assert result.by is not None
    assert result.by.by.startswith("tests/crypto/test_")


def test_hunt_without_time_says_that_it_is_not_finished() -> None:
    report = Hunt(entries(only=["labels-number"]), seeds=3, jobs=1, minutes=0).run()
    assert [result.verdict for result in report.failed] == [MutantVerdict.UNFINISHED]


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
    first, rest = test_files(TESTS, mistake(file="ordering/leader_change.py"))
    assert any(path.endswith("ordering/test_conclusion.py") for path in first)
    assert any(path.endswith("ordering/test_log.py") for path in rest)
    assert not set(first) & set(rest)


@pytest.mark.parametrize(("parent", "tried"), [(os.getppid, 1), (os.getpid, 0)])
def test_worker_whose_parent_is_gone_begins_no_scenario(
    parent: Callable[[], int], tried: int
) -> None:
    task = MutantTask(drawn=((1, "direct-crash"),), until=time.time() + 3600, parent=parent())
    assert run_scenarios(task) == Answer(tried)
