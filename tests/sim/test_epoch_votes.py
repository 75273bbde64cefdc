"""Votes that outlive their epoch: why every epoch begins in a regency that none had before.

Disks are slow, and a lying leader proposes an empty batch behind the epoch so late that brokers
write it in the old epoch and their disks have it when they go by the new one. The words then leave
on links of the new epoch. If regencies began anew they would count there, and a correct broker
would have voted for two values in one instance and one regency.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.core.ids import Millis
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.base import Tampering
from quorumcast.faults.contract import Later
from quorumcast.manifest.policy import Policy
from quorumcast.ordering import sequencer
from quorumcast.ordering.epochs import epoch_item
from quorumcast.ordering.messages import Propose
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.known_bad.plans import attack
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, mistaken
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption
from quorumcast.sim.systems import perform

B1, _, _, _, B5 = broker_names(5)
PUB = PUBLISHERS[0]


class ProposeBehind(Tampering):
    """A leader that proposes an empty batch behind an epoch, just before it is taken."""

    __slots__ = ()
    DELAY_MS = 138

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Propose) or epoch_item(message.batch) is None:
            return [send]
        behind = replace(message, instance=message.instance + 1, batch=())
        return [send, Later(Send(send.to, behind), self.DELAY_MS)]


def plan() -> CellPlan:
    rules = Policy.named("total", journal=True, limits=small_limits())
    liar = Corruption(B1, "propose-behind", 0, 100, (), "", attack(ProposeBehind))
    return CellPlan(
        seed="in flight",
        policy=rules,
        brokers=4,
        newcomers=1,
        f=1,
        weather=Weather(latency_ms=10, jitter_ms=0),
        publishers=(PUB,),
        subscribers=SUBSCRIBERS[:2],
        channels=(channel_entry(ORDERS, rules),),
        acts=(
            *(Act(5, "join", subscriber, ORDERS) for subscriber in SUBSCRIBERS[:2]),
            Act(600, "submit", PUB, ORDERS, 1),
            Act(1000, "add", B5),
            *(Act(1000 + 20 * number, "submit", PUB, ORDERS, 1) for number in range(30)),
        ),
        corruptions=(liar,),
        calm_at_ms=1800,
        patience_ms=8000,
        sync_ms=40,
        adversary="siege",
    )


def test_votes_that_outlive_their_epoch_make_no_liars_of_correct_brokers() -> None:
    outcome = perform(plan())
    assert (outcome.violations, outcome.false_suspicions) == ([], 0)


def test_with_regencies_that_begin_anew_correct_brokers_contradict_themselves() -> None:
    with mistaken((Patch(sequencer, "first_regency", lambda epoch: 0),)):
        assert perform(plan()).false_suspicions > 0
