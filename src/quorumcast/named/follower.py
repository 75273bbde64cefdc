"""Following one named subscription through the operations of its companion channel.

Whoever reads the companion from its first operation on simply applies what it reads. Companions
are retained for a while only, so most readers begin in the middle, at operation `since`, and need a
*root* to begin with:

- a `Snapshot` whose `upto` is not before `since - 1`, by somebody whom the reader trusts: the owner
  of a private subscription, a member (by the reader's own manifest) of a shared one. What was read
  after `upto` and before the snapshot is applied to it, unless a `Create` is among that;
- a `Create` whose `upto` is not before `since - 1`: its author had read everything up to there, and
  the reader has read everything since, so both know that no other `Create` came in between. Its
  author must be trusted as well, unless the reader has read from the first operation on: then the
  order itself says everything.

Two consumers that create the same subscription at once therefore make one: the second `Create` is
void for everybody. Whoever follows already takes no root: it knows the state.

A shared subscription is governed by the operator's own words: `Create` and `Configure` carry the
signed manifest (the *charter*), so who was a member when is the same for every reader, whatever
manifest it holds itself.
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
    Configure,
    Create,
    Entry,
    Settings,
    Snapshot,
    decode,
)
from quorumcast.named.state import Charter, State, listed

#: Operations that a reader without a root keeps; a snapshot that needs older ones is of no use.
MAX_EARLY = 4096

Charters = Callable[[bytes], Charter | None]
Early = tuple[int, NodeId, AnyOperation]


class Follower:
    """Computes the state of one subscription from what its reader feeds it, in order."""

    __slots__ = (
        "_charters",
        "_created",
        "_early",
        "_owner",
        "_since",
        "_trusted",
        "name",
        "operations",
        "rooted",
        "seen",
        "state",
    )

    def __init__(
        self,
        name: str,
        owner: NodeId | None,
        since: int,
        trusted: Callable[[NodeId], bool],
        charters: Charters = lambda data: None,
    ) -> None:
        self.name = name
        #: Whose it is; None for a shared one.
        self._owner = owner
        #: The first operation after which nothing is missing.
        self._since = since
        #: Whose snapshots this reader believes.
        self._trusted = trusted
        self._charters = charters
        #: None until there is a root.
        self.state: State | None = None
        #: What was read before the root, at most MAX_EARLY.
        self._early: deque[Early] = deque()
        #: The newest `Create` in that, by whomever.
        self._created = 0
        #: The last operation (of any subscription) that was fed.
        self.seen = since - 1
        #: Where the newest `Create` or `Snapshot` that others can begin with stands.
        self.rooted = 0
        #: Operations since then.
        self.operations = 0

    @property
    def shared(self) -> bool:
        """Whether it belongs to a group."""
        return self._owner is None

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"early": len(self._early), **({} if self.state is None else self.state.sizes())}

    def take(self, position: int, author: NodeId, payloads: Iterable[bytes]) -> None:
        """The operations of the next publication of the companion."""
        for payload in payloads:
            entry = decode(payload)
            if entry is not None and self._concerns(author, entry):
                self._on_operation(position, author, entry.operation)
        self.seen = position

    def _concerns(self, author: NodeId, entry: Entry) -> bool:
        if entry.name != self.name or entry.shared != self.shared:
            return False
        return self.shared or holder(author) == self._owner

    def _on_operation(self, position: int, author: NodeId, operation: AnyOperation) -> None:
        match operation:
            case Create():
                self._on_create(position, author, operation)
            case Snapshot():
                self._on_snapshot(position, author, operation)
            case _ if self.state is None:
                self._early.append((position, author, operation))
                if len(self._early) > MAX_EARLY:
                    self._since = self._early.popleft()[0] + 1
            case _:
                self.operations += 1
                self._apply(position, author, operation)

    def _apply(self, position: int, author: NodeId, operation: AnyOperation) -> None:
        if self.state is None:
            return
        charter: Charter | None = None
        if isinstance(operation, Configure) and self.shared:
            charter = self._charters(operation.charter)
            if charter is None:
                return
        self.state.apply(position, author, operation, charter)

    # ------------------------------------------------------------------ roots

    def _on_create(self, position: int, author: NodeId, create: Create) -> None:
        charter = Charter(0, (holder(author),), create.settings)
        if self.shared:
            found = self._charters(create.charter)
            if found is None or not listed(author, found.members):
                return
            charter = found
        state = self.state
        if state is None:
            known = self._since - 1 <= create.upto and self._created <= create.upto
            self._created = position
            if not known or not (self._since == 1 or self._trusted(author)):
                return
        elif state.root > create.upto or charter.epoch < state.epoch:
            return  # a newer charter speaks for itself: whom it adds need not wait for a member
        self.state = State(position, create.start, charter.members, charter.settings, charter.epoch)
        self._early.clear()
        self.rooted, self.operations = position, 0

    def _on_snapshot(self, position: int, author: NodeId, snapshot: Snapshot) -> None:
        if self.state is None:
            if not self._trusted(author) or not self._since - 1 <= snapshot.upto < position:
                return
            if self._created > snapshot.upto:
                return  # whether what it shows was begun anew since then cannot be known here
            self.state = State.restored(snapshot.picture)
            early, self._early = self._early, deque()
            for entry in early:
                if entry[0] > snapshot.upto:
                    self._apply(*entry)
        elif not self.state.may(author):
            return
        self.rooted, self.operations = position, 0


def charter_of(manifest: Manifest, group: Group) -> Charter:
    """What a manifest says of a group."""
    settings = Settings(group.max_attempts, group.ack_timeout_ms, group.dead_letter)
    return Charter(manifest.epoch, group.members, settings)


def charters_of(cell: str, operator: bytes, channel: str, name: str) -> Charters:
    """Reads what the operator of this cell signed about a group; None if it did not."""
    read: dict[bytes, Charter | None] = {}

    def charter(data: bytes) -> Charter | None:
        if data not in read:
            read.clear()  # one at a time: members write the same one
            read[data] = _read_charter(data, cell, operator, channel, name)
        return read[data]

    return charter


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
