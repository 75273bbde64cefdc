"""Patience with the leader.

A broker that holds offers and sees nothing ordered for `SILENCE_MS` asks for another leader, and so
it does when an offer has waited for `UNFAIR_MS` although others get their turn. Half of the silence
on, it passes what waits to the leader, which the publisher may have left out; and where others get
their turn, what has waited for all of it, a little at a time. With every leader that brings nothing
patience doubles, up to a limit: in a slow network some leader gets its time.
"""

from __future__ import annotations

from quorumcast.core.ids import Millis
from quorumcast.core.machine import Effect, Send
from quorumcast.ordering.consensus import Consensus
from quorumcast.ordering.execution import Execution, LogContext
from quorumcast.ordering.succession import Succession

SILENCE_MS = 600
UNFAIR_MS = 6000
MOST_PATIENCE_MS = 8 * SILENCE_MS
#: Offers passed on at a time, and while others get their turn: a busy leader has seen the most.
PASSED_ON, PASSED_ON_BESIDE = 64, 4


class Patience:
    """How long a broker waits before it asks for another leader."""

    __slots__ = (
        "_around",
        "_consensus",
        "_execution",
        "_limit_ms",
        "_passed_at",
        "_since",
        "_succession",
    )

    def __init__(
        self,
        around: LogContext,
        consensus: Consensus,
        execution: Execution,
        succession: Succession,
    ) -> None:
        self._around = around
        self._consensus = consensus
        self._execution = execution
        self._succession = succession
        self._limit_ms = SILENCE_MS
        #: When something was last ordered, or a complaint made.
        self._since = Millis(0)
        #: When something was last passed on while others got their turn.
        self._passed_at = Millis(0)

    def regain(self, now: Millis) -> None:
        """Something was ordered."""
        self._since = now
        self._limit_ms = SILENCE_MS

    def lose(self, now: Millis) -> list[Effect]:
        """Time has passed."""
        synced = self._consensus.synced
        oldest = self._execution.oldest
        if synced and oldest is None:
            return []
        began = self._succession.entered_at
        waited = now - max(self._since, began, oldest or Millis(0))
        passed_over = 0 if oldest is None else now - max(oldest, began)
        effects: list[Effect] = []
        if synced and waited > self._limit_ms // 2:
            effects += self._pass_on(PASSED_ON, now)
            if self._execution.oldest is None:
                return effects  # there was nothing that a leader could have proposed
        elif synced and min(passed_over, now - self._passed_at) > SILENCE_MS:
            self._passed_at = now
            effects += self._pass_on(PASSED_ON_BESIDE, Millis(now - SILENCE_MS))
        if waited > self._limit_ms or passed_over > UNFAIR_MS:
            self._limit_ms = min(2 * self._limit_ms, MOST_PATIENCE_MS)
            self._since = now
            effects += self._succession.complain(now)
        return effects

    def _pass_on(self, most: int, before: Millis) -> list[Effect]:
        leader = self._consensus.leader
        waiting = self._execution.offers.genuine(most)
        if leader == self._around.me:
            return []
        passed: list[Effect] = [
            Send((leader,), held.offer, held.bodies) for held in waiting if held.arrived <= before
        ]
        epoch = self._execution.epochs.waiting
        return passed if epoch is None else [*passed, Send((leader,), *epoch)]
