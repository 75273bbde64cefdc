"""Options of Java processes that tests start."""

from functools import cache

from quorumcast.pipeline.archive import archive_options
from quorumcast.pipeline.java import prepare_java
from quorumcast.pipeline.session import BRIEF_JAVA, LOCAL_JAVA


@cache
def java_options() -> str:
    """For Java processes that live for a moment: few threads, and classes that are loaded already.

    A session takes the archive of classes by itself; the processes around it do not.
    """
    archive = archive_options(prepare_java())
    return f"{LOCAL_JAVA} {BRIEF_JAVA} {archive if 'SharedArchiveFile' in archive else ''}"
