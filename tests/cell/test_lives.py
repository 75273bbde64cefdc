"""Many lives of one publisher at a broker: what nobody has settled harms nothing that is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    ORDERS,
    T0,
    Cell,
    digests,
    limited,
    messages,
    publish,
    reasons,
)

from quorumcast.broadcast.messages import Ack, Contents, Echo, Ready
from quorumcast.cell.messages import Position, Positions, Regain, Regained
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.recovering.holdings import GRACE
from quorumcast.cell.serving.recovering.recovery import RecoveryTick
from quorumcast.cell.serving.served_streams import DISPLACED_AFTER_MS, UNCLAIMED
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.machine import (
    Connected,
    DropReason,
    Effect,
    Forget,
    Persist,
    Receive,
    Restored,
    TimerFired,
)
from quorumcast.crypto.digest import root
from quorumcast.manifest.policy import Policy
from quorumcast.sim.kernel.disk import Disk
from quorumcast.sim.kernel.scheduler import Scheduler

SETTLING = ["brb", "ab+history"]


def life(number: int) -> Stream:
    return Stream(ORDERS, ALICE, 2 * number)


def small(name: str, **more: int) -> Policy:
    """α is 4: a broker takes 8 publications that no history names."""
    usual = {"retained_publications": 8, "window": 8, "segment": 4, "streams_per_publisher": 4}
    return limited(name, alpha=4, **{**usual, **more})


def readies(stream: Stream, first: int, *contents: bytes) -> list[Receive]:
    word = Ready(stream, first, root(first, digests(*contents)))
    return [Receive(peer, word) for peer in (B2, B3, B4)]


class Given:
    """A broker and its disk."""

    def __init__(self, policy: Policy) -> None:
        self.cell = Cell(policy)
        self.scheduler = Scheduler("lives")
        self.disk = Disk(self.scheduler, 0)
        self.broker: Broker = self.cell.broker(B1)
        self.now = T0

    def wait(self) -> None:
        """Until earlier lives may be displaced."""
        self.now = Millis(self.now + DISPLACED_AFTER_MS)

    def hear(self, *events: Receive) -> list[Effect]:
        effects = [effect for event in events for effect in self.broker.handle(event, self.now)]
        for effect in effects:
            if isinstance(effect, Persist):
                self.disk.write(effect.record, lambda: None)
            elif isinstance(effect, Forget):
                self.disk.forget(effect.kind, effect.owner, effect.below, effect.since)
        self.scheduler.run_until(Millis(1), 10**6)
        return effects

    def restart(self) -> None:
        self.broker = self.cell.broker(B1)
        for record in list(self.disk.durable):
            self.broker.handle(Restored(record), T0)

    def settle(self, stream: Stream, first: int, *contents: bytes, index: int = 1) -> None:
        """These publications, and what all brokers say of them."""
        for _ in range(2):  # the first time it may have to make room
            self.hear(publish(first, *contents, stream=stream))
        if not self.cell.policy.has_history:
            self.hear(*readies(stream, first, *contents))
            return
        history = self.cell.history(index, first, *contents, stream=stream)
        self.hear(publish(index, history, stream=stream.history))
        self.hear(*readies(stream.history, index, history))

    def span(self, stream: Stream) -> tuple[int, int]:
        status = self.broker.streams()[stream]
        return status.base, status.next

    def settled(self, stream: Stream) -> int:
        return self.broker.streams()[stream].settled


@pytest.mark.parametrize("name", SETTLING)
def test_lives_of_which_nothing_is_settled_end_no_earlier_stream(name: str) -> None:
    """A lying publisher sends them to one broker only."""
    given = Given(small(name))
    given.settle(life(1), 1, b"a", b"b")
    assert given.settled(life(1)) == 2
    for number in range(2, 400):
        given.hear(publish(1, b"x", stream=life(number)))
    assert given.span(life(1)) == (1, 3)
    assert not given.broker.has_ended(life(1))
    assert given.broker.sizes()["streams"] == 1 + 4
    assert life(399) in given.broker.streams()


@pytest.mark.parametrize("name", SETTLING)
def test_publications_that_are_not_settled_push_out_none_that_are(name: str) -> None:
    given = Given(small(name, streams_per_publisher=64))
    given.settle(life(1), 1, *(b"a%d" % n for n in range(8)))
    for number in range(2, 40):
        given.wait()
        given.settle(life(number), 1, b"s")  # pushes out one of the oldest
        assert given.settled(life(number)) == 1
        given.hear(publish(2, b"x", b"y", b"z", stream=life(number)))
        given.hear(publish(5, b"x", b"y", b"z", stream=life(number)))
    given.wait()
    given.hear(publish(2, b"x", b"y", b"z", stream=life(39)))
    assert [given.span(life(number))[0] for number in range(32, 40)] == [1] * 8
    assert sum(s.endswith("/ledger") for s in given.broker.sizes()) == 8
    held = [given.span(life(number))[1] for number in range(32, 40)]
    assert held[:-1] == [2] * 7 or name == "brb"


def test_life_with_a_run_under_way_is_not_over_although_nothing_of_it_is_retained() -> None:
    """The run is acknowledged. Its publisher crashed, so nobody else would bring it."""
    given = Given(small("brb"))
    given.settle(life(1), 1, b"a")
    given.hear(publish(2, b"b", stream=life(1)))
    given.hear(Receive(B2, Echo(life(1), 2, root(2, digests(b"b")))))
    given.settle(life(2), 1, *(b"%d" % n for n in range(8)))
    assert given.span(life(1)) == (2, 2)
    given.wait()
    given.hear(*readies(life(1), 2, b"b"))
    assert given.settled(life(2)) == 8
    assert given.broker.has_ended(life(1))
    assert given.broker.sizes()["ended"] == 1


def test_life_of_which_nothing_is_retained_goes_on_for_a_while_after_the_next_has_begun() -> None:
    """This broker was cut off: it hears of the next life before it hears of the last run."""
    given = Given(small("brb"))
    given.settle(life(1), 1, b"a")
    given.settle(life(2), 1, *(b"%d" % n for n in range(8)))
    assert given.span(life(1)) == (2, 2)
    word = Echo(life(1), 2, root(2, digests(b"b")))
    given.hear(Receive(B2, word), Receive(B3, word))
    given.hear(Receive(B2, Contents(life(1), 2, digests(b"b")), (b"b",)))
    given.hear(*readies(life(1), 2, b"b"))
    assert given.settled(life(1)) == 2


@pytest.mark.parametrize("name", SETTLING)
def test_life_gives_up_nothing_for_one_that_has_just_begun(name: str) -> None:
    """Its publisher crashed when n-f brokers had acknowledged all of this."""
    given = Given(small(name))
    run = [b"%d" % n for n in range(8)]
    for first in (1, 5):
        part = run[first - 1 : first + 3]
        word = Echo(life(1), first, root(first, digests(*part)))
        given.hear(publish(first, *part, stream=life(1)), Receive(B2, word), Receive(B3, word))
    assert DropReason.OVER_LIMIT in reasons(given.hear(publish(1, b"x", stream=life(2))))
    given.settle(life(1), 1, *run) if name == "ab+history" else given.hear(
        *readies(life(1), 1, *run[:4]), *readies(life(1), 5, *run[4:])
    )
    assert given.settled(life(1)) == 8
    given.settle(life(2), 1, b"x")
    assert given.settled(life(2)) == 1


@pytest.mark.parametrize("name", SETTLING)
def test_newest_life_is_taken_however_much_earlier_ones_left_unsettled(name: str) -> None:
    """An honest publisher may die again and again before anything is settled."""
    given = Given(small(name, streams_per_publisher=64))
    for number in range(1, 100):
        for first in (1, 5):
            run = [b"%d" % n for n in range(first, first + 4)]
            effects = given.hear(publish(first, *run, stream=life(number)))
            if DropReason.OVER_LIMIT in reasons(effects):
                given.wait()
                given.hear(publish(first, *run, stream=life(number)))  # makes room
                effects = given.hear(publish(first, *run, stream=life(number)))
            acks = [a for a in messages(effects, Ack) if isinstance(a, Ack)]
            assert [ack.upto for ack in acks if ack.stream == life(number)][-1:] == [first + 3]
    given.hear(publish(1, b"a", stream=life(100)))
    given.wait()
    given.settle(life(100), 1, b"a")
    assert given.settled(life(100)) == 1


@pytest.mark.parametrize("name", SETTLING)
def test_life_that_was_given_up_is_never_begun_again_by_its_publisher(name: str) -> None:
    """The broker has forgotten what it said of it, also after a restart with its journal."""
    given = Given(replace(small(name), journal=True))
    for number in range(1, 40):
        given.hear(publish(1, b"x", stream=life(number)))
    for _ in range(2):
        for message in (
            publish(1, b"other", stream=life(1)),
            Receive(B2, Echo(life(1), 1, root(1, digests(b"other")))),
        ):
            assert reasons(given.hear(message)) == [DropReason.UNKNOWN_STREAM]
        assert str(life(1)) not in {record.owner for record in given.disk.durable}
        given.restart()


def test_life_that_was_given_up_comes_back_from_brokers_that_have_settled_it() -> None:
    given = Given(small("brb"))
    for number in range(1, 40):
        given.hear(publish(1, b"x", stream=life(number)))
    assert life(1) not in given.broker.streams()
    tell(given.broker, B2, B3, B4, stream=life(1), end=3)
    ticks = 0
    while not messages(given.broker.handle(TimerFired(RecoveryTick()), T0), Regain):
        ticks += 1
        assert ticks < 3 * GRACE
    for peer in (B2, B3, B4):
        word = Regained(life(1), 1, digests(b"x", b"y"))
        given.broker.handle(Receive(peer, word, (b"x", b"y")), T0)
    assert given.span(life(1)) == (1, 3)
    assert reasons(given.hear(publish(3, b"z", stream=life(1)))) == [DropReason.UNKNOWN_STREAM]


def tell(broker: Broker, *peers: NodeId, stream: Stream, end: int) -> None:
    for peer in peers:
        broker.handle(Connected(peer), T0)
        told = Positions(ORDERS, (Position(stream, 1, end),))
        broker.handle(Receive(peer, told), T0)


@pytest.mark.parametrize("name", SETTLING)
def test_bytes_that_are_not_settled_are_bounded_also_in_the_newest_life(name: str) -> None:
    given = Given(small(name, retained_bytes=1000))
    given.settle(life(1), 1, b"a" * 500, b"b" * 400)
    for number in (2, 3):
        for first in range(1, 9):
            given.hear(publish(first, b"x" * 300, stream=life(number)))
    assert given.span(life(1)) == (1, 3)
    sizes = given.broker.sizes()
    assert sum(size for name, size in sizes.items() if name.endswith("instance_bytes")) <= 1000
    assert given.span(life(3))[1] <= 4


def test_journal_of_streams_that_nobody_comes_back_to_is_bounded() -> None:
    """Brokers restart, and publishers too: one life after the other is left behind."""
    policy = replace(small("ab"), journal=True)
    given = Given(policy)
    for number in range(1, 60):
        given.hear(publish(1, b"x", b"y", b"z", stream=life(number)))
        given.restart()
    kept = {record.owner for record in given.disk.durable if record.owner != f"{ORDERS}/{ALICE}"}
    assert 3 <= len(kept) <= UNCLAIMED * policy.limits.streams_per_publisher
    assert given.broker.sizes()["journaled"] <= 3 + UNCLAIMED * policy.limits.retained_publications
    # Whatever it no longer remembers is over, and said to be.
    for number in range(1, 60):
        effects = given.hear(publish(1, b"other", stream=life(number)))
        assert reasons(effects)[0] in (DropReason.CONFLICT, DropReason.UNKNOWN_STREAM)
