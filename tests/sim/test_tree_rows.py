"""Rows in simulated trees: what is drawn, and what cells that carry on some rows are judged by."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quorumcast.broadcast.application import Deliver, Join, Passed, Recalled, Select, Submit
from quorumcast.broadcast.messages import Contents, Matches
from quorumcast.cell.filters import check_carried
from quorumcast.core.cuts import publication_of
from quorumcast.core.envelope import write_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NOTHING, Millis, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Event, Send
from quorumcast.core.publication import batch_of_rows, encode_batch
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.manifest import ChannelEntry, ChannelOrigin
from quorumcast.manifest.schema import arrow_schema
from quorumcast.matching.filter import make_filter
from quorumcast.sim.cell.drawing.rows import FAULTS, PREDICATES
from quorumcast.sim.cell.judges.filtering import Coverage
from quorumcast.sim.cell.judges.twin import RowResult, value_of_body
from quorumcast.sim.cell.rows import COLUMNS
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import mistaken
from quorumcast.sim.kernel.plan import Plan
from quorumcast.sim.systems import perform
from quorumcast.sim.tree.known_bad import LEAF, UPPER, VARIANTS, tree_plan
from quorumcast.sim.tree.plan import TreePlan, cell_name_of, uplink_of
from quorumcast.sim.tree.rows import CARRIED
from quorumcast.sim.tree.run import TreeRun
from quorumcast.sim.tree.scenario import draw
from quorumcast.sim.tree.system import SYSTEM
from quorumcast.sim.tree.world import make_tree

SCHEMA = arrow_schema(COLUMNS)
PUB, SUB = NodeId("pub-1"), LEAF.readers[0]
STREAM, ORDER = Stream(ORDERS, PUB, 1), total_order(ORDERS)
#: What the upper cell and the leaf carry on.
ABOVE, HERE = "price < 50", "price < 10"


def carrying(entry: ChannelEntry, where: str) -> ChannelEntry:
    assert isinstance(entry.origin, ChannelOrigin)
    return replace(entry, origin=replace(entry.origin, where=where))


def body_of(*prices: float) -> bytes:
    rows = [{"price": price, "size": place} for place, price in enumerate(prices)]
    return encode_batch(batch_of_rows(rows, SCHEMA), write_envelope(1_000_000))


#: The leaf carries on nothing, one row of three, two of three, and nonsense.
BODIES = (body_of(40, 60), body_of(1, 40, 60, 70), body_of(1, 2, 60), b"no rows")


class Levels:
    """A tree in which nothing happens but what a test says happened at the leaf."""

    def __init__(self, policy: str = "ab") -> None:
        self.total = policy == "total"
        self.world = TreeRun(tree_plan(policy, carried=(ABOVE, HERE))(0)).world
        self.facts = self.world.facts
        self.entry = self.facts.manifest_of(SUB).channels[0]
        self.facts.started(PUB, 1)
        self.event(SUB, Join(ORDERS))
        self.facts.begun(SUB, ORDERS, Millis(1))
        self.event(PUB, Submit(ORDERS, BODIES))
        self.facts.bodies_held = self._held

    def _held(self, stream: Stream, number: int, broker: NodeId | None) -> list[bytes]:
        if broker is not None and cell_name_of(broker) == LEAF.name:
            return [self.result(number, HERE).body]
        return [self.contents(number)] if number <= len(BODIES) else []

    def event(self, node: NodeId, event: Event) -> None:
        self.facts.on_event(node, event, Millis(10))

    def does(self, node: NodeId, effect: Effect) -> None:
        for watcher in self.world._watchers:
            watcher.on_effect(node, effect, Millis(20))

    def contents(self, number: int) -> bytes:
        body = BODIES[number - 1]
        return label(STREAM, number) + body if self.total else body

    def result(self, number: int, *where: str) -> RowResult:
        return self.facts.twin.result(self.entry, where, self.contents(number))

    def delivery(self, number: int, *where: str) -> Deliver:
        """What these predicates make of a publication; all of it if there are none."""
        found = self.result(number, *where) if where else None
        cut = b"" if found is None or found.body == self.contents(number) else found.value
        body = BODIES[number - 1] if not cut or found is None else found.body
        digest = publication_of(body) if cut else tree_hash(self.contents(number))
        position = number if self.total else 0
        return Deliver(STREAM, number, digest, body, (), position=position, cut=cut)

    def takes(self, number: int, *where: str) -> None:
        self.does(SUB, self.delivery(number, *where))

    def passes(self, upto: int) -> None:
        self.does(SUB, Passed(ORDER if self.total else STREAM, 1, upto))

    @property
    def broken(self) -> list[str]:
        for checker in self.world.checkers:
            checker.at_end(self.facts)
        return [violation.property for violation in self.facts.violations]


tree_hash = make_tree(tree_plan("ab")(0))[""].manifest.hash


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_honest_leaf_that_carries_on_some_rows_is_silent(policy: str) -> None:
    levels = Levels(policy)
    levels.passes(1)
    for number in (2, 3, 4):
        levels.takes(number, HERE)
    assert levels.broken == []
    assert Coverage().pending(levels.facts) is None


def test_reader_with_a_predicate_gets_rows_of_those_that_are_carried_on() -> None:
    levels = Levels()
    levels.event(SUB, Select(ORDERS, ("price = 2", "price = 40")))
    levels.passes(2)
    levels.takes(3, "price = 2")
    assert levels.broken == []
    reader = levels.facts.reader(SUB, ORDERS)
    assert reader is not None
    asked = (f"({HERE}) AND (price = 2)", f"({HERE}) AND (price = 40)")
    assert (reader.asked, reader.where_at(STREAM, 3)) == (asked, asked)


def test_completeness_passed_number_whose_rows_are_carried_on_is_reported() -> None:
    levels = Levels()
    levels.passes(1)
    levels.passes(2)
    assert levels.broken == ["Completeness"]


def test_completeness_fewer_rows_than_are_carried_on_are_reported() -> None:
    levels = Levels()
    levels.passes(2)
    levels.takes(3, "price = 1")
    assert "Completeness" in levels.broken


def test_relevance_by_row_publication_that_should_be_cut_is_reported() -> None:
    levels = Levels()
    levels.passes(1)
    levels.takes(2)
    assert levels.broken == ["Relevance by row"]


def vote(number: int, *where: str) -> Matches:
    named = make_filter(where, SCHEMA, "the predicate").id
    return Matches(STREAM, number, 1, named)


def test_sound_results_are_demanded_of_what_a_child_carries_on() -> None:
    levels, broker = Levels(), LEAF.broker_names[0]
    levels.does(broker, Send((SUB,), vote(1, HERE)))
    levels.does(broker, Send((SUB,), vote(2, "price < 5")))  # another predicate
    assert levels.broken == []
    levels.does(broker, Send((SUB,), vote(2, HERE)))
    assert levels.broken == ["Sound results"]


def test_sound_results_are_demanded_of_votes_for_uplinks() -> None:
    levels, uplink = Levels(), uplink_of(UPPER.broker_names[0])
    levels.does(NodeId("broker-1"), Send((uplink,), vote(4, ABOVE)))
    assert levels.broken == ["Sound results"]


def contents_of(number: int, result: RowResult) -> Contents:
    return Contents(STREAM, number, result.value)


def test_vouching_child_that_sends_other_rows_than_it_carries_on_is_reported() -> None:
    broker = LEAF.broker_names[0]
    levels = Levels()
    for number in (1, 2, 3):
        found = levels.result(number, HERE)
        levels.does(broker, Send((SUB,), contents_of(number, found), (found.body,)))
    assert levels.broken == []
    for wrong in ("price < 50", "TRUE", "price > 100"):
        levels, found = Levels(), Levels().result(2, wrong)
        levels.does(broker, Send((SUB,), contents_of(2, found), (found.body,)))
        assert levels.broken == ["Vouching"], wrong
    levels, found = Levels(), Levels().result(2, HERE)
    levels.does(broker, Send((SUB,), contents_of(2, found), (found.body[:-1] + b"!",)))
    assert levels.broken == ["Vouching"]


def test_value_of_a_body_is_that_of_a_cut_only_where_rows_are_carried_on() -> None:
    levels = Levels()
    cut = levels.result(2, HERE)
    bare = carrying(levels.entry, "")
    assert value_of_body(levels.entry, tree_hash, cut.body) == cut.value
    assert value_of_body(bare, tree_hash, cut.body) == tree_hash(cut.body)
    assert value_of_body(levels.entry, tree_hash, b"") == NOTHING
    assert value_of_body(bare, tree_hash, b"") == tree_hash(b"")


def test_recalled_position_has_the_rows_that_are_carried_on() -> None:
    levels = Levels("total")
    levels.does(SUB, Recalled(ORDERS, 1, None))
    levels.does(SUB, Recalled(ORDERS, 2, levels.delivery(2, HERE)))
    assert levels.broken == []
    levels.does(SUB, Recalled(ORDERS, 2, None))
    assert levels.broken == ["Completeness"]
    levels = Levels("total")
    levels.does(SUB, Recalled(ORDERS, 2, levels.delivery(2, "price < 50")))
    assert levels.broken == ["Relevance by row"]


# ------------------------------------------------------------------ what is drawn


def test_draw_cells_carry_on_parts_of_what_their_parents_have() -> None:
    for seed in range(150):
        cells = make_tree(draw(seed))
        for name, cell in cells.items():
            for entry in cell.manifest.channels if name else ():
                above = cells[name[:-1]].manifest.channel(entry.name)
                assert above is not None
                check_carried(entry, above)  # raises if a parent lacks rows that are asked for


def test_draw_every_pair_of_predicates_is_a_part_of_the_first() -> None:
    plan = tree_plan("ab", carried=(ABOVE, HERE))(0)
    upper, leaf = (make_tree(plan)[name].manifest.channels[0] for name in ("a", "aa"))
    for where, fewer in CARRIED.items():
        above = carrying(upper, where)
        for text in (*fewer, *(f"({where}) AND ({other})" for other in PREDICATES)):
            check_carried(carrying(leaf, text), above)
        with pytest.raises(UsageError, match="has only those"):
            check_carried(carrying(leaf, "size > -9"), carrying(upper, f"({where}) AND size = 3"))


def test_draw_has_rows_predicates_and_changes_at_every_level() -> None:
    plans = [draw(seed) for seed in range(200)]
    with_rows = [plan for plan in plans if plan.channels[0].schema]
    assert 100 < len(with_rows) < len(plans)
    carrying = {len(branch.name) for plan in with_rows for branch in plan.branches if branch.where}
    assert carrying == {1, 2, 3}
    narrower = [
        branch
        for plan in with_rows
        for branch in plan.branches
        if branch.name[:-1] and branch.where not in ("", plan.branch(branch.name[:-1]).where)
    ]
    assert len(narrower) > 20
    chained = [plan for plan in with_rows if plan.policy.chained]
    assert any(branch.where for plan in chained for branch in plan.branches)
    asked = [
        (len(cell_name_of(act.node)), act.at_ms > 0, plan.policy.chained)
        for plan in with_rows
        for act in plan.acts
        if act.what == "select"
    ]
    assert {*asked} >= {(level, changes, False) for level in range(4) for changes in (True, False)}
    assert not any(level == 0 and chained for level, _, chained in asked)


def test_draw_has_lies_about_rows_in_cells_of_all_levels() -> None:
    lies = [one for seed in range(300) for one in draw(seed).corruptions if one.fault in FAULTS]
    assert {len(cell_name_of(one.node)) for one in lies} == {0, 1, 2, 3}
    of_brokers = {name for name in FAULTS if CATALOGUE[name].role is Role.BROKER}
    assert {one.fault for one in lies} == of_brokers


@pytest.mark.sim
def test_draw_tree_with_rows_is_clean_and_a_narrow_uplink_in_it_is_noticed() -> None:
    (narrow,) = [variant for variant in VARIANTS if variant.name == "narrow-uplink"]
    plan = draw(5)
    assert any(branch.where for branch in plan.branches)
    outcome = perform(plan)
    assert outcome.violations == []
    assert outcome.filtered_readers > 0
    with mistaken(narrow.patches):
        assert {one.property for one in perform(plan).violations} & {*narrow.caught_by}


def test_shrinking_lets_cells_carry_on_everything_from_the_top_down() -> None:
    _, more_rows, *_ = SYSTEM.simpler
    plan: Plan = tree_plan("ab", carried=(ABOVE, HERE))(0)
    found: list[list[str]] = []
    while simpler := list(more_rows(plan)):
        (plan,) = simpler
        assert isinstance(plan, TreePlan)
        found.append([branch.where for branch in plan.branches])
    assert found == [["", HERE], ["", ""]]
