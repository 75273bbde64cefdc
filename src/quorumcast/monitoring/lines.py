"""What a line of a log says about itself: how severe it is and when it was written.

Lines of files have no form that one could rely on. A word such as ERROR near the beginning is
taken at its word, and so is a time with a zone at the very beginning; what has neither is
information, and of the time at which it was read.
"""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

#: Longer lines come in pieces.
MAX_LINE_BYTES = 16 * 1024

#: The words of syslog, by number.
SEVERITIES = ("emergency", "alert", "critical", "error", "warning", "notice", "info", "debug")
WARNING, NOTICE, INFO = 4, 5, 6
#: Lines as severe as this overtake the others.
URGENT = 2

_WORDS = {
    "EMERG": 0, "EMERGENCY": 0, "PANIC": 0, "ALERT": 1, "CRIT": 2, "CRITICAL": 2, "FATAL": 2,
    "ERR": 3, "ERROR": 3, "SEVERE": 3, "WARN": 4, "WARNING": 4, "NOTICE": 5, "INFO": 6, "DEBUG": 7,
    "TRACE": 7,
}  # fmt: skip
#: Where levels stand: in capitals, or after `level=` and in front of a colon in any writing.
_ANY = "|".join(_WORDS)
_LEVEL = re.compile(rf"\b({_ANY})\b|(?i:(?:\blevel=\"?|^|\[)({_ANY})(?=[\]:\" ]))")
_LOOKED_AT = 160
_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d))")


class LogLine(msgspec.Struct, frozen=True):
    """One line, as the channel has it."""

    time: datetime
    source: str
    origin: str
    severity: int
    message: str
    device: str = ""
    program: str = ""


def severity_of(text: str) -> int:
    """How severe a line seems to be."""
    found = _LEVEL.search(text[:_LOOKED_AT])
    return _WORDS[(found[1] or found[2]).upper()] if found else INFO


def time_of(text: str, otherwise: datetime) -> datetime:
    """The time at the beginning of a line, if it has one that leaves no doubt."""
    found = _TIME.match(text)
    if found is None:
        return otherwise
    return read_time(found[1].replace(",", ".")) or otherwise


def read_time(text: str) -> datetime | None:
    """A time with a zone; None if it is none. More digits than microseconds are cut off."""
    try:
        time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        return None
    return time if time.utcoffset() is not None else None


def decoded(raw: bytes) -> str:
    """Text of bytes of whatever encoding; what is not UTF-8 is shown as such, never refused."""
    return raw.decode("utf-8", errors="replace").rstrip("\r\n\0")


def line_of_file(source: str, origin: str, raw: bytes, now: datetime) -> LogLine:
    """A line of a file as the channel has it."""
    text = decoded(raw)
    return LogLine(time_of(text, now), source, origin, severity_of(text), text)
