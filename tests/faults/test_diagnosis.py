"""Who is named: everybody whom no explanation leaves out, and nobody else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.faults import diagnosis
from quorumcast.faults.diagnosis import Clause, Model, diagnose

BROKERS = tuple(f"broker-{index}" for index in range(1, 8))
CLIENTS = ("alice", "bob", "carol")
FOUR = Model(BROKERS[:4], 1)


def clause(*nodes: str) -> Clause:
    return frozenset(nodes)


def test_single_accuser_names_nobody_and_both_are_disputed() -> None:
    found = diagnose([clause("broker-1", "alice")], FOUR)
    assert found.named == ()
    assert found.disputed == {"broker-1": 0.5, "alice": 0.5}


def test_two_clients_name_a_broker() -> None:
    found = diagnose([clause("broker-1", "alice"), clause("broker-1", "bob")], FOUR)
    assert found.named == ("broker-1",)


def test_f_plus_one_brokers_name_a_client() -> None:
    accusers = [clause("alice", broker) for broker in ("broker-1", "broker-2")]
    assert diagnose(accusers[:1], FOUR).named == ()
    assert diagnose(accusers, FOUR).named == ("alice",)


def test_who_accuses_more_than_can_be_faulty_names_itself() -> None:
    slander = [clause("alice", "broker-1"), clause("alice", "broker-2")]
    assert diagnose(slander, FOUR).named == ("alice",)


def test_publisher_behind_differing_brokers_is_named_and_they_are_not() -> None:
    differing = [clause(broker, "sub", "pub") for broker in ("broker-1", "broker-2")]
    differing += [clause(broker, "sub-2", "pub") for broker in ("broker-1", "broker-2")]
    assert diagnose(differing, FOUR).named == ("pub",)


def test_proof_settles_a_dispute() -> None:
    dispute = clause("broker-1", "broker-2")
    assert diagnose([dispute], FOUR).named == ()
    assert diagnose([dispute, clause("broker-1")], FOUR).named == ("broker-1",)


def test_more_liars_than_the_model_allows_name_nobody() -> None:
    found = diagnose([clause("broker-1"), clause("broker-2")], FOUR)
    assert not found.consistent
    assert found.named == ()


def test_nothing_observed_is_nothing_concluded() -> None:
    found = diagnose([], FOUR)
    assert found.consistent
    assert not found.named
    assert not found.disputed


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Model, frozenset[str], list[Clause]]:
    """A model, who really is faulty, and charges that are all true."""
    f = draw(st.integers(1, 2))
    model = Model(BROKERS[: 3 * f + 1], f, draw(st.integers(0, 2)))
    nodes = (*sorted(model.brokers), *CLIENTS)
    faulty = draw(
        st.sets(st.sampled_from(nodes)).filter(model.allows).map(lambda chosen: frozenset(chosen))
    )
    clauses = draw(
        st.lists(
            st.sets(st.sampled_from(nodes), min_size=1, max_size=4).map(frozenset), max_size=12
        )
    )
    return model, faulty, [one for one in clauses if one & faulty]


@given(worlds())
def test_true_charges_never_name_a_correct_node(
    world: tuple[Model, frozenset[str], list[Clause]],
) -> None:
    model, faulty, clauses = world
    found = diagnose(clauses, model)
    assert found.consistent
    assert set(found.named) <= faulty
    assert all(score < 1 for score in found.disputed.values())


@given(worlds())
def test_named_nodes_are_in_every_explanation(
    world: tuple[Model, frozenset[str], list[Clause]],
) -> None:
    model, _, clauses = world
    found = diagnose(clauses, model)
    assert all(set(found.named) <= explanation for explanation in found.explanations)
    for explanation in found.explanations:
        assert model.allows(explanation)
        assert all(explanation & one for one in clauses)


def test_search_that_takes_too_long_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MAX_STEPS", 1)
    found = diagnose([clause("broker-1", "alice"), clause("broker-1", "bob")], FOUR)
    assert found.named == ()
