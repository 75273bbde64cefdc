"""The common shape of faults: rewrite each `Send`, leave all other effects alone.

Helpers here change one thing of a message and keep it well-formed, so that the receiver's decoder
does not drop the lie before a machine sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Echo,
    Matches,
    Open,
    Publish,
    Pull,
    Ready,
    Voucher,
)
from quorumcast.cell.messages import Attest, Checkpoint, Missed, Regained, Vote
from quorumcast.core.cuts import digest_of_cut, looks_cut
from quorumcast.core.ids import DIGEST_SIZE, Channel, Digest, Millis, NodeId, Stream
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import parse_statement
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later

#: Messages that carry a run with its digests.
Run = Publish | ChainRun | Vote | Contents | Regained
RUNS = (Publish, ChainRun, Vote, Contents, Regained)
#: Messages about one stream.
STREAMED = (*RUNS, Matches, Open, Ack, Echo, Ready, Pull, Missed, Attest)


class Tampering:
    """A fault that looks at what is sent, one `Send` at a time."""

    def __init__(self, name: str, context: FaultContext) -> None:
        self.name = name
        self.context = context

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        """Rewrite every `Send`; a `Later` is carried out after a while."""
        result: list[Effect | Later] = []
        for effect in effects:
            if isinstance(effect, Send):
                result.extend(self.rewrite(effect, now))
            else:
                result.append(effect)
        return result

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        """What is sent instead."""
        raise NotImplementedError

    def without(self, send: Send, unwanted: Sequence[NodeId]) -> list[Effect | Later]:
        """The same message, kept from some of its recipients."""
        to = tuple(peer for peer in send.to if peer not in unwanted)
        return [replace(send, to=to)] if to else []


class Misleading(Tampering):
    """A fault that sends its victims something else and all other recipients the truth."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._misled = self.choose_victims()

    def choose_victims(self) -> Sequence[NodeId]:
        """The nodes that are lied to; by default a random part of the brokers."""
        count = self.context.rng.randrange(1, max(2, len(self.context.manifest.brokers)))
        return self.context.broker_victims(count)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        misled = tuple(peer for peer in send.to if peer in self._misled)
        lies = self.lie(replace(send, to=misled)) if misled else None
        return [send] if lies is None else [*self.without(send, self._misled), *lies]

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        """What the victims, the recipients of `send`, are sent instead; None for the truth."""
        raise NotImplementedError


def stream_of(message: Message) -> Stream | None:
    """The stream that a message is about, if it is about one."""
    return message.stream if isinstance(message, STREAMED) else None


def channel_of(message: Message) -> Channel | None:
    """The channel that a message is about."""
    if isinstance(message, STREAMED):
        return message.stream.channel
    if isinstance(message, Checkpoint):
        statement = parse_statement(message.statement.payload)
        return None if statement is None else statement.stream.channel
    return getattr(message, "channel", None)


def other_digest(digest: bytes, salt: bytes = b"") -> Digest:
    """Another digest, the same one every time, so that repeated lies agree."""
    return Digest(hashlib.sha256(b"not" + salt + digest).digest())


def other_body(body: bytes, salt: bytes = b"") -> bytes:
    """Other contents, the same ones every time."""
    return body + b"#" + salt


def with_other_digests(message: Run, salt: bytes = b"") -> Run:
    """The same run with other contents claimed for its first number."""
    first = other_digest(message.digests[:DIGEST_SIZE], salt)
    return replace(message, digests=first + message.digests[DIGEST_SIZE:])


def with_other_results(message: Matches) -> Matches:
    """The same vote with other contents claimed where something matches first, or at first."""
    first = other_digest(message.values[:DIGEST_SIZE])
    values = first + message.values[DIGEST_SIZE:]
    return replace(message, places=message.places or (0,), values=values)


def on_stream(message: Message, stream: Stream) -> Message:
    """The same message about another stream; unchanged if it is not about a stream."""
    return replace(message, stream=stream) if isinstance(message, STREAMED) else message


def revouched(message: ChainRun | Vote, context: FaultContext) -> ChainRun | Vote:
    """The same run with this node's own MACs computed anew, so that they verify."""
    vouchers = tuple(
        Voucher(
            voucher.author,
            voucher.reader,
            context.keyring.vouch(
                voucher.reader, message.stream, message.first, message.digests, message.order
            ),
        )
        if voucher.author == context.node and context.keyring.knows(voucher.reader)
        else voucher
        for voucher in message.vouchers
    )
    return replace(message, vouchers=vouchers)


def result_digest(body: bytes, context: FaultContext) -> Digest:
    """The value of a vote for these contents: a cut, or a whole publication."""
    return digest_of_cut(body) if looks_cut(body) else context.manifest.hash(body)


def digests_of(bodies: Sequence[bytes], context: FaultContext) -> bytes:
    """The digests of a run with these bodies."""
    return b"".join(context.manifest.hash(body) for body in bodies)
