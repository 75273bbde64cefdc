"""The rules of the house, held by reading the source.

`breaches` judges one module from its name and text alone, so the rules can be tried on
small bad examples: a rule that cannot fail holds nothing.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

#: Bottom to top. A room imports itself and the floors below; rooms on one floor are strangers.
FLOORS = (
    {"core"},
    {"crypto"},
    {"traces"},
    {"manifest"},
    {"matching"},
    {"broadcast"},
    {"ordering"},
    {"cell"},
    {"named"},
    {"watch"},
    {"faults"},
    {"sim", "runtime"},
    {"client"},
    {"testing"},
    {"charts"},
    {"bench"},
    {"pipeline"},
    {"monitoring"},
    {"cli"},
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

SANS_IO = {
    "core", "crypto", "manifest", "matching", "broadcast", "ordering", "cell", "named", "watch",
}  # fmt: skip
IO_MODULES = {
    "asyncio", "logging", "pathlib", "random", "socket", "threading", "time", "uvloop",
}  # fmt: skip
IO_ALLOWED = {("manifest", "pathlib")}

#: What every system uses, and so may know none: neither the rooms of a cell nor its manifest.
KERNEL = (
    "quorumcast.crypto", "quorumcast.runtime.driver", "quorumcast.runtime.links",
    "quorumcast.runtime.store", "quorumcast.sim.kernel",
)  # fmt: skip
OF_A_CELL = {"manifest", "matching", "broadcast", "ordering", "cell", "named", "watch"}

MAX_LINES = 650
#: Without the signature, which in a command is a table of options.
MAX_FUNCTION_LINES = 60
MAX_FILES = 20
#: The audit and its observers together must stay small enough to be read in one sitting.
AUDIT = ("pipeline/audit", "watch")
MAX_AUDIT_LINES = 4_000


def room_of(module: str) -> str | None:
    """The room of `quorumcast.<room>[.…]`; None for the package itself and for strangers."""
    top, *inside = module.split(".")
    return inside[0] if top == "quorumcast" and inside and inside[0] in FLOOR_OF else None


def imports(tree: ast.Module, package: str) -> Iterator[tuple[str, bool]]:
    """Absolute name of everything imported anywhere in the module, and whether it was relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = [*parents, *([node.module] if node.module else [])]
            yield from ((".".join([*base, alias.name]), node.level > 0) for alias in node.names)


def breaches(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Each rule that the module breaks, as `rule: what`."""
    tree = ast.parse(source)
    room = room_of(module)
    if not ast.get_docstring(tree):
        yield "docstring: the module has none"
    if (lines := len(source.splitlines())) > MAX_LINES:
        yield f"length: {lines} lines, at most {MAX_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"assert: line {node.lineno}, use ensure()"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.body[0].lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"function: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
    for name, relative in imports(tree, module if is_package else module.rpartition(".")[0]):
        top, target = name.split(".")[0], room_of(name)
        if room in SANS_IO and top in IO_MODULES and (room, top) not in IO_ALLOWED:
            yield f"sans-io: {room} imports {top}"
        if target in OF_A_CELL and module.startswith(KERNEL):
            yield f"kernel: {module} imports {name}"
        if room and target and target != room:
            if FLOOR_OF[target] >= FLOOR_OF[room]:
                yield f"order: {room} imports {name}"
            if relative:
                yield f"absolute: {name} is imported relatively from {room}"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = sorted((SRC / "quorumcast").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_module_of_the_house_keeps_the_rules(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    is_package = path.name == "__init__.py"
    assert list(breaches(module_name(path), source, is_package=is_package)) == []


def test_audit_with_its_observers_stays_small() -> None:
    """`cat src/quorumcast/{pipeline/audit,watch}/*.py | wc -l` counts the same."""
    files = [path for room in AUDIT for path in (SRC / "quorumcast" / room).glob("*.py")]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert 0 < lines <= MAX_AUDIT_LINES


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=module_name)
def test_folder_is_small_enough_to_be_seen_at_once(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= MAX_FILES, "give it sub-rooms"


def circles(wanted_by: dict[str, set[str]]) -> list[str]:
    """Modules that need themselves, by way of others or not."""
    free = {name for name, wanted in wanted_by.items() if not wanted}
    left = {name: wanted - free for name, wanted in wanted_by.items() if name not in free}
    return circles(left) if free else sorted(left)


def test_modules_import_one_another_in_no_circle() -> None:
    names = {module_name(path): path for path in MODULES}
    wanted_by: dict[str, set[str]] = {}
    for name, path in names.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = {wanted for wanted, _ in imports(ast.parse(path.read_text("utf-8")), package)}
        modules = {one if one in names else one.rpartition(".")[0] for one in found}
        wanted_by[name] = modules & names.keys() - {name}
    assert circles(wanted_by) == []


def repeated(sources: Iterable[str]) -> set[str]:
    """Names of classes that stand in more than one place; private ones do not count."""
    trees = map(ast.parse, sources)
    classes = (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    names = Counter(node.name for node in classes if not node.name.startswith("_"))
    return {name for name, count in names.items() if count > 1}


def test_class_name_has_one_meaning() -> None:
    # What applications publish and receive has the names that they expect.
    public = {"Event", "Publisher"}
    assert repeated(path.read_text(encoding="utf-8") for path in MODULES) == public


def test_checker_class_name_that_stands_twice_is_found() -> None:
    assert repeated(
        ["class A: ...\nclass _C: ...", "class A: ...\nclass B: ...\nclass _C: ..."]
    ) == {"A"}


def test_room_of_the_house_has_a_floor() -> None:
    rooms = {path.relative_to(SRC).parts[1] for path in MODULES if path.parent.parent != SRC}
    assert rooms <= FLOOR_OF.keys(), "a new room: give it a floor in FLOORS"


DOC = '"""Doc."""\n'

BAD = [
    ("docstring", "quorumcast.core.ids", "x = 1\n"),
    ("length", "quorumcast.core.ids", DOC + "x = 1\n" * MAX_LINES),
    ("function", "quorumcast.core.ids", DOC + "def f():\n" + "    f()\n" * 61),
    ("assert", "quorumcast.sim.cell.world", DOC + "def f(x):\n    assert x\n"),
    ("sans-io", "quorumcast.core.ids", DOC + "import time\n"),
    ("sans-io", "quorumcast.cell.naming", DOC + "def f():\n    from asyncio.tasks import wait\n"),
    ("sans-io", "quorumcast.crypto.mac", DOC + "import pathlib\n"),
    ("order", "quorumcast.core.ids", DOC + "import quorumcast.crypto.mac\n"),
    ("order", "quorumcast.cell.serving.broker", DOC + "from quorumcast import cli\n"),
    ("order", "quorumcast.broadcast.sender", DOC + "from quorumcast.ordering import offers\n"),
    ("sans-io", "quorumcast.ordering.leader_change", DOC + "import time\n"),
    ("order", "quorumcast.sim.cell.world", DOC + "from quorumcast.runtime import node\n"),
    ("order", "quorumcast.runtime.node", DOC + "from quorumcast.sim.cell.world import World\n"),
    ("order", "quorumcast.testing.plugin", DOC + "from quorumcast.cli.main import app\n"),
    ("kernel", "quorumcast.runtime.links.link", DOC + "from quorumcast.cell import messages\n"),
    ("kernel", "quorumcast.sim.kernel.node", DOC + "import quorumcast.manifest.manifest\n"),
    ("absolute", "quorumcast.named.state", DOC + "from ..core import ids\n"),
    ("absolute", "quorumcast.named.state", DOC + "from ..core.ids import NodeId\n"),
    ("absolute", "quorumcast.sim.checks.safety", DOC + "from ... import core\n"),
]

GOOD = [
    ("quorumcast.core.ids", DOC + "x = 1\n" * (MAX_LINES - 1)),
    ("quorumcast.core.ids", DOC + "def f(" + "\n    x,\n" * 9 + "):\n" + "    f()\n" * 60),
    ("quorumcast.core.ids", DOC + "from . import quorum\nfrom .tally import Tally\n"),
    ("quorumcast.runtime.broker.broker", DOC + "from quorumcast.cell import messages\n"),
    ("quorumcast.manifest.load", DOC + "from pathlib import Path\n"),
    ("quorumcast.sim.checks.safety", DOC + "import random\nfrom ..world import World\n"),
    ("quorumcast.client.publisher", DOC + "from quorumcast.runtime.node import Node\n"),
    ("quorumcast.testing.plugin", DOC + "from quorumcast import __version__, client, sim\n"),
    ("quorumcast.cli.main", DOC + "import asyncio\nfrom quorumcast.testing import plugin\n"),
]


@pytest.mark.parametrize(("rule", "module", "source"), BAD)
def test_checker_bad_module_names_the_broken_rule(rule: str, module: str, source: str) -> None:
    assert [breach.partition(":")[0] for breach in breaches(module, source)] == [rule]


@pytest.mark.parametrize(("module", "source"), GOOD)
def test_checker_good_module_is_silent(module: str, source: str) -> None:
    assert list(breaches(module, source)) == []


def test_checker_circle_is_named_and_who_only_needs_it_is_not_spared() -> None:
    assert circles({"a": {"b"}, "b": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_checker_relative_import_of_a_package_starts_at_the_package() -> None:
    source = DOC + "from .crypto import mac\n"
    assert not list(breaches("quorumcast.core", source, is_package=True))
    assert list(breaches("quorumcast.core.crypto_test", DOC + "from ..crypto import mac\n"))
