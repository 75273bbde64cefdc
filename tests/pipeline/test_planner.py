"""Where a new query starts, planned over a cell in memory: no Java."""

from __future__ import annotations

import logging
from datetime import datetime

import pyarrow as pa
import pytest
from tests.client.test_dropped import COUNT, DAY_US, Ticking, small
from tests.client.test_total_order import in_a_loop, publish

from quorumcast.client import Batch, Node
from quorumcast.core.envelope import microseconds_of
from quorumcast.pipeline.streams.connections import POOL, PooledNode
from quorumcast.pipeline.streams.options import Access, Offsets, SourceOptions
from quorumcast.pipeline.streams.planner import OffsetPlanner
from quorumcast.testing import MemoryCell


def planner(node: Node, monkeypatch: pytest.MonkeyPatch) -> OffsetPlanner:
    pooled = PooledNode.__new__(PooledNode)
    pooled.node = node
    monkeypatch.setattr(POOL, "take", lambda access: pooled)
    access = Access(manifest="", identity="", seats=(0,), timeout_s=10)
    options = SourceOptions(
        access=access, channels=("events",), starting=Offsets(), ending=Offsets()
    )
    return OffsetPlanner(options, pa.schema([]))


@pytest.mark.parametrize("liar", [None, "broker-2"])
def test_start_at_a_time_logs_what_may_be_gone_of_it(
    liar: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "quorumcast.spark")

    @in_a_loop
    async def plan() -> None:
        clock = Ticking()
        channels = {"events": small("total+durable")}
        async with MemoryCell(channels=channels, now_us=clock) as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            await publish(alice, "events", COUNT)
            if liar is not None:
                cell.make_lie(liar, "false-positions")
            async with bob.subscribe("events", start="earliest") as events:
                first, second, *_ = [i async for i in events.held() if isinstance(i, Batch)]
            plans = planner(bob, monkeypatch)

            async def start(time: datetime | int) -> int:
                us = time if isinstance(time, int) else microseconds_of(time)
                caplog.clear()
                return (await plans._since(["events"], us))["events"]

            assert first.position is not None
            oldest = first.position
            assert await start(clock.us - DAY_US) == oldest > 1
            (said,) = caplog.messages
            assert said.startswith(
                f"positions 1 to {oldest - 1} of events are gone: some of them may be of the time "
                "asked for; channel events keeps 8 publications"
            )
            assert said.endswith(f"--retain everything; the query starts with position {oldest}")
            assert await start(second.published_at) == oldest + 1
            assert caplog.messages == []
            assert await start(clock.us + DAY_US) == COUNT + 1
            assert caplog.messages == []

    plan()
