"""A question that is asked for ever of brokers that hold the answer is reported."""

import pytest

from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Regain
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import Send
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import channel_entry, make_simulated_cell
from quorumcast.sim.cell.judges.checkers import MAX_ASKED, Questions
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import Weather

B1, B2, B3, SUB = (NodeId(name) for name in ("broker-1", "broker-2", "broker-3", "sub-1"))
STREAM = Stream(Channel("orders"), NodeId("pub-1"), 1)


@pytest.mark.parametrize(
    ("times", "peer", "calm", "broken"),
    [
        (MAX_ASKED + 1, B1, True, ["Questions"]),
        (MAX_ASKED, B1, True, []),
        (MAX_ASKED + 1, B2, True, []),
        (MAX_ASKED + 1, B3, True, []),
        (MAX_ASKED + 1, B1, False, []),
    ],
    ids=["for-ever", "often", "of-a-liar", "of-one-without-it", "in-the-storm"],
)
@pytest.mark.parametrize("message", [Pull(STREAM, 1, 4), Regain(STREAM, 1, 4)])
def test_question_that_is_never_answered_is_reported(
    message: Pull | Regain, times: int, peer: NodeId, calm: bool, broken: list[str]
) -> None:
    cell = make_simulated_cell(4, 1, [channel_entry("orders", Policy.named("ab"))])
    world = CellWorld(cell, 1, Weather(), [Questions()])
    world.adversary.declare(B2, "withhold-bodies")
    world.facts.calm = calm
    world.facts.holds = lambda broker, stream, number: broker in (B1, B2)
    (monitor,) = world._watchers
    for _ in range(times):
        monitor.on_effect(SUB, Send((peer, peer), message), Millis(1))
    assert [violation.property for violation in world.facts.violations] == broken
