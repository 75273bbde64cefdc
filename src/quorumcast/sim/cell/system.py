"""The system *cell* as the simulator finds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.cell.tracing import TRACING
from quorumcast.sim.kernel.known_bad import Variant
from quorumcast.sim.kernel.plan import Act
from quorumcast.sim.systems import AuditTables, System


def _variants() -> Sequence[Variant]:
    from quorumcast.sim.cell.known_bad.catalogue import VARIANTS

    return VARIANTS


def _labelled(seed: int) -> AuditTables:
    from quorumcast.sim.cell.labels.labelled import labelled_run

    return labelled_run(seed)


def _fewer_clients(plan: CellPlan) -> Iterator[CellPlan]:
    lying = {corruption.node for corruption in plan.corruptions}

    def without(client: NodeId) -> tuple[Act, ...]:
        return tuple(a for a in plan.acts if a.node != client)

    for client in plan.subscribers[1:]:
        if client not in lying:
            others = tuple(name for name in plan.subscribers if name != client)
            yield msgspec.structs.replace(plan, subscribers=others, acts=without(client))
    for client in plan.publishers[1:]:
        if client not in lying:
            others = tuple(name for name in plan.publishers if name != client)
            yield msgspec.structs.replace(plan, publishers=others, acts=without(client))


def _one_channel(plan: CellPlan) -> Iterator[CellPlan]:
    if len(plan.channels) > 1:
        first = plan.channels[0]
        acts = tuple(act for act in plan.acts if act.channel in ("", first.name))
        yield msgspec.structs.replace(plan, channels=(first,), acts=acts)


SYSTEM = System(
    plan=CellPlan,
    draw=draw,
    run=CellRun,
    tracing=TRACING,
    variants=_variants,
    simpler=(_fewer_clients, _one_channel),
    labelled=_labelled,
)
