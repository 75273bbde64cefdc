"""Copies of stores that are in use, all from one moment."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.runtime.world import run, until

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record
from quorumcast.runtime.store import backup
from quorumcast.runtime.store.backup import StoreCopy, held
from quorumcast.runtime.store.database import Database, accept_copy
from quorumcast.runtime.store.store import DiskStore


class Noted(Record, frozen=True, tag=True):
    at: int
    value: bytes = b""

    @property
    def place(self) -> int:
        return self.at


class Shelved(Noted, frozen=True, tag=True):
    """One that is archived, in a segment if it is large."""

    archived = True


KINDS = (Noted, Shelved)
LARGE = bytes(100_000)


def nothing() -> None: ...


def places(path: Path) -> list[int]:
    """The places of all records in a store, if it is believed."""
    opened = Database(path, KINDS, "me")
    try:
        return [record.place for record in opened.found]
    finally:
        opened.close()


def contents(directory: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in directory.iterdir()}


def test_store_that_is_held_changes_no_file_and_goes_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    lock = backup._lock

    def watched(file: int, how: int) -> bool:
        locked = lock(file, how)
        refused.extend([] if locked else [how])
        return locked

    async def main() -> None:
        path = tmp_path / "s.store"
        store = DiskStore(path, KINDS, holder="me")
        done: list[int] = []
        store.save(Noted(1), lambda: done.append(1))
        await until(lambda: done == [1])
        with held([path]):
            before = contents(tmp_path)
            monkeypatch.setattr(backup, "_lock", watched)
            store.save(Noted(2), lambda: done.append(2))
            await until(lambda: len(refused) > 3)
            assert contents(tmp_path) == before
            assert done == [1]
        await until(lambda: done == [1, 2])
        await store.close()

    run(main())


def test_copy_of_a_store_in_use_is_as_it_was_when_it_was_held(tmp_path: Path) -> None:
    async def main() -> None:
        path, target = tmp_path / "s.store", tmp_path / "copy"
        store = DiskStore(path, KINDS, holder="me")
        written = 0

        def write(count: int) -> None:
            for _ in range(count):
                store.save(Noted(written_of()), nothing)
                store.save(Shelved(written, LARGE), nothing)

        def written_of() -> int:
            nonlocal written
            written += 1
            return written

        copy = StoreCopy(path, target)
        for _ in range(5):
            write(20)
            await asyncio.sleep(0)
            await asyncio.to_thread(copy.update)
        write(1)
        await until(lambda: store.status().waiting_bytes == 0)
        with held([path]):
            now = written
            write(5)  # waits at the gate
            await asyncio.to_thread(copy.update)
        copy.sync()
        await until(lambda: store.status().waiting_bytes == 0)
        await store.close()
        accept_copy(target / path.name, "me")
        assert places(target / path.name) == list(range(1, now + 1))
        opened = Database(target / path.name, KINDS, "me")
        shelved = [opened.archive.get(Shelved, "", place) for place in range(1, now + 2)]
        opened.close()
        assert shelved == [*(Shelved(place, LARGE) for place in range(1, now + 1)), None]
        assert places(path) == list(range(1, now + 6))

    run(main())


def test_copy_that_nobody_accepted_is_set_aside(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "s.store"
        store = DiskStore(path, KINDS, holder="me")
        store.save(Noted(1), nothing)
        await store.close()
        copy = StoreCopy(path, tmp_path / "copy")
        copy.update()
        assert not list((tmp_path / "copy").glob("*.mark"))
        assert places(tmp_path / "copy" / "s.store") == []
        assert (tmp_path / "copy" / "s.store.damaged-1").exists()

    run(main())


def test_copy_forgets_files_that_are_gone(tmp_path: Path) -> None:
    store, target = tmp_path / "s.store", tmp_path / "copy"
    (tmp_path / "s.store.d").mkdir()
    segment = tmp_path / "s.store.d" / "00000001.segment"
    store.write_bytes(b"rows")
    segment.write_bytes(b"records")
    copy = StoreCopy(store, target)
    copy.update()
    assert (target / "s.store.d" / segment.name).read_bytes() == b"records"
    segment.unlink()
    store.write_bytes(b"ROWS")  # as long as before, and within one tick of the clock
    copy.update()
    assert not list((target / "s.store.d").iterdir())
    assert (target / "s.store").read_bytes() == b"ROWS"


def test_stores_held_for_too_long_are_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "MAX_HOLD_S", 0.0)
    with pytest.raises(UsageError, match="not from one moment: try again"), held([tmp_path / "s"]):
        pass


def test_broker_does_not_wait_at_its_gate_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = False
    with held([tmp_path / "s"]):
        monkeypatch.setattr(backup, "MAX_HOLD_S", 0.05)
        with backup.Gate(tmp_path / "s"):
            passed = True
        monkeypatch.setattr(backup, "MAX_HOLD_S", 20.0)
    assert passed


def test_second_backup_at_the_same_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "MAX_WAIT_S", 0.05)
    with (
        held([tmp_path / "s"]),
        pytest.raises(UsageError, match="or another backup holds it: try again"),
        held([tmp_path / "s"]),
    ):
        pass


def test_damaged_copy_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "s.store"
    Database(path, KINDS, "me").close()
    shutil.copy(path, tmp_path / "t.store")
    (tmp_path / "t.store").write_bytes(b"nothing of the kind" * 1000)
    with pytest.raises(UsageError, match=r"t\.store is damaged \(.*\): take another backup"):
        accept_copy(tmp_path / "t.store", "me")
