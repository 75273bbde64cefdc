"""The state of a named subscription: no operation loses a position or assigns it twice."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from quorumcast.core.ids import NodeId
from quorumcast.named.follower import Follower
from quorumcast.named.operations import (
    MAX_CLAIMED,
    MAX_DEAD,
    MAX_SESSIONS,
    AckPositions,
    AnyOperation,
    Assignment,
    ClaimPositions,
    CloseSession,
    Configure,
    Create,
    ExpireSession,
    Heartbeat,
    MarkDead,
    NackPositions,
    OpenSession,
    SkipTo,
    SubscriptionSettings,
    WriteSnapshot,
    decode,
    encode,
)
from quorumcast.named.ranges import spans
from quorumcast.named.state import Charter, SubscriptionState

ALICE, BOB, EVE = NodeId("alice"), NodeId("bob"), NodeId("eve")
MEMBERS = (ALICE, BOB)


def state(max_attempts: int = 0, start: int = 1) -> SubscriptionState:
    return SubscriptionState(1, start, MEMBERS, SubscriptionSettings(max_attempts), epoch=1)


def play(
    made: SubscriptionState, *entries: tuple[NodeId, AnyOperation], first: int = 2
) -> SubscriptionState:
    for position, (author, operation) in enumerate(entries, first):
        made.apply(position, author, operation)
    return made


def holds(made: SubscriptionState, consumer: NodeId) -> list[tuple[int, int]]:
    return [(claim.position, claim.attempt) for claim in made.assigned_to(consumer)]


# ---------------------------------------------------------------- one by one


def test_claims_of_two_members_do_not_overlap() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (BOB, OpenSession(2)),
        (ALICE, ClaimPositions(1, 2, 6)),
        (BOB, ClaimPositions(2, 2, 6)),
        (ALICE, ClaimPositions(1, 9, 6)),
    )
    assert holds(made, ALICE) == [(1, 1), (2, 1), (5, 1)]
    assert holds(made, BOB) == [(3, 1), (4, 1)]
    assert (made.next, made.cursor) == (6, 1)


def test_cursor_after_acknowledgement_is_the_oldest_unsettled_position() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (ALICE, ClaimPositions(1, 4, 9)),
        (ALICE, AckPositions(1, ((1, 2),))),
    )
    assert (made.cursor, holds(made, ALICE)) == (3, [(3, 1), (4, 1)])


def test_nacked_position_is_redelivered_before_new_ones_with_a_higher_attempt() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (BOB, OpenSession(2)),
        (ALICE, ClaimPositions(1, 2, 9)),
        (ALICE, NackPositions(1, ((1, 1),))),
        (BOB, ClaimPositions(2, 2, 9)),
    )
    assert holds(made, BOB) == [(1, 2), (3, 1)]
    assert made.redelivered == 1


def test_position_claimed_in_advance_and_never_delivered_is_no_redelivery() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (ALICE, ClaimPositions(1, 3, 9)),
        (ALICE, CloseSession(1, ((1, 1),))),
        (BOB, OpenSession(2)),
        (BOB, ClaimPositions(2, 3, 9)),
    )
    assert holds(made, BOB) == [(1, 2), (2, 1), (3, 1)]
    assert made.redelivered == 1


def test_position_out_of_attempts_stays_with_its_consumer_which_marks_it_dead() -> None:
    made = play(
        state(max_attempts=1),
        (ALICE, OpenSession(1)),
        (ALICE, ClaimPositions(1, 1, 9)),
        (ALICE, MarkDead(1, 1)),  # not yet
        (ALICE, NackPositions(1, ((1, 1),))),
    )
    assert made.is_exhausted(made.assigned[1])
    play(made, (BOB, OpenSession(2)), (BOB, MarkDead(2, 1)), first=9)  # not its own
    assert (made.dead_count, made.assigned[1]) == (0, Assignment(1, ALICE, 2))
    play(made, (ALICE, MarkDead(1, 1)), first=12)
    assert (made.dead, made.assigned, made.cursor) == ([1], {}, 2)


def test_position_out_of_attempts_of_a_crashed_consumer_stays_out_of_attempts() -> None:
    made = play(
        state(max_attempts=1),
        (ALICE, OpenSession(1)),
        (ALICE, ClaimPositions(1, 1, 9)),
        (BOB, OpenSession(2)),
        (BOB, ExpireSession(ALICE, 1, 3)),
        (BOB, ClaimPositions(2, 1, 9)),
    )
    assert holds(made, BOB) == [(1, 2)]
    assert made.is_exhausted(made.assigned[1])


def test_expiry_after_a_newer_heartbeat_has_no_effect() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (ALICE, ClaimPositions(1, 2, 9)),  # operation 3
        (BOB, OpenSession(2)),
        (ALICE, Heartbeat(1)),
        (BOB, ExpireSession(ALICE, 1, 3)),
    )
    assert holds(made, ALICE) == [(1, 1), (2, 1)]
    play(made, (BOB, ExpireSession(ALICE, 1, 5)), first=7)
    assert (made.assigned, made.returned, made.session(ALICE)) == ({}, {1: 1, 2: 1}, 0)


def test_expiry_of_an_earlier_session_does_not_end_the_present_one() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (ALICE, OpenSession(7)),
        (ALICE, ClaimPositions(7, 1, 9)),
        (BOB, ExpireSession(ALICE, 1, 99)),
    )
    assert holds(made, ALICE) == [(1, 1)]


def test_new_session_returns_the_positions_of_the_previous_one_and_ends_it() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (ALICE, ClaimPositions(1, 2, 9)),
        (ALICE, OpenSession(7)),
        (ALICE, AckPositions(1, ((1, 2),))),
    )
    assert (made.assigned, made.returned) == ({}, {1: 1, 2: 1})


def test_closed_session_returns_undelivered_positions_without_counting_an_attempt() -> None:
    made = play(
        state(),
        (ALICE, OpenSession(1)),
        (ALICE, ClaimPositions(1, 2, 9)),
        (ALICE, CloseSession(1, delivered=((1, 1),))),
    )
    assert (made.returned, made.sessions) == ({1: 1, 2: 0}, {})


def test_operation_of_an_outsider_has_no_effect() -> None:
    made = play(state(), (ALICE, OpenSession(1)), (ALICE, ClaimPositions(1, 2, 9)))
    before = made.snapshot()
    play(
        made,
        (EVE, OpenSession(3)),
        (EVE, ClaimPositions(3, 2, 9)),
        (EVE, ExpireSession(ALICE, 1, 99)),
        (EVE, Configure(SubscriptionSettings(5))),
        (EVE, SkipTo(1, 50)),
        first=4,
    )
    assert made.snapshot() == before


def test_newer_charter_adds_and_removes_members() -> None:
    made = play(state(), (ALICE, OpenSession(1)), (ALICE, ClaimPositions(1, 2, 9)))
    charter = Charter(2, (BOB, EVE), SubscriptionSettings(4))
    made.apply(9, ALICE, Configure(SubscriptionSettings()), charter)  # it does not name her
    assert made.allowed == MEMBERS
    made.apply(10, EVE, Configure(SubscriptionSettings()), charter)
    assert (made.allowed, made.settings.max_attempts, made.returned) == (
        (BOB, EVE),
        4,
        {1: 1, 2: 1},
    )
    made.apply(
        11, BOB, Configure(SubscriptionSettings()), Charter(1, (BOB,), SubscriptionSettings())
    )
    assert made.allowed == (BOB, EVE)


def test_skip_moves_past_positions_that_are_no_longer_retained() -> None:
    made = play(
        state(), (ALICE, OpenSession(1)), (ALICE, SkipTo(1, 50)), (ALICE, ClaimPositions(1, 1, 99))
    )
    assert holds(made, ALICE) == [(50, 1)]
    play(made, (ALICE, SkipTo(1, 7)), first=9)
    assert made.next == 51


# -------------------------------------------------------------------- bounds


def test_claim_beyond_the_bound_is_cut_to_the_bound() -> None:
    made = play(
        state(), (ALICE, OpenSession(1)), *[(ALICE, ClaimPositions(1, MAX_CLAIMED, 9999))] * 3
    )
    assert len(made.assigned) == MAX_CLAIMED


def test_session_beyond_the_bound_replaces_an_idle_one() -> None:
    made = SubscriptionState(1, 1, ("*",), SubscriptionSettings())
    names = [NodeId(f"c{number:03}") for number in range(MAX_SESSIONS)]
    play(made, *((name, OpenSession(1)) for name in names))
    play(made, *((name, ClaimPositions(1, 1, 999)) for name in names[1:]), first=100)
    play(made, (BOB, OpenSession(1)), first=200)
    assert len(made.sessions) == MAX_SESSIONS
    assert (made.session(BOB), made.session(names[0])) == (1, 0)
    play(made, (BOB, ClaimPositions(1, 1, 999)), (ALICE, OpenSession(1)), first=201)
    assert made.session(ALICE) == 0


def test_dead_positions_beyond_the_listed_ones_are_counted() -> None:
    made = play(state(max_attempts=1), (ALICE, OpenSession(1)))
    for position in range(1, MAX_DEAD + 4):
        play(
            made,
            (ALICE, ClaimPositions(1, 1, 999)),
            (ALICE, NackPositions(1, ((position, position),))),
            (ALICE, MarkDead(1, position)),
            first=10 * position,
        )
    assert (made.dead_count, len(made.dead), made.dead[-1]) == (
        MAX_DEAD + 3,
        MAX_DEAD,
        MAX_DEAD + 3,
    )
    assert made.sizes() == {"sessions": 1, "assigned": 0, "returned": 0, "dead": MAX_DEAD}


def test_inconsistent_snapshot_loses_no_position() -> None:
    snapshot = replace(
        state().snapshot(), next=9, assigned=(Assignment(3, "nobody", 2), Assignment(4, EVE, 1))
    )
    made = SubscriptionState.from_snapshot(snapshot)
    assert (made.assigned, made.returned, made.next) == ({}, {3: 2, 4: 1}, 9)


# --------------------------------------------------------------- all at once

AUTHORS = st.sampled_from([ALICE, BOB, EVE])
SESSIONS = st.integers(1, 3)
SOME = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=3).map(tuple)
OPERATIONS = st.one_of(
    st.builds(OpenSession, SESSIONS),
    st.builds(ClaimPositions, SESSIONS, st.integers(1, 6), st.integers(1, 25)),
    st.builds(AckPositions, SESSIONS, SOME),
    st.builds(NackPositions, SESSIONS, SOME),
    st.builds(Heartbeat, SESSIONS),
    st.builds(CloseSession, SESSIONS, SOME),
    st.builds(ExpireSession, AUTHORS, SESSIONS, st.integers(0, 60)),
    st.builds(MarkDead, SESSIONS, st.integers(1, 30)),
)
Log = list[tuple[NodeId, AnyOperation]]
LOGS = st.lists(st.tuples(AUTHORS, OPERATIONS), max_size=60)


@settings(max_examples=200, deadline=None)
@given(LOGS, st.integers(0, 3))
def test_no_position_is_lost_or_assigned_twice(log: Log, max_attempts: int) -> None:
    made = state(max_attempts)
    settled: set[int] = set()
    for position, (author, operation) in enumerate(log, 2):
        before, next_before = made.snapshot(), made.next
        made.apply(position, author, operation)
        present = {*made.assigned, *made.returned}
        assert not made.assigned.keys() & made.returned.keys()
        gone = {claim.position for claim in before.assigned} - present
        gone |= {p for p, _ in before.returned} - present
        # Only its holder settles a position, in its session.
        for lost in gone:
            claim = next(claim for claim in before.assigned if claim.position == lost)
            assert claim.consumer == author
            assert isinstance(operation, AckPositions | MarkDead)
        settled |= gone
        assert not settled & present, "what is settled never comes back"
        assert settled | present == set(range(1, made.next))
        assert made.next >= next_before
        assert all(claim.consumer in made.sessions for claim in made.assigned.values())
        assert all(len(made.assigned_to(name)) <= MAX_CLAIMED for name in made.sessions)
        assert EVE not in made.sessions
        assert made.cursor == min({made.next} | present)


@settings(max_examples=200, deadline=None)
@given(LOGS, st.integers(0, 60), st.integers(0, 10), st.integers(1, 60))
def test_snapshot_and_later_operations_give_the_state_of_the_whole_log(
    log: Log, taken: int, late: int, since: int
) -> None:
    """Wherever a reader begins: a snapshot that it can use leads it to the same state."""
    taken = min(taken, len(log))
    place = min(taken + late, len(log))

    def follower(first: int) -> Follower:
        charter = Charter(1, MEMBERS, SubscriptionSettings(2))
        return Follower("g", None, first, lambda author: author in MEMBERS, lambda data: charter)

    def payloads() -> list[tuple[NodeId, bytes]]:
        entries = [(ALICE, encode(True, "g", Create(0, 1, SubscriptionSettings())))]
        return entries + [(author, encode(True, "g", op)) for author, op in log]

    whole = follower(1)
    written = payloads()
    for position, (author, payload) in enumerate(written[: taken + 1], 1):
        whole.read(position, author, [payload])
    assert whole.state is not None
    snapshot = encode(True, "g", WriteSnapshot(taken + 1, whole.state.snapshot()))
    written.insert(place + 1, (BOB, snapshot))
    one, other = follower(1), follower(since)
    for position, (author, payload) in enumerate(written, 1):
        one.read(position, author, [payload])
        if position >= since:
            other.read(position, author, [payload])
    assert one.state is not None
    if since <= taken + 2 and since <= place + 2:
        assert other.state is not None
    if other.state is not None:
        assert other.state.snapshot() == one.state.snapshot()


@given(st.sets(st.integers(1, 50)))
def test_spans_contain_exactly_the_positions(positions: set[int]) -> None:
    found = spans(positions)
    assert [p for first, last in found for p in range(first, last + 1)] == sorted(positions)
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(found))


@given(st.binary(max_size=60))
def test_payload_that_is_no_operation_is_ignored(data: bytes) -> None:
    made = Follower("g", ALICE, 1, lambda author: True)
    made.read(1, ALICE, [data])
    assert made.state is None or decode(data) is not None


def test_operation_of_another_version_is_ignored() -> None:
    payload = encode(False, "g", OpenSession(1))
    assert decode(payload) is not None
    assert decode(payload.replace(b"\x94\x01", b"\x94\x02", 1)) is None
