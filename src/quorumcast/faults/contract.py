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

from typing import Protocol

import msgspec

from quorumcast.core.ids import Millis
from quorumcast.core.machine import Effect


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
