"""`quorumcast doctor`: finds problems of a cell and says what to do.

It checks files, then every broker, and works with any number of running brokers. Brokers that do
not answer cost it ASKING_S at most, since it asks all of them at the same time. It changes nothing,
and connects to brokers without displacing a client.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.common import Rows, ask_all, console, print_json, status_urls, table
from quorumcast.cli.options import JsonOption, UrlOption
from quorumcast.core.errors import UsageError
from quorumcast.manifest.paths import manifest_path

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.cli.cell.checks import Finding
    from quorumcast.crypto.identity import Identity
    from quorumcast.manifest.manifest import Manifest

EXAMPLE = "doctor cell"

#: Time for one answer of a broker, and for all requests together.
ANSWER_S = 3.0
ASKING_S = 4.0
#: Brokers that differ may agree a moment later: number of requests, and the pause between.
LOOKS = 3
PAUSE_S = 1.0
QUIET_S = 1.0

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def doctor(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Made by 'init'; or a manifest file.")
    ] = Path(),
    url: UrlOption = None,
    json_: JsonOption = False,
) -> None:
    """Check a cell: files, keys, brokers, clocks, disks, agreement; say what to do.

    Exit code 0 if there is no error, 1 if there is.
    """
    path = manifest_path(directory)
    if not path.exists():
        raise UsageError(
            f"there is no manifest at {path}; name the directory that 'quorumcast init' made"
        )
    findings = examine(path, url)
    counts = Counter(finding.level for finding in findings)
    if json_:
        print_json(
            {
                "healthy": not counts["error"],
                "errors": counts["error"],
                "warnings": counts["warning"],
                "findings": findings,
            }
        )
    else:
        console().print(_table(findings))
        console().print(
            f"{_count(counts['error'], 'error')}, {_count(counts['warning'], 'warning')}"
        )
    if counts["error"]:
        raise typer.Exit(1)


def examine(path: Path, url: list[str] | None) -> list[Finding]:
    """All findings about the cell of a manifest file."""
    from quorumcast.cli.cell.checks import (
        blame,
        check_certificates,
        check_identities,
        check_manifest,
        check_operator,
    )
    from quorumcast.cli.cell.live_checks import check_brokers
    from quorumcast.manifest.files import read_manifest

    try:
        manifest = read_manifest(path)
    except UsageError as error:
        return [blame("manifest", error)]
    urls = status_urls(manifest, url)
    directory = path.parent
    files, identities = check_identities(manifest, path)
    findings = [*check_manifest(manifest), check_operator(manifest, directory), *files]
    findings += check_certificates(manifest, datetime.datetime.now(datetime.UTC))
    troubles, before, rows = asyncio.run(ask_brokers(manifest, identities, urls))
    return findings + check_brokers(manifest, directory, troubles, rows, before)


async def ask_brokers(
    manifest: Manifest, identities: dict[str, Identity], urls: dict[str, str]
) -> tuple[dict[str, str], Rows, Rows]:
    """The connection errors of brokers, and what `_ask_until_settled` returns."""
    loop = asyncio.get_running_loop()
    told = loop.call_later(QUIET_S, _tell, "waiting for brokers to answer")
    greeted = asyncio.create_task(_greet_all(manifest, identities))
    try:
        before, rows = await _ask_until_settled(manifest, urls, told)
        return await greeted, before, rows
    finally:
        told.cancel()


async def _greet_all(manifest: Manifest, identities: dict[str, Identity]) -> dict[str, str]:
    """The connection error of each broker, "" for none; the keys of any client will do."""
    from quorumcast.runtime.links.probe import probe

    clients = [identities[c.id] for c in manifest.clients if c.id in identities]
    keyring = manifest.keyring(clients[0]) if clients else None
    troubles = await asyncio.gather(
        *(
            probe(broker, address, keyring, ANSWER_S)
            for broker in manifest.broker_ids
            if (address := manifest.address(broker)) is not None
        )
    )
    return dict(zip(manifest.broker_ids, troubles, strict=True))


async def _ask_until_settled(
    manifest: Manifest, urls: dict[str, str], told: asyncio.TimerHandle
) -> tuple[Rows, Rows]:
    """The first status of brokers (empty if one request was enough) and the last.

    Only brokers that answered the first time are asked again.
    """
    from quorumcast.cli.cell.live_checks import unsettled

    until = time.monotonic() + ASKING_S
    before: Rows = {}
    rows = await asyncio.to_thread(ask_all, urls, ANSWER_S)
    told.cancel()
    for look in range(1, LOOKS):
        left_s = until - time.monotonic() - PAUSE_S
        if left_s <= 0 or not unsettled(manifest, rows):
            break
        before = before or rows
        _tell(f"brokers do not agree yet; asking again ({look} of {LOOKS - 1})")
        await asyncio.sleep(PAUSE_S)
        answering = {name: url for name, url in urls.items() if rows[name]["up"]}
        again = await asyncio.to_thread(ask_all, answering, min(ANSWER_S, left_s))
        rows = {**rows, **again}
    return before, rows


def _tell(words: str) -> None:
    console(stderr=True).print(words, markup=False)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _table(findings: list[Finding]) -> Table:
    from rich.markup import escape

    found = table("", "about", "what was found", "what to do", fold=True, simple=True)
    for finding in findings:
        found.add_row(
            f"[{COLOURS[finding.level]}]{finding.level}[/]",
            escape(finding.about),
            escape(finding.says),
            escape(finding.do),
        )
    return found
