"""The source against a cell of real processes: what Spark would get of it, and what it is told."""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.pipeline.numbered import PATIENCE_S

from quorumcast import client
from quorumcast.client import Batch, Gap, Node
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.core.statements import Receipt
from quorumcast.crypto.evidence import Court
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.schema import arrow_schema
from quorumcast.pipeline.streams.connections import POOL, ConnectionPool
from quorumcast.pipeline.streams.datasource import QuorumcastDataSource
from quorumcast.pipeline.streams.options import Access
from quorumcast.pipeline.streams.planner import OffsetPlanner
from quorumcast.pipeline.streams.source import StreamReader
from quorumcast.testing.cluster import LocalCluster

TOTAL = Policy.named("total")
SHORT = msgspec.structs.replace(TOTAL, limits=Limits(retained_publications=8, window=8, segment=8))
COLUMNS = (("id", "int64"), ("site", "string"))
ORDERS = 30
PER_ORDER = 10
READINGS = (("n", "int64"), ("site", "string"), ("big", "uint64"), ("at", "timestamp[ms, UTC]"))
#: Publications of readings, and the rows of each.
SERIES, PER_SERIES = 8, 400


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody's vote is waited for: a broker may be slow on a busy machine."""
    monkeypatch.setattr(
        "quorumcast.cell.subscribing.subscriber.ALL_VOTES_MS", int(1000 * PATIENCE_S)
    )


@pytest.fixture(scope="module")
def cell() -> Iterator[LocalCluster]:
    channels: dict[str, str | Policy | ChannelEntry] = {
        "orders": ChannelEntry(Channel("orders"), TOTAL, schema=COLUMNS),
        "lies": ChannelEntry(Channel("lies"), TOTAL, schema=COLUMNS),
        "readings": ChannelEntry(Channel("readings"), TOTAL, schema=READINGS),
        "changing": ChannelEntry(Channel("changing"), TOTAL, schema=COLUMNS),
        "short": SHORT,
        "brief": ChannelEntry(Channel("brief"), SHORT, schema=COLUMNS),
        "plant/1": "total-crash",
        "plant/2": "total",
        "few": "total",
        "nonsense": "total",
        "empty": "total",
        "behind": "total",
    }
    with LocalCluster(clients=("alice", "spark"), channels=channels) as cluster:
        cluster.wait_for_links()
        tables = [table(first, PER_ORDER) for first in range(0, ORDERS * PER_ORDER, PER_ORDER)]
        publish(cluster, "orders", tables)
        publish(cluster, "readings", [series(number) for number in range(SERIES)])
        yield cluster
        POOL.close()


def table(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    rows = [{"id": number, "site": f"site-{number % 3}"} for number in ids]
    return pa.RecordBatch.from_pylist(
        rows, pa.schema([pa.field("id", pa.int64()), pa.field("site", pa.string())])
    )


def series(number: int) -> pa.RecordBatch:
    """The rows of one publication; of each hundred nine are of sites below 009."""
    ns = range(number * PER_SERIES, (number + 1) * PER_SERIES)
    columns = {
        "n": list(ns),
        "site": [f"site {n % 100:03} of publication {number}" for n in ns],
        "big": [2**64 - 1 - n for n in ns],
        "at": [datetime.fromtimestamp(n, UTC) for n in ns],
    }
    return pa.RecordBatch.from_pydict(columns, arrow_schema(READINGS))


def publish(
    cell: LocalCluster, channel: str, publications: Sequence[pa.RecordBatch | bytes]
) -> None:
    """Each as a publication of its own, until every broker has it."""

    async def main() -> None:
        async with alice(cell) as node, node.publisher(channel, batching=False) as publisher:
            for publication in publications:
                await publisher.publish(publication)

    client.run(main())
    cell.wait_executed()


@asynccontextmanager
async def alice(cell: LocalCluster) -> AsyncIterator[Node]:
    """Who publishes."""
    identity = cell.identity_path("alice")
    async with await client.connect(cell.manifest_path, identity, timeout_s=PATIENCE_S) as node:
        yield node


def reader(cell: LocalCluster, **said: str) -> StreamReader:
    """As Spark makes it on the driver."""
    usual = {"identity": "spark", "partitions": "2", "timeout": str(PATIENCE_S)}
    options = {"manifest": str(cell.directory), **usual, **said}
    source = QuorumcastDataSource({name.lower(): value for name, value in options.items()})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def rows(
    source: StreamReader, start: dict[str, int], end: dict[str, int]
) -> list[dict[str, object]]:
    """What executors make of a micro-batch."""
    parts = source.partitions(start, end)
    found = [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["_channel"], row["_position"], row["_index"]))


def begun(source: StreamReader) -> dict[str, int]:
    """Where a new query is after its first micro-batch, which holds nothing."""
    start = source.initialOffset()
    assert source.latestOffset(start, source.getDefaultReadLimit()) == start
    assert source.partitions(start, start) == []
    return start


def everything(cell: LocalCluster, channel: str, **said: str) -> list[dict[str, object]]:
    source = reader(cell, channel=channel, **said)
    try:
        start = begun(source)
        return rows(source, start, source.latestOffset(start, ReadAllAvailable()))
    finally:
        source.stop()


# ----------------------------------------------------------------------- what is read


def test_source_reads_what_was_published_with_the_votes_of_enough_brokers(
    cell: LocalCluster,
) -> None:
    found = everything(cell, "orders")
    assert [row["id"] for row in found] == list(range(ORDERS * PER_ORDER))
    assert {row["_publisher"] for row in found} == {"alice"}
    assert [(row["_position"], row["_index"]) for row in found] == [
        (position, index) for position in range(1, ORDERS + 1) for index in range(PER_ORDER)
    ]
    assert {row["_votes"] for row in found} == {4}
    assert not any(row["_dissent"] for row in found)


def test_source_offsets_are_the_next_positions_and_a_range_can_be_read_again(
    cell: LocalCluster,
) -> None:
    source = reader(cell, channels="plant/2,plant/1")
    start = begun(source)
    assert json.dumps(start) == '{"plant/1": 1, "plant/2": 1}'
    publish(cell, "plant/1", [b"a", b"b"])
    publish(cell, "plant/2", [b"c"])
    end = source.latestOffset(start, ReadAllAvailable())
    assert json.dumps(end) == '{"plant/1": 3, "plant/2": 2}'
    first = rows(source, start, end)
    assert [row["payload"] for row in first] == [b"a", b"b", b"c"]
    assert rows(source, start, end) == first
    assert source.latestOffset(end, ReadAllAvailable()) == end == source.reportLatestOffset()
    assert source.partitions(end, end) == []
    source.stop()


def test_source_first_micro_batch_that_runs_again_is_where_it_was(cell: LocalCluster) -> None:
    publish(cell, "few", [b"1", b"2"])
    start = begun(reader(cell, channel="few", startingOffsets="latest"))
    publish(cell, "few", [b"3"])
    again = reader(cell, channel="few", startingOffsets="latest")
    # Spark has noted where the micro-batch ended, not where it began, and asks for that anew.
    assert again.partitions(again.initialOffset(), start) == []
    end = again.latestOffset(start, ReadAllAvailable())
    assert [row["payload"] for row in rows(again, start, end)] == [b"3"]
    again.stop()


def test_source_of_an_empty_channel_has_nothing_to_read(cell: LocalCluster) -> None:
    assert everything(cell, "empty") == []


def test_source_begins_where_it_is_told_to(cell: LocalCluster) -> None:
    assert everything(cell, "orders", startingOffsets="latest") == []
    found = everything(cell, "orders", startingOffsets='{"orders": 30}')
    assert [row["id"] for row in found] == list(range(290, 300))
    times = [row["_published_at"] for row in everything(cell, "orders") if row["_index"] == 0]
    start = times[20]
    assert isinstance(start, datetime)
    later = everything(cell, "orders", startingOffsets=start.isoformat())
    assert later[0]["_position"] == 1 + times.index(start)
    never = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert everything(cell, "orders", startingOffsets=never) == []


def test_source_beginning_that_does_not_exist_is_refused(cell: LocalCluster) -> None:
    source = reader(cell, channel="orders", startingOffsets='{"orders": 32}')
    with pytest.raises(UsageError, match="says 32 for 'orders', which has positions up to 30"):
        source.initialOffset()
    source.stop()


def test_source_takes_as_many_publications_as_make_the_events_that_are_allowed(
    cell: LocalCluster,
) -> None:
    source = reader(cell, channel="orders", maxEventsPerTrigger="70")
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(70)
    source.prepareForTriggerAvailableNow()
    offsets = [begun(source)]
    while (following := source.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(following)
    assert [offset["orders"] for offset in offsets] == [1, 8, 15, 22, 29, 31]
    source.stop()


def test_source_reads_only_the_rows_that_are_wanted(cell: LocalCluster) -> None:
    found = everything(cell, "orders", where="site = 'site-1' and id < 10")
    assert [row["id"] for row in found] == [1, 4, 7]


NINE_PERCENT = "site < 'site 009'"
SELECTIONS: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    (NINE_PERCENT, lambda row: row["n"] % 100 < 9),
    ("n = 7", lambda row: row["n"] == 7),
    # More than half of some publications, nothing of others.
    ("n >= 500", lambda row: row["n"] >= 500),
    ("site = 'site 001'", lambda row: False),
    ("big >= 18446744073709551613", lambda row: row["n"] <= 2),
    ("at < timestamp '1970-01-01T00:00:02.0005Z'", lambda row: row["n"] <= 2),
    # Brokers know a part of the columns.
    ("n < 900 and _index in (3, 30, 300)", lambda r: r["n"] < 900 and r["_index"] in (3, 30, 300)),
    (
        "n = 1 and _position = 1 or n in (2, 450) and not _position = 1",
        lambda row: row["n"] in (1, 450),
    ),
    ("n < 5 or _position = 8", lambda row: row["n"] < 5 or row["_position"] == 8),
)


def readings(cell: LocalCluster, **said: str) -> tuple[list[dict[str, object]], int]:
    """The rows of all readings, and the bytes that came from brokers for them."""
    before = received()
    source = reader(cell, channel="readings", partitions="1", **said)
    found = rows(source, {"readings": 1}, {"readings": SERIES + 1})
    return found, received() - before


def received() -> int:
    """The bytes that the idle nodes of this process have received."""
    idle = [pooled for nodes in POOL._idle.values() for pooled in nodes]
    return sum(pooled.node.telemetry.bytes_in for pooled in idle)


@pytest.fixture
def lasting_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is used again for the next range."""
    monkeypatch.setattr("quorumcast.pipeline.streams.connections.IDLE_S", 10 * PATIENCE_S)


@pytest.mark.usefixtures("lasting_nodes")
def test_source_gets_matching_rows_from_brokers_as_if_it_had_read_all_and_filtered(
    cell: LocalCluster,
) -> None:
    readings(cell)  # connects
    whole, all_bytes = readings(cell)
    assert len(whole) == SERIES * PER_SERIES
    for where, wanted in SELECTIONS:
        found, some_bytes = readings(cell, where=where)
        assert found == [row for row in whole if wanted(row)], where
        if where == NINE_PERCENT:
            print(f"{some_bytes / all_bytes:.1%} of the bytes for {len(found)} rows")
            assert some_bytes <= 0.15 * all_bytes


def test_source_gets_every_matching_row_although_a_broker_omits_some(cell: LocalCluster) -> None:
    whole, _ = readings(cell)
    cell.make_lie("broker-3", "omit-rows")
    try:
        found, _ = readings(cell, where="n < 25 or n = 2000")
        with pytest.raises(UsageError, match="broker-3 said otherwise of position 1 of 'readings'"):
            readings(cell, where="n < 25", failOnTamper="fail")
        cell.make_honest("broker-3")
        # It claims that rows match where none does, so that no row names it.
        cell.make_lie("broker-3", "pad-rows")
        assert readings(cell, where="n < 0")[0] == []
        with pytest.raises(UsageError, match="broker-3 said otherwise of position"):
            readings(cell, where="n < 0", failOnTamper="fail")
    finally:
        cell.make_honest("broker-3")
    disputed = [row for row in whole if row["n"] in (*range(25), 2000)]
    assert found == [{**row, "_votes": 3, "_dissent": ["broker-3"]} for row in disputed]


def test_source_that_finds_nothing_waits_as_long_as_brokers_pass_publications_over(
    cell: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = iter([None, 3, 3, 5, 5, 5])

    async def late(subscription: Subscription, most: int) -> list[Batch | Gap]:
        raise TimeoutError

    monkeypatch.setattr(Subscription, "take", late)
    monkeypatch.setattr(Subscription, "position", property(lambda _: next(positions)))
    with pytest.raises(UsageError, match="positions 1 to 8 of 'readings' do not come"):
        readings(cell, where="n < 0")
    assert list(positions) == []


def test_source_pattern_takes_up_channels_from_their_beginning(cell: LocalCluster) -> None:
    source = reader(cell, pattern="plant/*")
    both = begun(source)
    one = {"plant/1": both["plant/1"]}
    grown = source.latestOffset(one, ReadAllAvailable())
    assert grown["plant/2"] == both["plant/2"]
    assert rows(source, one, grown) == [
        row
        for row in everything(cell, "plant/1")
        if row["_position"] >= one["plant/1"]  # type: ignore[operator]
    ]
    source.stop()


def test_source_receipt_convinces_a_third_party(cell: LocalCluster) -> None:
    first = everything(cell, "orders", receipts="true", where="id < 15")
    receipts = [row["_receipt"] for row in first if row["_receipt"] is not None]
    assert [row["_index"] for row in first if row["_receipt"] is not None] == [0, 0]
    for text in receipts:
        assert isinstance(text, bytes)
        receipt = msgspec.json.decode(text, type=Receipt)
        m = cell.manifest
        court = Court(m.cell, m.broker_ids, m.quorums, m.keys, m.hash)
        assert court.why_receipt_fails(receipt, 2) is None


# ------------------------------------------------------------------- what goes wrong


def test_source_liar_changes_no_row_and_is_named(cell: LocalCluster) -> None:
    publish(cell, "lies", [table(0, 5), table(5, 5)])
    cell.make_lie("broker-2", "alter", victims=["contents"])
    try:
        found = everything(cell, "lies")
        with pytest.raises(UsageError, match="broker-2 said otherwise of position"):
            everything(cell, "lies", failOnTamper="fail")
    finally:
        cell.make_honest("broker-2")
    assert [row["id"] for row in found] == list(range(10))
    assert {name for row in found for name in row["_dissent"]} == {"broker-2"}  # type: ignore[attr-defined]


def test_source_nonsense_of_a_publisher_is_left_out_kept_or_refused(cell: LocalCluster) -> None:
    async def lie() -> None:
        async with alice(cell) as node, node.publisher("lies") as publisher:
            await publisher.publish(table(10, 1))
            outgoing = node._outgoing
            assert outgoing is not None
            outgoing.submit(Channel("lies"), (b"nonsense",))
            await publisher.publish(table(11, 1))

    client.run(lie())
    cell.wait_executed()
    assert [row["id"] for row in everything(cell, "lies", where="id >= 10")] == [10, 11]
    kept = everything(cell, "lies", failOnTamper="quarantine", where="id >= 10")
    assert [(row["id"], row["_raw"]) for row in kept] == [
        (10, None),
        (None, b"nonsense"),
        (11, None),
    ]
    with pytest.raises(UsageError, match=r"'alice' published contents at position .* do not fit"):
        everything(cell, "lies", failOnTamper="fail")


def test_source_nonsense_fills_no_more_than_a_batch(
    cell: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lie() -> None:
        async with alice(cell) as node, node.publisher("nonsense") as publisher:
            await publisher.publish(b"sense")
            outgoing = node._outgoing
            assert outgoing is not None
            for number in range(40):
                outgoing.submit(Channel("nonsense"), (bytes([number]) * 5000,))
            await publisher.publish(b"sense again")

    client.run(lie())
    cell.wait_executed()
    monkeypatch.setattr("quorumcast.pipeline.streams.reading.BATCH_BYTES", 50_000)
    monkeypatch.setattr("quorumcast.pipeline.streams.reading.QUEUE_BYTES", 20_000)
    monkeypatch.setattr("quorumcast.cell.subscribing.excerpt.SPAN_BYTES", 20_000)
    monkeypatch.setattr("quorumcast.cell.subscribing.excerpt.FIRST_SPAN", 4)
    source = reader(cell, channel="nonsense", partitions="1", failOnTamper="quarantine")
    start = begun(source)
    (part,) = source.partitions(start, source.latestOffset(start, ReadAllAvailable()))
    batches = list(source.read(part))
    source.stop()
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["payload"] or row["_raw"] for row in found] == [
        b"sense",
        *(bytes([number]) * 5000 for number in range(40)),
        b"sense again",
    ]
    # A batch, and what was on its way when it was full; all of it is more than 200,000.
    assert max(batch.nbytes for batch in batches) < 150_000


def test_line_that_nobody_uses_gives_way_to_whoever_waits_for_its_seat(
    cell: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumcast.pipeline.streams.connections.IDLE_S", 10 * PATIENCE_S)
    access = Access(
        manifest=str(cell.manifest_path),
        identity=str(cell.identity_path("spark")),
        seats=(20, 21),
        timeout_s=PATIENCE_S,
    )
    ours, others = ConnectionPool(), ConnectionPool()
    with ours.borrow(access), ours.borrow(access):
        pass
    # Each process has lines of its own.
    with others.borrow(access):
        pass
    ours.close()
    others.close()


def test_source_what_is_not_retained_any_more_fails_or_is_passed_over(
    cell: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    publish(cell, "short", [bytes([number]) for number in range(1, 21)])
    said = {"startingOffsets": '{"short": 5}', "partitions": "1"}
    told = (
        r"positions 5 to 12 of 'short' are gone: channel short keeps 8 publications.* quorumcast "
        r"channel change short --retain 1GB; set failOnDataLoss"
    )
    with pytest.raises(UsageError, match=told):
        everything(cell, "short", **said)
    found = everything(cell, "short", failOnDataLoss="false", **said)
    assert [row["payload"] for row in found] == [bytes([number]) for number in range(13, 21)]
    caplog.clear()
    assert [row["_position"] for row in everything(cell, "short")] == list(range(13, 21))
    (logged,) = caplog.messages
    assert logged == (
        "positions 1 to 12 of 'short' are gone: channel short keeps 8 publications, 64 MiB, and "
        "may have kept less before; to keep more from now on: quorumcast channel change short "
        "--retain 1GB; the query starts with position 13"
    )


def test_source_that_finds_nothing_says_what_is_not_retained_any_more(cell: LocalCluster) -> None:
    publish(cell, "brief", [table(first, PER_ORDER) for first in range(0, 200, PER_ORDER)])
    said = {"startingOffsets": '{"brief": 5}', "partitions": "1"}
    with pytest.raises(UsageError, match="positions 5 to 12 of 'brief' are gone"):
        everything(cell, "brief", where="id < 0", **said)
    for where, ids in (("id < 0", []), ("id in (45, 125, 199)", [125, 199])):
        found = everything(cell, "brief", where=where, failOnDataLoss="false", **said)
        assert [row["id"] for row in found] == ids


def test_source_of_a_checkpoint_that_is_ahead_of_the_channel_fails_or_begins_anew(
    cell: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumcast.pipeline.streams.planner.CATCHUP_S", 0.1)
    source = reader(cell, channel="orders")
    with pytest.raises(UsageError, match=r"at position 5000 of 'orders', which has .* up to 30"):
        source.latestOffset({"orders": 5000}, ReadAllAvailable())
    source.stop()
    source = reader(
        cell, channel="orders", failOnDataLoss="false", startingOffsets="latest", seats="1-3"
    )
    source.prepareForTriggerAvailableNow()
    start = {"orders": 1}
    for limit in (ReadAllAvailable(), ReadMaxRows(70)):
        assert source.latestOffset({"orders": 5000}, limit) == start
    assert source.partitions({"orders": 5000}, start) == []
    end = source.latestOffset(start, ReadAllAvailable())
    assert [row["id"] for row in rows(source, start, end)] == list(range(ORDERS * PER_ORDER))
    source.stop()


def test_source_of_a_cell_that_lost_its_memory_under_a_query_begins_anew(
    cell: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumcast.pipeline.streams.planner.CATCHUP_S", 0.1)
    source = reader(cell, channel="orders", failOnDataLoss="false")
    start = begun(source)

    async def before(planner: OffsetPlanner, name: str) -> tuple[int, int]:
        return 1, 5000

    with monkeypatch.context() as patch:
        patch.setattr(OffsetPlanner, "_bounds_of", before)
        assert source.latestOffset(start, ReadAllAvailable()) == {"orders": 5000}
    assert source.latestOffset({"orders": 5000}, ReadAllAvailable()) == {"orders": 1}
    assert source.latestOffset({"orders": 1}, ReadAllAvailable()) == {"orders": 1 + ORDERS}
    source.stop()


def test_source_waits_for_brokers_that_are_behind_what_was_read(
    cell: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reader(cell, channel="behind")
    start = begun(source)
    assert source.latestOffset(start, ReadAllAvailable()) == {"behind": 1}
    asked: list[str] = []
    bounds = OffsetPlanner._bounds_of

    async def late(planner: OffsetPlanner, name: str) -> tuple[int, int]:
        asked.append(name)
        if len(asked) == 2:
            async with alice(cell) as node, node.publisher(name) as publisher:
                await publisher.publish(b"late")
        return await bounds(planner, name)

    monkeypatch.setattr(OffsetPlanner, "_bounds_of", late)
    assert source.latestOffset({"behind": 2}, ReadAllAvailable()) == {"behind": 2}
    source.stop()


def test_source_notices_that_a_channel_has_other_columns(cell: LocalCluster) -> None:
    publish(cell, "changing", [table(0, 2)])
    source = reader(cell, channel="changing")
    start = begun(source)
    end = source.latestOffset(start, ReadAllAvailable())
    entries = tuple(
        msgspec.structs.replace(entry, schema=(*COLUMNS, ("more", "string")))
        if entry.name == "changing"
        else entry
        for entry in cell.manifest.channels
    )
    cell.write_manifest(next_epoch(cell.manifest, channels=entries))
    cell.reload()
    cell.wait_for_epoch()
    with pytest.raises(UsageError, match=r"other columns .*more: string.*start the query again"):
        insist(lambda: source.latestOffset(start, ReadAllAvailable()))
    with pytest.raises(UsageError, match="start the query again"):
        insist(lambda: rows(source, start, end))
    source.stop()
    assert [row["more"] for row in everything(cell, "changing")] == [None, None]


def insist(ask: Callable[[], object]) -> NoReturn:
    """Ask until a node has taken the epoch: it hears of it when links are made anew."""
    while True:
        ask()
        time.sleep(0.02)


def test_source_of_a_cell_that_does_not_run_says_who_does_not_answer(tmp_path: Path) -> None:
    cell = LocalCluster(clients=("spark",), channels={"orders": "total"}, directory=tmp_path)
    source = reader(cell, channel="orders", timeout="0.2")
    with pytest.raises(UsageError, match=r"only 0 of 4 brokers can be reached.*broker-1"):
        source.initialOffset()
    cell.stop()


def test_source_schema_of_the_users_own_is_refused(cell: LocalCluster) -> None:
    source = QuorumcastDataSource(
        {"manifest": str(cell.directory), "identity": "spark", "channel": "empty"}
    )
    schema = source.schema().add("mine", "string")
    with pytest.raises(UsageError, match=r"leave '\.schema"):
        source.streamReader(schema)
