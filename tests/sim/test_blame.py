"""Complete blame, at length: a broker that misbehaves for seconds is known for it at the end."""

import msgspec
import pytest

from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.sim.cell.known_bad.plans import B2, PUB1, fifo_plan
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.plan import Act, Corruption

pytestmark = pytest.mark.sim

CASES = [
    ("ab", "silent"),
    ("chain+history", "silent"),
    ("brb", "drop"),
    ("ab+history", "drop"),
    ("ab", "alter"),
    ("direct", "alter"),
    ("chain+history", "alter"),
    ("ab", "alter-body"),
    ("brb", "alter-body"),
    ("ab+history", "withhold-bodies"),
    ("ab", "equivocate"),
    ("chain+history", "equivocate"),
    ("brb", "false-checkpoints"),
    ("ab+history", "false-checkpoints"),
]


def misbehave(policy: str, fault: str) -> CellRun:
    work = [Act(200 + 200 * n, "submit", PUB1, ORDERS, 1) for n in range(60)]
    plan = fifo_plan(policy, Corruption(B2, fault), acts=work)(1)
    run = CellRun(msgspec.structs.replace(plan, calm_at_ms=12_500))
    assert run.perform().violations == []
    return run


@pytest.mark.parametrize(("policy", "fault"), CASES)
def test_fault_that_lasts_ends_in_suspicion_or_evidence(policy: str, fault: str) -> None:
    facts = misbehave(policy, fault).world.facts
    assert facts.suspected(B2)
    assert facts.convicted(B2) == (policy in CATALOGUE[fault].provable_under)
