"""Checkers of content subscriptions: each finds what it is there for, and is silent otherwise."""

from collections.abc import Callable

import pytest
from tests.support.rows import COLUMNS, NONSENSE, SCHEMA, rows_body, wanted

from quorumcast.broadcast.application import (
    Deliver,
    DeliverGap,
    Join,
    Leave,
    Passed,
    Select,
    Submit,
)
from quorumcast.broadcast.messages import Matches
from quorumcast.cell.messages import Vote
from quorumcast.core.cuts import publication_of
from quorumcast.core.ids import NOTHING, Channel, Digest, Millis, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Event, Send
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.matching.filter import make_filter
from quorumcast.matching.selection import OpenedRun
from quorumcast.sim.cell.cells import make_simulated_cell
from quorumcast.sim.cell.drawing.rows import FAULTS, PREDICATES
from quorumcast.sim.cell.judges.checkers import safety_checkers
from quorumcast.sim.cell.judges.filtering import Coverage
from quorumcast.sim.cell.judges.promises import Validity
from quorumcast.sim.cell.judges.twin import RowTwin
from quorumcast.sim.cell.rows import COLUMNS as DRAWN_COLUMNS
from quorumcast.sim.cell.rows import MORE
from quorumcast.sim.cell.rows import SCHEMA as DRAWN
from quorumcast.sim.cell.rows import rows_body as drawn_body
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import Weather

ORDERS = Channel("orders")
PUB, LIAR = NodeId("pub-1"), NodeId("pub-2")
SUB, OTHER, B1 = NodeId("sub-1"), NodeId("sub-2"), NodeId("broker-1")
STREAM, OF_LIAR = Stream(ORDERS, PUB, 1), Stream(ORDERS, LIAR, 1)
ORDER = total_order(ORDERS)
CHEAP = ("price < 10",)
#: Nothing is cheap; one row of three is; two of three are.
DEAR, SOME, MOST = rows_body([50, 60]), rows_body([1, 50, 60]), rows_body([1, 2, 50])
BODIES = (DEAR, SOME, MOST, NONSENSE)


class Rows:
    """A world with a channel of rows, in which nothing happens but what a test says happened."""

    def __init__(self, policy: str = "ab") -> None:
        self.total = policy == "total"
        entry = ChannelEntry(ORDERS, Policy.named(policy), schema=COLUMNS)
        self.cell = make_simulated_cell(4, 1, [entry])
        self.world = CellWorld(self.cell, 1, Weather(), safety_checkers(gaps_allowed=False))
        self.facts = self.world.facts
        for publisher in (PUB, LIAR):
            self.facts.started(publisher, 1)
        self.world.adversary.declare(LIAR, "equivocating-publisher")
        self.event(SUB, Join(ORDERS, where=CHEAP))
        self.event(OTHER, Join(ORDERS))
        for node in (SUB, OTHER):
            self.facts.begun(node, ORDERS, Millis(1))
        self.event(PUB, Submit(ORDERS, BODIES))

    def event(self, node: NodeId, event: Event) -> None:
        self.facts.on_event(node, event, Millis(10))

    def does(self, node: NodeId, effect: Effect) -> None:
        for watcher in self.world._watchers:
            watcher.on_effect(node, effect, Millis(20))

    def contents(self, number: int) -> bytes:
        body = BODIES[number - 1]
        return label(STREAM, number) + body if self.total else body

    def takes(
        self,
        number: int,
        *where: str,
        node: NodeId = SUB,
        of: int = 0,
        alter: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """A node gets what these predicates make of a publication; all of it if there are none."""
        contents = self.contents(of or number)
        digest, body, cut = Digest(self.cell.manifest.hash(contents)), BODIES[number - 1], b""
        if where:
            opened = OpenedRun(SCHEMA, digest, (contents,), labelled=self.total)
            found = opened.select(wanted(*where))
            body = alter(found.body(0))
            cut, digest = found.votes, publication_of(body)
        position = number if self.total else 0
        self.does(node, self._deliver(number, digest, body, position, cut))

    def _deliver(
        self, number: int, digest: Digest, body: bytes, position: int, cut: bytes
    ) -> Deliver:
        return Deliver(STREAM, number, digest, body, (), position=position, cut=cut)

    def passes(self, upto: int, node: NodeId = SUB) -> None:
        self.does(node, Passed(ORDER if self.total else STREAM, 1, upto))

    @property
    def broken(self) -> list[str]:
        for checker in self.world.checkers:
            checker.at_end(self.facts)
        return [violation.property for violation in self.facts.violations]


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_filtering_honest_run_is_silent_and_comes_to_its_end(policy: str) -> None:
    rows = Rows(policy)
    rows.facts.ordered = lambda order: 4
    for number in (1, 2, 3, 4):
        rows.takes(number, node=OTHER)
    rows.passes(1)
    rows.takes(2, *CHEAP)
    rows.takes(3)
    assert Coverage().pending(rows.facts) is not None
    rows.takes(4)
    assert rows.broken == []
    assert (Coverage().pending(rows.facts), Validity().pending(rows.facts)) == (None, None)


@pytest.mark.parametrize(("start", "owed"), [(None, False), (0, True), (3, True)])
def test_coverage_of_an_order_that_ended_before_a_reader_began_is_of_the_past(
    start: int | None, owed: bool
) -> None:
    rows = Rows("total")
    rows.facts.ordered = lambda order: 4
    rows.event(SUB, Leave(ORDERS))
    rows.event(SUB, Join(ORDERS, start=start, where=CHEAP))
    rows.facts.begun(SUB, ORDERS, Millis(30))
    assert (Coverage().pending(rows.facts) is not None) == owed
    rows.facts.ordered = lambda order: 5
    assert Coverage().pending(rows.facts) is not None


def test_completeness_number_passed_of_which_rows_match_is_reported() -> None:
    rows = Rows()
    rows.passes(1)
    rows.passes(2)
    assert rows.broken == ["Completeness"]


def test_completeness_number_jumped_over_of_which_rows_match_is_reported() -> None:
    rows = Rows()
    rows.passes(1)
    rows.takes(3)
    assert rows.broken == ["Completeness"]


def test_completeness_first_numbers_jumped_over_are_missed_in_the_end() -> None:
    rows = Rows()
    rows.takes(3)
    rows.takes(4)
    assert Coverage().pending(rows.facts) is None
    assert "has not accepted" in str(Validity().pending(rows.facts))
    assert f"{STREAM} 2" in str(Validity().pending(rows.facts))


@pytest.mark.parametrize(
    ("asked", "got", "broken"),
    [
        ("price < 55", "price < 10", "Completeness"),
        ("price < 10", "price BETWEEN 40 AND 55", "Completeness"),
        ("price BETWEEN 40 AND 55", "price > 40", "Relevance by row"),
    ],
)
def test_completeness_other_rows_than_those_that_match_are_reported(
    asked: str, got: str, broken: str
) -> None:
    body = rows_body([1, 2, 3, 4, 50, 60])
    rows = Rows()
    rows.event(SUB, Select(ORDERS, (asked,)))
    rows.event(PUB, Submit(ORDERS, (body,)))
    for number in (1, 2, 3, 4):
        rows.takes(number, node=OTHER)
    digest = Digest(rows.cell.manifest.hash(body))
    found = OpenedRun(SCHEMA, digest, (body,)).select(wanted(got))
    rows.does(SUB, rows._deliver(5, digest, found.body(0), 0, found.votes))
    assert rows.broken == [broken]


def test_completeness_altered_row_is_reported() -> None:
    rows = Rows()
    rows.passes(1)
    rows.takes(2, *CHEAP, alter=lambda body: body[:-8] + bytes([body[-8] ^ 2]) + body[-7:])
    assert rows.broken == ["Completeness"]


def test_authenticity_rows_of_another_publication_are_reported() -> None:
    rows = Rows()
    rows.passes(1)
    rows.takes(2, *CHEAP, alter=lambda body: body[:8] + b"d" * 32 + body[40:])
    assert "Authenticity" in rows.broken


def test_relevance_by_row_publication_that_should_be_cut_is_reported() -> None:
    rows = Rows()
    rows.passes(1)
    rows.takes(2)
    assert rows.broken == ["Relevance by row"]


def test_relevance_by_row_publication_without_a_match_is_reported() -> None:
    rows = Rows()
    rows.takes(1)
    assert rows.broken == ["Relevance by row"]


def test_relevance_by_row_parts_for_one_that_wants_everything_are_reported() -> None:
    rows = Rows()
    rows.passes(1, node=OTHER)
    rows.takes(2, *CHEAP, node=OTHER)
    assert rows.broken == ["Relevance by row"] * 2


def test_fifo_one_that_wants_everything_again_skips_nothing() -> None:
    rows = Rows()
    rows.passes(1)
    rows.event(SUB, Select(ORDERS))
    rows.takes(3)
    assert rows.broken == ["FIFO"]


def test_fifo_coming_back_to_what_was_passed_is_reported() -> None:
    rows = Rows()
    rows.takes(3)
    rows.takes(2, *CHEAP)
    assert rows.broken == ["FIFO"]


def test_total_order_position_before_one_that_was_passed_is_reported() -> None:
    rows = Rows("total")
    rows.passes(4)
    rows.takes(2, *CHEAP)
    assert "Total order" in rows.broken


def test_total_order_gap_behind_what_was_passed_is_reported() -> None:
    rows = Rows("total")
    rows.passes(1)
    rows.does(SUB, DeliverGap(ORDER, 3, 3))
    assert "Total order" in rows.broken


def test_reader_keeps_what_it_asked_for_at_each_number() -> None:
    rows = Rows()
    rows.passes(1)
    rows.event(SUB, Select(ORDERS, ("price > 10",)))
    rows.takes(2)
    reader = rows.facts.reader(SUB, ORDERS)
    assert reader is not None
    assert [reader.where_at(STREAM, n) for n in (1, 2, 3)] == [CHEAP, *[("price > 10",)] * 2]
    assert rows.broken == []  # two of three rows


NAMED = wanted(*CHEAP).id


@pytest.mark.parametrize(
    "said",
    [
        Matches(STREAM, 1, 2, NAMED),
        Matches(STREAM, 1, 2, NAMED, (0,)),  # a place without a value
        Matches(STREAM, 1, 1, NAMED, (1,), bytes([1]) * 32),  # a place behind the run
    ],
)
def test_sound_results_wrong_vote_of_a_correct_broker_is_reported(said: Matches) -> None:
    rows = Rows()
    rows.facts.bodies_held = lambda stream, number, broker: [BODIES[number - 1]]
    rows.does(B1, Send((SUB,), said))
    assert rows.broken == ["Sound results"]


def test_validity_position_that_nobody_holds_any_longer_was_passed() -> None:
    rows = Rows("total")
    rows.facts.ordered = lambda order: 4
    rows.passes(1)
    for number, what in ((2, CHEAP), (3, ()), (4, ())):
        rows.takes(number, *what)
    assert (STREAM, 1) not in rows.facts.places
    rows.takes(1, node=OTHER)
    rows.facts.places.pop((STREAM, 1))
    for number in (2, 3, 4):
        rows.takes(number, node=OTHER)
    assert Validity().pending(rows.facts) is None
    rows.event(PUB, Submit(ORDERS, (DEAR,)))
    assert f"{STREAM} 5" in str(Validity().pending(rows.facts))


def test_sound_results_right_vote_and_one_on_another_predicate_are_silent() -> None:
    rows = Rows()
    rows.facts.bodies_held = lambda stream, number, broker: [BODIES[number - 1]]
    rows.does(B1, Send((SUB,), Matches(STREAM, 1, 1, wanted(*CHEAP).id)))
    rows.does(B1, Send((SUB,), Matches(STREAM, 1, 2, wanted("price > 10").id)))
    assert rows.broken == []


def test_one_story_two_results_for_one_number_are_reported() -> None:
    rows = Rows()
    named = wanted(*CHEAP).id
    rows.does(B1, Send((SUB,), Matches(STREAM, 2, 1, named)))
    rows.does(B1, Send((SUB,), Matches(STREAM, 2, 1, named, (0,), b"v" * 32)))
    assert rows.broken == ["One story"]


def test_rights_results_for_one_without_the_right_are_reported() -> None:
    rows = Rows()
    hidden = Matches(Stream(Channel("secret"), PUB, 1), 1, 1, wanted(*CHEAP).id)
    rows.does(B1, Send((SUB,), hidden))
    assert rows.broken == ["Rights"]


def test_blame_whole_publications_tell_nothing_to_one_that_wants_rows() -> None:
    rows = Rows()
    rows.facts.calm = True
    rows.world.adversary.declare(B1, "alter-body")
    rows.passes(1)
    for _ in range(8):
        rows.does(B1, Send((SUB,), Vote(STREAM, 2, b"d" * 32), (b"altered",)))
    assert dict(rows.world.lies.dubious) == {}


# ------------------------------------------------------------------ what is drawn


def test_twin_equals_production_on_what_is_drawn() -> None:
    entry = ChannelEntry(ORDERS, Policy.named("ab"), schema=(*DRAWN_COLUMNS, MORE))
    hash_ = make_simulated_cell(4, 1, [entry]).manifest.hash
    twin = RowTwin(hash_)
    kinds: dict[str, int] = {}
    for count in range(120):
        body = drawn_body(7, count)
        opened = OpenedRun(DRAWN, hash_(body), (body,))
        where = (PREDICATES[count % len(PREDICATES)], PREDICATES[count % 5])
        filter_ = make_filter(where, DRAWN, "the predicate")
        found, result = opened.select(filter_), twin.result(entry, where, body)
        assert (found.votes, found.body(0) if found.places else b"") == (result.value, result.body)
        kind = "nothing" if found.votes == NOTHING else "whole" if result.body == body else "cut"
        kinds[kind] = kinds.get(kind, 0) + 1
    assert min(kinds.values()) >= 10, kinds
    assert set(kinds) == {"nothing", "whole", "cut"}


@pytest.mark.sim
def test_draw_has_rows_on_every_policy_but_chains() -> None:
    plans = [draw(seed) for seed in range(300)]
    with_rows = [plan for plan in plans if any(entry.schema for entry in plan.channels)]
    assert {plan.policy.name for plan in with_rows} == {
        plan.policy.name for plan in plans if not plan.policy.chained
    }
    selects = [act for plan in with_rows for act in plan.acts if act.what == "select"]
    assert any(act.at_ms == 0 for act in selects)
    assert any(act.at_ms > 100 and act.amount == 0 for act in selects)
    assert any(act.at_ms > 100 and act.amount > 0 for act in selects)
    assert any(not entry.schema for plan in with_rows for entry in plan.channels)


@pytest.mark.sim
def test_draw_has_every_fault_about_rows_within_the_model() -> None:
    plans = [draw(seed) for seed in range(600)]
    assert {c.fault for plan in plans for c in plan.corruptions} >= set(FAULTS)
    for plan in plans:
        brokers = dict.fromkeys(c.node for c in plan.corruptions if "broker" in c.node)
        assert len(brokers) <= max([plan.f, *(a.amount for a in plan.acts if a.what == "faults")])
