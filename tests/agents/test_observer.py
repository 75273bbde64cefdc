"""The observer: what a node notices of its peers, from events and effects alone. n = 4, f = 1."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, ORDERS, STREAM, Cell, digests

from quorumcast.agents.line import TAIL_MS
from quorumcast.agents.observing import observation
from quorumcast.agents.observing.claims import FAR_AHEAD, PROBATION_MS
from quorumcast.agents.observing.observation import COLUMNS, Observation, columns_of
from quorumcast.agents.observing.observer import Observer
from quorumcast.agents.observing.ordering_watch import TIRED_MS, UNSHOWN
from quorumcast.agents.observing.splits import MAX_SPLITS
from quorumcast.agents.observing.turnout import (
    BUCKETS,
    MENDED,
    MENDED_MS,
    PATIENCE_MS,
    SETTLED_MS,
    STILL_MS,
    bucket_of,
)
from quorumcast.core.ids import Channel, Digest, Millis, NodeId, Stream, resumable
from quorumcast.core.machine import (
    Connected,
    Deliver,
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
from quorumcast.core.messages import (
    Accept,
    Ack,
    ChainRun,
    Checkpoint,
    Contents,
    Echo,
    Item,
    LogPart,
    Missed,
    Offer,
    Open,
    Position,
    Positions,
    Propose,
    Publish,
    Pull,
    Ready,
    Refuse,
    Standing,
    StateHead,
    Stop,
    Subscribe,
    Survey,
    Unsubscribe,
    Vote,
    Write,
)
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Basis, Evidence, EvidenceKind
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.epochs import first_regency
from quorumcast.ordering.offers import sign_offer
from quorumcast.ordering.state import root_of
from quorumcast.pipeline.audit.proofs import find_proofs, read_signed

BROKERS = (B1, B2, B3, B4)
#: Links that have been up for a while.
LATER = PATIENCE_MS
STANDING = Standing(Protection.BYZANTINE, 0, 0, 0)


class Watched:
    """An observer of one node, and the time."""

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


def test_vote_that_never_comes_is_missing_and_late_ones_are_classed() -> None:
    bob = Watched(BOB, "subscriber")
    for broker in (B1, B2):
        bob.hear(broker, vote(1))
    bob.accept(1)
    bob.now += 50
    bob.hear(B3, vote(1))
    bob.now += PATIENCE_MS
    rows = bob.rows("came")
    assert {row.accused: row.number for row in rows} == {
        B1: BUCKETS[0], B2: BUCKETS[0], B3: bucket_of(50),
    }  # fmt: skip
    assert bucket_of(50) == 80


def test_missing_vote_is_told_with_its_number() -> None:
    bob = Watched(BOB, "subscriber")
    bob.answered()
    bob.hear(B1, vote(7))
    bob.accept(7)
    bob.now += PATIENCE_MS
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
    bob.now += PATIENCE_MS
    assert {row.accused for row in bob.rows("missing")} == {B1, B4}


def test_no_vote_is_missing_of_a_broker_that_may_not_know_of_the_subscription() -> None:
    bob = Watched(BOB, "subscriber")
    bob.answered()
    bob.send(B1, Unsubscribe(ORDERS))
    bob.event(Connected(B2))
    bob.hear(B2, Positions(Channel("quotes"), ()))
    bob.now += PATIENCE_MS
    bob.accept(2)
    bob.now += PATIENCE_MS
    assert {row.accused for row in bob.rows("missing")} == {B3, B4}


def test_broker_that_votes_knows_of_the_subscription_unless_there_was_another_before() -> None:
    bob = Watched(BOB, "subscriber")
    bob.send(B2, Unsubscribe(ORDERS))
    bob.event(Connected(B4))
    for broker in (B1, B2):
        bob.hear(broker, vote(1))
    bob.now += PATIENCE_MS
    bob.accept(2)
    bob.now += PATIENCE_MS
    assert {row.accused for row in bob.rows("missing")} == {B1}


@pytest.mark.parametrize(
    ("answered", "policy", "after_ms", "missing"),
    [
        (True, "ab", 0, {(B1, "", "Contents")}),
        (True, "ab+journal", PATIENCE_MS // 2, {(B1, "", "Contents")}),
        (True, "ab+journal", PATIENCE_MS // 2 - 1, set()),  # its disk had that vote before
        (False, "ab", PATIENCE_MS // 2, set()),
    ],
)
def test_source_that_answered_owes_contents_with_every_vote_whatever_got_lost(
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


def test_answer_to_an_earlier_request_promises_no_contents() -> None:
    bob = Watched(BOB, "subscriber")
    for bodies in (False, True):
        bob.send(B1, Subscribe(ORDERS, (), bodies=bodies))
    bob.hear(B1, Positions(ORDERS, ()))
    bob.observer.on_lost(B1, Millis(bob.now))
    bob.hear(B1, vote(1))
    assert bob.found("missing") == set()


@pytest.mark.parametrize(("answered", "missing"), [(True, {(B1, "", "Pull")}), (False, set())])
def test_source_withholds_contents_only_if_it_knows_that_it_is_one(
    answered: bool, missing: set[tuple[str, str, str]]
) -> None:
    bob = Watched(BOB, "subscriber")
    bob.send(B1, Subscribe(ORDERS, (), bodies=True))
    if answered:
        bob.hear(B1, Positions(ORDERS, ()))
    bob.effect(Suspect(B1, Suspicion.WITHHOLDS, STREAM, 1))
    assert bob.found("missing") == missing


@pytest.mark.parametrize(("lost", "missing"), [(False, {(B1, "", "Contents")}), (True, set())])
def test_source_that_has_not_answered_may_not_have_heard_where_packets_get_lost(
    lost: bool, missing: set[tuple[str, str, str]]
) -> None:
    bob = Watched(BOB, "subscriber")
    bob.send(B1, Subscribe(ORDERS, (), bodies=True))
    if lost:
        bob.observer.on_lost(B3, Millis(bob.now))
    bob.now += PATIENCE_MS // 2
    bob.hear(B1, vote(1))
    assert bob.found("missing") == missing


def test_broker_that_does_not_say_what_it_is_sure_of_leaves_a_request_unanswered() -> None:
    broker = Watched(B1, "broker")
    for peer in (B2, B3):
        broker.send(peer, Survey(ORDERS))
    broker.hear(B3, Positions(ORDERS, ()))
    broker.now += PATIENCE_MS
    assert broker.found("unanswered") == {(B2, "", "Survey")}


@pytest.mark.parametrize(("ready", "missing"), [((B2,), set()), ((B2, B3), {B4})])
def test_ready_is_owed_once_so_many_are_ready_that_all_will_be(
    ready: tuple[NodeId, ...], missing: set[NodeId]
) -> None:
    broker = Watched(B1, "broker", "brb")
    broker.send(B2, Ready(STREAM, 1, b"a" * 32))
    for member in ready:
        broker.hear(member, Ready(STREAM, 1, b"a" * 32))
    broker.now += PATIENCE_MS
    rows = broker.rows("missing")
    assert {row.accused for row in rows if row.message == "Ready"} == missing
    broker.hear(B2, Ready(STREAM, 1, b"a" * 32))  # what is said again is owed by nobody again
    broker.now += PATIENCE_MS
    assert broker.rows("missing") == []


@pytest.mark.parametrize(("echoed", "owed"), [((B2,), set()), ((B2, B3), {(ALICE, "Publish")})])
def test_publisher_owes_a_broker_what_f_plus_one_others_echo(
    echoed: tuple[NodeId, ...], owed: set[tuple[str, str]]
) -> None:
    broker = Watched(B1, "broker", "brb")
    broker.now = 0
    broker.event(Connected(ALICE))
    broker.now = LATER
    for member in echoed:
        broker.hear(member, Echo(STREAM, 1, b"a" * 32))
    broker.now += PATIENCE_MS
    assert {(row.accused, row.message) for row in broker.rows("missing")} == owed


@pytest.mark.parametrize(("proposed", "unshown"), [(True, set()), (False, {B1})])
def test_leader_that_does_not_show_what_others_decide_is_told(
    proposed: bool, unshown: set[NodeId]
) -> None:
    broker = Watched(B4, "broker", "total")
    if proposed:
        broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, ()))
    for member in (B1, B2, B3):
        broker.hear(member, Accept(Protection.BYZANTINE, 0, 1, b"v" * 32))
    rows = broker.rows("missing")
    assert {row.accused for row in rows if row.reason == UNSHOWN} == unshown


@pytest.mark.parametrize(("awake", "is_idle"), [((B2, B3), True), ((B3,), False)])
def test_leader_that_proposes_nothing_is_to_blame_while_others_lose_packets_if_it_may_lead(
    awake: tuple[NodeId, ...], is_idle: bool
) -> None:
    broker = leading()
    broker.hear(ALICE, Offer(STREAM, 1, digests(b"1"), b""))
    item = Item(STREAM, 1, digests(b"1"))
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, (item,)))
    broker.now += TIRED_MS
    broker.observer.on_lost(B3, Millis(broker.now))
    standing = msgspec.structs.replace(STANDING, decided=1, awake=awake)
    assert given_up(broker, standing) is is_idle


@pytest.mark.parametrize("proposed", [True, False])
def test_leader_that_proposes_nothing_is_to_blame_even_while_a_voter_is_away(
    proposed: bool,
) -> None:
    broker = leading()
    broker.event(Disconnected(B3))
    broker.hear(ALICE, Offer(STREAM, 1, digests(b"1"), b""))
    if proposed:
        item = Item(STREAM, 1, digests(b"1"))
        broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, (item,)))
    broker.now += TIRED_MS
    assert given_up(broker) is not proposed


def test_leader_whose_proposal_was_on_its_way_when_it_was_given_up_is_not_to_blame() -> None:
    broker = leading()
    broker.hear(ALICE, Offer(STREAM, 1, digests(b"1"), b""))
    broker.now += TIRED_MS
    broker.hear(B1, STANDING)
    broker.send(B1, Stop(Protection.BYZANTINE, 1))
    broker.now += PATIENCE_MS - 1
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, (Item(STREAM, 1, digests(b"1")),)))
    broker.now += PATIENCE_MS
    assert broker.found("gave-up") == set()


def test_leader_that_restarted_does_not_lead_again_in_the_same_regency() -> None:
    broker = leading()
    broker.event(Disconnected(B1))
    broker.event(Connected(B1))
    broker.hear(B1, STANDING)
    broker.hear(ALICE, Offer(STREAM, 1, digests(b"1"), b""))
    broker.now += TIRED_MS
    assert not given_up(broker)


@pytest.mark.parametrize(("regency", "is_idle"), [(0, False), (4, True)])
def test_leader_that_knew_of_instances_when_we_first_met_may_not_lead_again(
    regency: int, is_idle: bool
) -> None:
    """All brokers restart, and their observers with them: nobody is where it was for the first."""
    broker = leading(b1=Standing(Protection.BYZANTINE, 0, 0, 3))
    broker.hear(ALICE, Offer(STREAM, 1, digests(b"1"), b""))
    broker.now += TIRED_MS
    assert given_up(broker, Standing(Protection.BYZANTINE, regency, 0, 3)) is is_idle


def test_leader_that_proposes_nothing_is_to_blame_between_two_signs_of_life() -> None:
    broker = leading()
    broker.hear(ALICE, Offer(STREAM, 1, digests(b"1"), b""))
    broker.now += TIRED_MS
    broker.send(B1, Stop(Protection.BYZANTINE, 1))
    broker.now += PATIENCE_MS
    assert broker.found("gave-up") == {(B1, "idle", "Stop")}


def test_what_was_decided_long_ago_and_is_told_again_is_no_progress() -> None:
    broker = leading()
    broker.hear(ALICE, Offer(STREAM, 1, digests(b"1"), b""))
    for instance in (2, 1):
        for member in (B1, B3, B4):
            broker.hear(member, Accept(Protection.BYZANTINE, 0, instance, b"v" * 32))
        broker.now += TIRED_MS
        if instance == 2:
            broker.now -= 1
    assert given_up(broker)


@pytest.mark.parametrize(("own", "missing"), [(True, {B3}), (False, set())])
def test_own_vote_counts_where_one_other_makes_it_a_quorum(own: bool, missing: set[NodeId]) -> None:
    broker = Watched(B1, "broker", "total-crash", n=3)
    if own:
        broker.send(B2, Accept(Protection.CRASH, 0, 1, b"v" * 32))
    broker.hear(B2, Accept(Protection.CRASH, 0, 1, b"v" * 32))
    broker.now += 1
    broker.hear(B3, STANDING)
    broker.now += PATIENCE_MS
    rows = broker.rows("missing")
    assert {row.accused for row in rows if row.message == "Accept"} == missing
    assert B1 not in {row.accused for row in rows}


@pytest.mark.parametrize(("settled", "missing"), [((1,), set()), ((1, 1), {B3, B4})])
def test_history_that_one_correct_broker_settled_all_of_them_acknowledge(
    settled: tuple[int, ...], missing: set[NodeId]
) -> None:
    alice = Watched(ALICE, "publisher", "chain+history")
    for broker, number in zip((B1, B2), settled, strict=False):
        alice.hear(broker, Ack(STREAM.history, 3, 10, number))
    alice.now += PATIENCE_MS
    rows = alice.rows("missing")
    assert {(row.accused, row.lane) for row in rows} == {(broker, 1) for broker in missing}


@pytest.mark.parametrize(("voting", "missing"), [((B1,), set()), ((B1, B2), {B3, B4})])
def test_history_that_one_correct_broker_delivered_all_of_them_vote_for(
    voting: tuple[NodeId, ...], missing: set[NodeId]
) -> None:
    bob = Watched(BOB, "subscriber", "chain+history")
    bob.answered()
    for broker in voting:
        bob.hear(broker, Vote(STREAM.history, 1, digests(b"a history")))
    bob.now += PATIENCE_MS
    rows = [row for row in bob.rows("missing") if row.message == "Vote"]
    assert {(row.accused, row.lane) for row in rows} == {(broker, 1) for broker in missing}


def test_requests_are_told_by_channel() -> None:
    broker = Watched(B1, "broker")
    for channel in (ORDERS, Channel("quotes")):
        broker.send(B2, Survey(channel))
    broker.hear(B2, Positions(ORDERS, ()))
    broker.now += PATIENCE_MS
    rows = [*broker.rows("unanswered")]
    assert [(row.accused, row.channel, row.publisher) for row in rows] == [(B2, "quotes", "")]


def test_proposal_that_nobody_hands_over_counts_once_whatever_is_in_it() -> None:
    broker = Watched(B4, "broker", "total")
    for instance in (1, 2):
        items = [Item(STREAM, 3 * instance + n, digests(b"%d" % n)) for n in range(3)]
        broker.hear(B1, Propose(Protection.BYZANTINE, 0, instance, tuple(items)))
    broker.now += PATIENCE_MS
    rows = [row for row in broker.rows("missing") if row.message == "Propose"]
    assert sum(row.count for row in rows) == 2


def test_nobody_leaves_a_regency_that_it_has_begun_but_for_the_next() -> None:
    broker = leading()
    broker.hear(B3, msgspec.structs.replace(STANDING, synced=False))
    broker.hear(B4, msgspec.structs.replace(STANDING, regency=1, synced=False))
    assert broker.found("backwards") == {(B3, "synced", "Standing")}


def test_votes_out_of_order_are_backwards_unless_they_were_asked_for() -> None:
    bob = Watched(BOB, "subscriber")
    for number in (1, 3, 2):
        bob.hear(B1, vote(number))
    bob.send(B2, Subscribe(ORDERS, (), bodies=False))
    for number in (1, 3):
        bob.hear(B2, vote(number))
    bob.hear(B2, Positions(ORDERS, ()))
    for number in (2, 4, 9, 1, 10):
        bob.hear(B2, vote(number))
    assert bob.found("backwards") == {(B1, "", "Vote"), (B2, "repeated-when-asked", "Vote")}


@pytest.mark.parametrize(("answers", "backwards"), [(1, set()), (2, {B1})])
def test_votes_that_follow_a_late_answer_were_asked_for(
    answers: int, backwards: set[NodeId]
) -> None:
    bob = Watched(BOB, "subscriber")
    bob.send(B1, Subscribe(ORDERS, (), bodies=False))
    for _ in range(answers):
        bob.now += PATIENCE_MS + 1
        bob.hear(B1, vote(2))
        bob.hear(B1, Positions(ORDERS, ()))
        bob.now += PATIENCE_MS - 1
        bob.hear(B1, vote(1))
    assert {row.accused for row in bob.rows("backwards")} == backwards


def test_who_votes_again_as_it_was_asked_to_does_not_come_back_to_what_it_left_out() -> None:
    bob = Watched(BOB, "subscriber")
    bob.send(B1, Subscribe(ORDERS, (), bodies=False))
    bob.hear(B1, Positions(ORDERS, ()))
    for number in (4, 7, 5, 6):
        bob.hear(B1, vote(number))
    (row,) = bob.rows("backwards")
    assert (row.accused, row.reason, row.number, row.count) == (B1, "", 5, 2)


@pytest.mark.parametrize(("voted", "reason"), [(2, ""), (3, "voted")])
def test_contents_are_owed_by_whoever_voted_for_them(voted: int, reason: str) -> None:
    bob = Watched(BOB, "subscriber")
    for broker in (B1, B2):
        bob.hear(broker, vote(voted))
        bob.send(broker, Pull(STREAM, 3, 1))
    bob.hear(B2, Contents(STREAM, 3, digests(b"3")))
    bob.now += PATIENCE_MS
    assert bob.found("unanswered") == {(B1, reason, "Pull")}


@pytest.mark.parametrize("regency", [0, 4])
def test_leader_proposes_nothing_only_where_its_predecessors_left_something_open(
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


def test_leader_votes_for_what_it_has_proposed_and_for_nothing_else() -> None:
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
def test_leader_need_not_have_proposed_to_us_what_it_votes_for(case: str) -> None:
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


def test_member_that_has_just_decided_may_be_silent_for_two_rounds() -> None:
    """A checkpoint is said at once, the next round is left out, and the one after is said."""
    broker = Watched(B2, "broker", "total")
    for instance in range(1, 9):
        standing = Standing(Protection.BYZANTINE, 0, instance, instance)
        broker.hear(B1, standing)
        broker.now += 990
        broker.hear(B1, standing)
        broker.now += 500
    assert broker.rows("missing") == []


def test_clients_say_nothing_of_what_brokers_order() -> None:
    broker = Watched(B2, "broker", "total")
    for seat in ("alice#1", "alice#2"):
        broker.hear(NodeId(seat), Standing(Protection.BYZANTINE, 0, 9, 9, checkpoint=8, root=b"z"))
    broker.hear(B1, Standing(Protection.BYZANTINE, 0, 9, 9, checkpoint=8, root=b"y"))
    assert broker.rows("contradicts") == []


def test_votes_that_leave_numbers_out_are_counted_by_how_often() -> None:
    bob = Watched(BOB, "subscriber")
    for number in (1, 3, 9, 10):
        bob.hear(B1, vote(number))
    (row,) = bob.rows("skipped")
    assert (row.accused, row.message, row.count) == (B1, "Vote", 2)


def test_what_got_lost_was_not_left_out() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(1))
    bob.observer.on_lost(B1, Millis(bob.now))
    bob.hear(B1, vote(3))
    assert bob.rows("skipped") == []


def test_acknowledgement_of_less_than_before_is_backwards() -> None:
    alice = Watched(ALICE, "publisher")
    for number in (1, 2, 3):
        alice.send(B1, Publish(STREAM, number, digests(b"1")))
    for upto in (1, 3, 2):
        alice.hear(B1, Ack(STREAM, upto, 10))
    assert alice.found("backwards") == {(B1, "", "Ack")}


def test_leader_that_proposes_out_of_order_and_publisher_that_leaves_out_have_skipped() -> None:
    broker = Watched(B2, "broker", "total")
    for regency, instance in ((0, 1), (0, 3), (0, 2), (0, 4), (4, 9)):
        broker.hear(B1, Propose(Protection.BYZANTINE, regency, instance, ()))
    for number in (1, 2, 4):
        broker.hear(ALICE, Publish(STREAM, number, digests(b"1")))
    rows = broker.rows("skipped")
    assert {(row.accused, row.message, row.count) for row in rows} == {
        (B1, "Propose", 1), (ALICE, "Publish", 1),
    }  # fmt: skip


def test_publisher_that_shows_a_settled_run_to_others_only_owes_it() -> None:
    def shown_to_others(*, lossy: bool) -> set[tuple[str, str, str]]:
        broker = Watched(B1, "broker", "brb")
        broker.now = 0
        broker.event(Connected(ALICE))
        broker.now = LATER
        if lossy:
            broker.observer.on_lost(B2, Millis(broker.now - MENDED_MS + 1))
        broker.send(B2, Ready(STREAM, 1, b"a" * 32))
        broker.now += PATIENCE_MS
        found = broker.rows("missing")
        return {(row.accused, row.reason, row.message) for row in found if row.accused == ALICE}

    def spoken_of_again() -> int:
        broker = Watched(B1, "broker", "brb")
        broker.now = 0
        broker.event(Connected(ALICE))
        for _ in range(3):
            broker.now += LATER
            for other in (B2, B3):
                broker.hear(other, Echo(STREAM, 1, b"a" * 32))
        broker.now += PATIENCE_MS
        return sum(row.count for row in broker.rows("missing") if row.accused == ALICE)

    assert spoken_of_again() == 1, "who lacks one thing lacks it once"
    assert shown_to_others(lossy=False) == {(ALICE, "", "Publish")}
    assert shown_to_others(lossy=True) == {(ALICE, "mended", "Publish")}


def test_leader_that_never_hands_over_what_it_proposes_is_told() -> None:
    broker = Watched(B2, "broker", "total")
    item, other = Item(STREAM, 1, digests(b"1")), Item(STREAM, 2, digests(b"2"))
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, (item, other)))
    broker.hear(B1, Offer(STREAM, 1, item.digests))
    broker.hear(B3, Offer(STREAM, 2, digests(b"another")))
    broker.now += PATIENCE_MS
    missing = [row for row in broker.rows("missing") if row.message == "Propose"]
    assert [(row.accused, row.number, row.count) for row in missing] == [(B1, 2, 1)]


@pytest.mark.parametrize("how", ["decided", "logged"])
def test_what_others_decide_can_be_had_from_somebody(how: str) -> None:
    broker = Watched(B2, "broker", "total")
    batch = (Item(STREAM, 1, digests(b"1")),)
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, batch))
    if how == "logged":
        broker.hear(B3, LogPart(Protection.BYZANTINE, 1, (batch,)))
    for member in (B1, B3, B4) if how == "decided" else ():
        broker.hear(member, Accept(Protection.BYZANTINE, 0, 1, b"v" * 32))
    broker.now += PATIENCE_MS
    assert [row for row in broker.rows("missing") if row.message == "Propose"] == []


def test_leader_that_hands_nothing_over_is_told_though_packets_got_lost() -> None:
    broker = Watched(B2, "broker", "total")
    broker.observer.on_lost(B1, Millis(broker.now))
    item = Item(STREAM, 1, digests(b"1"))
    broker.hear(B1, Propose(Protection.BYZANTINE, 0, 1, (item,)))
    broker.now += PATIENCE_MS
    missing = [row for row in broker.rows("missing") if row.message == "Propose"]
    assert [(row.accused, row.reason) for row in missing] == [(B1, MENDED)]


@pytest.mark.parametrize("apart_ms", [1, 100])
def test_two_signed_versions_of_an_offer_are_kept_and_prove_that_their_publisher_lies(
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


def test_claim_to_have_missed_a_million_is_a_boast() -> None:
    broker = Watched(B1, "broker", "chain")
    broker.hear(BOB, Missed(STREAM, 1, 10**9))
    broker.hear(B2, Missed(STREAM, 1, 3))
    assert broker.found("boasts") == {(BOB, "missed", "Missed")}


def test_contents_that_do_not_match_their_digests_contradict_also_when_nobody_wants_them() -> None:
    broker = Watched(B1, "broker", "brb")
    broker.event(Receive(B2, Contents(STREAM, 1, digests(b"1")), (b"1",)))
    broker.event(Receive(B3, Contents(STREAM, 1, digests(b"1")), (b"other",)))
    assert broker.found("contradicts") == {(B3, "digests", "Contents")}


def test_broker_that_signs_otherwise_than_it_voted_contradicts_itself() -> None:
    bob = Watched(BOB, "subscriber")
    for broker, contents in ((B1, b"1"), (B2, b"other")):
        bob.hear(broker, vote(1))
        signed = bob.cell.segment(broker, 1, contents, basis=Basis.FORWARDED)[1]
        bob.hear(broker, Checkpoint(signed))
    assert bob.found("contradicts") == {(B2, "itself", "Checkpoint")}


@pytest.mark.parametrize("order", [(B1, B2, B3), (B3, B1, B2)])
def test_vote_otherwise_than_f_plus_one_others_contradicts(order: tuple[NodeId, ...]) -> None:
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
def test_vote_that_a_correct_broker_gives_is_owed_by_all_though_nothing_is_accepted(
    policy: str, voting: tuple[NodeId, ...], accepted: bool, missing: set[NodeId]
) -> None:
    bob = Watched(BOB, "subscriber", policy)
    bob.answered()
    for broker in voting:
        bob.hear(broker, Vote(STREAM, 1, digests(b"1")))
    if accepted:
        bob.accept(1)
    bob.now += PATIENCE_MS
    rows = [row for row in bob.rows("missing") if row.message == "Vote"]
    assert {(row.accused, row.count) for row in rows} == {(broker, 1) for broker in missing}


def test_history_is_owed_for_chain_runs_that_their_publisher_sent_itself() -> None:
    broker = Watched(B2, "broker", "chain+history")
    broker.now = 0
    for client in (ALICE, BOB):
        broker.event(Connected(client))
    broker.now = LATER
    for publisher, sender in ((ALICE, ALICE), (BOB, B1)):
        stream = type(STREAM)(ORDERS, publisher, 1)
        broker.hear(sender, ChainRun(stream, 1, digests(b"1"), (B2, B3, B4), ()))
    # Others may be first on the chain by now, and so much go by before there is a history.
    unseen_ms = broker.cell.policy.alpha * TAIL_MS
    broker.now += PATIENCE_MS + unseen_ms - 1
    assert broker.found("missing") == set()
    broker.now += 1
    assert broker.found("missing") == {(ALICE, "", "History")}
    broker.hear(ALICE, ChainRun(STREAM, 2, digests(b"2"), (B2, B3, B4), ()))
    broker.observer.on_lost(B3, Millis(broker.now))
    broker.now += PATIENCE_MS + unseen_ms
    assert broker.found("missing") == {(ALICE, MENDED, "History")}


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
    broker.now += PATIENCE_MS
    found = broker.found("gave-up")
    assert found <= {(B1, "idle", "Stop")}
    return bool(found)


def test_broker_that_stood_still_itself_blames_no_leader() -> None:
    broker = leading()
    broker.now += STILL_MS
    for member in (B1, B3, B4):
        broker.hear(member, STANDING)
    assert not given_up(broker)


def test_regency_that_only_liars_are_near_is_a_boast() -> None:
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
def test_state_that_is_not_the_one_of_its_checkpoint_is_noted(
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
def test_state_of_which_nobody_can_say_anything_else_is_not_noted(
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
def test_who_hands_over_another_log_than_f_plus_one_others_contradicts(
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


def test_nobody_wakes_up_twice_in_one_session() -> None:
    fresh = msgspec.structs.replace(STANDING, fresh=True)
    broker = leading(**{B3: fresh})
    broker.hear(B3, STANDING)
    broker.event(Disconnected(B4))
    broker.event(Connected(B4))
    for member in (B1, B4):
        broker.hear(member, fresh)
    assert broker.found("backwards") == {(B1, "fresh", "Standing")}


def test_repetition_on_a_chain_may_be_that_of_the_broker_before() -> None:
    bob = Watched(BOB, "subscriber", "chain")
    for word in (vote(1), Vote(STREAM, 2, digests(b"2"), (B1, B2, B3))):
        for _ in range(2):
            bob.hear(B3, word)
    rows = [row for row in bob.rows("backwards") if row.reason == "repeated"]
    assert [(row.accused, row.count) for row in rows] == [(B3, 1)]


@pytest.mark.parametrize(("order", "missing"), [((B1, B2, B3), {(B3, "", "Contents")}),
                                                ((B1, B3, B2), set())])  # fmt: skip
def test_last_broker_of_a_chain_sends_contents_unasked(
    order: tuple[NodeId, ...], missing: set[tuple[str, str, str]]
) -> None:
    bob = Watched(BOB, "subscriber", "chain")
    bob.hear(B3, Vote(STREAM, 1, digests(b"1"), order))
    assert bob.found("missing") == missing


BROKEN = Suspect(B1, Suspicion.BROKEN_CHAIN, STREAM, 1, (B1, B2))


def test_break_of_a_chain_names_among_whom_the_culprit_is_and_who_may_stand_still() -> None:
    alice = Watched(ALICE, "publisher", "chain")
    alice.hear(B1, Ack(STREAM, 0, 10))
    alice.effect(BROKEN)
    assert alice.found("suspect") == {(B1, "broken-chain", f"{B1} {B2}?")}


@pytest.mark.parametrize("lossy", [B2, B4])
def test_nobody_can_say_where_a_chain_broke_while_packets_get_lost(lossy: NodeId) -> None:
    alice = Watched(ALICE, "publisher", "chain")
    alice.observer.on_lost(lossy, Millis(alice.now))
    alice.now += SETTLED_MS - 1
    alice.effect(BROKEN)
    assert alice.found("suspect") == {(B1, "broken-chain", "")}
    alice.now += 1
    alice.effect(BROKEN)
    assert alice.found("suspect") == {(B1, "broken-chain", f"{B1}? {B2}?")}


def test_stream_that_a_broker_does_not_take_note_of_is_introduced_in_vain() -> None:
    alice = Watched(ALICE, "publisher", "chain")
    for broker in (B1, B2, B3):
        alice.send(broker, Open(STREAM, 1, 1))
    alice.hear(B1, Ack(STREAM, 0, 10))
    alice.hear(B3, Refuse(ORDERS, "no place"))
    alice.now += PATIENCE_MS
    assert alice.found("unanswered") == {(B2, "", "Open")}
    alice.hear(B2, Ack(STREAM, 0, 10))
    assert alice.found("answered") == {(B2, "", "Open")}, "late is better than never"


@pytest.mark.parametrize(("often", "reason"), [(1, ""), (2, "again")])
def test_request_that_was_repeated_in_vain_did_not_just_get_lost(often: int, reason: str) -> None:
    bob = Watched(BOB, "subscriber")
    for _ in range(often):
        bob.send(B2, Subscribe(ORDERS, (), bodies=False))
    bob.now += PATIENCE_MS
    assert bob.found("unanswered") == {(B2, reason, "Subscribe")}


@pytest.mark.parametrize(("after_ms", "reason"), [(MENDED_MS - 1, MENDED), (MENDED_MS, "")])
@pytest.mark.parametrize("how", ["packets", "link"])
def test_what_got_lost_explains_nothing_once_all_of_it_would_have_been_said_again(
    how: str, after_ms: int, reason: str
) -> None:
    bob = Watched(BOB, "subscriber")
    if how == "packets":
        bob.observer.on_lost(B1, Millis(bob.now))
    else:
        bob.event(Disconnected(B2))
        bob.event(Connected(B2))
    bob.now += after_ms
    bob.send(B2, Subscribe(ORDERS, (), bodies=False))
    bob.now += PATIENCE_MS
    assert bob.found("unanswered") == {(B2, reason, "Subscribe")}


def test_request_without_an_answer_is_told_and_an_answered_one_is_not() -> None:
    bob = Watched(BOB, "subscriber")
    for broker in (B1, B2):
        bob.send(broker, Subscribe(ORDERS, (), bodies=False))
    bob.hear(B1, Positions(ORDERS, ()))
    bob.now += PATIENCE_MS
    assert bob.found("unanswered") == {(B2, "", "Subscribe")}
    bob.send(B2, Subscribe(ORDERS, (), bodies=False))
    bob.observer.on_lost(B1, Millis(bob.now))
    bob.now += PATIENCE_MS
    assert bob.found("unanswered") == {(B2, MENDED, "Subscribe")}


def test_acknowledgement_of_what_was_never_sent_is_a_boast() -> None:
    alice = Watched(ALICE, "publisher")
    alice.send(B1, Publish(STREAM, 1, digests(b"1")))
    alice.hear(B1, Ack(STREAM, 1, 10))
    alice.hear(B2, Ack(STREAM, 2, 10))
    assert alice.found("boasts") == {(B2, "unsent", "Ack")}


def test_acknowledgement_of_what_an_earlier_life_sent_is_none() -> None:
    alice = Watched(ALICE, "publisher", "total")
    resumed = Stream(ORDERS, ALICE, resumable(1, 1))
    alice.hear(B1, Ack(resumed, 5, 10))
    assert alice.found("boasts") == set()


def test_position_far_from_all_others_is_a_boast() -> None:
    bob = Watched(BOB, "subscriber")
    for broker, end in ((B1, 5), (B2, 6), (B3, 10**6)):
        bob.hear(broker, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert bob.found("boasts") == {(B3, "ahead", "Positions")}


def test_position_is_a_boast_whoever_speaks_first_and_whoever_else_boasts() -> None:
    bob = Watched(BOB, "subscriber", n=7)
    b5, b6, b7 = (NodeId(f"broker-{k}") for k in (5, 6, 7))
    claims = ((B1, 10**6), (B2, 2**61), (B3, 5), (B4, 6), (b5, 5), (b6, 7), (b7, 5))
    for broker, end in claims:
        bob.hear(broker, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert bob.found("boasts") == {(B1, "ahead", "Positions"), (B2, "ahead", "Positions")}


def test_position_is_no_boast_because_one_other_makes_itself_small() -> None:
    broker = Watched(B2, "broker")
    for other, end in ((B1, 5000), (B3, 5000), (B4, 5)):
        broker.hear(other, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert broker.found("boasts") == set()


def test_position_is_no_boast_where_too_few_others_tell_theirs() -> None:
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


def test_ready_for_another_run_than_this_broker_contradicts() -> None:
    broker = Watched(B1, "broker", "brb")
    broker.hear(B2, Ready(STREAM, 1, b"a" * 32))
    broker.send(B2, Ready(STREAM, 1, b"b" * 32))
    broker.hear(B3, Ready(STREAM, 1, b"b" * 32))
    broker.hear(B4, Ready(STREAM, 1, b"c" * 32))
    broker.hear(B4, Ready(STREAM, 1, b"b" * 32))
    assert broker.found("contradicts") == {
        (B2, "others", "Ready"), (B4, "others", "Ready"), (B4, "itself", "Ready"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bodies", "noted"),
    [
        ({B1: b"1", B2: b"1", B3: b"1"}, set()),
        ({B1: b"1", B2: b"1", B3: b"2"}, {(B1, b"1"), (B2, b"1"), (B3, b"2")}),
        ({B3: b"2", B1: b"1", B2: b"1"}, {(B1, b"1"), (B2, b"1"), (B3, b"2")}),
    ],
)
def test_what_everybody_echoes_is_noted_where_not_all_echo_the_same(
    bodies: dict[NodeId, bytes], noted: set[tuple[NodeId, bytes]]
) -> None:
    broker = Watched(B4, "broker", "brb")
    for _ in range(3):
        for sender, body in bodies.items():
            broker.hear(sender, Echo(STREAM, 1, digests(body)))
    rows = broker.rows("echoed")
    assert {(row.accused, row.reason, row.number, row.count) for row in rows} == {
        (sender, f"{STREAM.incarnation}:{digests(body).hex()[:16]}", 1, 1) for sender, body in noted
    }


def test_publisher_that_splits_brokers_all_the_time_hides_nobody_elses_splits() -> None:
    broker = Watched(B4, "broker", "brb")
    others = Stream(ORDERS, BOB, 1)
    for number, stream in [*((n, STREAM) for n in range(1, MAX_SPLITS + 10)), (1, others)]:
        for sender, body in ((B1, b"%d"), (B2, b"other %d")):
            broker.hear(sender, Echo(stream, number, digests(body % number)))
    whose = [row.publisher for row in broker.rows("echoed")]
    assert (whose.count(ALICE), whose.count(BOB)) == (2 * MAX_SPLITS, 2)


def test_leader_that_writes_otherwise_than_f_plus_one_others_contradicts_as_leader() -> None:
    broker = Watched(B4, "broker", "total")
    for sender, value in ((B1, b"a"), (B2, b"b"), (B3, b"b")):
        broker.hear(sender, Write(Protection.BYZANTINE, 0, 1, value * 32))
    assert broker.found("contradicts") == {(B1, "leading", "Write")}


def test_signed_statement_otherwise_than_what_was_accepted_contradicts_and_is_kept() -> None:
    bob = Watched(BOB, "subscriber")
    bob.accept(1)
    bob.hear(B1, Checkpoint(bob.cell.segment(B1, 1, b"1")[1]))
    bob.hear(B2, Checkpoint(bob.cell.segment(B2, 1, b"other")[1]))
    assert bob.found("contradicts") == {(B2, "accepted", "Checkpoint")}
    kept = bob.observer.take_documents()
    assert [(document.kind, document.subject) for document in kept] == [
        ("statement", B1), ("statement", B2),
    ]  # fmt: skip


def test_what_the_machine_suspects_and_ignores_is_told_with_the_message() -> None:
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


def test_rows_become_columns_with_run_and_shifted_times() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(1))
    rows = bob.rows("heard")
    columns = columns_of("run-1", rows, shift_ms=1000)
    assert list(columns) == list(COLUMNS)
    assert columns["run"] == ["run-1"]
    assert columns["t_ms"] == [rows[0].t_ms + 1000]


@pytest.mark.parametrize(
    ("order", "skipped"), [((B1, B2), {(B1, "", "ChainRun")}), ((B1, B3), set())]
)
def test_broker_that_leaves_out_a_run_of_one_chain_has_skipped(
    order: tuple[NodeId, ...], skipped: set[tuple[str, str, str]]
) -> None:
    broker = Watched(B2, "broker", "chain")
    broker.hear(B1, ChainRun(STREAM, 1, digests(b"1"), (B1, B2), ()))
    broker.hear(B1, ChainRun(STREAM, 3, digests(b"3"), order, ()))
    assert broker.found("skipped") == skipped


@pytest.mark.parametrize(("count", "owed"), [(256, {(B3, "mute", "Checkpoint")}), (255, set())])
def test_statement_on_a_whole_segment_that_f_plus_one_others_give_is_owed(
    count: int, owed: set[tuple[str, str, str]]
) -> None:
    bob = Watched(BOB, "subscriber", "brb")
    # The fourth does not know that Bob listens.
    for broker in (B1, B2, B3):
        bob.hear(broker, Positions(ORDERS, ()))
    for broker in (B1, B2):
        bob.hear(broker, Checkpoint(bob.cell.segment(broker, 1, *[b"1"] * count)[1]))
    bob.now += PATIENCE_MS
    assert bob.found("missing") == owed


@pytest.mark.parametrize(("heard", "reason"), [(True, ""), (False, "mute")])
def test_broker_that_says_nothing_at_all_may_stand_still(heard: bool, reason: str) -> None:
    broker = Watched(B1, "broker", "brb")
    broker.send(B2, Ready(STREAM, 1, b"a" * 32))
    for member in (B2, B3):
        broker.hear(member, Ready(STREAM, 1, b"a" * 32))
    broker.now += 1
    if heard:
        broker.hear(B4, Positions(ORDERS, ()))
    broker.now += PATIENCE_MS
    rows = broker.rows("missing")
    assert {(row.accused, row.reason) for row in rows if row.message == "Ready"} == {(B4, reason)}
