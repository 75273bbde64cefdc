"""Impossible reports about a replicated log: `Standing`, `Stop`, `StateHead` and `LogPart`.

Within a session a correct member never lowers its highest decided instance, never becomes fresh
again and never leaves a regency but for a later one. Its instance and regency are near those of
others. Its checkpoints and log entries equal those of the other correct members.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.core.ids import CELL, Channel, Millis, NodeId, Stream
from quorumcast.core.quorum import Protection, Quorums
from quorumcast.core.tally import Tally
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.consensus import value_of
from quorumcast.ordering.messages import LogPart, Standing, StateHead, Stop
from quorumcast.ordering.state import root_of
from quorumcast.watch.claims import FAR_AHEAD
from quorumcast.watch.observation import Kind, Notes, forget, tally_at
from quorumcast.watch.run_votes import outvoted
from quorumcast.watch.turnout import LinkHistory


def log_stream(log: Protection) -> Stream:
    """Return the stream that stands for a log in observations; its numbers are instances."""
    return Stream(Channel(f"*{log.value}"), CELL, 0)


class Standings:
    """The last Standing of each member of each log."""

    def __init__(self, quorums: Quorums, links: LinkHistory, notes: Notes) -> None:
        self._one_correct = quorums.one_correct
        self._links = links
        self._notes = notes
        #: The first Standing since the last loss: its time, and its highest known instance.
        self._known: dict[tuple[NodeId, Protection], tuple[int, int]] = {}
        self._last: dict[tuple[NodeId, Protection], Standing] = {}

    def of(self, log: Protection, member: NodeId) -> Standing | None:
        """Return a member's last Standing."""
        return self._last.get((member, log))

    def on_new_session(self, peer: NodeId) -> None:
        """Forget a peer's reports: it may have restarted."""
        forget(peer, self._last, self._known)

    def known(self, log: Protection, member: NodeId) -> int | None:
        """Return the highest instance that a member had heard of when our view became complete.

        Every later message of the member has arrived. None until it has reported since a loss.
        """
        since, heard = self._known.get((member, log), (-1, 0))
        clear = self._links.clear_since.get(member)
        return None if clear is None or since <= clear else heard

    def on_standing(self, sender: NodeId, standing: Standing, now: Millis) -> None:
        """A member reports its progress."""
        log = standing.log
        stream = log_stream(log)
        others = list(self._others(log, sender).values())
        before = self._last.get((sender, log))
        self._last[sender, log] = standing
        if self.known(log, sender) is None:
            self._known[sender, log] = (now, standing.heard)

        def note(kind: Kind, reason: str, number: int = 0) -> None:
            self._notes.add(now, kind, sender, reason, "Standing", stream, number)

        if before is not None and standing.decided < before.decided:
            note(Kind.BACKWARDS, "decided", standing.decided)
        if before is not None and standing.fresh and not before.fresh:
            # A member recovers at most once in a session.
            note(Kind.BACKWARDS, "fresh")
        begun = before is not None and before.synced and before.regency == standing.regency
        if begun and not standing.synced:
            # A member that has begun a regency stays in it until a later one.
            note(Kind.BACKWARDS, "synced")
        if len(others) < self._one_correct:
            return
        if standing.decided > FAR_AHEAD + max(s.decided for s in others):
            note(Kind.BOASTS, "ahead", standing.decided)
        # Up to f of the others may lie as well, and no regency begins without n-f members.
        if standing.regency > FAR_AHEAD + sorted(s.regency for s in others)[-self._one_correct]:
            note(Kind.BOASTS, "regency", standing.regency)
        same = [s for s in others if s.checkpoint == standing.checkpoint and s.root]
        differ = all(s.root != standing.root for s in same)
        if standing.root and len(same) >= self._one_correct and differ:
            note(Kind.CONTRADICTS, "others", standing.checkpoint)

    def _others(self, log: Protection, sender: NodeId) -> dict[NodeId, Standing]:
        """Return the last Standing of the other members of a log."""
        return {m: s for (m, of), s in self._last.items() if of is log and m != sender}

    def on_state_head(self, sender: NodeId, head: StateHead, now: Millis) -> None:
        """A member begins a state transfer with the digests of a checkpoint's chunks."""
        at, root = head.checkpoint, root_of(head.chunks)
        own, others = self.of(head.log, sender), self._others(head.log, sender).values()
        decided = [s.decided for s in others]
        roots = [s.root for s in others if s.root and s.checkpoint == at]
        if own is not None and own.root and own.checkpoint == at and own.root != root:
            kind, reason = Kind.CONTRADICTS, "itself"
        elif len(roots) >= self._one_correct and root not in roots:
            kind, reason = Kind.CONTRADICTS, "others"
        elif len(others) >= self._one_correct and at > FAR_AHEAD + max(decided):
            kind, reason = Kind.BOASTS, "ahead"
        else:
            return
        self._notes.add(now, kind, sender, reason, "StateHead", log_stream(head.log), at)

    def on_stop(self, sender: NodeId, stop: Stop, now: Millis) -> None:
        """A member asks for a view change."""
        others = [standing.regency for standing in self._others(stop.log, sender).values()]
        if len(others) >= self._one_correct and stop.regency > FAR_AHEAD + max(others):
            self._notes.add(
                now, Kind.BOASTS, sender, "regency", "Stop", log_stream(stop.log), stop.regency
            )


class LogParts:
    """The decided values that each member sent; those of correct members are equal."""

    def __init__(self, manifest: Manifest, notes: Notes) -> None:
        self._one_correct = manifest.quorums.one_correct
        self._hash = manifest.hash
        self._notes = notes
        self._values: OrderedDict[tuple[Protection, int], Tally[bytes]] = OrderedDict()

    def on_log_part(self, sender: NodeId, part: LogPart, now: Millis) -> None:
        """A member sends decided batches; each contradicted member is noted once per message."""
        contradicted: dict[NodeId, int] = {}
        for instance, batch in enumerate(part.batches, part.first):
            values = tally_at(self._values, (part.log, instance))
            values.revote(sender, value_of(self._hash, batch))
            for member in outvoted(values, sender, self._one_correct):
                contradicted.setdefault(member, instance)
        for member, instance in contradicted.items():
            stream = log_stream(part.log)
            self._notes.add(now, Kind.CONTRADICTS, member, "others", "LogPart", stream, instance)
