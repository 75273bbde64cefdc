"""Patterns of channel names: names are paths, and a pattern leaves some of their levels open.

    plant/*/temp    one level, whatever it is called
    plant/**        any number of levels, none included: `plant` as well as `plant/1/temp`

A level is open as a whole or not at all. Matching takes at most one step per pair of levels,
however many of them are open: the last `**` alone is ever tried again, because whatever an earlier
one could have taken more of, the last one can take as well.
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
    """Refuse what would not mean what it looks like."""
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
    #: Where the last `**` is, and up to where it has taken levels.
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
    """Those names that fit, in their order."""
    check_pattern(pattern)
    return [name for name in names if matches(pattern, name)]
