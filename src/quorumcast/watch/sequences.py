"""Numbers that must not decrease within a session.

Sessions keep order and reveal losses. So a broker that acknowledges less than before takes an
acknowledgement back, and a leader that votes for an instance must have proposed it before. After a
new session or a loss the memory starts empty, because earlier messages may be unknown.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from quorumcast.broadcast.messages import Ack
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.ordering.messages import Propose
from quorumcast.watch.observation import Kind, Notes, forget, remember

#: Reason: the leader proposed an empty batch without need.
HOLLOW = "hollow"
#: Reason: the leader voted for an instance before it proposed it, or without proposing it.
VOTED_FIRST = "voted-first"


class _Proposals(msgspec.Struct, frozen=True):
    """A leader's proposals in its latest regency."""

    regency: int
    #: The highest instance.
    last: int = 0
    count: int = 0


class Sequences:
    """How far each peer has come in this session."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        #: The highest number that each peer acknowledged.
        self._acks: OrderedDict[tuple[NodeId, Stream], int] = OrderedDict()
        #: All proposals of each leader, and those with an empty batch.
        self._proposals: OrderedDict[tuple[NodeId, Stream], _Proposals] = OrderedDict()
        self._hollow: OrderedDict[tuple[NodeId, Stream], _Proposals] = OrderedDict()

    def forget(self, peer: NodeId) -> None:
        """Start again after a new session or a loss."""
        forget(peer, self._acks, self._proposals)

    def on_ack(self, now: Millis, peer: NodeId, ack: Ack) -> None:
        """A broker acknowledges numbers of a stream."""
        before = self._acks.get((peer, ack.stream), 0)
        if ack.upto < before:
            self._notes.add(now, Kind.BACKWARDS, peer, "", "Ack", ack.stream, ack.upto)
        remember(self._acks, (peer, ack.stream), max(ack.upto, before))

    def on_proposal(self, peer: NodeId, log: Stream, regency: int, instance: int) -> None:
        """A leader proposes; a retransmission does not lower its highest instance."""
        led = self._proposals.get((peer, log))
        last = led.last if led is not None and led.regency == regency else 0
        remember(self._proposals, (peer, log), _Proposals(regency, max(instance, last)))

    def on_leader_vote(
        self, now: Millis, peer: NodeId, log: Stream, regency: int, instance: int
    ) -> None:
        """A leader votes in its own regency: it must have proposed this instance."""
        led = self._proposals.get((peer, log)) or _Proposals(regency)
        if led.regency < regency or (led.regency == regency and instance > led.last):
            self._notes.add(now, Kind.BACKWARDS, peer, VOTED_FIRST, "Propose", log, instance)

    def on_empty_proposal(
        self, now: Millis, peer: NodeId, log: Stream, message: Propose, left_open: int
    ) -> None:
        """A leader proposes an empty batch: only to fill what its predecessors `left_open`."""
        regency, instance = message.regency, message.instance
        empty = self._hollow.get((peer, log))
        if empty is None or empty.regency != regency:
            empty = _Proposals(regency)
        if instance > empty.last:
            remember(self._hollow, (peer, log), _Proposals(regency, instance, empty.count + 1))
            if empty.count >= left_open:
                self._notes.add(now, Kind.PASSES_OVER, peer, HOLLOW, "Propose", log, instance)
