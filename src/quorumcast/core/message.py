"""What every message is, and the types of the fields that most of them have.

A message type is one frozen `Struct`: the form in memory, the form on the wire and the validating
decoder are the same definition. Contents of publications (*bodies*) travel beside the message and
are bound to it by the digests inside it, so a MAC over the message covers them at the price of the
one hash that every contents needs anyway.

Each protocol defines its messages beside its machines; a system collects those that it speaks into
a `Family` (`crypto.session`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumcast.core import limits
from quorumcast.core.ids import DIGEST_SIZE, Channel, NodeId

Digests = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE * limits.MAX_RUN)]
RunDigest = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
ChannelName = Annotated[Channel, Meta(max_length=limits.MAX_NAME)]
NodeName = Annotated[NodeId, Meta(max_length=limits.MAX_NAME)]
Order = Annotated[tuple[NodeName, ...], Meta(max_length=limits.MAX_CHAIN)]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages; the tag on the wire is the class name."""


class Displaced(Message, frozen=True, array_like=True):
    """Another process has proven your identity and takes your place here: this link is over."""
