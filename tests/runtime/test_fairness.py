"""Fair shares of processor time: served in turn, requests within a budget, floods disconnected."""

import asyncio
from collections.abc import Callable

import pytest
from tests.runtime.world import run, until

from quorumcast.core.ids import NodeId, at_seat
from quorumcast.runtime.links import fairness
from quorumcast.runtime.links.fairness import (
    BAR_FIRST_S,
    BURST_S,
    FLOOD_REQUESTS,
    FLOOD_SHARE,
    QUANTUM_S,
    Account,
    Fairness,
    Piece,
)
from quorumcast.runtime.links.limits import TransportLimits

ALICE, BOB, BROKER = NodeId("alice"), NodeId("bob"), NodeId("broker-1")


class World:
    """A processor whose time passes only when links work, or wait for it."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.waited_s = 0.0
        #: Who has worked, in order.
        self.order: list[NodeId] = []
        self.disconnected: list[tuple[NodeId, str]] = []
        self.fairness = Fairness(
            self._disconnect,
            is_broker=lambda node: node == BROKER,
            cpu_clock=lambda: self.cpu_s,
            clock=lambda: self.cpu_s + self.waited_s,
            waited=lambda: self.waited_s + self.passed(),
        )
        #: How long the thread has waited beside what its links say.
        self.passed: Callable[[], float] = lambda: 0.0
        self.links: list[FakeLink] = []

    def _disconnect(self, name: NodeId, reason: str) -> None:
        self.disconnected.append((name, reason))
        for link in self.links:
            if link.account.name == name:
                link.left = 0

    def link(
        self, peer: NodeId, pieces: int, piece: Piece = Piece.WORK, cost_s: float = QUANTUM_S / 4
    ) -> "FakeLink":
        link = FakeLink(self, peer, pieces, piece, cost_s)
        self.links.append(link)
        return link

    def spent(self, peer: NodeId) -> float:
        return self.fairness.account(peer).spent_s


class FakeLink:
    """A link with so many pieces of work."""

    outbox_bytes = 0
    answer_bytes = 0

    def __init__(
        self, world: World, peer: NodeId, pieces: int, piece: Piece, cost_s: float
    ) -> None:
        self.world, self.peer, self.left, self.piece, self.cost_s = (
            world, peer, pieces, piece, cost_s,
        )  # fmt: skip
        self.account = world.fairness.account(peer)
        self.is_held = False

    def arrive(self) -> None:
        self.world.fairness.arrived(self.account, self)

    def work(self) -> Piece:
        if not self.left:
            return Piece.NOTHING
        self.left -= 1
        self.world.cpu_s += self.cost_s
        self.world.order.append(self.peer)
        return self.piece

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def is_done(self) -> bool:
        return not self.left

    def unhandled_bytes(self) -> int:
        return 100 * self.left

    def waiting_requests(self, most: int) -> int:
        return 0 if self.piece is Piece.WORK else self.left


def test_busy_link_is_interrupted_after_a_quantum_and_nothing_more_is_read_from_it() -> None:
    async def main() -> None:
        world = World()
        busy = world.link(ALICE, 100)
        busy.arrive()
        assert busy.is_held
        assert world.cpu_s == pytest.approx(QUANTUM_S)
        quiet = world.link(BOB, 1)
        quiet.arrive()
        assert not quiet.is_held
        assert quiet.left == 0  # before the rest of what the busy one wants
        await until(lambda: not busy.left)
        assert not busy.is_held

    run(main())


def test_two_busy_links_have_the_same_time_whatever_their_pieces_cost() -> None:
    async def main() -> None:
        world = World()
        world.link(ALICE, 10_000, cost_s=QUANTUM_S / 8).arrive()
        world.link(BOB, 10_000, cost_s=QUANTUM_S * 5).arrive()
        await until(lambda: world.cpu_s > 400 * QUANTUM_S)
        assert world.spent(ALICE) == pytest.approx(world.spent(BOB), rel=0.1)

    run(main())


def test_seats_of_one_identity_have_one_share_between_them() -> None:
    async def main() -> None:
        world = World()
        for seat in range(8):
            world.link(at_seat(ALICE, seat), 10_000).arrive()
        world.link(BOB, 10_000).arrive()
        await until(lambda: world.cpu_s > 400 * QUANTUM_S)
        assert world.spent(ALICE) == pytest.approx(world.spent(BOB), rel=0.1)
        assert len({peer for peer in world.order if peer != BOB}) == 8

    run(main())


def test_busy_broker_has_its_share_of_each_round_and_is_never_paused() -> None:
    async def main() -> None:
        world = World()
        world.link(BROKER, 10_000).arrive()
        world.link(BOB, 10_000).arrive()
        await until(lambda: world.cpu_s > 400 * QUANTUM_S)
        assert world.spent(BROKER) == pytest.approx(2 * world.spent(BOB), rel=0.1)
        assert world.fairness.load()[BROKER].paused == 0

    run(main())


@pytest.mark.parametrize("piece", [Piece.REQUEST, Piece.DROPPED])
def test_broker_that_floods_is_paused_and_never_disconnected(
    piece: Piece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "FLOOD_GRACE_S", -1.0)

    async def main() -> None:
        world = World()
        world.link(BROKER, 1_000_000, piece).arrive()
        world.link(BOB, 1_000_000).arrive()
        await until(lambda: world.cpu_s > 40 * BURST_S)
        assert world.fairness.load()[BROKER].paused > 0
        assert world.spent(BROKER) < BURST_S + FLOOD_SHARE * world.spent(BOB) + 4 * QUANTUM_S
        assert world.disconnected == []
        assert world.fairness.refusal(BROKER) == ""

    run(main())


def test_flood_has_no_more_than_a_part_of_what_is_spent_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the processor has little to do: a share of all the time would be too much."""
    monkeypatch.setattr(fairness, "FLOOD_GRACE_S", 1000.0)
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)
    monkeypatch.setattr(fairness, "LOOK_S", 0.0)

    async def main() -> None:
        world = World()
        world.link(BOB, 1).arrive()
        world.link(ALICE, 1_000_000, Piece.REQUEST).arrive()
        await until(lambda: world.fairness.load()[ALICE].paused > 10)
        before = world.spent(ALICE)
        assert before < 2 * BURST_S  # others say nothing, and it earns nothing
        other = world.link(BOB, 400)
        other.arrive()
        await until(lambda: not other.left)
        paused = world.fairness.load()[ALICE].paused
        await until(lambda: world.fairness.load()[ALICE].paused > paused + 4)
        assert world.spent(ALICE) - before <= FLOOD_SHARE * world.spent(BOB) + QUANTUM_S

    run(main())


def test_pieces_are_measured_by_the_cheap_clock_and_turns_by_processor_time() -> None:
    async def main() -> None:
        read: list[str] = []
        world = World()

        def noted(clock: str) -> float:
            read.append(clock)
            return world.cpu_s

        world.fairness = Fairness(
            lambda name, reason: None,
            is_broker=lambda node: False,
            cpu_clock=lambda: noted("processor"),
            clock=lambda: noted("day"),
            waited=lambda: 0.0,
        )
        publisher = world.link(BOB, 9, cost_s=QUANTUM_S / 40)
        read.clear()
        publisher.arrive()
        assert (read.count("day"), read.count("processor")) == (10, 2)

    run(main())


class WaitingLink(FakeLink):
    """One piece of work in twenty is dropped, and the thread loses its processor during each."""

    def work(self) -> Piece:
        self.piece = Piece.WORK if self.left % 20 else Piece.DROPPED
        self.world.waited_s += 9 * self.cost_s
        return super().work()


def test_time_without_a_processor_is_charged_to_nobody_so_no_broker_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)

    async def main() -> None:
        world = World()
        links = [
            WaitingLink(world, peer, 800, Piece.WORK, QUANTUM_S / 16) for peer in (BOB, BROKER)
        ]
        for link in links:
            link.arrive()
        await until(lambda: not any(link.left for link in links))
        load = world.fairness.load()
        assert load[BROKER].paused == load[BOB].paused == 0
        assert load[BROKER].cpu_s + load[BOB].cpu_s == pytest.approx(world.cpu_s)
        assert load[BROKER].requests_s == pytest.approx(load[BROKER].cpu_s / 20, rel=0.01)

    run(main())


def test_publisher_is_never_paused_however_busy_it_is() -> None:
    async def main() -> None:
        world = World()
        world.link(ALICE, 2000).arrive()
        world.link(BOB, 2000).arrive()
        await until(lambda: len(world.order) == 4000)
        assert [load.paused for load in world.fairness.load().values()] == [0, 0]

    run(main())


def test_requests_of_one_client_alone_have_the_whole_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "ALONE_S", 0.0)

    async def main() -> None:
        world = World()
        world.link(ALICE, 2000, Piece.REQUEST).arrive()
        await until(lambda: len(world.order) == 2000)
        assert world.fairness.load()[ALICE].paused == 0

    run(main())


def flooded(monkeypatch: pytest.MonkeyPatch, judge: Callable[[World], None]) -> None:
    """Somebody else is served all the time, and alice asks for more than there is."""
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)

    async def main() -> None:
        world = World()
        world.link(BOB, 1).arrive()
        flooder = world.link(ALICE, 1_000_000, Piece.REQUEST)
        flooder.arrive()
        await until(lambda: world.fairness.load()[ALICE].paused > 0)
        assert flooder.is_held
        assert flooder.left
        world.link(BOB, 1).arrive()
        assert world.order[-1] == BOB
        judge(world)

    run(main())


def test_requests_beside_others_are_paused_when_the_burst_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge(world: World) -> None:
        assert world.spent(ALICE) >= BURST_S
        assert world.disconnected == []
        assert world.fairness.refusal(ALICE) == ""

    flooded(monkeypatch, judge)


def test_client_that_stays_over_its_budget_is_disconnected_and_kept_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "FLOOD_GRACE_S", -1.0)
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)

    async def main() -> None:
        world = World()
        world.link(BOB, 1).arrive()
        world.link(ALICE, 1_000_000, Piece.REQUEST).arrive()
        for strike in range(1, 4):
            await until(lambda n=strike: len(world.disconnected) == n)  # type: ignore[misc]
            name, reason = world.disconnected[-1]
            assert name == ALICE
            assert "while others waited" in reason
            load = world.fairness.load()[ALICE]
            assert load.disconnected == strike
            assert BAR_FIRST_S * 2 ** (strike - 1) - 1 < load.barred_s
            assert "come back in" in world.fairness.refusal(at_seat(ALICE, 3))
            assert world.fairness.refusal(BOB) == ""
            world.link(ALICE, 1_000_000, Piece.REQUEST).arrive()

    run(main())


def test_client_that_waits_for_answers_is_paused_and_never_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "FLOOD_GRACE_S", -1.0)
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)

    async def main() -> None:
        world = World()
        world.link(BOB, 1).arrive()
        for _ in range(40):
            request = world.link(ALICE, 1, Piece.REQUEST, BURST_S / 20)
            request.arrive()
            await until(lambda link=request: not link.left)  # type: ignore[misc]
        assert world.fairness.load()[ALICE].paused > 0
        assert world.disconnected == []

    run(main())


def test_publications_that_wait_behind_a_costly_request_are_no_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "FLOOD_GRACE_S", -1.0)
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)

    async def main() -> None:
        world = World()
        world.link(BOB, 1).arrive()
        world.link(ALICE, 1, Piece.REQUEST, 2 * BURST_S).arrive()
        publications = world.link(ALICE, 2000, cost_s=QUANTUM_S / 40)
        publications.arrive()
        assert publications.unhandled_bytes() > 64 * FLOOD_REQUESTS
        await until(lambda: not publications.left)
        assert world.fairness.load()[ALICE].paused > 0
        assert world.disconnected == []

    run(main())


def test_time_without_a_processor_is_no_time_over_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "FLOOD_GRACE_S", 0.001)
    monkeypatch.setattr(fairness, "ALONE_S", 1000.0)
    monkeypatch.setattr(fairness, "LOOK_S", 0.0)

    async def main() -> None:
        world = World()
        world.link(BOB, 1).arrive()
        loop = asyncio.get_running_loop()
        began = loop.time()
        world.passed = lambda: loop.time() - began
        world.link(ALICE, 1_000_000, Piece.REQUEST).arrive()
        await until(lambda: world.fairness.load()[ALICE].paused > 2)
        assert world.disconnected == []
        world.passed = lambda: 0.0
        await until(lambda: bool(world.disconnected))

    run(main())


def test_accounts_of_nodes_that_left_the_cell_are_forgotten() -> None:
    async def main() -> None:
        world = World()
        world.link(ALICE, 1).arrive()
        world.link(BOB, 1).arrive()
        world.fairness.retain([BOB])
        assert list(world.fairness.load()) == [BOB]

    run(main())


def test_requests_may_take_idle_time_except_those_of_brokers_and_of_who_asks_too_much() -> None:
    def balance(*, worked_s: float, is_broker: bool = False, asks_too_much: bool = False) -> float:
        limits = TransportLimits()
        account = Account(NodeId("bob"), is_broker=is_broker, now=0.0, limits=limits)
        account.balance_s, account.asks_too_much = -1.0, asks_too_much
        account.fill(0.1, worked_s)
        return round(account.balance_s, 3)

    assert balance(worked_s=0.1) == -0.99
    assert balance(worked_s=0.0) == -0.59
    assert balance(worked_s=0.0, asks_too_much=True) == -0.99
    assert balance(worked_s=0.0, is_broker=True) == -0.98
