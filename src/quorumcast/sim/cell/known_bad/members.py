"""Mistakes about epochs that change the brokers, and the runs that expose them."""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.cell.serving.membership import Membership
from quorumcast.core.ids import Channel
from quorumcast.core.statements import Signed
from quorumcast.core.tally import Tally
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

ORDERS = Channel("orders")
B1, B2, _, B4, B5, B6 = broker_names(6)
PUB = PUBLISHERS[0]
SUB1, SUB2 = SUBSCRIBERS[:2]
PLOT = "plot"


def _believable(self: Membership, following: Manifest, words: Iterable[Signed]) -> bool:
    """The epoch was decided; nothing is said about who can tell others what came before it."""
    return len(tuple(words)) >= self._view.quorums.one_correct


def _two_stories(seed: int) -> CellPlan:
    """Two of five brokers hold one story and two another; the fifth tells both, and is removed.

    Four votes decide before, three afterwards: with the fifth one's, each story would have them.
    """
    rules = Policy.named("ab", limits=small_limits())
    return CellPlan(
        seed=f"members {seed}",
        policy=rules,
        brokers=5,
        newcomers=1,
        f=1,
        weather=Weather(latency_ms=1, jitter_ms=3),
        publishers=(PUB,),
        subscribers=(SUB1, SUB2),
        channels=(channel_entry(ORDERS, rules),),
        acts=(
            *(Act(5, "join", sub, ORDERS) for sub in (SUB1, SUB2)),
            *(Act(60 + 6 * number, "submit", PUB, ORDERS, 1) for number in range(4)),
            Act(150, "remove", B1),
        ),
        corruptions=(
            Corruption(PUB, "equivocating-publisher", 0, 100, (B4, B5), PLOT),
            Corruption(B1, "two-faced", 0, 100, (B4, B5, SUB2), PLOT),
        ),
        calm_at_ms=600,
        patience_ms=2500,
        adversary="siege",
    )


#: When the publisher of `_removed_too_soon` publishes, and how much.
_BUSY = ((97, 1), (135, 16), (156, 8), (287, 1), (291, 8), (298, 8), (318, 8), (327, 3), (374, 8))


def _removed_too_soon(seed: int) -> CellPlan:
    """Two of five brokers stand still; the fifth is removed, and one other has seen it happen."""
    rules = Policy.named("total", journal=True, limits=small_limits())
    return CellPlan(
        seed=f"removed {seed}",
        policy=rules,
        brokers=5,
        newcomers=1,
        f=1,
        weather=Weather(latency_ms=3, jitter_ms=5, loss=150, duplication=100),
        publishers=(PUB,),
        subscribers=(SUB1, SUB2),
        channels=(channel_entry(ORDERS, rules),),
        acts=(
            *(Act(5, "join", sub, ORDERS) for sub in (SUB1, SUB2)),
            Act(44, "pause", B2),
            Act(51, "pause", B4),
            *(Act(at, "submit", PUB, ORDERS, count) for at, count in _BUSY),
            Act(518, "remove", B5),
            Act(635, "resume", B4),
            Act(640, "resume", B2),
            Act(655, "add", B6),
        ),
        calm_at_ms=1432,
        patience_ms=15_000,
        sync_ms=0,
        adversary="siege",
    )


MEMBER_VARIANTS: tuple[Variant, ...] = (
    Variant(
        name="lone-move",
        mistake="a broker takes an epoch with f+1 words, also of brokers that leave with it",
        patches=(Patch(Membership, "_learnable", _believable),),
        attack=_removed_too_soon,
        caught_by=("Validity",),
    ),
    Variant(
        name="votes-of-the-removed",
        mistake="votes of a broker that an epoch removes are still counted",
        patches=(Patch(Tally, "retain", lambda self, members: None),),
        attack=_two_stories,
        caught_by=("Agreement",),
    ),
)
