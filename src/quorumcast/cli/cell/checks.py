"""The checks of `quorumcast doctor` on files: manifest, keys, certificates."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from quorumcast.cli.common import IDENTITY, OPERATOR
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.crypto.identity import Identity
    from quorumcast.manifest.manifest import Manifest

Level = Literal["ok", "warning", "error"]

#: Remaining validity of a certificate below which there is a warning.
EXPIRY_DAYS = 30


class Finding(msgspec.Struct, frozen=True):
    """One result of a check."""

    about: str
    level: Level
    says: str
    #: Advice; "" if all is well.
    do: str = ""


def blame(about: str, error: UsageError, level: Level = "error") -> Finding:
    """A finding from an error, whose text is the problem, then `; `, then the advice."""
    says, _, advice = str(error).partition("; ")
    return Finding(about, level, says, advice)


def check_manifest(manifest: Manifest) -> Iterator[Finding]:
    """Describe what each channel tolerates; reading the manifest has refused what is wrong."""
    from quorumcast.core.quorum import minimum_brokers

    have = len(manifest.brokers)
    says = (
        f"cell {manifest.cell}, epoch {manifest.epoch}, signed by its operator; {have} brokers "
        f"of which {manifest.f} may be faulty"
    )
    yield Finding("manifest", "ok", says)
    if manifest.warning:
        advice = "make another cell with 'quorumcast init' for anything but figures"
        yield Finding("manifest", "warning", manifest.warning, advice)
    if manifest.f == 0:
        advice = "make a cell of 4 brokers or more with 'quorumcast init'"
        yield Finding("manifest", "warning", "f=0: no broker may fail or lie", advice)
    for channel in manifest.channels:
        policy = channel.policy
        needed = minimum_brokers(policy.protection, manifest.f, policy.broadcast)
        says = f"{policy.title}, needs {needed} brokers and has {have}"
        yield Finding(f"channel {channel.name}", "ok", says)
    if not manifest.channels:
        advice = "make one with 'quorumcast channel create'"
        yield Finding("manifest", "warning", "there are no channels", advice)


def check_operator(manifest: Manifest, directory: Path) -> Finding:
    """Whether the operator's key, if present, is the one that signed the manifest."""
    from quorumcast.manifest.files import read_identity

    path = directory / f"{OPERATOR}{IDENTITY}"
    if not path.exists():
        return Finding(OPERATOR, "ok", "the operator's key is kept elsewhere")
    try:
        operator = read_identity(path)
    except UsageError as error:
        return blame(OPERATOR, error)
    if operator.verify_key != manifest.operator:
        advice = "find the right one: nobody can make the next epoch without it"
        says = f"{path} is not the key that signed the manifest"
        return Finding(OPERATOR, "error", says, advice)
    says = "the key that signs the next epoch is here, readable by its owner only"
    return Finding(OPERATOR, "ok", says)


def check_identities(
    manifest: Manifest, manifest_file: Path
) -> tuple[list[Finding], dict[str, Identity]]:
    """Compare the identities beside the manifest with it; return the matching ones as well."""
    from quorumcast.manifest.files import read_identity

    directory = manifest_file.parent
    findings: list[Finding] = []
    good: dict[str, Identity] = {}
    names = {str(node.id) for node in manifest.nodes}
    here = sorted(path for path in directory.glob(f"*{IDENTITY}") if path.stem != OPERATOR)
    for path in here:
        name = path.name.removesuffix(IDENTITY)
        if name not in names:
            left_in = _left_in(manifest, manifest_file, name)
            if left_in is not None:
                says = f"it left the cell in epoch {left_in}; nobody needs {path} any more"
                findings.append(Finding(name, "ok", says))
                continue
            says = f"{path} belongs to nobody in epoch {manifest.epoch}"
            advice = f"move it away, or add it with 'quorumcast epoch add-client {name}'"
            findings.append(Finding(name, "warning", says, advice))
            continue
        try:
            identity = read_identity(path)
            manifest.keyring(identity)
        except UsageError as error:
            findings.append(blame(name, error))
            continue
        if identity.name != name:
            says = f"{path} is the identity of {identity.name}"
            findings.append(Finding(name, "error", says, "rename the file"))
            continue
        good[name] = identity
    elsewhere = len(names) - len(names & {path.name.removesuffix(IDENTITY) for path in here})
    says = (
        f"{len(good)} of {len(names)} are here with the manifest's keys, readable by the owner only"
    )
    if elsewhere:
        says += f"; {elsewhere} are kept elsewhere"
    findings.append(Finding("identities", "ok", says))
    return findings, good


def _left_in(manifest: Manifest, manifest_file: Path, name: str) -> int | None:
    """The first epoch without a node of earlier epochs; None if no kept manifest lists it."""
    from quorumcast.manifest.files import read_epoch

    for epoch in range(manifest.epoch - 1, 0, -1):
        try:
            earlier = read_epoch(manifest_file, manifest, epoch)
        except UsageError:
            continue
        if earlier is not None and name in {str(node.id) for node in earlier.nodes}:
            return epoch + 1
    return None


def check_certificates(manifest: Manifest, now: datetime.datetime) -> list[Finding]:
    """Whether the certificate of each broker belongs to it and is still valid."""
    with_one = [broker for broker in manifest.brokers if broker.certificate]
    if not with_one:
        return []
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    findings: list[Finding] = []
    ends: list[datetime.datetime] = []
    for broker in manifest.brokers:
        about = f"certificate of {broker.id}"
        advice = f"make a new one with 'quorumcast epoch rotate {broker.id}'"
        if not broker.certificate:
            says = "it has no certificate, although other brokers do"
            findings.append(Finding(about, "warning", says, advice))
            continue
        try:
            certificate = x509.load_pem_x509_certificate(broker.certificate.encode())
        except ValueError:
            findings.append(Finding(about, "error", "it cannot be read", advice))
            continue
        key = certificate.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        until = certificate.not_valid_after_utc
        ends.append(until)
        if key != broker.verify_key:
            says = "it was made for another key than the manifest's"
            findings.append(Finding(about, "error", says, advice))
        elif until <= now:
            findings.append(Finding(about, "error", f"it ended on {until:%Y-%m-%d}", advice))
        elif until - now < datetime.timedelta(days=EXPIRY_DAYS):
            findings.append(Finding(about, "warning", f"it ends on {until:%Y-%m-%d}", advice))
    if not findings:
        says = f"{len(ends)} are valid; the first expires on {min(ends):%Y-%m-%d}"
        findings.append(Finding("certificates", "ok", says))
    return findings
