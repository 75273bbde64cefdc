"""Sources: whoever agrees to send contents sends them with every vote.

A subscriber asks one broker for contents. Sessions keep order, so once a broker has answered, all
its votes come with them, whatever gets lost before or after; but for those that were waiting for
its disk meanwhile, where it has one. The last broker of a chain sends them unasked, as nobody else
speaks to subscribers.
"""

from __future__ import annotations

from collections import deque

from quorumcast.cell.messages import Vote
from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.manifest.manifest import Manifest
from quorumcast.watch.observation import Kind, Notes
from quorumcast.watch.turnout import BUCKETS, PATIENCE_MS, Links

#: Requests to one broker that are remembered until they are answered.
MAX_REQUESTS = 16


class Sources:
    """Brokers that one node has asked to send contents with their votes."""

    def __init__(self, manifest: Manifest, links: Links, notes: Notes) -> None:
        self._manifest = manifest
        self._links = links
        self._notes = notes
        #: When each broker was asked for votes, with contents or without, and has not answered.
        self._requests: dict[tuple[NodeId, Channel], deque[int]] = {}
        #: Since when contents are wanted, or promised, and how many answers on they are owed.
        self._asked: dict[tuple[NodeId, Channel], tuple[int, int]] = {}

    def forget(self, peer: NodeId) -> None:
        """A new session."""
        for memory in (self._asked, self._requests):
            for place in [place for place in memory if place[0] == peer]:
                del memory[place]

    def ask(self, now: Millis, peer: NodeId, channel: Channel, *, bodies: bool) -> None:
        """A broker is asked for its votes; what it says before it answers it says as before."""
        place = (peer, channel)
        requests = self._requests.setdefault(place, deque(maxlen=MAX_REQUESTS))
        while requests and now - requests[0] >= PATIENCE_MS:
            requests.popleft()  # lost, or it would have been answered
        requests.append(now)
        if not bodies:
            self.release(*place)
        elif place not in self._asked:
            self._asked[place] = (now, len(requests))

    def release(self, peer: NodeId, channel: Channel) -> None:
        """A broker need not send contents any more."""
        self._asked.pop((peer, channel), None)

    def answered(self, now: Millis, peer: NodeId, channel: Channel) -> None:
        """A broker has heard one of the things that it was asked."""
        place = (peer, channel)
        if self._requests.get(place):
            self._requests[place].popleft()
        since, answers = self._asked.get(place, (0, 0))
        if answers:
            self._asked[place] = (now if answers == 1 else since, answers - 1)

    def voted(self, now: Millis, peer: NodeId, vote: Vote, bodies: int) -> None:
        """A broker votes, with so many contents."""
        since, answers = self._asked.get((peer, vote.stream.channel), (now, 1))
        clear = now - max(since, self._links.clear_since.get(peer, now))
        last = vote.order[-1:] == (peer,)
        # Where packets get lost, what asked it may have been among them.
        sure = clear >= PATIENCE_MS // 2 and not self._links.state(peer, since)
        entry = self._manifest.channel(vote.stream.channel)
        waits_ms = PATIENCE_MS // 2 if entry is None or entry.policy.needs_store else 0
        promised = not answers and now - since >= waits_ms
        if last or promised or sure:
            self._notes.add(
                now, Kind.CAME if bodies else Kind.MISSING, peer, "", "Contents", vote.stream,
                vote.first, bucket=BUCKETS[0] if bodies else 0,
            )  # fmt: skip
