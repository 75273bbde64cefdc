"""Shared by all commands: names of files, output, and the brokers' status pages."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import LAST_PORT
from quorumcast.manifest.paths import IDENTITY as IDENTITY
from quorumcast.manifest.paths import MANIFEST as MANIFEST

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from quorumcast.manifest.manifest import BrokerEntry, Manifest

OPERATOR = "operator"

#: Default distance between a broker's port and the port of its status page.
STATUS_OFFSET = 1000
STATUS_TIMEOUT_S = 5.0
#: Added to the number of a signal, the exit code of a command that it ended, as in a shell.
ENDED_BY_SIGNAL = 128
#: Width of output that does not go to a terminal.
PLAIN_WIDTH = 160

T = TypeVar("T")

#: Status pages by broker, with `up`; see `ask_all`.
Rows = dict[str, dict[str, Any]]


def this_command() -> str:
    """The command with which the user's shell calls this program."""
    called = Path(sys.argv[0])
    if called.name != "quorumcast":
        return f"{shlex.quote(sys.executable)} -m quorumcast"
    found = shutil.which("quorumcast")
    if found is not None and Path(found).resolve() == called.resolve():
        return "quorumcast"
    return shlex.quote(str(called))


def run_client(main: Coroutine[Any, Any, T]) -> T:
    """Run a client; SIGTERM and a closed terminal cancel it, as Ctrl-C does.

    It can then end what it writes: a table without its end cannot be read.
    """
    import asyncio
    import signal

    import typer

    from quorumcast.runtime.loop import run

    ended_by: list[int] = []

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end(number: int) -> None:
            ended_by.append(number)
            if task is not None:
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                loop.add_signal_handler(number, end, number)
        return await main

    try:
        return run(cancellable())
    except asyncio.CancelledError:
        if not ended_by:
            raise
        raise typer.Exit(ENDED_BY_SIGNAL + ended_by[0]) from None


def print_json(value: object) -> None:
    """Print a line of JSON on standard output; structs and lists of them are allowed."""

    def plain(other: object) -> object:
        is_struct = isinstance(other, msgspec.Struct)
        return msgspec.to_builtins(other, str_keys=True) if is_struct else str(other)

    print(json.dumps(value, default=plain), flush=True)


def console(*, stderr: bool = False, width: int = PLAIN_WIDTH) -> Console:
    """A console for output to people; `width` is for output that does not go to a terminal."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # A channel may have the name of an emoji.
    return Console(stderr=stderr, highlight=False, emoji=False, width=None if terminal else width)


def warn(text: str) -> None:
    """Print a warning on standard error, where it does not mix with results; "" is none."""
    if text:
        console(stderr=True).print(f"warning: {text}", markup=False, soft_wrap=True)


def table(
    *columns: str,
    right: tuple[str, ...] = (),
    fold: bool = False,
    simple: bool = False,
    **settings: Any,
) -> Table:
    """A table of these columns, and then those of `right`, which are aligned to the right.

    With `fold`, long words in the former are broken; a `simple` table has no vertical lines.
    """
    from rich.box import SIMPLE
    from rich.table import Column, Table

    if simple:
        settings |= {"box": SIMPLE, "title_justify": "left", "collapse_padding": True}
    left = (Column(name, overflow="fold" if fold else "ellipsis") for name in columns)
    return Table(*left, *(Column(name, justify="right") for name in right), **settings)


def facts_table(title: str, facts: Mapping[str, str]) -> Table:
    """A table of names and values, without a header."""
    shown = table("", "", title=title, show_header=False)
    for name, value in facts.items():
        shown.add_row(name, value)
    return shown


# ------------------------------------------------------------------ status pages


def status_urls(manifest: Manifest, given: list[str] | None) -> dict[str, str]:
    """The URL of each broker's status page."""
    result: dict[str, str] = {}
    for broker in manifest.brokers:
        result[broker.id] = default_status_url(broker)
    for entry in given or ():
        name, separator, url = entry.partition("=")
        if not separator:
            raise UsageError(f"--url takes BROKER=http://HOST:PORT, not {entry!r}")
        manifest.check_brokers([name])
        result[name] = url.rstrip("/")
    return result


def default_status_port(broker: BrokerEntry) -> int:
    """The default port of a status page: the broker's port plus (or minus) STATUS_OFFSET."""
    above = broker.port + STATUS_OFFSET
    return above if above <= LAST_PORT else broker.port - STATUS_OFFSET


def default_status_url(broker: BrokerEntry) -> str:
    """The default URL of a status page, on this machine."""
    return f"http://127.0.0.1:{default_status_port(broker)}"


def ask_all(urls: dict[str, str], timeout_s: float = STATUS_TIMEOUT_S) -> Rows:
    """The status of all brokers, requested concurrently; `up` tells whether a page answered.

    `clock_ahead_s` is the offset of its clock, with an error of at most half the round trip.
    """
    from concurrent.futures import ThreadPoolExecutor

    def look(url: str) -> dict[str, Any]:
        asked = time.time()
        try:
            answer: Any = ask(f"{url}/status", timeout_s=timeout_s)
        except UsageError as error:
            return {"up": False, "state": "down", "trouble": str(error)}
        if not isinstance(answer, dict) or "node" not in answer:
            return {"up": False, "state": "no broker", "trouble": f"no broker is at {url}"}
        answered = time.time()
        there = answer.get("time", (asked + answered) / 2)
        return {
            "up": True,
            **answer,
            "round_trip_s": round(answered - asked, 3),
            "clock_ahead_s": round(there - (asked + answered) / 2, 3),
        }

    with ThreadPoolExecutor(max(len(urls), 1)) as pool:
        return dict(zip(urls, pool.map(look, urls.values()), strict=True))


def ask_cell(manifest: Manifest, urls: dict[str, str]) -> Rows:
    """Like `ask_all`, but the page of another broker or cell does not count as up."""
    rows = ask_all(urls)
    for name, row in rows.items():
        if row["up"] and not is_broker(row, name, manifest.cell):
            state = f"{row['node']} of cell {row['cell']}"
            rows[name] = {"up": False, "state": state, "cell": row["cell"]}
    return rows


def ports_taken(cell: str, rows: Rows) -> tuple[str, str] | None:
    """What is wrong, and what to do, if another cell alone answers at the pages of this one."""
    others = {str(row["cell"]) for row in rows.values() if "cell" in row}
    if not others or cell in others:
        return None
    return (
        f"cell {min(others)!r} runs on the ports of cell {cell!r}",
        f"stop it, or make {cell!r} anew on other ports, with --base-port",
    )


def is_broker(row: dict[str, Any], name: str, cell: str) -> bool:
    """Whether a status page belongs to this broker; another cell may use the same ports."""
    return bool(row["up"]) and (row["node"], row["cell"]) == (name, cell)


def ask(
    url: str,
    method: str = "GET",
    body: dict[str, Any] | None = None,
    timeout_s: float = STATUS_TIMEOUT_S,
) -> dict[str, Any]:
    """The answer of a status page; `UsageError` if there is none."""
    import urllib.error
    import urllib.request

    try:
        request = urllib.request.Request(
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            result: dict[str, Any] = json.load(answer)
            return result
    except urllib.error.HTTPError as error:
        try:
            sentence = json.load(error)["error"]
        except (ValueError, KeyError):
            sentence = f"{url} answers {error.code}; is it a broker's status page?"
        raise UsageError(sentence) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"no status page answers at {url} ({reason}); start the broker, on this machine "
            "with 'quorumcast up' or 'quorumcast tree up', or say where its page is with --url"
        ) from None
