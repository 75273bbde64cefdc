"""The limit of every container that a machine reports in `sizes()`, by the container's name.

Machines report sizes under paths ("orders: orders/pub-1@1/ledger"); the last word names the
container. A container that is not here is reported by the Boundedness checker: whoever adds one
says what bounds it.
"""

from __future__ import annotations

from quorumcast.agents.archive import MAX_PENDING, RANGES
from quorumcast.agents.archive import MAX_PENDING_BYTES as MAX_PROOF_BYTES
from quorumcast.agents.line import MAX_REST_BYTES, MAX_RUN_BYTES
from quorumcast.agents.recalling import MAX_RECALLED
from quorumcast.agents.recovery import CHUNK
from quorumcast.broadcast.acceptance import MAX_PENDING_BYTES
from quorumcast.broadcast.history import WAITING
from quorumcast.broadcast.signed_history import REMEMBERED
from quorumcast.core.limits import (
    MAX_BATCH,
    MAX_CHUNKS,
    MAX_ENDED,
    MAX_FRAME_BYTES,
    MAX_RUN,
    MAX_SEATS,
    MAX_STREAMS_NAMED,
    MAX_VOUCHERS,
)
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.catchup import HEADS_KEPT, LOG_REACH
from quorumcast.ordering.epochs import NAMED_STORIES
from quorumcast.ordering.regency import KEPT_VALUES
from quorumcast.ordering.state import LINES_KEPT
from quorumcast.ordering.voices import STREAMS_OF_A_SEAT


def bounds_of(manifest: Manifest) -> dict[str, int]:
    """The largest size that each container may reach in this cell."""
    channels, clients, brokers = manifest.channels, manifest.clients, manifest.brokers
    limits = channels[0].policy.limits
    settles = any(channel.policy.settles for channel in channels)
    alpha = max(channel.policy.alpha_ceiling for channel in channels)
    # Of each publisher so many of which something is settled, as many of which nothing is, and as
    # many of which each broker speaks.
    streams = len(channels) * len(clients) * (len(brokers) + 2) * limits.streams_per_publisher
    followed = 2 * len(channels) * len(clients) * limits.streams_per_publisher
    bracha = {
        # Where brokers settle, as much again may wait for that, and the run whose turn it is.
        "ledger": limits.retained_publications + settles * (limits.retained_publications + MAX_RUN),
        "instances": 2 * limits.window + 1,
        "done": limits.window,
        # The run whose turn it is is always taken.
        "instance_bytes": limits.retained_bytes + MAX_FRAME_BYTES // 2,
    }
    # A broker that learns what others decided may be as far ahead of itself once more.
    slots = 2 * (2 * limits.checkpoint + LOG_REACH) + 4 * limits.pipeline
    return {
        # brokers
        "words": 2 * len(brokers),
        "epochs": NAMED_STORIES,
        "streams": streams,
        "complaints": streams * len(clients),
        "ended": len(channels) * len(clients) * MAX_ENDED,
        "addresses": 2 * streams * (limits.retained_publications + 2 * MAX_RUN),
        "pledges": streams * limits.retained_publications,
        "repeating": 2 * streams,
        "subscribers": len(channels) * len(clients),
        "publishing": len(channels) * len(clients),
        "served": (len(channels) + 4) * (len(clients) + len(brokers)),
        "told": MAX_STREAMS_NAMED,
        "regained": 2 * CHUNK,
        **bracha,
        **{f"history_{name}": size for name, size in bracha.items()},
        "vouchers": MAX_VOUCHERS,
        "waiting": WAITING,
        "learned": 2 * alpha * (limits.window + 1),
        "ends": REMEMBERED,
        "seen": REMEMBERED,
        # total order
        "slots": slots,
        "slot_batches": 2 * KEPT_VALUES,
        "offers": limits.window,
        "named_offers": slots * 2 * KEPT_VALUES * MAX_BATCH,
        "offered_bytes": limits.retained_bytes + MAX_FRAME_BYTES,
        "queues": streams,
        "reports": LOG_REACH,
        "chunks": MAX_CHUNKS,
        "heads": HEADS_KEPT,
        "held": 2 * (LOG_REACH // limits.checkpoint + 2) + 1,
        "served_streams": streams + len(channels) * len(clients) * LINES_KEPT,
        "voices": len(clients) * MAX_SEATS * STREAMS_OF_A_SEAT,
        "extents": limits.retained_publications,
        # publishers
        # What is not acknowledged, and as much that is and that brokers have not settled.
        "runs": (1 + settles) * limits.publisher_buffer,
        "begins": limits.publisher_buffer + 1,
        "run_bytes": limits.publisher_bytes + MAX_RUN_BYTES + MAX_REST_BYTES,
        # subscribers
        "interests": len(channels),
        "pulling": followed,
        "recalled": MAX_RECALLED,
        "acceptors": followed // len(channels),
        "named": len(brokers) * len(clients) * (limits.streams_per_publisher + MAX_ENDED),
        "statements": len(brokers) * (limits.kept_segments + RANGES),
        "proofs": MAX_PENDING,
        "proof_bytes": MAX_PROOF_BYTES,
        # A window of histories may come in order at once, and each names up to 2α numbers.
        "tallies": limits.vote_window * (1 + 2 * alpha),
        "decided": limits.vote_window * (1 + 2 * alpha),
        "bodies": limits.vote_window * (1 + 2 * alpha),
        # The run whose turn it is is always taken.
        "pending_bytes": MAX_PENDING_BYTES + MAX_FRAME_BYTES,
        "accepted": limits.segment * limits.kept_segments,
    }
