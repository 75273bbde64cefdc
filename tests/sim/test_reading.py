"""`ReadToTheEnd` finds readers that end before what was acknowledged, and only those."""

import pytest

from quorumcast.broadcast.application import Acknowledged, Deliver, DeliverGap, Join, Leave, Submit
from quorumcast.broadcast.messages import Ack
from quorumcast.core.ids import Channel, Millis, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Send
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import broker_names, channel_entry, make_simulated_cell
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.judges.reading import PATIENCE_MS, ReadToTheEnd
from quorumcast.sim.cell.known_bad.plans import PUB1, SUB2, fifo_plan
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act

ORDERS = Channel("orders")
PUB, SUB = NodeId("pub-1"), NodeId("sub-1")
B1, B2, B3, B4 = broker_names(4)
STREAM = Stream(ORDERS, PUB, 1)
ORDER = total_order(ORDERS)


class Reading:
    """Three publications are acknowledged; then somebody reads the past until an end.

    The first broker lies, and the last one lags.
    """

    def __init__(
        self, policy: str = "ab", *, n: int = 4, start: int = 0, until: int = 0, lies: bool = True
    ) -> None:
        cell = make_simulated_cell(n, 1, [channel_entry("orders", Policy.named(policy))])
        self.hash = cell.manifest.hash
        self.world = CellWorld(cell, 1, Weather(), [ReadToTheEnd()])
        self.facts: CellFacts = self.world.facts
        self.total = cell.manifest.channels[0].policy.total
        if lies:
            self.world.adversary.declare(B1, "false-positions")
        self.facts.started(PUB, 1)
        self.world.submit = None  # type: ignore[assignment,method-assign]  # nothing happens by itself
        self.publish(b"a", b"b", b"c")
        for broker in cell.manifest.broker_ids[:-1]:
            self.does(broker, Send((PUB,), Ack(STREAM, 3, 100)))
        self.does(PUB, Acknowledged(STREAM, 3))
        self.facts.on_event(SUB, Join(ORDERS, start, until=until), Millis(100))

    def publish(self, *bodies: bytes) -> None:
        self.facts.on_event(PUB, Submit(ORDERS, bodies), Millis(10))

    def does(self, node: NodeId, effect: object) -> None:
        for watcher in self.world._watchers:
            watcher.on_effect(node, effect, Millis(20))  # type: ignore[arg-type]

    def begins(self, end: int, *silent: NodeId, after_ms: int = 10) -> None:
        self.facts.answered(SUB, ORDERS, silent)
        ends = {ORDER if self.total else STREAM: end} if end > 1 else {}
        self.facts.begun(SUB, ORDERS, Millis(100 + after_ms), ends)

    def accepts(self, upto: int, first: int = 1) -> None:
        for number, body in list(enumerate((b"a", b"b", b"c"), 1))[first - 1 : upto]:
            contents = label(STREAM, number) + body if self.total else body
            position = number if self.total else 0
            digest = self.hash(contents)
            self.does(SUB, Deliver(STREAM, number, digest, body, (), position=position))

    @property
    def broken(self) -> bool:
        for checker in self.world.checkers:
            checker.at_end(self.facts)
        return [v.property for v in self.facts.violations] == ["Present end"]


@pytest.mark.parametrize("policy", ["ab", "brb", "ab+history", "chain", "total"])
@pytest.mark.parametrize("end", [1, 3])
def test_end_before_what_was_acknowledged_is_reported(policy: str, end: int) -> None:
    reading = Reading(policy)
    reading.begins(end, B3)
    reading.accepts(3)  # too late: the application has ended by then
    assert reading.broken


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_end_after_what_was_acknowledged_is_silent(policy: str) -> None:
    reading = Reading(policy)
    reading.begins(4, B3)
    reading.accepts(3)
    assert not reading.broken


def test_ending_without_what_was_acknowledged_is_reported() -> None:
    reading = Reading()
    reading.begins(4, B3)
    reading.accepts(3, first=2)
    assert reading.broken


def test_reader_that_has_not_come_to_its_end_is_not_judged_by_what_it_lacks() -> None:
    reading = Reading()
    reading.begins(4, B3)
    reading.accepts(2)
    reading.facts.on_event(SUB, Leave(ORDERS), Millis(200))
    assert not reading.broken


def test_empty_range_is_judged_by_the_end_of_the_channel_that_its_reader_was_told() -> None:
    for until, end, broken in ((1, 4, False), (1, 3, True), (2, 3, False)):
        reading = Reading("total", start=1, until=until)
        reading.begins(end, B3)
        reading.facts.on_event(SUB, Leave(ORDERS), Millis(200))
        reading.facts.on_event(SUB, Join(ORDERS), Millis(300))
        reading.accepts(3)
        assert reading.broken is broken


def test_what_is_acknowledged_after_the_join_is_not_owed() -> None:
    reading = Reading()
    reading.publish(b"d")
    reading.does(PUB, Acknowledged(STREAM, 4))
    reading.begins(4, B3)
    reading.accepts(3)
    assert not reading.broken


@pytest.mark.parametrize(
    ("silent", "after_ms", "broken"),
    [
        ((B3,), 10, True),
        ((B3,), PATIENCE_MS, False),  # only the second broker could have told in time
        ((), PATIENCE_MS, True),
        ((B4,), PATIENCE_MS, True),  # two brokers that have it answered
    ],
)
def test_reader_waits_a_second_for_brokers_that_may_know_of_more(
    silent: tuple[NodeId, ...], after_ms: int, broken: bool
) -> None:
    reading = Reading()
    reading.begins(3, *silent, after_ms=after_ms)
    reading.accepts(3)
    assert reading.broken is broken


@pytest.mark.parametrize(
    ("policy", "n", "lies", "silent", "broken"),
    [
        ("direct", 3, True, B2, False),  # of two that acknowledged one lies; the other is late
        ("direct", 3, False, B1, True),
        ("direct-crash", 2, False, B1, False),  # one acknowledges, and the other one answers
        ("direct-crash", 3, False, B1, True),
    ],
)
def test_where_others_may_answer_than_acknowledged_nothing_is_owed(
    policy: str, n: int, lies: bool, silent: NodeId, broken: bool
) -> None:
    reading = Reading(policy, n=n, lies=lies)
    reading.begins(3, silent)
    reading.accepts(3)
    assert reading.broken is broken


def test_what_more_than_f_brokers_have_lost_is_not_owed() -> None:
    reading = Reading()
    reading.facts.lost_at = 10
    reading.begins(3, B3)
    reading.accepts(3)
    assert not reading.broken


def test_what_brokers_lose_after_the_end_was_told_is_owed() -> None:
    reading = Reading()
    reading.begins(3, B3)
    reading.facts.lost_at = 300
    assert reading.broken


def test_announced_gap_that_retention_explains_is_not_owed() -> None:
    for retained, broken in ((1, False), (100, True)):
        reading = Reading()
        reading.facts.retained = lambda channel, node, kept=retained: kept  # type: ignore[method-assign,misc]
        reading.begins(4, B3)
        reading.does(SUB, DeliverGap(STREAM, 1, 2))
        reading.accepts(3, first=3)
        assert reading.broken is broken


def test_prompt_reader_joins_at_an_acknowledgement_and_is_owed_what_it_covers() -> None:
    acts = [Act(50, "read-promptly", SUB2, ORDERS), Act(60, "submit", PUB1, ORDERS, 1)]
    run = CellRun(fifo_plan("ab", acts=acts, publications=0)(0))
    assert run.perform().violations == []
    reader = run.world.facts.reader(SUB2, ORDERS)
    assert reader is not None
    assert reader.past is not None
    assert reader.past.acknowledged == {STREAM: 1}
