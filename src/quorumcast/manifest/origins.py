"""Checks the origins of relayed channels: which cell a channel comes from, and by which name.

A *child* cell carries on channels of a *parent* cell (`broadcast.relayed`). What can be seen in the
manifest of the child alone is checked with it. What needs the manifest of the parent is checked by
`check_origin`, and what needs all manifests of a tree by `check_tree`.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import CellKey, ChannelEntry, ChannelOrigin, Manifest

KEY_SIZE = 32

#: A channel of a tree: its cell, and its name there.
Place = tuple[CellKey, Channel]


def check_own_origin(manifest: Manifest, channel: ChannelEntry) -> None:
    """Refuse an origin that cannot be one, whatever the parent is like."""
    name, origin, policy = channel.name, channel.origin, channel.policy
    if not origin:
        if policy.relayed:
            raise UsageError(
                f"channel {name!r} has the policy {policy.name!r} and no origin, the channel of "
                "another cell that it carries on; 'quorumcast tree' makes such channels"
            )
        return
    if not policy.relayed:
        raise UsageError(
            f"channel {name!r} has an origin in cell {origin.cell!r} and the policy "
            f"{policy.title!r}, which publishes it here; make it with 'relay' or 'relay-total', or "
            "without an origin"
        )
    if not origin.cell or not origin.channel or len(origin.operator) != KEY_SIZE:
        raise UsageError(
            f"the origin of channel {name!r} must name a cell, a channel and the public key of "
            f"the cell's operator ({KEY_SIZE} bytes); copy them from the parent's manifest"
        )
    if origin.parent == manifest.key:
        raise UsageError(
            f"channel {name!r} has its origin in its own cell {manifest.cell!r}; name another cell"
        )
    if channel.publishers:
        raise UsageError(
            f"channel {name!r} comes from cell {origin.cell!r} and lists publishers, who cannot "
            "publish on it here; give it none, and give them the right there"
        )
    if policy.total and origin.channel != name:
        raise UsageError(
            f"channel {name!r} carries on the total order of {origin.channel!r}, whose contents "
            "bear that name; give it the same name"
        )


def check_origins_differ(manifest: Manifest) -> None:
    """Refuse two channels with one origin: everything would travel and be kept twice."""
    seen: dict[ChannelOrigin, Channel] = {}
    for entry in manifest.channels:
        if not entry.origin:
            continue
        twin = seen.setdefault(entry.origin, entry.name)
        if twin != entry.name:
            raise UsageError(
                f"channels {twin!r} and {entry.name!r} carry on the same channel "
                f"{entry.origin.channel!r} of cell {entry.origin.cell!r}; remove one"
            )


def check_origin(child: Manifest, channel: ChannelEntry, parent: Manifest) -> None:
    """Refuse a relayed channel that its parent does not have, or not so."""
    origin = channel.origin
    if not origin or origin.parent != parent.key:
        raise UsageError(
            f"channel {channel.name!r} does not come from cell {parent.cell!r} of this operator; "
            "give the manifest of the cell that its origin names"
        )
    found = parent.channel(origin.channel)
    where = f"channel {channel.name!r} of cell {child.cell!r}"
    if found is None:
        raise UsageError(
            f"{where} carries on {origin.channel!r}, which cell {parent.cell!r} does not have; it "
            f"has {', '.join(entry.name for entry in parent.channels) or 'none'}"
        )
    if found.policy.total != channel.policy.total:
        fitting = "relay-total" if found.policy.total else "relay"
        raise UsageError(
            f"{where} has the policy {channel.policy.name!r}, and {origin.channel!r} is a "
            f"{found.policy.name!r} channel; make it with {fitting!r}"
        )
    if child.digest != parent.digest:
        raise UsageError(
            f"{where} cannot vouch for contents under the digest {parent.digest!r} of cell "
            f"{parent.cell!r}, because its own cell uses {child.digest!r}; give both the same"
        )
    # Either cell may add columns behind the others first.
    shared = min(len(found.schema), len(channel.schema))
    opaque = (not found.schema, not channel.schema)
    if found.schema[:shared] != channel.schema[:shared] or opaque[0] != opaque[1]:
        raise UsageError(
            f"{where} has other columns than {origin.channel!r} of cell {parent.cell!r}; give it "
            "the same"
        )


def check_tree(manifests: Iterable[Manifest]) -> None:
    """Refuse cells of which a channel comes from itself, by way of others, or does not fit.

    Origins in cells that are not among these are not looked at.
    """
    cells = {manifest.key: manifest for manifest in manifests}
    for manifest in cells.values():
        for parent, entries in manifest.parents.items():
            for entry in entries:
                if parent in cells:
                    check_origin(manifest, entry, cells[parent])
    check_circles(cells.values())


def check_circles(manifests: Iterable[Manifest]) -> None:
    """Refuse cells of which a channel comes from itself, by way of others."""
    above: dict[Place, Place] = {}
    for manifest in manifests:
        for entry in manifest.channels:
            if entry.origin:
                above[manifest.key, entry.name] = (entry.origin.parent, entry.origin.channel)
    for start in above:
        path = [start]
        while (place := above.get(path[-1])) is not None and place not in path:
            path.append(place)
        if place is not None:
            way = " from ".join(f"{name!r} of {cell[0]!r}" for cell, name in [*path, place])
            raise UsageError(f"channels come from one another in a circle: {way}; cut it somewhere")
