"""`quorumcast members …`: show the members of a cell, or change its brokers while it runs.

Each command that changes brokers writes one epoch or several, and changes one broker in each.
Before an epoch is written n-f brokers must have adopted the previous one, and the brokers that stay
must have caught up. With --wait a command also waits until n-f brokers have adopted the new epoch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from quorumcast.cli.cell.advancing import Change, advance
from quorumcast.cli.cell.plans import (
    MembersPlan,
    Newcomer,
    PlannedEpoch,
    certificate_like,
    removing,
)
from quorumcast.cli.common import IDENTITY, Rows, console, print_json, table
from quorumcast.cli.options import Commands, JsonOption, OperatorOptions, StatusOptions
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.manifest.manifest import Manifest

app = Commands(
    no_args_is_help=True,
    help="Show the members of a cell, and change them while it runs.",
    epilog="Example:  quorumcast members list -m cell --live",
)

PAUSE_S = 0.1
#: Characters of a fingerprint that the table shows.
SHOWN = 16


@app.command("list", example="members list -m cell --live")
def list_members(
    where: StatusOptions,
    live: Annotated[bool, typer.Option("--live", help="Ask the brokers who is there.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show brokers and clients with the fingerprints of their keys.

    With --live: which brokers are up, in which epoch, and to how many each client is connected.
    """
    cell = where.read()
    members = _members(cell, where.ask(cell) if live else None)
    if json_:
        print_json({"cell": cell.cell, "epoch": cell.epoch, "f": cell.f, "members": members})
    else:
        console().print(_table(cell, members, live=live))


def fingerprint(verify_key: bytes, exchange_key: bytes) -> str:
    """The fingerprint of a node's public keys."""
    return hashlib.sha256(verify_key + exchange_key).hexdigest()


def _members(cell: Manifest, rows: Rows | None) -> list[dict[str, Any]]:
    members: list[dict[str, Any]] = []
    for broker in cell.brokers:
        member: dict[str, Any] = {
            "name": broker.id,
            "role": "broker",
            "address": broker.address,
            "tls": bool(broker.certificate),
            "fingerprint": fingerprint(broker.verify_key, broker.exchange_key),
        }
        if rows is not None:
            row = rows[broker.id]
            member |= {"up": row["up"], "epoch": row.get("epoch")}
        members.append(member)
    for client in cell.clients:
        member = {
            "name": client.id,
            "role": "client",
            "fingerprint": fingerprint(client.verify_key, client.exchange_key),
        }
        if rows is not None:
            at = [name for name, row in rows.items() if client.id in row.get("clients", ())]
            member |= {"up": bool(at), "at": at}
        members.append(member)
    return members


def _table(cell: Manifest, members: list[dict[str, Any]], *, live: bool) -> Table:
    title = f"cell {cell.cell}, epoch {cell.epoch}: {len(cell.brokers)} brokers, f={cell.f}"
    more = ("state", "epoch") if live else ()
    found = table("name", "role", "address", "keys", *more, simple=True, title=title)
    for member in members:
        state = "[green]up[/]" if member.get("up") else "[red]down[/]"
        if member["role"] == "client":
            at = member.get("at", ())
            state = f"at {len(at)} brokers" if at else "not here"
        epoch = member.get("epoch")
        shown = (state, "" if epoch is None else str(epoch)) if live else ()
        found.add_row(
            member["name"],
            member["role"],
            member.get("address", ""),
            member["fingerprint"][:SHOWN],
            *shown,
        )
    return found


# --------------------------------------------------------------------- changing

NameArgument = Annotated[str, typer.Argument(help="The broker.")]
HostOption = Annotated[str, typer.Option("--host", help="Where the new broker listens.")]
PortOption = Annotated[int, typer.Option("--port", help="… and on which port.")]
WaitForQuorumOption = Annotated[
    bool, typer.Option("--wait", help="Until n-f brokers have taken the epoch; else exit code 1.")
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="The cell does not run: ask nobody.")
]


class StepOptions(OperatorOptions, kw_only=True):
    """The options of every change of members."""

    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait.")] = 60.0
    hasty: Annotated[
        bool,
        typer.Option(
            "--hasty", help="Also while brokers catch up: what they lack yet may be lost."
        ),
    ] = False


class Steps:
    """The epochs that one command writes."""

    def __init__(
        self, where: StepOptions, *, offline: bool = False, joining: Collection[str] = ()
    ) -> None:
        self.path = where.path
        self._where = where
        #: Brokers that come; --url may name their status pages before the manifest names them.
        self._joining = joining
        self._offline = offline
        self.facts: dict[str, Any] = {}

    def take(self, change: Change, *, going: Collection[str] = ()) -> Manifest:
        """Write one epoch, once the previous one is adopted; `going` are brokers about to leave."""

        def safely(old: Manifest) -> Manifest:
            if not self._offline:
                self._check_taken(old)
                if not self._where.hasty:
                    self._await_others(old, going)
            new = change(old)
            self.facts = {
                "cell": old.cell,
                "epoch": new.epoch,
                "before": self.facts.get("before", _shape(old)),
                "after": _shape(new),
            }
            return new

        return advance(self.path, self._where.operator, safely)

    def _check_taken(self, manifest: Manifest) -> None:
        taken = self._taken(manifest)
        needed = manifest.quorums.responders
        if len(taken) < needed:
            raise UsageError(
                f"only {len(taken)} of {len(manifest.brokers)} brokers say that they have taken "
                f"epoch {manifest.epoch}, and {needed} must before the next step: start the "
                "others, say where their status pages are with --url, or say --offline if the "
                "cell does not run"
            )

    def _await_others(self, manifest: Manifest, going: Collection[str]) -> None:
        """Wait until remaining brokers have caught up and new brokers are running.

        Otherwise, too few brokers might hold a publication after the next step. There is no wait if
        a leaving broker is down, because the others may be waiting for data that only it has.
        """
        from quorumcast.manifest.files import read_epoch

        before = read_epoch(self.path, manifest, manifest.epoch - 1)
        new = [] if before is None else [n for n in manifest.broker_ids if not before.broker(n)]
        deadline = time.monotonic() + self._where.timeout
        with ProgressDisplay() as progress:
            while True:
                taken = self._taken(manifest)
                absent = [n for n in new if n not in taken]
                late = [n for n, row in taken.items() if row.get("catching_up")]
                awaited = [n for n in (*absent, *late) if n not in going]
                if not awaited or any(n not in taken for n in going):
                    return
                progress(f"waiting for {', '.join(awaited)} to catch up")
                if time.monotonic() > deadline:
                    break
                time.sleep(PAUSE_S)
        raise UsageError(
            f"{', '.join(awaited)} {'has' if len(awaited) == 1 else 'have'} not caught up: wait "
            "until 'quorumcast status' says so no longer, or say --hasty, which may lose what too "
            "few of the others hold"
        )

    def _taken(self, manifest: Manifest) -> Rows:
        early = [name for name in self._joining if manifest.broker(name) is None]
        urls = [url for url in self._where.url or () if url.partition("=")[0] not in early]
        rows = msgspec.structs.replace(self._where, url=urls).ask(manifest)
        return {n: row for n, row in rows.items() if row["up"] and row["epoch"] >= manifest.epoch}

    def wait(self, manifest: Manifest, *needed: str) -> bool:
        """Wait until n-f brokers have adopted an epoch and `needed` have caught up; else False.

        Until a new broker has caught up, it counts as one of the f faulty brokers.
        """
        deadline = time.monotonic() + self._where.timeout
        while True:
            taken = self._taken(manifest)
            self.facts["taken"] = list(taken)
            enough = len(taken) >= manifest.quorums.responders
            if enough and all(n in taken and not taken[n].get("catching_up") for n in needed):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(PAUSE_S)

    def carry_out(self, plan: MembersPlan, *, json_: bool) -> None:
        """Write the epochs of a plan, each once the one before is adopted and caught up with."""
        manifest = self._where.read()
        self._check_taken(manifest)
        plan.check(self._taken(manifest))
        done: list[PlannedEpoch] = []
        try:
            for step in plan.steps:
                manifest = self.take(step.change, going=plan.leaving)
                done.append(step)
                comes = (step.comes,) if step.comes else ()
                waits = comes or step is not plan.steps[-1]  # `finish` waits for the last one
                if waits and not self.wait(manifest, *comes):
                    late = step.comes or f"n-f of {len(manifest.brokers)} brokers"
                    raise UsageError(
                        f"{late} did not take epoch {manifest.epoch}, or catch up, in time: start "
                        "what is missing, and wait until 'quorumcast status' shows it as up"
                    )
        except UsageError as error:
            if not done:
                raise
            left = " ".join(step.option for step in plan.steps[len(done) :])
            rest = f"; then run 'quorumcast members change {left}'" if left else ""
            raise UsageError(f"{done[-1].title}, but {error}{rest}") from None
        self.finish(manifest, wait=True, json_=json_)

    def finish(self, manifest: Manifest, *, wait: bool, json_: bool) -> None:
        """Print what has changed, after waiting if requested; exit code 1 if too few adopted it."""
        done = not wait or self.wait(manifest)
        if json_:
            print_json(self.facts | {"done": done})
        else:
            before, after = self.facts["before"], self.facts["after"]
            out = console()
            out.print(f"cell {self.facts['cell']}, epoch {self.facts['epoch']}", markup=False)
            for name in before:
                change = "" if before[name] == after[name] else f" → {after[name]}"
                out.print(f"  {name:8} {before[name]}{change}", markup=False)
            for name in ("identity", "restart"):
                if name in self.facts:
                    out.print(f"  {name:8} {self.facts[name]}", markup=False, soft_wrap=True)
            if "taken" in self.facts:
                out.print(f"  taken by {', '.join(self.facts['taken'])}", markup=False)
        if not done:
            raise typer.Exit(1)


def _shape(manifest: Manifest) -> dict[str, Any]:
    quorums = manifest.quorums
    return {
        "brokers": ", ".join(manifest.broker_ids),
        "n": quorums.n,
        "f": quorums.f,
        "quorum": quorums.intersecting,
    }


@app.command(example="members add broker-5 --host 10.0.0.5 --port 7005 -m cell --wait")
def add(
    name: NameArgument,
    host: HostOption,
    port: PortOption,
    where: StepOptions,
    wait: WaitForQuorumOption = False,
    offline: OfflineOption = False,
    json_: JsonOption = False,
) -> None:
    """Add a broker: make its identity and write the next epoch. Then start it."""
    steps = Steps(where, offline=offline)
    new = steps.take(Newcomer(steps.path, name, host, port).join)
    steps.finish(new, wait=wait, json_=json_)


@app.command(example="members remove broker-1 -m cell --wait")
def remove(
    name: NameArgument,
    where: StepOptions,
    wait: WaitForQuorumOption = False,
    offline: OfflineOption = False,
    json_: JsonOption = False,
) -> None:
    """Remove a broker: it exits when it has adopted the epoch."""
    steps = Steps(where, offline=offline)
    new = steps.take(removing(name), going=(name,))
    steps.finish(new, wait=wait, json_=json_)


@app.command(example="members replace broker-1 broker-5 --host 10.0.0.5 --port 7005 -m cell")
def replace(
    old: Annotated[str, typer.Argument(help="The broker that goes.")],
    new: Annotated[str, typer.Argument(help="The broker that comes.")],
    host: HostOption,
    port: PortOption,
    where: StepOptions,
    json_: JsonOption = False,
) -> None:
    """Add a broker, wait until it has caught up, and remove another: two epochs.

    Refused before anything changes if the cell could not finish it.
    """
    steps = Steps(where, joining=(new,))
    steps.carry_out(
        MembersPlan(where.read(), [Newcomer(steps.path, new, host, port)], [old]), json_=json_
    )


@app.command(
    example="members change --add broker-5=10.0.0.5:7005 --add broker-6=10.0.0.6:7006 "
    "--add broker-7=10.0.0.7:7007 --f 2 -m cell"
)
def change(
    where: StepOptions,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="NAME=HOST:PORT", help="A broker that comes; repeatable."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NAME", help="A broker that goes; may be repeated."),
    ] = None,
    f: Annotated[
        int | None, typer.Option("--f", help="How many brokers may be faulty afterwards.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Change brokers and f together: one epoch for each step, brokers that come first, then f.

    Refused before anything changes if the cell could not finish it.
    """
    cell, path = where.read(), where.path
    newcomers = [Newcomer.parse(path, spec) for spec in add or ()]
    plan = MembersPlan(cell, newcomers, remove or [], f)
    if not plan.steps:
        raise UsageError(
            f"nothing to change: cell {cell.cell!r} has f={cell.f}; name brokers with --add or "
            "--remove, or another f"
        )
    steps = Steps(where, joining=[newcomer.name for newcomer in newcomers])
    steps.carry_out(plan, json_=json_)


@app.command(example="members rotate broker-2 -m cell --wait")
def rotate(
    name: Annotated[str, typer.Argument(help="The node whose keys are replaced.")],
    where: StepOptions,
    wait: WaitForQuorumOption = False,
    offline: OfflineOption = False,
    json_: JsonOption = False,
) -> None:
    """Give a node new keys; a broker reads its new identity file when it adopts the epoch."""
    steps = Steps(where, offline=offline)
    rotation = Rotation(steps.path, name)
    new = steps.take(rotation.change)
    steps.facts |= rotation.facts(new)
    steps.finish(new, wait=wait, json_=json_)


class Rotation:
    """The change that gives a node new keys.

    A broker needs its old identity until it adopts the epoch, so the new one is a second file. The
    new identity of a client replaces the old one, of which a copy is kept that no broker accepts.
    """

    def __init__(self, path: Path, name: str) -> None:
        from quorumcast.core.ids import NodeId
        from quorumcast.crypto.identity import Identity

        self._identity = Identity.generate(NodeId(name))
        #: The file with the new keys.
        self._file = path.parent / f"{name}{IDENTITY}"

    def change(self, old: Manifest) -> Manifest:
        """The next epoch; also writes the new keys."""
        from quorumcast.manifest import build
        from quorumcast.manifest.files import write_identity
        from quorumcast.runtime.broker.identities import next_identity

        name, file = self._identity.name, self._file
        entry = old.broker(name)
        certificate = "" if entry is None else certificate_like(self._identity, entry)
        new = build.rotate(old, name, self._identity, certificate=certificate)
        if entry is not None and file.exists():
            self._file = next_identity(file)
            if self._file.exists():
                raise UsageError(
                    f"{name} has new keys already, in {self._file}, and has not taken the epoch "
                    "that names them: wait until it has, or remove the file if it lies elsewhere"
                )
        elif file.exists():
            file.rename(old_identity(file, old.epoch))
        write_identity(self._file, self._identity)
        return new

    def facts(self, new: Manifest) -> dict[str, str]:
        """Where the new keys are, and who must be restarted."""
        name = self._identity.name
        if new.broker(name) is None:
            restart = f"every program of {name}, with the new identity"
        else:
            restart = (
                f"nothing; where {name} has files of its own, copy the identity there before the "
                "manifest"
            )
        return {"identity": str(self._file), "restart": restart}


def old_identity(file: Path, epoch: int) -> Path:
    """The name for an identity file whose keys are void after this epoch."""
    return file.with_name(f"{file.name.removesuffix(IDENTITY)}.epoch-{epoch}.old")
