"""Links over real sockets: greeting, coalescing, bounds, strangers, coming back."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace
from tests.runtime.world import PATIENCE_S, Heard, RawPeer, keyring, plan, run, until

from quorumcast.broadcast.messages import Echo, Open, Publish, Pull
from quorumcast.cell.messages import CELL_FAMILY, Positions, Refuse, Subscribe
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream, at_seat
from quorumcast.core.message import Message
from quorumcast.core.quorum import Protection
from quorumcast.crypto.directory import Address
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Opened, Parcel, encode_parcel
from quorumcast.manifest.build import add_client
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.messages import Standing
from quorumcast.runtime.broker.classifier import CellClassifier
from quorumcast.runtime.links import fairness
from quorumcast.runtime.links.dialer import Pauses, connect
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.link import PEER_BUFFER, STRANGER_BUFFER, Link
from quorumcast.runtime.links.tls import make_certificate, server_context
from quorumcast.runtime.links.transport import Transport
from quorumcast.testing.cells import CellSetup

BROKER = NodeId("broker-1")
ALICE = NodeId("alice")
#: Calls again at once, and takes nobody who is slow for somebody who is gone.
QUICK = TransportLimits(
    retry_first_s=0.01,
    retry_longest_s=0.05,
    connect_timeout_s=PATIENCE_S,
    greeting_timeout_s=PATIENCE_S,
    displaced_first_s=PATIENCE_S,
    displaced_longest_s=PATIENCE_S,
)


def greeter(manifest: Manifest, identity: Identity) -> Greeter:
    return Greeter(manifest.keyring(identity), CELL_FAMILY)


def address_of(cell: CellSetup) -> Address:
    broker = cell.manifest.brokers[0]
    return Address(broker.host, broker.port, broker.certificate)


def transport(
    cell: CellSetup,
    name: str,
    heard: Heard,
    limits: TransportLimits = QUICK,
    manifest: Manifest | None = None,
    *,
    fair: bool = False,
) -> Transport:
    """A node's transport; a fair one measures what its peers ask for."""
    return Transport(
        manifest or cell.manifest,
        greeter(manifest or cell.manifest, cell.identities[NodeId(name)]),
        heard,
        limits=limits,
        classifier=CellClassifier if fair else None,
        rng=random.Random(1),
    )


async def listening(
    cell: CellSetup, heard: Heard, limits: TransportLimits = QUICK, *, fair: bool = False
) -> Transport:
    broker = transport(cell, "broker-1", heard, limits, fair=fair)
    entry = cell.manifest.brokers[0]
    tls = server_context(cell.identities[BROKER], entry.certificate) if entry.certificate else None
    await broker.listen("127.0.0.1", entry.port, tls)
    return broker


def word(text: str = "x") -> Refuse:
    return Refuse(Channel("c"), text)


@pytest.mark.parametrize("tls", [False, True])
def test_link_all_of_one_turn_travels_in_one_packet(tls: bool) -> None:
    cell = plan(1)
    if tls:
        _with_certificates(cell)

    async def main() -> None:
        at_broker, at_alice = Heard(), Heard()
        broker = await listening(cell, at_broker)
        alice = transport(cell, "alice", at_alice)
        alice.call_peers()
        await until(lambda: at_broker.up == [ALICE] and at_alice.up == [BROKER])
        for i in range(100):
            alice.send((BROKER,), word(str(i)), (b"body",))
        await until(lambda: len(at_broker.messages) == 100)
        assert len(at_broker.packets) == 1
        assert [m.reason for m in at_broker.messages] == [str(i) for i in range(100)]
        assert at_broker.packets[0][1][7][1] == (b"body",)
        broker.send((ALICE,), word("back"), ())
        await until(lambda: len(at_alice.messages) == 1)
        await alice.close()
        await until(lambda: at_broker.down == [ALICE])
        await broker.close()

    run(main())


def _with_certificates(cell: CellSetup) -> None:
    brokers = tuple(
        msgspec.structs.replace(b, certificate=make_certificate(cell.identities[b.id]))
        for b in cell.manifest.brokers
    )
    cell.manifest = msgspec.structs.replace(cell.manifest, brokers=brokers)


def test_tls_certificate_of_another_key_is_named_as_trouble() -> None:
    cell = plan(1)
    _with_certificates(cell)
    other = make_certificate(Identity.generate(BROKER))
    brokers = (msgspec.structs.replace(cell.manifest.brokers[0], certificate=other),)
    fooled = msgspec.structs.replace(cell.manifest, brokers=brokers)

    async def main() -> None:
        broker = await listening(cell, Heard())
        alice = transport(cell, "alice", Heard(), manifest=fooled)
        alice.call_peers()
        await until(lambda: "certificate" in str(alice.troubles().get(BROKER)))
        with pytest.raises(UsageError, match="made for another key"):
            server_context(cell.identities[BROKER], other)
        await alice.close()
        await broker.close()

    run(main())


@pytest.mark.parametrize("fair", [False, True])
def test_link_large_messages_and_many_messages_arrive_whole_and_in_order(
    monkeypatch: pytest.MonkeyPatch, fair: bool
) -> None:
    cell = plan(1)
    # So short that a link is interrupted after every piece, also in the middle of a large frame.
    monkeypatch.setattr(fairness, "QUANTUM_S", 2e-5)
    monkeypatch.setattr(fairness, "BURST_S", 1e9)

    async def main() -> None:
        at_broker = Heard()
        broker = await listening(cell, at_broker, fair=fair)
        at_alice = Heard()
        alice = transport(cell, "alice", at_alice)
        alice.call_peers()
        await until(lambda: at_alice.up == [BROKER])
        big = bytes(range(256)) * 4096 * 3
        for i in range(9):
            alice.send((BROKER,), word(str(i)), (big, b"", big))
            await until(lambda i=i: len(at_broker.messages) == i + 1)  # type: ignore[misc]
        for i in range(10_000):
            alice.send((BROKER,), word(str(i)), ())
        for i in range(3):
            alice.send((BROKER,), word(f"big {i}"), (big, b"", big))
        await until(lambda: len(at_broker.messages) == 10_012)
        assert all(opened[0][1] == (big, b"", big) for _, opened in at_broker.packets[:9])
        assert [m.reason for m in at_broker.messages[9:10_009]] == [str(i) for i in range(10_000)]
        assert all(opened[-1][1] == (big, b"", big) for _, opened in at_broker.packets[-3:])
        await alice.close()
        await broker.close()

    run(main())


def test_outbox_peer_that_does_not_read_messages_are_dropped_within_the_bounds() -> None:
    cell = plan(1)
    limits = replace(QUICK, outbox_messages=50, outbox_bytes=1_000_000)

    async def main() -> None:
        heard = Heard()
        broker = await listening(cell, heard, limits)
        loop = asyncio.get_running_loop()
        port = cell.manifest.brokers[0].port
        deaf = await loop.run_in_executor(None, RawPeer, port, keyring(cell, "alice"))
        await loop.run_in_executor(None, deaf.greet, "broker-1")
        await until(lambda: heard.up == [ALICE])
        for _ in range(400):
            broker.send((ALICE,), word(), (bytes(100_000),))
            await asyncio.sleep(0)
            sizes = broker.sizes()
            assert sizes["links.outbox_messages"] <= 50
            assert sizes["links.outbox_bytes"] <= 1_000_000
        assert broker.telemetry.drops["outbox-full"] > 100
        broker.send((NodeId("bob"),), word(), ())
        assert broker.telemetry.drops["not-connected"] == 1
        deaf.close()
        await broker.close()

    run(main())


def test_outboxes_of_all_seats_of_an_identity_have_one_bound_and_deaf_links_are_closed() -> None:
    cell = plan(1)
    limits = replace(QUICK, outbox_bytes=4 * 1024 * 1024, stall_timeout_s=0.05)

    async def main() -> None:
        heard = Heard()
        broker = await listening(cell, heard, limits)
        loop = asyncio.get_running_loop()
        identity = cell.identities[ALICE]
        seats = [at_seat(ALICE, seat) for seat in range(8)]

        def sit(seat: int) -> RawPeer:
            peer = RawPeer(
                cell.manifest.brokers[0].port, cell.manifest.keyring(identity.at_seat(seat))
            )
            peer.greet(BROKER)
            return peer

        deaf = [await loop.run_in_executor(None, sit, seat) for seat in range(8)]
        await until(lambda: sorted(heard.up) == sorted(seats))
        body = bytes(256 * 1024)
        while len(heard.down) < len(seats):
            broker.send(tuple(seats), word(), (body,))
            assert broker.sizes()["links.outbox_bytes"] <= limits.outbox_bytes
            await asyncio.sleep(0.001)
        assert sorted(heard.down) == sorted(seats)
        assert broker.telemetry.drops["outbox-full"]
        assert broker.telemetry.drops["deaf"] == 8
        assert broker.sizes()["links.outbox_bytes"] == 0
        returning = transport(cell, "alice", Heard())
        returning.call_peers()
        await until(lambda: heard.up[-1] == ALICE and len(heard.up) == 9)
        for peer in deaf:
            peer.close()
        await returning.close()
        await broker.close()

    run(main())


async def seats_of_alice(cell: CellSetup, heard: Heard, count: int) -> list[RawPeer]:
    """Proven links of one client at as many seats."""

    def sit(seat: int) -> RawPeer:
        identity = cell.identities[ALICE].at_seat(seat)
        peer = RawPeer(cell.manifest.brokers[0].port, cell.manifest.keyring(identity))
        peer.greet(BROKER)
        return peer

    loop = asyncio.get_running_loop()
    peers = [await loop.run_in_executor(None, sit, seat) for seat in range(count)]
    await until(lambda: len(heard.up) == count)
    return peers


def buffered(broker: Transport) -> int:
    """Bytes that the links of a node have set aside for what they read."""
    return sum(len(link._buffer) for link in broker._open.values())


@pytest.mark.parametrize("fair", [False, True])
def test_half_sent_frames_at_all_seats_of_an_identity_have_one_bound(fair: bool) -> None:
    cell = plan(1)
    limits = replace(QUICK, inbox_bytes=3 * 1024 * 1024, kept_bytes=0)

    async def main() -> None:
        heard = Heard()
        broker = await listening(cell, heard, limits, fair=fair)
        seats = await seats_of_alice(cell, heard, 8)
        frames = []
        for peer in seats:
            assert peer.session is not None
            frame = peer.session.seal([encode_parcel(word(), (bytes(2 * 1024 * 1024),))])
            frames.append(len(frame).to_bytes(4, "big") + frame)
        loop, usual = asyncio.get_running_loop(), 8 * PEER_BUFFER
        halves = [
            loop.run_in_executor(None, peer.socket.sendall, frame[:-1])
            for peer, frame in zip(seats, frames, strict=True)
        ]
        await until(lambda: buffered(broker) > usual + 1024 * 1024)
        most = 0
        for _ in range(50):
            await asyncio.sleep(0.002)
            most = max(most, buffered(broker))
        for peer, frame, half in zip(seats, frames, halves, strict=True):
            await half
            most = max(most, buffered(broker))
            await loop.run_in_executor(None, peer.socket.sendall, frame[-1:])
        await until(lambda: len(heard.messages) == 8)
        assert most <= usual + limits.inbox_bytes
        await until(lambda: buffered(broker) == usual)
        assert broker.sizes()["links.inbox_bytes"] == 0
        for peer in seats:
            peer.close()
        await broker.close()

    run(main())


def test_half_sent_frame_that_is_never_finished_gives_way_to_other_seats() -> None:
    cell = plan(1)
    limits = replace(QUICK, inbox_bytes=1024 * 1024, stall_timeout_s=0.05)

    async def main() -> None:
        heard = Heard()
        broker = await listening(cell, heard, limits)
        stuck, honest = await seats_of_alice(cell, heard, 2)
        loop = asyncio.get_running_loop()
        begin = (1024 * 1024).to_bytes(4, "big") + bytes(1024 * 1024 - 1)
        await loop.run_in_executor(None, stuck.socket.sendall, begin)
        await until(lambda: buffered(broker) > 2 * PEER_BUFFER)
        assert honest.session is not None
        frame = honest.session.seal([encode_parcel(word(), (bytes(600 * 1024),))])
        await loop.run_in_executor(None, honest.send_frame, frame)
        await until(lambda: len(heard.messages) == 1)
        assert heard.down == [ALICE]
        assert broker.telemetry.drops["half-sent"] == 1
        for peer in (stuck, honest):
            peer.close()
        await broker.close()

    run(main())


def test_stranger_that_announces_a_long_frame_gets_no_room_for_it() -> None:
    cell = plan(1)

    async def main() -> None:
        broker = await listening(cell, Heard())
        loop, port = asyncio.get_running_loop(), cell.manifest.brokers[0].port
        for has_greeted in (False, True):
            peer = await loop.run_in_executor(None, RawPeer, port, keyring(cell, "alice"))
            if has_greeted:
                await loop.run_in_executor(None, partial(peer.greet, BROKER, prove=False))
            await until(lambda: bool(broker._strangers.all()))
            await loop.run_in_executor(None, peer.socket.sendall, (1 << 20).to_bytes(4, "big"))
            assert all(len(link._buffer) == STRANGER_BUFFER for link in broker._strangers.all())
            await loop.run_in_executor(None, peer.wait_closed)
            peer.close()
        assert broker.telemetry.drops["oversized"] == 2
        await broker.close()

    run(main())


def test_peer_that_comes_back_replaces_its_older_link() -> None:
    cell = plan(1)

    async def main() -> None:
        heard = Heard()
        broker = await listening(cell, heard)
        loop = asyncio.get_running_loop()
        port = cell.manifest.brokers[0].port
        first = await loop.run_in_executor(None, RawPeer, port, keyring(cell, "alice"))
        await loop.run_in_executor(None, first.greet, "broker-1")
        await until(lambda: heard.up == [ALICE])
        second = await loop.run_in_executor(None, RawPeer, port, keyring(cell, "alice"))
        await loop.run_in_executor(None, second.greet, "broker-1")
        await until(lambda: heard.up == [ALICE, ALICE])
        assert heard.down == [ALICE]
        await loop.run_in_executor(None, first.wait_closed)
        assert broker.peers() == [ALICE]
        second.close()
        first.close()
        await until(lambda: broker.peers() == [])
        await broker.close()

    run(main())


def test_two_processes_with_one_identity_are_told_and_do_not_fight(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cell = plan(1)

    async def main() -> None:
        heard = Heard()
        broker = await listening(cell, heard)
        first, second = (transport(cell, "alice", Heard()) for _ in range(2))
        first.call_peers()
        await until(lambda: broker.peers() == [ALICE])
        second.call_peers()
        await until(lambda: BROKER in first.troubles())
        await until(lambda: "another process uses" in first.troubles()[BROKER].sentence)
        assert second.peers() == [BROKER]
        for node in (first, second, broker):
            await node.close()

    run(main())
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        "alice connected from 127.0.0.1 while its link from 127.0.0.1 was open: unless that one "
        "was lost, two processes use one identity",
        "broker-1 says that another process uses the identity of alice: end one of the two, or "
        "give it an identity of its own",
    ]


def test_pauses_grow_and_a_displaced_node_comes_back_ever_more_rarely() -> None:
    limits = TransportLimits(
        retry_first_s=1, retry_longest_s=4, displaced_first_s=8, displaced_longest_s=32
    )
    pauses = Pauses(limits)
    assert [pauses.after(was_open=False, displaced=False) for _ in range(4)] == [1, 2, 4, 4]
    assert pauses.after(was_open=True, displaced=False) == 1
    assert [pauses.after(was_open=True, displaced=True) for _ in range(4)] == [8, 16, 32, 32]
    assert pauses.after(was_open=False, displaced=False) == 4
    assert pauses.after(was_open=True, displaced=False) == 1


def test_impostor_that_only_knows_a_name_neither_replaces_nor_announces_itself() -> None:
    cell = plan(1)
    thief = Keyring(Identity.generate(ALICE), cell.manifest, keyring(cell, "alice").factory)

    async def main() -> None:
        heard = Heard()
        broker = await listening(cell, heard)
        at_alice = Heard()
        alice = transport(cell, "alice", at_alice)
        alice.call_peers()
        await until(lambda: heard.up == [ALICE])
        loop = asyncio.get_running_loop()

        def impersonate() -> None:
            mallory = RawPeer(cell.manifest.brokers[0].port, thief)
            mallory.hello(mallory.greeter.hello(BROKER))
            for _ in range(10):
                mallory.send_frame(bytes(64))
            mallory.close()

        await loop.run_in_executor(None, impersonate)
        await until(lambda: broker.telemetry.drops["bad-mac"] == 10)
        assert heard.up == [ALICE]
        assert heard.down == []
        alice.send((BROKER,), word("still here"), ())
        await until(lambda: len(heard.messages) == 1)
        await alice.close()
        await broker.close()

    run(main())


@pytest.mark.parametrize("limits", [{"strangers": 5}, {"strangers_per_address": 5}])
def test_strangers_beyond_the_limit_the_oldest_gives_way(limits: dict[str, int]) -> None:
    cell = plan(1)

    async def main() -> None:
        broker = await listening(cell, Heard(), replace(QUICK, **limits))
        port = cell.manifest.brokers[0].port
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        await until(lambda: broker.telemetry.drops["gave-way"] == 7)
        assert broker.sizes()["links.strangers"] == 5
        for reader, _ in connections[:7]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert not any(reader.at_eof() for reader, _ in connections[7:])
        for _, writer in connections:
            writer.close()
        await broker.close()

    run(main())


@pytest.mark.parametrize("name", ["alice", "broker-1"])
def test_node_that_returns_among_silent_strangers_and_false_claims_gets_in(name: str) -> None:
    """Whoever has greeted is safe from the silent; a name is safe from other names."""
    cell = plan(2)
    limits = replace(
        QUICK, strangers=4, strangers_per_address=4, claims_per_name=2, claims_of_clients=4
    )
    thieves = [
        Keyring(Identity.generate(NodeId(claimed)), cell.manifest, keyring(cell, "alice").factory)
        for claimed in ("alice", "bob", "carol", "dave", "broker-1")
    ]

    async def main() -> None:
        heard = Heard()
        broker = transport(cell, "broker-2", heard, limits)
        port = cell.manifest.brokers[1].port
        await broker.listen("127.0.0.1", port)
        loop = asyncio.get_running_loop()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]

        def claim(keys: Keyring) -> RawPeer:
            peer = RawPeer(port, keys)
            peer.hello(peer.greeter.hello(NodeId("broker-2")))
            return peer

        false = [await loop.run_in_executor(None, claim, keys) for keys in thieves * 4]
        sizes = broker.sizes()
        assert sizes["links.strangers"] <= 4 + 4 + 2
        returning = transport(cell, name, Heard())
        returning.call_peers()
        await until(lambda: heard.up == [name])
        silent += [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        assert heard.down == []
        await returning.close()
        await broker.close()
        for peer in false:
            peer.close()
        for _, writer in silent:
            writer.close()

    run(main())


def test_strangers_that_do_not_greet_expire() -> None:
    cell = plan(1)

    async def main() -> None:
        broker = await listening(cell, Heard(), replace(QUICK, greeting_timeout_s=0.05))
        port = cell.manifest.brokers[0].port
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        await until(lambda: broker.telemetry.drops["greeting-timeout"] == 5)
        await until(lambda: broker.sizes()["links.strangers"] == 0)
        for reader, writer in connections:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        await broker.close()

    run(main())


def test_dialer_broker_that_starts_later_and_restarts_is_found_again() -> None:
    cell = plan(1)

    async def main() -> None:
        at_alice = Heard()
        alice = transport(cell, "alice", at_alice)
        alice.call_peers()
        await until(lambda: "refuses connections" in alice.troubles()[BROKER].sentence)
        met: dict[NodeId, float] = {}
        for round_ in range(3):
            heard = Heard()
            broker = await listening(cell, heard)
            await until(lambda n=round_: len(at_alice.up) == n + 1)  # type: ignore[misc]
            await broker.close()
            await until(lambda n=round_: len(at_alice.down) == n + 1)  # type: ignore[misc]
            met = met or dict(alice.telemetry.met)
            assert alice.telemetry.met == met  # the first link is what counts
        assert alice.telemetry.met.keys() == {BROKER}
        await alice.close()

    run(main())


def test_call_that_is_cancelled_when_it_has_just_been_answered_leaves_no_link_behind() -> None:
    cell = plan(1)

    class Answered(Link):
        """Open before whoever called has had its turn."""

        caller: asyncio.Task[None]

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._become_open()
            self.caller.cancel()

    async def main() -> None:
        broker = await listening(cell, Heard())
        heard = Heard()
        alice = transport(cell, "alice", heard)
        greets = greeter(cell.manifest, cell.identities[ALICE])
        link = Answered(alice, greets, heard.receive, BROKER)
        link.caller = asyncio.create_task(connect(link, address_of(cell)))
        with pytest.raises(asyncio.CancelledError):
            await link.caller
        assert heard.up == heard.down == [BROKER]
        assert alice.peers() == []
        await alice.close()
        await broker.close()

    run(main())


def test_dialer_that_is_stopped_before_it_has_a_socket_greets_nobody() -> None:
    cell = plan(1)

    async def main() -> None:
        heard = Heard()
        alice = transport(cell, "alice", heard)
        link = alice.outgoing(BROKER)
        link.abort("stopped")
        broker = await listening(cell, Heard())
        await connect(link, address_of(cell))
        await link.gone.wait()
        assert link.farewell == "stopped"
        await broker.close()
        assert not broker.telemetry.drops

    run(main())


def test_dialer_unreachable_hosts_are_told_in_a_sentence() -> None:
    cell = plan(1)
    nowhere = msgspec.structs.replace(cell.manifest.brokers[0], host="no-such-host.invalid")
    lost = msgspec.structs.replace(cell.manifest, brokers=(nowhere,))

    async def main() -> None:
        alice = transport(cell, "alice", Heard(), manifest=lost)
        alice.call_peers()
        await until(lambda: "no-such-host.invalid" in alice.troubles()[BROKER].sentence)
        await alice.close()

    run(main())


def test_farewell_reason_and_newer_epoch_reach_the_caller() -> None:
    cell = plan(1)
    later = add_client(cell.manifest, NodeId("erin"), Identity.generate(NodeId("erin")))
    epochs: list[int] = []

    async def main() -> None:
        heard, at_alice = Heard(), Heard()
        broker = Transport(later, greeter(later, cell.identities[BROKER]), heard)
        await broker.listen("127.0.0.1", later.brokers[0].port)
        alice = Transport(
            cell.manifest,
            greeter(cell.manifest, cell.identities[ALICE]),
            at_alice,
            limits=QUICK,
            on_other_epoch=epochs.append,
        )
        alice.call_peers()
        await until(lambda: "fetch the current manifest" in alice.troubles()[BROKER].sentence)
        assert epochs[0] == 2
        assert heard.up == []
        alice.renew(later, greeter(later, cell.identities[ALICE]))
        await until(lambda: heard.up == [ALICE])
        await alice.close()
        await broker.close()

    run(main())


def test_broker_of_an_earlier_epoch_refuses_for_now_and_one_of_a_later_for_good() -> None:
    """A client whose epoch is newer than the brokers' waits until they have read it."""
    cell = plan(1)
    later = add_client(cell.manifest, NodeId("erin"), Identity.generate(NodeId("erin")))

    async def main() -> None:
        for ours, theirs, for_good in ((later, cell.manifest, False), (cell.manifest, later, True)):
            broker = transport(cell, "broker-1", Heard(), manifest=theirs)
            await broker.listen("127.0.0.1", theirs.brokers[0].port)
            heard = Heard()
            alice = transport(cell, "alice", heard, manifest=ours)
            alice.call_peers()
            await until(lambda a=alice: "refused" in a.troubles()[BROKER].sentence)  # type: ignore[misc]
            assert alice.troubles()[BROKER].refused is for_good
            broker.renew(ours, greeter(ours, cell.identities[BROKER]))
            await until(lambda h=heard: h.up == [BROKER])  # type: ignore[misc]
            await alice.close()
            await broker.close()

    run(main())


def test_renew_open_links_are_greeted_anew() -> None:
    cell = plan(1)
    later = add_client(cell.manifest, NodeId("erin"), Identity.generate(NodeId("erin")))

    async def main() -> None:
        heard, at_alice = Heard(), Heard()
        broker = await listening(cell, heard)
        alice = transport(cell, "alice", at_alice)
        alice.call_peers()
        await until(lambda: heard.up == [ALICE] and at_alice.up == [BROKER])
        broker.renew(later, greeter(later, cell.identities[BROKER]))
        alice.renew(later, greeter(later, cell.identities[ALICE]))
        await until(lambda: len(heard.up) == 2 and len(at_alice.up) == 2)
        assert heard.down == [ALICE]
        assert at_alice.down == [BROKER]
        alice.send((BROKER,), word(), ())
        await until(lambda: len(heard.messages) == 1)
        await alice.close()
        await broker.close()

    run(main())


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        (
            None,
            None,
            r"uses that port; stop it, or choose other ports with 'quorumcast init --base-port'$",
        ),
        ("203.0.113.7", None, "run the node on the machine that is named in the "),
        ("no-such-host.invalid", None, "check its address in the "),
    ],
)
def test_listen_address_that_cannot_be_had_is_one_sentence(
    host: str | None, port: int | None, words: str
) -> None:
    cell = plan(1)

    async def main() -> None:
        taken = await listening(cell, Heard())
        second = transport(cell, "broker-1", Heard())
        with pytest.raises(UsageError, match=words):
            await second.listen(host or "127.0.0.1", port or cell.manifest.brokers[0].port)
        await taken.close()

    run(main())


def test_pause_reading_nothing_is_heard_until_resumed() -> None:
    cell = plan(1)

    async def main() -> None:
        heard, at_alice = Heard(), Heard()
        broker = await listening(cell, heard)
        alice = transport(cell, "alice", at_alice)
        alice.call_peers()
        await until(lambda: heard.up == [ALICE] and at_alice.up == [BROKER])
        alice.pause_reading()
        broker.send((ALICE,), word(), ())
        alice.send((BROKER,), word(), ())
        await until(lambda: len(heard.messages) == 1)
        assert at_alice.messages == []
        alice.resume_reading()
        await until(lambda: len(at_alice.messages) == 1)
        await alice.close()
        await broker.close()

    run(main())


def hearsay(count: int) -> list[Message]:
    return [Echo(Stream(Channel("c"), ALICE, n), 1, bytes(32)) for n in range(count)]


@pytest.mark.parametrize(
    ("words", "is_flood"),
    [
        (hearsay(200), True),
        ([Positions(Channel("c"), ())] * 200, True),
        ([Standing(Protection.BYZANTINE, 0, 0, 0)] * 200, True),
        ([Pull(Stream(Channel("c"), ALICE, 1), 1, 1)] * 200, True),
        ([Echo(Stream(Channel("c"), ALICE, 1), n, bytes(32)) for n in range(1, 201)], False),
    ],
    ids=["streams", "reports", "standings", "pulls", "echoes"],
)
def test_broker_that_says_rare_things_without_end_has_a_budget_for_it(
    words: list[Message], is_flood: bool
) -> None:
    """A message takes a millisecond, so that far more waits than a turn can take."""
    cell = plan(4)

    class Slow(Heard):
        def receive(self, peer: NodeId, opened: Opened) -> None:
            end = time.thread_time() + 0.001 * len(opened)
            while time.thread_time() < end:
                pass
            super().receive(peer, opened)

    async def main() -> None:
        heard, loop = Slow(), asyncio.get_running_loop()
        broker = await listening(cell, heard, fair=True)
        port = cell.manifest.brokers[0].port
        liar = await loop.run_in_executor(None, RawPeer, port, keyring(cell, "broker-2"))
        session = await loop.run_in_executor(None, liar.greet, BROKER)
        liar.send_frame(session.seal([encode_parcel(message) for message in words]))
        await until(lambda: len(heard.messages) == len(words))
        load = broker.load()[NodeId("broker-2")]
        assert (load.requests_s > load.cpu_s / 2) == is_flood
        assert load.disconnected == 0
        liar.close()
        await broker.close()

    run(main())


EVENTS = Stream(Channel("c"), ALICE, 1)


def published(count: int, size: int) -> list[Parcel]:
    """Publications of one stream."""
    return [encode_parcel(Publish(EVENTS, n + 1, bytes(32)), (bytes(size),)) for n in range(count)]


@pytest.mark.parametrize(
    ("parcels", "is_flood"),
    [
        (published(300, 1000), False),
        ([encode_parcel(Subscribe(Channel("c"), (), True, where=("x" * 30_000,)))] * 8, False),
        ([encode_parcel(Pull(EVENTS, 1, 1))] * 3000, True),
        ([encode_parcel(Open(Stream(Channel("c"), ALICE, n), 1, 1)) for n in range(3000)], True),
    ],
    ids=["publications", "predicates", "pulls", "streams"],
)
def test_client_over_its_budget_is_disconnected_for_many_requests_that_wait_and_nothing_else(
    parcels: list[Parcel], is_flood: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first request is costly, and what follows waits in frames that are not opened yet."""
    monkeypatch.setattr(fairness, "FLOOD_GRACE_S", -1.0)
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)
    cell = plan(1)

    class Costly(Heard):
        def receive(self, peer: NodeId, opened: Opened) -> None:
            end = time.thread_time() + (0 if self.packets else 2 * fairness.BURST_S)
            while time.thread_time() < end:
                pass
            super().receive(peer, opened)

    async def main() -> None:
        heard, loop = Costly(), asyncio.get_running_loop()
        broker = await listening(cell, heard, fair=True)
        port = cell.manifest.brokers[0].port
        alice = await loop.run_in_executor(None, RawPeer, port, keyring(cell, "alice"))
        session = await loop.run_in_executor(None, alice.greet, BROKER)
        frames = [session.seal([encode_parcel(Subscribe(Channel("c"), (), True))])]
        frames += [session.seal(parcels[at : at + 50]) for at in range(0, len(parcels), 50)]
        sending = loop.run_in_executor(None, alice.send_frames, frames)

        def is_over() -> bool:
            heard_all = len(heard.messages) > len(parcels)
            return heard_all or broker.load()[ALICE].disconnected > 0

        await until(is_over)
        with contextlib.suppress(OSError):
            await sending
        load = broker.load()[ALICE]
        assert load.paused or load.disconnected
        assert bool(load.disconnected) == is_flood
        alice.close()
        await broker.close()

    run(main())


def test_requests_that_wait_are_counted_up_to_the_most_that_matters() -> None:
    """Counted at every turn of a client, whatever it has sent."""
    handed = 0

    def pulls() -> Iterator[Message]:
        nonlocal handed
        for _ in range(10_000):
            handed += 1
            yield Pull(EVENTS, 1, 1)

    assert CellClassifier().requests_among(pulls(), is_broker=False, most=513) == 513
    assert handed == 513
