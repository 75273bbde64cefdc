"""What decodes is what was encoded, and nothing decodes that breaks a bound."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import AB, B1, Cell

from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Cursor,
    Custom,
    Echo,
    Matches,
    Open,
    Outlived,
    Publish,
    Pull,
    Ready,
    Voucher,
)
from quorumcast.cell.messages import (
    ONLY_FOR_PUBLISHERS,
    Accusation,
    Attest,
    CellMessage,
    Checkpoint,
    Finish,
    Missed,
    Position,
    Positions,
    Reached,
    Refuse,
    Regain,
    Regained,
    Subscribe,
    Survey,
    Taken,
    Unsubscribe,
    Vote,
)
from quorumcast.core import limits
from quorumcast.core.ids import (
    DIGEST_SIZE,
    Channel,
    Digest,
    Lane,
    Millis,
    NodeId,
    Stream,
    split_digests,
)
from quorumcast.core.machine import Drop, DropReason, Receive
from quorumcast.core.message import Displaced, Message
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Evidence, EvidenceKind, Signed
from quorumcast.ordering.messages import (
    Accept,
    Chunk,
    ChunkQuery,
    Fetch,
    Fetched,
    Item,
    LogPart,
    LogQuery,
    Offer,
    Past,
    PastQuery,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Sync,
    Write,
)

STREAM = Stream(Channel("orders"), NodeId("alice"), 7)
ONE = bytes(range(DIGEST_SIZE))
ORDER = (NodeId("b1"), NodeId("b2"))
VOUCHER = Voucher(ORDER[0], ORDER[1], b"m" * 16)
LOG = Protection.BYZANTINE
ITEM = Item(STREAM, 4, ONE * 2)
SIGNED = Signed(NodeId("b1"), b"payload", b"s" * 64)

EXAMPLES: list[Message] = [
    Open(STREAM, 1, 1),
    Publish(STREAM, 1, ONE * 3),
    ChainRun(STREAM, 1, ONE, ORDER, (VOUCHER,)),
    Ack(STREAM, 5, 9, settled=4, missed=1),
    Outlived(STREAM, 9),
    Refuse(STREAM.channel, "no right to publish"),
    Finish(STREAM.channel),
    Survey(STREAM.channel, b"l" * 32),
    Regain(STREAM, 1, 2, bodies=True),
    Regained(STREAM, 1, bytes(64)),
    Echo(STREAM.history, 2, ONE),
    Ready(STREAM.history, 2, ONE),
    Subscribe(STREAM.channel, (Cursor(STREAM, 4),), True),
    Unsubscribe(STREAM.channel),
    Positions(STREAM.channel, (Position(STREAM, 1, 4),)),
    Vote(STREAM, 1, ONE, ORDER, (VOUCHER,)),
    Pull(STREAM, 3, limits.MAX_RUN),
    Pull(STREAM, 3, 1, bytes(16)),
    Matches(STREAM, 1, 3, bytes(16), (0, 2), bytes(64)),
    Subscribe(STREAM.channel, (), False, where=("price < 10",)),
    Contents(STREAM, 3, ONE * 2),
    Custom(STREAM, 7, 3, ONE * 2),
    Missed(STREAM, 3, 2),
    Reached(STREAM.channel, (Cursor(STREAM, 4),)),
    Attest(STREAM, 300),
    Checkpoint(Signed(NodeId("b1"), b"payload", b"s" * 64)),
    Displaced(),
    Offer(STREAM, 1, ONE * 3, b"s" * 64),
    Propose(LOG, 0, 1, (ITEM,)),
    Write(LOG, 0, 1, ONE),
    Accept(LOG, 3, 7, ONE),
    Stop(LOG, 1),
    StopData(LOG, SIGNED),
    Sync(LOG, 1, (SIGNED, SIGNED)),
    Standing(LOG, 1, 7, 9, synced=False, fresh=True, checkpoint=4, root=ONE, awake=ORDER),
    Fetch(LOG, (ONE,), (Cursor(STREAM, 4),)),
    Fetched(LOG, (ITEM,)),
    LogQuery(LOG, 1),
    LogPart(LOG, 1, ((ITEM,), ())),
    StateHead(LOG, 64, (ONE,)),
    ChunkQuery(LOG, 64, 0),
    PastQuery(LOG, STREAM.channel, 9),
    Past(LOG, 8, bytes(32), 5, STREAM, 3, bytes(32), bytes(64)),
    Chunk(LOG, 64, 0),
    Taken(SIGNED),
    Accusation(Evidence(kind=EvidenceKind.CONFLICT, accused=NodeId("b1"), against=(SIGNED,))),
]

decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(CellMessage)


def kind(message: Message) -> str:
    return type(message).__name__


def on_wire(message: object, **changes: object) -> bytes:
    """A message as a lying peer would write it: its own constructor checks nothing."""
    return msgspec.msgpack.encode(msgspec.structs.replace(message, **changes))  # type: ignore[type-var]


def test_examples_of_this_module_cover_every_message() -> None:
    assert {type(example) for example in EXAMPLES} == set(get_args(CellMessage))


@pytest.mark.parametrize("message", EXAMPLES, ids=kind)
def test_message_encoded_decodes_to_itself(message: Message) -> None:
    assert decoder.decode(msgspec.msgpack.encode(message)) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=kind)
def test_message_truncated_anywhere_is_refused(message: Message) -> None:
    wire = msgspec.msgpack.encode(message)
    for end in range(len(wire)):
        with pytest.raises(msgspec.DecodeError):
            decoder.decode(wire[:end])


def test_message_of_unknown_kind_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode(["Overthrow", list(msgspec.to_builtins(STREAM))]))


TOO_MUCH = [
    (Open(STREAM, 1, 1), {"base": 0}),
    (Open(STREAM, 1, 1), {"base": -1}),
    (Open(STREAM, 1, 1), {"base": 2**62 + 1}),
    (Publish(STREAM, 1, ONE), {"digests": b""}),
    (Publish(STREAM, 1, ONE), {"digests": ONE[:-1]}),
    (Publish(STREAM, 1, ONE), {"digests": ONE * (limits.MAX_RUN + 1)}),
    (Vote(STREAM, 1, ONE), {"order": ORDER[:1] * (limits.MAX_CHAIN + 1)}),
    (Vote(STREAM, 1, ONE), {"vouchers": (VOUCHER,) * (limits.MAX_CHAIN + 1)}),
    (ChainRun(STREAM, 1, ONE, (), ()), {"vouchers": (VOUCHER,) * (limits.MAX_VOUCHERS + 1)}),
    (
        ChainRun(STREAM, 1, ONE, (), ()),
        {"vouchers": (msgspec.structs.replace(VOUCHER, mac=b"m" * 65),)},
    ),
    (Ack(STREAM, 1, 1), {"credit": -1}),
    (Refuse(STREAM.channel, "no"), {"reason": "x" * 201}),
    (Echo(STREAM, 1, ONE), {"run": ONE + b"x"}),
    (Ready(STREAM, 1, ONE), {"run": ONE[1:]}),
    (
        Subscribe(STREAM.channel, (), False),
        {"cursors": (Cursor(STREAM, 1),) * (limits.MAX_STREAMS_NAMED + 1)},
    ),
    (
        Reached(STREAM.channel, ()),
        {"cursors": (Cursor(STREAM, 1),) * (limits.MAX_STREAMS_NAMED + 1)},
    ),
    (
        Positions(STREAM.channel, ()),
        {"positions": (Position(STREAM, 1, 1),) * (limits.MAX_STREAMS_NAMED + 1)},
    ),
    (Pull(STREAM, 1, 1), {"count": limits.MAX_RUN + 1}),
    (Pull(STREAM, 1, 1), {"count": 0}),
    (Pull(STREAM, 1, 1), {"where": bytes(17)}),
    (Matches(STREAM, 1, 1, b""), {"count": limits.MAX_RUN + 1}),
    (Matches(STREAM, 1, 1, b""), {"where": bytes(17)}),
    (Matches(STREAM, 1, 1, b""), {"places": (limits.MAX_RUN,)}),
    (Matches(STREAM, 1, 1, b""), {"places": (-1,)}),
    (Matches(STREAM, 1, 1, b""), {"values": bytes(DIGEST_SIZE * limits.MAX_RUN + 1)}),
    (Subscribe(STREAM.channel, (), False), {"where": ("x",) * (limits.MAX_PREDICATES + 1)}),
    (Subscribe(STREAM.channel, (), False), {"where": ("x" * (limits.MAX_PREDICATE_TEXT + 1),)}),
    (Missed(STREAM, 1, 1), {"count": 0}),
    (Attest(STREAM, 1), {"number": 0}),
    (Offer(STREAM, 1, ONE), {"digests": ONE * (limits.MAX_RUN + 1)}),
    (Offer(STREAM, 1, ONE), {"signature": b"s" * 65}),
    (Propose(LOG, 0, 1, ()), {"instance": 0}),
    (Propose(LOG, 0, 1, ()), {"regency": -1}),
    (Propose(LOG, 0, 1, ()), {"batch": (ITEM,) * (limits.MAX_BATCH + 1)}),
    (Propose(LOG, 0, 1, ()), {"batch": (msgspec.structs.replace(ITEM, digests=b""),)}),
    (Write(LOG, 0, 1, ONE), {"value": b""}),
    (Accept(LOG, 0, 1, ONE), {"value": ONE + b"x"}),
    (Accept(LOG, 0, 1, ONE), {"log": "gossip"}),
    (Stop(LOG, 1), {"regency": 0}),
    (Sync(LOG, 1, ()), {"statements": (SIGNED,) * (limits.MAX_CHAIN + 1)}),
    (Standing(LOG, 0, 0, 0), {"decided": -1}),
    (Standing(LOG, 0, 0, 0), {"root": ONE + b"x"}),
    (Standing(LOG, 0, 0, 0), {"awake": ORDER[:1] * (limits.MAX_CHAIN + 1)}),
    (Fetch(LOG), {"values": (ONE,) * (limits.MAX_FETCH + 1)}),
    (Fetch(LOG), {"offers": (Cursor(STREAM, 1),) * (limits.MAX_FETCH + 1)}),
    (Fetched(LOG, ()), {"batch": (ITEM,) * (limits.MAX_BATCH + 1)}),
    (LogQuery(LOG, 1), {"first": 0}),
    (LogPart(LOG, 1, ()), {"batches": ((),) * (limits.MAX_BATCH + 1)}),
    (StateHead(LOG, 1, ()), {"chunks": (ONE,) * (limits.MAX_CHUNKS + 1)}),
    (ChunkQuery(LOG, 1, 0), {"index": -1}),
    (PastQuery(LOG, STREAM.channel, 1), {"before": 0}),
    (Chunk(LOG, 1, 0), {"checkpoint": 0}),
]


@pytest.mark.parametrize(("message", "changes"), TOO_MUCH)
def test_message_beyond_a_bound_is_refused(message: Message, changes: dict[str, Any]) -> None:
    assert decoder.decode(on_wire(message)) == message
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(on_wire(message, **changes))


def test_run_of_the_largest_size_is_accepted() -> None:
    message = Publish(STREAM, 2**62, ONE * limits.MAX_RUN)
    assert decoder.decode(msgspec.msgpack.encode(message)) == message


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": -1},
        {"incarnation": 2**62 + 1},
        {"channel": "c" * (limits.MAX_NAME + 1)},
        {"publisher": "p" * (limits.MAX_NAME + 1)},
        {"lane": 2},
    ],
)
def test_stream_of_a_lying_peer_is_refused(changes: dict[str, Any]) -> None:
    stream = msgspec.structs.replace(STREAM, **changes)
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(on_wire(Open(STREAM, 1, 1), stream=stream))


@given(st.binary(max_size=200))
def test_decoder_any_bytes_refuses_or_decodes_what_encodes_again(data: bytes) -> None:
    try:
        message = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    assert decoder.decode(msgspec.msgpack.encode(message)) == message


def test_stream_lanes_lead_to_one_another() -> None:
    assert STREAM.history.lane is Lane.HISTORY
    assert STREAM.history != STREAM
    assert STREAM.history.data == STREAM.data == STREAM
    assert STREAM.history.history == STREAM.history
    assert (str(STREAM), str(STREAM.history)) == ("orders/alice@7", "orders/alice@7/history")


@given(st.lists(st.binary(min_size=DIGEST_SIZE, max_size=DIGEST_SIZE).map(Digest), max_size=5))
def test_split_digests_of_a_run_are_the_digests(digests: list[Digest]) -> None:
    assert split_digests(b"".join(digests)) == digests


@pytest.mark.parametrize("size", [1, DIGEST_SIZE + 1, 5 * limits.MAX_RUN * DIGEST_SIZE])
def test_split_digests_leaves_nothing_out(size: int) -> None:
    parts = split_digests(bytes(size))
    assert b"".join(parts) == bytes(size)
    assert {len(part) for part in parts[:-1]} <= {DIGEST_SIZE}


@pytest.mark.parametrize("message", EXAMPLES, ids=kind)
def test_message_that_a_publisher_expects_is_sorted_out_for_it(message: Message) -> None:
    """A node that publishes and subscribes sorts messages by `ONLY_FOR_PUBLISHERS`."""
    cell, got, unexpected = Cell(AB), Receive(B1, message), [Drop(DropReason.UNEXPECTED, B1)]
    if type(message) in ONLY_FOR_PUBLISHERS:
        assert cell.publisher().handle(got, Millis(0)) != unexpected
        assert cell.subscriber().handle(got, Millis(0)) == unexpected
    elif type(message) is not Refuse:
        assert cell.publisher().handle(got, Millis(0)) == unexpected
