"""Sequences: what one node says of one thing comes in the order of its numbers.

Sessions keep order, and show what they lose. So a broker that acknowledges less than it did takes
something back, and a leader votes for what it has proposed before. What is before the first thing
heard in a session, or since something got lost, nobody can tell.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.broadcast.messages import Ack
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.ordering.messages import Propose
from quorumcast.watch.observation import Kind, Notes, remember

#: The reason of proposals with nothing in them.
HOLLOW = "hollow"
#: … and of those that come after the leader's own votes for them, or not at all.
VOTED_FIRST = "voted-first"


class Sequences:
    """How far each peer has come in this session."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._acks: OrderedDict[tuple[NodeId, Stream], int] = OrderedDict()
        #: The regency in which a leader proposes, and the highest instance.
        self._proposals: OrderedDict[tuple[NodeId, Stream], tuple[int, int]] = OrderedDict()
        #: The regency in which a leader proposed nothing, the last such instance, and their number.
        self._hollow: OrderedDict[tuple[NodeId, Stream], tuple[int, int, int]] = OrderedDict()

    def forget(self, peer: NodeId) -> None:
        """Something got lost, or everything begins anew."""
        for memory in (self._acks, self._proposals):
            for key in [key for key in memory if key[0] == peer]:
                del memory[key]

    def acknowledged(self, now: Millis, peer: NodeId, ack: Ack) -> None:
        """A broker says how far it is."""
        before = self._acks.get((peer, ack.stream), 0)
        if ack.upto < before:
            self._notes.add(now, Kind.BACKWARDS, peer, "", "Ack", ack.stream, ack.upto)
        remember(self._acks, (peer, ack.stream), max(ack.upto, before))

    def proposed(self, peer: NodeId, log: Stream, regency: int, instance: int) -> None:
        """A leader proposes; what it repeats is as far as it was before."""
        led, top = self._proposals.get((peer, log), (regency, 0))
        top = top if led == regency else 0
        remember(self._proposals, (peer, log), (regency, max(instance, top)))

    def led(self, now: Millis, peer: NodeId, log: Stream, regency: int, instance: int) -> None:
        """A leader votes in its own regency: nobody does so for what it has yet to propose."""
        led, top = self._proposals.get((peer, log), (regency, 0))
        if led < regency or (led == regency and instance > top):
            self._notes.add(now, Kind.BACKWARDS, peer, VOTED_FIRST, "Propose", log, instance)

    def proposed_nothing(
        self, now: Millis, peer: NodeId, log: Stream, message: Propose, left_open: int
    ) -> None:
        """A leader proposes an empty batch.

        It has to where its predecessors `left_open` an instance, and nowhere else: whoever has
        nothing to propose waits.
        """
        regency, instance = message.regency, message.instance
        led, last, count = self._hollow.get((peer, log), (regency, 0, 0))
        if led != regency:
            last = count = 0
        if instance > last:
            remember(self._hollow, (peer, log), (regency, instance, count + 1))
            if count >= left_open:
                self._notes.add(now, Kind.PASSES_OVER, peer, HOLLOW, "Propose", log, instance)
