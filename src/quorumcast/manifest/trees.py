"""Makes the manifests of a tree of cells: one root, and children that carry on its channels.

Each cell has an operator, keys and clients of its own. A client of the tree has the same name, and
other keys, in every cell. The broker `broker-1` of the cell `cell-2` is the client
`cell-2-broker-1` of the parent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import LAST_PORT
from quorumcast.core.quorum import minimum_brokers
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import make_cell
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry, ChannelOrigin, Manifest
from quorumcast.manifest.origins import check_tree
from quorumcast.manifest.policy import Policy

ROOT = "root"
OPERATOR = NodeId("operator")
#: More brokers than this are not for one machine, and ports of status pages would overlap.
MAX_TREE_BROKERS = 1000

#: The cells of a tree, parents first, each with the name of its parent; "" for the root.
Shape = Mapping[str, str]


class TreeDesign(msgspec.Struct, frozen=True, kw_only=True):
    """What a tree is made of."""

    shape: Shape
    #: The channels of the root.
    channels: tuple[ChannelEntry, ...]
    #: How many brokers of each cell may be faulty.
    f: int = 1
    clients: tuple[str, ...] = ()
    #: By cell and channel: the predicate of the rows that the cell carries on, of those that its
    #: parent has.
    where: Mapping[tuple[str, str], str] = {}
    host: str = "127.0.0.1"
    #: The first of as many ports in a row; or one port for each broker.
    base_port: int = 7100
    ports: Sequence[int] = ()
    #: Further fields of all manifests, such as the digest.
    fields: dict[str, Any] = {}


class PlannedCell(msgspec.Struct, frozen=True):
    """One cell of a tree."""

    parent: str
    manifest: Manifest
    operator: Identity
    #: Of its brokers, and of its clients without the brokers of children.
    identities: dict[NodeId, Identity]
    #: By its brokers: who they are in the parent.
    uplinks: dict[NodeId, Identity]


def full_tree(levels: int, fanout: int) -> dict[str, str]:
    """The shape of a tree in which every cell above the last level has as many children."""
    if levels < 1 or fanout < 1:
        raise UsageError("a tree has 1 level or more, and 1 child or more per cell")
    shape, level = {ROOT: ""}, [ROOT]
    for _ in range(levels - 1):
        below = {
            f"{'cell' if name == ROOT else name}-{number}": name
            for name in level
            for number in range(1, fanout + 1)
        }
        shape |= below
        level = list(below)
        if len(shape) > MAX_TREE_BROKERS:
            break  # `make_tree` refuses it
    return shape


def make_tree(plan: TreeDesign) -> dict[str, PlannedCell]:
    """The cells of a tree by name, parents first; checked, and yet to be signed."""
    if plan.f < 0:
        raise UsageError(f"f={plan.f} makes no sense; say how many brokers may be faulty")
    sizes = tree_sizes(plan)
    ports = _ports(plan, sum(sizes.values()))
    operators = {name: Identity.generate(OPERATOR) for name in plan.shape}
    uplinks = {
        name: {broker: Identity.generate(_client_of(name, broker)) for broker in _brokers(size)}
        if plan.shape[name]
        else {}
        for name, size in sizes.items()
    }
    made: dict[str, PlannedCell] = {}
    for name, parent in plan.shape.items():
        below = [child for child, above in plan.shape.items() if above == name]
        guests = {one.name: one for child in below for one in uplinks[child].values()}
        channels = plan.channels
        if parent:
            above = made[parent].manifest
            channels = tuple(
                _carried(entry, above, plan.where.get((name, entry.name), ""))
                for entry in plan.channels
            )
        manifest, identities = make_cell(
            name,
            [(broker, plan.host, next(ports)) for broker in _brokers(sizes[name])],
            plan.f,
            (*plan.clients, *guests),
            [_with_rights(entry, plan.clients, guests) for entry in channels],
            operator=operators[name],
            identities=guests,
            **plan.fields,
        )
        own = {node: one for node, one in identities.items() if node not in guests}
        if OPERATOR in own:
            raise UsageError(f"no node can be called {OPERATOR!r}; choose another name")
        made[name] = PlannedCell(parent, manifest, operators[name], own, uplinks[name])
    check_tree(cell.manifest for cell in made.values())
    return made


def brokers_needed(policies: Iterable[Policy], f: int) -> int:
    """How many brokers a cell with channels of these policies needs."""
    return max((minimum_brokers(p.protection, f, p.broadcast) for p in policies), default=f + 1)


def relay_policy(policy: Policy) -> Policy:
    """The policy with which a child carries on a channel.

    A child keeps in memory what the parent keeps there. Of what the parent keeps on disk it keeps
    the usual number.
    """
    limits = None if policy.durable else policy.limits
    return Policy.named("relay-total" if policy.total else "relay", limits=limits)


def tree_sizes(plan: TreeDesign) -> dict[str, int]:
    """The number of brokers of each cell."""
    root = brokers_needed((entry.policy for entry in plan.channels), plan.f)
    child = brokers_needed((relay_policy(entry.policy) for entry in plan.channels), plan.f)
    return {name: child if parent else root for name, parent in plan.shape.items()}


def _ports(plan: TreeDesign, count: int) -> Iterator[int]:
    if plan.ports:
        return iter(plan.ports)
    room = min(MAX_TREE_BROKERS, LAST_PORT + 1 - plan.base_port)
    if count > room:
        raise UsageError(
            f"this tree has {count:,} brokers or more, and from port {plan.base_port} on there is "
            f"room for {max(room, 0):,}; make fewer levels or children, or begin at a lower port"
        )
    return itertools.count(plan.base_port)


def _brokers(count: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(f"broker-{number}") for number in range(1, count + 1))


def _client_of(cell: str, broker: NodeId) -> NodeId:
    """The name of a child's broker in the parent."""
    return NodeId(f"{cell}-{broker}")


def _carried(entry: ChannelEntry, parent: Manifest, where: str) -> ChannelEntry:
    """The channel of a child that carries on one of its parent, or some of its rows."""
    above = parent.channel(entry.name)
    if above is not None and above.carried:
        where = f"({above.carried}) AND ({where})" if where else above.carried
    return msgspec.structs.replace(
        entry,
        policy=relay_policy(entry.policy),
        publishers=(),
        groups=(),
        origin=ChannelOrigin(parent.cell, parent.operator, entry.name, where),
    )


def _with_rights(
    entry: ChannelEntry, clients: Sequence[str], guests: Mapping[NodeId, Identity]
) -> ChannelEntry:
    """Let brokers of children subscribe everywhere, and publish nowhere."""
    publishers, subscribers = entry.publishers, entry.subscribers
    if EVERYONE in publishers and guests:
        publishers = tuple(clients)
    if EVERYONE not in subscribers:
        subscribers = (*subscribers, *guests)
    return msgspec.structs.replace(entry, publishers=publishers, subscribers=subscribers)
