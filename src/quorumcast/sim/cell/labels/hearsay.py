"""What correct nodes could know: which runs they were told of, and what got lost on the way.

A deed towards a node counts only as far as the node can tell it from what happens to everybody.
What is held back while packets get lost is like what got lost. What a publisher keeps from a node
is missed only if others speak of it, early enough, and before the publisher shows it after all; and
whoever has it from its publisher does not miss it from a broker that might have passed it on. Who
leaves before it would come cannot tell whether it would.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import ChainRun, Echo, Publish, Ready
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.message import Message
from quorumcast.ordering.messages import Offer, Propose
from quorumcast.watch.turnout import PATIENCE_MS, SETTLED_MS

#: What is held back so shortly after or before packets got lost on the same link, or a session
#: began, nobody can tell from what got lost.
AFTER_LOSS_MS, BEFORE_LOSS_MS = SETTLED_MS, PATIENCE_MS

#: A stream and the first number of a run; 0: any.
Run = tuple[Stream, int]


class Hearsay:
    """What reached whom, and when."""

    __slots__ = ("_joined", "_learned", "_left", "_lost", "_shown")

    def __init__(self) -> None:
        #: When nodes were told of runs by others than their publishers, and by their publishers.
        self._learned: dict[NodeId, dict[Run, int]] = {}
        self._shown: dict[NodeId, dict[Run, int]] = {}
        #: When packets from a node to a peer got lost, or a session between them began.
        self._lost: dict[tuple[NodeId, NodeId], list[int]] = {}
        #: Who listens to which channels now.
        self._joined: set[tuple[NodeId, Channel]] = set()
        #: When nodes ceased to.
        self._left: dict[tuple[NodeId, Channel], list[int]] = {}

    def joined(self, node: NodeId, channel: Channel) -> None:
        """A node begins to listen."""
        self._joined.add((node, channel))

    def left(self, node: NodeId, channel: Channel, now: int) -> None:
        """… and listens no longer."""
        self._joined.discard((node, channel))
        self._left.setdefault((node, channel), []).append(now)

    def stays(self, node: NodeId, channel: Channel, at: int) -> bool:
        """Whether a node listens for long enough to tell what does not come from what is late."""
        left = self._left.get((node, channel), ())
        return not any(at <= when < at + PATIENCE_MS for when in left)

    def listens(self, node: NodeId, channel: Channel) -> bool:
        """Whether it matters to a node what becomes of a channel's publications."""
        return (node, channel) in self._joined

    def told(self, node: NodeId, sender: NodeId, message: Message, now: int) -> None:
        """A node gets to know which runs there are."""
        runs: list[Run] = []
        match message:
            case Propose(batch=batch):
                runs = [(item.stream, item.first) for item in batch]
            case Echo() | Ready() | Publish() | ChainRun() | Offer():
                runs = [(message.stream, message.first)]
            case _:
                return
        for stream, first in runs:
            by_itself = stream.publisher == sender
            if isinstance(message, Publish | ChainRun) and not by_itself:
                continue  # whoever passes it on may have changed whose it is
            times = (self._shown if by_itself else self._learned).setdefault(node, {})
            times.setdefault((stream, first), now)
            times.setdefault((stream, 0), now)

    def lost(self, node: NodeId, peer: NodeId, now: int) -> None:
        """Packets of a node did not reach a peer, or the two have just met (again)."""
        self._lost.setdefault((node, peer), []).append(now)

    def is_clear(self, node: NodeId, peer: NodeId, at: int) -> bool:
        """Whether nothing that a node said to a peer around that time got lost."""
        return not any(
            at - AFTER_LOSS_MS <= loss <= at + BEFORE_LOSS_MS
            for loss in self._lost.get((node, peer), ())
        )

    def is_missed(self, node: NodeId, run: Run, end: int) -> bool:
        """Whether a node waits in vain, long enough before the end, for a run that there is."""
        learned = self._learned.get(node, {}).get(run, end)
        return learned <= min(end - PATIENCE_MS, self._shown.get(node, {}).get(run, end))

    def has(self, node: NodeId, run: Run, at: int) -> bool:
        """Whether a node has a run from its publisher, or will have it soon."""
        return self._shown.get(node, {}).get(run, at + PATIENCE_MS) < at + PATIENCE_MS
