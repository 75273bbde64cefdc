"""Compiles modules from other source than their files hold: with a mistake, or with probes.

A probe before a statement tells that a scenario reaches it. Until a run reaches a mistake it is the
same as a run of the code as it is, so scenarios that do not reach it need not be run with it.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from quorumcast.core.errors import ensure

_PROBE = "__mistake_reached__"


def probed(text: str, lines: Mapping[str, int]) -> ast.Module:
    """This source with a probe of each name before the innermost statement on its line."""
    tree = ast.parse(text)
    places: list[tuple[int, list[ast.stmt], str]] = []
    for name, line in lines.items():
        found: list[tuple[int, int, list[ast.stmt]]] = [
            ((statement.end_lineno or 0) - statement.lineno, place, block)
            for block in _blocks(tree)
            for place, statement in enumerate(block)
            if statement.lineno <= line <= (statement.end_lineno or 0)
            and not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        ]
        ensure(bool(found), f"{name} is in no statement of a function")
        _, place, block = min(found, key=lambda one: one[0])
        places.append((place, block, name))
    # From the end of each block on: what is inserted moves nothing that is still to come.
    for place, block, name in sorted(places, key=lambda one: -one[0]):
        probe = ast.Expr(ast.Call(ast.Name(_PROBE, ast.Load()), [ast.Constant(name)], []))
        block.insert(place, ast.copy_location(probe, block[place]))
    return ast.fix_missing_locations(tree)


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


class _Loader(SourceFileLoader):
    """Compiles the given source; neither reads nor writes cached bytecode."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._trees = trees

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._trees:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._trees[fullname])
        return spec


def import_instead(trees: Mapping[str, ast.Module]) -> None:
    """Let these modules be made of this when they are imported, which has not happened yet."""
    early: Collection[str] = trees.keys() & sys.modules.keys()
    ensure(not early, f"imported already: {', '.join(early)}")
    sys.meta_path.insert(0, _Finder(trees))


def collect_probes() -> dict[str, None]:
    """The names of the probes that are reached from now on; to be cleared by the caller."""
    reached: dict[str, None] = {}
    setattr(builtins, _PROBE, lambda name: reached.setdefault(name))
    return reached
