"""A cell in the simulator: brokers, publishers, subscribers, and what their applications do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from quorumcast.broadcast.application import (
    Join,
    Leave,
    Prove,
    Recall,
    Submit,
)
from quorumcast.broadcast.messages import Ack
from quorumcast.cell.messages import CELL_FAMILY, Checkpoint, Positions
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.membership import Adopt
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import Channel, Millis, NodeId, Stream, resumable, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Event, Receive, Send
from quorumcast.sim.cell.adversary import CellAdversary
from quorumcast.sim.cell.cells import Cell, life_of
from quorumcast.sim.cell.judges.blame import Lies
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.kernel.judging import Checker, Monitor
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.node import Watcher
from quorumcast.sim.kernel.world import World


class CellMonitor(Monitor[CellFacts]):
    """Beside what checkers see: how far brokers say they are, lies, and answered subscriptions."""

    def __init__(
        self,
        facts: CellFacts,
        checkers: Sequence[Checker[CellFacts]],
        lies: Lies,
        on_positions: Callable[[NodeId, Channel], None],
    ) -> None:
        super().__init__(facts, checkers)
        self._lies = lies
        self._on_positions = on_positions

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        super().on_event(node, event, now)
        if type(event) is Receive and type(event.message) is Positions:
            self._on_positions(node, event.message.channel)

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        if type(effect) is Send:
            if type(effect.message) is Ack:
                self.facts.on_ack(node, effect.message)
            elif type(effect.message) is Checkpoint or effect.bodies:
                self._lies.on_send(self.facts, node, effect)
        super().on_effect(node, effect, now)


class CellWorld(World[CellFacts]):
    """Everything there is."""

    adversary: CellAdversary

    def __init__(
        self,
        cell: Cell,
        seed: int | str,
        weather: Weather,
        checkers: Sequence[Checker[CellFacts]],
        *,
        sync_ms: int = 2,
        coalesce_ms: int = 0,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        super().__init__(
            seed,
            cell.keyrings,
            CELL_FAMILY,
            weather,
            sync_ms=sync_ms,
            coalesce_ms=coalesce_ms,
            watchers=watchers,
        )
        self.cell = cell
        adversary = CellAdversary(cell, self.scheduler, self.network, self.nodes)
        facts = CellFacts(cell.manifest, adversary)
        facts.ordered = self._ordered
        facts.holds = self._holds
        facts.on_disk = lambda node, kind, owner: self.nodes[node].disk.held(kind, owner)
        facts.wire_tapped = weather.corruption > 0
        self.lies = Lies(cell.manifest.f)
        self.judge(
            facts,
            checkers,
            lambda known, judges: CellMonitor(known, judges, self.lies, self._look_whether_begun),
        )
        #: How a broker begins a life, and how it goes on in another epoch.
        self.make_broker: Callable[[NodeId], Broker] = lambda name: Broker(
            self.cell.manifest, self.cell.keyrings[name], life=self.draw_life(name)
        )
        #: How often each broker has begun a life.
        self._lives: dict[NodeId, int] = {}
        self.take: Callable[[NodeId, Adopt], None] = lambda name, effect: None

    def draw_life(self, name: NodeId) -> bytes:
        """What tells the lives of a broker apart."""
        self._lives[name] = self._lives.get(name, 0) + 1
        return life_of(name, self._lives[name])

    # ------------------------------------------------------------ nodes

    def add_brokers(self) -> None:
        """Every broker of the manifest, all linked: the earlier one calls the later one."""
        brokers = self.cell.manifest.broker_ids
        for name in brokers:
            self.add_broker(name, ())
        for index, caller in enumerate(brokers):
            for callee in brokers[index + 1 :]:
                self.network.connect(caller, callee)

    def add_broker(self, name: NodeId, linked: Collection[NodeId]) -> None:
        """One broker, linked to these nodes, which call it."""
        node = self.add(name, lambda: self.make_broker(name))
        # What came in one packet with this still belongs to the epoch before.
        node.application[Adopt] = lambda effect: node.after(0, lambda: self.take(name, effect))
        for other in linked:
            self.network.connect(other, name)

    def add_publisher(self, name: NodeId, *, resumes: bool = False) -> None:
        """A publisher; each of its lives is a new incarnation, or goes on with the same streams."""

        def make() -> Publisher:
            incarnation = resumable(1, 1) if resumes else self.scheduler.now + 1
            self.facts.started(name, incarnation)
            if resumes:
                self.scheduler.after(0, lambda: self._go_on(name))
            return Publisher(self.cell.manifest, self.cell.keyrings[name], incarnation)

        self.add(name, make, self.cell.manifest.broker_ids)

    def add_subscriber(self, name: NodeId) -> None:
        """A subscriber."""
        manifest, keyring = self.cell.manifest, self.cell.keyrings[name]
        self.add(name, lambda: Subscriber(manifest, keyring), manifest.broker_ids)

    def _look_whether_begun(self, name: NodeId, channel: Channel) -> None:
        """A broker has answered a subscription: perhaps it was the last one needed."""
        reader = self.facts.reader(name, channel)
        if reader is None or reader.standing_at is not None:
            return
        node = self.nodes[name]

        def look() -> None:
            if node.up and isinstance(node.machine, Subscriber) and node.machine.joined(channel):
                self.facts.begun(name, channel, self.scheduler.now)

        # Once the machine has taken the answer in.
        self.scheduler.after(0, look)

    def _ordered(self, order: Stream) -> int:
        """The last number of a stream, or position of an order, that any correct broker has."""
        reach = 0
        for name in self.facts.manifest.broker_ids:
            machine = self.nodes[name].machine if name in self.nodes else None
            served = machine.served(order) if isinstance(machine, Broker) else None
            if served is not None and self.adversary.is_correct(name):
                reach = max(reach, served.carrier.ledger.next - 1)
        return reach

    def _holds(self, broker: NodeId, stream: Stream, number: int) -> bool:
        """Whether a broker that is up has a number of a lane, and would not take it back."""
        node = self.nodes.get(broker)
        machine = node.machine if node is not None and node.up else None
        served = machine.served(stream.data) if isinstance(machine, Broker) else None
        if served is None:
            return False
        carrier = served.lane(stream.lane)
        return carrier.final_from <= number <= carrier.final and not served.closed

    # ----------------------------------------------------- applications

    def _go_on(self, publisher: NodeId) -> None:
        """Whatever an earlier life submitted is submitted again, from the first on."""
        node = self.nodes[publisher]
        machine = node.machine
        if not node.up or not isinstance(machine, Publisher):
            return
        for stream, published in list(self.facts.published.items()):
            if stream.publisher == publisher and stream.line is not None:
                said = machine.published(stream.channel)
                bodies = tuple(body for body, _ in published[said:])
                if bodies:
                    node.feed(Submit(stream.channel, bodies))

    def submit(self, publisher: NodeId, channel: Channel, bodies: tuple[bytes, ...]) -> None:
        """The application publishes, as far as its publisher has room."""
        self._go_on(publisher)
        node = self.nodes[publisher]
        machine = node.machine
        if node.up and isinstance(machine, Publisher) and machine.room(channel) >= len(bodies):
            node.feed(Submit(channel, bodies))

    def join(self, subscriber: NodeId, channel: Channel) -> None:
        """The application subscribes."""
        if self.facts.reader(subscriber, channel) is None:
            self.nodes[subscriber].feed(Join(channel))

    def read(self, subscriber: NodeId, channel: Channel) -> None:
        """The application wants everything that is still held."""
        self.nodes[subscriber].feed(Leave(channel))
        self.nodes[subscriber].feed(Join(channel, 0))

    def extract(self, subscriber: NodeId, channel: Channel, count: int) -> None:
        """The application reads again, and once, so much of what it accepted last."""
        reader = self.facts.reader(subscriber, channel)
        if reader is not None and reader.position:
            start = max(1, reader.position - count + 1)
            self.nodes[subscriber].feed(Leave(channel))
            self.nodes[subscriber].feed(Join(channel, start, until=reader.position + 1))

    def leave(self, subscriber: NodeId, channel: Channel) -> None:
        """The application has had enough."""
        self.nodes[subscriber].feed(Leave(channel))

    def prove(self, subscriber: NodeId, channel: Channel) -> None:
        """The application wants a receipt of what it accepted last of each stream."""
        reader = self.facts.reader(subscriber, channel)
        if reader is not None and reader.placed is not None:
            stream, number = reader.placed
            digest = reader.accepted[stream][-1][1]
            for body, _ in self.facts.published.get(stream, [])[number - 1 : number]:
                contents = label(stream, number) + body
                if self.cell.manifest.hash(contents) == digest:
                    order = Prove(total_order(channel), reader.position, contents)
                    self.nodes[subscriber].feed(order)
            return
        for stream, accepted in list(reader.accepted.items()) if reader is not None else ():
            number, digest = accepted[-1]
            for body, _ in self.facts.published.get(stream, [])[number - 1 : number]:
                if self.cell.manifest.hash(body) == digest:
                    self.nodes[subscriber].feed(Prove(stream, number, body))

    def recall(self, subscriber: NodeId, channel: Channel, count: int) -> None:
        """The application wants so many of the positions that it accepted last once more."""
        reader = self.facts.reader(subscriber, channel)
        if reader is not None and reader.position:
            first = max(1, reader.position - count + 1)
            self.nodes[subscriber].feed(Recall(channel, first, reader.position - first + 1))

    def roll(
        self, brokers: Sequence[NodeId], pause_ms: int, then: Callable[[], None], *, wipe: bool
    ) -> None:
        """Restart brokers, perhaps without their disks, each once all of them have caught up.

        As an operator would: none of them counts as faulty, for none lacks anything when the next
        one goes. One that had caught up may turn out to lack something when a publisher reaches it
        again, so it is not enough to look at the last one.
        """
        self.facts.restarting = tuple(brokers)
        if not brokers:
            then()
            return
        broker, *others = brokers
        node = self.nodes[broker]
        node.crash(wipe=wipe)
        if wipe:
            self.facts.lost_disks[broker] = self.facts.disk_of(broker) + 1
        self.network.break_all(broker)
        self.adversary.injected += 1

        def look() -> None:
            if all(self._caught_up(name) for name in self.facts.manifest.broker_ids):
                self.roll(others, pause_ms, then, wipe=wipe)
            else:
                self.scheduler.after(pause_ms, look)

        def back() -> None:
            self.adversary.restart(broker)
            self.scheduler.after(pause_ms, look)

        self.scheduler.after(pause_ms, back)

    def _caught_up(self, broker: NodeId) -> bool:
        """What a status page says; neither faulty brokers nor lying publishers are waited for."""
        node = self.nodes[broker]
        if not self.adversary.is_correct(broker):
            return True
        if not node.up or not isinstance(node.machine, Broker):
            return False
        faulty = [f"/{name}@" for name in self.adversary.faulty]
        waits = node.machine.catching_up()
        held_up = [what for what in waits if any(name in what for name in faulty)]
        if held_up:
            self.facts.held_up_at = self.scheduler.now
        return len(held_up) == len(waits)

    def stop(
        self,
        node: NodeId,
        *,
        wipe: bool = False,
        tear: int = 0,
        corrupt: bool = False,
        remembers: bool = True,
    ) -> None:
        """A node crashes."""
        if self.nodes[node].up:
            self.adversary.crash(node, wipe=wipe, tear=tear, corrupt=corrupt, remembers=remembers)
            self.facts.stopped(node, self.scheduler.now)
            if self.adversary.has_lost_contents():
                self.facts.lost_at = self.scheduler.now
