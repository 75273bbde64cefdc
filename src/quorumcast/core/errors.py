"""The two kinds of error that are raised; a peer's misbehaviour is never one of them.

A peer's misbehaviour is an *effect* (`Drop`, `Suspect`, `Accuse`). What is raised is either the
caller's misuse, with a sentence that says what to do instead, or a broken invariant of our own,
which stops the node rather than let it lie.
"""

from __future__ import annotations


class UsageError(Exception):
    """The caller asked for something impossible; the text says what is wrong and what to do."""


class InvariantError(AssertionError):
    """A machine found itself in a state that it promised never to be in."""


def ensure(condition: bool, invariant: str) -> None:
    """Stop the node when one of its own invariants is broken (unlike `assert`, also under -O)."""
    if not condition:
        raise InvariantError(invariant)
