"""A channel that is gone takes its streams along, and they never come back under its name."""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.cells import ALICE, STREAM, T0, Cell, digests

from quorumcast.broadcast.messages import Open, Publish
from quorumcast.core.machine import Drop, DropReason, Receive
from quorumcast.manifest.policy import Policy


def test_streams_of_a_deleted_channel_go_and_stay_gone() -> None:
    cell = Cell(Policy.named("ab"))
    broker = cell.broker()
    publish = Receive(ALICE, Publish(STREAM, 1, digests(b"a")), (b"a",))
    broker.handle(publish, T0)
    assert list(broker.streams()) == [STREAM]

    without = replace(cell.manifest, channels=())
    broker.adopt(without, cell.keyring(broker._view.me))
    assert broker.streams() == {}
    effects = broker.handle(publish, T0)
    assert Drop(DropReason.UNKNOWN_CHANNEL, ALICE) in effects

    broker.adopt(cell.manifest, cell.keyring(broker._view.me))
    # It vouched for this stream once and has forgotten what it said.
    assert broker.handle(publish, T0) == [Drop(DropReason.UNKNOWN_STREAM, ALICE)]
    later = replace(STREAM, incarnation=2)
    broker.handle(Receive(ALICE, Open(later, 1, 1)), T0)
    assert list(broker.streams()) == [later]
