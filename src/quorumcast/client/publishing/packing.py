"""Packing events into the contents of publications.

On a channel without a schema an event is a payload (`core.payloads`); on others it is a row of a
record batch (`core.publication`). The envelope (`core.envelope`) is written here, once per
publication, in the copy that is made anyway.

`core.publication` is imported by the functions that need it: a program that publishes one payload
does without Arrow, on whose import it would spend half of its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from quorumcast.core.envelope import URGENT, write_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_BODY_BYTES
from quorumcast.core.payloads import FEW, encode_payload, encode_payloads

if TYPE_CHECKING:
    import pyarrow as pa

#: Returns the time in microseconds since 1970.
Clock = Callable[[], int]


def wall_us() -> int:
    """The time by this machine's clock."""
    return time.time_ns() // 1000


class Packer:
    """Packs the events of one channel; `schema` is None if they are payloads."""

    __slots__ = ("_flags", "_schema", "kind", "now_us", "opaque", "valid_ms")

    def __init__(
        self,
        schema: pa.Schema | None,
        now_us: Clock = wall_us,
        *,
        valid_ms: int = 0,
        urgent: bool = False,
    ) -> None:
        self._schema = schema
        #: Clock for the publication time.
        self.now_us = now_us
        self._flags = URGENT if urgent else 0
        #: Validity of publications; 0 is forever.
        self.valid_ms = valid_ms
        #: Whether events are bytes (a channel without a schema).
        self.opaque = schema is None
        #: The type of events that `post` need not check with `admit`.
        self.kind: type = bytes if self.opaque else dict

    def adopt(self, schema: pa.Schema) -> None:
        """Adopt a schema with more columns."""
        self._schema = schema

    def admit(self, event: object) -> bytes | Mapping[str, object]:
        """The event in the form that `pack` takes; `UsageError` if its type does not fit."""
        if self._schema is None:
            if isinstance(event, bytes | bytearray | memoryview):
                return bytes(event)
            if isinstance(event, Mapping) and list(event) == ["payload"]:
                return self.admit(event["payload"])
            hint = ": encode text first" if isinstance(event, str) else ""
            raise UsageError(
                f"this channel takes bytes, not {type(event).__name__}{hint}; "
                "or give it a schema in the manifest and publish mappings"
            )
        if isinstance(event, Mapping):
            return event
        raise UsageError(
            f"this channel takes mappings with the columns ({', '.join(self._schema.names)}) "
            f"or record batches, not {type(event).__name__}"
        )

    def pack(self, events: Sequence[object]) -> bytes:
        """The contents of one publication with these events, as `admit` returned them."""
        stamp = write_envelope(self.now_us(), self.valid_ms, self._flags)
        if self._schema is None:
            if len(events) == 1:
                return encode_payload(events[0], stamp)  # type: ignore[arg-type]
            if len(events) <= FEW:
                return encode_payloads(events, stamp)  # type: ignore[arg-type]
        from quorumcast.core.publication import encode_batch

        return encode_batch(self.as_batch(events), stamp)

    def as_batch(self, events: Sequence[object]) -> pa.RecordBatch:
        """A record batch of these events, as `admit` returned them."""
        from quorumcast.core.publication import batch_of_payloads, batch_of_rows

        if self._schema is None:
            return batch_of_payloads(events)  # type: ignore[arg-type]
        return batch_of_rows(events, self._schema)  # type: ignore[arg-type]

    def pack_batch(self, batch: pa.RecordBatch) -> bytes:
        """The contents of one publication with the rows of a record batch."""
        from quorumcast.core.publication import PAYLOAD, conform, encode_batch

        stamp = write_envelope(self.now_us(), self.valid_ms, self._flags)
        schema = PAYLOAD if self._schema is None else self._schema
        return encode_batch(conform(batch, schema), stamp)


def too_long(size: int) -> UsageError:
    """The error for an event that is too long for a publication."""
    return UsageError(
        f"an event of {size:,} bytes is too long; a publication holds at most "
        f"{MAX_BODY_BYTES:,}: publish it in parts"
    )
