"""Traces of simulated cells.

What was owed is known exactly: to every correct subscriber that is still there at the end, what
correct publishers sent after its subscription stood.
"""

from __future__ import annotations

import msgspec

from quorumcast.cell.tracing import CELL_NOTES, CellParameters
from quorumcast.core.ids import NodeId
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.kernel.tracing import NS_PER_MS, Tracing
from quorumcast.traces.form import Header, Listening


def _role(run: CellRun, node: NodeId) -> str:
    if node in run.plan.publishers:
        return "publisher"
    return "subscriber" if node in run.plan.subscribers else "broker"


def _header(run: CellRun, header: Header) -> Header:
    plan, facts, adversary = run.plan, run.world.facts, run.world.adversary
    publishers = tuple(str(name) for name in plan.publishers if adversary.is_correct(name))
    # What is sent in the very millisecond in which a subscription stands may be too early.
    listening = [
        Listening(reader.node, reader.channel, reader.standing_at * NS_PER_MS + 1)
        for reader in facts.present()
        if reader.standing_at is not None
    ]
    events = sum(
        len(published)
        for stream, published in facts.published.items()
        if stream.publisher in publishers
    )
    return msgspec.structs.replace(
        header,
        parameters=msgspec.to_builtins(CellParameters(policy=plan.policy.name)),
        publishers=publishers,
        listening=tuple(listening),
        events=events,
    )


TRACING = Tracing(notes=CELL_NOTES, role=_role, header=_header)
