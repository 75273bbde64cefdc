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
    """Remove the records of a kind and owner from one place on and below another."""

    kind: str
    owner: str
    below: int
    since: int = 0


Change = Keep | Remove


def outcome(
    changes: Sequence[Change], seq: int
) -> tuple[list[tuple[str, str, int, int]], list[tuple[int, Keep]]]:
    """What is left to do if these changes follow each other: removals first, then these records.

    Removals as kind, owner, first place and the place after the last. What is replaced or removed
    again within one commit never reaches the disk.
    """
    removals: dict[tuple[str, str, int], int] = {}
    keeps: dict[tuple[str, str, int], tuple[int, Keep]] = {}
    #: Where removals of an owner begin, so that few are looked at for each record.
    begun: dict[tuple[str, str], list[int]] = {}
    # Backwards: whatever is met has been replaced or removed by what was met before, or stays.
    for at in range(len(changes) - 1, -1, -1):
        change = changes[at]
        owned = change.kind, change.owner
        if isinstance(change, Remove):
            key = (*owned, change.since)
            if key not in removals:
                begun.setdefault(owned, []).append(change.since)
            removals[key] = max(change.below, removals.get(key, change.below))
        elif not any(
            since <= change.place < removals[*owned, since] for since in begun.get(owned, ())
        ):
            keeps.setdefault((*owned, change.place), (seq + at + 1, change))
    gone = [(kind, owner, since, below) for (kind, owner, since), below in removals.items()]
    return gone, list(reversed(keeps.values()))
