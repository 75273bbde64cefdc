"""The driver with a toy machine: events in, effects out in order, nothing else."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.world import run, until
from tests.support.cells import BOB, Cell
from tests.support.network import Disk

from quorumcast.broadcast.application import Acknowledged, Join, Submit
from quorumcast.cell.messages import Refuse
from quorumcast.core.errors import InvariantError, UsageError
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import (
    ArchiveReader,
    Bodies,
    CancelTimer,
    Connected,
    Dial,
    Drop,
    DropReason,
    Effect,
    Event,
    Forget,
    Hangup,
    Persist,
    Persisted,
    Receive,
    Record,
    Restored,
    Send,
    SetTimer,
    Storage,
    Suspect,
    Suspicion,
    Timer,
    TimerFired,
)
from quorumcast.core.message import Message
from quorumcast.crypto.keyring import Keyring
from quorumcast.faults.contract import Later
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.contract import Trouble

A, B = NodeId("a"), NodeId("b")
CHANNEL = Channel("c")
STREAM = Stream(CHANNEL, A, 1)


class Tick(Timer, frozen=True, tag=True):
    n: int = 0


class Note(Record, frozen=True, tag=True):
    text: str


class Toy:
    """Does what a test tells it to."""

    def __init__(self, answer: Callable[[Event], list[Effect]] = lambda event: []) -> None:
        self.events: list[Event] = []
        self.answer = answer

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self.events.append(event)
        return self.answer(event)

    def sizes(self) -> dict[str, int]:
        return {}


def fired(toy: Toy) -> list[Timer]:
    return [event.timer for event in toy.events if isinstance(event, TimerFired)]


class Wires:
    """Links that write down what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[tuple[NodeId, ...], Message, Bodies]] = []
        self.asked: list[tuple[str, NodeId]] = []

    def send(self, to: tuple[NodeId, ...], message: Message, bodies: Bodies) -> None:
        self.sent.append((to, message, bodies))

    def dial(self, peer: NodeId) -> None:
        self.asked.append(("dial", peer))

    def hangup(self, peer: NodeId) -> None:
        self.asked.append(("hangup", peer))

    def peers(self) -> list[NodeId]:
        return []

    def troubles(self) -> dict[NodeId, Trouble]:
        return {}

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    async def close(self) -> None: ...


def word(text: str) -> Refuse:
    return Refuse(CHANNEL, text)


def test_driver_effects_are_carried_out_in_order() -> None:
    async def main() -> None:
        wires, told = Wires(), list[Any]()
        effects: list[Effect] = [
            Send((B,), word("1")),
            Acknowledged(STREAM, 1),
            Send((A, B), word("2"), (b"x",)),
            Drop(DropReason.DUPLICATE, B),
            Suspect(B, Suspicion.SILENT),
            Dial(B),
            Hangup(A),
        ]
        driver = Driver(
            Toy(lambda event: effects),
            wires,
            application={Acknowledged: lambda e: told.append((e, len(wires.sent)))},
            publications=(Refuse, lambda send: int(send.message.reason)),
        )
        driver.receive(B, [(word("in"), (b"body",))])
        assert wires.sent == [((B,), word("1"), ()), ((A, B), word("2"), (b"x",))]
        assert told == [(Acknowledged(STREAM, 1), 1)]
        assert wires.asked == [("dial", B), ("hangup", A)]
        assert driver.telemetry.publications == 3
        assert driver.telemetry.drops["duplicate"] == 1
        assert driver.telemetry.suspicions[B, "silent"] == 1

    run(main())


def test_driver_packet_becomes_one_event_per_message() -> None:
    async def main() -> None:
        toy = Toy()
        driver = Driver(toy, Wires())
        driver.receive(B, [(word("1"), ()), (word("2"), (b"x",))])
        driver.peer_up(B)
        assert toy.events == [Receive(B, word("1")), Receive(B, word("2"), (b"x",)), Connected(B)]

    run(main())


def test_driver_timer_fires_once_moved_by_setting_again_and_not_after_cancelling() -> None:
    async def main() -> None:
        toy = Toy()
        driver = Driver(toy, Wires())
        loop = asyncio.get_running_loop()
        # However slowly this is done: whatever is waited for would fire after all the rest.
        driver.carry_out([SetTimer(Tick(1), 86_400_000), SetTimer(Tick(1), 5)])
        await until(lambda: Tick(1) in fired(toy))
        started = loop.time()
        driver.carry_out([SetTimer(Tick(2), 10), SetTimer(Tick(2), 80)])
        await until(lambda: Tick(2) in fired(toy))
        assert loop.time() - started >= 0.078
        driver.carry_out([SetTimer(Tick(3), 1), SetTimer(Tick(4), 20), SetTimer(Tick(5), 10)])
        driver.carry_out([CancelTimer(Tick(5)), CancelTimer(Tick(9))])
        await until(lambda: Tick(4) in fired(toy))
        assert fired(toy) == [Tick(n) for n in (1, 2, 3, 4)]

    run(main())


def test_driver_timer_tells_how_late_it_fires() -> None:
    async def main() -> None:
        toy = Toy()
        driver = Driver(toy, Wires())
        driver.carry_out([SetTimer(Tick(1), 10)])
        busy_until = time.monotonic() + 0.06
        while time.monotonic() < busy_until:
            pass
        await until(lambda: bool(toy.events))
        (event,) = toy.events
        assert isinstance(event, TimerFired)
        assert event.late_ms >= 49

    run(main())


def test_driver_many_cancelled_timers_leave_no_handles() -> None:
    async def main() -> None:
        driver = Driver(Toy(), Wires())
        for n in range(5000):
            driver.carry_out([SetTimer(Tick(n), 60_000), CancelTimer(Tick(n))])
        assert len(driver._armed) < 300
        driver.stop()

    run(main())


def test_driver_held_machine_hears_no_timer_until_released() -> None:
    async def main() -> None:
        toy = Toy()
        driver = Driver(toy, Wires())
        driver.hold()
        driver.carry_out([SetTimer(Tick(1), 1), SetTimer(Tick(2), 1)])
        await until(lambda: len(driver._postponed or ()) == 2)
        assert toy.events == []
        driver.release()
        await until(lambda: len(toy.events) == 2)

    run(main())


def test_driver_tells_watchers_when_its_machine_hears_nothing_and_of_new_epochs() -> None:
    told: list[object] = []

    class Watching:
        def on_handled(self, event: Event, effects: list[Effect], now: Millis) -> None:
            told.append(event)

        def on_held(self, now: Millis) -> None:
            told.append("held")

        def on_released(self, now: Millis) -> None:
            told.append("released")

        def on_adopted(self, manifest: Manifest, effects: list[Effect], now: Millis) -> None:
            told.append((manifest, effects))

    class Renewable(Toy):
        def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
            return [Send((B,), word("renewed"))]

    async def main() -> None:
        wires, cell = Wires(), Cell(Policy.named("ab"), 4)
        driver = Driver(Renewable(), wires)
        driver.watch(Watching())
        driver.feed(Connected(B))
        driver.release()
        for _ in range(2):
            driver.hold()
        for _ in range(2):
            driver.release()
        driver.adopt(cell.manifest, cell.keyring(BOB))
        renewed = [Send((B,), word("renewed"))]
        assert told == [Connected(B), "held", "released", (cell.manifest, renewed)]
        assert [message for _, message, _ in wires.sent] == [word("renewed")]

    run(main())


def test_driver_persist_without_a_store_carries_on_at_once() -> None:
    async def main() -> None:
        wires, toy = Wires(), Toy()
        driver = Driver(toy, wires)
        driver.carry_out([Persist(Note("n"), (Send((B,), word("then")),)), Send((B,), word("now"))])
        assert [m for _, m, _ in wires.sent] == [word("then"), word("now")]
        assert toy.events == [Persisted(Note("n"))]

    run(main())


class SlowStore:
    """Keeps records when told to."""

    def __init__(self) -> None:
        self.saved: list[tuple[Record, Callable[[], None]]] = []
        self.forgotten: list[tuple[type[Record], str, int]] = []
        self._archive = Disk()

    def load(self) -> list[Record]:
        return [Note("old")]

    def save(self, record: Record, done: Callable[[], None], *, lazy: bool = False) -> None:
        self.saved.append((record, done))

    def forget(self, kind: type[Record], owner: str, below: int, since: int = 0) -> None:
        self.forgotten.append((kind, owner, below))

    def watch(self, on_full: Callable[[bool], None]) -> None:
        self.on_full = on_full

    @property
    def archive(self) -> ArchiveReader:
        return self._archive


def test_driver_what_waits_for_the_disk_is_not_sent_before() -> None:
    async def main() -> None:
        wires, toy, store = Wires(), Toy(), SlowStore()
        driver = Driver(toy, wires, store=store)
        assert driver.restore() == 1
        driver.carry_out([Persist(Note("n"), (Send((B,), word("then")),)), Send((B,), word("now"))])
        assert [m for _, m, _ in wires.sent] == [word("now")]
        store.saved[0][1]()
        assert [m for _, m, _ in wires.sent] == [word("now"), word("then")]
        assert toy.events == [Restored(Note("old")), Persisted(Note("n"))]

    run(main())


def test_driver_forget_goes_to_the_store_if_there_is_one() -> None:
    async def main() -> None:
        store = SlowStore()
        Driver(Toy(), Wires(), store=store).carry_out([Forget(Note, "owner", 7)])
        assert store.forgotten == [(Note, "owner", 7)]
        Driver(Toy(), Wires()).carry_out([Forget(Note, "owner", 7)])

    run(main())


def test_driver_machine_with_archived_records_reads_from_the_store_before_any_event() -> None:
    class Reading(Toy):
        def read_from(self, archive: ArchiveReader) -> None:
            assert self.events == []
            self.archive = archive

    async def main() -> None:
        reading, store = Reading(), SlowStore()
        Driver(reading, Wires(), store=store).restore()
        assert reading.archive is store.archive
        assert reading.events == [Restored(Note("old"))]

    run(main())


def test_driver_machine_is_told_of_a_full_disk() -> None:
    async def main() -> None:
        store, wires = SlowStore(), Wires()
        toy = Toy(lambda event: [Send((B,), word("refused"))])
        Driver(toy, wires, store=store)
        store.on_full(True)
        store.on_full(False)
        assert toy.events == [Storage(full=True), Storage(full=False)]
        assert len(wires.sent) == 2

    run(main())


class Liar:
    name = "liar"

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        lies: list[Effect | Later] = []
        for effect in effects:
            if isinstance(effect, Send):
                lies += [Send(effect.to, word("lie")), Later(Send(effect.to, word("late")), 20)]
        return lies


def test_driver_fault_tampers_with_effects_also_with_those_that_waited_for_the_disk() -> None:
    async def main() -> None:
        wires, store = Wires(), SlowStore()
        driver = Driver(Toy(), wires, store=store)
        driver.carry_out([Persist(Note("n"), (Send((B,), word("truth")),))])
        driver.faults = (Liar(),)
        store.saved[0][1]()
        assert [m for _, m, _ in wires.sent] == [word("lie")]
        await until(lambda: len(wires.sent) == 2)
        assert wires.sent[1][1] == word("late")

    run(main())


def test_driver_shows_what_it_really_does_and_not_what_the_machine_meant() -> None:
    async def main() -> None:
        wires, seen = Wires(), list[tuple[Any, int]]()
        driver = Driver(Toy(), wires)
        driver.observe(Send, lambda effect: seen.append((effect.message, len(wires.sent))))
        driver.observe(Acknowledged, lambda effect: seen.append((effect, -1)))
        driver.faults = (Liar(),)
        driver.carry_out([Send((B,), word("truth"))])
        await until(lambda: len(wires.sent) == 2)
        driver.faults = ()
        driver.carry_out([Acknowledged(STREAM, 1)])
        assert seen == [(word("lie"), 0), (word("late"), 1), (Acknowledged(STREAM, 1), -1)]

    run(main())


def test_driver_broken_invariant_stops_the_node() -> None:
    def broken(event: Event) -> list[Effect]:
        raise InvariantError("two and two are five")

    async def main() -> None:
        failures: list[BaseException] = []
        toy = Toy(broken)
        driver = Driver(toy, Wires(), on_failure=failures.append)
        driver.receive(B, [(word("1"), ()), (word("2"), ())])
        driver.feed(Connected(B))
        assert [str(f) for f in failures] == ["two and two are five"]
        assert len(toy.events) == 1
        with pytest.raises(InvariantError):
            Driver(Toy(broken), Wires()).feed(Connected(B))

    run(main())


def test_driver_misuse_by_the_application_is_raised_and_stops_nothing() -> None:
    def answer(event: Event) -> list[Effect]:
        if isinstance(event, Join):
            raise UsageError("no such channel")
        return []

    async def main() -> None:
        toy = Toy(answer)
        driver = Driver(toy, Wires(), on_failure=lambda error: pytest.fail(str(error)))
        with pytest.raises(UsageError):
            driver.feed(Join(CHANNEL))
        driver.feed(Submit(CHANNEL, ()))
        assert len(toy.events) == 2

    run(main())
