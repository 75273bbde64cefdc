"""The world itself: time, disks, links, twins and the model, with toy machines."""

from collections.abc import Callable

import pytest

from quorumcast.broadcast.application import Submit
from quorumcast.cell.messages import CELL_FAMILY, Unsubscribe
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Disconnected,
    Effect,
    Event,
    Persist,
    Persisted,
    Receive,
    Record,
    Restored,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)
from quorumcast.crypto.session import Refusal, Session, encode_parcel
from quorumcast.faults.contract import Later
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.adversary import CellFaults
from quorumcast.sim.cell.cells import channel_entry, make_named_cell, make_simulated_cell
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import LinkWeather, Network, Weather
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.kernel.scheduler import Scheduler

B1, B2, B3 = (NodeId(f"broker-{n}") for n in (1, 2, 3))
CALM = Weather(latency_ms=5, jitter_ms=0)
HELLO = Unsubscribe(Channel("hello"))


class Tick(Timer, frozen=True, tag=True):
    name: str


class Note(Record, frozen=True, tag=True):
    text: str


class Toy:
    """Remembers everything, does what the test says."""

    def __init__(self, react: Callable[[Event], list[Effect]]) -> None:
        self.events: list[tuple[int, Event]] = []
        self._react = react

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self.events.append((now, event))
        return self._react(event)

    def sizes(self) -> dict[str, int]:
        return {}


class Little:
    """Three brokers with toy machines."""

    def __init__(
        self, react: Callable[[Event], list[Effect]] = lambda event: [], weather: Weather = CALM
    ) -> None:
        cell = make_simulated_cell(4, 1, ())
        self.scheduler = Scheduler(7)
        self.network = Network(self.scheduler, cell.keyrings, CELL_FAMILY, weather)
        self.breaches: list[tuple[NodeId, NodeId, str]] = []
        self.network.on_breach = lambda *said: self.breaches.append(said)
        self.machines: list[Toy] = []

        def make() -> Toy:
            self.machines.append(Toy(react))
            return self.machines[-1]

        self.nodes = [
            SimulatedNode(n, make, self.scheduler, self.network, []) for n in (B1, B2, B3)
        ]
        for node in self.nodes:
            self.network.add(node)
        for caller, callee in ((B1, B2), (B1, B3), (B2, B3)):
            self.network.connect(caller, callee)

    def heard(self, machine: int, kind: type) -> list[tuple[int, Event]]:
        return [(at, e) for at, e in self.machines[machine].events if isinstance(e, kind)]


def test_scheduler_equal_times_keep_their_order() -> None:
    scheduler = Scheduler(1)
    seen: list[str] = []
    scheduler.after(5, lambda: seen.append("b"))
    scheduler.after(1, lambda: seen.append("a"))
    scheduler.after(5, lambda: seen.append("c"))
    scheduler.run_until(4)
    assert (seen, scheduler.now) == (["a"], 4)
    scheduler.run_until(9)
    assert (seen, scheduler.now) == (["a", "b", "c"], 9)


def test_network_links_connect_both_ends_once() -> None:
    little = Little()
    little.scheduler.run_until(100)
    assert [len(little.heard(m, Connected)) for m in range(3)] == [2, 2, 2]


def test_network_message_arrives_sealed_after_its_latency() -> None:
    little = Little()
    little.scheduler.run_until(100)
    little.nodes[0].carry_out([Send((B2,), HELLO, (b"body",))])
    little.scheduler.run_until(200)
    assert little.heard(1, Receive) == [(105, Receive(B1, HELLO, (b"body",)))]


def test_network_partition_breaks_links_and_heal_mends_them() -> None:
    little = Little()
    little.scheduler.run_until(100)
    little.network.partition([B1])
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(200)
    assert not little.heard(1, Receive)
    assert len(little.heard(0, Disconnected)) == 2
    assert len(little.heard(1, Disconnected)) == 1
    little.network.heal()
    little.scheduler.run_until(300)
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(400)
    assert len(little.heard(1, Receive)) == 1


def test_network_link_broken_twice_at_once_comes_back_with_one_session() -> None:
    little = Little()
    little.scheduler.run_until(100)
    for at in (100, 101, 112, 118):
        little.scheduler.run_until(at)
        little.network.break_all(B1)
    little.scheduler.run_until(300)
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(400)
    assert len(little.heard(1, Receive)) == 1
    assert not little.network.refused


def test_network_direction_of_a_link_has_its_own_latency_and_changes_it() -> None:
    links = (LinkWeather(B1, B2, 40), LinkWeather(B1, B2, 90, since_ms=200))
    little = Little(weather=Weather(latency_ms=5, jitter_ms=0, links=links))
    for at, sender, peer in ((150, 0, B2), (150, 1, B1), (150, 0, B3), (250, 0, B2)):
        little.scheduler.run_until(at)
        little.nodes[sender].carry_out([Send((peer,), HELLO)])
    little.scheduler.run_until(400)
    assert [at for at, _ in little.heard(1, Receive)] == [190, 340]
    assert [at for at, _ in little.heard(0, Receive)] == [155]
    assert [at for at, _ in little.heard(2, Receive)] == [155]


def test_network_calm_ends_the_loss_of_a_link_and_leaves_its_latency() -> None:
    links = (LinkWeather(B1, B2, 40, 30, 1000), LinkWeather(B1, B2, 70, 0, 1000, since_ms=300))
    little = Little(weather=Weather(latency_ms=5, jitter_ms=0, links=links))
    little.scheduler.run_until(150)
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(250)
    assert not little.heard(1, Receive)
    little.network.calm()
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(350)
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(500)
    first, second = [at for at, _ in little.heard(1, Receive)]
    assert 290 <= first <= 292
    assert second == 420


def test_network_link_that_is_mute_one_way_is_not_made_again() -> None:
    little = Little()
    little.scheduler.run_until(100)
    little.network.mute(B2, [B1])
    little.network.break_all(B1)
    little.scheduler.run_until(200)
    assert [event for _, event in little.heard(0, Connected)].count(Connected(B2)) == 1
    little.network.heal()
    little.scheduler.run_until(300)
    assert [event for _, event in little.heard(0, Connected)].count(Connected(B2)) == 2


@pytest.mark.parametrize(
    ("weather", "refusals"),
    [
        (Weather(duplication=1000), [Refusal.REPLAYED]),
        (Weather(replay=1000), [Refusal.REPLAYED, Refusal.BAD_MAC]),
        (Weather(reflected=((B1, B2),)), [Refusal.BAD_MAC]),
    ],
)
def test_network_attacker_on_the_wire_is_refused(weather: Weather, refusals: list[Refusal]) -> None:
    little = Little(weather=weather)
    little.scheduler.run_until(100)
    for at in (110, 120, 130):
        little.nodes[0].carry_out([Send((B2,), HELLO)])
        little.scheduler.run_until(at)
    assert len(little.heard(1, Receive)) == 3
    assert sorted(little.network.refused, key=str) == sorted(refusals, key=str)
    assert little.breaches == []


@pytest.mark.parametrize(
    ("method", "broken", "how"),
    [
        ("_authentic", lambda *_: True, "takes a packet that its peer did not send"),
        ("received", property(lambda _: 0), None),
    ],
)
def test_network_session_that_believes_anything_is_reported(
    method: str, broken: object, how: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, method, broken)
    little = Little(weather=Weather(reflected=((B1, B2),)))
    little.scheduler.run_until(100)
    for at in (110, 120, 130):
        little.nodes[0].carry_out([Send((B2,), HELLO)])
        little.scheduler.run_until(at)
    assert next((said for _, _, said in little.breaches), None) == how


def test_network_greeting_that_is_repeated_leads_to_no_session() -> None:
    little = Little(weather=Weather(replay=1000))
    little.scheduler.run_until(100)
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(150)
    link = little.network.link(B1, B2)
    assert link is not None
    assert link.hello is not None
    assert link.recorded
    little.network.break_link(link)
    little.scheduler.run_until(300)
    assert little.breaches == []


def test_network_flipped_header_byte_never_reaches_a_machine() -> None:
    little = Little(weather=Weather(corruption=1000, loss=1000))
    little.network.weather = Weather(corruption=1000)
    little.scheduler.run_until(100)
    for _ in range(50):
        little.nodes[0].carry_out([Send((B2,), HELLO)])
        little.scheduler.run_until(little.scheduler.now + 10)
    assert len(little.heard(1, Receive)) == 50
    assert sum(little.network.refused.values()) == 50
    assert not little.network.altered


def test_network_notes_between_whom_contents_were_altered() -> None:
    little = Little(weather=Weather(corruption=1000))
    little.scheduler.run_until(100)
    for _ in range(10):
        little.nodes[0].carry_out([Send((B2,), HELLO, (b"a" * 1000,))])
        little.scheduler.run_until(little.scheduler.now + 10)
    assert [*little.network.altered] == [(B1, B2)]
    bodies = {event.bodies for _, event in little.heard(1, Receive) if isinstance(event, Receive)}
    assert len(bodies) > 1


def test_network_forged_packet_is_refused() -> None:
    little = Little()
    little.scheduler.run_until(100)
    little.network.forge(B1, B2, [encode_parcel(HELLO)])
    little.scheduler.run_until(110)
    assert little.network.refused == {Refusal.BAD_MAC: 1}


def test_node_timer_set_again_moves_and_cancelled_never_fires() -> None:
    little = Little()
    node = little.nodes[0]
    node.carry_out([SetTimer(Tick("a"), 10), SetTimer(Tick("b"), 10), SetTimer(Tick("a"), 30)])
    node.carry_out([CancelTimer(Tick("b")), SetTimer(Tick("c"), 5)])
    little.scheduler.run_until(100)
    assert little.heard(0, TimerFired) == [
        (5, TimerFired(Tick("c"))),
        (30, TimerFired(Tick("a"))),
    ]


def test_node_paused_does_everything_at_once_when_it_goes_on() -> None:
    little = Little()
    little.scheduler.run_until(100)
    node = little.nodes[1]
    node.carry_out([SetTimer(Tick("a"), 10), Persist(Note("x"), (Send((B3,), HELLO),))])
    node.pause()
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(200)
    assert not little.heard(1, Receive) + little.heard(1, TimerFired) + little.heard(1, Persisted)
    assert not little.heard(2, Receive)
    node.resume()
    little.scheduler.run_until(300)
    late = [(at, type(event)) for at, event in little.machines[1].events if at >= 200]
    assert late == [(200, Persisted), (200, Receive), (200, TimerFired)]
    assert little.heard(2, Receive) == [(205, Receive(B2, HELLO))]


@pytest.mark.parametrize("paused", [True, False])
def test_node_paused_comes_to_things_in_the_order_in_which_they_came(paused: bool) -> None:
    little = Little()
    little.scheduler.run_until(100)
    node = little.nodes[1]
    known: list[int] = []
    if paused:
        node.pause()
    for _ in range(2):
        node.feed(Receive(B1, HELLO))
        node.in_turn(lambda: known.append(len(little.heard(1, Receive))))
    assert known == ([] if paused else [1, 2])
    node.resume()
    assert known == [1, 2]


def test_node_paused_and_crashed_forgets_what_it_had_not_done() -> None:
    little = Little()
    little.scheduler.run_until(100)
    node = little.nodes[1]
    node.pause()
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(150)
    node.crash()
    node.restart()
    node.resume()
    little.scheduler.run_until(200)
    assert not little.heard(-1, Receive)


def test_network_muted_one_direction_is_lost_and_no_link_breaks() -> None:
    little = Little()
    little.scheduler.run_until(100)
    little.network.mute(B1, [B2])
    little.nodes[0].carry_out([Send((B2, B3), HELLO)])
    little.nodes[1].carry_out([Send((B1,), HELLO)])
    little.scheduler.run_until(200)
    assert [len(little.heard(machine, Receive)) for machine in range(3)] == [1, 0, 1]
    assert not little.heard(0, Disconnected)
    little.network.heal()
    little.nodes[0].carry_out([Send((B2,), HELLO)])
    little.scheduler.run_until(300)
    assert len(little.heard(1, Receive)) == 1


def test_disk_what_waits_for_it_happens_after_the_sync() -> None:
    little = Little()
    little.scheduler.run_until(100)
    little.nodes[0].carry_out([Persist(Note("x"), (Send((B2,), HELLO),))])
    little.scheduler.run_until(200)
    assert little.heard(0, Persisted) == [(102, Persisted(Note("x")))]
    assert little.heard(1, Receive) == [(107, Receive(B1, HELLO))]


def test_disk_crash_loses_what_is_not_synced() -> None:
    little = Little()
    node = little.nodes[0]
    node.carry_out([Persist(Note("kept"))])
    little.scheduler.run_until(50)
    node.carry_out([Persist(Note("lost"), (Send((B2,), HELLO),))])
    node.crash()
    little.scheduler.run_until(60)
    node.restart()
    assert [event for _, event in little.machines[-1].events] == [Restored(Note("kept"))]
    assert not little.heard(1, Receive)


def test_disk_wiped_nothing_comes_back() -> None:
    little = Little()
    node = little.nodes[0]
    node.carry_out([Persist(Note("kept"))])
    little.scheduler.run_until(50)
    node.crash(wipe=True)
    node.restart()
    assert little.machines[-1].events == []


def test_node_crashed_timers_of_an_earlier_life_are_void() -> None:
    little = Little()
    node = little.nodes[0]
    node.carry_out([SetTimer(Tick("old"), 10)])
    node.crash()
    node.restart()
    little.scheduler.run_until(50)
    assert not little.heard(-1, TimerFired)


def test_node_twin_each_peer_talks_to_one_copy() -> None:
    little = Little()
    little.nodes[0].split([B3])
    little.scheduler.run_until(100)
    for peer in (1, 2):
        little.nodes[peer].carry_out([Send((B1,), HELLO)])
    little.scheduler.run_until(106)
    first, second = little.machines[0], little.machines[-1]
    assert [e.sender for _, e in first.events if isinstance(e, Receive)] == [B2]
    assert [e.sender for _, e in second.events if isinstance(e, Receive)] == [B3]


class Slow:
    """A fault that delays everything by ten milliseconds."""

    name = "slow"

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        return [Later(effect, 10) for effect in effects]


def test_node_fault_sees_also_what_waited_for_the_disk() -> None:
    little = Little()
    little.scheduler.run_until(100)
    little.nodes[0].fault = Slow()
    little.nodes[0].carry_out([Persist(Note("x"), (Send((B2,), HELLO),))])
    little.scheduler.run_until(200)
    # Ten for the write, two for the sync, ten for the message, five on the way.
    assert little.heard(1, Receive) == [(127, Receive(B1, HELLO))]


def make_world(policy: str = "ab") -> CellWorld:
    brokers = 3 if policy == "direct-crash" else 4
    entry = channel_entry("orders", Policy.named(policy))
    world = CellWorld(make_simulated_cell(brokers, 1, [entry]), 3, CALM, [])
    world.add_brokers()
    return world


def test_adversary_more_than_f_brokers_is_refused() -> None:
    world = make_world()
    world.adversary.corrupt(B1, "silent")
    with pytest.raises(UsageError, match="the model allows f=1"):
        world.adversary.corrupt(B2, "silent")
    with pytest.raises(UsageError, match="the model allows f=1"):
        world.adversary.crash(B2, wipe=True)


def test_adversary_crash_with_journal_does_not_count() -> None:
    world = make_world()
    for broker in (B1, B2, B3):
        world.adversary.crash(broker)
    assert not world.adversary.faulty


def test_adversary_fault_of_another_role_is_refused() -> None:
    with pytest.raises(UsageError, match="fault of a publisher"):
        make_world().adversary.corrupt(B1, "skip-broker")


def test_adversary_lie_under_crash_protection_is_refused() -> None:
    with pytest.raises(UsageError, match="does not cover 'alter'"):
        make_world("direct-crash").adversary.corrupt(B1, "alter")


def test_adversary_unknown_fault_says_what_there_is() -> None:
    with pytest.raises(UsageError, match="choose one of silent"):
        make_world().adversary.corrupt(B1, "grumpy")


def test_world_publisher_restart_is_a_new_incarnation() -> None:
    world = make_world()
    publisher = NodeId("pub-1")
    world.add_publisher(publisher)
    world.scheduler.run_until(50)
    world.nodes[publisher].feed(Submit(Channel("orders"), (b"a",)))
    world.adversary.crash(publisher)
    world.scheduler.run_until(60)
    world.adversary.restart(publisher)
    world.nodes[publisher].feed(Submit(Channel("orders"), (b"b",)))
    assert [stream.incarnation for stream in world.facts.published] == [1, 61]
    assert [stream.incarnation for stream in world.facts.ended] == [1]


# ----------------------------------------------------------- several cells in one world


def test_adversary_f_liars_of_each_cell_may_lie_at_once() -> None:
    one = make_simulated_cell(4, 1, ())
    lower = tuple(NodeId(f"lower-{n}") for n in (1, 2, 3))
    other = make_named_cell("other", lower, 1, (), ())
    nodes = [*one.manifest.broker_ids, *other.manifest.broker_ids]
    model = CellFaults(lambda node: one if node in one.manifest.broker_ids else other, None)
    refused = [node for node in nodes if model.refusal(node, {B2: "alter"})]
    assert refused == [*one.manifest.broker_ids]
    liars = {B2: "alter", lower[1]: "alter"}
    assert [node for node in nodes if model.refusal(node, liars)] == nodes


def test_adversary_machines_of_one_process_crash_pause_and_restart_together() -> None:
    world = make_world()
    world.adversary.companions[B1] = (B2,)
    world.adversary.crash(B1)
    assert [world.nodes[name].up for name in (B1, B2, B3)] == [False, False, True]
    world.adversary.restart(B1)
    assert [world.nodes[name].up for name in (B1, B2)] == [True, True]
    machine = world.nodes[B2].machine
    world.adversary.pause(B1)
    world.nodes[B2].in_turn(lambda: pytest.fail("it is paused"))
    world.adversary.crash(B1)
    world.adversary.restart(B1)
    assert world.nodes[B2].machine is not machine
