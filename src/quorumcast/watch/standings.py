"""Standings: where members of a log say they are, and what nobody can say there.

Nobody takes back what it has decided, wakes up twice in one session, or is where nobody is near.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.core.ids import CELL, Channel, Millis, NodeId, Stream
from quorumcast.core.quorum import Protection, Quorums
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.consensus import value_of
from quorumcast.ordering.messages import LogPart, Standing, StateHead, Stop
from quorumcast.ordering.state import root_of
from quorumcast.watch.claims import FAR_AHEAD
from quorumcast.watch.observation import Kind, Notes, remember
from quorumcast.watch.turnout import Links
from quorumcast.watch.words import outvoted


def log_stream(log: Protection) -> Stream:
    """The name under which the instances of a log are numbered in observations."""
    return Stream(Channel(f"*{log.value}"), CELL, 0)


class Standings:
    """What each member said last: its regency, and the highest instance decided."""

    def __init__(self, quorums: Quorums, links: Links, notes: Notes) -> None:
        #: f+1 members: at least one of them is correct.
        self._enough = quorums.one_correct
        self._links = links
        self._notes = notes
        #: When each member first said since a loss of which instances it knows, and which.
        self._known: dict[tuple[Protection, NodeId], tuple[int, int]] = {}
        self._said: dict[tuple[Protection, NodeId], Standing] = {}

    def of(self, log: Protection, member: NodeId) -> Standing | None:
        """Where a member says it is."""
        return self._said.get((log, member))

    def forget(self, peer: NodeId) -> None:
        """A new session: whoever restarts begins anew."""
        for memory in (self._said, self._known):
            for key in [key for key in memory if key[1] == peer]:
                del memory[key]

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
        if len(others) < self._enough:
            return
        if standing.decided > FAR_AHEAD + max(s.decided for s in others):
            self._notes.add(now, Kind.BOASTS, sender, "ahead", "Standing", stream, standing.decided)
        # Up to f of the others may boast, too; and no regency begins without n-f members.
        if standing.regency > FAR_AHEAD + sorted(s.regency for s in others)[-self._enough]:
            self._notes.add(
                now, Kind.BOASTS, sender, "regency", "Standing", stream, standing.regency
            )
        same = [s for s in others if s.checkpoint == standing.checkpoint and s.root]
        differ = all(s.root != standing.root for s in same)
        if standing.root and len(same) >= self._enough and differ:
            self._notes.add(
                now, Kind.CONTRADICTS, sender, "others", "Standing", stream, standing.checkpoint
            )

    def handed(self, sender: NodeId, head: StateHead, now: Millis) -> None:
        """A member shows what the state at a checkpoint consists of."""
        at, root = head.checkpoint, root_of(head.chunks)
        others = {who: s for (of, who), s in self._said.items() if of is head.log}
        own = others.pop(sender, None)
        roots = [s.root for s in others.values() if s.root and s.checkpoint == at]
        decided = [s.decided for s in others.values()]
        if own is not None and own.root and own.checkpoint == at and own.root != root:
            kind, reason = Kind.CONTRADICTS, "itself"
        elif len(roots) >= self._enough and root not in roots:
            kind, reason = Kind.CONTRADICTS, "others"
        elif len(others) >= self._enough and at > FAR_AHEAD + max(decided):
            kind, reason = Kind.BOASTS, "ahead"
        else:
            return
        self._notes.add(now, kind, sender, reason, "StateHead", log_stream(head.log), at)

    def stopped(self, sender: NodeId, stop: Stop, now: Millis) -> None:
        """A member asks for another leader."""
        others = [
            s.regency for (of, who), s in self._said.items() if of is stop.log and who != sender
        ]
        if len(others) >= self._enough and stop.regency > FAR_AHEAD + max(others):
            self._notes.add(
                now, Kind.BOASTS, sender, "regency", "Stop", log_stream(stop.log), stop.regency
            )


class LogParts:
    """What each member said was decided, by log and instance: correct ones hand over the same."""

    def __init__(self, manifest: Manifest, notes: Notes) -> None:
        self._enough = manifest.quorums.one_correct
        self._hash = manifest.hash
        self._notes = notes
        self._said: OrderedDict[tuple[Protection, int], dict[NodeId, bytes]] = OrderedDict()

    def handed(self, sender: NodeId, part: LogPart, now: Millis) -> None:
        """A member hands over what it knows to be decided; each part counts once."""
        false: dict[NodeId, int] = {}
        for instance, batch in enumerate(part.batches, part.first):
            said = self._said.get((part.log, instance), {})
            said[sender] = value_of(self._hash, batch)
            remember(self._said, (part.log, instance), said)
            for member in outvoted(said, sender, self._enough):
                false.setdefault(member, instance)
        for member, instance in false.items():
            stream = log_stream(part.log)
            self._notes.add(now, Kind.CONTRADICTS, member, "others", "LogPart", stream, instance)
