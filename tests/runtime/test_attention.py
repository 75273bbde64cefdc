"""Attention: a clock that stands still while nobody listens."""

from quorumcast.core.ids import Millis
from quorumcast.runtime.attention import LONGEST_MS, Attention


def test_time_passes_while_somebody_looks_often_enough() -> None:
    attention = Attention()
    for now in range(1000, 3000, LONGEST_MS):
        assert attention.at(Millis(now)) == now
    assert attention.missed_ms == 0


def test_of_a_long_pause_little_was_spent_listening() -> None:
    attention = Attention()
    attention.at(Millis(1000))
    assert attention.at(Millis(9000)) == 1000 + LONGEST_MS
    assert attention.at(Millis(9100)) == 1100 + LONGEST_MS
    assert attention.missed_ms == 8000 - LONGEST_MS


def test_nothing_counts_while_it_is_held() -> None:
    attention = Attention()
    assert attention.hold(Millis(1000)) == 1000
    for now in (1010, 1020, 1100):
        assert attention.at(Millis(now)) == 1000
    assert attention.release(Millis(1200)) == 1000
    assert attention.at(Millis(1210)) == 1010
