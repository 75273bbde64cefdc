"""Charges of omission: what never came, again and again.

One lost vote says nothing. This rule looks at shares: of all that enough others said, how much did
this node leave unsaid towards this observer, compared with what the other nodes did towards the
same observer in the same run? Being late is no charge at all (`lateness`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from quorumcast.pipeline.audit.charges import Case, Charge, Feature
from quorumcast.pipeline.audit.thresholds import (
    DUE,
    IN_VAIN,
    LEAST,
    LEAST_SHARE,
    LEAST_SLOTS,
    MANY_SLOTS,
    MOST_SLOTS,
    NEVER,
    USUAL,
)
from quorumcast.watch.inquiries import ANSWER
from quorumcast.watch.turnout import MUTE

#: What every broker owes whoever listens to it.
OWED = ("Vote", "Ack", "Ready", "Echo", "Contents", ANSWER)
#: What brokers say of histories too, and there all of them do: an account of its own.
OF_HISTORIES = {"Ack": "Ack (history)", "Vote": "Vote (history)"}
#: What all correct brokers say in the end, whatever a publisher does.
WHATEVER_IS_PUBLISHED = ("Ready", *OF_HISTORIES.values())
#: What all of them say in the end where what a publisher said is settled, though it lies.
WHOEVER_LIES = ("Ready", "Vote")


class Account:
    """What one node owed one observer, of one kind of message."""

    def __init__(self) -> None:
        #: By part of the run: what was due, and what never came.
        self.due: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        #: What was due of each publisher.
        self.of: Counter[str] = Counter()
        self.features: list[Feature] = []

    def add(self, feature: Feature) -> None:
        """Take in what came, or did not."""
        self.due[feature.slot] += feature.count
        self.of[feature.publisher] += feature.count
        if feature.kind == "missing":
            self.failed[feature.slot] += feature.count
            self.features.append(feature)

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
    def share(self) -> float:
        """How much of what was due never came."""
        return self.failed.total() / max(1, self.due.total())

    @property
    def never_came(self) -> bool:
        """Whether nothing that was due ever came, of a node that said other things meanwhile."""
        return self.failed == self.due and all(f.reason != MUTE for f in self.features)

    def is_steady(self, also: Collection[int]) -> bool:
        """Whether it happened again and again, and not once for a while.

        `also` are parts of the run in which others saw as much.
        """
        first = min(self.failed, default=0)
        since = {slot: due for slot, due in self.due.items() if slot >= first}
        if len(since) > 1 and all(self.failed[slot] == due for slot, due in since.items()):
            return True  # nothing came any more
        counted = [slot for slot, due in since.items() if due >= DUE]
        failed = [slot for slot in counted if self.failed[slot] or slot in also]
        # A node that stands still for a while does nothing at all meanwhile.
        mixed = [slot for slot in failed if self.failed[slot] < self.due[slot]]
        most = MANY_SLOTS if len(mixed) >= LEAST_SLOTS else MOST_SLOTS
        return len(failed) >= LEAST_SLOTS and len(failed) >= most * len(counted)


#: By observer and kind of message, and by the node that owes it.
Accounts = dict[tuple[str, str], dict[str, Account]]


def omissions(case: Case, lying: Collection[str]) -> list[Charge]:
    """Brokers that left unsaid what the others said.

    What is about the streams of publishers that may be `lying` is left out: their lies keep correct
    brokers from speaking, too.
    """
    accounts = _accounts(case, lying)
    several = _seen_by_several(accounts)
    found: list[Charge] = []
    for (_, message), by_accused in accounts.items():
        settled = message in WHATEVER_IS_PUBLISHED
        for accused, account in by_accused.items():
            also = several.get((message, accused), ())
            # One broker at a time sends contents: there is none to compare it with.
            alone = message == "Contents" or _is_alone(case, by_accused, accused)
            if alone and _is_omission(message, account, also):
                why = f"left out {account.features[0].message} messages that the others sent"
                found += case.charge_each(account.weighty, why, settled=settled)
    return found


def _is_omission(message: str, account: Account, also: Collection[int]) -> bool:
    """Whether so much is missing, and so steadily, that no weather explains it."""
    failed = account.failed.total()
    if message.startswith(ANSWER):
        return account.never_came and failed >= IN_VAIN
    certain = message in WHATEVER_IS_PUBLISHED or account.never_came
    return (
        failed >= (NEVER if certain else LEAST)
        and account.share >= LEAST_SHARE
        and (certain or account.is_steady(also))
    )


def _accounts(case: Case, lying: Collection[str]) -> Accounts:
    channels = case.manifest.channels
    chained = {c.name for c in channels if c.policy.chained}
    accounted = {c.name for c in channels if c.policy.has_history}

    def counts(f: Feature) -> bool:
        if f.kind not in ("came", "missing") or f.message not in OWED:
            return False
        if f.channel in chained and not f.lane and f.message not in ("Contents", ANSWER):
            return False  # only the last brokers of a chain speak to others
        if f.message == "Vote" and f.channel in accounted and not f.lane:
            return False  # a broker that learned it from a history does not vote for it again
        settled = f.message in WHOEVER_LIES and case.settles(f)
        return f.publisher not in lying or (settled and f.publisher not in case.flooding)

    found: Accounts = {}
    for feature in filter(counts, case.features):
        owed = feature.message
        if owed == ANSWER:
            owed = f"{ANSWER} {feature.channel}"
        elif feature.lane and owed in OF_HISTORIES:
            owed = OF_HISTORIES[owed]
        by_accused = found.setdefault((feature.observer, owed), {})
        by_accused.setdefault(feature.accused, Account()).add(feature)
    return found


def _seen_by_several(accounts: Accounts) -> dict[tuple[str, str], set[int]]:
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


def _is_alone(case: Case, by_accused: dict[str, Account], accused: str) -> bool:
    """Whether the others do much better; up to f of them may be in it together."""
    others = sorted(other.share for name, other in by_accused.items() if name != accused)
    usual = others[: max(1, len(others) - case.manifest.f + 1)]
    return bool(usual) and usual[-1] <= USUAL * by_accused[accused].share
