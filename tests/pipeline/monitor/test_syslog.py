"""Syslog as devices send it, well-formed and otherwise."""

import asyncio
import socket
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.world import run, until

from quorumcast.core.errors import UsageError
from quorumcast.monitoring import syslog
from quorumcast.monitoring.lines import MAX_LINE_BYTES, line_of_file
from quorumcast.monitoring.syslog import (
    Frames,
    SyslogListener,
    parse_address,
    parse_syslog,
)

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def test_modern_message_gives_all_its_parts() -> None:
    header = b"<165>1 2026-01-01T00:04:59.123456789Z web-1 nginx 17 ID47"
    raw = header + b' [a@1 b="x\\]y"] \xef\xbb\xbfslow'
    line = parse_syslog(raw, "o", NOW)
    assert line.time == datetime(2026, 1, 1, 0, 4, 59, 123456, tzinfo=UTC)
    assert (line.severity, line.device, line.program) == (5, "web-1", "nginx")
    assert line.message == "slow"


def test_modern_message_of_nothing_but_nil_values_is_read() -> None:
    line = parse_syslog(b"<0>1 - - - - - -", "o", NOW)
    assert (line.time, line.severity, line.device, line.message) == (NOW, 0, "", "")


def test_old_message_is_of_the_year_that_is_nearest() -> None:
    line = parse_syslog(b"<34>Dec 31 23:59:58 gate su[230]: failed for root", "o", NOW)
    assert line.time == datetime(2025, 12, 31, 23, 59, 58, tzinfo=UTC)
    assert (line.severity, line.device, line.program) == (2, "gate", "su")
    assert line.message == "failed for root"


@pytest.mark.parametrize(
    ("raw", "severity", "message"),
    [
        (b"no priority at all", 5, "no priority at all"),
        (b"<999>too high", 5, "<999>too high"),
        (b"<11>Foo 99 99:99:99 a b", 3, "Foo 99 99:99:99 a b"),
        (b"<11>\xff\xfe", 3, "\ufffd\ufffd"),
        (b"", 5, ""),
    ],
)
def test_malformed_message_is_kept_as_it_came(raw: bytes, severity: int, message: str) -> None:
    line = parse_syslog(raw, "o", NOW)
    assert (line.time, line.severity, line.message) == (NOW, severity, message)


@given(st.binary(max_size=200))
def test_no_message_raises(raw: bytes) -> None:
    parse_syslog(b"<13>" + raw, "o", NOW)
    line_of_file("f", "o", raw, NOW)


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("2026-01-01T00:00:00Z ERROR no route", 3),
        ("[warning] low", 4),
        ("level=fatal msg=x", 2),
        ("error: cannot open", 3),
        ("an error may happen", 6),
        ("INFO no ERROR here", 6),
    ],
)
def test_line_of_a_file_is_as_severe_as_it_says(text: str, severity: int) -> None:
    assert line_of_file("f", "o", text.encode(), NOW).severity == severity


def test_line_of_a_file_has_its_own_time_only_with_a_zone() -> None:
    zoned = line_of_file("f", "o", b"2025-06-01 12:00:00,5+02:00 x", NOW)
    assert zoned.time == datetime(2025, 6, 1, 10, 0, 0, 500000, tzinfo=UTC)
    assert line_of_file("f", "o", b"2025-06-01 12:00:00 x", NOW).time == NOW


def test_stream_of_counted_and_separated_messages_is_cut_right() -> None:
    frames = Frames()
    stream = b"9 <13>a\nb c<14>line\n\n12 not counted\n<15>rest"
    found = [frame for i in range(len(stream)) for frame in frames.feed(stream[i : i + 1])]
    assert found == [b"<13>a\nb c", b"<14>line\n", b"12 not counted\n"]
    assert frames.end() == [b"<15>rest"]


def test_stream_without_an_end_stays_within_bounds() -> None:
    frames = Frames()
    pieces = [frame for _ in range(100) for frame in frames.feed(b"x" * 1000)]
    assert all(len(piece) <= MAX_LINE_BYTES for piece in pieces)
    assert sum(map(len, pieces)) > 100_000 - MAX_LINE_BYTES
    assert len(frames.end()[0]) < MAX_LINE_BYTES


def test_datagrams_without_room_are_dropped_and_counted_while_tcp_waits() -> None:
    async def main() -> None:
        listener = SyslogListener(waiting=2)
        await listener.listen("127.0.0.1", 0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for i in range(5):
                out.sendto(b"<13>datagram %d" % i, listener.address)
            await until(lambda: listener.dropped == 3)
        _, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"".join(b"<13>line %d\n" % i for i in range(6)))
        writer.close()
        found: list[bytes] = []
        while len(found) < 8:
            found += await listener.take(10, 1.0)
        assert found[:2] == [b"<13>datagram 0", b"<13>datagram 1"]
        assert found[2:] == [b"<13>line %d\n" % i for i in range(6)]
        assert listener.dropped == 3
        await listener.close()

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say what they drop")
def test_datagrams_that_the_system_drops_are_counted() -> None:
    async def main() -> None:
        sent = 2 * syslog.SOCKET_BYTES // 2000
        listener = SyslogListener(waiting=sent)
        await listener.listen("127.0.0.1", 0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for _ in range(sent):  # nobody reads meanwhile
                out.sendto(b"<13>" + b"x" * 2000, listener.address)
        assert 0 < listener.dropped < sent
        found: list[bytes] = []
        while len(found) + listener.dropped < sent:
            found += await listener.take(sent, 10.0)
        await listener.close()
        assert len(found) + listener.dropped == sent

    run(main())


def test_long_datagram_comes_in_pieces() -> None:
    async def main() -> None:
        listener = SyslogListener(waiting=2)
        await listener.listen("127.0.0.1", 0)
        sent = b"<13>" + b"x" * 2 * MAX_LINE_BYTES
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.sendto(sent, listener.address)
            await until(lambda: listener.dropped == 1)
        found = await listener.take(10, 10.0)
        assert b"".join(found) == sent[: 2 * MAX_LINE_BYTES]
        assert [len(piece) for piece in found] == [MAX_LINE_BYTES] * 2
        await listener.close()

    run(main())


def test_messages_of_a_connection_that_find_no_room_before_the_end_are_counted() -> None:
    async def main() -> None:
        listener = SyslogListener(waiting=2)
        await listener.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*listener.address)
        writer.write(b"".join(b"<13>line %d\n" % i for i in range(6)))
        found = await listener.take(1, 10.0)
        await listener.close()
        found += await listener.take(10, 0.0)
        assert found == [b"<13>line %d\n" % i for i in range(len(found))]
        assert (len(found) <= 3, len(found) + listener.dropped) == (True, 6)
        writer.close()

    run(main())


def test_connection_too_many_is_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syslog, "MAX_CONNECTIONS", 1)

    async def main() -> None:
        listener = SyslogListener(waiting=10)
        await listener.listen("127.0.0.1", 0)
        _, first = await asyncio.open_connection(*listener.address)
        first.write(b"<13>hello\n")
        assert await listener.take(1, 10.0) == [b"<13>hello\n"]
        reader, second = await asyncio.open_connection(*listener.address)
        assert await reader.read() == b""
        assert listener.refused == 1
        first.close()
        second.close()
        await listener.close()

    run(main())


def test_address_in_use_is_one_sentence() -> None:
    async def main() -> None:
        listener = SyslogListener(waiting=1)
        await listener.listen("127.0.0.1", 0)
        other = SyslogListener(waiting=1)
        with pytest.raises(UsageError, match="syslog cannot listen on"):
            await other.listen(*listener.address)
        await listener.close()

    run(main())


@pytest.mark.parametrize(
    "text", ["5514", "host:", "host:port", ":5514", "host:99999", f"host:{'9' * 5000}"]
)
def test_nonsense_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)
