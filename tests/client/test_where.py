"""Subscriptions to some rows: what each gets, what a node asks for, and changes."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.client.test_times import in_a_loop
from tests.runtime.world import PATIENCE_S, until

from quorumcast.broadcast.application import Recalled
from quorumcast.client import Batch, Gap, Node, UsageError
from quorumcast.client.selecting import suiting
from quorumcast.client.subscription import Subscription
from quorumcast.core.envelope import ENVELOPE_BYTES
from quorumcast.core.ids import Channel
from quorumcast.core.labels import unlabel
from quorumcast.core.limits import Limits
from quorumcast.core.publication import decode_batch
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.testing import MemoryCell, SyncMemoryCell

COLUMNS = (("symbol", "string"), ("price", "int64"))
POLICIES = ("direct", "direct-crash", "ab", "ab+history", "brb", "total", "total-crash")


def trades(policy: str = "ab+history", channel: str = "trades", **limits: int) -> ChannelEntry:
    chosen = Policy.named(policy, limits=Limits(**limits))
    return ChannelEntry(Channel(channel), chosen, schema=COLUMNS)


def rows(*prices: int, symbol: str = "CTT") -> pa.RecordBatch:
    made = [{"symbol": symbol, "price": price} for price in prices]
    return pa.RecordBatch.from_pylist(made, trades().arrow_schema())


async def publish(node: Node, *batches: pa.RecordBatch, channel: str = "trades") -> None:
    async with node.publisher(channel, batching=False) as outbox:
        for batch in batches:
            await outbox.publish(batch)


def numbers(batch: Batch) -> list[int] | None:
    return None if batch.rows is None else batch.rows.tolist()


def prices(item: Batch | Gap) -> list[int]:
    assert isinstance(item, Batch)
    found: list[int] = item.data.column("price").to_pylist()
    return found


async def taken(inbox: Subscription, count: int) -> list[Batch]:
    found: list[Batch] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in inbox.batches():
            found.append(batch)
            if len(found) == count:
                break
    return found


@asynccontextmanager
async def reading(
    where: str, entry: ChannelEntry | None = None
) -> AsyncIterator[tuple[Node, Subscription]]:
    """alice, who publishes trades, and what bob reads of them."""
    async with MemoryCell(channels={"trades": entry or trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("trades", where=where) as inbox:
            yield alice, inbox


@pytest.mark.parametrize("policy", POLICIES)
@in_a_loop
async def test_subscription_gets_the_rows_that_match_and_no_others(policy: str) -> None:
    async with reading("price < 10", trades(policy)) as (alice, inbox):
        await publish(
            alice, rows(50), rows(*range(8, 28)), rows(1, 2, 3), rows(*range(90, 100)), rows(7)
        )
        cut, whole, last = await taken(inbox, 3)
        assert [prices(one) for one in (cut, whole, last)] == [[8, 9], [1, 2, 3], [7]]
        assert (numbers(cut), cut.total, len(cut)) == ([0, 1], 20, 2)
        assert (whole.rows, whole.total, len(whole)) == (None, 3, 3)
        assert [one.number for one in (cut, whole, last)] == [2, 3, 5]
        assert {one.where for one in (cut, whole, last)} == {"price < 10"}


@in_a_loop
async def test_events_of_a_part_have_their_row_numbers_in_the_publication() -> None:
    async with reading("price >= 98") as (alice, inbox):
        await publish(alice, rows(*range(100)))
        events = [await anext(inbox), await anext(inbox)]
        assert [(e.index, e.row) for e in events] == [
            (98, {"symbol": "CTT", "price": 98}),
            (99, {"symbol": "CTT", "price": 99}),
        ]
        batch = events[0].batch
        assert repr(batch).endswith("2 of 100 events>")
        assert batch.data.to_pydict() == {"symbol": ["CTT", "CTT"], "price": [98, 99]}
        with pytest.raises(UsageError, match="2 of the 100 rows of this publication came"):
            _ = batch.contents


@in_a_loop
async def test_most_rows_come_with_the_publication_and_are_selected_here() -> None:
    async with reading("price < 8") as (alice, inbox):
        await publish(alice, rows(*range(10)))
        (batch,) = await taken(inbox, 1)
        assert prices(batch) == list(range(8)) == numbers(batch)
        assert batch.total == 10


@pytest.mark.parametrize("policy", ["ab+history", "total"])
@in_a_loop
async def test_receipt_of_a_part_has_the_whole_publication(policy: str) -> None:
    async with reading("price = 17", trades(policy, segment=4)) as (alice, inbox):
        await publish(alice, rows(1), rows(*range(20)), rows(2))
        event = await anext(inbox)
        receipt = await event.receipt()
        labelled = unlabel(receipt.contents) if policy == "total" else None
        contents = receipt.contents if labelled is None else labelled[1]
        whole = decode_batch(contents[ENVELOPE_BYTES:], trades().arrow_schema())
        assert whole is not None
        assert whole.column("price").to_pylist() == list(range(20))


@in_a_loop
async def test_subscriptions_of_one_node_get_the_rows_of_their_own_predicates() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        cheap = bob.subscribe("trades", where="price < 10")
        dear = bob.subscribe("trades", where="price >= 90")
        await cheap.wait_joined()
        await dear.wait_joined()
        await publish(alice, rows(*range(100)))
        assert prices((await taken(cheap, 1))[0]) == list(range(10))
        assert prices((await taken(dear, 1))[0]) == list(range(90, 100))
        async with bob.subscribe("trades") as everything:
            await publish(alice, rows(*range(100)))
            (whole,) = await taken(everything, 1)
            assert (whole.where, whole.rows, len(whole)) == (None, None, 100)
            assert prices((await taken(cheap, 1))[0]) == list(range(10))
        await publish(alice, rows(*range(50)))
        assert prices((await taken(cheap, 1))[0]) == list(range(10))
        await publish(alice, rows(95))
        assert prices((await taken(dear, 2))[1]) == [95]
        assert cheap.waiting == dear.waiting == 0


@in_a_loop
async def test_subscriptions_that_come_and_go_cost_the_others_nothing() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("trades", where="price = 7") as inbox:
            async with alice.publisher("trades", batching=False) as outbox:
                others: list[Subscription] = []
                for number in range(60):
                    outbox.post_batch(rows(*range(number % 3, 10)))
                    if number % 3 == 0:
                        others.append(bob.subscribe("trades", where=f"price = {number % 9}"))
                    elif number % 5 == 0:
                        others.pop(0).close()
                    await asyncio.sleep(0.001)
                await outbox.flush()
            found = await taken(inbox, 60)
            assert [one.number for one in found] == list(range(1, 61))
            assert {tuple(prices(one)) for one in found} == {(7,)}
            await until(lambda: all(one.joined.done() for one in others))


@in_a_loop
async def test_change_is_exact() -> None:
    async with reading("price = 1") as (alice, inbox):
        await publish(alice, rows(*range(10)))
        await until(lambda: inbox.waiting == 1)
        await inbox.change("price > 7")
        assert inbox.where == "price > 7"
        await publish(alice, rows(*range(10)))
        await until(lambda: inbox.waiting == 2)
        await inbox.change(None)
        await publish(alice, rows(*range(10)))
        found = await taken(inbox, 3)
        assert [(one.where, prices(one)) for one in found] == [
            ("price = 1", [1]),
            ("price > 7", [8, 9]),
            (None, list(range(10))),
        ]


@in_a_loop
async def test_change_under_load_selects_each_publication_by_one_predicate_or_the_other() -> None:
    async with reading("price = 0") as (alice, inbox):
        async with alice.publisher("trades", batching=False) as outbox:
            for number in range(100):
                outbox.post_batch(rows(*range(10)))
                if number % 10 == 5:
                    await inbox.change(f"price = {number % 9}")
                await asyncio.sleep(0)
            await outbox.flush()
        found = await taken(inbox, 100)
        assert [one.number for one in found] == list(range(1, 101))
        assert all(f"price = {prices(one)[0]}" == one.where for one in found)
        assert len({one.where for one in found}) > 3


@in_a_loop
async def test_change_that_is_refused_changes_nothing() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("trades", where="price = 1") as inbox:
            with pytest.raises(UsageError, match="did you mean 'price'"):
                await inbox.change("prise = 2")
            assert inbox.where == "price = 1"
            await publish(alice, rows(*range(10)))
            assert prices((await taken(inbox, 1))[0]) == [1]
        with pytest.raises(UsageError, match="this subscription is closed"):
            await inbox.change("price = 2")


@pytest.mark.parametrize("policy", ["ab+history", "brb", "total"])
@pytest.mark.parametrize("where", ["price < 3", "price > 1000"])
@in_a_loop
async def test_held_ends_although_the_last_rows_do_not_match(policy: str, where: str) -> None:
    async with MemoryCell(channels={"trades": trades(policy)}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, *(rows(price) for price in range(9)))
        async with bob.subscribe("trades", start="earliest", where=where) as inbox:
            async with asyncio.timeout(PATIENCE_S):
                found = [prices(item) async for item in inbox.held()]
            assert found == ([[0], [1], [2]] if where == "price < 3" else [])
            assert not inbox.unread
            assert list(inbox.ends.values()) == [9]


@in_a_loop
async def test_position_to_go_on_with_is_behind_what_does_not_match() -> None:
    async with MemoryCell(channels={"trades": trades("total")}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, *(rows(price) for price in (1, 50, 2, 60, 70)))
        async with bob.subscribe("trades", start="earliest", where="price < 10") as inbox:
            assert inbox.position in (None, 1)
            await until(lambda: inbox.waiting == 2)
            assert prices(await anext(inbox.batches())) == [1]
            assert inbox.position == 3
            assert prices(await anext(inbox.batches())) == [2]
            await until(lambda: inbox.position == 6)
        again = await cell.connect("bob")
        async with again.subscribe("trades", start=6, where="price < 10") as inbox:
            await publish(alice, rows(3))
            (batch,) = await taken(inbox, 1)
            assert (prices(batch), batch.position, inbox.position) == ([3], 6, 7)


@in_a_loop
async def test_position_to_go_on_with_is_behind_what_matches_another_subscription_alone() -> None:
    async with MemoryCell(channels={"trades": trades("total")}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with (
            bob.subscribe("trades", start="earliest", where="price < 10") as cheap,
            bob.subscribe("trades", where="price > 10") as dear,
        ):
            await publish(alice, rows(1), rows(50))
            assert prices((await taken(dear, 1))[0]) == [50]
            assert prices((await taken(cheap, 1))[0]) == [1]
            assert cheap.position == 3


@in_a_loop
async def test_subscription_from_a_position_to_another_gets_matching_rows() -> None:
    async with MemoryCell(channels={"trades": trades("total")}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, *(rows(price) for price in range(10)))
        async with bob.subscribe(
            "trades", start=3, until=9, where="price IN (0, 3, 5, 8)"
        ) as inbox:
            found = [(batch.position, prices(batch)) async for batch in inbox.batches()]
            assert found == [(4, [3]), (6, [5])]


@in_a_loop
async def test_recall_gets_whole_publications() -> None:
    async with reading("price = 4", trades("total")) as (alice, inbox):
        await publish(alice, rows(*range(10)), rows(1))
        await taken(inbox, 1)
        await until(lambda: inbox.position == 3)
        found = await inbox.recall([1, 2])
        assert [len(batch) for batch in found.values() if isinstance(batch, Batch)] == [10, 1]


@in_a_loop
async def test_recall_gets_the_rows_that_a_cell_carries_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading("price = 4", trades("total")) as (alice, inbox):
        await publish(alice, rows(*range(10)), rows(1))
        (batch,) = await taken(inbox, 1)
        await until(lambda: inbox.position == 3)
        told = [
            Recalled(Channel("trades"), 1, batch._delivered),
            Recalled(Channel("trades"), 2, None),
        ]

        async def recall(channel: Channel, positions: Iterable[int]) -> list[Recalled]:
            return told

        monkeypatch.setattr(inbox._host, "recall", recall)
        found = await inbox.recall([1, 2])
        assert found[2] is None
        assert isinstance(found[1], Batch)
        assert (prices(found[1]), found[1].position) == ([4], 1)


@in_a_loop
async def test_discarded_publications_are_those_with_matching_rows() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("trades", where="price < 3", queue=2, overflow="oldest") as inbox:
            async with bob.subscribe("trades") as everything:
                await publish(alice, *(rows(price) for price in (0, 9, 1, 9, 9, 2, 9)))
                await taken(everything, 7)
            assert inbox.discarded == 1
            first, *others = await inbox.take()
            assert isinstance(first, Gap)
            assert (first.first, first.upto) == (1, 1)
            assert [prices(one) for one in others] == [[1], [2]]


@in_a_loop
async def test_change_to_a_column_that_is_not_there_is_refused() -> None:
    async with reading("price < 3") as (alice, inbox):
        await publish(alice, rows(*range(10)))
        await taken(inbox, 1)
        with pytest.raises(UsageError, match="'venue'"):
            await inbox.change("venue = 'X'")


REFUSED: Sequence[tuple[dict[str, Any], str]] = (
    ({"where": "prise < 10"}, "names the column 'prise', which is not there: did you mean 'price'"),
    ({"where": "price < 'ten'"}, "is an integer, which does not compare with text: write a number"),
    ({"where": "(price < 10"}, "')' is missing at the end in '(price < 10'"),
    ({"where": " OR ".join(["price = 1"] * 5000)}, "the predicate is longer than 32,768 bytes"),
    ({"where": ""}, "the predicate is empty: leave it out, or write TRUE for all rows"),
    ({"where": 5}, "where is 5: give a text"),
    ({"channel": "bytes", "where": "price < 10"}, "carries bytes, which have no columns"),
    ({"channel": "chained", "where": "price < 10"}, "on a chain brokers vote for whole"),
)


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
@in_a_loop
async def test_predicate_that_cannot_be_asked_for_is_refused_with_a_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    channels: dict[str, str | ChannelEntry] = {
        "trades": trades(),
        "bytes": "ab",
        "chained": ChannelEntry(Channel("chained"), Policy.named("chain"), schema=COLUMNS),
    }
    async with MemoryCell(channels=channels) as cell:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match=re.escape(sentence)) as raised:
            bob.subscribe(**{"channel": "trades", **options})
        assert "\n" not in str(raised.value)
        async with bob.subscribe("trades"):  # nothing is left of it
            pass


@in_a_loop
async def test_named_subscription_refuses_a_predicate() -> None:
    async with MemoryCell(channels={"trades": trades("total")}) as cell:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match="a named subscription has no predicate"):
            bob.subscribe_as("trades", "work", where="price < 10")


@in_a_loop
async def test_pattern_leaves_out_channels_without_the_columns() -> None:
    channels: dict[str, str | ChannelEntry] = {
        "plant/1": trades(channel="plant/1"),
        "plant/2": "chain",
        "plant/log": "ab",
    }
    async with MemoryCell(channels=channels) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("plant/*", where="price < 10") as inbox:
            assert inbox.channels == ("plant/1",)
            await publish(alice, rows(*range(5, 30)), channel="plant/1")
            assert prices((await taken(inbox, 1))[0]) == [5, 6, 7, 8, 9]
            await inbox.change("symbol = 'X'")
            assert inbox.channels == ("plant/1",)
        with pytest.raises(UsageError, match="did you mean 'price'"):
            bob.subscribe("plant/*", where="prise < 10")


@in_a_loop
async def test_pattern_names_channels_that_it_leaves_out_in_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channels: dict[str, str | ChannelEntry] = {"trades": trades()}
    few, many = [f"x/{n}" for n in range(2)], [f"y/{n:02}" for n in range(40)]
    async with MemoryCell(channels=channels | dict.fromkeys(few + many, "ab")) as cell:
        bob = await cell.connect("bob")
        with caplog.at_level(logging.WARNING, logger="quorumcast"):
            async with bob.subscribe("**", where="price < 10") as inbox:
                assert inbox.channels == ("trades",)
                await inbox.change("price < 20")
    (said,) = [record.getMessage() for record in caplog.records if "leaves out" in str(record.msg)]
    assert "'**' leaves out 42 channels, such as 'x/0', 'x/1', 'y/00': channel 'x/0'" in said
    caplog.clear()
    entries = [ChannelEntry(Channel(name), Policy.named("ab")) for name in few]
    with caplog.at_level(logging.WARNING, logger="quorumcast"):
        assert not suiting("x/*", entries, "price < 10", set())
    (said,) = [record.getMessage() for record in caplog.records]
    assert "'x/*' leaves out 'x/0', 'x/1': channel 'x/0' carries bytes" in said


def test_blocking_subscription_selects_and_changes() -> None:
    with SyncMemoryCell(channels={"trades": trades("total")}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        outbox = alice.publisher("trades", batching=False)
        with bob.subscribe("trades", where="price < 2") as inbox:
            outbox.publish(rows(*range(10)))
            event = inbox.next(timeout_s=PATIENCE_S)
            assert (event.row["price"], event.index) == (0, 0)
            assert inbox.next(timeout_s=PATIENCE_S).row["price"] == 1
            inbox.change("price = 9", timeout_s=PATIENCE_S)
            assert inbox.where == "price = 9"
            outbox.publish(rows(*range(10)))
            event = inbox.next(timeout_s=PATIENCE_S)
            assert (event.row["price"], event.index) == (9, 9)
            assert inbox.position == 3
            assert inbox.receipt(event).number == 2


@in_a_loop
async def test_broker_that_omits_rows_is_outvoted() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        cell.make_lie("broker-1", "alter")
        async with bob.subscribe("trades", where="price < 10") as inbox:
            await publish(alice, *(rows(*range(5 + number, 50)) for number in range(4)))
            found = await taken(inbox, 4)
            assert [prices(one) for one in found] == [
                list(range(5 + number, 10)) for number in range(4)
            ]


@in_a_loop
async def test_channel_made_anew_without_the_column_ends_its_own_subscriptions_only() -> None:
    channels = {name: trades(channel=name) for name in ("plant/1", "plant/2")}
    async with MemoryCell(channels=channels) as cell:
        bob = await cell.connect("bob")
        one = bob.subscribe("plant/1", where="price < 10")
        every = bob.subscribe("plant/*", where="price < 20")
        other = bob.subscribe("plant/2", where="price < 30")
        for inbox in (one, every, other):
            await inbox.wait_joined()
        anew = ChannelEntry(Channel("plant/1"), trades().policy, schema=(("celsius", "float64"),))
        manifest = msgspec.structs.replace(
            cell.manifest, epoch=cell.manifest.epoch + 1, channels=(anew, trades(channel="plant/2"))
        )
        adopt(bob, manifest)
        with pytest.raises(UsageError, match="names the column 'price', which is not there"):
            await anext(one)
        assert every.channels == ("plant/2",)
        await other.change("price < 50")  # the node goes on
        again = bob.subscribe("plant/1", where="celsius < 3")
        with pytest.raises(UsageError, match="names the column"):
            await again.wait_joined(PATIENCE_S)
        again.close()
        one.close()
        bob.subscribe("plant/1", where="celsius < 3").close()


def adopt(node: Node, manifest: Manifest) -> None:
    """As `read_manifest` does."""
    keyring = manifest.keyring(node.identity)
    incoming = node._incoming
    assert incoming is not None
    node.manifest = manifest
    incoming.driver.adopt(manifest, keyring)
    incoming.adopt(manifest)
