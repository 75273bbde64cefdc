"""`quorumcast channel …`: the channels of a running cell.

`list` and `show` read the manifest, and with --live the brokers' status pages. `create`, `change`
and `delete` write the next epoch; brokers adopt it without a restart, and other channels are not
disturbed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from quorumcast.cli.cell import channel_help
from quorumcast.cli.cell.advancing import advance, wait_until_taken
from quorumcast.cli.cell.channel_facts import (
    channel_facts,
    channel_table,
    channel_users,
    live_facts,
    show_channel,
)
from quorumcast.cli.cell.init import CHANNEL, NOBODY, parse_channel, parse_rights
from quorumcast.cli.common import Rows, console, print_json
from quorumcast.cli.options import (
    Commands,
    JsonOption,
    OperatorOptions,
    RetainOption,
    StatusOptions,
    WaitForRunningOption,
)
from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.manifest.patterns import matching

if TYPE_CHECKING:
    from quorumcast.core.limits import Limits, Overflow
    from quorumcast.manifest.manifest import ChannelEntry, Group, Manifest
    from quorumcast.manifest.policy import Policy

app = Commands(
    no_args_is_help=True,
    help="Look at the channels of a cell, and change them while it runs.",
    epilog="Example:  quorumcast channel create trades:total+durable -m cell",
)

LiveOption = Annotated[bool, typer.Option("--live", help="Ask the brokers how far they are.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME:TYPE", help="A column of the schema; may be repeated."),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=NUMBER", help="A limit; may be repeated."),
]
OverflowOption = Annotated[
    str | None,
    typer.Option(
        metavar="wait|oldest|newest",
        help="When a subscriber's queue is full and it does not say itself: wait or discard.",
    ),
]
SubscriptionsOption = Annotated[
    bool,
    typer.Option(
        "--subscriptions",
        help="Create its companion NAME/subscriptions, for named subscriptions (total order).",
    ),
]


class Sharing(msgspec.Struct, kw_only=True):
    """The options that change the groups of a channel."""

    share: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=CLIENTS",
            help="Let consumers share a subscription: names with commas, or '*'.",
        ),
    ] = None
    unshare: Annotated[
        str | None, typer.Option(metavar="NAME", help="End a shared subscription.")
    ] = None
    dead_letter: Annotated[
        str | None, typer.Option(help="With --share: the channel for dead letters.")
    ] = None
    attempts: Annotated[
        int | None, typer.Option(help="With --share: attempts per publication; 0 is unlimited.")
    ] = None
    ack_timeout: Annotated[
        float | None, typer.Option(help="With --share: seconds of silence that end a session.")
    ] = None

    def __post_init__(self) -> None:
        details = (self.dead_letter, self.attempts, self.ack_timeout)
        if self.share is None and any(value is not None for value in details):
            raise UsageError(
                "--dead-letter, --attempts and --ack-timeout need --share NAME=CLIENTS"
            )
        if self.share is not None and not all(part.strip() for part in self.share.partition("=")):
            raise UsageError(
                f"--share takes NAME=CLIENTS, such as billing=bob,carol, not {self.share!r}"
            )
        if self.ack_timeout is not None and not 0 < self.ack_timeout < math.inf:
            raise UsageError("--ack-timeout is a number of seconds, more than 0")

    @property
    def given(self) -> bool:
        """Whether there is a change."""
        return self.share is not None or self.unshare is not None

    def applied(self, entry: ChannelEntry) -> tuple[Group, ...]:
        """The groups of a channel after the change."""
        groups = {group.name: group for group in entry.groups}
        if self.unshare is not None and groups.pop(self.unshare, None) is None:
            known = ", ".join(groups) or "none"
            raise UsageError(
                f"channel {entry.name!r} has no shared subscription {self.unshare!r}; it has: "
                f"{known}"
            )
        if self.share is not None:
            made = self._made(groups, self.share)
            groups[made.name] = made
        return tuple(groups.values())

    def _made(self, groups: dict[str, Group], share: str) -> Group:
        from msgspec.structs import replace

        from quorumcast.manifest.manifest import Group

        name, _, members = share.partition("=")
        names = tuple(text.strip() for text in members.split(",") if text.strip())
        group = groups.get(name.strip(), Group(name.strip(), names))
        changes: dict[str, object] = {"members": names}
        if self.dead_letter is not None:
            changes["dead_letter"] = self.dead_letter
        if self.attempts is not None:
            changes["max_attempts"] = self.attempts
        if self.ack_timeout is not None:
            changes["ack_timeout_ms"] = math.ceil(self.ack_timeout * 1000)
        return replace(group, **changes)


@app.command("list", example="channel list -m cell --live")
def list_channels(
    where: StatusOptions,
    pattern: Annotated[
        str, typer.Argument(help="Only those that match, in quotes: 'plant/*/temp', 'plant/**'.")
    ] = "**",
    live: LiveOption = False,
    json_: JsonOption = False,
) -> None:
    """Show every channel: policy, what is on disk, rights, columns."""
    cell = where.read()
    names = matching(pattern, (entry.name for entry in cell.channels))
    rows = where.ask(cell) if live else {}
    facts = [
        {**channel_facts(cell, entry), **({"live": live_facts(entry, rows)} if live else {})}
        for entry in cell.channels
        if entry.name in names
    ]
    if json_:
        print_json({"cell": cell.cell, "epoch": cell.epoch, "channels": facts})
    elif not facts:
        what = f"no channel of cell {cell.cell!r} matches {pattern!r}"
        console().print(f"{what}; its channels are: {_names(cell)}", markup=False, soft_wrap=True)
    else:
        console().print(channel_table(cell, facts, tuple(rows)))


@app.command(example="channel show trades -m cell --live")
def show(
    name: Annotated[str, typer.Argument(help="The channel.")],
    where: StatusOptions,
    live: LiveOption = False,
    json_: JsonOption = False,
) -> None:
    """Show one channel in full: limits, columns, rights."""
    cell = where.read()
    entry = _entry(cell, name)
    facts = channel_facts(cell, entry)
    if live:
        facts["live"] = live_facts(entry, where.ask(cell))
    if json_:
        print_json({"cell": cell.cell, "epoch": cell.epoch, "channel": facts})
    else:
        show_channel(entry, facts)


@app.command(example="channel create trades:total+durable -m cell", help=channel_help.CREATE)
def create(
    channel: Annotated[str, typer.Argument(metavar=CHANNEL)],
    where: OperatorOptions,
    column: ColumnOption = None,
    retain: RetainOption = None,
    limit: LimitOption = None,
    overflow: OverflowOption = None,
    subscriptions: SubscriptionsOption = False,
    wait: WaitForRunningOption = True,
    json_: JsonOption = False,
) -> None:
    """Create a channel; running brokers adopt it without a restart."""
    from msgspec.structs import replace

    from quorumcast.manifest.build import next_epoch

    made = parse_channel(channel)
    policy = replace(made.policy, limits=with_limits(made.policy, limit, retain))
    entry = replace(made, policy=policy, schema=parse_columns(column), overflow=_overflow(overflow))
    cell = where.read()
    urls = where.urls(cell)

    def add(old: Manifest) -> Manifest:
        if old.channel(entry.name) is not None:
            raise UsageError(
                f"there is a channel {entry.name!r} already; choose another name, or change it "
                f"with 'quorumcast channel change {entry.name}'"
            )
        check_size(old, entry)
        more = _with_companion(old, None, entry, make=subscriptions)
        return next_epoch(old, channels=(*old.channels, entry, *more))

    if policy.needs_store:
        check_disks(entry, where.ask(cell))
    new = advance(where.path, where.operator, add)
    _report(new, entry.name, urls if wait else {}, json_)


@app.command(example="channel change orders --publishers alice,carol -m cell")
def change(
    name: Annotated[str, typer.Argument(help="The channel.")],
    where: OperatorOptions,
    sharing: Sharing,
    publishers: Annotated[
        str | None,
        typer.Option(help=f"Who may publish: names with commas, '*' or '{NOBODY}' for nobody."),
    ] = None,
    subscribers: Annotated[
        str | None, typer.Option(help="Who may subscribe, in the same way.")
    ] = None,
    column: ColumnOption = None,
    retain: RetainOption = None,
    limit: LimitOption = None,
    overflow: OverflowOption = None,
    subscriptions: SubscriptionsOption = False,
    policy: Annotated[str | None, typer.Option(hidden=True)] = None,
    remove_column: Annotated[str | None, typer.Option(hidden=True)] = None,
    wait: WaitForRunningOption = True,
    json_: JsonOption = False,
) -> None:
    """Change rights, groups, retention or local limits, or add columns.

    A new column comes after the others and is null in earlier publications. --retain, cached_bytes,
    publishers and subscribers apply at once, other limits to what is opened from then on.
    """
    from msgspec.structs import replace

    from quorumcast.manifest.build import next_epoch
    from quorumcast.manifest.successor import check_limits

    if policy is not None or remove_column is not None:
        wrong = "the policy of a channel" if policy is not None else "a column"
        raise UsageError(
            f"{wrong} stays, because publications that rest on it are retained; make a new channel "
            "with 'quorumcast channel create'"
        )
    given = (publishers, subscribers, column or None, retain or None, limit or None, overflow)
    if all(value is None for value in given) and not subscriptions and not sharing.given:
        raise UsageError(
            "nothing to change; use --publishers, --subscribers, --column, --retain, --limit, "
            "--overflow, --subscriptions, --share or --unshare"
        )
    cell = where.read()

    def changed(old: Manifest) -> ChannelEntry:
        entry = _entry(old, name)
        new = parse_columns(column)
        for title, kind in entry.schema:
            if title in dict(new):
                raise UsageError(f"channel {name!r} has a column {title!r} already, of type {kind}")
        limits = with_limits(entry.policy, limit, retain)
        check_limits(entry, limits)
        return replace(
            entry,
            publishers=entry.publishers if publishers is None else parse_rights(publishers),
            subscribers=entry.subscribers if subscribers is None else parse_rights(subscribers),
            schema=(*entry.schema, *new),
            groups=sharing.applied(entry),
            policy=replace(entry.policy, limits=limits),
            overflow=entry.overflow if overflow is None else _overflow(overflow),
        )

    def apply(old: Manifest) -> Manifest:
        entry = changed(old)
        there = {channel.name: channel for channel in old.channels}
        for made in (entry, *_with_companion(old, there[entry.name], entry, make=subscriptions)):
            there[made.name] = made
        return next_epoch(old, channels=tuple(there.values()))

    same = apply(cell).channels == cell.channels
    new = cell if same else advance(where.path, where.operator, apply)
    _report(new, name, where.urls(new) if wait else {}, json_)


@app.command(example="channel delete audit --yes -m cell")
def delete(
    name: Annotated[str, typer.Argument(help="The channel.")],
    where: OperatorOptions,
    yes: Annotated[
        bool, typer.Option("--yes", help="Yes, with everything that brokers hold of it.")
    ] = False,
    wait: WaitForRunningOption = True,
    json_: JsonOption = False,
) -> None:
    """Delete a channel and its retained publications; prints who publishes and subscribes there.

    Its companion for named subscriptions goes with it.
    """
    from quorumcast.manifest.build import next_epoch
    from quorumcast.manifest.groups import companion_of

    cell = where.read()
    _entry(cell, name)
    users = channel_users(name, where.ask(cell))
    if not yes:
        used = f", although {users} there" if users else ""
        raise UsageError(
            f"this deletes channel {name!r} and everything that brokers hold of it{used}; add --yes"
        )

    def remove(old: Manifest) -> Manifest:
        _entry(old, name)
        gone = (name, companion_of(name))
        return next_epoch(old, channels=tuple(c for c in old.channels if c.name not in gone))

    new = advance(where.path, where.operator, remove)
    if users:
        console(stderr=True).print(
            f"channel {name} was in use: {users} there", markup=False, soft_wrap=True
        )
    _report(new, name, where.urls(new) if wait else {}, json_)


# ------------------------------------------------------------------- shared


def _entry(cell: Manifest, name: str) -> ChannelEntry:
    entry = cell.channel(name)
    if entry is None:
        raise UsageError(
            f"there is no channel {name!r} in cell {cell.cell!r}; its channels are: {_names(cell)}"
        )
    return entry


def _names(cell: Manifest) -> str:
    return ", ".join(channel.name for channel in cell.channels) or "none"


def parse_columns(given: list[str] | None) -> tuple[tuple[str, str], ...]:
    columns = []
    for text in given or ():
        name, separator, kind = text.partition(":")
        if not separator or not name or not kind:
            raise UsageError(f"--column takes NAME:TYPE, such as price:float64, not {text!r}")
        columns.append((name, kind.strip()))
    return tuple(columns)


def _overflow(given: str | None) -> Overflow:
    from quorumcast.core.limits import Overflow

    choices = [choice.value for choice in Overflow]
    if given is not None and given not in choices:
        raise UsageError(f"--overflow is {', '.join(choices)}, not {given!r}")
    return Overflow.WAIT if given is None else Overflow(given)


def with_limits(policy: Policy, given: list[str] | None, retain: list[str] | None = None) -> Limits:
    """The limits of a policy, with changes from the command line."""
    from quorumcast.manifest.retention import with_retention

    known = policy.limits.__struct_fields__
    wanted: dict[str, int] = {}
    for text in given or ():
        name, separator, number = text.partition("=")
        if separator and name not in known:
            raise UsageError(f"there is no limit {name!r}; {did_you_mean(name, known)}")
        if not separator or not number.isdecimal():
            raise UsageError(
                f"--limit takes NAME=NUMBER with a whole number, such as queue=100, not {text!r}"
            )
        wanted[name] = int(number)
    limits = msgspec.structs.replace(policy.limits, **wanted)
    # Limits that are given by name also bound how little can be retained.
    limits = with_retention(msgspec.structs.replace(policy, limits=limits), retain or ())
    return msgspec.structs.replace(limits, **wanted)


def _with_companion(
    old: Manifest, before: ChannelEntry | None, entry: ChannelEntry, *, make: bool
) -> list[ChannelEntry]:
    """The companion to add, or with the rights that it shares with its channel; or none."""
    from msgspec.structs import replace

    from quorumcast.manifest.groups import companion_of, make_companion

    present = old.channel(companion_of(entry.name))
    if present is None:
        return [make_companion(entry)] if make else []
    follows = before is not None and before.subscribers == present.subscribers
    if follows and present.publishers == present.subscribers:
        return [replace(present, publishers=entry.subscribers, subscribers=entry.subscribers)]
    return []


def check_size(cell: Manifest, entry: ChannelEntry) -> None:
    """Refuse a policy for which the cell has too few brokers; name those that it supports."""
    from quorumcast.core.quorum import minimum_brokers
    from quorumcast.manifest.policy import POLICY_NAMES, Policy

    def needed(policy: Policy) -> int:
        return minimum_brokers(policy.protection, cell.f, policy.broadcast)

    have = len(cell.brokers)
    if have >= needed(entry.policy):
        return
    possible = [name for name in POLICY_NAMES if needed(Policy.named(name)) <= have]
    advice = f"use {' or '.join(possible)}, or " if possible else ""
    raise UsageError(
        f"policy {entry.policy.name!r} needs {needed(entry.policy)} brokers to withstand "
        f"f={cell.f}, and cell {cell.cell!r} has {have}; {advice}make a larger cell with "
        "'quorumcast init'"
    )


def check_disks(entry: ChannelEntry, rows: Rows) -> None:
    """Refuse a durable channel if a broker has no data directory: it could not adopt the epoch."""
    without = [name for name, row in rows.items() if row["up"] and not row.get("disk")]
    if without:
        raise UsageError(
            f"channel {entry.name!r} is kept on disk, and {', '.join(without)} has no data "
            "directory; start it with --data first"
        )


def _report(new: Manifest, name: str, urls: dict[str, str], json_: bool) -> None:
    """Print the result, and which brokers have adopted it; exit code 1 if too few have."""
    taken = wait_until_taken(new, urls) if urls else {}
    entry = new.channel(name)
    facts: dict[str, Any] = {
        "cell": new.cell,
        "epoch": new.epoch,
        "channel": None if entry is None else channel_facts(new, entry),
        "taken": taken,
    }
    if json_:
        print_json(facts)
    else:
        what = "is deleted" if entry is None else f"is {entry.policy.title}"
        up = f", which {sum(taken.values())} of {len(taken)} running brokers have" if taken else ""
        console().print(f"channel {name} {what} in epoch {new.epoch}{up}", markup=False)
    late = [broker for broker, done in taken.items() if not done]
    if late:
        console(stderr=True).print(
            f"{', '.join(late)} has not taken epoch {new.epoch}; its log says why; where it has a "
            "manifest of its own, copy the new one there",
            markup=False,
            soft_wrap=True,
        )
    if taken and sum(taken.values()) < new.quorums.responders and late:
        raise typer.Exit(1)
