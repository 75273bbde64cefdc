"""Deliberately wrong variants of the production code: the checkers must catch every one of them.

A variant replaces one small method of a production class for the duration of a run; production code
knows nothing of it. Beside it stands the attack that makes the mistake matter, a `Plan`, and the
property that must then be reported broken. The same attack on the correct code must be clean, or
the catch proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from quorumcast.sim.kernel.plan import Outcome, Plan


class Patch(msgspec.Struct, frozen=True):
    """One attribute of a production class, replaced."""

    owner: Any
    attribute: str
    replacement: Any


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake, the attack that exposes it, and the checkers that may catch it."""

    name: str
    mistake: str
    patches: tuple[Patch, ...]
    attack: Callable[[int], Plan]
    #: Any of these properties may be reported.
    caught_by: tuple[str, ...]
    #: Seeds that are tried until one exposes it.
    seeds: int = 12


class Catch(msgspec.Struct, frozen=True):
    """What became of one variant."""

    name: str
    caught: bool
    by: str = ""
    seed: int = -1
    #: Whether the same attack leaves the correct code unharmed.
    clean: bool = True


@contextmanager
def mistaken(patches: Sequence[Patch]) -> Iterator[None]:
    """Production code with these attributes replaced, and put back afterwards."""
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
    """The property that this run shows broken, of those that the variant may break; or nothing."""
    for violation in outcome.violations:
        if violation.property in variant.caught_by:
            return violation.property
    return ""
