"""The state of a named subscription: whatever is written, no position is lost or held twice."""

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
    MAX_MEMBERS,
    Ack,
    AnyOperation,
    Beat,
    Claim,
    Claimed,
    Configure,
    Create,
    Dead,
    Join,
    Leave,
    Nack,
    Release,
    Settings,
    Skip,
    Snapshot,
    decode,
    encode,
)
from quorumcast.named.ranges import spans
from quorumcast.named.state import Charter, State

ALICE, BOB, EVE = NodeId("alice"), NodeId("bob"), NodeId("eve")
MEMBERS = (ALICE, BOB)


def state(max_attempts: int = 0, start: int = 1) -> State:
    return State(1, start, MEMBERS, Settings(max_attempts), epoch=1)


def play(made: State, *entries: tuple[NodeId, AnyOperation], first: int = 2) -> State:
    for position, (author, operation) in enumerate(entries, first):
        made.apply(position, author, operation)
    return made


def holds(made: State, consumer: NodeId) -> list[tuple[int, int]]:
    return [(claim.position, claim.attempt) for claim in made.held_by(consumer)]


# ---------------------------------------------------------------- one by one


def test_claims_of_two_members_do_not_overlap() -> None:
    made = play(
        state(),
        (ALICE, Join(1)),
        (BOB, Join(2)),
        (ALICE, Claim(1, 2, 6)),
        (BOB, Claim(2, 2, 6)),
        (ALICE, Claim(1, 9, 6)),
    )
    assert holds(made, ALICE) == [(1, 1), (2, 1), (5, 1)]
    assert holds(made, BOB) == [(3, 1), (4, 1)]
    assert (made.next, made.cursor) == (6, 1)


def test_acknowledged_positions_move_the_cursor_past_the_oldest_that_is_open() -> None:
    made = play(state(), (ALICE, Join(1)), (ALICE, Claim(1, 4, 9)), (ALICE, Ack(1, ((1, 2),))))
    assert (made.cursor, holds(made, ALICE)) == (3, [(3, 1), (4, 1)])


def test_nacked_position_comes_again_before_new_ones_as_the_next_attempt() -> None:
    made = play(
        state(),
        (ALICE, Join(1)),
        (BOB, Join(2)),
        (ALICE, Claim(1, 2, 9)),
        (ALICE, Nack(1, ((1, 1),))),
        (BOB, Claim(2, 2, 9)),
    )
    assert holds(made, BOB) == [(1, 2), (3, 1)]
    assert made.redelivered == 1


def test_used_up_attempts_stay_with_their_holder_who_gives_them_up() -> None:
    made = play(
        state(max_attempts=1),
        (ALICE, Join(1)),
        (ALICE, Claim(1, 1, 9)),
        (ALICE, Dead(1, 1)),  # not yet
        (ALICE, Nack(1, ((1, 1),))),
    )
    assert made.condemned(made.held[1])
    play(made, (BOB, Join(2)), (BOB, Dead(2, 1)), first=9)  # not its own
    assert (made.dead_count, made.held[1]) == (0, Claimed(1, ALICE, 2))
    play(made, (ALICE, Dead(1, 1)), first=12)
    assert (made.dead, made.held, made.cursor) == ([1], {}, 2)


def test_condemned_position_of_a_dead_holder_is_condemned_for_the_next() -> None:
    made = play(
        state(max_attempts=1),
        (ALICE, Join(1)),
        (ALICE, Claim(1, 1, 9)),
        (BOB, Join(2)),
        (BOB, Release(ALICE, 1, 3)),
        (BOB, Claim(2, 1, 9)),
    )
    assert holds(made, BOB) == [(1, 2)]
    assert made.condemned(made.held[1])


def test_release_loses_against_a_sign_of_life() -> None:
    made = play(
        state(),
        (ALICE, Join(1)),
        (ALICE, Claim(1, 2, 9)),  # operation 3
        (BOB, Join(2)),
        (ALICE, Beat(1)),
        (BOB, Release(ALICE, 1, 3)),
    )
    assert holds(made, ALICE) == [(1, 1), (2, 1)]
    play(made, (BOB, Release(ALICE, 1, 5)), first=7)
    assert (made.held, made.pool, made.session(ALICE)) == ({}, {1: 1, 2: 1}, 0)


def test_release_of_an_earlier_session_does_not_touch_the_next() -> None:
    made = play(
        state(),
        (ALICE, Join(1)),
        (ALICE, Join(7)),
        (ALICE, Claim(7, 1, 9)),
        (BOB, Release(ALICE, 1, 99)),
    )
    assert holds(made, ALICE) == [(1, 1)]


def test_next_session_frees_what_the_last_held_and_the_last_can_do_nothing() -> None:
    made = play(
        state(),
        (ALICE, Join(1)),
        (ALICE, Claim(1, 2, 9)),
        (ALICE, Join(7)),
        (ALICE, Ack(1, ((1, 2),))),
    )
    assert (made.held, made.pool) == ({}, {1: 1, 2: 1})


def test_leaving_gives_back_what_nobody_saw_without_an_attempt() -> None:
    made = play(
        state(), (ALICE, Join(1)), (ALICE, Claim(1, 2, 9)), (ALICE, Leave(1, touched=((1, 1),)))
    )
    assert (made.pool, made.members) == ({1: 1, 2: 0}, {})


def test_outsider_changes_nothing() -> None:
    made = play(state(), (ALICE, Join(1)), (ALICE, Claim(1, 2, 9)))
    before = made.picture()
    play(
        made,
        (EVE, Join(3)),
        (EVE, Claim(3, 2, 9)),
        (EVE, Release(ALICE, 1, 99)),
        (EVE, Configure(Settings(5))),
        (EVE, Skip(1, 50)),
        first=4,
    )
    assert made.picture() == before


def test_newer_charter_admits_and_expels() -> None:
    made = play(state(), (ALICE, Join(1)), (ALICE, Claim(1, 2, 9)))
    charter = Charter(2, (BOB, EVE), Settings(4))
    made.apply(9, ALICE, Configure(Settings()), charter)  # it does not name her
    assert made.allowed == MEMBERS
    made.apply(10, EVE, Configure(Settings()), charter)
    assert (made.allowed, made.settings.max_attempts, made.pool) == ((BOB, EVE), 4, {1: 1, 2: 1})
    made.apply(11, BOB, Configure(Settings()), Charter(1, (BOB,), Settings()))
    assert made.allowed == (BOB, EVE)


def test_skip_leaves_out_what_the_cell_no_longer_holds() -> None:
    made = play(state(), (ALICE, Join(1)), (ALICE, Skip(1, 50)), (ALICE, Claim(1, 1, 99)))
    assert holds(made, ALICE) == [(50, 1)]
    play(made, (ALICE, Skip(1, 7)), first=9)
    assert made.next == 51


# -------------------------------------------------------------------- bounds


def test_claim_beyond_the_bound_takes_what_is_left() -> None:
    made = play(state(), (ALICE, Join(1)), *[(ALICE, Claim(1, MAX_CLAIMED, 9999))] * 3)
    assert len(made.held) == MAX_CLAIMED


def test_member_beyond_the_bound_takes_the_place_of_one_that_holds_nothing() -> None:
    made = State(1, 1, ("*",), Settings())
    names = [NodeId(f"c{number:03}") for number in range(MAX_MEMBERS)]
    play(made, *((name, Join(1)) for name in names))
    play(made, *((name, Claim(1, 1, 999)) for name in names[1:]), first=100)
    play(made, (BOB, Join(1)), first=200)
    assert len(made.members) == MAX_MEMBERS
    assert (made.session(BOB), made.session(names[0])) == (1, 0)
    play(made, (BOB, Claim(1, 1, 999)), (ALICE, Join(1)), first=201)
    assert made.session(ALICE) == 0


def test_dead_positions_are_counted_beyond_those_that_are_named() -> None:
    made = play(state(max_attempts=1), (ALICE, Join(1)))
    for position in range(1, MAX_DEAD + 4):
        play(
            made,
            (ALICE, Claim(1, 1, 999)),
            (ALICE, Nack(1, ((position, position),))),
            (ALICE, Dead(1, position)),
            first=10 * position,
        )
    assert (made.dead_count, len(made.dead), made.dead[-1]) == (
        MAX_DEAD + 3,
        MAX_DEAD,
        MAX_DEAD + 3,
    )
    assert made.sizes() == {"members": 1, "held": 0, "pool": 0, "dead": MAX_DEAD}


def test_picture_that_makes_no_sense_loses_nothing() -> None:
    picture = replace(state().picture(), next=9, held=(Claimed(3, "nobody", 2), Claimed(4, EVE, 1)))
    made = State.restored(picture)
    assert (made.held, made.pool, made.next) == ({}, {3: 2, 4: 1}, 9)


# --------------------------------------------------------------- all at once

AUTHORS = st.sampled_from([ALICE, BOB, EVE])
SESSIONS = st.integers(1, 3)
SOME = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=3).map(tuple)
OPERATIONS = st.one_of(
    st.builds(Join, SESSIONS),
    st.builds(Claim, SESSIONS, st.integers(1, 6), st.integers(1, 25)),
    st.builds(Ack, SESSIONS, SOME),
    st.builds(Nack, SESSIONS, SOME),
    st.builds(Beat, SESSIONS),
    st.builds(Leave, SESSIONS, SOME),
    st.builds(Release, AUTHORS, SESSIONS, st.integers(0, 60)),
    st.builds(Dead, SESSIONS, st.integers(1, 30)),
)
Log = list[tuple[NodeId, AnyOperation]]
LOGS = st.lists(st.tuples(AUTHORS, OPERATIONS), max_size=60)


@settings(max_examples=200, deadline=None)
@given(LOGS, st.integers(0, 3))
def test_no_position_is_lost_or_held_twice(log: Log, max_attempts: int) -> None:
    made = state(max_attempts)
    settled: set[int] = set()
    for position, (author, operation) in enumerate(log, 2):
        before, next_before = made.picture(), made.next
        made.apply(position, author, operation)
        present = {*made.held, *made.pool}
        assert not made.held.keys() & made.pool.keys()
        gone = {claim.position for claim in before.held} - present
        gone |= {p for p, _ in before.pool} - present
        # Only its holder settles a position, in its session.
        for lost in gone:
            claim = next(claim for claim in before.held if claim.position == lost)
            assert claim.consumer == author
            assert isinstance(operation, Ack | Dead)
        settled |= gone
        assert not settled & present, "what is settled never comes back"
        assert settled | present == set(range(1, made.next))
        assert made.next >= next_before
        assert all(claim.consumer in made.members for claim in made.held.values())
        assert all(len(made.held_by(name)) <= MAX_CLAIMED for name in made.members)
        assert EVE not in made.members
        assert made.cursor == min({made.next} | present)


@settings(max_examples=200, deadline=None)
@given(LOGS, st.integers(0, 60), st.integers(0, 10), st.integers(1, 60))
def test_snapshot_and_what_follows_is_the_whole_log(
    log: Log, taken: int, late: int, since: int
) -> None:
    """Wherever a reader begins: a snapshot that it can use leads it to the same state."""
    taken = min(taken, len(log))
    place = min(taken + late, len(log))

    def follower(first: int) -> Follower:
        charter = Charter(1, MEMBERS, Settings(2))
        return Follower("g", None, first, lambda author: author in MEMBERS, lambda data: charter)

    def payloads() -> list[tuple[NodeId, bytes]]:
        entries = [(ALICE, encode(True, "g", Create(0, 1, Settings())))]
        return entries + [(author, encode(True, "g", op)) for author, op in log]

    whole = follower(1)
    written = payloads()
    for position, (author, payload) in enumerate(written[: taken + 1], 1):
        whole.take(position, author, [payload])
    assert whole.state is not None
    snapshot = encode(True, "g", Snapshot(taken + 1, whole.state.picture()))
    written.insert(place + 1, (BOB, snapshot))
    one, other = follower(1), follower(since)
    for position, (author, payload) in enumerate(written, 1):
        one.take(position, author, [payload])
        if position >= since:
            other.take(position, author, [payload])
    assert one.state is not None
    if since <= taken + 2 and since <= place + 2:
        assert other.state is not None
    if other.state is not None:
        assert other.state.picture() == one.state.picture()


@given(st.sets(st.integers(1, 50)))
def test_spans_hold_exactly_the_positions(positions: set[int]) -> None:
    found = spans(positions)
    assert [p for first, last in found for p in range(first, last + 1)] == sorted(positions)
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(found))


@given(st.binary(max_size=60))
def test_what_is_no_operation_is_ignored(data: bytes) -> None:
    made = Follower("g", ALICE, 1, lambda author: True)
    made.take(1, ALICE, [data])
    assert made.state is None or decode(data) is not None


def test_operation_of_another_version_is_ignored() -> None:
    payload = encode(False, "g", Join(1))
    assert decode(payload) is not None
    assert decode(payload.replace(b"\x94\x01", b"\x94\x02", 1)) is None
