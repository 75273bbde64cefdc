"""The system *tree* as the simulator finds it: tracing, shrinking and variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from quorumcast.core.ids import NodeId
from quorumcast.sim.cell.system import SYSTEM as CELL
from quorumcast.sim.kernel.known_bad import Variant
from quorumcast.sim.systems import System
from quorumcast.sim.tree.plan import TreePlan
from quorumcast.sim.tree.run import TreeRun
from quorumcast.sim.tree.scenario import draw


def _variants() -> Sequence[Variant]:
    from quorumcast.sim.tree.known_bad import VARIANTS

    return VARIANTS


def _fewer_cells(plan: TreePlan) -> Iterator[TreePlan]:
    """The plan without one of the cells that have no cell below them."""
    for branch in plan.branches:
        if len(plan.branches) > 1 and not plan.below(branch.name):
            gone = branch.name

            def stays(node: NodeId, gone: str = gone) -> bool:
                return node.partition(".")[0] != gone

            yield replace(
                plan,
                branches=tuple(other for other in plan.branches if other is not branch),
                subscribers=tuple(filter(stays, plan.subscribers)),
                acts=tuple(act for act in plan.acts if stays(act.node)),
                corruptions=tuple(one for one in plan.corruptions if stays(one.node)),
                doomed=tuple(one for one in plan.doomed if stays(one[0])),
            )


def _more_rows(plan: TreePlan) -> Iterator[TreePlan]:
    """The plan with a cell that carries on all rows that its parent has, which has all."""
    some = [branch.name for branch in plan.branches if branch.where]
    for name in some:
        if name[:-1] not in some:
            yield replace(
                plan,
                branches=tuple(
                    replace(branch, where="") if branch.name == name else branch
                    for branch in plan.branches
                ),
            )


def _role(run: TreeRun, node: NodeId) -> str:
    if node in run.plan.publishers:
        return "publisher"
    manifest = run.world.cell_of(node).manifest
    return "broker" if manifest.broker(node) is not None else "subscriber"


SYSTEM = System(
    plan=TreePlan,
    draw=draw,
    run=TreeRun,
    tracing=replace(CELL.tracing, role=_role),
    variants=_variants,
    simpler=(_fewer_cells, _more_rows, *CELL.simpler),
)
