"""Charges of omission and delay: what did not come, or came late, again and again.

One lost vote says nothing. These rules look at shares: of all that enough others said, how much did
this node leave unsaid, or say late, towards this observer, compared with what the other nodes did
towards the same observer in the same run? Who stands still for a while, restarts or sits behind a
bad line is late with some things; a liar is late with most, and nobody else is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from quorumcast.core.quorum import Broadcast
from quorumcast.pipeline.audit.charges import Case, Charge, Feature

#: So many must be missing, and this share of what was due.
MISSING, MISSING_SHARE = 5, 0.15
#: So many must have been looked at for lateness, and this share must be late by this class.
LOOKED_AT, LATE_SHARE, LATE_BUCKET = 10, 0.15, 20
#: … while at most this share of what the others said is.
USUAL_SHARE = 0.05

#: What every broker owes every observer, whatever else it is busy with.
OWED = ("Vote", "Ack", "Ready", "Echo", "Accept")


class _Account:
    """What one node owed one observer, of one kind of message."""

    __slots__ = ("came", "features", "late", "missing")

    def __init__(self) -> None:
        self.came = 0
        self.late = 0
        self.missing = 0
        self.features: list[Feature] = []

    def add(self, feature: Feature) -> None:
        if feature.kind == "missing":
            self.missing += feature.count
        else:
            self.came += feature.count
            self.late += feature.count if feature.bucket > LATE_BUCKET else 0
        self.features.append(feature)

    @property
    def missing_share(self) -> float:
        return self.missing / max(1, self.missing + self.came)

    @property
    def late_share(self) -> float:
        return self.late / max(1, self.came)


_Accounts = dict[tuple[str, str], dict[str, _Account]]


def _accounts(features: Iterable[Feature]) -> _Accounts:
    """By observer and message, by accused."""
    found: _Accounts = {}
    for feature in features:
        if feature.kind in ("came", "missing") and feature.message in OWED:
            by_accused = found.setdefault((feature.observer, feature.message), {})
            by_accused.setdefault(feature.accused, _Account()).add(feature)
    return found


def soft_charges(case: Case) -> list[Charge]:
    """Who left unsaid, or said late, what the others said in time."""
    chained = {
        channel.name
        for channel in case.manifest.channels
        if channel.policy.broadcast is Broadcast.CHAIN
    }
    features = [f for f in case.features if f.channel not in chained]
    found: list[Charge] = []
    for (_, message), accounts in _accounts(features).items():
        for accused, account in accounts.items():
            others = [other for name, other in accounts.items() if name != accused]
            found += _missing(case, message, account, others)
            found += _late(case, message, account, others)
    return [*found, *_unanswered(case), *_repeated(case), *_leaders(case)]


def _missing(case: Case, message: str, account: _Account, others: list[_Account]) -> list[Charge]:
    spared = sorted(other.missing_share for other in others)
    usual = spared[: max(1, len(spared) - case.manifest.f + 1)]
    if (
        account.missing < MISSING
        or account.missing_share < MISSING_SHARE
        or not usual
        or usual[-1] > account.missing_share / 2
    ):
        return []
    why = f"left out {message} messages that the others sent"
    features = [f for f in account.features if f.kind == "missing"]
    return [case.charge(features, "dropped", why, publisher=True)]


def _late(case: Case, message: str, account: _Account, others: list[_Account]) -> list[Charge]:
    if account.came < LOOKED_AT or account.late_share < LATE_SHARE:
        return []
    shares = sorted(other.late_share for other in others if other.came >= LOOKED_AT)
    usual = shares[: max(1, len(shares) - case.manifest.f + 1)]
    if not usual or usual[-1] > max(USUAL_SHARE, account.late_share / 3):
        return []
    features = [f for f in account.features if f.kind == "came" and f.bucket > LATE_BUCKET]
    return [case.charge(features, "delayed", f"was late with its {message} messages")]


#: Requests that a correct node always answers, and how often it must have failed to.
ANSWERABLE = {"Subscribe": 2}


def _unanswered(case: Case) -> list[Charge]:
    found = []
    for pair in case.pairs(f for f in case.features if f.kind in ("answered", "unanswered")):
        for request, needed in ANSWERABLE.items():
            asked = [f for f in pair if f.message == request]
            silent = [f for f in asked if f.kind == "unanswered"]
            count = sum(f.count for f in silent)
            answered = sum(f.count for f in asked) - count
            if count >= needed and count > answered:
                found.append(case.charge(silent, "dropped", f"does not answer {request} requests"))
    return found


def _repeated(case: Case) -> list[Charge]:
    """Publishers most of whose words come out of turn, or were offered before."""
    found = []
    heard: Counter[tuple[str, str, str]] = Counter()
    for feature in case.features:
        if feature.kind == "heard":
            heard[feature.observer, feature.accused, feature.message] += feature.count
    for pair in case.pairs(f for f in case.features if f.kind == "refused"):
        turned = [f for f in pair if (f.reason, f.message) == ("out-of-turn", "Publish")]
        count = sum(f.count for f in turned)
        if turned and count >= 40:
            total = heard[turned[0].observer, turned[0].accused, "Publish"]
            if count > total / 2:
                found.append(case.charge(turned, "dropped", "left numbers out"))
    return found


def _leaders(case: Case) -> list[Charge]:
    """Leaders that are alive and lead nowhere."""
    return [
        case.charge(pair, "dropped", "led and did not get anything ordered")
        for pair in case.pairs(
            f for f in case.features if f.kind == "gave-up" and f.reason == "alive"
        )
    ]
