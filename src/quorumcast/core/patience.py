"""How long is too long: limits that follow measured delays (`Patience`).

A fixed time-out blames a loaded cell. A phi accrual failure detector (Hayashibara et al. 2004)
compares the present silence with the delays that were seen before. Ours keeps the moving mean of
the delays and of their deviations, as TCP does (RFC 6298), and allows STRICTNESS deviations. With
normally distributed delays, 8 mean deviations are 6.4 standard deviations: phi is about 10.

The floor allows for a pause that was never seen before. The cap bounds what a node gains that
delays everything a little more each time.

Arithmetic is in integers, so every machine and every run computes the same limits.
"""

from __future__ import annotations

#: Deviations from the mean that are allowed.
STRICTNESS = 8
#: A tick that comes later than this shows that the node itself is late. Such a tick counts for
#: nothing: what others sent in time may wait unread.
LATE_MS = 100


class Patience:
    """The limit for one kind of delay of one peer."""

    __slots__ = ("_cap_ms", "_deviation", "_floor_ms", "_mean")

    def __init__(self, floor_ms: int, cap_ms: int) -> None:
        self._floor_ms = floor_ms
        self._cap_ms = cap_ms
        #: Moving mean of the delays, in eighths of a millisecond; None before the first.
        self._mean: int | None = None
        #: Moving mean of their distances from the mean, in quarters of a millisecond.
        self._deviation = 0

    def observe(self, delay_ms: int) -> None:
        """Take note of a delay that is over."""
        if self._mean is None:
            self._mean, self._deviation = 8 * delay_ms, 2 * delay_ms
            return
        distance = abs(delay_ms - self._mean // 8)
        self._deviation += distance - self._deviation // 4
        self._mean += delay_ms - self._mean // 8

    @property
    def limit_ms(self) -> int:
        """A delay that is longer than this calls for a suspicion."""
        usual = (self._mean or 0) // 8 + STRICTNESS * (self._deviation // 4)
        return min(max(usual, self._floor_ms), self._cap_ms)

    @property
    def exhausted(self) -> bool:
        """Whether delays vary so much that the cap is the limit."""
        return self.limit_ms >= self._cap_ms
