"""Class data sharing for Spark's JVM, and the cache directory for it.

Loading and verifying classes is most of the cost of starting a session. At exit Java can write the
loaded classes to an *archive* of about 160 MB; mapping it at the next start saves more than half.
The first session with a version of Java and Spark creates the archive, and later ones use it. Java
itself ignores an archive that was made from other classes. It writes the header of an archive last,
so an archive with a header is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import time
from importlib.util import find_spec
from pathlib import Path

from quorumcast.traces.drafts import replacing

#: A draft older than this is abandoned: an archive is written when its session ends.
MAKING_S = 600
#: Archives that are kept, including those of other versions and environments.
KEPT = 3
#: No warnings of Java about an archive that does not match.
_QUIET = "-Xlog:cds*=off"


def archive_options(java_home: Path) -> str:
    """Return options with which Java uses or creates the archive; "" if it can do neither."""
    with contextlib.suppress(OSError):
        if not any(java_home.glob("lib/server/classes*.jsa")):
            return ""  # ours extends the archive of Java's own classes
        folder = caches()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive = folder / f"spark-{_version_key(java_home)}.jsa"
        in_progress = _adopt_drafts(archive)
        if archive.exists():
            os.utime(archive)
            archives = sorted(folder.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime)
            for old in archives[:-KEPT]:
                old.unlink(missing_ok=True)
            return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_QUIET}"
        if not in_progress:
            draft = archive.with_name(f"{archive.name}.{os.getpid()}")
            draft.touch()
            return f"{shlex.quote(f'-XX:ArchiveClassesAtExit={draft}')} {_QUIET}"
    return ""


def caches() -> Path:
    """Return the directory of files that can be created again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quorumcast"


def write_program(path: Path, text: str) -> None:
    """Write an executable script atomically."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(text)
        draft.chmod(0o755)


def _version_key(java_home: Path) -> str:
    """Return a hash of everything that needs an archive of its own."""
    spark = find_spec("pyspark")
    jars = Path(spark.origin if spark and spark.origin else "").parent / "jars"
    release = java_home / "release"
    about = [java_home, release.read_text() if release.exists() else "", jars, jars.stat().st_mtime]
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _adopt_drafts(archive: Path) -> bool:
    """Rename a complete draft to its final name; return whether one is still being written."""
    in_progress = False
    for draft in archive.parent.glob(f"{archive.name}.*"):
        with contextlib.suppress(FileNotFoundError):
            with draft.open("rb") as file:
                is_whole = any(file.read(4))
            if is_whole:
                draft.replace(archive)
            elif time.time() < draft.stat().st_mtime + MAKING_S:
                in_progress = True
            else:
                draft.unlink()
    return in_progress
