"""Sets of positions as sorted ranges: one acknowledgement speaks of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: First and last position of each row of consecutive ones.
Span = tuple[int, int]


def spans(positions: Iterable[int]) -> list[Span]:
    """The ranges that hold exactly these positions, in order."""
    found: list[Span] = []
    for position in sorted(positions):
        if found and found[-1][1] >= position - 1:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found


def within(ranges: Iterable[Span], present: Iterable[int]) -> Iterator[int]:
    """Those positions that some range holds.

    Runs over what is present, never over the ranges: their width is up to whoever wrote them.
    """
    wanted = list(ranges)
    return (p for p in present if any(first <= p <= last for first, last in wanted))
