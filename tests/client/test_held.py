"""How far a subscription has been read, against a model that keeps marks in its queue."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from quorumcast.client.held import ReadingProgress
from quorumcast.core.ids import Channel, NodeId, Stream, total_order

TRADES = Channel("trades")
ORDER = total_order(TRADES)
OTHER = Stream(TRADES, NodeId("alice"), 2)


class Model:
    """One stream: what is skipped stands in the queue, behind what came before."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.queue: deque[tuple[str, int]] = deque()
        self.taken: list[int] = []
        self.reached = 0

    def put(self, what: str, number: int) -> None:
        self.queue.append((what, number))
        self._pass()

    def _pass(self) -> None:
        while self.queue and self.queue[0][0] == "skip":
            self.reached = self.queue.popleft()[1]

    def take(self) -> int:
        _, number = self.queue.popleft()
        self.reached = number
        self.taken.append(number)
        self._pass()
        return number

    @property
    def items(self) -> int:
        return sum(what == "item" for what, _ in self.queue)


steps = st.lists(st.sampled_from(["item", "skip", "take"]), max_size=30)


@given(steps, st.integers(1, 12), st.integers(0, 30), st.sampled_from([ORDER, OTHER]))
def test_progress_counts_what_is_skipped_once_all_before_it_is_taken(
    steps: list[str], end: int, known_at: int, stream: Stream
) -> None:
    progress, model = ReadingProgress(reads_past=True), Model(end)
    progress.follow_order()
    number = 0
    for index, step in enumerate(steps):
        if index == known_at:
            progress.add({stream: end})
            progress.established()
        if step == "take":
            if not model.items:
                continue
            progress.take(stream, model.take())
        else:
            number += 1
            model.put(step, number)
            if step == "item":
                progress.queue(stream, number)
            else:
                progress.skip(stream, number)
        if index >= known_at:
            assert (stream in progress.unread) == (model.reached < end)
        if stream == ORDER:
            assert progress.position([TRADES]) == (model.reached + 1 if model.reached else None)


def test_what_is_given_back_is_unread_until_it_is_taken_again() -> None:
    progress = ReadingProgress(reads_past=True)
    progress.add({OTHER: 5})
    progress.established()
    for number in (1, 2):
        progress.queue(OTHER, number)
    progress.skip(OTHER, 5)
    for number in (1, 2):
        progress.take(OTHER, number)
    assert not progress.unread
    progress.give_back(OTHER, 2)
    assert progress.unread == {OTHER: 5}
    progress.take(OTHER, 2)
    assert not progress.unread


def test_streams_that_begin_later_cost_nothing() -> None:
    progress = ReadingProgress(reads_past=True)
    progress.queue(OTHER, 1)
    progress.take(OTHER, 1)
    progress.established()
    for incarnation in range(2, 200, 2):
        stream = Stream(TRADES, NodeId("alice"), incarnation)
        progress.queue(stream, 1)
        progress.skip(stream, 2)
        progress.take(stream, 1)
    assert not any(getattr(progress, name) for name in ("_queued", "_reached", "_skips", "_last"))


def test_streams_of_a_channel_that_is_gone_are_not_waited_for() -> None:
    progress = ReadingProgress(reads_past=True)
    progress.add({OTHER: 5, Stream(Channel("logs"), NodeId("alice"), 2): 3})
    progress.forget(TRADES)
    assert [stream.channel for stream in progress.unread] == ["logs"]
    assert progress.ends[OTHER] == 5


def test_channels_without_one_order_have_no_position() -> None:
    progress = ReadingProgress(reads_past=False)
    progress.take(OTHER, 3)
    assert progress.idle
    assert progress.position([TRADES]) is None
    assert progress.position([TRADES, Channel("logs")]) is None
