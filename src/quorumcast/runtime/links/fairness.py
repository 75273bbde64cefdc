"""Fair shares of a broker's processor time.

Every identity has an account, whichever of its seats and links it uses. Handling is measured piece
by piece (`Link.work`): a frame that is opened, a few messages that the machine takes. Requests are
measured in processor time of this thread. To read that clock costs as much as to handle a small
message, so links that have only published so far are measured by the time of day, which costs a
fraction and differs only while the thread waits for a processor. Two rules follow.

*Peers are served in turn.* A link whose socket is readable is served at once, for one quantum at
most. If more is left, nothing more is read from its socket, and its account joins the ring. Each
turn of the event loop goes round the ring once and adds a quantum to each account, so the share of
a busy account is that of the others (deficit round robin), and whoever says little never waits for
longer than one round. Where only one account has work it has the whole processor.

*Requests have a budget.* Publications are what a cell is for, and credit bounds their number.
Everything else that a client sends is a request: its answer is of use to nobody else. So is what a
machine drops, and the first publication of each stream. While others are served as well, requests
may take `REQUEST_SHARE` of the processor time that this thread has had or could have had (on a busy
machine that is less than what the clock shows), and a burst before that. A client
that has used up its budget is *paused*: nothing more is read from it, and TCP makes it wait. One
that stays over its budget for `PATIENCE_S`, and has more than `FLOOD_BYTES` still to ask or has
asked for what is dropped more than `FLOOD_DROPS` times, is *disconnected* and kept out for a while,
which doubles with each time. An honest client waits for answers, however slowly it is served.
Meanwhile a client that floods in this way has no more than `FLOOD_SHARE` of the time that is spent
on everybody else, so its part is small also where the processor is idle most of the time.

A broker has a larger budget (`BROKER_REQUEST_SHARE`), for what it asks for, for words that are rare
and for streams that it has not spoken of before, each with more in the queue than a turn can take,
and for what is mostly dropped. Beyond that it is paused as well, and never disconnected: a cell
whose brokers do not hear one another stands still. Everything else that a broker says has a
broker's share of each round (`BROKER_WEIGHT`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from quorumcast.core.ids import NodeId, holder
from quorumcast.core.message import Message
from quorumcast.runtime.links.inbox import Inbox
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.strain import waited_s
from quorumcast.runtime.logs import note

#: How long one account is served in one round. Shorter ones cost throughput: what is sent during a
#: turn of the loop leaves as one packet.
QUANTUM_S = 0.004
#: A broker's quanta in one round.
BROKER_WEIGHT = 2
#: The part of the time that requests of one client may take while others are served as well.
REQUEST_SHARE = 0.1
#: The same for one broker.
BROKER_REQUEST_SHARE = 0.2
#: The requests of a flood may take this part of the time that is spent on all others.
FLOOD_SHARE = 0.1
#: … and the processor time that it may have saved up.
BURST_S = 0.05
#: A client that has been over its budget for so long is disconnected, if it has so much more to ask
#: that nobody would wait for the answers, or if so much of it was dropped meanwhile.
PATIENCE_S = 2.0
FLOOD_BYTES = 64 * 1024
FLOOD_DROPS = 1024
#: It is kept out for this long, doubled with each time up to the longest.
BAR_FIRST_S = 15.0
BAR_LONGEST_S = 600.0
#: After so long without another one, a client's disconnections are forgotten.
FORGIVEN_S = 3600.0


#: An account that nobody else was served beside for so long has the processor for itself.
ALONE_S = 0.1
#: How often to look how long this thread has waited for a processor.
LOOK_S = 0.02


class Piece(enum.Enum):
    """What a link has just done."""

    #: Nothing: no whole frame is left.
    NOTHING = enum.auto()
    #: A publication, or anything that a broker says.
    WORK = enum.auto()
    #: Something for the peer alone, or for nobody.
    REQUEST = enum.auto()
    #: Something that the machine would not have.
    DROPPED = enum.auto()


class Judge(Protocol):
    """Tells publications from requests among the messages of one peer; each system has its own."""

    def is_publication(self, message: Message) -> bool:
        """Whether this is what the system is for."""

    def is_work_of_a_client(self, message: Message) -> bool:
        """Whether others have use for what a client says; a request otherwise."""

    def is_work_of_a_broker(self, message: Message) -> bool:
        """Whether others have use for what a broker says; a request otherwise."""


class Served(Protocol):
    """A link as it is seen from here."""

    #: Bytes that wait to be written.
    outbox_bytes: int
    #: Of these, answers to requests.
    answer_bytes: int
    #: Whether it has asked for something when it was served last.
    asks: bool

    def work(self) -> Piece:
        """Do the next small piece."""

    def hold(self) -> None:
        """Read no more for now."""

    def release(self) -> None:
        """Read again: nothing whole is left."""

    def is_done(self) -> bool:
        """Whether nothing is left to do until more is read."""

    def unread_bytes(self) -> int:
        """Bytes that were read and not handled."""


class Load(msgspec.Struct, frozen=True):
    """What one identity has cost, for people to look at."""

    #: Processor seconds, in all and for requests.
    cpu_s: float
    requests_s: float
    #: How often it was paused, and disconnected.
    paused: int
    disconnected: int
    #: For how many seconds it is still kept out.
    barred_s: float


class Account:
    """What one identity has cost, and may cost."""

    __slots__ = (
        "balance_s",
        "barred_until",
        "deficit_s",
        "disconnected",
        "dropped",
        "filled_at",
        "floods",
        "inbox",
        "is_broker",
        "is_paused",
        "is_queued",
        "links",
        "name",
        "others_s",
        "outbox_bytes",
        "over_since",
        "paused",
        "requests_s",
        "served_at",
        "share",
        "spent_s",
        "strikes",
    )

    def __init__(
        self, name: NodeId, *, is_broker: bool, now: float, limits: TransportLimits
    ) -> None:
        self.name = name
        self.is_broker = is_broker
        #: The part of the time that its requests may take.
        self.share = BROKER_REQUEST_SHARE if is_broker else REQUEST_SHARE
        #: Processor time in all, and for requests; only grow.
        self.spent_s = 0.0
        self.requests_s = 0.0
        #: What requests may still cost; at most BURST_S, filled up to `filled_at`.
        self.balance_s = BURST_S
        self.filled_at = now
        #: Whether it has far more to ask than it may, and what had been spent on others by then.
        self.floods = False
        self.others_s = 0.0
        #: What may be spent in this round; below 0 after a piece that took long.
        self.deficit_s = 0.0
        self.served_at = 0.0
        #: Links with whole frames left, each once; all of them are held.
        self.links: deque[Served] = deque()
        #: Bytes that wait to be written to it, on all its links.
        self.outbox_bytes = 0
        #: Room for the long frames that it sends, on all its links.
        self.inbox = Inbox(limits)
        #: Whether it is in the ring.
        self.is_queued = False
        self.is_paused = False
        #: Since when it has been over its budget; None once it has saved up half a burst again.
        self.over_since: float | None = None
        #: What was dropped of its messages since then.
        self.dropped = 0
        #: How often it was paused and disconnected; `strikes` are forgotten after a while.
        self.paused = 0
        self.disconnected = 0
        self.strikes = 0
        self.barred_until = 0.0

    def fill(self, now: float, cpu_s: float) -> None:
        """Add what has been earned since the last time: by now, so much was spent on all peers."""
        others_s = cpu_s - self.spent_s
        earned = (now - self.filled_at) * self.share
        if self.floods:
            earned = min(earned, (others_s - self.others_s) * FLOOD_SHARE)
        self.balance_s = min(BURST_S, self.balance_s + max(0.0, earned))
        self.filled_at = now
        self.others_s = max(self.others_s, others_s)
        if self.balance_s > BURST_S / 2:
            self.over_since = None
            self.floods = False


class Fairness:
    """The accounts of one broker, and whose turn it is."""

    def __init__(
        self,
        disconnect: Callable[[NodeId, str], None],
        *,
        is_broker: Callable[[NodeId], bool],
        limits: TransportLimits | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.perf_counter,
        waited: Callable[[], float] = waited_s,
    ) -> None:
        self._disconnect = disconnect
        self._is_broker = is_broker
        self._limits = limits or TransportLimits()
        self._cpu = cpu_clock
        self._clock = clock
        self._waited = waited
        #: The time, without what this thread has spent waiting for a processor, and what it has
        #: worked, as of the last look.
        self._had_s = 0.0
        self._worked_s = 0.0
        self._looked_at = 0.0
        self._loop = asyncio.get_running_loop()
        #: One per identity of the directory that was ever connected.
        self._accounts: dict[NodeId, Account] = {}
        #: Accounts with work left that are not paused, each once.
        self._ring: deque[Account] = deque()
        self._scheduled = False
        #: Who was served last, and when it was somebody else before.
        self._last: Account | None = None
        self._changed_at = 0.0

    def account(self, peer: NodeId) -> Account:
        """The account of a proven peer."""
        name = holder(peer)
        found = self._accounts.get(name)
        if found is None:
            found = self._accounts[name] = Account(
                name,
                is_broker=self._is_broker(name),
                now=self._available_s(),
                limits=self._limits,
            )
        return found

    def retain(self, names: Iterable[NodeId]) -> None:
        """Forget whoever is not in the directory any more."""
        kept = set(names)
        for name in [name for name in self._accounts if name not in kept]:
            del self._accounts[name]

    # ------------------------------------------------------------------ serving

    def arrived(self, account: Account, link: Served) -> None:
        """A link has read something."""
        now = self._loop.time()
        if account.balance_s < 0:
            self._fill(account)
        # Less than a quantum has come back if another link of this account has just been served.
        back_s = account.deficit_s + now - account.served_at
        account.deficit_s = min(self._quantum(account), back_s)
        account.served_at = now
        may_go_on = account.deficit_s > 0 and account.balance_s >= 0
        if may_go_on and not account.is_queued and not account.is_paused:
            self._serve(account, link, now)
        else:
            self._put_aside(account, link)
        self._arrange(account)

    def _quantum(self, account: Account) -> float:
        return QUANTUM_S * BROKER_WEIGHT if account.is_broker else QUANTUM_S

    def _serve(self, account: Account, link: Served, now: float) -> None:
        """Handle what a link has, until nothing is left or the account's turn is over."""
        if self._last is not account:
            self._last, self._changed_at = account, now
        others_wait = now - self._changed_at < ALONE_S
        clock = self._cpu if link.asks else self._clock
        begin = at = clock()
        end = begin + account.deficit_s
        requests_s = 0.0
        while (piece := link.work()) is not Piece.NOTHING:
            before, at = at, clock()
            if piece is not Piece.WORK:
                requests_s += at - before
                account.dropped += piece is Piece.DROPPED
            if at >= end:
                break
        account.spent_s += at - begin
        account.deficit_s -= at - begin
        link.asks = requests_s > 0
        if requests_s:
            self._charge(account, requests_s, others_wait=others_wait)
        self._put_aside(account, link)

    def _put_aside(self, account: Account, link: Served) -> None:
        """Let a link read on, or wait for its next turn."""
        if link.is_done():
            link.release()
        else:
            link.hold()
            account.links.append(link)

    def _arrange(self, account: Account) -> None:
        """Into the ring with it, if it has work and a budget."""
        if account.is_paused or account.is_queued:
            return
        if account.links and account.balance_s < 0:
            self._pause(account)
        elif account.links:
            account.is_queued = True
            self._ring.append(account)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._ring:
            self._scheduled = True
            self._loop.call_soon(self._go_round)

    def _go_round(self) -> None:
        """Serve everybody in the ring once; sockets, timers and the status page come in between."""
        self._scheduled = False
        for _ in range(len(self._ring)):
            account = self._ring.popleft()
            account.is_queued = False
            account.deficit_s += self._quantum(account)
            while account.links and account.deficit_s > 0 and account.balance_s >= 0:
                self._serve(account, account.links.popleft(), self._loop.time())
            account.served_at = self._loop.time()
            self._arrange(account)
        self._schedule()

    # ------------------------------------------------------------------- budgets

    def answered(self, account: Account, cost_s: float, share: float) -> None:
        """So much time went into writing to an account; a share of it for what it asked for."""
        account.spent_s += cost_s
        if share:
            self._charge(account, cost_s * share, others_wait=True)

    def _charge(self, account: Account, cost_s: float, *, others_wait: bool) -> None:
        account.requests_s += cost_s
        if others_wait:
            self._fill(account)
            account.balance_s -= cost_s

    def _fill(self, account: Account) -> None:
        account.fill(self._available_s(), self._worked_s)

    def _available_s(self) -> float:
        """A clock of the processor time that this thread has had or could have had."""
        now = self._loop.time()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._had_s = max(self._had_s, now - self._waited())
            self._worked_s = self._cpu()
        return self._had_s

    def _pause(self, account: Account) -> None:
        """Its requests wait until it has earned what they cost, or it has to go."""
        now = self._loop.time()
        if account.over_since is None:
            account.over_since, account.dropped = now, 0
        unread = sum(link.unread_bytes() for link in account.links)
        account.floods = unread > FLOOD_BYTES or account.dropped > FLOOD_DROPS
        is_late = now - account.over_since > PATIENCE_S
        if account.floods and is_late and not account.is_broker:
            self._bar(account, now)
            return
        account.is_paused = True
        account.paused += 1
        if account.paused == 1:
            kind = "broker" if account.is_broker else "client"
            note(f"paused a {kind} whose requests cost too much", peer=account.name)
        debt_s = QUANTUM_S - account.balance_s
        self._loop.call_later(debt_s / account.share, self._resume, account)

    def _resume(self, account: Account) -> None:
        account.is_paused = False
        self._fill(account)
        self._arrange(account)

    def _bar(self, account: Account, now: float) -> None:
        if now - account.barred_until > FORGIVEN_S:
            account.strikes = 0
        pause_s = min(BAR_FIRST_S * 2**account.strikes, BAR_LONGEST_S)
        account.strikes = min(account.strikes + 1, 16)
        account.disconnected += 1
        account.barred_until = now + pause_s
        account.over_since = None
        account.floods = False
        account.links.clear()
        reason = (
            f"its requests took more than {REQUEST_SHARE:.0%} of the processor while others waited"
        )
        note(
            "disconnected a client",
            level=logging.WARNING,
            peer=account.name,
            reason=reason,
            requests_s=round(account.requests_s, 3),
            kept_out_s=pause_s,
        )
        self._disconnect(account.name, reason)

    def refusal(self, peer: NodeId) -> str:
        """Why a peer is kept out for now, in a sentence; empty if it is not."""
        account = self._accounts.get(holder(peer))
        left_s = account.barred_until - self._loop.time() if account is not None else 0.0
        if left_s <= 0:
            return ""
        return (
            f"your requests took more than {REQUEST_SHARE:.0%} of the processor while others "
            f"waited: ask less often, and come back in {left_s:.0f} s"
        )

    # -------------------------------------------------------------------- status

    def inbox_bytes(self) -> int:
        """Bytes that long frames may take up, over all accounts."""
        return sum(account.inbox.size for account in self._accounts.values())

    def load(self) -> dict[NodeId, Load]:
        """What each identity has cost so far."""
        now = self._loop.time()
        return {
            name: Load(
                round(account.spent_s, 3),
                round(account.requests_s, 3),
                account.paused,
                account.disconnected,
                round(max(0.0, account.barred_until - now), 1),
            )
            for name, account in self._accounts.items()
        }
