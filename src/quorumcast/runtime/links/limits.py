"""Limits and timeouts of the transport."""

from __future__ import annotations

import msgspec

from quorumcast.core.limits import MAX_DIALED, MAX_FRAME_BYTES, MAX_MANIFEST_BYTES

#: The longest proof in a farewell: a manifest and the signatures of brokers on it.
MAX_PROOF_BYTES = MAX_MANIFEST_BYTES + 64 * 1024


class TransportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What peers and unauthenticated connections may cost."""

    #: Bytes that wait for one identity, at all its seats, and messages that wait on one link.
    outbox_bytes: int = 32 * 1024 * 1024
    outbox_messages: int = 16_384
    #: Bytes of long frames that are read or handled for one identity, at all its seats; and of
    #: large buffers that its links keep for the next long frame.
    inbox_bytes: int = MAX_FRAME_BYTES
    kept_bytes: int = 8 * 1024 * 1024
    #: A link is closed when its outbox is full and the peer has read nothing for this long, or
    #: when it has begun a long frame and sent none of it for this long while others wait for room.
    stall_timeout_s: float = 5.0
    #: Connections that have not sent a greeting, in all and from one address.
    strangers: int = 512
    strangers_per_address: int = 128
    #: Connections that have sent a greeting and are not authenticated: of one name from one
    #: address, of all clients, and of all brokers.
    claims_per_name: int = 8
    claims_of_clients: int = 256
    claims_of_brokers: int = 256
    #: Links that this node has dialed, open or under way.
    dialed_links: int = MAX_DIALED
    #: How long a greeting may take.
    greeting_timeout_s: float = 5.0
    #: How long a connection attempt may take.
    connect_timeout_s: float = 3.0
    #: Pauses between attempts: the first, and the longest.
    retry_first_s: float = 0.05
    retry_longest_s: float = 2.0
    #: The same after another process with our identity has displaced us.
    displaced_first_s: float = 1.0
    displaced_longest_s: float = 60.0
