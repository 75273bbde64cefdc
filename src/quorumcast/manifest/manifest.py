"""The manifest: the signed document that defines a cell, and its `Directory`.

It lists the brokers with addresses and public keys, the clients with theirs, the channels with
policies and rights, f, and the algorithms. The operator signs it (`manifest.files`), and controls
the cell by it. It changes only as a whole, from one *epoch* to the next. Pairwise keys are bound to
the epoch, so two nodes with different manifests cannot talk. A `Manifest` is a plain value;
`manifest.validation` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import CELL, Channel, NodeId, holder
from quorumcast.core.limits import Overflow
from quorumcast.core.quorum import Protection, Quorums
from quorumcast.core.statements import Basis
from quorumcast.crypto.digest import Hasher, hasher
from quorumcast.crypto.directory import Address, PublicKeys
from quorumcast.crypto.evidence import Court
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import Mac, mac_factory
from quorumcast.manifest.policy import Policy

if TYPE_CHECKING:
    import pyarrow as pa

#: What tells cells apart: the name, and the operator's public key.
CellKey = tuple[str, bytes]
#: In a channel's list of publishers or subscribers: every client of the manifest.
EVERYONE = "*"


class BrokerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A broker: its address and public keys."""

    id: NodeId
    host: str
    port: int
    verify_key: bytes
    exchange_key: bytes
    #: Its TLS certificate (PEM), where the cell uses TLS.
    certificate: str = ""

    @property
    def address(self) -> str:
        """Host and port, as people write them."""
        return str(Address(self.host, self.port))


class ClientEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client; the channels say where it may publish or subscribe."""

    id: NodeId
    verify_key: bytes
    exchange_key: bytes


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription that several consumers share: each publication goes to one of them."""

    name: str
    #: Clients, or EVERYONE for all that may subscribe. They trust one another.
    members: tuple[str, ...]
    #: Deliveries before a publication is given up; 0 for no end.
    max_attempts: int = 0
    #: Publications of a member that was silent for so long go to another member.
    ack_timeout_ms: int = 30_000
    #: The channel for publications that were given up; "" for none.
    dead_letter: str = ""


class ChannelOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The channel of a parent cell that a relayed channel carries on."""

    #: The name of the parent cell. Names of cells may collide: the operator's key tells them apart.
    cell: str
    operator: bytes
    #: The name of the channel there.
    channel: Channel
    #: The predicate of the rows that are carried on; "" for all.
    where: str = ""

    @property
    def parent(self) -> CellKey:
        """The parent cell."""
        return self.cell, self.operator


class ChannelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A channel: its policy, who may use it, and the columns of its events."""

    name: Channel
    policy: Policy
    publishers: tuple[str, ...] = (EVERYONE,)
    subscribers: tuple[str, ...] = (EVERYONE,)
    #: (column, type name) pairs; none for opaque payloads.
    schema: tuple[tuple[str, str], ...] = ()
    #: What happens when a subscriber's queue is full, unless the subscriber chooses.
    overflow: Overflow = Overflow.WAIT
    #: Subscriptions that consumers share; needs a companion channel (`manifest.groups`).
    groups: tuple[Group, ...] = ()
    #: The epoch in which it was created; 1 for all of the first epoch.
    since: int = 1
    #: Where a relayed channel comes from. Other channels have no such field, so that the signatures
    #: of earlier manifests hold.
    origin: ChannelOrigin | msgspec.UnsetType = msgspec.UNSET

    def group(self, name: str) -> Group | None:
        """The shared subscription of that name."""
        return next((group for group in self.groups if group.name == name), None)

    @property
    def carried(self) -> str:
        """The predicate of the rows that a relayed channel carries on; "" for all."""
        return self.origin.where if self.origin else ""

    @property
    def basis(self) -> Basis:
        """What a broker's signature means here: whether correct brokers can differ.

        Where some rows are carried on they can: a cut has the columns that the parent had when it
        was made, and a column that comes later may be in the publication already.
        """
        return Basis.FORWARDED if self.carried else self.policy.basis

    def arrow_schema(self) -> pa.Schema:
        """The schema of every publication on this channel."""
        # Not at the top: brokers never look inside a publication and start without Arrow.
        from quorumcast.manifest.schema import arrow_schema

        return arrow_schema(self.schema)


class LogTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all channels of a log share, from its first one on."""

    log: Protection
    #: Whether it has a store.
    durable: bool
    #: The largest limits of these names that its channels have.
    pipeline: int
    checkpoint: int

    def within(self, other: LogTerms | None) -> bool:
        """Whether a log with those other terms does all that one with these does."""
        return (
            other is not None
            and self.durable <= other.durable
            and self.pipeline <= other.pipeline
            and self.checkpoint <= other.checkpoint
        )


class Manifest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True
):  # `dict` holds the cached indexes below; they take no part in encoding or comparison
    """One epoch of a cell."""

    cell: str
    epoch: int
    f: int
    brokers: tuple[BrokerEntry, ...]
    clients: tuple[ClientEntry, ...] = ()
    channels: tuple[ChannelEntry, ...] = ()
    #: Terms of logs that had them from channels that were deleted. A manifest without any has no
    #: such field, so that the signatures of earlier ones hold.
    kept_terms: tuple[LogTerms, ...] | msgspec.UnsetType = msgspec.UNSET
    digest: str = "sha256"
    mac: str = "blake2b"
    #: Whether the cell only reproduces published figures and so may use broken algorithms. Other
    #: manifests have no such field, so that the signatures of earlier ones hold.
    reproduction: bool | msgspec.UnsetType = msgspec.UNSET
    #: The public key that signs this manifest and its successors.
    operator: bytes

    @cached_property
    def _brokers(self) -> dict[str, BrokerEntry]:
        return {broker.id: broker for broker in self.brokers}

    @cached_property
    def _clients(self) -> dict[str, ClientEntry]:
        return {client.id: client for client in self.clients}

    @cached_property
    def _channels(self) -> dict[str, ChannelEntry]:
        return {channel.name: channel for channel in self.channels}

    @cached_property
    def logs(self) -> Mapping[Protection, LogTerms]:
        """The terms of each log: those of its channels, and those that were kept for it."""
        found: dict[Protection, LogTerms] = {}
        kept = self.kept_terms or ()
        for terms in (*(_terms(channel.policy) for channel in self.channels), *kept):
            if terms is not None:
                known = found.get(terms.log, terms)
                found[terms.log] = LogTerms(
                    terms.log,
                    known.durable or terms.durable,
                    max(known.pipeline, terms.pipeline),
                    max(known.checkpoint, terms.checkpoint),
                )
        return found

    # ---------------------------------------------------------------- the cell

    @property
    def quorums(self) -> Quorums:
        """The thresholds of this cell."""
        return Quorums(len(self.brokers), self.f)

    @cached_property
    def broker_ids(self) -> tuple[NodeId, ...]:
        """The brokers in the order of the manifest, which all nodes share."""
        return tuple(broker.id for broker in self.brokers)

    @property
    def nodes(self) -> tuple[BrokerEntry | ClientEntry, ...]:
        """All nodes: brokers first, then clients."""
        return (*self.brokers, *self.clients)

    def broker(self, node: str) -> BrokerEntry | None:
        """The broker of that name."""
        return self._brokers.get(node)

    @property
    def needs_store(self) -> bool:
        """Whether brokers need a store to keep the promises of channels and logs."""
        return any(terms.durable for terms in self.logs.values()) or any(
            channel.policy.needs_store for channel in self.channels
        )

    def check_brokers(self, names: Iterable[str]) -> None:
        """Refuse a name that none of the brokers has."""
        for name in names:
            if name not in self._brokers:
                raise UsageError(
                    f"there is no broker {name!r} in cell {self.cell!r}; it has "
                    f"{', '.join(self.broker_ids)}"
                )

    def client(self, node: str) -> ClientEntry | None:
        """The client of that name or seat."""
        return self._clients.get(holder(node))

    def channel(self, name: str) -> ChannelEntry | None:
        """The channel of that name."""
        return self._channels.get(name)

    @property
    def key(self) -> CellKey:
        """What tells this cell from all others."""
        return self.cell, self.operator

    @cached_property
    def parents(self) -> Mapping[CellKey, tuple[ChannelEntry, ...]]:
        """The cells that channels of this one come from, and the channels of this one by cell."""
        found: dict[CellKey, tuple[ChannelEntry, ...]] = {}
        for entry in self.channels:
            if entry.origin:
                parent = entry.origin.parent
                found[parent] = (*found.get(parent, ()), entry)
        return found

    # ------------------------------------------------------------------ rights

    def may_publish(self, node: str, channel: str) -> bool:
        """Whether this node is a client that may publish on that channel."""
        entry = self.channel(channel)
        return entry is not None and self._listed(node, entry.publishers)

    def may_carry(self, publisher: str, channel: str) -> bool:
        """Whether brokers may hold a stream of this publisher on that channel.

        Publishers of a relayed channel are those of the origin: their names say nothing about
        nodes of this cell, and are not looked up here.
        """
        entry = self.channel(channel)
        if entry is None or not entry.policy.relayed:
            return entry is not None and self._listed(publisher, entry.publishers)
        return (publisher == CELL) == entry.policy.total

    def may_subscribe(self, node: str, channel: str) -> bool:
        """Whether this node is a client that may subscribe to that channel."""
        entry = self.channel(channel)
        return entry is not None and self._listed(node, entry.subscribers)

    def _listed(self, node: str, names: tuple[str, ...]) -> bool:
        client = holder(node)
        return client in self._clients and (EVERYONE in names or client in names)

    # ------------------------------------------- the directory of the transport

    @property
    def title(self) -> str:
        """What users call this directory."""
        return "manifest"

    @property
    def instance(self) -> str:
        """The name of the cell, on which two nodes must agree before they talk."""
        return self.cell

    @cached_property
    def keys(self) -> Mapping[NodeId, PublicKeys]:
        """The public keys of every node."""
        return {node.id: PublicKeys(node.verify_key, node.exchange_key) for node in self.nodes}

    def address(self, node: NodeId) -> Address | None:
        """The address of a broker; clients cannot be called."""
        broker = self.broker(node)
        return None if broker is None else Address(broker.host, broker.port, broker.certificate)

    def calls(self, node: NodeId) -> tuple[NodeId, ...]:
        """Brokers to which a node keeps links: clients call all of them, brokers the later ones."""
        brokers = self.broker_ids
        return brokers[brokers.index(node) + 1 :] if node in brokers else brokers

    def is_broker(self, node: NodeId) -> bool:
        """Whether this is a broker."""
        return node in self._brokers

    # -------------------------------------------------------------- algorithms

    @property
    def for_reproduction(self) -> bool:
        """Whether this cell is for reproducing published figures, and not for use."""
        return bool(self.reproduction)

    @property
    def warning(self) -> str:
        """What every user of the cell must know about its algorithms; empty if there is nothing."""
        if not self.for_reproduction:
            return ""
        return (
            f"cell {self.cell} reproduces published figures (MAC {self.mac}, digest {self.digest}) "
            "and is not for use"
        )

    @property
    def link_mac(self) -> Callable[[bytes], Mac]:
        """The MAC of links, as a function from key to `Mac`."""
        return mac_factory(self.mac, reproduction=self.for_reproduction)

    @property
    def hash(self) -> Hasher:
        """The digest of contents."""
        return hasher(self.digest, reproduction=self.for_reproduction)

    # -------------------------------------------------------------------- keys

    def keyring(self, identity: Identity) -> Keyring:
        """The keys that one node shares with all others."""
        entry = self.broker(identity.name) or self.client(identity.name)
        if entry is None:
            raise UsageError(
                f"{identity.name!r} is not in epoch {self.epoch} of cell {self.cell!r}; "
                "ask its operator to add it"
            )
        if (entry.verify_key, entry.exchange_key) != (identity.verify_key, identity.exchange_key):
            raise UsageError(
                f"the identity of {identity.name!r} has other keys than epoch {self.epoch} of cell "
                f"{self.cell!r} gives it; use the identity that belongs to this epoch, or ask the "
                "operator for a manifest with the new keys"
            )
        return Keyring(identity, self, self.link_mac)

    def court(self) -> Court:
        """Verifies evidence and receipts by this manifest."""
        return Court(self.cell, self.broker_ids, self.quorums, self.keys, self.hash)


def _terms(policy: Policy) -> LogTerms | None:
    """The terms that a channel with that policy asks of its log."""
    if policy.log is None:
        return None
    limits = policy.limits
    return LogTerms(policy.log, policy.journal, limits.pipeline, limits.checkpoint)
