"""Publications that expire and queues that are full, on the command line."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import QUORUMCAST, answer, line, running, said, started, summary_of
from tests.runtime.world import PATIENCE_S

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    with running(directory, ["orders:ab+history:20", "trades:total"], "alice,bob") as made:
        yield made


def quorumcast(*arguments: object, code: int = 0) -> tuple[list[Any], str]:
    """What a command prints as JSON, and what it says beside it."""
    done = subprocess.run(
        [*QUORUMCAST, *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return [json.loads(text) for text in done.stdout.splitlines()], done.stderr


def test_replay_shows_what_has_expired_and_marks_it(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    who = ["-m", cell, "-i", "alice"]
    answer(capsys, "publish", "trades", "stale", "--valid-for", "0.001", *who)
    answer(capsys, "publish", "trades", "fresh", *who)
    events, summary = quorumcast("replay", "trades", "-m", cell, "-i", "bob", "--json")
    assert [(e["payload"], e.get("expired", False)) for e in events] == [
        ("stale", True),
        ("fresh", False),
    ]
    assert summary_of(summary)["expired"] == 1
    arguments = ["--from", "earliest", "--count", 1, "--json"]
    with started("subscribe", "trades", "-m", cell, "-i", "bob", *arguments) as listener:
        said(listener, "subscribed to trades")
        assert line(listener)["payload"] == "fresh"
        said(listener, "publications not printed: 1 had expired")
        assert listener.wait(PATIENCE_S) == 0


def test_urgent_publications_are_marked(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listen = ["subscribe", "orders", "-m", cell, "-i", "bob", "--count", 2, "--json"]
    with started(*listen, "--queue", 5, "--overflow", "newest") as listener:
        said(listener, "subscribed to orders")
        who = ["-m", cell, "-i", "alice"]
        answer(capsys, "publish", "orders", "apples", *who)
        answer(capsys, "publish", "orders", "fire", "--urgent", *who)
        events = {event["payload"]: event for event in (line(listener), line(listener))}
        assert "urgent" not in events["apples"]
        assert events["fire"]["urgent"] is True
        assert listener.wait(PATIENCE_S) == 0


def test_channel_says_what_happens_when_a_queue_is_full(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = answer(
        capsys, "channel", "change", "orders", "--overflow", "oldest",
        "--limit", "queue=7", "--limit", "validity_ms=60000", "-m", cell,
    )  # fmt: skip
    channel = done["channel"]
    assert (channel["overflow"], channel["limits"]["queue"]) == ("oldest", 7)
    assert channel["limits"]["validity_ms"] == 60_000
    _, error = quorumcast("channel", "change", "orders", "--overflow", "x", "-m", cell, code=2)
    assert "--overflow is wait, oldest, newest, not 'x'" in error
    listen = ["subscribe", "orders", "-m", cell, "-i", "bob", "--overflow", "x"]
    _, error = quorumcast(*listen, code=2)
    assert "overflow is 'x': choose one of 'wait', 'oldest', 'newest'" in error
