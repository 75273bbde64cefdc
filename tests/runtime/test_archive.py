"""The archive of a store: records that stay on disk are there, whole, or said to be damaged."""

import asyncio
import contextlib
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.test_store import Kept, Said, modes_in
from tests.runtime.world import PATIENCE_S, run, told_before_kill, until

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record
from quorumcast.runtime.store import archive, database, segments, store
from quorumcast.runtime.store.database import Database, Keep, Remove
from quorumcast.runtime.store.directory import look_at
from quorumcast.runtime.store.full_disk import DiskFullError
from quorumcast.runtime.store.store import DiskStore

MB = 1024 * 1024


class Filed(Kept, frozen=True, tag=True):
    """One that stays on disk."""

    archived = True


class FiledToo(Filed, frozen=True, tag=True):
    """Another kind."""


KINDS = (Said, Kept, Filed, FiledToo)


def filed(at: int, size: int = 5000, whose: str = "alice") -> Filed:
    return Filed(at, random.Random(at).randbytes(size), whose)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short segments, and steps of few records."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 100_000)
    monkeypatch.setattr(segments, "LEAST_SEGMENT_BYTES", 100_000)
    monkeypatch.setattr(archive, "COMPACT_BYTES", 20_000)


def opened(path: Path) -> Database:
    return Database(path, KINDS, "")


def keep(record: Record) -> Keep:
    encoded = archive._encode(record)
    return Keep(type(record).__name__, record.owner, record.place, encoded)


def tidied(base: Database) -> int:
    """How many steps it took until all was tidy."""
    steps = 0
    while base.is_untidy:
        base.tidy()
        steps += 1
    return steps


def segment_files(path: Path) -> list[Path]:
    return sorted(path.with_name(f"{path.name}.d").iterdir())


def size_of_segments(path: Path) -> int:
    return sum(file.stat().st_size for file in segment_files(path))


# ---------------------------------------------------------- writing and reading


def test_archived_records_are_not_loaded_but_read(tmp_path: Path) -> None:
    small_one, large = Filed(3, b"small"), filed(7, 200_000)

    async def main() -> None:
        first = DiskStore(tmp_path / "s", KINDS)
        safe: list[Record] = []
        for record in (Said("loaded"), small_one, large, filed(5, whose="bob"), FiledToo(1, b"")):
            first.save(record, lambda record=record: safe.append(record))  # type: ignore[misc]
        assert first.archive.get(Filed, "alice", 3) is None  # not on disk yet
        await until(lambda: len(safe) == 5)
        assert first.archive.get(Filed, "alice", 3) == small_one
        await first.close()

        again = DiskStore(tmp_path / "s", KINDS)
        assert again.load() == [Said("loaded")]
        assert again.archive.get(Filed, "alice", 3) == small_one
        assert again.archive.get(Filed, "alice", 7) == large
        assert again.archive.get(Filed, "alice", 5) is None
        assert again.archive.get(Filed, "bob", 5) == filed(5, whose="bob")
        assert again.archive.first(Filed, "alice", 0) == small_one
        assert again.archive.first(Filed, "alice", 4) == large
        assert again.archive.first(Filed, "alice", 8) is None
        assert again.archive.last(Filed, "alice", 7) == small_one
        assert again.archive.last(Filed, "alice", 2**63 - 1) == large
        assert again.archive.last(Filed, "alice", 3) is None
        assert again.archive.owners(Filed) == ["alice", "bob"]
        assert again.archive.owners(FiledToo) == ["alice"]
        assert again.archive.owners(Kept) == []
        status = again.status()
        assert status.archive_bytes > 205_000 > status.file_bytes
        assert status.archive_damaged == 0
        await again.close()

    run(main())
    assert modes_in(tmp_path)["s.d"] == 0o700
    assert set(modes_in(tmp_path / "s.d").values()) == {0o600}


def test_archived_record_is_replaced_and_removed_in_order(tmp_path: Path) -> None:
    base = opened(tmp_path / "s")
    base.write([keep(filed(1)), keep(filed(2)), keep(filed(3)), keep(filed(4))])
    base.write(
        [keep(Filed(2, b"new")), Remove("Filed", "alice", 2), Remove("Filed", "alice", 4, 3)]
    )
    base.write([Remove("Filed", "alice", 2), keep(Filed(1, bytes(3000)))])
    assert base.archive.get(Filed, "alice", 1) == Filed(1, bytes(3000))
    assert base.archive.get(Filed, "alice", 2) == Filed(2, b"new")
    assert base.archive.get(Filed, "alice", 3) is None
    assert base.archive.get(Filed, "alice", 4) == filed(4)
    base.close()


def test_archive_is_read_while_a_commit_is_under_way(tmp_path: Path) -> None:
    base = opened(tmp_path / "s")
    base.write([keep(filed(1))])
    syncing, go_on = threading.Event(), threading.Event()
    real = base._segments.sync

    def slow_sync() -> None:
        real()
        syncing.set()
        go_on.wait(PATIENCE_S)

    base._segments.sync = slow_sync  # type: ignore[method-assign]
    writing = threading.Thread(
        target=base.write, args=([Remove("Filed", "alice", 2), keep(filed(2))],)
    )
    writing.start()
    assert syncing.wait(PATIENCE_S)
    assert base.archive.get(Filed, "alice", 1) == filed(1)
    assert base.archive.get(Filed, "alice", 2) is None
    go_on.set()
    writing.join()
    assert base.archive.get(Filed, "alice", 1) is None
    assert base.archive.get(Filed, "alice", 2) == filed(2)
    base.close()


def test_archive_of_a_running_broker_is_closed_to_other_processes(tmp_path: Path) -> None:
    base = opened(tmp_path / "s")
    base.write([keep(filed(1))])
    look = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM head')"
    looking = subprocess.run(
        [sys.executable, "-c", look, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "database is locked" in looking.stderr
    start = (
        "import sys; from pathlib import Path\n"
        "from tests.runtime.test_archive import opened\n"
        "opened(Path(sys.argv[1]))"
    )
    second = subprocess.run(
        [sys.executable, "-c", start, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "another broker has it open" in second.stderr
    base.close()


# --------------------------------------------------------------------- space


@pytest.mark.usefixtures("small")
def test_segments_without_records_are_unlinked_after_the_commit(tmp_path: Path) -> None:
    base = opened(tmp_path / "s")
    for at in range(100):
        base.write([keep(filed(at))])
    assert len(segment_files(tmp_path / "s")) >= 5
    assert base.archive_bytes == size_of_segments(tmp_path / "s") > 500_000
    base.write([Remove("Filed", "alice", 80)])
    tidied(base)
    assert base.archive_bytes == size_of_segments(tmp_path / "s") < 250_000
    assert base.archive.first(Filed, "alice", 0) == filed(80)
    assert [base.archive.get(Filed, "alice", at) for at in range(80, 100)] == list(
        map(filed, range(80, 100))
    )
    base.write([Remove("Filed", "alice", 1000)])
    tidied(base)
    assert base.archive_bytes == size_of_segments(tmp_path / "s") < 100_000
    base.close()
    opened(tmp_path / "s").close()
    assert segment_files(tmp_path / "s") == []


@pytest.mark.usefixtures("small")
def test_segments_shared_with_records_that_stay_are_compacted(tmp_path: Path) -> None:
    base = opened(tmp_path / "s")
    for at in range(100):
        base.write(
            [keep(filed(at)), keep(filed(at, whose="bob")), keep(Filed(at, b"inline", "carol"))]
        )
    assert tidied(base) == 0
    base.write([Remove("Filed", "alice", 95)])
    assert base.archive_bytes > 900_000
    assert tidied(base) > 10  # a step is short
    assert base.archive_bytes == size_of_segments(tmp_path / "s") <= 1.25 * 525_000 + 200_000
    for reopened in (False, True):
        if reopened:
            base.close()
            base = opened(tmp_path / "s")
        assert base.archive.first(Filed, "alice", 0) == filed(95)
        for at in range(100):
            assert base.archive.get(Filed, "bob", at) == filed(at, whose="bob")
            assert base.archive.get(Filed, "carol", at) == Filed(at, b"inline", "carol")
        assert base.archive.damaged == 0
    base.close()


@pytest.mark.usefixtures("small")
def test_store_compacts_between_commits_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        one = DiskStore(tmp_path / "s", KINDS)
        for at in range(60):
            one.save(filed(at), lambda: None)
            one.save(filed(at, whose="bob"), lambda: None)
            await asyncio.sleep(0)
        await until(lambda: one.status().waiting_bytes == 0)
        one.forget(Filed, "bob", 60)
        await until(lambda: one.status().archive_bytes < 500_000)
        await until(lambda: one._committing is None)
        assert [one.archive.get(Filed, "alice", at) for at in range(60)] == list(
            map(filed, range(60))
        )
        await one.close()

    run(main())


@pytest.mark.usefixtures("small")
def test_reader_follows_a_record_whose_segment_is_unlinked_between_its_two_reads(
    tmp_path: Path,
) -> None:
    base = opened(tmp_path / "s")
    for at in range(100):
        base.write([keep(filed(at)), keep(filed(at, whose="bob"))])
    real, calls = base._segments.read, list[int]()

    def late(segment: int, start: int, length: int) -> bytes:
        calls.append(segment)
        if len(calls) == 1:
            base._segments.read = real  # type: ignore[method-assign]
            base.write([Remove("Filed", "bob", 100)])
            tidied(base)
            base._segments.read = late  # type: ignore[method-assign]
        return real(segment, start, length)

    base._segments.read = late  # type: ignore[method-assign]
    assert base.archive.get(Filed, "alice", 1) == filed(1)
    assert len(calls) == 2
    assert calls[0] < calls[1]
    assert base.archive.damaged == 0
    base.close()


def test_reader_keeps_few_segments_open(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_OPEN", 3)
    base = opened(tmp_path / "s")
    for at in range(200):
        base.write([keep(filed(at))])
    assert len(segment_files(tmp_path / "s")) > 6
    for at in (*range(0, 200, 9), *range(199, 0, -9)):
        assert base.archive.get(Filed, "alice", at) == filed(at)
        assert len(base._segments._open) <= 3
    base.close()


def test_opening_reads_nothing_of_what_is_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = opened(tmp_path / "s")
    base.write([keep(Said("loaded")), *(keep(filed(at, 100 * at)) for at in range(50))])
    base.close()
    monkeypatch.setattr(database, "FULL_CHECK_BYTES", 0)
    monkeypatch.setattr(segments.Segments, "read", lambda *_: pytest.fail("a segment was read"))
    monkeypatch.setattr(archive, "checksum", lambda *_: pytest.fail("a row was checked"))
    again = opened(tmp_path / "s")
    assert again.found == [Said("loaded")]
    again.close()


# ------------------------------------------------------------------- crashes


STEPS = 4000
CHILD = """
import asyncio, os, sys
from pathlib import Path
from tests.runtime import test_archive as t

t.segments.SEGMENT_BYTES = t.segments.LEAST_SEGMENT_BYTES = 200_000
t.archive.COMPACT_BYTES = 20_000

async def main():
    one = t.DiskStore(Path(sys.argv[1]), t.KINDS)
    for number in range(t.STEPS):
        for record in t.turn(number):
            one.save(record, lambda: None)
        one.save(t.Kept(1, b"%d" % number), lambda number=number: os.write(1, b"%d\\n" % number))
        one.forget(t.Filed, "alice", number - 20)
        if number % 3 == 0:
            await asyncio.sleep(0.001)
    await asyncio.Event().wait()  # for the one that kills it

asyncio.run(main())
"""


def turn(number: int) -> list[Filed]:
    """What is archived in one turn: most of it for a short time, some for good."""
    return [filed(number, (20, 1100, 9000)[number % 3]), filed(number, 700 * (number % 4), "bob")]


@pytest.mark.parametrize("promises", [1, 60, 500])
def test_archive_after_kill_9_everything_promised_is_there(tmp_path: Path, promises: int) -> None:
    told = told_before_kill(CHILD, tmp_path / "s", promises)
    base = opened(tmp_path / "s")
    assert not (tmp_path / "s.damaged-1").exists()
    (found,) = base.found
    assert isinstance(found, Kept)
    last = int(found.value)
    assert last >= told[-1]
    for number in range(last + 1):
        mine, bobs = turn(number)
        assert base.archive.get(Filed, "bob", number) == bobs
        # Of what waits to be forgotten, a commit may hold some.
        assert base.archive.get(Filed, "alice", number) in (
            (mine,) if number >= last - 20 else (mine, None)
        )
    assert base.archive.last(Filed, "bob", STEPS) == turn(last)[1]
    base.write([keep(filed(STEPS + 1))])
    assert base.archive.get(Filed, "alice", STEPS + 1) == filed(STEPS + 1)
    assert base.archive.damaged == 0
    base.close()


def test_bytes_behind_the_last_record_of_a_segment_are_ignored(tmp_path: Path) -> None:
    base = opened(tmp_path / "s")
    base.write([keep(filed(1))])
    base.close()
    with segment_files(tmp_path / "s")[0].open("ab") as torn:
        torn.write(b"half a rec")
    (tmp_path / "s.d" / "00000009.segment").write_bytes(b"nobody knows me")
    base = opened(tmp_path / "s")
    assert base.archive.get(Filed, "alice", 1) == filed(1)
    base.write([keep(filed(2))])
    base.close()
    base = opened(tmp_path / "s")
    assert base.archive.get(Filed, "alice", 1) == filed(1)
    assert base.archive.get(Filed, "alice", 2) == filed(2)
    assert [file.name for file in segment_files(tmp_path / "s")] == [
        "00000001.segment",
        "00000010.segment",
    ]
    base.close()


def test_commit_that_fails_leaves_nothing_in_the_segment(tmp_path: Path) -> None:
    base = opened(tmp_path / "s")
    base.write([keep(filed(1))])
    before = base.archive_bytes
    real = base._segments.sync

    def full() -> None:
        raise OSError(28, "No space left on device")

    base._segments.sync = full  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(DiskFullError):
            base.write([keep(filed(2)), keep(Said("with it")), Remove("Filed", "alice", 2)])
        assert size_of_segments(tmp_path / "s") == base.archive_bytes == before
        assert base.archive.get(Filed, "alice", 1) == filed(1)
        assert base.archive.get(Filed, "alice", 2) is None
    base._segments.sync = real  # type: ignore[method-assign]
    base.write([keep(filed(3))])
    base.close()
    base = opened(tmp_path / "s")
    assert base.found == []
    assert base.archive.get(Filed, "alice", 1) == filed(1)
    assert base.archive.get(Filed, "alice", 3) == filed(3)
    base.close()


def test_segments_that_may_not_grow_are_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.01)
    told: list[bool] = []
    safe: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def main() -> None:
        one = DiskStore(tmp_path / "s", KINDS, on_failure=lambda error: pytest.fail(str(error)))
        one.watch(told.append)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        made = [filed(0), filed(1, 400_000), *(filed(at) for at in range(2, 30))]
        for record in made:
            one.save(record, lambda at=record.at: safe.append(at))  # type: ignore[misc]
            await asyncio.sleep(0.001)
        await until(lambda: told == [True])
        assert len(safe) <= 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await until(lambda: len(safe) == 30)
        assert told == [True, False]
        assert safe == list(range(30))
        assert [one.archive.get(Filed, "alice", at) for at in range(30)] == made
        assert one.status().archive_bytes == size_of_segments(tmp_path / "s") < 600_000
        await one.close()

    try:
        run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("does", "error"), [("append", 28), ("read", 24)])
def test_compaction_without_room_or_descriptors_waits_for_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, error: int
) -> None:
    base = opened(tmp_path / "s")
    for at in range(100):
        base.write([keep(filed(at)), keep(filed(at, whose="bob"))])
    base.write([Remove("Filed", "bob", 100)])

    def full(*_: object) -> None:
        raise OSError(error, "not now")

    with monkeypatch.context() as disk:
        disk.setattr(base._segments, does, full)
        assert tidied(base) == 1
    assert [base.archive.get(Filed, "alice", at) for at in range(100)] == [
        filed(at) for at in range(100)
    ]
    base.write([keep(Said("there is room again"))])
    assert tidied(base) > 10
    assert base.archive_bytes == size_of_segments(tmp_path / "s") < 700_000
    assert [base.archive.get(Filed, "alice", at) for at in range(100)] == [
        filed(at) for at in range(100)
    ]
    base.close()


# -------------------------------------------------------------------- damage


def damaged_store(path: Path) -> None:
    base = opened(path)
    base.write(
        [keep(Said("a vote")), *(keep(filed(at)) for at in range(5)), keep(Filed(5, b"inline"))]
    )
    base.close()


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_damaged_record_reads_as_missing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged_store(tmp_path / "s")
    flip(segment_files(tmp_path / "s")[0], 2 * 5050)
    inline = (tmp_path / "s").read_bytes().index(b"inline")
    flip(tmp_path / "s", inline)
    base = opened(tmp_path / "s")
    assert base.found == [Said("a vote")]
    with caplog.at_level("INFO", "quorumcast"):
        for _ in range(3):
            assert base.archive.get(Filed, "alice", 2) is None
            assert base.archive.get(Filed, "alice", 5) is None
    assert [record.message for record in caplog.records] == [
        "archived record is damaged; treated as missing"
    ] * 2
    fields: dict[str, Any] = caplog.records[0].fields  # type: ignore[attr-defined]
    assert (fields["kind"], fields["owner"], fields["place"]) == ("Filed", "alice", 2)
    assert base.archive.damaged == 2
    # Its neighbours are found, and it can be written again.
    assert base.archive.first(Filed, "alice", 2) == filed(3)
    assert base.archive.last(Filed, "alice", 3) == filed(1)
    assert base.archive.last(Filed, "alice", 6) == filed(4)
    assert base.archive.first(Filed, "alice", 5) is None
    base.write([keep(filed(2))])
    assert base.archive.get(Filed, "alice", 2) == filed(2)
    base.close()


def test_damage_stays_damage_when_its_segment_is_compacted(tmp_path: Path, small: None) -> None:
    base = opened(tmp_path / "s")
    for at in range(100):
        base.write([keep(filed(at)), keep(filed(at, whose="bob"))])
    base.close()
    first, second, *_ = segment_files(tmp_path / "s")
    flip(first, 100)
    base = opened(tmp_path / "s")
    second.unlink()
    base.write([Remove("Filed", "bob", 100)])
    tidied(base)
    assert not first.exists()
    lost = [at for at in range(100) if base.archive.get(Filed, "alice", at) is None]
    assert lost[0] == 0
    assert 8 < len(lost) < 14
    assert [base.archive.get(Filed, "alice", at) for at in range(30, 100)] == list(
        map(filed, range(30, 100))
    )
    base.close()


@pytest.mark.parametrize("missing", [True, False])
def test_segment_that_is_missing_or_short_sets_the_store_aside(
    tmp_path: Path, missing: bool
) -> None:
    damaged_store(tmp_path / "s")
    (segment,) = segment_files(tmp_path / "s")
    whole = segment.read_bytes()
    segment.unlink()
    if not missing:
        segment.write_bytes(whole[:-1])
    base = opened(tmp_path / "s")
    assert base.found == []
    assert base.archive.owners(Filed) == []
    base.write([keep(filed(1))])
    assert base.archive.get(Filed, "alice", 1) == filed(1)
    base.close()
    assert (tmp_path / "s.damaged-1").exists()
    aside = [file.read_bytes() for file in (tmp_path / "s.damaged-1.d").iterdir()]
    assert aside == ([] if missing else [whole[:-1]])
    # One store is one entry for status and doctor.
    (tmp_path / "s.damaged-1").rename(tmp_path / "b.store.damaged-1")
    (tmp_path / "s.damaged-1.d").rename(tmp_path / "b.store.damaged-1.d")
    assert look_at(tmp_path, "b").set_aside == ["b.store.damaged-1"]


def test_segments_of_another_broker_are_not_read(tmp_path: Path) -> None:
    damaged_store(tmp_path / "s")
    other = Database(tmp_path / "t", KINDS, "another")
    other.write([keep(Filed(at, bytes(5000))) for at in range(5)])
    other.close()
    shutil.copy(segment_files(tmp_path / "t")[0], segment_files(tmp_path / "s")[0])
    base = opened(tmp_path / "s")
    assert base.archive.first(Filed, "alice", 0) == Filed(5, b"inline")
    assert base.archive.damaged == 5
    base.close()


def test_archive_table_that_is_damaged_unseen_is_set_aside_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FULL_CHECK_BYTES", 0)
    base = opened(tmp_path / "s")
    base.write([keep(Said("a vote")), *(keep(Filed(at, b"%d" % at)) for at in range(500))])
    base.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s")) as look:
        pages = look.execute("SELECT rootpage FROM sqlite_master WHERE name = 'archive'")
        ((root,),) = pages.fetchall()
    data = bytearray((tmp_path / "s").read_bytes())
    data[(root - 1) * 4096 : root * 4096] = bytes(4096)
    (tmp_path / "s").write_bytes(data)
    base = opened(tmp_path / "s")
    assert base.found == [Said("a vote")]
    assert base.archive.get(Filed, "alice", 7) is None
    assert base.archive.owners(Filed) == []
    assert base.archive.damaged == 2
    with pytest.raises(sqlite3.DatabaseError):
        base.write([keep(Filed(7, b"again"))])
    base.close()
    opened(tmp_path / "s").close()
    assert (tmp_path / "s.damaged-1").exists()


# ------------------------------------------------------------------ upgrading


def older(path: Path, monkeypatch: pytest.MonkeyPatch, records: list[Record]) -> None:
    """A store of a version without an archive."""
    with monkeypatch.context() as past:
        past.setattr(database, "_SCHEMA", database._RECORDS_SCHEMA)
        past.setattr(Filed, "archived", False)
        past.setattr(segments.Segments, "open", lambda *_: None)
        base = opened(path)
        base.write([keep(record) for record in records])
        base.close()


def test_store_of_a_version_without_an_archive_is_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older(tmp_path / "s", monkeypatch, [Said("a vote"), *(filed(at, 100 * at) for at in range(50))])
    for _ in range(2):
        base = opened(tmp_path / "s")
        assert base.found == [Said("a vote")]
        for at in range(50):
            assert base.archive.get(Filed, "alice", at) == filed(at, 100 * at)
        base.close()
    assert not (tmp_path / "s.damaged-1").exists()


def test_upgrade_without_room_is_one_sentence_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [Said("a vote"), *(filed(at, 5000) for at in range(50))]
    older(tmp_path / "s", monkeypatch, records)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(segments.Segments, "append", full)
        with pytest.raises(UsageError, match="No space left on device"):
            opened(tmp_path / "s")
    base = opened(tmp_path / "s")
    assert base.found == [Said("a vote")]
    assert [base.archive.get(Filed, "alice", at) for at in range(50)] == records[1:]
    base.close()
