"""The items that an application receives: batches, their events, and gaps.

A `Batch` is one accepted publication, and an `Event` is one row of it. Votes, dissent and receipts
belong to the publication; its events share them.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from quorumcast.broadcast.application import Deliver
from quorumcast.core.envelope import Envelope, time_of
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Digest, NodeId, Stream, total_order
from quorumcast.core.statements import Receipt

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumcast.client.arguments import Where
    from quorumcast.client.selecting import Portion
    from quorumcast.matching.evaluate import Rows

Prover = Callable[[Deliver], Awaitable[Receipt]]


class GapReason(enum.Enum):
    """Why publications are missing."""

    #: Too few brokers still hold them.
    RETENTION = "retention"
    #: The queue of the subscription was full, and its overflow rule discards.
    OVERFLOW = "overflow"


class Gap(msgspec.Struct, frozen=True):
    """Publications `first` to `upto` of one stream that will not be delivered."""

    stream: Stream
    first: int
    upto: int
    reason: GapReason = GapReason.RETENTION
    #: What the channel keeps and how to keep more, in words; "" if that is not the reason.
    retention: str = ""

    @property
    def publisher(self) -> NodeId:
        """The publisher of the missing publications."""
        return self.stream.publisher

    def __str__(self) -> str:
        what = f"publications {self.first} to {self.upto} of {self.stream}"
        if self.stream == total_order(self.stream.channel):
            what = f"positions {self.first} to {self.upto} of {self.stream.channel}"
        if self.reason is GapReason.OVERFLOW:
            return (
                f"{what} were discarded because the subscription's queue was full; take faster, "
                "or subscribe with a longer queue or overflow='wait'"
            )
        if self.retention:
            return f"{what} are gone: {self.retention}"
        return (
            f"{what} will never come: too few brokers hold them, or their stream has ended; read "
            "sooner, or have the channel retain more"
        )


class GapError(Exception):
    """Raised by iteration in place of missing publications; iteration can be continued."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(str(gap))
        self.gap = gap


class BufferFull(Exception):
    """Raised by `post` if its buffer is full; `await ready()` and post again."""


class Batch:
    """One accepted publication.

    `data` is the record batch; `payloads` its only column if the channel has no schema. With a
    predicate it has the rows that match, and `rows` says which these are.
    """

    __slots__ = ("_data", "_delivered", "_envelope", "_payloads", "_portion", "_prove", "expired")

    def __init__(
        self,
        delivered: Deliver,
        envelope: Envelope,
        data: pa.RecordBatch | None,
        payloads: list[bytes] | None,
        prove: Prover,
        *,
        expired: bool = False,
        portion: Portion | None = None,
    ) -> None:
        #: Whether it had expired when it was taken; only with `subscribe(…, expired=True)`.
        self.expired = expired
        self._delivered = delivered
        self._envelope = envelope
        self._data = data
        self._payloads = payloads
        self._prove = prove
        #: What the subscription selected; None if it has no predicate.
        self._portion = portion

    @property
    def where(self) -> Where:
        """The predicate or predicates that selected its rows; None if there was none."""
        return None if self._portion is None else self._portion.where

    @property
    def rows(self) -> Rows | None:
        """The numbers of its rows in the publication, ascending; None if they are all there."""
        return None if self._portion is None else self._portion.rows

    @property
    def total(self) -> int:
        """How many rows the publication has."""
        return len(self) if self._portion is None else self._portion.total

    def place_of(self, index: int) -> int:
        """Where in `data` a row of the publication is."""
        return index if self.rows is None else int(self.rows.searchsorted(index))

    @property
    def data(self) -> pa.RecordBatch:
        """The events as an Arrow record batch of the channel's schema."""
        if self._data is None:
            from quorumcast.core.publication import batch_of_payloads

            self._data = batch_of_payloads(self._payloads or [])
        return self._data

    @property
    def payloads(self) -> list[bytes]:
        """The events of a channel without a schema."""
        if self._payloads is None:
            if self.data.schema.names != ["payload"]:
                raise UsageError(
                    f"channel {self.channel!r} has columns "
                    f"({', '.join(self.data.schema.names)}): read `row` or `data`"
                )
            self._payloads = self.data.column(0).to_pylist()
        return self._payloads

    @property
    def stream(self) -> Stream:
        """The stream that it belongs to."""
        return self._delivered.stream

    @property
    def channel(self) -> Channel:
        """The channel on which it was published."""
        return self._delivered.stream.channel

    @property
    def publisher(self) -> NodeId:
        """The publisher."""
        return self._delivered.stream.publisher

    @property
    def number(self) -> int:
        """Its number in the publisher's stream, from 1."""
        return self._delivered.number

    @property
    def position(self) -> int | None:
        """Its position in the channel's total order, if there is one."""
        return self._delivered.position or None

    @property
    def place(self) -> tuple[Stream, int]:
        """The stream and number by which a `Gap` names it: with total order, the position."""
        return self._delivered.place

    @property
    def published_us(self) -> int:
        """Time of publication by the publisher's clock, in microseconds since 1970."""
        return self._envelope.published_us

    @property
    def published_at(self) -> datetime:
        """Time of publication by the publisher's clock."""
        return time_of(self._envelope.published_us)

    @property
    def expires_at(self) -> datetime | None:
        """End of its validity by the publisher's clock; None is forever."""
        expires_us = self._envelope.expires_us
        return time_of(expires_us) if expires_us else None

    @property
    def urgent(self) -> bool:
        """Whether its publisher marked it as urgent."""
        return self._envelope.urgent

    @property
    def digest(self) -> Digest:
        """The digest of the publication."""
        return self._delivered.digest

    @property
    def votes(self) -> tuple[NodeId, ...]:
        """Brokers that had voted for it when it was accepted."""
        return self._delivered.votes

    @property
    def dissent(self) -> tuple[NodeId, ...]:
        """Brokers that had voted for other contents when it was accepted."""
        return self._delivered.dissent

    @property
    def by_history(self) -> bool:
        """Whether it was accepted through a history, not by the fast path."""
        return self._delivered.by_history

    @property
    def contents(self) -> bytes:
        """The published bytes; `UsageError` if only some of the rows came."""
        if self._delivered.cut:
            raise UsageError(
                f"{len(self)} of the {self.total} rows of this publication came: read `data`, or "
                "get the whole publication with its receipt"
            )
        return self._delivered.body

    @property
    def size(self) -> int:
        """The length of what came of its contents."""
        return len(self._delivered.body)

    async def receipt(self) -> Receipt:
        """Signed statements that prove to a third party that the cell accepted it."""
        return await self._prove(self._delivered)

    def events(self) -> list[Event]:
        """Its events, one per row."""
        if self._payloads is not None or self.data.schema.names == ["payload"]:
            return [Event(self, i, payload) for i, payload in enumerate(self.payloads)]
        numbers = range(len(self)) if self.rows is None else self.rows.tolist()
        return [Event(self, index, None) for index in numbers]

    def __len__(self) -> int:
        return len(self._payloads) if self._payloads is not None else int(self.data.num_rows)

    def __repr__(self) -> str:
        events = (
            f"{len(self)} events" if self.rows is None else f"{len(self)} of {self.total} events"
        )
        return f"<Batch {self.stream} #{self.number}, {events}>"


# One is made per row, so it must be cheap.
class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One event: a row of an accepted publication."""

    batch: Batch
    index: int
    _payload: bytes | None

    @property
    def payload(self) -> bytes:
        """The bytes of an event on a channel without a schema."""
        return self._payload if self._payload is not None else self.batch.payloads[self.index]

    @property
    def row(self) -> dict[str, object]:
        """The event as a mapping from column to value."""
        row: dict[str, object] = self.batch.data.slice(
            self.batch.place_of(self.index), 1
        ).to_pylist()[0]
        return row

    @property
    def channel(self) -> Channel:
        """The channel on which it was published."""
        return self.batch.channel

    @property
    def publisher(self) -> NodeId:
        """The publisher."""
        return self.batch.publisher

    @property
    def number(self) -> int:
        """The number of its publication; `index` is its row there."""
        return self.batch.number

    @property
    def position(self) -> int | None:
        """The position of its publication in the channel's total order, if there is one."""
        return self.batch.position

    @property
    def published_at(self) -> datetime:
        """Time of its publication by the publisher's clock."""
        return self.batch.published_at

    @property
    def votes(self) -> tuple[NodeId, ...]:
        """Brokers that had voted for it when it was accepted."""
        return self.batch.votes

    @property
    def dissent(self) -> tuple[NodeId, ...]:
        """Brokers that had voted for other contents when it was accepted."""
        return self.batch.dissent

    async def receipt(self) -> Receipt:
        """Signed statements that prove to a third party that the cell accepted its publication."""
        return await self.batch.receipt()

    def __repr__(self) -> str:
        return f"<Event {self.batch.stream} #{self.number}.{self.index}>"
