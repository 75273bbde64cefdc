"""An import hook that compiles modules from changed source: with a mistake, or with probes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from quorumcast.core.errors import ensure


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
    """Compile these modules from the given trees when they are imported; none may be loaded yet."""
    early: Collection[str] = trees.keys() & sys.modules.keys()
    ensure(not early, f"imported already: {', '.join(early)}")
    sys.meta_path.insert(0, _Finder(trees))
