"""Transitions are counted where they belong, states are read from the code, seeds are steered."""

import pytest

from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.coverage.explore import explore
from quorumcast.sim.coverage.states import ProtocolState, known_states, states_of
from quorumcast.sim.coverage.transitions import Transition, harm_of, transitions_of
from quorumcast.sim.systems import perform

pytestmark = pytest.mark.sim


def transition(event: str, effect: str = "", policy: str = "brb") -> Transition:
    return Transition(policy, "4/1", "nothing", "broker", "", event, effect)


def test_known_states_follow_the_code() -> None:
    known = known_states()
    assert ProtocolState("brb", "broker", "takes Echo") in known
    assert ProtocolState("ab", "broker", "takes Echo") not in known
    assert ProtocolState("total", "broker", "restores Voted") in known
    assert ProtocolState("ab+history", "broker", "drops: blocked") in known
    assert ProtocolState("direct", "subscriber", "says DeliverGap") in known
    assert {state.policy for state in known} == set(POLICY_NAMES)


def test_transition_shows_its_states() -> None:
    dropped = transition("Echo/history", "Drop conflict", "ab+history")
    assert ProtocolState("ab+history", "broker", "takes Echo") in states_of(dropped)
    assert ProtocolState("ab+history", "broker", "drops: conflict") in states_of(dropped)
    restored = transition("Restored Vouched")
    assert ProtocolState("brb", "broker", "restores Vouched") in states_of(restored)
    accused = transition("Publish", "Accuse")
    assert ProtocolState("brb", "broker", "says Accuse") in states_of(accused)


def test_probe_run_of_total_order_shows_who_leads() -> None:
    plan = draw(3, "total", "none")
    run, probe = transitions_of(plan)
    assert not run.perform().violations
    proposals = [t for t in probe.seen if t.effect == "Send Propose"]
    assert proposals
    assert all(t.phase.startswith("leads") and t.role == "broker" for t in proposals)
    assert {t.harm for t in probe.seen} == {"nothing"}
    assert {t.size for t in probe.seen} == {f"{plan.brokers}/{plan.f}"}


def test_probe_does_not_change_the_run() -> None:
    plan = draw(11, "ab+history", "alter")
    run, _ = transitions_of(plan)
    assert run.perform().trace_hash == perform(plan).trace_hash
    assert harm_of(plan) == "brokers lie"


def test_explore_counts_what_is_new_and_names_what_is_never_reached() -> None:
    plain = explore(4, policy="brb")
    assert plain.growth == sorted(plain.growth)
    assert plain.growth[-1] == len(plain.transitions)
    assert ProtocolState("brb", "broker", "takes Echo") in plain.reached
    unreached = plain.unreached(["brb"])
    assert unreached
    assert not set(unreached) & plain.reached
    assert {state.policy for state in unreached} == {"brb"}


def test_explore_steered_follows_from_its_first_seed() -> None:
    first = explore(4, 40, policy="ab", steer=True)
    again = explore(4, 40, policy="ab", steer=True)
    assert first.growth == again.growth
    assert first.transitions == again.transitions


def test_explore_steered_prefers_kinds_of_plans_that_were_not_run_yet() -> None:
    plain = explore(8, 40, adversary="none")
    steered = explore(8, 40, adversary="none", steer=True)
    assert len({t.policy for t in plain.transitions}) < len({t.policy for t in steered.transitions})
