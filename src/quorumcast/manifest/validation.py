"""Validation of manifests: other packages rely on everything that is refused here.

Each refusal is one sentence that says what to change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import LAST_PORT, MAX_CHAIN, MAX_NAME, Limits
from quorumcast.core.quorum import Broadcast, check_cell, minimum_brokers
from quorumcast.crypto.identity import can_exchange
from quorumcast.manifest.groups import check_group
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry, LogTerms, Manifest
from quorumcast.manifest.origins import check_origins_differ, check_own_origin
from quorumcast.manifest.policy import Policy

KEY_SIZE = 32
#: Keeps the numbers of regencies, which grow from epoch to epoch, within what a message can hold.
MAX_EPOCH = 2**28

# Names are used in key derivations, file names and printed streams ("orders/alice@1"), so they must
# not contain a separator of these. Channels may be paths.
_NODE_NAME = re.compile(r"\w[\w.:+-]*")
_CHANNEL_NAME = re.compile(r"\w[\w.:+/-]*")


def check_manifest(manifest: Manifest) -> None:
    """Raise `UsageError` for a manifest that no correct node should follow."""
    _check_name("cell", manifest.cell, _CHANNEL_NAME)
    if not 1 <= manifest.epoch <= MAX_EPOCH:
        raise UsageError(f"epoch {manifest.epoch} is not an epoch; the first one is 1")
    _ = manifest.hash, manifest.link_mac  # both refuse what is unknown or broken
    if len(manifest.operator) != KEY_SIZE:
        raise UsageError("the operator's key is not an Ed25519 public key of 32 bytes")
    _check_nodes(manifest)
    _check_addresses(manifest)
    _check_channels(manifest)


def _check_nodes(manifest: Manifest) -> None:
    if not manifest.brokers:
        raise UsageError(f"cell {manifest.cell!r} has no brokers; name at least one")
    if manifest.f < 0:
        raise UsageError(f"f={manifest.f} makes no sense; say how many brokers may be faulty")
    if manifest.f >= len(manifest.brokers):
        raise UsageError(
            f"f={manifest.f} leaves no correct broker among {len(manifest.brokers)}; "
            "add brokers or lower f"
        )
    for node in manifest.nodes:
        _check_name("node", node.id, _NODE_NAME)
        if len(node.verify_key) != KEY_SIZE or not can_exchange(node.exchange_key):
            raise UsageError(f"the keys of {node.id!r} are unusable; make its identity anew")
    _check_unique("node", (node.id for node in manifest.nodes))


def _check_addresses(manifest: Manifest) -> None:
    for broker in manifest.brokers:
        if not broker.host:
            raise UsageError(f"broker {broker.id!r} has no host; name one")
        if not 1 <= broker.port <= LAST_PORT:
            raise UsageError(
                f"broker {broker.id!r} has port {broker.port}; choose one from 1 to {LAST_PORT}"
            )
    _check_unique("address", (broker.address for broker in manifest.brokers))


def _check_channels(manifest: Manifest) -> None:
    for channel in manifest.channels:
        _check_name("channel", channel.name, _CHANNEL_NAME)
    _check_unique("channel", (channel.name for channel in manifest.channels))
    check_origins_differ(manifest)
    for channel in manifest.channels:
        _check_channel(manifest, channel)
    for terms in manifest.kept_terms or ():
        _check_terms(manifest, terms)


def _check_channel(manifest: Manifest, channel: ChannelEntry) -> None:
    try:
        channel.policy.check()
        if channel.schema:
            channel.arrow_schema()
    except UsageError as error:
        raise UsageError(f"channel {channel.name!r}: {error}") from None
    # Byzantine protection needs 3f+1 brokers, which is also the pool that chains need.
    policy = channel.policy
    check_cell(len(manifest.brokers), manifest.f, policy.protection, channel.name, policy.broadcast)
    if policy.chained and manifest.quorums.chain_length > MAX_CHAIN:
        raise UsageError(
            f"channel {channel.name!r} would need chains of {manifest.quorums.chain_length} "
            f"brokers, and {MAX_CHAIN} is the longest; lower f or use 'ab'"
        )
    known = {client.id for client in manifest.clients}
    for name in (*channel.publishers, *channel.subscribers):
        if name != EVERYONE and name not in known:
            raise UsageError(
                f"channel {channel.name!r} gives rights to {name!r}, which is not a client of the "
                f"cell; add the client or write {EVERYONE!r} for every client"
            )
    check_own_origin(manifest, channel)
    if channel.groups:
        _check_groups(manifest, channel)


def _check_terms(manifest: Manifest, terms: LogTerms) -> None:
    """Refuse a log that could have no channel in this cell."""
    log = terms.log.value
    limits = Limits(pipeline=terms.pipeline, checkpoint=terms.checkpoint)
    total = Policy(protection=terms.log, broadcast=Broadcast.CONSENSUS, limits=limits)
    try:
        total.check()
    except UsageError as error:
        raise UsageError(f"the kept terms of the {log!r} log: {error}") from None
    needed = minimum_brokers(terms.log, manifest.f, Broadcast.CONSENSUS)
    if len(manifest.brokers) < needed:
        raise UsageError(
            f"the log of deleted {total.name!r} channels decides which epoch follows, and needs "
            f"{needed} brokers to tolerate f={manifest.f}; leave as many, or lower f first"
        )


def _check_groups(manifest: Manifest, channel: ChannelEntry) -> None:
    _check_unique(f"group of channel {channel.name!r}", (g.name for g in channel.groups))
    for group in channel.groups:
        _check_name("group", group.name, _NODE_NAME)
        check_group(manifest, channel, group)


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
