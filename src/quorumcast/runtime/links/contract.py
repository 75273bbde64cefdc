"""What a driver needs of any way to reach peers: sockets here, memory in `quorumcast.testing`.

And what links over sockets need of a system to make a session with a peer: a `Handshake`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Bodies, DialFailure
from quorumcast.core.message import Message
from quorumcast.crypto.session import Farewell, Hello, Opened, Session, Welcome

Greeting = Hello | Welcome | Farewell


class Listener(Protocol):
    """Who hears what peers say."""

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Messages of one packet from a proven peer."""

    def peer_up(self, peer: NodeId) -> None:
        """A peer can be reached (again)."""

    def peer_down(self, peer: NodeId) -> None:
        """A peer cannot be reached for now."""

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """A dialed peer cannot be reached."""


class Trouble(msgspec.Struct, frozen=True):
    """Why there is no link to a peer."""

    #: What is wrong, and what helps, for whoever has to tell the user.
    sentence: str = "no answer yet"
    #: Whether the peer answered and would not have us: waiting alone does not help.
    refused: bool = False


class Links(Protocol):
    """The way to the peers of one node."""

    def send(self, to: tuple[NodeId, ...], message: Message, bodies: Bodies) -> None:
        """Put a message into each peer's outbox; it leaves with the end of this loop turn."""

    def dial(self, peer: NodeId) -> None:
        """Call a peer once (`core.machine.Dial`); the listener hears what came of it later."""

    def hangup(self, peer: NodeId) -> None:
        """End a link or call (`core.machine.Hangup`); the listener hears of it later."""

    def peers(self) -> list[NodeId]:
        """Peers with an open link."""

    def troubles(self) -> dict[NodeId, Trouble]:
        """Why the others have none, as far as is known."""

    def pause_reading(self) -> None:
        """Back-pressure: take nothing from any peer for a while."""

    def resume_reading(self) -> None:
        """Take what peers send again."""

    async def close(self) -> None:
        """Write what waits and end every link."""


class Handshake(Protocol):
    """How one node and a peer become sure of each other and agree on a session.

    `greeting.Greeter` does this with the pairwise keys of a keyring. Peers that bring their keys
    along have greetings with more fields (subclasses of `Hello` and `Welcome` that `decode` knows)
    and perhaps sessions that encrypt (a subclass of `Session`): links notice nothing of either.
    Nothing here may raise on what a peer sent.
    """

    @property
    def name(self) -> NodeId:
        """Who we are."""

    @property
    def epoch(self) -> int:
        """The epoch in which we greet."""

    def decode(self, frame: bytes) -> Greeting | None:
        """The greeting in a frame, or None if it is not one."""

    def hello(self, to: NodeId) -> Hello:
        """Our first words to a peer."""

    def answer(self, hello: Hello) -> tuple[Welcome, Session] | Farewell:
        """A welcome and the session that follows from it, or why not."""

    def conclude(self, hello: Hello, welcome: Welcome) -> Session | None:
        """The caller's session, or None if the answer is not from the node that we called."""

    def leave(self, epoch: int) -> None:
        """Greet nobody any more: that epoch does not name us."""
