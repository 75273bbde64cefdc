"""`python -m quorumcast.bench.flooder DIRECTORY flooder INDEX LIFELINE`: a client that floods.

It greets like any client and then sends messages of the plan's kind to every broker, as many as its
sockets take. It discards the answers and reconnects when a broker closes the link. No message is
malformed: honest clients send the same messages, only not as many.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path

import msgspec

from quorumcast.bench.counters import BenchCounters, Signal
from quorumcast.bench.plan import FLOOD_COLUMN, FLOOD_ROWS, BenchPlan, WorkerResult
from quorumcast.bench.worker import exit_with_parent
from quorumcast.broadcast.messages import Cursor, Open, Pull
from quorumcast.cell.messages import CELL_FAMILY, Attest, Positions, Subscribe
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.labels import label
from quorumcast.crypto.digest import Hasher
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.session import Parcel, Refusal, Session, Welcome, encode_parcel
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.manifest.manifest import BrokerEntry, Manifest
from quorumcast.ordering.messages import Offer
from quorumcast.runtime.links.greeting import Greeter, decode_greeting, encode_greeting

#: Messages in one packet.
PACKET_MESSAGES = 512
READ_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 5.0
#: Pause before a reconnect, and between two looks at the counters.
PAUSE_S = 0.05


class FloodMessages:
    """Endless messages of each kind."""

    def __init__(self, me: NodeId, channel: Channel, hash_: Hasher, positions: Positions) -> None:
        self._me = me
        self._channel = channel
        self._rows = Channel(FLOOD_ROWS)
        self._hash = hash_
        held = [p for p in positions.positions if p.next > p.base]
        #: A stream of which brokers retain publications.
        self._held = held[0] if held else None

    def pull(self) -> Iterator[Parcel]:
        """Requests for everything that is retained."""
        stream, base = self._retained()
        return cycle([encode_parcel(Pull(stream, base, 1024))])

    def attest(self) -> Iterator[Parcel]:
        """Requests for a signature of each number."""
        stream, base = self._retained()
        return (encode_parcel(Attest(stream, base + n % 4096)) for n in count())

    def subscribe(self) -> Iterator[Parcel]:
        """Requests for a replay of everything, with contents."""
        stream, base = self._retained()
        return cycle([encode_parcel(Subscribe(self._channel, (Cursor(stream, base),), True))])

    def open(self) -> Iterator[Parcel]:
        """New streams."""
        streams = (Stream(self._channel, self._me, n) for n in count(time.time_ns() // 1000))
        return (encode_parcel(Open(stream, 1, 1)) for stream in streams)

    def offer(self) -> Iterator[Parcel]:
        """Publications of new streams, with invalid signatures."""
        for n in count(time.time_ns() // 1000):
            stream = Stream(self._channel, self._me, n)
            body = label(stream, 1) + b"flood"
            yield encode_parcel(Offer(stream, 1, self._hash(body), bytes(64)), (body,))

    def predicates(self) -> Iterator[Parcel]:
        """Other rows with each message."""
        wanted = (f"{FLOOD_COLUMN} < {n}" for n in count())
        return (encode_parcel(Subscribe(self._rows, (), True, where=(text,))) for text in wanted)

    def mix(self) -> Iterator[Parcel]:
        """Requests about retained publications and new streams in turn."""
        kinds = [self.pull(), self.attest(), self.subscribe(), self.open()]
        return (next(kind) for kind in cycle(kinds))

    def _retained(self) -> tuple[Stream, int]:
        if self._held is None:
            return Stream(self._channel, self._me, 1), 1
        return self._held.stream, self._held.base


KINDS: dict[str, Callable[[FloodMessages], Iterator[Parcel]]] = {
    "pull": FloodMessages.pull,
    "attest": FloodMessages.attest,
    "subscribe": FloodMessages.subscribe,
    "open": FloodMessages.open,
    "offer": FloodMessages.offer,
    "predicates": FloodMessages.predicates,
    "mix": FloodMessages.mix,
}


class FloodLink:
    """One link to one broker; its socket is non-blocking once the flood has begun."""

    def __init__(self, entry: BrokerEntry, manifest: Manifest, identity: Identity) -> None:
        self._entry = entry
        self._manifest = manifest
        self._greeter = Greeter(manifest.keyring(identity), CELL_FAMILY)
        self.socket: socket.socket | None = None
        self._messages: Iterator[Parcel] | None = None
        self._session: Session | None = None
        self._unsent = b""
        self._reconnect_at = 0.0

    def positions(self, channel: Channel) -> Positions:
        """Ask the broker which publications of a channel it retains."""
        self._connect()
        if self.socket is None or self._session is None:
            return Positions(channel, ())
        self._send(self._session.seal([encode_parcel(Subscribe(channel, (), False))]))
        while True:
            opened = self._session.open(self._frame())
            for message, _ in [] if isinstance(opened, Refusal) else opened:
                if isinstance(message, Positions):
                    return message

    def begin(self, messages: Iterator[Parcel]) -> None:
        """Flood with these messages from now on."""
        self._messages = messages
        if self.socket is not None:
            self.socket.setblocking(False)

    def maybe_reconnect(self) -> None:
        """Connect again if the link is closed and the pause is over."""
        if self.socket is None and time.monotonic() >= self._reconnect_at:
            try:
                self._connect()
            except (OSError, EOFError):
                self.close()

    def write(self) -> None:
        """Send as much as the socket takes."""
        with self._unless_broken():
            if not self._unsent and self._session is not None and self._messages is not None:
                frame = self._session.seal([next(self._messages) for _ in range(PACKET_MESSAGES)])
                self._unsent = len(frame).to_bytes(4, "big") + frame
            if self.socket is not None:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]

    @contextlib.contextmanager
    def _unless_broken(self) -> Iterator[None]:
        """Close the link if it is broken; a full or empty socket is fine."""
        try:
            yield
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def read(self) -> None:
        """Read and discard."""
        with self._unless_broken():
            if self.socket is not None and not self.socket.recv(READ_BYTES):
                self.close()

    def close(self) -> None:
        """Close the link; `maybe_reconnect` opens it again after a pause."""
        self._reconnect_at = time.monotonic() + PAUSE_S
        if self.socket is not None:
            self.socket.close()
        self.socket, self._session, self._unsent = None, None, b""

    def _connect(self) -> None:
        address = (self._entry.host, self._entry.port)
        self.socket = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
        hello = self._greeter.hello(self._entry.id)
        self._send(encode_greeting(hello))
        welcome = decode_greeting(self._frame())
        session = self._greeter.conclude(hello, welcome) if isinstance(welcome, Welcome) else None
        if session is None:
            raise ConnectionRefusedError
        self._session = session
        self._send(session.seal([]))
        self.socket.setblocking(self._messages is None)

    def _send(self, frame: bytes) -> None:
        if self.socket is not None:
            self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def _frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while self.socket is not None and len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def flood(links: list[FloodLink], is_over: Callable[[], bool]) -> None:
    """Write to and read from all links as fast as they go."""
    while not is_over():
        for link in links:
            link.maybe_reconnect()
        open_links = {link.socket: link for link in links if link.socket is not None}
        readable, writable, _ = select.select(list(open_links), list(open_links), [], PAUSE_S)
        for ready in readable:
            open_links[ready].read()
        for ready in writable:
            open_links[ready].write()
        if not open_links:
            time.sleep(PAUSE_S)


def main() -> None:
    """Flood from WARM to STOP."""
    exit_with_parent(int(sys.argv[4]))
    directory, index = Path(sys.argv[1]), int(sys.argv[3])
    plan = msgspec.json.decode((directory / "plan.json").read_bytes(), type=BenchPlan)
    name, place = plan.name_of("flooder", index), plan.workers().index(("flooder", index))
    counters = BenchCounters(directory / "counters", plan)
    manifest = read_manifest(directory / "manifest.json")
    identity = read_identity(directory / f"{name}.identity")
    channel = Channel(plan.channel_name(0))
    links = [
        FloodLink(entry, manifest, identity.at_seat(seat))
        for entry in manifest.brokers
        for seat in range(plan.flood_seats)
    ]
    counters.set_ready(place)
    while not counters.signalled(Signal.WARM):
        time.sleep(PAUSE_S)
    if plan.flood:
        for link in links:
            positions = link.positions(channel)
            messages = FloodMessages(identity.name, channel, manifest.hash, positions)
            link.begin(KINDS[plan.flood](messages))
        flood(links, lambda: bool(counters.signalled(Signal.STOP)))
    while not counters.signalled(Signal.END):
        time.sleep(PAUSE_S)
    for link in links:
        with contextlib.suppress(OSError):
            link.close()
    result = WorkerResult(role="flooder", name=name)
    (directory / f"{name}.result.json").write_bytes(msgspec.json.encode(result))
    counters.close()


if __name__ == "__main__":
    main()
