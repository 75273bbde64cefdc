"""What a fault is: an honest machine whose effects are tampered with before they happen.

A faulty node runs the same machine as everybody else. Its driver hands every list of effects that
it is about to carry out (also those that waited inside `Persist.then`, when their time comes) to
`Fault.tamper` and carries out what comes back. So a faulty node can say anything in its own name
and nothing in another's: it holds its own keys only, and everything it sends passes through its
own sessions.

`tamper` never blocks and draws only from the generator in its context, so a fault behaves alike in
the simulator and in a real process. An effect wrapped in `Later` is carried out after a while and
not tampered with again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Receive


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


class FaultSetting:
    """How a fault is set going, whatever the system."""

    __slots__ = ("heard", "node", "percent", "rng", "shared", "victims")

    def __init__(
        self,
        node: NodeId,
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
