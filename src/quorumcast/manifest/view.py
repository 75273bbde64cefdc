"""A node's view of its cell: the members, quorums, keys, channels and rights of the present epoch.

Each machine has one view, and all its parts hold that one. It changes in one place when the node
goes on to another epoch, so a part needs to hear of it only if it has something to do then.
"""

from __future__ import annotations

from quorumcast.core.ids import NodeId
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest


class View:
    """What one node knows of its cell in the epoch that it goes by."""

    __slots__ = (
        "brokers",
        "channel",
        "channels",
        "epoch",
        "hash",
        "keyring",
        "manifest",
        "may_publish",
        "may_subscribe",
        "me",
        "peers",
        "quorums",
    )

    def __init__(self, manifest: Manifest, keyring: Keyring) -> None:
        self.me: NodeId = keyring.identity.name
        self.keyring = keyring
        self._look_at(manifest)

    def _look_at(self, manifest: Manifest) -> None:
        #: The whole document, for those who compare it with its successor.
        self.manifest = manifest
        self.epoch = manifest.epoch
        #: In the manifest's order, which all nodes share.
        self.brokers = manifest.broker_ids
        #: The other brokers.
        self.peers = tuple(broker for broker in self.brokers if broker != self.me)
        self.quorums = manifest.quorums
        self.hash = manifest.hash
        # Looked up with every message: the manifest's own methods cost no further call.
        self.channels, self.channel = manifest.channels, manifest.channel
        self.may_publish, self.may_subscribe = manifest.may_publish, manifest.may_subscribe

    def adopt(self, manifest: Manifest, keyring: Keyring) -> None:
        """Go on in a new epoch; so does everybody who holds this view."""
        self.keyring.adopt(keyring)
        self._look_at(manifest)
