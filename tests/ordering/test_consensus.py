"""PROPOSE, WRITE, ACCEPT at one broker (FIT-Broker §4.4.2), n = 4 and f = 1 unless said otherwise.

b2 is the machine under test and b1 leads: quorums of 3, two of 3 where brokers only crash.
"""

from __future__ import annotations

import pytest
from tests.support.cells import B1, B2, B3, B4, B5, BOB, Cell, reasons, sent, suspects
from tests.support.ordering import TOTAL, batch

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Persist, Send, Suspect, Suspicion
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Claim
from quorumcast.ordering.consensus import KEPT_VALUES, Conclusion, Consensus, Slot, Voted, value_of
from quorumcast.ordering.messages import Accept, Batch, Propose, Write

BYZANTINE, CRASH = Protection.BYZANTINE, Protection.CRASH
HASH = Cell(TOTAL).manifest.hash
FOUR = (B1, B2, B3, B4)
PEERS = (B1, B3, B4)
A, B = batch(b"a"), batch(b"b")
VA, VB, EMPTY = value_of(HASH, A), value_of(HASH, B), value_of(HASH, ())


def consensus(
    me: NodeId = B2,
    *,
    members: tuple[NodeId, ...] = FOUR,
    log: Protection = BYZANTINE,
    durable: bool = False,
    window: int = 4,
    lacking: set[bytes] | None = None,
) -> Consensus:
    return Consensus(
        log,
        me,
        members,
        OrderQuorums(len(members), 1, log is BYZANTINE),
        HASH,
        durable=durable,
        window=window,
        holds=lambda found: value_of(HASH, found) not in (lacking or set()),
    )


def propose(value: Batch, instance: int = 1, regency: int = 0) -> Propose:
    return Propose(BYZANTINE, regency, instance, value)


def write(value: bytes, instance: int = 1, regency: int = 0) -> Write:
    return Write(BYZANTINE, regency, instance, value)


def accept(value: bytes, instance: int = 1, regency: int = 0) -> Accept:
    return Accept(BYZANTINE, regency, instance, value)


def hear(machine: Consensus, word: Write | Accept, *senders: NodeId) -> list[Effect]:
    return [effect for sender in senders for effect in machine.on_vote(sender, word)]


# ----------------------------------------------------------------- PROPOSE


def test_propose_of_the_leader_is_written_to_all_others() -> None:
    assert consensus().on_propose(B1, propose(A)) == [Send(PEERS, write(VA))]


def test_propose_by_the_leader_itself_goes_to_all_and_is_written() -> None:
    assert consensus(B1).propose(1, A) == [
        Send((B2, B3, B4), propose(A)),
        Send((B2, B3, B4), write(VA)),
    ]


@pytest.mark.parametrize(("sender", "regency"), [(B3, 0), (B2, 1), (B1, 1), (BOB, 0)])
def test_propose_by_another_or_for_another_regency_is_out_of_turn(
    sender: NodeId, regency: int
) -> None:
    machine = consensus()
    assert machine.on_propose(sender, propose(A, regency=regency)) == [
        Drop(DropReason.OUT_OF_TURN, sender)
    ]
    assert machine.slots == {}


def test_propose_before_the_leader_has_shown_its_words_is_out_of_turn() -> None:
    machine = consensus()
    machine.enter(4)  # b1 leads again
    assert reasons(machine.on_propose(B1, propose(A, regency=4))) == [DropReason.OUT_OF_TURN]
    machine.synchronise(Conclusion(0, {}))
    assert sent(machine.on_propose(B1, propose(A, regency=4))) == [
        Send(PEERS, write(VA, regency=4))
    ]


def test_propose_inside_the_window_is_taken_and_beyond_it_is_not() -> None:
    machine = consensus(window=4)
    assert sent(machine.on_propose(B1, propose(A, 4))) == [Send(PEERS, write(VA, 4))]
    assert machine.on_propose(B1, propose(A, 5)) == [Drop(DropReason.OUT_OF_WINDOW, B1)]
    hear(machine, accept(VA, 1), B1, B3, B4)
    assert sent(machine.on_propose(B1, propose(A, 5))) == [Send(PEERS, write(VA, 5))]


def test_propose_of_two_values_is_written_once_and_suspected() -> None:
    machine = consensus()
    machine.on_propose(B1, propose(A))
    assert machine.on_propose(B1, propose(B)) == [
        Drop(DropReason.CONFLICT, B1),
        Suspect(B1, Suspicion.EQUIVOCATION),
    ]
    assert machine.on_propose(B1, propose(A)) == []  # a repetition is normal


def test_propose_of_what_is_lacking_waits_until_it_is_here() -> None:
    lacking = {VA}
    machine = consensus(lacking=lacking)
    assert machine.on_propose(B1, propose(A)) == []
    assert machine.waiting() == [(1, A)]
    lacking.clear()
    assert machine.consider(1) == [Send(PEERS, write(VA))]
    assert machine.waiting() == []
    assert machine.consider(1) == []


def test_propose_against_the_conclusion_is_suspected() -> None:
    """The words of n-f brokers bind instance 1 to B and leave instance 2 empty."""
    machine = consensus()
    machine.enter(4)
    machine.synchronise(Conclusion(0, {1: VB, 2: b""}))
    for instance in (1, 2):
        found = machine.on_propose(B1, propose(A, instance, 4))
        assert (reasons(found), suspects(found)) == ([DropReason.CONFLICT], [B1])
    assert sent(machine.on_propose(B1, propose(B, 1, 4))) == [Send(PEERS, write(VB, 1, 4))]
    assert sent(machine.on_propose(B1, propose((), 2, 4))) == [Send(PEERS, write(EMPTY, 2, 4))]
    assert sent(machine.on_propose(B1, propose(A, 3, 4))) == [Send(PEERS, write(VA, 3, 4))]


def test_propose_up_to_the_low_end_of_the_conclusion_is_out_of_window() -> None:
    """Enough brokers have decided that far: it is learned from them, not decided again."""
    machine = consensus()
    machine.enter(4)
    machine.synchronise(Conclusion(2, {}))
    assert reasons(machine.on_propose(B1, propose(A, 2, 4))) == [DropReason.OUT_OF_WINDOW]
    assert sent(machine.on_propose(B1, propose(A, 3, 4))) != []


# ------------------------------------------------------------------- WRITE


def test_writes_one_below_the_quorum_are_not_accepted() -> None:
    machine = consensus()
    machine.on_propose(B1, propose(A))
    assert hear(machine, write(VA), B1) == []


def test_writes_of_a_quorum_with_our_own_are_accepted_once() -> None:
    machine = consensus()
    machine.on_propose(B1, propose(A))
    assert hear(machine, write(VA), B1, B3) == [Send(PEERS, accept(VA))]
    assert hear(machine, write(VA), B4) == []


def test_writes_of_a_quorum_are_accepted_without_the_contents() -> None:
    """A quorum holds it: whoever lacks it can fetch it later."""
    assert hear(consensus(lacking={VA}), write(VA), B1, B3, B4) == [Send(PEERS, accept(VA))]


def test_writes_with_a_spare_broker_need_the_larger_quorum() -> None:
    """n = 5, f = 1: four. Two sets of three may share nobody but the liar."""
    machine = consensus(members=(*FOUR, B5))
    assert hear(machine, write(VA), B1, B3, B4) == []
    assert sent(hear(machine, write(VA), B5)) == [Send((*PEERS, B5), accept(VA))]


def test_writes_for_two_values_or_regencies_do_not_add_up() -> None:
    machine = consensus()
    assert hear(machine, write(VA), B1, B3) == []
    assert hear(machine, write(VB), B4) == []
    machine = consensus()
    assert hear(machine, write(VA), B1, B3) == []
    assert hear(machine, write(VA, regency=1), B4) == []


def test_write_of_a_second_value_is_suspected_and_not_counted() -> None:
    machine = consensus()
    hear(machine, write(VB), B1)
    assert hear(machine, write(VA), B1) == [
        Drop(DropReason.CONFLICT, B1),
        Suspect(B1, Suspicion.EQUIVOCATION),
    ]
    assert hear(machine, write(VA), B3, B4) == []


def test_write_repeated_counts_once_and_is_no_lie() -> None:
    machine = consensus()
    assert hear(machine, write(VA), B1, B1, B1, B3) == []


def test_write_of_a_client_or_beyond_the_window_is_dropped() -> None:
    machine = consensus(window=4)
    assert hear(machine, write(VA), BOB) == [Drop(DropReason.WRONG_SENDER, BOB)]
    assert reasons(hear(machine, write(VA, 9), B1)) == [DropReason.OUT_OF_WINDOW]
    assert hear(machine, write(VA, 8), B1) == []  # a faster broker's word is kept
    assert list(machine.slots) == [8]


def test_writes_after_the_broker_has_left_the_regency_are_not_accepted() -> None:
    machine = consensus()
    machine.on_propose(B1, propose(A))
    machine.enter(1)
    assert hear(machine, write(VA), B1, B3, B4) == []
    assert [claim.value for claim in machine.claims()] == [b""]


def test_writes_that_came_before_the_words_are_accepted_after_them() -> None:
    machine = consensus()
    machine.enter(4)
    assert hear(machine, write(VA, regency=4), B1, B3, B4) == []
    assert machine.synchronise(Conclusion(0, {})) == [Send(PEERS, accept(VA, regency=4))]


def test_write_happens_once_per_instance_and_regency() -> None:
    machine = consensus()
    first = machine.on_propose(B1, propose(A))
    machine.enter(4)
    machine.synchronise(Conclusion(0, {}))
    second = machine.on_propose(B1, propose(B, regency=4))
    assert [send.message for send in sent(first + second)] == [write(VA), write(VB, regency=4)]
    assert machine.claims() == (Claim(1, 0, b"", ((VA, 0), (VB, 4))),)


# ------------------------------------------------------------------ ACCEPT


def test_accepts_of_a_quorum_decide_and_fewer_do_not() -> None:
    machine = consensus()
    hear(machine, accept(VA), B1, B3)
    assert machine.decided == 0
    hear(machine, accept(VA), B4)
    assert machine.decided == 1


def test_accepts_f_plus_1_do_not_decide() -> None:
    """FIT-Broker decides here; a leader change could undo it (see test_conclusion)."""
    machine = consensus()
    hear(machine, accept(VA), B1, B3)
    assert (machine.decided, machine.slots[1].decided) == (0, b"")


def test_accepts_of_different_regencies_do_not_add_up() -> None:
    machine = consensus()
    hear(machine, accept(VA), B1, B3)
    hear(machine, accept(VA, regency=1), B4)
    assert machine.decided == 0
    hear(machine, accept(VA, regency=1), B1, B3)
    assert machine.decided == 1


def test_accepts_of_an_older_regency_after_a_newer_one_are_not_counted() -> None:
    machine = consensus()
    hear(machine, accept(VA, regency=1), B1)
    hear(machine, accept(VA), B1, B3, B4)
    assert machine.decided == 0


def test_accepts_decide_although_this_broker_is_on_its_way_to_another_leader() -> None:
    machine = consensus()
    machine.enter(1)
    hear(machine, accept(VA), B1, B3, B4)
    assert machine.decided == 1


def test_decided_counts_only_what_has_no_gap_before_it() -> None:
    machine = consensus()
    hear(machine, accept(VB, 2), B1, B3, B4)
    assert machine.decided == 0
    hear(machine, accept(VA, 1), B1, B3, B4)
    assert machine.decided == 2


def test_decided_batch_is_known_only_if_it_was_seen() -> None:
    machine = consensus()
    hear(machine, accept(VA), B1, B3, B4)
    assert machine.batch(1) is None
    machine.on_propose(B1, propose(A))
    assert machine.batch(1) == A


def test_decided_value_proposed_again_is_written_again() -> None:
    """Others may lack it; and it need not be held any longer, only to be what was decided."""
    machine = consensus(lacking={VA, VB})
    machine.decide(1, VA, A)
    machine.enter(4)
    machine.synchronise(Conclusion(0, {1: VA}))
    assert sent(machine.on_propose(B1, propose(A, regency=4))) == [
        Send(PEERS, write(VA, regency=4))
    ]


# ------------------------------------------------------------------ crashes


def test_crash_log_accepts_what_the_leader_proposes_at_once() -> None:
    machine = consensus(members=(B1, B2, B3), log=CRASH)
    assert machine.on_propose(B1, propose(A)) == [Send((B1, B3), Accept(CRASH, 0, 1, VA))]
    assert machine.decided == 0
    hear(machine, Accept(CRASH, 0, 1, VA), B1)
    assert machine.decided == 1  # two of three: with our own


def test_crash_log_ignores_writes() -> None:
    machine = consensus(members=(B1, B2, B3), log=CRASH)
    assert hear(machine, Write(CRASH, 0, 1, VA), B1, B3) == []
    assert machine.slots[1].accepted == (-1, b"")


# --------------------------------------------------------------------- disk


def test_durable_write_leaves_only_with_its_record() -> None:
    (effect,) = consensus(durable=True).on_propose(B1, propose(A))
    record = Voted(BYZANTINE, 1, 0, (-1, b""), ((VA, 0),), (A,))
    assert effect == Persist(record, (Send(PEERS, write(VA)),))
    assert (record.owner, record.place) == ("byzantine", 1)


def test_durable_write_counts_for_this_broker_once_it_is_on_disk() -> None:
    machine = consensus(durable=True)
    (effect,) = machine.on_propose(B1, propose(A))
    assert isinstance(effect, Persist)
    assert isinstance(effect.record, Voted)
    assert hear(machine, write(VA), B1, B3) == []  # with our own it would be a quorum
    (accepting,) = machine.on_persisted(effect.record)
    assert isinstance(accepting, Persist)
    assert isinstance(accepting.record, Voted)
    assert accepting.then == (Send(PEERS, accept(VA)),)
    assert accepting.record.accepted == (0, VA)


def test_durable_accept_counts_for_this_broker_once_it_is_on_disk() -> None:
    machine = consensus(durable=True)
    (effect,) = hear(machine, write(VA), B1, B3, B4)
    assert isinstance(effect, Persist)
    assert isinstance(effect.record, Voted)
    hear(machine, accept(VA), B1, B3)
    assert machine.decided == 0
    assert machine.on_persisted(effect.record) == []
    assert machine.decided == 1


def test_persisted_vote_of_an_instance_that_was_forgotten_is_nothing() -> None:
    machine = consensus(durable=True)
    (effect,) = machine.on_propose(B1, propose(A))
    machine.skip_to(1)
    assert isinstance(effect, Persist)
    assert isinstance(effect.record, Voted)
    assert machine.on_persisted(effect.record) == []
    assert machine.slots == {}


@pytest.mark.parametrize("log", [BYZANTINE, CRASH])
def test_restored_broker_stands_by_its_votes_and_repeats_them(log: Protection) -> None:
    before = consensus(log=log, durable=True)
    effects = before.on_propose(B1, Propose(log, 0, 1, A))
    effects += hear(before, Write(log, 0, 1, VA), B1, B3, B4) if log is BYZANTINE else []
    records = [e.record for e in effects if isinstance(e, Persist)]
    words = [send.message for e in effects if isinstance(e, Persist) for send in sent(e.then)]

    after = consensus(log=log, durable=True)
    for record in records:
        if isinstance(record, Voted):
            after.restore(record)
    assert after.claims() == before.claims()
    assert after.slots[1].batches == {VA: A}
    assert [send.message for send in sent(after.retransmit())][-1:] == words[-1:]
    assert after.on_propose(B1, Propose(log, 0, 1, B)) == []  # it has written in this regency
    hear(after, Accept(log, 0, 1, VA), B1, B3)
    assert after.decided == 1  # its own vote is among them


def test_restored_broker_is_in_the_regency_of_its_last_vote_and_waits_for_words() -> None:
    machine = consensus(durable=True)
    machine.restore(Voted(BYZANTINE, 1, 4, (-1, b""), ((VA, 4),), (A,)))
    assert (machine.regency, machine.synced, machine.leads) == (4, False, False)


def test_restored_vote_of_an_instance_that_was_forgotten_is_not_kept() -> None:
    machine = consensus(durable=True)
    machine.skip_to(3)
    machine.restore(Voted(BYZANTINE, 3, 0, (0, VA), ((VA, 0),), (A,)))
    assert machine.slots == {}


# --------------------------------------------------------------------- blind


def test_blind_broker_neither_writes_nor_accepts_but_decides() -> None:
    machine = consensus()
    machine.blind = 2
    assert machine.on_propose(B1, propose(A)) == []
    assert hear(machine, write(VA), B1, B3, B4) == []
    hear(machine, accept(VA), B1, B3, B4)
    assert (machine.decided, machine.batch(1)) == (1, A)
    assert machine.claims() == ()


def test_blind_broker_takes_part_in_what_comes_after() -> None:
    machine = consensus()
    machine.blind = 2
    assert sent(machine.on_propose(B1, propose(A, 3))) == [Send(PEERS, write(VA, 3))]


# -------------------------------------------------------------------- memory


def test_repeat_of_the_leader_has_the_proposal_and_its_votes() -> None:
    machine = consensus(B1)
    machine.propose(1, A)
    others = (B2, B3, B4)
    assert machine.retransmit() == [Send(others, propose(A)), Send(others, write(VA))]
    hear(machine, accept(VA), B2, B3, B4)
    assert machine.retransmit() == []


def test_forgotten_instances_are_gone_and_their_votes_are_dropped() -> None:
    machine = consensus()
    for instance in (1, 2):
        machine.decide(instance, VA, A)
    machine.forget(1)
    assert list(machine.slots) == [2]
    assert reasons(hear(machine, write(VA, 1), B1)) == [DropReason.OUT_OF_WINDOW]
    machine.forget(0)
    assert machine.forgotten == 1


def test_skipping_ahead_joins_what_was_decided_beyond() -> None:
    machine = consensus(window=8)
    machine.decide(6, VB, B)
    machine.skip_to(5)
    assert (machine.decided, machine.forgotten, list(machine.slots)) == (6, 5, [6])
    machine.skip_to(3)
    assert machine.decided == 6


def test_slot_keeps_what_it_wrote_and_decided_and_a_few_others() -> None:
    slot = Slot()
    slot.written[VA] = 0
    slot.decided = VB
    for value, found in ((VA, A), (VB, B)):
        slot.keep(value, found)
    for number in range(50):
        other = batch(b"x%d" % number)
        slot.keep(value_of(HASH, other), other)
    assert {VA, VB} <= slot.batches.keys()
    assert len(slot.batches) == KEPT_VALUES


def test_written_values_are_bounded_and_the_oldest_gives_way() -> None:
    machine = consensus()
    for regency in range(KEPT_VALUES + 3):
        machine.enter(4 * regency)
        machine.synchronise(Conclusion(0, {}))
        machine.on_propose(B1, propose(batch(b"v%d" % regency), regency=4 * regency))
    (claim,) = machine.claims()
    assert [regency for _, regency in claim.written] == [12, 16, 20, 24]


def test_slots_are_bounded_against_a_flood_of_votes() -> None:
    machine = consensus(window=4)
    for instance in range(1, 1000):
        machine.on_vote(B1, write(VA, instance))
    assert machine.sizes() == {"slots": 8, "slot_batches": 0}
