"""The operations that consumers of a named subscription publish on its companion channel.

A *named subscription* is a consumer group: several consumers share the publications of a channel,
and each publication is assigned to one of them until it is acknowledged. Consumers coordinate
through the *companion* channel, `orders/subscriptions` for the channel `orders`. The companion has
total order, so every reader sees the same operations in the same sequence and computes the same
state (`named.state`). Each payload of the companion is one `CompanionEntry`. All readers ignore a
payload that does not decode.

| operation | effect |
| --- | --- |
| `Create` | starts the subscription at a position and discards its earlier state |
| `Configure` | changes the settings, or the members of a group |
| `OpenSession` | starts a session of a consumer and ends its previous session |
| `ClaimPositions` | assigns up to `count` positions before `end` to the session |
| `AckPositions`, `NackPositions` | acknowledge positions; return positions for redelivery |
| `Heartbeat` | shows that the consumer is alive |
| `CloseSession` | ends the session and returns its unacknowledged positions |
| `ExpireSession` | ends the session of another consumer that has been silent since `last_seen` |
| `MarkDead` | gives up a position whose attempts are exhausted (it is a dead letter now) |
| `SkipTo` | moves past positions that brokers no longer retain |
| `WriteSnapshot` | stores the state, for readers that start after older operations have expired |

The tags are the class names of the first version of this format. Operations are stored in channels,
so a tag never changes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.core.ids import Count, Positive
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest.groups import MAX_ATTEMPTS, MAX_MEMBERS_NAMED, MAX_TIMEOUT_MS

VERSION = 1

#: Open sessions of one subscription.
MAX_SESSIONS = 64
#: Positions assigned to one consumer.
MAX_CLAIMED = 256
#: Dead positions listed in a state; older ones are only counted.
MAX_DEAD = 64
#: Ranges in one operation.
MAX_RANGES = 256
#: Bytes of a signed manifest in an operation.
MAX_CHARTER = 4 * 1024 * 1024

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Attempt = Annotated[int, Meta(ge=0, le=2**31)]
Ranges = Annotated[tuple[tuple[Positive, Positive], ...], Meta(max_length=MAX_RANGES)]


class SubscriptionSettings(msgspec.Struct, frozen=True, array_like=True):
    """Redelivery settings of a subscription."""

    #: Attempts before a publication is given up; 0 is unlimited.
    max_attempts: Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)] = 0
    #: Silence after which a session may be expired.
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] = 30_000
    #: Channel for publications that are given up; "" for none.
    dead_letter: Annotated[str, Meta(max_length=MAX_NAME)] = ""


class ConsumerSession(msgspec.Struct, frozen=True, array_like=True):
    """The open session of one consumer."""

    consumer: Name
    session: Positive
    #: Position (on the companion) of the newest operation of this session.
    last_seen: Count


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """A position that is assigned to a consumer."""

    position: Positive
    consumer: Name
    #: Attempt number, from 1.
    attempt: Attempt


class StateSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The serialised form of `named.state.SubscriptionState`, whose fields it has."""

    root: Positive
    epoch: Count
    allowed: Annotated[tuple[Name, ...], Meta(max_length=MAX_MEMBERS_NAMED)]
    settings: SubscriptionSettings
    next: Positive
    sessions: Annotated[tuple[ConsumerSession, ...], Meta(max_length=MAX_SESSIONS)]
    assigned: Annotated[tuple[Assignment, ...], Meta(max_length=MAX_SESSIONS * MAX_CLAIMED)]
    returned: Annotated[
        tuple[tuple[Positive, Attempt], ...], Meta(max_length=2 * MAX_SESSIONS * MAX_CLAIMED)
    ]
    dead: Annotated[tuple[Positive, ...], Meta(max_length=MAX_DEAD)]
    dead_count: Count
    redelivered: Count


class Operation(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of operations."""


class Create(Operation, frozen=True, array_like=True, tag=True):
    """Starts the subscription at a position.

    It has no effect if another `Create` took effect after operation `upto`.
    """

    upto: Count
    start: Positive
    settings: SubscriptionSettings
    #: For a shared subscription: the signed manifest that declares its group.
    charter: Annotated[bytes, Meta(max_length=MAX_CHARTER)] = b""


class Configure(Operation, frozen=True, array_like=True, tag=True):
    """Changes the settings; for a shared subscription, to those of a newer manifest."""

    settings: SubscriptionSettings
    charter: Annotated[bytes, Meta(max_length=MAX_CHARTER)] = b""


class OpenSession(Operation, frozen=True, array_like=True, tag="Join"):
    """Starts a session of its author; an earlier session of the author ends."""

    session: Positive


class ClaimPositions(Operation, frozen=True, array_like=True, tag="Claim"):
    """Requests positions: first those that await redelivery, then new ones before `end`."""

    session: Positive
    count: Annotated[int, Meta(ge=1, le=MAX_CLAIMED)]
    end: Positive


class AckPositions(Operation, frozen=True, array_like=True, tag="Ack"):
    """Acknowledges positions."""

    session: Positive
    ranges: Ranges


class NackPositions(Operation, frozen=True, array_like=True, tag="Nack"):
    """Returns positions for redelivery."""

    session: Positive
    ranges: Ranges


class Heartbeat(Operation, frozen=True, array_like=True, tag="Beat"):
    """Shows that its author is alive."""

    session: Positive


class CloseSession(Operation, frozen=True, array_like=True, tag="Leave"):
    """Ends a session and returns its positions.

    Positions outside `delivered` never reached the application, so their attempt does not count.
    """

    session: Positive
    delivered: Ranges = ()


class ExpireSession(Operation, frozen=True, array_like=True, tag="Release"):
    """Ends a silent session of any consumer.

    It has no effect if that session wrote an operation after operation `last_seen`.
    """

    consumer: Name
    session: Positive
    last_seen: Count


class MarkDead(Operation, frozen=True, array_like=True, tag="Dead"):
    """Gives up a position whose attempts are exhausted."""

    session: Positive
    position: Positive


class SkipTo(Operation, frozen=True, array_like=True, tag="Skip"):
    """Skips new positions before `upto`, because brokers no longer retain them."""

    session: Positive
    upto: Positive


class WriteSnapshot(Operation, frozen=True, array_like=True, tag="Snapshot"):
    """Stores the state after operation `upto`."""

    upto: Count
    snapshot: StateSnapshot


#: Operations that count only if their author has this session open.
SessionOperation = (
    ClaimPositions | AckPositions | NackPositions | Heartbeat | CloseSession | MarkDead | SkipTo
)
AnyOperation = Create | Configure | OpenSession | SessionOperation | ExpireSession | WriteSnapshot


class CompanionEntry(msgspec.Struct, frozen=True, array_like=True):
    """One payload of a companion channel.

    A private subscription belongs to the publisher of the entry, a shared one to its group.
    """

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    shared: bool
    name: Name
    operation: AnyOperation


_encode = msgspec.msgpack.Encoder().encode
_entries: msgspec.msgpack.Decoder[CompanionEntry] = msgspec.msgpack.Decoder(CompanionEntry)


def encode(shared: bool, name: str, operation: AnyOperation) -> bytes:
    """The payload that carries an operation."""
    return _encode(CompanionEntry(VERSION, shared, name, operation))


def decode(payload: bytes) -> CompanionEntry | None:
    """The entry in a payload; None if the payload is not an entry of this version."""
    try:
        return _entries.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
