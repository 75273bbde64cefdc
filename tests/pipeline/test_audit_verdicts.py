"""Proofs, charges and verdicts on single runs, without Spark."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec
import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, CAROL, Cell

from quorumcast.core.ids import NodeId
from quorumcast.core.statements import Basis, Evidence, EvidenceKind, Signed
from quorumcast.crypto.evidence import Court
from quorumcast.faults.diagnosis import Model
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.audit.charges import Case, Feature, firm_charges
from quorumcast.pipeline.audit.proofs import find_proofs
from quorumcast.pipeline.audit.verdicts import Conclusion, conclude, verdicts
from quorumcast.sim.slander import ACCUSATIONS, forgeries, slander

CELL = Cell(Policy.named("brb"))
MODEL = Model(CELL.manifest.broker_ids, 1)


def statement(broker: NodeId, *bodies: bytes) -> bytes:
    return msgspec.json.encode(CELL.segment(broker, 1, *bodies)[1])


def judged(features: list[Feature], cell: Cell = CELL) -> Conclusion:
    return conclude(Case(cell.manifest, features), MODEL, [])


def noticed(observer: str, accused: str, kind: str, reason: str = "", **more: object) -> Feature:
    role = "broker" if observer.startswith("b") and observer != BOB else "subscriber"
    feature = Feature(observer=observer, role=role, accused=accused, kind=kind, reason=reason)
    return msgspec.structs.replace(feature, **{"channel": "orders", "publisher": ALICE, **more})


# --------------------------------------------------------------------- proofs


def test_statements_that_two_observers_hold_prove_what_neither_could() -> None:
    held = [(BOB, statement(B1, b"one")), (CAROL, statement(B1, b"other"))]
    assert find_proofs([CELL.manifest], [], held[:1]) == []
    (proof,) = find_proofs([CELL.manifest], [], held)
    assert (proof.accused, proof.deed, proof.shown_by) == (B1, "equivocated", (BOB, CAROL))
    assert CELL.court.why_evidence_fails(proof.evidence) is None


def test_broker_that_f_plus_one_others_contradict_is_proven() -> None:
    held = [(BOB, statement(broker, b"truth")) for broker in (B2, B3)]
    lie = (CAROL, statement(B1, b"lie"))
    assert find_proofs([CELL.manifest], [], [held[0], lie]) == []
    (proof,) = find_proofs([CELL.manifest], [], [*held, lie])
    assert (proof.accused, proof.deed) == (B1, "altered")


def test_brokers_of_an_unsettled_channel_may_differ() -> None:
    cell = Cell(Policy.named("ab"))
    held = [
        (BOB, msgspec.json.encode(cell.segment(b, 1, b"truth", basis=Basis.FORWARDED)[1]))
        for b in (B2, B3)
    ]
    held.append((BOB, msgspec.json.encode(cell.segment(B1, 1, b"lie", basis=Basis.FORWARDED)[1])))
    assert find_proofs([cell.manifest], [], held) == []


def test_forged_documents_prove_nothing_and_hide_nothing() -> None:
    forged = forgeries(CELL.keyring(B4), CELL.manifest.epoch, [B1, B2])
    evidence = [(B4, d.data) for d in forged if d.kind == "evidence"]
    statements = [(B4, d.data) for d in forged if d.kind == "statement"]
    assert find_proofs([CELL.manifest], evidence, statements) == []
    real = [(BOB, statement(B3, b"one")), (BOB, statement(B3, b"other"))]
    (proof,) = find_proofs([CELL.manifest], evidence, [*statements, *real])
    assert proof.accused == B3


def test_evidence_is_verified_again_and_not_believed() -> None:
    signed = CELL.segment(B1, 1, b"one")[1]
    claimed = Evidence(kind=EvidenceKind.CONFLICT, accused=B1, against=(signed, signed))
    assert find_proofs([CELL.manifest], [(BOB, msgspec.json.encode(claimed))], []) == []


def test_auditor_that_believes_evidence_would_convict_a_correct_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The known-bad variant: what the test above holds must be able to fail."""
    forged = forgeries(CELL.keyring(B4), CELL.manifest.epoch, [B1])
    monkeypatch.setattr(Court, "why_evidence_fails", lambda court, evidence: None)
    evidence = [(B4, d.data) for d in forged if d.kind == "evidence"]
    assert [p.accused for p in find_proofs([CELL.manifest], evidence, [])] == [B1]


def test_rubbish_among_the_documents_is_passed_over() -> None:
    rubbish = [b"", b"{}", b"\xff\xff", msgspec.json.encode(Signed(B1, b"x", b"y"))]
    assert (
        find_proofs([CELL.manifest], [(BOB, r) for r in rubbish], [(BOB, r) for r in rubbish]) == []
    )


# ----------------------------------------------------------- charges, verdicts


def test_broker_that_two_subscribers_see_dissent_is_suspected() -> None:
    found = judged([noticed(who, B1, "suspect", "dissent") for who in (BOB, CAROL)])
    assert found.named == (B1,)
    (verdict,) = verdicts(found)
    assert (verdict.standing, verdict.deed, verdict.towards) == (
        "suspected",
        "altered",
        (BOB, CAROL),
    )
    assert verdict.score == 1.0


def test_one_witness_leaves_a_dispute_below_the_threshold() -> None:
    found = judged([noticed(BOB, B1, "suspect", "dissent")])
    assert found.named == ()
    assert {(v.node, v.standing) for v in verdicts(found)} == {(B1, "disputed"), (BOB, "disputed")}
    assert all(verdict.score < 1 for verdict in verdicts(found))


def test_dissent_on_an_unsettled_stream_may_be_its_publishers_doing() -> None:
    cell = Cell(Policy.named("ab"))
    features = [noticed(who, B1, "suspect", "dissent") for who in (BOB, CAROL)]
    assert judged(features, cell).named == ()
    features += [noticed(who, B2, "suspect", "dissent") for who in (BOB, CAROL)]
    assert judged(features, cell).named == (ALICE,)


def test_publisher_is_behind_dissent_where_no_other_broker_can_be_faulty() -> None:
    cell = Cell(Policy.named("ab"))
    known = [noticed(who, B1, "contradicts", "itself", message="Ready") for who in (B2, B3)]
    dissent = [noticed(who, B2, "suspect", "dissent") for who in (BOB, CAROL)]
    assert judged(dissent, cell).named == ()
    assert judged([*known, *dissent], cell).named == (ALICE, B1)
    assert judged([*known, dissent[0]], cell).named == (B1,)


@pytest.mark.parametrize("liar", [B4, BOB])
@pytest.mark.parametrize("victims", [(B1,), (B1, B2), (ALICE,), (B1, ALICE)])
def test_false_witness_names_no_correct_node(liar: NodeId, victims: tuple[NodeId, ...]) -> None:
    rng = random.Random(1)
    role = "broker" if liar == B4 else "subscriber"
    rows = slander(rng, liar, role, victims, 1000)
    fields = ("observer", "role", "accused", "kind", "reason", "message", "channel", "count")
    features = [Feature(**{name: getattr(row, name) for name in fields}) for row in rows]
    assert len(features) == len(victims) * len(ACCUSATIONS)
    assert set(judged(features).named) <= {liar}


def test_votes_that_never_come_again_and_again_are_charged_and_a_pause_is_not() -> None:
    def run(failing: range) -> Conclusion:
        features = []
        for who in (BOB, CAROL):
            for slot in range(8):
                for broker in CELL.manifest.broker_ids:
                    kind = "missing" if broker == B1 and slot in failing else "came"
                    features.append(noticed(who, broker, kind, message="Vote", slot=slot, count=10))
        return judged(features)

    assert run(range(1, 8)).named == (B1,)
    assert run(range(2, 4)).named == ()


def test_what_happens_to_all_brokers_is_nobodys_fault() -> None:
    features = [
        noticed(who, broker, "missing", message="Vote", slot=slot, count=10)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
    ]
    assert judged(features).named == ()


def test_once_a_liar_is_known_fewer_accusers_are_enough_for_the_next() -> None:
    cell = Cell(Policy.named("total"))
    known = [noticed(who, B1, "contradicts", "itself", message="Accept") for who in (B2, B3)]
    other = noticed(B2, ALICE, "refused", "bad-run", message="Offer", count=5)
    assert judged([other], cell).named == ()
    assert judged([*known, other], cell).named == (ALICE, B1)


def test_leader_that_accuses_publishers_is_still_given_up() -> None:
    cell = Cell(Policy.named("total"))
    slandered = slander(random.Random(1), B1, "broker", [BOB, CAROL], 1000)
    fields = ("observer", "role", "accused", "kind", "reason", "message", "channel", "count")
    features = [Feature(**{name: getattr(row, name) for name in fields}) for row in slandered]
    features += [noticed(who, B1, "gave-up", "idle", publisher="*") for who in (B2, B3, B4)]
    assert judged(features, cell).named == (B1,)


@pytest.mark.parametrize(("accusers", "named"), [(2, ()), (3, (B1,))])
def test_leader_whom_one_broker_gave_up_in_error_is_not_named_for_what_a_liar_adds(
    accusers: int, named: tuple[str, ...]
) -> None:
    cell = Cell(Policy.named("total"), n=5, f=1)
    others = cell.manifest.broker_ids[1:]
    given_up = [noticed(who, B1, "gave-up", "idle", publisher="*") for who in others[:accusers]]
    assert judged(given_up, cell).named == named


@pytest.mark.parametrize(("count", "named"), [(3, (ALICE, B1)), (2, (ALICE,))])
def test_one_witness_is_enough_for_very_much_if_nobody_else_may_lie(
    count: int, named: tuple[str, ...]
) -> None:
    liar = [noticed(who, ALICE, "contradicts", "signature", message="Offer", count=5)
            for who in (B2, B3)]  # fmt: skip
    votes = [
        noticed(BOB, broker, "missing" if broker == B1 and odd else "came", message="Vote",
                publisher="*", slot=slot, count=count)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for odd in (0, 1)
    ]  # fmt: skip
    assert judged([*liar, *votes], Cell(Policy.named("total"))).named == named


def test_charges_that_fewest_make_give_way_where_not_all_can_be_true() -> None:
    skipped = [noticed(who, B1, "skipped", message="Vote", count=5) for who in (BOB, CAROL, ALICE)]
    skipped += [noticed(who, B2, "skipped", message="Vote", count=5) for who in (BOB, CAROL)]
    assert judged(skipped).named == (B1,)


def test_offers_beyond_the_window_happen_to_correct_publishers_and_too_many_streams_do_not() -> (
    None
):
    def refused(reason: str) -> tuple[str, ...]:
        cell = Cell(Policy.named("total"))
        return judged(
            [noticed(who, ALICE, "refused", reason, message="Offer", count=64) for who in (B1, B2)],
            cell,
        ).named

    assert refused("out-of-window") == ()
    assert refused("over-limit") == (ALICE,)


def test_history_that_comes_later_was_not_withheld() -> None:
    missing = [
        noticed(who, ALICE, "missing", message="History", count=9, until_ms=100) for who in (B1, B2)
    ]
    came = [noticed(who, ALICE, "came", message="History", until_ms=200) for who in (B1, B2)]
    assert judged(missing).named == (ALICE,)
    assert judged([*missing, *came]).named == ()


def test_broker_at_which_the_chains_of_two_publishers_break_is_suspected() -> None:
    cell = Cell(Policy.named("chain"))
    breaks = {B2: 4, B3: 2, B4: 2}
    features = [
        noticed(who, broker, "suspect", "broken-chain", publisher=who, count=count)
        for who in (ALICE, BOB)
        for broker, count in breaks.items()
    ]
    assert judged(features, cell).named == (B2,)
    assert judged([f for f in features if f.accused != B2], cell).named == ()


@pytest.mark.parametrize(("often", "named"), [((4, 2), (B2,)), ((2, 2), ())])
def test_chains_of_one_publisher_that_break_seldom_count_if_those_of_another_break_there(
    often: tuple[int, int], named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B2, "suspect", "broken-chain", publisher=who, count=count)
        for who, count in zip((ALICE, BOB), often, strict=True)
    ]
    assert judged(features, Cell(Policy.named("chain"))).named == named


CHAIN = Cell(Policy.named("chain"))


def broken(publisher: str, *breaks: str, t_ms: int = 100) -> list[Feature]:
    """Chains broke at these, each named as the culprit among several."""
    return [
        noticed(publisher, name.rstrip("?"), "suspect", "broken-chain", message=among,
                publisher=publisher, t_ms=t_ms, until_ms=t_ms)
        for among in breaks
        for name in among.split()[-2:]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        ((f"{B1} {B2}?", f"{B1} {B3} {B4}?"), (B1,)),
        ((f"{B2} {B1}", f"{B3} {B1}"), (B1,)),  # nobody can hand it anything
        ((f"{B2} {B1}", f"{B1} {B3}?"), (B1,)),
        ((f"{B1} {B2}?",), ()),  # b2 may stand still
        ((f"{B1} {B2}?", f"{B3} {B1}?"), ()),  # or b1
        ((f"{B2} {B1}?", f"{B3} {B1}?"), ()),
        ((f"{B1}? {B2}", f"{B1}? {B3}"), ()),  # here, too
        ((f"{B1} {B2}?", f"{B1} {B3}?", f"{B3} {B4}?"), ()),  # more than f, or the weather
        (("", f"{B1} {B2}?", f"{B1} mallory?"), ()),
    ],
)
def test_who_keeps_what_it_takes_from_whoever_comes_next_breaks_chains(
    breaks: tuple[str, ...], named: tuple[str, ...]
) -> None:
    features = [f for who in (ALICE, BOB) for f in broken(who, *breaks)]
    assert judged(features, CHAIN).named == named
    assert judged(broken(ALICE, *breaks), CHAIN).named == (), "a publisher may lie"


@pytest.mark.parametrize(
    ("observer", "accused", "reason", "at", "named"),
    [
        (B2, B1, "down", 90, ()),
        (B2, B1, "down", 110, (B1,)),  # later
        (B1, B2, "down", 90, (B1,)),  # so says who is to blame
        (B2, B1, "lost", 90, ()),
        (B2, B1, "up", 90, (B1,)),
    ],
)
def test_chain_whose_links_fail_breaks_by_itself(
    observer: str, accused: str, reason: str, at: int, named: tuple[str, ...]
) -> None:
    features = [f for who in (ALICE, BOB) for f in broken(who, f"{B1} {B2}?", f"{B1} {B3}?")]
    features.append(noticed(observer, accused, "link", reason, t_ms=at, until_ms=at))
    assert judged(features, CHAIN).named == named


@pytest.mark.parametrize(
    ("heard", "down", "ended", "named"),
    [(90, 5000, 2000, (B1,)), (300, 5000, 2000, ()), (90, 500, 2000, ()), (90, 5000, 900, ())],
)
def test_head_of_a_chain_that_is_never_heard_again_has_fallen_silent(
    heard: int, down: int, ended: int, named: tuple[str, ...]
) -> None:
    features = []
    for who in (ALICE, BOB):
        features += broken(who, f"{B1}?")
        features += [
            noticed(who, B1, "heard", message="Ack", t_ms=heard, until_ms=heard),
            noticed(who, B2, "heard", message="Ack", t_ms=ended, until_ms=ended),
        ]
        if down < ended:
            features.append(noticed(who, B1, "link", "down", t_ms=down, until_ms=down))
    assert judged(features, CHAIN).named == named


@pytest.mark.parametrize(("heard", "named"), [(90, (B1,)), (150, ())])
def test_who_is_in_every_break_and_never_heard_again_has_fallen_silent(
    heard: int, named: tuple[str, ...]
) -> None:
    features = []
    for who in (ALICE, BOB):
        features += broken(who, f"{B1}? {B2}?", f"{B1}? {B3}?")
        features += [
            noticed(who, B1, "heard", message="Ack", t_ms=heard, until_ms=heard),
            noticed(who, B2, "heard", message="Ack", t_ms=2000, until_ms=2000),
        ]
    assert judged(features, CHAIN).named == named


@pytest.mark.parametrize(
    ("reason", "count", "answered", "named"),
    [
        ("", 2, False, (B1,)),
        ("", 4, True, ()),  # it stood still for a while
        ("mended", 2, False, ()),
        ("mended", 3, False, (B1,)),
    ],
)
def test_who_never_takes_note_of_a_stream_does_not_answer(
    reason: str, count: int, answered: bool, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "unanswered", reason, message="Open", count=count) for who in (ALICE, BOB)
    ]
    if answered:
        features += [noticed(who, B1, "answered", message="Open") for who in (ALICE, BOB)]
    assert judged(features, CHAIN).named == named


@pytest.mark.parametrize(
    ("message", "reason", "heard", "ended", "named"),
    [
        ("Subscribe", "again", 90, 2000, (B1,)),
        ("Subscribe", "", 90, 2000, ()),  # a single request may have got lost
        ("Subscribe", "again", 300, 2000, ()),  # it spoke later, and did not want to answer once
        ("Subscribe", "again", 90, 900, ()),  # or stands still
        ("Attest", "again", 90, 2000, ()),  # who is not on the chain has nothing to attest
    ],
)
def test_who_is_asked_again_and_never_heard_again_has_fallen_silent(
    message: str, reason: str, heard: int, ended: int, named: tuple[str, ...]
) -> None:
    features = []
    for who in (BOB, CAROL):
        features += [
            noticed(who, B1, "answered", message=message),
            noticed(who, B1, "heard", message="Positions", t_ms=heard, until_ms=heard),
            noticed(who, B1, "unanswered", reason, message=message, t_ms=100, until_ms=100),
            noticed(who, B2, "heard", message="Vote", t_ms=ended, until_ms=ended),
        ]
    assert judged(features, CHAIN).named == named


def test_observer_that_makes_up_an_early_row_keeps_nobody_else_from_charging() -> None:
    features = [noticed(B3, B2, "heard", message="Taken", t_ms=-(10**6), until_ms=0)]
    for who in (ALICE, BOB):
        features += broken(who, f"{B1}?")
        features.append(noticed(who, B2, "heard", message="Ack", t_ms=2000, until_ms=2000))
    assert judged(features, CHAIN).named == (B1,)


def test_what_is_missing_where_packets_got_lost_takes_more_than_one_accuser() -> None:
    def owing(reason: str, *accusers: str) -> tuple[str, ...]:
        liar = [noticed(who, B1, "contradicts", "itself", message="Ready") for who in (B2, B3)]
        owed = [
            noticed(who, ALICE, "missing", reason, message="Publish", count=3, slot=slot)
            for who in accusers
            for slot in (0, 1)
        ]
        return judged([*liar, *owed]).named

    assert owing("", B2) == (ALICE, B1)
    assert owing("mended", B2) == (B1,)
    assert owing("mended", B2, B3) == (ALICE, B1)


@pytest.mark.parametrize(("slots", "heard"), [((0,), 10), ((0, 1), 301)])
def test_little_that_is_missing_where_packets_get_lost_is_no_charge(
    slots: tuple[int, ...], heard: int
) -> None:
    features = [
        noticed(who, ALICE, "missing", "mended", message="Offer", count=3, slot=slot)
        for who in (B2, B3, B4)
        for slot in slots
    ]
    features += [noticed(who, ALICE, "heard", message="Offer", count=heard) for who in (B2, B3, B4)]
    assert judged(features).charges == ()


@pytest.mark.parametrize(
    ("request_", "reason", "count", "named"),
    [
        ("Subscribe", "", 1, ()),
        ("Subscribe", "", 2, (B1,)),
        ("Subscribe", "again", 1, (B1,)),
        ("Subscribe", "mended", 1, ()),
        ("Subscribe", "mended", 5, (B1,)),
        ("Survey", "mended", 1, ()),
        ("Survey", "mended", 2, (B1,)),
    ],
)
def test_request_that_may_have_got_lost_is_not_left_unanswered(
    request_: str, reason: str, count: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "unanswered", reason, message=request_, count=count)
        for who in (BOB, CAROL)
    ]
    assert judged(features).named == named
    answered = [noticed(who, B1, "answered", message="Attest") for who in (BOB, CAROL)]
    assert count >= 3 or judged([*features, *answered]).named == ()


def test_broker_of_a_lying_publisher_may_vote_twice_where_that_is_not_settled() -> None:
    def voted_twice(policy: str) -> list[frozenset[str]]:
        twice = noticed(BOB, B1, "suspect", "equivocation", message="Vote")
        return [charge.clause for charge in judged([twice], Cell(Policy.named(policy))).charges]

    assert voted_twice("ab+history") == [{ALICE, B1, BOB}]
    assert voted_twice("brb") == [{B1, BOB}]


@pytest.mark.parametrize(
    ("policy", "count", "named"), [("ab", 2, (B1,)), ("ab", 1, ()), ("ab+history", 2, ())]
)
def test_no_publisher_makes_a_broker_vote_twice_that_has_no_histories_to_go_by(
    policy: str, count: int, named: tuple[str, ...]
) -> None:
    twice = [
        noticed(who, B1, "suspect", "equivocation", message="Vote", count=count)
        for who in (BOB, CAROL)
    ]
    assert judged(twice, Cell(Policy.named(policy))).named == named


def test_publisher_is_not_blamed_for_being_late_alone() -> None:
    """On a busy machine its offer reaches a broker through others first."""
    late = [
        noticed(who, ALICE, "came", message="Offer", bucket=160, count=50, slot=slot)
        for who in (B1, B2, B3)
        for slot in range(8)
    ]
    assert judged(late, Cell(Policy.named("total"))).named == ()


def test_no_publisher_makes_a_leader_leave_numbers_out() -> None:
    def left_out(message: str) -> tuple[str, ...]:
        features = [
            noticed(who, B1, "skipped", message=message, publisher="*", count=3)
            for who in (B2, B3, B4)
        ]
        features += [noticed(B1, ALICE, "missing", message="Offer", count=5)]
        return judged(features, Cell(Policy.named("total"))).named

    assert left_out("Propose") == (B1,)
    assert left_out("Vote") == ()


@pytest.mark.parametrize(("witnesses", "named"), [((B1, B2, B3), (ALICE,)), ((B1, B2), ())])
def test_number_that_a_publisher_leaves_out_is_missed_by_all_brokers(
    witnesses: tuple[str, ...], named: tuple[str, ...]
) -> None:
    features = [noticed(who, ALICE, "skipped", message="Publish") for who in witnesses]
    assert judged(features, Cell(Policy.named("ab+history"))).named == named


@pytest.mark.parametrize(
    ("parts", "named"),
    [({BOB: (0, 2, 4, 6), CAROL: (1, 3, 5, 6), ALICE: range(8)}, (B1,)),
     ({BOB: (0, 1, 2, 3), CAROL: (0, 1, 2, 3), ALICE: ()}, ())],
    ids=["now and then, and several at any time", "once for a while"],
)  # fmt: skip
def test_who_leaves_things_out_now_and_then_is_found_out_by_several_together(
    parts: dict[str, Collection[int]], named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, broker, "missing" if gone else "came", message="Vote", slot=slot, count=2)
        for who in (ALICE, BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for gone in ((False, True) if broker == B1 and slot in parts[who] else (False,))
    ]
    assert judged(features).named == named


def test_no_publisher_keeps_a_broker_from_voting_for_what_is_ordered() -> None:
    features = [
        noticed(who, broker, "missing" if broker == B1 and odd else "came", message="Vote",
                publisher="*", slot=slot, count=3)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for odd in (0, 1)
    ]  # fmt: skip
    blame = noticed(B1, ALICE, "missing", "mended", message="Offer", count=10)
    assert judged([*features, blame], Cell(Policy.named("total"))).named == (B1,)


@pytest.mark.parametrize(
    ("counts", "named"), [((8, 7), (ALICE, B1)), ((8, 6), (B1,)), ((20,), (B1,))]
)
def test_one_witness_is_enough_for_many_offers_that_never_came_if_nobody_else_may_lie(
    counts: tuple[int, ...], named: tuple[str, ...]
) -> None:
    liar = [noticed(who, B1, "contradicts", "itself", message="Vote") for who in (BOB, CAROL)]
    owed = [
        noticed(B2, ALICE, "missing", "mended", message="Offer", count=count, slot=slot)
        for slot, count in enumerate(counts)
    ]
    others = noticed(B2, ALICE, "heard", message="Offer", count=50)
    assert judged([*liar, *owed, others], Cell(Policy.named("total"))).named == named


@pytest.mark.parametrize(
    ("kind", "reason", "message", "count"),
    [
        ("backwards", "", "Ack", 1),
        ("backwards", "decided", "Standing", 1),
        ("backwards", "synced", "Standing", 1),
        ("refused", "unexpected-message", "Taken", 1),
    ],
)
def test_what_correct_brokers_never_do_is_charged_however_seldom(
    kind: str, reason: str, message: str, count: int
) -> None:
    features = [noticed(who, B1, kind, reason, message=message, count=count) for who in (B2, B3)]
    assert judged(features).named == (B1,)


@pytest.mark.parametrize(("slots", "named"), [((0, 3), (B1,)), ((3, 3), ())])
def test_contents_that_lack_once_are_no_charge_however_many(
    slots: tuple[int, int], named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "missing", message="Contents", count=4, slot=slot)
        for who in (BOB, CAROL)
        for slot in slots
    ]
    features += [noticed(who, B1, "came", message="Contents", count=90) for who in (BOB, CAROL)]
    assert judged(features).named == named


@pytest.mark.parametrize(("came", "count", "named"), [(9, 4, (B1,)), (9, 3, ()), (40, 4, ())])
def test_contents_that_lack_are_a_charge_at_once_if_they_are_many_of_those_that_are_due(
    came: int, count: int, named: tuple[str, ...]
) -> None:
    features = [
        feature
        for who in (BOB, CAROL)
        for feature in (
            noticed(who, B1, "missing", message="Contents", count=count),
            noticed(who, B1, "came", message="Contents", count=came),
        )
    ]
    assert judged(features).named == named


def test_who_asks_one_broker_for_what_only_others_were_shown_does_not_flood() -> None:
    # b1 lies, and so b2, which was not shown the stream, is believed.
    liar = [noticed(who, B1, "contradicts", "itself", message="Vote") for who in (BOB, CAROL)]
    asked = [
        noticed(who, BOB, "refused", "unknown-stream", message="Pull", count=9) for who in (B2, B3)
    ]
    assert judged([*liar, asked[0]]).named == (B1,)
    assert judged([*liar, *asked]).named == (B1, BOB)


@pytest.mark.parametrize(("crowded", "named"), [((), (BOB,)), ((B1, B2), ())])
def test_who_has_too_many_streams_cannot_say_that_others_ask_for_none(
    crowded: tuple[str, ...], named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, BOB, "refused", "unknown-stream", message="Pull", count=9) for who in (B1, B2)
    ]
    features += [
        noticed(who, ALICE, "refused", "unknown-stream", message="Open") for who in crowded
    ]
    assert judged(features).named == named


@pytest.mark.parametrize(("count", "charged"), [(1, False), (2, True)])
def test_what_is_out_of_place_once_and_at_one_node_is_no_charge(count: int, charged: bool) -> None:
    odd = noticed(BOB, B1, "refused", "unexpected-message", message="Taken", count=count)
    assert bool(firm_charges(Case(CELL.manifest, [odd]))) is charged


def test_what_several_rules_say_in_the_same_words_is_counted_once() -> None:
    features = [
        noticed(who, B1, "refused", "unexpected-message", message="Taken", count=2)
        for who in (B2, B3)
    ]
    assert [verdict.count for verdict in verdicts(judged(features))] == [4]
    features = [
        noticed(who, B1, "missing", reason, message="Offer", count=count, publisher=publisher)
        for who in (B2, B3, B4)
        for publisher, reason, count in ((ALICE, "", 3), (CAROL, "mended", 12))
    ]
    assert [verdict.count for verdict in verdicts(judged(features))] == [45]


def test_answer_that_comes_twice_because_it_was_asked_for_twice_is_nobodys_fault() -> None:
    features = [
        noticed(who, B1, "refused", "unexpected-message", message="Positions", count=2)
        for who in (B2, B3, B4)
    ]
    assert judged(features).named == ()


def test_publisher_is_behind_what_is_settled_only_if_somebody_has_noticed_that_it_lies() -> None:
    cell = Cell(Policy.named("total"))
    features = [noticed(who, B1, "missing", message="Propose", count=2) for who in (B2, B3, B4)]
    assert judged(features, cell).named == (B1,)
    doubt = noticed(B4, ALICE, "missing", message="Offer")
    assert judged([*features, doubt], cell).named == ()
    lost = noticed(B4, ALICE, "missing", "mended", message="Offer")
    assert judged([*features, lost], cell).named == (B1,), "packets get lost of correct ones, too"


def test_few_echoes_that_brokers_miss_are_charged_unless_the_publisher_is_doubtful() -> None:
    def unsaid(message: str, count: int = 2) -> list[Feature]:
        return [noticed(who, B1, "missing", message=message, count=count) for who in (B2, B3)]

    doubt = noticed(B1, ALICE, "missing", message="Publish", count=5)
    assert judged(unsaid("Echo")).named == (B1,)
    assert judged([*unsaid("Echo"), doubt]).named == ()
    assert judged([*unsaid("Ready"), doubt]).named == (B1,)
    lies = [
        noticed(who, ALICE, "refused", "bad-run", message="Publish", count=5) for who in (B2, B3)
    ]
    # Once enough are ready all are, whatever the publisher does …
    assert judged([*unsaid("Ready"), *lies]).named == (ALICE, B1)
    once = msgspec.structs.replace(doubt, observer=B4, count=1)
    assert judged([*unsaid("Ready"), once]).named == (B1,)
    # … unless it has opened so many streams that this one had to go.
    flood = noticed(B4, ALICE, "refused", "unknown-stream", message="Open")
    assert judged([*unsaid("Ready"), flood]).charges == ()
    assert judged([*unsaid("Echo"), *lies]).named == (ALICE,)
    assert judged(unsaid("Ready", 1)).charges == ()
    still = [msgspec.structs.replace(f, reason="mute") for f in unsaid("Ready")]
    assert judged(still).charges == ()


def test_publisher_that_never_offers_runs_at_several_times_is_charged_whatever_gets_lost() -> None:
    total = Cell(Policy.named("total"))
    features = [
        noticed(who, ALICE, "missing", "mended", message="Offer", count=8, slot=slot)
        for slot in (0, 1)
        for who in (B2, B3)
    ]
    heard = [noticed(who, ALICE, "heard", message="Offer") for who in (B2, B3)]
    assert judged([*features, *heard], total).named == (ALICE,)
    assert judged([*features[:2], *heard], total).named == (), "lost at once"
    liar = [noticed(who, B1, "contradicts", "itself", message="Accept") for who in (B2, B3)]
    assert judged([*liar, features[0], *heard], total).named == (B1,)
    # Not everything gets lost: one witness of nothing at all is enough where nobody else may lie.
    assert judged([*liar, features[0]], total).named == (ALICE, B1)


def accepts_without_b4(channel: str) -> list[Feature]:
    """What brokers said of instances that all but one of them accepted."""
    return [
        noticed(
            who, broker, kind, message="Accept", slot=slot, count=10, publisher="*",
            channel=channel,
        )
        for who in (B1, B2, B3)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for kind in ("missing" if broker == B4 else "came",)
        if who != broker
    ]  # fmt: skip


@pytest.mark.parametrize(("unshown", "named"), [(4, (B4,)), (5, ())])
def test_broker_that_a_leader_left_out_need_not_accept_what_it_was_not_shown(
    unshown: int, named: tuple[str, ...]
) -> None:
    features = accepts_without_b4("*crash")
    leader, client = (
        noticed(B4, who, "missing", "unshown", message="Propose", count=unshown)
        for who in (B1, ALICE)
    )
    assert judged([*features, client], Cell(Policy.named("total"))).named == (B4,)
    features.append(leader)
    assert judged(features, Cell(Policy.named("total"))).named == (B4,), "b1 has led nobody"
    features.append(noticed(B2, B1, "heard", message="Propose", count=9))
    assert judged(features, Cell(Policy.named("total"))).named == named
    # Where brokers lie, who sees that enough others write it accepts what it was not shown.
    others = [msgspec.structs.replace(f, channel="*byzantine") for f in features]
    assert judged(others, Cell(Policy.named("total"))).named == (B4,)


def test_broker_that_asks_what_was_decided_need_not_accept_it() -> None:
    """Because a leader told it something else, or because it is far away and fell behind."""
    total = Cell(Policy.named("total"))
    silent = accepts_without_b4("*byzantine")
    asks = noticed(B2, B4, "heard", message="LogQuery", count=9)
    assert judged([*silent, asks], total).named == ()
    assert judged(silent, total).named == (B4,)
    votes = [msgspec.structs.replace(f, message="Vote", channel="orders") for f in silent]
    assert judged([*votes, asks], total).named == (B4,)


def test_broker_that_a_leader_left_out_still_votes_for_what_it_fetched() -> None:
    features = [
        noticed(who, broker, kind, message="Vote", slot=slot, count=10, publisher="*")
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for kind in ("missing" if broker == B4 else "came",)
    ]
    features.append(noticed(B4, B1, "missing", "unshown", message="Propose", count=9))
    assert judged(features, Cell(Policy.named("total"))).named == (B4,)


def test_leader_that_proposes_nothing_is_charged_by_whoever_sees_it() -> None:
    features = [
        noticed(who, B1, "passes-over", "hollow", message="Propose", count=2) for who in (B2, B3)
    ]
    assert judged(features, Cell(Policy.named("total"))).named == (B1,)
    assert judged(features[:1], Cell(Policy.named("total"))).named == ()


@pytest.mark.parametrize(
    ("reason", "count", "named"), [("mended", 2, ()), ("mended", 3, (B1,)), ("", 2, (B1,))]
)
def test_proposals_that_nobody_hands_over_are_charged_the_more_of_them_the_more_gets_lost(
    reason: str, count: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "missing", reason, message="Propose", count=count) for who in (B2, B3)
    ]
    assert judged(features, Cell(Policy.named("total"))).named == named


@pytest.mark.parametrize(("count", "named"), [(1, ()), (2, (B1,))])
def test_proposals_that_nobody_hands_over_are_not_the_fault_of_several_publishers(
    count: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "missing", "mended", message="Propose", publisher=publisher, count=count)
        for who in (B2, B3)
        for publisher in (ALICE, BOB)
    ]
    assert judged(features, Cell(Policy.named("total"))).named == named


@pytest.mark.parametrize(("asked", "named"), [("LogQuery", (B4,)), ("ChunkQuery", ())])
def test_who_takes_the_state_of_others_says_nothing_of_what_lies_before(
    asked: str, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, broker, kind, message="Checkpoint", slot=slot, count=10, publisher="*")
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for kind in ("missing" if broker == B4 else "came",)
    ]
    features.append(noticed(B2, B4, "heard", message=asked, publisher=""))
    assert judged(features, Cell(Policy.named("total"))).named == named


@pytest.mark.parametrize(("jumps", "named"), [(1, (B4,)), (2, ())])
def test_who_takes_the_state_of_others_goes_on_where_they_are(
    jumps: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B4, "skipped", message="Vote", count=4, publisher="*") for who in (BOB, CAROL)
    ]
    features.append(noticed(B2, B4, "heard", message="ChunkQuery", count=jumps, publisher=""))
    assert judged(features, Cell(Policy.named("total"))).named == named


def test_who_passes_on_the_gaps_of_the_one_before_it_has_not_made_them() -> None:
    """Seed 2000400: neither it nor the publisher is to blame for what the head of a chain drops."""
    chain = Cell(Policy.named("chain"))
    gaps = [noticed(who, B3, "skipped", message="ChainRun", count=7) for who in (B2, B4)]
    seen = [noticed(who, B1, "skipped", message="ChainRun", count=14) for who in (B2, B3, B4)]
    known = [noticed(who, B1, "refused", "wrong-sender", count=3) for who in (BOB, CAROL)]
    assert judged([*gaps, *known], chain).named == (ALICE, B1)
    assert judged([*gaps, *seen, *known], chain).named == (B1,)


@pytest.mark.parametrize(("witnesses", "named"), [((B2,), (B1,)), ((B2, B3), (ALICE, B1))])
def test_histories_that_one_broker_alone_misses_are_no_charge(
    witnesses: tuple[NodeId, ...], named: tuple[str, ...]
) -> None:
    """Seed 2000193: they came late to all, and only the head of the chain knew that."""
    missing = [noticed(who, ALICE, "missing", message="History", count=6) for who in witnesses]
    known = [noticed(who, B1, "refused", "wrong-sender", count=3) for who in (BOB, CAROL)]
    assert judged([*missing, *known], Cell(Policy.named("chain+history"))).named == named


@pytest.mark.parametrize(("per_channel", "named"), [(2, ()), (3, (B4,))])
def test_who_takes_the_state_of_others_goes_on_on_every_channel(
    per_channel: int, named: tuple[str, ...]
) -> None:
    """Seed 1900395: three times, on two channels."""
    features = [
        noticed(who, B4, "skipped", message="Vote", count=per_channel, publisher="*", channel=name)
        for who in (BOB, CAROL)
        for name in ("orders", "quotes")
    ]
    features.append(noticed(B2, B4, "heard", message="ChunkQuery", count=1, publisher=""))
    assert judged(features, Cell(Policy.named("total"))).named == named


@pytest.mark.parametrize(("breaks", "named"), [(3, (B1,)), (4, ())])
def test_who_was_left_out_of_chains_has_not_seen_everything(
    breaks: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "skipped", message="ChainRun", count=4, publisher=publisher)
        for who in (B2, B3)
        for publisher in (ALICE, CAROL)
    ]
    features += [
        noticed(publisher, broker, "suspect", "broken-chain", message="Ack", count=breaks)
        for publisher in (ALICE, CAROL)
        for broker in (B2, B3)
    ]
    assert judged(features, Cell(Policy.named("chain"))).named == named


@pytest.mark.parametrize(
    ("kind", "bucket", "slots", "named"),
    [
        ("unanswered", 0, (1, 3, 6), (B1,)),
        ("unanswered", 0, (3, 4), ()),
        ("answered", 320, (1, 3, 6), ()),
        ("answered", 1280, (1, 3, 6), ()),
    ],
)
def test_who_leaves_some_requests_unanswered_again_and_again_is_found_out(
    kind: str, bucket: int, slots: tuple[int, ...], named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, broker, "answered", message="Survey", count=2, publisher="", bucket=10,
                slot=slot)
        for who in (B2, B3)
        for broker in (B1, B4)
        for slot in range(8)
    ] + [
        noticed(who, B1, kind, message="Survey", publisher="", bucket=bucket, slot=slot)
        for who in (B2, B3)
        for slot in slots
    ]  # fmt: skip
    assert judged(features).named == named


def test_who_leaves_some_requests_unanswered_as_others_do_is_nobody_s_liar() -> None:
    features = [
        noticed(who, broker, "answered", message="Survey", publisher="", bucket=bucket, slot=slot)
        for who in (B2, B3)
        for broker in (B1, B4)
        for slot in range(8)
        for bucket in (10, 320)
    ]
    assert judged(features).named == ()


@pytest.mark.parametrize(
    ("asked", "reason", "signed", "named"),
    [(10, "voted", 0, (B1,)), (9, "voted", 0, ()), (10, "again", 0, ()), (10, "voted", 1, ())],
)
def test_broker_that_votes_and_never_signs_is_named(
    asked: int, reason: str, signed: int, named: tuple[str, ...]
) -> None:
    def features(others: int) -> list[Feature]:
        return [
            feature
            for who in (BOB, CAROL)
            for feature in (
                noticed(who, B1, "unanswered", reason, message="Attest", count=asked),
                noticed(who, B1, "heard", message="Checkpoint", count=signed),
                noticed(who, B2, "heard", message="Checkpoint", count=others),
            )
            if feature.count
        ]

    assert judged(features(1)).named == named
    assert judged(features(0)).named == (), "nobody signs what is not settled"


@pytest.mark.parametrize(
    ("slots", "lacking", "other", "named"),
    [
        ((3, 4, 6), 0, CAROL, (B1, CAROL)),
        ((3, 3, 3), 0, CAROL, (CAROL,)),
        ((3, 6), 0, CAROL, (CAROL,)),
        ((3, 6), 1, CAROL, (B1, CAROL)),
        ((3, 4, 6), 0, "", ()),
    ],
)
def test_one_witness_is_enough_of_contents_that_are_withheld_if_nobody_else_may_lie(
    slots: tuple[int, ...], lacking: int, other: str, named: tuple[str, ...]
) -> None:
    features = [
        noticed(BOB, B1, "unanswered", "voted", message="Pull", slot=slot) for slot in slots
    ]
    features += [noticed(BOB, B1, "missing", message="Contents") for _ in range(lacking)]
    features += [
        noticed(who, other, "refused", "wrong-sender", message="Publish", publisher=other)
        for who in (B2, B3)
        if other
    ]
    assert judged(features).named == named


@pytest.mark.parametrize(("count", "named"), [(1, ()), (2, (B1,))])
def test_contents_that_did_not_come_once_where_packets_get_lost_may_have_got_lost(
    count: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "missing", "mended", message="Pull", count=count) for who in (BOB, CAROL)
    ]
    assert judged(features).named == named


@pytest.mark.parametrize(("others", "named"), [((BOB, CAROL), (ALICE,)), ((BOB,), ())])
def test_publisher_is_not_excused_by_a_broker_whose_fault_would_need_another_one(
    others: tuple[str, ...], named: tuple[str, ...]
) -> None:
    """One broker says that nothing was shown to it; of another one enough say that it is silent.

    Either the publisher lies, or the first broker does, and then f is used up.
    """
    features = [noticed(B1, ALICE, "missing", message="Publish", count=10)]
    features += [noticed(who, B4, "missing", message="Contents", count=3) for who in others]
    assert judged(features, Cell(Policy.named("chain+history"))).named == named


@pytest.mark.parametrize(
    ("count", "slots", "named"), [(3, (1, 2), ()), (4, (1, 2), (B1,)), (80, (1,), ())]
)
def test_who_claims_for_long_to_know_nothing_is_named_and_who_begins_late_is_not(
    count: int, slots: tuple[int, ...], named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, B1, "boasts", "behind", message="Standing", publisher="*", count=count,
                slot=slot)
        for who in (B2, B3)
        for slot in slots
    ]  # fmt: skip
    assert judged(features, Cell(Policy.named("total"))).named == named


def test_who_does_not_hand_over_what_a_liar_published_may_have_had_to_let_go_of_it() -> None:
    features = [
        noticed(BOB, B1, "unanswered", "voted", message="Pull", slot=slot, publisher=CAROL)
        for slot in (3, 4, 6)
    ]
    features += [
        noticed(who, CAROL, "refused", "wrong-sender", message="Publish", publisher=CAROL)
        for who in (B2, B3)
    ]
    assert judged(features).named == (CAROL,)


def test_leader_that_votes_for_what_it_did_not_propose_is_named() -> None:
    cell = Cell(Policy.named("total"))
    features = [
        noticed(who, B1, "backwards", "voted-first", message="Propose", publisher="*")
        for who in (B2, B3)
    ]
    assert judged(features, cell).named == (B1,)
    assert judged(features[:1], cell).named == ()


@pytest.mark.parametrize(
    ("reason", "count", "named"), [("", 1, (B1,)), ("mended", 1, ()), ("mended", 2, (B1,))]
)
def test_who_answers_for_some_channels_only_censors_the_others(
    reason: str, count: int, named: tuple[str, ...]
) -> None:
    features = [
        feature
        for who in (B2, B3)
        for feature in (
            noticed(who, B1, "unanswered", reason, message="Survey", count=count, publisher=""),
            noticed(who, B1, "answered", message="Survey", channel="quotes", publisher=""),
        )
    ]
    assert judged(features).named == named


@pytest.mark.parametrize(
    ("channels", "count", "named"),
    [
        (("orders",), 3, (B1,)),
        (("orders",), 2, ()),  # as often as it was answered
        (("orders", "quotes"), 3, ()),  # it may have stood still
    ],
)
def test_who_answers_no_longer_for_one_channel_only_censors_it(
    channels: tuple[str, ...], count: int, named: tuple[str, ...]
) -> None:
    features = [
        feature
        for who in (BOB, CAROL)
        for channel in ("orders", "quotes", "trades")
        for feature in (
            noticed(who, B1, "answered", message="Subscribe", channel=channel, count=2),
            noticed(who, B1, "unanswered", message="Subscribe", channel=channel, count=count),
        )
        if feature.kind == "answered" or channel in channels
    ]
    assert judged(features).named == named


@pytest.mark.parametrize(
    ("missing", "came", "taken", "named"),
    [
        (12, 20, 0, (B1,)),
        (9, 20, 0, ()),
        (9, 2, 0, (B1,)),
        (3, 0, 0, (B1,)),
        (2, 0, 0, ()),  # four in all
        (12, 20, 1, ()),  # it took the state of others
    ],
)
def test_votes_that_several_miss_at_once_are_charged_if_they_are_many_and_others_came(
    missing: int, came: int, taken: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, broker, kind, message="Vote", slot=1, count=count)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for kind, count in (
            ("missing", missing if broker == B1 else 0),
            ("came", came if broker == B1 else came + missing),
        )
        if count
    ]
    features += [noticed(B2, B1, "heard", message="ChunkQuery")] * taken
    assert judged(features).named == named


def test_votes_that_a_liar_and_a_publishers_victims_leave_out_are_told_apart() -> None:
    """Carol shows b3 and b4 nothing, and b1 votes for nothing of anybody."""
    ab = Cell(Policy.named("ab"), n=7, f=2, clients=(ALICE, BOB, CAROL, "dave"))
    brokers = ab.manifest.broker_ids
    skipped = {ALICE: {brokers[0]}, CAROL: set(brokers[:1] + brokers[2:4])}
    features = [
        noticed(who, broker, "missing" if broker in skipped[publisher] else "came",
                message="Vote", slot=slot, count=9, publisher=publisher)
        for who in (BOB, "dave")
        for publisher in (ALICE, CAROL)
        for broker in brokers
        for slot in range(8)
    ]  # fmt: skip
    model = Model(brokers, ab.manifest.f)
    found = conclude(Case(ab.manifest, features), model, [])
    assert brokers[0] in found.named
    assert not {*brokers[1:]} & {*found.named}


@pytest.mark.parametrize(
    ("told", "numbers", "named"),
    [
        ({B1: "a", B2: "a", B3: "b", "b5": "b"}, 2, (B4,)),
        ({B1: "a", B2: "a", B3: "a", "b5": "b"}, 2, ()),  # b5 may lie about what it was told
        ({B1: "a", B2: "a", B3: "b", "b5": "b"}, 1, ()),
        ({B1: "a", B2: "a", B3: "a", "b5": "a"}, 2, ()),
        ({B1: "a", B2: "a", BOB: "b", CAROL: "b"}, 2, ()),  # nobody tells them
    ],
)
def test_who_echoes_different_things_to_more_than_may_lie_has_two_faces(
    told: dict[str, str], numbers: int, named: tuple[str, ...]
) -> None:
    cell = Cell(Policy.named("brb"), n=5)
    features = [
        noticed(who, B4, "echoed", f"1:{number}{version}", message="Echo", number=number)
        for number in range(1, numbers + 1)
        for who, version in told.items()
    ]
    model = Model(cell.manifest.broker_ids, cell.manifest.f)
    assert conclude(Case(cell.manifest, features), model, []).named == named
    # What somebody says in its next life has nothing to do with it.
    lives = [
        msgspec.structs.replace(f, reason=f.reason.replace("1:", "2:", 1)) if "b" in f.reason else f
        for f in features
    ]
    assert conclude(Case(cell.manifest, lives), model, []).named == ()


def test_who_is_accused_by_all_who_may_lie_is_named_if_not_all_of_them_can() -> None:
    """Two brokers and a subscriber say so of b5, and of b7 as many, b5 among them."""
    ab = Cell(Policy.named("ab"), n=7, f=2)
    accusers = {"b5": ("b3", "b4"), "b7": ("b5", "b1")}
    features = [
        noticed(who, accused, "missing", message="Ready", count=4)
        for accused, by in accusers.items()
        for who in by
    ] + [
        noticed(BOB, broker, "missing" if broker in accusers else "came", message="Vote",
                slot=slot, count=9)
        for broker in ab.manifest.broker_ids
        for slot in range(8)
    ]  # fmt: skip

    def named(features: list[Feature]) -> tuple[str, ...]:
        model = Model(ab.manifest.broker_ids, ab.manifest.f)
        return conclude(Case(ab.manifest, features), model, []).named

    assert named(features) == ("b5",)
    assert named([f for f in features if f.accused != "b7"]) == ()


@pytest.mark.parametrize("message", ["Ready", "Ack"])
def test_broker_has_no_publisher_to_blame_for_what_all_say_in_the_end(message: str) -> None:
    features = [
        noticed(who, broker, "missing" if broker == B4 else "came", "mute" if broker == B4 else "",
                message=message, count=3, lane=1)
        for who in ((B1, B2, B3) if message == "Ready" else (ALICE, CAROL))
        for broker in CELL.manifest.broker_ids
        if who != broker
    ]  # fmt: skip
    blamed = [
        noticed(B4, ALICE, "missing", "mended", message="Publish", count=3, slot=slot)
        for slot in (0, 1)
    ]
    assert judged([*features, *blamed]).named == (B4,)
    if message == "Ready":
        flood = noticed(B1, ALICE, "refused", "unknown-stream", message="Open")
        assert judged([*features, *blamed, flood]).named == ()


def test_who_stands_still_in_half_of_the_run_is_not_charged_for_it() -> None:
    def left_out(missing: dict[int, int]) -> tuple[str, ...]:
        features = [
            noticed(who, broker, kind, message="Vote", slot=slot, count=count)
            for who in (BOB, CAROL)
            for broker in CELL.manifest.broker_ids
            for slot in range(1, 8)
            for kind, count in (
                ("missing", missing.get(slot, 0) if broker == B4 else 0),
                ("came", 6 - missing.get(slot, 0) if broker == B4 else 6),
            )
            if count
        ]
        return judged(features).named

    assert left_out(dict.fromkeys((3, 4, 5), 6)) == ()
    assert left_out(dict.fromkeys((3, 4, 6, 7), 2)) == (B4,)


def test_contents_that_two_ask_for_in_vain_of_who_voted_for_them_are_charged() -> None:
    asked = [
        noticed(who, B1, "unanswered", "voted", message="Pull", count=2) for who in (BOB, CAROL)
    ]
    assert judged(asked).named == (B1,)
    assert judged([*asked, noticed(CAROL, B1, "answered", message="Pull")]).named == ()


def test_bad_contents_of_a_publisher_count_however_much_it_sends() -> None:
    features = [
        noticed(who, ALICE, kind, reason, message="ChainRun", count=count)
        for who in (B1, B2)
        for kind, reason, count in (("refused", "bad-body", 2), ("heard", "", 500))
    ]
    assert judged(features).named == (ALICE,)


def test_two_accusers_of_omissions_are_enough_once_a_client_is_known_to_lie() -> None:
    soft = [noticed(who, B1, "skipped", message="Vote", count=5) for who in (BOB, B2)]
    known = [noticed(who, CAROL, "refused", "bad-run", message="Pull", count=5) for who in (B2, B3)]
    assert judged(soft).named == ()
    assert judged([*known, soft[0]]).named == (CAROL,)
    assert judged([*known, *soft]).named == (B1, CAROL)


def test_two_that_can_only_be_found_out_together_are() -> None:
    cell = Cell(Policy.named("brb"), n=7, f=2)
    b1, b2, b3, b4, b5, *_ = cell.manifest.broker_ids
    accused = {b1: (b3, b4), b2: (b4, b5)}
    features = [
        msgspec.structs.replace(
            noticed(who, liar, "skipped", message="Vote", count=5), role="broker"
        )
        for liar, accusers in accused.items()
        for who in accusers
    ]
    model = Model(cell.manifest.broker_ids, 2)
    assert conclude(Case(cell.manifest, features), model, []).named == (b1, b2)
    alone = [feature for feature in features if feature.accused == b1]
    assert conclude(Case(cell.manifest, alone), model, []).named == ()


def test_broker_that_passes_on_offers_of_a_client_without_a_right_does_not_use_it_itself() -> None:
    cell = Cell(Policy.named("total"))

    def refused(accused: str) -> tuple[str, ...]:
        rows = [noticed(who, accused, "refused", "no-right", count=8) for who in (B2, B3)]
        return judged(rows, cell).named

    assert refused(B1) == ()
    assert refused(BOB) == (BOB,)


def test_proposal_that_a_leader_leaves_out_towards_everybody_is_enough() -> None:
    total = Cell(Policy.named("total"))
    left_out = [
        noticed(who, B1, "skipped", message="Propose", publisher="*") for who in (B2, B3, B4)
    ]
    assert judged(left_out, total).named == (B1,)
    assert judged(left_out[:2], total).named == ()


@pytest.mark.parametrize(
    ("kind", "bucket", "named"), [("missing", 0, (B1,)), ("came", 640, ()), ("came", 40, ())]
)
def test_statements_that_one_broker_withholds_again_and_again_are_charged(
    kind: str, bucket: int, named: tuple[str, ...]
) -> None:
    features = [
        noticed(who, broker, kind, message="Checkpoint", slot=slot, bucket=bucket)
        if broker == B1
        else noticed(who, broker, "came", message="Checkpoint", slot=slot, bucket=5)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for _ in range(2)
    ]
    assert judged(features).named == named


def test_broker_that_passes_runs_on_and_leaves_some_out_is_charged_on_chains_as_well() -> None:
    left_out = [noticed(who, B1, "skipped", message="ChainRun", count=3) for who in (B2, B3)]
    left_out += [msgspec.structs.replace(f, publisher=BOB) for f in left_out]
    assert judged(left_out, Cell(Policy.named("chain"))).named == (B1,)


def test_history_that_is_missing_takes_more_than_one_accuser() -> None:
    liar = [noticed(who, B1, "contradicts", "itself", message="Ready") for who in (B2, B3)]

    def owing(reason: str, *accusers: str) -> tuple[str, ...]:
        owed = [
            noticed(who, ALICE, "missing", reason, message="History", count=3) for who in accusers
        ]
        return judged([*liar, *owed]).named

    assert owing("", B2) == (B1,), "histories go to every broker"
    assert owing("", B2, B3) == (ALICE, B1)
    assert owing("mended", B2) == (B1,)
    assert owing("mended", B2, B3) == (ALICE, B1)


def test_accuser_that_is_found_out_itself_does_not_count_beside_a_single_other() -> None:
    soft = [
        noticed(who, B1, "skipped", message="Vote", count=5, publisher=BOB) for who in (B2, B3, B4)
    ]
    owed = [
        noticed(who, ALICE, "missing", "mended", message="History", count=3) for who in (B1, B2)
    ]
    assert judged([*soft, *owed]).named == (B1,)


def test_publisher_that_no_explanation_leaves_out_is_named_if_enough_saw_its_doing() -> None:
    cell = Cell(Policy.named("ab"), n=7, f=2)
    model = Model(cell.manifest.broker_ids, 2)
    differing = [
        noticed(who, broker, "contradicts", "others", message="Vote", count=9)
        for who in (BOB, CAROL)
        for broker in (B1, B2)
    ]
    # Its own word leaves nobody else: were it true, four brokers would lie.
    unsent = [
        noticed(ALICE, broker, "boasts", "unsent", message="Ack", count=9) for broker in (B3, B4)
    ]
    assert conclude(Case(cell.manifest, [*differing, *unsent]), model, []).named == (ALICE,)
    for few in (differing, unsent, [*differing[:2], *unsent]):
        assert conclude(Case(cell.manifest, few), model, []).named == ()


def test_who_accuses_too_many_leaves_fewer_who_may_lie_of_another() -> None:
    cell = Cell(Policy.named("brb"), n=7, f=2)
    model = Model(cell.manifest.broker_ids, 2)

    def left_out(accused: str, *observers: str) -> list[Feature]:
        return [
            noticed(who, broker, "missing" if broker == accused else "came", message="Ready",
                    slot=slot, count=2)
            for who in observers
            for broker in cell.manifest.broker_ids
            for slot in range(8)
            if broker != who
        ]  # fmt: skip

    # Who accuses three is no victim of all of them; then b3, b5 and Bob cannot all lie of b1.
    slander = [
        noticed(B2, who, "contradicts", "itself", message="Ready") for who in (B4, "b6", "b7")
    ]
    first, second = left_out(B1, B3, "b5", BOB), left_out(B2, B4, BOB)
    for few in (first, [*first, *second], [*second, *slander]):
        assert conclude(Case(cell.manifest, few), model, []).named == ()
    assert conclude(Case(cell.manifest, [*first, *second, *slander]), model, []).named == (B1,)


@pytest.mark.parametrize(
    ("missing", "reason", "came", "named"),
    [
        (3, "", 0, (B1,)),
        (2, "", 0, ()),
        (3, "mute", 0, ()),  # it stands still
        (3, "", 1, ()),  # once, for a while
    ],
)
def test_broker_that_never_votes_though_it_is_there_is_charged_with_few_votes(
    missing: int, reason: str, came: int, named: tuple[str, ...]
) -> None:
    features = [noticed(who, B1, "missing", reason, message="Vote", count=missing)
                for who in (BOB, CAROL)]  # fmt: skip
    features += [
        noticed(who, broker, "came", message="Vote", count=missing + came, bucket=5)
        for who in (BOB, CAROL)
        for broker in (B2, B3, B4)
    ]
    if came:
        features += [noticed(who, B1, "came", message="Vote", bucket=5) for who in (BOB, CAROL)]
    assert judged(features).named == named


@pytest.mark.parametrize(
    ("policy", "opened", "named"),
    [
        ("brb", 0, (ALICE, B1)),
        ("ab", 0, (ALICE,)),  # brokers vote for what they were told, if they were
        ("brb", 30, (ALICE,)),  # of so many streams that some had to give way
    ],
)
def test_lies_of_a_publisher_excuse_no_broker_where_all_agree_in_the_end(
    policy: str, opened: int, named: tuple[str, ...]
) -> None:
    lies = [noticed(who, ALICE, "refused", "bad-body", message="Publish", count=9)
            for who in (B2, B3)]  # fmt: skip
    if opened:
        lies += [noticed(B2, ALICE, "refused", "unknown-stream", message="Open", count=opened)]
    votes = [
        noticed(who, broker, "missing" if broker == B1 else "came", message="Vote", count=2,
                bucket=0 if broker == B1 else 5, slot=slot)
        for who in (BOB, CAROL)
        for broker in (B1, B2, B3, B4)
        for slot in range(8)
    ]  # fmt: skip
    assert judged([*lies, *votes], Cell(Policy.named(policy))).named == named


@pytest.mark.parametrize(("policy", "named"), [("chain+history", ()), ("ab", (B1,))])
def test_votes_that_a_broker_of_a_chain_leaves_out_the_one_before_may_have_kept_from_it(
    policy: str, named: tuple[str, ...]
) -> None:
    left_out = [
        noticed(who, B1, "skipped", message="Vote", count=5, publisher=publisher)
        for who in (BOB, CAROL)
        for publisher in (ALICE, BOB)
    ]
    assert judged(left_out, Cell(Policy.named(policy))).named == named


def test_publisher_is_not_named_for_what_is_a_matter_of_shares_where_it_blames_others() -> None:
    cell = Cell(Policy.named("ab"), n=7, f=2)
    model = Model(cell.manifest.broker_ids, 2)
    left_out = [
        noticed(who, broker, "skipped", message="Vote", count=5)
        for who in (BOB, CAROL)
        for broker in (B1, B2)
    ]
    unsent = [
        noticed(ALICE, broker, "boasts", "unsent", message="Ack", count=9) for broker in (B3, B4)
    ]
    assert conclude(Case(cell.manifest, [*left_out, *unsent]), model, []).named == ()


def test_leader_cannot_blame_a_publisher_that_nobody_else_doubts_for_what_it_proposes() -> None:
    total = Cell(Policy.named("total"))
    unfetched = [noticed(who, B1, "missing", message="Propose", count=3) for who in (B2, B3)]
    excuse = noticed(B1, ALICE, "contradicts", "itself", message="Offer", count=9)
    assert judged([*unfetched, excuse], total).named == (B1,)
    doubt = noticed(B4, ALICE, "contradicts", "itself", message="Offer", count=9)
    assert judged([*unfetched, excuse, doubt], total).named != (B1,)


@pytest.mark.parametrize("proven", [(), (ALICE,)])
def test_leader_may_have_proposed_what_a_publisher_that_is_known_to_lie_offered(
    proven: tuple[str, ...],
) -> None:
    unfetched = noticed(B2, B1, "missing", message="Propose", count=3)
    case = Case(Cell(Policy.named("total")).manifest, [unfetched])
    case.doubt(proven)
    (charge,) = firm_charges(case)
    assert charge.clause == {B1, B2, *proven}


@pytest.mark.parametrize(("count", "named"), [(3, (B1,)), (2, ())])
def test_broker_that_stood_still_may_vote_out_of_order_once_or_twice(
    count: int, named: tuple[str, ...]
) -> None:
    features = [noticed(who, B1, "backwards", message="Vote", count=count) for who in (BOB, CAROL)]
    assert judged(features).named == named


@pytest.mark.parametrize(("count", "slots", "named"), [(3, 8, (ALICE,)), (2, 8, ()), (3, 1, ())])
def test_one_witness_is_enough_for_who_cannot_be_excused_by_a_liar(
    count: int, slots: int, named: tuple[str, ...]
) -> None:
    # Either b3 leaves everything out or b4 says so falsely; then b2 does not lie of Alice.
    silent = [
        noticed(B4, broker, "missing" if broker == B3 else "came", message="Ready", count=3,
                slot=slot)
        for broker in (B1, B2, B3)
        for slot in range(slots)
    ]  # fmt: skip
    skipped = noticed(B2, ALICE, "missing", message="Publish", count=count)
    assert judged([*silent, skipped]).named == named
    assert judged([skipped]).named == judged(silent).named == ()


def test_who_accuses_more_of_what_is_forbidden_than_can_be_faulty_is_found_out() -> None:
    def slandered(count: int, *victims: str) -> list[Feature]:
        return [
            noticed(B1, who, "contradicts", "itself", message="Ready", count=count)
            for who in victims
        ]

    assert judged(slandered(3, B2, B3)).named == (B1,)
    for few in (slandered(3, B2), slandered(1, B2, B3), slandered(3, B2, ALICE)):
        assert judged(few).named == ()
    missed = [
        noticed(B1, who, "missing", message="Vote", count=90, slot=slot)
        for who in (B2, B3)
        for slot in range(8)
    ]
    assert judged(missed).named == (), "who sits behind a bad line misses much of many"


def test_votes_for_histories_that_a_broker_of_a_chain_leaves_out_are_charged() -> None:
    features = [
        noticed(who, broker, "missing" if broker == B1 else "came", message="Vote", lane=lane,
                slot=slot)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for lane in (0, 1)
        for slot in range(4)
    ]  # fmt: skip
    chain = Cell(Policy.named("chain+history"))
    assert judged(features, chain).named == (B1,)
    assert judged([f for f in features if not f.lane], chain).named == ()


@pytest.mark.parametrize("policy", ["ab", "brb", "direct", "total"])
@pytest.mark.parametrize("message", ["Vote", "Ack", "Accept", "Ready", "Echo", "Checkpoint"])
def test_broker_that_is_late_with_everything_is_measured_and_neither_named_nor_disputed(
    policy: str, message: str
) -> None:
    features = [
        noticed(who, broker, "came", message=message, slot=slot, count=9,
                bucket=640 if broker == B1 else 20)
        for who in (BOB, CAROL)
        for broker in (B1, B2, B3, B4)
        for slot in range(8)
    ]  # fmt: skip
    conclusion = judged(features, Cell(Policy.named(policy), n=4, f=1))
    assert (conclusion.named, conclusion.charges) == ((), ())
    (verdict,) = verdicts(conclusion)
    assert (verdict.node, verdict.standing, verdict.deed) == (B1, "measured", "late")
    assert verdict.towards == (BOB, CAROL)
    assert verdict.reasons == (
        f"{message}: half come within 640 ms, of the next slowest within 20 ms",
    )


@pytest.mark.parametrize(("bucket", "count"), [(20, 9), (640, 1)])
def test_lateness_that_others_share_or_that_is_rare_is_not_measured(
    bucket: int, count: int
) -> None:
    features = [
        noticed(BOB, broker, "came", message="Vote", count=9 if broker == B2 else count,
                bucket=bucket if broker in (B1, B2) else 5)
        for broker in (B1, B2, B3, B4)
    ]  # fmt: skip
    assert judged(features).lateness == ()


def test_broker_that_leaves_votes_out_may_blame_the_publisher_of_the_stream() -> None:
    features = [
        noticed(who, broker, "missing" if broker == B1 else "came", message="Vote", slot=slot,
                count=10, bucket=0 if broker == B1 else 5)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
    ]  # fmt: skip
    assert judged(features).named == (B1,)
    owed = noticed(B1, ALICE, "missing", message="Publish", count=20)
    assert judged([*features, owed]).named == ()
    once = noticed(BOB, B1, "missing", message="Vote", publisher=CAROL)
    assert judged([*features, owed, once]).named == ()
    other = noticed(B1, CAROL, "missing", message="Publish", count=20, publisher=CAROL)
    assert judged([*features, other]).named == (B1,)


@pytest.mark.parametrize(("missing", "named"), [(4, ()), (99, (B1,))])
def test_few_missing_things_of_one_publisher_are_nothing_beside_what_another_kept(
    missing: int, named: tuple[str, ...]
) -> None:
    def votes(who: str, broker: str, kind: str, publisher: str, count: int) -> list[Feature]:
        parts = 8 if count > missing else 1
        return [
            noticed(who, broker, kind, message="Vote", publisher=publisher, slot=slot,
                    bucket=5 if kind == "came" else 0, count=count // parts)
            for slot in range(parts)
        ]  # fmt: skip

    features = []
    for who in (BOB, CAROL):
        features += votes(who, B1, "missing", ALICE, 400)
        features += votes(who, B1, "came", CAROL, 400)
        features += votes(who, B1, "missing", CAROL, missing)
        for broker in (B2, B3, B4):
            for publisher in (ALICE, CAROL):
                features += votes(who, broker, "came", publisher, 400)
    assert judged(features, Cell(Policy.named("ab"), 4)).named == named


def test_what_is_not_about_a_blamed_publisher_must_be_enough_by_itself() -> None:
    def left_out(*publishers: str) -> list[Feature]:
        return [
            noticed(who, broker, kind, message="Vote", slot=slot, count=5,
                    bucket=5 if kind == "came" else 0, publisher=publisher)
            for who in (BOB, CAROL)
            for broker in CELL.manifest.broker_ids
            for slot in range(8)
            for publisher in (ALICE, CAROL)
            for kind in ("missing" if broker == B4 and publisher in publishers else "came",)
        ]  # fmt: skip

    blamed = noticed(B4, ALICE, "contradicts", "others", message="Publish", count=9)
    assert judged([*left_out(ALICE), blamed]).named == ()
    few = [
        noticed(who, B4, "missing", message="Vote", count=4, publisher=CAROL)
        for who in (BOB, CAROL)
    ]
    assert judged([*left_out(ALICE), *few, blamed]).named == ()
    assert judged([*left_out(ALICE, CAROL), blamed]).named == (B4,)
