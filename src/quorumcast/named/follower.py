"""Computing the state of one named subscription while its reader may start late.

A reader that has every operation of the companion applies them in order. Brokers retain the
companion for a limited time, so most readers start at some later operation, `since`. Such a reader
needs a *root*, an operation from which the state can be computed:

- a `WriteSnapshot` with `upto >= since - 1`, by an author whom the reader trusts: the owner of a
  private subscription, or a member (by the reader's own manifest) of a shared one. The reader
  applies to it the operations that it has read after `upto`. It rejects the snapshot if there is a
  `Create` among them;
- a `Create` with `upto >= since - 1`. The author had read everything up to `upto`, and the reader
  has read everything since, so both know that there was no other `Create` in between. The reader
  must trust the author, unless it has read from the first operation on.

If two consumers create the same subscription concurrently, the second `Create` has no effect for
any reader. A reader that already knows the state does not need a root, and ignores snapshots.

The members of a shared subscription are part of its state: `Create` and `Configure` carry the
manifest as the operator signed it (the *charter*). All readers therefore agree on the members at
each operation, even if they hold different manifests themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId, holder
from quorumcast.manifest.files import parse_manifest
from quorumcast.manifest.manifest import Group, Manifest
from quorumcast.named.operations import (
    AnyOperation,
    CompanionEntry,
    Configure,
    Create,
    SubscriptionSettings,
    WriteSnapshot,
    decode,
)
from quorumcast.named.state import Charter, SubscriptionState, is_listed

#: Operations that a reader without a root buffers; it cannot use a snapshot that needs older ones.
MAX_BUFFERED = 4096

#: Verifies and reads a signed manifest; None if it does not declare the group.
CharterReader = Callable[[bytes], Charter | None]
#: Position on the companion, author and operation.
Positioned = tuple[int, NodeId, AnyOperation]


class Follower:
    """Computes the state of one subscription from the operations of its companion, in order."""

    __slots__ = (
        "_buffered",
        "_newest_create",
        "_owner",
        "_read_charter",
        "_since",
        "_trusted",
        "name",
        "newest_root",
        "operations_since_root",
        "read_upto",
        "state",
    )

    def __init__(
        self,
        name: str,
        owner: NodeId | None,
        since: int,
        trusted: Callable[[NodeId], bool],
        read_charter: CharterReader = lambda data: None,
    ) -> None:
        self.name = name
        #: Owner of a private subscription; None for a shared one.
        self._owner = owner
        #: The first operation from which on this reader knows all operations.
        self._since = since
        #: Whether this reader believes the snapshots of an author.
        self._trusted = trusted
        self._read_charter = read_charter
        #: None until there is a root.
        self.state: SubscriptionState | None = None
        #: Operations before the root, at most MAX_BUFFERED.
        self._buffered: deque[Positioned] = deque()
        #: Position of the newest `Create` that was read before the root, by any author.
        self._newest_create = 0
        #: The newest position of the companion (of any subscription) that was read.
        self.read_upto = since - 1
        #: Position of the newest operation that other readers can use as a root.
        self.newest_root = 0
        #: Operations of this subscription after `newest_root`.
        self.operations_since_root = 0

    @property
    def shared(self) -> bool:
        """Whether the subscription belongs to a group."""
        return self._owner is None

    def sizes(self) -> dict[str, int]:
        """The size of each container that peers fill."""
        state = {} if self.state is None else self.state.sizes()
        return {"buffered": len(self._buffered), **state}

    def read(self, position: int, author: NodeId, payloads: Iterable[bytes]) -> None:
        """Process the next publication of the companion."""
        for payload in payloads:
            entry = decode(payload)
            if entry is not None and self._concerns(author, entry):
                self._on_operation(position, author, entry.operation)
        self.read_upto = position

    def _concerns(self, author: NodeId, entry: CompanionEntry) -> bool:
        if entry.name != self.name or entry.shared != self.shared:
            return False
        return self.shared or holder(author) == self._owner

    def _on_operation(self, position: int, author: NodeId, operation: AnyOperation) -> None:
        match operation:
            case Create():
                self._on_create(position, author, operation)
            case WriteSnapshot():
                self._on_snapshot(position, author, operation)
            case _ if self.state is None:
                self._buffered.append((position, author, operation))
                if len(self._buffered) > MAX_BUFFERED:
                    self._since = self._buffered.popleft()[0] + 1
            case _:
                self.operations_since_root += 1
                self._apply(position, author, operation)

    def _apply(self, position: int, author: NodeId, operation: AnyOperation) -> None:
        if self.state is None:
            return
        charter: Charter | None = None
        if isinstance(operation, Configure) and self.shared:
            charter = self._read_charter(operation.charter)
            if charter is None:
                return
        self.state.apply(position, author, operation, charter)

    # ------------------------------------------------------------------ roots

    def _on_create(self, position: int, author: NodeId, create: Create) -> None:
        charter = Charter(0, (holder(author),), create.settings)
        if self.shared:
            found = self._read_charter(create.charter)
            if found is None or not is_listed(author, found.members):
                return
            charter = found
        state = self.state
        if state is None:
            complete = self._since - 1 <= create.upto and self._newest_create <= create.upto
            self._newest_create = position
            if not complete or not (self._since == 1 or self._trusted(author)):
                return
        elif state.root > create.upto or charter.epoch < state.epoch:
            # Membership in the present state is not required: the operator's signature on a charter
            # that is not older suffices, so a client that it adds need not wait for a member.
            return
        self.state = SubscriptionState(
            position, create.start, charter.members, charter.settings, charter.epoch
        )
        self._buffered.clear()
        self.newest_root, self.operations_since_root = position, 0

    def _on_snapshot(self, position: int, author: NodeId, operation: WriteSnapshot) -> None:
        if self.state is None:
            if not self._trusted(author) or not self._since - 1 <= operation.upto < position:
                return
            if self._newest_create > operation.upto:
                return  # that `Create` may have replaced the state in the snapshot
            self.state = SubscriptionState.from_snapshot(operation.snapshot)
            buffered, self._buffered = self._buffered, deque()
            for positioned in buffered:
                if positioned[0] > operation.upto:
                    self._apply(*positioned)
        elif not self.state.is_allowed(author):
            return
        self.newest_root, self.operations_since_root = position, 0


def charter_of(manifest: Manifest, group: Group) -> Charter:
    """The charter of a group in a manifest."""
    settings = SubscriptionSettings(group.max_attempts, group.ack_timeout_ms, group.dead_letter)
    return Charter(manifest.epoch, group.members, settings)


def charter_reader(cell: str, operator: bytes, channel: str, name: str) -> CharterReader:
    """A reader of signed manifests of this cell that returns the charter of one group."""
    cached: dict[bytes, Charter | None] = {}

    def read(data: bytes) -> Charter | None:
        if data not in cached:
            cached.clear()  # one entry is enough: members usually write the same manifest
            cached[data] = _read_charter(data, cell, operator, channel, name)
        return cached[data]

    return read


def _read_charter(
    data: bytes, cell: str, operator: bytes, channel: str, name: str
) -> Charter | None:
    try:
        manifest = parse_manifest(data, operator=operator)
    except UsageError:
        return None
    entry = manifest.channel(channel)
    group = None if entry is None else entry.group(name)
    if manifest.cell != cell or group is None:
        return None
    return charter_of(manifest, group)
