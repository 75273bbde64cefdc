"""`quorumcast subscriptions list`: the progress of the named subscriptions of a channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.common import (
    IdentityOption,
    JsonOption,
    ManifestOption,
    TimeoutOption,
    console,
    identity_path,
    manifest_path,
    print_json,
)
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.client.named.overview import SubscriptionFacts

app = typer.Typer(
    no_args_is_help=True,
    help="Look at named subscriptions.",
    epilog="Example:  quorumcast subscriptions list orders -m cell -i bob",
)


@app.callback()
def _main() -> None:
    """Look at named subscriptions."""


@app.command("list", epilog="Example:  quorumcast subscriptions list orders -m cell -i bob")
def list_subscriptions(
    channel: Annotated[str, typer.Argument(help="The channel.")],
    manifest: ManifestOption = Path(),
    identity: IdentityOption = "",
    timeout: TimeoutOption = 30.0,
    json_: JsonOption = False,
) -> None:
    """Show each subscription: consumers, cursor, lag, redeliveries and dead publications.

    It is computed from the operations on the channel's companion, which are verified like all
    publications. The identity is that of a client that may subscribe to the channel.
    """
    from quorumcast.client import run

    path = manifest_path(manifest)
    found = run(_look(path, identity_path(identity, path), channel, timeout))
    if json_:
        import msgspec

        print_json({"channel": channel, "subscriptions": msgspec.to_builtins(found)})
    else:
        _print(channel, found)


async def _look(
    manifest: Path, identity: Path, channel: str, timeout_s: float
) -> list[SubscriptionFacts]:
    import asyncio

    from quorumcast.client import connect
    from quorumcast.client.named.overview import subscriptions_of
    from quorumcast.core.ids import at_seat
    from quorumcast.core.limits import MAX_NAME, MAX_SEATS
    from quorumcast.manifest.files import read_identity

    # Use the last seat, because without a seat we would displace a running client.
    name = read_identity(identity).name
    seat = MAX_SEATS if len(at_seat(name, MAX_SEATS)) <= MAX_NAME else 0
    async with await connect(manifest, identity, timeout_s=timeout_s, seat=seat) as node:
        try:
            async with asyncio.timeout(timeout_s):
                return await subscriptions_of(node, channel)
        except TimeoutError:
            raise UsageError(
                f"too few brokers answered on {channel!r} within {timeout_s} s; see 'quorumcast "
                "status'"
            ) from None


def _print(channel: str, found: list[SubscriptionFacts]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    if not found:
        console().print(f"channel {channel} has no named subscriptions", markup=False)
        return
    table = Table(title=f"subscriptions of {channel}", title_justify="left", box=SIMPLE)
    for column in ("name", "owner", "consumers"):
        table.add_column(column, overflow="fold")
    for column in ("cursor", "lag", "in flight", "to redeliver", "redelivered", "dead"):
        table.add_column(column, justify="right")
    for facts in found:
        numbers = (
            ["unknown"] + [""] * 5
            if facts.cursor is None
            else [
                f"{number:,}"
                for number in (
                    facts.cursor,
                    facts.lag,
                    facts.in_flight,
                    facts.waiting,
                    facts.redelivered,
                    facts.dead,
                )
            ]
        )
        table.add_row(
            facts.name, facts.owner or "its group", ", ".join(facts.members) or "none", *numbers
        )
    console().print(table)
