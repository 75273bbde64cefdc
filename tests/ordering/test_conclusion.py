"""`conclude`: what the words of n-f brokers make of every instance, and why no decision is lost."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import B1, B2, B3, B4, Cell
from tests.support.ordering import TOTAL, accepted, word, wrote

from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Claim, Signed, StopStatement, canonical
from quorumcast.ordering.consensus import Conclusion
from quorumcast.ordering.leader_change import conclude, read_stop

V, W = b"v" * 32, b"w" * 32
N4, N5, N7 = OrderQuorums(4, 1, True), OrderQuorums(5, 1, True), OrderQuorums(7, 2, True)
CRASH3, CRASH5 = OrderQuorums(3, 1, False), OrderQuorums(5, 2, False)


def words(*claims: Claim | None) -> list[StopStatement]:
    """The words of b1, b2, …, each about one instance or about nothing."""
    return [word(f"b{i}", *([] if c is None else [c])) for i, c in enumerate(claims, 1)]


V0, V1, W0, W1, W2 = (
    accepted(V),
    accepted(V, 1),
    accepted(W),
    accepted(W, 1),
    accepted(W, 2),
)
WROTE_V = wrote(V)

#: Quorums, what was claimed of instance 1, and what follows: a value, b"" or None.
TABLE: list[tuple[str, OrderQuorums, list[Claim | None], bytes | None]] = [
    ("accepted by all", N4, [V0, V0, V0], V),
    ("accepted by one, written by f+1", N4, [V0, WROTE_V, None], V),
    ("accepted by one, written by nobody else", N4, [V0, None, None], None),
    ("the same with one word more", N4, [V0, None, None, None], b""),
    ("written by all, accepted by none", N4, [WROTE_V, WROTE_V, WROTE_V], b""),
    ("nothing heard of", N4, [None, None, None], b""),
    ("the newer regency wins", N4, [V0, W1, wrote(W, 1)], W),
    ("the older regency loses, wherever it stands", N4, [wrote(W, 1), W1, V0], W),
    (
        "an invented newer value fails A2, and the older one A1",
        N4,
        [V0, WROTE_V, accepted(W, 7)],
        None,
    ),
    (
        "an invented newer value fails A2: a fourth word helps",
        N4,
        [V0, V0, V0, accepted(W, 7)],
        V,
    ),
    ("two values in one regency, of which one is a lie", N4, [V0, W0, WROTE_V], None),
    ("two values in one regency, told apart by all four", N4, [V0, W0, WROTE_V, V0], V),
    ("written in an older regency does not prove", N4, [V1, WROTE_V, None], None),
    ("written in a later regency proves", N4, [V1, wrote(V, 3), None], V),
    ("too few words", N4, [V0, V0], None),
    ("n=5: all but one", N5, [V0, V0, None, None], V),
    ("n=5: three alike are no quorum", N5, [V0, V0, None, W1], None),
    ("n=5: empty needs four", N5, [None, None, None, None], b""),
    ("n=5: one accepted, four words", N5, [V0, None, None, None], None),
    ("n=7: accepted by one, written by f+1", N7, [V0, WROTE_V, WROTE_V, None, None], V),
    ("n=7: written by f do not prove", N7, [V0, WROTE_V, None, None, None], None),
    ("n=7: two liars invent a value", N7, [V0, V0, V0, W2, W2], None),
    ("n=7: two liars are outvoted by all", N7, [V0, V0, V0, V0, V0, W2, W2], V),
    ("crash, n=3: one accepted is kept", CRASH3, [V0, None], V),
    ("crash, n=3: nothing", CRASH3, [None, None], b""),
    ("crash, n=3: the newer regency wins", CRASH3, [V0, W1], W),
    ("crash, n=5: one accepted is kept", CRASH5, [None, None, V0], V),
    ("crash, n=5: the newest of three", CRASH5, [V0, W2, V1], W),
]


@pytest.mark.parametrize(
    ("quorums", "claims", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_conclude_follows_the_table(
    quorums: OrderQuorums, claims: list[Claim | None], expected: bytes | None
) -> None:
    found = conclude(quorums, words(*claims))
    if expected is None:
        assert found is None
    else:
        # An instance at the end that is empty is free.
        assert found == Conclusion(0, {1: expected} if expected else {})


@pytest.mark.parametrize("n_f", [(4, 1), (5, 1), (7, 2)])
def test_conclude_any_order_of_the_words_gives_the_same(n_f: tuple[int, int]) -> None:
    quorums = OrderQuorums(*n_f, True)
    said = words(*[V0] * quorums.decide, *[None] * (n_f[0] - quorums.decide))
    assert conclude(quorums, said) == conclude(quorums, said[::-1])


def test_conclude_empty_instance_before_a_kept_one_is_bound_to_be_empty() -> None:
    second = accepted(V, instance=2)
    found = conclude(N4, words(second, second, second))
    assert found == Conclusion(0, {1: b"", 2: V})


def test_conclude_low_end_is_what_2f_plus_1_have_decided() -> None:
    said = [word("b1", decided=9), word("b2", decided=7), word("b3", decided=5)]
    assert conclude(N4, said) == Conclusion(5, {})
    assert conclude(N4, [*said, word("b4", decided=8)]) == Conclusion(7, {})


def test_conclude_low_end_is_a_checkpoint_that_f_plus_1_call_stable() -> None:
    said = [word("b1", decided=9, stable=8), word("b2", decided=9, stable=8), word("b3")]
    assert conclude(N4, said) == Conclusion(8, {})
    said = [word("b1", decided=9, stable=8), word("b2", decided=9), word("b3")]
    assert conclude(N4, said) == Conclusion(0, {})  # one may be lying


def test_conclude_crash_low_end_is_what_f_plus_1_have_decided() -> None:
    """One may be lost for ever, and with it what only it had decided."""
    said = [word("b1", decided=9), word("b2", decided=3)]
    assert conclude(CRASH3, said) == Conclusion(3, {})


def test_conclude_claims_up_to_the_low_end_are_settled_and_not_bound() -> None:
    said = [
        word(f"b{i}", accepted(V, instance=2), accepted(W, instance=3), decided=2)
        for i in (1, 2, 3)
    ]
    assert conclude(N4, said) == Conclusion(2, {3: W})


def test_conclude_invention_far_away_only_costs_more_words() -> None:
    said = words(accepted(V, instance=10**6), None, None)
    assert conclude(N4, said) is None
    assert conclude(N4, words(accepted(V, instance=10**6), None, None, None)) == Conclusion(0, {})


def test_conclude_value_that_brokers_far_ahead_accepted_is_kept() -> None:
    """Brokers may be many windows apart: the last one here has missed a hundred instances."""
    ahead = [word(name, accepted(V, instance=105), decided=104, stable=64) for name in ("b1", "b2")]
    found = conclude(N4, [*ahead, word("b3", decided=10)])
    assert found is not None
    assert (found.low, found.values[105]) == (64, V)


def test_conclude_blind_word_is_not_heard() -> None:
    """Whoever forgot what it did cannot testify that it did nothing."""
    said = [word("b1", V0), word("b2"), word("b3"), word("b4")]
    assert conclude(N4, said) == Conclusion(0, {})
    said[3] = word("b4", blind=1)
    assert conclude(N4, said) is None


def test_conclude_blind_word_counts_for_later_instances() -> None:
    second = accepted(V, instance=2)
    said = [
        word("b1", second, decided=1),
        word("b2", second, decided=1),
        word("b3", decided=1, blind=1),
    ]
    assert conclude(N4, said) == Conclusion(1, {2: V})


def test_conclude_at_the_source_documents_threshold_would_lose_a_decision() -> None:
    """f+1 STRONGs: b1 and the liar b4 accepted v, which the document calls decided.

    The new leader hears b2, b3 and b4, who says nothing now: the instance is empty. With our
    quorum three accepted v, and every three words have one of them.
    """
    silent = words(wrote(V), wrote(V), None)
    assert conclude(N4, silent) == Conclusion(0, {})
    holders = [V0, V0, V0, None]
    for chosen in combinations(holders, 3):
        assert conclude(N4, words(*chosen)) == Conclusion(0, {1: V})


# ------------------------------------------------------- a decided value survives


@st.composite
def histories(
    draw: st.DrawFn, *, crashes: bool = False
) -> tuple[OrderQuorums, list[StopStatement]]:
    """Words after a quorum accepted V in regency r, with f liars, for any n-f or more brokers.

    Correct brokers obey the protocol: in regency r they write V or nothing; before it they may have
    written and accepted other values (W with a quorum of writes at most once per regency); after it
    they write nothing but V, which is what `conclude` guaranteed to them before.
    """
    byzantine = not crashes and draw(st.booleans())
    f = draw(st.integers(1, 2))
    least = 3 * f + 1 if byzantine else 2 * f + 1
    quorums = OrderQuorums(draw(st.integers(least, least + 2)), f, byzantine)
    members = draw(st.permutations(range(quorums.n)))
    liars = set(members[:f]) if byzantine else set()
    regency = draw(st.integers(1, 3))
    # The deciders may include every liar: those say now whatever they like.
    deciders = set(draw(st.permutations(range(quorums.n)))[: quorums.decide])
    said = []
    for index in range(quorums.n):
        if index in liars:
            claims = draw(lies())
        else:
            claims = draw(honest(regency, decider=index in deciders, byzantine=byzantine))
        said.append(word(f"b{index}", *claims, decided=0))
    heard = draw(st.permutations(said))
    return quorums, heard[: draw(st.integers(quorums.n - f, quorums.n))]


@st.composite
def lies(draw: st.DrawFn) -> list[Claim]:
    if not draw(st.booleans()):
        return []
    value = draw(st.sampled_from([V, W, b"x" * 32, b""]))
    written = draw(st.lists(st.tuples(st.sampled_from([V, W, b"x" * 32]), st.integers(0, 6))))
    return [Claim(1, draw(st.integers(0, 6)), value, tuple(written))]


@st.composite
def honest(draw: st.DrawFn, regency: int, *, decider: bool, byzantine: bool) -> list[Claim]:
    written: dict[bytes, int] = {}
    before = draw(st.integers(-1, regency - 1))
    took: tuple[int, bytes] = (0, b"")
    if before >= 0:
        written[W] = before
        if not byzantine or draw(st.booleans()):
            took = (before, W)
    if decider or draw(st.booleans()):
        written[V] = regency
        if decider or not byzantine:
            took = (regency, V)
    after = draw(st.integers(regency, regency + 2))
    if after > regency and draw(st.booleans()):
        written[V] = after
        if not byzantine or draw(st.booleans()):
            took = (after, V)
    return [Claim(1, *took, tuple(written.items()))] if written else []


@given(histories())
def test_conclude_after_a_decision_yields_the_decided_value_or_waits(
    history: tuple[OrderQuorums, list[StopStatement]],
) -> None:
    quorums, said = history
    found = conclude(quorums, said)
    assert found is None or found == Conclusion(0, {1: V})


@given(histories(crashes=True))
def test_conclude_after_crashes_any_n_minus_f_words_suffice(
    history: tuple[OrderQuorums, list[StopStatement]],
) -> None:
    """Liveness: nobody lies, so nobody has to wait for more."""
    quorums, said = history
    assert conclude(quorums, said) == Conclusion(0, {1: V})


def exhaustive(quorums: OrderQuorums, threshold: int) -> list[bytes | None]:
    """What n-f words yield after `threshold` brokers accepted V, whatever the liar b0 says."""
    found: list[bytes | None] = []
    claims: list[Claim | None] = [V0 if i < threshold else wrote(V) for i in range(quorums.n)]
    for lie in (None, V0, accepted(W, 5), wrote(W, 5)):
        said = words(*claims)
        said[0] = word("b1", *([] if lie is None else [lie]))
        for chosen in combinations(said, quorums.responders):
            conclusion = conclude(quorums, chosen)
            found.append(None if conclusion is None else conclusion.values.get(1, b""))
    return found


@pytest.mark.parametrize("quorums", [N4, N5, OrderQuorums(6, 1, True)])
def test_conclude_a_quorum_of_accepts_survives_and_f_plus_1_may_not(quorums: OrderQuorums) -> None:
    assert set(exhaustive(quorums, quorums.decide)) <= {V, None}
    assert b"" in exhaustive(quorums, quorums.f + 1)


# ---------------------------------------------------------------- signed words

CELL = Cell(TOTAL)
MEMBERS = CELL.manifest.broker_ids
BYZANTINE = Protection.BYZANTINE


def signed(**changes: object) -> Signed:
    plain = msgspec.structs.replace(word("b2", V0), **changes)
    return CELL.keyring(B2).identity.sign(canonical(plain))


def test_word_signed_is_read_back() -> None:
    made = word("b2", V0, regency=3, decided=7, stable=4, blind=2, log_id=b"id")
    signature = CELL.keyring(B2).identity.sign(canonical(made))
    assert read_stop(CELL.keyring(B1), MEMBERS, BYZANTINE, signature) == made


@pytest.mark.parametrize(
    "changes",
    [
        {"broker": B3},
        {"cell": "another"},
        {"log": Protection.CRASH},
        {"claims": (V0, V0)},
        {"regency": 0},
        {"decided": -1},
    ],
)
def test_word_that_is_none_is_not_read(changes: dict[str, object]) -> None:
    assert read_stop(CELL.keyring(B1), MEMBERS, BYZANTINE, signed()) is not None
    assert read_stop(CELL.keyring(B1), MEMBERS, BYZANTINE, signed(**changes)) is None


def test_stop_of_a_non_member_or_with_a_forged_signature_is_refused() -> None:
    keyring, good = CELL.keyring(B1), signed()
    assert read_stop(keyring, (B1, B3, B4), BYZANTINE, good) is None
    forged = msgspec.structs.replace(good, signature=bytes(64))
    assert read_stop(keyring, MEMBERS, BYZANTINE, forged) is None
    other = msgspec.structs.replace(good, signer=B3)
    assert read_stop(keyring, MEMBERS, BYZANTINE, other) is None
    assert read_stop(keyring, MEMBERS, BYZANTINE, Signed(B2, b"nonsense", b"")) is None
