"""Relayed channels: brokers of a child cell vouch for what they accepted from the parent."""

from __future__ import annotations

import pytest
from tests.support.cells import ALICE, B1, B2, B3, BOB, T0, digests, messages, publish, reasons
from tests.support.tree_network import CellPlan, TreeNetwork

from quorumcast.broadcast.application import Prove
from quorumcast.broadcast.messages import Ack
from quorumcast.broadcast.relayed import Relayed
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.machine import DropReason, Effect, Send
from quorumcast.manifest.policy import POLICY_NAMES, Policy

RELAY, ORDERED = Policy.named("relay"), Policy.named("relay-total")


def relay_of(policy: str) -> Policy:
    return ORDERED if policy.startswith("total") else RELAY


def tree(policy: str = "ab", n: int = 4) -> TreeNetwork:
    made = TreeNetwork(
        CellPlan("top", Policy.named(policy, alpha=2), n=n),
        CellPlan("leaf", relay_of(policy), parent="top"),
    )
    made["top"].publisher()
    made["leaf"].subscribe(start=0)
    made.run(100)
    return made


def bodies(first: int, count: int) -> list[bytes]:
    return [f"p{number}".encode() for number in range(first, first + count)]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_reader_of_a_child_gets_what_was_published_in_the_parent(policy: str) -> None:
    cells = tree(policy)
    cells["top"].publish(*bodies(1, 6))
    cells.run(1000)
    assert cells["leaf"].got() == bodies(1, 6)
    assert {d.stream.publisher for d in cells["leaf"].delivered[BOB]} == {"alice"}


def test_position_of_a_child_is_that_of_the_parent() -> None:
    cells = tree("total")
    cells["top"].subscribe("bob")
    cells["top"].publish(*bodies(1, 5))
    cells.run(1000)
    placed = [
        [(d.position, d.stream, d.number, d.body) for d in cells[cell].delivered[BOB]]
        for cell in ("top", "leaf")
    ]
    assert placed[0] == placed[1]
    assert [position for position, *_ in placed[1]] == [1, 2, 3, 4, 5]


def test_reader_that_comes_late_gets_what_the_child_holds() -> None:
    cells = tree()
    cells["top"].publish(*bodies(1, 5))
    cells.run(500)
    for broker in ("b1", "b2", "b3"):
        cells.detach("leaf", broker)
    cells["leaf"].subscribe("alice", start=0)
    cells.run(500)
    assert cells["leaf"].got("alice") == bodies(1, 5)


def test_client_of_the_child_with_the_publishers_name_cannot_publish_there() -> None:
    cells = tree()
    cells["top"].publish(*bodies(1, 2))
    cells.run(500)
    leaf = cells["leaf"]
    stream = leaf.delivered[BOB][0].stream
    for broker in leaf.brokers:
        run = publish(3, b"mine", stream=stream)
        effects = leaf.broker(broker).handle(run, T0)
        assert reasons(effects) == [DropReason.NO_RIGHT]
    cells["top"].publish(*bodies(3, 1))
    cells.run(500)
    assert leaf.got() == bodies(1, 3)


def test_child_acknowledges_nothing_to_a_client_with_the_publishers_name() -> None:
    cells = tree()
    told: list[Effect] = []

    def listen(sender: NodeId, reader: NodeId, send: Send) -> bool:
        told.extend([send] if reader == ALICE else [])
        return False

    cells["leaf"].losses.append(listen)
    cells["leaf"].publisher()  # a client of the child that happens to be called alice
    cells["top"].publish(*bodies(1, 3))
    cells.run(500)
    assert not messages(told, Ack)


@pytest.mark.parametrize("policy", ["relay", "relay-total"])
def test_three_cells_carry_on_from_one_to_the_next(policy: str) -> None:
    cells = TreeNetwork(
        CellPlan("top", Policy.named("total" if policy == "relay-total" else "brb"), n=4),
        CellPlan("middle", Policy.named(policy), parent="top"),
        CellPlan("leaf", Policy.named(policy), parent="middle"),
    )
    cells["top"].publisher()
    cells["leaf"].subscribe()
    cells["top"].publish(*bodies(1, 5))
    cells.run(1500)
    assert cells["leaf"].got() == bodies(1, 5)


def test_channel_may_have_another_name_in_the_child() -> None:
    cells = TreeNetwork(
        CellPlan("top", Policy.named("ab"), n=4),
        CellPlan("leaf", RELAY, parent="top", channel=Channel("copies")),
    )
    cells["top"].publisher()
    cells["leaf"].subscribe()
    cells["top"].publish(*bodies(1, 3))
    cells.run(1000)
    assert cells["leaf"].got() == bodies(1, 3)
    assert {d.stream.channel for d in cells["leaf"].delivered[BOB]} == {"copies"}


LIES = ("alter", "alter-body", "equivocate", "false-positions", "silent", "withhold-bodies")


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("policy", ["ab+history", "total"])
def test_lying_broker_in_each_cell_changes_nothing(policy: str, lie: str) -> None:
    cells = TreeNetwork(
        CellPlan("top", Policy.named(policy, alpha=2), n=4),
        CellPlan("middle", relay_of(policy), parent="top"),
        CellPlan("leaf", relay_of(policy), parent="middle"),
    )
    for cell, liar in (("top", B2), ("middle", B1), ("leaf", B3)):
        cells[cell].corrupt(liar, lie)
    cells["top"].publisher()
    cells["leaf"].subscribe()
    for first in range(1, 13, 3):
        cells["top"].publish(*bodies(first, 3))
        cells.run(300)
    cells.run(1500)
    assert cells["leaf"].got() == bodies(1, 12)
    assert cells["leaf"].lost() == []


def test_silent_broker_of_the_child_holds_nobody_up() -> None:
    cells = tree()
    cells.stop("leaf", "b2")
    cells["top"].publish(*bodies(1, 5))
    cells.run(1500)
    assert cells["leaf"].got() == bodies(1, 5)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_broker_that_was_away_goes_on_where_it_stopped(policy: str) -> None:
    cells = tree(policy)
    cells["top"].publish(*bodies(1, 3))
    cells.run(500)
    cells.detach("leaf", "b1")
    cells["top"].publish(*bodies(4, 3))
    cells.run(500)
    cells.attach("leaf", "b1")
    cells.run(1000)
    cells.stop("leaf", "b2")
    cells["leaf"].subscribe("alice", start=0)
    cells.run(1500)
    assert cells["leaf"].got("alice") == bodies(1, 6)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_wiped_broker_holds_again_what_the_others_hold(policy: str) -> None:
    cells = tree(policy)
    cells["top"].publish(*bodies(1, 6))
    cells.run(500)
    cells.stop("leaf", "b1")
    cells.start("leaf", "b1", wiped=True)
    cells.run(2000)
    cells.stop("leaf", "b2")
    cells["leaf"].subscribe("alice", start=0)
    cells.run(1500)
    assert cells["leaf"].got("alice") == bodies(1, 6)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_child_that_was_away_for_too_long_announces_the_gap(policy: str) -> None:
    limits = Limits(retained_publications=4, window=4, segment=4)
    above = Policy.named(policy, limits=limits)
    cells = TreeNetwork(
        CellPlan("top", above, n=4), CellPlan("leaf", relay_of(policy), parent="top")
    )
    cells["top"].publisher()
    cells["leaf"].subscribe(start=0)
    cells["top"].publish(*bodies(1, 3))
    cells.run(500)
    for broker in ("b1", "b2", "b3"):
        cells.detach("leaf", broker)
    for number in range(4, 20):
        cells["top"].publish(*bodies(number, 1))
        cells.run(60)
    for broker in ("b1", "b2", "b3"):
        cells.attach("leaf", broker)
    cells.run(3000)
    got, lost = cells["leaf"].got(), cells["leaf"].lost()
    assert got[:3] == bodies(1, 3)
    assert got[-1] == b"p19"
    assert len(lost) == 1
    assert 3 + (lost[0][2] - lost[0][1] + 1) + len(got[3:]) == 19
    # A reader that comes later gets the same, also what lies before the gap.
    cells["leaf"].subscribe("alice", start=0)
    cells.run(3000)
    assert cells["leaf"].got("alice") == got
    assert cells["leaf"].lost("alice") == lost


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_receipt_of_a_child_is_signed_by_its_brokers(policy: str) -> None:
    cells = tree(policy)
    cells["top"].publish(*bodies(1, 3))
    cells.run(500)
    leaf = cells["leaf"]
    stream, number, contents = leaf.delivered[BOB][1].provable
    leaf.happen(BOB, Prove(stream, number, contents))
    cells.run(500)
    assert leaf.manifest.court().why_receipt_fails(leaf.proven[0], votes=2) is None


def test_journal_keeps_a_broker_from_contradicting_itself() -> None:
    relay = Policy.named("relay", journal=True)
    cells = TreeNetwork(
        CellPlan("top", Policy.named("ab"), n=4), CellPlan("leaf", relay, parent="top")
    )
    cells["top"].publisher()
    cells["leaf"].subscribe()
    cells["top"].publish(*bodies(1, 3))
    cells.run(500)
    stream = cells["leaf"].delivered[BOB][0].stream
    cells.stop("leaf", "b1")
    cells["leaf"].start_broker("b1")
    broker = cells["leaf"].broker("b1")
    effects = broker.handle(Relayed(stream, 1, digests(b"other"), (b"other",)), T0)
    assert reasons(effects) == [DropReason.CONFLICT]
    cells.attach("leaf", "b1")
    cells.run(1000)
    assert cells["leaf"].got() == bodies(1, 3)
