"""The system *cell* as the simulator finds it: tracing, shrinking, variants and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from quorumcast.cell.tracing import CELL_NOTES, CellParameters
from quorumcast.core.ids import NodeId
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.kernel.known_bad import Variant
from quorumcast.sim.kernel.tracing import NS_PER_MS, Tracing
from quorumcast.sim.systems import AuditTables, System
from quorumcast.traces.form import Header, Listening
from quorumcast.traces.recorder import Recorder


def _variants() -> Sequence[Variant]:
    from quorumcast.sim.cell.known_bad.catalogue import VARIANTS

    return VARIANTS


def _labelled(seed: int) -> AuditTables:
    from quorumcast.sim.cell.labels.labelled import labelled_run

    return labelled_run(seed)


# ------------------------------------------------------------------- shrinking


def _fewer_clients(plan: CellPlan) -> Iterator[CellPlan]:
    faulty = {corruption.node for corruption in plan.corruptions}
    for field in ("subscribers", "publishers"):
        clients: tuple[NodeId, ...] = getattr(plan, field)
        for client in clients[1:]:
            if client not in faulty:
                acts = tuple(act for act in plan.acts if act.node != client)
                others = tuple(name for name in clients if name != client)
                yield replace(plan, acts=acts, **{field: others})


def _one_channel(plan: CellPlan) -> Iterator[CellPlan]:
    if len(plan.channels) > 1:
        first = plan.channels[0]
        acts = tuple(act for act in plan.acts if act.channel in ("", first.name))
        yield replace(plan, channels=(first,), acts=acts)


# --------------------------------------------------------------------- tracing


def _role(run: CellRun, node: NodeId) -> str:
    if node in run.plan.publishers:
        return "publisher"
    return "subscriber" if node in run.plan.subscribers else "broker"


def _header(run: CellRun, header: Header) -> Header:
    """The header with what is due: to each correct reader, all that correct publishers sent since.

    Publications of the millisecond in which a subscription begins are not due, and what predicates
    leave out is noted (`_conclude`).
    """
    plan, facts, adversary = run.plan, run.world.facts, run.world.adversary
    publishers = tuple(str(name) for name in plan.publishers if adversary.is_correct(name))
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
    return replace(
        header,
        parameters=to_builtins(CellParameters(policy=plan.policy.name)),
        publishers=publishers,
        listening=tuple(listening),
        events=events,
    )


def _conclude(run: CellRun, recorder_of: Callable[[NodeId], Recorder]) -> None:
    """Note the publications that readers passed over, and of which the twin says the same.

    Under total order readers are told of positions alone, so that no effect names publications.
    """
    facts = run.world.facts
    for reader in facts.present():
        if not reader.is_filtered or reader.standing_at is None:
            continue
        recorder = recorder_of(reader.node)
        for stream, published in facts.published.items():
            if stream.channel == reader.channel and facts.adversary.is_correct(stream.publisher):
                got = reader.numbers.get(stream, {})
                for number in range(1, len(published) + 1):
                    if number not in got and facts.is_passed(reader, stream, number):
                        recorder.note("passed", stream, number, 1, "")


SYSTEM = System(
    plan=CellPlan,
    draw=draw,
    run=CellRun,
    tracing=Tracing(notes=CELL_NOTES, role=_role, header=_header, conclude=_conclude),
    variants=_variants,
    simpler=(_fewer_clients, _one_channel),
    labelled=_labelled,
)
