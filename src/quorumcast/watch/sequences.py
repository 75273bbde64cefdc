"""What a peer sends must fit what it sent before, because a session keeps order.

- A broker never acknowledges less than before.
- A leader proposes an instance before it votes for it.
- A leader proposes no more empty batches than its predecessors left instances open.

Sessions reveal losses. After a new session or a loss earlier messages may be unknown, so the memory
of acknowledgements and proposals starts empty.
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


class _EmptyProposals(msgspec.Struct, frozen=True):
    """The proposals with an empty batch that a leader made in one regency."""

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
        #: The regency of each leader's newest proposal, and its highest instance there.
        self._proposed: OrderedDict[tuple[NodeId, Stream], tuple[int, int]] = OrderedDict()
        #: Kept after a loss, which can only have made the count too low.
        self._empty: OrderedDict[tuple[NodeId, Stream], _EmptyProposals] = OrderedDict()

    def forget(self, peer: NodeId) -> None:
        """Start again after a new session or a loss."""
        forget(peer, self._acks, self._proposed)

    def on_ack(self, now: Millis, peer: NodeId, ack: Ack) -> None:
        """A broker acknowledges numbers of a stream."""
        before = self._acks.get((peer, ack.stream), 0)
        if ack.upto < before:
            self._notes.add(
                now, Kind.BACKWARDS, peer, message="Ack", stream=ack.stream, number=ack.upto
            )
        remember(self._acks, (peer, ack.stream), max(ack.upto, before))

    def on_proposal(self, peer: NodeId, log: Stream, regency: int, instance: int) -> None:
        """A leader proposes; a retransmission does not lower its highest instance."""
        latest, highest = self._proposed.get((peer, log), (regency, 0))
        if latest == regency:
            instance = max(instance, highest)
        remember(self._proposed, (peer, log), (regency, instance))

    def on_leader_vote(
        self, now: Millis, peer: NodeId, log: Stream, regency: int, instance: int
    ) -> None:
        """A leader votes in its own regency for an instance that it must have proposed to us.

        The caller leaves out votes for instances that the leader may have proposed before a loss.
        """
        if (regency, instance) > self._proposed.get((peer, log), (regency, 0)):
            self._notes.add(now, Kind.BACKWARDS, peer, VOTED_FIRST, "Propose", log, instance)

    def on_empty_proposal(
        self, now: Millis, peer: NodeId, log: Stream, message: Propose, left_open: int
    ) -> None:
        """A leader proposes an empty batch.

        It may do so to fill the instances that its predecessors left open: at most `left_open`.
        """
        regency, instance = message.regency, message.instance
        before = self._empty.get((peer, log))
        if before is None or before.regency != regency:
            before = _EmptyProposals(regency)
        if instance > before.last:
            empty = _EmptyProposals(regency, instance, before.count + 1)
            remember(self._empty, (peer, log), empty)
            if empty.count > left_open:
                self._notes.add(now, Kind.PASSES_OVER, peer, HOLLOW, "Propose", log, instance)
