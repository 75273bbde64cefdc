"""What a fault is: an honest machine whose effects are tampered with before they happen.

A faulty node runs the same machine as everybody else. Its driver hands every list of effects that
it is about to carry out (also those that waited inside `Persist.then`, when their time comes) to
`Fault.tamper` and carries out what comes back. So a faulty node can say anything in its own name
and nothing in another's: it holds its own keys only, and everything it sends passes through its
own sessions.

`tamper` never blocks and draws only from the generator in its context, so a fault behaves alike in
the simulator and in a real broker. An effect wrapped in `Later` is carried out after a while and
not tampered with again.

A catalogue `Entry` also says what correct nodes may expect of the world while the fault is about:
who can commit it, which policies still promise validity, and whether the lie leaves evidence that
convinces a third party or suspicion only. The checkers of the simulator hold the cell to that.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.core.machine import Effect, Receive
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest


class Later(msgspec.Struct, frozen=True):
    """Carry this effect out after a while instead of now."""

    effect: Effect
    after_ms: int


class Fault(Protocol):
    """One way to misbehave."""

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        ...

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        """What the faulty node does instead of these effects."""
        ...


class Role(enum.Enum):
    """Who can commit a fault."""

    BROKER = "broker"
    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"


class Trace(enum.Enum):
    """What a fault leaves behind, at best, with correct nodes that it touches."""

    #: Signed statements that convince a third party, under the policies named by the entry.
    EVIDENCE = "evidence"
    #: Counted and acted upon, but no proof.
    SUSPICION = "suspicion"
    #: Nothing that could be told from bad luck on the network.
    NOTHING = "nothing"


class FaultContext:
    """What a fault may know and use: its own node's keys, and nobody else's."""

    __slots__ = ("heard", "keyring", "manifest", "node", "percent", "rng", "shared", "victims")

    def __init__(
        self,
        node: NodeId,
        manifest: Manifest,
        keyring: Keyring,
        rng: random.Random,
        *,
        percent: int = 100,
        victims: tuple[str, ...] = (),
        shared: dict[bytes, bytes] | None = None,
        heard: Sequence[Receive] = (),
    ) -> None:
        if not 0 <= percent <= 100:
            raise UsageError(f"percent is {percent}: say how many in a hundred, from 0 to 100")
        self.node = node
        self.manifest = manifest
        self.keyring = keyring
        self.rng = rng
        #: How many in a hundred messages it touches, where a fault can choose.
        self.percent = percent
        #: Names of nodes or channels that it aims at; empty: it chooses for itself.
        self.victims = victims
        #: What conspirators tell one another: each digest, contents or run in its other version.
        self.shared: dict[bytes, bytes] = {} if shared is None else shared
        #: What the node was told lately, where its driver keeps it: in the simulator.
        self.heard = heard

    def hits(self) -> bool:
        """Whether this one is among the percentage that is to be touched."""
        return self.percent >= 100 or self.rng.randrange(100) < self.percent

    def brokers(self) -> list[NodeId]:
        """The other brokers, in manifest order."""
        return [broker for broker in self.manifest.broker_ids if broker != self.node]

    def broker_victims(self, count: int) -> list[NodeId]:
        """The brokers it aims at: those named, or `count` that it draws."""
        named = [broker for broker in self.brokers() if broker in self.victims]
        if named:
            return named
        others = self.brokers()
        return sorted(self.rng.sample(others, min(count, len(others))))

    def channels(self) -> list[Channel]:
        """Every channel of the cell, in manifest order."""
        return [channel.name for channel in self.manifest.channels]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the catalogue."""

    name: str
    role: Role
    description: str
    make: Callable[[FaultContext], Fault]
    #: The best that correct nodes can end up with when it strikes.
    trace: Trace
    #: Policies under which the trace is evidence; under the others it is suspicion.
    provable_under: tuple[str, ...] = ()
    #: Policies that promise validity for correct publishers although f brokers do this.
    valid_under: tuple[str, ...] = ()
    #: Whether it stays within what crash protection covers (stopping, never lying).
    benign: bool = False
    #: Policies under which it means anything; empty: all of them.
    only_under: tuple[str, ...] = ()
