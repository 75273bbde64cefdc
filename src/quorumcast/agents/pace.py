"""How a stream moves at a broker that others are ahead of: by itself, too slowly, or not at all."""

from __future__ import annotations

import msgspec

#: Ticks that a publisher has to open its stream, or to go on with it, before peers are asked.
GRACE = 6
#: Ticks in which a stream that moves must get where enough peers were: a publisher that lies may
#: show this broker a little now and then, and keep it behind for ever.
MOVING_GRACE = 2 * GRACE


class Pace(msgspec.Struct, frozen=True):
    """Where a stream is, and since when it has not come further."""

    #: The next number, and for how many ticks it has been that.
    at: int
    still: int = 0
    #: Where enough peers were, and for how many ticks it has not come there.
    goal: int = 0
    late: int = 0

    def tick(self, at: int, end: int) -> Pace:
        """A while later: the next number here, and where enough peers end."""
        still = self.still + 1 if at == self.at else 0
        late = self.late + 1 if at < self.goal else 0
        return Pace(at, still, self.goal if late else end, late)

    @property
    def stands(self) -> bool:
        """Whether it does not move by itself."""
        return self.still >= GRACE

    @property
    def lags(self) -> bool:
        """Whether it does not get by itself where others are."""
        return self.stands or self.late >= MOVING_GRACE
