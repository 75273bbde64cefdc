"""Known-bad variants of publishers that wait for subscribers: not at all, or for ever.

The application of subscriber 2 stops reading, and the publisher sends more than brokers retain.
"""

from __future__ import annotations

from typing import Any

from quorumcast.cell.serving.pace import Pace
from quorumcast.core.limits import MAX_NUMBER, MAX_WAIT_MS, Limits
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.known_bad.plans import PUB1, SUB2, SeededPlan, joins, seeded_plan
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.plan import Act, Corruption


def _waiting_plan(wait_ms: int, *corruptions: Corruption) -> SeededPlan:
    limits = Limits(
        retained_publications=32,
        window=8,
        publisher_buffer=512,
        vote_window=64,
        segment=8,
        kept_segments=4,
        replay=16,
        wait_ms=wait_ms,
    )
    acts = [*joins(ORDERS), Act(1200, "stall", SUB2), Act(2500, "wake", SUB2)]
    acts += [Act(60 + 10 * n, "submit", PUB1, ORDERS, 1) for n in range(4)]
    acts += [Act(1210 + 10 * n, "submit", PUB1, ORDERS, 16) for n in range(8)]
    policy = Policy.named("ab", limits=limits)
    return seeded_plan("slow", policy, acts, corruptions, calm_at_ms=2600, patience_ms=6000)


def _give_credit(self: Any, served: Any, now: Any) -> list[Any]:
    served.limit = MAX_NUMBER
    return []


WAITING_VARIANTS = (
    Variant(
        "no-wait", "brokers withhold no credit for a subscriber that stopped reading",
        [Patch(Pace, "restrain", _give_credit)], _waiting_plan(MAX_WAIT_MS), ("Validity",),
    ),
    Variant(
        "endless-wait", "brokers wait for ever for a subscriber that claims to read nothing",
        [Patch(Pace, "_charge", lambda *_: None)],
        _waiting_plan(400, Corruption(SUB2, "never-reads")), ("Validity", "Acknowledged"),
    ),
)  # fmt: skip
