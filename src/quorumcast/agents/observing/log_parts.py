"""Parts of the log that brokers hand to whoever is late: correct ones hand over the same.

What was decided is known to all of them, so once f+1 have handed over the same of an instance, who
hands over something else makes it up.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.agents.observing.observation import Kind, Notes, remember
from quorumcast.agents.observing.standings import log_stream
from quorumcast.agents.observing.words import outvoted
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.messages import LogPart
from quorumcast.core.quorum import Protection
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.consensus import value_of


class LogParts:
    """What each member said was decided, by log and instance."""

    __slots__ = ("_f", "_hash", "_notes", "_said")

    def __init__(self, manifest: Manifest, notes: Notes) -> None:
        self._f = manifest.f
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
            for member in outvoted(said, sender, self._f):
                false.setdefault(member, instance)
        for member, instance in false.items():
            stream = log_stream(part.log)
            self._notes.add(now, Kind.CONTRADICTS, member, "others", "LogPart", stream, instance)
