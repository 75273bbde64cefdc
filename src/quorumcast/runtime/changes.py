"""What a store is asked to change, and what is left to do of many changes in a row."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Keep(msgspec.Struct, frozen=True):
    """Write a record to its address."""

    kind: str
    owner: str
    place: int
    record: bytes


class Remove(msgspec.Struct, frozen=True):
    """Remove the records of a kind and owner below a place."""

    kind: str
    owner: str
    below: int


Change = Keep | Remove


def outcome(
    changes: Sequence[Change], seq: int
) -> tuple[dict[tuple[str, str], int], list[tuple[int, Keep]]]:
    """What is left to do if these changes follow each other: removals first, then these records.

    What is replaced or removed again within one commit never reaches the disk.
    """
    removals: dict[tuple[str, str], int] = {}
    keeps: dict[tuple[str, str, int], tuple[int, Keep]] = {}
    # Backwards: whatever is met has been replaced or removed by what was met before, or stays.
    for at in range(len(changes) - 1, -1, -1):
        change = changes[at]
        owned = change.kind, change.owner
        if isinstance(change, Remove):
            removals[owned] = max(change.below, removals.get(owned, change.below))
        elif change.place >= removals.get(owned, change.place):
            keeps.setdefault((*owned, change.place), (seq + at + 1, change))
    return removals, list(reversed(keeps.values()))
