"""Each checker finds the violation that it is there for, and is silent otherwise."""

from collections.abc import Callable

import pytest

from quorumcast.broadcast.application import (
    Acknowledged,
    Deliver,
    DeliverGap,
    Join,
    Leave,
    Prove,
    Proven,
    Recall,
    Recalled,
    Submit,
)
from quorumcast.broadcast.messages import Ack, Contents, Echo, Ready
from quorumcast.cell.messages import Checkpoint, Positions, Regained, Vote
from quorumcast.core.ids import Channel, Digest, Millis, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Accuse, Effect, Event, Send, Suspect, Suspicion
from quorumcast.core.message import Message
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import (
    Basis,
    Evidence,
    EvidenceKind,
    HistoryStatement,
    Receipt,
    SegmentStatement,
    Signed,
    Statement,
    canonical,
)
from quorumcast.crypto.digest import root
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.messages import Accept, Item, Offer, Propose
from quorumcast.sim.cell.cells import (
    Cell,
    broker_names,
    channel_entry,
    identity_of,
    life_of,
    make_simulated_cell,
)
from quorumcast.sim.cell.judges.checkers import flaw_of, safety_checkers
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.judges.order import Durability, TotalOrder
from quorumcast.sim.cell.judges.promises import (
    AllAcknowledged,
    Answers,
    CompleteBlame,
    Extracts,
    ReceiptsComplete,
    SharedEvidence,
    SubscriptionsStand,
    Totality,
    Validity,
)
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.judging import Boundedness, Promise
from quorumcast.sim.kernel.network import Weather

ORDERS, SECRET = Channel("orders"), Channel("secret")
PUB, LIAR = NodeId("pub-1"), NodeId("pub-2")
SUB, OTHER = NodeId("sub-1"), NodeId("sub-2")
B1, B2, B3, B4 = (NodeId(f"broker-{n}") for n in (1, 2, 3, 4))
STREAM, OF_LIAR = Stream(ORDERS, PUB, 1), Stream(ORDERS, LIAR, 1)


def make_cell(policy: str = "brb") -> Cell:
    rules = Policy.named(policy, alpha=4)
    return make_simulated_cell(
        4,
        1,
        [channel_entry("orders", rules), channel_entry("secret", rules, ("pub-2",), ("sub-2",))],
    )


class Stage:
    """A world in which nothing happens but what a test says happened."""

    def __init__(self, policy: str = "brb", *, gaps_allowed: bool = False) -> None:
        self.cell = make_cell(policy)
        checkers = safety_checkers(gaps_allowed=gaps_allowed)
        self.world = CellWorld(self.cell, 1, Weather(), checkers)
        self.facts = self.world.facts
        self.facts.started(PUB, 1)
        self.facts.started(LIAR, 1)
        self.world.adversary.declare(B2, "alter")
        self.world.adversary.declare(LIAR, "equivocating-publisher")

    def event(self, node: NodeId, event: Event, now: int = 0) -> None:
        self.facts.on_event(node, event, Millis(now))

    def join(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.event(node, Join(ORDERS))
            self.facts.begun(node, ORDERS, Millis(1))

    def submit(self, *bodies: bytes, publisher: NodeId = PUB, now: int = 10) -> None:
        self.event(publisher, Submit(ORDERS, bodies), now)

    def does(self, node: NodeId, effect: Effect) -> None:
        for watcher in self.world._watchers:
            watcher.on_effect(node, effect, Millis(20))

    def hold(self, upto: int, *brokers: NodeId) -> None:
        for broker in brokers:
            self.does(broker, Send((PUB,), Ack(STREAM, upto, 100)))

    def accepts(self, node: NodeId, number: int, body: bytes, stream: Stream = STREAM) -> None:
        self.does(node, Deliver(stream, number, self.cell.manifest.hash(body), body, ()))

    @property
    def broken(self) -> list[str]:
        return [violation.property for violation in self.facts.violations]


def play(script: Callable[[Stage], None]) -> list[str]:
    stage = Stage()
    stage.join(SUB, OTHER)
    stage.submit(b"a", b"b")
    script(stage)
    return stage.broken


def test_safety_honest_run_is_silent() -> None:
    def script(stage: Stage) -> None:
        for node in (SUB, OTHER):
            stage.accepts(node, 1, b"a")
            stage.accepts(node, 2, b"b")
        stage.hold(2, B1, B3)
        stage.does(PUB, Acknowledged(STREAM, 2))

    assert play(script) == []


def test_relevance_accepted_after_leaving_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.event(SUB, Leave(ORDERS))
        stage.accepts(SUB, 1, b"a")

    assert play(script) == ["Relevance"]


def test_relevance_publisher_without_right_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.event(OTHER, Join(SECRET))
        stage.event(PUB, Submit(SECRET, (b"x",)))
        stage.accepts(OTHER, 1, b"x", Stream(SECRET, PUB, 1))

    assert play(script) == ["Relevance"]


def test_relevance_history_handed_to_the_application_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.accepts(SUB, 1, b"x", Stream(ORDERS, LIAR, 1).history)

    assert play(script) == ["Relevance"]


@pytest.mark.parametrize(
    ("to", "message", "broken"),
    [
        (SUB, Vote(Stream(SECRET, OTHER, 1), 1, b"d" * 32), ["Rights"]),
        (SUB, Contents(Stream(SECRET, OTHER, 1), 1, b"d" * 32), ["Rights"]),
        (SUB, Positions(SECRET, ()), ["Rights"]),
        (SUB, Regained(OF_LIAR, 1, b"d" * 32), ["Rights"]),
        (B3, Regained(OF_LIAR, 1, b"d" * 32), []),
        (SUB, Vote(OF_LIAR, 1, b"d" * 32), []),
    ],
)
def test_rights_what_somebody_obtains_without_them_is_reported(
    to: NodeId, message: Message, broken: list[str]
) -> None:
    assert play(lambda stage: stage.does(B1, Send((to,), message))) == broken


@pytest.mark.parametrize(("number", "body"), [(1, b"altered"), (3, b"invented")])
def test_authenticity_contents_not_published_are_reported(number: int, body: bytes) -> None:
    assert "Authenticity" in play(lambda stage: stage.accepts(SUB, number, body))


def test_authenticity_body_of_another_digest_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.does(SUB, Deliver(STREAM, 1, Digest(b"d" * 32), b"a", ()))

    assert play(script) == ["Authenticity"]


def test_uniqueness_accepted_twice_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.accepts(SUB, 1, b"a")
        stage.accepts(SUB, 1, b"a")

    assert play(script) == ["Uniqueness", "FIFO"]


def test_agreement_two_contents_of_a_liar_are_reported() -> None:
    def script(stage: Stage) -> None:
        stream = Stream(ORDERS, LIAR, 1)
        stage.accepts(SUB, 1, b"one", stream)
        stage.accepts(OTHER, 1, b"another", stream)

    assert play(script) == ["Agreement"]


def test_fifo_skipped_number_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.submit(b"c")
        stage.accepts(SUB, 1, b"a")
        stage.accepts(SUB, 3, b"c")

    assert play(script) == ["FIFO"]


def test_fifo_gap_that_the_cell_could_fill_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.accepts(SUB, 1, b"a")
        stage.does(SUB, DeliverGap(STREAM, 2, 2))

    assert play(script) == ["FIFO"]


def test_fifo_announced_gap_where_allowed_is_silent() -> None:
    stage = Stage(gaps_allowed=True)
    stage.join(SUB)
    stage.submit(b"a", b"b", b"c")
    stage.accepts(SUB, 1, b"a")
    stage.does(SUB, DeliverGap(STREAM, 2, 2))
    stage.accepts(SUB, 3, b"c")
    assert stage.broken == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Echo(STREAM, 1, bytes(32)), Echo(STREAM, 1, b"x" * 32)),
        (Ready(STREAM, 1, bytes(32)), Ready(STREAM, 1, b"x" * 32)),
        (Vote(OF_LIAR, 1, bytes(64)), Vote(OF_LIAR, 2, b"x" * 32)),
        (Accept(Protection.CRASH, 1, 1, bytes(32)), Accept(Protection.CRASH, 1, 1, b"x" * 32)),
        (Propose(Protection.BYZANTINE, 1, 1, ()),
         Propose(Protection.BYZANTINE, 1, 1, (Item(STREAM, 1, bytes(32)),))),
    ],
    ids=["echo", "ready", "vote", "accept", "propose"],
)  # fmt: skip
def test_story_told_in_two_ways_is_reported(one: Message, other: Message) -> None:
    def script(stage: Stage) -> None:
        stage.does(B1, Send((B2,), one))
        stage.does(B1, Send((B3,), one))
        assert stage.broken == []
        stage.does(B1, Send((B3,), other))

    assert play(script) == ["One story"]


def test_story_of_a_publisher_is_its_own_and_not_of_brokers_that_pass_it_on() -> None:
    def script(stage: Stage) -> None:
        for digests in (bytes(32), b"x" * 32):
            stage.does(B1, Send((B3,), Offer(OF_LIAR, 1, digests)))
        assert stage.broken == []
        for digests in (bytes(32), b"x" * 32):
            stage.does(PUB, Send((B3,), Offer(STREAM, 3, digests)))

    assert "One story" in play(script)


@pytest.mark.parametrize(
    ("number", "named", "sent"),
    [(1, b"x", b"x"), (3, b"a", b"a"), (1, b"a", b"x")],
    ids=["altered", "invented", "contents"],
)
def test_vouching_for_what_was_not_published_or_not_sent_is_reported(
    number: int, named: bytes, sent: bytes
) -> None:
    def script(stage: Stage) -> None:
        digest = stage.cell.manifest.hash
        stage.does(B1, Send((SUB,), Vote(STREAM, 1, digest(b"a")), (b"a",)))
        assert stage.broken == []
        stage.does(B3, Send((SUB,), Vote(STREAM, number, digest(named)), (sent,)))

    assert play(script) == ["Vouching"]


def test_acknowledgement_of_what_was_never_published_is_reported() -> None:
    def script(stage: Stage) -> None:
        stage.hold(3, B1, B3, B4)
        stage.does(PUB, Acknowledged(STREAM, 3))

    assert play(script) == ["Acknowledged"]


def test_acknowledgement_by_too_few_correct_brokers_is_reported() -> None:
    """n-f brokers may be waited for, and f of those may lie: two of four must really hold it."""

    def script(stage: Stage) -> None:
        stage.hold(2, B1, B2)
        stage.hold(1, B3)
        stage.does(PUB, Acknowledged(STREAM, 1))
        stage.does(PUB, Acknowledged(STREAM, 2))

    assert play(script) == ["Acknowledged"]


# ------------------------------------------------------------- total order


class OrderedStage(Stage):
    """The same, where the channel has one order."""

    def __init__(self, *, gaps_allowed: bool = False) -> None:
        super().__init__("total", gaps_allowed=gaps_allowed)
        self.join(SUB, OTHER)
        self.submit(b"a", b"b", b"c")

    def places(
        self, node: NodeId, position: int, number: int, body: bytes, stream: Stream = STREAM
    ) -> None:
        digest = self.cell.manifest.hash(label(stream, number) + body)
        self.does(node, Deliver(stream, number, digest, body, (), position=position))

    def end(self) -> list[str]:
        for checker in self.world.checkers:
            checker.at_end(self.facts)
        return self.broken


LIARS = Stream(ORDERS, LIAR, 1)


def test_total_order_pieces_of_one_sequence_are_silent() -> None:
    stage = OrderedStage()
    stage.places(SUB, 1, 1, b"a")
    stage.places(SUB, 2, 1, b"x", LIARS)
    stage.places(SUB, 3, 2, b"b")
    stage.places(OTHER, 2, 1, b"x", LIARS)
    stage.places(OTHER, 3, 2, b"b")
    assert stage.end() == []


def test_total_order_two_publications_at_one_position_are_reported() -> None:
    stage = OrderedStage()
    stage.places(SUB, 1, 1, b"a")
    stage.places(OTHER, 1, 1, b"x", LIARS)
    assert stage.broken == ["Total order"]


def test_total_order_one_publication_at_two_positions_is_reported() -> None:
    stage = OrderedStage()
    stage.places(SUB, 1, 1, b"a")
    stage.places(OTHER, 2, 1, b"a")
    assert stage.broken == ["Total order"]


def test_total_order_other_contents_at_one_position_are_reported() -> None:
    stage = OrderedStage()
    stage.places(SUB, 1, 1, b"x", LIARS)
    stage.places(OTHER, 1, 1, b"y", LIARS)
    assert stage.broken == ["Agreement", "Total order"]


@pytest.mark.parametrize("position", [1, 2, 4])
def test_total_order_position_out_of_turn_is_reported(position: int) -> None:
    stage = OrderedStage()
    stage.places(SUB, 2, 1, b"a")
    stage.places(SUB, position, 1, b"x", LIARS)
    assert "Total order" in stage.broken


def test_total_order_announced_gap_where_allowed_is_silent() -> None:
    stage = OrderedStage(gaps_allowed=True)
    stage.places(SUB, 1, 1, b"a")
    stage.does(SUB, DeliverGap(total_order(ORDERS), 2, 5))
    stage.places(SUB, 6, 3, b"c")
    assert stage.end() == []


def test_total_order_gap_of_positions_that_the_cell_should_hold_is_reported() -> None:
    stage = OrderedStage()
    stage.places(SUB, 1, 1, b"a")
    stage.does(SUB, DeliverGap(total_order(ORDERS), 2, 5))
    assert stage.broken == ["FIFO"]


def test_total_order_publication_without_a_position_is_reported() -> None:
    stage = OrderedStage()
    stage.accepts(SUB, 1, b"a")
    assert "Total order" in stage.broken


def test_total_order_numbers_that_skip_along_the_sequence_are_reported() -> None:
    """Neither reader sees it: one left before the skip, the other came after it."""
    stage = OrderedStage()
    stage.places(SUB, 1, 1, b"a")
    stage.places(OTHER, 2, 3, b"c")
    assert stage.broken == []
    assert stage.end() == ["Total order"]


def test_total_order_is_among_the_checkers() -> None:
    assert any(isinstance(c, TotalOrder) for c in safety_checkers(gaps_allowed=False))


def test_durability_acknowledged_and_lost_is_pending_even_if_the_publisher_is_gone() -> None:
    stage = OrderedStage()
    stage.hold(2, B1, B3, B4)
    stage.does(PUB, Acknowledged(STREAM, 2))
    stage.facts.stopped(PUB, Millis(30))
    stage.places(SUB, 1, 1, b"a")
    stage.places(OTHER, 1, 1, b"a")
    stage.places(OTHER, 2, 2, b"b")
    durability = Durability()
    assert pending(durability, stage)
    stage.places(SUB, 2, 2, b"b")
    assert not pending(durability, stage)


def test_durability_a_gap_is_no_delivery() -> None:
    stage = OrderedStage(gaps_allowed=True)
    stage.hold(1, B1, B3, B4)
    stage.does(PUB, Acknowledged(STREAM, 1))
    for node in (SUB, OTHER):
        stage.does(node, DeliverGap(total_order(ORDERS), 1, 1))
        stage.places(node, 2, 2, b"b")
    assert pending(Durability(), stage)


def extracting() -> OrderedStage:
    """Somebody reads positions 1 and 2 of three."""
    stage = OrderedStage(gaps_allowed=True)
    stage.event(SUB, Leave(ORDERS))
    stage.event(SUB, Join(ORDERS, 1, until=3))
    stage.places(SUB, 1, 1, b"a")
    return stage


def recalling() -> OrderedStage:
    stage = OrderedStage()
    stage.places(SUB, 1, 1, b"a")
    stage.event(SUB, Recall(ORDERS, 1, 1))
    return stage


def found(body: bytes) -> Deliver:
    digest = make_cell().manifest.hash(label(STREAM, 1) + body)
    return Deliver(STREAM, 1, digest, body, (), position=1)


def test_recall_without_an_answer_is_pending() -> None:
    stage = recalling()
    assert pending(Answers(), stage)
    stage.does(SUB, Recalled(ORDERS, 1, found(b"a")))
    assert not pending(Answers(), stage)
    assert stage.broken == []


def test_recall_of_something_else_or_of_what_must_be_held_is_reported() -> None:
    stage = recalling()
    stage.does(SUB, Recalled(ORDERS, 1, found(b"other")))
    assert stage.broken == ["Total order"]
    stage = recalling()
    stage.does(SUB, Recalled(ORDERS, 1, None))
    assert stage.broken == ["Total order"]


def test_receipt_of_the_newest_publication_is_due() -> None:
    stage = Stage()
    stage.join(SUB)
    stage.submit(b"a")
    stage.accepts(SUB, 1, b"a")
    stage.event(SUB, Prove(STREAM, 1, b"a"))
    assert pending(ReceiptsComplete(), stage)
    stage.submit(b"b")
    assert not pending(ReceiptsComplete(), stage)


def test_excerpt_is_pending_until_all_of_it_has_come_and_nothing_more_is_due() -> None:
    stage = extracting()
    assert pending(Extracts(), stage)
    stage.places(SUB, 2, 2, b"b")
    assert not pending(Extracts(), stage)
    assert SUB not in [reader.node for reader in stage.facts.present()]


def test_excerpt_with_a_gap_or_with_more_than_was_asked_for_is_reported() -> None:
    stage = extracting()
    stage.does(SUB, DeliverGap(total_order(ORDERS), 2, 2))
    assert pending(Extracts(), stage)
    stage = extracting()
    stage.places(SUB, 2, 2, b"b")
    stage.places(SUB, 3, 3, b"c")
    assert pending(Extracts(), stage)


# ------------------------------------------------------------------- blame


@pytest.mark.parametrize(
    ("basis", "other", "broken"),
    [
        (Basis.SETTLED, B3, ["Sound statements"]),
        (Basis.FORWARDED, B3, []),
        (Basis.FORWARDED, B1, ["Sound statements"]),
    ],
)
def test_statements_of_correct_brokers_that_differ_are_reported(
    basis: Basis, other: NodeId, broken: list[str]
) -> None:
    stage = Stage()
    for broker, root_ in ((B1, b"a" * 32), (B2, b"lie" * 9), (other, b"b" * 32)):
        stage.does(broker, Send((SUB,), Checkpoint(segment(broker, root_, basis=basis))))
    assert stage.broken == broken


def sign(node: NodeId, statement: Statement) -> Signed:
    return identity_of(node).sign(canonical(statement))


def segment(
    broker: NodeId,
    root: bytes,
    *,
    epoch: int = 1,
    count: int = 8,
    basis: Basis = Basis.SETTLED,
) -> Signed:
    statement = SegmentStatement(
        cell="simulated",
        epoch=epoch,
        broker=broker,
        stream=STREAM,
        first=1,
        count=count,
        root=root,
        basis=basis,
        life=life_of(broker),
        peers=tuple((b, life_of(b)) for b in broker_names(4)),
    )
    return sign(broker, statement)


def history(digests: bytes, index: int = 1, epoch: int = 1) -> Signed:
    statement = HistoryStatement(
        cell="simulated", epoch=epoch, stream=STREAM, index=index, first=1, digests=digests
    )
    return sign(PUB, statement)


def receipt(contents: bytes, *signers: NodeId, number: int = 1) -> Receipt:
    digests = b"".join(map(make_cell().manifest.hash, (b"a", b"b")))
    statements = [segment(signer, root(1, digests), count=2) for signer in signers]
    return Receipt(
        stream=STREAM,
        number=number,
        contents=contents,
        first=1,
        digests=digests,
        statements=tuple(statements),
    )


@pytest.mark.parametrize(
    ("shown", "broken"),
    [
        (receipt(b"a", B1, B2), []),
        (receipt(b"b", B1, B3, number=2), []),
        (receipt(b"a", B1), ["Sound receipts"]),
        (receipt(b"a", B1, B1), ["Sound receipts"]),
        (receipt(b"b", B1, B2), ["Sound receipts"] * 2),
    ],
)
def test_sound_receipts_void_ones_are_reported(shown: Receipt, broken: list[str]) -> None:
    assert play(lambda stage: stage.does(SUB, Proven(shown))) == broken


LIE, TRUTH = b"l" * 32, b"t" * 32


def outvoted(*witnesses: Signed, against: Signed | None = None) -> Evidence:
    return Evidence(
        kind=EvidenceKind.OUTVOTED,
        accused=B2,
        against=(against or segment(B2, LIE),),
        witnesses=witnesses,
    )


def conflict(accused: NodeId, *against: Signed) -> Evidence:
    return Evidence(kind=EvidenceKind.CONFLICT, accused=accused, against=against)


def test_sound_blame_correct_node_accused_is_reported() -> None:
    evidence = conflict(B1, segment(B1, LIE), segment(B1, TRUTH))
    assert play(lambda stage: stage.does(SUB, Accuse(evidence))) == ["Sound blame"]


def test_sound_blame_void_evidence_against_a_liar_is_reported() -> None:
    evidence = conflict(B2, segment(B2, LIE))
    assert play(lambda stage: stage.does(SUB, Accuse(evidence))) == ["Sound blame"]


FORGED = Signed(B3, segment(B1, TRUTH).payload, segment(B1, TRUTH).signature)


@pytest.mark.parametrize(
    "evidence",
    [
        outvoted(segment(B1, TRUTH), segment(B3, TRUTH)),
        conflict(B2, segment(B2, LIE), segment(B2, TRUTH)),
        conflict(PUB, history(LIE), history(TRUTH)),
        conflict(PUB, history(LIE), history(TRUTH, epoch=0)),
    ],
)
def test_flaw_of_good_evidence_is_none(evidence: Evidence) -> None:
    assert flaw_of(evidence, make_cell().manifest) is None


@pytest.mark.parametrize(
    "evidence",
    [
        outvoted(segment(B1, TRUTH)),
        outvoted(segment(B1, TRUTH), segment(B1, TRUTH)),
        outvoted(segment(B1, TRUTH), segment(B3, TRUTH, count=7)),
        outvoted(segment(B1, TRUTH), segment(B3, TRUTH, epoch=2)),
        outvoted(segment(B1, TRUTH), segment(B3, b"x" * 32)),
        outvoted(segment(B1, TRUTH), FORGED),
        outvoted(segment(B1, TRUTH), segment(B3, TRUTH), against=segment(B2, TRUTH)),
        conflict(B2, segment(B2, LIE), segment(B1, TRUTH)),
        conflict(B2, segment(B2, LIE), segment(B2, LIE)),
        conflict(PUB, history(LIE), history(LIE)),
        conflict(PUB, history(LIE), history(LIE, index=2)),
        conflict(PUB, history(LIE), history(TRUTH, epoch=2)),
    ],
)
def test_flaw_of_bad_evidence_is_found(evidence: Evidence) -> None:
    assert flaw_of(evidence, make_cell().manifest) is not None


# ---------------------------------------------------------------- promises


def pending(promise: Promise[CellFacts], stage: Stage) -> bool:
    return promise.pending(stage.facts) is not None


def test_validity_missing_publication_is_pending() -> None:
    stage = Stage()
    stage.join(SUB)
    stage.submit(b"a", b"b")
    assert pending(Validity(), stage)
    stage.accepts(SUB, 1, b"a")
    assert pending(Validity(), stage)
    stage.accepts(SUB, 2, b"b")
    assert not pending(Validity(), stage)


def test_validity_published_before_the_subscription_stood_is_not_due() -> None:
    stage = Stage()
    stage.submit(b"a", now=0)
    stage.join(SUB)
    assert not pending(Validity(), stage)
    stage.submit(b"b")
    assert pending(Validity(), stage)
    stage.accepts(SUB, 2, b"b")
    assert not pending(Validity(), stage)


def test_validity_acknowledged_by_a_publisher_that_is_gone_is_still_due() -> None:
    stage = Stage()
    stage.join(SUB)
    stage.submit(b"a", b"b")
    stage.hold(1, B1, B3)
    stage.does(PUB, Acknowledged(STREAM, 1))
    stage.facts.stopped(PUB, Millis(30))
    assert pending(Validity(), stage)
    stage.accepts(SUB, 1, b"a")
    assert not pending(Validity(), stage)


def test_validity_gap_counts_only_where_retention_explains_it() -> None:
    stage = Stage()
    stage.join(SUB)
    retained = Limits().retained_publications
    stage.submit(*(b"%d" % n for n in range(1, retained + 3)))
    stage.does(SUB, DeliverGap(STREAM, 1, 2))
    assert stage.broken == []
    stage.does(SUB, DeliverGap(STREAM, 3, 3))
    assert stage.broken == ["FIFO"]
    for number in range(4, retained + 3):
        stage.accepts(SUB, number, b"%d" % number)
    assert (
        Validity().pending(stage.facts) == f"{stage.facts.readers[0]} has not accepted {STREAM} 3"
    )


def test_validity_gap_in_an_earlier_life_is_explained_by_what_later_ones_published() -> None:
    """Retention counts over all lives of a publisher, and lets go of the oldest first."""
    stage = Stage()
    stage.join(SUB)
    retained = Limits().retained_publications
    stage.submit(b"a", b"b", b"c")
    stage.facts.started(PUB, 3)
    stage.submit(*(b"%d" % n for n in range(1, retained)))
    stage.does(SUB, DeliverGap(STREAM, 1, 2))
    assert stage.broken == []
    stage.does(SUB, DeliverGap(STREAM, 3, 3))
    assert stage.broken == ["FIFO"]


def test_gap_is_excused_where_more_than_f_brokers_lost_their_contents_since() -> None:
    stage = Stage()
    stage.join(SUB)
    stage.submit(b"a")
    stage.world.adversary.lossy[B3] = None
    assert stage.world.adversary.has_lost_contents(NodeId("broker-1"))
    stage.facts.lost_at = 15
    stage.submit(b"b", now=20)
    stage.does(SUB, DeliverGap(STREAM, 1, 1))
    assert stage.broken == []
    stage.does(SUB, DeliverGap(STREAM, 2, 2))
    assert stage.broken == ["FIFO"]


def test_subscription_that_has_not_begun_is_pending() -> None:
    stage = Stage()
    stage.event(SUB, Join(ORDERS))
    assert pending(SubscriptionsStand(), stage)
    stage.facts.begun(SUB, ORDERS, Millis(5))
    assert not pending(SubscriptionsStand(), stage)


def test_acknowledged_publisher_left_in_doubt_is_pending() -> None:
    stage = Stage()
    stage.submit(b"a")
    assert pending(AllAcknowledged(), stage)
    stage.hold(1, B1, B3)
    stage.does(PUB, Acknowledged(STREAM, 1))
    assert not pending(AllAcknowledged(), stage)


def test_totality_one_reader_left_out_is_pending() -> None:
    stage = Stage()
    stage.join(SUB, OTHER)
    stage.submit(b"a", publisher=LIAR)
    totality = Totality(Policy.named("brb"))
    assert not pending(totality, stage)
    stage.accepts(SUB, 1, b"a", Stream(ORDERS, LIAR, 1))
    assert pending(totality, stage)
    stage.accepts(OTHER, 1, b"a", Stream(ORDERS, LIAR, 1))
    assert not pending(totality, stage)


def test_totality_what_others_had_accepted_before_the_subscription_stood_is_not_due() -> None:
    """A liar's numbers may be taken before it publishes anything under them."""
    stage = Stage()
    stage.join(SUB)
    stage.accepts(SUB, 1, b"a", OF_LIAR)
    stage.join(OTHER)
    stage.submit(b"a", b"b", publisher=LIAR)
    assert not pending(Totality(Policy.named("brb")), stage)
    stage.accepts(SUB, 2, b"b", OF_LIAR)
    assert pending(Totality(Policy.named("brb")), stage)


def test_totality_announced_gap_is_not_what_others_accepted() -> None:
    stage = Stage()
    stage.join(SUB, OTHER)
    stream = Stream(ORDERS, LIAR, 1)
    stage.submit(b"a", b"b", publisher=LIAR)
    for number, body in enumerate((b"a", b"b"), 1):
        stage.accepts(SUB, number, body, stream)
    stage.does(OTHER, DeliverGap(stream, 1, 1))
    stage.accepts(OTHER, 2, b"b", stream)
    assert pending(Totality(Policy.named("brb")), stage)


def test_totality_gap_is_explained_by_how_far_brokers_are_though_no_subscriber_is() -> None:
    """All subscribers may be behind what brokers retain of a lying publisher."""
    stage = Stage()
    stage.join(SUB, OTHER)
    stream, limits = Stream(ORDERS, LIAR, 1), Limits()
    count = limits.retained_publications - limits.window + 1
    stage.submit(*(b"%d" % n for n in range(1, count + 1)), publisher=LIAR)
    for number in (1, 2):
        stage.accepts(SUB, number, b"%d" % number, stream)
    stage.facts.ordered = lambda _: count
    stage.does(OTHER, DeliverGap(stream, 1, 1))
    assert pending(Totality(Policy.named("brb")), stage)  # the second is still retained
    stage.accepts(OTHER, 2, b"2", stream)
    assert not pending(Totality(Policy.named("brb")), stage)


def test_totality_gap_is_not_explained_by_a_publisher_that_leaps_ahead() -> None:
    stage = Stage()
    stage.join(SUB, OTHER)
    stream = Stream(ORDERS, LIAR, 1)
    stage.submit(b"a", publisher=LIAR)
    stage.accepts(SUB, 1, b"a", stream)
    stage.facts.ordered = lambda _: 2**60
    stage.does(OTHER, DeliverGap(stream, 1, 2**60))
    assert pending(Totality(Policy.named("brb")), stage)


def test_fairness_more_than_two_alpha_apart_is_pending() -> None:
    stage = Stage("ab+history")
    stage.join(SUB, OTHER)
    bodies = [b"%d" % n for n in range(1, 10)]
    stage.submit(*bodies, publisher=LIAR)
    fairness = Totality(Policy.named("ab+history", alpha=4))
    for number, body in enumerate(bodies[:8], 1):
        stage.accepts(SUB, number, body, Stream(ORDERS, LIAR, 1))
    assert not pending(fairness, stage)
    stage.accepts(SUB, 9, bodies[8], Stream(ORDERS, LIAR, 1))
    assert pending(fairness, stage)


def test_complete_blame_provable_lie_without_evidence_is_pending() -> None:
    stage = Stage()
    blame = CompleteBlame(lambda node: Policy.named("brb"), {B2: 1})
    assert pending(blame, stage)
    stage.does(SUB, Suspect(B2, Suspicion.DISSENT))
    assert pending(blame, stage)
    stage.does(SUB, Accuse(outvoted(segment(B1, TRUTH), segment(B3, TRUTH))))
    assert not pending(blame, stage)


def test_complete_blame_wrong_contents_prove_nothing_and_need_suspicion() -> None:
    stage = Stage()
    blame = CompleteBlame(lambda node: Policy.named("brb"), {}, {B2: None})
    assert pending(blame, stage)
    stage.does(SUB, Suspect(B2, Suspicion.BAD_BODY))
    assert not pending(blame, stage)


def test_complete_blame_unprovable_lie_needs_suspicion() -> None:
    stage = Stage("ab")
    blame = CompleteBlame(lambda node: Policy.named("ab"), {B2: 1})
    assert pending(blame, stage)
    stage.does(SUB, Suspect(B2, Suspicion.DISSENT))
    assert not pending(blame, stage)


def test_shared_evidence_is_due_to_every_correct_broker_until_its_finder_restarts() -> None:
    stage = Stage()
    stage.world.add_brokers()
    stage.world.add_subscriber(SUB)
    shared = SharedEvidence(stage.world.nodes)
    found = Accuse(outvoted(segment(B1, TRUTH), segment(B3, TRUTH)))
    assert not pending(shared, stage)
    stage.does(SUB, found)
    for broker in (B1, B3, B4):
        assert pending(shared, stage)
        stage.does(broker, found)
    assert not pending(shared, stage)
    stage.facts.accusations.pop()
    assert pending(shared, stage)
    for node in (SUB, B1, B3, B4):
        stage.world.nodes[node].crash()
        stage.world.nodes[node].restart()
    assert not pending(shared, stage)


def test_shared_evidence_of_another_epoch_against_an_outvoted_broker_is_not_due() -> None:
    stage = Stage()
    stage.world.add_brokers()
    stage.world.add_subscriber(SUB)
    stage.does(SUB, Accuse(outvoted(segment(B1, TRUTH), segment(B3, TRUTH))))
    stage.facts.renew(next_epoch(stage.cell.manifest))
    assert not pending(SharedEvidence(stage.world.nodes), stage)


class Hoarder:
    """A machine that keeps too much, or something without a limit."""

    def __init__(self, **sizes: int) -> None:
        self._sizes = {f"orders: orders/x@1/{name}": size for name, size in sizes.items()}

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        return []

    def sizes(self) -> dict[str, int]:
        return self._sizes


@pytest.mark.parametrize(
    ("machine", "broken"),
    [
        (Hoarder(ledger=4), []),
        (Hoarder(ledger=5), ["Boundedness"]),
        (Hoarder(attic=1), ["Boundedness"]),
    ],
)
def test_boundedness_container_past_its_limit_is_reported(
    machine: Hoarder, broken: list[str]
) -> None:
    stage = Stage()
    Boundedness({"ledger": 4}).check(stage.facts, SUB, machine)
    assert stage.broken == broken
