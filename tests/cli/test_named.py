"""Named subscriptions on the command line: made, shared, gone on with, looked at."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.shell import QUORUMCAST, answer, line, running, said, started
from tests.runtime.world import PATIENCE_S

from quorumcast.cli.main import main

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    channels = ["logs:ab+history:20", "trades:total+durable"]
    with running(directory, channels, "alice,bob,carol") as made:
        yield made


def subscribed(cell: Path, who: str, *options: object) -> list[dict[str, Any]]:
    """What `subscribe --json` prints, in a process of its own."""
    waiting = ["--no-follow", "--idle", PATIENCE_S]
    arguments = ["subscribe", "orders", "-m", cell, "-i", who, "--json", *waiting, *options]
    done = subprocess.run(
        [*QUORUMCAST, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return [json.loads(text) for text in done.stdout.splitlines()]


def test_channel_with_subscriptions_goes_on_by_name(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = answer(
        capsys, "channel", "create", "orders:total+durable", "--subscriptions", "-m", cell
    )
    assert made["channel"]["groups"] == []
    assert answer(capsys, "channel", "show", "orders/subscriptions", "-m", cell)["channel"][
        "durable"
    ]
    answer(capsys, "channel", "create", "dead:total+durable", "-m", cell)
    shared = answer(
        capsys, "channel", "change", "orders", "--share", "billing=bob,carol", "--attempts", "3",
        "--dead-letter", "dead", "--ack-timeout", "1.5", "-m", cell,
    )  # fmt: skip
    assert shared["channel"]["groups"] == [
        {
            "name": "billing",
            "members": ["bob", "carol"],
            "max_attempts": 3,
            "ack_timeout_ms": 1500,
            "dead_letter": "dead",
        }
    ]
    assert main(["channel", "show", "orders", "-m", str(cell)]) == 0
    assert "bob, carol; 3 attempts, then to dead; 1.5 s" in capsys.readouterr().out

    for text in ("one", "two", "three", "four"):
        assert main(["publish", "orders", text, "-m", str(cell), "-i", "alice"]) == 0
    first = subscribed(cell, "bob", "--name", "mine", "--from", "earliest", "--count", 2)
    rest = subscribed(cell, "bob", "--name", "mine", "--count", 2)
    assert [row["payload"] for row in first + rest] == ["one", "two", "three", "four"]
    group = subscribed(cell, "carol", "--name", "billing", "--from", 3, "--count", 1)
    assert [row["payload"] for row in group] == ["three"]
    anew = subscribed(cell, "bob", "--name", "mine", "--anew", "--from", 4, "--count", 1)
    assert [row["position"] for row in anew] == [4]

    capsys.readouterr()
    found = answer(capsys, "subscriptions", "list", "orders", "-m", cell, "-i", "alice")
    rows = {row["name"]: row for row in found["subscriptions"]}
    assert (rows["billing"]["owner"], rows["billing"]["cursor"], rows["billing"]["lag"]) == (
        "",
        4,
        1,
    )
    assert (rows["mine"]["owner"], rows["mine"]["cursor"], rows["mine"]["members"]) == (
        "bob",
        5,
        [],
    )
    assert main(["subscriptions", "list", "orders", "-m", str(cell), "-i", "bob"]) == 0
    assert "its group" in capsys.readouterr().out
    listing = ["subscriptions", "list", "orders", "-m", str(cell), "-i", "bob"]
    assert main([*listing, "--prometheus"]) == 0
    families = text_string_to_metric_families(capsys.readouterr().out)
    lags = [
        (sample.labels["subscription"], sample.labels["owner"], sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "quorumcast_consumer_lag"
    ]
    assert sorted(lags) == [("billing", "", 1.0), ("mine", "bob", 0.0)]

    ended = answer(capsys, "channel", "change", "orders", "--unshare", "billing", "-m", cell)
    assert ended["channel"]["groups"] == []


def test_companion_is_added_later_and_follows_rights(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "channel", "change", "trades", "--subscriptions", "-m", cell)
    answer(capsys, "channel", "change", "trades", "--subscribers", "bob", "-m", cell)
    shown = answer(capsys, "channel", "show", "trades/subscriptions", "-m", cell)["channel"]
    assert shown["publishers"] == shown["subscribers"] == ["bob"]


def test_looking_does_not_displace_the_client_that_is_at_work(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    at_work = ["subscribe", "orders", "--name", "work", "-m", cell, "-i", "bob", "--json"]
    with started(*at_work, "--count", 1) as bob:
        said(bob, "subscribed to orders as work")
        found = answer(capsys, "subscriptions", "list", "orders", "-m", cell, "-i", "bob")
        rows = {row["name"]: row for row in found["subscriptions"]}
        assert rows["work"]["members"] == ["bob"]
        assert main(["publish", "orders", "more", "-m", str(cell), "-i", "alice"]) == 0
        assert line(bob)["payload"] == "more"
        _, told = bob.communicate(timeout=PATIENCE_S)
        assert (bob.returncode, told) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["channel", "create", "x:brb", "--subscriptions"], "no total order"),
        (["channel", "change", "logs", "--subscriptions"], "no total order"),
        (["channel", "change", "logs", "--share", "g=bob"], "no total order"),
        (["channel", "change", "trades", "--share", "g"], "NAME=CLIENTS"),
        (["channel", "change", "trades", "--share", "g=zoe"], "not a client"),
        (["channel", "change", "trades", "--attempts", "3"], "need --share"),
        (["channel", "change", "trades", "--share", "g=bob", "--ack-timeout", "0"], "more than 0"),
        (["channel", "change", "trades", "--unshare", "g"], "no shared subscription"),
        (["channel", "change", "trades"], "nothing to change"),
        (["subscribe", "logs", "-i", "bob", "--name", "mine"], "no total order"),
        (["subscribe", "trades", "-i", "bob", "--anew"], "--anew needs --name"),
        (["subscribe", "trades", "-i", "bob", "--idle", "1"], "--idle needs --no-follow"),
        (
            ["subscribe", "trades", "-i", "bob", "--name", "m", "--queue", "3"],
            "--queue and --overflow do not go with --name",
        ),
        (
            ["subscribe", "trades", "-i", "bob", "--name", "m", "--count", "1", "--receipt", "r"],
            "do not go together",
        ),
        (["subscriptions", "list", "logs", "-i", "bob"], "no total order"),
        (
            ["subscriptions", "list", "nowhere", "-i", "bob"],
            "no channel 'nowhere' in the cell 'cell'; its channels are: logs",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    cell: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["channel", "change", "trades", "--subscriptions", "-m", str(cell)]) == 0
    assert main([*arguments, "-m", str(cell)]) == 2
    assert sentence in capsys.readouterr().err


def test_channel_is_deleted_with_its_companion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = tmp_path / "cell"
    specs = ["--channel", "jobs:total", "--channel", "jobs/other:total"]
    assert main(["init", str(cell), "--digest", "sha256", *specs]) == 0
    capsys.readouterr()
    change = ["--subscriptions", "--share", "billing=alice", "--no-wait", "-m", cell]
    answer(capsys, "channel", "change", "jobs", *change)
    companion = ["channel", "delete", "jobs/subscriptions", "--yes", "--no-wait", "-m", str(cell)]
    assert main(companion) == 2
    assert "has no companion 'jobs/subscriptions'" in " ".join(capsys.readouterr().err.split())
    answer(capsys, "channel", "delete", "jobs", "--yes", "--no-wait", "-m", cell)
    listed = answer(capsys, "channel", "list", "-m", cell)["channels"]
    assert [channel["name"] for channel in listed] == ["jobs/other"]
