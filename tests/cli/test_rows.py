"""Rows of a schema as JSON: what `subscribe` prints is what `publish` reads."""

from datetime import UTC, date, datetime

import pytest

from quorumcast.cli.clients.publish import read_row
from quorumcast.core.errors import UsageError

COLUMNS = {
    "name": "string",
    "at": "timestamp[us, UTC]",
    "local": "timestamp[us]",
    "day": "date32",
    "blob": "binary",
}


def test_times_dates_and_bytes_are_read_from_text() -> None:
    line = (
        b'{"name": "2026-11-01", "at": "2026-11-01T12:00:00Z", "local": "2026-11-01 12:00:00",'
        b' "day": "2026-11-01", "blob": "AAE="}'
    )
    assert read_row(line, COLUMNS) == {
        "name": "2026-11-01",
        "at": datetime(2026, 11, 1, 12, tzinfo=UTC),
        "local": datetime(2026, 11, 1, 12),
        "day": date(2026, 11, 1),
        "blob": b"\x00\x01",
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"ten apples", "is no JSON object, which this channel's schema asks for; its columns are"),
        (b"[1]", "is no JSON object"),
        (b'{"at": "noon"}', "'at' is timestamp\\[us, UTC\\]: write a time such as .*, not 'noon'"),
        (b'{"at": "2026-11-01T12:00:00"}', "write a time such as 2026-11-01T12:00:00Z, not"),
        (b'{"local": "2026-11-01T12:00:00Z"}', "write a time without a zone"),
        (b'{"day": "tomorrow"}', "write a date such as 2026-11-01, not 'tomorrow'"),
        (b'{"blob": "?"}', "'blob' is binary: write base64"),
    ],
)
def test_text_that_is_no_such_value_is_told(line: bytes, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        read_row(line, COLUMNS)


def test_columns_that_nobody_knows_are_left_to_the_channel() -> None:
    assert read_row(b'{"nonsense": "2026", "at": null}', COLUMNS) == {
        "nonsense": "2026",
        "at": None,
    }
