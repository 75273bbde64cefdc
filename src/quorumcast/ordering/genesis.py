"""The genesis of a log: the id that tells it from another log of the same brokers.

A log without a journal begins anew when all of its brokers restart: position 1 is given out again.
What was signed about the earlier log is true of that one and must not count in this one, neither as
evidence nor in a leader change. So each statement names its log by an id, which the brokers decide
with their first batch and keep in the replicated state.

A broker draws a random *life* when it starts with nothing on disk. The first batches carry an item
of the cell itself (`core.ids.GENESIS`): the lives of n-f or more brokers, as their `Standing`s told
them to the leader. Until such an item has been executed nothing gets a position. The digest of the
first one that is executed is the id of the log.

Why an id never repeats once every correct broker has forgotten its log: a broker writes a genesis
item only if its own entry there is empty or its present life. n-f entries are there, so n-2f of
them are correct brokers', and all of these have another life by now. At most 2f brokers are left to
write the item, fewer than the quorum of ⌈(n+f+1)/2⌉ ≥ 2f+1. Where brokers only crash, leaders do
not lie: the leader's own life is in every item, and is new.

A `StopStatement` with another id does not count. One without an id comes from a broker that has not
executed the first batch. It counts only until a quorum has executed it: from then on f+1 correct
brokers can tell everybody the id.
"""

from __future__ import annotations

from quorumcast.core.ids import DIGEST_SIZE, GENESIS, split_digests
from quorumcast.core.quorum import OrderQuorums
from quorumcast.core.statements import StopStatement
from quorumcast.ordering.checkpoints import CatchUp
from quorumcast.ordering.consensus import LogRecord
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.execution import Execution
from quorumcast.ordering.messages import Batch, Item

#: The entry of a broker whose life the leader does not know.
_UNKNOWN = bytes(DIGEST_SIZE)


class Lived(LogRecord, frozen=True, tag=True):
    """The life in which this broker began with this disk."""

    life: bytes


class Genesis:
    """The genesis items that a broker proposes and writes, and the log ids that it accepts."""

    __slots__ = ("_catch_up", "_context", "_execution", "_quorums", "life")

    def __init__(
        self,
        context: LogContext,
        quorums: OrderQuorums,
        execution: Execution,
        catch_up: CatchUp,
        life: bytes,
    ) -> None:
        self._context = context
        self._quorums = quorums
        self._execution = execution
        self._catch_up = catch_up
        #: This broker's own life; one that the disk held replaces it.
        self.life = life

    @property
    def log_id(self) -> bytes:
        """The id of the log; b"" if this broker has not executed its first batch."""
        return self._execution.state.log_id

    def item(self) -> Item | None:
        """The genesis item that this broker would propose; None if it knows too few lives."""
        lives = {m: standing.life for m, standing in self._catch_up.standings.items()}
        lives[self._context.me] = self.life
        known = [lives.get(member, b"") for member in self._context.members]
        entries = [life if len(life) == DIGEST_SIZE else _UNKNOWN for life in known]
        if sum(entry != _UNKNOWN for entry in entries) < self._quorums.responders:
            return None
        return Item(GENESIS, self._context.epoch, b"".join(entries))

    def may_propose(self, batch: Batch) -> bool:
        """Whether this broker may write a batch: no lives in it, or its own among enough."""
        if any(item.stream == GENESIS for item in batch[1:]):
            return False
        if not batch or batch[0].stream != GENESIS:
            return True
        members, digests = self._context.members, batch[0].digests
        if batch[0].first != self._context.epoch or len(digests) != len(members) * DIGEST_SIZE:
            return False
        entries = dict(zip(members, split_digests(digests), strict=True))
        told = sum(entry != _UNKNOWN for entry in entries.values())
        # Where nobody lies, what must be proposed again may hold a life that has ended.
        mine = (_UNKNOWN, self.life)
        return told >= self._quorums.responders and (
            not self._quorums.byzantine or entries[self._context.me] in mine
        )

    def is_same_log(self, statement: StopStatement) -> bool:
        """Whether a broker's statement is about this log."""
        known = self.log_id
        return (
            not known
            or statement.log_id == known
            or (not statement.log_id and not self._is_common())
        )

    def _is_common(self) -> bool:
        """Whether a quorum has executed the first batch."""
        began = self._execution.state.began
        others = [s for m, s in self._catch_up.standings.items() if m != self._context.me]
        executed = sum(standing.decided >= began for standing in others)
        return executed + 1 >= self._quorums.decide
