"""STOP, STOP-DATA, SYNC at one broker (FIT-Broker §4.4.3): four brokers, one may lie.

In regency 1 b2 leads; b3 is the machine under test unless it must lead.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cells import B1, B2, B3, B4, T0, Cell, messages, reasons, sent, suspects
from tests.support.ordering import TOTAL, TOTAL_CRASH, accepted, batch, word

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Persist, Send, Suspect, Suspicion
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Claim, Signed, StopStatement, canonical, parse_stop
from quorumcast.ordering.consensus import Conclusion, Consensus, value_of
from quorumcast.ordering.genesis import Genesis
from quorumcast.ordering.leader_change import STATEMENTS_MS, LeaderChange, Moved
from quorumcast.ordering.messages import (
    Accept,
    Fetch,
    Propose,
    Standing,
    Stop,
    StopData,
    Sync,
    Write,
)

BYZANTINE, CRASH = Protection.BYZANTINE, Protection.CRASH
CELL = Cell(TOTAL)
HASH = CELL.manifest.hash
FOUR = (B1, B2, B3, B4)
A = batch(b"a")
VA = value_of(HASH, A)
LATER = Millis(5_000)


class Known(Genesis):
    """The id of a log, as a test wants it."""

    log_id = b""
    common = False

    def __init__(self) -> None:
        pass

    def _is_common(self) -> bool:
        return self.common


class Part:
    """One broker's consensus and leader change."""

    def __init__(
        self,
        me: NodeId = B3,
        *,
        log: Protection = BYZANTINE,
        durable: bool = False,
        members: tuple[NodeId, ...] = FOUR,
        holds: bool = True,
    ) -> None:
        quorums = OrderQuorums(len(members), 1, log is BYZANTINE)
        self.peers = tuple(member for member in members if member != me)
        self.consensus = Consensus(
            log, me, members, quorums, HASH, durable=durable, window=4, holds=lambda _: holds
        )
        self.genesis = Known()
        self.change = LeaderChange(
            self.consensus, quorums, CELL.keyring(me), self.genesis, durable=durable
        )

    def stops(self, regency: int, *senders: NodeId) -> list[Effect]:
        log = self.consensus.log
        return [
            effect
            for sender in senders
            for effect in self.change.on_stop(sender, Stop(log, regency), LATER)
        ]

    def stop_data(self, *words: StopStatement) -> list[Effect]:
        return [
            effect
            for one in words
            for effect in self.change.on_stop_data(
                one.broker, StopData(BYZANTINE, signed(one)), LATER
            )
        ]


def signed(statement: StopStatement, by: NodeId | None = None) -> Signed:
    return CELL.keyring(by or statement.broker).identity.sign(canonical(statement))


def sync(regency: int, *words: StopStatement) -> Sync:
    return Sync(BYZANTINE, regency, tuple(map(signed, words)))


def quiet(*names: str, regency: int = 1) -> list[StopStatement]:
    """Brokers that stand by nothing."""
    return [word(name, regency=regency) for name in names]


def said(effect: Effect) -> StopStatement:
    """The word in a StopData on its way."""
    assert isinstance(effect, Send)
    assert isinstance(effect.message, StopData)
    found = parse_stop(effect.message.statement.payload)
    assert found is not None
    return found


# -------------------------------------------------------------------- STOP


def test_complaint_asks_all_others_for_the_next_regency_once() -> None:
    part = Part()
    assert part.change.request(T0) == [Send(part.peers, Stop(BYZANTINE, 1))]
    assert part.change.request(T0) == []
    assert part.consensus.regency == 0


def test_stop_by_f_brokers_is_not_joined() -> None:
    part = Part()
    assert part.stops(1, B1) == []
    assert part.stops(1, B1, B1) == []  # one broker, however often it says so


def test_stop_by_f_plus_1_brokers_is_joined_and_n_minus_f_move() -> None:
    part = Part()
    effects = part.stops(1, B1, B4)
    assert effects[0] == Send(part.peers, Stop(BYZANTINE, 1))
    assert part.consensus.regency == 1  # with our own these are three
    assert not part.consensus.synced
    assert said(effects[1]).regency == 1
    assert isinstance(effects[1], Send)
    assert effects[1].to == (B2,)


def test_stop_in_a_larger_cell_joins_before_it_moves() -> None:
    """n = 7, f = 1: joined at 2, moved at 6."""
    names = tuple(NodeId(f"b{i}") for i in range(1, 8))
    part = Part(members=names)
    assert messages(part.stops(1, B1, B2), Stop) == [Stop(BYZANTINE, 1)]
    part.stops(1, B4, NodeId("b5"))
    assert part.consensus.regency == 0
    part.stops(1, NodeId("b6"))
    assert part.consensus.regency == 1


def test_stop_for_different_regencies_counts_for_the_lower_one() -> None:
    part = Part()
    part.stops(3, B1)
    part.stops(2, B4)
    assert part.consensus.regency == 2


def test_stop_by_one_liar_for_a_far_regency_moves_nobody_there() -> None:
    part = Part()
    part.stops(1_000, B4)
    part.stops(1, B1)
    assert part.consensus.regency == 1


def test_stop_in_a_crash_log_is_joined_at_once() -> None:
    """One word is true. With three brokers it is also enough to move."""
    part = Part(log=CRASH, members=(B1, B2, B3))
    effects = part.stops(1, B1)
    assert effects[0] == Send((B1, B2), Stop(CRASH, 1))
    assert part.consensus.regency == 1


def test_stop_for_a_regency_that_is_over_changes_nothing() -> None:
    part = Part()
    part.stops(2, B1, B4)
    assert part.stops(1, B1, B2, B4) == []
    assert part.consensus.regency == 2


# --------------------------------------------------------------- STOP-DATA


def test_word_says_what_this_broker_stands_by() -> None:
    part = Part()
    part.consensus.on_propose(B1, Propose(BYZANTINE, 0, 1, A))
    for peer in (B1, B2, B4):
        part.consensus.on_vote(peer, Write(BYZANTINE, 0, 1, VA))
    part.consensus.stable = 0
    effects = part.stops(1, B1, B4)
    assert said(effects[1]) == word("b3", accepted(VA), regency=1)


def test_durable_word_is_given_only_after_the_move_is_on_disk() -> None:
    """Whoever forgot that it had left a regency could vote in it again."""
    part = Part(durable=True)
    effects = part.stops(1, B1, B4)
    record = Moved(BYZANTINE, 1)
    assert effects[1:] == [Persist(record)]
    assert (record.owner, record.place) == ("byzantine", 0)
    assert part.change.send_stop_data(LATER) == []  # not even a tick makes it speak sooner
    (given,) = part.change.on_moved(record, LATER)
    assert said(given).regency == 1


def test_restored_move_is_where_the_broker_goes_on_and_waits() -> None:
    part = Part(durable=True)
    part.change.restore(Moved(BYZANTINE, 3))
    assert (part.consensus.regency, part.consensus.synced) == (3, False)
    part.change.restore(Moved(BYZANTINE, 2))
    assert part.consensus.regency == 3


def test_blind_broker_gives_no_word_until_it_has_learned_what_it_forgot() -> None:
    part = Part()
    part.consensus.blind = 2
    assert messages(part.stops(1, B1, B4), StopData) == []
    part.consensus.skip_to(2)
    (given,) = part.change.send_stop_data(LATER)
    assert said(given) == word("b3", regency=1, decided=2, blind=2)


def test_word_is_not_given_again_once_the_leader_has_shown_its_words() -> None:
    part = Part()
    part.change.on_sync(B2, sync(1, *quiet("b1", "b2", "b4")), LATER)
    assert part.change.send_stop_data(LATER) == []


# -------------------------------------------------------------------- SYNC


def leader() -> Part:
    """b2 on its way into regency 1, with its own word."""
    part = Part(B2)
    part.stops(1, B1, B4)
    assert part.consensus.regency == 1
    return part


def test_leader_with_n_minus_f_words_shows_them_and_leads() -> None:
    part = leader()
    assert part.stop_data(*quiet("b3")) == []
    (shown,) = part.stop_data(*quiet("b4"))
    assert isinstance(shown, Send)
    assert isinstance(shown.message, Sync)
    assert shown.to == part.peers
    assert [one.signer for one in shown.message.statements] == [B2, B3, B4]
    assert part.consensus.leads


def test_leader_hears_one_word_per_broker_the_last_one() -> None:
    part = leader()
    part.stop_data(*quiet("b3"))
    assert part.stop_data(word("b3", regency=1, decided=1)) == []
    assert not part.consensus.leads


@pytest.mark.parametrize("regency", [2, 5])
def test_leader_word_for_another_regency_is_out_of_turn(regency: int) -> None:
    part = leader()
    assert part.stop_data(*quiet("b3", regency=regency)) == [Drop(DropReason.OUT_OF_TURN, B3)]


def test_leader_word_that_somebody_else_passes_on_or_signed_is_refused() -> None:
    part = leader()
    (one,) = quiet("b3")
    passed = part.change.on_stop_data(B4, StopData(BYZANTINE, signed(one)), LATER)
    assert passed == [Drop(DropReason.BAD_SIGNATURE, B4)]
    forged = part.change.on_stop_data(B3, StopData(BYZANTINE, signed(one, by=B4)), LATER)
    assert forged == [Drop(DropReason.BAD_SIGNATURE, B3)]


def test_word_for_a_broker_that_does_not_lead_is_out_of_turn() -> None:
    part = Part(B3)
    part.stops(1, B1, B4)
    assert part.stop_data(*quiet("b4")) == [Drop(DropReason.OUT_OF_TURN, B4)]


def test_leader_repeats_its_sync_to_a_broker_whose_stop_data_comes_late() -> None:
    part = leader()
    (shown,) = part.stop_data(*quiet("b3", "b4"))
    assert isinstance(shown, Send)
    assert part.stop_data(*quiet("b1")) == [Send((B1,), shown.message)]


def test_leader_that_lacks_a_bound_batch_fetches_it_before_it_leads() -> None:
    part = leader()
    claim = accepted(VA)
    effects = part.stop_data(*(word(name, claim, regency=1) for name in ("b3", "b4")))
    assert effects == [Send(part.peers, Fetch(BYZANTINE, (VA,)))]
    assert part.change.lacking() == [VA]
    assert part.change.lacking_at(1) == (VA,)
    assert not part.consensus.leads
    part.consensus.slot(1).keep(VA, A)
    shown = part.change.maybe_lead(LATER)
    assert len(messages(shown, Sync)) == 1
    assert part.consensus.conclusion == Conclusion(0, {1: VA})
    assert part.consensus.leads


def test_sync_of_the_leader_is_followed_even_by_who_did_not_stop() -> None:
    part = Part(B3)
    words = quiet("b1", "b2", "b4")
    effects = part.change.on_sync(B2, sync(1, *words), LATER)
    assert (part.consensus.regency, part.consensus.synced) == (1, True)
    assert messages(effects, StopData) != []
    assert part.change.entered_at == LATER


def test_sync_binds_everybody_to_the_same_conclusion() -> None:
    claim = accepted(VA)
    words = [word(name, claim, regency=1) for name in ("b1", "b2", "b4")]
    for me in (B1, B3, B4):
        part = Part(me)
        part.change.on_sync(B2, sync(1, *words), LATER)
        assert part.consensus.conclusion == Conclusion(0, {1: VA})


@pytest.mark.parametrize("sender", [B1, B3, B4])
def test_sync_by_another_than_the_leader_is_refused(sender: NodeId) -> None:
    part = Part(B3)
    effects = part.change.on_sync(sender, sync(1, *quiet("b1", "b2", "b4")), LATER)
    assert effects == [Drop(DropReason.OUT_OF_TURN, sender)]
    assert part.consensus.regency == 0


def test_sync_a_second_time_or_of_an_older_regency_is_refused() -> None:
    """Two conclusions for one regency would divide the brokers."""
    part = Part(B3)
    part.change.on_sync(B2, sync(1, *quiet("b1", "b2", "b4")), LATER)
    other = sync(1, *(word(n, accepted(VA), regency=1) for n in ("b1", "b2", "b4")))
    assert reasons(part.change.on_sync(B2, other, LATER)) == [DropReason.OUT_OF_TURN]
    assert part.consensus.conclusion == Conclusion(0, {})
    part.consensus.enter(2)
    late = part.change.on_sync(B2, sync(1, *quiet("b1", "b2", "b4")), LATER)
    assert reasons(late) == [DropReason.OUT_OF_TURN]


FALSE_SYNCS = {
    "too few words": sync(1, *quiet("b1", "b2")),
    "one word thrice": sync(1, *quiet("b2", "b2", "b2")),
    "a word for another regency": sync(1, *quiet("b1", "b2"), *quiet("b4", regency=2)),
    "a forged word": Sync(
        BYZANTINE,
        1,
        (
            *map(signed, quiet("b1", "b2")),
            msgspec.structs.replace(signed(quiet("b4")[0]), signature=bytes(64)),
        ),
    ),
    "a word twice beside enough good ones": sync(1, *quiet("b1", "b2", "b4", "b4")),
    "words that leave it open": sync(1, word("b1", accepted(VA), regency=1), *quiet("b2", "b4")),
}


@pytest.mark.parametrize("name", FALSE_SYNCS)
def test_sync_with_false_words_is_refused_and_its_leader_suspected(name: str) -> None:
    part = Part(B3)
    assert part.change.on_sync(B2, FALSE_SYNCS[name], LATER) == [
        Drop(DropReason.BAD_RUN, B2),
        Suspect(B2, Suspicion.FALSE_STATEMENT),
    ]
    assert (part.consensus.regency, part.consensus.synced) == (0, True)


def test_sync_makes_votes_of_the_new_regency_count() -> None:
    part = Part(B3)
    for peer in (B1, B2, B4):
        part.consensus.on_vote(peer, Write(BYZANTINE, 1, 1, VA))
    effects = part.change.on_sync(B2, sync(1, *quiet("b1", "b2", "b4")), LATER)
    assert Send(part.peers, Accept(BYZANTINE, 1, 1, VA)) in sent(effects)


def test_sync_reaches_as_far_as_words_do() -> None:
    far = accepted(VA, instance=100)
    part = Part(B3)
    part.change.on_sync(B2, sync(1, *(word(n, far, regency=1) for n in ("b1", "b2", "b4"))), LATER)
    assert part.consensus.conclusion.values.keys() == set(range(1, 101))


# ---------------------------------------------------------------- repeating


def test_repeat_has_the_stop_that_was_not_heard_and_later_the_word() -> None:
    part = Part()
    part.change.request(T0)
    assert part.change.retransmit(T0) == [Send(part.peers, Stop(BYZANTINE, 1))]
    part.stops(1, B1, B4)
    assert [type(m).__name__ for m in messages(part.change.retransmit(LATER), object)] == [
        "StopData"
    ]


def test_standing_of_a_broker_that_missed_the_regency_is_answered_with_its_stop_data() -> None:
    part = leader()
    (shown,) = part.stop_data(*quiet("b3", "b4"))
    assert isinstance(shown, Send)

    def answer(standing: Standing) -> list[Effect]:
        return part.change.on_standing(B1, standing)

    assert answer(Standing(BYZANTINE, 0, 0, 0)) == [Send((B1,), shown.message)]
    assert answer(Standing(BYZANTINE, 1, 0, 0, synced=False)) == [Send((B1,), shown.message)]
    assert answer(Standing(BYZANTINE, 1, 0, 0)) == []


def test_crash_log_has_the_same_phase_with_its_own_quorums() -> None:
    """The document's appendix B elects without it, and loses what one broker alone remembers.

    b1 and b2 accepted a value, so it was decided; b1 crashed. b3 never heard of it: its word and
    b2's together bind the leader to it.
    """
    cell = Cell(TOTAL_CRASH, n=3)
    part = Part(B2, log=CRASH, members=(B1, B2, B3))
    part.consensus.on_propose(B1, Propose(CRASH, 0, 1, A))
    part.stops(1, B3)
    silent = StopStatement(
        cell="demo", log=CRASH, broker=B3, regency=1, decided=0, stable=0, blind=0, claims=()
    )
    signature = cell.keyring(B3).identity.sign(canonical(silent))
    effects = part.change.on_stop_data(B3, StopData(CRASH, signature), LATER)
    assert len(messages(effects, Sync)) == 1
    assert part.consensus.conclusion == Conclusion(0, {1: VA})
    assert suspects(effects) == []


def crash_words(claims: dict[NodeId, tuple[Claim, ...]]) -> list[tuple[NodeId, StopData]]:
    """What brokers of a crash log say for regency 1."""
    cell, found = Cell(TOTAL_CRASH, n=3), []
    for name, made in claims.items():
        said = StopStatement(
            cell="demo", log=CRASH, broker=name, regency=1, decided=0, stable=0, blind=0,
            claims=made,
        )  # fmt: skip
        signature = cell.keyring(name).identity.sign(canonical(said))
        found.append((name, StopData(CRASH, signature)))
    return found


@pytest.mark.parametrize("third", [(), (accepted(VA),)], ids=["free", "bound"])
def test_leader_is_not_bound_to_what_one_broker_alone_accepted_and_keeps_back(
    third: tuple[Claim, ...],
) -> None:
    """b1's word comes first; what two of three accepted may be decided, and binds the leader."""
    part = Part(B2, log=CRASH, members=(B1, B2, B3), holds=False)
    part.consensus.on_propose(B1, Propose(CRASH, 0, 1, A))
    part.stops(1, B3)
    first, last = crash_words({B1: (accepted(VA),), B3: third})
    assert part.change.on_stop_data(*first, LATER) == []
    assert len(messages(part.change.on_stop_data(*last, LATER), Sync)) == 1
    assert part.consensus.conclusion == Conclusion(0, {1: VA} if third else {})


def test_leader_that_lacks_what_binds_it_waits_a_while_for_other_words() -> None:
    part = Part(B2, log=CRASH, members=(B1, B2, B3), holds=False)
    part.consensus.on_propose(B1, Propose(CRASH, 0, 1, A))
    part.stops(1, B3)
    ((name, word_),) = crash_words({B1: (accepted(VA),)})
    part.change.on_stop_data(name, word_, LATER)
    before, due = LATER + STATEMENTS_MS - 1, LATER + STATEMENTS_MS
    assert messages(part.change.maybe_lead(Millis(before)), Sync) == []
    assert len(messages(part.change.maybe_lead(Millis(due)), Sync)) == 1
    assert part.consensus.conclusion == Conclusion(0, {1: VA})
