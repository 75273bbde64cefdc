"""One connection to one peer: frames in, frames out, and the greeting before either.

    length(4, big-endian) | frame

A length is checked against what the peer may send *now* before a byte is kept for it: a stranger
may send a greeting, a proven peer a packet. A link goes through these phases and never back:

    CALLING --Welcome--> OPEN            we connected
    CALLED --Hello--> UNPROVEN --first sealed packet--> OPEN      the peer connected

Received frames that no session opens are dropped and counted; the link stays, as the next frame may
be good. A wrong length ends the link, because nobody knows where the next frame would start.

A frame longer than the usual buffer is read once there is room for all of it, which the links of
one identity share (`runtime.inbox`).

What was read is handled in small pieces (`work`), so that the transport can turn to other links in
between (`runtime.fairness`): a frame that is opened, then a few of its messages at a time.

The outbox collects what waits for the peer; `flush` seals all of it into one packet (several only
where one would break the limits of a packet) and writes once. While the socket is full nothing is
sealed: the outbox fills up to its bounds, and beyond them messages to this peer are dropped, which
the protocols repair.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Callable
from typing import Protocol, cast

from quorumcast.core import limits
from quorumcast.core.ids import NodeId
from quorumcast.core.message import Displaced
from quorumcast.crypto.session import (
    NO_MESSAGES,
    Farewell,
    Hello,
    Opened,
    Parcel,
    Refusal,
    Session,
    Welcome,
    encode_parcel,
)
from quorumcast.runtime.links.contract import Handshake
from quorumcast.runtime.links.fairness import Account, Judge, Piece
from quorumcast.runtime.links.greeting import (
    MAX_ANSWER_BYTES,
    MAX_GREETING_BYTES,
    encode_greeting,
    sentence_of,
)
from quorumcast.runtime.telemetry import Telemetry

#: Bytes read at once from a stranger, and from a proven peer.
STRANGER_BUFFER = 4 + MAX_GREETING_BYTES
PEER_BUFFER = 256 * 1024
#: Above this many bytes in the socket's own buffer we stop sealing.
WRITE_HIGH = 512 * 1024
#: One packet carries at most this much, so that a large backlog does not travel as one huge frame.
PACKET_BYTES = limits.MAX_HEADER_BYTES // 2
#: Messages that a machine is handed at a time, where the link has an account.
PIECE_MESSAGES = 16
#: A link that ends gets this long to write what waits.
CLOSE_GRACE_S = 2.0


_LENGTH = struct.Struct(">I")
#: Opens and proves nothing; a real session takes its place when the peers have greeted.
_NO_SESSION = Session(lambda data: b"", lambda data: b"none", NO_MESSAGES)


def _ignore(frame: memoryview) -> None:
    """What a frame means to a link that is gone."""


class Lost(enum.Enum):
    """Why a frame or message was dropped by the transport itself; counted like a `DropReason`."""

    NOT_A_GREETING = "not-a-greeting"
    GREETING_REFUSED = "greeting-refused"
    NOT_WHO_WE_CALLED = "not-who-we-called"
    GREETING_TIMEOUT = "greeting-timeout"
    GAVE_WAY = "gave-way"
    OVER_BUDGET = "over-budget"
    OUTBOX_FULL = "outbox-full"
    HALF_SENT = "half-sent"
    DEAF = "deaf"
    NOT_CONNECTED = "not-connected"
    KEPT = "kept-link"


class Phase(enum.Enum):
    """How far a link has come."""

    CALLING = "calling"
    CALLED = "called"
    UNPROVEN = "unproven"
    OPEN = "open"
    CLOSED = "closed"


class LinkOwner(Protocol):
    """What a link tells its transport."""

    telemetry: Telemetry

    def connection_made(self, link: Link) -> bool:
        """A socket is there; False if nobody is greeted any more."""

    def arrived(self, link: Link) -> None:
        """Something was read: let the link `work`."""

    def refusal(self, peer: NodeId) -> str:
        """Why a peer is kept out for now, in a sentence; empty if it is not."""

    def greeted(self, link: Link) -> None:
        """A stranger has said, without proof, who it is."""

    def link_open(self, link: Link) -> None:
        """Both sides are proven; messages may flow."""

    def link_closed(self, link: Link) -> None:
        """The socket is gone."""

    def link_ready(self, link: Link) -> None:
        """The socket takes bytes again; `flush` soon."""


class Link(asyncio.BufferedProtocol):
    """The protocol object of one socket."""

    def __init__(
        self,
        owner: LinkOwner,
        greeter: Handshake,
        receive: Callable[[NodeId, Opened], None],
        to: NodeId | None = None,
    ) -> None:
        self._owner = owner
        self._greeter = greeter
        self._receive = receive
        self._telemetry = owner.telemetry
        self.phase = Phase.CALLED if to is None else Phase.CALLING
        #: Who is at the other end; proven only when the phase is OPEN.
        self.peer = NodeId("") if to is None else to
        #: Why the link ended, in a sentence, as far as anybody knows.
        self.farewell = ""
        #: Whether the called side will not have us, however often we ask.
        self.refused = False
        #: Whether another process with our identity took our place.
        self.displaced = False
        #: The epoch that a farewell named, and what it shows of it.
        self.farewell_epoch = 0
        self.proof = b""
        #: Where the socket leads, for limits and logs.
        self.address = ""
        #: Messages that wait for the next flush, within the transport's bounds.
        self.outbox: list[Parcel] = []
        #: Bytes in `outbox`, bodies included.
        self.outbox_bytes = 0
        #: Bytes in the socket's buffer, as long as that is full.
        self._unsent = 0
        #: Of `outbox_bytes`, what the peer has asked for.
        self.answer_bytes = 0
        #: Whether the peer has asked for something when it was served last.
        self.asks = False
        #: Whose processor time and memory this link uses; None until the peer is proven.
        self.account: Account | None = None
        #: Tells what the peer asks for from what is of use to others; None: nobody measures it.
        self.judge: Judge | None = None
        #: Whether the transport has this link on its list for the next flush.
        self.listed = False
        #: Since when the socket's buffer is full; None if it takes bytes.
        self.full_since: float | None = None
        #: Whether the link ever got as far as OPEN, and when.
        self.was_open = False
        self.opened_at = 0.0
        #: Set when the socket is gone.
        self.gone = asyncio.Event()
        self._hello: Hello | None = None
        self._session = _NO_SESSION
        #: What a frame means in this phase.
        self._take: Callable[[memoryview], None] = self._on_hello if to is None else self._on_answer
        self._transport: asyncio.Transport | None = None
        self._largest = MAX_GREETING_BYTES if to is None else MAX_ANSWER_BYTES
        self._buffer = bytearray(STRANGER_BUFFER)
        self._view = memoryview(self._buffer)
        #: Bytes of `_buffer` that are filled, and of these, handled already.
        self._filled = 0
        self._start = 0
        #: Messages of the packet that was opened last, and how many of them are handled.
        self._opened: Opened = []
        self._handed = 0
        #: Why nothing is read for now: what was read must be handled first, there is no room for
        #: the frame that has begun, or the whole node takes nothing.
        self._is_held = self._is_short = self._is_paused = False

    # ------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet at once if we called; wait for a greeting otherwise."""
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        self.address = str(peername[0]) if peername else ""
        if self.phase is Phase.CLOSED:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)
        if not self._owner.connection_made(self):
            self.abort("this node is ending")
        elif self.phase is Phase.CALLING:
            self._hello = self._greeter.hello(self.peer)
            self._write(encode_greeting(self._hello))

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone, whoever closed it; said once or more often."""
        if self.gone.is_set():
            return
        if self._filled and self.phase is not Phase.CLOSED:
            self._drop(Refusal.TRUNCATED.value)
        if not self.farewell:
            self.farewell = f"the connection broke ({exc})" if exc else "the connection was closed"
        self.phase = Phase.CLOSED
        self._empty_outbox()
        self._count_unsent(0)
        if self.account is not None:
            self.account.inbox.leave(self)
        self._opened = []
        # A bound method would keep a dead link alive until the next collection.
        self._take = _ignore
        self.gone.set()
        self._owner.link_closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Something was read."""
        if self.phase is Phase.CLOSED:
            self._filled = self._start = 0
            return
        self._filled += nbytes
        self._owner.arrived(self)

    def work(self) -> Piece:
        """Open the next whole frame, or hand on the next messages of the last one."""
        if self._opened:
            return self._hand_on()
        start, filled = self._start, self._filled
        if filled - start < 4 or self.phase is Phase.CLOSED:
            return Piece.NOTHING
        (length,) = _LENGTH.unpack_from(self._view, start)
        end = start + 4 + length
        if length > self._largest:
            self._drop(Refusal.OVERSIZED.value)
            self.abort("a frame was longer than allowed")
            return Piece.NOTHING
        if end > filled:
            return Piece.NOTHING
        self._start = end
        self._take(self._view[start + 4 : end])
        if 0 < len(self._opened) <= PIECE_MESSAGES:
            return self._hand_on()  # most packets are small: one piece, measured once
        judge, account = self.judge, self.account
        if (account is not None and account.is_broker) or (
            self._opened and judge is not None and judge.is_publication(self._opened[0][0])
        ):
            return Piece.WORK
        return Piece.REQUEST

    def _hand_on(self) -> Piece:
        """Give the machine the next messages: publications a few at a time, requests singly."""
        opened, first = self._opened, self._handed
        piece, count = Piece.WORK, min(len(opened) - first, PIECE_MESSAGES)
        account, judge = self.account, self.judge
        is_broker = account is not None and account.is_broker
        # A broker that has said no more than a turn can take is not looked at more closely.
        if judge is not None and (self._is_held or not is_broker):
            is_work = judge.is_work_of_a_broker if is_broker else judge.is_work_of_a_client
            for n in range(count):
                if not is_work(opened[first + n][0]):
                    piece, count = (Piece.WORK, n) if n else (Piece.REQUEST, 1)
                    break
        self._handed += count
        whole = count == len(opened)
        if self._handed >= len(opened):
            self._opened, self._handed = [], 0
        telemetry, waiting = self._telemetry, self.outbox_bytes
        dropped = telemetry.dropped
        self._receive(self.peer, opened if whole else opened[first : first + count])
        if telemetry.dropped - dropped >= (max(1, count // 2) if is_broker else 1):
            piece = Piece.DROPPED
        if piece is not Piece.WORK:
            self.answer_bytes += max(0, self.outbox_bytes - waiting)
        return piece

    def is_done(self) -> bool:
        """Whether nothing is left to do until more is read."""
        if self.phase is Phase.CLOSED:
            return True
        left = self._filled - self._start
        if self._opened or left < 4:
            return not self._opened
        (length,) = _LENGTH.unpack_from(self._view, self._start)
        return bool(left < 4 + length <= 4 + self._largest)

    def unread_bytes(self) -> int:
        """Bytes that were read and not handled; an opened packet counts as its messages."""
        return self._filled - self._start + 64 * (len(self._opened) - self._handed)

    def hold(self) -> None:
        """Read nothing until what was read is handled."""
        if not self._is_held:
            self._is_held = True
            self._read_or_wait()

    def release(self) -> None:
        """All whole frames are handled: make room for the next, and read on."""
        left = self._filled - self._start
        if self.phase is Phase.CLOSED:
            left = 0
        elif self._start and left:
            self._view[:left] = self._view[self._start : self._filled]
        self._filled, self._start = left, 0
        size = len(self._buffer)
        if left == size:
            self._make_room()
        elif not left and size != self._usual():
            self._tidy(size)
        if self._is_held:
            self._is_held = False
            self._read_or_wait()

    def _usual(self) -> int:
        return PEER_BUFFER if self.phase is Phase.OPEN else STRANGER_BUFFER

    def _make_room(self) -> None:
        """The buffer is full of one frame: read on when there is room for the rest of it."""
        account, wanted = self.account, self._announced()
        is_long = wanted > self._usual()
        self._is_short = account is not None and is_long and not account.inbox.enter(self, wanted)
        if self._is_short:
            self._read_or_wait()
        else:
            self._resize(wanted)

    def _announced(self) -> int:
        return 4 + int(_LENGTH.unpack_from(self._view)[0])

    def enlarge(self) -> None:
        """There is room for the frame that has begun."""
        self._is_short = False
        self._resize(self._announced())
        self._read_or_wait()

    def _tidy(self, size: int) -> None:
        """The buffer is empty: keep a large one if that is allowed, for the next long frame."""
        account = self.account
        if account is None or size < self._usual() or not account.inbox.keep(self, size):
            self._resize(0)

    def _resize(self, wanted: int) -> None:
        # Grows by doubling: a peer that announces a large frame must send it to fill our memory.
        size = max(self._usual(), min(wanted, 2 * max(self._filled, len(self._buffer))))
        kept = self._view[: self._filled]
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._view[: self._filled] = kept

    def eof_received(self) -> bool:
        """The peer is done; so are we."""
        return False

    def pause_writing(self) -> None:
        """The socket's buffer is full: seal nothing more."""
        self.full_since = asyncio.get_running_loop().time()
        if self._transport is not None:
            self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self.full_since = None
        self._count_unsent(0)
        self._owner.link_ready(self)

    # ---------------------------------------------------------------- reading

    def _on_packet(self, frame: memoryview) -> None:
        opened = self._session.open(frame)
        if isinstance(opened, Refusal):
            self._drop(opened.value)
            return
        telemetry = self._telemetry
        telemetry.packets_in += 1
        telemetry.messages_in += len(opened)
        telemetry.bytes_in += len(frame)
        if len(opened) == 1 and type(opened[0][0]) is Displaced:
            self._on_displaced()
        else:
            self._accept(opened)

    def _accept(self, opened: Opened) -> None:
        """Handle these messages, piece by piece where somebody watches what they cost."""
        if self.judge is not None:
            self._opened, self._handed = opened, 0
        elif opened:
            self._receive(self.peer, opened)

    def _on_displaced(self) -> None:
        self.displaced = True
        self.close(
            f"{self.peer} says that another process uses the identity of {self._greeter.name}: "
            "end one of the two, or give it an identity of its own"
        )

    def _on_proof(self, frame: memoryview) -> None:
        opened = self._session.open(frame)
        if isinstance(opened, Refusal):
            self._drop(opened.value)
            return
        self._become_open()
        self._accept(opened)

    def _on_hello(self, frame: memoryview) -> None:
        hello = self._greeter.decode(bytes(frame))
        if not isinstance(hello, Hello):
            self._drop(Lost.NOT_A_GREETING.value)
            self.abort("the peer did not greet")
            return
        answer = self._greeter.answer(hello)
        if not isinstance(answer, Farewell) and (barred := self._owner.refusal(hello.sender)):
            answer = Farewell(barred, self._greeter.epoch)
        if isinstance(answer, Farewell):
            self._drop(Lost.GREETING_REFUSED.value)
            self.farewell = answer.reason
            self.farewell_epoch = hello.epoch
            self.peer = hello.sender
            self._write(encode_greeting(answer))
            self.close(answer.reason)
            return
        welcome, self._session = answer
        self.peer = hello.sender
        self.phase = Phase.UNPROVEN
        self._take = self._on_proof
        self._owner.greeted(self)
        self._write(encode_greeting(welcome))

    def _on_answer(self, frame: memoryview) -> None:
        answer = self._greeter.decode(bytes(frame))
        if isinstance(answer, Farewell):
            self.farewell_epoch = answer.epoch
            self.proof = answer.proof
            # A broker that is behind us reads the manifest soon: the word is not its last one.
            self.refused = not 0 < answer.epoch < self._greeter.epoch
            self.close(f"{self.peer} refused: {sentence_of(answer)}")
            return
        session = None
        if isinstance(answer, Welcome) and self._hello is not None:
            session = self._greeter.conclude(self._hello, answer)
        if session is None:
            self._drop(Lost.NOT_WHO_WE_CALLED.value)
            self.abort(f"the node at this address does not hold the key of {self.peer}")
            return
        self._session = session
        self._write(session.seal([]))  # proves us
        self._become_open()

    def _become_open(self) -> None:
        self.phase = Phase.OPEN
        self._take = self._on_packet
        self.was_open = True
        self.opened_at = asyncio.get_running_loop().time()
        self._largest = limits.MAX_FRAME_BYTES
        self._owner.link_open(self)

    # ---------------------------------------------------------------- writing

    def flush(self) -> None:
        """Seal what waits into one packet and write it; nothing while the socket is full."""
        parcels = self.outbox
        if not parcels or self.full_since is not None or self.phase is not Phase.OPEN:
            return
        if self.outbox_bytes <= PACKET_BYTES and len(parcels) <= limits.MAX_MESSAGES:
            self._empty_outbox()
            self._write_packet(parcels)
            return
        while self.outbox and self.full_since is None:
            self._write_packet(self._next_packet())

    def _next_packet(self) -> list[Parcel]:
        """As many of the first messages as one packet holds; at least one."""
        total = count = 0
        for raw, bodies in self.outbox[: limits.MAX_MESSAGES]:
            size = len(raw) + sum(map(len, bodies))
            if count and total + size > PACKET_BYTES:
                break
            total += size
            count += 1
        parcels = self.outbox[:count]
        del self.outbox[:count]
        self._leave_outbox(total)
        return parcels

    def enter_outbox(self, parcel: Parcel, size: int) -> None:
        """Let a message wait for the next flush."""
        self.outbox.append(parcel)
        self.outbox_bytes += size
        if self.account is not None:
            self.account.outbox_bytes += size

    def _leave_outbox(self, size: int) -> None:
        self.outbox_bytes -= size
        self.answer_bytes = min(self.answer_bytes, self.outbox_bytes)
        if self.account is not None:
            self.account.outbox_bytes -= size

    def _count_unsent(self, size: int) -> None:
        """So much of what has left the outbox is still in the socket's buffer."""
        if self.account is not None:
            self.account.outbox_bytes += size - self._unsent
            self._unsent = size

    def _empty_outbox(self) -> None:
        self.outbox = []
        self._leave_outbox(self.outbox_bytes)

    def _write_packet(self, parcels: list[Parcel]) -> None:
        pieces = self._session.seal_in_pieces(parcels)
        length = sum(map(len, pieces))
        telemetry = self._telemetry
        telemetry.packets_out += 1
        telemetry.messages_out += len(parcels)
        telemetry.bytes_out += length
        try:
            self._transport.writelines((_LENGTH.pack(length), *pieces))  # type: ignore[union-attr]
        except RuntimeError:
            # The socket has closed in this very turn, and we are about to be told.
            self._drop(Lost.NOT_CONNECTED.value)

    def _write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.writelines((_LENGTH.pack(len(frame)), frame))

    # ------------------------------------------------------------------ ending

    def close(self, reason: str) -> None:
        """End the link after what waits has been written."""
        if self.phase is not Phase.CLOSED:
            self.flush()
            self.farewell = self.farewell or reason
            self.phase = Phase.CLOSED
            if self._transport is not None:
                self._transport.close()
                # A peer that reads nothing must not keep us waiting for ever.
                asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)

    def hang_up(self, reason: str) -> None:
        """End the link after what waits has been written, and hand on nothing more."""
        self._opened, self._handed = [], 0
        self.close(reason)

    def displace(self) -> None:
        """The peer has proven itself on another link: tell this end of it, and end the link."""
        self._empty_outbox()
        self.enter_outbox(encode_parcel(Displaced(), ()), 0)
        self.close(f"{self.peer} connected again")

    def abort(self, reason: str) -> None:
        """End the link now, or as soon as it has a socket."""
        if self._transport is None or not self._transport.is_closing():
            self.farewell = self.farewell or reason
            self.phase = Phase.CLOSED
            if self._transport is not None:
                self._transport.abort()

    def expire(self) -> None:
        """The greeting took too long."""
        if self.phase not in (Phase.OPEN, Phase.CLOSED):
            self._drop(Lost.GREETING_TIMEOUT.value)
            self.abort(f"{self.peer or 'the peer'} did not finish its greeting in time")

    def give_way(self) -> None:
        """Too many connections wait for their greeting, and this one is the oldest of its kind."""
        if self.phase not in (Phase.OPEN, Phase.CLOSED):
            self._drop(Lost.GAVE_WAY.value)
            self.abort("it gave way to a newer connection before its greeting was complete")

    def break_off(self) -> None:
        """Others wait for the room that a frame has which the peer does not finish."""
        self._drop(Lost.HALF_SENT.value)
        self.abort(f"{self.peer} did not finish a frame while another one waited for room")

    def pause_reading(self) -> None:
        """Take nothing from the socket for a while (back-pressure)."""
        self._is_paused = True
        self._read_or_wait()

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._is_paused = False
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self._is_held or self._is_short or self._is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _drop(self, reason: str) -> None:
        self._telemetry.drops[reason] += 1
