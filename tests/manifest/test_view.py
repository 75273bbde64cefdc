"""A view changes in one place, for everybody who holds it."""

from __future__ import annotations

import msgspec
from tests.support.cells import AB, ALICE, B1, B2, B3, B4, B5, BOB, ORDERS, Cell

BROKERS = (B1, B2, B3, B4)


def test_view_of_a_broker_names_the_others_as_its_peers() -> None:
    cell = Cell(AB)
    assert cell.view(B1).peers == BROKERS[1:]
    assert cell.view(BOB).peers == BROKERS


def test_view_that_adopts_an_epoch_shows_its_members_quorums_rights_and_keys() -> None:
    larger = Cell(AB, n=5)
    channel = msgspec.structs.replace(larger.manifest.channels[0], publishers=(BOB,))
    following = msgspec.structs.replace(larger.manifest, epoch=2, channels=(channel,))
    cell = Cell(AB)
    view = cell.view(B1)
    keyring = view.keyring
    view.adopt(following, following.keyring(keyring.identity))
    assert (view.epoch, view.brokers, view.peers[-1]) == (2, (*BROKERS, B5), B5)
    assert view.quorums == following.quorums
    assert view.channel(ORDERS) == channel
    assert (view.may_publish(ALICE, ORDERS), view.may_publish(BOB, ORDERS)) == (False, True)
    assert view.keyring is keyring
    assert keyring.epoch == 2
