"""Standings: where members of a log say they are, and what nobody can say there.

Nobody takes back what it has decided, wakes up twice in one session, or is where nobody is near.
"""

from __future__ import annotations

from quorumcast.agents.observing.claims import FAR_AHEAD
from quorumcast.agents.observing.observation import Kind, Notes
from quorumcast.agents.observing.turnout import Links
from quorumcast.core.ids import CELL, Channel, Millis, NodeId, Stream
from quorumcast.core.messages import Standing, StateHead, Stop
from quorumcast.core.quorum import Protection
from quorumcast.ordering.state import root_of


def log_stream(log: Protection) -> Stream:
    """The name under which the instances of a log are numbered in observations."""
    return Stream(Channel(f"*{log.value}"), CELL, 0)


class Standings:
    """What each member said last: its regency, and the highest instance decided."""

    __slots__ = (
        "_f",
        "_first",
        "_known",
        "_links",
        "_notes",
        "_said",
    )

    def __init__(self, f: int, links: Links, notes: Notes) -> None:
        self._f = f
        self._links = links
        self._notes = notes
        #: What each member said first in its session.
        self._first: dict[tuple[Protection, NodeId], Standing] = {}
        #: … and when it first said since a loss of which instances it knows.
        self._known: dict[tuple[Protection, NodeId], tuple[int, int]] = {}
        self._said: dict[tuple[Protection, NodeId], Standing] = {}

    def of(self, log: Protection, member: NodeId) -> Standing | None:
        """Where a member says it is."""
        return self._said.get((log, member))

    def forget(self, peer: NodeId) -> None:
        """A new session: whoever restarts begins anew."""
        for memory in (self._said, self._known, self._first):
            for key in [key for key in memory if key[1] == peer]:
                del memory[key]

    def may_have_restarted(self, log: Protection, member: NodeId, regency: int) -> bool:
        """Whether a member was in a regency, and knew of instances, before its session began.

        Who restarts does not lead again in the same regency; and who has met it only now, because
        it has restarted itself, cannot tell.
        """
        first = self._first.get((log, member))
        return first is not None and first.heard > 0 and first.regency == regency

    def known(self, log: Protection, member: NodeId) -> int | None:
        """Of which instances a member knew before all that has come of it without a loss."""
        since, heard = self._known.get((log, member), (-1, 0))
        clear = self._links.clear_since.get(member)
        return None if clear is None or since <= clear else heard

    def hear(self, sender: NodeId, standing: Standing, now: Millis) -> None:
        """A member says where it is."""
        log = standing.log
        stream = log_stream(log)
        others = [s for (of, who), s in self._said.items() if of is log and who != sender]
        before = self._said.get((log, sender))
        self._said[log, sender] = standing
        self._first.setdefault((log, sender), standing)
        if self.known(log, sender) is None:
            self._known[log, sender] = (now, standing.heard)
        if before is not None and standing.decided < before.decided:
            self._notes.add(
                now, Kind.BACKWARDS, sender, "decided", "Standing", stream, standing.decided
            )
        if before is not None and standing.fresh and not before.fresh:
            # Nobody wakes up twice in one session.
            self._notes.add(now, Kind.BACKWARDS, sender, "fresh", "Standing", stream)
        begun = before is not None and before.synced and before.regency == standing.regency
        if begun and not standing.synced:
            # Whoever has begun a regency stays in it until the next one.
            self._notes.add(now, Kind.BACKWARDS, sender, "synced", "Standing", stream)
        if len(others) <= self._f:
            return
        if standing.decided > FAR_AHEAD + max(s.decided for s in others):
            self._notes.add(now, Kind.BOASTS, sender, "ahead", "Standing", stream, standing.decided)
        # Up to f of the others may boast, too; and no regency begins without n-f members.
        if standing.regency > FAR_AHEAD + sorted(s.regency for s in others)[-self._f - 1]:
            self._notes.add(
                now, Kind.BOASTS, sender, "regency", "Standing", stream, standing.regency
            )
        same = [s for s in others if s.checkpoint == standing.checkpoint and s.root]
        if standing.root and len(same) > self._f and all(s.root != standing.root for s in same):
            self._notes.add(
                now, Kind.CONTRADICTS, sender, "others", "Standing", stream, standing.checkpoint
            )
        ahead = sorted(s.decided for s in others)[-self._f - 1]
        if standing.decided == 0 and ahead > 0:
            self._notes.add(now, Kind.BOASTS, sender, "behind", "Standing", stream, ahead)
        peers = [s for s in others if s.regency == standing.regency and s.synced and not s.fresh]
        if len(peers) > self._f:
            state = "fresh" if standing.fresh else "" if standing.synced else "unsynced"
            self._notes.add(now, Kind.HEARD, sender, state or "synced", "Standing")

    def handed(self, sender: NodeId, head: StateHead, now: Millis) -> None:
        """A member shows what the state at a checkpoint consists of."""
        at, root = head.checkpoint, root_of(head.chunks)
        others = {who: s for (of, who), s in self._said.items() if of is head.log}
        own = others.pop(sender, None)
        roots = [s.root for s in others.values() if s.root and s.checkpoint == at]
        if own is not None and own.root and own.checkpoint == at and own.root != root:
            kind, reason = Kind.CONTRADICTS, "itself"
        elif len(roots) > self._f and root not in roots:
            kind, reason = Kind.CONTRADICTS, "others"
        elif len(others) > self._f and at > FAR_AHEAD + max(s.decided for s in others.values()):
            kind, reason = Kind.BOASTS, "ahead"
        else:
            return
        self._notes.add(now, kind, sender, reason, "StateHead", log_stream(head.log), at)

    def stopped(self, sender: NodeId, stop: Stop, now: Millis) -> None:
        """A member asks for another leader."""
        others = [
            s.regency for (of, who), s in self._said.items() if of is stop.log and who != sender
        ]
        if len(others) > self._f and stop.regency > max(others) + 1:
            reason = "regency" if stop.regency > FAR_AHEAD + max(others) else "impatient"
            self._notes.add(
                now, Kind.BOASTS, sender, reason, "Stop", log_stream(stop.log), stop.regency
            )
