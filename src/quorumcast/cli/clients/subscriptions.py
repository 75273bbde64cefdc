"""`quorumcast subscriptions list`: the progress of the named subscriptions of a channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.common import console, print_json, table
from quorumcast.cli.options import ClientOptions, Commands, JsonOption

if TYPE_CHECKING:
    from quorumcast.client.named.overview import SubscriptionFacts

#: Metrics of a subscription: field of `SubscriptionFacts`, help text.
GAUGES = {
    "lag": "positions from the first unsettled one to the end of the channel",
    "in_flight": "positions that are assigned to a consumer",
    "waiting": "positions that await redelivery",
    "redelivered": "redeliveries so far",
    "dead": "dead positions so far",
}

app = Commands(
    no_args_is_help=True,
    help="Look at named subscriptions.",
    epilog="Example:  quorumcast subscriptions list orders -m cell -i bob",
)


@app.callback()
def _main() -> None:
    """Look at named subscriptions."""


@app.command("list", example="subscriptions list orders -m cell -i bob")
def list_subscriptions(
    channel: Annotated[str, typer.Argument(help="The channel.")],
    where: ClientOptions,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print metrics, for a textfile collector.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show each subscription: consumers, cursor, lag, redeliveries and dead publications.

    It is computed from the operations on the channel's companion, which are verified like all
    publications. The identity is that of a client that may subscribe to the channel.
    """
    from quorumcast.client import run

    found = run(_look(where, channel))
    if json_:
        print_json({"channel": channel, "subscriptions": found})
    elif prometheus:
        print("\n".join(metrics_of(channel, found)))
    else:
        _print(channel, found)


async def _look(where: ClientOptions, channel: str) -> list[SubscriptionFacts]:
    import asyncio

    from quorumcast.client.named.overview import subscriptions_of
    from quorumcast.core.ids import at_seat
    from quorumcast.core.limits import MAX_NAME, MAX_SEATS
    from quorumcast.manifest.files import read_identity

    # Use the last seat, because without a seat we would displace a running client.
    name = read_identity(where.identity_file()).name
    seat = MAX_SEATS if len(at_seat(name, MAX_SEATS)) <= MAX_NAME else 0
    async with await where.connect(seat=seat) as node:
        try:
            async with asyncio.timeout(where.timeout):
                return await subscriptions_of(node, channel)
        except TimeoutError:
            raise where.too_few(channel, node) from None


def metrics_of(channel: str, found: list[SubscriptionFacts]) -> Iterator[str]:
    """Lines in the text format of Prometheus; names need no escapes (`manifest.validation`)."""
    for name, about in GAUGES.items():
        yield f"# HELP quorumcast_consumer_{name} {about}"
        yield f"# TYPE quorumcast_consumer_{name} gauge"
        for facts in found:
            if facts.cursor is not None:
                labels = f'channel="{channel}",owner="{facts.owner}",subscription="{facts.name}"'
                yield f"quorumcast_consumer_{name}{{{labels}}} {getattr(facts, name)}"


def _print(channel: str, found: list[SubscriptionFacts]) -> None:
    if not found:
        console().print(f"channel {channel} has no named subscriptions", markup=False)
        return
    shown = table(
        *("name", "owner", "consumers"),
        right=("cursor", "lag", "in flight", "to redeliver", "redelivered", "dead"),
        fold=True,
        simple=True,
        title=f"subscriptions of {channel}",
    )
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
        silent = [f"{consumer} (silent)" for consumer in facts.silent]
        consumers = ", ".join([*facts.members, *silent]) or "none"
        shown.add_row(facts.name, facts.owner or "its group", consumers, *numbers)
    console().print(shown)
