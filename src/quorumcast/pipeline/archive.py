"""Class data of Spark: what Java has loaded once, kept for the next start.

To load and check Spark's classes is most of what starting a session costs. Java can write them to
an *archive* when it ends, about 160 MB, and map that the next time, which saves more than half. The
first session of a Java and a Spark makes the archive; those after it use it.

Java looks whether an archive was made of the very classes that it is to load, and goes without it
otherwise. It writes an archive's head last: one that has a head is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import time
from importlib.util import find_spec
from pathlib import Path

#: How long somebody may take to make an archive, which is done when its session ends.
MAKING_S = 600
#: Archives that are kept, of other versions or environments too.
KEPT = 3
#: Why Java goes without an archive is nothing to tell people.
_QUIET = "-Xlog:cds*=off"


def archive_options(java_home: Path) -> str:
    """Options with which Java uses the archive for its Spark, or makes it; none if it cannot."""
    with contextlib.suppress(OSError):
        if not any(java_home.glob("lib/server/classes*.jsa")):
            return ""  # an archive adds to that of Java's own classes
        folder = caches()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive = folder / f"spark-{_kind(java_home)}.jsa"
        at_work = _take_up_drafts(archive)
        if archive.exists():
            os.utime(archive)
            _forget_others(folder)
            return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_QUIET}"
        if not at_work:
            draft = archive.with_name(f"{archive.name}.{os.getpid()}")
            draft.touch()
            return f"{shlex.quote(f'-XX:ArchiveClassesAtExit={draft}')} {_QUIET}"
    return ""


def caches() -> Path:
    """Where we keep what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quorumcast"


def _kind(java_home: Path) -> str:
    """What tells apart that for which different archives are needed."""
    spark = find_spec("pyspark")
    jars = Path(spark.origin if spark and spark.origin else "").parent / "jars"
    release = java_home / "release"
    about = [java_home, release.read_text() if release.exists() else "", jars, jars.stat().st_mtime]
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _take_up_drafts(archive: Path) -> bool:
    """Put a draft that is whole in its place; whether somebody is at work on one."""
    at_work = False
    for draft in archive.parent.glob(f"{archive.name}.*"):
        with contextlib.suppress(FileNotFoundError):
            with draft.open("rb") as file:
                is_whole = any(file.read(4))
            if is_whole:
                draft.replace(archive)
            elif time.time() < draft.stat().st_mtime + MAKING_S:
                at_work = True
            else:
                draft.unlink()
    return at_work


def _forget_others(folder: Path) -> None:
    archives = sorted(folder.glob("spark-*.jsa"), key=lambda found: found.stat().st_mtime)
    for archive in archives[:-KEPT]:
        archive.unlink(missing_ok=True)
