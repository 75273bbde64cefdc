"""The epoch that a broker has adopted: its copy on disk, and its proof for other nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.cell.serving.membership import EpochProof, statements_needed
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_CHAIN, MAX_MANIFEST_BYTES
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed, parse_epoch
from quorumcast.crypto.identity import signature_holds
from quorumcast.manifest.files import manifest_digest, parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.links.limits import MAX_PROOF_BYTES
from quorumcast.traces.drafts import replacing

#: The error of a cell whose operator signed two manifests for one epoch.
TORN = (
    "two manifests were signed for one epoch, and the logs of this cell have decided different "
    "ones: start the cell anew with a later one (see 'Epochs' in docs/operations.md)"
)


class _Proof(msgspec.Struct, frozen=True, array_like=True):
    data: Annotated[bytes, Meta(max_length=MAX_MANIFEST_BYTES)]
    words: Annotated[tuple[Signed, ...], Meta(max_length=2 * MAX_CHAIN)]


class KeptEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The epoch that a broker adopted last: it restarts in this one, whatever its file says."""

    manifest: bytes
    #: Signed statements of brokers that have adopted it.
    words: tuple[Signed, ...] = ()
    #: The logs of the epoch before.
    older: tuple[Protection, ...] = ()


_proofs = msgspec.msgpack.Decoder(_Proof)


def encode_proof(data: bytes, words: tuple[Signed, ...]) -> bytes:
    """A manifest and signed statements of brokers that have adopted it; empty if too long."""
    proof = msgspec.msgpack.encode(_Proof(data, words))
    return proof if len(proof) <= MAX_PROOF_BYTES else b""


def decode_proof(proof: bytes) -> EpochProof | None:
    """The content of a proof, unchecked; None if it is malformed."""
    try:
        found = _proofs.decode(proof)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return EpochProof(found.data, found.words)


def proven_manifest(present: Manifest, proof: EpochProof) -> Manifest | None:
    """The later epoch of a cell of which a client is shown a proof; None if it does not hold.

    As a broker that was away, it believes f+1 brokers that it knows (`cell.serving.membership`).
    """
    try:
        following = parse_manifest(proof.data, operator=present.operator, newer_than=present.epoch)
    except UsageError:
        return None
    if following.cell != present.cell:
        return None
    wanted = (present.cell, following.epoch, manifest_digest(following))
    believed: set[NodeId] = set()
    for signed in proof.statements:
        said, broker = parse_epoch(signed.payload), present.broker(signed.signer)
        if said is None or broker is None or said.broker != signed.signer:
            continue
        about = (said.cell, said.epoch, said.digest) == wanted
        if about and signature_holds(signed, broker.verify_key):
            believed.add(signed.signer)
    return following if len(believed) >= statements_needed(present, following) else None


def save_epoch(path: Path, kept: KeptEpoch) -> None:
    """Write the file in one step; it is on disk when this returns, before the epoch is used."""
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


def load_epoch(path: Path, operator: bytes) -> tuple[KeptEpoch, Manifest] | None:
    """The epoch that was saved, and its manifest; None if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})") from None
    try:
        kept = msgspec.json.decode(data, type=KeptEpoch)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UsageError(
            f"{path} does not say which epoch this broker took last; remove it if the broker has "
            "lost its disk and is to start as a new one"
        ) from None
    manifest = parse_manifest(kept.manifest, source=str(path))
    if manifest.operator != operator:
        raise UsageError(
            f"{path.parent} holds what {path.stem} kept in a cell of another operator; move it "
            "away, or name another directory with --data"
        )
    return kept, manifest


def kept_path(data: Path | None, name: str) -> Path | None:
    """The file of the epoch that a broker adopted last."""
    return None if data is None else data / f"{name}.epoch"


def holds(path: Path, data: bytes) -> bool:
    """Whether a file has this content; a file that cannot be read counts as unchanged."""
    try:
        return path.read_bytes() == data
    except OSError:
        return True


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Time and size of a file, which tell whether it has changed; None if it is unreadable."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
