"""Patterns over real brokers: channels that come and go while somebody listens to them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.shell import answer, line, running, said, started
from tests.cli.test_channels import command
from tests.runtime.world import PATIENCE_S, run, until

from quorumcast.cli.main import main
from quorumcast.client import Node, connect

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    channels = ["plant/1/temp:ab", "plant/log:brb", "orders:ab"]
    with running(directory, channels, "alice,bob,carol") as made:
        yield made


async def publish(node: Node, channel: str, event: bytes) -> None:
    await until(lambda: node.manifest.channel(channel) is not None)
    async with node.publisher(channel) as out:
        await out.publish(event)


def test_pattern_follows_the_epochs(cell: Path) -> None:
    async def act() -> None:
        alice = await connect(cell / "manifest.json", cell / "alice.identity")
        bob = await connect(cell / "manifest.json", cell / "bob.identity")
        async with alice, bob, bob.subscribe("plant/**") as inbox:
            assert inbox.channels == ("plant/1/temp", "plant/log")
            await command("channel", "create", "plant/2/temp:brb", "-m", cell)
            await publish(alice, "plant/2/temp", b"first")
            event = await anext(inbox)
            assert (event.channel, event.payload, event.number) == ("plant/2/temp", b"first", 1)
            await command("channel", "delete", "plant/log", "--yes", "-m", cell)
            await until(lambda: inbox.channels == ("plant/1/temp", "plant/2/temp"))
            await command("channel", "change", "plant/1/temp", "--subscribers", "alice", "-m", cell)
            await until(lambda: inbox.channels == ("plant/2/temp",))
            await publish(alice, "plant/1/temp", b"not for bob")
            await command("channel", "change", "plant/1/temp", "--subscribers", "*", "-m", cell)
            await until(lambda: "plant/1/temp" in inbox.channels)
            await publish(alice, "plant/2/temp", b"second")
            assert (await anext(inbox)).payload == b"second"

    run(act())


def test_patterns_that_gain_a_channel_at_once_share_it_from_the_earlier_beginning(
    cell: Path,
) -> None:
    """The one that wants the past must not go without because the other was there first."""

    async def act() -> None:
        for channel in ("depot/1:ab", "yard/log:ab", "depot/log:ab::*:alice"):
            await command("channel", "create", channel, "-m", cell)
        alice = await connect(cell / "manifest.json", cell / "alice.identity")
        bob = await connect(cell / "manifest.json", cell / "bob.identity")
        latest = bob.subscribe("depot/*")
        async with alice, bob, latest, bob.subscribe("*/log", start="earliest") as earliest:
            assert (latest.channels, "depot/log" in earliest.channels) == (("depot/1",), False)
            await publish(alice, "depot/log", b"before bob might read it")
            await command("channel", "change", "depot/log", "--subscribers", "*", "-m", cell)
            assert (await anext(earliest)).payload == b"before bob might read it"

    run(act())


def test_pattern_on_the_command_line(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = answer(capsys, "channel", "list", "plant/*/temp", "-m", cell)["channels"]
    assert {channel["name"] for channel in listed} >= {"plant/1/temp"}
    assert not [c for c in listed if c["name"] in ("orders", "plant/log")]
    arguments = ["subscribe", "plant/*/temp", "-m", cell, "-i", "carol", "--count", 1, "--json"]
    with started(*arguments) as listener:
        said(listener, "subscribed to plant/*/temp: plant/1/temp")
        answer(capsys, "publish", "plant/1/temp", "21.5", "-m", cell, "-i", "alice")
        event = line(listener)
        assert (event["channel"], event["payload"]) == ("plant/1/temp", "21.5")
        assert listener.wait(PATIENCE_S) == 0
    for read in ("replay", "subscribe"):  # people are told the channel, too
        past = [read, "plant/*/temp", "-m", cell, "-i", "carol", "--from", "earliest"]
        with started(*past, "--count", 1) as reader:
            printed, _ = reader.communicate(timeout=PATIENCE_S)
            assert re.match(r"plant/[12]/temp\t", printed)  # none of them comes first


def test_pattern_stands_before_a_channel_matches(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    who = ["-m", cell, "-i", "carol"]
    assert main(["replay", "barn/**", *map(str, who)]) == 2
    assert "no channel that 'carol' may subscribe to matches 'barn/**'" in capsys.readouterr().err
    with started("subscribe", "barn/**", *who, "--count", 1, "--json") as listener:
        said(listener, "subscribed to barn/**: no channel matches yet; waiting until one is")
        answer(capsys, "channel", "create", "barn/door:ab", "-m", cell)
        answer(capsys, "publish", "barn/door", "open", "-m", cell, "-i", "alice")
        event = line(listener)
        assert (event["channel"], event["payload"]) == ("barn/door", "open")
        assert listener.wait(PATIENCE_S) == 0
