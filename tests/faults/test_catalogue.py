"""The catalogue: every fault can be made, keeps its hands off other effects, and stays well-formed.

A faulty node may say anything in its own name. It must stay something that the wire can carry,
or the receiver's decoder would spare the machines the trouble.
"""

import random

import msgspec
import pytest
from tests.support.rows import COLUMNS

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Cursor,
    Echo,
    Matches,
    Open,
    Publish,
    Ready,
    Voucher,
)
from quorumcast.cell.messages import (
    CellMessage,
    Checkpoint,
    Position,
    Positions,
    Reached,
    Subscribe,
    Vote,
)
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Send
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import (
    Basis,
    Claim,
    SegmentStatement,
    StopStatement,
    canonical,
    parse_statement,
    parse_stop,
)
from quorumcast.crypto.digest import root
from quorumcast.faults.cell.base import revouched
from quorumcast.faults.cell.catalogue import CATALOGUE, check_victims, make_fault, names
from quorumcast.faults.cell.entry import FaultContext, Role
from quorumcast.faults.contract import Fault, Later
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.consensus import value_of
from quorumcast.ordering.messages import (
    Accept,
    Chunk,
    Fetched,
    Item,
    LogPart,
    Offer,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorumcast.ordering.offers import offer_holds, sign_offer
from quorumcast.sim.cell.cells import Cell, channel_entry, make_simulated_cell

ORDERS = Channel("orders")
NODE = {
    Role.BROKER: NodeId("broker-2"),
    Role.PUBLISHER: NodeId("pub-1"),
    Role.SUBSCRIBER: NodeId("sub-1"),
}
STREAM = Stream(ORDERS, NodeId("pub-1"), 1)
OTHERS = (NodeId("broker-1"), NodeId("broker-3"), NodeId("broker-4"))
READERS = (NodeId("sub-1"), NodeId("sub-2"))


@pytest.fixture(scope="module")
def cell() -> Cell:
    entry = msgspec.structs.replace(channel_entry("orders", Policy.named("ab")), schema=COLUMNS)
    return make_simulated_cell(4, 1, [entry])


def context(cell: Cell, role: Role, **options: object) -> FaultContext:
    node = NODE[role]
    return FaultContext(
        node,
        cell.manifest,
        cell.keyrings[node],
        random.Random(7),
        **options,
    )


def test_revouched_reader_that_does_not_exist_gets_no_new_mac(cell: Cell) -> None:
    """One lie may have changed what another one is about to change."""
    liar = context(cell, Role.BROKER)
    voucher = Voucher(liar.node, NodeId("nobody"), b"mac")
    said = Vote(STREAM, 1, b"d" * 32, (liar.node,), (voucher,))
    assert revouched(said, liar) == said


def words(cell: Cell) -> list[Send]:
    """One of everything that a node may send."""
    body = b"hello"
    digest = cell.manifest.hash(body)
    statement = SegmentStatement(
        cell="simulated",
        epoch=1,
        broker=NODE[Role.BROKER],
        stream=STREAM,
        first=1,
        count=1,
        root=root(1, digest),
        basis=Basis.SETTLED,
    )
    signed = cell.keyrings[NODE[Role.BROKER]].identity.sign(canonical(statement))
    order = OTHERS
    voucher = Voucher(NODE[Role.PUBLISHER], OTHERS[0], b"m" * 16)
    return [
        Send(OTHERS, Open(STREAM, 1, 1)),
        Send(OTHERS, Publish(STREAM, 1, digest), (body,)),
        Send(OTHERS[:1], ChainRun(STREAM, 1, digest, order, (voucher,)), (body,)),
        Send(OTHERS, Echo(STREAM, 1, digest)),
        Send(OTHERS, Ready(STREAM, 1, digest)),
        Send(READERS, Vote(STREAM, 1, digest), (body,)),
        Send(READERS[:1], Matches(STREAM, 1, 3, b"w" * 16, (1,), digest), (body,)),
        Send(READERS[1:], Matches(STREAM, 1, 3, b"v" * 16, (0,), digest)),
        Send(READERS[1:], Matches(STREAM, 4, 2, b"w" * 16)),
        Send(READERS[:1], Contents(STREAM, 1, digest), (body,)),
        Send(READERS, Checkpoint(signed)),
        Send((STREAM.publisher,), Ack(STREAM, 1, 10)),
        Send(READERS, Positions(ORDERS, (Position(STREAM, 1, 2),))),
        Send(OTHERS, Subscribe(ORDERS, (), bodies=True)),
        *ordering_words(cell),
    ]


def ordering_words(cell: Cell) -> list[Send]:
    """One of everything that is said about total order."""
    log = Protection.BYZANTINE
    keyring = cell.keyrings[NODE[Role.BROKER]]
    bodies = tuple(label(STREAM, number) + b"hello" for number in (1, 2))
    digests = b"".join(map(cell.manifest.hash, bodies))
    item = Item(STREAM, 1, digests)
    value = cell.manifest.hash(b"batch")
    claims = (Claim(4, 1, value, ((value, 1),)),)
    stop = StopStatement(
        cell=keyring.instance,
        log=log,
        broker=keyring.identity.name,
        regency=2,
        decided=3,
        stable=0,
        blind=0,
        claims=claims,
    )
    word = keyring.identity.sign(canonical(stop))
    signature = sign_offer(cell.keyrings[STREAM.publisher], STREAM, 1, digests)
    return [
        Send(OTHERS, Offer(STREAM, 1, digests, signature), bodies),
        Send(OTHERS, Propose(log, 0, 1, (item, item))),
        Send(OTHERS, Write(log, 0, 1, value)),
        Send(OTHERS, Accept(log, 0, 1, value)),
        Send(OTHERS, Stop(log, 2)),
        Send(OTHERS[:1], StopData(log, word)),
        Send(OTHERS, Sync(log, 2, (word, word, word))),
        Send(OTHERS, Standing(log, 1, 12, 14, True, False, 12, value)),
        Send(OTHERS[:1], Fetched(log, (item,))),
        Send(OTHERS[:1], LogPart(log, 1, ((item,), ()))),
        Send(OTHERS[:1], StateHead(log, 12, (value,))),
        Send(OTHERS[:1], Chunk(log, 12, 0), (b"chunk",)),
    ]


@pytest.mark.parametrize("channels", [1, 0])
@pytest.mark.parametrize("name", CATALOGUE)
def test_fault_everything_sent_stays_decodable(name: str, channels: int) -> None:
    """A cell may have lost all of its channels while something is under way."""
    cell = make_simulated_cell(4, 1, [channel_entry("orders", Policy.named("ab"))] * channels)
    fault = make_fault(name, context(cell, CATALOGUE[name].role))
    decoder = msgspec.msgpack.Decoder(CellMessage)
    for _ in range(20):
        for effect in fault.tamper(list(words(cell)), Millis(0)):
            inner = effect.effect if isinstance(effect, Later) else effect
            assert isinstance(inner, Send)
            assert inner.to
            assert decoder.decode(msgspec.msgpack.encode(inner.message)) == inner.message


@pytest.mark.parametrize("name", CATALOGUE)
def test_fault_other_effects_pass_untouched(name: str, cell: Cell) -> None:
    fault = make_fault(name, context(cell, CATALOGUE[name].role))
    effect = Deliver(STREAM, 1, cell.manifest.hash(b""), b"", ())
    effects: list[Effect] = [effect]
    assert fault.tamper(effects, Millis(0)) == [effect]


@pytest.mark.parametrize("name", CATALOGUE)
def test_fault_changes_something(name: str, cell: Cell) -> None:
    x = cell.manifest.hash(b"x")
    fault = make_fault(
        name,
        context(
            cell,
            CATALOGUE[name].role,
            victims=("sub-1", "pub-1", "broker-1", "Vote"),
            shared={x: b"y" * 32},
        ),
    )
    sent: list[Effect] = list(words(cell))
    publish = Publish(STREAM, 20, cell.manifest.hash(b"x"))
    history = Vote(STREAM.history, 1, cell.manifest.hash(b"x"))
    sent += [Send(OTHERS, publish, (b"x",)), Send(READERS, history, (b"x",))]
    sent += [Send(OTHERS, Publish(STREAM.history, 1, history.digests), (b"x",))]
    sent += [Send(OTHERS, Reached(ORDERS, (Cursor(STREAM, number),))) for number in (4, 9)]
    assert any(fault.tamper(sent, Millis(0)) != sent for _ in range(20))


@pytest.mark.parametrize("name", CATALOGUE)
def test_fault_same_generator_same_lies(name: str, cell: Cell) -> None:
    one, other = (make_fault(name, context(cell, CATALOGUE[name].role)) for _ in range(2))
    for _ in range(5):
        assert one.tamper(list(words(cell)), Millis(0)) == other.tamper(
            list(words(cell)), Millis(0)
        )


def test_make_fault_unknown_name_says_what_there_is() -> None:
    with pytest.raises(UsageError, match="choose one of silent, slow"):
        make_fault("grumpy", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "victim",
    ["broker-2", "sub-1", "sub-1#3", "orders", "contents", "Vote"],
)
def test_victim_may_be_a_node_a_channel_or_a_part_of_messages(cell: Cell, victim: str) -> None:
    check_victims([victim], cell.manifest)


@pytest.mark.parametrize(
    ("victim", "hint"),
    [("borker-2", "did you mean 'broker-2'?"), ("xyz", "this cell has broker-1, broker-2")],
)
def test_victim_that_does_not_exist_is_refused_with_a_way_out(
    cell: Cell, victim: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=hint):
        check_victims(["broker-1", victim], cell.manifest)


def test_names_every_role_has_faults() -> None:
    assert {name for role in Role for name in names(role)} == set(CATALOGUE)
    assert all(names(role) for role in Role)


def test_alter_checkpoint_is_signed_by_itself_with_another_root(cell: Cell) -> None:
    fault = make_fault("alter", context(cell, Role.BROKER))
    honest = next(send for send in words(cell) if isinstance(send.message, Checkpoint))
    (lie,) = fault.tamper([honest], Millis(0))
    assert isinstance(lie, Send)
    assert isinstance(lie.message, Checkpoint)
    assert isinstance(honest.message, Checkpoint)
    told = parse_statement(lie.message.statement.payload)
    truth = parse_statement(honest.message.statement.payload)
    assert isinstance(told, SegmentStatement)
    assert isinstance(truth, SegmentStatement)
    assert told.root != truth.root
    assert cell.keyrings[NodeId("sub-1")].signature_holds(lie.message.statement)


def test_drop_spares_brokers_beyond_f(cell: Cell) -> None:
    fault = make_fault("drop", context(cell, Role.BROKER, victims=("broker-1",)))
    echo = Send(OTHERS, Echo(STREAM, 1, b"e" * 32))
    vote = Send(READERS, Vote(STREAM, 1, b"v" * 32))
    assert fault.tamper([echo, vote], Millis(0)) == [
        Send((NodeId("broker-3"), NodeId("broker-4")), echo.message)
    ]


def test_drop_withholds_the_percentage_of_messages_that_it_is_given(cell: Cell) -> None:
    votes = [Send(READERS, Vote(STREAM, n, b"v" * 32)) for n in range(1, 401)]
    fault = make_fault("drop", context(cell, Role.BROKER, percent=25))
    assert 0.65 < len(fault.tamper(list(votes), Millis(0))) / len(votes) < 0.85
    assert make_fault("drop", context(cell, Role.BROKER)).tamper(list(votes), Millis(0)) == []


def test_equivocating_publisher_tells_one_number_in_the_same_two_ways(cell: Cell) -> None:
    fault = make_fault("equivocating-publisher", context(cell, Role.PUBLISHER))
    publish = Send(OTHERS, Publish(STREAM, 3, cell.manifest.hash(b"x")), (b"x",))
    assert fault.tamper([publish], Millis(0)) == fault.tamper([publish], Millis(9))


def test_percent_zero_silent_is_honest(cell: Cell) -> None:
    fault = make_fault("silent", context(cell, Role.BROKER, percent=0))
    assert fault.tamper(list(words(cell)), Millis(0)) == words(cell)


def sent(fault: Fault, *effects: Effect) -> list[Send]:
    told = fault.tamper(list(effects), Millis(0))
    return [effect for effect in told if isinstance(effect, Send)]


def test_equivocating_leader_votes_for_what_it_told_each_broker(cell: Cell) -> None:
    fault = make_fault("equivocating-leader", context(cell, Role.BROKER, victims=("broker-3",)))
    log, item = Protection.BYZANTINE, Item(STREAM, 1, cell.manifest.hash(b"x"))
    truth, lie = (value_of(cell.manifest.hash, batch) for batch in ((item,), ()))
    told = sent(
        fault, Send(OTHERS, Propose(log, 0, 1, (item,))), Send(OTHERS, Write(log, 0, 1, truth))
    )
    misled, others = (NodeId("broker-3"),), (NodeId("broker-1"), NodeId("broker-4"))
    assert told == [
        Send(others, Propose(log, 0, 1, (item,))),
        Send(misled, Propose(log, 0, 1, ())),
        Send(others, Write(log, 0, 1, truth)),
        Send(misled, Write(log, 0, 1, lie)),
    ]


@pytest.mark.parametrize("how", ["nothing", "invention", "newer", "blind", "far"])
def test_false_stop_data_is_signed_by_itself_and_false(cell: Cell, how: str) -> None:
    fault = make_fault("false-stop-data", context(cell, Role.BROKER, victims=(how,)))
    honest = next(send for send in words(cell) if isinstance(send.message, StopData))
    (lie,) = sent(fault, honest)
    assert isinstance(lie.message, StopData)
    assert isinstance(honest.message, StopData)
    assert cell.keyrings[NodeId("broker-1")].signature_holds(lie.message.statement)
    told, truth = (parse_stop(m.statement.payload) for m in (lie.message, honest.message))
    assert told is not None
    assert truth is not None
    assert told != truth
    assert (told.broker, told.regency) == (truth.broker, truth.regency)


def test_two_offers_both_versions_are_signed_and_labelled(cell: Cell) -> None:
    fault = make_fault("two-offers", context(cell, Role.PUBLISHER, victims=("broker-1",)))
    honest = next(send for send in words(cell) if isinstance(send.message, Offer))
    truth, lie = sent(fault, honest)
    assert truth.to == (NodeId("broker-3"), NodeId("broker-4"))
    assert lie.to == (NodeId("broker-1"),)
    assert isinstance(lie.message, Offer)
    assert offer_holds(cell.keyrings[NodeId("broker-1")], lie.message)
    assert all(body.startswith(label(STREAM, n)) for n, body in enumerate(lie.bodies, 1))
    assert lie.bodies != truth.bodies


def test_never_reads_tells_for_ever_what_it_told_first(cell: Cell) -> None:
    fault = make_fault("never-reads", context(cell, Role.SUBSCRIBER))
    told = [
        Send(OTHERS, kind(ORDERS, (Cursor(STREAM, number),), *more))
        for kind, number, more in ((Reached, 4, ()), (Subscribe, 9, (True,)), (Reached, 12, ()))
    ]
    lies = [lie.message for send in told for lie in sent(fault, send)]
    assert [lie.cursors for lie in lies if isinstance(lie, Reached | Subscribe)] == [
        (Cursor(STREAM, 4),)
    ] * 3


@pytest.mark.parametrize("percent", [-1, 101, 10**9])
def test_fault_of_more_or_less_than_all_messages_is_refused(cell: Cell, percent: int) -> None:
    with pytest.raises(UsageError, match="from 0 to 100"):
        context(cell, Role.BROKER, percent=percent)


@pytest.mark.parametrize("fault", [name for name, entry in CATALOGUE.items() if entry.of_rows])
def test_fault_about_rows_takes_what_another_fault_left_of_a_vote(cell: Cell, fault: str) -> None:
    made = make_fault(fault, context(cell, CATALOGUE[fault].role))
    for values, bodies in ((b"", ()), (b"d" * 32, (b"", b"", b"")), (b"d" * 40, ())):
        for places in ((), (0,), (2, 1), (0, 9)):
            said = Matches(STREAM, 1, 3, b"w" * 16, places, values)
            assert sent(made, Send(READERS, said, bodies))
