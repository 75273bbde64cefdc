"""Splits: what each broker echoes of a run of which not all echo the same.

A publisher that shows brokers different things makes correct ones echo different things, so that
nobody can say of an echo that it is false. But a correct broker tells everybody the same. What each
of them said here is noted with a digest, for others to compare with what they were told.
"""

from __future__ import annotations

from quorumcast.agents.observation import Kind, Notes
from quorumcast.agents.turnout import Place
from quorumcast.core.ids import Millis, NodeId

#: Places of which it is noted who said what: more would say no more.
MAX_SPLITS = 64
#: So many digits of a digest tell two of them apart.
DIGITS = 16


class Splits:
    """Places at which brokers echo different runs."""

    __slots__ = ("_noted", "_notes")

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        #: Whose echo is noted, by place.
        self._noted: dict[Place, dict[NodeId, None]] = {}

    def echoed(self, now: Millis, place: Place, echoes: dict[NodeId, bytes]) -> None:
        """These have been echoed at a place by now."""
        if place not in self._noted:
            if len(self._noted) >= MAX_SPLITS or len(set(echoes.values())) < 2:
                return
            self._noted[place] = {}
        stream, first = place
        for broker, run in echoes.items():
            if broker not in self._noted[place]:
                self._noted[place][broker] = None
                reason = f"{stream.incarnation}:{run.hex()[:DIGITS]}"
                self._notes.add(now, Kind.ECHOED, broker, reason, "Echo", stream, first)
