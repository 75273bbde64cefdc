"""The chain protocol at its brokers (Freeman, algorithm 8), n = 4 and f = 1: three in a row.

publisher → b1 → b2 → b3 → bob; each verifies two predecessors and vouches to two successors.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    B5,
    BOB,
    CAROL,
    CHAIN,
    STREAM,
    T0,
    Cell,
    chain_run,
    digests,
    limited,
    publish,
    reasons,
    suspects,
)

from quorumcast.broadcast.chain import Chain, is_chain, last_of_chain, predecessors
from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.messages import ChainRun, Open, Pull, Voucher
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_CHAIN, MAX_VOUCHERS
from quorumcast.core.machine import Drop, DropReason, Receive, Send, Suspect, Suspicion
from quorumcast.core.message import Message
from quorumcast.core.quorum import Quorums

CELL = Cell(CHAIN)
ORDER = (B1, B2, B3)
RUN = (b"a", b"b")


def chain(me: NodeId, readers: tuple[NodeId, ...] = (BOB,)) -> Chain:
    return Chain(STREAM, CELL.around(me, readers))


def macs(author: NodeId, *readers: NodeId, run: tuple[bytes, ...] = RUN) -> tuple[Voucher, ...]:
    return CELL.vouchers(author, readers, 1, run, ORDER)


FROM_ALICE = macs(ALICE, B1, B2)
#: What b2 and b3 receive when everybody is correct.
TO_B2 = (*macs(ALICE, B2), *macs(B1, B2, B3))
TO_B3 = (*macs(B1, B3), *macs(B2, B3, BOB))


def passed_on(effects: list[object]) -> ChainRun:
    (send,) = [e for e in effects if isinstance(e, Send)]
    assert isinstance(send.message, ChainRun)
    return send.message


def is_sendable(message: Message) -> bool:
    """Whether the reader's decoder would take it."""
    wire = msgspec.msgpack.encode(message)
    try:
        return bool(msgspec.msgpack.decode(wire, type=type(message)))
    except msgspec.ValidationError:
        return False


# ---------------------------------------------------------------- geometry


def test_chain_predecessors_are_f_plus_1_as_many_as_there_are() -> None:
    quorums = Quorums(4, 1)
    assert predecessors(quorums, ORDER, 0, ALICE) == (ALICE,)
    assert predecessors(quorums, ORDER, 1, ALICE) == (ALICE, B1)
    assert predecessors(quorums, ORDER, 2, ALICE) == (B1, B2)
    assert last_of_chain(quorums, ORDER) == (B2, B3)


def test_chain_order_must_be_2f_plus_1_distinct_brokers_of_the_pool() -> None:
    quorums, brokers = Quorums(5, 1), (B1, B2, B3, B4, B5)
    assert is_chain(quorums, brokers, (B4, B2, B1))
    assert not is_chain(quorums, brokers, (B1, B2))
    assert not is_chain(quorums, brokers, (B1, B2, B3, B4))
    assert not is_chain(quorums, brokers, (B1, B2, B2))
    assert not is_chain(quorums, brokers, (B1, B2, BOB))
    assert not is_chain(quorums, brokers, (B1, B2, B5)), "two chains must share f+1 brokers"


# ------------------------------------------------------------------- runs


def test_chain_head_verifies_the_publisher_and_vouches_to_two_successors() -> None:
    """Algorithm 8, lines 8–14; the MAC for b1 is of no use further down."""
    effects = chain(B1).handle(chain_run(ALICE, 1, RUN, ORDER, FROM_ALICE), T0)
    expected = ChainRun(STREAM, 1, digests(*RUN), ORDER, TO_B2)
    (send,) = effects
    assert isinstance(send, Send)
    assert (send.to, send.bodies) == ((B2,), RUN)
    assert isinstance(send.message, ChainRun)
    assert sorted(send.message.vouchers, key=str) == sorted(expected.vouchers, key=str)


def test_chain_middle_vouches_to_the_last_broker_and_the_subscribers() -> None:
    effects = chain(B2, (BOB, CAROL)).handle(chain_run(B1, 1, RUN, ORDER, TO_B2), T0)
    vouchers = passed_on(list(effects)).vouchers
    assert {(v.author, v.reader) for v in vouchers} == {(B1, B3), (B2, B3), (B2, BOB), (B2, CAROL)}


def test_chain_last_broker_vouches_and_keeps_the_macs_for_subscribers() -> None:
    broker = chain(B3)
    effects = broker.handle(chain_run(B2, 1, RUN, ORDER, TO_B3), T0)
    assert effects == [Vouch(STREAM, 1, digests(*RUN), ORDER)]
    assert broker.vouchers_for(BOB) == macs(B2, BOB)
    assert broker.vouchers_for(CAROL) == ()


def test_chain_macs_of_every_broker_are_accepted_by_the_next() -> None:
    """What one really sends, the next really takes: b1, b2, b3 in a row."""
    event = chain_run(ALICE, 1, RUN, ORDER, FROM_ALICE)
    for sender, reader in ((B1, B2), (B2, B3)):
        run = passed_on(list(chain(sender).handle(event, T0)))
        event = chain_run(sender, 1, RUN, ORDER, run.vouchers)
        assert reasons(chain(reader).handle(event, T0)) == []


def test_chain_repeated_run_is_passed_on_again() -> None:
    """The publisher repeats what got lost further down."""
    broker = chain(B2)
    event = chain_run(B1, 1, RUN, ORDER, TO_B2)
    assert broker.handle(event, T0) == broker.handle(event, T0)
    assert broker.upto == 2


def test_chain_other_contents_for_a_number_are_not_passed_on() -> None:
    """A broker forwards one contents per number; the MACs say that the publisher sent two."""
    broker = chain(B1)
    broker.handle(chain_run(ALICE, 1, RUN, ORDER, FROM_ALICE), T0)
    other = (b"a", b"x")
    event = chain_run(ALICE, 1, other, ORDER, macs(ALICE, B1, B2, run=other))
    assert broker.handle(event, T0) == [
        Drop(DropReason.CONFLICT, ALICE),
        Suspect(ALICE, Suspicion.EQUIVOCATION, STREAM, 2),
    ]


def test_chain_run_of_numbers_that_were_forgotten_is_not_vouched_for_again() -> None:
    """What it cannot compare with what it said before it must not put its MAC on."""
    broker = chain(B1)
    broker.handle(Receive(ALICE, Open(STREAM, 5000, 5000)), T0)
    other = (b"a", b"x")
    event = chain_run(ALICE, 1, other, ORDER, macs(ALICE, B1, B2, run=other))
    assert broker.handle(event, T0) == [Drop(DropReason.NOT_HELD, ALICE)]


def test_chain_same_contents_by_another_chain_are_passed_on() -> None:
    broker = chain(B1)
    broker.handle(chain_run(ALICE, 1, RUN, ORDER, FROM_ALICE), T0)
    order = (B1, B2, B4)
    vouchers = CELL.vouchers(ALICE, (B1, B2), 1, RUN, order)
    effects = broker.handle(chain_run(ALICE, 1, RUN, order, vouchers), T0)
    assert passed_on(list(effects)).order == order
    held = broker.ledger.read(1, 2, 100)
    assert held is not None
    assert held.order == order


@pytest.mark.parametrize("order", [(B1, B2), (B2, B3, B4), (B1, B2, B2), (B1, BOB, B3)])
def test_chain_order_without_us_or_that_is_no_chain_is_refused(order: tuple[NodeId, ...]) -> None:
    event = chain_run(ALICE, 1, RUN, order, FROM_ALICE)
    assert chain(B1).handle(event, T0) == [Drop(DropReason.BAD_CHAIN, ALICE)]


def test_chain_run_from_another_than_the_predecessor_is_refused() -> None:
    for sender, me in ((B1, B1), (ALICE, B2), (B3, B2), (B1, B3)):
        effects = chain(me).handle(chain_run(sender, 1, RUN, ORDER, TO_B2), T0)
        assert effects == [Drop(DropReason.WRONG_SENDER, sender)]


def test_chain_run_beyond_the_next_number_is_out_of_turn() -> None:
    event = chain_run(ALICE, 2, RUN, ORDER, FROM_ALICE)
    assert chain(B1).handle(event, T0) == [Drop(DropReason.OUT_OF_TURN, ALICE)]


def test_chain_run_without_bodies_or_with_wrong_ones_is_refused() -> None:
    event = chain_run(ALICE, 1, RUN, ORDER, FROM_ALICE)
    for wrong, reason in (((), DropReason.BAD_RUN), ((b"a", b"x"), DropReason.BAD_BODY)):
        altered = Receive(ALICE, event.message, wrong)
        assert chain(B1).handle(altered, T0) == [Drop(reason, ALICE)]


def test_chain_contents_altered_on_the_way_are_discarded() -> None:
    """Freeman's figure 3.6: b2 alters m; the MAC of b1 no longer matches at b3."""
    altered = (b"a", b"x")
    vouchers = (*macs(B1, B3), *macs(B2, B3, BOB, run=altered))
    effects = chain(B3).handle(chain_run(B2, 1, altered, ORDER, vouchers), T0)
    assert reasons(effects) == [DropReason.BAD_VOUCHER]
    assert B2 in suspects(effects)


def test_chain_mac_over_another_chain_does_not_count() -> None:
    vouchers = CELL.vouchers(ALICE, (B1, B2), 1, RUN, (B1, B2, B4))
    effects = chain(B1).handle(chain_run(ALICE, 1, RUN, ORDER, vouchers), T0)
    assert effects == [
        Drop(DropReason.BAD_VOUCHER, ALICE),
        Suspect(ALICE, Suspicion.BAD_VOUCHER, STREAM, 1, (ALICE,)),
    ]


def test_chain_bad_mac_of_a_predecessor_makes_its_author_a_suspect() -> None:
    """b2 cannot verify b1's MAC for b3, so b3 must not put all of the blame on b2."""
    lie = Voucher(B1, B3, bytes(32))
    effects = chain(B3).handle(chain_run(B2, 1, RUN, ORDER, (lie, *macs(B2, B3, BOB))), T0)
    assert reasons(effects) == [DropReason.BAD_VOUCHER]
    assert suspects(effects) == [B1, B2]
    assert all(s.among == (B1, B2) for s in effects if isinstance(s, Suspect))


def test_chain_missing_mac_is_refused() -> None:
    effects = chain(B2).handle(chain_run(B1, 1, RUN, ORDER, macs(B1, B2, B3)), T0)
    assert reasons(effects) == [DropReason.BAD_VOUCHER]


def test_chain_stuffed_vouchers_never_make_us_send_what_cannot_be_decoded() -> None:
    """A lying head fills the message; an honest next broker must not be blamed for its size."""
    junk = tuple(Voucher(B1, B3, bytes([i % 256])) for i in range(MAX_VOUCHERS - len(TO_B2)))
    effects = chain(B2, (BOB, CAROL)).handle(chain_run(B1, 1, RUN, ORDER, (*junk, *TO_B2)), T0)
    onward = passed_on(list(effects))
    assert is_sendable(onward)
    assert reasons(chain(B3).handle(chain_run(B2, 1, RUN, ORDER, onward.vouchers), T0)) == []


def test_chain_stuffed_vouchers_for_a_subscriber_fit_into_its_vote() -> None:
    broker = chain(B3)
    junk = tuple(Voucher(NodeId(f"x{i}"), BOB, b"") for i in range(MAX_CHAIN + 1))
    again = macs(B2, BOB) * MAX_CHAIN
    broker.handle(chain_run(B2, 1, RUN, ORDER, (*TO_B3, *junk, *again)), T0)
    assert broker.vouchers_for(BOB) == macs(B2, BOB)


def test_chain_more_subscribers_than_vouchers_fit_keeps_those_of_the_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumcast.broadcast.chain.MAX_VOUCHERS", 3)
    effects = chain(B2, (BOB, CAROL)).handle(chain_run(B1, 1, RUN, ORDER, TO_B2), T0)
    vouchers = passed_on(list(effects)).vouchers
    assert [(v.author, v.reader) for v in vouchers] == [(B1, B3), (B2, B3), (B2, BOB)]


def test_chain_pull_and_open_are_served() -> None:
    broker = chain(B1)
    broker.handle(chain_run(ALICE, 1, RUN, ORDER, FROM_ALICE), T0)
    (answer,) = broker.handle(Receive(B4, Pull(STREAM, 2, 1)), T0)
    assert isinstance(answer, Send)
    assert answer.bodies == (b"b",)
    assert broker.handle(Receive(ALICE, Open(STREAM, 9, 1)), T0) == []
    assert (broker.upto, broker.ledger.unrepeated) == (2, 9)
    assert reasons(broker.handle(Receive(B2, Open(STREAM, 99, 1)), T0)) == [DropReason.WRONG_SENDER]


def test_chain_publish_of_another_protocol_is_unexpected() -> None:
    assert chain(B1).handle(publish(1, b"a"), T0) == [Drop(DropReason.UNEXPECTED, ALICE)]


def test_chain_ledger_and_vouchers_are_bounded() -> None:
    cell = Cell(limited("chain", retained_publications=3))
    broker = Chain(STREAM, cell.around(B1))
    for number in range(1, 20):
        vouchers = cell.vouchers(ALICE, (B1, B2), number, (b"x",), ORDER)
        broker.handle(chain_run(ALICE, number, (b"x",), ORDER, vouchers), T0)
    assert broker.sizes()["ledger"] == 3
    assert broker.credit == 19 + cell.policy.limits.window
