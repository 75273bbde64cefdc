"""Fair shares of a broker's processor time.

Each identity has an account for all its seats and links. Handling is measured in small pieces
(`Link.work`): a frame that is opened, a few messages that the machine handles. A turn of a link is
measured in processor time of this thread. Reading that clock costs as much as handling a small
message, so the wall clock, which is cheaper, divides a turn among its pieces. While the thread
waits for a processor nobody is charged: otherwise brokers on a busy machine would pause one another
for the few messages that each of them repeats. Two rules follow.

*Deficit round robin.* A readable link is served at once, for one quantum at most. If more is left,
its socket is not read any further and its account joins the ring. Each turn of the event loop goes
round the ring once and adds a quantum to each account, so busy accounts get equal shares, and an
account with little to say waits for one round at most.

*Requests have a budget.* Publications are bounded by credit. Everything else from a client is a
request, whose answer is of use to that client alone; so is a message that the machine drops, and
the first publication of each stream. While other accounts have work, requests may take
`REQUEST_SHARE` of the processor time that this thread had or could have had, and a burst. Besides,
a client that waits for answers may take most of the time that nobody uses (`IDLE_WEIGHT`): a long
replay from a cell with little to do is not slowed down. A client over its budget is *paused*: its
socket is not read, and TCP makes it wait. A client that stays over its budget for `FLOOD_GRACE_S`
and has more than `FLOOD_REQUESTS` requests waiting, or of which more than `FLOOD_DROPS` messages
were dropped, floods: it is *disconnected*, and refused for a time that doubles each time. Until
then a flood gets at most `FLOOD_SHARE` of the time spent on all others, even on an idle processor.

An honest client waits for answers, so it never has that many requests. But one may be long and
cost much, as predicates do, publications may wait behind it, and on a busy machine this thread has
little time for it. So what waits is counted and not measured: frames are opened to tell requests
from publications. And the grace is time in which this thread had a processor.

A broker has a larger budget (`BROKER_REQUEST_SHARE`) and is paused but never disconnected, since
brokers that do not hear one another deliver nothing. Its budget covers what it asks for and what is
mostly dropped; rare kinds of messages and those about new streams count only while it has more
queued than one turn can take. Other messages of a broker have `BROKER_WEIGHT` quanta per round.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import msgspec

from quorumcast.core.ids import NodeId, holder
from quorumcast.core.message import Message
from quorumcast.runtime.links.inbox import Inbox
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.strain import waited_s
from quorumcast.runtime.logs import note

#: The time for one account in one round. A shorter one costs throughput, because everything that
#: is sent during a turn of the event loop leaves as one packet.
QUANTUM_S = 0.004
#: A broker's quanta in one round.
BROKER_WEIGHT = 2
#: The part of the time that requests of one client may take while others are served as well.
REQUEST_SHARE = 0.1
#: The same for one broker.
BROKER_REQUEST_SHARE = 0.2
#: The requests of a client may take this many times the time that is left idle.
IDLE_WEIGHT = 4.0
#: The requests of a flood may take this part of the time that is spent on all others.
FLOOD_SHARE = 0.1
#: Processor time for requests that an account can save up.
BURST_S = 0.05
#: A client over its budget for this long is disconnected if more requests than this are waiting, or
#: if more of its messages were dropped meanwhile. None of them is shorter than REQUEST_BYTES.
FLOOD_GRACE_S = 2.0
FLOOD_REQUESTS = 512
REQUEST_BYTES = 16
FLOOD_DROPS = 1024
#: It is refused for this long, doubled each time up to the longest.
BAR_FIRST_S = 15.0
BAR_LONGEST_S = 600.0
#: After this long without another disconnection the doubling starts over.
FORGIVEN_S = 3600.0
#: If only one account was served for this long, its requests are free.
ALONE_S = 0.1
#: How often to read how long this thread has waited for a processor.
LOOK_S = 0.02


class Piece(enum.Enum):
    """The kind of work that a link has just done."""

    #: No whole frame is left.
    NOTHING = enum.auto()
    #: A publication, or anything that a broker says.
    WORK = enum.auto()
    #: Something that is of use to the peer alone.
    REQUEST = enum.auto()
    #: Something that the machine dropped.
    DROPPED = enum.auto()


class Classifier(Protocol):
    """Tells publications from requests among the messages of one peer; each system has its own."""

    def is_publication(self, message: Message) -> bool:
        """Whether this is a publication of any kind."""

    def is_client_work(self, message: Message) -> bool:
        """Whether a client's message is of use to others; it is a request otherwise."""

    def is_broker_work(self, message: Message) -> bool:
        """Whether a broker's message is of use to others; it is a request otherwise."""

    def requests_among(self, messages: Iterable[Message], *, is_broker: bool, most: int) -> int:
        """How many of the messages that come next are requests; it stops counting at `most`."""


class Served(Protocol):
    """What the accounts need of a link."""

    #: Bytes that wait to be written.
    outbox_bytes: int
    #: Of these, answers to requests.
    answer_bytes: int

    def work(self) -> Piece:
        """Do the next piece of work."""

    def hold(self) -> None:
        """Stop reading for now."""

    def release(self) -> None:
        """Read again: no whole frame is left."""

    def is_done(self) -> bool:
        """Whether nothing is left to do until more is read."""

    def unhandled_bytes(self) -> int:
        """Bytes that were read and not handled."""

    def waiting_requests(self, most: int) -> int:
        """Requests among what was read and not handled; it stops counting at `most`."""


class Load(msgspec.Struct, frozen=True):
    """What one identity has cost, as `/status` shows it."""

    #: Processor seconds, in all and for requests.
    cpu_s: float
    requests_s: float
    #: How often it was paused, and disconnected.
    paused: int
    disconnected: int
    #: Seconds for which it is still refused.
    barred_s: float


class Account:
    """What one identity has cost, and may cost."""

    def __init__(
        self, name: NodeId, *, is_broker: bool, now: float, limits: TransportLimits
    ) -> None:
        self.name = name
        self.is_broker = is_broker
        #: The share of time that its requests may take.
        self.share = BROKER_REQUEST_SHARE if is_broker else REQUEST_SHARE
        #: Whether more than FLOOD_REQUESTS of it wait to be handled.
        self.asks_too_much = False
        #: Processor time in all, and for requests; only grow.
        self.spent_s = 0.0
        self.requests_s = 0.0
        #: What requests may still cost; at most BURST_S, filled up to `filled_at`.
        self.balance_s = BURST_S
        self.filled_at = now
        #: Whether it floods; when the balance was filled last, the time spent on all others, and
        #: on all.
        self.floods = False
        self.others_s = 0.0
        self.worked_s = 0.0
        #: Time left in this round; below 0 after a piece that took long.
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
        #: When it went over its budget, in available time (`Fairness`); None once it has saved up
        #: half a burst again.
        self.over_since: float | None = None
        #: Its messages that were dropped since then.
        self.dropped = 0
        #: How often it was paused and disconnected; `strikes` return to 0 after a while.
        self.paused = 0
        self.disconnected = 0
        self.strikes = 0
        self.barred_until = 0.0

    @property
    def idle_weight(self) -> float:
        """How many times the idle time its requests may take, in addition to its share.

        None for a broker: what it fetches it would take from publishers on the same machine.
        """
        return 0.0 if self.is_broker or self.asks_too_much else IDLE_WEIGHT

    def fill(self, now: float, cpu_s: float) -> None:
        """Add what was earned since the last time; `cpu_s` is the time spent on all peers."""
        others_s, had_s = cpu_s - self.spent_s, now - self.filled_at
        idle_s = max(0.0, had_s - (cpu_s - self.worked_s))
        earned = had_s * self.share + idle_s * self.idle_weight
        if self.floods:
            earned = min(earned, (others_s - self.others_s) * FLOOD_SHARE)
        self.balance_s = min(BURST_S, self.balance_s + max(0.0, earned))
        self.filled_at = now
        self.worked_s = cpu_s
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
        #: As of `_looked_at`: the time that this thread did not wait for a processor, and the
        #: time that it worked.
        self._had_s = 0.0
        self._worked_s = 0.0
        self._looked_at = 0.0
        self._loop = asyncio.get_running_loop()
        #: One per identity of the directory that was ever connected.
        self._accounts: dict[NodeId, Account] = {}
        #: Accounts with work left that are not paused, each once.
        self._ring: deque[Account] = deque()
        self._scheduled = False
        #: The account that was served last, and when its predecessor was.
        self._last: Account | None = None
        self._changed_at = 0.0

    def account(self, peer: NodeId) -> Account:
        """The account of an authenticated peer."""
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
        """Remove the accounts of nodes that are not in the directory any more."""
        kept = set(names)
        for name in [name for name in self._accounts if name not in kept]:
            del self._accounts[name]

    # ------------------------------------------------------------------ serving

    def arrived(self, account: Account, link: Served) -> None:
        """Serve a link that has read bytes, or let it wait for its turn."""
        now = self._loop.time()
        if account.balance_s < 0:
            self._fill(account)
        # Less than a quantum is back if another link of this account was served just before.
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
        """Let a link work until nothing is left or the account's time is used up."""
        if self._last is not account:
            self._last, self._changed_at = account, now
        others_wait = now - self._changed_at < ALONE_S
        start_s = self._cpu()
        begin = at = self._clock()
        end = begin + account.deficit_s
        requests_s = 0.0
        while (piece := link.work()) is not Piece.NOTHING:
            before, at = at, self._clock()
            if piece is not Piece.WORK:
                requests_s += at - before
                account.dropped += piece is Piece.DROPPED
            if at >= end:
                # If the thread had to wait for a processor, time is left.
                left_s = account.deficit_s - (self._cpu() - start_s)
                if left_s <= 0:
                    break
                end = at + left_s
        if requests_s:
            account.asks_too_much = _asks_too_much([*account.links, link])
        spent_s = self._cpu() - start_s
        account.spent_s += spent_s
        account.deficit_s -= spent_s
        if requests_s:
            share = requests_s / (at - begin)
            self._charge(account, spent_s * share, others_wait=others_wait)
        self._put_aside(account, link)

    def _put_aside(self, account: Account, link: Served) -> None:
        """Let a link read on, or wait for its next turn."""
        if link.is_done():
            link.release()
        else:
            link.hold()
            account.links.append(link)

    def _arrange(self, account: Account) -> None:
        """Put an account with work into the ring, or pause it if it is over its budget."""
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
        """Serve each account in the ring once; the event loop does other work between rounds."""
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
        """Charge an account for writing to it; `share` of that was answers to its requests."""
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
        """A clock of the time that this thread had a processor, or did not need one."""
        now = self._loop.time()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._had_s = max(self._had_s, now - self._waited())
            self._worked_s = self._cpu()
        return self._had_s

    def _pause(self, account: Account) -> None:
        """Stop serving an account until it is within its budget again; disconnect a flood."""
        available_s = self._available_s()
        if account.over_since is None:
            account.over_since, account.dropped = available_s, 0
        account.asks_too_much = _asks_too_much(account.links)
        account.floods = account.asks_too_much or account.dropped > FLOOD_DROPS
        is_late = available_s - account.over_since > FLOOD_GRACE_S
        if account.floods and is_late and not account.is_broker:
            self._bar(account, self._loop.time())
            return
        account.is_paused = True
        account.paused += 1
        if account.paused == 1:
            kind = "broker" if account.is_broker else "client"
            note(f"paused a {kind} whose requests cost too much", peer=account.name)
        self._resume_later(account)

    def _resume_later(self, account: Account) -> None:
        debt_s = QUANTUM_S - account.balance_s
        self._loop.call_later(debt_s / (account.share + account.idle_weight), self._resume, account)

    def _resume(self, account: Account) -> None:
        self._fill(account)
        if account.balance_s < 0 and not account.floods:
            self._resume_later(account)  # others have worked meanwhile
            return
        account.is_paused = False
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
        """Why a peer is refused for now, in a sentence; empty if it is not."""
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
        """Bytes that long frames of all accounts may take up."""
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


def _asks_too_much(links: Collection[Served]) -> bool:
    """Whether more requests wait on these links than an honest client makes."""
    if sum(link.unhandled_bytes() for link in links) <= FLOOD_REQUESTS * REQUEST_BYTES:
        return False
    waiting, too_many = 0, FLOOD_REQUESTS + 1
    for link in links:
        waiting += link.waiting_requests(too_many - waiting)
        if waiting >= too_many:
            return True
    return False
