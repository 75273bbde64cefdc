"""Predicates of subscriptions: what can be asked for, and what a subscription gets of what came.

Brokers send the rows that any subscription of the node wants, or the whole publication. Each
subscription selects its own rows of that: a `Portion`, which waits for the application.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

from quorumcast.broadcast.application import Deliver
from quorumcast.cell.filters import filter_of
from quorumcast.client.arguments import Where, check_where
from quorumcast.client.unpacking import unpack
from quorumcast.core.cuts import head_of
from quorumcast.core.envelope import ENVELOPE_BYTES, Envelope, read_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Stream
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.matching.cut import decode_cut
from quorumcast.matching.evaluate import Rows
from quorumcast.matching.filter import Filter
from quorumcast.matching.grammar import parse_text
from quorumcast.matching.normal_form import taken
from quorumcast.runtime.logs import note

#: What messages call the predicate.
WHO = "the predicate"
#: Names of channels that a warning has.
NAMED = 3


class Portion(msgspec.Struct, frozen=True, eq=False):
    """The rows of an accepted publication that match the predicate of a subscription."""

    delivered: Deliver
    data: pa.RecordBatch
    #: The numbers of the rows in the publication; None if they are all.
    rows: Rows | None
    #: Rows of the publication.
    total: int
    #: The predicate or predicates.
    where: Where

    @property
    def stream(self) -> Stream:
        """The stream of the publication."""
        return self.delivered.stream

    @property
    def place(self) -> tuple[Stream, int]:
        """The stream and number of the publication; with total order, the position."""
        return self.delivered.place

    @property
    def position(self) -> int:
        """Its position; 0 without total order."""
        return self.delivered.position

    @property
    def body(self) -> bytes:
        """What came: the publication, or a cut of it."""
        return self.delivered.body


#: What waits for an application.
Arrival: TypeAlias = Deliver | Portion


def delivery_of(arrival: Arrival) -> Deliver:
    """What the machine delivered."""
    return arrival.delivered if isinstance(arrival, Portion) else arrival


def contents_of(
    arrival: Arrival, schema: pa.Schema
) -> tuple[pa.RecordBatch | None, list[bytes] | None]:
    """The rows, or their payloads; neither if the contents violate the schema."""
    if isinstance(arrival, Portion):
        return arrival.data, None
    if arrival.cut:  # whose rows nobody has selected
        return None, None
    return unpack(arrival.body, schema) or (None, None)


def envelope_of(delivered: Deliver) -> Envelope | None:
    """The envelope of a publication; None if it makes no sense."""
    if delivered.cut:
        return read_envelope(head_of(delivered.body)[-ENVELOPE_BYTES:])
    return read_envelope(delivered.body)


class OpenedDelivery(msgspec.Struct, frozen=True, eq=False):
    """The rows that came of a publication."""

    data: pa.RecordBatch
    rows: Rows | None
    total: int


def open_delivery(delivered: Deliver, schema: pa.Schema) -> OpenedDelivery | None:
    """The rows that came; None if the contents violate the schema."""
    if delivered.cut:
        cut = decode_cut(delivered.body, schema, accepted=True)
        return None if cut is None else OpenedDelivery(cut.batch, cut.rows, cut.total)
    data, _ = unpack(delivered.body, schema) or (None, None)
    return None if data is None else OpenedDelivery(data, None, data.num_rows)


def portion_of(
    delivered: Deliver, opened: OpenedDelivery, places: Rows | None, where: Where
) -> Portion:
    """The rows at these places of what came; None for all of them."""
    data, rows = opened.data, opened.rows
    if places is not None and len(places) < data.num_rows:
        data = taken(data, places)
        rows = places.copy() if rows is None else rows[places]
    return Portion(delivered, data, rows, opened.total, where)


def all_that_came(delivered: Deliver, schema: pa.Schema) -> Arrival:
    """All rows of what came, as they wait for an application."""
    opened = open_delivery(delivered, schema) if delivered.cut else None
    return delivered if opened is None else portion_of(delivered, opened, None, None)


def bind(entry: ChannelEntry, where: Where) -> Filter | None:
    """What predicates ask of a channel; None for everything. Raises `UsageError`."""
    return filter_of(entry, check_where(where))


def check_any(entries: Sequence[ChannelEntry], where: Where) -> None:
    """Raise `UsageError` if predicates make no sense, or can be asked of none of these."""
    if where is None:
        return
    for text in check_where(where):
        parse_text(text, WHO)
    errors: list[UsageError] = []
    for entry in sorted(entries, key=lambda one: not one.schema):
        try:
            bind(entry, where)
            return
        except UsageError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def suiting(
    pattern: str, entries: Sequence[ChannelEntry], where: Where, left_out: set[Channel]
) -> list[ChannelEntry]:
    """Those of the channels of a pattern that a predicate can be asked of.

    Others may match the pattern and have other columns. It is logged once that they are left out.
    """
    suited: list[ChannelEntry] = []
    errors: dict[Channel, UsageError] = {}
    for entry in entries:
        try:
            bind(entry, where)
            suited.append(entry)
        except UsageError as error:
            if entry.name not in left_out:
                errors[entry.name] = error
    left_out.update(errors)
    if errors:
        which = ", ".join(map(repr, list(errors)[:NAMED]))
        if len(errors) > NAMED:
            which = f"{len(errors):,} channels, such as {which}"
        says = next(iter(errors.values()))
        note(f"{pattern!r} leaves out {which}: {says}", level=logging.WARNING)
    return suited


#: What each channel is asked for.
Filters: TypeAlias = Mapping[Channel, Filter | None]
