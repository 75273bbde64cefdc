"""What a driver and a broker ask of a store, and where stores are looked up.

A store of another package is an entry point of the group `quorumcast.stores`; `quorumcast broker
--store NAME` uses it. Which store a broker has concerns nobody else: the manifest does not name it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from quorumcast.core.machine import ArchiveReader, Record
from quorumcast.core.plugins import Plugin, Registry

#: The version of `StoreKind` and of what it refers to.
CONTRACT = 1
#: The built-in store.
SQLITE = "sqlite"


class StoreStatus(msgspec.Struct, frozen=True):
    """The state of a store, for `/status`, `/metrics` and the log."""

    #: 1 while the disk is full, else 0.
    full: int
    #: Bytes of records that are not on disk yet, and the most that there ever were.
    waiting_bytes: int
    most_waiting_bytes: int
    #: Sizes of the database and of its write-ahead log.
    file_bytes: int
    log_bytes: int
    #: Sizes of the files with archived records, and damaged records found in them since the start.
    archive_bytes: int
    archive_damaged: int


class Store(Protocol):
    """Keeps the records of a machine (`runtime.store.store.DiskStore`).

    A record replaces the one of its kind at the same address (`owner`, `place`). Changes reach the
    disk in the order in which they were asked for, and survive a power failure from the moment in
    which `done` is called.
    """

    @property
    def archive(self) -> ArchiveReader:
        """Reads archived records."""

    def load(self) -> list[Record]:
        """Every record on disk at the start but archived ones, in the order of writing."""

    def save(self, record: Record, done: Callable[[], None], *, lazy: bool = False) -> None:
        """Write a record; call `done` on the loop, later, when it is on disk.

        A lazy one may wait a moment for others.
        """

    def forget(self, kind: type[Record], owner: str, below: int, since: int = 0) -> None:
        """Remove the records of a kind and owner at places from `since` up to below `below`."""

    def watch(self, on_full: Callable[[bool], None]) -> None:
        """Call `on_full` when the disk becomes full, and when it has room again."""


class BrokerStore(Store, Protocol):
    """A store that a broker opens, shows and closes."""

    def status(self) -> StoreStatus:
        """The present state."""

    async def close(self) -> None:
        """Write what waits and release the files."""


class OpenStore(Protocol):
    """Opens or creates a store; raises `UsageError` if it cannot be used."""

    def __call__(
        self,
        path: Path,
        kinds: Sequence[type[Record]],
        *,
        holder: str,
        on_failure: Callable[[BaseException], None],
    ) -> BrokerStore:
        """`path`: the file or directory. `kinds`: all records there are. `holder`: the full name
        of the broker that owns it, so that another broker's is recognised. `on_failure`: stops the
        broker, since what is not on disk must never be acknowledged.
        """


class StoreKind(Plugin, frozen=True, kw_only=True):
    """A kind of store."""

    open: OpenStore


#: Stores by name.
STORES = Registry(
    "quorumcast.stores",
    "store",
    StoreKind,
    CONTRACT,
    {SQLITE: "quorumcast.runtime.store.store:KIND"},
)
