"""A real tree of cells while its brokers fail and a reader changes what it asks for.

A root of four brokers, a child of three and a grandchild of three; the publisher is a client of the
root, the readers are clients of the grandchild. Brokers of all cells are killed, and the child as a
whole is stopped for 20 s, and killed. A third reader joins the child while it comes back.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from tests.runtime.test_tree import connect, wait_caught_up
from tests.runtime.world import run, until

import quorumcast
from quorumcast.client import Batch, Gap
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing.cluster import LocalCluster
from quorumcast.testing.tree import LocalTree

SHAPE = {"root": "", "cell-1": "root", "cell-1-1": "cell-1"}
COLUMNS = (("number", "int64"), ("symbol", "string"), ("price", "int64"))
SYMBOLS = ("CTT", "EDP", "GALP")
#: The predicates that a reader asks for in turn, and what they mean.
PREDICATES: dict[str | None, Callable[[dict[str, Any]], bool]] = {
    "price < 20": lambda row: row["price"] < 20,
    "symbol = 'EDP' AND price >= 60": lambda row: row["symbol"] == "EDP" and row["price"] >= 60,
    "price = 7": lambda row: row["price"] == 7,
    None: lambda row: True,
    "NOT symbol IN ('CTT', 'EDP')": lambda row: row["symbol"] not in ("CTT", "EDP"),
    "price > 1000": lambda row: False,
}
ROWS = 10
BATCHES_PER_S = 30.0
CHANGE_S = 1.0
#: For how long a broker of each cell is away.
KILLED_S = 3.0
#: For how long the child is.
AWAY_S = 20.0
#: After the last failure everything published must arrive within this time.
SETTLE_S = 90.0

Row = dict[str, Any]


class Asked(NamedTuple):
    """A predicate that a reader asked for."""

    where: str | None
    #: The last publication that had come when `change` was called: former predicates count there.
    after: int
    #: The last one published when `change` had returned: beyond it no former predicate counts.
    upto: int


class Reader:
    """A subscription of the grandchild, and what came."""

    def __init__(self, inbox: quorumcast.Subscription) -> None:
        self.inbox = inbox
        self.got: list[Batch | Gap] = []

    async def read(self) -> None:
        while items := await self.inbox.take():
            self.got += items

    @property
    def last(self) -> int:
        """The number of the last publication that came, or of which it was told."""
        if not self.got:
            return 0
        item = self.got[-1]
        return item.upto if isinstance(item, Gap) else item.number

    def gaps(self) -> list[Gap]:
        return [item for item in self.got if isinstance(item, Gap)]


class Walk:
    """One run: a publisher, readers, and failures."""

    def __init__(self, tree: LocalTree) -> None:
        self.tree = tree
        self.sent: list[list[Row]] = []
        #: What the changing reader asked for, in order.
        self.asked: list[Asked] = []
        self.ending = False
        #: The plain reader, the changing one, and the one that joins late, with their tasks.
        self.readers: list[Reader] = []
        self._reading: list[asyncio.Task[None]] = []
        #: The last publication when the child was killed, long before the late reader joined.
        self.past = 0
        #: Whether the changing reader has asked for everything in the end.
        self.wants_all = False

    async def run(self) -> None:
        leaf = self.tree["cell-1-1"]
        async with (
            await connect(self.tree["root"], "alice") as alice,
            await connect(leaf, "bob") as bob,
            await connect(leaf, "carol") as carol,
            await connect(self.tree["cell-1"], "dave") as dave,
        ):
            self.asked.append(Asked(None, 0, 0))
            for node in (bob, carol):
                await self._begin(node).inbox.wait_joined()
            async with asyncio.TaskGroup() as group:
                changing = group.create_task(self._change(self.readers[1]))
                publishing = group.create_task(self._publish(alice))
                await self._fail(dave)
                self.ending = True
                await asyncio.gather(changing, publishing)
                await asyncio.wait_for(
                    until(lambda: all(map(self._is_done, self.readers))), SETTLE_S
                )
            for task in self._reading:
                task.cancel()

    def _begin(self, node: quorumcast.Node) -> Reader:
        reader = Reader(node.subscribe("trades"))
        self.readers.append(reader)
        self._reading.append(asyncio.create_task(reader.read()))
        return reader

    def _is_done(self, reader: Reader) -> bool:
        return reader.last >= len(self.sent)

    async def _publish(self, node: quorumcast.Node) -> None:
        draw, schema = random.Random(1), self.tree["root"].manifest.channels[0].arrow_schema()
        async with node.publisher("trades", batching=False) as outbox:
            ended = False
            while not ended:
                ended = self.wants_all  # the last publication comes to both readers
                rows = [
                    {
                        "number": len(self.sent) + 1,
                        "symbol": draw.choice(SYMBOLS),
                        "price": draw.randrange(100),
                    }
                    for _ in range(ROWS)
                ]
                self.sent.append(rows)
                outbox.post_batch(pa.RecordBatch.from_pylist(rows, schema))
                await asyncio.sleep(1 / BATCHES_PER_S)
            await outbox.flush()

    async def _change(self, reader: Reader) -> None:
        for where in itertools.cycle(PREDICATES):
            await asyncio.sleep(CHANGE_S)
            if self.ending:
                break
            await self._ask(reader, where)
        await self._ask(reader, None)
        self.wants_all = True

    async def _ask(self, reader: Reader, where: str | None) -> None:
        after = reader.last
        await reader.inbox.change(where)
        self.asked.append(Asked(where, after, len(self.sent)))

    # -------------------------------------------------------------- failures

    async def _fail(self, late: quorumcast.Node) -> None:
        cells = list(self.tree.cells.values())
        child = self.tree["cell-1"]
        await asyncio.sleep(2 * CHANGE_S)
        await self._kill_and_restart(cells, "broker-1")
        for broker in child.brokers:
            child.pause(broker)
        await asyncio.sleep(AWAY_S)
        for broker in child.brokers:
            child.resume(broker)
        await self._kill_and_restart(cells, "broker-2")
        self.past = len(self.sent)
        for broker in child.brokers:
            child.kill(broker)
        await asyncio.sleep(AWAY_S)
        self._begin(late)  # it asks the brokers as soon as they are back
        await self._restart([child], *child.brokers)
        await self._kill_and_restart(cells, "broker-3")

    async def _kill_and_restart(self, cells: list[LocalCluster], broker: str) -> None:
        for cell in cells:
            cell.kill(broker)
        await asyncio.sleep(KILLED_S)
        await self._restart(cells, broker)

    async def _restart(self, cells: list[LocalCluster], *brokers: str) -> None:
        """Start brokers of all these cells again, and wait until they have caught up."""
        for cell in cells:
            for broker in brokers:
                await asyncio.to_thread(cell.start_broker, broker)
        for cell in cells:
            for broker in cell.brokers:
                if cell is not self.tree["root"]:
                    await asyncio.to_thread(wait_caught_up, cell, broker)


# ------------------------------------------------------------------- judging


def rows_of(batch: Batch) -> list[Row]:
    found: list[Row] = batch.data.to_pylist()
    return found


def judge_plain(sent: list[list[Row]], got: Sequence[Batch | Gap], expected: int = 1) -> None:
    """Everything came once, in order, as it was published, or was said to be missing."""
    for item in got:
        if isinstance(item, Gap):
            assert item.first == expected <= item.upto
            expected = item.upto + 1
            continue
        assert item.number == expected
        assert rows_of(item) == sent[expected - 1]
        expected += 1
    assert expected == len(sent) + 1


def judge_choosy(sent: list[list[Row]], asked: list[Asked], got: Sequence[Batch | Gap]) -> None:
    """Of each publication came what the predicate that was in force for it selects."""
    items = iter(got)
    item = next(items, None)
    at = 0
    for number, rows in enumerate(sent, 1):
        if isinstance(item, Gap) and item.first <= number <= item.upto:
            if number == item.upto:
                item = next(items, None)
            continue
        came = item if isinstance(item, Batch) and item.number == number else None
        while at + 1 < len(asked) and asked[at + 1].upto < number:
            at += 1
        while not selects(asked[at].where, rows, came):
            at += 1
            assert at < len(asked), f"publication {number} fits no predicate"
            assert asked[at].after < number, f"publication {number} fits only a later predicate"
        item = item if came is None else next(items, None)
    assert item is None


def selects(where: str | None, rows: list[Row], came: Batch | None) -> bool:
    """Whether a predicate selects what came of a publication."""
    wanted = [row for row in rows if PREDICATES[where](row)]
    if came is None:
        return not wanted
    return came.where == where and rows_of(came) == wanted != []


def published(*prices: list[int]) -> list[list[Row]]:
    return [
        [{"number": number, "symbol": "CTT", "price": price} for price in batch]
        for number, batch in enumerate(prices, 1)
    ]


class Came(Batch):
    """What a reader with a predicate got of a publication."""

    __slots__ = ("_rows", "_where")

    def __init__(self, rows: list[Row], where: str | None = None) -> None:
        self._rows = rows
        self._where = where

    @property
    def number(self) -> int:
        return int(self._rows[0]["number"])

    @property
    def where(self) -> str | None:
        return self._where

    @property
    def data(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(self._rows)


SENT = published([1, 30], [2], [30], [7, 40], [3])


def lost(first: int, upto: int) -> Gap:
    return Gap(Stream(Channel("trades"), NodeId("alice"), 1), first, upto)


def test_judge_of_a_plain_reader_takes_a_gap_and_nothing_else_for_what_is_missing() -> None:
    came: list[Batch | Gap] = [Came(rows) for rows in SENT]
    judge_plain(SENT, came)
    judge_plain(SENT, [*came[:1], lost(2, 4), *came[4:]])
    altered = Came(published([1, 31])[0])
    for wrong in (
        came[:4],  # the last one is missing
        [*came[:1], *came[2:]],
        [came[0], *came],  # again
        [came[1], came[0], *came[2:]],
        [altered, *came[1:]],
        [*came[:1], lost(2, 3), *came[4:]],
        [lost(1, 1), *came],
    ):
        with pytest.raises(AssertionError):
            judge_plain(SENT, wrong)


def test_judge_of_a_changing_reader_wants_the_rows_of_the_predicate_in_force() -> None:
    cheap, seven = "price < 20", "price = 7"
    asked = [Asked(cheap, 0, 0), Asked(seven, 1, 2), Asked(None, 3, 4)]
    first, second = Came(SENT[0][:1], cheap), Came(SENT[1], cheap)
    fourth, last = Came(SENT[3][:1], seven), Came(SENT[4])
    judge_choosy(SENT, asked, [first, second, fourth, last])
    # What is published while `change` waits follows the one or the other.
    judge_choosy(SENT, asked, [first, fourth, last])
    judge_choosy(SENT, asked, [first, second, lost(3, 4), last])
    judge_choosy(SENT, asked, [lost(1, 5)])
    for wrong in (
        [second, fourth, last],  # the first was published while `cheap` was asked for
        [first, second, last],
        [first, second, fourth],
        [Came(SENT[0], cheap), second, fourth, last],  # rows too many
        [first, second, Came(SENT[3][:1], cheap), last],  # by a former predicate
        [first, second, fourth, fourth, last],
        [first, second, fourth, Came(SENT[4], cheap)],
        [fourth, last],  # the first came before anything else was asked for
    ):
        with pytest.raises(AssertionError):
            judge_choosy(SENT, asked, wrong)


@pytest.mark.walk
@pytest.mark.runtime
@pytest.mark.parametrize("policy", ["ab+history", "total"])
def test_tree_loses_nothing_while_brokers_and_a_whole_child_fail(policy: str) -> None:
    entry = ChannelEntry(Channel("trades"), Policy.named(policy), schema=COLUMNS)
    with LocalTree(shape=SHAPE, channels={"trades": entry}) as tree:
        walk = Walk(tree)
        run(walk.run(), timeout_s=280)
    plain, choosy, late = walk.readers
    judge_plain(walk.sent, plain.got)
    judge_choosy(walk.sent, walk.asked, choosy.got)
    # Every cell retains more than was published meanwhile.
    assert plain.gaps() == choosy.gaps() == late.gaps() == []
    begins = late.got[0]
    assert isinstance(begins, Batch)
    assert begins.number > walk.past
    judge_plain(walk.sent, late.got, begins.number)
