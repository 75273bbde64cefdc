"""The three channels of monitoring and their columns.

All have total order: Spark goes on from positions, and everybody sees alarms in one order.
"""

from __future__ import annotations

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy

#: A measurement: `item` is what was measured where there are several (a disk, an interface).
METRICS = (
    ("time", "timestamp[us, UTC]"),
    ("host", "string"),
    ("metric", "string"),
    ("item", "string"),
    ("value", "float64"),
)
#: A line of a log. `origin` is the same whenever the same line is read again, `device` the name
#: that a syslog message gives itself, `severity` as in syslog: 0 is an emergency, 7 is for
#: debugging.
LOGS = (
    ("time", "timestamp[us, UTC]"),
    ("host", "string"),
    ("source", "string"),
    ("origin", "string"),
    ("severity", "int32"),
    ("device", "string"),
    ("program", "string"),
    ("message", "string"),
)
#: An alarm that was raised or cleared; both have the same `id`.
ALARMS = (
    ("time", "timestamp[us, UTC]"),
    ("id", "string"),
    ("state", "string"),
    ("rule", "string"),
    ("severity", "string"),
    ("host", "string"),
    ("item", "string"),
    ("value", "float64"),
    ("text", "string"),
)

#: Names of hosts, which are directories in the store; the whole name must match. Without an end,
#: because Python and Java do not agree on what `$` is.
HOST = rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}"

Columns = tuple[tuple[str, str], ...]


class Names(msgspec.Struct, frozen=True):
    """What the three channels are called; a prefix keeps several monitors apart."""

    metrics: str
    logs: str
    alarms: str

    @classmethod
    def under(cls, prefix: str = "") -> Names:
        """`metrics`, `logs` and `alarms`, or `plant/metrics` and so on."""
        before = f"{prefix.rstrip('/')}/" if prefix else ""
        return cls(f"{before}metrics", f"{before}logs", f"{before}alarms")

    @property
    def columns(self) -> dict[str, Columns]:
        """The columns of each channel by its name."""
        return {self.metrics: METRICS, self.logs: LOGS, self.alarms: ALARMS}


def missing_entries(
    manifest: Manifest,
    names: Names,
    policy: Policy,
    probes: tuple[str, ...],
    consoles: tuple[str, ...],
    readers: tuple[str, ...],
) -> list[ChannelEntry]:
    """The channels that are still to be made; a `UsageError` if one is there and is another."""
    if not policy.total:
        raise UsageError(
            f"policy {policy.title!r} has no total order, which Spark needs to go on where it "
            "stopped: use 'total', 'total+durable', 'total-crash' or 'total-crash+durable'"
        )
    rights = {
        names.metrics: (probes, consoles),
        names.logs: (probes, consoles),
        names.alarms: (consoles, readers),
    }
    made = []
    for name, columns in names.columns.items():
        if manifest.channel(name) is None:
            publishers, subscribers = rights[name]
            entry = ChannelEntry(Channel(name), policy, publishers, subscribers, columns)
            made.append(entry)
        else:
            check_channel(manifest, name, columns)
    return made


def check_channel(manifest: Manifest, name: str, columns: Columns) -> None:
    """Refuse a channel that is not there or is made for something else."""
    entry = manifest.channel(name)
    if entry is None:
        raise UsageError(
            f"cell {manifest.cell!r} has no channel {name!r}; make it with "
            "'quorumcast pipeline monitor init'"
        )
    if entry.schema[: len(columns)] != columns:
        raise UsageError(
            f"channel {name!r} is there with other columns than monitoring needs; choose other "
            "names with --prefix, such as --prefix monitor"
        )
