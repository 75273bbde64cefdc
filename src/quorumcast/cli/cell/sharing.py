"""The part of `quorumcast channel` about named subscriptions: companions and groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import ChannelEntry, Group, Manifest

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


def with_companion(
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
