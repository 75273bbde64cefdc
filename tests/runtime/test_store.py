"""The store: what was said to be safe is there after a restart, and nothing else ever is."""

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.runtime.world import PATIENCE_S, run, told_before_kill, until

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record
from quorumcast.runtime.store import database, store
from quorumcast.runtime.store.database import Database, Keep, Remove
from quorumcast.runtime.store.store import DiskStore


class Said(Record, frozen=True, tag=True):
    """One that nothing replaces."""

    text: str

    @property
    def place(self) -> int:
        return crc32(self.text.encode())


class Kept(Record, frozen=True, tag=True):
    at: int
    value: bytes
    whose: str = "alice"

    @property
    def owner(self) -> str:
        return self.whose

    @property
    def place(self) -> int:
        return self.at


class Other(Kept, frozen=True, tag=True):
    pass


KINDS = (Said, Kept, Other)
Step = Record | tuple[type[Record], str, int]


def nothing() -> None: ...


def steps(count: int, seed: int = 1) -> list[Step]:
    """Records of every kind, replacements and removals, in no order in particular."""
    rng = random.Random(seed)
    made: list[Step] = []
    for i in range(count):
        whose = rng.choice(("alice", "bob"))
        made.append(
            rng.choice(
                (
                    Said(f"word {i}"),
                    Kept(rng.randrange(i + 1), rng.randbytes(rng.choice((10, 300, 9000))), whose),
                    Other(rng.randrange(20), b"%d" % i, whose),
                    (rng.choice((Kept, Other)), whose, rng.randrange(i + 1) // 2),
                )
            )
        )
    return made


def model(made: list[Step]) -> list[Record]:
    """What a store holds after these steps, told as plainly as can be."""
    kept: list[Record] = []
    for step in made:
        kept = after(kept, step)
    return kept


def after(kept: list[Record], step: Step) -> list[Record]:
    """What a store that held this holds after one more step."""
    if not isinstance(step, Record):
        kind, owner, below = step
        return [r for r in kept if type(r) is not kind or r.owner != owner or r.place >= below]
    address = (type(step), step.owner, step.place)
    return [*(r for r in kept if (type(r), r.owner, r.place) != address), step]


def give(to: DiskStore, step: Step, done: Callable[[], None] = nothing) -> None:
    if isinstance(step, Record):
        to.save(step, done)
    else:
        to.forget(*step)


async def written(path: Path, made: list[Step], turns: int = 7) -> None:
    """Write these steps, some per turn of the loop."""
    opened = DiskStore(path, KINDS)
    for number, step in enumerate(made):
        give(opened, step)
        if number % turns == 0:
            await asyncio.sleep(0)
    await opened.close()


async def held(path: Path) -> list[Record]:
    opened = DiskStore(path, KINDS)
    found = opened.load()
    await opened.close()
    return found


def found_in(path: Path) -> list[Record]:
    opened = Database(path, KINDS, "")
    opened.close()
    return opened.found


# ------------------------------------------------------------------- keeping


def test_store_records_come_back_in_the_order_of_writing(tmp_path: Path) -> None:
    async def main() -> None:
        made = steps(600)
        await written(tmp_path / "s", made)
        assert await held(tmp_path / "s") == model(made)
        more = steps(200, seed=2)
        await written(tmp_path / "s", more)
        assert await held(tmp_path / "s") == model(made + more)

    run(main())


def test_store_done_is_called_after_the_commit_and_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS)
        safe: list[int] = []
        for i in range(500):
            opened.save(Said(str(i)), lambda i=i: safe.append(i))  # type: ignore[misc]
        assert safe == []
        assert opened.status().waiting_bytes > 500
        await until(lambda: len(safe) == 500)
        assert safe == list(range(500))
        status = opened.status()
        assert status.waiting_bytes == 0 < status.most_waiting_bytes
        await opened.close()

    run(main())


def test_store_close_waits_for_what_was_given_before(tmp_path: Path) -> None:
    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS)
        opened.save(Said("last words"), nothing)
        await opened.close()
        assert await held(tmp_path / "s") == [Said("last words")]

    run(main())


def test_store_replacing_and_forgetting_within_one_commit_keep_their_order(tmp_path: Path) -> None:
    made: list[Step] = [
        Kept(1, b"replaced"),
        Kept(1, b"forgotten"),
        Kept(2, b"stays"),
        (Kept, "alice", 2),
        Kept(1, b"written after"),
        Other(1, b"of another kind"),
        Kept(1, b"of another owner", "bob"),
    ]

    async def main() -> None:
        await written(tmp_path / "s", made, turns=100)
        assert await held(tmp_path / "s") == [made[2], *made[4:]]

    run(main())


def test_store_forgets_a_range_and_nothing_beside_it(tmp_path: Path) -> None:
    async def main() -> None:
        for turns in (1, 2):
            opened = DiskStore(tmp_path / str(turns), KINDS)
            for place in range(1, 6):
                opened.save(Kept(place, b"x"), nothing)
            if turns == 2:
                await until(lambda opened=opened: not opened.status().waiting_bytes)  # type: ignore[misc]
            opened.forget(Kept, "alice", 4, since=2)
            opened.save(Kept(3, b"again"), nothing)
            await opened.close()
            found = await held(tmp_path / str(turns))
            assert found == [Kept(1, b"x"), Kept(4, b"x"), Kept(5, b"x"), Kept(3, b"again")]

    run(main())


def modes_in(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def test_store_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS)
        opened.save(Said("a secret"), nothing)
        await until(lambda: opened.status().waiting_bytes == 0)
        modes = modes_in(tmp_path)
        assert len(modes) >= 3
        assert set(modes.values()) == {0o600}, modes
        await opened.close()
        (tmp_path / "s").chmod(0o644)  # as earlier versions left it
        await held(tmp_path / "s")
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600

    run(main())


def test_store_files_do_not_grow_under_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_BYTES", 500_000)

    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS)
        sizes: list[tuple[int, int]] = []
        for i in range(600):
            safe = asyncio.Event()
            opened.save(Kept(i, random.Random(i).randbytes(10_000)), safe.set)
            opened.forget(Kept, "alice", i - 50)
            await safe.wait()
            status = opened.status()
            sizes.append((status.file_bytes, status.log_bytes))
        await opened.close()
        settled = sizes[150:]
        assert max(file for file, _ in settled) <= 1.1 * settled[0][0] < 2_000_000
        assert max(log for _, log in settled) < 1_500_000
        assert len(await held(tmp_path / "s")) == 51

    run(main())


#: What the process that is killed would write.
STEPS = 10_000
CHILD = """
import asyncio, os, sys
from pathlib import Path
from tests.runtime.test_store import KINDS, STEPS, give, steps
from quorumcast.runtime.store.store import DiskStore

async def main():
    opened = DiskStore(Path(sys.argv[1]), KINDS)
    for number, step in enumerate(steps(STEPS)):
        give(opened, step, lambda number=number: os.write(1, b"%d\\n" % number))
        if number % 5 == 0:
            await asyncio.sleep(0)
        if number % 100 == 0:
            await asyncio.sleep(0.001)
    await asyncio.Event().wait()  # for the one that kills it

asyncio.run(main())
"""


@pytest.mark.parametrize("promises", [1, 40, 333, 1100])
def test_store_after_kill_9_everything_promised_is_there(tmp_path: Path, promises: int) -> None:
    told = told_before_kill(CHILD, tmp_path / "s", promises)
    found = found_in(tmp_path / "s")
    # Nobody was told about some of the last ones; they may be there or not, but in order. While
    # the disk was slow, all the others may have become one commit.
    made = steps(STEPS)
    kept = model(made[: told[-1] + 1])
    for step in made[told[-1] + 1 :]:
        if kept == found:
            break
        kept = after(kept, step)
    assert kept == found


# -------------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A store as kill -9 leaves it, part of it in the database and part in its log.

    Always the same one, however slow the disk is: each step is a commit.
    """
    directory = tmp_path_factory.mktemp("whole")
    made = steps(300)

    async def main() -> None:
        opened = DiskStore(directory / "running", KINDS)
        for number, step in enumerate(made):
            give(opened, step)
            opened._commit_now()
            await until(lambda: opened._committing is None)
            if number == 200:
                opened._database._move_log()
        for ending in ("", "-wal", ".mark"):
            shutil.copy(directory / f"running{ending}", directory / f"s{ending}")
        await opened.close()

    run(main())
    return directory / "s", model(made)


def copied(whole: Path, directory: Path, *, closed: bool = False) -> Path:
    directory.mkdir()
    for ending in ("", "-wal", ".mark"):
        shutil.copy(f"{whole}{ending}", directory / f"s{ending}")
    if closed:
        found_in(directory / "s")
        assert not (directory / "s-wal").exists()
    return directory / "s"


def judge(path: Path, expected: list[Record]) -> bool:
    """Whether it was set aside; what is left must work, and hold all of it or nothing."""
    was = path.stat().st_size
    found = found_in(path)
    aside = path.with_name("s.damaged-1")
    assert found == ([] if aside.exists() else expected)
    if aside.exists():
        assert aside.stat().st_size == was
    extra: list[Step] = [(Kept, "alice", 40), Kept(50, b"new"), Said("new")]
    opened = Database(path, KINDS, "")
    opened.write([Remove("Kept", "alice", 40), Keep("Kept", "alice", 50, ENCODED)])
    opened.write([Keep("Said", "", 10**6, b"\x82\xa4type\xa4Said\xa4text\xa3new")])
    opened.close()
    assert found_in(path) == model([*found, *extra])
    return aside.exists()


ENCODED = b"\x84\xa4type\xa4Kept\xa2at\x32\xa5value\xc4\x03new\xa5whose\xa5alice"


def test_store_that_is_whole_is_read_with_its_log(
    whole: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    path, expected = whole
    assert path.with_name("s-wal").stat().st_size > 50_000
    assert path.stat().st_size > 50_000
    assert not judge(copied(path, tmp_path / "copy"), expected)


@pytest.mark.parametrize("ending", ["", "-wal", ".mark"])
def test_store_damaged_anywhere_is_read_exactly_or_set_aside(
    whole: tuple[Path, list[Record]], tmp_path: Path, ending: str
) -> None:
    path, expected = whole
    rng = random.Random(ending)
    aside = 0
    for trial in range(40):
        # A page that the log holds as well may be damaged without harm.
        copy = copied(path, tmp_path / str(trial), closed=ending == "" and trial % 4 > 0)
        target = copy.with_name(f"s{ending}")
        data = bytearray(target.read_bytes())
        # Half of the time near the beginning, where headers are.
        at = rng.randrange(min(len(data), rng.choice((120, 10**9))))
        length = rng.choice((1, 1, 1, 40, 4096))
        data[at : at + length] = rng.randbytes(len(data[at : at + length]))
        target.write_bytes(data)
        aside += judge(copy, expected)
        shutil.rmtree(copy.parent)
    assert aside > 15


@pytest.mark.parametrize("ending", ["", "-wal", ".mark"])
def test_store_truncated_anywhere_is_read_exactly_or_set_aside(
    whole: tuple[Path, list[Record]], tmp_path: Path, ending: str
) -> None:
    path, expected = whole
    rng = random.Random(ending)
    part = path.with_name(f"s{ending}")
    size = used_of(part) if ending == "-wal" else part.stat().st_size
    for trial, length in enumerate([0, size - 1, *(rng.randrange(size) for _ in range(20))]):
        copy = copied(path, tmp_path / str(trial), closed=ending == "")
        os.truncate(copy.with_name(f"s{ending}"), length)
        assert judge(copy, expected) or ending == ""
        shutil.rmtree(copy.parent)


def used_of(log: Path) -> int:
    """How much of a log counts: SQLite begins it anew without cutting off what was there before.

    Its head has the size of pages and what marks the frames of this time, each a head and a page.
    """
    data = log.read_bytes()
    (page,) = struct.unpack_from(">I", data, 8)
    end = 32
    while data[end + 8 : end + 16] == data[16:24]:
        end += 24 + page
    return end


def test_store_header_or_schema_that_sqlite_stumbles_over_is_set_aside(
    whole: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    path, expected = whole
    good = copied(path, tmp_path / "good", closed=True).read_bytes()
    read_only = good[:18] + b"\x03" + good[19:]
    unnamed = good.replace(b"addressrecords", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9records", 1)
    for number, bad in enumerate((read_only, unnamed)):
        copy = copied(path, tmp_path / str(number), closed=True)
        copy.write_bytes(bad)
        assert bad != good
        assert judge(copy, expected)


def test_store_without_its_log_or_mark_or_from_an_old_copy_is_set_aside(
    whole: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    path, expected = whole
    for ending in ("-wal", ".mark"):
        copy = copied(path, tmp_path / ending)
        copy.with_name(f"s{ending}").unlink()
        assert judge(copy, expected)

    async def main() -> None:
        await written(tmp_path / "s", [Said("early")])
        shutil.copy(tmp_path / "s", tmp_path / "old")
        await written(tmp_path / "s", [Said("late")])
        shutil.copy(tmp_path / "old", tmp_path / "s")
        assert await held(tmp_path / "s") == []

    run(main())
    assert (tmp_path / "s.damaged-1").exists()


def test_store_that_is_gone_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await written(tmp_path / "s", [Said("lost")])
        (tmp_path / "s").unlink()
        assert await held(tmp_path / "s") == []

    with caplog.at_level("INFO", "quorumcast"):
        run(main())
    assert [record.message for record in caplog.records] == ["store is gone; starts empty"]


def test_store_foreign_files_are_set_aside_untouched_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"not a database, " * 1000)
    with caplog.at_level("INFO", "quorumcast"):
        assert found_in(path) == []
    assert "was set aside" in caplog.text
    fields: dict[str, Any] = caplog.records[0].fields  # type: ignore[attr-defined]
    assert fields["aside"] == str(tmp_path / "s.damaged-1")
    assert (tmp_path / "s.damaged-1").read_bytes() == b"not a database, " * 1000

    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    before = path.read_bytes()
    assert found_in(path) == []
    assert (tmp_path / "s.damaged-2").read_bytes() == before


def test_store_of_another_broker_is_set_aside(tmp_path: Path) -> None:
    async def main() -> None:
        mine = DiskStore(tmp_path / "s", KINDS, holder="cell/broker-1")
        mine.save(Said("mine"), nothing)
        await mine.close()
        theirs = DiskStore(tmp_path / "s", KINDS, holder="cell/broker-2")
        assert theirs.load() == []
        await theirs.close()

    run(main())
    assert (tmp_path / "s.damaged-1").exists()


def test_store_damaged_again_and_again_is_not_removed_but_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(database.MAX_ASIDE):
        path.write_bytes(b"damaged")
        assert found_in(path) == []
    path.write_bytes(b"damaged")
    with pytest.raises(UsageError, match="look at the disk"):
        found_in(path)
    assert path.read_bytes() == b"damaged"


def test_store_record_of_another_version_is_refused_and_stays(tmp_path: Path) -> None:
    run(written(tmp_path / "s", [Said("a"), Kept(1, b"b")]))
    with pytest.raises(UsageError, match="a record 'Kept' that this version does not know"):
        Database(tmp_path / "s", (Said,), "")
    assert len(found_in(tmp_path / "s")) == 2


# ------------------------------------------------------------------ refusals


def test_store_paths_that_cannot_be_opened_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("")
    for path in ("directory", "missing/s", "file/s"):
        with pytest.raises(UsageError, match="cannot be opened"):
            Database(tmp_path / path, KINDS, "")


def test_store_that_may_not_be_written_is_one_sentence() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        Database(directory / "s", KINDS, "").close()
        for path, mode in ((directory / "s", 0o444), (directory, 0o555)):
            path.chmod(mode)
            with as_nobody(), pytest.raises(UsageError, match="Permission denied"):
                Database(directory / "s", KINDS, "")
            path.chmod(0o777)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_store_in_use_is_refused(tmp_path: Path) -> None:
    first = Database(tmp_path / "s", KINDS, "")
    with pytest.raises(UsageError, match="another broker has it open"):
        Database(tmp_path / "s", KINDS, "")
    first.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s")) as looking:
        looking.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UsageError, match="another program has it open"):
            Database(tmp_path / "s", KINDS, "")
    Database(tmp_path / "s", KINDS, "").close()


# ----------------------------------------------------------------- full disks


def test_store_full_disk_loses_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.01)
    told: list[bool] = []
    safe: list[int] = []

    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS, on_failure=lambda error: pytest.fail(str(error)))
        opened.watch(told.append)
        limit = opened._database._connection.execute
        limit("PRAGMA max_page_count=50")
        for i in range(100):
            opened.save(Kept(i, bytes(10_000)), lambda i=i: safe.append(i))  # type: ignore[misc]
            await asyncio.sleep(0)
        await until(lambda: told == [True])
        before = len(safe)
        assert opened.status().full == 1
        assert opened.status().waiting_bytes > (100 - before) * 10_000
        opened.save(Said("while it is full"), lambda: safe.append(100))
        await asyncio.sleep(0.05)
        assert len(safe) == before
        limit("PRAGMA max_page_count=1000000")
        await until(lambda: len(safe) == 101)
        assert told == [True, False]
        assert safe == list(range(101))
        await opened.close()
        assert len(await held(tmp_path / "s")) == 101

    run(main())


def test_store_full_disk_is_free_again_when_enough_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.01)
    told: list[bool] = []

    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS)
        opened.watch(told.append)
        opened._database._connection.execute("PRAGMA max_page_count=50")
        for i in range(20):
            opened.save(Kept(i, bytes(10_000)), nothing)
            await asyncio.sleep(0.001)
        await until(lambda: told == [True])
        opened.forget(Kept, "alice", 15)
        await until(lambda: told == [True, False])
        await opened.close()
        assert [record.place for record in await held(tmp_path / "s")] == [15, 16, 17, 18, 19]

    run(main())


def test_store_full_disk_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS)
        opened.save(Said("safe"), nothing)
        await until(lambda: opened._committing is None)
        opened._database._connection.execute("PRAGMA max_page_count=1")
        opened.save(Kept(1, bytes(10**6)), lambda: pytest.fail("it cannot be safe"))
        await opened.close()
        assert await held(tmp_path / "s") == [Said("safe")]

    run(main())


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from tests.runtime.test_store import KINDS, Kept, until
from quorumcast.runtime.store import store

store.RETRY_S = 0.01

async def main():
    failures, told, safe = [], [], []
    opened = store.DiskStore(Path(sys.argv[1]), KINDS, on_failure=failures.append)
    opened.watch(told.append)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    for i in range(200):
        opened.save(Kept(i, bytes(10_000)), lambda i=i: safe.append(i))
        await asyncio.sleep(0.001)
    await until(lambda: bool(told or failures))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await until(lambda: len(safe) == 200 or bool(failures))
    await opened.close()
    print(failures, told[0], told[-1], safe == list(range(200)))

asyncio.run(main())
"""


def test_store_files_that_may_not_grow_are_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "s")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.stdout == "[] True False True\n", done.stderr
    assert [record.place for record in found_in(tmp_path / "s")] == list(range(200))


def test_store_other_failure_stops_the_node_and_promises_nothing_more(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    async def main() -> None:
        opened = DiskStore(tmp_path / "s", KINDS, on_failure=failures.append)
        opened._database._connection.execute("PRAGMA query_only=ON")
        opened.save(Said("lost"), lambda: pytest.fail("it cannot be safe"))
        await until(lambda: bool(failures))
        opened._database._connection.execute("PRAGMA query_only=OFF")
        opened.save(Said("rests on it"), lambda: pytest.fail("its past is lost"))
        await opened.close()
        assert await held(tmp_path / "s") == []

    run(main())
    assert isinstance(failures[0], sqlite3.OperationalError)
