"""What an executor does: read a range of positions, count the brokers' votes, make rows of it.

Bodies come from one broker and votes from all of them (`cell.subscribing.excerpt`). The node works
in a thread of its own, so that the next publications come while Spark takes the last ones. A range
ends where its partition says, or with a sentence: nothing is left out in silence.
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
from quorumcast.core.statements import Receipt
from quorumcast.pipeline.streams.lines import LINES, Line
from quorumcast.pipeline.streams.options import SourceOptions, Tamper
from quorumcast.pipeline.streams.rows import Assembler, Origin, Publication, check_columns

#: Rows of a record batch, more or less: publications are not split.
BATCH_ROWS = 65_536
BATCH_BYTES = 16 * 1024 * 1024
#: What is kept of a publication that does not fit the schema, beside its contents.
NONSENSE_BYTES = 1024
QUEUE = 4096
QUEUE_BYTES = 32 * 1024 * 1024
#: Publications that are taken at once while nothing is known of them.
FIRST_TAKEN = 16
#: Receipts that are waited for at the same time.
RECEIPTS = 64

_log = logging.getLogger("quorumcast.spark")


class Range(InputPartition):
    """Positions first … upto-1 of a channel."""

    def __init__(self, channel: str, first: int, upto: int, place: int) -> None:
        self.channel = channel
        self.first = first
        self.upto = upto
        #: Which one of those that are read side by side.
        self.place = place

    def __repr__(self) -> str:
        return f"Range({self.channel}: {self.first} to {self.upto - 1})"


def read_range(
    options: SourceOptions, schema: pa.Schema, wanted: Range
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as record batches that Spark takes as they are."""
    with LINES.borrow(options.access, 1 + wanted.place) as line:
        reading = Reading(line, options, schema, wanted)
        try:
            while publications := reading.take():
                batch = reading.assembler.assemble(publications)
                if batch.num_rows:
                    yield batch
        finally:
            reading.close()


class Reading:
    """One range on its way."""

    def __init__(
        self, line: Line, options: SourceOptions, schema: pa.Schema, wanted: Range
    ) -> None:
        self._line = line
        self._options = options
        self._wanted = wanted
        self._schema = schema
        #: What has come so far.
        self._rows = self._publications = 0
        #: Publications that do not fit the schema, since the last look, and how large they are.
        self._nonsense: list[Deliver] = []
        self._nonsense_bytes = 0
        #: Until when something must come.
        self._deadline = asyncio.Timeout(None)
        line.node.on_undecodable = self._on_nonsense
        self._subscription = line.thread.run(self._open())
        self.assembler = Assembler(wanted.channel, self._columns(), schema, options.where)

    async def _open(self) -> Subscription:
        wanted = self._wanted
        subscription = self._line.node.subscribe(
            wanted.channel,
            start=wanted.first,
            until=wanted.upto,
            queue=QUEUE,
            queue_bytes=QUEUE_BYTES,
            overflow="wait",
            # Whether it has expired by now must not decide what a range holds.
            expired=True,
        )
        try:
            await subscription.wait_joined(self._options.access.timeout_s)
        except TimeoutError:
            subscription.close()
            raise self._late() from None
        except BaseException:
            subscription.close()
            raise
        return subscription

    def take(self) -> list[Publication]:
        """The next publications, enough for a record batch; none at the end."""
        return self._line.thread.run(self._take())

    async def _take(self) -> list[Publication]:
        found: list[Publication] = []
        rows = size = 0
        while rows < BATCH_ROWS and size < BATCH_BYTES:
            ended = False
            items: list[Batch | Gap] = []
            try:
                async with asyncio.timeout(self._options.access.timeout_s) as self._deadline:
                    items = await self._subscription.take(self._room(BATCH_ROWS - rows))
                    ended = not items
            except TimeoutError:
                if not self._nonsense:
                    raise self._late() from None
            size += self._nonsense_bytes
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
        """How many publications make so many rows, by what they were like so far."""
        if not self._publications:
            return FIRST_TAKEN
        mean = self._rows / self._publications
        return max(1, min(QUEUE, int(rows / max(mean, 1))))

    def _genuine(self, batch: Batch) -> Publication:
        if batch.dissent and self._options.tamper is Tamper.FAIL:
            raise UsageError(
                f"{' and '.join(batch.dissent)} said otherwise of position {batch.position} of "
                f"{batch.channel!r} than {len(batch.votes)} others: find out why with 'quorumcast "
                "doctor', or set failOnTamper to 'warn'; the vote keeps wrong rows out either way"
            )
        origin = Origin(
            batch.publisher,
            batch.number,
            batch.position or 0,
            batch.published_us,
            len(batch.votes),
            batch.dissent,
        )
        return Publication(origin, batch.data)

    def _on_nonsense(self, item: Deliver) -> None:
        """Something came, though nothing that the subscription gives us; no more than a batch."""
        kept = item.body if self._options.tamper is Tamper.QUARANTINE else b""
        self._nonsense.append(msgspec.structs.replace(item, body=kept))
        self._nonsense_bytes += NONSENSE_BYTES + len(kept)
        patience_s = self._options.access.timeout_s if self._nonsense_bytes < BATCH_BYTES else 0
        self._deadline.reschedule(asyncio.get_running_loop().time() + patience_s)

    def _quarantined(self) -> list[Publication]:
        """What is to be kept of contents that do not fit the channel's schema."""
        nonsense, self._nonsense, self._nonsense_bytes = self._nonsense, [], 0
        if nonsense:
            self._columns()  # or it is ours that is out of date
        found: list[Publication] = []
        for item in nonsense:
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
            f"positions {gap.first} to {gap.upto} of {self._wanted.channel!r} are gone: too few "
            "brokers still hold them"
        )
        if self._options.fail_on_data_loss:
            raise UsageError(
                f"{what}; have the channel retain more, read sooner, and set failOnDataLoss to "
                "'false' to go on without them"
            )
        _log.warning("%s; failOnDataLoss is 'false', so the query goes on without them", what)

    async def _prove(self, batches: list[Batch], taken: list[Publication]) -> None:
        receipts: list[Receipt] = []
        for start in range(0, len(batches), RECEIPTS):
            part = batches[start : start + RECEIPTS]
            receipts += await asyncio.gather(*(batch.receipt() for batch in part))
        for publication, receipt in zip(taken, receipts, strict=False):
            publication.receipt = msgspec.json.encode(receipt)

    def _columns(self) -> pa.Schema:
        """The channel's columns, as long as they are those that the query began with."""
        entry = self._line.node.manifest.channel(self._wanted.channel)
        return check_columns(self._wanted.channel, entry, self._options, self._schema)

    def _late(self) -> UsageError:
        node, wanted = self._line.node, self._wanted
        brokers = node.manifest.broker_ids
        away = [broker for broker in brokers if broker not in node.connected]
        reached = f"{len(brokers) - len(away)} of {len(brokers)} brokers can be reached"
        return UsageError(
            f"positions {wanted.first} to {wanted.upto - 1} of {wanted.channel!r} do not come: for "
            f"{self._options.access.timeout_s:g} s nothing moved, and {reached}"
            f"{' (not ' + ', '.join(away) + ')' if away else ''}; see to the brokers and start the "
            "query again, which goes on where it stopped"
        )

    def close(self) -> None:
        """Listen no more."""
        self._line.node.on_undecodable = None
        self._line.thread.call(self._subscription.close)
