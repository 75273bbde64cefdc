"""The manifest: the one document on which all nodes of a cell agree.

It names the brokers with their addresses and public keys, the clients with theirs, the channels
with their policies and rights, f, and the algorithms. The operator signs it (`manifest.files`);
whoever may change it controls the cell, and nobody else does. It changes only as a whole, from one
*epoch* to the next, and pairwise keys are bound to the epoch: no two nodes can talk while they hold
different views of who they are.

A `Manifest` is a plain value. `check` is the gate: every other room may rely on what it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, holder
from quorumcast.core.limits import MAX_CHAIN, MAX_NAME, Overflow
from quorumcast.core.quorum import Broadcast, Quorums, check_cell
from quorumcast.crypto.digest import Hasher, hasher
from quorumcast.crypto.identity import Identity, can_exchange
from quorumcast.crypto.keyring import Keyring, PublicKeys
from quorumcast.crypto.mac import mac_factory
from quorumcast.manifest.policy import Policy

if TYPE_CHECKING:
    import pyarrow as pa

#: In a channel's list of publishers or subscribers: every client of the manifest.
EVERYONE = "*"
KEY_SIZE = 32
#: Regencies of a log are counted from epoch to epoch, and must fit into a message as well.
MAX_EPOCH = 2**28

# Names become part of key derivations, file names and printed streams ("orders/alice@1"): no
# separator of these may be in them. Channels may be paths.
_NODE_NAME = re.compile(r"\w[\w.:+-]*")
_CHANNEL_NAME = re.compile(r"\w[\w.:+/-]*")


class BrokerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A broker: where it listens and how it is recognised."""

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
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClientEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A publisher or subscriber; which of the two, and where, is a matter of the channels."""

    id: NodeId
    verify_key: bytes
    exchange_key: bytes


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription that several consumers share: each publication goes to one of them."""

    name: str
    #: Clients, or EVERYONE who may subscribe. They trust one another.
    members: tuple[str, ...]
    #: Deliveries before a publication is given up; 0 for no end.
    max_attempts: int = 0
    #: A member without a sign of life for so long loses what it works on.
    ack_timeout_ms: int = 30_000
    #: Where what is given up goes; "" for nowhere.
    dead_letter: str = ""


class ChannelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A channel: its promise, who may use it, and the columns of its events."""

    name: Channel
    policy: Policy
    publishers: tuple[str, ...] = (EVERYONE,)
    subscribers: tuple[str, ...] = (EVERYONE,)
    #: (column, type name) pairs; none for opaque payloads.
    schema: tuple[tuple[str, str], ...] = ()
    #: What becomes of publications when the queue of a subscriber that does not say is full.
    overflow: Overflow = Overflow.WAIT
    #: Subscriptions that consumers share; needs a companion channel (`manifest.groups`).
    groups: tuple[Group, ...] = ()

    def group(self, name: str) -> Group | None:
        """The shared subscription of that name."""
        return next((group for group in self.groups if group.name == name), None)

    def arrow_schema(self) -> pa.Schema:
        """The schema of every publication on this channel."""
        # Brokers never look inside a publication: they start without loading Arrow.
        from quorumcast.manifest.schema import arrow_schema

        return arrow_schema(self.schema)


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
    digest: str = "sha256"
    mac: str = "blake2b"
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

    # ---------------------------------------------------------------- the cell

    @property
    def quorums(self) -> Quorums:
        """The thresholds of this cell."""
        return Quorums(len(self.brokers), self.f)

    @cached_property
    def broker_ids(self) -> tuple[NodeId, ...]:
        """The brokers, in the manifest's order, which is the order that all nodes share."""
        return tuple(broker.id for broker in self.brokers)

    @property
    def nodes(self) -> tuple[BrokerEntry | ClientEntry, ...]:
        """Everyone: brokers first, then clients."""
        return (*self.brokers, *self.clients)

    def broker(self, node: str) -> BrokerEntry | None:
        """The broker of that name."""
        return self._brokers.get(node)

    def client(self, node: str) -> ClientEntry | None:
        """The client of that name, or at that seat."""
        return self._clients.get(holder(node))

    def channel(self, name: str) -> ChannelEntry | None:
        """The channel of that name."""
        return self._channels.get(name)

    # ------------------------------------------------------------------ rights

    def may_publish(self, node: str, channel: str) -> bool:
        """Whether this node is a client that may publish on that channel."""
        entry = self.channel(channel)
        return entry is not None and self._listed(node, entry.publishers)

    def may_subscribe(self, node: str, channel: str) -> bool:
        """Whether this node is a client that may subscribe to that channel."""
        entry = self.channel(channel)
        return entry is not None and self._listed(node, entry.subscribers)

    def _listed(self, node: str, names: tuple[str, ...]) -> bool:
        client = holder(node)
        return client in self._clients and (EVERYONE in names or client in names)

    # -------------------------------------------------------------------- keys

    @property
    def hash(self) -> Hasher:
        """The digest of contents."""
        return hasher(self.digest)

    def directory(self) -> dict[NodeId, PublicKeys]:
        """The public keys of every node."""
        return {node.id: PublicKeys(node.verify_key, node.exchange_key) for node in self.nodes}

    def keyring(self, identity: Identity) -> Keyring:
        """The keys of one node towards all others."""
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
        return Keyring(identity, self.cell, self.epoch, self.directory(), mac_factory(self.mac))

    # ------------------------------------------------------------------- check

    def check(self) -> None:
        """Refuse a manifest that no correct node should follow."""
        _check_name("cell", self.cell, _CHANNEL_NAME)
        if not 1 <= self.epoch <= MAX_EPOCH:
            raise UsageError(f"epoch {self.epoch} is no epoch; the first one is 1")
        hasher(self.digest)
        mac_factory(self.mac)
        if len(self.operator) != KEY_SIZE:
            raise UsageError("the operator's key is not an Ed25519 public key of 32 bytes")
        self._check_nodes()
        self._check_addresses()
        self._check_channels()

    def _check_nodes(self) -> None:
        if not self.brokers:
            raise UsageError(f"cell {self.cell!r} has no brokers; name at least one")
        if self.f < 0:
            raise UsageError(f"f={self.f} makes no sense; say how many brokers may be faulty")
        if self.f >= len(self.brokers):
            raise UsageError(
                f"f={self.f} leaves no correct broker among {len(self.brokers)}; "
                "add brokers or lower f"
            )
        for node in self.nodes:
            _check_name("node", node.id, _NODE_NAME)
            if len(node.verify_key) != KEY_SIZE or not can_exchange(node.exchange_key):
                raise UsageError(f"the keys of {node.id!r} are unusable; make its identity anew")
        _check_unique("node", (node.id for node in self.nodes))

    def _check_addresses(self) -> None:
        for broker in self.brokers:
            if not broker.host:
                raise UsageError(f"broker {broker.id!r} has no host; name one")
            if not 1 <= broker.port <= 65535:
                raise UsageError(
                    f"broker {broker.id!r} has port {broker.port}; choose one from 1 to 65535"
                )
        _check_unique("address", (broker.address for broker in self.brokers))

    def _check_channels(self) -> None:
        for channel in self.channels:
            _check_name("channel", channel.name, _CHANNEL_NAME)
        _check_unique("channel", (channel.name for channel in self.channels))
        for channel in self.channels:
            self._check_channel(channel)

    def _check_channel(self, channel: ChannelEntry) -> None:
        try:
            channel.policy.check()
            if channel.schema:
                channel.arrow_schema()
        except UsageError as error:
            raise UsageError(f"channel {channel.name!r}: {error}") from None
        # Byzantine protection asks for 3f+1 brokers, which is also the pool that chains need.
        policy = channel.policy
        check_cell(len(self.brokers), self.f, policy.protection, channel.name, policy.broadcast)
        chained = channel.policy.broadcast is Broadcast.CHAIN
        if chained and self.quorums.chain_length > MAX_CHAIN:
            raise UsageError(
                f"channel {channel.name!r} would need chains of {self.quorums.chain_length} "
                f"brokers, and {MAX_CHAIN} is the longest; lower f or use 'ab'"
            )
        for name in (*channel.publishers, *channel.subscribers):
            if name != EVERYONE and name not in self._clients:
                raise UsageError(
                    f"channel {channel.name!r} gives rights to {name!r}, which is no client of the "
                    f"cell; add the client or write {EVERYONE!r} for every client"
                )
        if channel.groups:
            self._check_groups(channel)

    def _check_groups(self, channel: ChannelEntry) -> None:
        from quorumcast.manifest.groups import check_group

        _check_unique(f"group of channel {channel.name!r}", (g.name for g in channel.groups))
        for group in channel.groups:
            _check_name("group", group.name, _NODE_NAME)
            check_group(self, channel, group)


def _check_name(kind: str, name: str, allowed: re.Pattern[str]) -> None:
    if not name:
        raise UsageError(f"a {kind} has no name; give it one")
    if len(name) > MAX_NAME:
        raise UsageError(
            f"the {kind} name {name[:16]!r}… has {len(name)} characters; {MAX_NAME} are allowed"
        )
    if not allowed.fullmatch(name):
        slash = ", /" if "/" in allowed.pattern else ""
        raise UsageError(
            f"the {kind} name {name!r} must start with a letter or digit and go on with letters, "
            f"digits or any of _ . : + -{slash}"
        )


def _check_unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"the {kind} {name!r} appears twice; rename or remove one")
        seen.add(name)
