"""Reads a range of positions on an executor: counts the brokers' votes and returns rows.

One broker sends bodies, and all of them send votes (`cell.subscribing.excerpt`). The node runs in a
thread of its own, so that it fetches the next publications while Spark processes the last ones. A
range is read to its end or fails with a `UsageError`: nothing is skipped silently.

With the option `where` brokers send matching rows only, and vote for what matches. Nothing comes of
publications without such rows but that they are passed over, which counts as progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from quorumcast.broadcast.application import Deliver
from quorumcast.client.events import Batch, Gap
from quorumcast.client.subscription import Subscription
from quorumcast.core.envelope import read_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, total_order
from quorumcast.core.machine import Suspect, Suspicion
from quorumcast.core.statements import Receipt
from quorumcast.pipeline.streams.connections import POOL, PooledNode
from quorumcast.pipeline.streams.options import SourceOptions, Tamper
from quorumcast.pipeline.streams.rows import (
    Assembler,
    Origin,
    Publication,
    check_columns,
    wanted_rows,
)

#: Approximate size of a record batch; publications are not split.
BATCH_ROWS = 65_536
BATCH_BYTES = 16 * 1024 * 1024
#: Memory of a publication that does not fit the schema, without its contents.
UNDECODABLE_BYTES = 1024
QUEUE = 4096
QUEUE_BYTES = 32 * 1024 * 1024
#: Publications of the first read, when their size is unknown.
FIRST_TAKEN = 16
#: Receipts that are requested at the same time.
RECEIPTS = 64

_log = logging.getLogger("quorumcast.spark")


class Range(InputPartition):
    """Positions first … upto-1 of a channel."""

    def __init__(self, channel: str, first: int, upto: int, place: int) -> None:
        self.channel = channel
        self.first = first
        self.upto = upto
        #: The index among the ranges that are read in parallel.
        self.place = place

    def __repr__(self) -> str:
        return f"Range({self.channel}: {self.first} to {self.upto - 1})"


def read_range(
    options: SourceOptions, schema: pa.Schema, wanted: Range
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as record batches for Spark."""
    with POOL.borrow(options.access, 1 + wanted.place) as pooled:
        yield from read_with(pooled, options, schema, wanted)


def read_with(
    pooled: PooledNode, options: SourceOptions, schema: pa.Schema, wanted: Range
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, read with this node."""
    reading = Reading(pooled, options, schema, wanted)
    try:
        while publications := reading.take():
            batch = reading.assembler.assemble(publications)
            if batch.num_rows:
                yield batch
    finally:
        reading.close()


class Reading:
    """The reading of one range."""

    def __init__(
        self, pooled: PooledNode, options: SourceOptions, schema: pa.Schema, wanted: Range
    ) -> None:
        self._pooled = pooled
        self._options = options
        self._wanted = wanted
        self._schema = schema
        #: What brokers are asked for; None is everything.
        self._asked = self._asked_of_brokers()
        #: Rows and publications so far.
        self._rows = self._publications = 0
        #: New publications that do not fit the schema, and their size.
        self._undecodable: list[Deliver] = []
        self._undecodable_bytes = 0
        #: The deadline of the next publication.
        self._deadline = asyncio.Timeout(None)
        #: The first broker that was suspected of another vote, and on which position.
        self._disputed: tuple[str, int] | None = None
        pooled.node.on_undecodable = self._on_undecodable
        if options.tamper is Tamper.FAIL:
            pooled.node.on_suspect = self._on_suspect
        self._subscription = pooled.thread.run(self._open())
        self.assembler = Assembler(wanted.channel, self._columns(), schema, options.where)

    async def _open(self) -> Subscription:
        wanted = self._wanted
        subscription = self._pooled.node.subscribe(
            wanted.channel,
            start=wanted.first,
            until=wanted.upto,
            queue=QUEUE,
            queue_bytes=QUEUE_BYTES,
            overflow="wait",
            # A range must have the same rows whenever it is read, so expired ones are included.
            expired=True,
            where=self._asked,
        )
        try:
            await subscription.wait_joined(self._options.access.timeout_s)
        except TimeoutError:
            subscription.close()
            raise self._timeout_error() from None
        except BaseException:
            subscription.close()
            raise
        return subscription

    def take(self) -> list[Publication]:
        """Return the publications of the next record batch; none at the end."""
        return self._pooled.thread.run(self._take())

    async def _take(self) -> list[Publication]:
        found: list[Publication] = []
        rows = size = 0
        while rows < BATCH_ROWS and size < BATCH_BYTES:
            ended = False
            items: list[Batch | Gap] = []
            reached = self._subscription.position
            try:
                async with asyncio.timeout(self._options.access.timeout_s) as self._deadline:
                    items = await self._subscription.take(self._room(BATCH_ROWS - rows))
                    ended = not items
            except TimeoutError:
                if not self._undecodable and self._subscription.position == reached:
                    raise self._timeout_error() from None
            if self._disputed is not None:
                raise self._dissent_error(*self._disputed)
            size += self._undecodable_bytes
            taken = [self._genuine(item) for item in items if isinstance(item, Batch)]
            taken += self._quarantined()
            for item in items:
                if isinstance(item, Gap):
                    self._on_loss(item)
            if self._options.receipts:
                await self._prove([item for item in items if isinstance(item, Batch)], taken)
            came = sum(publication.rows for publication in taken)
            rows += came
            self._rows += came
            self._publications += len(taken)
            size += sum(item.size for item in items if isinstance(item, Batch))
            found += sorted(taken, key=lambda publication: publication.origin.position)
            if ended:
                break
        return found

    def _room(self, rows: int) -> int:
        """Return how many publications make this many rows, by their mean so far."""
        if not self._publications:
            return FIRST_TAKEN
        mean = self._rows / self._publications
        return max(1, min(QUEUE, int(rows / max(mean, 1))))

    def _on_suspect(self, effect: Suspect) -> None:
        """Note dissent on what does not match as well: no batch comes of that."""
        wanted = self._wanted
        if (
            self._disputed is None
            and effect.reason in (Suspicion.DISSENT, Suspicion.OMITS)
            and effect.stream == total_order(Channel(wanted.channel))
            and wanted.first <= effect.number < wanted.upto
        ):
            self._disputed = (effect.node, effect.number)

    def _dissent_error(self, who: str, position: int | None) -> UsageError:
        return UsageError(
            f"{who} said otherwise of position {position} of {self._wanted.channel!r} than the "
            "others: find out why with 'quorumcast doctor', or set failOnTamper to 'warn'; the "
            "vote keeps wrong rows out either way"
        )

    def _genuine(self, batch: Batch) -> Publication:
        if batch.dissent and self._options.tamper is Tamper.FAIL:
            raise self._dissent_error(" and ".join(batch.dissent), batch.position)
        origin = Origin(
            batch.publisher,
            batch.number,
            batch.position or 0,
            batch.published_us,
            len(batch.votes),
            batch.dissent,
        )
        return Publication(origin, batch.data, places=batch.rows)

    def _on_undecodable(self, item: Deliver) -> None:
        """Keep a publication that does not fit the schema; a full batch ends the wait."""
        kept = item.body if self._options.tamper is Tamper.QUARANTINE else b""
        self._undecodable.append(msgspec.structs.replace(item, body=kept))
        self._undecodable_bytes += UNDECODABLE_BYTES + len(kept)
        wait_s = self._options.access.timeout_s if self._undecodable_bytes < BATCH_BYTES else 0
        self._deadline.reschedule(asyncio.get_running_loop().time() + wait_s)

    def _quarantined(self) -> list[Publication]:
        """Return the publications that do not fit the schema, or fail, as the options say."""
        undecodable, self._undecodable, self._undecodable_bytes = self._undecodable, [], 0
        if undecodable:
            self._columns()  # raises if our schema is out of date
        found: list[Publication] = []
        for item in undecodable:
            what = (
                f"{item.stream.publisher!r} published contents at position {item.position} of "
                f"{self._wanted.channel!r} that do not fit the channel's schema"
            )
            if self._options.tamper is Tamper.FAIL:
                raise UsageError(
                    f"{what}: take away its right to publish, and set failOnTamper to 'quarantine' "
                    "to keep such contents in a column '_raw', or to 'warn' to leave them out"
                )
            if self._options.tamper is Tamper.WARN:
                _log.warning("%s: left out", what)
                continue
            envelope = read_envelope(item.body)
            published_us = 0 if envelope is None else envelope.published_us
            origin = Origin(
                item.stream.publisher,
                item.number,
                item.position,
                published_us,
                len(item.votes),
                item.dissent,
            )
            found.append(Publication(origin, None, item.body))
        return found

    def _on_loss(self, gap: Gap) -> None:
        what = (
            f"positions {gap.first} to {gap.upto} of {self._wanted.channel!r} are gone: "
            f"{gap.retention}"
        )
        if self._options.fail_on_data_loss:
            raise UsageError(f"{what}; set failOnDataLoss to 'false' to go on without them")
        _log.warning("%s; failOnDataLoss is 'false', so the query goes on without them", what)

    async def _prove(self, batches: list[Batch], taken: list[Publication]) -> None:
        receipts: list[Receipt] = []
        for start in range(0, len(batches), RECEIPTS):
            part = batches[start : start + RECEIPTS]
            receipts += await asyncio.gather(*(batch.receipt() for batch in part))
        for publication, receipt in zip(taken, receipts, strict=False):
            publication.receipt = msgspec.json.encode(receipt)

    def _columns(self) -> pa.Schema:
        """Return the columns of the channel; raise `UsageError` if they changed."""
        entry = self._pooled.node.manifest.channel(self._wanted.channel)
        return check_columns(self._wanted.channel, entry, self._options, self._schema)

    def _asked_of_brokers(self) -> str | None:
        self._columns()  # raises if our schema is out of date
        entry = self._pooled.node.manifest.channel(self._wanted.channel)
        where = wanted_rows(self._options.where, self._schema)
        return None if where is None or entry is None else where.asked_of(entry)

    def _timeout_error(self) -> UsageError:
        wanted = self._wanted
        return UsageError(
            f"positions {wanted.first} to {wanted.upto - 1} of {wanted.channel!r} do not come: for "
            f"{self._options.access.timeout_s:g} s nothing moved, and {self._pooled.reached}; see "
            "to the brokers and start the query again, which goes on where it stopped"
        )

    def close(self) -> None:
        """Close the subscription."""
        self._pooled.node.on_undecodable = self._pooled.node.on_suspect = None
        self._pooled.thread.call(self._subscription.close)
