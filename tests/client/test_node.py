"""The client API over an in-memory cell."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.manifest.cells import cell as make_manifest
from tests.runtime.world import until
from tests.support.leaping import leap

from quorumcast.broadcast import application
from quorumcast.broadcast.application import Deliver
from quorumcast.client import Event, Gap, GapError, Node, Resumption
from quorumcast.client.reach import too_many_refuse
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.runtime.instrumentation import Instrumentation
from quorumcast.runtime.links.contract import Trouble
from quorumcast.testing import MemoryCell
from quorumcast.testing.cells import CellSetup


def in_cell(act: Callable[[MemoryCell], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        async with MemoryCell(**options) as cell:
            await act(cell)

    leap(main())


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_publish_every_policy_events_arrive_once_and_in_order(policy: str) -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            await pub.publish(b"first")
            for i in range(500):
                pub.post(b"%d" % i)
            await pub.flush()
            got = [(await anext(sub)).payload for _ in range(501)]
            assert got == [b"first", *(b"%d" % i for i in range(500))]

    in_cell(act, channels={"events": policy})


def test_event_names_its_publisher_and_voters() -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            await pub.publish(b"x")
            event = await anext(sub)
            assert (event.publisher, event.number, event.index) == ("alice", 1, 0)
            assert event.channel == "events"
            assert len(event.votes) >= 3
            assert event.dissent == ()
            assert event.row == {"payload": b"x"}
            assert "alice" in repr(event)

    in_cell(act, channels={"events": "ab"})


def test_subscribe_batches_rows_and_mappings() -> None:
    schema = (("price", "float64"), ("name", "string"))
    entry = ChannelEntry(Channel("events"), Policy.named("ab"), schema=schema)

    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            pub.post({"price": 1.5, "name": "a"})
            pub.post({"price": 2.5, "name": "b"})
            await pub.publish({"name": "c"})
            batch = pa.RecordBatch.from_pylist(
                [{"price": 9.0, "name": "z"}], schema=entry.arrow_schema()
            )
            await pub.publish(batch)
            events = [await anext(sub) for _ in range(3)]
            assert [event.row["name"] for event in events] == ["a", "b", "c"]
            async for got in sub.batches():
                assert got.data.equals(batch)
                break
            with pytest.raises(UsageError, match="has columns"):
                _ = events[0].payload

    in_cell(act, channels={"events": entry})


def test_receipt_of_an_event_carries_signed_statements() -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            await pub.publish(b"x")
            event = await anext(sub)
            receipt = await event.receipt()
            assert receipt.number == 1
            assert len(receipt.statements) >= 2

    in_cell(act)


def test_slow_application_loses_nothing_and_its_queue_is_bounded() -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events", queue=10) as sub:
            async with alice.publisher("events", batching=False) as pub:
                for i in range(600):
                    pub.post(b"%d" % i)
                    if i % 20 == 19:
                        await asyncio.sleep(0)
                await pub.flush()
                assert sub.full
                assert sub.waiting < 600
                got = [(await anext(sub)).payload for _ in range(600)]
                assert got == [b"%d" % i for i in range(600)]
            assert bob.suspicions == {}

    in_cell(act, channels={"events": "ab"})


def test_subscribe_full_queue_does_not_stop_our_own_acknowledgements() -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events", queue=2) as sub:
            async with alice.publisher("events", batching=False) as pub:
                for _ in range(50):
                    pub.post(b"x")
                await pub.flush()
            await until(lambda: sub.full)
            async with bob.publisher("events") as own:
                await own.publish(b"y")  # would wait for ever if bob read nothing
            payloads = [(await anext(sub)).payload for _ in range(51)]
            assert sorted(payloads) == [b"x"] * 50 + [b"y"]

    in_cell(act, channels={"events": "ab"})


def test_subscription_that_lags_too_far_gets_a_gap() -> None:
    limits = Limits(retained_publications=64, window=64, segment=16)
    policy = Policy.named("ab", limits=limits)

    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            await pub.publish(b"0")
            assert (await anext(sub)).payload == b"0"
            cell.cut("bob")
            for i in range(1, 300):
                await pub.publish(b"%d" % i)
            cell.heal("bob")
            with pytest.raises(GapError) as caught:
                await anext(sub)
            gap = caught.value.gap
            assert gap.publisher == "alice"
            assert gap.first == 2
            after = await anext(sub)
            assert after.number == gap.upto + 1

    in_cell(act, channels={"events": policy})


def test_items_yields_gaps() -> None:
    async def act(cell: MemoryCell) -> None:
        bob = await cell.connect("bob")
        async with bob.subscribe("events") as sub:
            stream = Stream(Channel("events"), NodeId("alice"), 1)
            sub.gap(application.DeliverGap(stream, 3, 5))
            async for item in sub.items():
                assert isinstance(item, Gap)
                assert (item.stream, item.first, item.upto) == (stream, 3, 5)
                assert str(item) == (
                    "publications 3 to 5 of events/alice@1 are gone: channel events keeps 4,096 "
                    "publications, 64 MiB per publisher, and may have kept less before; to keep "
                    "more from now on: quorumcast channel change events --retain 1GB"
                )
                break

    in_cell(act)


def test_undecodable_contents_of_a_lying_publisher_are_skipped_and_reported() -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        reported: list[Deliver] = []
        bob.on_undecodable = reported.append
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            await pub.publish(b"good")
            assert (await anext(sub)).payload == b"good"
            outgoing = alice._outgoing
            assert outgoing is not None
            outgoing.submit(Channel("events"), (b"nonsense", b""))
            await pub.publish(b"good again")
            assert (await anext(sub)).payload == b"good again"
            assert sub.undecodable == 2
            assert [d.body for d in reported] == [b"nonsense", b""]

    in_cell(act, channels={"events": "ab"})


def test_lying_broker_is_suspected_and_deliveries_continue() -> None:
    async def act(cell: MemoryCell) -> None:
        cell.make_lie("broker-2", "alter")
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        suspects: list[str] = []
        bob.on_suspect = lambda effect: suspects.append(effect.node)
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            for i in range(20):
                await pub.publish(b"%d" % i)
            assert [(await anext(sub)).payload for _ in range(20)] == [b"%d" % i for i in range(20)]
            await until(lambda: "broker-2" in bob.suspicions)
            assert set(suspects) == {"broker-2"}

    in_cell(act)


def test_misuse_raises_an_error_of_one_sentence() -> None:
    private = ChannelEntry(
        Channel("private"), Policy.named("ab"), publishers=("alice",), subscribers=("alice",)
    )

    async def act(cell: MemoryCell) -> None:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match=r"no channel 'nowhere' .* channels are: private"):
            bob.publisher("nowhere")
        with pytest.raises(UsageError, match=r"no channel 'nowhere'"):
            bob.subscribe("nowhere")
        with pytest.raises(UsageError, match="'bob' may not publish on channel 'private'"):
            bob.publisher("private")
        with pytest.raises(UsageError, match="'bob' may not subscribe to channel 'private'"):
            bob.subscribe("private")
        with pytest.raises(UsageError, match="is a broker of the cell"):
            Node(cell.manifest, cell.identities[cell.manifest.broker_ids[0]])
        await bob.close()
        with pytest.raises(UsageError, match="closed"):
            bob.publisher("private")

    in_cell(act, channels={"private": private})


def test_refused_publisher_or_subscription_starts_no_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    monkeypatch.setattr(Instrumentation, "begin", lambda *given: started.append(given[-1]))

    async def act(cell: MemoryCell) -> None:
        alice = await cell.connect("alice")
        with pytest.raises(UsageError, match="has no positions"):
            alice.subscribe("events", start=5)
        with pytest.raises(UsageError, match="cannot be resumed"):
            alice.publisher("events", resume=Resumption("import", 1, at=datetime.now(UTC)))
        assert started == []
        alice.subscribe("events")
        alice.publisher("events")
        assert started == ["subscriber", "publisher"]

    in_cell(act)


def test_connect_too_few_brokers_names_the_missing_ones() -> None:
    async def act(cell: MemoryCell) -> None:
        cell.kill("broker-2")
        cell.kill("broker-4")
        node = Node(cell.manifest, cell.identities[cell.manifest.clients[0].id])
        links = cell._network.enter(node.name)
        links.listener = node
        node.attach(links)
        cell._network.link(node.name)
        with pytest.raises(UsageError, match=r"only 2 of 4 .* 3 are needed .*broker-2.*broker-4"):
            await node.wait_connected(0.05)

    in_cell(act)


def test_restart_of_a_broker_loses_and_repeats_nothing() -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as sub, alice.publisher("events") as pub:
            got: list[bytes] = []

            async def read() -> None:
                while len(got) < 400:
                    got.append((await anext(sub)).payload)

            reading = asyncio.ensure_future(read())
            for i in range(400):
                if i % 100 == 20:
                    cell.kill(f"broker-{i // 100 + 1}")
                if i % 100 == 60:
                    cell.restart(f"broker-{i // 100 + 1}")
                await pub.publish(b"%d" % i)
            await reading
            assert got == [b"%d" % i for i in range(400)]

    in_cell(act)


def test_two_subscriptions_of_one_node_both_get_everything() -> None:
    async def act(cell: MemoryCell) -> None:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with (
            bob.subscribe("events") as one,
            bob.subscribe("events") as two,
            alice.publisher("events") as pub,
        ):
            await pub.publish(b"x")
            first: Event = await anext(one)
            assert first.payload == (await anext(two)).payload == b"x"

    in_cell(act)


@pytest.mark.parametrize(
    ("trouble", "refused"),
    [
        (Trouble("the proxy refused: try again"), False),
        (Trouble("come back tomorrow", refused=True), True),
    ],
)
def test_connect_recognises_a_refusal_by_its_flag_and_not_by_its_text(
    trouble: Trouble, refused: bool
) -> None:
    manifest = CellSetup().manifest
    troubles = dict.fromkeys(manifest.broker_ids, trouble)
    assert too_many_refuse(manifest, troubles) is refused


def test_node_warns_of_a_cell_that_reproduces_figures(caplog: pytest.LogCaptureFixture) -> None:
    manifest, identities = make_manifest(mac="hmac-md5", reproduction=True)
    Node(manifest, identities[NodeId("alice")])
    assert "is not for use" in caplog.text
