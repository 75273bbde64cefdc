"""Known-bad variants of getting back what was lost, or passed by: trust, and too much patience."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Regained, Vote
from quorumcast.cell.serving import broker
from quorumcast.cell.serving.holdings import Holdings
from quorumcast.cell.serving.pledges import Pledges, shorten
from quorumcast.cell.serving.recovery import Recovery
from quorumcast.cell.subscribing.excerpt import Excerpt
from quorumcast.core.ids import DIGEST_SIZE, Millis
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.base import Tampering, digests_of
from quorumcast.faults.contract import Later
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.fetching import Fetching
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.known_bad import ordering as order_variants
from quorumcast.sim.cell.known_bad.attacks import LeapAhead, TellRestartedOtherwise, attack
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, B3, B4 = broker_names(4)
PUB = PUBLISHERS[0]
SUB1, SUB2 = SUBSCRIBERS[:2]


class FalseMemory(Tampering):
    """Remembers other contents than everybody else, and always the same."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Vote | Contents | Regained):
            return [send]
        count = len(message.digests) // DIGEST_SIZE
        bodies = tuple(
            b"false %d" % number for number in range(message.first, message.first + count)
        )
        lie = replace(message, digests=digests_of(bodies, self.context))
        return [Send(send.to, lie, bodies if send.bodies else ())]


def _restart(*corruptions: Corruption) -> Any:
    """Two brokers restart one after the other; somebody reads everything afterwards."""
    rules = Policy.named("direct", limits=small_limits())
    acts = [
        Act(5, "join", SUB1, ORDERS),
        *(Act(60 + 6 * n, "submit", PUB, ORDERS, 1) for n in range(12)),
        Act(200, "roll", SUB2, ORDERS, 20, (B1, B3)),
    ]

    def plan(seed: int) -> CellPlan:
        return CellPlan(
            seed=f"recovery {seed}",
            policy=rules,
            brokers=4,
            f=1,
            weather=Weather(latency_ms=1, jitter_ms=3),
            publishers=(PUB,),
            subscribers=(SUB1, SUB2),
            channels=(channel_entry(ORDERS, rules),),
            acts=tuple(acts),
            corruptions=corruptions,
            patience_ms=8000,
            adversary="siege",
        )

    return plan


def past(policy: Policy, *acts: Act, liar: type[Tampering] | None = None) -> CellPlan:
    """A busy publisher, perhaps a liar, and a subscriber that is cut off meanwhile."""
    joins = [Act(5, "join", sub, ORDERS) for sub in (SUB1, SUB2)]
    away = [Act(40, "partition", peers=(SUB2,)), Act(1400, "heal")]
    corruptions = () if liar is None else (Corruption(PUB, liar.__name__, attack=attack(liar)),)
    return CellPlan(
        seed="the past",
        policy=policy,
        brokers=4,
        f=1,
        weather=Weather(latency_ms=1, jitter_ms=2),
        publishers=(PUB,),
        subscribers=(SUB1, SUB2),
        channels=(channel_entry(ORDERS, policy),),
        acts=tuple(sorted([*joins, *away, *acts], key=lambda act: act.at_ms)),
        corruptions=corruptions,
        calm_at_ms=1500,
        patience_ms=8000,
        finale=0,
        adversary="siege",
    )


def retold(policy: str) -> CellPlan:
    """A stream longer than retention; brokers restart, and are told another story each."""
    limits = replace(
        small_limits(), retained_publications=16, window=8, vote_window=64, publisher_buffer=16
    )
    rules = Policy.named(policy, alpha=4, journal=True, limits=limits)
    work = [Act(60 + 4 * n, "submit", PUB, ORDERS, 1) for n in range(60)]
    for n, name in enumerate((B1, B2, B3, B4)):
        work += [Act(500 + 150 * n, "crash", name), Act(520 + 150 * n, "restart", name)]
    return past(rules, *work, liar=TellRestartedOtherwise)


def leapt(policy: str) -> CellPlan:
    """A publisher that leaps ahead while a subscriber is cut off."""
    rules = Policy.named(policy, alpha=4, journal=True, limits=small_limits())
    work = [Act(60 + 4 * n, "submit", PUB, ORDERS, 1) for n in range(40)]
    work += [Act(700 + 10 * n, "submit", PUB, ORDERS, 1) for n in range(3)]
    return past(rules, *work, liar=LeapAhead)


def _follow(self: Ledger, base: int, fresh: int, *, trusted: bool) -> bool:
    return _join(self, base, fresh, trusted=True)


_join = Ledger.join

RECOVERY_VARIANTS: tuple[Variant, ...] = (
    Variant(
        name="released-reopened",
        mistake="a broker that restarts may vouch again for what it no longer retains",
        patches=(
            Patch(Pledges, "released", lambda self, stream: 1),
            # Streams of a simulation are too short for the journal to be cut off by itself.
            Patch(broker, "shorten", lambda stream, below, longest: shorten(stream, below, 1)),
        ),
        attack=lambda seed: retold("ab"),
        caught_by=("One story",),
    ),
    Variant(
        name="leap-followed",
        mistake="a broker follows its publisher ahead and drops what it holds",
        patches=(Patch(Ledger, "join", _follow),),
        attack=lambda seed: leapt("brb"),
        caught_by=("Totality",),
    ),
    Variant(
        name="recall-believed",
        mistake="a broker that lost its memory believes one peer about what it held",
        patches=(Patch(Holdings, "needed", lambda self, *_, **__: 1),),
        attack=_restart(Corruption(B2, "FalseMemory", attack=attack(FalseMemory))),
        caught_by=("Vouching",),
    ),
    Variant(
        name="no-recall",
        mistake="a broker that lost its memory asks nobody for what it held",
        patches=(Patch(Recovery, "_ask", lambda self: []),),
        attack=_restart(),
        caught_by=("FIFO", "Retention", "Upkeep"),
    ),
    Variant(
        name="no-fetch",
        mistake="a broker votes on, and never fetches what it lacks to execute",
        patches=(Patch(Fetching, "ask", lambda self: []),),
        attack=order_variants.siege(
            "total",
            acts=[
                Act(395, "mute", PUB, peers=(B4,)),
                Act(400, "submit", PUB, ORDERS, 1),
                Act(900, "stop", PUB),
            ],
        ),
        caught_by=("Upkeep",),
    ),
    Variant(
        name="patient-excerpt",
        mistake="who reads a part of an order waits for the votes of all brokers, for ever",
        patches=(Patch(Excerpt, "time_over", lambda self, acceptor, brokers: None),),
        attack=order_variants.siege(
            "total",
            Corruption(B4, "silent"),
            acts=[
                *(Act(60 + 6 * n, "submit", PUB, ORDERS, 4) for n in range(12)),
                Act(900, "extract", SUB2, ORDERS, 40),
            ],
        ),
        caught_by=("Excerpt",),
    ),
)
