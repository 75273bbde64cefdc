"""Golden scripts of a named subscription: deliveries, and the operations on its companion.

The real client on a cell in memory (`MemoryCell`), in an event loop whose clock moves only when
everybody waits, so that nothing depends on the machine. A script has these commands:

    group NAME CONSUMER… [prefetch=2] [timeout=1000] [attempts=0]
                                 consumers that share a subscription of "orders"; dave looks on
    publish TEXT…                alice publishes, one publication per word
    open CONSUMER, close …       begin and end a session
    take CONSUMER COUNT          what the application is handed
    ack CONSUMER POSITION…, nack …
    cut CONSUMER                 disconnect it: a crash, or a network that is down
    heal CONSUMER                it can be reached again
    run MS                       let time pass

The transcript has a line for each delivery, and for each operation in the order of the companion:
position, author, operation, and the resulting state, as every reader computes it (`named.state`).
`2#1` is position 2 in its first attempt. Sessions, which consumers draw, are called s1, s2, …;
heartbeats are only counted.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from quorumcast.client import Batch, Delivery, NamedSubscription, Node, Subscription
from quorumcast.client.named.companion import make_follower
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry, Group
from quorumcast.manifest.policy import Policy
from quorumcast.named.operations import (
    AckPositions,
    AnyOperation,
    ClaimPositions,
    CloseSession,
    Configure,
    Create,
    ExpireSession,
    Heartbeat,
    MarkDead,
    NackPositions,
    OpenSession,
    SkipTo,
    WriteSnapshot,
    decode,
)
from quorumcast.named.state import SubscriptionState
from quorumcast.testing import MemoryCell

ORDERS, COMPANION = "orders", "orders/subscriptions"
TOTAL = Policy.named("total")
WATCHER = "dave"

Options = Mapping[str, str]


class VirtualClock(selectors.SelectSelector):
    """A selector that waits by moving a clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for something that cannot happen")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        self._clock = VirtualClock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class ConsumerScript:
    """A cell, and the consumers of one subscription."""

    def __init__(self) -> None:
        self._loop = VirtualTimeLoop()
        self._lines: list[str] = []
        self._nodes: dict[str, Node] = {}
        self._open: dict[str, NamedSubscription] = {}
        self._held: dict[tuple[str, int], Delivery] = {}
        self._sessions: dict[int, str] = {}
        #: Heartbeats in this block.
        self._beats = 0

    def play(self, commands: list[str]) -> list[str]:
        """Carry out the commands of one block; what was written meanwhile."""
        self._lines, self._beats = [], 0
        for command in commands:
            verb, *words = command.split()
            options = dict(word.split("=", 1) for word in words if "=" in word)
            plain = [word for word in words if "=" not in word]
            act: Callable[..., Coroutine[Any, Any, None]] = getattr(self, f"_do_{verb}")
            self._loop.run_until_complete(act(plain, options))
        beats = [f"      (not shown: {self._beats} Heartbeat)"] if self._beats else []
        return [*self._lines, *beats] or ["(silence)"]

    def end(self) -> None:
        """Stop everybody."""
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        for subscription in self._open.values():
            await subscription.close()
        await self._cell.close()
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    # -------------------------------------------------------------- commands

    async def _do_group(self, words: list[str], options: Options) -> None:
        name, *members = words
        self._prefetch = int(options.get("prefetch", 2))
        self._name = name
        group = Group(
            name,
            tuple(members),
            max_attempts=int(options.get("attempts", 0)),
            ack_timeout_ms=int(options.get("timeout", 1000)),
        )
        entry = ChannelEntry(Channel(ORDERS), TOTAL, groups=(group,))
        self._cell = MemoryCell(channels={ORDERS: entry, COMPANION: TOTAL}, now_us=self._now_us)
        for client in ("alice", *members, WATCHER):
            self._nodes[client] = await self._cell.connect(client)
        await asyncio.sleep(1)
        self._follower = make_follower(self._cell.manifest, entry, name, None, 1)
        companion = self._nodes[WATCHER].subscribe(COMPANION)
        await companion.wait_joined()
        self._watching = self._loop.create_task(self._watch(companion))

    def _now_us(self) -> int:
        return int(self._loop.time() * 1_000_000)

    async def _do_publish(self, words: list[str], _: Options) -> None:
        async with self._nodes["alice"].publisher(ORDERS) as out:
            for word in words:
                await out.publish(word.encode())

    async def _do_open(self, words: list[str], _: Options) -> None:
        consumer = words[0]
        found = self._nodes[consumer].subscribe_as(
            ORDERS, self._name, start="earliest", prefetch=self._prefetch
        )
        self._open[consumer] = found
        await found.open()

    async def _do_close(self, words: list[str], _: Options) -> None:
        await self._open.pop(words[0]).close()

    async def _do_take(self, words: list[str], _: Options) -> None:
        consumer = words[0]
        for _turn in range(int(words[1])):
            delivery = await anext(self._open[consumer])
            self._held[consumer, delivery.position] = delivery
            contents = b" ".join(delivery.batch.payloads).decode()
            self._say(
                f"{consumer} GETS position {delivery.position}, attempt {delivery.attempt}: "
                f"{contents}"
            )

    async def _do_ack(self, words: list[str], _: Options) -> None:
        for position in words[1:]:
            await self._held[words[0], int(position)].ack()

    async def _do_nack(self, words: list[str], _: Options) -> None:
        for position in words[1:]:
            await self._held[words[0], int(position)].nack()

    async def _do_cut(self, words: list[str], _: Options) -> None:
        self._cell.cut(words[0])

    async def _do_heal(self, words: list[str], _: Options) -> None:
        self._cell.heal(words[0])

    async def _do_run(self, words: list[str], _: Options) -> None:
        await asyncio.sleep(int(words[0]) / 1000)

    # -------------------------------------------------------------- printing

    def _say(self, text: str) -> None:
        self._lines.append(f"{round(self._loop.time() * 1000):5} {text}")

    async def _watch(self, companion: Subscription) -> None:
        """Print every operation, and what it makes of the state."""
        while items := await companion.take():
            for item in items:
                assert isinstance(item, Batch)
                for payload in item.payloads:
                    self._follower.read(item.position or 0, item.publisher, [payload])
                    entry = decode(payload)
                    assert entry is not None
                    self._print(f"{item.position} {item.publisher}", entry.operation)

    def _print(self, where: str, operation: AnyOperation) -> None:
        if isinstance(operation, Heartbeat):
            self._beats += 1
        else:
            said = f"{where} {self._operation(operation)}"
            self._say(f"{said:44} | {_state(self._follower.state)}")

    def _operation(self, operation: AnyOperation) -> str:
        kind = type(operation).__name__
        session = getattr(operation, "session", 0)
        if session:
            kind += f" {self._sessions.setdefault(session, f's{len(self._sessions) + 1}')}"
        match operation:
            case Create(upto=upto, start=start):
                return f"{kind} at {start}, void if created after {upto}"
            case ClaimPositions(count=count, end=end):
                return f"{kind}: {count} before {end}"
            case (
                AckPositions(ranges=ranges)
                | NackPositions(ranges=ranges)
                | CloseSession(delivered=ranges)
            ):
                return f"{kind}: {_ranges(ranges)}"
            case ExpireSession(consumer=consumer, last_seen=seen):
                return f"{kind}: {consumer}, silent since {seen}"
            case MarkDead(position=position):
                return f"{kind}: {position}"
            case SkipTo(upto=upto) | WriteSnapshot(upto=upto):
                return f"{kind}: {upto}"
            case OpenSession() | Heartbeat() | Configure():
                return kind


def _ranges(ranges: tuple[tuple[int, int], ...]) -> str:
    found = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return " ".join(found) or "nothing"


def _state(state: SubscriptionState | None) -> str:
    """The assignments of each consumer, positions that await redelivery, and the next new one."""
    if state is None:
        return "no state"
    said = []
    for member in sorted(state.sessions):
        held = [f"{claim.position}#{claim.attempt}" for claim in state.assigned_to(member)]
        said.append(f"{member} holds {' '.join(held) or 'nothing'}")
    if state.returned:
        said.append("awaiting redelivery " + " ".join(map(str, sorted(state.returned))))
    said += [f"dead {' '.join(map(str, state.dead))}"] if state.dead else []
    return "; ".join([*said, f"new from {state.next}"])
