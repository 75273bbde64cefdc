"""An import hook that compiles one module with a mistake in it.

Right before the statement with the mistake a probe counts how often it is reached: a mistake that
no scenario reaches tells something else than one that is reached and goes unnoticed.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from quorumcast.core.errors import ensure

_PROBE = "__mistake_reached__"


class Reached:
    """How often the statement with the mistake has been reached."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        """Once more."""
        self.times += 1


def probed(text: str, line: int) -> ast.Module:
    """This source with a probe before the innermost statement on a line."""
    tree = ast.parse(text)
    found: list[tuple[int, list[ast.stmt], int]] = [
        ((statement.end_lineno or 0) - statement.lineno, block, place)
        for block in _blocks(tree)
        for place, statement in enumerate(block)
        if statement.lineno <= line <= (statement.end_lineno or 0)
        and not isinstance(statement, ast.FunctionDef | ast.ClassDef)
    ]
    if found:
        _, block, place = min(found, key=lambda one: one[0])
        probe = ast.Expr(ast.Call(ast.Name(_PROBE, ast.Load()), [], []))
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
    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module = module
        self._tree = tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._tree)
        return spec


def import_instead(module: str, text: str, line: int) -> Reached:
    """Let this module be made of this text when it is imported, which has not happened yet."""
    ensure(module not in sys.modules, f"{module} is imported already")
    reached = Reached()
    setattr(builtins, _PROBE, reached)
    sys.meta_path.insert(0, _Finder(module, probed(text, line)))
    return reached
