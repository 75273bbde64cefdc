"""Trees of cells in the simulator: what is drawn, what their cells are judged by, variants."""

from __future__ import annotations

import msgspec
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.statements import Basis, SegmentStatement, Signed, canonical
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.origins import check_tree
from quorumcast.manifest.policy import RELAYED_NAMES
from quorumcast.sim.campaign import replay_of
from quorumcast.sim.cell.cells import identity_of
from quorumcast.sim.cell.system import SYSTEM as CELL
from quorumcast.sim.kernel.known_bad import Variant
from quorumcast.sim.systems import find, perform, run_scenario, system_of, try_variant
from quorumcast.sim.tree.facts import TreeFacts
from quorumcast.sim.tree.known_bad import CHAIN, LEAF, UPPER, VARIANTS, tree_plan
from quorumcast.sim.tree.plan import TreePlan, cell_name_of, uplink_of
from quorumcast.sim.tree.run import TreeRun
from quorumcast.sim.tree.scenario import ADVERSARIES, HARMS, draw
from quorumcast.sim.tree.system import SYSTEM
from quorumcast.sim.tree.world import make_tree

ORDERS = Channel("orders")


# ------------------------------------------------------------------------ the draw


def test_draw_is_a_function_of_the_seed_and_of_what_it_names() -> None:
    for seed in range(40):
        plan = draw(seed)
        assert draw(seed) == plan
        assert draw(seed, plan.kind, plan.adversary) == plan


def test_draw_visits_both_kinds_two_to_four_levels_and_every_adversary() -> None:
    plans = [draw(seed) for seed in range(300)]
    assert {plan.kind for plan in plans} == set(RELAYED_NAMES)
    assert {plan.parameters()["levels"] for plan in plans} == {2, 3, 4}
    assert {plan.adversary for plan in plans} >= set(HARMS)
    assert {plan.adversary for plan in plans} <= set(ADVERSARIES)
    assert {len(plan.below("a")) for plan in plans} == {0, 1, 2}
    readers = [{cell_name_of(reader) for reader in plan.subscribers} for plan in plans]
    assert any("" in homes and "a" in homes and "aa" in homes for homes in readers)


def test_draw_liars_are_f_of_every_cell_at_once() -> None:
    plan = draw(1, "relay", "liars")
    liars = dict.fromkeys(corruption.node for corruption in plan.corruptions)
    wanted = {"": plan.f} | {branch.name: branch.f for branch in plan.branches}
    found = {
        name: sum(cell_name_of(node) == name and not node.endswith(".up") for node in liars)
        for name in wanted
    }
    assert found == wanted


def test_draw_unknown_kind_or_adversary_names_those_that_exist() -> None:
    with pytest.raises(UsageError, match="choose one of relay, relay-total"):
        draw(1, "ab")
    with pytest.raises(UsageError, match="no adversary 'weather' of a tree"):
        draw(1, None, "weather")
    with pytest.raises(UsageError, match="claims to withstand"):
        draw(1, "relay", "equivocating-leader")


def test_draw_cells_fit_together() -> None:
    for seed in range(20):
        check_tree(cell.manifest for cell in make_tree(draw(seed)).values())


# ------------------------------------------------------------------- whole trees


@pytest.mark.sim
@pytest.mark.parametrize(
    ("kind", "adversary"), [("relay", "liars"), ("relay", "cut-off"), ("relay-total", "blackout")]
)
def test_tree_breaks_no_promise(kind: str, adversary: str) -> None:
    outcome = run_scenario(3, kind, adversary)
    assert outcome.violations == [], replay_of(outcome)
    assert (outcome.system, outcome.policy, outcome.false_accusations) == ("tree", kind, 0)
    assert outcome.deliveries > 0
    assert replay_of(outcome) == (
        f"quorumcast sim --start 3 --seeds 1 --policy {kind} --adversary {adversary}"
    )


@pytest.mark.sim
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_variant_is_caught_and_its_attack_is_otherwise_clean(variant: Variant) -> None:
    catch = try_variant(variant)
    assert catch.caught, variant.mistake
    assert catch.clean, f"the attack of seed {catch.seed} breaks the correct code as well"


def test_system_of_a_policy_is_found_by_its_name() -> None:
    assert system_of("cell", "relay") == system_of("cell", "relay-total") == "tree"
    assert system_of("cell", "ab") == system_of("cell", None) == "cell"
    assert system_of("my.module:SYSTEM", "relay") == "my.module:SYSTEM"
    assert find("tree") is SYSTEM
    assert find("cell") is CELL


# ------------------------------------------------------------- judging several cells


def run_of(policy: str = "ab") -> TreeRun:
    return TreeRun(tree_plan(policy)(0))


def test_adversary_takes_f_brokers_of_each_cell_and_their_uplinks() -> None:
    run = run_of()
    adversary = run.world.adversary
    for broker in ("broker-1", *(branch.broker_names[0] for branch in CHAIN)):
        adversary.declare(NodeId(broker), "test")
    for branch in CHAIN:
        adversary.declare(uplink_of(branch.broker_names[1]), "a client may always be faulty")
        with pytest.raises(UsageError, match="the model allows f=1"):
            adversary.declare(branch.broker_names[1], "one too many")


def test_broker_and_uplink_crash_and_restart_as_one() -> None:
    run = run_of()
    run.add_nodes()
    broker = UPPER.broker_names[0]
    run.world.adversary.crash(broker)
    nodes = [run.world.nodes[name] for name in (broker, uplink_of(broker))]
    assert [node.up for node in nodes] == [False, False]
    run.world.adversary.restart(broker)
    assert [node.up for node in nodes] == [True, True]


def test_facts_know_the_manifest_by_which_each_node_goes() -> None:
    facts = run_of().world.facts
    cells = ("simulated", "simulated-a", "simulated-aa")
    assert tuple(manifest.cell for manifest in facts.cells()) == cells
    homes = {"broker-1": 0, "a.broker-1": 1, "a.broker-1.up": 0, "aa.sub-1": 2, "aa.broker-2.up": 1}
    for node, place in homes.items():
        assert facts.manifest_of(NodeId(node)).cell == cells[place]


def test_facts_count_what_the_least_cell_on_the_way_retains() -> None:
    plan = tree_plan("ab")(0)
    retained = {"a": 100, "aa": 300}
    branches = tuple(
        msgspec.structs.replace(branch, retained=retained[branch.name]) for branch in CHAIN
    )
    facts = TreeRun(msgspec.structs.replace(plan, branches=branches)).world.facts
    root = plan.policy.limits.retained_publications
    found = [facts.retained(ORDERS, NodeId(node)) for node in ("sub-1", "a.sub-1", "aa.sub-1")]
    assert found == [root, 100, 100]


def test_facts_lost_contents_below_the_root_excuse_nothing() -> None:
    facts = run_of().world.facts
    facts.lost_contents(LEAF.broker_names[0], Millis(10))
    assert facts.lost_before(LEAF.readers[0]) == -1
    facts.lost_contents(NodeId("broker-1"), Millis(20))
    assert facts.lost_before(LEAF.readers[0]) == 20


def test_facts_find_the_cell_in_which_a_statement_was_signed() -> None:
    facts = run_of().world.facts
    assert isinstance(facts, TreeFacts)
    broker = LEAF.broker_names[0]
    stream = Stream(ORDERS, NodeId("pub-1"), 1)
    said = SegmentStatement(
        cell="simulated-aa",
        epoch=1,
        broker=broker,
        stream=stream,
        first=1,
        count=8,
        root=bytes(32),
        basis=Basis.SETTLED,
    )
    signer: Identity = identity_of(broker, "simulated-aa")
    signed: Signed = signer.sign(canonical(said))
    assert facts.signed_in([signed]).cell == "simulated-aa"
    assert facts.signed_in([]).cell == "simulated"


def test_shrinking_leaves_out_cells_without_a_cell_below() -> None:
    plan = tree_plan("ab")(0)
    (fewer_cells, *_) = SYSTEM.simpler
    (simpler,) = fewer_cells(plan)
    assert isinstance(simpler, TreePlan)
    assert [branch.name for branch in simpler.branches] == ["a"]
    assert {cell_name_of(act.node) for act in simpler.acts} == {"", "a"}
    assert perform(simpler).violations == []
