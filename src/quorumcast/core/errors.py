"""The two kinds of error that are raised; a peer's misbehaviour is never one of them.

A peer's misbehaviour is an *effect* (`Drop`, `Suspect`, `Accuse`). What is raised is either the
caller's misuse, with a sentence that says what to do instead, or a broken invariant of our own,
which stops the node rather than let it lie.
"""

from __future__ import annotations

#: Characters of a value that sentences repeat.
_SHOWN = 200


class UsageError(Exception):
    """The caller asked for something impossible; the text says what is wrong and what to do."""


class InvariantError(AssertionError):
    """A machine found itself in a state that it promised never to be in."""


def shortened(value: str) -> str:
    """A value as it goes into a sentence."""
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"


def ensure(condition: bool, invariant: str) -> None:
    """Stop the node when one of its own invariants is broken (unlike `assert`, also under -O)."""
    if not condition:
        raise InvariantError(invariant)
