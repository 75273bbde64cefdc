"""Where `subscribe` and `replay` begin and end, as the command line names it."""

from datetime import UTC, datetime, timedelta

import pytest

from quorumcast.cli.clients.subscribe import parse_start
from quorumcast.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("0s", timedelta()),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("10d", timedelta(days=10)),
    ],
)
def test_start_relative_to_now_is_a_time_with_a_zone(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC)
    start = parse_start(text)
    assert isinstance(start, datetime)
    assert before <= start + ago <= datetime.now(UTC)


@pytest.mark.parametrize(
    "text",
    [
        "m",
        "0",
        "5 m",
        "-5m",
        "5M",
        "5m30",
        "1.5h",
        "5w",
        "٥m",
        "9" * 12 + "d",
        "9" * 20,
        "9" * 5000,
    ],
)
def test_start_that_is_neither_time_nor_position_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="some time ago such as 5m"):
        parse_start(text)
