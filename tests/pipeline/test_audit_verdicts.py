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
from quorumcast.pipeline.audit.charges import Case, Feature, table_charges
from quorumcast.pipeline.audit.proofs import find_proofs
from quorumcast.pipeline.audit.verdicts import RunJudgement, judge, verdicts
from quorumcast.sim.cell.labels.slander import ACCUSATIONS, forgeries, slander
from quorumcast.watch.inquiries import ANSWER
from quorumcast.watch.observation import CONTENTS

CELL = Cell(Policy.named("brb"))
MODEL = Model(CELL.manifest.broker_ids, 1)


def statement(broker: NodeId, *bodies: bytes) -> bytes:
    return msgspec.json.encode(CELL.segment(broker, 1, *bodies)[1])


def judged(features: list[Feature], cell: Cell = CELL) -> RunJudgement:
    return judge(Case(cell.manifest, features), MODEL, [])


def feature(observer: str, accused: str, kind: str, reason: str = "", **more: object) -> Feature:
    role = "broker" if observer.startswith("b") and observer != BOB else "subscriber"
    made = Feature(observer=observer, role=role, accused=accused, kind=kind, reason=reason)
    return msgspec.structs.replace(made, **{"channel": "orders", "publisher": ALICE, **more})


# --------------------------------------------------------------------- proofs


def test_statements_of_two_observers_combine_to_a_proof() -> None:
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


def test_malformed_documents_are_ignored() -> None:
    rubbish = [b"", b"{}", b"\xff\xff", msgspec.json.encode(Signed(B1, b"x", b"y"))]
    assert (
        find_proofs([CELL.manifest], [(BOB, r) for r in rubbish], [(BOB, r) for r in rubbish]) == []
    )


# ----------------------------------------------------------- charges, verdicts


def test_broker_that_two_subscribers_see_dissent_is_suspected() -> None:
    found = judged([feature(who, B1, "suspect", "dissent") for who in (BOB, CAROL)])
    assert found.named == (B1,)
    (verdict,) = verdicts(found)
    assert (verdict.standing, verdict.deed, verdict.towards) == (
        "suspected",
        "altered",
        (BOB, CAROL),
    )
    assert verdict.score == 1.0


def test_one_witness_leaves_a_dispute_below_the_threshold() -> None:
    found = judged([feature(BOB, B1, "suspect", "dissent")])
    assert found.named == ()
    assert {(v.node, v.standing) for v in verdicts(found)} == {(B1, "disputed"), (BOB, "disputed")}
    assert all(verdict.score < 1 for verdict in verdicts(found))


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


def test_steady_omission_of_votes_is_charged_and_a_pause_is_not() -> None:
    def run(failing: range) -> RunJudgement:
        features = []
        for who in (BOB, CAROL):
            for slot in range(8):
                for broker in CELL.manifest.broker_ids:
                    kind = "missing" if broker == B1 and slot in failing else "came"
                    features.append(feature(who, broker, kind, message="Vote", slot=slot, count=10))
        return judged(features)

    assert run(range(1, 8)).named == (B1,)
    assert run(range(2, 4)).named == ()


def test_omission_that_all_brokers_share_is_not_charged() -> None:
    features = [
        feature(who, broker, "missing", message="Vote", slot=slot, count=10)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
    ]
    assert judged(features).named == ()


def test_known_liar_lowers_the_number_of_accusers_for_the_next() -> None:
    cell = Cell(Policy.named("total"))
    known = [feature(who, B1, "contradicts", "itself", message="Accept") for who in (B2, B3)]
    other = feature(B2, ALICE, "refused", "bad-run", message="Offer", count=5)
    assert judged([other], cell).named == ()
    assert judged([*known, other], cell).named == (ALICE, B1)


def test_double_vote_on_an_unsettled_channel_may_be_the_publishers_fault() -> None:
    def voted_twice(policy: str) -> list[frozenset[str]]:
        twice = feature(BOB, B1, "suspect", "equivocation", message="Vote")
        return [charge.clause for charge in judged([twice], Cell(Policy.named(policy))).charges]

    assert voted_twice("ab+history") == [{ALICE, B1, BOB}]
    assert voted_twice("brb") == [{B1, BOB}]


def test_late_publisher_is_not_charged() -> None:
    """On a busy machine its offer reaches a broker through others first."""
    late = [
        feature(who, ALICE, "came", message="Offer", bucket=160, count=50, slot=slot)
        for who in (B1, B2, B3)
        for slot in range(8)
    ]
    assert judged(late, Cell(Policy.named("total"))).named == ()


@pytest.mark.parametrize(
    ("parts", "named"),
    [({BOB: (0, 2, 4, 6), CAROL: (1, 3, 5, 6), ALICE: range(8)}, (B1,)),
     ({BOB: (0, 1, 2, 3), CAROL: (0, 1, 2, 3), ALICE: ()}, ())],
    ids=["now and then, and several at any time", "once for a while"],
)  # fmt: skip
def test_occasional_omission_is_charged_if_several_observers_see_it(
    parts: dict[str, Collection[int]], named: tuple[str, ...]
) -> None:
    features = [
        feature(who, broker, "missing" if gone else "came", message="Vote", slot=slot, count=2)
        for who in (ALICE, BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for gone in ((False, True) if broker == B1 and slot in parts[who] else (False,))
    ]
    assert judged(features).named == named


def test_publisher_is_no_excuse_for_missing_votes_under_total_order() -> None:
    features = [
        feature(who, broker, "missing" if broker == B1 and odd else "came", message="Vote",
                publisher="*", slot=slot, count=3)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        for odd in (0, 1)
    ]  # fmt: skip
    blame = feature(B1, ALICE, "missing", "mended", message="Offer", count=10)
    assert judged([*features, blame], Cell(Policy.named("total"))).named == (B1,)


@pytest.mark.parametrize(
    ("kind", "reason", "message", "count"),
    [
        ("backwards", "", "Ack", 1),
        ("backwards", "decided", "Standing", 1),
        ("backwards", "synced", "Standing", 1),
        ("refused", "unexpected-message", "Taken", 1),
    ],
)
def test_protocol_violation_is_charged_at_first_sight(
    kind: str, reason: str, message: str, count: int
) -> None:
    features = [feature(who, B1, kind, reason, message=message, count=count) for who in (B2, B3)]
    assert judged(features).named == (B1,)


def test_pull_of_an_unknown_stream_at_one_broker_is_not_charged() -> None:
    # b1 lies, and so b2, which was not shown the stream, is believed.
    liar = [feature(who, B1, "contradicts", "itself", message="Vote") for who in (BOB, CAROL)]
    asked = [
        feature(who, BOB, "refused", "unknown-stream", message="Pull", count=9) for who in (B2, B3)
    ]
    assert judged([*liar, asked[0]]).named == (B1,)
    assert judged([*liar, *asked]).named == (B1, BOB)


@pytest.mark.parametrize(("crowded", "named"), [((), (BOB,)), ((B1, B2), ())])
def test_crowded_broker_cannot_charge_pulls_of_unknown_streams(
    crowded: tuple[str, ...], named: tuple[str, ...]
) -> None:
    features = [
        feature(who, BOB, "refused", "unknown-stream", message="Pull", count=9) for who in (B1, B2)
    ]
    features += [
        feature(who, ALICE, "refused", "unknown-stream", message="Open") for who in crowded
    ]
    assert judged(features).named == named


def test_duplicate_answer_to_a_repeated_request_is_not_charged() -> None:
    features = [
        feature(who, B1, "refused", "unexpected-message", message="Positions", count=2)
        for who in (B2, B3, B4)
    ]
    assert judged(features).named == ()


def test_leader_of_empty_proposals_is_charged_by_every_observer() -> None:
    features = [
        feature(who, B1, "passes-over", "hollow", message="Propose", count=2) for who in (B2, B3)
    ]
    assert judged(features, Cell(Policy.named("total"))).named == (B1,)
    assert judged(features[:1], Cell(Policy.named("total"))).named == ()


@pytest.mark.parametrize(("count", "named"), [(1, ()), (2, (B1,))])
def test_missing_proposed_contents_of_several_publishers_are_the_leaders_fault(
    count: int, named: tuple[str, ...]
) -> None:
    features = [
        feature(who, B1, "missing", "mended", message="Propose", publisher=publisher, count=count)
        for who in (B2, B3)
        for publisher in (ALICE, BOB)
    ]
    assert judged(features, Cell(Policy.named("total"))).named == named


def test_leader_that_votes_without_proposing_is_named() -> None:
    cell = Cell(Policy.named("total"))
    features = [
        feature(who, B1, "backwards", "voted-first", message="Propose", publisher="*")
        for who in (B2, B3)
    ]
    assert judged(features, cell).named == (B1,)
    assert judged(features[:1], cell).named == ()


def test_pause_during_half_of_the_run_is_not_charged() -> None:
    def left_out(missing: dict[int, int]) -> tuple[str, ...]:
        features = [
            feature(who, broker, kind, message="Vote", slot=slot, count=count)
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


@pytest.mark.parametrize(
    ("altered", "contents", "named"),
    [(5, 50, (ALICE,)), (5, 0, (ALICE,)), (4, 4, ()), (5, 51, ())],
    ids=["share", "none-sent", "few", "small-share"],
)
def test_bad_contents_are_charged_by_their_share_of_all_contents(
    altered: int, contents: int, named: tuple[str, ...]
) -> None:
    """An attacker on the wire can alter contents, so a few that do not match are nobody's lie."""
    features = [
        feature(who, ALICE, kind, reason, message="ChainRun", count=count)
        for who in (B1, B2)
        for kind, reason, count in (
            ("refused", "bad-body", altered),
            ("heard", CONTENTS, contents),
            ("heard", "", 500),
        )
    ]
    assert judged(features).named == named


def test_contents_altered_on_the_wire_name_nobody_beside_a_liar() -> None:
    """The broker that lies leaves no other that may, so that one accuser is believed."""
    features = [
        feature(who, B4, "backwards", "decided", message="Standing") for who in (B1, B2, B3)
    ]
    features += [
        feature(who, ALICE, kind, reason, message="Offer", count=count)
        for who, altered in ((B1, 1), (B2, 2), (B3, 2))
        for kind, reason, count in (("refused", "bad-body", altered), ("heard", CONTENTS, 340))
    ]
    assert judged(features, Cell(Policy.named("total"))).named == (B4,)


def test_broker_that_forwards_an_unauthorised_offer_is_not_charged() -> None:
    cell = Cell(Policy.named("total"))

    def refused(accused: str) -> tuple[str, ...]:
        rows = [feature(who, accused, "refused", "no-right", count=8) for who in (B2, B3)]
        return judged(rows, cell).named

    assert refused(B1) == ()
    assert refused(BOB) == (BOB,)


@pytest.mark.parametrize(
    ("missing", "reason", "came", "named"),
    [
        (3, "", 0, (B1,)),
        (2, "", 0, ()),
        (3, "mute", 0, ()),  # it stands still
        (3, "", 1, ()),  # once, for a while
    ],
)
def test_live_broker_that_never_votes_is_charged_at_a_low_count(
    missing: int, reason: str, came: int, named: tuple[str, ...]
) -> None:
    features = [feature(who, B1, "missing", reason, message="Vote", count=missing)
                for who in (BOB, CAROL)]  # fmt: skip
    features += [
        feature(who, broker, "came", message="Vote", count=missing + came, bucket=5)
        for who in (BOB, CAROL)
        for broker in (B2, B3, B4)
    ]
    if came:
        features += [feature(who, B1, "came", message="Vote", bucket=5) for who in (BOB, CAROL)]
    assert judged(features).named == named


@pytest.mark.parametrize(
    ("policy", "opened", "named"),
    [
        ("brb", 0, (ALICE, B1)),
        ("ab", 0, (ALICE,)),  # brokers vote for what they were told, if they were
        ("brb", 30, (ALICE,)),  # of so many streams that some had to give way
    ],
)
def test_lying_publisher_is_no_excuse_on_settled_channels(
    policy: str, opened: int, named: tuple[str, ...]
) -> None:
    lies = [feature(who, ALICE, "refused", "bad-body", message="Publish", count=9)
            for who in (B2, B3)]  # fmt: skip
    if opened:
        lies += [feature(B2, ALICE, "refused", "unknown-stream", message="Open", count=opened)]
    votes = [
        feature(who, broker, "missing" if broker == B1 else "came", message="Vote", count=2,
                bucket=0 if broker == B1 else 5, slot=slot)
        for who in (BOB, CAROL)
        for broker in (B1, B2, B3, B4)
        for slot in range(8)
    ]  # fmt: skip
    assert judged([*lies, *votes], Cell(Policy.named(policy))).named == named


def test_missing_history_votes_of_a_chain_broker_are_charged() -> None:
    features = [
        feature(who, broker, "missing" if broker == B1 else "came", message="Vote", lane=lane,
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
def test_late_broker_is_measured_and_neither_named_nor_disputed(policy: str, message: str) -> None:
    features = [
        feature(who, broker, "came", message=message, slot=slot, count=9,
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
def test_shared_or_rare_lateness_is_not_measured(bucket: int, count: int) -> None:
    features = [
        feature(BOB, broker, "came", message="Vote", count=9 if broker == B2 else count,
                bucket=bucket if broker in (B1, B2) else 5)
        for broker in (B1, B2, B3, B4)
    ]  # fmt: skip
    assert judged(features).lateness == ()


@pytest.mark.parametrize(("missing", "named"), [(4, ()), (99, (B1,))])
def test_few_omissions_of_one_publisher_do_not_count_beside_those_of_another(
    missing: int, named: tuple[str, ...]
) -> None:
    def votes(who: str, broker: str, kind: str, publisher: str, count: int) -> list[Feature]:
        parts = 8 if count > missing else 1
        return [
            feature(who, broker, kind, message="Vote", publisher=publisher, slot=slot,
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


# ------------------------------------------------------------------ omissions


def left_out(
    message: str,
    by: Collection[str],
    *,
    who: NodeId = B1,
    count: int = 10,
    publisher: str = ALICE,
    lane: int = 0,
) -> list[Feature]:
    """A broker says nothing of what the others say, in every part of the run."""
    return [
        feature(observer, broker, "missing" if broker == who else "came", message=message,
                slot=slot, count=count, publisher=publisher, lane=lane)
        for observer in by
        for broker in CELL.manifest.broker_ids
        for slot in range(8)
        if broker != observer
    ]  # fmt: skip


def lying(client: NodeId) -> list[Feature]:
    """A client is found out by what the protocol forbids."""
    return [feature(who, client, "refused", "wrong-sender", message="Pull") for who in (B2, B3)]


def test_omissions_reported_by_one_node_name_nobody() -> None:
    """A broker may be unable to reach one subscriber, and no other client may lie any more."""
    assert judged([*lying(CAROL), *left_out("Vote", (BOB,), count=99)]).named == (CAROL,)
    assert judged(left_out("Vote", (ALICE, BOB), publisher=CAROL)).named == (B1,)


def test_omissions_reported_by_a_named_node_do_not_count() -> None:
    features = left_out("Vote", (BOB, CAROL))
    assert judged(features).named == (B1,)
    assert judged([*features, *lying(BOB)]).named == (BOB,)


@pytest.mark.parametrize(("lane", "named"), [(0, ()), (1, (B1,))])
def test_votes_for_contents_of_a_settled_history_are_not_owed(
    lane: int, named: tuple[str, ...]
) -> None:
    """A broker that was overtaken by a history has nothing to vote for on its own."""
    cell = Cell(Policy.named("ab+history"))
    assert judged(left_out("Vote", (BOB, CAROL), lane=lane), cell).named == named


@pytest.mark.parametrize(
    ("count", "answered", "named"),
    [(2, "", (B1,)), (1, "", ()), (2, "orders", ()), (2, "x", (B1,))],
)
def test_broker_that_never_answers_on_a_channel_is_named(
    count: int, answered: str, named: tuple[str, ...]
) -> None:
    features = [
        feature(who, broker, "missing" if broker == B1 else "came", message=ANSWER, publisher="",
                count=count)
        for who in (BOB, CAROL)
        for broker in CELL.manifest.broker_ids
    ]  # fmt: skip
    if answered:
        features += [
            feature(who, B1, "came", message=ANSWER, publisher="", channel=answered)
            for who in (BOB, CAROL)
        ]
    assert judged(features).named == named


def test_source_without_contents_is_named_by_two_subscribers() -> None:
    features = [
        feature(who, B1, kind, message="Contents", slot=slot, count=5)
        for who in (BOB, CAROL)
        for slot in range(8)
        for kind in ("came", "missing")
    ]
    assert judged(features).named == (B1,)
    once = [f for f in features if f.kind == "came" or f.slot == 1]
    assert judged(once).named == (), "that may be the moment at which the source changed"


def test_inconsistent_omissions_with_the_fewest_accusers_are_dropped() -> None:
    features = left_out("Echo", (B3, B4), who=B1) + left_out("Ack", (ALICE, BOB, CAROL), who=B2)
    assert judged(features).named == (B2,)


@pytest.mark.parametrize(("reason", "named"), [("", (ALICE,)), ("mended", ())])
def test_publisher_that_withholds_offers_is_named_if_nothing_was_lost(
    reason: str, named: tuple[str, ...]
) -> None:
    features = [
        feature(who, ALICE, "missing", reason, message="Offer", count=3) for who in (B2, B3)
    ]
    assert judged(features, Cell(Policy.named("total"))).named == named


def test_leader_of_withheld_contents_is_excused_by_a_lying_publisher() -> None:
    total = Cell(Policy.named("total"))
    features = [feature(who, B1, "missing", message="Propose", count=3) for who in (B2, B3)]
    assert judged(features, total).named == ()
    of_another = [msgspec.structs.replace(f, publisher=CAROL) for f in features]
    assert judged([*features, *of_another], total).named == (B1,)
    few = [msgspec.structs.replace(f, count=1) for f in of_another]
    liar = [feature(who, ALICE, "contradicts", "signature", count=2) for who in (B3, B4)]
    assert judged([*features, *few, *liar], total).named == (ALICE,), "only a little is of another"


def test_observations_covered_by_several_rules_are_counted_once() -> None:
    features = [
        feature(who, B1, kind, "bad-body", message="Contents", count=5)
        for who in (BOB, CAROL)
        for kind in ("suspect", "refused")
    ]
    assert [verdict.count for verdict in verdicts(judged(features))] == [10]


def test_unexpected_message_at_one_node_is_not_charged() -> None:
    odd = feature(BOB, B1, "refused", "unexpected-message", message="Taken", count=9)
    assert table_charges(Case(CELL.manifest, [odd])) == []
