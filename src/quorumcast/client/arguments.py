"""Checks of arguments that callers give.

A fractional count or a time that is not a number would otherwise fail deep inside an event loop, or
never. Each check raises `UsageError` with a sentence that says what to give instead.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import datetime
from numbers import Integral, Real
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from quorumcast.core.envelope import MAX_VALID_MS, microseconds_of
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId, at_seat
from quorumcast.core.limits import MAX_NAME, MAX_NUMBER, MAX_SEATS, Overflow

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import ChannelEntry


def check_counts(**arguments: object) -> None:
    """Check that each argument is a whole number of 1 or more."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise UsageError(f"{name} is {value!r}: give a whole number of 1 or more")


def check_times(**arguments: object) -> None:
    """Check that each argument is a finite number of 0 or more."""
    for name, value in arguments.items():
        number = not isinstance(value, bool) and isinstance(value, Real)
        if not number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
            raise UsageError(f"{name} is {value!r}: give a finite number of 0 or more")


def check_timeout(timeout_s: object) -> None:
    """Check a timeout; None is unlimited."""
    if timeout_s is not None:
        check_times(timeout_s=timeout_s)


class Poll(NamedTuple):
    """How many events a poll returns, and for how many it waits."""

    most: int
    at_least: int


def check_poll(n: int | None, at_least: int | None, timeout_s: float | None) -> Poll:
    """Check the arguments of `poll`."""
    check_timeout(timeout_s)
    if n is not None:
        check_counts(n=n)
    if at_least is None:
        at_least = int(timeout_s is not None)
    elif at_least != 0 or isinstance(at_least, bool):
        check_counts(at_least=at_least)
    if n is not None and at_least > n:
        raise UsageError(f"at_least is {at_least} and n is {n}: give an n that is not below it")
    return Poll(sys.maxsize if n is None else n, at_least)


def check_validity(valid_for_s: object, name: str = "valid_for_s") -> int | None:
    """Validity in milliseconds; 0 is forever, None is the default of the channel."""
    if valid_for_s is None:
        return None
    check_times(**{name: valid_for_s})
    valid_ms = math.ceil(float(valid_for_s) * 1000)  # type: ignore[arg-type]
    if valid_ms > MAX_VALID_MS:
        raise UsageError(
            f"{name} is {valid_for_s!r}: the longest time is {MAX_VALID_MS // 1000:,} s, "
            "about 49 days, and 0 is forever"
        )
    return valid_ms


def check_overflow(overflow: object, name: str = "overflow") -> Overflow:
    """The rule for a full queue."""
    try:
        return Overflow(overflow)
    except ValueError:
        known = ", ".join(repr(choice.value) for choice in Overflow)
        raise UsageError(f"{name} is {overflow!r}: choose one of {known}") from None


#: A predicate, or several of which a row must match one; None for all rows.
Where: TypeAlias = str | Sequence[str] | None


def check_where(where: object) -> tuple[str, ...]:
    """The predicates, of which a row must match one; none for all rows."""
    if where is None or isinstance(where, str):
        return () if where is None else (where,)
    if isinstance(where, Sequence) and where and all(isinstance(one, str) for one in where):
        return tuple(where)
    raise UsageError(
        f'where is {where!r:.60}: give a text such as "price < 10", or a list of some of them'
    )


LATEST, EARLIEST = "latest", "earliest"

#: Where a subscription begins.
Start: TypeAlias = str | int | datetime


def check_start(start: Start, entries: Sequence[ChannelEntry]) -> tuple[int | None, int]:
    """The start of a subscription to these channels, as position and time for the machine.

    The position is None for the next publication and 0 for the oldest; the time is 0 for any.
    """
    if start == LATEST:
        return None, 0
    if start == EARLIEST:
        return 0, 0
    if isinstance(start, datetime):
        if start.utcoffset() is None:
            raise UsageError(
                f"start is {start.isoformat()} without a time zone; say which, such as "
                "datetime(…, tzinfo=UTC)"
            )
        return 0, max(1, microseconds_of(start))
    if isinstance(start, bool) or not isinstance(start, int) or not 1 <= start <= MAX_NUMBER:
        raise UsageError(
            f"start is {start!r}: give {LATEST!r}, {EARLIEST!r}, a time, or a position of 1 or more"
        )
    if len(entries) != 1:
        found = ", ".join(entry.name for entry in entries) or "none"
        raise UsageError(
            f"start is {start}, and a position belongs to a single channel; the channels that "
            f"match are: {found}; name one channel"
        )
    if not entries[0].policy.total:
        raise UsageError(
            f"channel {entries[0].name!r} has no positions, because it has no total order; "
            f"start with {LATEST!r}, {EARLIEST!r} or a time"
        )
    return start, 0


def check_until(until: object, start: int | None, entries: Sequence[ChannelEntry]) -> None:
    """Check the position at which a subscription to these channels ends."""
    if until is None:
        return
    check_counts(until=until)
    if start is None or len(entries) != 1 or not entries[0].policy.total:
        raise UsageError(
            f"until is {until}: to end at a position, begin in the past of a single channel with "
            "total order"
        )


def time_of_resumed(at: datetime) -> int:
    """The time of a resumed publication, in microseconds since 1970."""
    if at.utcoffset() is None:
        raise UsageError(f"at is {at.isoformat()} without a time zone; say which, such as UTC")
    if microseconds_of(at) < 0:
        raise UsageError(f"at is {at.isoformat()}: give a time from 1970 on")
    return microseconds_of(at)


def check_seat(seat: object) -> None:
    """Check the number of a seat."""
    if isinstance(seat, bool) or not isinstance(seat, int) or not 0 <= seat <= MAX_SEATS:
        raise UsageError(f"seat is {seat!r}: give 0 (none) or a number from 1 to {MAX_SEATS}")


def check_seated(client: NodeId, seat: int) -> None:
    """Refuse a seat whose node id would be longer than messages allow."""
    if len(at_seat(client, seat)) > MAX_NAME:
        raise UsageError(
            f"the name of the client at seat {seat} would be longer than {MAX_NAME} characters: "
            "connect without a seat, or ask the operator for a client with a shorter name"
        )
