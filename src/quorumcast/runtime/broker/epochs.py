"""What a broker keeps of its epoch beside its store, and what it shows to those in another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.cell.serving.membership import Passage
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_CHAIN, MAX_MANIFEST_BYTES
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed
from quorumcast.manifest.files import parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.links.limits import MAX_PROOF_BYTES
from quorumcast.traces.drafts import replacing

#: What a broker with two logs says if the operator has signed two manifests for one epoch.
TORN = (
    "two manifests were signed for one epoch, and the logs of this cell have decided different "
    "ones: start the cell anew with a later one (see 'Epochs' in docs/operations.md)"
)


class _Proof(msgspec.Struct, frozen=True, array_like=True):
    data: Annotated[bytes, Meta(max_length=MAX_MANIFEST_BYTES)]
    words: Annotated[tuple[Signed, ...], Meta(max_length=2 * MAX_CHAIN)]


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The epoch that a broker took last: it starts with this one, whatever its file says."""

    manifest: bytes
    words: tuple[Signed, ...] = ()
    #: The logs that there were in the epoch before.
    older: tuple[Protection, ...] = ()


_proofs = msgspec.msgpack.Decoder(_Proof)


def encode_proof(data: bytes, words: tuple[Signed, ...]) -> bytes:
    """A manifest, and the words of brokers that go by it."""
    proof = msgspec.msgpack.encode(_Proof(data, words))
    return proof if len(proof) <= MAX_PROOF_BYTES else b""


def decode_proof(proof: bytes) -> Passage | None:
    """What somebody shows; nothing of it is checked."""
    try:
        found = _proofs.decode(proof)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return Passage(found.data, found.words)


def keep(path: Path, kept: Kept) -> None:
    """Write it in one step, and have it on disk before anything is said in that epoch."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft, draft.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(
            f"the epoch cannot be kept at {path} ({error.strerror or error}): make room, or name "
            "another directory with --data"
        ) from None


def recall(path: Path, operator: bytes) -> tuple[Kept, Manifest] | None:
    """What was kept; None if there is nothing."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})") from None
    try:
        kept = msgspec.json.decode(data, type=Kept)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UsageError(
            f"{path} does not say which epoch this broker took last; remove it if the broker has "
            "lost its disk and is to start as a new one"
        ) from None
    return kept, parse_manifest(kept.manifest, source=str(path), operator=operator)


def kept_path(data: Path | None, name: str) -> Path | None:
    """Where a broker keeps the epoch that it took last."""
    return None if data is None else data / f"{name}.epoch"


def holds(path: Path, data: bytes) -> bool:
    """Whether a file is this manifest; one that cannot be read is no other."""
    try:
        return path.read_bytes() == data
    except OSError:
        return True


def stamp_of(path: Path) -> tuple[int, int] | None:
    """What tells whether a file has changed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
