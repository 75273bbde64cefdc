"""One connection to one peer: the greeting, then packets in both directions.

    length(4, big-endian) | frame

A link goes through these phases and never back:

    CALLING --Welcome--> OPEN                                     we connected
    CALLED --Hello--> UNPROVEN --first sealed packet--> OPEN      the peer connected
    any --> CLOSED

A length is checked against what the peer may send in this phase before memory is kept for it. A
wrong length ends the link, because the start of the next frame is unknown; a frame that the session
cannot open is dropped and counted, and the link stays. A frame longer than the usual buffer is read
once there is room for all of it (`inbox`). What was read is handled in small pieces (`work`), so
that the transport can serve other links in between (`fairness`).

`flush` seals the outbox into one packet (several only where one would be too large) and writes it.
While the socket is full nothing is sealed: the outbox fills up to its limits, then messages to this
peer are dropped, which the protocols repair.
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
from quorumcast.runtime.links.fairness import Account, Classifier, Piece
from quorumcast.runtime.links.greeting import (
    MAX_ANSWER_BYTES,
    MAX_GREETING_BYTES,
    encode_greeting,
    sentence_of,
)
from quorumcast.runtime.telemetry import Telemetry

#: Bytes read at once before and after the peer is authenticated.
STRANGER_BUFFER = 4 + MAX_GREETING_BYTES
PEER_BUFFER = 256 * 1024
#: Above this many bytes in asyncio's write buffer ("the socket is full") nothing is sealed.
WRITE_HIGH = 512 * 1024
#: One packet carries at most this much, or a single larger message, so that a large backlog does
#: not travel as one huge frame.
PACKET_BYTES = limits.MAX_HEADER_BYTES // 2
#: Messages that the machine handles in one piece of work, where the link has an account.
PIECE_MESSAGES = 16
#: The time for a closing link to write what waits.
CLOSE_GRACE_S = 2.0

_LENGTH = struct.Struct(">I")
#: Opens nothing; a real session replaces it after the greeting.
_NO_SESSION = Session(lambda data: b"", lambda data: b"none", NO_MESSAGES)


def _ignore(frame: memoryview) -> None:
    """Drop a frame of a closed link."""


class LinkDrop(enum.Enum):
    """Why a frame or message was dropped by the transport itself; counted like a `DropReason`."""

    NOT_A_GREETING = "not-a-greeting"
    GREETING_REFUSED = "greeting-refused"
    NOT_WHO_WE_CALLED = "not-who-we-called"
    GREETING_TIMEOUT = "greeting-timeout"
    # A newer connection of a stranger took its place.
    GAVE_WAY = "gave-way"
    OVER_BUDGET = "over-budget"
    OUTBOX_FULL = "outbox-full"
    # The peer did not go on with a long frame while another one waited.
    HALF_SENT = "half-sent"
    # The outbox was full and the peer read nothing.
    DEAF = "deaf"
    NOT_CONNECTED = "not-connected"
    # A machine wanted to hang up a link that the directory keeps.
    KEPT = "kept-link"


class Phase(enum.Enum):
    """The state of a link."""

    CALLING = "calling"
    CALLED = "called"
    UNPROVEN = "unproven"
    OPEN = "open"
    CLOSED = "closed"


class LinkOwner(Protocol):
    """The transport, as its links see it."""

    telemetry: Telemetry

    def connection_made(self, link: Link) -> bool:
        """The link has a socket; False if this node is closing."""

    def arrived(self, link: Link) -> None:
        """Bytes were read: let the link `work`."""

    def refusal(self, peer: NodeId) -> str:
        """Why a peer is refused for now, in a sentence; empty if it is not."""

    def greeted(self, link: Link) -> None:
        """The peer has named itself, without proof."""

    def link_open(self, link: Link) -> None:
        """Both sides are authenticated."""

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
        #: The peer's name; authenticated only when the phase is OPEN.
        self.peer = NodeId("") if to is None else to
        #: Why the link ended, in a sentence.
        self.farewell = ""
        #: Whether the called node refused us, so that another call does not help.
        self.refused = False
        #: Whether a link of another process with our identity replaced this one.
        self.displaced = False
        #: The epoch that the peer claimed in its Hello or Farewell, and the Farewell's proof of it.
        self.farewell_epoch = 0
        self.proof = b""
        #: The peer's host, for limits and logs.
        self.address = ""
        #: Messages that wait for the next flush, within the transport's limits.
        self.outbox: list[Parcel] = []
        #: Bytes in `outbox`, bodies included.
        self.outbox_bytes = 0
        #: Bytes in the write buffer while that is full.
        self._unsent = 0
        #: Of `outbox_bytes`, answers to requests of the peer.
        self.answer_bytes = 0
        #: The account that pays for this link; None until the peer is authenticated.
        self.account: Account | None = None
        #: Tells requests from publications; None where the link is not measured.
        self.classifier: Classifier | None = None
        #: Whether the transport has this link on its list for the next flush.
        self.listed = False
        #: When the write buffer became full; None if it takes bytes.
        self.full_since: float | None = None
        #: Whether the link ever got as far as OPEN, and when.
        self.was_open = False
        self.opened_at = 0.0
        #: Set when the socket is gone.
        self.gone = asyncio.Event()
        self._hello: Hello | None = None
        self._session = _NO_SESSION
        #: The handler of a frame in this phase.
        self._take: Callable[[memoryview], None] = self._on_hello if to is None else self._on_answer
        self._transport: asyncio.Transport | None = None
        self._largest = MAX_GREETING_BYTES if to is None else MAX_ANSWER_BYTES
        self._buffer = bytearray(STRANGER_BUFFER)
        self._view = memoryview(self._buffer)
        #: Bytes of `_buffer` that are filled, and of these, handled already.
        self._filled = 0
        self._start = 0
        #: Messages of the packets that were opened, and how many of them are handled.
        self._opened: Opened = []
        self._handed = 0
        #: Reasons not to read: what was read must be handled first, there is no room for the frame
        #: that has begun, or the whole node is paused.
        self._is_held = self._is_short = self._is_paused = False

    @property
    def me(self) -> NodeId:
        """Our own name."""
        return self._greeter.name

    # ------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet if we called; otherwise wait for a greeting."""
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
        """The socket is closed, by either side; may be called more than once."""
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
        """The free part of the buffer."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were read into the buffer."""
        if self.phase is Phase.CLOSED:
            self._filled = self._start = 0
            return
        self._filled += nbytes
        self._owner.arrived(self)

    def work(self) -> Piece:
        """Open the next whole frame, or let the machine handle more messages of the last one."""
        if self._opened:
            return self._hand_on()
        if not self._open_next():
            return Piece.NOTHING
        if 0 < len(self._opened) <= PIECE_MESSAGES:
            return self._hand_on()  # most packets are small: one piece, measured once
        if self.account is not None and self.account.is_broker:
            return Piece.WORK
        if self._opened and self.classifier is not None:
            is_publication = self.classifier.is_publication(self._opened[0][0])
            return Piece.WORK if is_publication else Piece.REQUEST
        return Piece.REQUEST

    def _open_next(self) -> bool:
        """Open the next frame, if there is a whole one."""
        start, filled = self._start, self._filled
        if filled - start < 4 or self.phase is Phase.CLOSED:
            return False
        (length,) = _LENGTH.unpack_from(self._view, start)
        end = start + 4 + length
        if length > self._largest:
            self._drop(Refusal.OVERSIZED.value)
            self.abort("a frame was longer than allowed")
            return False
        if end > filled:
            return False
        self._start = end
        self._take(self._view[start + 4 : end])
        return True

    def _hand_on(self) -> Piece:
        """Let the machine handle the next messages: a few publications, or a single request."""
        opened, first = self._opened, self._handed
        piece, count = Piece.WORK, min(len(opened) - first, PIECE_MESSAGES)
        account, classifier = self.account, self.classifier
        is_broker = account is not None and account.is_broker
        # Messages of a broker are classified only if they are more than one turn can take.
        if classifier is not None and (self._is_held or not is_broker):
            is_work = classifier.is_broker_work if is_broker else classifier.is_client_work
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
        # Some of what a correct broker repeats is dropped; of a client nothing should be.
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

    def _has_whole_frame(self) -> bool:
        left = self._filled - self._start
        if left < 4 or self.phase is Phase.CLOSED:
            return False
        (length,) = _LENGTH.unpack_from(self._view, self._start)
        return bool(length <= self._largest and 4 + length <= left)

    def unhandled_bytes(self) -> int:
        """Bytes that were read and not handled; opened messages count 64 each, about their size."""
        return self._filled - self._start + 64 * (len(self._opened) - self._handed)

    def waiting_requests(self, most: int) -> int:
        """Requests that were read and not handled: all whole frames are opened to count them."""
        account, classifier = self.account, self.classifier
        if account is None or classifier is None:
            return 0
        # A frame that is too long ends the link, but what came before it has its turn first.
        while self._has_whole_frame():
            self._open_next()
        waiting = (message for message, _ in self._opened[self._handed :])
        return classifier.requests_among(waiting, is_broker=account.is_broker, most=most)

    def hold(self) -> None:
        """Stop reading until what was read is handled."""
        if not self._is_held:
            self._is_held = True
            self._read_or_wait()

    def release(self) -> None:
        """All whole frames are handled: make room for the next frame and read on."""
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
        """The buffer is full of one frame: read on once there is room for the rest of it."""
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
        """Read on: there is room for the frame that has begun."""
        self._is_short = False
        self._resize(self._announced())
        self._read_or_wait()

    def _tidy(self, size: int) -> None:
        """The buffer is empty: keep a large one for the next long frame if that is allowed."""
        account = self.account
        if account is None or size < self._usual() or not account.inbox.keep(self, size):
            self._resize(0)

    def _resize(self, wanted: int) -> None:
        # Grows by doubling: to fill our memory a peer must send a large frame, not announce it.
        size = max(self._usual(), min(wanted, 2 * max(self._filled, len(self._buffer))))
        kept = self._view[: self._filled]
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._view[: self._filled] = kept

    def eof_received(self) -> bool:
        """The peer has closed its side; close ours."""
        return False

    def pause_writing(self) -> None:
        """The write buffer is full: stop sealing."""
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
        """Handle these messages, piece by piece where their cost is measured."""
        if self.classifier is not None:
            if self._opened:  # they are counted before their turn
                del self._opened[: self._handed]
                self._opened += opened
            else:
                self._opened = opened
            self._handed = 0
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
            self._drop(LinkDrop.NOT_A_GREETING.value)
            self.abort("the peer did not greet")
            return
        answer = self._greeter.answer(hello)
        if not isinstance(answer, Farewell) and (barred := self._owner.refusal(hello.sender)):
            answer = Farewell(barred, self._greeter.epoch)
        if isinstance(answer, Farewell):
            self._drop(LinkDrop.GREETING_REFUSED.value)
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
            # A node in an older epoch may follow soon: then it will not refuse us any more.
            self.refused = not 0 < answer.epoch < self._greeter.epoch
            self.close(f"{self.peer} refused: {sentence_of(answer)}")
            return
        session = None
        if isinstance(answer, Welcome) and self._hello is not None:
            session = self._greeter.conclude(self._hello, answer)
        if session is None:
            self._drop(LinkDrop.NOT_WHO_WE_CALLED.value)
            self.abort(f"the node at this address does not hold the key of {self.peer}")
            return
        self._session = session
        self._write(session.seal([]))  # authenticates us
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
        """Take the first messages out of the outbox: as many as one packet holds, at least one."""
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
        """Queue a message for the next flush."""
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
        """Count the bytes that left the outbox and are still in the socket's buffer."""
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
            # The socket closed in this turn of the event loop; `connection_lost` follows.
            self._drop(LinkDrop.NOT_CONNECTED.value)

    def _write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.writelines((_LENGTH.pack(len(frame)), frame))

    # ------------------------------------------------------------------ ending

    def close(self, reason: str) -> None:
        """End the link after the outbox was written; with a full socket the outbox is dropped."""
        if self.phase is not Phase.CLOSED:
            self.flush()
            self.farewell = self.farewell or reason
            self.phase = Phase.CLOSED
            if self._transport is not None:
                self._transport.close()
                # A peer that reads nothing must not delay the end for ever.
                asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)

    def hang_up(self, reason: str) -> None:
        """End the link after what waits has been written, and handle no more messages."""
        self._opened, self._handed = [], 0
        self.close(reason)

    def displace(self) -> None:
        """End a link that a newer one of the same peer replaces, and tell its process why."""
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
        """End a link whose greeting took too long."""
        if self.phase not in (Phase.OPEN, Phase.CLOSED):
            self._drop(LinkDrop.GREETING_TIMEOUT.value)
            self.abort(f"{self.peer or 'the peer'} did not finish its greeting in time")

    def give_way(self) -> None:
        """End a link that is not authenticated yet, in favour of a newer connection."""
        if self.phase not in (Phase.OPEN, Phase.CLOSED):
            self._drop(LinkDrop.GAVE_WAY.value)
            self.abort("it gave way to a newer connection before its greeting was complete")

    def break_off(self) -> None:
        """End a link that does not finish a long frame while others wait for its room."""
        self._drop(LinkDrop.HALF_SENT.value)
        self.abort(f"{self.peer} did not finish a frame while another one waited for room")

    def pause_reading(self) -> None:
        """Stop reading from the socket (back-pressure)."""
        self._is_paused = True
        self._read_or_wait()

    def resume_reading(self) -> None:
        """Read from the socket again."""
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
