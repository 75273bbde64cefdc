"""From probes through a real cell with a liar to the store, the alarms and the page, twice."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.numbered import PATIENCE_S
from tests.runtime.world import until

from quorumcast.cli.main import main
from quorumcast.client import connect, run
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.monitoring import probes
from quorumcast.monitoring.channels import Names
from quorumcast.monitoring.probes import HostProbe, ProbeSettings
from quorumcast.pipeline.session import ROCKSDB
from quorumcast.testing.cluster import LocalCluster

RULES = """
[[rule]]
name = "trouble"
kind = "logs"
level = "error"
over_s = 3600

[[rule]]
name = "liar"
kind = "threshold"
signal = "dissent"
aggregate = "count"
above = 0
over_s = 3600

[[rule]]
name = "both"
kind = "together"
of = "trouble"
at_least = 2
within_s = 3600
"""


@pytest.fixture
def cell() -> Iterator[LocalCluster]:
    channels = {
        name: ChannelEntry(Channel(name), Policy.named("total"), schema=columns)
        for name, columns in Names.under().columns.items()
    }
    with LocalCluster(channels=channels) as made:
        yield made


@pytest.fixture
def settings_put_back(spark: SparkSession) -> Iterator[None]:
    """The command takes the session that is there, and gives it settings of its own."""
    yield
    for name in ROCKSDB:
        spark.conf.unset(name)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    """What a command prints, one JSON object per line."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0, capsys.readouterr().err
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


async def probed(cell: LocalCluster, settings: ProbeSettings, lines: int) -> Counter[str]:
    """What a probe has published when it has read so many lines and measured twice."""
    alice = cell.identity_path("alice")
    async with await connect(cell.manifest_path, alice, timeout_s=PATIENCE_S) as node:
        probe = HostProbe(node, settings)
        published = probe.published
        async with asyncio.TaskGroup() as group:
            group.create_task(probe.run())
            await until(lambda: published["logs"] == lines and published["metrics"] > 0)
            once = published["metrics"]
            await until(lambda: published["metrics"] > once)
            probe.stop()
        return published


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.usefixtures("settings_put_back")
def test_monitor_stores_all_and_tells_once_although_a_broker_lies(
    cell: LocalCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "STOP_TIMEOUT_S", PATIENCE_S)
    rules, store, page = tmp_path / "rules.toml", tmp_path / "store", tmp_path / "report.html"
    rules.write_text(RULES)
    at = ("-m", cell.directory)
    published = 0

    def probe(host: str, text: str) -> None:
        nonlocal published
        log = tmp_path / f"{host}.log"
        with log.open("a") as out:
            out.write(text)
        settings = ProbeSettings(
            host=host, interval_s=0.2, files=(log,), from_start=True,
            state=tmp_path / f"{host}.json",
        )  # fmt: skip
        found = run(probed(cell, settings, text.count("\n")))
        assert found["logs"] == text.count("\n")
        published += found.total()
        cell.wait_executed()

    def watch() -> tuple[list[tuple[str, str, str]], dict[str, Any]]:
        *alarms, last = told(
            capsys, "pipeline", "monitor", "run", *at, "-i", "bob", "--store", store,
            "--rules", rules, "--report", page, "--once",
        )  # fmt: skip
        found = [one["alarm"] for one in alarms]
        return sorted((one["rule"], one["host"], one["state"]) for one in found), last

    probe("web-1", "INFO fine\nERROR not fine\n")
    raised, last = watch()
    assert raised == [("trouble", "web-1", "raised")]
    assert (last["stored"], last["hosts"]) == (published, ["web-1"])
    assert sum(last["lag"].values()) == 0

    probe("web-2", "ERROR here as well\n")
    probe("web-1", "ERROR still\n")
    cell.make_lie("broker-2", "alter", victims=["contents"])
    raised, last = watch()
    assert raised[:1] == [("both", "*", "raised")]
    assert {rule for rule, _, _ in raised[1:-1]} == {"liar"}
    assert raised[-1:] == [("trouble", "web-2", "raised")]

    rows = pq.read_table(store / "observations").to_pylist()
    assert len(rows) == published
    assert {row["flaw"] for row in rows} == {None}
    assert {name for row in rows for name in row["dissent"]} == {"broker-2"}
    messages = sorted(row["message"] for row in rows if row["channel"] == "logs")
    assert messages == ["ERROR here as well", "ERROR not fine", "ERROR still", "INFO fine"]
    assert "broker-2" in page.read_text()
    cell.make_honest("broker-2")
    cell.wait_executed()
    events = [one for one in told(capsys, "replay", "alarms", *at, "-i", "carol") if "row" in one]
    ids = [one["row"]["id"] for one in events]
    assert len(ids) == len(set(ids)) == len(raised) + 1
