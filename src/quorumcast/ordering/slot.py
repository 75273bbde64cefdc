"""What a broker knows of one instance of consensus, and did in it."""

from __future__ import annotations

from quorumcast.core.ids import NodeId
from quorumcast.core.messages import Accept, Batch, Write
from quorumcast.ordering.regency import KEPT_VALUES

#: A vote: in which regency, and for which value.
Vote = tuple[int, bytes]


class Slot:
    """One instance."""

    __slots__ = (
        "accepted",
        "accepts",
        "batches",
        "decided",
        "proposed",
        "said",
        "writes",
        "written",
    )

    def __init__(self) -> None:
        #: What the leader proposed: regency and value.
        self.proposed: Vote = (-1, b"")
        #: Batches known for this instance, by value; at most KEPT_VALUES and the decided one.
        self.batches: dict[bytes, Batch] = {}
        #: The last vote of each member.
        self.writes: dict[NodeId, Vote] = {}
        self.accepts: dict[NodeId, Vote] = {}
        #: What this broker itself wrote (value → last regency), and accepted last.
        self.written: dict[bytes, int] = {}
        self.accepted: Vote = (-1, b"")
        #: The words of ours that have left, for repeating.
        self.said: list[Write | Accept] = []
        self.decided = b""

    def wrote(self, regency: int) -> bool:
        """Whether this broker has written in a regency."""
        return regency in self.written.values()

    @property
    def claim(self) -> tuple[int, bytes, tuple[tuple[bytes, int], ...]]:
        """What this broker stands by."""
        regency, value = self.accepted
        return max(regency, 0), value, tuple(self.written.items())

    def keep(self, value: bytes, batch: Batch) -> None:
        """Know a batch; what was neither written nor decided gives way."""
        self.batches[value] = batch
        if len(self.batches) > KEPT_VALUES:
            for stale in list(self.batches):
                if stale not in (*self.written, value, self.decided, self.proposed[1]):
                    del self.batches[stale]
                    break

    def leader_of(self, votes: dict[NodeId, Vote], quorum: int) -> Vote | None:
        """The vote that a quorum cast alike."""
        counts: dict[Vote, int] = {}
        for vote in votes.values():
            counts[vote] = counts.get(vote, 0) + 1
            if counts[vote] >= quorum:
                return vote
        return None
