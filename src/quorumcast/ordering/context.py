"""The context of a log: its broker, its cell, its channels and its disk."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.core.machine import ArchiveReader
from quorumcast.crypto.digest import Hasher
from quorumcast.crypto.keyring import Keyring
from quorumcast.ordering.log import OrderedLog


class LogContext(msgspec.Struct):
    """Facts and callbacks that the parts of one log share; they change with the epoch."""

    members: tuple[NodeId, ...]
    keyring: Keyring
    hash: Hasher
    #: The limits of a stream's channel.
    limits: Callable[[Stream], Limits]
    #: Whether a stream belongs to this log and its publisher has the right to it.
    may_publish: Callable[[Stream], bool]
    #: The order of a channel.
    log_of: Callable[[Channel], OrderedLog | None]
    #: Drawn anew whenever this broker starts.
    life: bytes
    #: Called with a peer and the life that it says it is in.
    hear_life: Callable[[NodeId, bytes], None] = lambda peer, life: None
    #: The present epoch of this broker.
    epoch: int = 1
    #: The epoch of a manifest that may follow it; 0 if it may not.
    follows: Callable[[bytes], int] = lambda data: 0
    #: The disk, if the log is kept on one.
    archive: ArchiveReader | None = None

    @property
    def me(self) -> NodeId:
        """The name of this broker."""
        return self.keyring.identity.name

    @property
    def peers(self) -> tuple[NodeId, ...]:
        """The other brokers."""
        return tuple(member for member in self.members if member != self.me)
