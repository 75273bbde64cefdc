"""The observer: events and effects of one machine in, observations of its peers out. n=4, f=1."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, ORDERS, STREAM, Cell, digests

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.messages import Ack, Contents, Open, Publish, Ready
from quorumcast.cell.messages import (
    Checkpoint,
    Missed,
    Position,
    Positions,
    Refuse,
    Subscribe,
    Survey,
    Unsubscribe,
    Vote,
)
from quorumcast.core.ids import Channel, Digest, Millis, NodeId, Stream, resumable
from quorumcast.core.machine import (
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Evidence, EvidenceKind
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.epochs import first_regency
from quorumcast.ordering.messages import (
    Accept,
    Item,
    LogPart,
    Offer,
    Propose,
    Standing,
    StateHead,
    Stop,
    Write,
)
from quorumcast.ordering.offers import sign_offer
from quorumcast.ordering.state import root_of
from quorumcast.pipeline.audit.proofs import find_proofs, read_signed
from quorumcast.watch import observation
from quorumcast.watch.claims import FAR_AHEAD, PROBATION_MS
from quorumcast.watch.inquiries import ANSWER
from quorumcast.watch.observation import COLUMNS, CONTENTS, Observation, columns_of
from quorumcast.watch.observer import Observer
from quorumcast.watch.turnout import (
    BUCKETS,
    MENDED,
    MENDED_MS,
    OVERDUE_MS,
    bucket_of,
)

BROKERS = (B1, B2, B3, B4)
#: When observation begins: links have been up for a while.
LATER = OVERDUE_MS
STANDING = Standing(Protection.BYZANTINE, 0, 0, 0)


class Watched:
    """An observer with a clock. Its links have been up for a while."""

    def __init__(self, me: NodeId, role: str, policy: str = "ab", n: int = 4) -> None:
        self.cell = Cell(Policy.parse(policy), n)
        self.observer = Observer(self.cell.manifest, me, role)
        self.now = 0
        for broker in BROKERS:
            if broker != me:
                self.event(Connected(broker))
        self.now = LATER

    def event(self, event: Event) -> None:
        self.observer.on_event(event, Millis(self.now))

    def hear(self, sender: NodeId, message: object) -> None:
        self.event(Receive(sender, message))  # type: ignore[arg-type]

    def effect(self, effect: Effect) -> None:
        self.observer.on_effect(effect, Millis(self.now))

    def send(self, to: NodeId, message: object) -> None:
        self.effect(Send((to,), message))  # type: ignore[arg-type]

    def answered(self) -> None:
        """Every broker knows of the subscription."""
        for broker in BROKERS:
            self.hear(broker, Positions(ORDERS, ()))

    def accept(self, number: int) -> None:
        digest = Digest(digests(b"%d" % number))
        self.effect(Deliver(STREAM, number, digest, b"", (B1, B2)))

    def rows(self, kind: str) -> list[Observation]:
        self.observer.close(Millis(self.now))
        return [row for row in self.observer.notes.take(all_=True) if row.kind == kind]

    def found(self, kind: str) -> set[tuple[str, str, str]]:
        return {(row.accused, row.reason, row.message) for row in self.rows(kind)}


def vote(number: int) -> Vote:
    return Vote(STREAM, number, digests(b"%d" % number))


def test_late_votes_are_counted_by_lateness() -> None:
    bob = Watched(BOB, "subscriber")
    for broker in (B1, B2):
        bob.hear(broker, vote(1))
    bob.accept(1)
    bob.now += 50
    bob.hear(B3, vote(1))
    bob.now += OVERDUE_MS
    rows = bob.rows("came")
    assert {row.accused: row.number for row in rows} == {
        B1: BUCKETS[0], B2: BUCKETS[0], B3: bucket_of(50),
    }  # fmt: skip
    assert bucket_of(50) == 80


def test_missing_vote_is_noted_with_its_number() -> None:
    bob = Watched(BOB, "subscriber")
    bob.answered()
    bob.hear(B1, vote(7))
    bob.accept(7)
    bob.now += OVERDUE_MS
    missing = bob.rows("missing")
    assert {(row.accused, row.message, row.number) for row in missing} == {
        (broker, "Vote", 7) for broker in (B2, B3, B4)
    }


def test_nothing_is_missing_over_a_link_that_was_down_or_lost_packets() -> None:
    bob = Watched(BOB, "subscriber")
    bob.event(Disconnected(B2))
    bob.event(Connected(B2))
    bob.observer.on_lost(B3, Millis(bob.now))
    bob.answered()
    bob.accept(1)
    bob.now += OVERDUE_MS
    assert {row.accused for row in bob.rows("missing")} == {B1, B4}


def test_vote_of_a_broker_that_did_not_answer_the_subscribe_is_not_missing() -> None:
    bob = Watched(BOB, "subscriber")
    bob.answered()
    bob.send(B1, Unsubscribe(ORDERS))
    bob.event(Connected(B2))
    bob.hear(B2, Positions(Channel("quotes"), ()))
    bob.now += OVERDUE_MS
    bob.accept(2)
    bob.now += OVERDUE_MS
    assert {row.accused for row in bob.rows("missing")} == {B3, B4}


def test_vote_counts_as_answer_unless_an_earlier_subscription_was_cancelled() -> None:
    bob = Watched(BOB, "subscriber")
    bob.send(B2, Unsubscribe(ORDERS))
    bob.event(Connected(B4))
    for broker in (B1, B2):
        bob.hear(broker, vote(1))
    bob.now += OVERDUE_MS
    bob.accept(2)
    bob.now += OVERDUE_MS
    assert {row.accused for row in bob.rows("missing")} == {B1}


@pytest.mark.parametrize(
    ("answered", "policy", "after_ms", "missing"),
    [
        (True, "ab", 0, {(B1, "", "Contents")}),
        (True, "ab+journal", OVERDUE_MS // 2, {(B1, "", "Contents")}),
        (True, "ab+journal", OVERDUE_MS // 2 - 1, set()),  # its disk had that vote before
        (False, "ab", OVERDUE_MS // 2, set()),
    ],
)
def test_source_that_answered_must_send_contents_with_every_vote(
    answered: bool, policy: str, after_ms: int, missing: set[tuple[str, str, str]]
) -> None:
    bob = Watched(BOB, "subscriber", policy)
    bob.send(B1, Subscribe(ORDERS, (), bodies=True))
    if answered:
        bob.hear(B1, Positions(ORDERS, ()))
    bob.observer.on_lost(B1, Millis(bob.now))
    bob.now += after_ms
    bob.hear(B1, vote(1))
    assert bob.found("missing") == missing


def test_answer_to_an_earlier_subscribe_promises_no_contents() -> None:
    bob = Watched(BOB, "subscriber")
    for bodies in (False, True):
        bob.send(B1, Subscribe(ORDERS, (), bodies=bodies))
    bob.hear(B1, Positions(ORDERS, ()))
    bob.observer.on_lost(B1, Millis(bob.now))
    bob.hear(B1, vote(1))
    assert bob.found("missing") == set()


@pytest.mark.parametrize(("lost", "missing"), [(False, {(B1, "", "Contents")}), (True, set())])
def test_source_that_has_not_answered_owes_contents_unless_packets_are_lost(
    lost: bool, missing: set[tuple[str, str, str]]
) -> None:
    bob = Watched(BOB, "subscriber")
    bob.send(B1, Subscribe(ORDERS, (), bodies=True))
    if lost:
        bob.observer.on_lost(B3, Millis(bob.now))
    bob.now += OVERDUE_MS // 2
    bob.hear(B1, vote(1))
    assert bob.found("missing") == missing


@pytest.mark.parametrize(("ready", "missing"), [((B2,), set()), ((B2, B3), {B4})])
def test_ready_is_due_once_enough_readies_make_every_correct_broker_ready(
    ready: tuple[NodeId, ...], missing: set[NodeId]
) -> None:
    broker = Watched(B1, "broker", "brb")
    broker.send(B2, Ready(STREAM, 1, b"a" * 32))
    for member in ready:
        broker.hear(member, Ready(STREAM, 1, b"a" * 32))
    broker.now += OVERDUE_MS
    rows = broker.rows("missing")
    assert {row.accused for row in rows if row.message == "Ready"} == missing
    broker.hear(B2, Ready(STREAM, 1, b"a" * 32))  # a repetition starts no new expectation
    broker.now += OVERDUE_MS
    assert broker.rows("missing") == []


@pytest.mark.parametrize(("settled", "missing"), [((1,), set()), ((1, 1), {B3, B4})])
def test_history_settled_by_f_plus_one_brokers_must_be_acknowledged_by_all(
    settled: tuple[int, ...], missing: set[NodeId]
) -> None:
    alice = Watched(ALICE, "publisher", "chain+history")
    for broker, number in zip((B1, B2), settled, strict=False):
        alice.hear(broker, Ack(STREAM.history, 3, 10, number))
    alice.now += OVERDUE_MS
    rows = alice.rows("missing")
    assert {(row.accused, row.lane) for row in rows} == {(broker, 1) for broker in missing}


@pytest.mark.parametrize(("voting", "missing"), [((B1,), set()), ((B1, B2), {B3, B4})])
def test_history_with_f_plus_one_votes_must_be_voted_for_by_all(
    voting: tuple[NodeId, ...], missing: set[NodeId]
) -> None:
    bob = Watched(BOB, "subscriber", "chain+history")
    bob.answered()
    for broker in voting:
        bob.hear(broker, Vote(STREAM.history, 1, digests(b"a history")))
    bob.now += OVERDUE_MS
    rows = [row for row in bob.rows("missing") if row.message == "Vote"]
    assert {(row.accused, row.lane) for row in rows} == {(broker, 1) for broker in missing}


def test_proposal_without_contents_is_noted_once_per_instance() -> None:
    broker = Watched(B4, "broker", "total")
    for instance in (1, 2):
        items = [Item(STREAM, 3 * instance + n, digests(b"%d" % n)) for n in range(3)]
        broker.hear(B1, Propose(Protection.BYZANTINE, 0, instance, tuple(items)))
    broker.now += OVERDUE_MS
    rows = [row for row in broker.rows("missing") if row.message == "Propose"]
    assert sum(row.count for row in rows) == 2


def test_standing_that_leaves_a_begun_regency_is_backwards() -> None:
    broker = leading()
    broker.hear(B3, msgspec.structs.replace(STANDING, synced=False))
    broker.hear(B4, msgspec.structs.replace(STANDING, regency=1, synced=False))
    assert broker.found("backwards") == {(B3, "synced", "Standing")}


@pytest.mark.parametrize("regency", [0, 4])
def test_empty_proposal_is_noted_unless_it_fills_an_open_instance(
    regency: int,
) -> None:
    broker = Watched(B2, "broker", "total")
    left_open = 2 * broker.cell.manifest.channels[0].policy.limits.pipeline if regency else 0
    for instance in (*range(1, left_open + 1), left_open, 1):
        broker.hear(B1, Propose(Protection.BYZANTINE, regency, instance, ()))
    assert broker.found("passes-over") == ({(B1, "hollow", "Propose")} if not regency else set())
    for instance in (left_open + 2, left_open + 2, left_open + 3):
        broker.hear(B1, Propose(Protection.BYZANTINE, regency, instance, ()))
    (row,) = broker.rows("passes-over")
    assert (row.accused, row.reason, row.count) == (B1, "hollow", 2)


def led(instance: int, regency: int = 0) -> Write:
    return Write(Protection.BYZANTINE, regency, instance, b"v" * 32)


def test_leader_that_votes_without_a_proposal_is_noted() -> None:
    broker = Watched(B2, "broker", "total")
    broker.hear(B1, STANDING)
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, ()))
    broker.hear(B1, led(1))
    broker.hear(B3, led(2))
    assert broker.rows("backwards") == [], "it follows, and votes when it likes"
    broker.hear(B1, led(2))
    broker.hear(B1, led(3))
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 3, ()))
    broker.hear(B1, led(3))
    (row,) = broker.rows("backwards")
    assert (row.accused, row.reason, row.message) == (B1, "voted-first", "Propose")
    assert row.count == 2


@pytest.mark.parametrize(
    "case", ["elsewhere", "unheard", "restarted", "lost", "accepts", "next epoch"]
)
def test_leader_vote_without_a_proposal_is_excused(case: str) -> None:
    broker = Watched(B2, "broker", "total")
    if case != "unheard":
        broker.hear(B1, STANDING)
    if case == "restarted":
        broker.event(Disconnected(B1))
        broker.event(Connected(B1))
        broker.now += LATER
        # It has its votes from its journal, and repeats them: no new leader may propose them.
        broker.hear(B1, Standing(Protection.BYZANTINE, 0, 0, 1))
    if case == "lost":
        broker.observer.on_lost(B1, Millis(broker.now))
    if case == "next epoch":
        broker.hear(B1, Standing(Protection.BYZANTINE, first_regency(2), 0, 0))
    # It stands in regency 0, which nobody leads who votes in that of 4.
    vote = Accept(Protection.BYZANTINE, 0, 1, b"v" * 32) if case == "accepts" else led(1)
    regency = {"elsewhere": 4, "next epoch": first_regency(2)}.get(case, 0)
    broker.hear(B1, led(1, regency) if regency else vote)
    assert broker.rows("backwards") == []


def test_ordering_messages_of_clients_are_ignored() -> None:
    broker = Watched(B2, "broker", "total")
    for seat in ("alice#1", "alice#2"):
        broker.hear(NodeId(seat), Standing(Protection.BYZANTINE, 0, 9, 9, checkpoint=8, root=b"z"))
    broker.hear(B1, Standing(Protection.BYZANTINE, 0, 9, 9, checkpoint=8, root=b"y"))
    assert broker.rows("contradicts") == []


def test_acknowledgement_of_less_than_before_is_backwards() -> None:
    alice = Watched(ALICE, "publisher")
    for number in (1, 2, 3):
        alice.send(B1, Publish(STREAM, number, digests(b"1")))
    for upto in (1, 3, 2):
        alice.hear(B1, Ack(STREAM, upto, 10))
    assert alice.found("backwards") == {(B1, "", "Ack")}


def answers(watched: Watched, kind: str) -> dict[tuple[str, str], int]:
    """Answers that came, or are missing, by broker and channel."""
    rows = [row for row in watched.rows(kind) if row.message == ANSWER]
    return {(row.accused, row.channel): row.count for row in rows}


@pytest.mark.parametrize("often", [1, 2])
def test_unanswered_request_counts_twice_if_it_was_repeated(often: int) -> None:
    bob = Watched(BOB, "subscriber")
    for _ in range(often):
        for broker in (B1, B2, B3):
            bob.send(broker, Subscribe(ORDERS, (), bodies=False))
    bob.hear(B1, Positions(ORDERS, ()))
    bob.hear(B3, Refuse(ORDERS, "no place"))
    bob.now += OVERDUE_MS
    assert answers(bob, "missing") == {(B2, ORDERS): often}
    bob.hear(B2, Positions(ORDERS, ()))
    assert answers(bob, "came") == {(B2, ORDERS): 1}, "late is better than never"


def test_answers_are_expected_per_channel() -> None:
    broker = Watched(B1, "broker")
    for channel in (ORDERS, Channel("quotes")):
        broker.send(B2, Survey(channel))
    broker.hear(B2, Positions(ORDERS, ()))
    broker.now += OVERDUE_MS
    assert answers(broker, "missing") == {(B2, "quotes"): 1}


def test_ack_answers_the_open_of_a_publisher() -> None:
    alice = Watched(ALICE, "publisher", "chain")
    for broker in (B1, B2):
        alice.send(broker, Open(STREAM, 1, 1))
    alice.hear(B1, Ack(STREAM, 0, 10))
    alice.now += OVERDUE_MS
    assert answers(alice, "missing") == {(B2, ORDERS): 1}


@pytest.mark.parametrize(("after_ms", "missing"), [(MENDED_MS - 1, {}), (MENDED_MS, {B2: 1})])
@pytest.mark.parametrize("how", ["packets", "link"])
def test_request_that_may_have_been_lost_does_not_count_as_unanswered(
    how: str, after_ms: int, missing: dict[str, int]
) -> None:
    bob = Watched(BOB, "subscriber")
    if how == "packets":
        bob.observer.on_lost(B1, Millis(bob.now))
    else:
        bob.event(Disconnected(B2))
        bob.event(Connected(B2))
    bob.now += after_ms
    bob.send(B2, Subscribe(ORDERS, (), bodies=False))
    bob.now += OVERDUE_MS
    assert {who: count for (who, _), count in answers(bob, "missing").items()} == missing


def test_leader_that_never_sends_proposed_contents_is_noted() -> None:
    broker = Watched(B2, "broker", "total")
    item, other = Item(STREAM, 1, digests(b"1")), Item(STREAM, 2, digests(b"2"))
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, (item, other)))
    broker.hear(B1, Offer(STREAM, 1, item.digests))
    broker.hear(B3, Offer(STREAM, 2, digests(b"another")))
    broker.now += OVERDUE_MS
    missing = [row for row in broker.rows("missing") if row.message == "Propose"]
    assert [(row.accused, row.number, row.count) for row in missing] == [(B1, 2, 1)]


@pytest.mark.parametrize("how", ["decided", "logged"])
def test_contents_of_a_decided_batch_are_not_missing(how: str) -> None:
    broker = Watched(B2, "broker", "total")
    batch = (Item(STREAM, 1, digests(b"1")),)
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, batch))
    if how == "logged":
        broker.hear(B3, LogPart(Protection.BYZANTINE, 1, (batch,)))
    for member in (B1, B3, B4) if how == "decided" else ():
        broker.hear(member, Accept(Protection.BYZANTINE, 0, 1, b"v" * 32))
    broker.now += OVERDUE_MS
    assert [row for row in broker.rows("missing") if row.message == "Propose"] == []


def test_missing_proposed_contents_after_a_loss_are_noted_as_mended() -> None:
    broker = Watched(B2, "broker", "total")
    broker.observer.on_lost(B1, Millis(broker.now))
    item = Item(STREAM, 1, digests(b"1"))
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, (item,)))
    broker.now += OVERDUE_MS
    missing = [row for row in broker.rows("missing") if row.message == "Propose"]
    assert [(row.accused, row.reason) for row in missing] == [(B1, MENDED)]


@pytest.mark.parametrize("apart_ms", [1, 100])
def test_two_signed_versions_of_an_offer_prove_equivocation(
    apart_ms: int,
) -> None:
    broker = Watched(B2, "broker", "total")
    keyring = broker.cell.keyring(ALICE)
    for sender, contents in ((ALICE, digests(b"1")), (B1, digests(b"2")), (B3, digests(b"3"))):
        signature = sign_offer(keyring, STREAM, 1, contents) if sender != B3 else bytes(64)
        broker.hear(sender, Offer(STREAM, 1, contents, signature))
        broker.now += apart_ms
    held = [(B2, document.data) for document in broker.observer.take_documents()]
    assert len(held) == 2
    (proof,) = find_proofs([broker.cell.manifest], [], held)
    assert (proof.accused, proof.deed) == (ALICE, "equivocated")
    assert broker.cell.court.why_evidence_fails(proof.evidence) is None
    assert find_proofs([broker.cell.manifest], [], held[:1]) == []


def test_two_signed_versions_of_an_offer_prove_nothing_where_a_publisher_may_resume() -> None:
    """An earlier life offered something and lost its memory; nobody lied."""
    broker = Watched(B2, "broker", "total")
    keyring, stream = broker.cell.keyring(ALICE), Stream(ORDERS, ALICE, resumable(5, 3))
    for contents in (digests(b"1"), digests(b"2")):
        broker.hear(ALICE, Offer(stream, 1, contents, sign_offer(keyring, stream, 1, contents)))
    held = [(B2, document.data) for document in broker.observer.take_documents()]
    assert find_proofs([broker.cell.manifest], [], held) == []
    signed = tuple(found for _, data in held if (found := read_signed(data)) is not None)
    assert len(signed) == 2
    evidence = Evidence(kind=EvidenceKind.CONFLICT, accused=ALICE, against=signed)
    assert broker.cell.court.why_evidence_fails(evidence) is not None


def test_missed_message_with_an_absurd_count_is_a_boast() -> None:
    broker = Watched(B1, "broker", "chain")
    broker.hear(BOB, Missed(STREAM, 1, 10**9))
    broker.hear(B2, Missed(STREAM, 1, 3))
    assert broker.found("boasts") == {(BOB, "missed", "Missed")}


def test_contents_that_do_not_match_their_digests_contradict_even_unrequested() -> None:
    broker = Watched(B1, "broker", "brb")
    broker.event(Receive(B2, Contents(STREAM, 1, digests(b"1")), (b"1",)))
    broker.event(Receive(B3, Contents(STREAM, 1, digests(b"1")), (b"other",)))
    assert broker.found("contradicts") == {(B3, "digests", "Contents")}


@pytest.mark.parametrize("order", [(B1, B2, B3), (B3, B1, B2)])
def test_vote_against_f_plus_one_others_contradicts(order: tuple[NodeId, ...]) -> None:
    bob = Watched(BOB, "subscriber")
    for broker in order:
        contents = b"other" if broker == B3 else b"1"
        bob.hear(broker, Vote(STREAM, 1, digests(contents)))
    assert bob.found("contradicts") == {(B3, "others", "Vote")}


@pytest.mark.parametrize(
    ("policy", "voting", "accepted", "missing"),
    [
        ("ab", (B1,), False, set()),
        ("ab", (B1, B2), False, {B3, B4}),
        ("ab", (B1, B2, B3), True, {B4}),
        ("chain", (B1, B2), False, set()),  # not everybody is on the chain
    ],
)
def test_vote_of_f_plus_one_brokers_is_due_from_all_without_acceptance(
    policy: str, voting: tuple[NodeId, ...], accepted: bool, missing: set[NodeId]
) -> None:
    bob = Watched(BOB, "subscriber", policy)
    bob.answered()
    for broker in voting:
        bob.hear(broker, Vote(STREAM, 1, digests(b"1")))
    if accepted:
        bob.accept(1)
    bob.now += OVERDUE_MS
    rows = [row for row in bob.rows("missing") if row.message == "Vote"]
    assert {(row.accused, row.count) for row in rows} == {(broker, 1) for broker in missing}


def leading(**changes: Standing) -> Watched:
    """A broker that has heard of everybody where they are."""
    broker = Watched(B2, "broker", "total")
    for member in (B1, B3, B4):
        broker.hear(member, changes.get(member, STANDING))
    return broker


def given_up(broker: Watched, standing: Standing = STANDING) -> bool:
    """Whether a leader is noted as idle, long after it was given up."""
    broker.hear(B1, standing)
    broker.send(B1, Stop(Protection.BYZANTINE, standing.regency + 1))
    broker.now += OVERDUE_MS
    found = broker.found("gave-up")
    assert found <= {(B1, "idle", "Stop")}
    return bool(found)


def test_regency_near_only_f_others_is_a_boast() -> None:
    far = msgspec.structs.replace(STANDING, regency=10 * FAR_AHEAD)
    broker = leading(**{B3: far})
    broker.hear(B4, far)
    assert broker.found("boasts") == {(B4, "regency", "Standing")}
    broker.hear(B3, far)
    assert broker.found("boasts") == {(B3, "regency", "Standing")}


CHUNKS, OTHERS = (digests(b"state"),), (digests(b"other"),)


@pytest.mark.parametrize(
    ("sender", "checkpoint", "chunks", "kind", "reason"),
    [
        (B1, 8, OTHERS, "contradicts", "itself"),
        (B4, 8, OTHERS, "contradicts", "others"),
        (B1, 10 * FAR_AHEAD, OTHERS, "boasts", "ahead"),
    ],
)
def test_state_transfer_that_contradicts_its_checkpoint_is_noted(
    sender: NodeId, checkpoint: int, chunks: tuple[bytes, ...], kind: str, reason: str
) -> None:
    there = msgspec.structs.replace(STANDING, decided=9, checkpoint=8, root=root_of(CHUNKS))
    elsewhere = msgspec.structs.replace(STANDING, decided=9, checkpoint=4)
    broker = leading(**{B1: there, B3: there, B4: elsewhere})
    broker.hear(sender, StateHead(Protection.BYZANTINE, checkpoint, chunks))
    assert broker.found(kind) == {(sender, reason, "StateHead")}


@pytest.mark.parametrize(
    ("sender", "checkpoint", "chunks"),
    [(B1, 8, CHUNKS), (B4, 8, CHUNKS), (B4, 6, OTHERS), (B4, FAR_AHEAD, OTHERS)],
)
def test_state_transfer_without_a_known_checkpoint_is_not_noted(
    sender: NodeId, checkpoint: int, chunks: tuple[bytes, ...]
) -> None:
    there = msgspec.structs.replace(STANDING, decided=9, checkpoint=8, root=root_of(CHUNKS))
    broker = leading(**{B1: there, B3: there, B4: STANDING})
    broker.hear(sender, StateHead(Protection.BYZANTINE, checkpoint, chunks))
    assert broker.found("contradicts") == broker.found("boasts") == set()


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ((B2, B3, B4), {B4}),
        ((B4, B2, B3), {B4}),  # it had spoken before
        ((B3, B4), set()),  # one of two
    ],
)
def test_log_part_against_f_plus_one_others_contradicts(
    order: tuple[NodeId, ...], found: set[NodeId]
) -> None:
    broker = Watched(B1, "broker", "total")
    batches = ((Item(STREAM, 1, digests(b"1")),), (Item(STREAM, 2, digests(b"2")),))
    for member in order:
        said = batches[::-1] if member == B4 else batches
        broker.hear(member, LogPart(Protection.BYZANTINE, 5, said))
    rows = [row for row in broker.rows("contradicts") if row.message == "LogPart"]
    assert {(row.accused, row.reason, row.count) for row in rows} == {
        (b, "others", 1) for b in found
    }


def test_member_that_is_fresh_again_in_one_session_is_backwards() -> None:
    fresh = msgspec.structs.replace(STANDING, fresh=True)
    broker = leading(**{B3: fresh})
    broker.hear(B3, STANDING)
    broker.event(Disconnected(B4))
    broker.event(Connected(B4))
    for member in (B1, B4):
        broker.hear(member, fresh)
    assert broker.found("backwards") == {(B1, "fresh", "Standing")}


@pytest.mark.parametrize(("order", "missing"), [((B1, B2, B3), {(B3, "", "Contents")}),
                                                ((B1, B3, B2), set())])  # fmt: skip
def test_last_broker_of_a_chain_sends_contents_unasked(
    order: tuple[NodeId, ...], missing: set[tuple[str, str, str]]
) -> None:
    bob = Watched(BOB, "subscriber", "chain")
    bob.hear(B3, Vote(STREAM, 1, digests(b"1"), order))
    assert bob.found("missing") == missing


BROKEN = Suspect(B1, Suspicion.BROKEN_CHAIN, STREAM, 1, (B1, B2))


def test_acknowledgement_of_what_was_never_sent_is_a_boast() -> None:
    alice = Watched(ALICE, "publisher")
    alice.send(B1, Publish(STREAM, 1, digests(b"1")))
    alice.hear(B1, Ack(STREAM, 1, 10))
    alice.hear(B2, Ack(STREAM, 2, 10))
    assert alice.found("boasts") == {(B2, "unsent", "Ack")}


def test_acknowledgement_of_an_earlier_incarnation_is_no_boast() -> None:
    alice = Watched(ALICE, "publisher", "total")
    resumed = Stream(ORDERS, ALICE, resumable(1, 1))
    alice.hear(B1, Ack(resumed, 5, 10))
    assert alice.found("boasts") == set()


def test_position_far_from_all_others_is_a_boast() -> None:
    bob = Watched(BOB, "subscriber")
    for broker, end in ((B1, 5), (B2, 6), (B3, 10**6)):
        bob.hear(broker, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert bob.found("boasts") == {(B3, "ahead", "Positions")}


def test_position_is_a_boast_in_any_order_and_beside_another_boast() -> None:
    bob = Watched(BOB, "subscriber", n=7)
    b5, b6, b7 = (NodeId(f"broker-{k}") for k in (5, 6, 7))
    claims = ((B1, 10**6), (B2, 2**61), (B3, 5), (B4, 6), (b5, 5), (b6, 7), (b7, 5))
    for broker, end in claims:
        bob.hear(broker, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert bob.found("boasts") == {(B1, "ahead", "Positions"), (B2, "ahead", "Positions")}


def test_position_is_no_boast_if_only_one_other_is_far_behind() -> None:
    broker = Watched(B2, "broker")
    for other, end in ((B1, 5000), (B3, 5000), (B4, 5)):
        broker.hear(other, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert broker.found("boasts") == set()


def test_position_is_no_boast_if_too_few_others_report() -> None:
    bob = Watched(BOB, "subscriber")
    for broker, end in ((B1, 10**6), (B2, 5)):
        bob.hear(broker, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert bob.found("boasts") == set()


@pytest.mark.parametrize(("reached", "boasts"), [(3000, {"boasts"}), (4900, set())])
def test_position_is_no_boast_if_others_come_near_it_in_time(
    reached: int, boasts: set[str]
) -> None:
    broker = Watched(B4, "broker")
    for other, end in ((B1, 5), (B2, 6), (B3, 5000)):
        broker.hear(other, Positions(ORDERS, (Position(STREAM, 1, end),)))
    broker.hear(ALICE, Publish(STREAM, reached, digests(b"1")))
    broker.now += PROBATION_MS
    broker.hear(B1, vote(1))
    broker.hear(ALICE, Publish(STREAM, 5000, digests(b"1")))
    assert {row.kind for row in broker.rows("boasts")} == boasts


def test_ready_for_another_run_than_our_own_contradicts() -> None:
    broker = Watched(B1, "broker", "brb")
    broker.hear(B2, Ready(STREAM, 1, b"a" * 32))
    broker.send(B2, Ready(STREAM, 1, b"b" * 32))
    broker.hear(B3, Ready(STREAM, 1, b"b" * 32))
    broker.hear(B4, Ready(STREAM, 1, b"c" * 32))
    broker.hear(B4, Ready(STREAM, 1, b"b" * 32))
    assert broker.found("contradicts") == {
        (B2, "others", "Ready"), (B4, "others", "Ready"), (B4, "itself", "Ready"),
    }  # fmt: skip


def test_leader_vote_against_f_plus_one_others_contradicts_as_leading() -> None:
    broker = Watched(B4, "broker", "total")
    for sender, value in ((B1, b"a"), (B2, b"b"), (B3, b"b")):
        broker.hear(sender, Write(Protection.BYZANTINE, 0, 1, value * 32))
    assert broker.found("contradicts") == {(B1, "leading", "Write")}


def test_suspicions_and_drops_of_the_machine_are_noted_with_the_message() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(1))
    bob.effect(Suspect(B1, Suspicion.DISSENT, STREAM, 1))
    bob.effect(Drop(DropReason.BAD_RUN, B1))
    assert bob.found("suspect") == {(B1, "dissent", "Vote")}
    assert bob.found("refused") == set()  # rows are handed out once


def test_flood_of_different_observations_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "MAX_DIFFERENT", 8)
    bob = Watched(BOB, "subscriber")
    for incarnation in range(100):
        stream = type(STREAM)(ORDERS, ALICE, incarnation)
        bob.effect(Suspect(B1, Suspicion.DISSENT, stream, 1))
    rows = bob.rows("suspect")
    assert len(rows) <= 9
    assert sum(row.count for row in rows) == 100


def test_messages_with_contents_are_counted_apart() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(1))
    bob.event(Receive(B1, vote(2), (b"2",)))
    assert bob.found("heard") == {(B1, "", "Vote"), (B1, CONTENTS, "Vote")}


def test_rows_become_columns_with_run_and_shifted_times() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(1))
    rows = bob.rows("heard")
    columns = columns_of("run-1", rows, shift_ms=1000)
    assert list(columns) == list(COLUMNS)
    assert columns["run"] == ["run-1"]
    assert columns["t_ms"] == [rows[0].t_ms + 1000]


@pytest.mark.parametrize(("heard", "reason"), [(True, ""), (False, "mute")])
def test_missing_message_of_a_silent_broker_is_noted_as_mute(heard: bool, reason: str) -> None:
    broker = Watched(B1, "broker", "brb")
    broker.send(B2, Ready(STREAM, 1, b"a" * 32))
    for member in (B2, B3):
        broker.hear(member, Ready(STREAM, 1, b"a" * 32))
    broker.now += 1
    if heard:
        broker.hear(B4, Positions(ORDERS, ()))
    broker.now += OVERDUE_MS
    rows = broker.rows("missing")
    assert {(row.accused, row.reason) for row in rows if row.message == "Ready"} == {(B4, reason)}


def offered_to_others(*, lossy: bool = False, life: int | None = None) -> list[Observation]:
    """What a broker misses of Alice when leaders propose, again and again, what she offered."""
    broker = Watched(B2, "broker", "total")
    broker.now = 0
    broker.event(Connected(ALICE))
    broker.now = LATER
    if lossy:
        broker.observer.on_lost(B3, Millis(broker.now - MENDED_MS + 1))
    if life is not None:
        lives = msgspec.structs.replace(STREAM, incarnation=life)
        broker.hear(ALICE, Offer(lives, 7, digests(b"7")))
    for instance in (1, 2):
        batch = (Item(STREAM, 1, digests(b"1")),)
        broker.hear(B1, Propose(Protection.BYZANTINE, 0, instance, batch))
        broker.now += OVERDUE_MS
        broker.observer.maybe_sweep(Millis(broker.now))
    return [row for row in broker.rows("missing") if row.accused == ALICE]


@pytest.mark.parametrize(("lossy", "reason"), [(False, ""), (True, MENDED)])
def test_publisher_that_does_not_send_a_proposed_offer_is_noted_once(
    lossy: bool, reason: str
) -> None:
    (row,) = offered_to_others(lossy=lossy)
    assert (row.reason, row.message, row.count) == (reason, "Offer", 1)


@pytest.mark.parametrize(("life", "missing"), [(1, 1), (2, 0)])
def test_restarted_publisher_does_not_owe_offers_of_an_earlier_incarnation(
    life: int, missing: int
) -> None:
    """A publisher that crashed before it had offered a run to all knows nothing of the run."""
    assert len(offered_to_others(life=life)) == missing


def test_signed_statement_of_a_broker_is_kept_once() -> None:
    bob = Watched(BOB, "subscriber", "brb")
    checkpoint = Checkpoint(bob.cell.segment(B2, 1, b"other")[1])
    for _ in range(2):
        bob.hear(B2, checkpoint)
    (document,) = bob.observer.take_documents()
    assert (document.kind, document.subject) == ("statement", B2)
    assert read_signed(document.data) == checkpoint.statement
