"""From decided batches to positions, at one broker that has a disk or none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.cells import (
    ALICE,
    B2,
    ORDERS,
    STREAM,
    T0,
    Cell,
    digests,
    life_of,
    messages,
    sent,
)
from tests.support.network import Disk
from tests.support.ordering import BOBS, TOTAL, begun, item, labelled, offer

from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.messages import Ack
from quorumcast.core.ids import Channel, Stream, resumable, total_order
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Effect, Forget, Persist, Record
from quorumcast.core.quorum import Protection
from quorumcast.ordering.consensus import Voted
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.execution import Decided, Execution, Snapshot
from quorumcast.ordering.log import Held, OrderedLog
from quorumcast.ordering.messages import Batch
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.past import Placed
from quorumcast.ordering.state import STREAMS_KEPT, StateImage

BYZANTINE = Protection.BYZANTINE
CELL = Cell(TOTAL)
POSITIONS = total_order(ORDERS)


class Bench:
    """An execution with the order of one channel."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.log = OrderedLog(POSITIONS, CELL.around(B2))
        self.log.ledger.archive = disk
        around = LogContext(
            CELL.manifest.broker_ids,
            CELL.keyring(B2),
            CELL.manifest.hash,
            limits=lambda _: Limits(),
            may_publish=lambda stream: stream.channel == ORDERS,
            log_of=lambda channel: self.log if channel == ORDERS else None,
            life=life_of(B2),
            archive=disk,
        )
        self.execution = Execution(
            BYZANTINE, around, begun(), signed=True, durable=disk is not None
        )

    def hold(self, first: int, *contents: bytes, stream: Stream = STREAM) -> None:
        made, bodies = offer(CELL, first, *contents, stream=stream)
        self.execution.offers.add(stream.publisher, made, bodies, T0)

    def order(self, *runs: tuple[int, bytes]) -> list[Effect]:
        """Hold and execute a batch of alice's."""
        batch: Batch = ()
        for first, body in runs:
            self.hold(first, body)
            batch += (item(first, body),)
        return self.execution.apply(batch, T0)


def records(effects: list[Effect]) -> list[Record]:
    return [effect.record for effect in effects if isinstance(effect, Persist)]


def test_missing_is_what_is_neither_here_nor_ordered() -> None:
    bench = Bench()
    bench.hold(1, b"a")
    batch = (item(1, b"a"), item(2, b"b"), item(1, b"x", stream=BOBS))
    assert bench.execution.missing(batch) == [item(2, b"b"), item(1, b"x", stream=BOBS)]
    assert bench.execution.missing((item(1, b"other"),)) == [item(1, b"other")]
    bench.execution.apply((item(1, b"a"),), T0)
    assert bench.execution.missing((item(1, b"a"),)) == []


def test_missing_run_of_a_stream_that_has_ended_is_not_waited_for() -> None:
    bench = Bench()
    bench.order((1, b"a"))
    bench.hold(2, b"b")
    proposed = (item(2, b"b"),)
    for later in range(1, STREAMS_KEPT + 1):
        stream = replace(STREAM, incarnation=STREAM.incarnation + later)
        bench.hold(1, b"x", stream=stream)
        assert bench.execution.offers.holds(*proposed)
        bench.execution.apply((item(1, b"x", stream=stream),), T0)
    assert not bench.execution.offers.holds(*proposed)
    assert bench.execution.missing(proposed) == []
    assert bench.execution.taken(proposed) == []


def test_apply_writes_positions_and_acknowledges_each_stream_once() -> None:
    bench = Bench()
    bench.hold(1, b"a", b"b")
    bench.hold(3, b"c")
    bench.hold(1, b"x", stream=BOBS)
    effects = bench.execution.apply(
        (item(1, b"a", b"b"), item(1, b"x", stream=BOBS), item(3, b"c")), T0
    )
    assert [e for e in effects if isinstance(e, Vouch)] == [
        Vouch(POSITIONS, 1, digests(*labelled(1, b"a", b"b"))),
        Vouch(POSITIONS, 3, digests(*labelled(1, b"x", stream=BOBS))),
        Vouch(POSITIONS, 4, digests(*labelled(3, b"c"))),
    ]
    assert messages(effects, Ack) == [Ack(STREAM, 3, 3 + 1024, 3), Ack(BOBS, 1, 1 + 1024, 1)]
    assert not bench.execution.offers
    assert bench.execution.executed == 1


def test_apply_of_an_empty_batch_is_an_execution_too() -> None:
    bench = Bench()
    assert bench.execution.apply((), T0) == []
    assert bench.execution.executed == 1


def test_find_gives_offers_that_wait_and_offers_that_were_ordered() -> None:
    bench = Bench()
    bench.hold(1, b"a")
    assert bench.execution.find(STREAM, 1) == offer(CELL, 1, b"a")
    bench.execution.apply((item(1, b"a"),), T0)
    assert bench.execution.find(STREAM, 1) == offer(CELL, 1, b"a")
    assert bench.execution.find(STREAM, 2) is None


def test_apply_with_a_disk_keeps_what_was_decided() -> None:
    bench = Bench(Disk())
    effects = bench.order((1, b"a"))
    assert [type(record) for record in records(effects)] == [Placed, Decided]
    assert Decided(BYZANTINE, 1, (item(1, b"a"),)) in records(effects)
    assert records(Bench().order((1, b"a"))) == []


def test_keep_with_a_disk_stores_the_offer() -> None:
    made, bodies = offer(CELL, 1, b"a")
    assert records(Bench(Disk()).execution.keep(made, bodies)) == [Stored(made, bodies)]
    assert Bench().execution.keep(made, bodies) == []


def test_forget_removes_votes_and_decisions_up_to_an_instance() -> None:
    execution = Bench(Disk()).execution
    assert execution.forget(4) == [
        Forget(Voted, "byzantine", 5),
        Forget(Decided, "byzantine", 5),
    ]
    assert execution.forget(0) == []
    assert Bench().execution.forget(4) == []


def test_checkpoint_is_the_state_right_now() -> None:
    bench = Bench(Disk())
    bench.order((1, b"a"))
    image = bench.execution.state.image()
    made, effects = bench.execution.checkpoint()
    assert isinstance(made, StateImage)
    assert (made.instance, b"".join(made.chunks)) == (1, image)
    assert records(effects) == [Snapshot(BYZANTINE, 1, image)]


def test_jump_goes_on_after_a_state_and_acknowledges_what_it_brings() -> None:
    far = Bench()
    far.order((1, b"a"), (2, b"b"))
    late = Bench()
    late.hold(2, b"b")
    late.hold(3, b"c")
    effects = late.execution.jump(7, far.execution.state.image())
    assert effects is not None
    assert [send.message for send in sent(effects)] == [Ack(STREAM, 2, 1026, 2)]
    assert (late.execution.executed, late.log.upto) == (7, 2)
    assert [held.offer.first for held in late.execution.offers.waiting()] == [3]
    assert late.execution.apply((item(3, b"c"),), T0)[0] == Vouch(
        POSITIONS, 3, digests(*labelled(3, b"c"))
    )


def test_jump_to_what_is_no_state_is_none() -> None:
    bench = Bench()
    assert bench.execution.jump(7, b"nonsense") is None
    assert bench.execution.executed == 0


def test_restored_snapshot_goes_on_with_what_the_disk_holds() -> None:
    disk = Disk()
    before = Bench(disk)
    stored = [Stored(*offer(CELL, n, b)) for n, b in ((1, b"a"), (2, b"b"), (3, b"c"))]
    for record in (*stored, *records(before.order((1, b"a"), (2, b"b")))):
        disk.keep(record)
    (snapshot,) = records(before.execution.checkpoint()[1])
    assert isinstance(snapshot, Snapshot)

    after = Bench(disk)
    assert after.execution.restore(snapshot) == []
    after.execution.requeue((), T0)
    assert after.execution.state.image() == before.execution.state.image()
    assert (after.log.ledger.base, after.log.ledger.next) == (1, 3)
    assert not after.execution.backfill
    waiting = [held.offer.first for held in after.execution.offers.waiting()]
    assert waiting == [3]


def test_restored_snapshot_whose_contents_the_disk_lost_is_filled_in_by_others() -> None:
    before = Bench(Disk())
    before.order((1, b"a"), (2, b"b"))
    (snapshot,) = records(before.execution.checkpoint()[1])
    assert isinstance(snapshot, Snapshot)
    after = Bench(Disk())
    assert records(after.execution.restore(snapshot) or []) == [Held(ORDERS, 3, filling=True)]
    assert (after.log.ledger.base, bool(after.execution.backfill)) == (3, True)


def test_offers_of_a_line_that_the_state_forgot_are_not_ordered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumcast.ordering.state.LINES_KEPT", 1)
    disk, before = Disk(), Bench(Disk())
    forgotten, known, new = (Stream(ORDERS, ALICE, resumable(line, 1)) for line in (1, 2, 3))
    for stream in (forgotten, known):
        before.hold(1, b"x", stream=stream)
        before.execution.apply((item(1, b"x", stream=stream),), T0)
    for stream, first in ((forgotten, 1), (known, 1), (known, 2), (new, 1)):
        disk.keep(Stored(*offer(CELL, first, b"x", stream=stream)))
    (snapshot,) = records(before.execution.checkpoint()[1])
    assert isinstance(snapshot, Snapshot)

    after = Bench(disk)
    after.execution.restore(snapshot)
    after.execution.requeue((item(1, b"x", stream=new),), T0)
    waiting = [(held.offer.stream, held.offer.first) for held in after.execution.offers.waiting()]
    assert waiting == [(known, 2), (new, 1)]


def test_offers_of_a_line_that_has_not_begun_wait_after_a_restart_and_leave_the_disk() -> None:
    disk, before = Disk(), Bench(Disk())
    line, later = (Stream(ORDERS, ALICE, resumable(1, epoch)) for epoch in (1, 2))
    disk.keep(Stored(*offer(CELL, 2, b"x", stream=line)))  # its publisher left out the first
    (snapshot,) = records(before.execution.checkpoint()[1])
    assert isinstance(snapshot, Snapshot)

    after = Bench(disk)
    after.execution.restore(snapshot)
    after.execution.requeue((), T0)
    assert after.execution.offers.find(line, 2) is not None
    after.hold(1, b"y", stream=later)
    effects = after.execution.apply((item(1, b"y", stream=later),), T0)
    assert Forget(Stored, str(line), 3, 2) in effects


def test_snapshot_that_is_none_is_not_restored() -> None:
    assert Bench(Disk()).execution.restore(Snapshot(BYZANTINE, 1, b"nonsense")) is None


def test_batch_with_items_of_a_deleted_channel_is_executed_without_their_contents() -> None:
    bench = Bench()
    bench.hold(1, b"a")
    gone = Stream(Channel("deleted"), ALICE, 1)
    batch = (item(1, b"a"), item(1, b"x", stream=gone))
    assert bench.execution.lacking(batch) == []
    assert bench.execution.taken(batch) == list(batch)
    bench.execution.apply(batch, T0)
    # All brokers have the same state, whether they had the contents or not.
    assert bench.execution.state.head(gone.channel).next == 2
    assert bench.execution.state.served[gone] == 1


def test_offers_that_wait_for_a_deleted_channel_leave_memory_and_disk() -> None:
    bench = Bench(Disk())
    gone = Stream(Channel("deleted"), ALICE, 1)
    bench.hold(1, b"x", stream=gone)
    bench.hold(1, b"a")
    assert bench.execution.begin_epoch(2, [gone.channel]) == [Forget(Stored, str(gone), 2, 1)]
    assert bench.execution.offers.find(gone, 1) is None
    assert bench.execution.offers.find(STREAM, 1) is not None
