"""The transport `wan`: TCP on one machine with the delays of a wide-area network.

A host `wan+FILE@HOST` is HOST over TCP; FILE has the delays (`WanPlan`). The node that calls puts
them in, in both directions, since it knows both names from the start. So each link has delays of
its own and the other end is plain TCP. For benchmarks (`quorumcast bench --latency`): a link that
is delayed copies every byte twice more.

- Latency is the one-way delay of a link. Jitter is added to it for each piece that is written, from
  0 to its value. Bytes stay in order, so a piece that is late delays those behind it, as with TCP.
- TCP loses no bytes: what a lost packet costs is time. Each packet of 1,448 bytes is lost with the
  given probability. Then its piece and all behind it come one retransmission timeout later: the
  round trip and 200 ms, Linux's least. A packet of a retransmission is lost no more. Where data
  keeps flowing a real TCP often repairs a loss after about one round trip, but it also sends less
  for a while; neither is imitated, nor is a limited bandwidth.
- Connections open, and negotiate TLS, without delay: only what nodes send is delayed.

Every draw is a hash of the seed, the link, the direction and a running number (ADR 0020).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.runtime.links.schemes import (
    CONTRACT,
    TCP,
    ListeningSocket,
    MakeProtocol,
    TransportScheme,
)

#: Contents of a packet on Ethernet.
PACKET_BYTES = 1448
#: Linux's least retransmission timeout beyond the round trip.
LEAST_TIMEOUT_S = 0.2
#: Bytes on their way in one direction of a link, at most: the usual end of TCP's window.
MOST_UNDER_WAY = 4 * 1024 * 1024
#: Timers of the loop are exact to a millisecond.
EARLY_S = 0.0005


class LinkDelays(msgspec.Struct, frozen=True, kw_only=True):
    """The delays of a link, in both directions."""

    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0


class WanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The delays of all links of a cell."""

    #: Those of links that have none of their own.
    every: LinkDelays = LinkDelays()
    #: Those of single links, by "NAME:NAME" in either order.
    links: dict[str, LinkDelays] = {}
    seed: int = 0

    def of(self, one: str, other: str) -> LinkDelays:
        """The delays of a link."""
        return self.links.get(f"{one}:{other}") or self.links.get(f"{other}:{one}") or self.every


class Draws:
    """Numbers from 0 to 1, each a hash of a key and of how many there were before it."""

    __slots__ = ("_key", "_next")

    def __init__(self, *key: object) -> None:
        digest = hashlib.blake2b("|".join(map(str, key)).encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "big")
        self._next = 0

    def draw(self) -> float:
        """The next number (SplitMix64)."""
        self._next += 1
        mixed = (self._key + self._next * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


class DelayLine:
    """What is under way in one direction of a link: handed on in order, each piece when it is due.

    `hand_on` gets a piece, or None for the end of the stream. It returns what it could not take,
    and is then paused until `resume`.
    """

    __slots__ = (
        *("_delays", "_draws", "_hand_on", "_last", "_loop", "_timer", "_waiting"),
        *("paused", "size"),
    )

    def __init__(
        self, plan: WanPlan, source: str, target: str, hand_on: Callable[[bytes | None], bytes]
    ) -> None:
        self._delays = plan.of(source, target)
        self._draws = Draws(plan.seed, source, target)
        self._hand_on = hand_on
        self._loop = asyncio.get_running_loop()
        #: Pieces with the time at which each is due.
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        #: When the piece before was due.
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.paused = False
        #: Bytes under way.
        self.size = 0

    def put(self, piece: bytes | None) -> None:
        """Send a piece, or the end of the stream, on its way."""
        length = 0 if piece is None else len(piece)
        self._last = max(self._last, self._loop.time() + self.delay_s(length))
        self._waiting.append((self._last, piece))
        self.size += length
        self._set()

    def delay_s(self, length: int) -> float:
        """How long the next piece takes, if no other is before it."""
        latency_s = self._delays.latency_ms / 1000
        jitter_ms, loss_percent = self._delays.jitter_ms, self._delays.loss_percent
        delay = latency_s
        if jitter_ms:
            delay += self._draws.draw() * jitter_ms / 1000
        if loss_percent and length:
            packets = -(-length // PACKET_BYTES)
            if self._draws.draw() >= (1 - loss_percent / 100) ** packets:
                delay += LEAST_TIMEOUT_S + 2 * latency_s
        return delay

    def resume(self) -> None:
        """Hand on again."""
        self.paused = False
        self._set()

    def stop(self) -> None:
        """Forget what is under way."""
        self._waiting.clear()
        self.size = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if self._timer is None and self._waiting and not self.paused:
            self._timer = self._loop.call_at(self._waiting[0][0], self._hand_on_due)

    def _hand_on_due(self) -> None:
        self._timer = None
        now = self._loop.time() + EARLY_S
        while self._waiting and self._waiting[0][0] <= now and not self.paused:
            due, piece = self._waiting.popleft()
            # First: what takes the piece may look at the size, or stop this line.
            self.size -= 0 if piece is None else len(piece)
            rest = self._hand_on(piece)
            if rest:
                self._waiting.appendleft((due, rest))
                self.size += len(rest)
                self.paused = True
        self._set()


class DelayedTransport(asyncio.Transport):
    """The caller's end of a delayed link, between its protocol (a `Link`) and the socket."""

    def __init__(
        self, plan: WanPlan, me: NodeId, peer: NodeId, inner: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self._inner: Any = inner
        self._raw: Any = None
        self._out = DelayLine(plan, me, peer, self._write_now)
        self._in = DelayLine(plan, peer, me, self._deliver)
        self._is_closing = False
        #: Whether the protocol was told to write no more.
        self._is_full = False
        #: Why the socket ended; told once everything that came before has been delivered.
        self._error: Exception | None = None

    # ------------------------------------------------------------ for the socket

    def begin(self, raw: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._raw = raw
        self._inner.connection_made(self)

    def arrive(self, data: bytes) -> None:
        """Bytes came from the socket; they are delivered when they are due."""
        self._in.put(data)
        if self._in.size > MOST_UNDER_WAY:
            self._raw.pause_reading()

    def end(self, error: Exception | None) -> None:
        """The socket is closed."""
        self._out.stop()
        self._error = error
        if self._is_closing:
            self._in.stop()
            self._inner.connection_lost(error)
        else:
            self._in.put(None)

    def hold(self) -> None:
        """The socket takes no more bytes."""
        self._out.paused = True

    def release(self) -> None:
        """The socket takes bytes again."""
        self._out.resume()

    def _write_now(self, piece: bytes | None) -> bytes:
        if piece is None:
            self._raw.close()
            return b""
        if not self._raw.is_closing():
            self._raw.write(piece)
        if self._is_full and self._out.size < MOST_UNDER_WAY // 2:
            self._is_full = False
            self._inner.resume_writing()
        return b""

    def _deliver(self, piece: bytes | None) -> bytes:
        """Hand bytes to the protocol; returns those for which it has no room now."""
        if piece is None:
            self._is_closing = True
            self._inner.connection_lost(self._error)
            return b""
        if not isinstance(self._inner, asyncio.BufferedProtocol):
            self._inner.data_received(piece)
            return b""
        view = memoryview(piece)
        while len(view) and not self._in.paused and not self._is_closing:
            buffer = cast(memoryview, self._inner.get_buffer(len(view)))
            count = min(len(buffer), len(view))
            if not count:
                break
            buffer[:count] = view[:count]
            view = view[count:]
            self._inner.buffer_updated(count)
        return b"" if self._is_closing else bytes(view)

    # ---------------------------------------------------------- for the protocol

    def write(self, data: Any) -> None:
        """Send bytes on their way."""
        if self._is_closing:
            return
        self._out.put(bytes(data))
        if self._out.size > MOST_UNDER_WAY and not self._is_full:
            self._is_full = True
            self._inner.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send these together, as one piece."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Bytes that have not left this node yet."""
        return self._out.size + int(self._raw.get_write_buffer_size())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing: what is under way counts, and its limit is that of TCP's window."""

    def pause_reading(self) -> None:
        """Deliver nothing for a while."""
        self._in.paused = True

    def resume_reading(self) -> None:
        """Deliver again."""
        if self._in.size <= MOST_UNDER_WAY and not self._raw.is_closing():
            self._raw.resume_reading()
        self._in.resume()

    def is_closing(self) -> bool:
        """Whether the link is ending."""
        return self._is_closing

    def close(self) -> None:
        """End the link once what was written has arrived."""
        if not self._is_closing:
            self._is_closing = True
            self._out.put(None)

    def abort(self) -> None:
        """End the link now."""
        self._is_closing = True
        self._out.stop()
        self._in.stop()
        self._raw.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket says."""
        return self._raw.get_extra_info(name, default)


class _Socket(asyncio.Protocol):
    """The socket's side of a delayed link."""

    def __init__(self, link: DelayedTransport) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.begin(transport)

    def data_received(self, data: bytes) -> None:
        self._link.arrive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.end(exc)

    def pause_writing(self) -> None:
        self._link.hold()

    def resume_writing(self) -> None:
        self._link.release()


def wan_host(path: Path, host: str) -> str:
    """The host over which the links of a cell have the delays of this file."""
    return f"wan+{path}@{host}"


@cache
def _read(path: str) -> WanPlan:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=WanPlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"the delays of links cannot be read from {path!r} ({error})") from None


async def _connect(
    make: MakeProtocol,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    *,
    me: NodeId,
    peer: NodeId,
) -> asyncio.BaseTransport:
    path, _, host = host.rpartition("@")
    link = DelayedTransport(_read(path), me, peer, make())
    await TCP.connect(lambda: _Socket(link), host, port, tls, me=me, peer=peer)
    return link


async def _listen(
    make: MakeProtocol, host: str, port: int, tls: ssl.SSLContext | None
) -> ListeningSocket:
    return await TCP.listen(make, host.rpartition("@")[2], port, tls)


WAN = TransportScheme(contract=CONTRACT, connect=_connect, listen=_listen)
