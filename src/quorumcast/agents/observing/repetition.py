"""Repetition: who says again, word by word, what it has said, and whether it was asked to.

Whoever is asked says it again. So does, late, whoever answers late: what follows the answer to a
subscription was asked for, whenever that was.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from quorumcast.agents.observing.observation import Kind, Notes
from quorumcast.agents.observing.turnout import PATIENCE_MS
from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.core.messages import AnyMessage, Checkpoint, Contents, Vote

#: Messages of a peer among which a repetition is looked for.
RECENT = 64

#: Messages that an honest node has no reason to repeat word by word, unless it is asked.
UNREPEATED = (Vote, Contents, Checkpoint)


class Repetition:
    """The last words of each peer, and what it was asked for."""

    __slots__ = ("_asked_at", "_notes", "_recent", "_subscribed")

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        #: When each broker was last asked to say again what it has said, by kind of message.
        self._asked_at: dict[tuple[NodeId, type], int] = {}
        #: Subscriptions that are not answered yet.
        self._subscribed: Counter[tuple[NodeId, Channel]] = Counter()
        self._recent: dict[NodeId, OrderedDict[int, None]] = {}

    def ask(self, now: Millis, peers: tuple[NodeId, ...], kind: type) -> None:
        """Some are asked for messages of a kind."""
        self._asked_at.update({(peer, kind): now for peer in peers})

    def subscribe(self, now: Millis, peers: tuple[NodeId, ...], channel: Channel) -> None:
        """Some are asked for all votes of a channel."""
        self.ask(now, peers, Vote)
        self._subscribed.update((peer, channel) for peer in peers)

    def answered(self, now: Millis, peer: NodeId, channel: Channel) -> None:
        """A broker says that it begins to."""
        if self._subscribed[peer, channel] > 0:
            self._subscribed[peer, channel] -= 1
            self.ask(now, (peer,), Vote)

    def was_asked(self, now: Millis, peer: NodeId, kind: type) -> bool:
        """Whether a peer was asked for such messages lately."""
        return now - self._asked_at.get((peer, kind), -PATIENCE_MS) < PATIENCE_MS

    def forget(self, peer: NodeId) -> None:
        """A new session, or something got lost."""
        self._recent.pop(peer, None)

    def release(self, peer: NodeId) -> None:
        """A new session: what was asked in the last one nobody answers."""
        for key in [key for key in self._subscribed if key[0] == peer]:
            del self._subscribed[key]

    def hear(self, now: Millis, peer: NodeId, message: AnyMessage) -> None:
        """A peer says this."""
        if not isinstance(message, UNREPEATED):
            return
        if isinstance(message, Vote) and message.order:
            return  # on a chain a broker passes on whatever comes down to it
        recent = self._recent.setdefault(peer, OrderedDict())
        key = hash(message)
        if key in recent:
            asked = self.was_asked(now, peer, type(message))
            reason = "repeated-when-asked" if asked else "repeated"
            self._notes.add(now, Kind.BACKWARDS, peer, reason, type(message).__name__)
        recent[key] = None
        if len(recent) > RECENT:
            recent.popitem(last=False)
