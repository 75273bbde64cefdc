"""The systems that can be simulated, by name, and operations on any of them.

A system defines its plans, how they are drawn and executed, its known-bad variants, and ways to
simplify a failing plan. Built-in systems have short names; any other is named by its module, as in
`package.module:SYSTEM`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from quorumcast.cell import CELL_SYSTEM
from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.manifest.policy import RELAYED_NAMES
from quorumcast.sim.kernel.known_bad import Catch, Variant, caught_by, mistaken
from quorumcast.sim.kernel.plan import Outcome, Plan
from quorumcast.sim.kernel.run import Run
from quorumcast.sim.kernel.tracing import Tracer, Tracing
from quorumcast.sim.tree import TREE_SYSTEM

#: The tables of an audit, as columns by name.
AuditTables = Mapping[str, Mapping[str, Sequence[object]]]

#: Module and attribute of each built-in system.
BUILT_IN = {
    CELL_SYSTEM: "quorumcast.sim.cell.system:SYSTEM",
    TREE_SYSTEM: "quorumcast.sim.tree.system:SYSTEM",
}
#: The built-in system that runs a policy, by the names of policies that are not a cell's.
FAMILIES = dict.fromkeys(RELAYED_NAMES, TREE_SYSTEM)


class System(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a system that the simulator uses."""

    plan: type[Plan]
    #: Returns the plan for a seed, a policy and an adversary (None: any), or raises `UsageError`.
    #: Naming those that a seed draws gives the same plan: a generator of their own chooses them.
    draw: Callable[[int, str | None, str | None], Plan]
    run: Callable[[Any], Run[Any, Any]]
    tracing: Tracing = Tracing()
    #: Returns the known-bad variants; a function, so that they are imported only when needed.
    variants: Callable[[], Sequence[Variant]] = tuple
    #: Each yields simpler versions of a plan, for shrinking.
    simpler: tuple[Callable[[Any], Iterator[Plan]], ...] = ()
    #: Returns the observations and labels of a run, by seed, for the audit.
    labelled: Callable[[int], AuditTables] | None = None


def system_of(name: str, policy: str | None) -> str:
    """The name of the system that runs a policy: instead of a cell, the one whose policy it is."""
    return FAMILIES.get(policy or "", name) if name == CELL_SYSTEM else name


def find(name: str) -> System:
    """The system with this name."""
    module, _, attribute = BUILT_IN.get(name, name).partition(":")
    try:
        system = getattr(importlib.import_module(module), attribute or "SYSTEM")
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(BUILT_IN)
        raise UsageError(
            f"there is no system {name!r} ({error}); choose one of {known}, or name one of your "
            "own as package.module:SYSTEM"
        ) from None
    if not isinstance(system, System):
        raise UsageError(f"{name!r} is not a system: it is a {type(system).__name__}")
    return system


def perform(plan: Plan, trace: Path | None = None) -> Outcome:
    """Execute a plan; write a trace if a directory is given."""
    system = find(plan.system)
    run = system.run(plan)
    tracer = Tracer(run, system.tracing, trace) if trace is not None else None
    outcome = run.perform()
    if tracer is not None:
        tracer.close()
    return outcome


def run_scenario(
    seed: int,
    policy: str | None = None,
    adversary: str | None = None,
    trace: Path | None = None,
    *,
    system: str = CELL_SYSTEM,
) -> Outcome:
    """Draw a plan and execute it; write a trace below the directory if one is given."""
    place = trace / f"seed-{seed}" if trace is not None else None
    return perform(find(system_of(system, policy)).draw(seed, policy, adversary), place)


def try_variant(variant: Variant) -> Catch:
    """Attack a known-bad variant until a checker catches it, then the correct code likewise."""
    for seed in range(variant.seeds):
        with mistaken(variant.patches):
            outcome = perform(variant.attack(seed))
        found = caught_by(outcome, variant)
        if found:
            clean = not perform(variant.attack(seed)).violations
            return Catch(variant.name, True, found, seed, clean)
    return Catch(variant.name, False)


def planted(name: str, system: str = CELL_SYSTEM) -> AbstractContextManager[None]:
    """A context in which production code has a variant's mistake; without a name, it has none.

    In it drawn scenarios are run, not the variant's own attack.
    """
    return mistaken(variant_named(name, system).patches) if name else nullcontext()


def variant_named(name: str, system: str = CELL_SYSTEM) -> Variant:
    """The known-bad variant of this name."""
    variants = find(system).variants()
    for variant in variants:
        if variant.name == name:
            return variant
    known = [variant.name for variant in variants]
    raise UsageError(f"there is no variant {name!r}; {did_you_mean(name, known)}")
