"""The options of `format("quorumcast")`, parsed and checked on the driver before anything runs.

Spark passes options as text, with names in lower case. An unknown or invalid option raises
`UsageError` with its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from quorumcast.client.arguments import EARLIEST, LATEST, check_times
from quorumcast.core.envelope import microseconds_of
from quorumcast.core.errors import UsageError, nearest, shortened
from quorumcast.core.limits import MAX_SEATS
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.paths import identity_path, manifest_path
from quorumcast.manifest.patterns import is_pattern
from quorumcast.manifest.rights import to_subscribe

T = TypeVar("T")

#: Spark's largest number of rows or bytes.
MOST = 2**63 - 1

#: Default seats of sources and sinks: a query may have both. The command line has the last seat.
SOURCE_SEATS = range(1, 9)
SINK_SEATS = range(9, MAX_SEATS)

DEFAULT_TIMEOUT_S = 30.0


class Tamper(StrEnum):
    """The reaction to dissent and to contents that do not fit the schema."""

    #: Fail the query.
    FAIL = "fail"
    #: Put contents that do not fit into the column `_raw` of a row without values.
    QUARANTINE = "quarantine"
    #: Leave out contents that do not fit, and log a warning.
    WARN = "warn"


class Given:
    """The options that the user gave; `take` parses one, and `finish` rejects unknown ones."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        #: The names of all options so far, as in the documentation.
        self._known: list[str] = []

    def take(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        """Return the value of an option; `parse` receives its name, for errors, and its text."""
        self._known.append(name)
        text = self._options.pop(name.lower(), None)
        return default if text is None else parse(name, text.strip())

    def finish(self, side: str) -> None:
        """Raise `UsageError` if an option was not taken."""
        for name in self._options:
            near = nearest(name, self._known)
            known = f"leave it out; {side} takes {', '.join(sorted(self._known))}"
            meant = f"did you mean {near!r}?" if near else known
            raise UsageError(f"{side} has no option {name!r}: {meant}")


# ------------------------------------------------------------------------- values


def text(name: str, value: str) -> str:
    """Parse a text that is not empty."""
    if not value:
        raise UsageError(f"option {name!r} is empty: give it a value or leave it out")
    return value


def count(name: str, value: str) -> int:
    """Parse a whole number of 1 or more."""
    # The length first: Python refuses to parse very long numbers.
    if not value.isdecimal() or len(value) > len(str(MOST)) or not 1 <= int(value) <= MOST:
        raise UsageError(
            f"option {name!r} is {shortened(value)!r}: give a whole number of 1 or more, and at "
            f"most {MOST:,}"
        )
    return int(value)


def switch(name: str, value: str) -> bool:
    """Parse true or false."""
    if value.lower() not in ("true", "false"):
        raise UsageError(f"option {name!r} is {value!r}: give true or false")
    return value.lower() == "true"


def seconds(name: str, value: str) -> float:
    """Parse a number of seconds, 0 or more."""
    try:
        found = float(value)
        check_times(**{name: found})
    except (ValueError, UsageError):
        raise UsageError(f"option {name!r} is {value!r}: give seconds, 0 or more") from None
    return found


def seats(name: str, value: str) -> tuple[int, ...]:
    """Parse seats such as "1-4,7"."""
    found: dict[int, None] = {}
    try:
        for part in value.split(","):
            first, dash, last = part.partition("-")
            low, high = int(first), int(last if dash else first)
            # Checked before the range is expanded, which may be huge.
            if not 1 <= low <= high <= MAX_SEATS:
                raise ValueError
            found.update(dict.fromkeys(range(low, high + 1)))
    except ValueError:
        raise UsageError(
            f"option {name!r} is {shortened(value)!r}: give seats from 1 to {MAX_SEATS}, such as "
            "'1-4,7'"
        ) from None
    return tuple(found)


def tamper(name: str, value: str) -> Tamper:
    """Parse a reaction to tampering."""
    try:
        return Tamper(value.lower())
    except ValueError:
        known = ", ".join(Tamper)
        raise UsageError(f"option {name!r} is {value!r}: choose one of {known}") from None


def names(name: str, value: str) -> tuple[str, ...]:
    """Parse names between commas; duplicates are removed."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    if not all(found):
        raise UsageError(f"option {name!r} is {value!r}: give names between commas")
    return found


# ------------------------------------------------------------------------ access


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect to the cell; the files must exist on every machine of a Spark cluster."""

    manifest: str
    identity: str
    #: Seats of the identity, in order of preference.
    seats: tuple[int, ...]
    timeout_s: float


def take_access(given: Given, defaults: Iterable[int]) -> tuple[Access, Manifest]:
    """Parse the options that sources and sinks have in common."""
    manifest = given.take("manifest", text, "")
    identity = given.take("identity", text, "")
    chosen = given.take("seats", seats, tuple(defaults))
    timeout_s = given.take("timeout", seconds, DEFAULT_TIMEOUT_S)
    if not manifest:
        raise UsageError(
            "option 'manifest' is missing: name the cell's manifest, or the directory that "
            "'quorumcast init' made"
        )
    path = manifest_path(Path(manifest)).absolute()
    cell = read_manifest(path)
    if not identity:
        known = ", ".join(sorted(client.id for client in cell.clients)) or "none yet"
        raise UsageError(
            "option 'identity' is missing: name an identity file, or a client of the cell whose "
            f"file lies beside the manifest; its clients are: {known}"
        )
    who = identity_path(identity, path).absolute()
    access = Access(manifest=str(path), identity=str(who), seats=chosen, timeout_s=timeout_s)
    return access, cell


# ------------------------------------------------------------------------ the source


class Offsets(msgspec.Struct, frozen=True):
    """Where to start or to end: "earliest" or "latest", positions by channel, or a time."""

    word: str = ""
    positions: tuple[tuple[str, int], ...] = ()
    #: Microseconds since 1970.
    since_us: int = 0


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a source."""

    access: Access
    #: Sorted, because Spark compares offsets as text.
    channels: tuple[str, ...]
    pattern: str = ""
    starting: Offsets
    ending: Offsets
    max_events: int = 0
    max_bytes: int = 0
    fail_on_data_loss: bool = True
    tamper: Tamper = Tamper.WARN
    where: str = ""
    receipts: bool = False
    #: Ranges that are read in parallel.
    partitions: int = 1


def source_options(
    options: Mapping[str, str], parallelism: int | None = None
) -> tuple[SourceOptions, list[ChannelEntry]]:
    """Parse the options of a source and check them against the manifest; return its channels.

    `parallelism` is the number of parallel tasks of Spark; None if unknown.
    """
    given = Given(options)
    channel = given.take("channel", text, "")
    several: tuple[str, ...] = given.take("channels", names, ())
    pattern = given.take("pattern", text, "")
    starting = given.take("startingOffsets", _starting, Offsets(EARLIEST))
    ending = given.take("endingOffsets", _ending, Offsets(LATEST))
    limits = [given.take(name, count, 0) for name in ("maxEventsPerTrigger", "maxBytesPerTrigger")]
    strict = given.take("failOnDataLoss", switch, True)
    reaction = given.take("failOnTamper", tamper, Tamper.WARN)
    where = given.take("where", text, "")
    receipts = given.take("receipts", switch, False)
    partitions = given.take("partitions", count, 0)
    access, manifest = take_access(given, SOURCE_SEATS)
    given.finish("the source")
    parallel_seats = len(access.seats) - 1
    if not parallel_seats:
        raise UsageError(
            "option 'seats' names one seat, and a source needs two or more: one for the driver "
            "and one for each range that is read at the same time"
        )
    if sum(map(bool, (channel, several, pattern))) != 1:
        raise UsageError(
            "name what to read with one of the options 'channel', 'channels' and 'pattern'"
        )
    entries = _channels(access, manifest, (channel,) if channel else several, pattern)
    for where_to, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        _check_named(where_to, offsets, entries)
    ends = dict(ending.positions)
    for name, first in starting.positions:
        if first > ends.get(name, first):
            raise UsageError(
                f"option 'startingOffsets' says {first} for {name!r} and 'endingOffsets' "
                f"{ends[name]}, which is before that: begin earlier or end later"
            )
    found = SourceOptions(
        access=access,
        channels=tuple(sorted(entry.name for entry in entries)),
        pattern=pattern,
        starting=starting,
        ending=ending,
        max_events=limits[0],
        max_bytes=limits[1],
        fail_on_data_loss=strict,
        tamper=reaction,
        where=where,
        receipts=receipts,
        partitions=partitions or min(parallel_seats, parallelism or os.cpu_count() or 1),
    )
    return found, entries


def _channels(
    access: Access, manifest: Manifest, named: tuple[str, ...], pattern: str
) -> list[ChannelEntry]:
    me = read_identity(Path(access.identity)).name
    if pattern:
        entries = to_subscribe(manifest, me, pattern)
    else:
        for name in named:
            if is_pattern(name):
                raise UsageError(f"{name!r} is a pattern: give it as the option 'pattern'")
        entries = [to_subscribe(manifest, me, name)[0] for name in named]
    for entry in entries:
        if not entry.policy.total:
            raise UsageError(
                f"channel {entry.name!r} has no positions that Spark could go on from, because it "
                "has no total order: read a channel with one of the policies 'total' and "
                "'total-crash'"
            )
        if entry.schema != entries[0].schema:
            raise UsageError(
                f"channels {entries[0].name!r} and {entry.name!r} have different columns: read "
                "them in queries of their own"
            )
    return entries


def _check_named(option: str, offsets: Offsets, entries: list[ChannelEntry]) -> None:
    """Raise `UsageError` unless positions are given for exactly the channels that are read."""
    if not offsets.positions:
        return
    wanted = {str(entry.name) for entry in entries}
    for name, _ in offsets.positions:
        if name not in wanted:
            raise UsageError(
                f"option {option!r} names the channel {name!r}, which is not read; "
                f"read are {', '.join(sorted(wanted))}"
            )
    missing = sorted(wanted - {name for name, _ in offsets.positions})
    if missing:
        raise UsageError(f"option {option!r} says nothing of {missing[0]!r}: add its position")


def _starting(name: str, value: str) -> Offsets:
    if value.lower() in (EARLIEST, LATEST):
        return Offsets(value.lower())
    if value.startswith("{"):
        return _positions(name, value)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise UsageError(
            f"option {name!r} is {value!r}: give {EARLIEST}, {LATEST}, positions such as "
            '{"orders": 120}, or a time such as 2026-11-01T12:00:00Z'
        ) from None
    if time.utcoffset() is None:
        raise UsageError(
            f"option {name!r} is {value!r} without a time zone: say which, such as "
            f"{time.isoformat()}Z"
        )
    return Offsets(since_us=max(1, microseconds_of(time)))


def _ending(name: str, value: str) -> Offsets:
    if value.lower() == LATEST:
        return Offsets(LATEST)
    if value.startswith("{"):
        return _positions(name, value)
    raise UsageError(
        f"option {name!r} is {value!r}: give {LATEST}, or the positions to stop before, such as "
        '{"orders": 120}'
    )


def _positions(name: str, value: str) -> Offsets:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if (
        not isinstance(found, dict)
        or not found
        or not all(type(place) is int and place >= 1 for place in found.values())
    ):
        raise UsageError(
            f"option {name!r} is {shortened(value)!r}: give positions of 1 or more by channel, "
            'such as {"orders": 120}'
        )
    return Offsets(positions=tuple(sorted(found.items())))
