"""The catalogue of mistakes: reading it, and planting a mistake into source text.

This module imports no protocol code, because a worker reads the catalogue before it imports the
module with the mistake.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError

CATALOGUE = Path(__file__).parent / "catalogue"
#: The folder of the package that paths in the catalogue start from.
PACKAGE = Path(__file__).parents[2]


class Mistake(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mistake in one source file."""

    id: str
    #: The source file, relative to the package's folder.
    file: str
    #: The function or class (`Class.method`) that holds the snippet; empty: the whole file.
    within: str = ""
    #: The snippet, which occurs exactly once, and its replacement.
    find: str
    replace: str
    #: Names or patterns ("total*") of the policies whose scenarios can reach it.
    policies: tuple[str, ...] = ("*",)
    #: The harm to users.
    why: str
    #: The reason why the mutant is equivalent to the original; empty: it is not.
    equivalent: str = ""
    #: The reason why drawn scenarios need not catch it; empty: they must.
    missed: str = ""

    @property
    def room(self) -> str:
        """The room that the file belongs to."""
        return self.file.partition("/")[0]

    @property
    def module(self) -> str:
        """The module's name."""
        return "quorumcast." + self.file.removesuffix(".py").replace("/", ".")

    def text(self) -> str:
        """The source of the module as it is."""
        return (PACKAGE / self.file).read_text(encoding="utf-8")

    def source(self) -> str:
        """The source of the module with the mistake in it."""
        return plant(self, self.text())


class _File(msgspec.Struct, forbid_unknown_fields=True):
    mistake: list[Mistake]


def read_catalogue(folder: Path = CATALOGUE) -> list[Mistake]:
    """All mistakes, in the order of the catalogue's files."""
    found: list[Mistake] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            found += msgspec.convert(data, _File).mistake
        except (tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
            raise UsageError(f"{path.name} is not a catalogue of mistakes ({error})") from None
    return found


def mistake_named(name: str) -> Mistake:
    """The mistake with this id."""
    for mistake in read_catalogue():
        if mistake.id == name:
            return mistake
    raise UsageError(f"there is no mistake {name!r} in the catalogue")


def plant(mistake: Mistake, source: str) -> str:
    """This source with the mistake in it."""
    at = _position(mistake, source)
    return source[:at] + mistake.replace + source[at + len(mistake.find) :]


def line_of(mistake: Mistake, source: str) -> int:
    """The line, from 1, on which the snippet begins."""
    blank = len(mistake.find) - len(mistake.find.lstrip())
    return source.count("\n", 0, _position(mistake, source) + blank) + 1


def _position(mistake: Mistake, source: str) -> int:
    start, end = _extent(mistake, source) if mistake.within else (0, len(source))
    times = source.count(mistake.find, start, end)
    if times != 1:
        where = mistake.within or mistake.file
        raise UsageError(
            f"mistake {mistake.id!r}: its snippet occurs {times} times in {where}, and must occur "
            "once; adapt the catalogue to the code"
        )
    return source.index(mistake.find, start, end)


def _extent(mistake: Mistake, source: str) -> tuple[int, int]:
    """Start and end offset of the named function or class."""
    for name, node in _definitions(ast.parse(source)):
        if name == mistake.within:
            lines = source.splitlines(keepends=True)
            end = node.end_lineno or node.lineno
            return sum(map(len, lines[: node.lineno - 1])), sum(map(len, lines[:end]))
    raise UsageError(
        f"mistake {mistake.id!r}: {mistake.file} has no {mistake.within!r}; adapt the catalogue"
    )


_Definition = ast.FunctionDef | ast.ClassDef


def _definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Definition]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition):
            yield prefix + node.name, node
            yield from _definitions(node, f"{prefix}{node.name}.")


def chosen_policies(
    patterns: Sequence[str], names: Sequence[str], trees: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names that match a pattern, in their usual order.

    Those of `trees`, whose scenarios take far longer, only if a pattern is not for all names.
    """
    narrow = [pattern for pattern in patterns if pattern != "*"]
    return tuple(
        name
        for some, chosen in ((names, patterns), (trees, narrow))
        for name in some
        if any(fnmatchcase(name, pattern) for pattern in chosen)
    )
