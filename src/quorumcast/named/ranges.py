"""Sets of positions as sorted ranges, so that one acknowledgement covers many positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: First and last position of a range, both included.
Span = tuple[int, int]


def spans(positions: Iterable[int]) -> list[Span]:
    """The sorted ranges that contain exactly these positions."""
    found: list[Span] = []
    for position in sorted(positions):
        if found and found[-1][1] >= position - 1:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found


def within(ranges: Iterable[Span], present: Iterable[int]) -> Iterator[int]:
    """Those of the present positions that lie in some range.

    Iterates over `present`, never over the ranges: a peer chooses how wide a range is.
    """
    wanted = list(ranges)
    return (p for p in present if any(first <= p <= last for first, last in wanted))
