"""Accounts: what nodes owed one observer, and how much of it never came.

Whether that is a reason to charge somebody depends on its share, on how steadily it went on, and on
what everybody else did towards the same observer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from quorumcast.agents.observing.turnout import MUTE
from quorumcast.pipeline.audit.charges import Case, Feature
from quorumcast.pipeline.audit.thresholds import (
    DUE,
    LEAST_SHARE,
    LEAST_SLOTS,
    MANY_SLOTS,
    MOST_SLOTS,
    USUAL,
)


class Account:
    """What one node owed one observer, of one kind of message."""

    __slots__ = ("due", "failed", "features", "of")

    def __init__(self) -> None:
        #: By part of the run: what was due, and what never came.
        self.due: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        #: What was due of each publisher.
        self.of: Counter[str] = Counter()
        self.features: list[Feature] = []

    def add(self, feature: Feature, *, failed: bool) -> None:
        """Take in what came, or did not."""
        self.due[feature.slot] += feature.count
        self.of[feature.publisher] += feature.count
        if failed:
            self.failed[feature.slot] += feature.count
            self.features.append(feature)

    def fails_without(self, publishers: Collection[str], least: int) -> bool:
        """Whether enough failed of what is not about these."""
        due = sum(count for publisher, count in self.of.items() if publisher not in publishers)
        failed = sum(f.count for f in self.features if f.publisher not in publishers)
        return failed >= max(least, LEAST_SHARE * due)

    @property
    def weighty(self) -> list[Feature]:
        """What failed, but for what is little of all that was due of its publisher.

        What one publisher keeps from a node says nothing of the few things of others that are late.
        """
        failed: Counter[str] = Counter()
        for feature in self.features:
            failed[feature.publisher] += feature.count
        return [
            f for f in self.features if failed[f.publisher] >= LEAST_SHARE * self.of[f.publisher]
        ]

    @property
    def due_since(self) -> dict[int, int]:
        """What was due in each part of the run from the first failure on."""
        first = min(self.failed, default=0)
        return {slot: due for slot, due in sorted(self.due.items()) if slot >= first}

    @property
    def share(self) -> float:
        """How much of what was due."""
        return self.failed.total() / max(1, self.due.total())

    @property
    def never_came(self) -> bool:
        """Whether nothing that was due ever came, of who was there and said other things."""
        return self.failed == self.due and all(f.reason != MUTE for f in self.features)

    def is_mixed(self, slot: int) -> bool:
        """Whether it did some things in a part of the run, though not all.

        Who stands still for a while does nothing at all meanwhile.
        """
        return self.failed[slot] < self.due[slot]

    def is_steady(self, also: Collection[int] = (), least: int = LEAST_SLOTS) -> bool:
        """Whether it happened again and again, and not once for a while.

        `also` are parts of the run in which others saw as much; `least` so many it must be.
        """
        since = self.due_since
        if len(since) > 1 and all(self.failed[slot] == due for slot, due in since.items()):
            return True  # nothing came any more
        counted = [slot for slot, due in since.items() if due >= DUE]
        failed = [slot for slot in counted if self.failed[slot] or slot in also]
        mixed = [slot for slot in failed if self.is_mixed(slot)]
        most = MANY_SLOTS if len(mixed) >= LEAST_SLOTS else MOST_SLOTS
        return len(failed) >= least and len(failed) >= most * len(counted)


#: By observer and kind of message, and by who owes it.
Accounts = dict[tuple[str, str], dict[str, Account]]


def seen_by_several(accounts: Accounts) -> dict[tuple[str, str], set[int]]:
    """In which parts of the run at least two observers miss something, by message and accused."""
    seen: Counter[tuple[str, str, int]] = Counter()
    for (_, message), by_accused in accounts.items():
        for accused, account in by_accused.items():
            seen.update((message, accused, slot) for slot in account.failed)
    found: dict[tuple[str, str], set[int]] = {}
    for (message, accused, slot), observers in seen.items():
        if observers > 1:
            found.setdefault((message, accused), set()).add(slot)
    return found


def is_alone(case: Case, by_accused: dict[str, Account], accused: str) -> bool:
    """Whether the others do much better; up to f of them may be in it together."""
    others = sorted(other.share for name, other in by_accused.items() if name != accused)
    usual = others[: max(1, len(others) - case.manifest.f + 1)]
    return bool(usual) and usual[-1] <= USUAL * by_accused[accused].share


def is_backed(case: Case, by_accused: dict[str, Account]) -> bool:
    """Whether a correct one, and so whoever published it, did what the others did not.

    That is no matter of a line: who fails lies, or was told something else, if that can be.
    """
    did = [account for account in by_accused.values() if account.share < LEAST_SHARE]
    return len(did) > case.manifest.f and not any(
        case.settles(f) for account in by_accused.values() for f in account.features
    )
