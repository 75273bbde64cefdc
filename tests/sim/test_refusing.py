"""Correct nodes that find fault with one another are reported, and nothing else is."""

import pytest
from msgspec.structs import replace

from quorumcast.broadcast.messages import ChainRun, Publish
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import Drop, DropReason, Effect, Receive, Suspect, Suspicion
from quorumcast.core.message import Message
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.messages import Offer
from quorumcast.sim.cell.cells import channel_entry, make_simulated_cell
from quorumcast.sim.cell.judges.refusing import Justified, NoRefusal
from quorumcast.sim.cell.run import is_honest
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import Weather

PUB, LIAR, SUB = NodeId("pub-1"), NodeId("pub-2"), NodeId("sub-1")
B1, B2, B3, B4 = (NodeId(f"broker-{n}") for n in (1, 2, 3, 4))
STREAM, OF_LIAR = Stream(Channel("orders"), PUB, 1), Stream(Channel("orders"), LIAR, 1)
RUN = Publish(STREAM, 1, bytes(32))
VOTE = Vote(STREAM, 1, bytes(32))


def judged(
    node: NodeId,
    sender: NodeId,
    message: Message,
    *effects: Effect,
    altered: tuple[NodeId, NodeId] | None = None,
    honest: bool = False,
) -> list[str]:
    """What checkers say if a node answers a message with these effects; broker-2 and pub-2 lie."""
    cell = make_simulated_cell(4, 1, [channel_entry("orders", Policy.named("ab"))])
    world = CellWorld(cell, 1, Weather(), [NoRefusal(), Justified()])
    if altered:
        world.network.altered[altered] = None
    world.adversary.declare(B2, "alter")
    world.adversary.declare(LIAR, "equivocating-publisher")
    world.facts.is_honest = honest
    (monitor,) = world._watchers
    monitor.on_event(node, Receive(sender, message, (b"a",)), Millis(1))
    for effect in effects:
        monitor.on_effect(node, effect, Millis(1))
    for checker in world.checkers:
        checker.at_end(world.facts)
    return [violation.property for violation in world.facts.violations]


@pytest.mark.parametrize(
    ("node", "sender", "message", "reason", "broken"),
    [
        (B1, PUB, RUN, DropReason.BAD_BODY, ["Refusal"]),
        (B1, B3, Offer(STREAM, 1, bytes(32)), DropReason.NO_RIGHT, ["Refusal"]),
        (SUB, B3, VOTE, DropReason.BAD_RUN, ["Refusal"]),
        (B1, PUB, RUN, DropReason.DUPLICATE, []),
        (SUB, B2, VOTE, DropReason.BAD_RUN, []),
        (B2, PUB, RUN, DropReason.BAD_BODY, []),
        (B1, B3, Offer(OF_LIAR, 1, bytes(32)), DropReason.CONFLICT, []),
        (B4, B3, ChainRun(STREAM, 1, bytes(32), (B1, B2, B3, B4), ()), DropReason.BAD_VOUCHER, []),
    ],
    ids=["run", "offer", "vote", "again", "of-liar", "by-liar", "lie-passed-on", "chain-of-liar"],
)
def test_refusal_of_what_a_correct_node_said_is_reported(
    node: NodeId, sender: NodeId, message: Message, reason: DropReason, broken: list[str]
) -> None:
    assert judged(node, sender, message, Drop(reason, sender)) == broken


@pytest.mark.parametrize(
    ("suspect", "reason", "among", "broken"),
    [
        (B1, Suspicion.DISSENT, (), ["Justified"]),
        (B1, Suspicion.EQUIVOCATION, (B1, B3), ["Justified"]),
        (B1, Suspicion.DISSENT, (B1, LIAR), []),
        (B2, Suspicion.DISSENT, (), []),
        (B1, Suspicion.SILENT, (), []),
    ],
)
def test_suspicion_of_correct_nodes_alone_is_reported(
    suspect: NodeId, reason: Suspicion, among: tuple[NodeId, ...], broken: list[str]
) -> None:
    assert judged(SUB, B1, VOTE, Suspect(suspect, reason, STREAM, 1, among)) == broken


def test_suspicion_by_lateness_is_excused_only_where_more_than_slowness_happens() -> None:
    late = Suspect(B1, Suspicion.SILENT, STREAM, 1)
    assert judged(SUB, B1, VOTE, late) == []
    assert judged(SUB, B1, VOTE, late, honest=True) == ["Justified"]


def test_runs_without_faults_breaks_and_losses_are_honest() -> None:
    assert all(is_honest(replace(draw(seed, "ab", "lag"), weather=Weather())) for seed in range(9))
    assert not any(is_honest(draw(seed, "ab", "silent")) for seed in range(9))
    assert not any(is_honest(draw(seed, "ab", "partition")) for seed in range(9))


def test_contents_that_were_altered_on_the_wire_are_nobodys_fault() -> None:
    blame = (Drop(DropReason.BAD_BODY, B1), Suspect(B1, Suspicion.BAD_BODY, STREAM, 1))
    assert judged(SUB, B1, VOTE, *blame) == ["Refusal", "Justified"]
    assert judged(SUB, B1, VOTE, *blame, altered=(B1, SUB)) == []
    assert judged(SUB, B1, VOTE, *blame, altered=(B3, SUB)) == ["Refusal", "Justified"]
    assert judged(SUB, B1, VOTE, *blame, altered=(B1, B3)) == ["Refusal", "Justified"]


def test_altered_contents_are_refused_only_for_not_matching_their_digests() -> None:
    blame = (Drop(DropReason.BAD_RUN, PUB), Suspect(PUB, Suspicion.EQUIVOCATION, STREAM, 1))
    assert judged(B1, PUB, RUN, *blame, altered=(PUB, B1)) == ["Refusal", "Justified"]


def test_what_was_signed_in_another_epoch_is_nobodys_fault() -> None:
    cell = make_simulated_cell(4, 1, [channel_entry("orders", Policy.named("chain"))])
    world = CellWorld(cell, 1, Weather(), [NoRefusal()])
    run = ChainRun(STREAM, 1, bytes(32), (B1, B3, B4), ())
    (monitor,) = world._watchers
    for _ in range(2):
        monitor.on_event(B3, Receive(B1, run), Millis(1))
        monitor.on_effect(B3, Drop(DropReason.BAD_VOUCHER, B1), Millis(1))
        assert len(world.facts.violations) == 1  # in the first epoch
        world.facts.renew(replace(cell.manifest, epoch=2))
