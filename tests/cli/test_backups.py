"""`backup` while a cell runs, and `restore` after it is gone."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.shell import QUORUMCAST, answer, base_port, brokers_up, line, running, started
from tests.runtime.world import PATIENCE_S, eventually

from quorumcast.cli.main import main

pytestmark = pytest.mark.runtime

BROKERS = ["broker-1", "broker-2", "broker-3", "broker-4"]


def replayed(capsys: pytest.CaptureFixture[str], cell: Path, channel: str) -> list[int]:
    """The numbers that were published on a channel, in their order."""
    assert main(["replay", channel, "-m", str(cell), "-i", "bob", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [int(json.loads(line)["payload"]) for line in lines]


def published(cell: Path, channel: str, first: int, count: int) -> None:
    """Publish so many numbers, and return when enough brokers hold them."""
    numbers = "".join(f"{number}\n" for number in range(first, first + count))
    subprocess.run(
        [*QUORUMCAST, "publish", channel, "-", "-m", str(cell), "-i", "alice"],
        input=numbers,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        capture_output=True,
    )


@pytest.mark.timeout(300)
def test_cell_backed_up_under_load_is_restored_as_it_was_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, again = tmp_path / "copy", tmp_path / "cell"
    with running(tmp_path / "cell", ["orders:total+durable", "ticks:total+durable"]) as cell:
        here = ["-m", str(cell)]
        capsys.readouterr()
        published(cell, "orders", 0, 300)
        endless = ["--rate", "300", "--count", "100000"]
        with started("publish", "ticks", "7", *here, "-i", "alice", *endless):
            with started("subscribe", "ticks", *here, "-i", "bob", "--count", "20") as listener:
                assert listener.wait(PATIENCE_S) == 0
            made = answer(capsys, "backup", copy, *here)
            assert (made["cell"], made["epoch"], made["brokers"]) == ("cell", 1, BROKERS)
        published(cell, "orders", 300, 50)
        # What was published later is not in the backup; and the cell was none the worse for it.
        assert replayed(capsys, cell, "orders") == list(range(350))
        assert main(["restore", str(copy), str(tmp_path / "other")]) == 2
        assert "of cell 'cell' still run, and would go on from later" in capsys.readouterr().err
    shutil.rmtree(cell)
    assert answer(capsys, "restore", copy, again)["brokers"] == BROKERS
    with started("up", again, "--json") as up:
        while line(up).get("event") != "up":
            pass
        assert replayed(capsys, again, "orders") == list(range(300))
        ticks = replayed(capsys, again, "ticks")
        assert len(ticks) >= 20
        published(again, "orders", 300, 10)
        assert replayed(capsys, again, "orders") == list(range(310))
        status = brokers_up(capsys, again)
        assert {row["disk"]["began_empty"] for row in status.values()} == {False}
        while len({row["logs"]["byzantine"]["executed"] for row in status.values()}) > 1:
            status = brokers_up(capsys, again)  # one may execute the last batch a little later


@pytest.mark.timeout(300)
def test_store_of_one_broker_put_back_by_hand_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    with running(tmp_path / "cell", ["orders:total+durable"]) as cell:
        capsys.readouterr()
        published(cell, "orders", 0, 20)
        answer(capsys, "backup", copy, "-m", cell)
        published(cell, "orders", 20, 20)
    for file in (cell / "data").glob("broker-4.store*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    for file in (copy / "data").glob("broker-4.store*"):
        place = cell / "data" / file.name
        shutil.copytree(file, place) if file.is_dir() else shutil.copy2(file, place)
    with started("up", cell, "--json") as up:
        while line(up).get("event") != "up":
            pass
        log = (cell / "logs" / "broker-4.log").read_text()
        assert "its mark is missing or damaged" in log
        assert "starts empty, as if the disk had been lost" in log
        assert replayed(capsys, cell, "orders") == list(range(40))
        assert eventually(lambda: not brokers_up(capsys, cell)["broker-4"]["catching_up"])


def test_backup_and_restore_refuse_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, copy = tmp_path / "cell", tmp_path / "copy"
    here = ["-m", str(cell)]
    place = ["init", str(cell), "--base-port", str(base_port())]
    assert main([*place, "--channel", "orders:total+durable"]) == 0
    assert main(["backup", str(copy), *here]) == 2
    assert "0 of 4 brokers have their stores in" in capsys.readouterr().err
    assert main(["backup", str(cell), *here]) == 2
    assert f"{cell} exists already; name another directory" in capsys.readouterr().err
    assert main(["restore", str(cell), str(copy)]) == 2
    assert f"{cell} is not a backup" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cell"]


def test_backup_of_a_cell_without_stores_has_its_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, copy, again = (tmp_path / name for name in ("cell", "copy", "again"))
    place = ["init", str(cell), "--base-port", str(base_port())]
    assert main([*place, "--channel", "orders:brb"]) == 0
    assert main(["epoch", "add-client", "carol", "-m", str(cell)]) == 0
    assert main(["backup", str(copy), "-m", str(cell)]) == 0
    assert main(["restore", str(copy), str(again)]) == 0
    assert f"Next:  quorumcast up {again}" in capsys.readouterr().out
    kept = sorted(file.relative_to(cell) for file in cell.rglob("*") if file.is_file())
    assert sorted(file.relative_to(again) for file in again.rglob("*") if file.is_file()) == kept
    assert all((again / file).read_bytes() == (cell / file).read_bytes() for file in kept)
    assert (again / "operator.identity").stat().st_mode & 0o777 == 0o600
