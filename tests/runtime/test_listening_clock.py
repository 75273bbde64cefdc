"""The listening clock: a clock that stands still while nobody listens."""

from quorumcast.core.ids import Millis
from quorumcast.runtime.observations import LONGEST_PAUSE_MS, ListeningClock


def test_time_passes_while_somebody_looks_often_enough() -> None:
    clock = ListeningClock()
    for now in range(1000, 3000, LONGEST_PAUSE_MS):
        assert clock.at(Millis(now)) == now
    assert clock.missed_ms == 0


def test_of_a_long_pause_little_was_spent_listening() -> None:
    clock = ListeningClock()
    clock.at(Millis(1000))
    assert clock.at(Millis(9000)) == 1000 + LONGEST_PAUSE_MS
    assert clock.at(Millis(9100)) == 1100 + LONGEST_PAUSE_MS
    assert clock.missed_ms == 8000 - LONGEST_PAUSE_MS


def test_nothing_counts_while_it_is_held() -> None:
    clock = ListeningClock()
    assert clock.hold(Millis(1000)) == 1000
    for now in (1010, 1020, 1100):
        assert clock.at(Millis(now)) == 1000
    assert clock.release(Millis(1200)) == 1000
    assert clock.at(Millis(1210)) == 1010
