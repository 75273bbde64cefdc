"""Known-bad variants of recovery: of lost contents, and of publications that a node missed."""

from __future__ import annotations

from msgspec.structs import replace

from quorumcast.broadcast.ledger import Ledger
from quorumcast.cell.serving.journal import Journal
from quorumcast.cell.serving.recovering.holdings import Holdings
from quorumcast.cell.serving.recovering.recovery import Recovery
from quorumcast.cell.subscribing.excerpt import Excerpt
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.intake import Fetching
from quorumcast.sim.cell.known_bad import attacks
from quorumcast.sim.cell.known_bad.plans import (
    B1,
    B2,
    B3,
    B4,
    PUB1,
    SUB1,
    SUB2,
    Rewrite,
    SeededPlan,
    joins,
    mount,
    order_plan,
    seeded_plan,
)
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.scenario import ORDERS, draw
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption


def _restarts(*corruptions: Corruption) -> SeededPlan:
    """Two brokers restart one after the other; then a subscriber reads from the oldest on."""
    acts = [
        Act(5, "join", SUB1, ORDERS),
        *(Act(60 + 6 * n, "submit", PUB1, ORDERS, 1) for n in range(12)),
        Act(200, "roll", SUB2, ORDERS, 20, (B1, B3)),
    ]
    policy = Policy.named("direct", limits=small_limits())
    return seeded_plan("recovery", policy, acts, corruptions)


def past(policy: Policy, *acts: Act, liar: Rewrite | None = None) -> CellPlan:
    """A subscriber is cut off while the publisher, which may lie, is busy."""
    away = [Act(40, "partition", peers=(SUB2,)), Act(1400, "heal")]
    plan = seeded_plan(
        "the past",
        policy,
        [*joins(ORDERS), *away, *acts],
        () if liar is None else (mount(PUB1, liar),),
        weather=Weather(latency_ms=1, jitter_ms=2),
        calm_at_ms=1500,
        finale=0,
    )
    return replace(plan(0), seed="the past")


def retold(policy: str) -> CellPlan:
    """A stream outgrows retention; brokers restart, and the publisher then lies to each of them."""
    limits = replace(
        small_limits(), retained_publications=16, window=8, vote_window=64, publisher_buffer=16
    )
    rules = Policy.named(policy, alpha=4, journal=True, limits=limits)
    work = [Act(60 + 4 * n, "submit", PUB1, ORDERS, 1) for n in range(60)]
    for n, name in enumerate((B1, B2, B3, B4)):
        work += [Act(500 + 150 * n, "crash", name), Act(520 + 150 * n, "restart", name)]
    return past(rules, *work, liar=attacks.tell_restarted)


def leapt(policy: str) -> CellPlan:
    """The publisher leaps ahead while a subscriber is cut off."""
    rules = Policy.named(policy, alpha=4, journal=True, limits=small_limits())
    work = [Act(60 + 4 * n, "submit", PUB1, ORDERS, 1) for n in range(40)]
    work += [Act(700 + 10 * n, "submit", PUB1, ORDERS, 1) for n in range(3)]
    return past(rules, *work, liar=attacks.leap_ahead)


_join = Ledger.join


_release = Journal.release


def _follow(self: Ledger, base: int, fresh: int, *, trusted: bool) -> bool:
    return _join(self, base, fresh, trusted=True)


RECOVERY_VARIANTS: tuple[Variant, ...] = (
    Variant(
        "released-reopened", "a broker that restarts may vouch again for what it no longer retains",
        [
            Patch(Journal, "released", lambda self, stream: 1),
            # Streams of a simulation are too short for their journals to be compacted.
            Patch(Journal, "release", lambda self, lane, below, _: _release(self, lane, below, 1)),
        ],
        lambda seed: retold("ab"), ("One story",),
    ),
    Variant(
        "echo-replaced", "the journal replaces the run that a broker echoed by the one that won",
        [Patch(Journal, "keep_echo", lambda self, record: record)],
        lambda seed: draw(seed + 12, "brb", "retelling"), ("Journal",),
    ),
    Variant(
        "leap-followed", "a broker follows its publisher ahead and drops what it holds",
        [Patch(Ledger, "join", _follow)],
        lambda seed: leapt("brb"), ("Totality",),
    ),
    Variant(
        "recall-believed", "a broker that lost its memory believes one peer about what it held",
        [Patch(Holdings, "needed", lambda self, *_, **__: 1)],
        _restarts(mount(B2, attacks.false_memory)), ("Vouching",),
    ),
    Variant(
        "no-recall", "a broker that lost its memory asks nobody for what it held",
        [Patch(Recovery, "_ask", lambda self: [])],
        _restarts(), ("FIFO", "Retention", "Upkeep"),
    ),
    Variant(
        "no-fetch", "a broker votes on, and never fetches what it lacks to execute",
        [Patch(Fetching, "ask", lambda self, now: [])],
        order_plan("total", acts=[Act(395, "mute", PUB1, peers=(B4,)),
                                  Act(400, "submit", PUB1, ORDERS, 1), Act(900, "stop", PUB1)]),
        ("Upkeep",),
    ),
    Variant(
        "patient-excerpt", "a reader of a range of positions waits for ever for all brokers",
        [Patch(Excerpt, "time_over", lambda self, acceptor, brokers: None)],
        order_plan("total", Corruption(B4, "silent"),
                   acts=[*(Act(60 + 6 * n, "submit", PUB1, ORDERS, 4) for n in range(12)),
                         Act(900, "extract", SUB2, ORDERS, 40)]),
        ("Excerpt",),
    ),
)  # fmt: skip
