"""Seeds that once found a bug in the machines, each with a line that says what it was."""

import pytest

from quorumcast.sim.campaign import replay_command
from quorumcast.sim.scenario import run_scenario

pytestmark = pytest.mark.sim

FOUND = [
    # A broker that lost the publisher's SEND and became ready by others' echoes never echoed
    # itself; brokers that lost echoes as well waited for ever (Bracha's step 2 echoes there, too).
    (2, "brb", "equivocate"),
    (36, "brb", "equivocate"),
    # The acknowledgement that gave new credit was lost; the publisher had nothing it might repeat
    # and said nothing, so the broker had no reason to say it again.
    (37, "ab+history", "crash"),
    (151, "ab+history", "crash"),
    # Two liars and their neighbours in the chain took turns at standing aside, for ever.
    (201024, "chain+history", "alter-body"),
]


@pytest.mark.parametrize(("seed", "policy", "adversary"), FOUND)
def test_seed_that_found_a_bug_stays_clean(seed: int, policy: str, adversary: str) -> None:
    outcome = run_scenario(seed, policy, adversary)
    assert outcome.violations == [], replay_command(outcome)
