"""One consumer of a named subscription.

The consumer reads two channels. The companion tells it which positions are assigned to it
(`named.state`); the channel itself brings new publications. The consumer works in a cycle:

1. claim positions ahead of the application (`prefetch`) by an operation on the companion;
2. when the claim is ordered, get the contents of the assigned positions: from the cache of recent
   publications, or by recalling them from brokers;
3. hand publications to the application, in order of positions;
4. collect its acknowledgements for a few milliseconds and write them in one operation.

Local time and local guesses about other consumers affect only performance. Correctness depends on
the order of operations alone.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from quorumcast.client.events import Batch, Gap
from quorumcast.client.named.companion import Connection
from quorumcast.client.named.letters import DeadLetter, publish_letter
from quorumcast.client.named.maintenance import ConsumerMaintenance
from quorumcast.core.errors import UsageError
from quorumcast.named.follower import Follower
from quorumcast.named.operations import (
    MAX_RANGES,
    AckPositions,
    AnyOperation,
    Assignment,
    ClaimPositions,
    CloseSession,
    MarkDead,
    NackPositions,
    OpenSession,
    SkipTo,
    encode,
)
from quorumcast.named.ranges import spans
from quorumcast.named.state import SubscriptionState

if TYPE_CHECKING:
    from quorumcast.client.publishing.publisher import Publisher
    from quorumcast.client.subscription import Subscription

#: Bytes of recent publications that are cached, because they may be assigned to us.
CACHED_BYTES = 16 * 1024 * 1024
#: How long an acknowledgement waits for others, to be written together.
LINGER_S = 0.005
CLOSE_TIMEOUT_S = 30.0


class PendingDelivery:
    """A position that is assigned to this consumer."""

    __slots__ = ("answered", "attempt", "batch", "fetching", "handed_out")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        #: The publication; None until its contents have arrived.
        self.batch: Batch | None = None
        #: Whether the contents were requested from brokers.
        self.fetching = False
        #: Whether it was handed to the application, or never will be.
        self.handed_out = False
        #: Whether the application has acknowledged it, positively or negatively.
        self.answered = False


class Consumer:
    """Consumes one subscription for one application."""

    def __init__(
        self,
        node: Connection,
        live: Subscription,
        companion: Subscription,
        follower: Follower,
        *,
        prefetch: int,
    ) -> None:
        self._node = node
        self._live = live
        self._companion = companion
        self._follower = follower
        self._prefetch = prefetch
        self._out: Publisher = node.publisher(companion.channel)
        self._loop = asyncio.get_running_loop()
        self.session = 0
        #: Positions that are assigned to us, at most MAX_CLAIMED.
        self._pending: dict[int, PendingDelivery] = {}
        #: Heap of positions whose contents are here and were not handed out yet.
        self._ready: list[int] = []
        #: Gaps that the application has not been told about.
        self._gaps: deque[Gap] = deque()
        #: The newest publications, which may be assigned to us; bounded by CACHED_BYTES.
        self._cached: OrderedDict[int, Batch] = OrderedDict()
        self._cached_bytes = 0
        #: Acknowledgements that were not written yet: position → positive or negative.
        self._answers: dict[int, bool] = {}
        self._flushing: asyncio.TimerHandle | None = None
        #: Our `OpenSession` or `ClaimPositions` that is not ordered yet, encoded; b"" if none.
        self._in_flight = b""
        #: Time of our newest operation.
        self.last_write_at = 0.0
        self._maintenance = ConsumerMaintenance(
            self, node, follower, live.channel, companion.channel
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: Exception | None = None
        self.closed = False
        #: Publications that do not decode or have expired; they are acknowledged at once.
        self.undecodable = 0

    # --------------------------------------------------------------- beginning

    def start(self) -> None:
        """Start reading both channels, and the periodic maintenance."""
        for main in (self._read_companion, self._read_channel, self._maintenance.run):
            self._spawn(main)

    def _spawn(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            try:
                await main()
            except Exception as error:  # `changed` raises it in the application
                self._fail(error)

        task = self._loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def changed(self) -> None:
        """Wait for the next change; raise if the consumer has failed or is closed."""
        if self._failure is not None:
            raise self._failure
        if self.closed:
            raise UsageError("this subscription is closed: open it again")
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        while not condition():
            await self.changed()

    async def join(self) -> None:
        """Open a session; raise if the subscription has its maximum number of them."""
        self._open_session()
        await self.wait_until(self._session_decided)
        if self.state.session(self._node.name) != self.session:
            raise UsageError(
                f"{self._follower.name!r} has no room for another consumer: end one of them"
            )

    def _open_session(self) -> None:
        self._pending.clear()
        self._ready.clear()
        self._answers.clear()
        self.session = secrets.randbits(61) + 1
        self._write_awaited(OpenSession(self.session))

    def _session_decided(self) -> bool:
        return not self._in_flight or self.state.session(self._node.name) == self.session

    @property
    def state(self) -> SubscriptionState:
        """The state after the newest operation that was read."""
        if self._follower.state is None:
            raise UsageError("this subscription is not open yet: wait for it")
        return self._follower.state

    @property
    def position(self) -> int:
        """Position of the newest operation that was read."""
        return self._follower.read_upto

    @property
    def busy(self) -> bool:
        """Whether positions are assigned to us."""
        return bool(self._pending)

    @property
    def lag(self) -> int:
        """Positions from the oldest unsettled one to the end of the channel."""
        return self._live.end - self.state.cursor

    # ----------------------------------------------------------------- reading

    async def _read_companion(self) -> None:
        while items := await self._companion.take():
            for item in items:
                if isinstance(item, Gap):
                    raise UsageError(
                        f"this node was cut off for too long and missed operations on "
                        f"{self._companion.channel!r}: open the subscription again"
                    )
                position = item.position or 0
                if position > self._follower.read_upto:
                    self._follower.read(position, item.publisher, item.payloads)
                    if item.publisher == self._node.name and self._in_flight in item.payloads:
                        self._in_flight = b""
                    self._maintenance.maybe_snapshot(ours=item.publisher == self._node.name)
            self.update()
        self._end()

    async def _read_channel(self) -> None:
        while items := await self._live.take():
            for item in items:
                if isinstance(item, Batch):
                    self._cache(item)
            self.update()
        self._end()

    def _cache(self, batch: Batch) -> None:
        position = batch.position or 0
        state = self._follower.state
        if state is not None and position < state.next and position not in self._pending:
            return  # it is assigned to another consumer, or settled
        self._cached[position] = batch
        self._cached_bytes += batch.size
        while len(self._cached) > 2 * self._prefetch or self._cached_bytes > CACHED_BYTES:
            self._cached_bytes -= self._cached.popitem(last=False)[1].size

    def update(self) -> None:
        """Compare the state with what we are doing, and act on the differences."""
        if self._follower.state is not None and self.session and not self.closed:
            self._check_session()
            self._update_pending()
            self._maybe_claim()
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _check_session(self) -> None:
        me, state = self._node.name, self.state
        found = state.session(me)
        if found == self.session or self._in_flight:
            return
        if found:
            raise UsageError(
                f"another process of {me!r} has opened {self._follower.name!r}: a client consumes "
                "it once at a time"
            )
        if not state.is_allowed(me):
            raise UsageError(f"{me!r} is no longer a member of {self._follower.name!r}")
        # Our session expired, or was replaced because it was idle. We open another one only when
        # there is something to claim: otherwise we would replace another idle consumer, which would
        # do the same in turn.
        if self._can_claim():
            self._open_session()

    def _update_pending(self) -> None:
        mine = {}
        if self.state.session(self._node.name) == self.session:
            mine = {one.position: one for one in self.state.assigned_to(self._node.name)}
        for position in [p for p in self._pending if p not in mine]:
            del self._pending[position]
        for position, assignment in mine.items():
            pending = self._pending.get(position)
            if pending is None or pending.attempt != assignment.attempt:
                pending = self._pending[position] = PendingDelivery(assignment.attempt)
                if self.state.is_exhausted(assignment):
                    pending.handed_out = True
                    self._spawn(partial(self._give_up, assignment))
        self._find_contents()

    def _find_contents(self) -> None:
        missing: list[int] = []
        for position, pending in self._pending.items():
            if pending.batch is not None or pending.handed_out or pending.fetching:
                continue
            batch = self._take_cached(position)
            if batch is not None:
                self._add_contents(position, pending, batch)
            elif position < self._live.end:
                pending.fetching = True
                missing.append(position)
            # Otherwise other consumers have read further than we have: it will arrive.
        if missing:
            self._spawn(partial(self._fetch, missing))

    def _take_cached(self, position: int) -> Batch | None:
        batch = self._cached.pop(position, None)
        if batch is not None:
            self._cached_bytes -= batch.size
        return batch

    def _add_contents(self, position: int, pending: PendingDelivery, batch: Batch) -> None:
        pending.batch = batch
        heapq.heappush(self._ready, position)

    async def _fetch(self, positions: list[int]) -> None:
        expected = {position: self._pending[position] for position in positions}
        found = await self._live.recall(positions)
        lost: list[int] = []
        for position, item in found.items():
            pending = expected[position]
            if self._pending.get(position) is not pending:
                continue
            if isinstance(item, Batch):
                self._add_contents(position, pending, item)
                continue
            if item is None:
                self.undecodable += 1
            else:
                lost.append(position)
                self._add_gap(item)
            pending.handed_out = True
            self.answer(position, ack=True)
        if lost:
            self.write(SkipTo(self.session, self._live.oldest))
        self._wake()

    def _add_gap(self, gap: Gap) -> None:
        """Queue a gap for the application, once for all positions in it."""
        if not self._gaps or self._gaps[-1].upto < gap.upto:
            self._gaps.append(gap)

    def _maybe_claim(self) -> None:
        state = self.state
        room = self._prefetch - len(self._pending)
        if self._in_flight or room < self._least_claimed:
            return
        if state.session(self._node.name) != self.session:
            return
        if self._can_claim():
            self._write_awaited(ClaimPositions(self.session, room, self._live.end))

    @property
    def _least_claimed(self) -> int:
        return max(1, self._prefetch // 2)

    def _can_claim(self) -> bool:
        return bool(self.state.returned) or self.state.next < self._live.end

    # -------------------------------------------------------------- handing out

    def next_ready(self) -> tuple[int, PendingDelivery, Batch] | Gap | None:
        """The next delivery or gap, in order of positions; None if it has not arrived yet."""
        if self._gaps:
            return self._gaps.popleft()
        while self._ready:
            position = self._ready[0]
            pending = self._pending.get(position)
            if pending is None or pending.handed_out or pending.batch is None:
                heapq.heappop(self._ready)
                continue
            if any(
                p < position and w.batch is None and not w.handed_out
                for p, w in self._pending.items()
            ):
                return None  # the contents of an earlier position have not arrived yet
            heapq.heappop(self._ready)
            pending.handed_out = True
            return position, pending, pending.batch
        return None

    @property
    def gap_next(self) -> bool:
        """Whether `next_ready` returns a gap."""
        return bool(self._gaps)

    def has_ready(self, events: int) -> bool:
        """Whether so many events can be handed out, a gap, or as many as may be claimed ahead."""
        if self._gaps:
            return True
        found = unanswered = 0
        for _, pending in sorted(self._pending.items()):
            if pending.batch is None and not pending.handed_out:
                return found >= events
            if not pending.handed_out and pending.batch is not None:
                found += len(pending.batch)
            unanswered += not pending.answered
        most = bool(found) and self._prefetch - unanswered < self._least_claimed
        return found >= events or most

    def answer(self, position: int, *, ack: bool) -> None:
        """Acknowledge a position, or return it for redelivery."""
        self._answers[position] = ack
        if self._flushing is None:
            self._flushing = self._loop.call_later(LINGER_S, self._on_linger_over)

    def _on_linger_over(self) -> None:
        try:
            self.write_answers()
        except Exception as error:  # the node is closed: `changed` raises it
            self._fail(error)

    def write_answers(self) -> None:
        """Write the collected acknowledgements."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        answers, self._answers = self._answers, {}
        for kind, wanted in ((AckPositions, True), (NackPositions, False)):
            ranges = spans(p for p, ack in answers.items() if ack is wanted)
            for index in range(0, len(ranges), MAX_RANGES):
                self.write(kind(self.session, tuple(ranges[index : index + MAX_RANGES])))

    def write(self, operation: AnyOperation) -> None:
        """Publish an operation on the companion."""
        if self._failure is None:
            self.last_write_at = self._loop.time()
            self._out.post(self._encoded(operation))

    def _write_awaited(self, operation: OpenSession | ClaimPositions) -> None:
        self._in_flight = self._encoded(operation)
        self.write(operation)

    def _encoded(self, operation: AnyOperation) -> bytes:
        return encode(self._follower.shared, self._follower.name, operation)

    async def flush(self) -> None:
        """Wait until all acknowledgements so far are ordered."""
        self.write_answers()
        await self._out.flush()

    # ------------------------------------------------------------ dead letters

    async def _give_up(self, assignment: Assignment) -> None:
        """Publish a dead letter if the subscription has a channel for it, then write `MarkDead`."""
        session, target = self.session, self.state.settings.dead_letter
        if target:
            await self.wait_until(lambda: assignment.position < self._live.end)
            found = (await self._live.recall([assignment.position]))[assignment.position]
            letter = DeadLetter(
                channel=self._live.channel,
                subscription=self._follower.name,
                position=assignment.position,
                publisher=found.publisher if isinstance(found, Batch) else "",
                incarnation=found.stream.incarnation if isinstance(found, Batch) else 0,
                number=found.number if isinstance(found, Batch) else 0,
                attempts=assignment.attempt - 1,
                consumer=self._node.name,
                contents=found.contents if isinstance(found, Batch) else None,
            )
            await publish_letter(self._node, target, letter, self._is_running)
        self.write(MarkDead(session, assignment.position))

    def _is_running(self) -> bool:
        return self._failure is None and not self.closed

    # ------------------------------------------------------------------- ending

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake()

    def _end(self) -> None:
        if not self.closed:
            self._fail(UsageError("this node is closed: connect again"))

    async def close(self) -> None:
        """Write pending acknowledgements, close the session, and stop."""
        if self.closed:
            return
        if self.session and self._failure is None:
            self.write_answers()
            # Positions of a claim in flight are not listed: they were not delivered.
            self.write(
                CloseSession(
                    self.session, tuple(spans(p for p, w in self._pending.items() if w.handed_out))
                )
            )
        self.closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._out.close()
        except (TimeoutError, UsageError):
            pass  # the other consumers expire our session after the timeout
        finally:
            for task in list(self._tasks):
                task.cancel()
            self._live.close()
            self._companion.close()
            self._wake()
