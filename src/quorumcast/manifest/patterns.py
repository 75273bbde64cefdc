"""Patterns of channel names, which are paths; a star stands for whole levels.

    plant/*/temp    exactly one level
    plant/**        any number of levels, also none: `plant` as well as `plant/1/temp`

Matching takes at most one step per pair of levels: it backtracks to the last `**` only, because
that one can match all that an earlier `**` could match beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_NAME

ONE, ANY = "*", "**"
_LEVEL = "/"


def is_pattern(name: str) -> bool:
    """Whether this is a pattern; no channel's name has a star in it."""
    return ONE in name


def check_pattern(pattern: str) -> None:
    """Raise `UsageError` for a pattern with a star inside a level."""
    if len(pattern) > MAX_NAME:
        raise UsageError(
            f"the pattern {pattern[:16]!r}… has {len(pattern)} characters; {MAX_NAME} are allowed"
        )
    for level in pattern.split(_LEVEL):
        if ONE in level and level not in (ONE, ANY):
            raise UsageError(
                f"the pattern {pattern!r} has the level {level!r}: a level is {ONE!r} (any one "
                f"level), {ANY!r} (any number of levels), or a name without stars"
            )


def matches(pattern: str, name: str) -> bool:
    """Whether a channel's name fits a pattern."""
    levels, names = pattern.split(_LEVEL), name.split(_LEVEL)
    at = upto = 0
    #: The index of the last `**`, and the end of the levels that it matches so far.
    wide, taken = -1, 0
    while upto < len(names):
        if at < len(levels) and levels[at] == ANY:
            wide, taken = at, upto
            at += 1
        elif at < len(levels) and levels[at] in (ONE, names[upto]):
            at += 1
            upto += 1
        elif wide >= 0:
            taken += 1
            at, upto = wide + 1, taken
        else:
            return False
    return all(level == ANY for level in levels[at:])


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that match, in their order."""
    check_pattern(pattern)
    return [name for name in names if matches(pattern, name)]
