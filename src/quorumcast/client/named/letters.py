"""Dead letters: publications that a named subscription gave up, published on another channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from quorumcast.client.publishing.publisher import MAX_EVENT_BYTES
from quorumcast.client.unpacking import unpack
from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD, batch_of_payloads

if TYPE_CHECKING:
    from quorumcast.client.named.companion import Connection

#: Bytes of a letter beside its contents, at most.
_OVERHEAD = 1024
#: Pause before another attempt to publish on a dead-letter channel that has no room.
RETRY_S = 0.5


class DeadLetter(msgspec.Struct, frozen=True, tag="dead-letter-1", tag_field="kind"):
    """One event of a dead-letter channel.

    `channel`, `subscription` and `position` identify the publication. If a consumer crashes after
    it publishes a letter and before it writes `MarkDead`, another consumer publishes the letter
    again. Letters that agree in the three fields are duplicates.
    """

    channel: str
    subscription: str
    #: In the channel's total order.
    position: int
    #: Publisher, stream and number of the publication; "" and 0 if brokers no longer retain it.
    publisher: str
    incarnation: int
    number: int
    #: Deliveries to applications.
    attempts: int
    #: The consumer that gave it up.
    consumer: str
    #: Its contents, unchanged (an Arrow record batch); None if brokers no longer retain them, or
    #: if they are too long for a letter.
    contents: bytes | None

    @classmethod
    def read(cls, payload: bytes) -> DeadLetter:
        """Decode an event of a dead-letter channel."""
        try:
            return _letters.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise UsageError(
                "this event is no dead letter; read events of a dead-letter channel"
            ) from None

    def data(self, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """Its events as a record batch of the channel's schema (None for a channel of bytes)."""
        known = PAYLOAD if schema is None else schema
        data, payloads = unpack(self.contents or b"", known) or (None, None)
        if data is None and payloads is None:
            raise UsageError(
                f"publication {self.position} of {self.channel!r} is not in this letter, or is of "
                "another schema: give the schema of its channel"
            )
        return data if data is not None else batch_of_payloads(payloads or [])

    def write(self) -> bytes:
        """Encode the letter as an event, without contents that are too long."""
        letter = self
        if self.contents is not None and len(self.contents) > MAX_EVENT_BYTES - _OVERHEAD:
            letter = msgspec.structs.replace(self, contents=None)
        return _encode(letter)


_encode = msgspec.msgpack.Encoder().encode
_letters: msgspec.msgpack.Decoder[DeadLetter] = msgspec.msgpack.Decoder(DeadLetter)


async def publish_letter(
    node: Connection, channel: str, letter: DeadLetter, wanted: Callable[[], bool]
) -> None:
    """Publish a letter; try again while it is `wanted` and we may publish there.

    Normally a refusal means that the channel has no room for another publisher just now. Raises the
    last `UsageError`.
    """
    while True:
        try:
            async with node.publisher(channel) as out:
                await out.publish(letter.write())
                return
        except UsageError:
            if not wanted() or not node.manifest.may_publish(node.name, channel):
                raise
        await asyncio.sleep(RETRY_S)
