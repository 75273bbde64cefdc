"""Evidence for brokers: believed only if it holds, passed on, bounded. n = 4, f = 1."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import (
    AB,
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    CAROL,
    STREAM,
    T0,
    Cell,
    accused,
    bodies,
    identity_of,
    messages,
    reasons,
    sent,
)

from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell import accusations
from quorumcast.cell.accusations import (
    LONGEST_REPEAT_MS,
    MAX_REFUTED,
    REPEAT_MS,
    Accusations,
    RepeatAccusations,
    SavedEvidence,
)
from quorumcast.cell.messages import Accusation
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import (
    Accuse,
    Connected,
    DropReason,
    Effect,
    Machine,
    Receive,
    Send,
    SetTimer,
    TimerFired,
)
from quorumcast.core.statements import Basis, Evidence, EvidenceKind, Signed
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import add_client, next_epoch, remove_client, rotate
from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View

CELL = Cell(AB)
BROKERS = CELL.manifest.broker_ids
P = bodies(1, 4)
LIE = (b"other", *P[1:])
AGAIN = SetTimer(RepeatAccusations(), REPEAT_MS)


def segment(broker: NodeId, *run: bytes, signer: NodeId | None = None, epoch: int = 1) -> Signed:
    return CELL.segment(broker, 1, *run, signer=signer, epoch=epoch)[1]


def conflict(liar: NodeId, signer: NodeId | None = None) -> Evidence:
    against = (segment(liar, *P, signer=signer), segment(liar, *LIE, signer=signer))
    return Evidence(kind=EvidenceKind.CONFLICT, accused=liar, against=against)


def outvoted(liar: NodeId, *witnesses: NodeId, epoch: int = 1) -> Evidence:
    return Evidence(
        kind=EvidenceKind.OUTVOTED,
        accused=liar,
        against=(segment(liar, *LIE, epoch=epoch),),
        witnesses=tuple(segment(witness, *P, epoch=epoch) for witness in witnesses),
    )


def hand(at: Accusations, evidence: Evidence, sender: NodeId = BOB) -> list[Effect]:
    return at.on_accusation(Receive(sender, Accusation(evidence)), T0)


def told_to(broker: NodeId, at: Accusations) -> list[Evidence]:
    """What a broker is told when its link opens."""
    told = messages(at.connected(broker), Accusation)
    return [one.evidence for one in told if isinstance(one, Accusation)]


def noted(evidence: Evidence, sender: NodeId) -> Evidence:
    return msgspec.structs.replace(evidence, note=f"received from {sender}")


@pytest.mark.parametrize("evidence", [conflict(B4), outvoted(B4, B2, B3)], ids=["self", "others"])
def test_broker_believes_evidence_that_holds_and_passes_it_on_once(evidence: Evidence) -> None:
    broker = CELL.broker(B1)
    told = noted(evidence, BOB)
    assert broker.handle(Receive(BOB, Accusation(evidence)), T0) == [
        Accuse(told), Send((B2, B3, B4), Accusation(told)), AGAIN,
    ]  # fmt: skip
    for sender in (BOB, B2):  # a replay costs no signature
        again = broker.handle(Receive(sender, Accusation(evidence)), T0)
        assert reasons(again) == [DropReason.DUPLICATE]
        assert accused(again) == []


def test_broker_does_not_return_evidence_to_its_sender_and_tells_brokers_that_connect() -> None:
    broker = CELL.broker(B1)
    (passed_on,) = sent(broker.handle(Receive(B2, Accusation(conflict(B4))), T0), Accusation)
    assert passed_on.to == (B3, B4)
    assert messages(broker.handle(Connected(B3), T0), Accusation) == [
        Accusation(noted(conflict(B4), B2))
    ]
    assert messages(broker.handle(Connected(BOB), T0), Accusation) == []


def test_subscriber_hands_evidence_to_all_brokers_and_to_those_that_come_back() -> None:
    made = CELL.subscriber(BOB)
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    found = made._accusations.found(conflict(B4))
    assert found == [Accuse(conflict(B4)), Send(BROKERS, Accusation(conflict(B4))), AGAIN]
    # Another lie of the same broker is reported, and handed to nobody.
    assert made._accusations.found(outvoted(B4, B1, B2)) == [Accuse(outvoted(B4, B1, B2))]
    assert messages(made.handle(Connected(B2), T0), Accusation) == [Accusation(conflict(B4))]
    told = made.handle(Receive(B1, Accusation(conflict(B3))), T0)
    assert reasons(told) == [DropReason.UNEXPECTED]


def holding_subscriber() -> tuple[Machine, Send]:
    made = CELL.subscriber(BOB)
    made._accusations.found(conflict(B4))
    return made, Send(BROKERS, Accusation(conflict(B4)))


def holding_broker() -> tuple[Machine, Send]:
    made = CELL.broker(B1)
    made.handle(Receive(BOB, Accusation(conflict(B4))), T0)
    return made, Send((B2, B3, B4), Accusation(noted(conflict(B4), BOB)))


@pytest.mark.parametrize("holding", [holding_subscriber, holding_broker])
def test_evidence_that_a_link_lost_is_repeated_ever_more_rarely(
    holding: Callable[[], tuple[Machine, Send]],
) -> None:
    """A link may lose messages without breaking: no broker connects again."""
    made, told = holding()
    waits = []
    for _ in range(8):
        again, timer = made.handle(TimerFired(RepeatAccusations()), T0)
        assert again == told
        assert isinstance(timer, SetTimer)
        assert timer.timer == RepeatAccusations()
        waits.append(timer.after_ms)
    assert waits == [2_000, 4_000, 8_000, 16_000, 32_000, *[LONGEST_REPEAT_MS] * 3]


def test_new_evidence_is_repeated_soon_and_what_the_others_cannot_verify_never() -> None:
    at = Accusations(seen())
    hand(at, outvoted(B4, B2, B3))
    at.repeat()
    step(at, rotate(CELL.manifest, B2, NEW[B2]))
    assert at.repeat() == [SetTimer(RepeatAccusations(), 4 * REPEAT_MS)]
    assert hand(at, conflict(B3))[-1] == AGAIN
    assert messages(at.repeat(), Accusation) == [Accusation(noted(conflict(B3), BOB))]
    step(at, rotate(at._view.manifest, B4, NEW[B4]))
    step(at, rotate(at._view.manifest, B3, Identity.generate(B3)))
    assert at.repeat() == []


FORGED = {
    "signed by another": conflict(B4, signer=B3),
    "one statement": Evidence(
        kind=EvidenceKind.CONFLICT, accused=B4, against=(segment(B4, *P),)
    ),
    "twice the same": Evidence(
        kind=EvidenceKind.CONFLICT, accused=B4, against=(segment(B4, *P),) * 2
    ),
    "of somebody else": msgspec.structs.replace(conflict(B4), accused=B3),
    "too few witnesses": outvoted(B4, B2),
    "one witness twice": outvoted(B4, B2, B2),
    "its own witness": outvoted(B4, B2, B4),
    "of an earlier epoch": outvoted(B4, B2, B3, epoch=0),
    "of no node": conflict(NodeId("mallory"), signer=B4),
}  # fmt: skip


@pytest.mark.parametrize("evidence", FORGED.values(), ids=FORGED.keys())
def test_broker_drops_evidence_that_does_not_hold(evidence: Evidence) -> None:
    at = Accusations(CELL.view(B1))
    assert reasons(hand(at, evidence)) == [DropReason.BAD_SIGNATURE]
    assert at.connected(B2) == []


def test_broker_does_not_listen_to_those_who_send_nonsense_until_the_next_epoch() -> None:
    view = CELL.view(B1)
    at = Accusations(view)
    for _ in range(MAX_REFUTED):
        assert reasons(hand(at, FORGED["too few witnesses"])) == [DropReason.BAD_SIGNATURE]
    for sender in (BOB, NodeId(f"{BOB}#7")):  # a seat is no other identity
        assert reasons(hand(at, conflict(B4), sender)) == [DropReason.OVER_LIMIT]
    assert accused(hand(at, conflict(B4), CAROL)) == [noted(conflict(B4), CAROL)]
    at.begin_epoch()
    assert accused(hand(at, conflict(B3))) == [noted(conflict(B3), BOB)]


def test_evidence_is_bounded_and_lying_clients_leave_room_for_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accusations, "MAX_ACCUSED_CLIENTS", 1)
    at = Accusations(CELL.view(B1))

    def by(client: NodeId) -> Evidence:
        stream = STREAM if client == ALICE else msgspec.structs.replace(STREAM, publisher=client)
        told = [CELL.history(1, 1, body, signer=client, stream=stream) for body in (b"a", b"b")]
        read = [read_history(body, stream.history) for body in told]
        against = tuple(found[0] for found in read if found is not None)
        return Evidence(kind=EvidenceKind.CONFLICT, accused=client, against=against)

    assert accused(hand(at, by(ALICE))) == [noted(by(ALICE), BOB)]
    assert reasons(hand(at, by(CAROL))) == [DropReason.OVER_LIMIT]
    assert accused(hand(at, conflict(B4))) == [noted(conflict(B4), BOB)]
    assert at.sizes() == {"accused": 2, "refuted": 0}
    monkeypatch.setattr(accusations, "MAX_EVIDENCE_BYTES", 100)
    assert reasons(hand(at, conflict(B3))) == [DropReason.OVER_LIMIT]
    # What this node has found itself is reported all the same.
    assert at.found(conflict(B3)) == [Accuse(conflict(B3))]


def file_of(manifest: Manifest) -> bytes:
    return msgspec.json.encode(sign_manifest(manifest, identity_of("operator")))


def seen(manifest: Manifest = CELL.manifest, me: NodeId = B1) -> View:
    """The view of a broker, which knows the operator's file."""
    return View(manifest, manifest.keyring(identity_of(me)), file_of(manifest))


def step(at: Accusations, manifest: Manifest) -> None:
    at._view.adopt(manifest, manifest.keyring(identity_of(B1)), file_of(manifest))
    at.begin_epoch()


def dated(evidence: Evidence, manifest: Manifest = CELL.manifest) -> Evidence:
    return msgspec.structs.replace(evidence, manifest=file_of(manifest))


LATER = next_epoch(CELL.manifest)
NEW = {node: Identity.generate(node) for node in (B2, B4)}


def test_evidence_of_an_earlier_epoch_is_passed_on_with_the_manifest_that_it_needs() -> None:
    at = Accusations(seen())
    (told,) = accused(hand(at, outvoted(B4, B2, B3)))
    assert told == dated(noted(outvoted(B4, B2, B3), BOB))
    hand(at, conflict(B3))
    step(at, add_client(CELL.manifest, NodeId("dave"), identity_of("dave")))
    step(at, next_epoch(at._view.manifest))
    shown = told_to(B2, at)
    assert shown == [told, noted(conflict(B3), BOB)]
    # A broker that has been away for all of this can verify it.
    other = Accusations(seen(at._view.manifest))
    for one in shown:
        assert accused(hand(other, one, B2)) == [noted(one, B2)]


def test_evidence_of_a_node_that_knows_no_file_of_the_manifest_ends_with_the_epoch() -> None:
    """Subscribers hand over what they find at once."""
    at = Accusations(CELL.view(B1))
    hand(at, outvoted(B4, B2, B3))
    hand(at, conflict(B3))
    step(at, LATER)
    assert told_to(B2, at) == [noted(conflict(B3), BOB)]


F0 = msgspec.structs.replace(CELL.manifest, f=0)
F0_CELL = msgspec.structs.replace(F0, cell="another")
UNPROVEN = {
    "no manifest": outvoted(B4, B2, B3),
    "no manifest of the operator": msgspec.structs.replace(
        outvoted(B4, B2, B3),
        manifest=file_of(CELL.manifest).replace(b'"f":1', b'"f":0'),
    ),
    "nonsense": msgspec.structs.replace(outvoted(B4, B2, B3), manifest=bytes(100)),
    "of another cell": dated(outvoted(B4, B2, B3), F0_CELL),
    "of another epoch": dated(outvoted(B4, B2, B3), next_epoch(LATER)),
    # Liars that are too many for f = 0 sign today for that epoch.
    "by f of those days": dated(outvoted(B4, B2), F0),
    "by f of today": dated(outvoted(B4, B2), CELL.manifest),
}  # fmt: skip


@pytest.mark.parametrize("evidence", UNPROVEN.values(), ids=UNPROVEN.keys())
def test_evidence_of_an_earlier_epoch_takes_both_manifests(evidence: Evidence) -> None:
    at = Accusations(seen(LATER))
    assert reasons(hand(at, evidence)) == [DropReason.BAD_SIGNATURE]
    assert accused(hand(at, dated(outvoted(B4, B2, B3)))) != []


def test_evidence_names_the_manifest_of_its_holder_and_not_that_of_its_sender() -> None:
    """A liar adds a manifest that proves nothing to evidence that holds today."""
    at = Accusations(seen())
    for evidence in (outvoted(B4, B2, B3), conflict(B3)):
        hand(at, msgspec.structs.replace(evidence, manifest=b"long"))
    assert [one.manifest for one in told_to(B2, at)] == [file_of(CELL.manifest), b""]


@pytest.mark.parametrize("evidence", [outvoted(B4, B2, B3), conflict(B4)], ids=["f+1", "self"])
def test_evidence_is_kept_without_what_it_does_not_need(evidence: Evidence) -> None:
    """With all that a liar adds, brokers of a smaller cell would find it too large."""
    more = (segment(B1, *P), segment(B4, *P), *evidence.witnesses)
    at = Accusations(seen())
    (kept,) = accused(hand(at, msgspec.structs.replace(evidence, witnesses=more)))
    assert kept == msgspec.structs.replace(noted(evidence, BOB), manifest=kept.manifest)
    assert told_to(B2, at) == [kept]


def restart(evidence: Evidence, manifest: Manifest) -> tuple[Accusations, list[Evidence]]:
    """A broker reads its file with this evidence when it starts, in an epoch."""
    at = Accusations(seen(manifest))
    return at, accused(at.on_saved(evidence))


ELSE = next_epoch(CELL.manifest, clients=())


@pytest.mark.parametrize("manifest", [CELL.manifest, LATER, ELSE], ids=["same", "next", "clients"])
@pytest.mark.parametrize("saved", [dated(outvoted(B4, B2, B3)), conflict(B4)], ids=["f+1", "self"])
def test_broker_that_starts_again_believes_its_file(saved: Evidence, manifest: Manifest) -> None:
    at, said = restart(saved, manifest)
    assert said == [saved]
    assert told_to(B2, at) == [saved]
    assert at.on_saved(saved) == []


def test_broker_file_is_only_data() -> None:
    broker = CELL.broker(B1)
    assert broker.handle(SavedEvidence(conflict(B4)), T0) == [Accuse(conflict(B4)), AGAIN]
    for altered in FORGED.values():
        assert CELL.broker(B1).handle(SavedEvidence(altered), T0) == []
    for altered in UNPROVEN.values():
        if altered != UNPROVEN["by f of those days"]:  # was it signed then? The file says so
            assert restart(altered, LATER)[1] == []
    large = conflict(B4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accusations, "MAX_EVIDENCE_BYTES", 100)
        assert restart(large, CELL.manifest)[1] == []


def test_broker_holds_what_it_has_verified_when_a_witness_leaves() -> None:
    """The others cannot verify it any more, so it hands it to nobody."""
    without = rotate(CELL.manifest, B2, NEW[B2])
    at = Accusations(seen())
    (saved,) = accused(hand(at, outvoted(B4, B2, B3)))
    step(at, without)
    again, said = restart(saved, without)
    assert said == [saved]
    for holder in (at, again):
        assert holder.sizes()["accused"] == 1
        assert holder.connected(B3) == []
    assert reasons(hand(Accusations(seen(without)), saved)) == [DropReason.BAD_SIGNATURE]
    # Evidence that they can verify takes its place.
    for holder in (at, again):
        assert accused(hand(holder, conflict(B4))) == [noted(conflict(B4), BOB)]
        assert told_to(B3, holder) == [noted(conflict(B4), BOB)]


def test_evidence_ends_with_the_key_of_the_accused() -> None:
    told = CELL.history(1, 1, b"a"), CELL.history(1, 1, b"b")
    read = [read_history(body, STREAM.history) for body in told]
    of_alice = Evidence(
        kind=EvidenceKind.CONFLICT, accused=ALICE, against=tuple(one[0] for one in read if one)
    )
    for evidence, following in (
        (outvoted(B4, B2, B3), rotate(CELL.manifest, B4, NEW[B4])),
        (of_alice, remove_client(CELL.manifest, ALICE)),
    ):
        at = Accusations(seen())
        (saved,) = accused(hand(at, evidence))
        step(at, following)
        assert at.connected(B2) == []
        assert at.sizes()["accused"] == 0
        assert restart(saved, following)[1] == []


signed = st.builds(
    CELL.segment,
    st.sampled_from(BROKERS),
    st.just(1),
    st.sampled_from((b"a", b"b")),
    basis=st.sampled_from(Basis),
    signer=st.just(B4),
    epoch=st.integers(0, 2),
    life=st.integers(1, 2),
).map(lambda made: made[1])
#: What the three correct brokers have signed: all of it is true.
TRUE = [CELL.segment(broker, 1, b"a", basis=basis)[1] for broker in (B1, B2, B3) for basis in Basis]
any_signed = st.one_of(signed, st.sampled_from(TRUE))


@given(
    st.builds(
        Evidence,
        kind=st.sampled_from(EvidenceKind),
        accused=st.sampled_from((*BROKERS, ALICE)),
        against=st.lists(any_signed, max_size=2).map(tuple),
        witnesses=st.lists(any_signed, max_size=5).map(tuple),
    )
)
def test_one_liar_makes_no_evidence_against_a_correct_node(evidence: Evidence) -> None:
    """It has its own key, and what others have signed."""
    at = Accusations(CELL.view(B1))
    assert {one.accused for one in accused(hand(at, evidence, B4))} <= {B4}
