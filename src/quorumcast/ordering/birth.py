"""The birth of a log: what tells it from another log of the same brokers.

A log without a journal begins anew when its brokers are stopped and started: position 1 is given
out again. Words and statements that were signed about the earlier log are true of that one, and
must count for nothing in this one: neither against their authors, nor as words on which a leader
rests its proposals. So each of them names the birth of its log, a digest that the brokers decide
with their first batch and keep in the state; whoever takes over the state learns it from there.

A broker draws a *life* when it starts with nothing on disk. The first batches carry an item of the
cell itself (`core.ids.BIRTH`): the lives of n-f or more brokers, as their `Standing`s told them to
the leader. Until such an item has been executed nothing gets a position. The digest of the first
one that is executed is the birth.

Why a birth never repeats once every correct broker has forgotten its log: a broker writes an item
only if its own entry there is empty or its present life. n-f entries are there, so n-2f of them are
correct brokers', and all of these have another life by now. At most 2f brokers are left to write
the item, fewer than the quorum of ⌈(n+f+1)/2⌉ ≥ 2f+1. Where brokers only crash, leaders do not
lie: the leader's own life is in every item, and is new.

A word (`StopStatement`) with another birth is not believed. One without a birth is by a broker that
has not executed the first batch. It is believed only until a quorum has executed it: from then on
f+1 correct brokers can tell it to everybody, and whoever gives its word can know the birth.
"""

from __future__ import annotations

from quorumcast.core.ids import BIRTH, DIGEST_SIZE
from quorumcast.core.quorum import OrderQuorums
from quorumcast.core.statements import StopStatement
from quorumcast.ordering.catchup import CatchUp
from quorumcast.ordering.consensus import LogRecord
from quorumcast.ordering.execution import Execution, LogContext
from quorumcast.ordering.messages import Batch, Item

#: The entry of a broker whose life the leader does not know.
_UNKNOWN = bytes(DIGEST_SIZE)


class Lived(LogRecord, frozen=True, tag=True):
    """The life in which this broker began with this disk."""

    life: bytes

    @property
    def place(self) -> int:
        """Later records at the same place replace earlier ones."""
        return 0


def birth_item(batch: Batch) -> Item | None:
    """The lives in a batch, if it carries them."""
    return batch[0] if batch and batch[0].stream == BIRTH else None


class Birth:
    """What one broker knows of the birth of one log."""

    __slots__ = ("_around", "_catch_up", "_execution", "_quorums", "life")

    def __init__(
        self,
        around: LogContext,
        quorums: OrderQuorums,
        execution: Execution,
        catch_up: CatchUp,
        life: bytes,
    ) -> None:
        self._around = around
        self._quorums = quorums
        self._execution = execution
        self._catch_up = catch_up
        #: This broker's own life; one that the disk held replaces it.
        self.life = life

    @property
    def known(self) -> bytes:
        """The birth of the log; b"" if this broker has not executed its first batch."""
        return self._execution.state.birth

    # ------------------------------------------------------------- the first batches

    def item(self) -> Item | None:
        """The lives that this broker would propose; None if it knows too few."""
        standings = self._catch_up.standings
        lives = [
            self.life
            if member == self._around.me
            else standings[member].life
            if member in standings
            else b""
            for member in self._around.members
        ]
        entries = [life if len(life) == DIGEST_SIZE else _UNKNOWN for life in lives]
        if sum(entry != _UNKNOWN for entry in entries) < self._quorums.responders:
            return None
        return Item(BIRTH, self._around.epoch, b"".join(entries))

    def may_propose(self, batch: Batch) -> bool:
        """Whether this broker may write a batch: no lives in it, or its own among enough."""
        if any(item.stream == BIRTH for item in batch[1:]):
            return False
        item = birth_item(batch)
        if item is None:
            return True
        members, digests = self._around.members, item.digests
        if item.first != self._around.epoch or len(digests) != len(members) * DIGEST_SIZE:
            return False
        entries = {
            member: digests[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE]
            for place, member in enumerate(members)
        }
        told = sum(entry != _UNKNOWN for entry in entries.values())
        # Where nobody lies, what must be proposed again may hold a life that has ended.
        mine = (_UNKNOWN, self.life)
        return told >= self._quorums.responders and (
            not self._quorums.byzantine or entries[self._around.me] in mine
        )

    # ------------------------------------------------------------------------- words

    def believes(self, word: StopStatement) -> bool:
        """Whether a broker's word is about this log."""
        known = self.known
        return not known or word.birth == known or (not word.birth and not self._common())

    def _common(self) -> bool:
        """Whether a quorum has executed the first batch."""
        born = self._execution.state.born
        standings = [s for m, s in self._catch_up.standings.items() if m != self._around.me]
        executed = sum(standing.decided >= born for standing in standings)
        return executed + 1 >= self._quorums.decide
