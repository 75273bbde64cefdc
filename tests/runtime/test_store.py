"""The journal: what was said to be safe is there after a restart."""

import asyncio
from pathlib import Path

import pytest
from tests.runtime.world import run, until

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record
from quorumcast.runtime import store
from quorumcast.runtime.store import Journal


class Said(Record, frozen=True, tag=True):
    text: str


class Latest(Record, frozen=True, tag=True):
    key: str
    value: int


KINDS = (Said, Latest)


def test_journal_records_come_back_in_order_and_keys_replace(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    async def main() -> None:
        journal = Journal(path, KINDS)
        safe: list[int] = []
        for i in range(500):
            journal.save(Said(str(i)), lambda i=i: safe.append(i))  # type: ignore[misc]
            journal.save(Latest("k", i), lambda: None)
        assert safe == []
        await until(lambda: len(safe) == 500)
        assert safe == list(range(500))
        await journal.close()
        again = Journal(path, KINDS)
        records = again.load()
        assert [r.text for r in records if isinstance(r, Said)] == [str(i) for i in range(500)]
        assert [r for r in records if isinstance(r, Latest)] == [Latest("k", 499)]
        await again.close()

    run(main())


def test_journal_close_waits_for_what_was_given_before(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path / "journal", KINDS)
        journal.save(Said("last words"), lambda: None)
        await journal.close()
        again = Journal(tmp_path / "journal", KINDS)
        assert again.load() == [Said("last words")]
        await again.close()

    run(main())


def test_journal_old_records_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT", 50)
    monkeypatch.setattr(store, "CLEAN_EVERY", 100)

    async def main() -> None:
        journal = Journal(tmp_path / "journal", KINDS)
        for i in range(1000):
            journal.save(Said(str(i)), lambda: None)
            if i % 10 == 9:
                await asyncio.sleep(0)
        await journal.close()
        again = Journal(tmp_path / "journal", KINDS)
        records = again.load()
        assert len(records) <= 150
        assert records[-1] == Said("999")
        await again.close()

    run(main())


def test_journal_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"not a database, " * 1000)

    async def main() -> None:
        with pytest.raises(UsageError, match="cannot be opened"):
            Journal(path, KINDS)
        with pytest.raises(UsageError, match="cannot be opened"):
            Journal(tmp_path / "missing" / "journal", KINDS)

    run(main())
