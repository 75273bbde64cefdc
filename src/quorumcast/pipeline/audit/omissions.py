"""Charges of omission and delay: what did not come, or came late, again and again.

One lost vote says nothing. These rules look at shares: of all that enough others said, how much did
this node leave unsaid, or say late, towards this observer, compared with what the other nodes did
towards the same observer in the same run? Who stands still for a while, restarts or sits behind a
bad line is late with some things; a liar is late with most, and nobody else is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quorumcast.core.quorum import Broadcast
from quorumcast.pipeline.audit.charges import Case, Charge, Feature

#: So many must be missing or late, and this share of what was due.
LEAST, LEAST_SHARE = 5, 0.12
#: Later than this class is late.
LATE_BUCKET = 20
#: A part of the run counts if so much was due in it; a liar is found out in most that count.
DUE, MOST_SLOTS, LEAST_SLOTS = 2, 0.8, 3
#: Who does to this share of what it owes what the accused does is no better.
USUAL = 0.4

#: A leader has proposed so much, and of that this share later than this class, or is not slow.
LED, SLOW_SHARE, SLOW_BUCKET = 20, 0.55, 80

#: What every broker owes whoever listens to it, and what it must not be late with.
OWED = ("Vote", "Ack", "Ready", "Echo", "Contents")
LATE = ("Vote", "Ack", "Accept")
#: Requests that a correct node always answers.
ANSWERABLE = ("Subscribe",)


class Account:
    """What one node owed one observer, of one kind of message."""

    __slots__ = ("due", "failed", "features")

    def __init__(self) -> None:
        #: By part of the run: what was due, and what did not come, or came late.
        self.due: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.features: list[Feature] = []

    def add(self, feature: Feature, *, failed: bool) -> None:
        """Take in what came, or did not."""
        self.due[feature.slot] += feature.count
        if failed:
            self.failed[feature.slot] += feature.count
            self.features.append(feature)

    @property
    def share(self) -> float:
        """How much of what was due."""
        return self.failed.total() / max(1, self.due.total())

    @property
    def steady(self) -> bool:
        """Whether it happened again and again, and not once for a while."""
        counted = sorted(slot for slot, due in self.due.items() if due >= DUE)
        since = [slot for slot in counted if slot >= min(self.failed, default=0)]
        failed = [slot for slot in since if self.failed[slot]]
        return len(failed) >= LEAST_SLOTS and len(failed) >= MOST_SLOTS * len(since)


_Accounts = dict[tuple[str, str], dict[str, Account]]


def soft_charges(case: Case, firm: Sequence[Charge]) -> list[Charge]:
    """Who left unsaid, or said late, what the others said in time.

    What is about the streams of a publisher against whom there are firm charges is left out: its
    lies keep correct brokers from speaking, too.
    """
    lying = {charge.accused for charge in firm} & case.clients
    chained = {
        channel.name
        for channel in case.manifest.channels
        if channel.policy.broadcast is Broadcast.CHAIN
    }
    # A publisher that lies about what is to be ordered makes correct brokers late with it.
    ordered = {channel.name for channel in case.manifest.channels if channel.policy.total}
    features = [
        f
        for f in case.features
        if (f.channel not in chained or f.lane or f.message == "Contents")
        and f.publisher not in lying
    ]
    skipped = [f for f in features if f.kind == "skipped" and f.channel not in ordered]
    missing: _Accounts = {}
    late: _Accounts = {}
    led: _Accounts = {}
    for feature in features:
        if feature.kind not in ("came", "missing"):
            continue
        key = (feature.observer, feature.message)
        gone = feature.kind == "missing"
        if feature.message in OWED:
            account = missing.setdefault(key, {}).setdefault(feature.accused, Account())
            account.add(feature, failed=gone)
        timely = feature.message == "Accept" or feature.channel not in ordered
        if feature.message == "Propose" and not gone and not lying:
            account = led.setdefault(key, {}).setdefault(feature.accused, Account())
            account.add(feature, failed=feature.bucket > SLOW_BUCKET)
        if feature.message in LATE and timely and not gone:
            account = late.setdefault(key, {}).setdefault(feature.accused, Account())
            account.add(feature, failed=feature.bucket > LATE_BUCKET)
    return [
        *_outstanding(case, missing, "dropped", "left out {} messages that the others sent"),
        *_outstanding(case, late, "delayed", "was late with its {} messages"),
        *_skipping(case, skipped),
        *_slow_leaders(case, led),
        *_unanswered(case),
    ]


def _outstanding(case: Case, accounts: _Accounts, deed: str, why: str) -> list[Charge]:
    found = []
    for (_, message), by_accused in accounts.items():
        for accused, account in by_accused.items():
            others = sorted(other.share for name, other in by_accused.items() if name != accused)
            # Up to f of them may be in it together.
            usual = others[: max(1, len(others) - case.manifest.f + 1)]
            alone = message == "Contents" or (usual and usual[-1] <= USUAL * account.share)
            if (
                account.failed.total() >= (LEAST if message != "Ready" else 3)
                and account.share >= LEAST_SHARE
                and (account.steady or message == "Ready")
                and alone
            ):
                found += _charges(case, account.features, deed, why.format(message))
    return found


def _skipping(case: Case, features: list[Feature]) -> list[Charge]:
    return [
        charge
        for pair in case.pairs(features)
        if sum(f.count for f in pair) >= LEAST
        for charge in _charges(case, pair, "dropped", "left numbers out and went on")
    ]


def _slow_leaders(case: Case, accounts: _Accounts) -> list[Charge]:
    """Leaders under whom most of what is offered waits, all the time."""
    return [
        case.charge(account.features, "delayed", "proposed late what had long been offered")
        for by_accused in accounts.values()
        for account in by_accused.values()
        if account.due.total() >= LED and account.share >= SLOW_SHARE and account.steady
    ]


def _charges(case: Case, features: list[Feature], deed: str, why: str) -> list[Charge]:
    """One per publisher: each of them may have kept its own publications from the accused."""
    by: dict[str, list[Feature]] = {}
    for feature in features:
        by.setdefault(feature.publisher, []).append(feature)
    return [case.charge(group, deed, why, publisher=True) for group in by.values()]


def _unanswered(case: Case) -> list[Charge]:
    found = []
    for pair in case.pairs(f for f in case.features if f.kind in ("answered", "unanswered")):
        for request in ANSWERABLE:
            asked = [f for f in pair if f.message == request]
            silent = [f for f in asked if f.kind == "unanswered"]
            count = sum(f.count for f in silent)
            answered = sum(f.count for f in asked) - count
            if silent and (not answered or (count >= 3 and count > answered)):
                found.append(case.charge(silent, "dropped", f"does not answer {request} requests"))
    return found


def leader_charges(case: Case) -> list[Charge]:
    """Leaders that are alive, and under whom nothing got ordered."""
    return [
        case.charge(pair, "dropped", "led and did not get anything ordered")
        for pair in case.pairs(
            f for f in case.features if f.kind == "gave-up" and f.reason == "alive"
        )
    ]
