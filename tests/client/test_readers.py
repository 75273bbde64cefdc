"""What a node asks brokers for on behalf of its subscriptions to one channel."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.client.test_times import in_a_loop
from tests.client.test_where import numbers, prices, publish, rows, taken, trades
from tests.runtime.world import until

from quorumcast.broadcast.application import Deliver, Join, Leave, Select
from quorumcast.client import Batch, Node, UsageError, readers
from quorumcast.client.arguments import Where
from quorumcast.client.readers import ChannelReaders
from quorumcast.client.selecting import bind
from quorumcast.client.subscription import Subscription
from quorumcast.core.ids import Channel
from quorumcast.core.limits import MAX_FILTER_TEXT
from quorumcast.manifest.manifest import ChannelOrigin
from quorumcast.manifest.policy import Policy
from quorumcast.matching.filter import Filter
from quorumcast.matching.indexing.filter_set import FilterSet
from quorumcast.testing import MemoryCell

Asked = list[Join | Select | Leave]


def watched(node: Node) -> Asked:
    """What the node tells its machine of subscriptions, from now on."""
    incoming = node._incoming
    assert incoming is not None
    asked: Asked = []
    feed = incoming.driver.feed

    def noted(event: Any) -> None:
        if isinstance(event, Join | Select | Leave):
            asked.append(event)
        feed(event)

    incoming.driver.feed = noted  # type: ignore[method-assign]
    return asked


@in_a_loop
async def test_changes_of_one_turn_are_asked_for_once() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        bob = await cell.connect("bob")
        async with bob.subscribe("trades", where="price = 0") as first:
            asked = watched(bob)
            others = [bob.subscribe("trades", where=f"price = {n}") for n in range(1, 20)]
            change = asyncio.create_task(first.change("price = 77"))
            others.pop().close()
            await asyncio.gather(change, *(one.wait_joined() for one in others))
            assert all(isinstance(one, Select) for one in asked)
            assert len(asked) <= 2
            assert sorted(asked[-1].where) == sorted(  # type: ignore[union-attr]
                [f"price = {n}" for n in (*range(1, 19), 77)]
            )


@in_a_loop
async def test_subscription_whose_rows_come_already_asks_for_nothing() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        bob = await cell.connect("bob")
        async with bob.subscribe("trades", where="price < 5") as inbox:
            asked = watched(bob)
            same = bob.subscribe("trades", where="5 > price")
            await same.wait_joined()
            same.close()
            await inbox.change("price < 5 AND price < 9")
            await inbox.change("NOT price >= 5")
            assert asked == []


@in_a_loop
async def test_everything_is_asked_for_while_one_subscription_wants_it() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        bob = await cell.connect("bob")
        async with bob.subscribe("trades", where="price < 5") as inbox:
            asked = watched(bob)
            async with bob.subscribe("trades"):
                await inbox.change("price < 7")
            await until(lambda: len(asked) == 2)
            assert [one.where for one in asked if isinstance(one, Select)] == [(), ("price <= 6",)]
        assert [type(one) for one in asked] == [Select, Select, Leave]


class Reader:
    """A subscription to a channel that carries on only some rows."""

    def __init__(self, where: Where) -> None:
        origin = ChannelOrigin("top", bytes(32), Channel("trades"), "price < 10")
        entry = replace(trades(), policy=Policy.named("relay"), origin=origin)
        self.where, self._filter = where, bind(entry, where)

    def filter(self, channel: Channel) -> Filter | None:
        return self._filter


def test_subscription_to_all_rows_that_are_carried_on_names_no_predicate() -> None:
    channel, first = Channel("trades"), cast(Subscription, Reader("price = 3"))
    present = ChannelReaders(channel, first)
    assert list(present.where) == ["price = 3"]
    everything = cast(Subscription, Reader(None))
    assert present.add(everything)
    assert present.select()
    assert not present.where
    assert not ChannelReaders(channel, everything).where


async def expect_their_rows(alice: Node, inboxes: Sequence[Subscription]) -> None:
    """The n-th subscription gets the row with the price n of ten, and no other."""
    for inbox in inboxes:
        await inbox.wait_joined()
    await publish(alice, rows(*range(10)))
    for number, inbox in enumerate(inboxes):
        assert prices((await taken(inbox, 1))[0]) == [number]


@pytest.mark.parametrize(("name", "most"), [("MAX_PREDICATES", 3), ("MAX_FILTER_TEXT", 40)])
@in_a_loop
async def test_more_predicates_than_are_sent_get_their_rows_all_the_same(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, name, most)
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        inboxes = [bob.subscribe("trades", where=f"price = {n}") for n in range(5)]
        asked = watched(bob)
        await expect_their_rows(alice, inboxes)
        assert [one.where for one in asked if isinstance(one, Select)] == [()]


@in_a_loop
async def test_more_text_than_brokers_take_gets_its_rows_all_the_same() -> None:
    """Brokers read 65,536 characters of predicates of a node on a channel."""
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        far = ", ".join(str(number) for number in range(1_000_000, 1_001_500))
        texts = [f"price IN ({number}, {number + 100}, {far})" for number in range(6)]
        assert sum(map(len, texts)) > MAX_FILTER_TEXT
        inboxes = [bob.subscribe("trades", where=text) for text in texts]
        await expect_their_rows(alice, inboxes)


@in_a_loop
async def test_many_subscriptions_get_their_own_rows_and_so_does_one_with_many_predicates() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob, carol = [await cell.connect(name) for name in ("alice", "bob", "carol")]
        texts = [f"price = {number}" for number in range(0, 60, 3)]
        inboxes = [bob.subscribe("trades", where=text) for text in (*texts, texts[0])]
        async with carol.subscribe("trades", where=texts) as joined:
            for inbox in inboxes:
                await inbox.wait_joined()
            inboxes.pop(1).close()
            await publish(alice, rows(*range(100)), rows(*range(40, 140)))
            found = await taken(joined, 2)
            assert [prices(one) for one in found] == [[*range(0, 60, 3)], [*range(42, 60, 3)]]
            assert numbers(found[1]) == [*range(2, 20, 3)]
            assert found[0].where == texts
            for number, inbox in zip((0, *range(6, 60, 3), 0), inboxes, strict=True):
                first = (await taken(inbox, 1))[0]
                assert (prices(first), numbers(first)) == ([number], [number])
            await joined.change(["price < 3", "price = 5"])
            await publish(alice, rows(*range(20)))
            assert prices((await taken(joined, 1))[0]) == [0, 1, 2, 5]


@in_a_loop
async def test_rows_that_brokers_selected_for_one_predicate_are_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    match = FilterSet.match

    def noted(self: FilterSet, batch: pa.RecordBatch) -> Any:
        looked.append(batch.num_rows)
        return match(self, batch)

    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("trades", where="price < 3") as inbox:
            monkeypatch.setattr(FilterSet, "match", noted)
            await publish(alice, rows(*range(10)))
            (cut,) = await taken(inbox, 1)
            assert (prices(cut), numbers(cut), cut.total) == ([0, 1, 2], [0, 1, 2], 10)
            assert 3 not in looked  # brokers of this process look at 10 rows
            await publish(alice, rows(1, 2, 9))
            assert prices((await taken(inbox, 1))[0]) == [1, 2]
            second = bob.subscribe("trades", where="price < 2")
            await second.wait_joined()
            looked.clear()
            await publish(alice, rows(*range(10)))
            assert prices((await taken(second, 1))[0]) == [0, 1]
            assert prices((await taken(inbox, 1))[0]) == [0, 1, 2]
            assert 3 in looked


@pytest.mark.parametrize("where", [[], 3, ["price < 5", 3], b"price < 5"])
@in_a_loop
async def test_what_is_no_list_of_predicates_is_refused(where: Any) -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match="give a text such as"):
            bob.subscribe("trades", where=where)


@in_a_loop
async def test_subscription_that_is_closed_before_it_is_asked_for_leaves_nothing() -> None:
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        first = bob.subscribe("trades", where="price < 5")
        await first.wait_joined()
        asked = watched(bob)
        change = asyncio.create_task(first.change("price > 6"))
        await asyncio.sleep(0)
        second = bob.subscribe("trades", where="price > 5")
        first.close()
        second.close()
        await change
        assert [type(one) for one in asked] == [Leave]
        async with bob.subscribe("trades", where="price > 8") as inbox:
            await publish(alice, rows(*range(10)))
            assert prices((await taken(inbox, 1))[0]) == [9]


@in_a_loop
async def test_subscription_gets_no_part_of_what_was_not_asked_for() -> None:
    """Between `subscribe` and the next turn of the loop the others' rows are still delivered."""
    async with MemoryCell(channels={"trades": trades()}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("trades", where="price = 0") as first:
            incoming = bob._incoming
            assert incoming is not None
            delivered: list[Any] = []
            deliver = incoming._on_deliver
            second: list[Any] = []

            def noted(effect: Any) -> None:
                if not second:  # as in a handler of a suspicion, among the effects of one event
                    second.append(bob.subscribe("trades", where="price < 2"))
                    bob.subscribe("trades", where="price = 0")
                delivered.append(effect)
                deliver(effect)

            incoming.driver._table[Deliver] = noted
            await publish(alice, rows(*range(10)))
            await until(lambda: bool(delivered))
            await second[0].wait_joined()
            await publish(alice, rows(*range(10)))
            await taken(first, 2)
            found = await taken(second[0], 1)
            assert [prices(one) for one in found] == [[0, 1]]


TESTS: dict[Where, Callable[[int], bool]] = {
    None: lambda price: True,
    "price = 3": lambda price: price == 3,
    "price < 5": lambda price: price < 5,
    "price BETWEEN 4 AND 8": lambda price: 4 <= price <= 8,
    "NOT price = 7": lambda price: price != 7,
    "price > 100": lambda price: False,
}


class Reading:
    """A subscription, and the predicate that it has had since a publication."""

    def __init__(self, inbox: Subscription, first: int, where: Where) -> None:
        self.inbox = inbox
        self.first = first
        self.where = where
        self.got: list[Batch] = []

    async def read(self, last: int) -> None:
        """Take everything up to a number."""
        while not self.got or self.got[-1].number < last:
            self.got += await taken(self.inbox, 1)


@pytest.mark.parametrize("seed", range(7))
@in_a_loop
async def test_subscriptions_that_change_at_random_get_exactly_their_rows(seed: int) -> None:
    """Beside a liar, and with short queues: each publication by one predicate, none left out."""
    draw = random.Random(seed)
    policy = ("ab", "ab+history", "brb", "direct", "direct-crash", "total", "total-crash")[seed]
    async with MemoryCell(channels={"trades": trades(policy)}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        if not policy.endswith("crash"):
            cell.make_lie("broker-2", "alter")
        sent: list[list[int]] = []
        found: list[Reading] = []

        async def add() -> None:
            queue = draw.choice([2, 4096])
            inbox = bob.subscribe("trades", where=draw.choice([*TESTS]), queue=queue)
            await inbox.wait_joined()
            found.append(Reading(inbox, len(sent), inbox.where))

        async with alice.publisher("trades", batching=False) as outbox:
            for _ in range(40):
                action = draw.random()
                if action < 0.7:
                    sent.append([draw.randrange(10) for _ in range(draw.choice([1, 4, 30]))])
                    outbox.post_batch(rows(*sent[-1]))
                elif action < 0.8 or not found:
                    await add()
                elif action < 0.85:
                    found.pop(0).inbox.close()
                else:
                    changed = draw.choice(found)
                    changed.first = len(sent)
                    changed.where = draw.choice([*TESTS])
                    await changed.inbox.change(changed.where)
                await asyncio.sleep(0)
            await outbox.flush()
            await asyncio.gather(*(one.inbox.change(None) for one in found))
            sent.append([1])
            await outbox.publish(rows(1))
        # At the same time: while one queue is full, the node reads nothing for the others either.
        await asyncio.gather(*(one.read(len(sent)) for one in found))
        for one in found:
            for batch in one.got:
                matches = TESTS[batch.where]
                published = sent[batch.number - 1]
                places = [i for i, price in enumerate(published) if matches(price)]
                assert (numbers(batch) or list(range(batch.total))) == places
                assert prices(batch) == [published[i] for i in places]
            came = [batch.number for batch in one.got]
            assert came == sorted(set(came))
            matching = {
                number
                for number, published in enumerate(sent, 1)
                if number > one.first and any(map(TESTS[one.where], published))
            }
            assert matching <= set(came)
