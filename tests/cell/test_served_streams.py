"""A channel that is gone takes its streams along, and they never come back under its name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.ordering.test_log import cold, stamped
from tests.support.cells import ALICE, B1, B2, BOB, STREAM, T0, Cell, digests, limited, messages
from tests.support.network import Disk

from quorumcast.broadcast.messages import Open, Publish
from quorumcast.broadcast.times import Search
from quorumcast.cell.messages import Position, Positions, Subscribe
from quorumcast.cell.serving.served_streams import _first_since
from quorumcast.core.envelope import write_envelope
from quorumcast.core.ids import EPOCHS, Channel, Stream, total_order
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.machine import Connected, Drop, DropReason, Forget, Persisted, Receive, Record
from quorumcast.core.quorum import Protection
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.log import Held
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.past import Placed


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


def test_channel_that_was_created_again_names_no_ended_streams_of_the_old_one() -> None:
    cell = Cell(limited("ab", retained_publications=2, window=2, segment=2))
    broker = cell.broker()

    def ended() -> list[Stream]:
        asked = Receive(BOB, Subscribe(STREAM.channel, (), False))
        (told,) = messages(broker.handle(asked, T0), Positions)
        assert isinstance(told, Positions)
        return [position.stream for position in told.positions if position.over]

    for life in (STREAM, replace(STREAM, incarnation=STREAM.incarnation + 2)):
        for number in (1, 2):
            broker.handle(Receive(ALICE, Publish(life, number, digests(b"a")), (b"a",)), T0)
    assert ended() == [STREAM]
    keyring = cell.keyring(broker._view.me)
    broker.adopt(replace(cell.manifest, channels=()), keyring)
    broker.adopt(cell.manifest, keyring)
    assert ended() == []


def test_broker_that_searches_no_further_says_whether_its_oldest_is_older_than_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumcast.broadcast.times.MAX_READ", 0)
    broker = Cell(limited("ab", retained_publications=2, window=2, segment=2)).broker()
    for number, stamp in enumerate((100, 200, 300), 1):
        body = write_envelope(stamp)
        broker.handle(Receive(ALICE, Publish(STREAM, number, digests(body)), (body,)), T0)
    for since, first in ((150, 2), (200, 2), (250, 3), (350, 3)):
        asked = Receive(BOB, Subscribe(STREAM.channel, (), False, since))
        (told,) = messages(broker.handle(asked, T0), Positions)
        assert told == Positions(STREAM.channel, (Position(STREAM, first, 4, 2),))


def test_broker_that_knows_runs_by_their_largest_stamp_looks_into_its_oldest() -> None:
    """A publisher whose clock was far ahead must not make everything look recent."""
    ledger = cold(*stamped(900), tuple(map(write_envelope, (10, 20))), *stamped(30)).log.ledger
    ledger.give_up(2)
    assert ledger.since(Search(15), labelled=True) == 2
    found = [_first_since(ledger, Search(since), labelled=True) for since in (5, 10, 15)]
    assert found == [2, 2, 3]


#: Its name begins with that of the channel that stays.
DELETED = Channel("orders/log")


def placed(channel: str) -> Placed:
    return Placed(Channel(channel), 1, STREAM, 1, digests(b"a"), b"", 1, 1, -1, T0)


def filled() -> tuple[Cell, Disk, set[Forget]]:
    """A cell with one channel, a disk that has records of two, and what is to be removed."""
    disk = Disk()
    gone: tuple[Record, ...] = (
        Stored(Offer(Stream(DELETED, ALICE, 1), 7, digests(b"a")), (b"a",)),
        placed(DELETED),
        Held(DELETED, 1, filling=False),
    )
    kept = (
        Stored(Offer(STREAM, 7, digests(b"a")), (b"a",)),
        Stored(Offer(EPOCHS, 2, digests(b"a")), (b"a",)),
        placed(STREAM.channel),
        Held(STREAM.channel, 1, filling=False),
    )
    for record in (*gone, *kept):
        disk.keep(record)
    removed = {Forget(type(record), record.owner, MAX_NUMBER + 1) for record in gone}
    return Cell(Policy.named("total", journal=True)), disk, removed


def test_broker_that_starts_removes_records_of_deleted_channels() -> None:
    cell, disk, removed = filled()
    broker = cell.broker()
    broker.read_from(disk)
    first = broker.handle(Connected(B2), T0)
    assert {effect for effect in first if isinstance(effect, Forget)} == removed
    again = broker.handle(Connected(B2), T0)
    assert not [effect for effect in again if isinstance(effect, Forget)]


def test_broker_that_adopts_an_epoch_removes_records_of_channels_that_it_deletes() -> None:
    cell, disk, removed = filled()
    with_both = replace(
        cell.manifest,
        channels=(*cell.manifest.channels, replace(cell.manifest.channels[0], name=DELETED)),
    )
    cell.manifest, without = with_both, replace(cell.manifest, epoch=2)
    broker = cell.broker()
    broker.read_from(disk)
    first = broker.handle(Connected(B2), T0)
    assert not [effect for effect in first if isinstance(effect, Forget)]
    adopted = broker.adopt(without, cell.keyring(B1))
    assert removed <= {effect for effect in adopted if isinstance(effect, Forget)}
    # This one was on its way to disk.
    late = placed(DELETED)
    assert broker.handle(Persisted(late), T0) == [Forget(Placed, DELETED, 2, 1)]


@pytest.mark.parametrize("policy", ["total", "total-crash"])
def test_channel_that_was_created_again_has_nothing_of_the_old_one(policy: str) -> None:
    """It was deleted and created again while this broker was away, which adopts both at once."""
    cell, disk, _ = filled()
    first = cell.manifest.channels[0]
    other = replace(first, name=Channel("other"))
    cell.manifest = replace(cell.manifest, channels=(first, other, replace(first, name=DELETED)))
    again = replace(first, name=DELETED, policy=Policy.named(policy, journal=True), since=3)
    following = replace(cell.manifest, epoch=3, channels=(first, other, again))
    broker = cell.broker()
    broker.read_from(disk)
    broker.handle(Connected(B2), T0)
    stream = total_order(DELETED)
    assert broker._sequencers._ordered(DELETED, Protection.BYZANTINE) is not None
    old = broker.served(stream)
    adopted = broker.adopt(following, cell.keyring(B1))
    forgotten = {(e.kind, e.owner) for e in adopted if isinstance(e, Forget)}
    assert {(Placed, DELETED), (Held, DELETED), (Stored, f"{DELETED}/{ALICE}@1")} <= forgotten
    assert (Placed, STREAM.channel) not in forgotten
    logs = {log for log in Protection if broker._sequencers._ordered(DELETED, log) is not None}
    assert logs == {again.policy.log}
    assert broker.served(stream) is not old
