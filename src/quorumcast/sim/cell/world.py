"""A simulated cell: its brokers, publishers and subscribers, and the actions of applications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from quorumcast.broadcast.application import (
    Acknowledged,
    Join,
    Leave,
    Prove,
    Recall,
    Select,
    Submit,
)
from quorumcast.broadcast.messages import Ack
from quorumcast.cell.messages import CELL_FAMILY, Checkpoint, Positions
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.membership import Adopt
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.cuts import is_result
from quorumcast.core.ids import (
    Channel,
    Millis,
    NodeId,
    Stream,
    resumable,
    split_digests,
    total_order,
)
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Event, Machine, Receive, Send
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.sim.cell.adversary import CellAdversary
from quorumcast.sim.cell.cells import Cell, life_of
from quorumcast.sim.cell.judges.blame import Lies
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.kernel.judging import Checker, Monitor
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.world import World


class CellMonitor(Monitor[CellFacts]):
    """Also records acknowledgements, provable lies, and the start of subscriptions."""

    def __init__(
        self,
        facts: CellFacts,
        checkers: Sequence[Checker[CellFacts]],
        lies: Lies,
        on_positions: Callable[[NodeId, NodeId, Channel], None],
        on_acknowledged: Callable[[Channel], None],
    ) -> None:
        super().__init__(facts, checkers)
        self._lies = lies
        self._on_positions = on_positions
        self._on_acknowledged = on_acknowledged

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        super().on_event(node, event, now)
        if type(event) is Receive and type(event.message) is Positions:
            self._on_positions(node, event.sender, event.message.channel)

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        if type(effect) is Send:
            if type(effect.message) is Ack:
                self.facts.on_ack(node, effect.message)
            elif type(effect.message) is Checkpoint or effect.bodies:
                self._lies.on_send(self.facts, node, effect)
        super().on_effect(node, effect, now)
        if type(effect) is Acknowledged:
            self._on_acknowledged(effect.stream.channel)


def role_of(machine: Machine) -> str:
    """The role of a machine, as traces, coverage and observers name it."""
    if isinstance(machine, Broker):
        return "broker"
    return "publisher" if isinstance(machine, Publisher) else "subscriber"


class CellWorld(World[CellFacts]):
    """The world of one cell."""

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
        most_faulty: int | None = None,
    ) -> None:
        self.cell = cell
        super().__init__(
            seed,
            self.keyrings(),
            CELL_FAMILY,
            weather,
            sync_ms=sync_ms,
            coalesce_ms=coalesce_ms,
        )
        adversary = CellAdversary(
            self.cell_of, self.scheduler, self.network, self.nodes, most_faulty=most_faulty
        )
        facts = self.make_facts(adversary)
        facts.ordered = self._ordered
        facts.holds = self._holds
        facts.bodies_held = self._bodies_held
        facts.on_disk = lambda node, kind, owner: self.nodes[node].disk.held(kind, owner)
        facts.clock = lambda: self.scheduler.now
        facts.altered = self.network.altered
        self.lies = Lies()
        self.judge(
            facts,
            checkers,
            lambda known, judges: CellMonitor(
                known, judges, self.lies, self._check_begun, lambda c: self.on_acknowledged(c)
            ),
        )
        #: Makes the machine of a broker at each of its starts.
        self.make_broker: Callable[[NodeId], Broker] = lambda name: Broker(
            self.cell_of(name).manifest,
            self.cell_of(name).keyrings[name],
            life=self.next_life(name),
        )
        #: What a publisher or subscriber reads at each of its starts.
        self.read_manifest: Callable[[NodeId], tuple[Manifest, Keyring]] = lambda name: (
            self.cell_of(name).manifest,
            self.cell_of(name).keyrings[name],
        )
        #: Called when a broker's machine asks to adopt the next epoch.
        self.on_adopt: Callable[[NodeId, Adopt], None] = lambda name, effect: None
        #: Called when a publisher has learned that publications on a channel are safe.
        self.on_acknowledged: Callable[[Channel], None] = lambda channel: None
        #: The predicates of each subscriber, by channel.
        self._wanted: dict[tuple[NodeId, Channel], tuple[str, ...]] = {}
        #: Number of starts of each broker.
        self._lives: Counter[NodeId] = Counter()

    def cell_of(self, node: NodeId) -> Cell:
        """The cell in which a node serves, publishes or subscribes."""
        return self.cell

    def keyrings(self) -> Mapping[NodeId, Keyring]:
        """The keys of every node."""
        return self.cell.keyrings

    def make_facts(self, adversary: CellAdversary) -> CellFacts:
        """The record of what happens in this world."""
        return CellFacts(self.cell.manifest, adversary)

    def next_life(self, name: NodeId) -> bytes:
        """The identifier of a broker's next life."""
        self._lives[name] += 1
        return life_of(name, self._lives[name])

    # ------------------------------------------------------------ nodes

    def add_brokers(self) -> None:
        """Add every broker of every cell; each calls those after it."""
        for cell in self.facts.cells():
            brokers = cell.broker_ids
            for name in brokers:
                self.add_broker(name, ())
            for index, caller in enumerate(brokers):
                for callee in brokers[index + 1 :]:
                    self.network.connect(caller, callee)

    def add_broker(self, name: NodeId, linked: Collection[NodeId]) -> None:
        """Add a broker that these nodes call."""

        def make() -> Broker:
            self.facts.evidence.pop(name, None)
            return self.make_broker(name)

        node = self.add(name, make)
        # The rest of the packet that led to this effect still belongs to the epoch before.
        node.application[Adopt] = lambda effect: node.after(0, lambda: self.on_adopt(name, effect))
        for other in linked:
            self.network.connect(other, name)

    def add_publisher(self, name: NodeId, *, resumes: bool = False) -> None:
        """Add a publisher; after a crash it resumes its streams, or starts a new incarnation."""

        def make() -> Publisher:
            incarnation = resumable(1, 1) if resumes else self.scheduler.now + 1
            self.facts.started(name, incarnation)
            if resumes:
                self.scheduler.after(0, lambda: self._resubmit(name))
            return Publisher(*self.read_manifest(name), incarnation)

        self.add(name, make, self.cell_of(name).manifest.broker_ids)

    def add_subscriber(self, name: NodeId) -> None:
        """Add a subscriber."""

        def make() -> Subscriber:
            self.facts.evidence.pop(name, None)
            return Subscriber(*self.read_manifest(name))

        self.add(name, make, self.cell_of(name).manifest.broker_ids)

    def _check_begun(self, name: NodeId, broker: NodeId, channel: Channel) -> None:
        """Record who has answered, and the start of a subscription if enough brokers have.

        Like clients, which look after each answer whether a subscription has begun.
        """
        reader = self.facts.reader(name, channel)
        if reader is None or reader.standing_at is not None:
            return
        node = self.nodes[name]
        machine = node.machine
        if not isinstance(machine, Subscriber):
            return
        begun, silent = machine.joined(channel), machine.silent(channel)

        def check() -> None:
            if not node.up or node.machine is not machine:
                return
            if not begun:
                # Other answers of this moment may have come after the one with which it began.
                still = [b for b in silent if b != broker or b in machine.silent(channel)]
                self.facts.answered(name, channel, still)
            if machine.joined(channel):
                ends = machine.ends(channel)
                if reader.until:
                    ends = {total_order(channel): machine.end(channel)}
                self.facts.begun(name, channel, self.scheduler.now, ends)

        # After the machine has handled the answer.
        self.scheduler.after(0, check)

    def _ordered(self, order: Stream) -> int:
        """The last number of a stream, or position of a channel, that any correct broker has."""
        last = 0
        for name in [name for cell in self.facts.cells() for name in cell.broker_ids]:
            machine = self.nodes[name].machine if name in self.nodes else None
            served = machine.served(order) if isinstance(machine, Broker) else None
            if served is not None and self.adversary.is_correct(name):
                last = max(last, served.carrier.ledger.next - 1)
        return last

    def _holds(self, broker: NodeId, stream: Stream, number: int) -> bool:
        """Whether a broker that is up holds a number of a lane finally."""
        node = self.nodes.get(broker)
        machine = node.machine if node is not None and node.up else None
        served = machine.served(stream.data) if isinstance(machine, Broker) else None
        if served is None:
            return False
        carrier = served.lane(stream.lane)
        return carrier.final_from <= number <= carrier.final and not served.closed

    def _bodies_held(
        self, stream: Stream, number: int, broker: NodeId | None = None
    ) -> list[bytes]:
        """What correct brokers that are up hold of a number, or one of them does.

        Of all brokers that is publications; one may hold some rows, or that none is carried on.
        """
        found: dict[bytes, None] = {}
        for name in [name for cell in self.facts.cells() for name in cell.broker_ids]:
            node = self.nodes.get(name)
            machine = node.machine if node is not None and node.up else None
            if broker not in (None, name) or not self.adversary.is_correct(name):
                continue
            served = machine.served(stream) if isinstance(machine, Broker) else None
            run = None if served is None else served.carrier.ledger.read(number, 1, 1)
            if run is not None and run.first <= number < run.first + len(run.bodies):
                body = run.bodies[number - run.first]
                if broker is not None or not is_result(body, split_digests(run.digests)[0]):
                    found[body] = None
        return list(found)

    # ----------------------------------------------------- applications

    def _resubmit(self, publisher: NodeId) -> None:
        """Submit everything of an earlier life that the present one has not submitted."""
        node = self.nodes[publisher]
        machine = node.machine
        if not node.up or not isinstance(machine, Publisher):
            return
        for stream, published in list(self.facts.published.items()):
            there = self.facts.manifest_of(publisher).channel(stream.channel) is not None
            if stream.publisher == publisher and stream.line is not None and there:
                count = machine.published(stream.channel)
                bodies = tuple(body for body, _ in published[count:])
                if bodies:
                    node.feed(Submit(stream.channel, bodies))

    def submit(self, publisher: NodeId, channel: Channel, bodies: tuple[bytes, ...]) -> None:
        """Publish, if the publisher's buffer has room."""
        self._resubmit(publisher)
        node = self.nodes[publisher]
        machine = node.machine
        if node.up and isinstance(machine, Publisher) and machine.room(channel) >= len(bodies):
            node.feed(Submit(channel, bodies))

    def join(self, subscriber: NodeId, channel: Channel) -> None:
        """Subscribe."""
        if self.facts.reader(subscriber, channel) is None:
            self.nodes[subscriber].feed(Join(channel, where=self.wanted(subscriber, channel)))

    def read(self, subscriber: NodeId, channel: Channel) -> None:
        """Subscribe from the oldest retained publication on."""
        self.nodes[subscriber].feed(Leave(channel))
        self.nodes[subscriber].feed(Join(channel, 0, where=self.wanted(subscriber, channel)))

    def extract(self, subscriber: NodeId, channel: Channel, count: int) -> None:
        """Read the last `count` accepted positions again, as a range."""
        reader = self.facts.reader(subscriber, channel)
        if reader is not None and reader.turned:
            start, where = max(1, reader.turned - count + 1), self.wanted(subscriber, channel)
            self.nodes[subscriber].feed(Leave(channel))
            join = Join(channel, start, until=reader.turned + 1, where=where)
            self.nodes[subscriber].feed(join)

    def wanted(self, subscriber: NodeId, channel: Channel) -> tuple[str, ...]:
        """The predicates with which a subscriber joins a channel."""
        return self._wanted.get((subscriber, channel), ())

    def select(self, subscriber: NodeId, channel: Channel, where: tuple[str, ...]) -> None:
        """Want other rows from now on; a reader of a range keeps its predicates."""
        self._wanted[subscriber, channel] = where
        reader = self.facts.reader(subscriber, channel)
        if reader is not None and not reader.until:
            self.nodes[subscriber].feed(Select(channel, where))

    def leave(self, subscriber: NodeId, channel: Channel) -> None:
        """Unsubscribe."""
        self.nodes[subscriber].feed(Leave(channel))

    def stall(self, subscriber: NodeId) -> None:
        """Its application takes nothing from now on, and its queue is full."""
        self.facts.stalled(subscriber, self.scheduler.now)
        self.nodes[subscriber].deafen()

    def wake(self, subscriber: NodeId) -> None:
        """Its application goes on: the machine asks brokers for what it missed, as clients do."""
        node = self.nodes[subscriber]
        if node.listen():
            for broker in self.facts.manifest_of(subscriber).broker_ids:
                if self.network.talk(subscriber, broker):
                    node.connected(broker)

    def prove(self, subscriber: NodeId, channel: Channel) -> None:
        """Ask for a receipt of the last publication accepted on each stream."""
        reader = self.facts.reader(subscriber, channel)
        if reader is None:
            return
        streams = list(reader.accepted) if reader.placed is None else [reader.placed[0]]
        for stream in streams:
            number, digest = reader.accepted[stream][-1]
            for body, _ in self.facts.published.get(stream, [])[number - 1 : number]:
                request = Prove(stream, number, body)
                if reader.placed is not None:
                    contents = label(stream, number) + body
                    request = Prove(total_order(channel), reader.position, contents)
                if self.cell_of(subscriber).manifest.hash(request.contents) == digest:
                    # A reader that got a part has that at hand.
                    part = reader.parts.get(stream, request.contents)
                    self.nodes[subscriber].feed(replace(request, contents=part))

    def recall(self, subscriber: NodeId, channel: Channel, count: int) -> None:
        """Recall the last `count` accepted positions."""
        reader = self.facts.reader(subscriber, channel)
        if reader is not None and reader.position:
            first = max(1, reader.position - count + 1)
            self.nodes[subscriber].feed(Recall(channel, first, reader.position - first + 1))

    def restart_in_turn(
        self, brokers: Sequence[NodeId], pause_ms: int, then: Callable[[], None], *, wipe: bool
    ) -> None:
        """Restart brokers one by one, perhaps without their disks, each once all have caught up.

        None of them counts as faulty, since none lacks anything when the next one restarts. All
        brokers are checked, and not only the last one: one that had caught up may lack something
        again when a publisher reconnects to it.
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

        def check() -> None:
            if all(self._caught_up(name) for name in self.facts.manifest_of(broker).broker_ids):
                self.restart_in_turn(others, pause_ms, then, wipe=wipe)
            else:
                self.scheduler.after(pause_ms, check)

        def restart() -> None:
            self.adversary.restart(broker)
            self.scheduler.after(pause_ms, check)

        self.scheduler.after(pause_ms, restart)

    def _caught_up(self, broker: NodeId) -> bool:
        """Whether a broker reports no lag, faulty brokers and lying publishers aside."""
        node = self.nodes[broker]
        if not self.adversary.is_correct(broker):
            return True
        if not node.up or not isinstance(node.machine, Broker):
            return False
        faulty = [f"/{name}@" for name in self.adversary.faulty]
        lags = node.machine.catching_up()
        held_up = [lag for lag in lags if any(name in lag for name in faulty)]
        if held_up:
            self.facts.held_up_at = self.scheduler.now
        return len(held_up) == len(lags)
