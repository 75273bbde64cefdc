"""Ten thousand bad frames against a running broker: each dropped with a counted reason."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import psutil
import pytest
from tests.runtime.world import PATIENCE_S, RawPeer, eventually

from quorumcast.broadcast.messages import Publish
from quorumcast.cell.messages import Vote
from quorumcast.core import limits
from quorumcast.core.ids import DIGEST_SIZE, Channel, NodeId, Stream
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import Mac
from quorumcast.crypto.session import Farewell, Hello, encode_parcel
from quorumcast.runtime.broker.broker import BrokerSettings
from quorumcast.runtime.links.greeting import MAX_GREETING_BYTES, encode_greeting
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.testing import LocalCluster
from quorumcast.testing import cluster as testing

BROKER = NodeId("broker-1")
STREAM = Stream(Channel("events"), NodeId("alice"), 1)

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


class Attack:
    """Says wrong things to one broker and keeps the count of what it expects to be counted."""

    def __init__(self, cluster: LocalCluster, seed: int = 1) -> None:
        self.cluster = cluster
        self.port = cluster.manifest.brokers[0].port
        self.rng = random.Random(seed)
        self.expected: Counter[str] = Counter()
        manifest = cluster.manifest
        self.alice = manifest.keyring(cluster.plan.identities[NodeId("alice")])
        self.thief = Keyring(Identity.generate(NodeId("alice")), manifest, self.alice.factory)

    def peer(self, keys: Keyring | None = None) -> RawPeer:
        return RawPeer(self.port, keys or self.alice)

    def once(self, reason: str, act: Callable[[RawPeer], None]) -> None:
        """One connection, one bad frame."""
        peer = self.peer()
        act(peer)
        peer.close()
        self.expected[reason] += 1

    # ------------------------------------------------------------ strangers

    def junk_greetings(self, count: int) -> None:
        for _ in range(count):
            frame = self.rng.randbytes(self.rng.randrange(MAX_GREETING_BYTES))
            self.once("not-a-greeting", lambda peer, frame=frame: _say(peer, frame))  # type: ignore[misc]

    def oversized_greetings(self, count: int) -> None:
        for _ in range(count):
            length = self.rng.choice(
                [MAX_GREETING_BYTES + 1, limits.MAX_FRAME_BYTES + 1, 2**32 - 1]
            )
            head = length.to_bytes(4, "big") + b"x" * 100
            self.once("oversized", lambda peer, head=head: _say_raw(peer, head))  # type: ignore[misc]

    def truncated_greetings(self, count: int) -> None:
        whole = encode_greeting(self.peer_hello())
        framed = len(whole).to_bytes(4, "big") + whole
        for _ in range(count):
            part = framed[: self.rng.randrange(1, len(framed))]
            self.once("truncated", lambda peer, part=part: _break_off(peer, part))  # type: ignore[misc]

    def peer_hello(self, **changes: Any) -> Hello:
        hello = Hello(1, "test", 1, NodeId("alice"), BROKER, bytes(16))
        return msgspec.structs.replace(hello, **changes)

    def refused_greetings(self, count: int) -> None:
        changes: list[dict[str, Any]] = [
            {"protocol": 2}, {"instance": "other"}, {"epoch": 99}, {"epoch": -1}, {"nonce": b""},
            {"sender": NodeId("mallory")}, {"to": NodeId("broker-2")}, {"sender": BROKER},
        ]  # fmt: skip
        for i in range(count):
            peer = self.peer()
            assert isinstance(peer.hello(self.peer_hello(**changes[i % len(changes)])), Farewell)
            peer.finish()
            peer.close()
            self.expected["greeting-refused"] += 1

    def wrongly_authenticated(self, count: int) -> None:
        """Greets with alice's name and another key, then keeps trying."""
        while count > 0:
            peer = self.peer(self.thief)
            peer.hello(peer.greeter.hello(BROKER))
            burst = min(count, 100)
            for _ in range(burst):
                peer.send_frame(_frame(b"\x93\x01\x90\x90", self.rng.randbytes(16)))
            count -= burst
            self.expected["bad-mac"] += burst
            peer.finish()
            peer.close()

    # ----------------------------------------------------- a real key misused

    def misused_key(self, count: int) -> None:
        """alice herself sends what no honest program does; the link must survive all of it."""
        peer = self.peer()
        session = peer.greet(BROKER)
        mac: Mac = session._outgoing
        good = session.seal([])
        peer.send_frame(good)
        encode = msgspec.msgpack.encode
        for i in range(count):
            number = 1_000_000 + i
            kind = i % 8
            if kind == 0:
                peer.send_frame(good)
                self.expected["replayed"] += 1
            elif kind == 1:
                peer.send_frame(self.rng.randbytes(self.rng.randrange(20)))
                self.expected["truncated"] += 1
            elif kind == 2:
                header = self.rng.randbytes(50)
                peer.send_frame(_frame(header, bytes(16)))
                self.expected["bad-mac"] += 1
            elif kind == 3:
                header = b"\xc1" + self.rng.randbytes(50)
                peer.send_frame(_frame(header, mac(header)))
                self.expected["malformed"] += 1
            elif kind == 4:  # sizes that do not match, run past the end, or are negative
                sizes = self.rng.choice([[[5]], [[-1]], [[2**40]], [], [[], []]])
                header = encode([number, [_publish(b"")], sizes])
                peer.send_frame(_frame(header, mac(header), b"abc"))
                self.expected["malformed"] += 1
            elif kind == 5:
                header = encode([number, [_publish(b"short digest")], [[]]])
                peer.send_frame(_frame(header, mac(header)))
                self.expected["malformed"] += 1
            elif kind == 6:
                header = encode([number, [["NoSuchMessage", 1]], [[]]])
                peer.send_frame(_frame(header, mac(header)))
                self.expected["malformed"] += 1
            else:  # well-formed, but nothing that a publisher says to a broker
                session._sent = number
                digests = bytes(DIGEST_SIZE)
                peer.send_frame(session.seal([encode_parcel(Vote(STREAM, 1, digests))]))
                self.expected["unexpected-message"] += 1
        bad_body = encode_parcel(Publish(STREAM, 1, bytes(DIGEST_SIZE)), (b"not that digest",))
        session._sent = 2_000_000
        peer.send_frame(session.seal([bad_body]))
        self.expected["bad-body"] += 1
        peer.socket.sendall((limits.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
        self.expected["oversized"] += 1
        peer.wait_closed()
        peer.close()


def _publish(digests: bytes) -> list[Any]:
    return ["Publish", ["events", "alice", 1, 0], 1, digests]


def _frame(header: bytes, mac: bytes, bodies: bytes = b"") -> bytes:
    return len(header).to_bytes(4, "big") + mac + header + bodies


def _say(peer: RawPeer, frame: bytes) -> None:
    peer.send_frame(frame)
    peer.wait_closed()


def _break_off(peer: RawPeer, part: bytes) -> None:
    peer.socket.sendall(part)
    peer.finish()


def _say_raw(peer: RawPeer, data: bytes) -> None:
    peer.socket.sendall(data)
    peer.wait_closed()


def test_broker_ten_thousand_bad_frames_all_counted_memory_flat_still_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A broker that stood still must not take its strangers for silent ones.
    limits = TransportLimits(greeting_timeout_s=PATIENCE_S)
    monkeypatch.setattr(testing, "BrokerSettings", partial(BrokerSettings, limits=limits))
    cluster = LocalCluster(log_level="warning")
    try:
        cluster.start_broker(BROKER)
        attack = Attack(cluster)

        def all_of_them(count: int) -> None:
            attack.junk_greetings(count)
            attack.oversized_greetings(count)
            attack.truncated_greetings(count)
            attack.refused_greetings(count)
            attack.wrongly_authenticated(count)
            attack.misused_key(4 * count)

        all_of_them(100)  # warm: buffers, caches and the allocator have found their size
        process = psutil.Process(cluster.pid(BROKER))
        before = process.memory_info().rss
        all_of_them(1200)
        assert sum(attack.expected.values()) >= 10_000

        def counted() -> dict[str, int]:
            drops: dict[str, int] = cluster.status(BROKER)["drops"]
            return {reason: drops.get(reason, 0) for reason in attack.expected}

        assert eventually(lambda: counted() == attack.expected), (counted(), attack.expected)
        drops = cluster.status(BROKER)["drops"]
        assert set(drops) == set(attack.expected), "something was dropped for another reason"
        assert process.memory_info().rss - before < 8 * 1024 * 1024
        assert eventually(lambda: cluster.status(BROKER)["sizes"]["links.strangers"] == 0)
        honest = attack.peer()
        honest.greet(BROKER)
        assert eventually(lambda: cluster.status(BROKER)["clients"] == ["alice"])
        honest.close()
        assert cluster.stop_broker(BROKER) == 0
    finally:
        cluster.stop()
