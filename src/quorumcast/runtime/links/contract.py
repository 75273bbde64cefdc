"""The interfaces between a driver, its links to peers, and the handshake that secures a link.

`Links` over sockets are in `transport`, links in memory in `quorumcast.testing`.
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
    """Receives what happens on the links."""

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Take the messages of one packet from an authenticated peer."""

    def peer_up(self, peer: NodeId) -> None:
        """A peer can be reached (again)."""

    def peer_down(self, peer: NodeId) -> None:
        """A peer cannot be reached for now."""

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """A dialed peer cannot be reached."""


class Trouble(msgspec.Struct, frozen=True):
    """Why there is no link to a peer."""

    #: What is wrong and what helps, for the user.
    sentence: str = "no answer yet"
    #: Whether the peer answered and refused us: waiting alone does not help.
    refused: bool = False


class Links(Protocol):
    """The links of one node to its peers."""

    def send(self, to: tuple[NodeId, ...], message: Message, bodies: Bodies) -> None:
        """Put a message into each peer's outbox; it leaves with the end of this loop turn."""

    def dial(self, peer: NodeId) -> None:
        """Call a peer once (`core.machine.Dial`); the listener is told the outcome later."""

    def hangup(self, peer: NodeId) -> None:
        """End a link or call (`core.machine.Hangup`); the listener is told later."""

    def peers(self) -> list[NodeId]:
        """Peers with an open link."""

    def troubles(self) -> dict[NodeId, Trouble]:
        """Why other peers have none, as far as is known."""

    def pause_reading(self) -> None:
        """Back-pressure: take nothing from any peer for a while."""

    def resume_reading(self) -> None:
        """Take what peers send again."""

    async def close(self) -> None:
        """Write what waits and end every link."""


class Handshake(Protocol):
    """Authenticates a node and a peer to each other and agrees on a session.

    `greeting.Greeter` uses the pairwise keys of a keyring. Peers that send their keys in the
    greeting need greetings with more fields (subclasses of `Hello` and `Welcome` that `decode`
    knows), and may return sessions that encrypt (a subclass of `Session`); links need no change for
    either. No method may raise on what a peer sent.
    """

    @property
    def name(self) -> NodeId:
        """Our own name."""

    @property
    def epoch(self) -> int:
        """The epoch in which we greet."""

    def decode(self, frame: bytes) -> Greeting | None:
        """The greeting in a frame, or None if it is not one."""

    def hello(self, to: NodeId) -> Hello:
        """Our greeting to a peer."""

    def answer(self, hello: Hello) -> tuple[Welcome, Session] | Farewell:
        """A welcome and the session that follows from it, or a refusal."""

    def conclude(self, hello: Hello, welcome: Welcome) -> Session | None:
        """The caller's session, or None if the answer is not from the node that we called."""

    def leave(self, epoch: int) -> None:
        """Refuse every greeting from now on: that epoch does not list us."""
