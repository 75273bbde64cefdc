"""Charges of breaking chains.

A publisher whose chain stands still knows among whom the culprit is: whoever has taken a run by
this chain and has not passed it on, whoever does not say that it got it, or one between the two. It
tries another chain then, with other neighbours. Each time is a clause of its own; who is in all of
them, as far as no more than f brokers may be behind them, is to blame, or the publisher lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from quorumcast.agents.observing.breaks import QUIET
from quorumcast.agents.observing.observation import LOST, Kind
from quorumcast.agents.observing.turnout import SETTLED_MS
from quorumcast.core.machine import Suspicion
from quorumcast.faults.diagnosis import Model, diagnose
from quorumcast.pipeline.audit.charges import Case, Charge, Feature
from quorumcast.pipeline.audit.silence import WHY, Silences, lost
from quorumcast.pipeline.audit.thresholds import BREAKS, BREAKS_IN_ALL, KEPT_FROM


class _Break(msgspec.Struct, frozen=True):
    """Where a chain broke: the culprit is among these, in the order of the chain."""

    noted: Feature
    among: tuple[str, ...]
    #: Those of them who were heard meanwhile.
    awake: frozenset[str]

    def neighbour(self, broker: str) -> str:
        """Who got nothing from a broker, or could not hand it anything."""
        place = self.among.index(broker)
        return self.among[-1] if broker != self.among[-1] else self.among[place - 1]


#: A broker, and the breaks that it may be behind.
_Shared = tuple[str, list[_Break]]


def _features(case: Case) -> list[Feature]:
    reason = Suspicion.BROKEN_CHAIN.value
    return [f for f in case.features if (f.kind, f.reason) == ("suspect", reason)]


def breaks_of(case: Case) -> Counter[tuple[str, str]]:
    """How often chains broke: by publisher and broker."""
    found: Counter[tuple[str, str]] = Counter()
    for feature in _features(case):
        found[feature.observer, feature.accused] += feature.count
    return found


def broken_chains(case: Case) -> list[Charge]:
    """Brokers at which chains break."""
    located = _located(case)
    common = _common(case, located)
    return [
        *_most_of_them(case),
        *_kept_back(case, common),
        *_fallen_silent(case, located, common),
    ]


def _most_of_them(case: Case) -> list[Charge]:
    """Brokers at which a publisher's chains break, whoever their neighbours are."""
    by: dict[str, dict[str, list[Feature]]] = {}
    for feature in _features(case):
        by.setdefault(feature.observer, {}).setdefault(feature.accused, []).append(feature)
    found = []
    for by_accused in by.values():
        counts = {who: sum(f.count for f in breaks) for who, breaks in by_accused.items()}
        for accused, breaks in by_accused.items():
            others = max((counts[other] for other in counts if other != accused), default=0)
            if counts[accused] >= max(2, 2 * others):
                found.append(case.charge(breaks, "dropped", "chains break where it is"))
    in_all: Counter[str] = Counter()
    for charge in found:
        in_all[charge.accused] += charge.count
    return [c for c in found if c.count >= BREAKS or in_all[c.accused] >= BREAKS_IN_ALL]


def _kept_back(case: Case, common: Sequence[_Shared]) -> list[Charge]:
    """Brokers that take runs and do not pass them on, whoever comes next.

    They must have been awake: who stands still passes nothing on, and says nothing either.
    """
    found = []
    for accused, breaks in common:
        kept = [one for one in breaks if accused in one.awake]
        if len({one.neighbour(accused) for one in kept}) >= KEPT_FROM:
            features = [msgspec.structs.replace(one.noted, accused=accused) for one in kept]
            found.append(case.charge(features, "dropped", "keeps from others what it takes"))
    return found


def _fallen_silent(
    case: Case, located: Sequence[_Break], common: Sequence[_Shared]
) -> list[Charge]:
    """Who breaks chains and answers nothing any more, until the run is over.

    What a publisher sends to the head of its chain is acknowledged, whatever becomes of it further
    down; and by who stood still as well, once it goes on.
    """
    silences = Silences(case)
    suspects = [(one.among[0], one) for one in located if len(one.among) == 1]
    suspects += [(accused, one) for accused, breaks in common for one in breaks]
    return [
        case.charge([msgspec.structs.replace(one.noted, accused=accused)], "dropped", WHY)
        for accused, one in dict.fromkeys(suspects)
        if silences.is_long(one.noted.observer, accused, one.noted.t_ms)
    ]


def _common(case: Case, located: Sequence[_Break]) -> list[_Shared]:
    """Who is in every explanation of one publisher's breaks by at most f brokers, and in which."""
    model = Model(case.manifest.broker_ids, case.manifest.f, 0)
    by: dict[str, list[_Break]] = {}
    for one in located:
        by.setdefault(one.noted.observer, []).append(one)
    return [
        (accused, [one for one in breaks if accused in one.among])
        for breaks in by.values()
        for accused in diagnose([frozenset(one.among) for one in breaks], model).named
    ]


def _located(case: Case) -> list[_Break]:
    """Breaks of which publishers can say where they were.

    A break is nobody's fault if one of those who might be to blame had lost the one before, or some
    of its packets. Only who waits for something is asked that: who should have sent it might say so
    in any case.
    """
    apart = lost(case)
    leaky = {
        (f.observer, f.accused): range(f.t_ms, f.until_ms + SETTLED_MS)
        for f in case.features
        if (f.kind, f.reason) == (Kind.LINK.value, LOST)
    }
    found: dict[tuple[str, str], _Break] = {}
    for feature in _features(case):
        names = feature.message.split()
        among = tuple(name.removesuffix(QUIET) for name in names)
        if not among or not set(among) <= set(case.manifest.broker_ids):
            continue
        at = feature.until_ms
        links = [(later, before) for before, later in pairwise(among)]
        if any(apart.get(link, at + 1) <= at or at in leaky.get(link, ()) for link in links):
            continue
        # Each of two neighbours is suspected of one and the same break.
        awake = frozenset(names) & frozenset(among)
        found[feature.observer, feature.message] = _Break(feature, among, awake)
    return list(found.values())
