"""The three channels of monitoring and their columns.

All have total order: Spark resumes from positions, and all readers see alarms in the same order.
"""

from __future__ import annotations

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy

#: A measurement; `item` is the disk or interface, if there are several.
METRICS = (
    ("time", "timestamp[us, UTC]"),
    ("host", "string"),
    ("metric", "string"),
    ("item", "string"),
    ("value", "float64"),
)
#: A log line. `origin` identifies a line when it is read again, `device` is the host name in a
#: syslog message, and `severity` is that of syslog: 0 (emergency) to 7 (debug).
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

#: Pattern of whole host names, which are directories in the store. It has no anchors, because `$`
#: differs between Python and Java.
HOST = rf"[A-Za-z0-9._-]{{1,{MAX_NAME}}}"

Columns = tuple[tuple[str, str], ...]


class Names(msgspec.Struct, frozen=True):
    """The names of the three channels; a prefix separates several monitors."""

    metrics: str
    logs: str
    alarms: str

    @classmethod
    def under(cls, prefix: str = "") -> Names:
        """Return `metrics`, `logs` and `alarms`, or `plant/metrics` and so on."""
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
    """Return the channels to create; raise `UsageError` if one exists with other columns."""
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
    """Raise `UsageError` if a channel does not exist or has other columns."""
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
