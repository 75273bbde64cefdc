"""Encoding events as the contents of publications, with a fast path for single payloads.

The general path is `core.publication`: build a record batch and serialise it; parse a batch and
validate it. Each direction has a fixed cost of about 30 µs. In large batches the cost per event is
small; a publication of one event pays it in full. Therefore publications of one opaque payload have
a fast path. Their layout is constant: for a given payload length, only the payload bytes vary.
`Template` takes the constant bytes once from a batch that Arrow made. Writing joins them with the
payload; reading compares them and cuts the payload out. All other layouts take the general path.
`tests/client` compares the two paths.

The envelope (`core.envelope`) is written here, once per publication, in the copy that is made
anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from quorumcast.core.envelope import ENVELOPE_BYTES, URGENT, write_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_BODY_BYTES
from quorumcast.core.publication import (
    PAYLOAD,
    batch_of_payloads,
    batch_of_rows,
    conform,
    decode_batch,
    decode_older,
    encode_batch,
)

#: The longest payload with a template; longer ones take the general path.
MAX_TEMPLATE_BYTES = 4096

#: Returns the time in microseconds since 1970.
Clock = Callable[[], int]


def wall_us() -> int:
    """The time by this machine's clock."""
    return time.time_ns() // 1000


class Template:
    """The layout of a batch of one payload of one length."""

    __slots__ = ("after", "before", "size", "start", "stop")

    def __init__(self, length: int) -> None:
        marked = encode_batch(batch_of_payloads([b"\xa5" * length]))
        other = encode_batch(batch_of_payloads([b"\x5a" * length]))
        differing = [i for i, (a, b) in enumerate(zip(marked, other, strict=True)) if a != b]
        start = differing[0]
        if differing != list(range(start, start + length)):
            raise ValueError("Arrow no longer lays a payload out in one piece")
        self.before = marked[:start]
        self.after = marked[start + length :]
        #: Place of the payload in the contents, and their size; an envelope precedes the batch.
        self.start = ENVELOPE_BYTES + start
        self.stop = self.start + length
        self.size = ENVELOPE_BYTES + len(marked)


#: Templates by payload length and by contents length; both bounded by MAX_TEMPLATE_BYTES.
_by_length: dict[int, Template] = {}
_by_size: dict[int, list[Template]] = {}


def _template(length: int) -> Template:
    template = _by_length.get(length)
    if template is None:
        template = _by_length[length] = Template(length)
        _by_size.setdefault(template.size, []).append(template)
    return template


def pack_payload(payload: bytes, envelope: bytes) -> bytes:
    """The contents of a publication of one payload; the same bytes as by the general path."""
    length = len(payload)
    if not 0 < length <= MAX_TEMPLATE_BYTES:
        return encode_batch(batch_of_payloads([payload]), envelope)
    template = _by_length.get(length) or _template(length)
    return b"".join((envelope, template.before, payload, template.after))


def unpack_payload(body: bytes) -> bytes | None:
    """The payload, if the contents are one payload in the known layout."""
    for template in _by_size.get(len(body), ()):
        if body.startswith(template.before, ENVELOPE_BYTES) and body.endswith(template.after):
            return body[template.start : template.stop]
    return None


def learn_payload(payloads: Sequence[bytes]) -> None:
    """Make a template for the length of a payload that the general path has read."""
    if len(payloads) == 1 and 0 < len(payloads[0]) <= MAX_TEMPLATE_BYTES:
        _template(len(payloads[0]))


class Packer:
    """Packs and unpacks the events of one channel."""

    __slots__ = ("_flags", "kind", "now_us", "opaque", "schema", "valid_ms")

    def __init__(
        self,
        schema: pa.Schema,
        now_us: Clock = wall_us,
        *,
        valid_ms: int = 0,
        urgent: bool = False,
    ) -> None:
        self.schema = schema
        #: Clock for the publication time.
        self.now_us = now_us
        self._flags = URGENT if urgent else 0
        #: Validity of publications; 0 is forever.
        self.valid_ms = valid_ms
        #: Whether events are bytes (a channel without a schema).
        self.opaque = schema.equals(PAYLOAD)
        #: The type of events that `post` need not check with `admit`.
        self.kind: type = bytes if self.opaque else dict

    def adopt(self, schema: pa.Schema) -> None:
        """Adopt a schema with more columns."""
        self.schema = schema

    def admit(self, event: object) -> bytes | Mapping[str, object]:
        """The event in the form that `pack` takes; `UsageError` if its type does not fit."""
        if self.opaque:
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
            f"this channel takes mappings with the columns ({', '.join(self.schema.names)}) "
            f"or record batches, not {type(event).__name__}"
        )

    def pack(self, events: Sequence[object]) -> bytes:
        """The contents of one publication with these events, as `admit` returned them."""
        stamp = write_envelope(self.now_us(), self.valid_ms, self._flags)
        if not self.opaque:
            return encode_batch(batch_of_rows(events, self.schema), stamp)  # type: ignore[arg-type]
        if len(events) == 1:
            return pack_payload(events[0], stamp)  # type: ignore[arg-type]
        return encode_batch(batch_of_payloads(events), stamp)  # type: ignore[arg-type]

    def pack_batch(self, batch: pa.RecordBatch) -> bytes:
        """The contents of one publication with the rows of a record batch."""
        stamp = write_envelope(self.now_us(), self.valid_ms, self._flags)
        return encode_batch(conform(batch, self.schema), stamp)

    def unpack(self, body: bytes) -> tuple[pa.RecordBatch | None, list[bytes] | None] | None:
        """The record batch, its payloads, or both; None if it does not fit the schema.

        The envelope is skipped here; `read_envelope` checks it.
        """
        if self.opaque:
            payload = unpack_payload(body)
            if payload is not None:
                return None, [payload]
        message = memoryview(body)[ENVELOPE_BYTES:]
        batch = decode_batch(message, self.schema)
        if batch is None and not self.opaque:
            batch = decode_older(message, self.schema)
        if batch is None:
            return None
        if self.opaque and batch.num_rows == 1:
            payloads = batch.column(0).to_pylist()
            learn_payload(payloads)
            return batch, payloads
        # `Batch.payloads` makes one Python object per event only if the application reads them.
        return batch, None


def too_long(size: int) -> UsageError:
    """The error for an event that is too long for a publication."""
    return UsageError(
        f"an event of {size:,} bytes is too long; a publication holds at most "
        f"{MAX_BODY_BYTES:,}: publish it in parts"
    )
