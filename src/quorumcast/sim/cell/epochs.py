"""A new epoch in the middle of a run, and the thief whose stolen key it made worthless.

The operator rotates the key of a client because somebody stole it. Every node adopts the new
manifest without a restart and every session is greeted anew. The thief then calls each broker in
the client's name with the secrets of the old epoch: to a cell that still honours them it *is* the
client.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Open, Publish
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import encode_parcel
from quorumcast.manifest.build import repeatable_seeds, rotate
from quorumcast.sim.cell.cells import CELL, Cell, identity_of
from quorumcast.sim.cell.world import CellWorld


def own_keyrings(cell: Cell) -> Cell:
    """The same cell with keyrings that no other run shares, so that they may change."""
    manifest = cell.manifest
    return Cell(manifest, {name: _keyring(cell, name) for name in cell.keyrings})


def _keyring(cell: Cell, name: NodeId) -> Keyring:
    return cell.manifest.keyring(identity_of(len(cell.manifest.brokers), name))


def change_key(world: CellWorld, client: NodeId) -> None:
    """The operator gives a client another key: a new epoch for everybody."""
    cell = world.cell
    fresh = Identity(client, repeatable_seeds(f"{CELL} rotated")(client))
    following = rotate(cell.manifest, client, fresh)
    world.facts.renew(following)
    # Whoever starts again begins in the new epoch.
    cell.manifest = following
    for name, node in world.nodes.items():
        if name == client:
            continue
        keyring = following.keyring(identity_of(len(following.brokers), name))
        machine = node.machine
        if not node.up:
            cell.keyrings[name].adopt(keyring)
        elif isinstance(machine, Broker | Publisher | Subscriber):
            node.carry_out(machine.adopt(following, keyring))
        world.network.break_all(name)


def call_with_stolen_key(world: CellWorld, client: NodeId, channel: Channel) -> None:
    """The thief greets every broker in the client's name and publishes."""
    epochs = world.facts.manifests
    stolen = epochs[min(epochs)].keyring(identity_of(len(epochs[min(epochs)].brokers), client))
    body = b"stolen"
    stream = Stream(channel, client, 1)
    words = [
        encode_parcel(Open(stream, 1, 1)),
        encode_parcel(Publish(stream, 1, world.cell.manifest.hash(body)), (body,)),
    ]
    for broker in world.cell.manifest.broker_ids:
        world.network.impersonate(stolen, broker, words)
