"""Charges of omission: expected messages that a node repeatedly does not send.

One lost vote says nothing. This rule compares shares: of the messages that a quorum sent, how many
did a node not send to an observer, and how many did the other nodes not send to the same observer
in the same run? Lateness alone is never a charge (see `lateness`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from quorumcast.pipeline.audit.charges import Case, Charge, Feature
from quorumcast.watch.inquiries import ANSWER
from quorumcast.watch.turnout import MUTE

# From where on missing messages are a fault, so that in labelled runs with loss, pauses and distant
# nodes no correct node is charged. A message is missing after `watch.turnout.OVERDUE_MS`, the
# longest leader timeout.

#: Least number and share of missing messages. What packet numbers show to be lost is not counted;
#: other losses stay below this.
MIN_MISSING, MIN_MISSING_SHARE = 5, 0.12
#: Least number if the message is always owed, or if none came from a node that sends others.
MIN_MISSING_CERTAIN = 3
#: Least number of requests if none was answered; each of them is repeated many times.
MIN_UNANSWERED = 2
#: A slot (part of the run) counts if this many messages were due in it.
MIN_DUE_IN_SLOT = 2
#: A paused node fails in few slots, a faulty one in this share of them.
STEADY_SHARE, MIN_SLOTS = 0.8, 3
#: The share for a node that sends some messages and omits others in the same slots: not a pause.
STEADY_SHARE_MIXED = 0.66
#: If of the other nodes' messages an observer lacks a share that is more than this part of what it
#: lacks of the accused's, the network is to blame.
MAX_OTHERS_SHARE = 0.4

#: Messages that a broker owes to its peers.
OWED = ("Vote", "Matches", "Ack", "Ready", "Echo", "Contents", ANSWER)
#: Names of messages about histories, which are counted separately.
HISTORY_NAMES = {"Ack": "Ack (history)", "Vote": "Vote (history)"}
#: Messages that every correct broker sends in the end, whatever a publisher does.
ALWAYS_OWED = ("Ready", *HISTORY_NAMES.values())
#: Messages that every correct broker sends on settled channels, even if the publisher lies.
OWED_FOR_ANY_PUBLISHER = ("Ready", "Vote", "Matches")


class Obligation:
    """The messages of one type that one node owed one observer."""

    def __init__(self) -> None:
        #: Messages that were due and that are missing, by part of the run.
        self.due: Counter[int] = Counter()
        self.missing: Counter[int] = Counter()
        self.due_by_publisher: Counter[str] = Counter()
        #: The observations of missing messages.
        self.features: list[Feature] = []

    def add(self, feature: Feature) -> None:
        """Count messages that came or are missing."""
        self.due[feature.slot] += feature.count
        self.due_by_publisher[feature.publisher] += feature.count
        if feature.kind == "missing":
            self.missing[feature.slot] += feature.count
            self.features.append(feature)

    @property
    def substantial(self) -> list[Feature]:
        """The observations about publishers of whose messages a substantial share is missing.

        What one publisher withholds says nothing about a few missing messages of others.
        """
        missing: Counter[str] = Counter()
        for feature in self.features:
            missing[feature.publisher] += feature.count
        return [
            f
            for f in self.features
            if missing[f.publisher] >= MIN_MISSING_SHARE * self.due_by_publisher[f.publisher]
        ]

    @property
    def share(self) -> float:
        """The share of due messages that are missing."""
        return self.missing.total() / max(1, self.due.total())

    @property
    def none_came(self) -> bool:
        """Whether all due messages are missing although the node sent others meanwhile."""
        return self.missing == self.due and all(f.reason != MUTE for f in self.features)

    def is_steady(self, also: Collection[int]) -> bool:
        """Whether messages are missing in most parts of the run, not only during a pause.

        `also` are parts of the run in which several observers miss messages of this node.
        """
        first = min(self.missing, default=0)
        since = {slot: due for slot, due in self.due.items() if slot >= first}
        if len(since) > 1 and all(self.missing[slot] == due for slot, due in since.items()):
            return True  # from then on nothing came
        counted = [slot for slot, due in since.items() if due >= MIN_DUE_IN_SLOT]
        failed = [slot for slot in counted if self.missing[slot] or slot in also]
        # A paused node sends nothing at all, so parts with some messages show no pause.
        mixed = [slot for slot in failed if self.missing[slot] < self.due[slot]]
        share = STEADY_SHARE_MIXED if len(mixed) >= MIN_SLOTS else STEADY_SHARE
        return len(failed) >= MIN_SLOTS and len(failed) >= share * len(counted)


#: Obligations by (observer, message), then by the node that owes the messages.
Obligations = dict[tuple[str, str], dict[str, Obligation]]


def omissions(case: Case, lying: Collection[str]) -> list[Charge]:
    """Return charges against nodes that did not send what the others sent.

    Streams of publishers that may be `lying` do not count: an equivocating publisher can keep
    correct brokers from sending messages.
    """
    obligations = _obligations(case, lying)
    several = _missing_at_several(obligations)
    found: list[Charge] = []
    for (_, message), by_accused in obligations.items():
        settled = message in ALWAYS_OWED
        for accused, obligation in by_accused.items():
            also = several.get((message, accused), ())
            # A subscriber has one source of contents at a time, so there is none to compare with.
            is_outlier = message == "Contents" or _is_outlier(case, by_accused, accused)
            if is_outlier and _is_omission(message, obligation, also):
                why = f"left out {obligation.features[0].message} messages that the others sent"
                found += case.charge_omissions(obligation.substantial, why, settled=settled)
    return found


def _is_omission(message: str, obligation: Obligation, also: Collection[int]) -> bool:
    """Whether too much is missing, and too steadily, for network faults to explain it."""
    missing = obligation.missing.total()
    if message.startswith(ANSWER):
        return obligation.none_came and missing >= MIN_UNANSWERED
    certain = message in ALWAYS_OWED or obligation.none_came
    return (
        missing >= (MIN_MISSING_CERTAIN if certain else MIN_MISSING)
        and obligation.share >= MIN_MISSING_SHARE
        and (certain or obligation.is_steady(also))
    )


def _obligations(case: Case, lying: Collection[str]) -> Obligations:
    channels = case.manifest.channels
    chained = {c.name for c in channels if c.policy.chained}
    with_history = {c.name for c in channels if c.policy.has_history}

    def counts(f: Feature) -> bool:
        if f.kind not in ("came", "missing") or f.message not in OWED:
            return False
        if f.channel in chained and not f.lane and f.message not in ("Contents", ANSWER):
            return False  # only the last brokers of a chain send these
        if f.message in ("Vote", "Matches") and f.channel in with_history and not f.lane:
            return False  # a broker that got it from a history does not vote for it
        settled = f.message in OWED_FOR_ANY_PUBLISHER and case.is_settled(f)
        return f.publisher not in lying or (settled and f.publisher not in case.flooding)

    found: Obligations = {}
    for feature in filter(counts, case.features):
        name = feature.message
        if name == ANSWER:
            name = f"{ANSWER} {feature.channel}"
        elif feature.lane and name in HISTORY_NAMES:
            name = HISTORY_NAMES[name]
        by_accused = found.setdefault((feature.observer, name), {})
        by_accused.setdefault(feature.accused, Obligation()).add(feature)
    return found


def _missing_at_several(obligations: Obligations) -> dict[tuple[str, str], set[int]]:
    """Return the parts of the run in which two observers miss messages, by message and accused."""
    seen: Counter[tuple[str, str, int]] = Counter()
    for (_, message), by_accused in obligations.items():
        for accused, obligation in by_accused.items():
            seen.update((message, accused, slot) for slot in obligation.missing)
    found: dict[tuple[str, str], set[int]] = {}
    for (message, accused, slot), observers in seen.items():
        if observers > 1:
            found.setdefault((message, accused), set()).add(slot)
    return found


def _is_outlier(case: Case, by_accused: dict[str, Obligation], accused: str) -> bool:
    """Whether the other nodes miss much less; up to f of them may be faulty as well."""
    others = sorted(other.share for name, other in by_accused.items() if name != accused)
    usual = others[: max(1, len(others) - case.manifest.f + 1)]
    return bool(usual) and usual[-1] <= MAX_OTHERS_SHARE * by_accused[accused].share
