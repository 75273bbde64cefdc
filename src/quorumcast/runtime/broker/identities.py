"""Which identity a broker uses when its keys are rotated: the one that its epoch names.

New keys lie beside the old ones (`NAME.identity.next`) until the broker goes by the epoch that
names them. So whoever restarts in between still has the keys of the epoch that the cell goes by.
Then the new file takes the place of the old one, which is kept as `NAME.epoch-N.old`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from quorumcast.core.errors import UsageError
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.files import read_identity
from quorumcast.manifest.manifest import Manifest


def next_identity(path: Path) -> Path:
    """Where the keys are that a later epoch gives to a node."""
    return path.with_name(f"{path.name}.next")


def identity_for(path: Path, manifest: Manifest) -> Identity:
    """The identity that a manifest names: the present one, unless it names the next."""
    present = read_identity(path)
    entry = manifest.broker(present.name)
    if entry is None or entry.verify_key == present.verify_key or not next_identity(path).exists():
        return present
    following = read_identity(next_identity(path))
    named = (following.name, following.verify_key) == (present.name, entry.verify_key)
    return following if named else present


def settle_identity(path: Path, manifest: Manifest) -> None:
    """Let the next identity take the place of the present one, if the manifest names it.

    Whoever may not write there has both files for ever, which does no harm.
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
