"""From events to contents and back, fast for the common case of opaque payloads.

The plain way is `core.publication`: build a record batch, serialize it; read it, validate it. That
costs about 30 µs each way for a batch of one row, most of it fixed. With natural batching the
cost disappears in the batch; a publication of one payload cannot hide it. For those the layout is
constant: for a given payload length all bytes but the payload itself are the same. `Template` takes
them once from a batch that Arrow made and fills the payload in; reading compares them and cuts the
payload out. Anything that is not exactly this layout goes the plain way. `tests/client` holds both
ways against each other.

The envelope (`core.envelope`) is stamped here, once per publication, and joined with the rest in
the one copy that is made anyway.
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

#: Payload lengths for which the layout is remembered; longer ones go the plain way.
MOST_TEMPLATE_BYTES = 4096


#: Says the time in microseconds since 1970.
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
        #: Of the contents, which begin with an envelope.
        self.start = ENVELOPE_BYTES + start
        self.stop = self.start + length
        self.size = ENVELOPE_BYTES + len(marked)


#: Templates by payload length and by contents length; both bounded by MOST_TEMPLATE_BYTES.
_by_length: dict[int, Template] = {}
_by_size: dict[int, list[Template]] = {}


def _template(length: int) -> Template:
    template = _by_length.get(length)
    if template is None:
        template = _by_length[length] = Template(length)
        _by_size.setdefault(template.size, []).append(template)
    return template


def pack_payload(payload: bytes, envelope: bytes) -> bytes:
    """The contents of a publication of one payload; same bytes as the plain way."""
    length = len(payload)
    if not 0 < length <= MOST_TEMPLATE_BYTES:
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
    """Remember the layout after the plain way has read a batch of one payload."""
    if len(payloads) == 1 and 0 < len(payloads[0]) <= MOST_TEMPLATE_BYTES:
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
        #: When what is packed here is said to have been made.
        self.now_us = now_us
        self._flags = URGENT if urgent else 0
        #: For how long what is packed here is valid; 0 is for ever.
        self.valid_ms = valid_ms
        #: Whether events are bytes (a channel without a schema).
        self.opaque = schema.equals(PAYLOAD)
        #: The exact type that needs no further look when it is posted.
        self.kind: type = bytes if self.opaque else dict

    def adopt(self, schema: pa.Schema) -> None:
        """Go on with columns added behind those there are."""
        self.schema = schema

    def admit(self, event: object) -> bytes | Mapping[str, object]:
        """An event that the channel takes, or a sentence why not."""
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
        """The contents of one publication with these admitted events."""
        stamp = write_envelope(self.now_us(), self.valid_ms, self._flags)
        if not self.opaque:
            return encode_batch(batch_of_rows(events, self.schema), stamp)  # type: ignore[arg-type]
        if len(events) == 1:
            return pack_payload(events[0], stamp)  # type: ignore[arg-type]
        return encode_batch(batch_of_payloads(events), stamp)  # type: ignore[arg-type]

    def pack_batch(self, batch: pa.RecordBatch) -> bytes:
        """The contents of one publication with the events of a caller's batch."""
        stamp = write_envelope(self.now_us(), self.valid_ms, self._flags)
        return encode_batch(conform(batch, self.schema), stamp)

    def unpack(self, body: bytes) -> tuple[pa.RecordBatch | None, list[bytes] | None] | None:
        """The batch, or its payloads where that is cheaper; None if it is nonsense.

        The envelope is for `read_envelope` to judge; here it is passed over.
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
        # Who reads columns needs no Python object per event; `Batch.payloads` makes them.
        return batch, None


def too_long(size: int) -> UsageError:
    """The sentence for an event that no publication can hold."""
    return UsageError(
        f"an event of {size:,} bytes is too long; a publication holds at most "
        f"{MAX_BODY_BYTES:,}: publish it in parts"
    )
