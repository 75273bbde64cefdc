"""The plan of one run of a cell: its configuration, beside the fields of `kernel.plan`."""

from __future__ import annotations

from quorumcast.cell import CELL_SYSTEM
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.sim.kernel.plan import Plan


class CellPlan(Plan, frozen=True, kw_only=True):
    """The plan of one run of a cell."""

    system: str = CELL_SYSTEM
    policy: Policy
    brokers: int
    f: int
    publishers: tuple[NodeId, ...]
    subscribers: tuple[NodeId, ...]
    channels: tuple[ChannelEntry, ...]
    #: Number of publications per publisher and channel in the liveness phase; with 0, subscribers
    #: do not ask for receipts either.
    finale: int = 3
    #: A publisher that goes on publishing until all promises hold, while all others are quiet.
    restless: NodeId = NodeId("")
    #: Whether brokers may lose more than the rest of the cell can replace.
    gaps_allowed: bool = False
    #: Number of brokers that may be added during the run.
    newcomers: int = 0
    #: Publishers that resume their streams after a crash.
    resuming: tuple[NodeId, ...] = ()
    #: What subscribers may ask for: an act `select` names one by its place from 1 on, or 0 for all.
    predicates: tuple[tuple[str, ...], ...] = ()
    #: Whether manifests, quorums and named subscriptions are examined before the run.
    documents: bool = False

    @property
    def kind(self) -> str:
        return self.policy.name

    def parameters(self) -> dict[str, int]:
        return {
            "brokers": self.brokers,
            "f": self.f,
            "publishers": len(self.publishers),
            "subscribers": len(self.subscribers),
            "channels": len(self.channels),
        }


def small_limits() -> Limits:
    """Limits small enough for a short run to reach them."""
    return Limits(
        retained_publications=512,
        cached_bytes=256,
        window=64,
        streams_per_publisher=32,
        publisher_buffer=512,
        vote_window=256,
        segment=8,
        kept_segments=8,
        replay=64,
        pipeline=3,
        checkpoint=6,
    )
