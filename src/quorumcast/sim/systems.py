"""The systems that can be simulated, by name, and what is done with any of them.

A system brings its plans, how they are drawn and carried out, its known-bad variants, and how a
failing plan is made simpler. Ours have short names. Another one is named by its module, as in
`package.module:SYSTEM`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.sim.kernel.known_bad import Catch, Variant, caught_by, mistaken
from quorumcast.sim.kernel.node import Watcher
from quorumcast.sim.kernel.plan import Outcome, Plan
from quorumcast.sim.kernel.run import Run
from quorumcast.sim.kernel.tracing import Tracer, Tracing

#: The tables of an audit, as columns by name.
AuditTables = Mapping[str, Mapping[str, Sequence[object]]]

OURS = {"cell": "quorumcast.sim.cell.system:SYSTEM"}


class System(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulator has to know of a system."""

    plan: type[Plan]
    #: From a seed, a policy and an adversary (None: any) to a plan.
    draw: Callable[[int, str | None, str | None], Plan]
    run: Callable[[Any, Sequence[Watcher]], Run[Any, Any]]
    tracing: Tracing = Tracing()
    #: The known-bad variants; made when they are asked for.
    variants: Callable[[], Sequence[Variant]] = tuple
    #: Each offers simpler versions of a plan, for shrinking.
    simpler: tuple[Callable[[Any], Iterator[Plan]], ...] = ()
    #: From a seed to a run in which observers took notes, with labels, for the audit.
    labelled: Callable[[int], AuditTables] | None = None


def find(name: str) -> System:
    """The system of this name."""
    module, _, attribute = OURS.get(name, name).partition(":")
    try:
        system = getattr(importlib.import_module(module), attribute or "SYSTEM")
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(OURS)
        raise UsageError(
            f"there is no system {name!r} ({error}); choose one of {known}, or name one of your "
            "own as package.module:SYSTEM"
        ) from None
    if not isinstance(system, System):
        raise UsageError(f"{name!r} is not a system: it is a {type(system).__name__}")
    return system


def perform(plan: Plan, trace: Path | None = None) -> Outcome:
    """Carry out a plan; with a directory for it, leave a trace."""
    system = find(plan.system)
    run = system.run(plan, ())
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
    system: str = "cell",
) -> Outcome:
    """Draw a plan and carry it out; with a directory for traces, leave one there."""
    place = trace / f"seed-{seed}" if trace is not None else None
    return perform(find(system).draw(seed, policy, adversary), place)


def try_variant(variant: Variant) -> Catch:
    """Attack a wrong variant until a checker notices, then the correct code in the same way."""
    for seed in range(variant.seeds):
        with mistaken(variant.patches):
            outcome = perform(variant.attack(seed))
        found = caught_by(outcome, variant)
        if found:
            clean = not perform(variant.attack(seed)).violations
            return Catch(variant.name, True, found, seed, clean)
    return Catch(variant.name, False)


def planted(name: str, system: str = "cell") -> AbstractContextManager[None]:
    """Production code with a variant's mistake for as long as this lasts; as it is, without a name.

    Drawn scenarios are then run, not the variant's own attack: they must find the mistake.
    """
    if not name:
        return nullcontext()
    variants = find(system).variants()
    for variant in variants:
        if variant.name == name:
            return mistaken(variant.patches)
    known = ", ".join(variant.name for variant in variants)
    raise UsageError(f"there is no variant {name!r}; choose one of {known}")
