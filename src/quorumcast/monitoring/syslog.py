"""Syslog over UDP and TCP: RFC 5424, RFC 3164, and malformed messages.

A malformed message is kept unchanged, as a notice without a device. RFC 3164 has no year and no
zone: the year is the one that makes the time nearest to now, and the zone is that of this host.

Everything is bounded: messages by MAX_LINE_BYTES (longer ones are split), waiting messages by
`waiting`, connections by MAX_CONNECTIONS. When the queue is full, connections are not read, and
datagrams are dropped and counted, here or by the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from datetime import datetime
from pathlib import Path

from quorumcast.core.errors import UsageError, shortened
from quorumcast.core.limits import LAST_PORT
from quorumcast.monitoring.lines import MAX_LINE_BYTES, NOTICE, LogLine, decoded, read_time

MAX_CONNECTIONS = 64
#: A connection that is idle for this time is closed.
IDLE_S = 600.0
READ_BYTES = 64 * 1024
#: Requested size of the socket buffer; the kernel may grant less.
SOCKET_BYTES = 4 * 1024 * 1024
#: The socket tables of Linux, and their columns of the inode and of dropped datagrams.
_SOCKETS = (Path("/proc/net/udp"), Path("/proc/net/udp6"))
_INODE, _DROPS = 9, 12

_PRIORITY = re.compile(r"<(\d{1,3})>")
_RFC5424 = re.compile(
    r"1 (?P<time>\S+) (?P<device>\S+) (?P<program>\S+) \S+ \S+ "
    r"(?:-|(?:\[(?:[^\]\\]|\\.)*\])+)(?: (?P<message>.*))?$",
    re.DOTALL,
)
_RFC3164 = re.compile(
    r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<device>\S+) "
    r"(?:(?P<program>[\w./-]{1,48})(?:\[[^\]]{0,32}\])?: ?)?(?P<message>.*)$",
    re.DOTALL,
)
_COUNTED = re.compile(rb"([1-9]\d{0,5}) (?=<)")


def parse_syslog(raw: bytes, origin: str, now: datetime) -> LogLine:
    """Parse a message; `now` has the zone of this host."""
    text = decoded(raw)
    priority = _PRIORITY.match(text)
    if priority is None or int(priority[1]) > 191:
        return LogLine(now, "syslog", origin, NOTICE, text)
    severity, rest = int(priority[1]) % 8, text[priority.end() :]
    if found := _RFC5424.match(rest):
        nil = {"-": ""}
        return LogLine(
            read_time(found["time"]) or now,
            "syslog",
            origin,
            severity,
            (found["message"] or "").removeprefix("\ufeff"),
            nil.get(found["device"], found["device"]),
            nil.get(found["program"], found["program"]),
        )
    if found := _RFC3164.match(rest):
        time = _time_without_year(found["time"], now)
        if time is not None:
            program = found["program"] or ""
            message = found["message"]
            return LogLine(time, "syslog", origin, severity, message, found["device"], program)
    return LogLine(now, "syslog", origin, severity, rest)


def _time_without_year(text: str, now: datetime) -> datetime | None:
    candidates = []
    for year in (now.year - 1, now.year, now.year + 1):
        with contextlib.suppress(ValueError):  # 29 February is not in every year
            time = datetime.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S")
            candidates.append(time.replace(tzinfo=now.tzinfo))
    return min(candidates, key=lambda time: abs(time - now), default=None)


class Frames:
    """Splits a byte stream into messages, by octet count or by line (RFC 6587)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that these bytes complete."""
        buffer = self._rest + data
        found: list[bytes] = []
        begin = 0
        while begin < len(buffer):
            counted = _COUNTED.match(buffer, begin)
            if counted and int(counted[1]) <= MAX_LINE_BYTES:
                end = counted.end() + int(counted[1])
                if end > len(buffer):
                    break
                found.append(buffer[counted.end() : end])
            else:
                end = buffer.find(b"\n", begin) + 1
                if not end or end - begin > MAX_LINE_BYTES:
                    if len(buffer) - begin < MAX_LINE_BYTES:
                        break
                    end = begin + MAX_LINE_BYTES
                found.append(buffer[begin:end])
            begin = end
        self._rest = buffer[begin:]
        return [frame for frame in found if frame.strip()]

    def end(self) -> list[bytes]:
        """Return the rest at the end of the stream."""
        rest, self._rest = self._rest.strip(), b""
        return [rest] if rest else []


class SyslogListener:
    """Listens on one address over UDP and TCP; `take` returns the messages."""

    def __init__(self, waiting: int) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(waiting)
        self._server: asyncio.Server | None = None
        self._datagrams: asyncio.DatagramTransport | None = None
        self._connections: set[asyncio.Task[None]] = set()
        #: Messages that were dropped here, and by the kernel.
        self._lost = self._overrun = 0
        #: Connections beyond the limit.
        self.refused = 0
        #: Host and port, once listening.
        self.address = ("", 0)

    @property
    def dropped(self) -> int:
        """The number of dropped messages."""
        if self._datagrams is not None and not self._datagrams.is_closing():
            self._overrun = _overrun(self._datagrams.get_extra_info("socket").fileno())
        return self._lost + self._overrun

    def lose(self, count: int) -> None:
        """Count messages that were taken but not delivered."""
        self._lost += count

    async def listen(self, host: str, port: int) -> None:
        """Open both sockets on one port."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
            self.address = self._server.sockets[0].getsockname()[:2]
            self._datagrams, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self), local_addr=self.address
            )
            held = self._datagrams.get_extra_info("socket")
            held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        except OSError as error:
            await self.close()
            raise UsageError(
                f"syslog cannot listen on {host}:{port} ({error.strerror or error}); choose "
                "another address with --syslog HOST:PORT"
            ) from None

    async def take(self, limit: int, timeout_s: float) -> list[bytes]:
        """Wait for a message, and return at most `limit` of those that have arrived."""
        try:
            async with asyncio.timeout(timeout_s):
                found = [await self._queue.get()]
        except TimeoutError:
            return []
        while len(found) < limit and not self._queue.empty():
            found.append(self._queue.get_nowait())
        return found

    def datagram(self, data: bytes) -> None:
        """Queue a message that came over UDP."""
        for begin in range(0, len(data), MAX_LINE_BYTES):
            try:
                self._queue.put_nowait(data[begin : begin + MAX_LINE_BYTES])
            except asyncio.QueueFull:
                self._lost += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            self.refused += 1
            writer.close()
            return
        self._connections.add(task)
        frames = Frames()
        try:
            while data := await asyncio.wait_for(reader.read(READ_BYTES), IDLE_S):
                await self._wait_for_room(frames.feed(data))
            await self._wait_for_room(frames.end())
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the client reconnects
        finally:
            self._connections.discard(task)
            writer.close()

    async def _wait_for_room(self, frames: list[bytes]) -> None:
        left = len(frames)
        try:
            for frame in frames:
                await self._queue.put(frame)
                left -= 1
        finally:
            self._lost += left

    def give_up(self) -> None:
        """Count the waiting messages as dropped."""
        while not self._queue.empty():
            self._queue.get_nowait()
            self._lost += 1

    async def close(self) -> None:
        """Stop listening; queued messages may still be taken."""
        if self._datagrams is not None:
            _ = self.dropped  # the kernel's counter vanishes with the socket
            self._datagrams.close()
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


def _overrun(descriptor: int) -> int:
    """Return the number of datagrams that the kernel dropped; 0 if unknown."""
    inode = str(os.fstat(descriptor).st_ino)
    for table in _SOCKETS:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[_INODE] == inode:
                    return int(fields[_DROPS])
    return 0


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, listener: SyslogListener) -> None:
        self._listener = listener

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Queue a message."""
        self._listener.datagram(data)


def local_now() -> datetime:
    """Return the time in the zone of this host."""
    return datetime.now().astimezone()


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT."""
    host, _, port = text.rpartition(":")
    digits = len(str(LAST_PORT))
    if not (host and port.isdecimal() and len(port) <= digits and int(port) <= LAST_PORT):
        raise UsageError(
            f"--syslog takes HOST:PORT, such as 127.0.0.1:5514, not {shortened(text)!r}"
        )
    return host.strip("[]"), int(port)
