"""Attention: the time for which a process has listened to others.

What comes while a process is stopped, works for long at something else, or does not read because
its application is behind, is heard late, and that is nobody's fault. Whoever is patient with others
counts this time, and not that of the clock.
"""

from __future__ import annotations

from quorumcast.core.ids import Millis

#: Of a longer pause only so much was spent listening.
LONGEST_MS = 250


class Attention:
    """A clock that stands still while nobody listens."""

    __slots__ = ("_is_held", "_looked", "missed_ms")

    def __init__(self) -> None:
        self._looked: Millis | None = None
        self._is_held = False
        #: How far it is behind the other clock.
        self.missed_ms = 0

    def at(self, now: Millis) -> Millis:
        """The time now; asked more often than every LONGEST_MS by whoever listens."""
        passed = now - (now if self._looked is None else self._looked)
        self._looked = now
        self.missed_ms += passed if self._is_held else max(0, passed - LONGEST_MS)
        return Millis(now - self.missed_ms)

    def hold(self, now: Millis) -> Millis:
        """Nothing is read from now on."""
        at = self.at(now)
        self._is_held = True
        return at

    def release(self, now: Millis) -> Millis:
        """What has come meanwhile is read now."""
        at = self.at(now)
        self._is_held = False
        return at
