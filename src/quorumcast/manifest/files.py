"""Reads and writes manifests and identities as files; no other module of this package does.

A manifest file is JSON that people can read (keys in base64, the signature in hex):

    {"manifest": {"cell": …, "epoch": …, …}, "signature": "…"}

The operator signs a canonical encoding of the decoded manifest, so the file may be reformatted but
not changed in meaning. Unknown fields are refused, because the signature would not cover them. An
identity file holds a seed, readable by its owner only; it is never overwritten, since a node is
lost with its seed. A replaced manifest is kept as `epochs/N.json` beside its successor, because
statements of its epoch are verified with its keys, brokers and channels.

Every error is a `UsageError`: one sentence that names the file and says what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_NAME
from quorumcast.core.statements import Signed
from quorumcast.crypto.identity import SEED_SIZE, Identity, signature_holds
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.validation import check_manifest

#: Prefix of the signed bytes, so that no other document of the operator can pass as a manifest.
_PURPOSE = b"quorumcast manifest 1\0"
#: The directory beside a manifest for the manifests of earlier epochs.
EPOCHS = "epochs"

_canonical = msgspec.msgpack.Encoder(order="deterministic")


class SignedManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest with its operator's signature, in hex."""

    manifest: Manifest
    signature: str


class _IdentityFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    seed: str


# --------------------------------------------------------------- manifests


def sign_manifest(manifest: Manifest, operator: Identity) -> SignedManifest:
    """Sign a manifest with its operator's identity."""
    check_manifest(manifest)
    if operator.verify_key != manifest.operator:
        raise UsageError(
            f"{operator.name!r} is not the operator that the manifest of cell {manifest.cell!r} "
            "names; sign it with that operator's identity"
        )
    return SignedManifest(manifest, operator.sign(_signed_bytes(manifest)).signature.hex())


def write_manifest(path: str | Path, signed: SignedManifest) -> None:
    """Replace a manifest file atomically; the manifest that was there is kept (`epoch_path`)."""
    path = Path(path)
    _keep_epoch(path, signed.manifest)
    text = msgspec.json.format(msgspec.json.encode(signed), indent=2) + b"\n"
    _replace(path, text)


def read_epoch(path: str | Path, manifest: Manifest, epoch: int) -> Manifest | None:
    """The manifest of an earlier epoch of this cell, if it is kept beside the file of this one."""
    if epoch == manifest.epoch:
        return manifest
    kept = epoch_path(Path(path), epoch)
    if not kept.exists():
        return None
    found = read_manifest(kept)
    same = (found.cell, found.operator, found.epoch) == (manifest.cell, manifest.operator, epoch)
    return found if same else None


def _keep_epoch(path: Path, following: Manifest) -> None:
    try:
        data = path.read_bytes()
        old = msgspec.json.decode(data, type=SignedManifest).manifest
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return  # not a manifest that could be needed later
    if (old.cell, old.operator) != (following.cell, following.operator):
        return
    if old.epoch < following.epoch:
        kept = epoch_path(path, old.epoch)
        try:
            kept.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise _cannot_write("manifest", kept, error) from None
        _replace(kept, data)


def epoch_path(path: Path, epoch: int) -> Path:
    """The file of the manifest of an earlier epoch."""
    return path.parent / EPOCHS / f"{epoch}.json"


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        _write_new(beside, data, mode=0o644)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise _cannot_write("manifest", path, error) from None


def read_manifest(
    path: str | Path, *, operator: bytes | None = None, newer_than: int = 0
) -> Manifest:
    """The manifest in a file, if its operator signed it; see `parse_manifest`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _cannot_read("manifest", Path(path), error) from None
    return parse_manifest(data, source=str(path), operator=operator, newer_than=newer_than)


def parse_manifest(
    data: bytes,
    *,
    source: str = "the manifest",
    operator: bytes | None = None,
    newer_than: int = 0,
) -> Manifest:
    """A checked manifest of an epoch above `newer_than`.

    `operator` is the key that a node knows already; without it the node trusts the file to name
    its operator, as it must the first time.
    """
    try:
        signed = msgspec.json.decode(data, type=SignedManifest)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{source} is not a manifest of this version ({error}); get it anew from the operator"
        ) from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise UsageError(
            f"{source} is not JSON, so it is no manifest; name the file that 'quorumcast init' made"
        ) from None
    manifest = signed.manifest
    if operator is not None and manifest.operator != operator:
        raise UsageError(
            f"{source} is from another operator than this node knows; get it from the right one, "
            "or start the node afresh if the operator changed"
        )
    if not _signature_holds(signed):
        raise UsageError(
            f"{source} was altered after its operator signed it; get it anew from the operator"
        )
    try:
        check_manifest(manifest)
    except UsageError as error:
        raise UsageError(f"{source} does not describe a valid cell: {error}") from None
    if manifest.epoch <= newer_than:
        raise UsageError(
            f"{source} is epoch {manifest.epoch}, but epoch {newer_than} is already known; "
            "get the newer manifest from the operator"
        )
    return manifest


def manifest_digest(manifest: Manifest) -> bytes:
    """The digest of a manifest, independent of the format of its file."""
    return hashlib.sha256(_signed_bytes(manifest)).digest()


def _signed_bytes(manifest: Manifest) -> bytes:
    return _PURPOSE + _canonical.encode(manifest)


def _signature_holds(signed: SignedManifest) -> bool:
    try:
        signature = bytes.fromhex(signed.signature)
        payload = _signed_bytes(signed.manifest)
    except (ValueError, OverflowError):  # not hex; an integer that no encoding can hold
        return False
    return signature_holds(Signed(NodeId("operator"), payload, signature), signed.manifest.operator)


# -------------------------------------------------------------- identities


def write_identity(path: str | Path, identity: Identity) -> None:
    """Write a new identity file that only its owner can read."""
    path = Path(path)
    content = _IdentityFile(identity.name, identity.seed.hex())
    text = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    try:
        _write_new(path, text, mode=0o600)
    except FileExistsError:
        raise UsageError(
            f"{path} already exists and an identity is never overwritten; move it away, or name "
            "another file"
        ) from None
    except OSError as error:
        raise _cannot_write("identity", path, error) from None


def read_identity(path: str | Path) -> Identity:
    """The identity in a file, if nobody but its owner can read it."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read()
    except OSError as error:
        raise _cannot_read("identity", path, error) from None
    try:
        content = msgspec.json.decode(data, type=_IdentityFile)
        seed = bytes.fromhex(content.seed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _not_an_identity(path) from None
    if len(seed) != SEED_SIZE or not 1 <= len(content.name) <= MAX_NAME:
        raise _not_an_identity(path)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"others than its owner have access to the identity {path}; run: chmod 600 {path}"
        )
    return Identity(NodeId(content.name), seed)


def _not_an_identity(path: Path) -> UsageError:
    # Does not quote the content: it may be a secret in the wrong place.
    return UsageError(
        f"{path} is not an identity (JSON with a name and a seed of {SEED_SIZE} bytes in hex); "
        "name a file NAME.identity that 'quorumcast init' made"
    )


# -------------------------------------------------------------------- disk


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _cannot_read(kind: str, path: Path, error: OSError) -> UsageError:
    known: dict[type[OSError], str] = {
        FileNotFoundError: f"there is no {kind} at {path}; {_instead_of(kind, path)}",
        IsADirectoryError: f"{path} is a directory; name the {kind} file in it",
        PermissionError: f"this user may not read the {kind} {path}; run as its owner, or change "
        "its owner",
    }
    other = f"the {kind} {path} cannot be read ({error.strerror}); name another file"
    return UsageError(known.get(type(error), other))


def _instead_of(kind: str, path: Path) -> str:
    if kind == "identity":
        return "put back the file that 'quorumcast' made there, or name another one"
    # Users often stand beside their cell, and not in it.
    cells = [found.parent for found in path.parent.glob(f"*/{path.name}")]
    if len(cells) == 1:
        return f"did you mean the one in {cells[0]} (-m {cells[0]})?"
    return "make one with 'quorumcast init', or name the right one (-m on the command line)"


def _cannot_write(kind: str, path: Path, error: OSError) -> UsageError:
    known: dict[type[OSError], str] = {
        FileNotFoundError: f"there is no directory {path.parent} for the {kind} {path.name}; make "
        "it first",
        IsADirectoryError: f"{path} is a directory; name a file for the {kind}",
        PermissionError: f"this user may not write the {kind} {path}; choose a directory that it "
        "may write",
    }
    other = f"the {kind} {path} cannot be written ({error.strerror}); name another file"
    return UsageError(known.get(type(error), other))
