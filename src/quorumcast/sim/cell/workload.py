"""A recorded workload in the simulator: topics are channels, each node publishes and subscribes.

Subscribers join first. Then every event is published at its time, scaled so that events are
`GAP_MS` apart on average. In the end every subscriber must have accepted every event on its topics.
f brokers may lie from the start, or stop half-way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.quorum import largest_f
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import Policy, like_of
from quorumcast.sim.cell.cells import broker_names, channel_entry
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.kernel.judging import Violation
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import MAX_STEPS, Act, Corruption, Outcome
from quorumcast.sim.systems import perform

#: Average time between two events.
GAP_MS = 10
#: Time of the first event, when all subscriptions have begun.
BEGIN_MS = 300
#: Time between the last event and the liveness phase.
REST_MS = 200
#: Largest number of simulation steps per delivery.
STEPS_PER_DELIVERY = 200
PATIENCE_MS = 15_000
#: Adversaries other than faults of the catalogue.
HARMS = ("none", "crash")


class WorkloadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a workload."""

    events: int
    publishers: int
    readers: int
    #: Events times subscribers, topic by topic.
    expected: int
    outcome: Outcome


def reader_of(node: str) -> NodeId:
    """The subscriber that stands for a node, since a machine is publisher or subscriber."""
    return NodeId(f"{node}:reader")


def workload_plan(
    events: Sequence[tuple[int, str, str]],
    subscribers: Mapping[str, Sequence[str]],
    *,
    seed: int = 0,
    policy: str = "ab+history",
    adversary: str = "none",
    brokers: int = 4,
) -> CellPlan:
    """A plan for events (time in ms, node, topic) and the nodes that subscribe to each topic."""
    like = like_of(policy)
    if not events:
        raise UsageError("there are no events to replay; ask for 1 or more")
    rules = Policy.named(policy)
    f = largest_f(rules.protection, brokers, rules.broadcast)
    names = broker_names(brokers)
    first, last = events[0][0], events[-1][0]
    span = GAP_MS * (len(events) - 1)
    scale = span / (last - first) if last > first else 0.0
    acts = [
        Act(index % 20, "join", reader_of(node), Channel(topic))
        for topic, nodes in subscribers.items()
        for index, node in enumerate(nodes)
    ]
    acts += [
        Act(BEGIN_MS + round((at - first) * scale), "submit", NodeId(node), Channel(topic), 1)
        for at, node, topic in events
    ]
    calm = BEGIN_MS + span + REST_MS
    corruptions, doomed = _harm(adversary, like, names[:f])
    if adversary == "crash":
        acts += [Act(BEGIN_MS + span // 2, "stop", name) for name in names[:f]]
    return CellPlan(
        seed=f"workload {seed}",
        policy=rules,
        brokers=brokers,
        f=f,
        weather=Weather(latency_ms=1, jitter_ms=2),
        publishers=_distinct(NodeId(node) for _, node, _ in events),
        subscribers=_distinct(reader_of(node) for nodes in subscribers.values() for node in nodes),
        channels=tuple(channel_entry(topic, rules) for topic in subscribers),
        acts=tuple(sorted(acts, key=lambda act: act.at_ms)),
        corruptions=corruptions,
        doomed=doomed,
        calm_at_ms=calm,
        patience_ms=PATIENCE_MS,
        finale=0,
        adversary=adversary,
        max_steps=MAX_STEPS + STEPS_PER_DELIVERY * (expected(events, subscribers) + len(events)),
    )


def _harm(
    adversary: str, policy: str, victims: Sequence[NodeId]
) -> tuple[tuple[Corruption, ...], tuple[tuple[NodeId, str], ...]]:
    if adversary in HARMS:
        return (), tuple((name, "crash") for name in victims if adversary == "crash")
    entry = CATALOGUE.get(adversary)
    if entry is None or entry.role is not Role.BROKER:
        liars = [name for name, known in CATALOGUE.items() if known.role is Role.BROKER]
        raise UsageError(
            f"{adversary!r} is not for workloads; {did_you_mean(adversary, (*HARMS, *liars))}"
        )
    if policy not in entry.valid_under:
        raise UsageError(f"policy {policy!r} does not claim to withstand {adversary!r}")
    return tuple(Corruption(name, adversary) for name in victims), ()


def _distinct(names: Iterable[NodeId]) -> tuple[NodeId, ...]:
    return tuple(sorted(dict.fromkeys(names), key=lambda name: (len(name), name)))


def expected(
    events: Sequence[tuple[int, str, str]], subscribers: Mapping[str, Sequence[str]]
) -> int:
    """The number of deliveries due."""
    return sum(len(subscribers.get(topic, ())) for _, _, topic in events)


def replay(plan: CellPlan, due: int) -> WorkloadOutcome:
    """Execute a workload's plan; another number of deliveries than `due` is a violation."""
    outcome = perform(plan)
    if outcome.deliveries != due and not outcome.violations:
        found = Violation("Deliveries", f"{outcome.deliveries} of {due} events were delivered")
        outcome = msgspec.structs.replace(outcome, violations=[found])
    return WorkloadOutcome(
        events=sum(act.what == "submit" for act in plan.acts),
        publishers=len(plan.publishers),
        readers=len(plan.subscribers),
        expected=due,
        outcome=outcome,
    )
