"""Channels that come, change and go while a cell runs: nothing that is published gets lost."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.shell import QUORUMCAST, answer, brokers_up, running
from tests.runtime.world import PATIENCE_S, eventually, run, until

from quorumcast.cli.cell.channel_facts import channel_facts, channel_table
from quorumcast.cli.main import main
from quorumcast.client import Node, Publisher, connect
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_manifest

pytestmark = pytest.mark.runtime

#: Between two publications of the traffic. A change of the cell takes many times as long.
PAUSE_S = 0.01


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    with running(directory, ["orders:ab+history:20", "audit:brb"], "alice,bob,carol") as made:
        yield made


async def command(*arguments: object) -> Any:
    """What a command in a process of its own prints as JSON."""
    process = await asyncio.create_subprocess_exec(
        *QUORUMCAST, *map(str, arguments), "--json",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


async def known(node: Node, channel: str, *, there: bool = True) -> None:
    """Until a node that was connected before has heard of the new epoch."""
    await until(lambda: (node.manifest.channel(channel) is not None) == there)


async def refused(out: Publisher) -> None:
    """Publish until the cell says no."""
    for _ in range(1000):
        await out.publish(b"more")
        await asyncio.sleep(0.02)


class Traffic:
    """A publisher and a subscriber on a channel that nobody changes, which go on all the time."""

    def __init__(self, alice: Node, bob: Node, *, pause_s: float = PAUSE_S) -> None:
        self._alice = alice
        self._bob = bob
        self._pause_s = pause_s
        self._stop = False
        self.sent = 0
        self.got: list[bytes] = []

    async def __aenter__(self) -> "Traffic":
        self._inbox = self._bob.subscribe("orders")
        await self._inbox.wait_joined(PATIENCE_S)
        self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._take())]
        return self

    async def _publish(self) -> None:
        async with self._alice.publisher("orders") as out:
            while not self._stop:
                await out.publish(b"%d" % self.sent)
                self.sent += 1
                await asyncio.sleep(self._pause_s)

    async def _take(self) -> None:
        async for event in self._inbox:
            self.got.append(event.payload)

    async def __aexit__(self, *error: object) -> None:
        self._stop = True
        await asyncio.wait_for(self._tasks[0], PATIENCE_S)
        await until(lambda: len(self.got) >= self.sent)
        self._inbox.close()
        await self._tasks[1]

    async def go_on(self) -> None:
        before = self.sent
        await until(lambda: self.sent >= before + 20)

    def check(self) -> None:
        assert self.sent > 0
        assert self.got == [b"%d" % number for number in range(self.sent)]


def test_channel_is_created_and_used_while_others_go_on(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        manifest = cell / "manifest.json"
        alice = await connect(manifest, cell / "alice.identity", timeout_s=PATIENCE_S)
        bob = await connect(manifest, cell / "bob.identity", timeout_s=PATIENCE_S)
        async with alice, bob, Traffic(alice, bob) as traffic:
            done = await command("channel", "create", "trades:total+durable", "-m", cell)
            assert done["channel"]["durable"]
            assert set(done["taken"].values()) == {True}
            await known(alice, "trades")
            await known(bob, "trades")
            async with bob.subscribe("trades") as inbox, alice.publisher("trades") as out:
                for number in range(1, 21):
                    await out.publish(b"trade %d" % number)
                    event = await anext(inbox)
                    assert (event.position, event.payload) == (number, b"trade %d" % number)
            await traffic.go_on()
        traffic.check()

    run(main())
    # It is on disk, although brokers had no store when they started.
    for row in brokers_up(capsys, cell).values():
        os.kill(row["pid"], signal.SIGKILL)

    def whole() -> bool:
        rows = answer(capsys, "channel", "show", "trades", "-m", cell, "--live")["channel"]["live"]
        return all(row is not None and row["last"] == 20 for row in rows.values())

    assert eventually(whole)
    done = subprocess.run(
        [*QUORUMCAST, "replay", "trades", "-m", str(cell), "-i", "bob", "--json"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    events = [json.loads(text) for text in done.stdout.splitlines()]
    assert [(e["position"], e["payload"]) for e in events] == [
        (number, f"trade {number}") for number in range(1, 21)
    ]


def test_rights_change_while_others_go_on(cell: Path) -> None:
    async def main() -> None:
        manifest = cell / "manifest.json"
        alice = await connect(manifest, cell / "alice.identity", timeout_s=PATIENCE_S)
        bob = await connect(manifest, cell / "bob.identity", timeout_s=PATIENCE_S)
        async with alice, bob, Traffic(alice, bob) as traffic:
            async with alice.publisher("audit") as out:
                await out.publish(b"mine")
                await command("channel", "change", "audit", "--publishers", "bob", "-m", cell)
                with pytest.raises(UsageError, match="has no right"):
                    await refused(out)
            async with bob.publisher("audit") as other:
                await other.publish(b"his")
            await traffic.go_on()
        traffic.check()

    run(main())


def test_retention_changes_down_and_up_while_the_channel_is_in_use(cell: Path) -> None:
    async def held() -> list[int]:
        shown = await command("channel", "show", "orders", "-m", cell, "--live")
        return [row["held"] for row in shown["channel"]["live"].values() if row is not None]

    async def main() -> None:
        manifest = cell / "manifest.json"
        alice = await connect(manifest, cell / "alice.identity", timeout_s=PATIENCE_S)
        bob = await connect(manifest, cell / "bob.identity", timeout_s=PATIENCE_S)
        async with alice, bob, Traffic(alice, bob, pause_s=0) as traffic:
            await until(lambda: traffic.sent >= 500)
            assert max(await held()) >= 500
            done = await command("channel", "change", "orders", "--retain", "10KB", "-m", cell)
            assert done["channel"]["retention"] == "4,096 publications, 10 KB"
            assert set(done["taken"].values()) == {True}
            await traffic.go_on()
            assert max(await held()) < 500
            done = await command("channel", "change", "orders", "--retain", "64MiB", "-m", cell)
            assert done["channel"]["retention"] == "262,144 publications, 64 MiB"
            before = traffic.sent
            await until(lambda: traffic.sent >= before + 500)
            assert max(await held()) >= 500
        traffic.check()

    run(main())


def test_columns_are_added_and_what_was_published_before_has_nulls(cell: Path) -> None:
    async def main() -> None:
        created = await command(
            "channel", "create", "prices:total", "--column", "symbol:string",
            "--column", "price:float64", "-m", cell,
        )  # fmt: skip
        assert [column["name"] for column in created["channel"]["schema"]] == ["symbol", "price"]
        manifest = cell / "manifest.json"
        alice = await connect(manifest, cell / "alice.identity", timeout_s=PATIENCE_S)
        bob = await connect(manifest, cell / "bob.identity", timeout_s=PATIENCE_S)
        async with alice, bob, alice.publisher("prices") as out, bob.subscribe("prices") as inbox:
            await out.publish({"symbol": "CTT", "price": 9.5})
            assert (await anext(inbox)).row == {"symbol": "CTT", "price": 9.5}
            await command(
                "channel", "change", "prices", "--column", "at:timestamp[us, UTC]", "-m", cell
            )
            epoch = read_manifest(manifest).epoch
            await until(lambda: alice.manifest.epoch == bob.manifest.epoch == epoch)
            # Neither the publisher nor the subscriber is made anew.
            await out.publish({"symbol": "CTT", "price": 9.6})
            assert (await anext(inbox)).row == {"symbol": "CTT", "price": 9.6, "at": None}
        replayed = await asyncio.create_subprocess_exec(
            *QUORUMCAST, "replay", "prices", "-m", str(cell), "-i", "carol",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        output, errors = await replayed.communicate()
        rows = [json.loads(text) for text in output.splitlines()]
        assert rows == [
            {"symbol": "CTT", "price": 9.5, "at": None},
            {"symbol": "CTT", "price": 9.6, "at": None},
        ], errors

    run(main())


def test_channel_is_deleted_and_its_name_used_again(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        manifest = cell / "manifest.json"
        await command("channel", "create", "news:ab", "-m", cell)
        alice = await connect(manifest, cell / "alice.identity", timeout_s=PATIENCE_S)
        bob = await connect(manifest, cell / "bob.identity", timeout_s=PATIENCE_S)
        async with alice, bob, Traffic(alice, bob) as traffic:
            async with alice.publisher("news") as out:
                await out.publish(b"old")
                gone = await command("channel", "delete", "news", "--yes", "-m", cell)
                assert gone["channel"] is None
                with pytest.raises(UsageError, match="there is no channel 'news'"):
                    await refused(out)
            await known(bob, "news", there=False)
            await command("channel", "create", "news:total", "-m", cell)
            await known(bob, "news")
            async with bob.subscribe("news", start="earliest") as inbox:
                async with bob.publisher("news") as other:
                    await other.publish(b"new")
                event = await anext(inbox)
                assert (event.position, event.payload) == (1, b"new")
        traffic.check()

    run(main())

    def last() -> list[Any]:
        live = answer(capsys, "channel", "show", "news", "-m", cell, "--live")["channel"]["live"]
        return [row and row["last"] for row in live.values()]

    assert eventually(lambda: last() == [1] * 4)  # n-f have it, and the others soon


def test_only_channel_of_a_log_is_deleted_with_its_companion_and_created_again(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def publish(text: bytes) -> int | None:
        manifest = cell / "manifest.json"
        async with await connect(manifest, cell / "bob.identity", timeout_s=PATIENCE_S) as bob:
            await known(bob, "jobs")
            async with bob.subscribe("jobs", start="earliest") as inbox:
                async with bob.publisher("jobs") as out:
                    await out.publish(text)
                event = await anext(inbox)
                assert event.payload == text
                return event.position

    def names() -> list[str]:
        listed = answer(capsys, "channel", "list", "-m", cell)["channels"]
        return [channel["name"] for channel in listed if channel["name"].startswith("jobs")]

    def log_is_well() -> bool:
        main(["doctor", str(cell), "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        return ("log crash", "ok") in [(one["about"], one["level"]) for one in findings]

    create = ("channel", "create", "jobs:total-crash+durable", "--subscriptions", "-m", cell)
    answer(capsys, *create)
    assert (run(publish(b"old")), names()) == (1, ["jobs", "jobs/subscriptions"])
    gone = answer(capsys, "channel", "delete", "jobs", "--yes", "-m", cell)
    assert (set(gone["taken"].values()), names()) == ({True}, [])
    assert eventually(log_is_well)
    again = answer(capsys, *create)
    assert (set(again["taken"].values()), names()) == ({True}, ["jobs", "jobs/subscriptions"])
    assert run(publish(b"new")) == 2


def test_channels_and_members_at_a_glance(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = answer(capsys, "channel", "list", "-m", cell, "--live")
    names = {channel["name"]: channel for channel in listed["channels"]}
    assert {"orders", "audit"} <= names.keys()
    assert names["orders"]["policy"] == "ab+history"
    assert set(names["orders"]["live"]) == {f"broker-{number}" for number in range(1, 5)}
    assert names["orders"]["limits"]["window"] == 1024

    def members_now() -> list[Any]:
        found: list[Any] = answer(capsys, "members", "list", "-m", cell, "--live")["members"]
        return found

    assert eventually(
        lambda: all(m["up"] and m["epoch"] == listed["epoch"] for m in members_now()[:4])
    )
    members = members_now()
    assert [m["name"] for m in members[:4]] == [f"broker-{number}" for number in range(1, 5)]
    assert {m["name"] for m in members[4:]} == {"alice", "bob", "carol"}
    assert len({m["fingerprint"] for m in members}) == len(members)
    for arguments in (
        ["channel", "list", "-m", cell, "--live"],
        ["channel", "show", "orders", "-m", cell, "--live"],
        ["members", "list", "-m", cell, "--live"],
    ):
        assert main([str(argument) for argument in arguments]) == 0
        text = capsys.readouterr().out
        assert "orders" in text or "broker-4" in text


def test_channel_list_live_in_80_columns_names_every_broker(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "cell")]) == 0
    manifest = read_manifest(tmp_path / "cell/manifest.json")
    live = {"live": {name: {"last": 12_345} for name in manifest.broker_ids}}
    facts = [channel_facts(manifest, entry) | live for entry in manifest.channels]
    out = Console(width=80)
    with out.capture() as shown:
        out.print(channel_table(manifest, facts, manifest.broker_ids))
    assert [name for name in manifest.broker_ids if name not in shown.get()] == []


def test_channel_show_limit_that_does_not_exist_is_everything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["init", str(tmp_path / "cell"), "--channel", "kept:total+durable"]) == 0
    assert main(["channel", "show", "kept", "-m", str(tmp_path / "cell")]) == 0
    assert re.search("retained_bytes +everything", capsys.readouterr().out)


def test_channel_in_a_durable_log_is_on_disk_whatever_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    channels = ["kept:total+durable", "too:total", "own:total-crash", "word:ab+journal", "gone:ab"]
    specs = [text for channel in channels for text in ("--channel", channel)]
    assert main(["init", str(tmp_path / "cell"), "--digest", "sha256", *specs]) == 0
    capsys.readouterr()
    listed = answer(capsys, "channel", "list", "-m", tmp_path / "cell")["channels"]
    on_disk = {channel["name"]: (channel["title"], channel["on_disk"]) for channel in listed}
    kept = {channel["name"]: channel["retention"] for channel in listed}
    assert (kept["kept"], kept["own"]) == ("everything", "4,096 publications, 64 MiB")
    assert main(["channel", "show", "kept", "-m", str(tmp_path / "cell")]) == 0
    assert re.search("^keeps +everything$", capsys.readouterr().out, re.MULTILINE)
    assert main(["channel", "list", "kept", "-m", str(tmp_path / "cell")]) == 0
    assert "everything" in capsys.readouterr().out
    assert on_disk == {
        "kept": ("total+durable", "publications"),
        "too": ("total", "publications"),
        "own": ("total-crash", ""),
        "word": ("ab+journal", "promises"),
        "gone": ("ab", ""),
    }


def test_deleting_a_channel_says_who_uses_it(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main_() -> None:
        await command("channel", "create", "busy:brb", "-m", cell)
        manifest = cell / "manifest.json"
        alice = await connect(manifest, cell / "alice.identity", timeout_s=PATIENCE_S)
        bob = await connect(manifest, cell / "bob.identity", timeout_s=PATIENCE_S)
        async with alice, bob, bob.subscribe("busy"):
            out = alice.publisher("busy")
            await out.publish(b"one")
            delete = ["channel", "delete", "busy", "-m", str(cell)]
            assert await asyncio.to_thread(main, delete) == 2
            told = "although alice publishes and bob subscribes there; add --yes"
            assert told in capsys.readouterr().err
            assert await asyncio.to_thread(main, [*delete, "--yes"]) == 0
            told = "channel busy was in use: alice publishes and bob subscribes there"
            assert told in capsys.readouterr().err

    run(main_())


def test_change_that_changes_nothing_makes_no_epoch(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = answer(capsys, "epoch", "show", "-m", cell)["epoch"]
    done = answer(capsys, "channel", "change", "orders", "--publishers", "*", "-m", cell)
    assert done["epoch"] == before
