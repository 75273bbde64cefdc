"""Acceptance of results: nothing, whole publications and cuts. n = 4, f = 1; three must agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import B1, B2, B3, B4, STREAM, digest, reasons, suspects
from tests.support.rows import NONSENSE, SCHEMA, prices_of, rows_body, wanted

from quorumcast.broadcast.acceptance import Acceptor, rule_for
from quorumcast.broadcast.application import Deliver, Passed
from quorumcast.broadcast.filtered import FilteredAcceptor
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, NodeId, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import DropReason, Effect, Suspect, Suspicion
from quorumcast.core.quorum import Broadcast, Protection, Quorums
from quorumcast.crypto.digest import hasher
from quorumcast.matching.selection import OpenedRun

BROKERS = (B1, B2, B3, B4)
CHEAP = wanted("price < 10")
RULE = rule_for(Quorums(4, 1), Protection.BYZANTINE, Broadcast.AUTHENTICATED, BROKERS)
#: Nothing cheap, one of three, all, nonsense.
RUN = (
    rows_body([10, 20]),
    rows_body([5, 10, 20]),
    rows_body([1, 2]),
    NONSENSE,
    rows_body([30]),
)


def acceptor(first: int = 1, may_split: int | None = None, **limits: int) -> FilteredAcceptor:
    return FilteredAcceptor(
        STREAM,
        first,
        RULE,
        hasher("sha256"),
        Limits(**limits),
        filter_=CHEAP,
        may_split=may_split,
    )


def results(*run: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """What a correct broker votes for, and the bodies that it sends."""
    digests = b"".join(map(digest, run))
    found = OpenedRun(SCHEMA, digests, run).select(CHEAP)
    return found.votes, tuple(
        [found.body(place) if place in found.places else b"" for place in range(len(run))]
    )


def cast(
    at: Acceptor, brokers: tuple[NodeId, ...], first: int, *run: bytes, full: bool = True
) -> list[Effect]:
    votes, bodies = results(*run)
    return [
        effect
        for broker in brokers
        for effect in at.vote(broker, first, votes, bodies if full else ())
    ]


def test_results_are_accepted_when_enough_brokers_agree_on_them() -> None:
    at = acceptor()
    cast(at, (B1, B2), 1, *RUN)
    assert at.deliver() == []
    assert cast(at, (B3,), 1, *RUN, full=False) == []
    told = at.deliver()
    assert told[0] == Passed(STREAM, 1, 1)
    assert [(e.number, bool(e.cut)) for e in told if isinstance(e, Deliver)] == [
        (2, True),
        (3, False),
        (4, False),
    ]
    assert told[-1] == Passed(STREAM, 5, 5)
    cut, whole, nonsense = (e for e in told if isinstance(e, Deliver))
    assert prices_of(cut.body) == [5]
    assert cut.digest == digest(RUN[1])
    assert whole.body == RUN[2]
    assert nonsense.body == NONSENSE
    assert at.next == 6


def test_numbers_at_which_nothing_matches_need_no_contents() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, RUN[0], RUN[0], full=False)
    assert at.lacking(10) == []
    assert at.deliver() == [Passed(STREAM, 1, 2)]


def test_cut_that_is_not_what_was_voted_for_is_dropped_and_its_sender_suspected() -> None:
    at = acceptor()
    votes, _ = results(RUN[1])
    other = results(rows_body([6, 10, 20]))[1]
    cast(at, (B2, B3), 1, RUN[1], full=False)
    told = at.vote(B1, 1, votes, other)
    assert reasons(told) == [DropReason.BAD_BODY]
    assert suspects(told) == [B1]
    assert at.deliver() == []
    assert at.lacking(1) == [1]


def test_broker_that_leaves_out_rows_is_suspected_of_that_and_nothing_is_lost() -> None:
    at = acceptor()
    cast(at, (B1, B2), 1, RUN[1])
    at.vote(B4, 1, NOTHING, ())
    cast(at, (B3,), 1, RUN[1])
    told = at.deliver()
    assert [type(e) for e in told] == [Deliver, Suspect]
    assert told[1] == Suspect(B4, Suspicion.OMITS, STREAM, 1)


def test_broker_that_adds_rows_or_cuts_otherwise_dissents() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, RUN[0])
    at.deliver()
    told = at.vote(B4, 1, digest(RUN[0]), ())
    assert told == [Suspect(B4, Suspicion.DISSENT, STREAM, 1)]


def test_publisher_is_suspected_too_where_it_can_make_brokers_differ() -> None:
    at = acceptor(may_split=1)
    cast(at, (B1, B2, B3), 1, RUN[1])
    at.deliver()
    (told,) = at.vote(B4, 1, NOTHING, ())
    assert isinstance(told, Suspect)
    assert told.among == (B4, STREAM.publisher)


def test_number_that_only_a_history_decides_is_pulled_whole_and_evaluated_here() -> None:
    at = acceptor()
    cast(at, (B1, B2), 1, *RUN[:3], full=False)
    assert at.settle(1, b"".join(map(digest, RUN[:3]))) == [1, 2, 3]
    assert at.lacking(10) == [1, 2, 3]
    assert at.pulled_whole(1)
    assert at.contents(B1, 1, b"".join(map(digest, RUN[:3])), RUN[:3]) == []
    told = at.deliver()
    assert [(e.number, e.by_history) for e in told if isinstance(e, Deliver)] == [
        (2, True),
        (3, True),
    ]
    assert at.next == 4
    assert at.lacking(10) == []


def test_number_that_a_history_named_is_not_given_up_while_its_contents_are_awaited() -> None:
    at = acceptor()
    assert at.undecided(5) == 4
    at.settle(3, digest(RUN[1]) * 2)
    assert at.undecided(5) == 2
    at.settle(1, digest(RUN[1]) * 2)
    assert at.undecided(5) == 0
    cast(at, (B1, B2, B3), 1, *RUN[:2])
    at.deliver()
    assert (at.next, at.undecided(5)) == (3, 0)


def test_wrong_contents_of_a_number_that_a_history_named_are_refused() -> None:
    at = acceptor()
    at.settle(1, digest(RUN[1]))
    assert at.contents(B1, 1, digest(RUN[0]), RUN[:1]) == []
    told = at.contents(B1, 1, digest(RUN[1]), RUN[:1])
    assert reasons(told) == [DropReason.BAD_BODY]
    assert suspects(told) == [B1]
    assert at.lacking(1) == [1]


def test_broker_that_forwarded_something_else_than_was_settled_is_judged_by_the_result() -> None:
    at = acceptor()
    cast(at, (B1,), 1, RUN[0], full=False)
    cast(at, (B2,), 1, RUN[1], full=False)
    at.settle(1, digest(RUN[1]))
    at.contents(B3, 1, digest(RUN[1]), RUN[1:2])
    told = at.deliver()
    assert suspects(told) == [B1]


def test_votes_may_decide_what_a_history_named_before_its_contents_come() -> None:
    at = acceptor()
    at.settle(1, digest(RUN[1]))
    cast(at, (B1, B2, B3), 1, RUN[1])
    assert not at.pulled_whole(1)
    assert at.lacking(1) == []
    (told,) = at.deliver()
    assert isinstance(told, Deliver)
    assert not told.by_history


def test_another_predicate_goes_on_where_the_one_before_it_is() -> None:
    old = acceptor()
    cast(old, (B1, B2, B3), 1, *RUN[:2])
    old.deliver()
    old.settle(3, digest(RUN[2]))
    at = acceptor(first=old.next)
    at.follow(old)
    assert at.next == 3
    assert at.lacking(5) == [3]
    assert at.pulled_whole(3)
    at.contents(B1, 3, digest(RUN[2]), RUN[2:3])
    assert [e.number for e in at.deliver() if isinstance(e, Deliver)] == [3]


def test_whole_publications_after_some_rows_keep_what_a_history_named() -> None:
    old = acceptor()
    old.settle(1, digest(RUN[2]))
    at = Acceptor(STREAM, old.next, RULE, hasher("sha256"), Limits())
    at.follow(old)
    assert at.lacking(5) == [1]
    back = acceptor()
    back.follow(at)
    assert back.lacking(5) == [1]
    assert back.pulled_whole(1)


def test_what_is_skipped_is_forgotten() -> None:
    at = acceptor()
    at.settle(1, digest(RUN[1]) * 3)
    at.skip_to(3)
    assert at.sizes()["settled_whole"] == 1
    assert at.lacking(5) == [3]


class _Twin:
    """Counts votes number by number, each broker's first one, and keeps contents by value."""

    def __init__(self) -> None:
        self._votes: dict[int, dict[NodeId, bytes]] = {}
        self._bodies: dict[tuple[int, bytes], bytes] = {}

    def vote(
        self, broker: NodeId, first: int, votes: bytes, bodies: tuple[bytes, ...], due: int
    ) -> None:
        for place, value in enumerate(split_digests(votes)):
            number = first + place
            if number < due:
                continue
            said = self._votes.setdefault(number, {}).setdefault(broker, value)
            if bodies and said == value:
                self._bodies[number, value] = bodies[place]

    def accepted(self, count: int) -> list[bytes | None]:
        """The contents of each number up to the first that cannot be accepted; None for nothing."""
        found: list[bytes | None] = []
        for number in range(1, count + 1):
            votes = list(self._votes.get(number, {}).values())
            value = next((v for v in votes if votes.count(v) >= 3), None)
            if value is None or (value != NOTHING and (number, value) not in self._bodies):
                break
            found.append(None if value == NOTHING else self._bodies[number, value])
        return found


def _told(effects: list[Effect]) -> list[bytes | None]:
    """The contents of the numbers that were told of; None for nothing."""
    found: list[bytes | None] = []
    for effect in effects:
        match effect:
            case Deliver(body=body):
                found.append(body)
            case Passed(first=first, upto=upto):
                found += [None] * (upto + 1 - first)
            case _:
                pass
    return found


@given(st.data())
def test_runs_cut_in_any_way_are_accepted_as_number_by_number(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.sampled_from(RUN), min_size=1, max_size=6))
    count = len(bodies)
    votes, contents = results(*bodies)
    at, twin = acceptor(), _Twin()
    told: list[bytes | None] = []

    def cast(broker: NodeId, first: int, value: bytes, full: tuple[bytes, ...]) -> None:
        twin.vote(broker, first, value, full, at.next)
        at.vote(broker, first, value, full)
        told.extend(_told(at.deliver()))
        assert told == twin.accepted(count)

    for _ in range(data.draw(st.integers(1, 8))):
        broker = data.draw(st.sampled_from(BROKERS))
        first = data.draw(st.integers(1, count))
        last = data.draw(st.integers(first, count))
        value = votes[(first - 1) * DIGEST_SIZE : last * DIGEST_SIZE]
        full = contents[first - 1 : last] if data.draw(st.booleans()) else ()
        if broker == B4 and data.draw(st.booleans()):
            value, full = NOTHING * (last - first + 1), ()
        cast(broker, first, value, full)
    # The source sends everything in the end, and two more agree with it.
    for broker in (B1, B2, B3):
        cast(broker, 1, votes, contents)
    assert at.next == count + 1
