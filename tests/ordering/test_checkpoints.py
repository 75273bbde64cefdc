"""Learning what was decided without us, and handing it out: four brokers, one may lie."""

from __future__ import annotations

from tests.support.cells import B1, B2, B3, B4, Cell, messages, reasons, sent, suspects
from tests.support.ordering import TOTAL, batch

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Send, Suspect, Suspicion
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.ordering.checkpoints import (
    HEADS_KEPT,
    LOG_PART,
    LOG_REACH,
    LOG_RUNS,
    CatchUp,
)
from quorumcast.ordering.consensus import Consensus, value_of
from quorumcast.ordering.messages import (
    Batch,
    Chunk,
    ChunkQuery,
    LogPart,
    LogQuery,
    Standing,
    StateHead,
)
from quorumcast.ordering.state import CHUNK_BYTES, StateImage

BYZANTINE, CRASH = Protection.BYZANTINE, Protection.CRASH
HASH = Cell(TOTAL).manifest.hash
PEERS = (B1, B3, B4)
A, B = batch(b"a"), batch(b"b")


class Learner:
    """b2's consensus and what it learns from others."""

    def __init__(self, log: Protection = BYZANTINE, decided: int = 0) -> None:
        quorums = OrderQuorums(4, 1, log is BYZANTINE)
        self.consensus = Consensus(
            log,
            B2,
            (B1, B2, B3, B4),
            quorums,
            HASH,
            durable=False,
            window=4,
            holds=lambda _: True,
        )
        for instance in range(1, decided + 1):
            self.consensus.decide(instance, value_of(HASH, A), A)
        #: How far it has executed, if not everything that it knows to be decided.
        self.executed: int | None = None
        self.catch_up = CatchUp(self.consensus, quorums, HASH, self._executed)

    def _executed(self) -> int:
        return self.consensus.decided if self.executed is None else self.executed

    def hear(self, *decided: int) -> None:
        for peer, far in zip(PEERS, decided, strict=False):
            self.catch_up.standings[peer] = Standing(BYZANTINE, 0, far, far)

    def part(self, sender: NodeId, first: int, *batches: Batch) -> list[Effect]:
        return self.catch_up.on_log_part(sender, LogPart(BYZANTINE, first, batches))


# --------------------------------------------------------------------- the log


def test_frontier_is_as_far_as_f_plus_1_say_they_are() -> None:
    learner = Learner()
    learner.hear(9)
    assert not learner.catch_up.behind()
    learner.hear(9, 5)
    assert learner.catch_up.frontier() == 5
    assert learner.catch_up.ask() == [Send(PEERS, LogQuery(BYZANTINE, 1))]


def test_frontier_where_nobody_lies_is_what_one_says() -> None:
    learner = Learner(CRASH)
    learner.hear(9)
    assert learner.catch_up.frontier() == 9


def test_broker_that_is_not_behind_asks_for_nothing() -> None:
    learner = Learner(decided=5)
    learner.hear(5, 5, 5)
    assert learner.catch_up.ask() == []


def test_log_part_of_one_is_not_believed_and_of_f_plus_1_is() -> None:
    learner = Learner()
    learner.part(B1, 1, A, B)
    learner.part(B1, 1, A, B)  # one broker, however often it says so
    assert learner.consensus.decided == 0
    learner.part(B3, 1, A)
    assert (learner.consensus.decided, learner.consensus.batch(1)) == (1, A)
    learner.part(B4, 2, B)
    assert learner.consensus.decided == 2


def test_log_parts_that_differ_do_not_add_up() -> None:
    learner = Learner()
    learner.part(B1, 1, A)
    learner.part(B3, 1, B)
    assert learner.consensus.decided == 0
    learner.part(B4, 1, B)
    assert learner.consensus.batch(1) == B


def test_log_part_where_nobody_lies_is_believed_at_once() -> None:
    learner = Learner(CRASH)
    learner.part(B1, 1, A, B)
    assert learner.consensus.decided == 2


def test_log_parts_are_kept_only_for_what_is_near_and_open() -> None:
    learner = Learner()
    learner.part(B1, 1, *[A] * (LOG_REACH + 50))
    learner.part(B1, 10**9, A)
    assert learner.catch_up.sizes()["reports"] == LOG_REACH
    learner.part(B3, 1, *[A] * 10)
    assert learner.consensus.decided == 10
    assert learner.catch_up.sizes()["reports"] == LOG_REACH - 10


def test_log_query_is_answered_with_what_follows() -> None:
    learner = Learner(decided=3)
    assert learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 2)) == [
        Send((B1,), LogPart(BYZANTINE, 2, (A, A)))
    ]
    beyond = learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 4))
    assert beyond == [Drop(DropReason.NOT_HELD, B1)]


def test_log_query_is_answered_in_parts_of_bounded_size() -> None:
    learner = Learner(decided=LOG_PART + 5)
    (part,) = messages(learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 1)), LogPart)
    assert isinstance(part, LogPart)
    assert len(part.batches) == LOG_PART
    wide = batch(*[b"x"] * (LOG_RUNS // 2))
    learner = Learner()
    for instance in (1, 2, 3):
        learner.consensus.decide(instance, value_of(HASH, wide), wide)
    (part,) = messages(learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 1)), LogPart)
    assert isinstance(part, LogPart)
    assert len(part.batches) == 2


def test_log_query_stops_at_a_batch_that_is_not_known() -> None:
    learner = Learner()
    learner.consensus.decide(1, value_of(HASH, A))
    assert learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 1)) == []


# ------------------------------------------------------------------- the state

IMAGE = bytes(range(256)) * 256 + b"the rest"  # two chunks
STATE = StateImage(8, IMAGE)
HEAD = StateHead(BYZANTINE, 8, STATE.digests)


def chunk(learner: Learner, sender: NodeId, index: int, body: bytes) -> list[Effect]:
    return learner.catch_up.on_chunk(sender, Chunk(BYZANTINE, 8, index), (body,))


def wanting() -> Learner:
    """A learner that two brokers have offered the same state."""
    learner = Learner()
    learner.catch_up.on_state_head(B1, HEAD)
    learner.catch_up.on_state_head(B3, HEAD)
    return learner


def test_checkpoint_has_its_image_in_chunks() -> None:
    assert len(IMAGE) > CHUNK_BYTES
    assert (len(STATE.chunks), b"".join(STATE.chunks)) == (2, IMAGE)


def test_log_query_for_what_was_forgotten_is_answered_with_the_state() -> None:
    learner = Learner(decided=9)
    learner.consensus.forget(4)
    assert reasons(learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 2))) == [
        DropReason.NOT_HELD
    ]
    learner.catch_up.hold(STATE)
    assert learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 2)) == [Send((B1,), HEAD)]
    assert messages(learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 5)), LogPart) != []


def test_log_query_is_answered_with_every_state_that_is_held_beside_the_log() -> None:
    """Others may have forgotten that part of the log: then only the states can be alike."""
    learner = Learner(decided=9)
    older = StateImage(4, b"older")
    learner.catch_up.hold(STATE)
    assert messages(learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 2)), StateHead) == []
    learner.catch_up.hold(older)
    heads = messages(learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 2)), StateHead)
    assert {head.checkpoint for head in heads if isinstance(head, StateHead)} == {4, 8}
    learner.catch_up.drop(8)
    assert learner.catch_up.checkpoint is STATE
    assert learner.catch_up.held == {8: STATE}


def test_state_that_enough_offer_among_others_is_fetched() -> None:
    learner = Learner()
    for sender, other in ((B1, 4), (PEERS[-1], 12)):
        learner.catch_up.on_state_head(sender, StateHead(BYZANTINE, other, STATE.digests))
        learner.catch_up.on_state_head(sender, HEAD)
    assert learner.catch_up.wanted == HEAD


def test_chunk_query_is_answered_for_checkpoints_that_are_held() -> None:
    learner = Learner()
    assert reasons(learner.catch_up.on_chunk_query(B1, ChunkQuery(BYZANTINE, 8, 0))) == [
        DropReason.NOT_HELD
    ]
    learner.catch_up.hold(STATE)
    assert learner.catch_up.on_chunk_query(B1, ChunkQuery(BYZANTINE, 8, 1)) == [
        Send((B1,), Chunk(BYZANTINE, 8, 1), (STATE.chunks[1],))
    ]
    for query, reason in (
        (ChunkQuery(BYZANTINE, 8, 2), DropReason.BAD_RUN),
        (ChunkQuery(BYZANTINE, 4, 0), DropReason.NOT_HELD),
    ):
        assert learner.catch_up.on_chunk_query(B1, query) == [Drop(reason, B1)]


def test_state_that_one_offers_is_not_fetched_and_of_f_plus_1_it_is() -> None:
    learner = Learner()
    assert learner.catch_up.on_state_head(B1, HEAD) == []
    other = StateHead(BYZANTINE, 8, STATE.digests[::-1])
    assert learner.catch_up.on_state_head(B4, other) == []
    asked = sent(learner.catch_up.on_state_head(B3, HEAD))
    assert {send.to for send in asked} <= {(B1,), (B3,)}
    assert [send.message for send in asked] == [
        ChunkQuery(BYZANTINE, 8, 0),
        ChunkQuery(BYZANTINE, 8, 1),
    ]


def test_state_that_is_no_newer_is_not_wanted() -> None:
    learner = Learner(decided=8)
    assert learner.catch_up.on_state_head(B1, HEAD) == [Drop(DropReason.DUPLICATE, B1)]


def test_state_newer_than_the_one_that_is_fetched_takes_its_place() -> None:
    learner = wanting()
    chunk(learner, B1, 0, STATE.chunks[0])
    newer = StateHead(BYZANTINE, 12, STATE.digests)
    learner.catch_up.on_state_head(B1, newer)
    learner.catch_up.on_state_head(B3, newer)
    assert learner.catch_up.wanted == newer
    assert learner.catch_up.sizes()["chunks"] == 0


def test_chunks_in_any_order_make_the_state() -> None:
    learner = wanting()
    assert learner.catch_up.fetched() is None
    assert chunk(learner, B1, 1, STATE.chunks[1]) == []
    assert learner.catch_up.fetched() is None
    chunk(learner, B1, 0, STATE.chunks[0])
    assert learner.catch_up.fetched() == (8, IMAGE)
    assert learner.catch_up.wanted is None
    assert learner.catch_up.fetched() is None


def test_chunk_that_was_altered_is_asked_of_another() -> None:
    learner = wanting()
    effects = chunk(learner, B1, 0, b"x" + STATE.chunks[0][1:])
    assert effects[:2] == [
        Drop(DropReason.BAD_BODY, B1),
        Suspect(B1, Suspicion.BAD_BODY),
    ]
    again = sent(effects)
    assert {send.to for send in again} == {(B3,)}
    for index, body in enumerate(STATE.chunks):
        chunk(learner, B3, index, body)
    assert learner.catch_up.fetched() == (8, IMAGE)


def test_chunk_from_anybody_is_good_if_it_matches() -> None:
    learner = wanting()
    for index, body in enumerate(STATE.chunks):
        assert suspects(chunk(learner, B4, index, body)) == []
    assert learner.catch_up.fetched() == (8, IMAGE)


def test_chunk_that_nobody_asked_for_is_dropped() -> None:
    assert reasons(chunk(Learner(), B1, 0, b"")) == [DropReason.UNEXPECTED]
    learner = wanting()
    late = learner.catch_up.on_chunk(B1, Chunk(BYZANTINE, 4, 0), (b"",))
    assert reasons(late) == [DropReason.UNEXPECTED]
    assert reasons(chunk(learner, B1, 2, b"")) == [DropReason.BAD_RUN]
    none = learner.catch_up.on_chunk(B1, Chunk(BYZANTINE, 8, 0), ())
    assert reasons(none) == [DropReason.BAD_RUN]


def test_chunks_that_do_not_come_are_asked_of_the_next_holder() -> None:
    learner = wanting()
    asked = [send.to for _ in range(4) for send in sent(learner.catch_up.ask(), ChunkQuery)]
    assert {(B1,), (B3,)} == set(asked)


def test_states_from_the_last_stable_one_on_are_all_offered() -> None:
    """Brokers are not equally far: one of their states at least is the same at enough of them."""
    learner = Learner(decided=20)
    learner.consensus.forget(8)
    newer = StateImage(12, IMAGE)
    for made in (StateImage(4, IMAGE), STATE, newer):
        learner.catch_up.hold(made)
    learner.catch_up.drop(8)
    assert learner.catch_up.checkpoint is newer
    assert messages(learner.catch_up.on_log_query(B1, LogQuery(BYZANTINE, 2)), StateHead) == [
        HEAD,
        StateHead(BYZANTINE, 12, newer.digests),
    ]


def test_states_offered_by_one_liar_are_bounded() -> None:
    learner = Learner()
    for instance in range(1, 1000):
        learner.catch_up.on_state_head(B4, StateHead(BYZANTINE, instance, STATE.digests))
    assert learner.catch_up.wanted is None
    assert len(learner.catch_up._heads[B4]) <= HEADS_KEPT


def test_state_that_its_holders_have_left_behind_is_not_waited_for_for_ever() -> None:
    """Holders keep the newest checkpoint only: whoever was too slow must hear of the next one."""
    learner = wanting()
    learner.hear(20, 20, 20)
    assert LogQuery(BYZANTINE, 1) in messages(learner.catch_up.ask(), LogQuery)


def test_state_that_the_log_has_overtaken_is_not_asked_for_any_longer() -> None:
    learner = wanting()
    for sender in (B1, B3):
        learner.part(sender, 1, *[A] * 8)
    assert learner.catch_up.ask() == []
    assert learner.catch_up.wanted is None


# ------------------------------------------------- decisions that cannot be executed


def starved() -> Learner:
    """It knows what was decided in five instances, but not the batch of the second."""
    learner = Learner(decided=1)
    learner.executed = 1
    for instance in range(2, 6):
        learner.consensus.decide(instance, value_of(HASH, B))
    assert learner.consensus.decided == 5
    return learner


def test_broker_that_gets_no_further_asks_for_the_log_from_where_it_stands() -> None:
    learner = starved()
    learner.hear(5, 5, 5)
    assert learner.catch_up.ask() == []  # it may be about to get what it lacks
    assert learner.catch_up.ask() == [Send(PEERS, LogQuery(BYZANTINE, 2, stuck=True))]
    learner.executed = 2
    assert learner.catch_up.ask() == []


def test_batch_of_a_decision_is_taken_from_anybody_if_it_is_the_one() -> None:
    learner = starved()
    learner.part(B1, 2, A, B)
    assert learner.consensus.batch(2) is None
    assert learner.consensus.batch(3) == B
    learner.part(B3, 2, B)
    assert learner.consensus.batch(2) == B


def test_broker_that_gets_no_further_takes_a_state_of_what_it_knows_to_be_decided() -> None:
    learner = starved()
    head = StateHead(BYZANTINE, 4, (b"\1" * 32,))
    assert learner.catch_up.on_state_head(B1, head) == []
    assert learner.catch_up.on_state_head(B3, head) == [Send((B1,), ChunkQuery(BYZANTINE, 4, 0))]
