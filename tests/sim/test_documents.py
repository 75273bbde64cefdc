"""What scenarios draw beside the run: altered words, documents that are wrong, subscriptions.

Each examination says nothing of the code as it is, and notices code that is broken on purpose.
"""

import random
from collections.abc import Callable

import pytest

from quorumcast.broadcast.messages import Publish
from quorumcast.cell.messages import Checkpoint, Vote
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import Send
from quorumcast.core.quorum import OrderQuorums, Quorums
from quorumcast.core.statements import Basis, SegmentStatement, canonical
from quorumcast.crypto.evidence import Court
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.named.state import SubscriptionState
from quorumcast.ordering.messages import Offer
from quorumcast.sim.cell.cells import channel_entry, identity_of, make_simulated_cell, operator_of
from quorumcast.sim.cell.judges import documents
from quorumcast.sim.cell.judges.subscriptions import examine_subscriptions
from quorumcast.sim.cell.mangling import PER_KIND, Mangle, alter
from quorumcast.sim.systems import run_scenario

pytestmark = pytest.mark.sim

ORDERS = Channel("orders")
STREAM = Stream(ORDERS, NodeId("pub-1"), 1)
B1, B2 = NodeId("broker-1"), NodeId("broker-2")


def cell_of(policy: str = "ab") -> Manifest:
    entry = channel_entry("orders", Policy.named(policy))
    return make_simulated_cell(5, 1, (entry,)).manifest


def context(node: NodeId, seed: int = 1) -> FaultContext:
    manifest = cell_of()
    keyring = manifest.keyring(identity_of(node))
    return FaultContext(node, manifest, keyring, random.Random(seed))


# -------------------------------------------------------------- altered words


def test_alter_changes_every_field_and_the_kind_sooner_or_later() -> None:
    liar = context(B1)
    body = b"contents"
    said = Vote(STREAM, 7, liar.manifest.hash(body))
    found = [alter(said, (body,), liar) for _ in range(400)]
    votes = [message for message, _ in found if isinstance(message, Vote)]
    assert {type(message) for message, _ in found} > {Vote, Publish}
    assert {vote.first for vote in votes} > {6, 7, 8}
    assert {vote.stream.publisher for vote in votes} > {STREAM.publisher, B1}
    assert len({vote.digests for vote in votes}) > 2
    assert any(bodies != (body,) for _, bodies in found)


def test_alter_signs_its_own_words_and_never_those_of_others() -> None:
    liar = context(B1)
    said = SegmentStatement(
        cell="simulated", epoch=1, broker=B2, stream=STREAM, first=1, count=1, root=bytes(32),
        basis=Basis.SETTLED,
    )  # fmt: skip
    theirs = Checkpoint(identity_of(B2).sign(canonical(said)))
    found = [alter(theirs, (), liar)[0] for _ in range(300)]
    altered = [m.statement for m in found if isinstance(m, Checkpoint) and m != theirs]
    holding = [signed for signed in altered if liar.keyring.signature_holds(signed)]
    assert holding
    assert {signed.signer for signed in holding} == {B1}
    assert any(signed.signer == B2 for signed in altered)


def test_alter_offer_is_signed_again_by_whoever_says_it() -> None:
    publisher = context(NodeId("pub-1"))
    offer = Offer(STREAM, 1, publisher.manifest.hash(b"a"))
    found = [alter(offer, (b"a",), publisher)[0] for _ in range(100)]
    assert any(isinstance(message, Offer) and message.signature for message in found)


def test_mangle_alters_so_many_of_each_kind_and_no_more() -> None:
    fault = Mangle("mangle", context(B1))
    for message in (Vote(STREAM, 1, bytes(32)), Publish(STREAM, 1, bytes(32))):
        send = Send((B2,), message)
        said = [fault.tamper([send], Millis(0)) for _ in range(40 * PER_KIND)]
        assert said[0] != [send]
        assert sum(effects != [send] for effects in said) <= PER_KIND
        assert said[-1] == [send]


# ------------------------------------------------------------------ documents


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_manifests_that_are_wrong_are_refused(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "DRAWN", 100)
    found = documents.examine_manifests(cell_of(policy), operator_of(), random.Random(1))
    assert list(found) == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("quorumcast.manifest.files.check_manifest", "a manifest with no brokers is taken"),
        (
            "quorumcast.sim.cell.judges.documents.check_successor",
            "a running cell takes two brokers more",
        ),
    ],
)
def test_manifests_that_would_be_taken_are_reported(
    broken: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "DRAWN", 100)
    monkeypatch.setattr(broken, lambda *manifests: None)
    assert said in documents.examine_manifests(cell_of(), operator_of(), random.Random(1))


def test_quorums_are_the_least_that_will_do() -> None:
    sizes = [(n, f) for n in range(2, 11) for f in range(1, n)]
    assert [said for n, f in sizes for said in documents.examine_quorums(n, f)] == []


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (Quorums, "intersecting", lambda q: 2 * q.f + 1),
        (Quorums, "one_correct", lambda q: q.f),
        (OrderQuorums, "believe", lambda q: 1),
        (OrderQuorums, "recall", lambda q: q.responders - 1),
    ],
)
def test_quorums_that_are_too_small_are_reported(
    kind: type, name: str, wrong: Callable[[object], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, property(wrong))
    sizes = [(n, 1) for n in range(3, 8)]
    assert [said for n, f in sizes for said in documents.examine_quorums(n, f)]


def test_court_that_believes_any_contents_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(self: Court, receipt: object, votes: int) -> None:
        return None

    monkeypatch.setattr(Court, "why_receipt_fails", believe)
    outcome = run_scenario(1, "direct", "none")
    assert "Sound court" in {violation.property for violation in outcome.violations}


# -------------------------------------------------------------- subscriptions


def test_subscriptions_are_what_their_operations_say() -> None:
    assert [said for seed in range(20) for said in examine_subscriptions(random.Random(seed))] == []


@pytest.mark.parametrize(
    "name", ["_nack", "_end_session", "_claim", "_expire_session", "_configure"]
)
def test_subscriptions_that_lose_an_operation_are_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SubscriptionState, name, lambda *arguments: None)
    assert [said for seed in range(20) for said in examine_subscriptions(random.Random(seed))]
