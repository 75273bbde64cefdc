"""Votes on results: what an observer of a subscriber with predicates expects of brokers."""

from __future__ import annotations

import pytest
from tests.support.cells import B1, B2, B3, B4, BOB, ORDERS, STREAM
from tests.watch.test_observer import BROKERS, Watched

from quorumcast.broadcast.application import Deliver, Passed
from quorumcast.broadcast.messages import Matches
from quorumcast.cell.messages import Position, Positions, Subscribe
from quorumcast.core.ids import Digest, Millis, NodeId
from quorumcast.core.machine import Drop, DropReason, Receive, Suspect, Suspicion
from quorumcast.watch.turnout import BUCKETS, OVERDUE_MS

WHERE = ("price < 10",)
VALUE = Digest(b"v" * 32)


class WatchedRows(Watched):
    """An observer of a subscriber that wants some rows."""

    def __init__(self, *where: str, policy: str = "ab") -> None:
        super().__init__(BOB, "subscriber", policy)
        self.ask(*where)

    def ask(self, *where: str, source: NodeId = B1) -> None:
        """Ask all brokers for these rows; they answer."""
        for broker in BROKERS:
            self.send(broker, Subscribe(ORDERS, (), broker == source, where=where))
            self.hear(broker, Positions(ORDERS, (Position(STREAM, 1, 1),)))
        # Nothing is known of what came before.
        for broker in BROKERS:
            self.observer.on_lost(broker, Millis(self.now))
        self.now += OVERDUE_MS

    def vote(self, *voters: NodeId, first: int, count: int = 1, matches: bool = False) -> None:
        """Brokers vote that the first of these numbers matches, or none; B1 with contents."""
        places, values = ((0,), VALUE) if matches else ((), b"")
        said = Matches(STREAM, first, count, b"id", places, values)
        for broker in voters:
            bodies = (b"rows",) if broker == B1 and matches else ()
            self.event(Receive(broker, said, bodies))

    def later(self) -> None:
        """Let what is due become overdue, while everybody talks."""
        self.now += OVERDUE_MS + 1
        for broker in BROKERS:
            self.hear(broker, Positions(ORDERS, ()))


def test_numbers_passed_over_must_be_voted_on_by_all() -> None:
    bob = WatchedRows(*WHERE)
    bob.vote(B1, B2, B3, first=1, count=20)
    bob.effect(Passed(STREAM, 1, 20))
    bob.now += 30
    bob.vote(B4, first=1, count=20)
    came = {(row.accused, row.message, row.number) for row in bob.rows("came") if row.number}
    assert (B4, "Matches", 40) in came
    assert {(B1, "Matches", BUCKETS[0]), (B2, "Matches", BUCKETS[0])} <= came
    assert not bob.rows("missing")


def test_broker_that_never_votes_on_results_is_missing() -> None:
    bob = WatchedRows(*WHERE)
    bob.vote(B1, B2, B3, first=1, matches=True)
    bob.effect(Deliver(STREAM, 1, VALUE, b"rows", (B1, B2, B3), cut=b"cut"))
    bob.later()
    assert bob.found("missing") == {(B4, "", "Matches")}


def test_vote_under_another_predicate_is_no_vote() -> None:
    bob = WatchedRows(*WHERE)
    bob.vote(B1, B2, B3, first=1)
    bob.vote(B4, first=1)
    bob.effect(Drop(DropReason.OTHER_PREDICATE, B4))
    bob.effect(Passed(STREAM, 1, 1))
    bob.later()
    assert bob.found("missing") == {(B4, "", "Matches")}


@pytest.mark.parametrize("where", [(), ("price < 5",)])
def test_change_of_the_predicate_excuses_from_votes_before_it(where: tuple[str, ...]) -> None:
    bob = WatchedRows(*WHERE)
    bob.vote(B1, B2, B3, first=1)
    bob.effect(Passed(STREAM, 1, 1))
    bob.ask(*where)
    bob.later()
    assert not bob.rows("missing")


def test_broker_owes_votes_on_results_after_a_change() -> None:
    bob = WatchedRows(*WHERE)
    bob.vote(*BROKERS, first=1, count=50)
    bob.effect(Passed(STREAM, 1, 50))
    bob.ask("price < 5")
    bob.vote(B1, B2, B3, first=40, count=5)
    bob.effect(Passed(STREAM, 40, 44))
    bob.later()
    assert bob.found("missing") == {(B4, "", "Matches")}


def test_reader_that_wants_everything_again_is_owed_votes() -> None:
    bob = WatchedRows(*WHERE)
    bob.ask()
    bob.accept(1)
    bob.later()
    assert {message for _, _, message in bob.found("missing")} == {"Vote"}


def test_source_owes_contents_of_what_matches_alone() -> None:
    bob = WatchedRows(*WHERE)
    bob.ask(*WHERE, source=B2)
    bob.vote(*BROKERS, first=1)
    assert bob.found("missing") == set()
    bob.vote(*BROKERS, first=2, matches=True)
    assert bob.found("missing") == {(B2, "", "Contents")}


def test_suspicion_of_omission_is_noted_with_the_vote() -> None:
    bob = WatchedRows(*WHERE)
    bob.vote(B4, first=1)
    bob.effect(Suspect(B4, Suspicion.OMITS, STREAM, 1))
    assert bob.found("suspect") == {(B4, "omits", "Matches")}
