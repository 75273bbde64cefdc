"""A fault that sends messages with one thing altered, without knowledge of any protocol.

It alters one thing of a message that its node sends or has received: a number, a name, a digest, a
signature, an element of a list, or the kind of message. It renews its own signatures and MACs, so
that the altered message is authentic. Sooner or later it sends everything that a correct node must
reject: other streams, lives and epochs, numbers outside every window, double votes, statements of
others, messages that only another role may send.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from quorumcast.broadcast.messages import ChainRun
from quorumcast.cell.messages import CellMessage, Vote
from quorumcast.core.ids import CELL, DIGEST_SIZE, Millis
from quorumcast.core.machine import Bodies, Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import (
    Signed,
    canonical,
    parse_epoch,
    parse_offer,
    parse_statement,
    parse_stop,
)
from quorumcast.crypto.session import encode_parcel
from quorumcast.faults.cell.base import Tampering, digests_of, revouched
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offers import sign_offer

#: Limit of altered messages of each kind; after the first few, one message in `ONE_IN` is altered.
PER_KIND, ONE_IN = 12, 3

_KINDS: tuple[type[msgspec.Struct], ...] = get_args(CellMessage)
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(CellMessage)
_signed: msgspec.msgpack.Decoder[Signed] = msgspec.msgpack.Decoder(Signed)


class Mangle(Tampering):
    """Sends altered messages beside its own or instead of them.

    Each kind of message is altered equally often, since rare answers matter as much as votes.
    """

    __slots__ = ("_altered", "_known")

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._altered: Counter[type] = Counter()
        #: The last message of each kind that it sent or received.
        self._known: dict[type, tuple[Message, Bodies]] = {}

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng, kind = self.context.rng, type(send.message)
        self._known[kind] = (send.message, send.bodies)
        for heard in self.context.heard:
            self._known[type(heard.message)] = (heard.message, heard.bodies)
        if self._altered[kind] >= PER_KIND or not self.context.hits():
            return [send]
        if self._altered[kind] >= ONE_IN and rng.randrange(ONE_IN):
            return [send]
        self._altered[kind] += 1
        mangled = self._mangled(send)
        return rng.choice(([send, mangled], [mangled, send], [mangled]))

    def _mangled(self, send: Send) -> Send:
        """An altered message, for its receivers or for other nodes."""
        context, rng = self.context, self.context.rng
        message, bodies = send.message, send.bodies
        if rng.randrange(3) == 0:
            message, bodies = self._known[rng.choice(list(self._known))]
        everybody = (*context.manifest.broker_ids, *(c.id for c in context.manifest.clients))
        to = rng.choice((send.to, send.to, context.manifest.broker_ids, (rng.choice(everybody),)))
        return Send(tuple(to), *alter(message, bodies, context))


def alter(message: Message, bodies: Bodies, context: FaultContext) -> tuple[Message, Bodies]:
    """A message that differs in one thing, or only in its sender."""
    rng = context.rng
    for _ in range(8):
        changed, contents = message, bodies
        if bodies and rng.randrange(3) == 0:
            contents = Altering(context).of(bodies)
        elif rng.randrange(4) == 0:
            changed = _of_another_kind(message, rng)
        elif rng.randrange(8):
            changed = Altering(context).of(message)
        if rng.randrange(4):
            changed = _made_consistent(changed, contents, context)
        if _is_well_formed(changed, contents) or rng.randrange(20) == 0:
            return changed, contents
    return message, bodies


def _is_well_formed(message: Message, bodies: Bodies) -> bool:
    try:
        _messages.decode(encode_parcel(message, bodies)[0])
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return False
    return True


def _of_another_kind(message: Message, rng: random.Random) -> Message:
    """A message of another kind that has the same fields."""
    fields: dict[str, Any] = msgspec.structs.asdict(message)
    kinds = [
        kind
        for kind in _KINDS
        if fields and all(f.name in fields for f in msgspec.structs.fields(kind) if f.required)
    ]
    kind = rng.choice(kinds) if kinds else type(message)
    made: Any = kind(**{n: v for n, v in fields.items() if n in kind.__struct_fields__})
    return made  # type: ignore[no-any-return]


def _made_consistent(message: Message, bodies: Bodies, context: FaultContext) -> Message:
    """The same message with matching digests, signatures and MACs."""
    if bodies and hasattr(message, "digests"):
        message = replace(message, digests=digests_of(bodies, context))
    if isinstance(message, Offer):
        signature = sign_offer(context.keyring, message.stream, message.first, message.digests)
        return replace(message, signature=signature)
    return revouched(message, context) if isinstance(message, ChainRun | Vote) else message


class Altering:
    """Alters one thing of a value of any type."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._rng = context.rng

    def of(self, value: Any) -> Any:
        """Another value of the same type."""
        rng = self._rng
        match value:
            case bool():
                return not value
            case enum.Enum():
                return rng.choice(list(type(value)))
            case int():
                ahead = value + rng.randrange(2, 40)
                return rng.choice((value + 1, max(0, value - 1), 0, 1, ahead, 2 * value, 2**40))
            case bytes():
                return self._bytes(value)
            case str():
                return rng.choice(self._names(value))
            case tuple():
                return self._tuple(value)
            case Signed():
                return self._signed(value)
            case msgspec.Struct() if value.__struct_fields__:
                field = rng.choice(value.__struct_fields__)
                return replace(value, **{field: self.of(getattr(value, field))})
            case _:
                return value

    def _names(self, value: str) -> list[str]:
        """Names to choose from, mostly of the same kind."""
        manifest = self._context.manifest
        nodes: list[str] = [node.id for node in manifest.nodes]
        channels: list[str] = [channel.name for channel in manifest.channels]
        alike = channels if value in channels else nodes
        return alike if self._rng.randrange(4) else [*nodes, *channels, CELL, "nobody"]

    def _bytes(self, value: bytes) -> bytes:
        rng = self._rng
        try:
            return msgspec.msgpack.encode(self._signed(_signed.decode(value)))
        except (msgspec.MsgspecError, ValueError):
            pass
        at = rng.randrange(len(value)) if value else 0
        flipped = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] if value else b"\1"
        whole = len(value) // DIGEST_SIZE * DIGEST_SIZE
        cut = rng.randrange(0, whole + 1, DIGEST_SIZE)
        return rng.choice((flipped, flipped, value[:cut], value + value[:DIGEST_SIZE], b""))

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            return value
        at = self._rng.randrange(len(value))
        one = value[at]
        others = (
            (*value[:at], self.of(one), *value[at + 1 :]),
            (*value[:at], self.of(one), *value[at + 1 :]),
            (*value[:at], *value[at + 1 :]),
            (*value, one),
            (*value, self.of(one)),
            value[::-1],
        )
        return self._rng.choice(others)

    def _signed(self, value: Signed) -> Signed:
        """An altered statement of this node, or one of another node with a false signature."""
        identity = self._context.keyring.identity
        statement = (
            parse_statement(value.payload)
            or parse_offer(value.payload)
            or parse_stop(value.payload)
            or parse_epoch(value.payload)
        )
        payload = value.payload if statement is None else canonical(self.of(statement))
        signature = identity.sign(payload).signature
        if value.signer == identity.name or self._rng.randrange(3) == 0:
            return Signed(identity.name, payload, signature)
        return self._rng.choice(
            (
                Signed(value.signer, payload, signature),
                Signed(value.signer, payload, value.signature),
                Signed(value.signer, value.payload, self._bytes(value.signature)),
            )
        )
