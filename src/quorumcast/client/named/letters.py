"""Dead letters: publications that a named subscription gave up, as they lie on another channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from quorumcast.client.packing import Packer
from quorumcast.client.publishing import MAX_EVENT_BYTES
from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD, batch_of_payloads

if TYPE_CHECKING:
    from quorumcast.client.named.companion import Connection

#: What a letter needs beside its contents.
_ENVELOPE = 1024
#: How long to wait for a place on a dead-letter channel that has none.
PLACE_S = 0.5


class DeadLetter(msgspec.Struct, frozen=True, tag="dead-letter-1", tag_field="kind"):
    """One event of a dead-letter channel.

    `channel`, `subscription` and `position` say where it came from. A consumer that died between
    publishing the letter and saying so in the order leaves the letter to the next one: two letters
    with the same three are one publication.
    """

    channel: str
    subscription: str
    position: int
    #: Who published it, and as which number of which stream.
    publisher: str
    incarnation: int
    number: int
    #: Attempts that were made.
    attempts: int
    #: Who gave it up.
    consumer: str
    #: Its contents, unchanged (an Arrow record batch); None if they are gone, or too long to lie
    #: in another publication.
    contents: bytes | None

    @classmethod
    def read(cls, payload: bytes) -> DeadLetter:
        """The letter in an event of a dead-letter channel."""
        try:
            return _letters.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise UsageError(
                "this event is no dead letter; read events of a dead-letter channel"
            ) from None

    def data(self, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """Its events as a record batch of the channel's schema (None for payloads)."""
        data, payloads = Packer(PAYLOAD if schema is None else schema).unpack(
            self.contents or b""
        ) or (None, None)
        if data is None and payloads is None:
            raise UsageError(
                f"publication {self.position} of {self.channel!r} is not here or not of this "
                "schema: give that of its channel"
            )
        return data if data is not None else batch_of_payloads(payloads or [])

    def write(self) -> bytes:
        """The event for the dead-letter channel."""
        letter = self
        if self.contents is not None and len(self.contents) > MAX_EVENT_BYTES - _ENVELOPE:
            letter = msgspec.structs.replace(self, contents=None)
        return _encode(letter)


_encode = msgspec.msgpack.Encoder().encode
_letters: msgspec.msgpack.Decoder[DeadLetter] = msgspec.msgpack.Decoder(DeadLetter)


async def post_letter(
    node: Connection, channel: str, letter: DeadLetter, wanted: Callable[[], bool]
) -> None:
    """Put a letter on its channel; if all its publishers' places are taken, once there is one.

    A channel that is gone, or to which the right was lost, raises: somebody must see to it.
    """
    while True:
        try:
            async with node.publisher(channel) as out:
                await out.publish(letter.write())
                return
        except UsageError:
            if not wanted() or not node.manifest.may_publish(node.name, channel):
                raise
        await asyncio.sleep(PLACE_S)
