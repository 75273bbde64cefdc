"""The id of a log: agreed upon, kept, taken over, and never the same again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.cells import B1, B2, B3, B4, life_of
from tests.support.ordering import TOTAL, TOTAL_CRASH, Hall, agree, item, publish, said, word

from quorumcast.core.ids import DIGEST_SIZE, GENESIS, NodeId
from quorumcast.core.machine import Drop, DropReason, Receive
from quorumcast.core.quorum import OrderQuorums
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.checkpoints import CatchUp
from quorumcast.ordering.consensus import value_of
from quorumcast.ordering.genesis import Genesis, Lived
from quorumcast.ordering.messages import Item, Propose, Sync, Write
from quorumcast.ordering.state import log_id_of

FOUR = (B1, B2, B3, B4)


def log_id(hall: Hall, member: NodeId) -> bytes:
    return hall.logs[member].log_id


def log_ids(hall: Hall, *members: NodeId) -> bytes:
    """The log_id that these brokers agree on."""
    (known,) = {log_id(hall, member) for member in members}
    assert known
    return known


@pytest.mark.parametrize("policy", [TOTAL, TOTAL_CRASH])
def test_genesis_is_decided_with_the_first_batch_and_alike_everywhere(policy: Policy) -> None:
    hall = Hall(policy).begin()
    publish(hall, 1, 3)
    hall.run(500)
    batches = [p.batch for p in said(hall, Propose) if isinstance(p, Propose)]
    (shown,) = {batch[0] for batch in batches if batch[0].stream == GENESIS}
    assert log_ids(hall, *hall.members) == log_id_of(shown)


def test_genesis_is_another_one_after_all_brokers_forgot() -> None:
    hall = Hall().begin()
    publish(hall, 1, 3)
    before = log_ids(hall, *FOUR)
    hall.restart_all()
    hall.run(1000)
    publish(hall, 1, 3)
    hall.run(500)
    assert len(agree(hall, *FOUR)) == 3
    assert log_ids(hall, *FOUR) != before


def test_genesis_is_the_same_after_all_brokers_restarted_with_their_disks() -> None:
    hall = Hall(durable=True).begin()
    publish(hall, 1, 3)
    hall.run(500)
    before = log_ids(hall, *FOUR)
    hall.restart_all()
    hall.run(1000)
    publish(hall, 4, 3)
    hall.run(500)
    assert log_ids(hall, *FOUR) == before


@pytest.mark.parametrize("count", [3, 30])
def test_genesis_is_learned_by_a_broker_that_forgot_alone(count: int) -> None:
    """From the log, or from a state once the log of the beginning is gone."""
    hall = Hall().begin()
    publish(hall, 1, count)
    hall.stop(B3)
    hall.start(B3, wiped=True)
    hall.run(3000)
    publish(hall, count + 1, 3)
    hall.run(2000)
    assert log_ids(hall, *FOUR)
    assert hall.logs[B3].ledger.next == count + 4


def test_genesis_of_a_leader_that_repeats_an_old_one_is_not_written() -> None:
    """A lying leader kept the first batch of the log that everybody else has forgotten."""
    hall = Hall().begin()
    publish(hall, 1, 1)
    old = next(p for p in said(hall, Propose) if isinstance(p, Propose))
    before = log_ids(hall, *FOUR)
    for member in FOUR:
        hall.stop(member)
    hall.seen.clear()
    for member in FOUR:
        hall.start(member)
    hall.run(1000)
    hall.offer(1, b"a1")
    for member in (B2, B3, B4):
        hall.happen(member, Receive(B1, old))
    hall.run(3000)
    assert log_ids(hall, *FOUR) != before
    value = value_of(hall.cell.manifest.hash, old.batch)
    assert value not in [w.value for w in said(hall, Write) if isinstance(w, Write)]


class Told(Genesis):
    """Only what is checked of lives."""

    def __init__(self, n: int, f: int, *, byzantine: bool = True) -> None:
        hall = Hall(TOTAL if byzantine else TOTAL_CRASH, n=n, f=f)
        sequencer = hall.sequencer(B1)
        catch_up = sequencer.catch_up
        assert isinstance(catch_up, CatchUp)
        super().__init__(
            sequencer._context,
            OrderQuorums(n, f, byzantine),
            sequencer._execution,
            catch_up,
            life_of(B1),
        )


def lives(*numbers: int, epoch: int = 1) -> Item:
    """An item with the first, second, … life of each broker; 0 where none is known."""
    entries = [
        life_of(f"b{place}", number) if number else bytes(DIGEST_SIZE)
        for place, number in enumerate(numbers, 1)
    ]
    return Item(GENESIS, epoch, b"".join(entries))


@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        (lives(1, 1, 1, 1), True),
        (lives(1, 1, 1, 0), True),
        (lives(0, 1, 1, 1), True),
        (lives(1, 7, 8, 9), True),
        (lives(2, 1, 1, 1), False),
        (lives(1, 1, 0, 0), False),
        (lives(1, 1, 1), False),
        (lives(1, 1, 1, 1, 1), False),
        (lives(1, 1, 1, 1, epoch=2), False),
    ],
)
def test_genesis_item_needs_enough_lives_and_not_another_one_of_ours(
    shown: Item, fits: bool
) -> None:
    assert Told(4, 1).may_propose((shown,)) is fits


def test_genesis_item_anywhere_but_in_front_is_refused() -> None:
    assert not Told(4, 1).may_propose((item(1, b"a"), lives(1, 1, 1, 1)))
    assert Told(4, 1).may_propose((lives(1, 1, 1, 1), item(1, b"a")))


def test_genesis_item_with_an_ended_life_is_taken_where_nobody_lies() -> None:
    """What a leader proposed before a power cut must be proposed again."""
    assert Told(3, 1, byzantine=False).may_propose((lives(2, 1, 1),))


@pytest.mark.parametrize("f", [1, 2, 3, 4])
@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_genesis_that_all_correct_brokers_forgot_has_too_few_left_to_write_it(
    f: int, spare: int
) -> None:
    """The argument of the module's docstring, by counting: n-f entries, f liars, one quorum."""
    n = 3 * f + 1 + spare
    quorums = OrderQuorums(n, f, True)
    refuse = quorums.responders - f
    assert n - refuse < quorums.decide


def begun(hall: Hall) -> Hall:
    hall.begin()
    publish(hall, 1, 3)
    hall.run(1500)  # long enough for everybody to say how far it is
    return hall


def test_statement_of_another_log_is_refused() -> None:
    hall = begun(Hall())
    is_same_log = hall.sequencer(B1)._genesis.is_same_log
    assert is_same_log(word("b2", log_id=log_ids(hall, *FOUR)))
    assert not is_same_log(word("b2", log_id=b"other"))
    assert not is_same_log(word("b2"))


def test_statement_without_a_log_id_is_accepted_until_a_quorum_knows_the_id() -> None:
    sequencer = begun(Hall()).sequencer(B1)
    standings = sequencer.catch_up.standings
    for peer in (B2, B3):
        standings[peer] = replace(standings[peer], decided=0)
    assert sequencer._genesis.is_same_log(word("b2"))
    assert not sequencer._genesis.is_same_log(word("b2", log_id=b"other"))


def test_words_that_a_lying_leader_kept_from_an_earlier_log_lead_nowhere() -> None:
    """In the earlier log they were true: nothing had been accepted beyond its third batch."""
    hall = begun(Hall())
    hall.cut_off(B1)
    hall.offer(4, b"a4", to=(B2, B3, B4))
    hall.run(1000)
    (old, *_) = said(hall, Sync, B2)
    assert isinstance(old, Sync)
    assert old.regency == 1
    hall.restart_all()
    begun(hall)
    for member in (B1, B3, B4):
        hall.happen(member, Receive(B2, old))
    hall.run(500)
    assert {hall.sequencer(member).standing().regency for member in FOUR} == {0}
    drops = [e for node, e in hall.seen if isinstance(e, Drop) and e.reason is DropReason.OTHER_LOG]
    assert len(drops) == 3
    assert not hall.suspected()


def test_genesis_and_life_of_a_durable_log_are_on_disk() -> None:
    hall = begun(Hall(durable=True))
    (record,) = [r for r in hall.disks[B2].records.values() if isinstance(r, Lived)]
    assert record.life == life_of(B2) == hall.sequencer(B2).standing().life
    hall.stop(B2)
    hall.start(B2)
    assert hall.sequencer(B2).standing().life == life_of(B2)
