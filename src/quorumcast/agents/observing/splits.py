"""Splits: what each broker echoes of a run of which not all echo the same.

A publisher that shows brokers different things makes correct ones echo different things, so that
nobody can say of an echo that it is false. But a correct broker tells everybody the same. What each
of them said here is noted with a digest, for others to compare with what they were told.
"""

from __future__ import annotations

from collections import Counter

from quorumcast.agents.observing.observation import Kind, Notes
from quorumcast.agents.observing.turnout import Place
from quorumcast.core.ids import Millis, NodeId

#: Places of one publisher of which it is noted who said what, and of all of them.
MAX_SPLITS, MAX_PLACES = 64, 4096
#: So many digits of a digest tell two of them apart.
DIGITS = 16


class Splits:
    """Places at which brokers echo different runs."""

    __slots__ = ("_by", "_noted", "_notes")

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        #: Whose echo is noted, by place.
        self._noted: dict[Place, dict[NodeId, None]] = {}
        #: How many of these are whose.
        self._by: Counter[NodeId] = Counter()

    def echoed(self, now: Millis, place: Place, echoes: dict[NodeId, bytes]) -> None:
        """These have been echoed at a place by now."""
        stream, first = place
        if place not in self._noted:
            full = self._by[stream.publisher] >= MAX_SPLITS or len(self._noted) >= MAX_PLACES
            if full or len(set(echoes.values())) < 2:
                return
            self._noted[place] = {}
            self._by[stream.publisher] += 1
        for broker, run in echoes.items():
            if broker not in self._noted[place]:
                self._noted[place][broker] = None
                reason = f"{stream.incarnation}:{run.hex()[:DIGITS]}"
                self._notes.add(now, Kind.ECHOED, broker, reason, "Echo", stream, first)
