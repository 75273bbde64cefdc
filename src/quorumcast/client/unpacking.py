"""Unpacking the contents of publications, whose publishers may be malicious."""

from __future__ import annotations

import pyarrow as pa

from quorumcast.core.envelope import ENVELOPE_BYTES
from quorumcast.core.payloads import decode_payload
from quorumcast.core.publication import PAYLOAD, decode_batch, decode_older


def unpack(
    contents: bytes, schema: pa.Schema
) -> tuple[pa.RecordBatch | None, list[bytes] | None] | None:
    """The record batch or its payloads; None if the contents do not fit the schema.

    The envelope is skipped here; `read_envelope` checks it.
    """
    if schema is PAYLOAD:
        payload = decode_payload(contents)
        if payload is not None:
            return None, [payload]
    message = memoryview(contents)[ENVELOPE_BYTES:]
    batch = decode_batch(message, schema)
    if batch is None and schema is not PAYLOAD:
        batch = decode_older(message, schema)
    # `Batch.payloads` makes one Python object per event only if the application reads them.
    return None if batch is None else (batch, None)
