"""Class data of Spark: made by one session, used by those after it."""

import os
import time
from pathlib import Path

import pytest

from quorumcast.pipeline.archive import KEPT, MAKING_S, archive_options, caches


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of Java with the archive of its own classes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    (tmp_path / "java/lib/server").mkdir(parents=True)
    (tmp_path / "java/lib/server/classes.jsa").touch()
    return tmp_path / "java"


def draft_of(options: str) -> Path:
    """The file that Java is told to make."""
    made, found, rest = options.partition("-XX:ArchiveClassesAtExit=")
    assert (made, bool(found)) == ("'", True)
    return Path(rest.partition("'")[0])


def test_first_session_makes_the_archive_and_those_after_it_use_it(java: Path) -> None:
    draft = draft_of(archive_options(java))
    assert archive_options(java) == "", "one is enough to make it"
    draft.write_bytes(b"\0\0\0\0 its head is written last")
    assert archive_options(java) == ""
    draft.write_bytes(b"head")
    archive = draft.with_suffix("")
    for _ in range(2):
        assert archive_options(java) == f"'-XX:SharedArchiveFile={archive}' -Xlog:cds*=off"
        assert list(caches().iterdir()) == [archive]


def test_archive_that_nobody_finished_is_made_by_another(java: Path) -> None:
    draft = draft_of(archive_options(java))
    long_ago = time.time() - MAKING_S - 1
    os.utime(draft, (long_ago, long_ago))
    assert draft_of(archive_options(java)) == draft


def test_java_of_another_version_has_an_archive_of_its_own(java: Path) -> None:
    first = draft_of(archive_options(java))
    (java / "release").write_text("another")
    assert draft_of(archive_options(java)).stem != first.stem


def test_java_without_an_archive_of_its_own_classes_has_none(java: Path) -> None:
    (java / "lib/server/classes.jsa").unlink()
    assert archive_options(java) == ""


def test_few_archives_are_kept(java: Path) -> None:
    for version in range(KEPT + 2):
        (java / "release").write_text(str(version))
        draft_of(archive_options(java)).write_bytes(b"head")
        assert "SharedArchiveFile" in archive_options(java)
    assert len(list(caches().iterdir())) == KEPT


def test_folder_that_cannot_be_made_is_done_without(java: Path) -> None:
    (java.parent / "a cache").write_text("in the way")
    assert archive_options(java) == ""
