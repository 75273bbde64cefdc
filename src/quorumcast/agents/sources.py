"""Sources: whoever agrees to send contents sends them with every vote.

A subscriber asks one broker for contents. Sessions keep order, so once a broker has answered, all
its votes come with them, whatever gets lost before or after.
"""

from __future__ import annotations

from quorumcast.agents.observation import Kind, Notes
from quorumcast.agents.turnout import BUCKETS, PATIENCE_MS, Links
from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.core.messages import Vote

#: What is answered within this time may have been asked earlier.
ROUND_TRIP_MS = 100


class Sources:
    """Brokers that one node has asked to send contents with their votes."""

    __slots__ = ("_asked", "_links", "_notes")

    def __init__(self, links: Links, notes: Notes) -> None:
        self._links = links
        self._notes = notes
        #: Since when, and whether an answer shows that they have heard it.
        self._asked: dict[tuple[NodeId, Channel], tuple[int, bool]] = {}

    def forget(self, peer: NodeId) -> None:
        """A new session."""
        for place in [place for place in self._asked if place[0] == peer]:
            del self._asked[place]

    def ask(self, now: Millis, peer: NodeId, channel: Channel, *, asked_before: bool) -> None:
        """A broker is asked, perhaps shortly after it was asked for something else."""
        if (peer, channel) not in self._asked:
            self._asked[peer, channel] = (now + ROUND_TRIP_MS * asked_before, False)

    def release(self, peer: NodeId, channel: Channel) -> None:
        """A broker need not send contents any more."""
        self._asked.pop((peer, channel), None)

    def answered(self, now: Millis, peer: NodeId, channel: Channel) -> None:
        """A broker has heard what it was asked."""
        since, heard = self._asked.get((peer, channel), (now + 1, True))
        if not heard and now >= since:
            self._asked[peer, channel] = (since, True)

    def voted(self, now: Millis, peer: NodeId, vote: Vote, bodies: int) -> None:
        """A broker votes, with so many contents."""
        since, heard = self._asked.get((peer, vote.stream.channel), (now, False))
        clear = now - max(since, self._links.clear_since.get(peer, now))
        # Where packets get lost, what asked it may have been among them.
        if heard or (clear >= PATIENCE_MS // 2 and not self._links.state(peer)):
            self._notes.add(
                now, Kind.CAME if bodies else Kind.MISSING, peer, "", "Contents", vote.stream,
                vote.first, bucket=BUCKETS[0] if bodies else 0,
            )  # fmt: skip
