"""`python -m quorumcast.bench.flooder DIRECTORY flooder INDEX LIFELINE`: a client that floods.

It greets like any client and then sends messages of the plan's kind, as many as its sockets take,
to every broker. It reads the answers and throws them away. A link that a broker closes is made
again at once. Nothing that it sends is malformed: every message is one that an honest client sends,
only more often than any honest client does.
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

from quorumcast.bench.board import Board, Signal
from quorumcast.bench.plan import BenchPlan, WorkerResult
from quorumcast.bench.worker import end_with
from quorumcast.broadcast.messages import Cursor, Open, Pull
from quorumcast.cell.messages import CELL_FAMILY, Attest, Positions, Subscribe
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.labels import label
from quorumcast.crypto.digest import Hasher, hasher
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.session import Parcel, Refusal, Session, Welcome, encode_parcel
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.manifest.manifest import BrokerEntry, Manifest
from quorumcast.ordering.messages import Offer
from quorumcast.runtime.links.greeting import Greeter, decode_greeting, encode_greeting

#: Messages in one packet.
IN_A_PACKET = 512
READ_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 5.0
#: Before the next attempt to reach a broker that closed the link.
PAUSE_S = 0.05


class FloodMessages:
    """Messages of each kind, without end."""

    def __init__(self, me: NodeId, channel: Channel, hash_: Hasher, positions: Positions) -> None:
        self._me = me
        self._channel = channel
        self._hash = hash_
        held = [p for p in positions.positions if p.next > p.base]
        #: Something that the brokers hold, and the first number of it.
        self._held = held[0] if held else None

    def pull(self) -> Iterator[Parcel]:
        """Everything that is retained, again and again."""
        stream, base = self._something()
        return cycle([encode_parcel(Pull(stream, base, 1024))])

    def attest(self) -> Iterator[Parcel]:
        """A signature for every number."""
        stream, base = self._something()
        return (encode_parcel(Attest(stream, base + n % 4096)) for n in count())

    def subscribe(self) -> Iterator[Parcel]:
        """A replay of everything, with contents."""
        stream, base = self._something()
        return cycle([encode_parcel(Subscribe(self._channel, (Cursor(stream, base),), True))])

    def open(self) -> Iterator[Parcel]:
        """Stream after stream."""
        streams = (Stream(self._channel, self._me, n) for n in count(time.time_ns() // 1000))
        return (encode_parcel(Open(stream, 1, 1)) for stream in streams)

    def offer(self) -> Iterator[Parcel]:
        """Publications of ever new streams, with signatures that do not hold."""
        for n in count(time.time_ns() // 1000):
            stream = Stream(self._channel, self._me, n)
            body = label(stream, 1) + b"flood"
            yield encode_parcel(Offer(stream, 1, self._hash(body), bytes(64)), (body,))

    def mix(self) -> Iterator[Parcel]:
        """All of them in turn."""
        kinds = [self.pull(), self.attest(), self.subscribe(), self.open()]
        return (next(kind) for kind in cycle(kinds))

    def _something(self) -> tuple[Stream, int]:
        if self._held is None:
            return Stream(self._channel, self._me, 1), 1
        return self._held.stream, self._held.base


KINDS: dict[str, Callable[[FloodMessages], Iterator[Parcel]]] = {
    "pull": FloodMessages.pull,
    "attest": FloodMessages.attest,
    "subscribe": FloodMessages.subscribe,
    "open": FloodMessages.open,
    "offer": FloodMessages.offer,
    "mix": FloodMessages.mix,
}


class Target:
    """One link to one broker, over a socket that is never waited for once the peers have met."""

    def __init__(self, entry: BrokerEntry, manifest: Manifest, identity: Identity) -> None:
        self._entry = entry
        self._manifest = manifest
        self._greeter = Greeter(manifest.keyring(identity), CELL_FAMILY)
        self.socket: socket.socket | None = None
        self._words: Iterator[Parcel] | None = None
        self._session: Session | None = None
        self._unsent = b""
        self._again_at = 0.0
        #: How often a broker has closed the link, or would not have it.
        self.closed = 0

    def ask(self, channel: Channel) -> Positions:
        """What a broker holds of a channel."""
        self._connect()
        if self.socket is None or self._session is None:
            return Positions(channel, ())
        self._send(self._session.seal([encode_parcel(Subscribe(channel, (), False))]))
        while True:
            opened = self._session.open(self._frame())
            for message, _ in [] if isinstance(opened, Refusal) else opened:
                if isinstance(message, Positions):
                    return message

    def begin(self, words: Iterator[Parcel]) -> None:
        """Flood with these from now on."""
        self._words = words
        if self.socket is not None:
            self.socket.setblocking(False)

    def revive(self) -> None:
        """Connect again, not too often."""
        if self.socket is None and time.monotonic() >= self._again_at:
            try:
                self._connect()
            except (OSError, EOFError):
                self.lose()

    def write(self) -> None:
        """As much as the socket takes."""
        try:
            if not self._unsent and self._session is not None and self._words is not None:
                frame = self._session.seal([next(self._words) for _ in range(IN_A_PACKET)])
                self._unsent = len(frame).to_bytes(4, "big") + frame
            if self.socket is not None:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.lose()

    def read(self) -> None:
        """Throw away what comes."""
        try:
            if self.socket is not None and not self.socket.recv(READ_BYTES):
                self.lose()
        except BlockingIOError:
            pass
        except OSError:
            self.lose()

    def lose(self) -> None:
        """The link is gone."""
        self.closed += 1
        self._again_at = time.monotonic() + PAUSE_S
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
        self.socket.setblocking(self._words is None)

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


def flood(targets: list[Target], is_over: Callable[[], bool]) -> None:
    """Write to and read from whoever lets us."""
    while not is_over():
        for target in targets:
            target.revive()
        there = {target.socket: target for target in targets if target.socket is not None}
        readable, writable, _ = select.select(list(there), list(there), [], PAUSE_S)
        for ready in readable:
            there[ready].read()
        for ready in writable:
            there[ready].write()
        if not there:
            time.sleep(PAUSE_S)


def main() -> None:
    """Flood from the warm-up to the stop signal."""
    end_with(int(sys.argv[4]))
    directory, index = Path(sys.argv[1]), int(sys.argv[3])
    plan = msgspec.json.decode((directory / "plan.json").read_bytes(), type=BenchPlan)
    name, place = plan.name_of("flooder", index), plan.workers().index(("flooder", index))
    board = Board(directory / "board", plan)
    manifest = read_manifest(directory / "manifest.json")
    identity = read_identity(directory / f"{name}.identity")
    channel = Channel(plan.channel_name(0))
    targets = [
        Target(entry, manifest, identity.at_seat(seat))
        for entry in manifest.brokers
        for seat in range(plan.flood_seats)
    ]
    board.set_ready(place)
    while not board.signalled(Signal.WARM):
        time.sleep(PAUSE_S)
    if plan.flood:
        for target in targets:
            words = FloodMessages(
                identity.name, channel, hasher(manifest.digest), target.ask(channel)
            )
            target.begin(KINDS[plan.flood](words))
        flood(targets, lambda: bool(board.signalled(Signal.STOP)))
    while not board.signalled(Signal.END):
        time.sleep(PAUSE_S)
    for target in targets:
        with contextlib.suppress(OSError):
            target.lose()
    result = WorkerResult(role="flooder", name=name)
    (directory / f"{name}.result.json").write_bytes(msgspec.json.encode(result))
    board.close()


if __name__ == "__main__":
    main()
