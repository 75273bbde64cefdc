"""A fault: an honest machine whose effects are tampered with before they are carried out.

The driver of a faulty node hands every list of effects, also those inside `Persist.then`, to
`Fault.tamper` and carries out what comes back. A faulty node can therefore say anything in its own
name and nothing in another's: it has only its own keys, and sends through its own sessions.

`tamper` never blocks and draws only from the generator in its context, so a fault behaves alike in
the simulator and in a real process.
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
    """Carry this effect out after a while instead of now, without tampering with it again."""

    effect: Effect
    after_ms: int


class Fault(Protocol):
    """One way to misbehave."""

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        ...

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        """The effects that the faulty node carries out instead of these."""
        ...


class FaultSetting:
    """The settings of a fault, whatever the system."""

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
        #: The percentage of messages that it changes, where a fault can choose.
        self.percent = percent
        #: Names of nodes, channels or other options that it aims at; empty: it draws them.
        self.victims = victims
        #: Shared by conspirators: the other version of each digest, contents or run.
        self.shared: dict[bytes, bytes] = {} if shared is None else shared
        #: Messages that the node received lately; only the simulator keeps them.
        self.heard = heard

    def hits(self) -> bool:
        """Whether this message is among the percentage that is to be changed."""
        return self.percent >= 100 or self.rng.randrange(100) < self.percent
