"""The content subscription of the demonstration: few rows of a channel, and none of them missing.

`grace` publishes trades. `frank` wants the cheap ones, and checks that he gets each of them once,
in order, while a broker says that nothing matches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumcast.client.node import Node

CHANNEL = "trades"
PUBLISHER, SUBSCRIBER = "grace", "frank"
WHERE = "price < 9"
ENTRY = ChannelEntry(
    Channel(CHANNEL), Policy.named("ab"), schema=(("trade", "int64"), ("price", "int64"))
)
#: Prices go through all numbers below this one: 9 % of the trades are wanted.
PRICES = 100
PUBLISH_S = 0.05


def price_of(trade: int) -> int:
    """The price of a trade."""
    return trade * 37 % PRICES


def is_wanted(trade: int) -> bool:
    """Whether the predicate selects a trade: counted here, not by what is demonstrated."""
    return price_of(trade) < 9


class Trades:
    """The publisher and the subscriber, and what they count."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self.published = 0
        self.matching = 0
        #: Trades that came once and in order, those that came again, and others.
        self.accepted = self.duplicated = self.wrong = 0
        self._last = 0

    async def publish(self, node: Node, goes_on: Callable[[], bool]) -> None:
        """Publish trades as long as the demonstration goes on."""
        import pyarrow as pa

        start = time.monotonic()
        async with node.publisher(CHANNEL) as publisher:
            while goes_on():
                upto = int((time.monotonic() - start) * self._rate)
                trades = range(self.published + 1, upto + 1)
                if trades:
                    await publisher.publish(
                        pa.record_batch(
                            {"trade": list(trades), "price": list(map(price_of, trades))},
                            schema=ENTRY.arrow_schema(),
                        )
                    )
                    self.published = upto
                    self.matching += sum(map(is_wanted, trades))
                await asyncio.sleep(PUBLISH_S)

    async def subscribe(self, node: Node, timeout_s: float) -> asyncio.Task[None]:
        """Subscribe to the cheap trades, and check what comes."""
        subscription = node.subscribe(CHANNEL, where=WHERE)
        await subscription.wait_joined(timeout_s)

        async def listen() -> None:
            async for batch in subscription.batches():
                self._check(batch.data)

        return asyncio.create_task(listen())

    def _check(self, rows: pa.RecordBatch) -> None:
        for trade in rows.column("trade").to_pylist():
            if trade <= self._last:
                self.duplicated += 1
                continue
            missed = sum(map(is_wanted, range(self._last + 1, trade)))
            self.wrong += missed + (not is_wanted(trade))
            self.accepted += is_wanted(trade)
            self._last = trade

    @property
    def complete(self) -> bool:
        """Whether everything that was published and matches has come."""
        return self.accepted >= self.matching

    def summary(self) -> dict[str, Any]:
        """What was published, wanted and accepted."""
        return {
            "where": WHERE,
            "published": self.published,
            "matching": self.matching,
            "accepted": self.accepted,
            "lost": self.matching - self.accepted,
            "duplicated": self.duplicated,
            "irrelevant": self.wrong,
        }
