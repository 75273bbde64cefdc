"""The simulated disk: it keeps what the runtime's store keeps, and fails as that one may fail."""

import random
from zlib import crc32

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Event, Forget, Persist, Persisted, Record, Restored
from quorumcast.crypto.session import Parcel
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import channel_entry, make_simulated_cell
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.disk import Disk
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.kernel.scheduler import Scheduler

B1, B2 = NodeId("broker-1"), NodeId("broker-2")


class Said(Record, frozen=True, tag=True):
    """One that nothing replaces."""

    text: str

    @property
    def place(self) -> int:
        return crc32(self.text.encode())


class Kept(Record, frozen=True, tag=True):
    at: int
    value: str
    whose: str = "alice"

    @property
    def owner(self) -> str:
        return self.whose

    @property
    def place(self) -> int:
        return self.at


class Filed(Kept, frozen=True, tag=True):
    archived = True


class Toy:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self.events.append(event)
        return []

    def sizes(self) -> dict[str, int]:
        return {}


class NoWire:
    def transmit(self, sender: NodeId, receiver: NodeId, parcels: list[Parcel]) -> None: ...

    def dial(self, caller: NodeId, callee: NodeId) -> None: ...

    def hangup(self, end: NodeId, peer: NodeId) -> None: ...


class Lone:
    """One node with a disk, and nobody to talk to."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.node = SimulatedNode(B1, Toy, self.scheduler, NoWire(), [], sync_ms=2)

    def do(self, *effects: Effect) -> None:
        self.node.carry_out(list(effects))

    def wait(self) -> None:
        self.scheduler.run_until(self.scheduler.now + 10)

    @property
    def events(self) -> list[Event]:
        assert isinstance(self.node.machine, Toy)
        return self.node.machine.events

    def found(self, **crash: bool | int) -> list[Record]:
        """What comes back after a crash of this kind."""
        self.node.crash(**crash)  # type: ignore[arg-type]
        self.wait()
        self.node.restart()
        return [event.record for event in self.events if isinstance(event, Restored)]


def test_disk_address_is_replaced_and_order_is_that_of_writing() -> None:
    lone = Lone()
    lone.do(Persist(Kept(1, "old")), Persist(Said("a")), Persist(Kept(2, "two")))
    lone.do(Persist(Said("b")), Persist(Kept(1, "new")), Persist(Kept(1, "his", "bob")))
    lone.wait()
    assert lone.found() == [
        Said("a"), Kept(2, "two"), Said("b"), Kept(1, "new"), Kept(1, "his", "bob"),
    ]  # fmt: skip


def test_disk_forget_takes_its_turn_among_the_records() -> None:
    lone = Lone()
    lone.do(Persist(Kept(1, "goes")), Persist(Kept(2, "stays")), Persist(Kept(1, "b", "bob")))
    lone.do(Forget(Kept, "alice", 2), Persist(Kept(1, "written after")), Forget(Said, "", 9))
    lone.wait()
    assert lone.found() == [Kept(2, "stays"), Kept(1, "b", "bob"), Kept(1, "written after")]


def test_disk_forget_that_was_not_synced_did_not_happen() -> None:
    lone = Lone()
    lone.do(Persist(Kept(1, "still there")))
    lone.wait()
    lone.do(Forget(Kept, "alice", 2))
    assert lone.found() == [Kept(1, "still there")]


@pytest.mark.parametrize("tear", [0, 1, 2, 3, 99])
def test_disk_torn_keeps_a_prefix_that_nobody_was_told_about(tear: int) -> None:
    lone = Lone()
    lone.do(Persist(Said("synced")))
    lone.wait()
    lone.do(Persist(Said("1")), Persist(Kept(1, "2")), Forget(Kept, "alice", 9))
    assert lone.events == [Persisted(Said("synced"))]
    kept: list[list[Record]] = [[], [Said("1")], [Said("1"), Kept(1, "2")], [Said("1")]]
    assert lone.found(tear=tear) == [Said("synced"), *kept[min(tear, 3)]]
    assert not any(isinstance(event, Persisted) for event in lone.events)


def test_disk_corrupted_by_a_crash_comes_back_empty_and_works_again() -> None:
    lone = Lone()
    lone.do(Persist(Said("lost")))
    lone.wait()
    assert lone.found(corrupt=True) == []
    lone.do(Persist(Said("new")))
    lone.wait()
    assert lone.found() == [Said("new")]


def test_disk_damaged_at_a_moment_is_found_out_at_the_next_start() -> None:
    lone = Lone()
    lone.do(Persist(Said("before")))
    lone.wait()
    lone.node.disk.damaged = True
    lone.do(Persist(Said("after")))
    lone.wait()
    assert Persisted(Said("after")) in lone.events
    assert lone.found() == []


def test_disk_agrees_with_a_plain_list() -> None:
    rng = random.Random(3)
    scheduler = Scheduler(3)
    disk = Disk(scheduler, 1)
    plain: list[Record] = []
    for i in range(500):
        whose = rng.choice(("alice", "bob"))
        if rng.random() < 0.2:
            below = rng.randrange(i + 1)
            disk.forget(Kept, whose, below)
            plain = [
                r for r in plain if not isinstance(r, Kept) or r.whose != whose or r.at >= below
            ]
        elif rng.random() < 0.5:
            disk.write(Said(str(i)), lambda: None)
            plain.append(Said(str(i)))
        else:
            record = Kept(rng.randrange(i + 1), str(i), whose)
            disk.write(record, lambda: None)
            plain = [
                r for r in plain if not isinstance(r, Kept) or (r.whose, r.at) != (whose, record.at)
            ]
            plain.append(record)
        scheduler.run_until(scheduler.now + 2)
        assert disk.durable == plain


# ------------------------------------------------------------- the fault model


def make_world() -> CellWorld:
    entry = channel_entry("orders", Policy.named("ab", journal=True))
    world = CellWorld(make_simulated_cell(4, 1, [entry]), 3, Weather(latency_ms=5), [])
    world.add_brokers()
    return world


def test_adversary_torn_disk_is_no_fault() -> None:
    world = make_world()
    for broker in (B1, B2):
        world.adversary.crash(broker, tear=1)
    assert not world.adversary.faulty


def test_adversary_damaged_disk_counts_like_a_wiped_one() -> None:
    world = make_world()
    world.adversary.crash(B1, corrupt=True)
    assert list(world.adversary.faulty) == [B1]
    with pytest.raises(UsageError, match="the model allows f=1"):
        world.adversary.damage(B2)
    world.adversary.restart(B1)
    world.adversary.damage(B1)
    assert world.nodes[B1].disk.damaged


def test_archived_records_are_read_from_the_disk_and_not_restored() -> None:
    scheduler = Scheduler(0)
    disk = Disk(scheduler, 1)
    for at in (3, 5, 9):
        disk.write(Filed(at, f"at {at}"), lambda: None)
    disk.write(Kept(1, "restored"), lambda: None)
    assert disk.get(Filed, "alice", 3) is None  # not durable yet
    scheduler.run_until(Millis(10))
    assert disk.load() == [Kept(1, "restored")]
    assert disk.get(Filed, "alice", 5) == Filed(5, "at 5")
    assert disk.get(Filed, "alice", 4) is None
    assert disk.last(Filed, "alice", 9) == Filed(5, "at 5")
    assert disk.last(Filed, "alice", 3) is None
    assert disk.first(Filed, "alice", 4) == Filed(5, "at 5")
    assert disk.first(Filed, "alice", 10) is None
    assert disk.owners(Filed) == ["alice"]
    disk.forget(Filed, "alice", 10)
    scheduler.run_until(Millis(20))
    assert disk.owners(Filed) == []
