"""How much a channel keeps, in the words of its users: "7d", "1GB", "100000", "everything".

Retention is three limits: an age, bytes and a count. The first one that is reached applies. A
durable channel keeps its publications on disk and may have none of the three. Other channels are in
the memory of brokers, so they always have a limit of bytes and a count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from msgspec.structs import replace

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import EVERYTHING, FOREVER_MS, MIN_RETAINED_MS, Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy

ALL = "everything"
#: Units of time in milliseconds, longest first.
_TIMES = {
    "week": 604_800_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1000,
}
#: Units of size in bytes, largest first.
_SIZES = {
    **{f"{prefix}iB": 1 << power for prefix, power in (("T", 40), ("G", 30), ("M", 20), ("K", 10))},
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "KB": 1000,
}
_UNITS = {
    **{unit[0]: ("retained_ms", size) for unit, size in _TIMES.items()},
    **{unit: ("retained_ms", size) for unit, size in _TIMES.items()},
    **{f"{unit}s": ("retained_ms", size) for unit, size in _TIMES.items()},
    **{unit.lower(): ("retained_bytes", size) for unit, size in _SIZES.items()},
    **dict.fromkeys(("b", "bytes"), ("retained_bytes", 1)),
    **dict.fromkeys(("", "publication", "publications"), ("retained_publications", 1)),
}
_AMOUNT = re.compile(
    r"([0-9]{1,18}|[0-9]{1,3}(?:,[0-9]{3}){1,5})(\.[0-9]{1,9})? *([a-z]*)", re.IGNORECASE
)
#: The value of each limit that is never reached.
_NO_LIMIT = {
    "retained_ms": FOREVER_MS,
    "retained_bytes": EVERYTHING,
    "retained_publications": EVERYTHING,
}
#: A channel in memory that is given no count keeps one publication per so many bytes of its limit:
#: small publications need about as much memory again.
BYTES_PER_PUBLICATION = 256


def with_retention(policy: Policy, given: Sequence[str]) -> Limits:
    """The limits of a channel, with the retention that its user wrote; unchanged if nothing."""
    if not given:
        return policy.limits
    found: dict[str, int] = {}
    for text in given:
        for name, value in _parse(text).items():
            if name in found:
                raise UsageError(
                    f"--retain {text!r} says again what another one says; give one age, one size, "
                    f"one count, or {ALL!r} alone"
                )
            found[name] = value
    count, least = found.get("retained_publications", EVERYTHING), policy.least_retained
    if count < least:
        raise UsageError(
            f"--retain {count} means {count} publications, and brokers need at least {least} of "
            f"this channel to work; write --retain {least} or more, or a unit behind the number "
            f"for an age or a size, such as {count}m, {count}d or {count}MB"
        )
    if policy.durable:
        return replace(policy.limits, **{**_NO_LIMIT, **found})
    if found == _NO_LIMIT:
        raise UsageError(
            f"a channel of policy {policy.title!r} is kept in the memory of brokers, which cannot "
            "hold everything; say how much, such as --retain 1GB, or make a 'total+durable' channel"
        )
    size = found.get("retained_bytes", policy.limits.retained_bytes)
    small = max(4096, least, size // BYTES_PER_PUBLICATION)
    count = found.get("retained_publications", small)
    age = found.get("retained_ms", FOREVER_MS)
    return replace(policy.limits, retained_bytes=size, retained_publications=count, retained_ms=age)


def _parse(text: str) -> dict[str, int]:
    """One limit by its name; all of them for 'everything'."""
    if text.strip().lower() == ALL:
        return _NO_LIMIT
    amount = _AMOUNT.fullmatch(text.strip())
    name, unit = _UNITS.get(amount[3].lower(), ("", 0)) if amount else ("", 0)
    number = Fraction(amount[1].replace(",", "") + (amount[2] or "")) * unit if amount else 0
    if not name or number < 1 or (unit == 1 and number % 1):
        raise UsageError(
            f"--retain takes an age such as 7d (s, m, h, d and w are units), a size such as 1GB, a "
            f"number of publications such as 100000, or {ALL!r}, not {text!r:.60}"
        )
    if name == "retained_ms" and number < MIN_RETAINED_MS:
        raise UsageError(f"--retain {text} is too short for what is under way: 1s is the shortest")
    return {name: int(min(number, _NO_LIMIT[name]))}


def retention_of(limits: Limits) -> str:
    """What a channel keeps, such as "everything", "7 days" or "4,096 publications, 64 MiB"."""
    parts = []
    if limits.retained_ms < FOREVER_MS:
        parts.append(_age(limits.retained_ms))
    if limits.retained_publications < EVERYTHING:
        count = limits.retained_publications
        parts.append(f"{count:,} publication{'' if count == 1 else 's'}")
    if limits.retained_bytes < EVERYTHING:
        parts.append(_size(limits.retained_bytes))
    return ", ".join(parts) or ALL


def _age(span_ms: int) -> str:
    for unit, size in _TIMES.items():
        if unit != "week" and span_ms % size == 0:
            number = span_ms // size
            return f"{number:,} {unit}{'' if number == 1 else 's'}"
    return f"{span_ms / 1000:,} seconds"


def _size(size: int) -> str:
    for unit, factor in sorted(_SIZES.items(), key=lambda item: -item[1]):
        if size % factor == 0:
            return f"{size // factor:,} {unit}"
    return f"{size:,} bytes"


def retention_sentence(entry: ChannelEntry) -> str:
    """What a channel keeps, what else may have dropped what is gone, and how to keep more.

    The manifest has the present limits alone, so this never says that they dropped it.
    """
    limits, kept = entry.policy.limits, retention_of(entry.policy.limits)
    keeps = f"channel {entry.name} keeps {kept}{'' if entry.policy.total else ' per publisher'}"
    before, otherwise = "and may have kept less before", "if it never did"
    if entry.policy.total and entry.since > 1:
        # Positions of a channel go on after those of a deleted channel of its name.
        before, otherwise = f"{before} or been deleted and created anew", "if neither"
    if kept == ALL:
        return f"{keeps}, {before}; {otherwise}, too few brokers hold them: see 'quorumcast doctor'"
    more = ALL if entry.policy.durable else _size(max(10**9, 2 * limits.retained_bytes))
    return (
        f"{keeps}, {before}; to keep more from now on: quorumcast channel change {entry.name} "
        f"--retain {more.replace(' ', '').replace(',', '')}"
    )
