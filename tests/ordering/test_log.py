"""The total order of one channel at one broker: positions, votes, and filling in what it missed."""

from __future__ import annotations

from tests.support.cells import ALICE, B2, BOB, ORDERS, STREAM, T0, Cell, digests, limited, reasons
from tests.support.ordering import BOBS, begun, item, labelled, offer

from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.messages import Contents, Cursor, Open, Pull
from quorumcast.core.ids import Stream, total_order
from quorumcast.core.machine import DropReason, Effect, Forget, Receive, Send, TimerFired
from quorumcast.core.quorum import Protection
from quorumcast.ordering.log import MAX_ATTEMPTS, WANTED, Backfill, OrderedLog
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.sequencer import Tick
from quorumcast.ordering.state import Extent, State

POSITIONS = total_order(ORDERS)
CELL = Cell(limited("total", retained_publications=4, window=4))


def ordered_log() -> OrderedLog:
    return OrderedLog(POSITIONS, CELL.around(B2))


def append(log: OrderedLog, state: State, first: int, *contents: bytes) -> list[Effect]:
    """Order the next run of alice."""
    (extent,) = state.apply((item(first, *contents),))
    return log.append(extent, *offer(CELL, first, *contents))


def state() -> State:
    return begun(4)


def test_log_vouches_for_positions_as_a_stream_of_the_cell() -> None:
    log, made = ordered_log(), state()
    assert append(log, made, 1, b"a", b"b") == [
        Vouch(POSITIONS, 1, digests(*labelled(1, b"a", b"b")))
    ]
    assert append(log, made, 3, b"c") == [Vouch(POSITIONS, 3, digests(*labelled(3, b"c")))]
    assert (log.upto, log.settled, log.final, log.final_from) == (3, 3, 3, 1)


def test_log_answers_pulls_and_nothing_else() -> None:
    log, made = ordered_log(), state()
    append(log, made, 1, b"a", b"b")
    (body,) = labelled(2, b"b")
    assert log.handle(Receive(BOB, Pull(POSITIONS, 2, 5)), T0) == [
        Send((BOB,), Contents(POSITIONS, 2, digests(body)), (body,))
    ]
    assert reasons(log.handle(Receive(BOB, Pull(POSITIONS, 3, 1)), T0)) == [DropReason.NOT_HELD]
    assert reasons(log.handle(Receive(ALICE, Open(STREAM, 1, 1)), T0)) == [DropReason.UNEXPECTED]
    assert log.handle(TimerFired(Tick(Protection.BYZANTINE)), T0) == []


def test_log_lets_go_of_offers_once_none_of_their_positions_is_retained() -> None:
    log, made = ordered_log(), state()
    append(log, made, 1, b"a", b"b")
    append(log, made, 3, b"c", b"d")
    assert log.find(STREAM, 1) is not None
    effects = append(log, made, 5, b"e")
    assert log.find(STREAM, 1) is not None  # position 2 is still there
    effects += append(log, made, 6, b"f")
    assert Forget(Stored, str(STREAM), 2) in effects
    assert log.find(STREAM, 1) is None
    assert log.sizes() == {"ledger": 4, "extents": 3}


def test_log_skips_what_was_ordered_without_it() -> None:
    log, made = ordered_log(), state()
    append(log, made, 1, b"a")
    log.skip_to(9)
    assert (log.upto, log.final_from, log.find(STREAM, 1)) == (8, 9, None)
    log.skip_to(3)
    assert log.upto == 8


# ---------------------------------------------------------------- filling in


def behind(*runs: tuple[bytes, ...]) -> tuple[OrderedLog, Backfill, list[Extent]]:
    """A log that jumped over everything that alice had ordered, and what it lacks."""
    made, log, backfill = state(), ordered_log(), Backfill()
    first = 1
    for contents in runs:
        made.apply((item(first, *contents),))
        first += len(contents)
    log.skip_to(made.head(ORDERS).next)
    backfill.want(log, made.extents[ORDERS])
    return log, backfill, list(made.extents[ORDERS])


def cursor(first: int, stream: Stream = STREAM) -> Cursor:
    return Cursor(stream, first)


def test_backfill_asks_for_what_is_lacking_newest_first() -> None:
    _, backfill, _ = behind((b"a",), (b"b", b"c"), (b"d",))
    assert backfill.wanted() == [cursor(4), cursor(2), cursor(1)]


def test_backfill_writes_backwards_without_a_hole() -> None:
    log, backfill, _ = behind((b"a",), (b"b", b"c"), (b"d",))
    assert backfill.take(*offer(CELL, 1, b"a"))
    assert log.ledger.base == 5  # its turn has not come
    assert backfill.take(*offer(CELL, 4, b"d"))
    assert log.ledger.base == 4
    assert backfill.take(*offer(CELL, 2, b"b", b"c"))
    assert (log.ledger.base, log.ledger.next) == (1, 5)
    assert not backfill
    assert log.find(STREAM, 2) is not None
    held = log.ledger.read(1, 9, 1 << 20)
    assert held is not None
    assert held.bodies == labelled(1, b"a", b"b", b"c", b"d")


def test_backfill_takes_only_what_the_state_vouches_for() -> None:
    log, backfill, _ = behind((b"a",))
    assert not backfill.take(*offer(CELL, 1, b"x"))
    assert not backfill.take(*offer(CELL, 1, b"a", stream=BOBS))
    assert not backfill.take(*offer(CELL, 2, b"b"))
    assert log.ledger.base == 2
    assert backfill.take(*offer(CELL, 1, b"a"))
    assert not backfill.take(*offer(CELL, 1, b"a"))


def test_backfill_keeps_only_what_is_retained() -> None:
    """Positions 1 to 6 with a retention of four: the state names the last four."""
    log, backfill, extents = behind(*[(b"%d" % n,) for n in range(1, 7)])
    assert [extent.position for extent in extents] == [3, 4, 5, 6]
    for first in (6, 5, 4, 3):
        assert backfill.take(*offer(CELL, first, b"%d" % first))
    assert (log.ledger.base, bool(backfill)) == (3, False)


def test_backfill_that_nobody_can_help_with_is_given_up() -> None:
    _, backfill, _ = behind((b"a",))
    asked = [backfill.wanted() for _ in range(MAX_ATTEMPTS + 2)]
    assert asked.count([cursor(1)]) == MAX_ATTEMPTS
    assert not backfill


def test_backfill_from_the_disk_takes_what_is_there_at_once() -> None:
    log, backfill, _ = behind((b"a",), (b"b",), (b"c",))
    known = {2: offer(CELL, 2, b"other"), 3: offer(CELL, 3, b"c")}
    backfill.fill_from(lambda stream, first: known.get(first))
    assert log.ledger.base == 3  # what the disk has under 2 is not what was ordered
    assert backfill.wanted() == [cursor(2), cursor(1)]


def test_backfill_asks_for_a_bounded_number_at_a_time() -> None:
    wide = Cell(limited("total", retained_publications=1000))
    made = begun(1000)
    for number in range(1, 101):
        made.apply((item(number, b"x"),))
    log = OrderedLog(POSITIONS, wide.around(B2))
    log.skip_to(101)
    backfill = Backfill()
    backfill.want(log, made.extents[ORDERS])
    assert len(backfill.wanted()) == WANTED
    assert not backfill.take(*offer(CELL, 1, b"x"))  # too early to be kept
