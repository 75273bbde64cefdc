"""What consumers of a named subscription write into its channel's companion.

The companion of `orders` is the channel `orders/subscriptions`. It has a total order too, so
everybody who reads it sees the same operations in the same sequence and computes the same state
(`named.state`). Each payload there is one `Entry`; what is none is ignored by everybody alike.

| operation | says |
| --- | --- |
| `Create` | the subscription begins at a position; what it was before (up to `upto`) is void |
| `Configure` | other settings, or another list of members |
| `Join` | a new session of a consumer; whatever its earlier one held is free again |
| `Claim` | give me so many positions, of those before `end` |
| `Ack`, `Nack` | these are done; these are to come again |
| `Beat` | I am still at work |
| `Leave` | I go; of what I hold my application has seen those in `touched` |
| `Release` | that consumer has done nothing since operation `seen`: free what it holds |
| `Dead` | this one failed too often and lies on the dead-letter channel, if there is one |
| `Skip` | the cell holds nothing before this position any longer |
| `Snapshot` | the state after operation `upto`, for whoever cannot read that far back |
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.core.ids import Count, Positive
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest.groups import MAX_ATTEMPTS, MAX_MEMBERS_NAMED, MAX_TIMEOUT_MS

VERSION = 1

#: Consumers of one subscription at the same time.
MAX_MEMBERS = 64
#: Positions that one consumer may hold.
MAX_CLAIMED = 256
#: Dead positions that a state names; further ones are counted.
MAX_DEAD = 64
#: Ranges in one operation.
MAX_RANGES = 256
MAX_CHARTER = 4 * 1024 * 1024

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Attempt = Annotated[int, Meta(ge=0, le=2**31)]
Ranges = Annotated[tuple[tuple[Positive, Positive], ...], Meta(max_length=MAX_RANGES)]


class Settings(msgspec.Struct, frozen=True, array_like=True):
    """How often a publication is tried, for how long, and where it goes then."""

    #: Deliveries before a publication is given up; 0 for no end.
    max_attempts: Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)] = 0
    #: A consumer without a sign of life for so long loses what it holds.
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] = 30_000
    #: The channel for what is given up; "" for none.
    dead_letter: Annotated[str, Meta(max_length=MAX_NAME)] = ""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A consumer at work: its session, and the operation that was its last sign of life."""

    consumer: Name
    session: Positive
    seen: Count


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    """A position that a consumer holds, and the how-manieth attempt this is."""

    position: Positive
    consumer: Name
    attempt: Attempt


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """A state, written down."""

    root: Positive
    epoch: Count
    allowed: Annotated[tuple[Name, ...], Meta(max_length=MAX_MEMBERS_NAMED)]
    settings: Settings
    next: Positive
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)]
    held: Annotated[tuple[Claimed, ...], Meta(max_length=MAX_MEMBERS * MAX_CLAIMED)]
    pool: Annotated[
        tuple[tuple[Positive, Attempt], ...], Meta(max_length=2 * MAX_MEMBERS * MAX_CLAIMED)
    ]
    dead: Annotated[tuple[Positive, ...], Meta(max_length=MAX_DEAD)]
    dead_count: Count
    redelivered: Count


class Operation(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all operations."""


class Create(Operation, frozen=True, array_like=True, tag=True):
    """Begin at a position. Void if another `Create` took effect after operation `upto`."""

    upto: Count
    start: Positive
    settings: Settings
    #: For a shared subscription the manifest that declares it, as its operator signed it.
    charter: Annotated[bytes, Meta(max_length=MAX_CHARTER)] = b""


class Configure(Operation, frozen=True, array_like=True, tag=True):
    """Other settings; for a shared subscription those of a newer manifest."""

    settings: Settings
    charter: Annotated[bytes, Meta(max_length=MAX_CHARTER)] = b""


class Join(Operation, frozen=True, array_like=True, tag=True):
    """A consumer begins a session."""

    session: Positive


class Claim(Operation, frozen=True, array_like=True, tag=True):
    """A consumer wants positions: those that are to come again first, then new ones."""

    session: Positive
    count: Annotated[int, Meta(ge=1, le=MAX_CLAIMED)]
    end: Positive


class Ack(Operation, frozen=True, array_like=True, tag=True):
    """These are done."""

    session: Positive
    ranges: Ranges


class Nack(Operation, frozen=True, array_like=True, tag=True):
    """These are to come again."""

    session: Positive
    ranges: Ranges


class Beat(Operation, frozen=True, array_like=True, tag=True):
    """A sign of life."""

    session: Positive


class Leave(Operation, frozen=True, array_like=True, tag=True):
    """A consumer ends its session; what its application never saw counts as no attempt."""

    session: Positive
    touched: Ranges = ()


class Release(Operation, frozen=True, array_like=True, tag=True):
    """A consumer was silent for too long; void if it did anything after operation `seen`."""

    consumer: Name
    session: Positive
    seen: Count


class Dead(Operation, frozen=True, array_like=True, tag=True):
    """A position that failed too often is given up."""

    session: Positive
    position: Positive


class Skip(Operation, frozen=True, array_like=True, tag=True):
    """New positions begin here: the cell no longer holds those before."""

    session: Positive
    upto: Positive


class Snapshot(Operation, frozen=True, array_like=True, tag=True):
    """The state after operation `upto`."""

    upto: Count
    picture: Picture


AnyOperation = (
    Create | Configure | Join | Claim | Ack | Nack | Beat | Leave | Release | Dead | Skip | Snapshot
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One payload of a companion channel.

    A private subscription belongs to whoever published the entry; a shared one to its group.
    """

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    shared: bool
    name: Name
    operation: AnyOperation


_encode = msgspec.msgpack.Encoder().encode
_entries: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


def encode(shared: bool, name: str, operation: AnyOperation) -> bytes:
    """An operation as a payload."""
    return _encode(Entry(VERSION, shared, name, operation))


def decode(payload: bytes) -> Entry | None:
    """The entry in a payload; None if there is none that we understand."""
    try:
        return _entries.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
