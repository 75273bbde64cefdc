"""Which tests a worker gets together, and what begins first.

A session of Spark is one per process, and a cell that the tests of a module share is worth making
once: such tests are one piece of work. Everything else is handed out test by test. What takes long
begins early, so that no worker ends long after the others.

pytest-xdist has groups for this (`--dist loadgroup`), which pytest 9.2 does not let through.
"""

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
SPARK = "the session of Spark"


@cache
def shared_by(path: str) -> str | None:
    """What the tests of a module have in common, or nothing."""
    text = (ROOT / path).read_text()
    if "spark: SparkSession" in text:
        return SPARK
    return path if 'scope="module"' in text else None


def piece(nodeid: str) -> str:
    """The piece of work that a test belongs to."""
    return shared_by(nodeid.partition("::")[0]) or nodeid


def turn(item: pytest.Item) -> int:
    """Lower ones begin earlier."""
    alone = piece(item.nodeid) == item.nodeid
    if item.get_closest_marker("spark"):
        return 1 if alone else 0
    return 3 if alone and not item.get_closest_marker("slow") else 2


class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out pieces of work in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return piece(nodeid)
