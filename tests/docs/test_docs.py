"""The documentation, held to the code: links lead somewhere, commands exist, snippets compile."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from quorumcast.cell.messages import CELL_FAMILY
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.cli.main import command_tree
from quorumcast.core.limits import Limits
from quorumcast.core.machine import DropReason, Suspicion
from quorumcast.core.quorum import Broadcast
from quorumcast.crypto.session import Refusal
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.runtime.links.link import LinkDrop
from quorumcast.sim.cell.aimed import AIMED
from quorumcast.sim.cell.harm import WORLD
from quorumcast.sim.cell.known_bad.catalogue import VARIANTS
from quorumcast.sim.tree.known_bad import VARIANTS as TREE_VARIANTS

ROOT = Path(__file__).parents[2]
DROPS = [reason.value for kind in (DropReason, Refusal, LinkDrop) for reason in kind]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.as_posix()
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`(quorumcast [^`]+)`")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page: str) -> str:
    return FENCE.sub("", page)


def anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(page: str) -> set[str]:
    return {anchor(line.lstrip("#")) for line in prose(page).splitlines() if line.startswith("#")}


def broken_links(page: str, directory: Path) -> Iterator[str]:
    for target in LINK.findall(prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, fragment = target.partition("#")
        path = directory / file
        if not path.exists() or (
            fragment and fragment not in anchors(path.read_text() if file else page)
        ):
            yield target


def commands(page: str) -> Iterator[str]:
    for language, block in FENCE.findall(page):
        if language in ("", "sh", "bash", "console"):
            for line in block.splitlines():
                for part in re.split(r"\||&&|;", line):
                    if part.strip().startswith("quorumcast "):
                        yield part.strip()
    yield from INLINE.findall(prose(page))


@cache
def tool() -> Any:
    """The command line, which takes a while to make."""
    return typer.main.get_command(command_tree())


def wrong_command(line: str) -> str | None:
    """What in a command line names no command or option, if anything does."""
    line = re.split(r"\s{2,}|\s#", line)[0]
    words = shlex.split(line)[1:]
    command = tool()
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return None if name in ("…", "init,") else f"there is no command {name!r}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in ("-", "--help", "-h", *known):
            return f"there is no option {option!r}"
    return None


def snippets() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for index, (language, block) in enumerate(FENCE.findall(page.read_text()), 1):
            if language == "python":
                found.append((f"{page.relative_to(ROOT)}:{index}", block))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_relative_links_resolve(page: Path) -> None:
    assert list(broken_links(page.read_text(encoding="utf-8"), page.parent)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_commands_exist(page: Path) -> None:
    wrong = {line: wrong_command(line) for line in commands(page.read_text(encoding="utf-8"))}
    assert {line: why for line, why in wrong.items() if why} == {}


@pytest.mark.parametrize(("where", "source"), snippets(), ids=[where for where, _ in snippets()])
def test_snippet_compiles(where: str, source: str) -> None:
    compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_snippets_are_found() -> None:
    assert len(snippets()) > 10


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/adversaries.md", [*CATALOGUE, *AIMED, *WORLD]),
        ("README.md", POLICY_NAMES),
        ("docs/protocols/README.md", POLICY_NAMES),
        ("docs/operations.md", DROPS),
        ("docs/operations.md", Limits.__struct_fields__),
        ("docs/simulator.md", [variant.name for variant in (*VARIANTS, *TREE_VARIANTS)]),
    ],
)
def test_page_names_everything_there_is(page: str, names: list[str]) -> None:
    assert [name for name in names if f"`{name}`" not in text(page)] == []


def test_readme_counts_the_faults_of_the_catalogue() -> None:
    brokers = sum(entry.role is Role.BROKER for entry in CATALOGUE.values())
    counts = f"{brokers} faults of brokers and {len(CATALOGUE) - brokers} of "
    assert f"{counts}clients" in text("README.md")
    assert f"{counts}publishers and subscribers" in text("CHANGELOG.md")


def test_no_page_installs_from_an_index_that_lacks_the_package() -> None:
    pages = [*PAGES, *(ROOT / "examples").iterdir(), *(ROOT / "src").rglob("*.py")]
    wrong = [page for page in pages if page.is_file() and "install quorumcast" in page.read_text()]
    assert wrong == []


def test_every_message_is_in_a_table_of_a_protocol_page() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs/protocols").glob("*.md"))
    kinds = [kind.__name__ for kind in CELL_FAMILY.kinds]
    assert [kind for kind in kinds if not re.search(rf"`{kind}[`(]", pages)] == []


def test_every_protocol_has_a_page() -> None:
    pages = {path.stem for path in (ROOT / "docs/protocols").glob("*.md")}
    assert set(ServedStreams.carriers) == set(Broadcast)
    assert {"direct", "authenticated", "bracha", "chain", "history", "total-order"} <= pages


def test_suspicions_are_documented() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert [s.value for s in Suspicion if f"`{s.value}`" not in pages] == []


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("see [x](no-such-page.md)", "no-such-page.md"),
        ("# One\n[x](#two)", "#two"),
    ],
)
def test_broken_links_bad_example_is_noticed(page: str, complaint: str) -> None:
    assert list(broken_links(page, ROOT)) == [complaint]


@pytest.mark.parametrize(
    "line", ["quorumcast fly", "quorumcast init cell --wings 2", "quorumcast faults sing broker-1"]
)
def test_wrong_command_bad_example_is_noticed(line: str) -> None:
    assert wrong_command(line) is not None


def test_wrong_command_good_example_passes() -> None:
    assert wrong_command("quorumcast faults set broker-1 alter --percent 50 -m cell") is None
