"""Saying things again: within a budget, in turn, and never instead of getting on."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count

from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BRB,
    CAROL,
    CHAIN,
    ORDERS,
    STREAM,
    T0,
    Cell,
    chain_run,
    digests,
    messages,
    publish,
    reasons,
    sent,
)

from quorumcast.broadcast.application import Submit
from quorumcast.broadcast.bracha import RETRY_BURST
from quorumcast.broadcast.messages import ChainRun, Echo, Pull, Ready
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.retransmission import ANSWERED, REPEATED, TICK_MS
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.machine import (
    Connected,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)
from quorumcast.crypto.digest import root

BROKERS = (B1, B2, B3, B4)
HONEST = Stream(ORDERS, CAROL, 2)
LIVES = [Stream(ORDERS, ALICE, 2 * number) for number in range(1, 9)]
#: One stuck stream says each of its runs to three peers, and asks one of them for it.
A_BURST = 4 * RETRY_BURST


class Stuck:
    """A broker with lives of one publisher, then a stream of another, that no peer has got."""

    def __init__(self) -> None:
        self._broker = Cell(BRB).broker()
        self._now = Millis(T0)
        self._timers: dict[Timer, None] = {}
        for stream in (*LIVES, HONEST):
            for number in range(1, RETRY_BURST + 1):
                self._feed(publish(number, b"x", stream=stream, sender=stream.publisher))
        self.tick()

    def _feed(self, event: Event) -> list[Effect]:
        effects = self._broker.handle(event, self._now)
        self._timers |= {e.timer: None for e in effects if isinstance(e, SetTimer)}
        return effects

    def tick(self) -> list[tuple[Stream, int]]:
        """Whatever is repeated in the next tick, and to how many."""
        self._now = Millis(self._now + TICK_MS)
        timers, self._timers = self._timers, {}
        return [
            (said.message.stream, len(said.to))
            for timer in timers
            for said in sent(self._feed(TimerFired(timer)))
            if isinstance(said.message, Echo | Pull)
        ]


def test_broker_repeats_no_more_in_a_tick_however_many_streams_are_stuck() -> None:
    stuck = Stuck()
    for _ in range(3):
        assert REPEATED - A_BURST < sum(to for _, to in stuck.tick()) < REPEATED + A_BURST


def test_broker_stream_of_another_publisher_has_its_turn_before_all_of_one() -> None:
    stuck = Stuck()
    assert HONEST in {stream for _ in range(2) for stream, _ in stuck.tick()}


def test_broker_every_stuck_stream_has_its_turn() -> None:
    stuck = Stuck()
    assert {stream for _ in range(6) for stream, _ in stuck.tick()} == {*LIVES, HONEST}


def test_broker_peer_that_repeats_what_is_done_is_answered_so_often_in_a_tick() -> None:
    broker = Cell(BRB).broker()
    broker.handle(publish(1, b"x"), T0)
    value = root(1, digests(b"x"))
    for peer in (B2, B3, B4):
        broker.handle(Receive(peer, Echo(STREAM, 1, value)), T0)
        broker.handle(Receive(peer, Ready(STREAM, 1, value)), T0)
    for word in (Echo(STREAM, 1, value), Pull(STREAM, 1, 1)):
        for tick in (1, 2):
            now = Millis(T0 + tick * TICK_MS + (isinstance(word, Pull) * 10 * TICK_MS))
            said = [broker.handle(Receive(B2, word), now) for _ in range(ANSWERED + 9)]
            assert all(messages(effects, Ready) for effects in said[:ANSWERED])
            assert [reasons(e) for e in said[ANSWERED:]] == [[DropReason.OVER_LIMIT]] * 9
            assert messages(broker.handle(Receive(B3, word), now), Ready)


def test_broker_run_that_comes_by_a_chain_again_is_passed_on_so_often_in_a_tick() -> None:
    cell, order = Cell(CHAIN), (B1, B2, B3)
    broker = cell.broker()
    run = chain_run(ALICE, 1, (b"a",), order, cell.vouchers(ALICE, (B1, B2), 1, (b"a",), order))
    said = [broker.handle(run, T0) for _ in range(ANSWERED + 9)]
    assert all(messages(effects, ChainRun) for effects in said[: ANSWERED + 1])
    assert [reasons(e) for e in said[ANSWERED + 1 :]] == [[DropReason.OVER_LIMIT]] * 8
    assert messages(broker.handle(run, Millis(T0 + TICK_MS)), ChainRun)


class SlowCell:
    """Brokers that take their time for each message, in the order in which these come."""

    def __init__(self, cost_ms: float) -> None:
        cell = Cell(BRB)
        self.nodes: dict[NodeId, Broker | Publisher] = {b: cell.broker(b) for b in BROKERS}
        self.nodes[ALICE] = cell.publisher(ALICE, incarnation=2)
        self.handled: Counter[NodeId] = Counter()
        self._cost_ms = {**dict.fromkeys(BROKERS, cost_ms), ALICE: 0.0}
        self._free_at = dict.fromkeys(self.nodes, 0.0)
        self._due: dict[tuple[NodeId, Timer], float] = {}
        self._order = count()
        self._agenda: list[tuple[float, int, NodeId, Event]] = []
        for broker in BROKERS:
            for name in self.nodes:
                if name != broker:
                    self.plan(0.0, broker, Connected(name))
                    self.plan(0.0, name, Connected(broker))

    def plan(self, at_ms: float, name: NodeId, event: Event) -> None:
        heapq.heappush(self._agenda, (at_ms, next(self._order), name, event))

    def run(self, until: int) -> None:
        """Until every broker has delivered so many publications."""
        while self.delivered() < until:
            at_ms, _, name, event = heapq.heappop(self._agenda)
            if isinstance(event, TimerFired) and self._due.get((name, event.timer)) != at_ms:
                continue
            if isinstance(event, Receive):
                self.handled[name] += 1
            self._carry_out(name, self.nodes[name].handle(event, Millis(int(at_ms))), at_ms)

    def delivered(self) -> int:
        copies = [self.nodes[b].served(Stream(ORDERS, ALICE, 2)) for b in BROKERS]  # type: ignore[union-attr]
        return min(0 if copy is None else copy.carrier.settled for copy in copies)

    def _carry_out(self, name: NodeId, effects: list[Effect], at_ms: float) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for to in effect.to:
                    if to in self.nodes:
                        turn = max(at_ms + 0.1, self._free_at[to])
                        self._free_at[to] = turn + self._cost_ms[to]
                        self.plan(turn, to, Receive(name, effect.message, effect.bodies))
            elif isinstance(effect, SetTimer):
                due = self._due[name, effect.timer] = at_ms + effect.after_ms
                self.plan(due, name, TimerFired(effect.timer))


def test_cell_of_busy_brokers_spends_most_of_its_time_on_what_is_new() -> None:
    """A run takes one publication, three echoes and three readies at each broker."""
    runs, cell = 256, SlowCell(cost_ms=2.0)
    for number in range(runs):
        cell.plan(1.0, ALICE, Submit(ORDERS, (b"%d" % number,)))
    cell.run(runs)
    assert all(cell.handled[broker] < 2.2 * 7 * runs for broker in BROKERS)
