"""A node's view of its cell: the members, quorums, keys, channels and rights of the present epoch.

All parts of a machine share one view, which changes in one place when the node adopts an epoch. A
part needs to be told only if it has something to do then.
"""

from __future__ import annotations

from quorumcast.core.ids import NodeId
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest


class View:
    """The cell as one node sees it in the epoch that it has adopted."""

    def __init__(self, manifest: Manifest, keyring: Keyring, signed: bytes = b"") -> None:
        self.me: NodeId = keyring.identity.name
        self.keyring = keyring
        self._set(manifest, signed)

    def _set(self, manifest: Manifest, signed: bytes) -> None:
        #: The whole manifest, to be compared with its successor.
        self.manifest = manifest
        #: The manifest as its operator signed it; only brokers know it.
        self.signed = signed
        self.epoch = manifest.epoch
        #: In the manifest's order, which all nodes share.
        self.brokers = manifest.broker_ids
        #: The other brokers.
        self.peers = tuple(broker for broker in self.brokers if broker != self.me)
        self.quorums = manifest.quorums
        self.hash = manifest.hash
        # Used with every message: the manifest's own methods, which save a call.
        self.channels, self.channel = manifest.channels, manifest.channel
        self.may_publish, self.may_subscribe = manifest.may_publish, manifest.may_subscribe
        self.may_carry = manifest.may_carry

    def adopt(self, manifest: Manifest, keyring: Keyring, signed: bytes = b"") -> None:
        """Adopt a new epoch, for all users of this view."""
        self.keyring.adopt(keyring)
        self._set(manifest, signed)
