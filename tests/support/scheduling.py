"""Which tests run in the same worker of pytest-xdist, and which start first.

A process has one Spark session, and a module-scoped fixture (often a running cell) is made once per
worker. Tests that share one of them are a single unit of work; every other test is a unit of its
own. Long units start first, so that no worker finishes long after the others.

pytest-xdist has groups for this (`--dist loadgroup`), which pytest 9.2 does not let through.
"""

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
SPARK = "the Spark session"


@cache
def shared_by(path: str) -> str | None:
    """The name of what the tests of a module share, or None."""
    text = (ROOT / path).read_text()
    if "spark: SparkSession" in text:
        return SPARK
    return path if 'scope="module"' in text else None


def work_unit(nodeid: str) -> str:
    """The unit of work that a test belongs to."""
    return shared_by(nodeid.partition("::")[0]) or nodeid


def start_rank(item: pytest.Item) -> int:
    """The rank of a test; lower ranks start first."""
    alone = work_unit(item.nodeid) == item.nodeid
    if item.get_closest_marker("spark"):
        return 1 if alone else 0
    return 3 if alone and not item.get_closest_marker("slow") else 2


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out units of work in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)
