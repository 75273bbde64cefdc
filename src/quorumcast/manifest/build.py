"""Makes manifests: the first one from names and addresses, and each next epoch from the last.

`manifest.files` signs and writes them. Seeds come from the operating system unless the caller gives
identities or a source of seeds, as repeatable simulations and tests do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId, holder
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.manifest import (
    BrokerEntry,
    ChannelEntry,
    ClientEntry,
    LogTerms,
    Manifest,
)
from quorumcast.manifest.validation import check_manifest

#: The seed of a node's identity, by its name.
SeedSource = Callable[[str], bytes]


class Keys(Protocol):
    """Anything that has a node's public keys: an `Identity`, `PublicKeys`, an entry."""

    @property
    def verify_key(self) -> bytes:
        """The public Ed25519 key."""

    @property
    def exchange_key(self) -> bytes:
        """The public X25519 key."""


def repeatable_seeds(label: str) -> SeedSource:
    """Seeds that anybody can compute, for simulations and tests only."""
    return lambda name: hashlib.sha256(f"{label}\0{name}".encode()).digest()


def make_cell(
    cell: str,
    brokers: Sequence[tuple[str, str, int]],
    f: int,
    clients: Sequence[str],
    channels: Sequence[ChannelEntry],
    digest: str = "sha256",
    mac: str = "blake2b",
    *,
    reproduction: bool = False,
    operator: Identity,
    epoch: int = 1,
    identities: Mapping[NodeId, Identity] | None = None,
    seed_source: SeedSource | None = None,
) -> tuple[Manifest, dict[NodeId, Identity]]:
    """A checked manifest for (name, host, port) brokers, and the identities of all its nodes."""
    given = identities or {}

    def identity(name: str) -> Identity:
        node = NodeId(name)
        if node in given:
            return given[node]
        return Identity(node, seed_source(name)) if seed_source else Identity.generate(node)

    made = {NodeId(name): identity(name) for name in (*(name for name, _, _ in brokers), *clients)}
    manifest = Manifest(
        cell=cell,
        epoch=epoch,
        f=f,
        brokers=tuple(
            _broker(NodeId(name), made[NodeId(name)], host, port) for name, host, port in brokers
        ),
        clients=tuple(_client(NodeId(name), made[NodeId(name)]) for name in clients),
        channels=tuple(channels),
        digest=digest,
        mac=mac,
        reproduction=reproduction or msgspec.UNSET,
        operator=operator.verify_key,
    )
    check_manifest(manifest)
    return manifest, made


def next_epoch(manifest: Manifest, **changes: Any) -> Manifest:
    """The manifest that follows, with these fields changed; checked, and yet to be signed."""
    fixed = [name for name in ("cell", "epoch", "kept_terms") if name in changes]
    if fixed:
        raise UsageError(f"the next epoch cannot choose its {fixed[0]!r}; make a new cell instead")
    known = [field.name for field in msgspec.structs.fields(Manifest)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise UsageError(f"a manifest has no {unknown[0]!r}; it has {', '.join(known)}")
    following = msgspec.structs.replace(
        manifest, epoch=manifest.epoch + 1, kept_terms=msgspec.UNSET, **changes
    )
    following = msgspec.structs.replace(
        following,
        channels=tuple(_dated(manifest, entry) for entry in following.channels),
        kept_terms=_kept_terms(manifest, following),
    )
    check_manifest(following)
    return following


def _dated(present: Manifest, entry: ChannelEntry) -> ChannelEntry:
    """A channel of the next epoch; a new one differs from a deleted one of its name."""
    known = present.channel(entry.name)
    return msgspec.structs.replace(entry, since=present.epoch + 1 if known is None else known.since)


def _kept_terms(present: Manifest, following: Manifest) -> tuple[LogTerms, ...] | msgspec.UnsetType:
    """The terms of logs whose channels in the next epoch do not have them between them."""
    logs = following.logs
    kept = [terms for log, terms in present.logs.items() if not terms.within(logs.get(log))]
    return tuple(kept) or msgspec.UNSET


def add_client(manifest: Manifest, node: NodeId, keys: Keys) -> Manifest:
    """The next epoch, with one more client."""
    _check_new(manifest, node)
    return next_epoch(manifest, clients=(*manifest.clients, _client(node, keys)))


def _check_new(manifest: Manifest, node: NodeId) -> None:
    if node in {other.id for other in manifest.nodes}:
        kind = "client" if manifest.broker(node) is None else "broker"
        raise UsageError(
            f"there is a {kind} {node!r} already; choose another name, or give it new keys with "
            f"'quorumcast epoch rotate {node}'"
        )


def remove_client(manifest: Manifest, node: NodeId) -> Manifest:
    """The next epoch, without a client and its rights: its identity is void from then on."""
    if manifest.client(node) is None or holder(node) != node:
        names = ", ".join(client.id for client in manifest.clients) or "none"
        raise UsageError(
            f"there is no client {node!r} in cell {manifest.cell!r}; its clients: {names}"
        )

    def without(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name != node)

    def revoked(channel: ChannelEntry) -> ChannelEntry:
        for group in channel.groups:
            if group.members == (node,):
                raise UsageError(
                    f"{node!r} is the only member of the shared subscription {group.name!r} of "
                    f"channel {channel.name!r}; give it another member, or end it with "
                    f"'quorumcast channel change {channel.name} --unshare {group.name}'"
                )
        return msgspec.structs.replace(
            channel,
            publishers=without(channel.publishers),
            subscribers=without(channel.subscribers),
            groups=tuple(
                msgspec.structs.replace(group, members=without(group.members))
                for group in channel.groups
            ),
        )

    return next_epoch(
        manifest,
        clients=tuple(client for client in manifest.clients if client.id != node),
        channels=tuple(map(revoked, manifest.channels)),
    )


def add_broker(
    manifest: Manifest, node: NodeId, keys: Keys, host: str, port: int, *, certificate: str = ""
) -> Manifest:
    """The next epoch, with one more broker at the end of the list."""
    _check_new(manifest, node)
    entry = _broker(node, keys, host, port, certificate)
    for other in manifest.brokers:
        if other.address == entry.address:
            raise UsageError(
                f"{other.id!r} has the address {other.address} already; choose another port or host"
            )
    return next_epoch(manifest, brokers=(*manifest.brokers, entry))


def remove_broker(manifest: Manifest, node: NodeId) -> Manifest:
    """The next epoch, without one of its brokers."""
    manifest.check_brokers([node])
    rest = tuple(broker for broker in manifest.brokers if broker.id != node)
    return next_epoch(manifest, brokers=rest)


def rotate(manifest: Manifest, node: NodeId, keys: Keys, *, certificate: str = "") -> Manifest:
    """The next epoch, with new keys for one node.

    A broker's certificate is made with its signing key, so a new key needs a new certificate.
    """
    if manifest.broker(node) is not None:
        brokers = tuple(
            _broker(node, keys, broker.host, broker.port, certificate)
            if broker.id == node
            else broker
            for broker in manifest.brokers
        )
        return next_epoch(manifest, brokers=brokers)
    if manifest.client(node) is not None:
        clients = tuple(
            _client(node, keys) if client.id == node else client for client in manifest.clients
        )
        return next_epoch(manifest, clients=clients)
    names = ", ".join(other.id for other in manifest.nodes)
    raise UsageError(f"there is no node {node!r} in cell {manifest.cell!r}; it has {names}")


def _broker(node: NodeId, keys: Keys, host: str, port: int, certificate: str = "") -> BrokerEntry:
    return BrokerEntry(node, host, port, keys.verify_key, keys.exchange_key, certificate)


def _client(node: NodeId, keys: Keys) -> ClientEntry:
    return ClientEntry(id=node, verify_key=keys.verify_key, exchange_key=keys.exchange_key)
