"""Parses the severity and the time of log lines.

Log files have no common format. The severity is the first word such as ERROR near the beginning,
else INFO. The time is a time with a zone at the very beginning, else the time of reading.
"""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

#: Longer lines are split.
MAX_LINE_BYTES = 16 * 1024

#: The severities of syslog, by number.
SEVERITIES = ("emergency", "alert", "critical", "error", "warning", "notice", "info", "debug")
WARNING, NOTICE, INFO = 4, 5, 6
#: Lines of this severity or worse are published as urgent.
URGENT = 2

_WORDS = {
    "EMERG": 0, "EMERGENCY": 0, "PANIC": 0, "ALERT": 1, "CRIT": 2, "CRITICAL": 2, "FATAL": 2,
    "ERR": 3, "ERROR": 3, "SEVERE": 3, "WARN": 4, "WARNING": 4, "NOTICE": 5, "INFO": 6, "DEBUG": 7,
    "TRACE": 7,
}  # fmt: skip
#: A level: in capitals anywhere, or in any case after `level=` or in front of a colon.
_ANY = "|".join(_WORDS)
_LEVEL = re.compile(rf"\b({_ANY})\b|(?i:(?:\blevel=\"?|^|\[)({_ANY})(?=[\]:\" ]))")
_SEARCHED = 160
_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d))")


class LogLine(msgspec.Struct, frozen=True):
    """A row of the channel `logs`, without its host."""

    time: datetime
    source: str
    origin: str
    severity: int
    message: str
    device: str = ""
    program: str = ""


def severity_of(text: str) -> int:
    """Return the severity of a line."""
    found = _LEVEL.search(text[:_SEARCHED])
    return _WORDS[(found[1] or found[2]).upper()] if found else INFO


def time_of(text: str, otherwise: datetime) -> datetime:
    """Return the time at the beginning of a line, if it has a zone."""
    found = _TIME.match(text)
    if found is None:
        return otherwise
    return read_time(found[1].replace(",", ".")) or otherwise


def read_time(text: str) -> datetime | None:
    """Parse a time with a zone, or return None. Digits beyond microseconds are cut off."""
    try:
        time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        return None
    return time if time.utcoffset() is not None else None


def decoded(raw: bytes) -> str:
    """Decode UTF-8; invalid bytes are replaced."""
    return raw.decode("utf-8", errors="replace").rstrip("\r\n\0")


def line_of_file(source: str, origin: str, raw: bytes, now: datetime) -> LogLine:
    """Parse a line of a file."""
    text = decoded(raw)
    return LogLine(time_of(text, now), source, origin, severity_of(text), text)
