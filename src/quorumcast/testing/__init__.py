"""Cells for tests, yours and ours: one in memory that starts in milliseconds, one of processes.

    async def test_my_consumer_survives_a_liar():
        async with MemoryCell() as cell:
            cell.make_lie("broker-1", "alter")
            publisher, subscriber = await cell.connect("alice"), await cell.connect("bob")
            …

Clients may lie as well: `make_client_lie(publisher, "skip-broker")`, with either cell.

The pytest fixtures `quorumcast_cell`, `quorumcast_lying_cell` and `quorumcast_sync_cell` come with
the package.
"""

from quorumcast.testing.cluster import LocalCluster
from quorumcast.testing.lying import make_client_honest, make_client_lie
from quorumcast.testing.memory import MemoryCell, SyncMemoryCell

__all__ = ["LocalCluster", "MemoryCell", "SyncMemoryCell", "make_client_honest", "make_client_lie"]
