"""Mistakes about epochs that change the brokers, and the runs that expose them."""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.agents.membership import Membership
from quorumcast.core.statements import Signed
from quorumcast.core.tally import Tally
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.known_bad import Patch, Variant
from quorumcast.sim.network import Weather
from quorumcast.sim.plan import Act, Corruption, Plan, small_limits
from quorumcast.sim.scenario import ORDERS, draw

B1, _, _, B4, B5 = broker_names(5)
PUB = PUBLISHERS[0]
SUB1, SUB2 = SUBSCRIBERS[:2]
PLOT = "plot"


def _believable(self: Membership, following: Manifest, words: Iterable[Signed]) -> bool:
    """The epoch was decided; nothing is said about who can tell others what came before it."""
    return len(tuple(words)) >= self._manifest.quorums.one_correct


def _two_stories(seed: int) -> Plan:
    """Two of five brokers hold one story and two another; the fifth tells both, and is removed.

    Four votes decide before, three afterwards: with the fifth one's, each story would have them.
    """
    rules = Policy.named("ab", limits=small_limits())
    return Plan(
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


MEMBER_VARIANTS: tuple[Variant, ...] = (
    Variant(
        name="lone-move",
        mistake="a broker takes an epoch with f+1 words, also of brokers that leave with it",
        patches=(Patch(Membership, "_learnable", _believable),),
        # Only the broker that is removed and one other have executed the epoch.
        attack=lambda seed: draw(3 + seed, "total", "members"),
        caught_by=("Validity",),
        seeds=1,
    ),
    Variant(
        name="votes-of-the-removed",
        mistake="votes of a broker that an epoch removes are still counted",
        patches=(Patch(Tally, "retain", lambda self, members: None),),
        attack=_two_stories,
        caught_by=("Agreement",),
    ),
)
