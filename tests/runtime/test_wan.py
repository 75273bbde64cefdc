"""Links with the delays of a wide-area network."""

import asyncio
import math
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.runtime.world import run

from quorumcast.bench.plan import BenchPlan
from quorumcast.bench.run import host_for, run_bench
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.crypto.directory import Address
from quorumcast.runtime.links import schemes
from quorumcast.runtime.links.wan import (
    LEAST_TIMEOUT_S,
    MOST_UNDER_WAY,
    PACKET_BYTES,
    DelayLine,
    Draws,
    LinkDelays,
    WanPlan,
    wan_host,
)

ME, PEER = NodeId("me"), NodeId("peer")


def test_draws_of_a_link_are_repeatable_and_those_of_others_differ() -> None:
    draws = Draws(1, "a", "b")
    first = [draws.draw() for _ in range(1000)]
    again, other = Draws(1, "a", "b"), Draws(1, "b", "a")
    assert [again.draw() for _ in range(1000)] == first
    assert other.draw() not in first
    assert 0.45 < sum(first) / 1000 < 0.55
    assert 0 <= min(first) < 0.01 < 0.99 < max(first) < 1


def delays(plan: WanPlan, length: int, count: int = 2000) -> list[float]:
    async def measure() -> list[float]:
        line = DelayLine(plan, "a", "b", lambda piece: b"")
        return [line.delay_s(length) for _ in range(count)]

    return run(measure())


def test_delay_is_the_latency_of_the_link_and_up_to_its_jitter() -> None:
    calm, rough = LinkDelays(latency_ms=20), LinkDelays(latency_ms=20, jitter_ms=5)
    assert set(delays(WanPlan(every=calm), 100)) == {0.02}
    assert set(delays(WanPlan(every=rough, links={"b:a": calm}), 100)) == {0.02}
    for plan in (WanPlan(every=rough), WanPlan(every=calm, links={"a:b": rough})):
        found = delays(plan, 100)
        assert 0.02 <= min(found) < 0.0201 < 0.0249 < max(found) < 0.025


def test_delay_of_a_lost_packet_is_a_retransmission_timeout_for_its_share_of_the_packets() -> None:
    plan = WanPlan(links={"a:b": LinkDelays(latency_ms=20, loss_percent=10)})
    for packets, share in ((1, 0.1), (3, 1 - 0.9**3)):
        found = delays(plan, packets * PACKET_BYTES)
        late = 0.02 + LEAST_TIMEOUT_S + 0.04
        assert {round(delay, 6) for delay in found} == {0.02, round(late, 6)}
        assert abs(found.count(max(found)) / len(found) - share) < 0.04


class Echo(asyncio.Protocol):
    """Sends everything back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Caller(asyncio.Protocol):
    """Notes what comes back."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.paused = 0
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1

    async def until(self, count: int) -> None:
        while len(self.got) < count:
            self.changed.clear()
            await self.changed.wait()


def test_link_delays_both_directions_keeps_order_and_pushes_back(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        plan = tmp_path / "wan.json"
        plan.write_bytes(msgspec.json.encode(WanPlan(every=LinkDelays(latency_ms=30))))
        host = wan_host(plan, "127.0.0.1")
        server: Any = await schemes.listen(Echo, host, 0, None)
        port = server.sockets[0].getsockname()[1]
        caller = Caller()
        link = await schemes.connect(lambda: caller, Address(host, port), me=ME, peer=PEER)
        assert isinstance(link, asyncio.Transport)
        begin = loop.time()
        link.writelines([b"a", b"b"])
        await caller.until(2)
        assert loop.time() - begin >= 0.059  # there and back
        big = bytes(range(256)) * (MOST_UNDER_WAY // 256 + 1)
        link.write(big)
        assert caller.paused == 1
        await caller.until(2 + len(big))
        assert caller.paused == 0
        assert bytes(caller.got) == b"ab" + big
        link.write(b"last")
        link.close()
        await caller.lost.wait()
        server.close()

    run(main())


def test_address_without_a_file_of_delays_is_refused(tmp_path: Path) -> None:
    address = Address(wan_host(tmp_path / "absent", "127.0.0.1"), 1)
    with pytest.raises(UsageError, match="delays of links cannot be read"):
        run(schemes.connect(Caller, address, me=ME, peer=PEER))


@pytest.mark.runtime
def test_bench_over_slow_links_takes_their_time_and_loses_nothing() -> None:
    links = ("subscriber-1:broker-1=120,loss=0", "subscriber-1:broker-2=120,jitter=5")
    plan = BenchPlan(policy="ab", seconds=1.0, warmup=0.3, latency=20, loss=0.5, links=links)
    report = run_bench(plan)
    assert report.sound(plan)
    assert report.lost == 0
    assert {use.role for use in report.processes.values()} == {"broker", "publisher", "subscriber"}
    assert sum(use.cpu_s for use in report.processes.values()) > 0
    assert all(use.memory_mb > 10 for use in report.processes.values())
    assert len(report.processes) == 6
    assert report.weather == "20 ms, loss 0.5 %, " + ", ".join(links)
    # Three equal votes of four brokers: to a broker, and from the third of them, which is far away.
    assert report.latency_ms.p50 is not None
    assert report.latency_ms.p50 >= 139


def test_bench_link_has_its_own_delays_and_the_rest_of_every_link() -> None:
    plan = BenchPlan(latency=20, jitter=3, links=("b:a=80,loss=1", "a:c=latency=0,jitter=0"))
    delays = plan.wan()
    assert delays is not None
    assert delays.of("a", "b") == LinkDelays(latency_ms=80, jitter_ms=3, loss_percent=1)
    assert delays.of("a", "c") == LinkDelays()
    assert delays.of("b", "c") == LinkDelays(latency_ms=20, jitter_ms=3)


@pytest.mark.parametrize(
    "link",
    [
        *("broker-1=4", "a:b=", "a:b=fast", "a:b:c=1", "a:b=-1", "a:b=80,5", "a:b=80,,loss=1"),
        *("a:b=80,hail=1", "a:b=loss=51", "a:b=80,loss=", "a:b"),
    ],
)
def test_bench_link_that_is_none_is_refused(link: str) -> None:
    with pytest.raises(UsageError, match="is no link; write --link broker-1:broker-2=40"):
        BenchPlan(links=(link,)).check()


def test_bench_link_that_is_named_twice_or_joins_no_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--link names a:b twice"):
        BenchPlan(links=("a:b=1", "a:b=2")).check()
    clients = ["publisher-1", "subscriber-1"]
    for link in ("broker-1:broker-9", "publisher-1:subscriber-1", "broker-1:broker-1", ":broker-1"):
        with pytest.raises(UsageError, match="joins no broker to another node of this run: brok"):
            host_for(BenchPlan(links=(f"{link}=1",)), tmp_path, clients)


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_bench_delay_that_no_link_can_have_is_refused(value: float) -> None:
    for plan in (BenchPlan(latency=value), BenchPlan(jitter=value), BenchPlan(loss=value)):
        with pytest.raises(UsageError, match="--latency and --jitter must be 0 or more"):
            plan.check()
