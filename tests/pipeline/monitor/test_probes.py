"""Probes on a cell: what psutil, files and syslog say comes out of the channels."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.world import run, until

from quorumcast.client import Node
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.monitoring import probes
from quorumcast.monitoring.channels import Names
from quorumcast.monitoring.host import HostSampler
from quorumcast.monitoring.probes import MAX_MESSAGES, HostProbe, ProbeSettings
from quorumcast.testing import MemoryCell

CHANNELS = {
    name: ChannelEntry(Channel(name), Policy.named("total"), schema=columns)
    for name, columns in Names.under().columns.items()
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that ends waits for the cell as long as it takes, unless a test says otherwise."""
    monkeypatch.setattr(probes, "STOP_TIMEOUT_S", 120.0)


@asynccontextmanager
async def probing(node: Node, **settings: Any) -> AsyncIterator[HostProbe]:
    """A probe that runs as long as the block."""
    probe = HostProbe(node, ProbeSettings(**{"host": "web-1", "metrics": False, **settings}))
    task = asyncio.create_task(probe.run())
    await asyncio.wait([task, ready := asyncio.ensure_future(probe.ready.wait())],
                       return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
    ready.cancel()
    try:
        yield probe
    finally:
        probe.stop()
        await task


async def rows(node: Node, channel: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a channel."""
    found: list[dict[str, Any]] = []
    async with node.subscribe(channel, start="earliest") as inbox:
        async for event in inbox:
            found.append(event.row)
            if len(found) == count:
                break
    return found


def test_host_tells_what_every_host_has() -> None:
    sampler = HostSampler()
    first = {metric for metric, _, _ in sampler.sample(0.0)}
    second = sampler.sample(1.0)
    assert {"cpu.percent", "memory.percent", "load.1", "processes.count"} <= first
    assert not any(metric.endswith("_s") for metric in first), "rates need two looks"
    assert any(metric == "net.received_bytes_s" for metric, _, _ in second)
    assert all(value >= 0 for _, _, value in second)
    assert any(0 <= value <= 100 for metric, _, value in second if metric == "memory.percent")


def test_measurements_are_published_with_the_host_and_the_counts_of_losses() -> None:
    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            async with probing(alice, metrics=True, interval_s=0.1) as probe:
                await until(lambda: probe.published["metrics"] > 0)
                found = await rows(bob, "metrics", probe.published["metrics"])
            assert {row["host"] for row in found} == {"web-1"}
            values = {(row["metric"], row["item"]): row["value"] for row in found}
            assert values["probe.dropped", "metrics"] == 0
            assert 0 <= values["memory.percent", ""] <= 100

    run(main())


def test_lines_come_once_across_restarts_of_probe_and_broker(tmp_path: Path) -> None:
    log, state = tmp_path / "app.log", tmp_path / "state.json"
    options = {"files": (log,), "state": state, "from_start": True}
    log.write_text("one\n")

    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            async with probing(alice, **options) as probe:
                await until(lambda: probe.published["logs"] == 1)
                cell.kill("broker-2")
                with log.open("a") as out:
                    out.write(
                        "ERROR two \udcff\n".encode("utf-8", "surrogateescape").decode("latin-1")
                    )
                await until(lambda: probe.published["logs"] == 2)
                cell.restart("broker-2")
            log.rename(tmp_path / "app.log.1")
            log.write_text("FATAL three\n")
            async with probing(alice, **options) as probe:
                await until(lambda: probe.published["logs"] == 1)
            found = await rows(bob, "logs", 3)
            assert [row["severity"] for row in found] == [6, 3, 2]
            assert [row["message"].split()[-1] for row in found][::2] == ["one", "three"]
            assert len({row["origin"] for row in found}) == 3
            assert {row["source"] for row in found} == {str(log)}

    run(main())


def test_file_that_cannot_be_read_any_more_is_told_once(tmp_path: Path) -> None:
    log, other = tmp_path / "app.log", tmp_path / "other.log"

    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            options = {"files": (log, other), "state": tmp_path / "state.json"}
            async with probing(alice, **options) as probe:
                log.mkdir()
                await until(lambda: probe.published["logs"] == 1)
                other.write_text("one\ntwo\n")
                await until(lambda: probe.published["logs"] == 3)
            found = await rows(bob, "logs", 3)
            assert [row["severity"] for row in found] == [4, 6, 6]
            assert found[0]["source"] == str(log)
            assert found[0]["message"] == f"{log} cannot be read: Is a directory"

    run(main())


def test_file_that_may_not_be_followed_is_refused_before_anything_begins(tmp_path: Path) -> None:
    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice = await cell.connect("alice")
            state = tmp_path / "state.json"
            probe = HostProbe(alice, ProbeSettings(host="web-1", files=(tmp_path,), state=state))
            with pytest.raises(UsageError, match="is a directory"):
                await probe.run()
            assert not probe.ready.is_set()

    run(main())


def test_syslog_over_both_transports_reaches_the_channel() -> None:
    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            async with probing(alice, syslog=("127.0.0.1", 0)) as probe:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                    out.sendto(b"<11>1 - gate sshd - - - no", probe.address)
                _, writer = await asyncio.open_connection(*probe.address)
                writer.write(b"<8>panic\n")
                writer.close()
                found = await rows(bob, "logs", 2)
            assert {(row["severity"], row["device"], row["message"]) for row in found} == {
                (3, "gate", "no"),
                (0, "", "panic"),
            }
            assert probe.dropped == {"metrics": 0, "syslog": 0, "connections": 0}

    run(main())


async def taken_in(probe: HostProbe, count: int) -> None:
    """Send syslog messages and wait until the probe has them all."""
    reader, writer = await asyncio.open_connection(*probe.address)
    writer.write(b"".join(b"<13>%d\n" % number for number in range(count)))
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


def test_syslog_that_was_taken_in_is_published_before_the_probe_ends() -> None:
    count = 3 * MAX_MESSAGES

    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            async with probing(alice, syslog=("127.0.0.1", 0)) as probe:
                await taken_in(probe, count)
            assert (probe.published["syslog"], probe.dropped["syslog"]) == (count, 0)
            found = await rows(bob, "logs", count)
            assert [int(row["message"]) for row in found] == list(range(count))

    run(main())


def test_syslog_that_the_cell_does_not_take_in_time_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "STOP_TIMEOUT_S", 0.2)
    count = 2 * MAX_MESSAGES

    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice = await cell.connect("alice")
            for broker in ("broker-1", "broker-2", "broker-3", "broker-4"):
                cell.kill(broker)
            async with probing(alice, syslog=("127.0.0.1", 0)) as probe:
                await taken_in(probe, count)
            assert (probe.published["syslog"], probe.dropped["syslog"]) == (0, count)

    run(main())


def test_measurements_that_find_no_room_are_dropped_and_counted() -> None:
    async def main() -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            for broker in ("broker-1", "broker-2", "broker-3", "broker-4"):
                cell.kill(broker)
            async with probing(alice, metrics=True, interval_s=0.1, buffer=1) as probe:
                await until(lambda: probe.dropped["metrics"] > 0)
                for broker in ("broker-1", "broker-2", "broker-3", "broker-4"):
                    cell.restart(broker)
                told = probe.published["metrics"]
                await until(lambda: probe.published["metrics"] > told)
                told = probe.published["metrics"]
                await until(lambda: probe.published["metrics"] > told)
                found = await rows(bob, "metrics", probe.published["metrics"])
            counts = [row["value"] for row in found
                      if (row["metric"], row["item"]) == ("probe.dropped", "metrics")]  # fmt: skip
            assert counts[0] == 0
            assert 0 < sum(counts) <= probe.dropped["metrics"], "what was told is not told again"

    run(main())


def test_cell_without_the_channels_is_told_how_to_make_them() -> None:
    async def main() -> None:
        async with MemoryCell(channels={"metrics": "total"}) as cell:
            alice = await cell.connect("alice")
            with pytest.raises(UsageError, match="other columns"):
                HostProbe(alice, ProbeSettings(host="h"))
            with pytest.raises(UsageError, match="monitor init"):
                HostProbe(alice, ProbeSettings(host="h", names=Names.under("plant")))

    run(main())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metrics": False}, "nothing to do"),
        ({"host": ""}, "--host"),
        ({"interval_s": float("nan")}, "--interval"),
        ({"buffer": 0}, "--buffer"),
    ],
)
def test_nonsense_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ProbeSettings(**{"host": "h", **options}).check()
