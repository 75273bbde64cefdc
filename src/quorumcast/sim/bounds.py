"""The limit of every container that a machine reports in `sizes()`, by the container's name.

Machines report sizes under paths ("orders: orders/pub-1@1/ledger"); the last word names the
container. A container that is not here is reported by the Boundedness checker: whoever adds one
says what bounds it.
"""

from __future__ import annotations

from quorumcast.agents.archive import MAX_PENDING, RANGES
from quorumcast.broadcast.acceptance import MAX_PENDING_BYTES
from quorumcast.broadcast.history import WAITING
from quorumcast.broadcast.signed_history import REMEMBERED
from quorumcast.core.limits import MAX_STREAMS_NAMED, MAX_VOUCHERS
from quorumcast.manifest.manifest import Manifest


def bounds_of(manifest: Manifest) -> dict[str, int]:
    """The largest size that each container may reach in this cell."""
    channels, clients, brokers = manifest.channels, manifest.clients, manifest.brokers
    limits = channels[0].policy.limits
    alpha = max(channel.policy.alpha_ceiling for channel in channels)
    streams = len(channels) * len(clients) * (len(brokers) + 1) * limits.streams_per_publisher
    followed = 2 * len(channels) * len(clients) * limits.streams_per_publisher
    bracha = {
        "ledger": limits.retained_publications,
        "instances": 2 * limits.window + 1,
        "done": limits.window,
        "pending_bytes": max(limits.publisher_bytes, MAX_PENDING_BYTES) * 2,
    }
    return {
        # brokers
        "streams": streams,
        "pledges": streams * limits.retained_publications,
        "subscribers": len(channels) * len(clients),
        "served": (len(channels) + 2) * len(clients),
        **bracha,
        **{f"history_{name}": size for name, size in bracha.items()},
        "vouchers": MAX_VOUCHERS,
        "waiting": WAITING,
        "learned": 2 * alpha * (limits.window + 1),
        "ends": REMEMBERED + limits.window,
        "seen": REMEMBERED,
        # publishers
        "runs": limits.publisher_buffer,
        # subscribers
        "interests": len(channels),
        "pulling": followed,
        "acceptors": followed,
        "named": MAX_STREAMS_NAMED * len(brokers),
        "statements": len(brokers) * (limits.kept_segments + RANGES),
        "proofs": MAX_PENDING,
        "tallies": limits.vote_window,
        "decided": limits.vote_window + 2 * alpha,
        "bodies": limits.vote_window,
        "accepted": limits.segment * limits.kept_segments,
    }
