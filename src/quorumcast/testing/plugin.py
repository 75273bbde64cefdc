"""pytest fixtures for people who test against Quorumcast.

    def test_my_consumer(quorumcast_sync_cell):
        bob = quorumcast_sync_cell.connect("bob")
        …

    async def test_my_consumer_survives_a_liar(quorumcast_lying_cell):
        async with quorumcast_lying_cell as cell:
            bob = await cell.connect("bob")
            …

Imports happen inside the fixtures, so that the plugin costs nothing where it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from quorumcast.testing.memory import MemoryCell, SyncMemoryCell


@pytest.fixture
def quorumcast_cell() -> MemoryCell:
    """An honest in-memory cell of four brokers, for `async with` in an event loop of your own."""
    from quorumcast.testing.memory import MemoryCell

    return MemoryCell()


@pytest.fixture
def quorumcast_lying_cell() -> MemoryCell:
    """An in-memory cell whose broker-1 alters what it forwards, for `async with`."""
    from quorumcast.testing.memory import MemoryCell

    return MemoryCell(liars={"broker-1": "alter"})


@pytest.fixture
def quorumcast_sync_cell() -> Iterator[SyncMemoryCell]:
    """An honest in-memory cell in a thread of its own, for tests without an event loop."""
    from quorumcast.testing.memory import SyncMemoryCell

    with SyncMemoryCell() as cell:
        yield cell
