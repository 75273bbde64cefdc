"""`subscribe --where` and `replay --where` with real processes, beside a broker that lies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.cli.shell import line, running, said, started
from tests.cli.test_channels import command
from tests.runtime.world import PATIENCE_S, run, until

from quorumcast.cli.main import main
from quorumcast.client import Node, connect

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    channels = ["logs:ab", "prices:ab+history:10", "trades:total"]
    columns = ("--column", "symbol:string", "--column", "price:int64")
    with running(directory, ["logs:ab"], "alice,bob", "--allow-faults") as made:
        for channel in (*channels[1:], "chained:chain"):
            create = ["channel", "create", channel, *columns, "-m", str(made)]
            assert main(create) == 0
        assert main(["faults", "set", "broker-1", "alter", "-m", str(made)]) == 0
        yield made


def rows(*prices: int) -> pa.RecordBatch:
    made = [{"symbol": "CTT", "price": price} for price in prices]
    schema = pa.schema([("symbol", pa.string()), ("price", pa.int64())])
    return pa.RecordBatch.from_pylist(made, schema)


async def publish(cell: Path, channel: str, *batches: pa.RecordBatch) -> None:
    async with (
        await connect(cell, "alice") as alice,
        alice.publisher(channel, batching=False) as outbox,
    ):
        for batch in batches:
            await outbox.publish(batch)


@pytest.mark.parametrize("channel", ["prices", "trades"])
def test_command_prints_matching_rows_although_a_broker_lies(
    cell: Path, channel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    who = ("-m", cell, "-i", "bob", "--json")
    live = ("subscribe", channel, "--where", "price IN (3, 5) AND symbol = 'CTT'", "--count", 4)
    with started(*live, *who) as process:
        said(process, "subscribed to")
        run(publish(cell, channel, rows(*range(20)), rows(99), rows(4, 5, 6, 7), rows(3), rows(99)))
        found = [line(process) for _ in range(4)]
        assert process.wait(PATIENCE_S) == 0
    assert [(one["number"], one["index"], one["row"]["price"]) for one in found] == [
        (1, 3, 3),
        (1, 5, 5),
        (3, 1, 5),
        (4, 0, 3),
    ]
    capsys.readouterr()
    held = ["replay", channel, "--where", "price = 5", "-m", str(cell), "-i", "bob", "--json"]
    assert main([*held, "--where", "price > 99", "--where", "price = 7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(text)["row"]["price"] for text in lines] == [5, 7, 5, 7]
    assert main(held) == 0
    told = capsys.readouterr()
    assert [json.loads(text)["row"]["price"] for text in told.out.splitlines()] == [5, 5]
    assert json.loads(told.err.splitlines()[-1])["publications"] == 2


def test_new_columns_can_be_named_by_open_subscriptions(cell: Path) -> None:
    async def act() -> None:
        create = ("channel", "create", "growing:ab+history", "--column", "price:int64", "-m", cell)
        await command(*create)
        async with await connect(cell, "alice") as alice, await connect(cell, "bob") as bob:
            await until(lambda: bob.manifest.channel("growing") is not None)
            async with (
                bob.subscribe("growing", where="price < 2") as inbox,
                alice.publisher("growing", batching=False) as outbox,
            ):
                await outbox.publish({"price": 1})
                assert (await anext(inbox)).row == {"price": 1}
                await command("channel", "change", "growing", "--column", "at:string", "-m", cell)
                await until(lambda: "at" in columns_of(bob) and "at" in columns_of(alice))
                await outbox.publish({"price": 7, "at": "noon"})
                await outbox.publish({"price": 0, "at": "noon"})
                event = await anext(inbox)
                assert (event.number, event.row) == (3, {"price": 0, "at": "noon"})
                await inbox.change("at = 'dawn'")
                await outbox.publish({"price": 8, "at": "noon"})
                await outbox.publish({"price": 9, "at": "dawn"})
                assert (await anext(inbox)).number == 5

    run(act())


def columns_of(node: Node) -> list[str]:
    entry = node.manifest.channel("growing")
    return [] if entry is None else [name for name, _ in entry.schema]


REFUSED: list[tuple[list[str], str]] = [
    (["prices", "--where", "prise < 10"], "'prise', which is not there: did you mean 'price'"),
    (
        ["prices", "--where", "price < 'ten'"],
        "'price' is an integer, which does not compare with text",
    ),
    (["prices", "--where", "(price < 10"], "')' is missing at the end"),
    (["prices", "--where", " OR ".join(["price = 1"] * 2501)], "2,000"),
    (["prices", "--where", ""], "the predicate is empty: leave it out"),
    (["prices", "--where", "price = 1", "--where", "prise = 2"], "did you mean 'price'"),
    (["prices", "--where", "price = 1" * 9000], "longer than 32,768 bytes"),
    (["logs", "--where", "price < 10"], "carries bytes, which have no columns"),
    (["chained", "--where", "price < 10"], "on a chain"),
    (["**", "--where", "prise < 10"], "did you mean 'price'"),
]


@pytest.mark.parametrize("name", ["subscribe", "replay"])
@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_bad_predicate_is_refused_with_one_sentence(
    cell: Path,
    name: str,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(capsys, sentence, name, *arguments, "-m", cell, "-i", "bob")


def test_where_and_name_do_not_go_together(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("subscribe", "trades", "--name", "n", "--where", "price = 1", "-m", cell, "-i", "bob")
    refuse(capsys, "--where and --name do not go together", *words)


def refuse(capsys: pytest.CaptureFixture[str], sentence: str, *words: Any) -> None:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1, told
