"""`subscribe --from` and `replay` with real processes."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import QUORUMCAST, answer, line, running, said, started, summary_of
from tests.runtime.world import PATIENCE_S, run

from quorumcast.cli.main import main
from quorumcast.client import connect

pytestmark = pytest.mark.runtime

Replay = Callable[..., tuple[list[Any], Any]]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    channels = ["trades:total", "empty:total", "logs:ab+history:20"]
    with running(directory, channels, "alice,bob") as made:
        # Publications of two events each; brokers keep four incarnations of a fifo publisher.
        for channel, publications in (("trades", 5), ("logs", 4)):
            for number in range(1, publications + 1):
                events = [f"{number}a", f"{number}b"]
                assert main(["publish", channel, *events, "-m", str(made), "-i", "alice"]) == 0
        yield made


@pytest.fixture
def replay(cell: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    """The events and the summary, or nothing and what is wrong."""

    def read(*arguments: object, code: int = 0) -> tuple[list[Any], Any]:
        capsys.readouterr()
        asked = ["replay", *map(str, arguments), "-m", str(cell), "-i", "bob", "--json"]
        returned = main(asked)
        said = capsys.readouterr()
        assert returned == code, said.err
        if code == 2:
            return [], said.err
        return [json.loads(text) for text in said.out.splitlines()], summary_of(said.err)

    return read


def payloads(events: list[Any]) -> list[str]:
    return [event["payload"] for event in events]


ALL = [f"{number}{letter}" for number in range(1, 6) for letter in "ab"]


def test_replay_reads_everything_and_ends(replay: Replay) -> None:
    events, summary = replay("trades")
    assert all(event["published_at"].endswith("+00:00") for event in events)
    assert payloads(events) == ALL
    first, last = events[0]["position"], events[-1]["position"]
    assert (summary["events"], summary["from"], summary["to"]) == (10, first, last)
    assert (summary["gaps"], summary["lacking"], first) == ([], {}, 1)


def test_replay_from_position_to_position(replay: Replay) -> None:
    events, summary = replay("trades", "--from", 2, "--to", 3)
    assert {event["position"] for event in events} == {2, 3}
    assert (summary["from"], summary["to"]) == (2, 3)
    assert payloads(events) == ALL[events[0]["position"] * 2 - 2 :][: len(events)]


def test_replay_of_so_many_events(replay: Replay) -> None:
    events, summary = replay("trades", "--count", 3)
    assert (payloads(events), summary["events"]) == (ALL[:3], 3)


def test_replay_of_nothing_ends_at_once(replay: Replay) -> None:
    events, summary = replay("empty")
    assert (events, summary["events"], summary["from"]) == ([], 0, None)


def test_replay_of_a_channel_without_positions(replay: Replay) -> None:
    events, summary = replay("logs")
    assert sorted(payloads(events)) == ALL[:8]
    assert "position" not in events[0]
    assert summary["from"] is None


def test_replay_says_in_words_what_it_read(cell: Path) -> None:
    done = subprocess.run(
        [*QUORUMCAST, "replay", "trades", "-m", str(cell), "-i", "bob"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ALL
    last = done.stderr.splitlines()[-1]
    assert last.startswith("10 events in 5 publications on trades, position 1 to 5")


async def publish_one_by_one(cell: Path, channel: str, count: int) -> None:
    alice = await connect(cell / "manifest.json", cell / "alice.identity", timeout_s=PATIENCE_S)
    async with alice, alice.publisher(channel) as out:
        for number in range(count):
            await out.publish(b"%d" % number)


@pytest.fixture
def told(cell: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command says on standard error."""

    def tell(*arguments: object) -> str:
        capsys.readouterr()
        code = main([*map(str, arguments), "-m", str(cell)])
        said = capsys.readouterr().err
        assert code == 0, said
        return said

    return tell


def test_replay_and_subscribe_say_what_is_gone_and_how_to_keep_more(
    cell: Path, told: Callable[..., str]
) -> None:
    small = [text for name in ("window", "segment") for text in ("--limit", f"{name}=8")]
    told("channel", "create", "short:total", *small, "--retain", "40")
    run(publish_one_by_one(cell, "short", 32))
    assert "gap" not in told("replay", "short", "-i", "bob")
    told("channel", "change", "short", "--retain", "8")
    told("publish", "short", "last", "-i", "alice")
    advice = (
        "are gone: channel short keeps 8 publications, 64 MiB, and may have kept less before or "
        "been deleted and created anew; to keep more from now on: quorumcast channel change short "
        "--retain 1GB"
    )
    gone = re.compile(rf"gap: positions 1 to 2[0-5] of short {advice}")
    assert gone.search(told("replay", "short", "-i", "bob"))
    reading = ["subscribe", "short", "-i", "bob", "--count", 1, "--from"]
    assert gone.search(told(*reading, "earliest"))
    assert gone.search(told(*reading, "1"))
    told("channel", "change", "short", "--retain", "1GB")
    raised = "channel short keeps 3,906,250 publications, 1 GB, and may have kept less before or"
    assert raised in told(*reading, "earliest")


def test_reader_who_obeyed_the_advice_is_told_no_false_cause(
    cell: Path, told: Callable[..., str]
) -> None:
    small = [text for name in ("window", "segment") for text in ("--limit", f"{name}=8")]
    told("channel", "create", "late:total", *small, "--retain", "8")
    run(publish_one_by_one(cell, "late", 32))
    reading = ["subscribe", "late", "-i", "bob", "--count", 1, "--from", "1h"]
    sentence = told(*reading)
    assert "are gone: some of them may be of the time asked for; channel late keeps 8" in sentence
    advice = re.search(r"quorumcast (channel change late --retain \S+)", sentence)
    assert advice is not None
    told(*advice[1].split())
    assert "and may have kept less before or been" in told(*reading)


def test_replay_and_subscribe_say_what_is_gone_of_each_publisher(
    cell: Path, replay: Replay, told: Callable[..., str]
) -> None:
    small = [text for name in ("window", "segment") for text in ("--limit", f"{name}=8")]
    told("channel", "create", "brief:ab+history:4", *small, "--retain", "8")
    advice = (
        "are gone: channel brief keeps 8 publications, 64 MiB per publisher, and may have kept "
        "less before; to keep more from now on: quorumcast channel change brief --retain 1GB"
    )
    run(publish_one_by_one(cell, "brief", 20))
    one = re.compile(rf"gap: publications 1 to 12 of brief/alice@[0-9]+ {advice}\n")
    reading = ["subscribe", "brief", "-i", "bob", "--count", 1, "--from", "earliest"]
    for command in (["replay", "brief", "-i", "bob"], reading):
        assert one.search(told(*command))
    run(publish_one_by_one(cell, "brief", 20))
    both = re.compile(
        rf"gap: 32 publications in 2 streams of alice on brief, the last 1 to 12 of "
        rf"brief/alice@[0-9]+, {advice}; --json names all of them\n"
    )
    assert both.search(told(*reading))
    lines, summary = replay("brief")
    gaps = [line["gap"] for line in lines if "gap" in line]
    assert [(gap["publisher"], gap["from"], gap["to"]) for gap in gaps] == [
        ("alice", 1, 20),
        ("alice", 1, 12),
    ]
    assert (summary["gaps"], summary["publications"]) == (gaps, 8)


def test_named_subscription_that_begins_with_the_oldest_says_what_is_gone(
    cell: Path, told: Callable[..., str]
) -> None:
    small = [text for name in ("window", "segment") for text in ("--limit", f"{name}=8")]
    told("channel", "create", "work:total", *small, "--retain", "8", "--subscriptions")
    run(publish_one_by_one(cell, "work", 32))
    reading = ["subscribe", "work", "-i", "bob", "--count", 1, "--name", "x", "--from", "earliest"]
    gone = re.compile(
        r"gap: positions 1 to 2[0-5] of work are gone: channel work keeps 8 publi.*\n"
    )
    assert gone.search(told(*reading))
    assert "gap" not in told(*reading)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trades", "--from", 99], "position 99 of 'trades' does not exist yet; the next is 6"),
        (
            ["trades", "--to", 99],
            "position 99 of 'trades' does not exist yet, the last is 5; leave --to",
        ),
        (["empty", "--from", 4], "position 4 of 'empty' does not exist yet; the next is 1"),
        (["empty", "--to", 4], "position 4 of 'empty' does not exist yet, nothing has been"),
        (["logs", "--from", 3], "has no total order; give --from and --to as times, such as"),
        (["logs", "--to", 3], "channel 'logs' has no positions"),
    ],
)
def test_replay_of_positions_that_are_not_there(
    replay: Replay, arguments: list[object], expected: str
) -> None:
    _, error = replay(*arguments, code=2)
    assert expected in error


def test_replay_from_time_to_time(replay: Replay) -> None:
    everything, _ = replay("trades")
    second, third = (everything[2 * place]["published_at"] for place in (1, 2))
    events, summary = replay("trades", "--from", second, "--to", third)
    assert payloads(events) == ALL[2:6]
    assert (summary["from"], summary["to"], summary["lacking"]) == (2, 3, {})
    # Each publication is of a stream of its own: between them there is no order.
    assert sorted(payloads(replay("logs", "--from", second)[0])) == ALL[:8]
    assert replay("trades", "--from", "2999-01-01T00:00:00Z")[0] == []
    assert payloads(replay("trades", "--from", "1d")[0]) == ALL
    assert replay("trades", "--from", "2d", "--to", "1d")[0] == []
    for wrong, sentence in (
        (["--from", "2026-11-01T12:00:00"], "write 2026-11-01T12:00:00Z for UTC"),
        (["--from", third, "--to", second], "swap them"),
    ):
        assert sentence in replay("trades", *wrong, code=2)[1]


def test_subscribe_begins_in_the_past_and_goes_on(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--from", 5, "--count", 3, "--json"]
    with started("subscribe", "trades", "-m", cell, "-i", "bob", *options) as listener:
        said(listener, "subscribed to trades")
        events = [line(listener) for _ in range(2)]
        assert payloads(events) == ["5a", "5b"]
        answer(capsys, "publish", "trades", "6a", "-m", cell, "-i", "alice")
        last = line(listener)
        assert (last["payload"], last["position"]) == ("6a", 6)
        assert listener.wait(PATIENCE_S) == 0
    arguments = ["--from", "earliest", "--count", 4, "--json"]
    with started("subscribe", "trades", "-m", cell, "-i", "bob", *arguments) as listener:
        assert payloads([line(listener) for _ in range(4)]) == ALL[:4]
