"""Retention by time: what a broker has kept for long enough goes, also where nothing else happens.

Count and bytes are seen to whenever something is written; age needs a clock. One timer looks
through the streams of channels that limit it (`retained_ms`). A ledger notes how far it is a few
times within that span, so ages cost nothing per publication, and what is kept is kept for the
span and an eighth more at most. Ages are a broker's own: after a restart they count anew.

What a protocol still needs stays whatever its age (`Carrier.spare`).
"""

from __future__ import annotations

from quorumcast.broadcast.ledger import AGES
from quorumcast.cell.serving.desks import Desks
from quorumcast.core.ids import Millis
from quorumcast.core.limits import FOREVER_MS
from quorumcast.core.machine import Effect, SetTimer, Timer
from quorumcast.manifest.view import View

#: The longest pause between two looks.
LONGEST_MS = 60_000


class Sweep(Timer, frozen=True, tag=True):
    """See what has become too old."""


class Retention:
    """The ages of what one broker keeps."""

    __slots__ = ("_desks", "_set", "_view")

    def __init__(self, view: View, desks: Desks) -> None:
        self._view = view
        self._desks = desks
        #: Whether Sweep is set.
        self._set = False

    def watch(self) -> list[Effect]:
        """Begin to look, if a channel of this epoch limits the time and nobody looks yet."""
        spans = [channel.policy.limits.retained_ms for channel in self._view.channels]
        shortest = min(spans, default=FOREVER_MS)
        if self._set or shortest >= FOREVER_MS:
            return []
        self._set = True
        return [SetTimer(Sweep(), min(shortest // AGES, LONGEST_MS))]

    def sweep(self, now: Millis) -> list[Effect]:
        """Let go of what is too old, and look again later."""
        self._set = False
        effects: list[Effect] = []
        for desk in self._desks.all():
            entry = self._view.channel(desk.stream.channel)
            span = FOREVER_MS if entry is None else entry.policy.limits.retained_ms
            if span < FOREVER_MS:
                effects += desk.carrier.expire(now, span)
        return effects + self.watch()
