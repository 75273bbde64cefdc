"""The limit for delays follows the delays that were measured, between a floor and a cap."""

import pytest

from quorumcast.core.patience import Patience


def after(*delays: int) -> Patience:
    patience = Patience(1_000, 20_000)
    for delay_ms in delays:
        patience.observe(delay_ms)
    return patience


def test_patience_before_any_delay_is_the_floor() -> None:
    assert after().limit_ms == 1_000
    assert not after().exhausted


@pytest.mark.parametrize("delays", [(5,) * 50, (0,) * 50, (100,) * 50])
def test_patience_with_short_delays_stays_at_the_floor(delays: tuple[int, ...]) -> None:
    assert after(*delays).limit_ms == 1_000


def test_patience_with_regular_long_delays_is_hardly_longer_than_they_are() -> None:
    assert 3_000 <= after(*(3_000,) * 60).limit_ms < 3_500


def test_patience_with_irregular_delays_allows_for_their_spread() -> None:
    irregular = after(*(500, 1_500) * 40)
    assert 4_000 < irregular.limit_ms < 6_000


def test_patience_follows_delays_that_double_every_time() -> None:
    """So does the lag of a broker that gets half of the processor time that it needs."""
    patience = after()
    for exponent in range(6):
        assert 250 << exponent < patience.limit_ms, exponent
        patience.observe(250 << exponent)


def test_patience_ends_at_the_cap_and_comes_back() -> None:
    patience = after(60_000)
    assert patience.limit_ms == 20_000
    assert patience.exhausted
    for _ in range(100):
        patience.observe(10)
    assert patience.limit_ms == 1_000
