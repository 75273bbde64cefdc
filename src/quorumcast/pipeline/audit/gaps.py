"""Gaps: who leaves numbers out, of what it numbers itself or passes on in the order of numbers.

Who takes the state of others, or was left out of a chain for a while, goes on further down: that is
not held against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from quorumcast.pipeline.audit.chains import breaks_of
from quorumcast.pipeline.audit.charges import Case, Charge, Feature
from quorumcast.pipeline.audit.thresholds import OUT_OF_TURN, SKIPPED

#: What goes to every broker, so that all of them notice.
SEEN_BY_ALL = ("Propose", "Publish")
#: By which a broker asks for the state of others.
TAKES_STATE = "ChunkQuery"


def jumps_of(case: Case) -> Counter[str]:
    """Who takes the state of others, and how often brokers heard it ask for that."""
    jumps: Counter[str] = Counter()
    for (by, who, message), count in case.heard.items():
        if message == TAKES_STATE and by in case.manifest.broker_ids:
            jumps[who] += count
    return jumps


def skipping(case: Case, features: Sequence[Feature]) -> list[Charge]:
    """Who left numbers out and went on, again and again."""
    saw: dict[str, set[str]] = {}
    for feature in features:
        if feature.kind == "skipped" and feature.message in SEEN_BY_ALL:
            saw.setdefault(feature.accused, set()).add(feature.observer)
    brokers = case.manifest.broker_ids

    def all_saw(pair: list[Feature]) -> bool:
        """Whether every broker noticed it that need not lie: then once is enough."""
        return len(saw[pair[0].accused]) >= len(brokers) - case.manifest.f

    # Whoever is left out of a chain for a while has not seen what came by others; and who takes
    # the state of others goes on where they are.
    breaks: Counter[str] = Counter()
    for (publisher, _), count in breaks_of(case).items():
        breaks[publisher] = max(breaks[publisher], count)
    jumps = jumps_of(case)
    found = [
        (message, charge)
        for message, least in SKIPPED.items()
        for pair in case.pairs(f for f in features if (f.kind, f.message) == ("skipped", message))
        if sum(f.count for f in pair) >= least or (message in SEEN_BY_ALL and all_saw(pair))
        for charge in case.charge_each(pair, "dropped", "left numbers out and went on")
        if charge.count > max((breaks[p] for p in charge.publishers), default=0)
        and (message != "Vote" or charge.count >= least + jumps[charge.accused] * _channels(pair))
    ]
    return [_of_whom(message, charge, features) for message, charge in found]


def _of_whom(message: str, charge: Charge, features: Sequence[Feature]) -> Charge:
    """The same charge, without those who cannot be behind it, and with those who can.

    Leaders number their proposals themselves: no publisher makes them leave one out. Who passes
    something on passes on the gaps of the one before it.
    """
    if message == "Propose":
        return msgspec.structs.replace(charge, publishers=frozenset())
    before = {
        f.accused
        for f in features
        if message == "ChainRun"
        and (f.kind, f.message, f.observer) == ("skipped", "ChainRun", charge.accused)
        and f.publisher in charge.publishers
    }
    return msgspec.structs.replace(charge, clause=charge.clause | before)


def _channels(features: Sequence[Feature]) -> int:
    """On how many channels: who goes on further down does so on each of them."""
    return len({feature.channel for feature in features})


def out_of_turn(case: Case) -> list[Charge]:
    """Publishers whose runs do not follow each other, most of the time."""
    found = []
    about = [f for f in case.features if (f.reason, f.message) == ("out-of-turn", "Publish")]
    for pair in case.pairs(about):
        count = sum(f.count for f in pair)
        heard = case.heard[pair[0].observer, pair[0].accused, "Publish"]
        if count >= OUT_OF_TURN[0] and count >= OUT_OF_TURN[1] * heard:
            found.append(case.charge(pair, "dropped", "left numbers out"))
    return found
