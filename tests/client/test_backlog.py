"""The queue of a subscription compared with a simple model: gaps, order and bounds."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.broadcast.application import Deliver
from quorumcast.client import backlog
from quorumcast.client.backlog import Backlog
from quorumcast.client.events import Gap, GapReason
from quorumcast.client.selecting import Arrival
from quorumcast.core.ids import Channel, Digest, NodeId, Stream, total_order
from quorumcast.core.limits import Overflow

CHANNEL = Channel("c")
ALICE, BOB = Stream(CHANNEL, NodeId("alice"), 2), Stream(CHANNEL, NodeId("bob"), 4)
URGENT = Stream(CHANNEL, NodeId("alice"), 3)
ORDER = total_order(Channel("ordered"))
SIZE = 10


def publication(stream: Stream, number: int, size: int = SIZE) -> Deliver:
    body = bytes(size)
    if stream == ORDER:
        author = Stream(ORDER.channel, NodeId("alice"), 3)  # urgent, and yet in its place
        return Deliver(author, number, Digest(b""), body, (), position=number)
    return Deliver(stream, number, Digest(b""), body, ())


def numbers(item: Arrival | Gap) -> tuple[Stream, int, int]:
    return (item.stream, item.first, item.upto) if isinstance(item, Gap) else (*item.place, 0)


class Model:
    """What came, and what was taken."""

    def __init__(self, most: int, overflow: Overflow) -> None:
        self.backlog = Backlog(most, most * SIZE * 2, overflow)
        self.most = most
        self.overflow = overflow
        self.next = dict.fromkeys((ALICE, BOB, URGENT, ORDER), 1)
        self.taken = dict.fromkeys(self.next, 1)
        self.lost: set[tuple[Stream, int]] = set()
        self.arrived: deque[tuple[Stream, int]] = deque()
        self.discarded = 0

    def put(self, stream: Stream) -> None:
        number = self.next[stream]
        self.next[stream] += 1
        self.arrived.append((stream, number))
        self.discarded += self.backlog.put(publication(stream, number))

    def gap(self, stream: Stream, count: int) -> None:
        first = self.next[stream]
        self.next[stream] += count
        self.lost |= {(stream, number) for number in range(first, first + count)}
        self.backlog.announce(Gap(stream, first, first + count - 1))

    def take(self) -> None:
        """Each stream comes without a hole, in order, and what is missing says why."""
        item = self.backlog.pop()
        if isinstance(item, Gap):
            assert item.first == self.taken[item.stream]
            assert item.first <= item.upto
            for number in range(item.first, item.upto + 1):
                retention = (item.stream, number) in self.lost
                assert retention == (item.reason is GapReason.RETENTION)
            self.taken[item.stream] = item.upto + 1
            return
        stream, number = item.place
        assert number == self.taken[stream]
        self.taken[stream] = number + 1
        # Of what is not urgent, and of what is, whatever came first goes first.
        rivals = [place for place in self.arrived if (place[0] == URGENT) == (stream == URGENT)]
        for place in rivals[: rivals.index((stream, number))]:
            assert place[1] < self.taken[place[0]] or self.overflow is not Overflow.WAIT
            self.arrived.remove(place)
        self.arrived.remove((stream, number))

    def check(self) -> None:
        sizes = self.backlog.sizes()
        assert self.backlog.discarded == self.discarded
        assert sizes["publications"] * SIZE == sizes["bytes"]
        if self.overflow is Overflow.WAIT:
            assert self.discarded == 0
        else:
            assert sizes["publications"] <= self.most


STREAMS = st.sampled_from([ALICE, BOB, URGENT, ORDER])
STEPS = st.lists(
    st.tuples(st.just("put"), STREAMS)
    | st.tuples(st.just("gap"), STREAMS)
    | st.tuples(st.just("take"), STREAMS),
    max_size=120,
)


@given(st.integers(1, 6), st.sampled_from(Overflow), STEPS)
def test_backlog_announces_every_loss_and_keeps_order_and_bounds(
    most: int, overflow: Overflow, steps: list[tuple[str, Stream]]
) -> None:
    model = Model(most, overflow)
    for step, stream in steps:
        if step == "take" and model.backlog.waiting:
            model.take()
        elif step == "put":
            model.put(stream)
        elif step == "gap":
            model.gap(stream, 2)
        model.check()
    while model.backlog.waiting:
        model.take()
    assert model.taken == model.next
    assert model.backlog.sizes() == {"publications": 0, "bytes": 0, "gaps": 0}
    assert not model.backlog.full


def drained(queue: Backlog) -> list[tuple[Stream, int, int]]:
    return [numbers(queue.pop()) for _ in range(queue.waiting)]


def test_discarded_oldest_publications_leave_one_gap_per_stream_in_front() -> None:
    queue = Backlog(2, 10**6, Overflow.OLDEST)
    for number in range(1, 6):
        queue.put(publication(ALICE, number))
        queue.put(publication(BOB, number))
    assert queue.discarded == 8
    assert drained(queue) == [(ALICE, 1, 4), (BOB, 1, 4), (ALICE, 5, 0), (BOB, 5, 0)]


def test_discarded_newest_publication_leaves_its_gap_at_the_end() -> None:
    queue = Backlog(2, 10**6, Overflow.NEWEST)
    for number in range(1, 6):
        queue.put(publication(ALICE, number))
    assert numbers(queue.pop()) == (ALICE, 1, 0)
    queue.put(publication(ALICE, 6))
    queue.put(publication(ALICE, 7))
    assert queue.discarded == 4
    assert drained(queue) == [(ALICE, 2, 0), (ALICE, 3, 5), (ALICE, 6, 0), (ALICE, 7, 7)]


@pytest.mark.parametrize("overflow", [Overflow.OLDEST, Overflow.NEWEST])
def test_bytes_are_bounded_and_one_publication_always_fits(overflow: Overflow) -> None:
    queue = Backlog(100, 30, overflow)
    queue.put(publication(ALICE, 1, 1000))
    assert queue.sizes()["publications"] == 1
    for number in range(2, 10):
        queue.put(publication(ALICE, number, 10))
    assert queue.sizes()["publications"] == (3 if overflow is Overflow.OLDEST else 1)


def test_urgent_publication_is_taken_first_and_discarded_last() -> None:
    queue = Backlog(3, 10**6, Overflow.OLDEST)
    for number in range(1, 4):
        queue.put(publication(ALICE, number))
    queue.put(publication(URGENT, 1))
    queue.put(publication(URGENT, 2))
    assert drained(queue) == [(URGENT, 1, 0), (URGENT, 2, 0), (ALICE, 1, 2), (ALICE, 3, 0)]


def test_wait_is_full_until_half_is_taken() -> None:
    queue = Backlog(4, 10**6)
    for number in range(1, 5):
        assert not queue.full
        queue.put(publication(ALICE, number))
    assert queue.full
    queue.pop()
    assert queue.full
    queue.pop()
    assert not queue.full


@pytest.mark.parametrize("overflow", Overflow)
def test_backlog_with_too_many_gaps_is_full(
    overflow: Overflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MAX_GAPS", 8)
    queue = Backlog(1, 10**6, overflow)
    incarnation = 0
    while not queue.full:
        incarnation += 2  # a publisher that restarts for ever
        queue.announce(Gap(Stream(CHANNEL, NodeId("alice"), incarnation), 1, 9))
    assert queue.sizes()["gaps"] == 8
    for _ in range(4):
        assert queue.full
        queue.pop()
    assert not queue.full
