"""The identities of brokers: which of its files one uses, and certificates made from them.

New keys lie beside the present ones (`NAME.identity.next`) until the broker adopts the epoch that
lists them, so that a restart before then still finds the keys of the present epoch. Then the new
file replaces the old one, which is kept as `NAME.epoch-N.old`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.files import read_identity
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.links.tls import make_certificate


def next_identity(path: Path) -> Path:
    """The identity file with the keys of a later epoch."""
    return path.with_name(f"{path.name}.next")


def identity_for(path: Path, manifest: Manifest) -> Identity:
    """The identity whose keys the manifest lists: the next one, or else the present one."""
    present = read_identity(path)
    entry = manifest.broker(present.name)
    if entry is None or entry.verify_key == present.verify_key or not next_identity(path).exists():
        return present
    following = read_identity(next_identity(path))
    named = (following.name, following.verify_key) == (present.name, entry.verify_key)
    return following if named else present


def settle_identity(path: Path, manifest: Manifest) -> None:
    """Replace the present identity file by the next one if the manifest lists its keys.

    Without the right to write there both files stay, which does no harm.
    """
    following = next_identity(path)
    with contextlib.suppress(OSError, UsageError):
        named = manifest.broker(read_identity(path).name)
        if named is None or not following.exists():
            return
        if read_identity(following).verify_key == named.verify_key:
            with contextlib.suppress(FileExistsError):
                os.link(path, path.with_name(f"{path.stem}.epoch-{manifest.epoch - 1}.old"))
            following.replace(path)


def with_certificates(manifest: Manifest, identities: Mapping[NodeId, Identity]) -> Manifest:
    """The manifest with a TLS certificate for every broker."""
    brokers = tuple(
        replace(broker, certificate=make_certificate(identities[broker.id]))
        for broker in manifest.brokers
    )
    return replace(manifest, brokers=brokers)
