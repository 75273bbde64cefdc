"""Knowledge of correct nodes: runs they heard of, packets they lost, channels they subscribe to.

A deed towards a node counts only if the node could tell it from an ordinary event:

- A message held back around a packet loss on the same link looks like the lost packet.
- A run that a publisher withholds from a node is missed only if other nodes mention the run early
  enough, and before the publisher sends it after all.
- A run that a broker does not forward is not missed by a node that has it from the publisher.
- A subscriber that leaves before the message was due cannot tell whether it would have come.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumcast.broadcast.messages import ChainRun, Echo, Publish, Ready
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.message import Message
from quorumcast.ordering.messages import Offer, Propose
from quorumcast.watch.turnout import OVERDUE_MS, SETTLED_MS

#: Time after and before a packet loss, or the start of a session, in which a withheld message
#: cannot be told from a lost one.
AFTER_LOSS_MS, BEFORE_LOSS_MS = SETTLED_MS, OVERDUE_MS


class RunStart(NamedTuple):
    """The start of a run of publications; `first` 0 stands for any run of the stream."""

    stream: Stream
    first: int


class Knowledge:
    """Times at which correct nodes heard of runs, lost packets and left channels."""

    __slots__ = ("_joined", "_left", "_losses", "_mentioned", "_published")

    def __init__(self) -> None:
        #: First mention of each run to a node, by other nodes than its publisher.
        self._mentioned: dict[NodeId, dict[RunStart, int]] = {}
        #: First arrival of each run at a node, from its publisher.
        self._published: dict[NodeId, dict[RunStart, int]] = {}
        #: Times of packet losses and session starts, by (sender, receiver).
        self._losses: dict[tuple[NodeId, NodeId], list[int]] = {}
        #: Current subscriptions.
        self._joined: set[tuple[NodeId, Channel]] = set()
        #: Times at which subscriptions ended.
        self._left: dict[tuple[NodeId, Channel], list[int]] = {}

    def on_join(self, node: NodeId, channel: Channel) -> None:
        """Note that a node subscribed to a channel."""
        self._joined.add((node, channel))

    def on_leave(self, node: NodeId, channel: Channel, now: int) -> None:
        """Note that a node ended its subscription."""
        self._joined.discard((node, channel))
        self._left.setdefault((node, channel), []).append(now)

    def is_joined(self, node: NodeId, channel: Channel) -> bool:
        """Whether a node is subscribed to a channel now."""
        return (node, channel) in self._joined

    def stays_joined(self, node: NodeId, channel: Channel, at: int) -> bool:
        """Whether a node stays subscribed long enough to tell a missing message from a late one."""
        left = self._left.get((node, channel), ())
        return not any(at <= when < at + OVERDUE_MS for when in left)

    def on_receive(self, node: NodeId, sender: NodeId, message: Message, now: int) -> None:
        """Note the runs that a received message mentions."""
        match message:
            case Propose(batch=batch):
                runs = [RunStart(item.stream, item.first) for item in batch]
            case Echo() | Ready() | Publish() | ChainRun() | Offer():
                runs = [RunStart(message.stream, message.first)]
            case _:
                return
        for run in runs:
            from_publisher = run.stream.publisher == sender
            if isinstance(message, Publish | ChainRun) and not from_publisher:
                continue  # the forwarding node may have changed the stream
            times = (self._published if from_publisher else self._mentioned).setdefault(node, {})
            times.setdefault(run, now)
            times.setdefault(RunStart(run.stream, 0), now)

    def on_loss(self, sender: NodeId, receiver: NodeId, now: int) -> None:
        """Note a packet loss on a link, or the start of a session there."""
        self._losses.setdefault((sender, receiver), []).append(now)

    def is_lossless(self, sender: NodeId, receiver: NodeId, at: int) -> bool:
        """Whether the link lost nothing around this time."""
        return not any(
            at - AFTER_LOSS_MS <= loss <= at + BEFORE_LOSS_MS
            for loss in self._losses.get((sender, receiver), ())
        )

    def misses(self, node: NodeId, run: RunStart, end: int) -> bool:
        """Whether others mentioned a run long before the end, and before its publisher sent it."""
        mentioned = self._mentioned.get(node, {}).get(run, end)
        return mentioned <= min(end - OVERDUE_MS, self._published.get(node, {}).get(run, end))

    def has_from_publisher(self, node: NodeId, run: RunStart, at: int) -> bool:
        """Whether a node has a run from its publisher by this time, or soon after."""
        return self._published.get(node, {}).get(run, at + OVERDUE_MS) < at + OVERDUE_MS
