"""Clients that lie: a connected node commits a fault of publishers or subscribers.

The fault changes what the node's own machine sends. It has the node's keys and nobody else's, so it
can do no more than anybody who holds that identity.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from quorumcast.client.node import Node
from quorumcast.client.sync import SyncNode
from quorumcast.faults.cell.catalogue import check_fault, make_fault
from quorumcast.faults.cell.entry import FaultContext, Role


def make_client_lie(
    node: Node | SyncNode,
    fault: str,
    *,
    percent: int = 100,
    victims: Sequence[str] = (),
    seed: int = 0,
) -> None:
    """Make a connected client misbehave by a name of the catalogue, as publisher or subscriber.

    `percent` and `victims` are those of brokers' faults.
    """
    entry = check_fault(fault, Role.PUBLISHER, Role.SUBSCRIBER)
    context = FaultContext(
        node.name,
        node.manifest,
        node.manifest.keyring(node.identity),
        random.Random(seed),
        percent=percent,
        victims=tuple(victims),
    )
    node.set_faults(entry.role.value, (*node.faults(entry.role.value), make_fault(fault, context)))


def make_client_honest(node: Node | SyncNode) -> None:
    """The client is honest from now on; what it sent before stays sent."""
    for role in (Role.PUBLISHER, Role.SUBSCRIBER):
        node.set_faults(role.value, ())
