"""The total order of one channel at one broker: positions, votes, retention, memory and disk."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.cells import ALICE, B2, BOB, ORDERS, STREAM, T0, Cell, digests, limited, reasons
from tests.support.network import Disk
from tests.support.ordering import begun, item, labelled, offer

from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.messages import Contents, Open, Pull
from quorumcast.broadcast.times import Search
from quorumcast.core.envelope import write_envelope
from quorumcast.core.ids import DIGEST_SIZE, Millis, total_order
from quorumcast.core.machine import (
    Bodies,
    DropReason,
    Effect,
    Forget,
    Persist,
    Receive,
    Send,
    TimerFired,
)
from quorumcast.core.quorum import Protection
from quorumcast.ordering.log import Held, Island, OrderedLog
from quorumcast.ordering.messages import Past
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.past import MAX_PEAKS, Placed
from quorumcast.ordering.sequencer import Tick
from quorumcast.ordering.state import Extent, Head, State

POSITIONS = total_order(ORDERS)
SMALL = limited("total", retained_publications=4, window=4)
CELL = Cell(SMALL)
#: Nothing but the newest run stays in memory.
COLD = Cell(limited("total", retained_publications=100, window=4, cached_bytes=1))


def limited_to(publications: int) -> Cell:
    """A cell whose channel retains so many, and has the newest run alone in memory."""
    return Cell(limited("total", retained_publications=publications, window=2, cached_bytes=1))


class Orders:
    """A log, the state that gives it positions, and perhaps a disk."""

    def __init__(self, cell: Cell = CELL, disk: Disk | None = None) -> None:
        self.state: State = begun()
        self.disk = disk
        self.log = OrderedLog(POSITIONS, cell.around(B2))
        self.log.ledger.archive = disk

    @property
    def head(self) -> Head:
        return self.state.head(ORDERS)

    def append(self, first: int, *contents: bytes, now: Millis = T0) -> list[Effect]:
        """Order the next run of alice, and wait for the disk."""
        (extent,) = self.state.apply((item(first, *contents),))
        made, bodies = offer(CELL, first, *contents)
        if self.disk is not None:
            self.disk.keep(Stored(made, bodies))
        return self.write(self.log.append(extent, made, bodies, now))

    def write(self, effects: list[Effect]) -> list[Effect]:
        """Let the disk do what the log asks for."""
        disk = self.disk or Disk()
        records = [effect.record for effect in effects if isinstance(effect, Persist)]
        for effect in effects:
            if isinstance(effect, Persist):
                disk.keep(effect.record)
            if isinstance(effect, Forget):
                disk.forget(effect)
        more = [self.log.persisted(record) for record in records if isinstance(record, Placed)]
        return effects + [effect for found in more for effect in self.write(found)]

    def again(self, cell: Cell | None = None) -> Orders:
        """The log after a restart."""
        later = Orders(cell or COLD, self.disk)
        later.state = self.state
        later.write(later.log.restore(self.head.next, self.head.chain))
        return later

    def past(self, position: int) -> tuple[Past, tuple[bytes, ...]]:
        """The run before a position, as another broker would send it."""
        placed = self.log.run_before(position)
        assert placed is not None
        found = self.log.find(placed.stream, placed.first)
        assert found is not None
        made, bodies = found
        return (
            Past(
                Protection.BYZANTINE,
                placed.position,
                placed.chain,
                self.log.ledger.base,
                made.stream,
                made.first,
                made.digests,
                made.signature,
            ),
            bodies,
        )


def contents(log: OrderedLog, first: int = 1) -> list[bytes]:
    """Everything that can be read, without labels."""
    found: list[bytes] = []
    while (held := log.ledger.read(first, 100, 1 << 20)) is not None:
        assert held.digests == digests(*held.bodies)
        found += [body[2 + int.from_bytes(body[:2], "big") :] for body in held.bodies]
        first = held.first + len(held.bodies)
    return found


def test_log_vouches_for_positions_as_a_stream_of_the_cell() -> None:
    orders = Orders()
    assert orders.append(1, b"a", b"b") == [Vouch(POSITIONS, 1, digests(*labelled(1, b"a", b"b")))]
    assert orders.append(3, b"c") == [Vouch(POSITIONS, 3, digests(*labelled(3, b"c")))]
    log = orders.log
    assert (log.upto, log.settled, log.final, log.final_from) == (3, 3, 3, 1)


def test_log_answers_pulls_and_nothing_else() -> None:
    orders = Orders()
    orders.append(1, b"a", b"b")
    log = orders.log
    (body,) = labelled(2, b"b")
    assert log.handle(Receive(BOB, Pull(POSITIONS, 2, 5)), T0) == [
        Send((BOB,), Contents(POSITIONS, 2, digests(body)), (body,))
    ]
    assert reasons(log.handle(Receive(BOB, Pull(POSITIONS, 3, 1)), T0)) == [DropReason.NOT_HELD]
    assert reasons(log.handle(Receive(ALICE, Open(STREAM, 1, 1)), T0)) == [DropReason.UNEXPECTED]
    assert log.handle(TimerFired(Tick(Protection.BYZANTINE)), T0) == []


# ------------------------------------------------------------------- retention


def test_retention_drops_a_run_once_the_rest_is_enough() -> None:
    orders = Orders()
    orders.append(1, b"a", b"b")
    orders.append(3, b"c", b"d")
    assert orders.append(5, b"e")[1:] == []
    effects = orders.append(6, b"f")
    assert Forget(Stored, str(STREAM), 2) in effects
    assert Forget(Placed, ORDERS, 3) in effects
    assert orders.log.find(STREAM, 1) is None
    assert (orders.log.ledger.base, contents(orders.log)) == (3, [b"c", b"d", b"e", b"f"])


@pytest.mark.parametrize("disk", [None, Disk()])
def test_retention_by_bytes_keeps_at_least_so_many(disk: Disk | None) -> None:
    size = len(labelled(1, b"x" * 100)[0])
    cell = Cell(limited("total", retained_bytes=2 * size, window=4, cached_bytes=1))
    orders = Orders(cell, disk)
    for number in range(1, 6):
        orders.append(number, b"x" * 100)
    assert orders.log.ledger.base == 4


@pytest.mark.parametrize("disk", [None, Disk()])
def test_retention_by_age_waits_for_the_stable_checkpoint(disk: Disk | None) -> None:
    cell = Cell(limited("total", retained_ms=1000, window=4, cached_bytes=1))
    orders = Orders(cell, disk)
    for number in range(1, 4):
        orders.append(number, b"x", now=Millis(100 * number))
    assert orders.log.trim(Millis(5000)) == []
    orders.log.spare = 3
    orders.write(orders.log.trim(Millis(1250)))
    assert orders.log.ledger.base == 3
    assert orders.log.trim(Millis(5000)) == []


@pytest.mark.parametrize("clock", [0, 10**9])
def test_retention_by_age_counts_from_the_restart_because_the_clock_may_be_another(
    clock: int,
) -> None:
    cell = Cell(limited("total", retained_ms=1000, window=4, cached_bytes=1))
    orders = Orders(cell, Disk())
    orders.append(1, b"a", now=Millis(10**6))
    later = orders.again(cell)
    later.log.spare = 2
    assert later.log.trim(Millis(clock)) == []
    assert later.log.trim(Millis(clock + 999)) == []
    later.append(2, b"b", now=Millis(clock + 999))
    later.log.spare = 3
    later.write(later.log.trim(Millis(clock + 1000)))
    assert later.log.ledger.base == 2
    later.write(later.log.trim(Millis(clock + 1999)))
    assert later.log.ledger.base == 3


def lowered(runs: int) -> Orders:
    """Single publications on disk, of which the last four are retained from now on."""
    cell = Cell(limited("total", retained_publications=100, window=4, cached_bytes=1))
    context = cell.around(B2)
    orders = Orders(cell, Disk())
    orders.log = OrderedLog(POSITIONS, context)
    orders.log.ledger.archive = orders.disk
    for number in range(1, runs + 1):
        orders.append(number, b"x")
    policy = limited("total", retained_publications=4, window=4)
    manifest = cell.manifest
    (entry,) = manifest.channels
    entry = replace(entry, policy=policy)
    context.view.adopt(replace(manifest, channels=(entry,), epoch=2), context.view.keyring)
    return orders


def test_retention_that_is_lowered_applies_to_what_is_there() -> None:
    orders = lowered(9)
    orders.write(orders.log.trim(T0))
    assert orders.log.ledger.base == 6
    assert orders.disk is not None
    assert {place for kind, _, place in orders.disk.records if kind is Placed} == {6, 7, 8, 9}


def test_sweep_of_a_broker_leaves_retention_to_the_log() -> None:
    """The sweep does not know which contents a restart needs to execute batches again."""
    orders = lowered(9)
    assert orders.log.expire(T0, 1000) == []
    assert orders.log.ledger.base == 1


def test_retention_removes_positions_before_their_contents() -> None:
    """A crash in between leaves contents that nothing names, and no position without contents."""
    removed = [effect for effect in lowered(9).log.trim(T0) if isinstance(effect, Forget)]
    assert [effect.kind for effect in removed] == [Placed] + [Stored] * 5


@pytest.mark.parametrize("damaged", [range(1, 2), range(3, 5), range(5, 8), range(1, 9)])
def test_retention_goes_on_behind_damaged_records(damaged: range) -> None:
    orders = lowered(9)
    assert orders.disk is not None
    orders.disk.forget(Forget(Placed, ORDERS, damaged.stop, damaged.start))
    orders.write(orders.log.trim(T0))
    for number in range(10, 15):
        orders.append(number, b"y")
    assert (orders.log.ledger.base, contents(orders.log)) == (11, [b"y"] * 4)


# ------------------------------------------------------------- memory and disk


def cold(*runs: tuple[bytes, ...]) -> Orders:
    """Runs of which memory holds the last alone."""
    orders = Orders(COLD, Disk())
    first = 1
    for run in runs:
        orders.append(first, *run)
        first += len(run)
    return orders


def test_memory_holds_the_newest_and_the_disk_the_rest() -> None:
    orders = cold((b"a",), (b"b", b"c"), (b"d",), (b"e",))
    ledger = orders.log.ledger
    assert (ledger.base, ledger.warm, ledger.next) == (1, 5, 6)
    assert contents(orders.log) == [b"a", b"b", b"c", b"d", b"e"]
    assert contents(orders.log, 3) == [b"c", b"d", b"e"]
    assert orders.log.find(STREAM, 2) == offer(CELL, 2, b"b", b"c")
    everything = digests(*labelled(1, b"a", b"b", b"c", b"d", b"e"))
    assert ledger.digests(1, 5) == everything
    assert ledger.digests(3, 2) == everything[2 * DIGEST_SIZE : 4 * DIGEST_SIZE]
    assert ledger.digests(3, 4) is None
    assert ledger.digest(3) == everything[2 * DIGEST_SIZE : 3 * DIGEST_SIZE]


def test_reading_from_disk_keeps_to_its_limits_and_reads_one_at_least() -> None:
    orders = cold((b"a" * 50, b"b" * 50), (b"c" * 50,), (b"d",))
    size = len(labelled(1, b"a" * 50)[0])
    read = orders.log.ledger.read
    limits = ((9, 1), (9, 2 * size), (9, 3 * size), (2, 9999), (1, 9999))
    lengths = [len(held.bodies) for limit in limits if (held := read(1, *limit)) is not None]
    assert lengths == [1, 2, 3, 2, 1]


def test_votes_need_no_contents() -> None:
    orders = cold((b"a",), (b"b",), (b"c",))
    assert orders.disk is not None
    orders.disk.forget(Forget(Stored, str(STREAM), 9))
    held = orders.log.ledger.read_digests(1, 9, 9)
    assert held is not None
    assert held.digests == digests(*labelled(1, b"a", b"b"))
    assert orders.log.ledger.read(1, 9, 9) is None  # the disk has lost them


def test_another_offer_under_the_same_name_is_not_what_was_ordered() -> None:
    orders = cold((b"a",), (b"b",), (b"c",))
    assert orders.disk is not None
    orders.disk.keep(Stored(*offer(CELL, 2, b"other")))
    assert contents(orders.log) == [b"a"]


def test_restart_holds_what_the_disk_holds() -> None:
    later = cold((b"a",), (b"b", b"c"), (b"d",)).again()
    ledger = later.log.ledger
    assert (ledger.base, ledger.warm, ledger.next) == (1, 5, 5)
    assert not later.log.filling
    later.append(5, b"e")
    assert contents(later.log) == [b"a", b"b", b"c", b"d", b"e"]


# --------------------------------------------------------------- filling in


def filled(log: OrderedLog, past: Past, bodies: Bodies) -> list[Effect]:
    """What a log does with the run that it lacks."""
    effects = log.prepend(past, bodies, T0)
    assert effects is not None
    return effects


def test_log_without_a_disk_fills_in_what_was_ordered_without_it() -> None:
    others, late = cold((b"a",), (b"b", b"c"), (b"d",)), Orders()
    late.log.skip_to(5, others.head.chain)
    assert late.log.filling
    assert late.log.prepend(*others.past(5), T0) == []
    assert late.log.prepend(*others.past(4), T0) == []
    assert (late.log.ledger.base, late.log.has_room) == (2, True)
    assert contents(late.log) == [b"b", b"c", b"d"]
    assert late.log.prepend(*others.past(2), T0) == []
    assert (late.log.ledger.base, late.log.has_room) == (1, False)


def test_filled_in_run_must_be_the_one_that_the_chain_stands_for() -> None:
    others, late = cold((b"a",), (b"b",), (b"c",)), Orders(COLD, Disk())
    late.log.skip_to(4, others.head.chain)
    past, bodies = others.past(4)
    lie, lies = cold((b"a",), (b"b",), (b"x",)).past(4)
    assert late.log.prepend(lie, lies, T0) is None
    assert late.log.prepend(replace(past, chain=bytes(32)), bodies, T0) is None
    assert not late.log.is_next(others.past(3)[0])
    assert late.log.is_next(past)
    late.write(filled(late.log, past, bodies))
    assert contents(late.log, 3) == [b"c"]


def stamped(*stamps: int) -> tuple[tuple[bytes, ...], ...]:
    """Runs of one publication each, published at these times."""
    return tuple((write_envelope(stamp),) for stamp in stamps)


def first_since(orders: Orders, stamp: int) -> int:
    return orders.log.ledger.since(Search(stamp), labelled=True)


def test_search_by_time_in_what_was_filled_in_does_not_begin_too_late() -> None:
    """Nobody can say what lies before a run that was fetched, so nobody is asked."""
    stamps = (10, 70, 20, 60, 30, 40, 80)
    others, late = cold(*stamped(*stamps)), Orders(COLD, Disk())
    late.state = others.state
    late.write(late.log.skip_to(8, others.head.chain))
    for position in range(8, 1, -1):
        late.write(filled(late.log, *others.past(position)))
    for orders in (others, late, late.again()):
        found = [first_since(orders, stamp) for stamp in (5, 15, 60, 65, 75)]
        assert found == [1, 2, 2, 2, 7]


def test_search_by_time_in_what_was_joined_again_does_not_begin_too_late() -> None:
    runs = stamped(10, 70, 20, 30, 80)
    others, late = cold(*runs), cold(*runs[:2])
    late.state = others.state
    late.write(late.log.skip_to(6, others.head.chain))
    for position in (6, 5, 4):
        late.write(filled(late.log, *others.past(position)))
    assert late.log.ledger.base == 1
    assert [first_since(late, stamp) for stamp in (5, 15, 65, 75)] == [1, 2, 2, 5]


def test_search_by_time_with_too_many_peaks_begins_too_early() -> None:
    stamps = [number + 100 * (number % 2) for number in range(1, 2 * MAX_PEAKS + 20)]
    others, late = cold(*stamped(*stamps)), Orders(COLD, Disk())
    late.write(late.log.skip_to(len(stamps) + 1, others.head.chain))
    for position in range(len(stamps) + 1, 1, -1):
        late.write(filled(late.log, *others.past(position)))
    assert len(late.log.ledger.peaks) == MAX_PEAKS
    for stamp in range(200):
        assert first_since(late, stamp) <= first_since(others, stamp)


def test_what_is_filled_in_is_held_once_the_disk_has_it() -> None:
    others, late = cold((b"a",), (b"b",), (b"c",)), Orders(COLD, Disk())
    late.write(late.log.skip_to(4, others.head.chain))
    first = filled(late.log, *others.past(4))
    second = filled(late.log, *others.past(3))
    assert (late.log.ledger.base, late.log.lowest[0], late.log.arriving) == (4, 2, True)
    late.write(first)
    assert late.log.ledger.base == 3
    late.write(second)
    assert (late.log.ledger.base, late.log.arriving) == (2, False)
    assert contents(late.log, 2) == [b"b", b"c"]
    late.state = others.state
    assert late.again().log.filling  # a restart goes on with it


def test_what_was_held_before_a_state_transfer_is_joined_again() -> None:
    early = ((b"a",), (b"b",), (b"c",))
    others, late = cold(*early, (b"d",), (b"e",)), cold(*early)
    late.write(late.log.skip_to(6, others.head.chain))
    assert (late.log.ledger.base, late.log.sizes()["islands"]) == (6, 1)
    late.state = others.state
    late = late.again()
    late.write(filled(late.log, *others.past(6)))
    assert late.log.ledger.base == 5
    late.write(filled(late.log, *others.past(5)))
    assert (late.log.ledger.base, late.log.sizes()["islands"]) == (1, 0)
    assert contents(late.log) == [b"a", b"b", b"c", b"d", b"e"]
    assert contents(late.again().log) == [b"a", b"b", b"c", b"d", b"e"]


def test_retention_by_bytes_counts_what_was_fetched_before_it_was_joined_again() -> None:
    """A broker that is away again and again must not retain more each time."""
    run = len(labelled(1, b"x")[0])
    cell = Cell(limited("total", window=2, cached_bytes=1, retained_bytes=9 * run))
    others, late = cold(), Orders(cell, Disk())
    for first in range(1, 21, 4):
        for number in range(first, first + 3):
            others.append(number, b"x")
        head = others.head
        late.write(late.log.skip_to(head.next, head.chain))
        others.append(first + 3, b"x")
        made, bodies = offer(CELL, first + 3, b"x")
        extent = Extent(head.next, STREAM, made.first, head.chain)
        late.write([Persist(Stored(made, bodies)), *late.log.append(extent, made, bodies, T0)])
        while (lowest := late.log.lowest[0]) > 1 and late.log.is_next(others.past(lowest)[0]):
            late.write(filled(late.log, *others.past(lowest)))
        late.write(late.log.trim(T0))
        late.state = others.state
        late = late.again(cell)
        assert late.log.ledger.base == max(1, others.head.next - 9)
        assert len(contents(late.log, late.log.ledger.base)) == min(9, first + 3)


def test_fetching_ends_at_what_was_held_before_until_that_is_joined() -> None:
    """A peer sends many runs at once, also some that are on this disk."""
    early = ((b"a",), (b"b",), (b"c",))
    others, late = cold(*early, (b"d",), (b"e",)), cold(*early)
    late.write(late.log.skip_to(6, others.head.chain))
    arriving = [filled(late.log, *others.past(6)), filled(late.log, *others.past(5))]
    assert not late.log.is_next(others.past(4)[0])
    for effects in arriving:
        late.write(effects)
    assert (late.log.ledger.base, late.log.sizes()["islands"]) == (1, 0)
    assert contents(late.log) == [b"a", b"b", b"c", b"d", b"e"]


def test_what_was_held_before_is_joined_after_a_crash_at_the_last_moment() -> None:
    """All that was missing is on disk, and not that it was joined."""
    early = ((b"a",), (b"b",))
    others, late = cold(*early, (b"c",)), cold(*early)
    late.write(late.log.skip_to(4, others.head.chain))
    assert late.disk is not None
    for effect in filled(late.log, *others.past(4)):
        assert isinstance(effect, Persist)
        late.disk.keep(effect.record)
    late.state = others.state
    late = late.again()
    assert (late.log.ledger.base, late.log.sizes()["islands"]) == (1, 0)
    assert contents(late.log) == [b"a", b"b", b"c"]
    assert contents(late.again().log) == [b"a", b"b", b"c"]


def test_what_was_held_before_is_dropped_if_it_is_not_what_was_ordered() -> None:
    others, late = cold((b"a",), (b"b",), (b"c",)), cold((b"x",))
    late.write(late.log.skip_to(4, others.head.chain))
    for before in (4, 3):
        late.write(filled(late.log, *others.past(before)))
    assert (late.log.ledger.base, late.log.sizes()["islands"]) == (2, 0)
    assert contents(late.log, 2) == [b"b", b"c"]


def test_what_was_held_before_goes_if_there_is_no_room_for_what_lies_between() -> None:
    late = cold((b"a",), (b"b",))
    assert late.disk is not None
    late.write(late.log.skip_to(9, bytes(32)))
    assert late.disk.get(Held, ORDERS, 0) == Held(ORDERS, 9, True, (Island(1, 3, late.head.chain),))
    late.write(late.log.stop_filling())
    late.write(late.log.clear_islands(T0))
    late.write(late.log.clear_islands(T0))
    assert not late.disk.owners(Placed)
    assert not late.disk.owners(Stored)


def test_runs_on_their_way_to_disk_are_bounded_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others, late = cold((b"a",), (b"b",), (b"c",)), Orders(COLD, Disk())
    monkeypatch.setattr("quorumcast.ordering.log.ARRIVING_BYTES", len(labelled(3, b"c")[0]) + 1)
    late.write(late.log.skip_to(4, others.head.chain))
    arriving, room = [], []
    for before in (4, 3):
        arriving += filled(late.log, *others.past(before))
        room.append(late.log.has_room)
    late.write(arriving)
    assert [*room, late.log.has_room] == [True, False, True]


def test_fetching_ends_when_retention_drops_something() -> None:
    """What was removed must neither be fetched again nor be joined, whatever the limits later."""
    others = cold((b"a",), (b"b",), (b"c",), (b"d",))
    late = Orders(limited_to(2), Disk())
    assert late.disk is not None
    late.append(1, b"a")
    late.write(late.log.skip_to(5, others.head.chain))
    late.state = others.state
    arriving = filled(late.log, *others.past(5))
    for number in range(5, 8):
        late.append(number, b"x")
    assert (late.log.filling, late.log.arriving, late.log.ledger.base) == (False, False, 6)
    held = late.disk.get(Held, ORDERS, 0)
    assert held is not None
    assert not held.filling
    late.write(arriving)
    assert late.log.ledger.base == 6
    # A state transfer does not bring it back, nor does a restart.
    late.write(late.log.skip_to(20, bytes(32)))
    assert late.log.sizes()["islands"] == 1


def test_what_was_held_before_goes_when_it_is_too_old_although_the_rest_does_not_come() -> None:
    cell = Cell(limited("total", retained_ms=1000, window=4, cached_bytes=1))
    late = Orders(cell, Disk())
    assert late.disk is not None
    late.append(1, b"a", now=Millis(0))
    late.append(2, b"b", now=Millis(900))
    late.write(late.log.skip_to(9, bytes(32)))
    late.log.spare = 9
    late.write(late.log.clear_islands(Millis(1000)))
    assert {place for kind, _, place in late.disk.records if kind is Placed} == {2}
    late.write(late.log.clear_islands(Millis(1900)))
    assert not late.disk.owners(Placed)
    assert late.log.filling


def test_new_channel_with_the_name_of_a_deleted_one_begins_after_its_positions() -> None:
    old = Orders()
    old.append(1, b"a", b"b")
    disk = Disk()
    new = Orders(disk=disk)
    new.write(new.log.begin_after(old.head.next, old.head.chain))
    assert (new.log.ledger.base, new.log.ledger.next, new.log.filling) == (3, 3, False)
    assert new.log.begin_after(9, b"") == []
    # Nobody is asked for the deleted past after a restart, either.
    restarted = Orders(disk=disk)
    restarted.write(restarted.log.restore(old.head.next, old.head.chain))
    assert (restarted.log.ledger.base, restarted.log.filling) == (3, False)
