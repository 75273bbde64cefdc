"""Labels: a publication that is to be ordered says itself who published it, and as which number.

The label comes before the contents and is covered by the same digest. What brokers decide on and
vote for therefore names its publisher, and nobody hashes contents twice.
"""

from __future__ import annotations

import msgspec

from quorumcast.core.ids import Stream

_encode = msgspec.msgpack.Encoder().encode
_LENGTH = 2


def label(stream: Stream, number: int) -> bytes:
    """What comes before the contents of a publication that is to be ordered."""
    head = _encode((stream.channel, stream.publisher, stream.incarnation, number))
    return len(head).to_bytes(_LENGTH, "big") + head


class Label(msgspec.Struct, frozen=True, array_like=True):
    """A label, read back."""

    channel: str
    publisher: str
    incarnation: int
    number: int


_labels: msgspec.msgpack.Decoder[Label] = msgspec.msgpack.Decoder(Label)


def unlabel(body: bytes) -> tuple[Label, bytes] | None:
    """Label and contents, or None if this is not labelled."""
    end = _LENGTH + int.from_bytes(body[:_LENGTH], "big")
    try:
        return _labels.decode(body[_LENGTH:end]), body[end:]
    except msgspec.MsgspecError:
        return None
