"""Accounts of the work that brokers do for the predicates of their clients.

Each client has an *account* of work, in microseconds as `matching` estimates them. It gains
INCOME_US per millisecond, and saves up MOST_US. Work is paid for in advance: what a client cannot
pay is not done, and it asks again later. So in the long run a client takes less than a fifth of a
broker's time, whatever it asks for and however often it changes its mind: estimates may be wrong
by a third. What costs more than a full account is done when the account is full, and leaves a debt.

All clients together gain POOL_INCOME_US, so that many of them do not take everything. Those that
have spent a quarter of their savings, or spend half of what they gain, are *busy*, and share it.
When all together have used up what they saved, only those may ask that have most of their savings.
"""

from __future__ import annotations

from quorumcast.core.ids import Millis, NodeId, holder

#: Microseconds of work that a client gains per millisecond, and has at most.
INCOME_US, MOST_US = 150, 1_000_000
#: The same of all clients together.
POOL_INCOME_US, POOL_MOST_US = 600, 1_000_000
#: A client with less than this is busy, and must wait for the others.
BUSY_US = MOST_US * 3 // 4
#: Time between two counts of busy clients.
COUNT_MS = 100


class WorkAccount:
    """How much work may still be asked of a broker."""

    __slots__ = ("_at", "_most_us", "left_us", "spent_us")

    def __init__(self, now: Millis, most_us: int) -> None:
        self._at = now
        self._most_us = most_us
        #: Less than nothing if a debt has to be worked off.
        self.left_us = most_us
        #: Since busy clients were counted.
        self.spent_us = 0

    def spend(self, work_us: int) -> None:
        """Pay."""
        self.left_us -= work_us
        self.spent_us += work_us

    def gain(self, income_us: int, now: Millis) -> None:
        """Add what was gained per millisecond since the last time."""
        gained = income_us * max(0, now - self._at)
        self.left_us = min(self._most_us, self.left_us + gained)
        self._at = now

    @property
    def is_full(self) -> bool:
        """Whether a new account would be the same."""
        return self.left_us == self._most_us


class WorkAccounts:
    """The accounts of all clients of a broker, one per client, whatever its seats."""

    __slots__ = ("_accounts", "_counted_at", "_income_us", "_pool")

    def __init__(self) -> None:
        #: Of clients that asked for work; until they are full again.
        self._accounts: dict[NodeId, WorkAccount] = {}
        self._pool = WorkAccount(Millis(0), POOL_MOST_US)
        #: What each client gains, and when that was found out.
        self._income_us = INCOME_US
        self._counted_at = Millis(0)

    def __len__(self) -> int:
        return len(self._accounts)

    def may_ask(self, reader: NodeId, work_us: int, now: Millis) -> bool:
        """Whether a node may ask for so much work now."""
        if now - self._counted_at >= COUNT_MS:
            self._count(now)
        client = holder(reader)
        if client not in self._accounts:
            self._accounts[client] = WorkAccount(now, MOST_US)
        account = self._accounts[client]
        account.gain(self._income_us, now)
        if account.left_us < min(max(1, work_us), MOST_US):
            return False
        self._pool.gain(POOL_INCOME_US, now)
        return self._pool.left_us > 0 or account.left_us >= BUSY_US

    def spend(self, readers: tuple[NodeId, ...], work_us: int) -> None:
        """Note work that is done for all of these at once."""
        self._pool.spend(work_us)
        share_us = -(-work_us // max(1, len(readers)))
        for reader in readers:
            account = self._accounts.get(holder(reader))
            if account is not None:
                account.spend(share_us)

    def _count(self, now: Millis) -> None:
        """Share what there is among the busy, and forget accounts that are like new ones."""
        half_us = self._income_us * (now - self._counted_at) // 2
        self._counted_at = now
        busy = 0
        for client, account in list(self._accounts.items()):
            account.gain(self._income_us, now)
            busy += account.left_us < BUSY_US or account.spent_us > half_us
            account.spent_us = 0
            if account.is_full:
                del self._accounts[client]
        self._income_us = min(INCOME_US, POOL_INCOME_US // max(1, busy))
