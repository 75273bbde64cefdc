"""Known-bad variants: deliberate mistakes in production code that the checkers must catch.

A variant patches a method of a production class for the duration of a run. It names an attack (a
`Plan`) that makes the mistake matter, and the properties of which one must then be violated. The
same attack on the correct code must be clean; otherwise the catch proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from quorumcast.sim.kernel.plan import Outcome, Plan


class Patch(msgspec.Struct, frozen=True):
    """The replacement of one attribute of a production class."""

    owner: Any
    attribute: str
    replacement: Any


class Variant(msgspec.Struct, frozen=True):
    """One mistake, the attack that exposes it, and the checkers that may catch it."""

    name: str
    mistake: str
    patches: Sequence[Patch]
    attack: Callable[[int], Plan]
    #: Properties of which one must be reported.
    caught_by: tuple[str, ...]
    #: Number of seeds tried until one exposes the mistake.
    seeds: int = 12


class Catch(msgspec.Struct, frozen=True):
    """The result of attacking one variant."""

    name: str
    caught: bool
    by: str = ""
    seed: int = -1
    #: Whether the same attack leaves the correct code unharmed.
    clean: bool = True


@contextmanager
def mistaken(patches: Sequence[Patch]) -> Iterator[None]:
    """Replace these attributes of production code, and restore them afterwards."""
    saved: list[tuple[Any, str, Any]] = []
    try:
        for patch in patches:
            saved.append((patch.owner, patch.attribute, patch.owner.__dict__[patch.attribute]))
            setattr(patch.owner, patch.attribute, patch.replacement)
        yield
    finally:
        for owner, attribute, original in reversed(saved):
            setattr(owner, attribute, original)


def caught_by(outcome: Outcome, variant: Variant) -> str:
    """The first violated property that the variant names, or an empty string."""
    for violation in outcome.violations:
        if violation.property in variant.caught_by:
            return violation.property
    return ""
