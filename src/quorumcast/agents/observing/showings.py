"""Showings: a publisher owes every broker what it shows to the others.

A broker that learns from other brokers of a run that is settled, or about to be ordered, ought to
have been shown it by its publisher, or to be soon. How much later it is is counted; what has not
come after PATIENCE_MS is missing, if the publisher could be heard all that time.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.agents.observing.observation import Kind, Notes, remember
from quorumcast.agents.observing.turnout import PATIENCE_MS, Links, Place, bucket_of
from quorumcast.core.ids import Millis


class Showings:
    """One kind of message by which publishers show runs to brokers."""

    __slots__ = ("_due", "_links", "_message", "_notes", "_over")

    def __init__(self, message: str, links: Links, notes: Notes) -> None:
        self._message = message
        self._links = links
        self._notes = notes
        #: What was shown, or is known to be missing: others may speak of it again.
        self._over: OrderedDict[Place, None] = OrderedDict()
        #: What others have shown first, and when; the oldest first.
        self._due: OrderedDict[Place, int] = OrderedDict()

    def shown(self, now: Millis, place: Place) -> None:
        """The publisher itself has shown this."""
        since = self._due.pop(place, None)
        if since is not None and self._links.owed(place[0].publisher, since):
            self._notes.add(
                now, Kind.CAME, place[0].publisher, self._links.state(place[0].publisher, since),
                self._message, place[0], bucket=bucket_of(now - since),
            )  # fmt: skip
        remember(self._over, place, None)

    def due(self, now: Millis, place: Place) -> None:
        """Others know of it."""
        if place not in self._over and place not in self._due:
            remember(self._due, place, now)

    def sweep(self, now: Millis) -> None:
        """What has not been shown by now is not going to be."""
        while self._due:
            place, since = next(iter(self._due.items()))
            if now - since < PATIENCE_MS:
                return
            del self._due[place]
            remember(self._over, place, None)
            publisher = place[0].publisher
            if self._links.owed(publisher, since):
                state = self._links.state(publisher, since)
                self._notes.add(now, Kind.MISSING, publisher, state, self._message, *place)
