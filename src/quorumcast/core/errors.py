"""The two kinds of error that are raised; a peer's misbehaviour is never one of them.

A peer's misbehaviour is an *effect* (`Drop`, `Suspect`, `Accuse`). What is raised is either the
caller's misuse, with a sentence that says what to do instead, or a broken invariant of our own,
which stops the node rather than let it lie.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Characters of a value that sentences repeat.
_SHOWN = 200
#: Characters of an unknown name that are compared with known ones: a peer may have sent it.
_COMPARED = 128


class UsageError(Exception):
    """The caller asked for something impossible; the text says what is wrong and what to do."""


class InvariantError(AssertionError):
    """A machine found itself in a state that it promised never to be in."""


def shortened(value: str) -> str:
    """A value as it goes into a sentence."""
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that an unknown one probably stands for, whatever its case; or empty."""
    from difflib import get_close_matches  # not needed where nothing is misspelt

    by_lower = {other.lower(): other for other in known}
    near = get_close_matches(name[:_COMPARED].lower(), by_lower, 1)
    return by_lower[near[0]] if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to do about an unknown name: the known one that was meant, or else all of them."""
    names = tuple(known)
    near = nearest(name, names)
    return f"did you mean {near!r}?" if near else f"choose one of {', '.join(names) or 'none'}"


def ensure(condition: bool, invariant: str) -> None:
    """Stop the node when one of its own invariants is broken (unlike `assert`, also under -O)."""
    if not condition:
        raise InvariantError(invariant)
