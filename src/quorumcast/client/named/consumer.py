"""One consumer of a named subscription: what it holds, what it says, what it sees to.

It follows the companion channel, which tells it what it holds (`named.state`), and the channel
itself, which brings new publications. It claims positions ahead of its application, gets their
contents (those that just came by are kept for a moment; others are recalled), and hands them out in
order. Acknowledgements are collected and said together.

Everything here may be wrong about time and about others without harm: what counts is the order.
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
from quorumcast.client.named.letters import DeadLetter, post_letter
from quorumcast.client.named.upkeep import Upkeep
from quorumcast.core.errors import UsageError
from quorumcast.named.follower import Follower
from quorumcast.named.operations import (
    MAX_RANGES,
    Ack,
    AnyOperation,
    Claim,
    Claimed,
    Dead,
    Join,
    Leave,
    Nack,
    Skip,
    encode,
)
from quorumcast.named.ranges import spans
from quorumcast.named.state import State

if TYPE_CHECKING:
    from quorumcast.client.publishing import Publisher
    from quorumcast.client.subscription import Subscription

#: Bytes of publications kept in case that they are assigned to us.
RECENT_BYTES = 16 * 1024 * 1024
#: Acknowledgements wait this long for company.
LINGER_S = 0.005
CLOSE_TIMEOUT_S = 30.0


class Work:
    """A position that this consumer holds."""

    __slots__ = ("attempt", "batch", "done", "fetching", "given")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        #: None until its contents are here.
        self.batch: Batch | None = None
        self.fetching = False
        #: Whether the application has it; whether it has answered.
        self.given = False
        self.done = False


class Consumer:
    """Works on one subscription for one application."""

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
        #: Positions that the state says are ours; the state bounds them.
        self._work: dict[int, Work] = {}
        #: Those with contents that the application has not got.
        self._ready: list[int] = []
        self._gaps: deque[Gap] = deque()
        #: The newest publications, in case that they are assigned to us.
        self._recent: OrderedDict[int, Batch] = OrderedDict()
        self._recent_bytes = 0
        #: Answers that were not said yet: position → whether it is done.
        self._answers: dict[int, bool] = {}
        self._flushing: asyncio.TimerHandle | None = None
        #: The claim that is on its way; empty if none is.
        self._claim = b""
        #: When we last said anything.
        self.said_at = 0.0
        self._upkeep = Upkeep(self, node, follower, live.channel, companion.channel)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: Exception | None = None
        self.closed = False
        #: Publications that nobody understands, or that have expired; they count as done.
        self.undecodable = 0

    # --------------------------------------------------------------- beginning

    def start(self) -> None:
        """Follow both channels, and see to things from time to time."""
        for main in (self._follow_companion, self._follow_channel, self._upkeep.tend):
            self._spawn(main)

    def _spawn(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            try:
                await main()
            except Exception as error:  # whatever it is, the application must hear of it
                self._fail(error)

        task = self._loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def changed(self) -> None:
        """Wait until anything has happened, or raise why nothing will."""
        if self._failure is not None:
            raise self._failure
        if self.closed:
            raise UsageError("this subscription is closed: open it again")
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        while not condition():
            await self.changed()

    async def join(self) -> None:
        """Begin a session."""
        self._join()
        await self.until(self._joined_or_refused)
        if self.state.session(self._node.name) != self.session:
            raise UsageError(
                f"{self._follower.name!r} has no room for another consumer: end one of them"
            )

    def _join(self) -> None:
        self._work.clear()
        self._ready.clear()
        self._answers.clear()
        self.session = secrets.randbits(61) + 1
        self._claim = encode(self._follower.shared, self._follower.name, Join(self.session))
        self.say(Join(self.session))

    def _joined_or_refused(self) -> bool:
        return not self._claim or self.state.session(self._node.name) == self.session

    @property
    def state(self) -> State:
        """The state as far as it was read."""
        if self._follower.state is None:
            raise UsageError("this subscription is not open yet: wait for it")
        return self._follower.state

    @property
    def position(self) -> int:
        """The newest operation that was read."""
        return self._follower.seen

    @property
    def busy(self) -> bool:
        """Whether it holds anything."""
        return bool(self._work)

    @property
    def lag(self) -> int:
        """Positions that are not settled yet, at most."""
        return self._live.end - self.state.cursor

    # ----------------------------------------------------------------- reading

    async def _follow_companion(self) -> None:
        while items := await self._companion.take():
            for item in items:
                if isinstance(item, Gap):
                    raise UsageError(
                        f"this node was cut off for too long and missed operations on "
                        f"{self._companion.channel!r}: open the subscription again"
                    )
                position = item.position or 0
                if position > self._follower.seen:
                    self._follower.take(position, item.publisher, item.payloads)
                    if item.publisher == self._node.name and self._claim in item.payloads:
                        self._claim = b""
                    self._upkeep.maybe_snapshot(ours=item.publisher == self._node.name)
            self.react()
        self._end()

    async def _follow_channel(self) -> None:
        while items := await self._live.take():
            for item in items:
                if isinstance(item, Batch):
                    self._keep(item)
            self.react()
        self._end()

    def _keep(self, batch: Batch) -> None:
        position = batch.position or 0
        state = self._follower.state
        if state is not None and position < state.next and position not in self._work:
            return  # somebody else has it already
        self._recent[position] = batch
        self._recent_bytes += batch.size
        while len(self._recent) > 2 * self._prefetch or self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= self._recent.popitem(last=False)[1].size

    def react(self) -> None:
        """See what the state says of us now, and do what follows."""
        if self._follower.state is not None and self.session and not self.closed:
            self._look_at_session()
            self._look_at_work()
            self._maybe_claim()
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _look_at_session(self) -> None:
        me, state = self._node.name, self.state
        found = state.session(me)
        if found == self.session or self._claim:
            return
        if found:
            raise UsageError(
                f"another process of {me!r} has opened {self._follower.name!r}: a client consumes "
                "it once at a time"
            )
        if not state.may(me):
            raise UsageError(f"{me!r} is no longer a member of {self._follower.name!r}")
        # We were silent for too long, or made room while we held nothing. Whoever came back before
        # there is work would take the place of another, which would come back as well.
        if self._work_to_claim():
            self._join()

    def _look_at_work(self) -> None:
        mine = {claim.position: claim for claim in self.state.held_by(self._node.name)}
        if self.state.session(self._node.name) != self.session:
            mine = {}
        for position in [p for p in self._work if p not in mine]:
            del self._work[position]
        for position, claim in mine.items():
            work = self._work.get(position)
            if work is None or work.attempt != claim.attempt:
                work = self._work[position] = Work(claim.attempt)
                if self.state.condemned(claim):
                    work.given = True
                    self._spawn(partial(self._bury, claim))
        self._look_for_contents()

    def _look_for_contents(self) -> None:
        missing: list[int] = []
        for position, work in self._work.items():
            if work.batch is not None or work.given or work.fetching:
                continue
            batch = self._take_recent(position)
            if batch is not None:
                self._got(position, work, batch)
            elif position < self._live.end:
                work.fetching = True
                missing.append(position)
            # Otherwise others are further than we are: it is yet to come.
        if missing:
            self._spawn(partial(self._fetch, missing))

    def _take_recent(self, position: int) -> Batch | None:
        batch = self._recent.pop(position, None)
        if batch is not None:
            self._recent_bytes -= batch.size
        return batch

    def _got(self, position: int, work: Work, batch: Batch) -> None:
        work.batch = batch
        heapq.heappush(self._ready, position)

    async def _fetch(self, positions: list[int]) -> None:
        expected = {position: self._work[position] for position in positions}
        found = await self._live.recall(positions)
        lost: list[int] = []
        for position, item in found.items():
            work = expected[position]
            if self._work.get(position) is not work:
                continue
            if isinstance(item, Batch):
                self._got(position, work, item)
                continue
            if item is None:
                self.undecodable += 1
            else:
                lost.append(position)
                self._report(item)
            work.given = True
            self.answer(position, done=True)
        if lost:
            self.say(Skip(self.session, self._live.oldest))
        self._wake()

    def _report(self, gap: Gap) -> None:
        """Tell the application, once for each stretch."""
        if not self._gaps or self._gaps[-1].upto < gap.upto:
            self._gaps.append(gap)

    def _maybe_claim(self) -> None:
        state = self.state
        room = self._prefetch - len(self._work)
        if self._claim or room < max(1, self._prefetch // 2):
            return
        if state.session(self._node.name) != self.session:
            return
        if self._work_to_claim():
            claim = Claim(self.session, room, self._live.end)
            self._claim = encode(self._follower.shared, self._follower.name, claim)
            self.say(claim)

    def _work_to_claim(self) -> bool:
        return bool(self.state.pool) or self.state.next < self._live.end

    # -------------------------------------------------------------- handing out

    def next_ready(self) -> tuple[int, Work, Batch] | Gap | None:
        """What the application may have now: in order, as far as we hold it."""
        if self._gaps:
            return self._gaps.popleft()
        while self._ready:
            position = self._ready[0]
            work = self._work.get(position)
            if work is None or work.given or work.batch is None:
                heapq.heappop(self._ready)
                continue
            if any(p < position and w.batch is None and not w.given for p, w in self._work.items()):
                return None  # an earlier one is on its way
            heapq.heappop(self._ready)
            work.given = True
            return position, work, work.batch
        return None

    def answer(self, position: int, *, done: bool) -> None:
        """The application is done with a position, or wants it to come again."""
        self._answers[position] = done
        if self._flushing is None:
            self._flushing = self._loop.call_later(LINGER_S, self._answers_due)

    def _answers_due(self) -> None:
        try:
            self.say_answers()
        except Exception as error:  # the node is closed: whoever waits for us hears of it
            self._fail(error)

    def say_answers(self) -> None:
        """Say what was answered since the last time."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        answers, self._answers = self._answers, {}
        for kind, wanted in ((Ack, True), (Nack, False)):
            ranges = spans(p for p, done in answers.items() if done is wanted)
            for index in range(0, len(ranges), MAX_RANGES):
                self.say(kind(self.session, tuple(ranges[index : index + MAX_RANGES])))

    def say(self, operation: AnyOperation) -> None:
        """Write an operation."""
        if self._failure is None:
            self.said_at = self._loop.time()
            self._out.post(encode(self._follower.shared, self._follower.name, operation))

    async def flush(self) -> None:
        """Until what was answered stands in the order."""
        self.say_answers()
        await self._out.flush()

    # ------------------------------------------------------------- giving it up

    async def _bury(self, claim: Claimed) -> None:
        """Its attempts are used up: put it on the dead-letter channel, then say so."""
        session, target = self.session, self.state.settings.dead_letter
        if target:
            await self.until(lambda: claim.position < self._live.end)
            found = (await self._live.recall([claim.position]))[claim.position]
            letter = DeadLetter(
                channel=self._live.channel,
                subscription=self._follower.name,
                position=claim.position,
                publisher=found.publisher if isinstance(found, Batch) else "",
                incarnation=found.stream.incarnation if isinstance(found, Batch) else 0,
                number=found.number if isinstance(found, Batch) else 0,
                attempts=claim.attempt - 1,
                consumer=self._node.name,
                contents=found.contents if isinstance(found, Batch) else None,
            )
            await post_letter(self._node, target, letter, self._is_going)
        self.say(Dead(session, claim.position))

    def _is_going(self) -> bool:
        return self._failure is None and not self.closed

    # ------------------------------------------------------------------- ending

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake()

    def _end(self) -> None:
        if not self.closed:
            self._fail(UsageError("this node is closed: connect again"))

    async def close(self) -> None:
        """Say what was answered, give the rest back, and stop."""
        if self.closed:
            return
        if self.session and self._failure is None:
            self.say_answers()
            # What we do not know of yet, a claim that is on its way, nobody has seen.
            self.say(Leave(self.session, tuple(spans(p for p, w in self._work.items() if w.given))))
        self.closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._out.close()
        except (TimeoutError, UsageError):
            pass  # others find out by the time-out
        finally:
            for task in list(self._tasks):
                task.cancel()
            self._live.close()
            self._companion.close()
            self._wake()
