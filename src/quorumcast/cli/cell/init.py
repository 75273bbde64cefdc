"""`quorumcast init`: a new cell in a directory.

DIR/manifest.json       the signed manifest, for everybody
DIR/operator.identity   signs this manifest and its successors: keep it away from the brokers
DIR/NAME.identity       one per broker and client, readable by its owner alone
DIR/.gitignore          keeps all of it out of a repository
"""

from __future__ import annotations

import shlex
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.common import IDENTITY, MANIFEST, OPERATOR, console, print_json, warn
from quorumcast.cli.options import JsonOption, RetainOption
from quorumcast.core.errors import UsageError
from quorumcast.manifest.paths import PARENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorumcast.crypto.identity import Identity
    from quorumcast.manifest.manifest import ChannelEntry, Manifest

EXAMPLE = (
    "init cell --brokers 4 --f 1 --clients alice,bob "
    "--channel orders:ab+history --channel trades:total+durable"
)
#: A channel on the command line.
CHANNEL = "NAME[:POLICY[:ALPHA[:PUBLISHERS[:SUBSCRIBERS]]]]"
DEFAULT_CHANNEL = "events:ab+history"
#: In place of names: nobody has the right. No node can have this name.
NOBODY = "-"
#: What a cell has in its directory, and its brokers make there.
_OF_A_CELL = (
    *(MANIFEST, f"*{IDENTITY}", f"*{IDENTITY}.next", "*.epoch-*.old"),
    *("data", "epochs", "evidence", "logs", PARENTS),
)
#: Beginning of the names of directories in which `init --force` keeps the cells before.
_REPLACED = "replaced-"


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the cell's files go.")],
    cell: Annotated[str, typer.Option(help="The cell's name; the directory's if not given.")] = "",
    brokers: Annotated[int, typer.Option(help="How many brokers.")] = 4,
    f: Annotated[
        int | None,
        typer.Option(
            "--f", help="How many may be faulty; by default the most that all channels allow."
        ),
    ] = None,
    clients: Annotated[str, typer.Option(help="Names of clients, with commas.")] = "alice,bob",
    channel: Annotated[
        list[str] | None,
        typer.Option(
            metavar=CHANNEL,
            help="A channel; may be repeated. Rights are names with commas, everyone if left out. "
            "ALPHA is 100, or 10-400 for one that adapts; 100-1024 if left out. "
            "'total+durable' keeps publications on disk.",
        ),
    ] = None,
    retain: RetainOption = None,
    host: Annotated[str, typer.Option(help="Where brokers listen.")] = "127.0.0.1",
    base_port: Annotated[int, typer.Option(help="Port of the first broker.")] = 7100,
    digest: Annotated[
        str, typer.Option(help="sha256, blake3, blake2b, or auto: the fastest on this machine.")
    ] = "auto",
    mac: Annotated[
        str, typer.Option(help="MAC of all links: blake2b, hmac-sha256 or hmac-sha512.")
    ] = "blake2b",
    reproduce_freeman: Annotated[
        bool,
        typer.Option(
            "--reproduce-freeman",
            help="For Freeman's figures, not for use: allow the broken --mac hmac-md5, hmac-sha1 "
            "and --digest md5, sha1.",
        ),
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt all links.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a cell that is there, and move it aside.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Create a cell: identities, the operator's key and a signed manifest.

    --retain holds for all its channels; 'channel change' gives one of them another.
    """
    from quorumcast.core.ids import NodeId
    from quorumcast.core.quorum import minimum_brokers
    from quorumcast.crypto.identity import Identity
    from quorumcast.manifest.build import make_cell
    from quorumcast.runtime.digests import choose_digest

    channels = [retaining(parse_channel(s), retain or ()) for s in channel or [DEFAULT_CHANNEL]]
    names = [name.strip() for name in clients.split(",") if name.strip()]
    operator = Identity.generate(NodeId(OPERATOR))
    manifest, identities = make_cell(
        cell or directory.resolve().name,
        [(f"broker-{i + 1}", host, base_port + i) for i in range(brokers)],
        _largest_f(brokers, channels) if f is None else f,
        names,
        channels,
        digest=choose_digest(digest),
        mac=mac,
        reproduction=reproduce_freeman,
        operator=operator,
    )
    if OPERATOR in identities:
        raise UsageError(f"no node can be called {OPERATOR!r}; choose another name")
    if tls:
        from quorumcast.runtime.broker.identities import with_certificates

        manifest = with_certificates(manifest, identities)
    write_cell(directory, manifest, [operator, *identities.values()], force=force)
    if f is None and manifest.f == 0:
        needed = max(minimum_brokers(c.policy.protection, 1, c.policy.broadcast) for c in channels)
        warn(f"no broker may fail or lie: with these channels that takes {needed} brokers")
    if json_:
        print_json(CellSummary.of(manifest, directory))
    else:
        _print(manifest, directory)


def _largest_f(brokers: int, channels: Sequence[ChannelEntry]) -> int:
    """How many of these brokers may be faulty so that all channels keep their promises."""
    from quorumcast.core.quorum import largest_f

    return min(largest_f(c.policy.protection, brokers, c.policy.broadcast) for c in channels)


def parse_channel(spec: str) -> ChannelEntry:
    """Parse a channel of the command line."""
    from quorumcast.core.ids import Channel
    from quorumcast.manifest.manifest import ChannelEntry
    from quorumcast.manifest.policy import POLICY_NAMES, Policy, parse_alpha

    name, policy, alpha, publishers, subscribers, *rest = [*spec.split(":"), "", "", "", ""]
    if any(rest):
        raise UsageError(
            f"{spec!r} says too much about a channel; write "
            "NAME:POLICY:ALPHA:PUBLISHERS:SUBSCRIBERS or less"
        )
    least, most = parse_alpha(alpha)
    chosen = Policy.parse(policy or "ab+history", least, most)
    if (least or most) and not chosen.has_history:
        history = f"{chosen.name}+history"
        advice = (
            f"did you mean {history}:{alpha}?"
            if history in POLICY_NAMES
            else f"write {name}:{policy}"
        )
        raise UsageError(f"{policy!r} has no alpha; {advice}")
    return ChannelEntry(
        Channel(name),
        chosen,
        parse_rights(publishers),
        parse_rights(subscribers),
    )


def retaining(entry: ChannelEntry, retain: Sequence[str]) -> ChannelEntry:
    """The channel with the retention of the command line."""
    from msgspec.structs import replace

    from quorumcast.manifest.retention import with_retention

    return replace(entry, policy=replace(entry.policy, limits=with_retention(entry.policy, retain)))


def parse_rights(names: str) -> tuple[str, ...]:
    """Parse a list of names with commas; empty is everyone, '-' is nobody."""
    from quorumcast.manifest.manifest import EVERYONE

    if names.strip() == NOBODY:
        return ()
    return tuple(name.strip() for name in names.split(",") if name.strip()) or (EVERYONE,)


def write_cell(
    directory: Path, manifest: Manifest, identities: list[Identity], *, force: bool
) -> None:
    """Write the files of a new cell; the first identity is its operator's."""
    from quorumcast.manifest.files import sign_manifest, write_identity, write_manifest

    there = (directory / MANIFEST).exists() or any(directory.glob(f"*{IDENTITY}"))
    if there and not force:
        raise UsageError(
            f"{directory} already has a cell; choose another directory, or replace it and all its "
            "keys with --force"
        )
    try:
        if there:
            _move_aside(directory)
        directory.mkdir(parents=True, exist_ok=True)
        _hide_from_git(directory)
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be used ({error.strerror}); choose another directory"
        ) from None
    for identity in identities:
        write_identity(directory / f"{identity.name}{IDENTITY}", identity)
    write_manifest(directory / MANIFEST, sign_manifest(manifest, identities[0]))


def _move_aside(directory: Path) -> None:
    """Move a stopped cell and what its brokers kept to a directory of its own in this one.

    Brokers of the new cell could not use it, and only its own manifests verify its evidence.
    """
    from quorumcast.cli.cell.running import refuse_running
    from quorumcast.manifest.files import read_manifest

    try:
        old = read_manifest(directory / MANIFEST)
    except UsageError:
        pass  # no broker can run with it
    else:
        refuse_running(directory, old.cell, old.brokers)
    aside = next(p for i in count(1) if not (p := directory / f"{_REPLACED}{i}").exists())
    aside.mkdir()
    for path in [path for pattern in _OF_A_CELL for path in directory.glob(pattern)]:
        path.rename(aside / path.name)
    console(stderr=True).print(
        f"the cell that was there is now in {aside}", markup=False, soft_wrap=True
    )


def _hide_from_git(directory: Path) -> None:
    """Write a .gitignore for the keys; for everything, if the directory has no other files."""
    ignore = directory / ".gitignore"
    if not ignore.exists():
        ours = (*_OF_A_CELL, f"{_REPLACED}*")
        alone = all(any(map(path.match, ours)) for path in directory.iterdir())
        ignore.write_text("*\n" if alone else f"*{IDENTITY}\n*.old\n")


class CellSummary(msgspec.Struct, frozen=True):
    """The main facts of a manifest."""

    cell: str
    epoch: int
    f: int
    manifest: str
    digest: str
    mac: str
    tls: bool
    #: The address of each broker.
    brokers: dict[str, str]
    clients: list[str]
    #: The policy and the retention of each channel.
    channels: dict[str, str]
    retention: dict[str, str]
    #: What its users must know about its algorithms; empty if there is nothing.
    warning: str

    @classmethod
    def of(cls, manifest: Manifest, directory: Path) -> CellSummary:
        """The summary of the manifest in a directory."""
        from quorumcast.manifest.retention import retention_of

        return cls(
            cell=manifest.cell,
            epoch=manifest.epoch,
            f=manifest.f,
            manifest=str(directory / MANIFEST),
            digest=manifest.digest,
            mac=manifest.mac,
            tls=any(broker.certificate for broker in manifest.brokers),
            brokers={broker.id: broker.address for broker in manifest.brokers},
            clients=[client.id for client in manifest.clients],
            channels={channel.name: channel.policy.title for channel in manifest.channels},
            retention={c.name: retention_of(c.policy.limits) for c in manifest.channels},
            warning=manifest.warning,
        )


def _print(manifest: Manifest, directory: Path) -> None:
    from quorumcast.manifest.retention import retention_of

    liars = any(not c.policy.crash_only for c in manifest.channels)
    lines = [
        f"{manifest.cell}: {len(manifest.brokers)} brokers, of which {manifest.f} may "
        f"{'lie' if liars or not manifest.channels else 'crash'}; digests {manifest.digest}, MAC "
        f"{manifest.mac}"
    ]
    if manifest.warning:
        lines.append(f"  warning: {manifest.warning}")
    for channel in manifest.channels:
        kept = retention_of(channel.policy.limits)
        lines.append(f"  channel {channel.name}: {channel.policy.described}, keeps {kept}")
    lines += [
        f"  clients {', '.join(client.id for client in manifest.clients) or 'none'}",
        f"Next:  quorumcast up {shlex.quote(str(directory))}",
    ]
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)
