"""Known-bad variants of epoch changes that add or remove brokers."""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.cell.serving.membership import Membership
from quorumcast.core.statements import Signed
from quorumcast.core.tally import Tally
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import broker_names
from quorumcast.sim.cell.known_bad.plans import PLOT, PUB1, SUB2, joins, seeded_plan
from quorumcast.sim.cell.plan import small_limits
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, _, B4, B5, B6 = broker_names(6)


def _believable(self: Membership, following: Manifest, words: Iterable[Signed]) -> bool:
    """Whether f+1 brokers confirm an epoch; not whether one that stays knows what came before."""
    return len(tuple(words)) >= self._view.quorums.one_correct


#: Two of five brokers hold one version and two another; the fifth sent both, and is removed. Four
#: votes decide before, three afterwards: with the vote of the fifth, each version would have them.
_two_versions = seeded_plan(
    "members",
    Policy.named("ab", limits=small_limits()),
    [
        *joins(ORDERS),
        *(Act(60 + 6 * number, "submit", PUB1, ORDERS, 1) for number in range(4)),
        Act(150, "remove", B1),
    ],
    [
        Corruption(PUB1, "equivocating-publisher", 0, 100, (B4, B5), PLOT),
        Corruption(B1, "two-faced", 0, 100, (B4, B5, SUB2), PLOT),
    ],
    brokers=5,
    newcomers=1,
    calm_at_ms=600,
    patience_ms=2500,
)

#: Times and amounts of the submissions in `_removed_too_soon`.
_BUSY = ((97, 1), (135, 16), (156, 8), (287, 1), (291, 8), (298, 8), (318, 8), (327, 3), (374, 8))

#: Two of five brokers are paused; the fifth is removed, and one other has seen it happen.
_removed_too_soon = seeded_plan(
    "removed",
    Policy.named("total", journal=True, limits=small_limits()),
    [
        *joins(ORDERS),
        Act(44, "pause", B2),
        Act(51, "pause", B4),
        *(Act(at, "submit", PUB1, ORDERS, count) for at, count in _BUSY),
        Act(518, "remove", B5),
        Act(635, "resume", B4),
        Act(640, "resume", B2),
        Act(655, "add", B6),
    ],
    brokers=5,
    newcomers=1,
    weather=Weather(latency_ms=3, jitter_ms=5, loss=150, duplication=100),
    calm_at_ms=1432,
    patience_ms=15_000,
    sync_ms=0,
)

MEMBER_VARIANTS: tuple[Variant, ...] = (
    Variant(
        "lone-move", "f+1 statements suffice for an epoch, also of brokers that leave with it",
        [Patch(Membership, "_learnable", _believable)],
        _removed_too_soon, ("Validity",),
    ),
    Variant(
        "votes-of-the-removed", "votes of a broker that an epoch removes are still counted",
        [Patch(Tally, "retain", lambda self, members: None)],
        _two_versions, ("Agreement",),
    ),
)  # fmt: skip
