"""What a publisher can do to the past of its stream: nothing, however it lies and however it dies.

Each plan was an attack that succeeded once.
"""

import pytest

from quorumcast.sim.plan import Run
from quorumcast.sim.recovery_variants import leapt, retold

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb"])
def test_brokers_restarted_one_by_one_stand_by_what_they_no_longer_retain(policy: str) -> None:
    run = Run(retold(policy))
    outcome = run.perform()
    assert not [v for v in outcome.violations if v.property in ("Agreement", "Sound statements")]
    first, second = run.world.facts.readers
    ((stream, accepted),) = first.accepted.items()
    assert len(accepted) > 40  # there was something to contradict
    told = dict(accepted)
    assert all(told.get(n, d) == d for n, d in second.accepted.get(stream, []))
    assert second.gaps[stream][0][0] == 1  # and the loss was announced


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "chain+history"])
def test_publisher_that_leaps_ahead_erases_nothing(policy: str) -> None:
    run = Run(leapt(policy))
    outcome = run.perform()
    assert outcome.violations == []
    first, second = run.world.facts.readers
    (stream,) = first.accepted
    assert len(first.accepted[stream]) == 40
    assert second.gaps == {}
    assert second.accepted[stream] == first.accepted[stream]
