"""The publisher's side of total order: labelled, signed, acknowledged by f+1 brokers."""

from __future__ import annotations

import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, STREAM, Cell, digests, sent
from tests.support.ordering import TOTAL, TOTAL_CRASH, labelled

from quorumcast.broadcast.application import Acknowledged
from quorumcast.broadcast.messages import Ack, Open
from quorumcast.core.ids import NodeId
from quorumcast.core.labels import label
from quorumcast.core.machine import Send
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offer_sender import OfferSender
from quorumcast.ordering.offers import offer_holds

BROKERS = (B1, B2, B3, B4)


def sender(policy: Policy = TOTAL) -> tuple[Cell, OfferSender]:
    """A sender whose brokers have answered its introduction."""
    cell = Cell(policy)
    made = OfferSender(STREAM, cell.view(ALICE), policy)
    for broker in BROKERS:
        assert made.connected(broker) == [Send((broker,), Open(STREAM, 1, 1))]
        made.on_ack(broker, ordered(0))
    return cell, made


def ordered(upto: int) -> Ack:
    """What a broker says when it has ordered so far."""
    return Ack(STREAM, upto, upto + 100, upto)


def test_submit_offers_labelled_and_signed_publications_to_all() -> None:
    cell, made = sender()
    returned, effects = made.submit((b"a", b"b"))
    (send,) = sent(effects)
    bodies = labelled(1, b"a", b"b")
    assert (send.to, send.bodies, returned) == (BROKERS, bodies, digests(*bodies))
    assert isinstance(send.message, Offer)
    assert (send.message.stream, send.message.first) == (STREAM, 1)
    assert send.message.digests == digests(*bodies)
    assert offer_holds(cell.keyring(B1), send.message)


def test_submit_numbers_go_on_in_the_labels() -> None:
    _, made = sender()
    made.submit((b"a", b"b"))
    _, effects = made.submit((b"c",))
    assert sent(effects)[0].bodies == (label(STREAM, 3) + b"c",)


def test_submit_where_brokers_only_crash_is_not_signed() -> None:
    _, made = sender(TOTAL_CRASH)
    _, effects = made.submit((b"a",))
    message = sent(effects)[0].message
    assert isinstance(message, Offer)
    assert message.signature == b""


@pytest.mark.parametrize("policy", [TOTAL, TOTAL_CRASH])
def test_acknowledged_once_n_minus_f_brokers_have_ordered_it(policy: Policy) -> None:
    _, made = sender(policy)
    made.submit((b"a",))
    acks = [made.on_ack(broker, ordered(1)) for broker in BROKERS[:3]]
    told = [[e for e in effects if isinstance(e, Acknowledged)] for effects in acks]
    assert told == [[], [], [Acknowledged(STREAM, 1)]]


def test_repeated_offer_is_the_same_to_the_byte() -> None:
    """Brokers that hold it recognise it by its digests; others check one signature."""
    _, made = sender()
    _, effects = made.submit((b"a",))
    first = sent(effects)[0]
    made.disconnected(NodeId(B2))
    made.connected(B2)
    (again,) = sent(made.on_ack(B2, ordered(0)))
    assert (again.message, again.bodies, again.to) == (first.message, first.bodies, (B2,))
