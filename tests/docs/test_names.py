"""Modules and classes that pages name exist: documentation follows what is renamed or merged."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if page.name != "CHANGELOG.md"  # tells of names that are gone
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
MODULE = re.compile(r"[\w./]*\w\.py\b")
CAMEL_CASE = re.compile(r"(?<![\w./-])[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)*\b(?![/-])")
#: Names of the standard library, of Spark and of FIT-Broker.
FOREIGN = {
    *("True", "False", "None", "TimeoutError", "NaN", "RecordBatch", "Trigger", "Once"),
    *("AvailableNow", "ClientSideConnection", "ServerConnection"),
}


@cache
def modules() -> list[str]:
    rooms = ("src/quorumcast", "tests", "examples")
    return ["/" + path.as_posix() for room in rooms for path in (ROOT / room).rglob("*.py")]


@cache
def defined() -> set[str]:
    """Classes, functions and variables of the source and its tests, and what they import."""
    names = set[str]()
    for module in modules():
        for node in ast.walk(ast.parse(Path(module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.alias):
                names.add(node.name.rpartition(".")[2])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def missing_names(page: str) -> Iterator[str]:
    """Modules that do not exist in a folder that the page names; classes without a definition."""
    prose = FENCE.sub("", page)
    for code in CODE.findall(prose):
        for module in MODULE.findall(code):
            places = [path for path in modules() if path.endswith(f"/{module}")]
            folders = [Path(path).parent.name for path in places]
            if not any("/" in module or f"{folder}/" in page for folder in folders):
                yield module
        yield from (name for name in CAMEL_CASE.findall(code) if name not in defined() | FOREIGN)


def test_pages_name_only_modules_and_classes_that_exist() -> None:
    # One test for all pages and for a bad one: every process would read the whole source again.
    wrong = {
        str(page.relative_to(ROOT)): names
        for page in PAGES
        if (names := [*missing_names(page.read_text(encoding="utf-8"))])
    }
    assert wrong == {}
    page = "`core/` has `quorum.py` and `Quorums`; `birds.py`, `core/birds.py` and `BirdSong(2)` no"
    assert list(missing_names(page)) == ["birds.py", "core/birds.py", "BirdSong"]
