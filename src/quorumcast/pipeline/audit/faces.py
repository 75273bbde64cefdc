"""Charges of having two faces: who tells different brokers different things of one run.

Neither of the two can see it, and each of them may lie about what it was told; so it takes more of
them than may lie, or nobody is named.
"""

from __future__ import annotations

from itertools import combinations

import msgspec

from quorumcast.agents.observing.observation import Kind
from quorumcast.pipeline.audit.charges import Case, Charge, Feature
from quorumcast.pipeline.audit.thresholds import ECHOED_DIFFERENTLY

#: A run: whose, on which channel and lane, in which of its lives, from which number on.
_Run = tuple[str, str, int, str, int]


def two_faced(case: Case) -> list[Charge]:
    """Who echoed something else to one broker than to another; both of them say so."""
    brokers = frozenset(case.manifest.broker_ids)
    #: By who said it and of which run: to whom it said what, each one's first word of it.
    told: dict[tuple[str, _Run], dict[str, Feature]] = {}
    for feature in case.features:
        if feature.kind == Kind.ECHOED.value and {feature.observer, feature.accused} <= brokers:
            life = feature.reason.partition(":")[0]
            run = (feature.publisher, feature.channel, feature.lane, life, feature.number)
            told.setdefault((feature.accused, run), {}).setdefault(feature.observer, feature)
    differing: dict[tuple[str, str, str], list[Feature]] = {}
    for (accused, _), features in told.items():
        for one, other in combinations(features.values(), 2):
            if one.reason != other.reason:
                differing.setdefault((accused, one.observer, other.observer), []).append(one)
                differing.setdefault((accused, other.observer, one.observer), []).append(other)
    return [
        msgspec.structs.replace(charge, clause=charge.clause | {other}, firm=True)
        for (_, _, other), features in differing.items()
        if len(features) >= ECHOED_DIFFERENTLY
        for charge in [case.charge(features, "equivocated", "echoed different things of one run")]
    ]
