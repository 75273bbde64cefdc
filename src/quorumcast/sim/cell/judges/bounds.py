"""The limit of every container that a machine reports in `sizes()`, by the container's name.

Machines report sizes under paths ("orders: orders/pub-1@1/ledger"); the last word names the
container. The Boundedness checker reports a container that has no limit here.
"""

from __future__ import annotations

import msgspec

from quorumcast.broadcast.acceptance import MAX_PENDING_BYTES
from quorumcast.broadcast.history import ENDS, WAITING
from quorumcast.broadcast.protocol import protocol_of
from quorumcast.broadcast.signed_history import REMEMBERED
from quorumcast.cell.accusations import MAX_ACCUSED_CLIENTS
from quorumcast.cell.publishing.published_stream import MAX_REST_BYTES, MAX_RUN_BYTES
from quorumcast.cell.results import MOST_BYTES, RESULT_BYTES
from quorumcast.cell.serving.recovering.recovery import CHUNK
from quorumcast.cell.subscribing.archive import MAX_PENDING, RANGES
from quorumcast.cell.subscribing.archive import MAX_PENDING_BYTES as MAX_PROOF_BYTES
from quorumcast.cell.subscribing.new_streams import EARLY_BYTES, OVERHEAD
from quorumcast.cell.subscribing.recalling import MAX_RECALLED
from quorumcast.core.limits import (
    MAX_BATCH,
    MAX_CHUNKS,
    MAX_ENDED,
    MAX_FRAME_BYTES,
    MAX_RUN,
    MAX_SEATS,
    MAX_STREAMS_NAMED,
    MAX_VOUCHERS,
    Limits,
)
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.checkpoints import HEADS_KEPT, LOG_REACH
from quorumcast.ordering.consensus import KEPT_VALUES
from quorumcast.ordering.epochs import MAX_MANIFESTS
from quorumcast.ordering.execution import STREAMS_OF_A_SEAT
from quorumcast.ordering.log import MAX_ARRIVING, MAX_ISLANDS, MAX_SEAMS
from quorumcast.ordering.past import MAX_PEAKS
from quorumcast.ordering.state import LINES_KEPT


def bounds_of(manifest: Manifest, retained: int = 0) -> dict[str, int]:
    """The largest size that each container may reach in this cell.

    `retained`: the most publications that a later epoch lets brokers retain.
    """
    limits = manifest.channels[0].policy.limits
    most = max(retained, limits.retained_publications)
    limits = msgspec.structs.replace(limits, retained_publications=most)
    # Per publisher: streams with something settled, streams with nothing settled, and streams that
    # each other broker mentions.
    lives = (len(manifest.brokers) + 2) * limits.streams_per_publisher
    streams = len(manifest.channels) * len(manifest.clients) * lives
    settles = any(channel.policy.settles for channel in manifest.channels)
    alpha = max(channel.policy.alpha_ceiling for channel in manifest.channels)
    protocols = (protocol_of(channel.policy) for channel in manifest.channels)
    others = [protocol.bounds(limits) for protocol in protocols if protocol is not None]
    return {
        **{name: bound for bounds in others for name, bound in bounds.items()},
        **_of_brokers(manifest, limits, streams, settles=settles, alpha=alpha),
        **_of_total_order(manifest, limits, streams),
        **_of_publishers(limits, settles=settles),
        **_of_subscribers(manifest, limits, alpha=alpha),
    }


def _of_brokers(
    manifest: Manifest, limits: Limits, streams: int, *, settles: bool, alpha: int
) -> dict[str, int]:
    channels, clients, brokers = manifest.channels, manifest.clients, manifest.brokers
    bracha = {
        # Where brokers settle, as much again may wait to be settled, plus the next run.
        "ledger": limits.retained_publications + settles * (limits.retained_publications + MAX_RUN),
        "instances": 2 * limits.window + 1,
        "done": limits.window,
        # The next run is always accepted.
        "instance_bytes": limits.retained_bytes + MAX_FRAME_BYTES // 2,
    }
    return {
        "epoch_statements": 2 * len(brokers),
        "accused": len(brokers) + MAX_ACCUSED_CLIENTS,
        "refuted": len(brokers) + len(clients),
        "epochs": MAX_MANIFESTS,
        "streams": streams,
        "complaints": streams * len(clients),
        "ended": len(channels) * len(clients) * MAX_ENDED,
        "addresses": 2 * streams * (limits.retained_publications + 2 * MAX_RUN),
        "echoes": 2 * streams * (limits.retained_publications + 2 * MAX_RUN),
        "journaled": streams * limits.retained_publications,
        "repeating": 2 * streams,
        "subscribers": len(channels) * len(clients),
        "behind": streams * len(clients),
        "followed": streams * len(clients),
        "allowances": len(channels) * len(clients),
        "held_up": len(channels) * len(clients),
        "gone": len(clients),
        "predicates": len(channels) * len(clients),
        "being_read": len(channels) * len(clients),
        "accounts": len(clients),
        "groups": len(channels) * len(clients),
        "quiet": streams * len(clients),
        "results": MOST_BYTES // RESULT_BYTES,
        "publishing": len(channels) * len(clients),
        "served": (len(channels) + 5) * (len(clients) + len(brokers)),
        "told": MAX_STREAMS_NAMED,
        "regained": 2 * CHUNK,
        **bracha,
        **{f"history_{name}": size for name, size in bracha.items()},
        "vouchers": MAX_VOUCHERS,
        "waiting": WAITING,
        "learned": 2 * alpha * (limits.window + 1),
        "ends": ENDS,
        "seen": REMEMBERED,
    }


def _of_total_order(manifest: Manifest, limits: Limits, streams: int) -> dict[str, int]:
    channels, clients = manifest.channels, manifest.clients
    # A broker that catches up may hold as many decided instances again.
    slots = 2 * (2 * limits.checkpoint + LOG_REACH) + 4 * limits.pipeline
    return {
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
        "ack_targets": len(clients) * MAX_SEATS * STREAMS_OF_A_SEAT,
        # Retention drops whole runs.
        "positions": limits.retained_publications + MAX_RUN,
        "runs_in_memory": limits.retained_publications + MAX_RUN,
        "arriving": MAX_ARRIVING,
        "islands": MAX_ISLANDS,
        "seams": MAX_SEAMS,
        "peaks": MAX_PEAKS,
    }


def _of_publishers(limits: Limits, *, settles: bool) -> dict[str, int]:
    return {
        # Unacknowledged runs, and as many acknowledged ones that brokers have not settled.
        "runs": (1 + settles) * limits.publisher_buffer,
        "begins": limits.publisher_buffer + 1,
        "run_bytes": limits.publisher_bytes + MAX_RUN_BYTES + MAX_REST_BYTES,
    }


def _of_subscribers(manifest: Manifest, limits: Limits, *, alpha: int) -> dict[str, int]:
    channels, clients, brokers = manifest.channels, manifest.clients, manifest.brokers
    # Two lanes each; of the lives as many again that have been displaced and are not over yet.
    followed = 4 * len(channels) * len(clients) * limits.streams_per_publisher
    return {
        "interests": len(channels),
        "pulling": followed,
        "debts": followed * len(brokers),
        "owed_from": followed,
        "recalled": MAX_RECALLED,
        "acceptors": followed // len(channels),
        "requested": followed // len(channels),
        "named": len(brokers) * len(clients) * (limits.streams_per_publisher + MAX_ENDED),
        "early": len(brokers) * EARLY_BYTES // OVERHEAD,
        "statements": len(brokers) * (limits.kept_segments + RANGES),
        "proofs": MAX_PENDING,
        "proof_bytes": MAX_PROOF_BYTES,
        # A window of histories may become deliverable at once; each names up to 2α numbers.
        "tallies": limits.vote_window * (1 + 2 * alpha),
        "decided": limits.vote_window * (1 + 2 * alpha),
        "bodies": limits.vote_window * (1 + 2 * alpha),
        # The next run is always accepted.
        "pending_bytes": MAX_PENDING_BYTES + MAX_FRAME_BYTES,
        "accepted": limits.segment * limits.kept_segments,
        "settled_whole": limits.vote_window * (1 + 2 * alpha),
    }
