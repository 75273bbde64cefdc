"""Plans that break a property, made short: it still breaks, and nothing unfair is asked."""

from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.sim.cell.known_bad.catalogue import VARIANTS
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.kernel.plan import Act
from quorumcast.sim.shrink import (
    breaks,
    decode_plan,
    encode_plan,
    episodes,
    read_plan,
    shrink,
)
from quorumcast.sim.systems import perform, planted

pytestmark = pytest.mark.sim

B1, B2 = NodeId("broker-1"), NodeId("broker-2")


def test_what_belongs_together_is_left_out_together() -> None:
    acts = [
        Act(1, "submit"),
        Act(2, "crash", B1),
        Act(3, "crash", B2),
        Act(4, "restart", B2),
        Act(5, "add", B1),
        Act(6, "restart", B1),
        Act(7, "partition"),
        Act(8, "remove", B2),
        Act(9, "heal"),
        Act(10, "crash", B1),
    ]
    found = [[act.at_ms for act in episode] for episode in episodes(acts)]
    assert found == [[1], [2, 6], [3, 4], [5, 8], [7, 9], [10]]


def test_shrunk_plan_is_shorter_and_breaks_the_same_property() -> None:
    plan = draw(0, "direct", "partition")
    with planted("no-dedup"):
        shrunk = shrink(plan, "Uniqueness")
        assert shrunk is not None
        assert len(shrunk.plan.acts) < len(plan.acts) / 4
        assert breaks(perform(shrunk.plan), "Uniqueness")
        assert breaks(shrunk.outcome, "Uniqueness")
    assert not perform(shrunk.plan).violations


def test_plan_that_breaks_nothing_cannot_be_shrunk() -> None:
    assert shrink(draw(0, "direct", "none"), "Uniqueness") is None


def test_shrinking_ends_when_its_runs_are_spent() -> None:
    with planted("no-dedup"):
        shrunk = shrink(draw(0, "direct", "partition"), "Uniqueness", max_runs=3)
    assert shrunk is not None
    assert shrunk.runs == 3


def test_runs_that_never_come_to_rest_are_tried_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted("no-dedup"):
        plan = draw(0, "direct", "partition")
        steps = perform(plan).steps
        monkeypatch.setattr("quorumcast.sim.shrink.MAX_TOTAL_STEPS", steps + 1)
        shrunk = shrink(plan, "Uniqueness")
    assert shrunk is not None
    assert shrunk.runs == 2


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_plan_is_the_same_after_writing_and_reading(policy: str) -> None:
    for seed in range(20):
        plan = draw(seed, policy)
        assert decode_plan(encode_plan(plan)) == plan


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"seed": 1}')
    with pytest.raises(UsageError, match="is not a plan of the simulator"):
        read_plan(path)
    attack = next(v for v in VARIANTS if v.name == "hearsay").attack(0)
    plans = [v.attack(0) for v in VARIANTS]
    own = next(p for p in plans if any(c.attack is not None for c in p.corruptions))
    with pytest.raises(UsageError, match="cannot be written"):
        encode_plan(own)
    assert decode_plan(encode_plan(attack)) == attack


def test_unknown_variant_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"no variant 'x'; choose one of .*no-dedup"):
        planted("x")
