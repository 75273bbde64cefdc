"""A newcomer's walk: the blocks of pages, pasted in their order in a fresh clone, all succeed.

`sh` blocks go into one shell, `python` blocks into one interpreter, or to pytest if they hold
tests. All other languages say that a block is not to be pasted.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.shell import STATUS_OFFSET, base_port
from tests.examples.terminal import ROOT, Terminal

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Ports in blocks: those of brokers and of their status pages.
PORT = re.compile(r"\b(7|8)10(\d)\b")
PASTED = ("sh", "python")
NOT_PASTED = ("text", "console", "json", "mermaid", "toml")
#: How long one block may take on a machine that others use as well.
PATIENCE_S = 480.0

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCKS = {
    str(page.relative_to(ROOT)): FENCE.findall(page.read_text(encoding="utf-8")) for page in PAGES
}
#: Pages for users, which one reader goes through in one clone.
NEWCOMER = (
    "README.md",
    "docs/client.md",
    "docs/operations.md",
    "docs/pipeline.md",
    "docs/monitoring.md",
)
OTHERS = [
    page
    for page, blocks in BLOCKS.items()
    if page not in NEWCOMER and any(kind in PASTED for kind, _ in blocks)
]


def with_ports(block: str, base: int) -> str:
    """The block with ports that no other test uses."""

    def ours(port: re.Match[str]) -> str:
        return str(base + int(port[2]) + (STATUS_OFFSET if port[1] == "8" else 0))

    return PORT.sub(ours, block)


def walk(pages: Mapping[str, list[tuple[str, str]]], directory: Path) -> tuple[list[str], str]:
    """Paste the blocks of pages; return the failures, and everything that was printed."""
    base = base_port()
    directory.mkdir()
    failures = []
    with Terminal(directory, base) as terminal:
        for page, blocks in pages.items():
            for number, (language, text) in enumerate(blocks, 1):
                if language not in PASTED:
                    continue
                block = with_ports(text, base)
                if language == "python" and "def test_" in block:
                    (directory / f"test_{number}.py").write_text(block)
                    language, block = "sh", f"pytest -n 0 test_{number}.py"
                failed = terminal.paste(language, block, PATIENCE_S)
                failures += [f"{page}, block {number}: {failure}" for failure in failed]
            left = terminal.paste("sh", "wait || true", PATIENCE_S)
            failures += [f"{page} leaves processes behind: {failure}" for failure in left]
        return failures, terminal.printed


@pytest.mark.walk
@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pages", [NEWCOMER, *((page,) for page in OTHERS)], ids=lambda it: it[-1])
def test_pages_pasted_in_order_end_without_a_failing_command(
    pages: tuple[str, ...], tmp_path: Path
) -> None:
    failures, printed = walk({page: BLOCKS[page] for page in pages}, tmp_path / "clone")
    assert failures == [], printed[-10_000:]


@pytest.mark.parametrize("page", BLOCKS)
def test_page_blocks_say_whether_they_are_pasted(page: str) -> None:
    assert {kind for kind, _ in BLOCKS[page]} <= {*PASTED, *NOT_PASTED}


@pytest.mark.parametrize(
    ("block", "failure"),
    [
        (("sh", "false | true\necho on\n"), "exit code 1: true"),
        (("python", "if True:\n    a = 1\n\n    b = 2\n"), "IndentationError: unexpected indent"),
        (("python", "print(nothing)\n"), "NameError: name 'nothing' is not defined"),
        (("python", "if True:\n    a = 1\n"), "the block does not end: add a blank line"),
    ],
)
def test_walk_bad_block_is_noticed(block: tuple[str, str], failure: str, tmp_path: Path) -> None:
    failures, _ = walk({"page": [block]}, tmp_path / "clone")
    assert len(failures) == 1
    assert failure in failures[0]


def test_walk_ports_in_a_block_are_replaced() -> None:
    assert with_ports("7100 8103 27100", 24_000) == "24000 25003 27100"
