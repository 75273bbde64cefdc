"""Links on demand, under both drivers: what a machine that dials and hangs up can rely on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime.world import Heard, run, until
from tests.support.directories import Peers
from tests.support.talking import (
    ANN,
    BEN,
    CID,
    DAN,
    EVE,
    IDENTITIES,
    TALK,
    Say,
    SimStage,
    SocketStage,
    Stage,
    Talker,
    about,
    heard,
    keyring,
    said,
)

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import (
    Connected,
    Dial,
    DialFailure,
    Disconnected,
    Effect,
    Event,
    Hangup,
    Send,
    Unreachable,
)
from quorumcast.crypto.directory import Address
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.testing.memory import MemoryCell

MakeStage = Callable[..., Stage]
both_drivers = pytest.mark.parametrize("make", [SocketStage, SimStage])


def play(stage: Callable[[], Stage], script: Callable[[Any], Any]) -> None:
    async def main() -> None:
        made = stage()
        try:
            await script(made)
        finally:
            await made.close()

    run(main())


def says(peer: NodeId, text: str) -> Send:
    return Send((peer,), Say(text))


@both_drivers
def test_dial_connects_both_and_again_does_nothing(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        stage.do(ANN, Dial(BEN), Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN) and heard(stage, BEN)))
        stage.do(ANN, Dial(BEN), says(BEN, "hello"))
        stage.do(BEN, Dial(ANN), says(ANN, "good day"))
        await stage.until(lambda: bool(said(stage, ANN) and said(stage, BEN)))
        assert about(stage, ANN, BEN) == [Connected(BEN)]
        assert about(stage, BEN, ANN) == [Connected(ANN)]
        assert (said(stage, ANN), said(stage, BEN)) == (["good day"], ["hello"])

    play(make, script)


@both_drivers
@pytest.mark.parametrize(("ends", "other"), [(ANN, BEN), (BEN, ANN)])
def test_hangup_from_either_side_ends_the_link_after_what_was_sent(
    make: MakeStage, ends: NodeId, other: NodeId
) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN) and heard(stage, BEN)))
        stage.do(ends, says(other, "bye"), Hangup(other), says(other, "lost"), Hangup(other))
        gone = Disconnected(ends)
        await stage.until(lambda: gone in heard(stage, other))
        assert said(stage, other) == ["bye"]
        assert about(stage, ends, other) == [Connected(other), Disconnected(other)]
        assert about(stage, other, ends) == [Connected(ends), Disconnected(ends)]
        assert stage.links(ANN) == stage.links(BEN) == []

    play(make, script)


@both_drivers
def test_dial_after_hangup_in_one_turn_makes_a_new_link(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN) and heard(stage, BEN)))
        stage.do(ANN, Hangup(BEN), Dial(BEN))
        anew: list[Event] = [Connected(BEN), Disconnected(BEN), Connected(BEN)]
        await stage.until(lambda: about(stage, ANN, BEN) == anew)
        await stage.until(lambda: len(about(stage, BEN, ANN)) == 3)
        stage.do(BEN, says(ANN, "there"))
        await stage.until(lambda: said(stage, ANN) == ["there"])

    play(make, script)


@both_drivers
def test_dial_in_answer_to_disconnected_calls_again(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        stage.talkers[ANN].then[Disconnected(BEN)] = [Dial(BEN)]
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN) and heard(stage, BEN)))
        stage.do(BEN, Hangup(ANN))
        anew: list[Event] = [Connected(BEN), Disconnected(BEN), Connected(BEN)]
        await stage.until(lambda: about(stage, ANN, BEN) == anew)

    play(make, script)


@both_drivers
def test_dial_of_a_peer_without_keys_or_address_fails_at_once(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN)
        stage.do(ANN, Dial(EVE), Dial(DAN), Dial(ANN), Dial(EVE))
        await stage.until(lambda: len(heard(stage, ANN)) == 4)
        unknown = DialFailure.UNKNOWN
        assert heard(stage, ANN) == [Unreachable(peer, unknown) for peer in (EVE, DAN, ANN, EVE)]
        stage.do(ANN, Hangup(EVE), Hangup(BEN))  # of nothing

    play(make, script)


@both_drivers
def test_dial_of_a_peer_that_is_not_there_fails_once_and_may_be_tried_again(
    make: MakeStage,
) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN)
        stage.do(ANN, Dial(BEN), Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN)))
        await stage.start(BEN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: Connected(BEN) in heard(stage, ANN))
        assert heard(stage, ANN) == [Unreachable(BEN, DialFailure.NO_ANSWER), Connected(BEN)]

    play(make, script)


@both_drivers
def test_dial_of_a_peer_that_does_not_know_us_is_refused(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN)))
        assert heard(stage, ANN) == [Unreachable(BEN, DialFailure.REFUSED)]
        assert heard(stage, BEN) == []

    play(lambda: make(strangers=[ANN]), script)


@both_drivers
def test_dial_beyond_the_limit_fails_until_another_link_is_hung_up(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN, CID)
        stage.do(ANN, Dial(BEN), Dial(CID))
        await stage.until(lambda: len(heard(stage, ANN)) == 2)
        assert set(heard(stage, ANN)) == {Unreachable(CID, DialFailure.OVER_LIMIT), Connected(BEN)}
        stage.do(ANN, Hangup(BEN), Dial(CID))
        await stage.until(lambda: Connected(CID) in heard(stage, ANN))
        # A link that the peer has called is its own.
        await stage.until(lambda: Disconnected(ANN) in heard(stage, BEN))
        stage.do(BEN, Dial(ANN))
        await stage.until(lambda: sorted(stage.links(ANN)) == [BEN, CID])

    play(lambda: make(dialed_links=1), script)


@both_drivers
def test_hangup_of_a_call_that_is_under_way_calls_it_off(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        stage.do(ANN, Dial(BEN), Hangup(BEN))
        stage.do(ANN, Dial(CID))
        await stage.until(lambda: bool(about(stage, ANN, CID)))
        assert about(stage, ANN, BEN) == []
        assert stage.links(ANN) == stage.links(BEN) == []
        stage.do(BEN, Dial(ANN))
        await stage.until(lambda: about(stage, ANN, BEN) == [Connected(BEN)])

    play(make, script)


@both_drivers
@pytest.mark.parametrize("ends", [ANN, BEN])
def test_kept_link_is_neither_dialed_nor_hung_up(make: MakeStage, ends: NodeId) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        other = BEN if ends == ANN else ANN
        stage.do(ends, Dial(other))
        await stage.until(lambda: bool(heard(stage, ANN) and heard(stage, BEN)))
        stage.do(ends, Hangup(other), says(other, "still here"))
        await stage.until(lambda: said(stage, other) == ["still here"])
        assert about(stage, ends, other) == [Connected(other)]
        assert about(stage, other, ends) == [Connected(ends)]
        if isinstance(stage, SocketStage):
            assert stage.transports[ends].telemetry.drops["kept-link"] == 1

    play(lambda: make(calls={ANN: [BEN]}), script)


@both_drivers
def test_peers_that_dial_each_other_at_once_end_up_with_one_link(make: MakeStage) -> None:
    async def script(stage: Stage) -> None:
        await stage.start(ANN, BEN)
        for turn in range(20):
            stage.do(ANN, Dial(BEN))
            stage.do(BEN, Dial(ANN))
            await stage.until(lambda: stage.links(ANN) == [BEN] and stage.links(BEN) == [ANN])
            await stage.until(lambda t=turn: _exchange(stage, f"{t}"))  # type: ignore[misc]
            stage.do(ANN, Hangup(BEN))
            await stage.until(lambda: about(stage, BEN, ANN)[-1] == Disconnected(ANN))
            await stage.until(lambda: about(stage, ANN, BEN)[-1] == Disconnected(BEN))
        for one, other in ((ANN, BEN), (BEN, ANN)):
            told = about(stage, one, other)
            assert told == [Connected(other), Disconnected(other)] * (len(told) // 2)

    play(make, script)


def _exchange(stage: Stage, text: str) -> bool:
    stage.do(ANN, says(BEN, text))
    stage.do(BEN, says(ANN, text))
    return text in said(stage, ANN) and text in said(stage, BEN)


class Fickle(Talker):
    """Dials and hangs up at random, also in answer to what it hears, until it has had enough."""

    rng: random.Random
    answers = 0

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self.heard.append(event)
        if self.answers == 0 or self.rng.random() < 0.5:
            return []
        self.answers -= 1
        match event:
            case Disconnected(peer) | Unreachable(peer):
                return [Dial(peer)]
            case Connected(peer):
                return self.rng.choice([[Hangup(peer)], [Hangup(peer), Dial(peer)], [Dial(peer)]])
            case _:
                return []


@both_drivers
@pytest.mark.parametrize("seed", range(4))
def test_dials_and_hangups_at_random_leave_both_ends_of_one_mind(
    make: MakeStage, seed: int
) -> None:
    rng, peers = random.Random(seed), (ANN, BEN, CID)

    async def script(stage: Stage) -> None:
        await stage.start(*peers, talker=Fickle)
        for talker in stage.talkers.values():
            talker.rng, talker.answers = rng, 30  # type: ignore[attr-defined]
        for _ in range(100):
            one, other = rng.sample(peers, 2)
            dial, hangup = Dial(other), Hangup(other)
            anything: list[list[Effect]] = [[dial], [hangup], [hangup, dial]]
            stage.do(one, *rng.choice(anything))
            await stage.wait(rng.choice([0, 0, 1, 3]))
        for talker in stage.talkers.values():
            talker.answers = 0  # type: ignore[attr-defined]
        pairs = [(one, other) for one in peers for other in peers if one != other]
        for _ in range(10):
            await stage.until(lambda: all(_agree(stage, *pair) for pair in pairs))
            await stage.wait(20)

    play(lambda: make(dialed_links=1 + seed % 2), script)


def _agree(stage: Stage, one: NodeId, other: NodeId) -> bool:
    """Whether both ends have the link or neither, and were told so, in order, and no more."""
    is_up = False
    for event in about(stage, one, other):
        assert isinstance(event, Disconnected) == is_up, about(stage, one, other)
        is_up = isinstance(event, Connected)
    return is_up == (other in stage.links(one)) == (one in stage.links(other))


# ------------------------------------------------------------------ sockets alone


class Silent(SocketStage):
    """Whoever calls Ben gets a connection, and never an answer."""

    async def begin(self) -> None:
        self.callers: list[asyncio.StreamWriter] = []
        self.server = await asyncio.start_server(self._on_call, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.elsewhere = self.addresses[BEN]
        self.addresses[BEN] = Address("127.0.0.1", port)

    def _on_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.callers.append(writer)

    async def close(self) -> None:
        await super().close()
        self.server.close()
        for writer in self.callers:
            writer.close()
            await writer.wait_closed()


def test_dial_of_a_peer_that_never_answers_fails_after_the_greetings_time() -> None:
    async def script(stage: Silent) -> None:
        await stage.begin()
        stage.limits = replace(stage.limits, greeting_timeout_s=0.05)
        await stage.start(ANN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN)))
        assert heard(stage, ANN) == [Unreachable(BEN, DialFailure.NO_ANSWER)]
        assert stage.transports[ANN].sizes()["links.dialed"] == 0

    play(Silent, script)


def test_call_that_is_not_answered_ends_when_the_peer_calls() -> None:
    async def script(stage: Silent) -> None:
        await stage.begin()
        await stage.start(ANN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: len(stage.callers) == 1)
        stage.addresses[BEN] = stage.elsewhere
        await stage.start(BEN)
        stage.do(BEN, Dial(ANN))
        await stage.until(lambda: bool(heard(stage, ANN) and heard(stage, BEN)))
        assert stage.transports[ANN].sizes()["links.dialed"] == 0
        stage.do(BEN, Hangup(ANN))
        await stage.until(lambda: len(heard(stage, ANN)) == 2)
        assert heard(stage, ANN) == [Connected(BEN), Disconnected(BEN)]

    play(Silent, script)


def test_calls_under_way_end_with_the_transport() -> None:
    async def script(stage: Silent) -> None:
        await stage.begin()
        await stage.start(ANN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: len(stage.callers) == 1)
        await stage.transports[ANN].close()
        stage.do(ANN, Dial(CID))
        assert heard(stage, ANN) == []

    play(Silent, script)


def test_new_epoch_ends_dialed_links_and_calls() -> None:
    async def script(stage: Silent) -> None:
        await stage.begin()
        await stage.start(ANN, CID)
        stage.do(ANN, Dial(BEN), Dial(CID))
        await stage.until(lambda: len(stage.callers) == 1 and bool(about(stage, ANN, CID)))
        later = Peers(IDENTITIES.values(), stage.addresses, epoch=2)
        stage.transports[ANN].renew(later, Greeter(keyring(ANN, later), TALK))
        assert about(stage, ANN, BEN) == [Unreachable(BEN, DialFailure.NO_ANSWER)]
        assert about(stage, ANN, CID) == [Connected(CID), Disconnected(CID)]
        stage.do(ANN, Dial(CID))
        await stage.until(lambda: len(about(stage, ANN, CID)) == 3)
        # Cid is behind: it will follow.
        assert about(stage, ANN, CID)[-1] == Unreachable(CID, DialFailure.NO_ANSWER)

    play(Silent, script)


@pytest.mark.parametrize(
    "address",
    [
        Address("127.0.0.1", 70_000),
        Address("127.0.0.1", -1),
        Address("a\0b", 1),
        Address("x" * 300, 1),
        Address("", 0),
        Address("127.0.0.1", 1, "no certificate"),
        Address("127.0.0.1", 1, "\u2603"),
    ],
)
def test_dial_of_an_address_that_is_none_fails_and_raises_nothing(address: Address) -> None:
    async def script(stage: SocketStage) -> None:
        stage.addresses[BEN] = address
        await stage.start(ANN)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN)))
        assert heard(stage, ANN) == [Unreachable(BEN, DialFailure.NO_ANSWER)]

    play(SocketStage, script)


def test_memory_cell_links_of_brokers_are_kept_and_clients_cannot_be_called() -> None:
    async def main() -> None:
        async with MemoryCell() as cell:
            alice, broker = Heard(), NodeId("broker-2")
            links = cell._network.enter(NodeId("alice"))
            links.listener = alice
            cell._network.link(NodeId("alice"))
            links.dial(broker)
            links.hangup(broker)
            links.dial(NodeId("bob"))
            await until(lambda: bool(alice.failed))
            assert alice.failed == [(NodeId("bob"), DialFailure.UNKNOWN)]
            assert (alice.up, alice.down) == (list(cell.manifest.broker_ids), [])

    run(main())


# ---------------------------------------------------------------- simulator alone


def test_simulated_partition_cuts_dialed_links_and_fails_calls_across_it() -> None:
    async def script(stage: SimStage) -> None:
        await stage.start(ANN, BEN, CID)
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: bool(heard(stage, ANN) and heard(stage, BEN)))
        stage.network.partition([ANN])
        await stage.until(lambda: Disconnected(BEN) in heard(stage, ANN))
        stage.do(ANN, Dial(CID))
        await stage.until(lambda: bool(about(stage, ANN, CID)))
        assert about(stage, ANN, CID) == [Unreachable(CID, DialFailure.NO_ANSWER)]
        stage.network.heal()
        stage.pass_ms(1000)
        assert stage.links(ANN) == []  # nobody keeps a dialed link
        stage.do(ANN, Dial(CID), Dial(BEN))
        await stage.until(lambda: stage.links(ANN) == [CID, BEN])

    play(SimStage, script)


@pytest.mark.parametrize("after_ms", range(8))
def test_simulated_crash_at_any_moment_of_a_call_leaves_nothing_behind(after_ms: int) -> None:
    async def script(stage: SimStage) -> None:
        await stage.start(ANN, BEN)
        stage.do(ANN, Dial(BEN))
        stage.pass_ms(after_ms)
        stage.nodes[BEN].crash()
        stage.network.break_all(BEN)
        stage.pass_ms(200)
        told = about(stage, ANN, BEN)
        connected: list[Event] = [Connected(BEN), Disconnected(BEN)]
        assert told in (connected, [Unreachable(BEN, DialFailure.NO_ANSWER)])
        stage.nodes[BEN].restart()
        stage.do(ANN, Dial(BEN))
        await stage.until(lambda: stage.links(ANN) == [BEN] and stage.links(BEN) == [ANN])

    play(SimStage, script)


@pytest.mark.parametrize("who", [ANN, BEN])
@pytest.mark.parametrize("after_ms", range(8))
def test_simulated_hangup_at_any_moment_of_a_call_leaves_nothing_behind(
    after_ms: int, who: NodeId
) -> None:
    async def script(stage: SimStage) -> None:
        await stage.start(ANN, BEN)
        stage.do(ANN, Dial(BEN))
        stage.do(BEN, Dial(ANN))
        stage.pass_ms(after_ms)
        other = BEN if who == ANN else ANN
        stage.do(who, Hangup(other))
        stage.pass_ms(200)
        assert stage.links(ANN) == stage.links(BEN) == []
        for one, peer in ((who, other), (other, who)):
            told = about(stage, one, peer)
            answered = [Connected(peer), Disconnected(peer)]
            assert told in ([], answered, [Unreachable(peer, DialFailure.NO_ANSWER)])
        assert about(stage, other, who)  # it has dialed, and not hung up
        stage.do(BEN, Dial(ANN))
        await stage.until(lambda: stage.links(ANN) == [BEN] and stage.links(BEN) == [ANN])

    play(SimStage, script)
