"""Parses lines of JSON as rows of a schema; types that JSON lacks are written as text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime

from quorumcast.core.errors import UsageError

SHOWN = 60


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _zoned(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.utcoffset() is None:
        raise ValueError("no time zone")
    return time


def _naive(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.utcoffset() is not None:
        raise ValueError("a time zone")
    return time


#: By column type: the parser of its text form, and a description of the form.
_READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "binary": (_bytes, "base64"),
    "date32": (date.fromisoformat, "a date such as 2026-11-01"),
    "timestamp[us]": (_naive, "a time without a zone, such as 2026-11-01T12:00:00"),
    "timestamp[ms, UTC]": (_zoned, "a time such as 2026-11-01T12:00:00Z"),
    "timestamp[us, UTC]": (_zoned, "a time such as 2026-11-01T12:00:00Z"),
}


def read_row(line: bytes, columns: Mapping[str, str]) -> dict[str, object]:
    """Parse a line as a row with these columns and types."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UsageError(
            f"{line[:SHOWN]!r} is no JSON object, which this channel's schema asks for; its "
            f"columns are {', '.join(columns)}"
        )
    for name, value in row.items():
        reader = _READERS.get(columns.get(name, ""))
        if reader is None or not isinstance(value, str):
            continue
        read, looks = reader
        try:
            row[name] = read(value)
        except ValueError:
            raise UsageError(
                f"column {name!r} is {columns[name]}: write {looks}, not {value[:SHOWN]!r}"
            ) from None
    return row
