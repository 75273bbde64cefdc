"""Tests that the documentation names exist: the track record above all names a guard per bug."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def missing_guards(page: str) -> Iterator[str]:
    """Guards of the track record that are neither a test file nor a plan; bugs without a guard."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or cells[0] == "where" or set(cells[0]) == {"-"}:
            continue
        _, bug, _, cell = cells
        guards = re.findall(r"`([^`]+)`", cell)
        if not guards and cell != "rule removed":
            yield bug
        for guard in guards:
            room, _, name = guard.rpartition("/")
            places = [TESTS / room / f"test_{name}.py", TESTS / "sim/plans" / f"{guard}.json"]
            if not any(place.exists() for place in places):
                yield guard


def missing_tests(page: str) -> Iterator[str]:
    """Paths below `tests/` and test functions that a page names and that do not exist."""
    for path in re.findall(r"`(tests/[^`*…]+)`", page):
        if not (ROOT / path).exists():
            yield path
    for name in re.findall(r"`(test_\w+)`", page):
        if f"def {name}(" not in source_of_tests():
            yield name


@cache
def source_of_tests() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))


def test_track_record_guards_exist() -> None:
    page = (ROOT / "docs/track-record.md").read_text(encoding="utf-8")
    assert list(missing_guards(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_only_tests_that_exist(page: Path) -> None:
    assert list(missing_tests(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("cell", "missing"),
    [
        ("`docs/guards`, `brb-equivocate-2`", []),
        ("rule removed", []),
        ("`docs/birds`", ["docs/birds"]),
        ("`docs/guards`, `brb-equivocate-0`", ["brb-equivocate-0"]),
        ("", ["It fell."]),
    ],
)
def test_missing_guards_bad_row_is_noticed(cell: str, missing: list[str]) -> None:
    assert list(missing_guards(f"| `ab` | It fell. | review | {cell} |")) == missing


def test_missing_tests_bad_page_is_noticed() -> None:
    page = "`tests/docs/test_guards.py`: `test_birds_fly`; `tests/docs/test_birds.py`"
    assert list(missing_tests(page)) == ["tests/docs/test_birds.py", "test_birds_fly"]
