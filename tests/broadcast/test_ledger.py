"""The ledger: consecutive numbers, each written once, bounded by count and by bytes."""

from __future__ import annotations

import pytest
from tests.support.cells import B1, B2, B3, bodies, digest, digests

from quorumcast.broadcast.ledger import AppendResult, Ledger, StoredRun
from quorumcast.core.errors import InvariantError
from quorumcast.core.ids import Millis
from quorumcast.core.limits import MAX_RUN, Limits

ORDER = (B1, B2, B3)


def ledger(upto: int = 0, **limits: int) -> Ledger:
    made = Ledger(Limits(**limits))
    for body in bodies(1, upto):
        made.extend([digest(body)], [body])
    return made


def take(into: Ledger, first: int, *run: bytes) -> AppendResult:
    return into.take(first, [digest(body) for body in run], run)


def test_ledger_new_run_is_taken_whole() -> None:
    held = ledger()
    assert take(held, 1, b"p1", b"p2") == AppendResult(1, digests(b"p1", b"p2"))
    assert (held.base, held.next, len(held), held.kept_bytes) == (1, 3, 2, 4)


def test_ledger_overlapping_run_only_its_new_part_is_taken() -> None:
    held = ledger(2)
    assert take(held, 2, b"p2", b"p3") == AppendResult(3, digests(b"p3"))
    assert held.next == 4


def test_ledger_repeated_run_takes_nothing() -> None:
    held = ledger(2)
    assert take(held, 1, b"p1") == AppendResult(3, b"")
    assert held.next == 3


def test_ledger_conflicting_run_is_refused_whole() -> None:
    held = ledger(2)
    assert take(held, 2, b"other", b"p3") == AppendResult(2, conflict=2)
    assert (held.next, held.digest(2), held.digest(3)) == (3, digest(b"p2"), None)


def test_ledger_run_with_a_hole_before_it_breaks_the_invariant() -> None:
    with pytest.raises(InvariantError):
        take(ledger(), 2, b"p2")


def test_ledger_more_publications_than_retained_forgets_the_oldest() -> None:
    held = ledger(10, retained_publications=3)
    assert (held.base, held.next, len(held), held.kept_bytes) == (8, 11, 3, 7)
    assert held.digest(7) is None


def test_ledger_more_bytes_than_retained_forgets_the_oldest() -> None:
    held = ledger(9, retained_bytes=6)
    assert (held.base, len(held), held.kept_bytes) == (7, 3, 6)


def test_ledger_one_body_over_the_byte_limit_is_still_held() -> None:
    held = ledger(1, retained_bytes=1)
    assert len(held) == 1


def test_ledger_correct_replaces_only_what_is_held() -> None:
    held = ledger(2)
    held.correct(2, digest(b"right"), b"right")
    held.correct(3, digest(b"right"), b"right")
    assert (held.digest(2), held.digest(3), held.next) == (digest(b"right"), None, 3)
    assert held.kept_bytes == len(b"p1" + b"right")


def test_ledger_skip_ahead_starts_anew_and_never_goes_back() -> None:
    held = ledger(3)
    held.skip_to(3)
    assert (held.base, held.next) == (1, 4)
    held.skip_to(9)
    assert (held.base, held.next, len(held), held.kept_bytes) == (9, 9, 0, 0)


def test_ledger_digests_of_a_range_need_all_of_it() -> None:
    held = ledger(5, retained_publications=3)
    assert held.digests(3, 3) == digests(b"p3", b"p4", b"p5")
    assert held.digests(2, 2) is None
    assert held.digests(5, 2) is None


def test_ledger_read_is_bounded_by_count_bytes_run_and_end() -> None:
    held = ledger(MAX_RUN + 10)
    assert held.read(1, 2, 100) == StoredRun(1, digests(b"p1", b"p2"), (b"p1", b"p2"))
    assert held.read(1, 9, 5) == StoredRun(1, digests(b"p1", b"p2"), (b"p1", b"p2"))
    assert held.read(MAX_RUN + 10, 9, 100) == StoredRun(
        MAX_RUN + 10, digests(b"p1034"), (b"p1034",)
    )
    whole = held.read(1, 2 * MAX_RUN, 10**9)
    assert whole is not None
    assert len(whole.bodies) == MAX_RUN
    assert held.read(MAX_RUN + 11, 1, 100) is None


def test_ledger_read_gives_one_body_even_if_it_is_too_large() -> None:
    found = ledger(2).read(1, 2, 1)
    assert found is not None
    assert found.bodies == (b"p1",)


def test_ledger_read_below_the_base_starts_at_the_base() -> None:
    found = ledger(5, retained_publications=2).read(1, 10, 100)
    assert found is not None
    assert found.first == 4


def test_ledger_read_ends_where_the_chain_changes() -> None:
    held = ledger(1)
    held.extend((digest(b"p2"),), (b"p2",), ORDER)
    assert held.read(1, 9, 100) == StoredRun(1, digests(b"p1"), (b"p1",))
    assert held.read(2, 9, 100) == StoredRun(2, digests(b"p2"), (b"p2",), ORDER)


def test_ledger_run_repeated_by_another_chain_is_rerouted() -> None:
    held = ledger(2)
    held.take(1, [digest(b"p1"), digest(b"p2")], (b"p1", b"p2"), ORDER)
    found = held.read(1, 9, 100)
    assert found is not None
    assert (found.order, found.bodies) == (ORDER, (b"p1", b"p2"))


def test_ledger_join_of_an_empty_one_begins_where_it_had_got_to() -> None:
    held = ledger()
    assert held.join(3, 7, trusted=True)
    assert (held.base, held.next) == (7, 7)
    assert not ledger().join(1, 1, trusted=True)


def test_ledger_join_of_one_that_fell_behind_follows_a_trusted_publisher() -> None:
    held = ledger(3)
    assert held.join(9, 2, trusted=True)
    assert (held.base, held.next, len(held)) == (9, 9, 0)


def test_ledger_join_of_one_that_fell_behind_keeps_what_it_holds_if_its_publisher_may_lie() -> None:
    held = ledger(3)
    assert not held.left_behind
    assert not held.join(9, 9, trusted=False)
    assert (held.base, held.next, len(held)) == (1, 4, 3)
    assert held.left_behind


def test_ledger_that_begins_later_is_never_written_before_that() -> None:
    held = ledger()
    held.begin_at(5)
    assert held.take(1, [digest(b"other")], (b"other",)).digests == b""
    assert not held.begun
    assert not held.join(1, 1, trusted=False)
    assert (held.base, held.next, held.floor) == (5, 5, 5)


def test_ledger_join_of_one_that_can_be_repeated_to_keeps_what_it_holds() -> None:
    held = ledger(3)
    assert not held.join(4, 9, trusted=True)
    assert (held.base, held.next) == (1, 4)


# ----------------------------------------------------------------------- age


def test_ledger_keeps_a_publication_for_the_span_and_then_lets_go() -> None:
    held = ledger(3)
    held.expire(Millis(0), 800, held.next)
    for body in bodies(4, 2):
        held.extend([digest(body)], [body])
    for now in range(100, 800, 100):
        held.expire(Millis(now), 800, held.next)
    assert held.base == 1
    held.expire(Millis(800), 800, held.next)
    assert (held.base, held.next, held.kept_bytes) == (4, 6, 4)
    held.expire(Millis(900), 800, held.next)
    assert (held.base, held.next, held.kept_bytes) == (6, 6, 0)


def test_ledger_old_publications_that_are_needed_stay_until_they_are_not() -> None:
    held = ledger(3)
    held.expire(Millis(0), 800, 1)
    for now in (800, 1600, 2400):
        held.expire(Millis(now), 800, 3)
    assert held.base == 3
    held.expire(Millis(2401), 800, 4)
    assert held.base == 4


def test_ledger_ages_take_no_more_room_than_a_few_marks() -> None:
    held = ledger(1)
    for now in range(0, 20_000, 10):
        held.expire(Millis(now), 8_000, 1)
        held.extend([digest(b"x")], [b"x"])
    assert len(held._marks) <= 10


def test_ledger_goes_on_after_everything_was_too_old() -> None:
    held = ledger(2)
    held.expire(Millis(0), 1000, held.next)
    held.expire(Millis(1000), 1000, held.next)
    assert (held.base, held.next) == (3, 3)
    assert take(held, 3, b"p3") == AppendResult(3, digests(b"p3"))
    assert held.digest(3) == digest(b"p3")
