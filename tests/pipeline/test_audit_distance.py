"""Distance is no deed: in simulated cells of correct nodes nobody is named for being far away."""

from __future__ import annotations

import random

import pytest
from tests.support.judging import features_of

from quorumcast.core.ids import Channel, NodeId
from quorumcast.faults.diagnosis import Model
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.pipeline.audit.charges import Case
from quorumcast.pipeline.audit.dissents import find_dissents
from quorumcast.pipeline.audit.proofs import find_proofs
from quorumcast.pipeline.audit.verdicts import RunJudgement, judge, verdicts
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.labels.labelled import adversary_of
from quorumcast.sim.cell.labels.observed import perform_observed
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.kernel.network import LinkWeather, Weather
from quorumcast.sim.kernel.plan import Act

ORDERS = Channel("orders")
BROKERS = broker_names(4)
CLIENTS = (*PUBLISHERS[:2], *SUBSCRIBERS[:2])
#: How long publishers go on, and every broker has to answer for what it did not say.
LINGER_MS = 12_000


def judged(policy: str, links: tuple[LinkWeather, ...], seed: int = 1) -> RunJudgement:
    """The verdict on a run of correct nodes, every one of which observes."""
    joins = [Act(0, "join", subscriber, ORDERS) for subscriber in SUBSCRIBERS[:2]]
    kept = Policy.named(policy, alpha=8, limits=small_limits())
    plan = CellPlan(
        seed=seed,
        policy=kept,
        brokers=4,
        f=1,
        weather=Weather(links=links),
        publishers=PUBLISHERS[:2],
        subscribers=SUBSCRIBERS[:2],
        channels=(channel_entry(ORDERS, kept),),
        acts=tuple(joins),
    )
    run = perform_observed(plan, LINGER_MS)
    assert not run.outcome.violations
    case = Case(run.manifest, features_of(run.observations))
    signed = [(who, one.data) for who, one in run.documents if one.kind == "statement"]
    evidence = [(who, one.data) for who, one in run.documents if one.kind == "evidence"]
    proofs = find_proofs([run.manifest], evidence, signed)
    model = Model(run.manifest.broker_ids, run.manifest.f)
    return judge(case, model, proofs, find_dissents(run.manifest, signed))


def far(broker: NodeId, there_ms: int, back_ms: int) -> tuple[LinkWeather, ...]:
    """The links of one broker, so much longer than the others in each direction."""
    peers = [peer for peer in (*BROKERS, *CLIENTS) if peer != broker]
    return tuple(
        link
        for peer in peers
        for link in (
            LinkWeather(peer, broker, there_ms, 2),
            LinkWeather(broker, peer, back_ms, 2),
        )
    )


#: A broker that is far away, and how far in either direction; the first one leads.
DISTANT = (
    (BROKERS[0], 15, 15),
    (BROKERS[3], 50, 50),
    (BROKERS[0], 200, 200),
    (BROKERS[3], 200, 0),
)


@pytest.mark.parametrize(
    ("policy", "broker", "there_ms", "back_ms"),
    # One of them for each policy: each run takes a second or two.
    [(policy, *DISTANT[index % len(DISTANT)]) for index, policy in enumerate(POLICY_NAMES)],
)
def test_distant_correct_broker_is_not_named(
    policy: str, broker: NodeId, there_ms: int, back_ms: int
) -> None:
    assert judged(policy, far(broker, there_ms, back_ms)).named == ()


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_nobody_is_named_if_all_links_have_different_delays(policy: str) -> None:
    rng = random.Random(f"distances {policy}")
    everyone = (*BROKERS, *CLIENTS)
    links = tuple(
        LinkWeather(a, b, rng.randrange(201), 2)
        for a in everyone
        for b in everyone
        if a != b and (a in BROKERS or b in BROKERS)
    )
    assert judged(policy, links).named == ()


def test_distance_is_shown_as_a_measurement() -> None:
    found = verdicts(judged("ab", far(BROKERS[3], 50, 50)))
    assert [(v.node, v.standing, v.deed) for v in found] == [(BROKERS[3], "measured", "late")]
    assert "Vote: half come within 160 ms, of the next slowest within 5 ms" in found[0].reasons


def test_labelled_runs_have_links_that_differ_by_direction() -> None:
    plans = [draw(seed, None, adversary_of(seed)) for seed in range(48)]
    distances = [
        {(link.sender, link.receiver): link.latency_ms for link in plan.weather.links}
        for plan in plans
    ]
    assert max(ms for links in distances for ms in links.values()) == 200
    asymmetric = [d for d in distances if any(ms != d.get((b, a), ms) for (a, b), ms in d.items())]
    assert len(asymmetric) >= len(plans) // 8
    assert 2 * sum(map(bool, distances)) >= len(plans)
