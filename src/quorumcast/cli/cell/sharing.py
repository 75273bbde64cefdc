"""The part of `quorumcast channel` about named subscriptions: companions and groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

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
ShareOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=CLIENTS",
        help="Let consumers share a subscription: names with commas, or '*'.",
    ),
]
UnshareOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="End a shared subscription.")
]
DeadLetterOption = Annotated[
    str | None, typer.Option(help="With --share: the channel for dead letters.")
]
AttemptsOption = Annotated[
    int | None, typer.Option(help="With --share: attempts per publication; 0 is unlimited.")
]
AckTimeoutOption = Annotated[
    float | None, typer.Option(help="With --share: seconds of silence that end a session.")
]


class Sharing:
    """A change of groups, from the command line."""

    def __init__(
        self,
        share: str | None,
        unshare: str | None,
        dead_letter: str | None,
        attempts: int | None,
        ack_timeout: float | None,
    ) -> None:
        self._share = share
        self._unshare = unshare
        self._dead_letter = dead_letter
        self._attempts = attempts
        self._ack_timeout = ack_timeout
        details = (dead_letter, attempts, ack_timeout)
        if share is None and any(value is not None for value in details):
            raise UsageError(
                "--dead-letter, --attempts and --ack-timeout need --share NAME=CLIENTS"
            )
        if share is not None and not all(part.strip() for part in share.partition("=")):
            raise UsageError(
                f"--share takes NAME=CLIENTS, such as billing=bob,carol, not {share!r}"
            )
        if ack_timeout is not None and not 0 < ack_timeout < math.inf:
            raise UsageError("--ack-timeout is a number of seconds, more than 0")

    @property
    def given(self) -> bool:
        """Whether there is a change."""
        return self._share is not None or self._unshare is not None

    def applied(self, entry: ChannelEntry) -> tuple[Group, ...]:
        """The groups of a channel after the change."""
        groups = {group.name: group for group in entry.groups}
        if self._unshare is not None and groups.pop(self._unshare, None) is None:
            known = ", ".join(groups) or "none"
            raise UsageError(
                f"channel {entry.name!r} has no shared subscription {self._unshare!r}; it has: "
                f"{known}"
            )
        if self._share is not None:
            made = self._made(groups, self._share)
            groups[made.name] = made
        return tuple(groups.values())

    def _made(self, groups: dict[str, Group], share: str) -> Group:
        from msgspec.structs import replace

        from quorumcast.manifest.manifest import Group

        name, _, members = share.partition("=")
        names = tuple(text.strip() for text in members.split(",") if text.strip())
        group = groups.get(name.strip(), Group(name.strip(), names))
        changes: dict[str, object] = {"members": names}
        if self._dead_letter is not None:
            changes["dead_letter"] = self._dead_letter
        if self._attempts is not None:
            changes["max_attempts"] = self._attempts
        if self._ack_timeout is not None:
            changes["ack_timeout_ms"] = math.ceil(self._ack_timeout * 1000)
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
