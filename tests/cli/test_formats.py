"""Files into `publish` and out of `subscribe` and `replay`, with real brokers."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.cli.shell import QUORUMCAST, answer, running, said
from tests.runtime.world import PATIENCE_S

from quorumcast.cli.main import main

pytestmark = pytest.mark.runtime

COLUMNS = ["--column", "name:string", "--column", "price:float64", "--column", "blob:binary"]
SCHEMA = pa.schema([("name", pa.string()), ("price", pa.float64()), ("blob", pa.binary())])


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    with running(directory, ["photos:total"], "alice,bob") as made:
        for name in ("bad", "trades", "again", "many"):
            assert main(["channel", "create", f"{name}:total", *COLUMNS, "-m", str(made)]) == 0
        yield made


@pytest.fixture(scope="module")
def many(cell: Path) -> pa.Table:
    """More rows than a group of Parquet has, and more bytes than a pipe holds."""
    prices = pa.array(float(number) for number in range(200_000))
    empty = pa.nulls(len(prices))
    table = pa.table([empty.cast(pa.string()), prices, empty.cast(pa.binary())], SCHEMA)
    parquet.write_table(table, cell / "many.parquet")
    who = ["-m", str(cell), "-i", "alice"]
    assert main(["publish", "many", "--file", str(cell / "many.parquet"), *who]) == 0
    return table


def rows(capsys: pytest.CaptureFixture[str], cell: Path, channel: str) -> list[Any]:
    capsys.readouterr()
    assert main(["replay", channel, "-m", str(cell), "-i", "bob", "--json"]) == 0
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def test_row_that_does_not_fit_ends_publish_and_the_rows_before_are_published(
    cell: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "bad.csv"
    good = [f"n{number},{number}.5\n" for number in range(1, 17)]
    file.write_text("".join(["name,price\n", *good, "x,abc\n", *good]))
    capsys.readouterr()
    assert main(["publish", "bad", "--file", str(file), "-m", str(cell), "-i", "alice"]) == 2
    assert capsys.readouterr().err == (
        f"quorumcast: {file}: row 17, column price: 'abc' is not a float64; 16 events before it "
        "are published\n"
    )
    assert [one["row"]["price"] for one in rows(capsys, cell, "bad")] == [
        number + 0.5 for number in range(1, 17)
    ]
    assert main(["publish", "bad", '{"name": 5}', "-m", str(cell), "-i", "alice"]) == 2
    said = "the command line: row 1, column name: 5 is not a string; nothing is published"
    assert said in capsys.readouterr().err


def test_tables_from_files_and_pipes_arrive_in_order(
    cell: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = pa.table({"name": ["a", "b\nc"], "price": [1.0, None], "blob": [b"\n\0", None]}, SCHEMA)
    parquet.write_table(table, tmp_path / "trades.parquet")
    who = ["-m", str(cell), "-i", "alice"]
    sent = answer(capsys, "publish", "trades", "--file", tmp_path / "trades.parquet", *who)
    assert sent["published"] == 2
    piped = subprocess.run(
        [*QUORUMCAST, "publish", "trades", "-", "--format", "csv", "--rate", "1000", *who],
        input='price,name\n2,"d\n"\n3,e\n', capture_output=True, text=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    assert piped.stderr == "published 2 on trades\n"
    assert [one["row"] for one in rows(capsys, cell, "trades")] == [
        {"name": "a", "price": 1.0, "blob": "CgA="},
        {"name": "b\nc", "price": None, "blob": None},
        {"name": "d\n", "price": 2.0, "blob": None},
        {"name": "e", "price": 3.0, "blob": None},
    ]


def test_binary_file_is_one_event(
    cell: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG\r\n\x1a\n\x00\n" * 1000)
    publish = ["publish", "photos", "--file", str(photo), "-m", str(cell), "-i", "alice"]
    assert main(publish) == 2
    assert "is not text: its byte 9 is 0" in capsys.readouterr().err
    assert main([*publish, "--format", "binary"]) == 0
    (event,) = rows(capsys, cell, "photos")
    assert len(event["payload_base64"]) > 10_000


def written(cell: Path, *arguments: object) -> bytes:
    """What a command writes to standard output."""
    done = subprocess.run(
        [*QUORUMCAST, *map(str, arguments), "-m", str(cell), "-i", "bob"],
        capture_output=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("format_", ["csv", "jsonl", "arrow", "parquet"])
def test_tables_that_replay_writes_are_read_by_publish(
    cell: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, format_: str
) -> None:
    table = [
        {"name": f'{format_}, "1"\n', "price": 0.1, "blob": b"\0\n\xff"},
        {"name": "", "price": None, "blob": b""},
        {"name": None, "price": -1e300, "blob": None},
    ]
    who = ["-m", str(cell), "-i", "alice"]
    parquet.write_table(pa.Table.from_pylist(table, SCHEMA), tmp_path / "in.parquet")
    assert main(["publish", "again", "--file", str(tmp_path / "in.parquet"), *who]) == 0
    first = rows(capsys, cell, "again")[-3:]
    start = ["--from", first[0]["position"], "--count", 3, "--format", format_]
    out = tmp_path / f"out.{format_}"
    out.write_bytes(written(cell, "replay", "again", *start))
    assert main(["publish", "again", "--file", str(out), *who]) == 0
    again = rows(capsys, cell, "again")[-3:]
    assert [one["row"] for one in again] == [one["row"] for one in first]
    assert again[0]["position"] > first[-1]["position"]
    copy = written(cell, "subscribe", "again", *start)  # the end of its table is the third event
    assert copy == out.read_bytes()


def test_subscribe_ends_a_parquet_file_at_an_interrupt(cell: Path, tmp_path: Path) -> None:
    command = [*QUORUMCAST, "subscribe", "bad", "-m", str(cell), "-i", "bob", "--format", "parquet"]
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True) as listener,
    ):
        said(listener, "subscribed to bad")
        listener.send_signal(signal.SIGINT)
        assert listener.wait(PATIENCE_S) == 130
    assert parquet.read_table(tmp_path / "out").to_pylist() == []


@pytest.mark.parametrize(
    ("command", "format_", "number", "unbuffered"),
    [
        (["subscribe", "many", "--from", "earliest"], "parquet", signal.SIGTERM, "1"),
        (["subscribe", "many", "--from", "earliest"], "arrow", signal.SIGHUP, ""),
        (["replay", "many"], "parquet", signal.SIGINT, ""),
        (["replay", "many"], "arrow", signal.SIGTERM, "1"),
    ],
)
def test_table_that_a_signal_ends_is_read_with_all_that_came(
    cell: Path,
    tmp_path: Path,
    many: pa.Table,
    command: list[str],
    format_: str,
    number: int,
    unbuffered: str,
) -> None:
    shell = [*QUORUMCAST, *command, "-m", str(cell), "-i", "bob", "--format", format_]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(shell, stdout=subprocess.PIPE, env=environment) as reader:
        assert reader.stdout is not None
        begin = reader.stdout.read(10_000)  # more than the beginning of a table
        reader.send_signal(number)
        out = tmp_path / "out"
        out.write_bytes(begin + reader.stdout.read())
        assert reader.wait(PATIENCE_S) == 128 + number
    table = parquet.read_table(out) if format_ == "parquet" else pa.ipc.open_stream(out).read_all()
    assert 0 < table.num_rows <= many.num_rows
    assert table.column("price").to_pylist() == many.column("price").to_pylist()[: table.num_rows]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_table_on_a_full_disk_is_one_sentence(cell: Path, many: pa.Table, format_: str) -> None:
    shell = [*QUORUMCAST, "replay", "many", "-m", str(cell), "-i", "bob", "--format", format_]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            shell, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("quorumcast: the output cannot be written, ")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_binary_payloads_are_written_as_they_are(cell: Path, tmp_path: Path) -> None:
    photo = b"\0\n" * 50_000
    (tmp_path / "photo").write_bytes(photo)
    publish = ["publish", "photos", "--file", str(tmp_path / "photo"), "--format", "binary"]
    assert main([*publish, "-m", str(cell), "-i", "alice"]) == 0
    assert written(cell, "replay", "photos", "--format", "binary").endswith(photo)
    payloads = pa.ipc.open_stream(written(cell, "replay", "photos", "--format", "arrow"))
    assert payloads.read_all().column("payload").to_pylist()[-1] == photo
    assert json.loads(written(cell, "replay", "photos", "--format", "jsonl").splitlines()[-1])
