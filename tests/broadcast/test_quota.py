"""Retention over the lives of a publisher: the oldest goes first, nothing is miscounted."""

from __future__ import annotations

import random

import pytest
from tests.support.cells import digest

from quorumcast.broadcast.ledger import Ledger, Quota
from quorumcast.core.limits import Limits

LIMITS = Limits(retained_publications=6, retained_bytes=60)


def shelf(quota: Quota, incarnation: int, *bodies: bytes) -> Ledger:
    made = Ledger(LIMITS)
    made.share(quota, incarnation)
    for body in bodies:
        made.extend([digest(body)], [body])
    return made


def span(ledger: Ledger) -> tuple[int, int]:
    return ledger.base, ledger.next


def test_quota_lets_go_of_the_oldest_life_first() -> None:
    quota = Quota(LIMITS)
    old, new = shelf(quota, 2, *(b"x" * 5,) * 4), shelf(quota, 8, *(b"y" * 5,) * 4)
    assert (span(old), span(new), quota.publications) == ((3, 5), (1, 5), 6)
    for _ in range(3):
        new.extend([digest(b"z")], [b"z"])
    assert (span(old), span(new), quota.publications) == ((5, 5), (2, 8), 6)
    assert old.exhausted
    assert quota.emptied


def test_quota_lets_go_of_the_longer_stream_of_one_life() -> None:
    """What is urgent is a stream of its own, and must not empty the other one."""
    quota = Quota(LIMITS)
    usual, urgent = shelf(quota, 2, b"a", b"b"), shelf(quota, 3)
    for _ in range(9):
        urgent.extend([digest(b"!")], [b"!"])
    assert (len(usual), len(urgent)) == (2, 4)


@pytest.mark.parametrize("urgent", [0, 1, 40])
def test_quota_lets_go_of_runs_at_once_beside_another_stream_of_the_life(
    urgent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liar that names the other stream of a life had brokers do so one by one, for each run."""
    quota = Quota(Limits(retained_publications=100))
    usual, other = shelf(quota, 2, *[b"a"] * 100), shelf(quota, 3, *[b"!"] * urgent)
    acts: list[int] = []
    let_go = Ledger.let_go

    def note(ledger: Ledger, count: int) -> None:
        acts.append(count)
        let_go(ledger, count)

    monkeypatch.setattr(Ledger, "let_go", note)
    usual.extend([digest(b"b")] * 50, [b"b"] * 50)
    assert (len(usual), len(other), acts) == (100 - urgent, urgent, [50])


class PlainQuota(Quota):
    """Lets go of one publication after the other."""

    def _surplus(self, ledger: Ledger) -> int:
        return 1


def test_quota_lets_go_of_the_same_whether_at_once_or_one_by_one() -> None:
    draw = random.Random(4)
    for _ in range(200):
        limits = Limits(retained_publications=20, retained_bytes=draw.choice([60, 10_000]))
        quotas = Quota(limits), PlainQuota(limits)
        lives = (2, 3, 4, 8, 9)
        twins = [[shelf(quota, life) for life in lives] for quota in quotas]
        for _ in range(30):
            at, bodies = draw.randrange(5), [bytes(draw.randrange(9))] * draw.choice([1, 3, 30])
            for ledgers in twins:
                ledgers[at].extend([digest(body) for body in bodies], bodies)
            assert [*map(span, twins[0])] == [*map(span, twins[1])]
            assert quotas[0].held_bytes == quotas[1].held_bytes


def test_quota_counts_bytes_over_all_lives() -> None:
    quota = Quota(LIMITS)
    old, new = shelf(quota, 2, b"x" * 30), shelf(quota, 4, b"y" * 40)
    assert (len(old), len(new), quota.held_bytes) == (0, 1, 40)
    new.extend([digest(b"z" * 90)], [b"z" * 90])  # the last one stays, whatever its size
    assert (len(new), quota.held_bytes) == (1, 90)


@pytest.mark.parametrize("way", ["skip", "correct", "prepend", "leave"])
def test_quota_is_the_sum_of_its_ledgers_whatever_happens_to_them(way: str) -> None:
    quota = Quota(LIMITS)
    one, two = shelf(quota, 2), shelf(quota, 4, b"b", b"bb")
    one.join(5, 5, trusted=False)
    one.extend([digest(b"a")], [b"a"])
    match way:
        case "skip":
            one.skip_to(9)
        case "correct":
            one.correct(5, digest(b"aaaa"), b"aaaa")
        case "prepend":
            assert one.prepend([digest(b"p"), digest(b"pp")], (b"p", b"pp"))
            assert not one.prepend([digest(b"q"), digest(b"r")], (b"q", b"r"))
        case _:
            quota.leave(4)
            two = shelf(Quota(LIMITS), 4)
    assert quota.publications == len(one) + len(two)
    assert quota.held_bytes == one.kept_bytes + two.kept_bytes


def test_quota_earlier_lives_give_way_to_what_a_later_one_gets_back() -> None:
    quota = Quota(LIMITS)
    old, new = shelf(quota, 2, b"a", b"b", b"c"), shelf(quota, 4)
    new.skip_to(5)
    new.extend([digest(b"e")], [b"e"])
    assert quota.room_for(4) == (5, 59)
    assert new.prepend([digest(b"c"), digest(b"d"), digest(b"d")], (b"c", b"d", b"d"))
    assert (span(old), span(new), quota.publications) == ((2, 4), (2, 6), 6)
    assert not old.prepend([digest(b"a")], (b"a",))
    assert (span(old), span(new), quota.publications) == ((2, 4), (2, 6), 6)


def test_ledger_that_joined_late_is_not_exhausted_before_it_got_back_the_rest() -> None:
    quota = Quota(LIMITS)
    held = shelf(quota, 2)
    held.join(5, 5, trusted=False)
    assert held.begun
    assert not held.exhausted


def test_quota_with_other_limits_lets_go_with_the_next_publication() -> None:
    quota = Quota(LIMITS)
    held = shelf(quota, 2, *(b"x",) * 6)
    quota.limit(Limits(retained_publications=3))
    assert len(held) == 6
    held.extend([digest(b"y")], [b"y"])
    assert span(held) == (5, 8)


@pytest.mark.parametrize(
    "limits", [Limits(retained_publications=2), Limits(retained_bytes=2)], ids=["count", "bytes"]
)
def test_quota_with_lower_limits_lets_go_of_as_much_as_it_may_at_a_time(limits: Limits) -> None:
    quota = Quota(LIMITS)
    held = shelf(quota, 2, *(b"x",) * 6)
    assert not quota.narrow(limits, 3)
    assert span(held) == (4, 7)
    held.extend([digest(b"y")], [b"y"])
    assert span(held) == (5, 8)  # what is added takes the place of something
    assert quota.narrow(limits, 3)
    assert span(held) == (6, 8)


def test_quota_with_lower_limits_keeps_one_publication_of_any_size() -> None:
    quota = Quota(LIMITS)
    held = shelf(quota, 2, b"long", b"long")
    assert quota.narrow(Limits(retained_bytes=1), 9)
    assert span(held) == (2, 3)


def test_quota_with_lower_limits_still_takes_the_unsettled_that_a_history_may_name() -> None:
    quota = Quota(Limits(retained_publications=9))
    quota.unsettled = 5
    quota.limit(Limits(retained_publications=3))
    assert not quota.refuses(4, 0)
    assert quota.refuses(5, 0)


def test_quota_looks_at_few_lives_for_what_it_lets_go_of() -> None:
    """A publisher of many lives could else hold up its brokers with one run."""
    looks: list[int] = []

    class Watched(Ledger):
        def __len__(self) -> int:
            looks.append(1)
            return super().__len__()

    lives, most = 256, 1024
    limits = Limits(retained_publications=most)
    quota = Quota(limits)
    held = [Watched(limits) for _ in range(lives)]
    for life, ledger in enumerate(held):
        ledger.share(quota, 2 * life)
        for _ in range(most // lives):
            ledger.extend([digest(b"x")], [b"x"])
    looks.clear()
    for _ in range(most):
        held[-1].extend([digest(b"y")], [b"y"])
    assert (len(held[-1]), quota.publications) == (most, most)
    assert len(looks) < 4 * (most + lives)


def test_quota_finds_an_old_life_that_was_empty_and_is_not_any_more() -> None:
    quota = Quota(LIMITS)
    old, new = shelf(quota, 2, b"a"), shelf(quota, 4, *(b"b",) * 6)
    assert (len(old), len(new)) == (0, 6)
    old.extend([digest(b"c")], [b"c"])
    assert (len(old), len(new), quota.publications) == (0, 6, 6)
    new.skip_to(20)
    old.extend([digest(b"d")], [b"d"])
    for _ in range(6):
        new.extend([digest(b"e")], [b"e"])
    assert (span(old), span(new)) == ((4, 4), (20, 26))
