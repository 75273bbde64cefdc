"""Relayed channels: brokers of a child cell vouch for what they accepted from the parent."""

from __future__ import annotations

import pytest
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    BOB,
    STREAM,
    T0,
    digests,
    messages,
    publish,
    reasons,
    vote,
)
from tests.support.tree_network import ORDERS, CellPlan, TreeNetwork, identity_in

from quorumcast.broadcast.application import Prove
from quorumcast.broadcast.messages import Ack, Contents, Cursor
from quorumcast.broadcast.relayed import Attach, Follow, ParentEnds, Relayed, RelayedGap
from quorumcast.cell.messages import Positions, Regained, Subscribe, Vote
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.recovering.recovery import Recovery, RecoveryTick
from quorumcast.cell.serving.relays import PATIENCE_MS, PATIENT_TICKS
from quorumcast.cell.serving.served_streams import Sweep
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_ENDED, Limits
from quorumcast.core.machine import DropReason, Effect, Receive, Send, TimerFired
from quorumcast.manifest.build import next_epoch
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
    made.run(500)
    return made


def bodies(first: int, count: int) -> list[bytes]:
    return [f"p{number}".encode() for number in range(first, first + count)]


def publish_above(cells: TreeNetwork, first: int, count: int, for_ms: int) -> None:
    cells["top"].publish(*bodies(first, count))
    cells.run(for_ms)


def read_late(cells: TreeNetwork, for_ms: int = 1500) -> list[bytes]:
    """What a reader of the child gets that begins now, with the oldest number."""
    cells["leaf"].subscribe("alice", start=0)
    cells.run(for_ms)
    return cells["leaf"].got("alice")


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_reader_of_a_child_gets_what_was_published_in_the_parent(policy: str) -> None:
    cells = tree(policy)
    publish_above(cells, 1, 6, 1000)
    assert cells["leaf"].got() == bodies(1, 6)
    assert {d.stream.publisher for d in cells["leaf"].delivered[BOB]} == {"alice"}


def test_position_of_a_child_is_that_of_the_parent() -> None:
    cells = tree("total")
    cells["top"].subscribe("bob")
    publish_above(cells, 1, 5, 1000)
    placed = [
        [(d.position, d.stream, d.number, d.body) for d in cells[cell].delivered[BOB]]
        for cell in ("top", "leaf")
    ]
    assert placed[0] == placed[1]
    assert [position for position, *_ in placed[1]] == [1, 2, 3, 4, 5]


def test_reader_that_comes_late_gets_what_the_child_holds() -> None:
    cells = tree()
    publish_above(cells, 1, 5, 500)
    for broker in ("b1", "b2", "b3"):
        cells.detach("leaf", broker)
    assert read_late(cells, 500) == bodies(1, 5)


def test_client_of_the_child_with_the_publishers_name_cannot_publish_there() -> None:
    cells = tree()
    publish_above(cells, 1, 2, 500)
    leaf = cells["leaf"]
    stream = leaf.delivered[BOB][0].stream
    for broker in leaf.brokers:
        run = publish(3, b"mine", stream=stream)
        effects = leaf.broker(broker).handle(run, T0)
        assert reasons(effects) == [DropReason.NO_RIGHT]
    publish_above(cells, 3, 1, 500)
    assert leaf.got() == bodies(1, 3)


def test_child_acknowledges_nothing_to_a_client_with_the_publishers_name() -> None:
    cells = tree()
    told: list[Effect] = []

    def listen(sender: NodeId, reader: NodeId, send: Send) -> bool:
        told.extend([send] if reader == ALICE else [])
        return False

    cells["leaf"].losses.append(listen)
    cells["leaf"].publisher()  # a client of the child that happens to be called alice
    publish_above(cells, 1, 3, 500)
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
    publish_above(cells, 1, 5, 1500)
    assert cells["leaf"].got() == bodies(1, 5)


def test_channel_may_have_another_name_in_the_child() -> None:
    cells = TreeNetwork(
        CellPlan("top", Policy.named("ab"), n=4),
        CellPlan("leaf", RELAY, parent="top", channel=Channel("copies")),
    )
    cells["top"].publisher()
    cells["leaf"].subscribe()
    publish_above(cells, 1, 3, 1000)
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
        publish_above(cells, first, 3, 300)
    cells.run(1500)
    assert cells["leaf"].got() == bodies(1, 12)
    assert cells["leaf"].lost() == []


def test_silent_broker_of_the_child_holds_nobody_up() -> None:
    cells = tree()
    cells.stop("leaf", "b2")
    publish_above(cells, 1, 5, 1500)
    assert cells["leaf"].got() == bodies(1, 5)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_broker_without_the_parent_goes_on_with_the_others(policy: str) -> None:
    cells = tree(policy)
    cells.detach("leaf", "b1")
    for number in range(1, 7):
        publish_above(cells, number, 1, 300)
    cells.run(4000)
    cells.stop("leaf", "b2")
    assert read_late(cells) == bodies(1, 6)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_broker_that_was_away_goes_on_where_it_stopped(policy: str) -> None:
    cells = tree(policy)
    publish_above(cells, 1, 3, 500)
    cells.detach("leaf", "b1")
    publish_above(cells, 4, 3, 500)
    cells.attach("leaf", "b1")
    cells.run(1000)
    cells.stop("leaf", "b2")
    assert read_late(cells) == bodies(1, 6)


def subscriber(cells: TreeNetwork, name: str) -> Subscriber:
    machine = cells["leaf"].machines[NodeId(name)]
    assert isinstance(machine, Subscriber)
    return machine


def contents_for(cells: TreeNetwork, uplink: str) -> list[bytes]:
    """Contents of publications that the parent sends to an uplink from now on."""
    sent: list[bytes] = []

    def listen(sender: NodeId, reader: NodeId, send: Send) -> bool:
        news = isinstance(send.message, Vote | Contents) and not send.message.stream.lane
        sent.extend(send.bodies if reader == uplink and news else ())
        return False

    cells["top"].losses.append(listen)
    return sent


@pytest.mark.parametrize("policy", ["ab", "ab+history", "total"])
def test_wiped_broker_gets_back_from_the_others_what_they_hold(policy: str) -> None:
    cells = tree(policy)
    publish_above(cells, 1, 6, 500)
    cells.stop("leaf", "b1")
    from_the_parent = contents_for(cells, "leaf-b1")
    cells.start("leaf", "b1", wiped=True)
    cells.run(4000)
    assert from_the_parent == []
    publish_above(cells, 7, 1, 500)
    assert len(from_the_parent) == 1
    cells.stop("leaf", "b2")
    assert read_late(cells) == bodies(1, 7)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_wiped_broker_gets_from_the_parent_what_a_liar_withholds(policy: str) -> None:
    cells = tree(policy)
    cells["leaf"].losses.append(
        lambda sender, _, send: sender == B2 and isinstance(send.message, Regained | Vote)
    )
    publish_above(cells, 1, 6, 500)
    cells.stop("leaf", "b1")
    cells.start("leaf", "b1", wiped=True)
    cells.run(15_000)
    assert read_late(cells) == bodies(1, 6)


def short_memory_above() -> TreeNetwork:
    """A tree with a publisher, whose root retains eight publications."""
    few = Limits(retained_publications=8, window=8, segment=4)
    cells = TreeNetwork(
        CellPlan("top", Policy.named("ab", limits=few), n=4),
        CellPlan("leaf", RELAY, parent="top"),
    )
    cells["top"].publisher()
    return cells


def test_broker_keeps_what_the_parent_has_dropped_when_its_uplink_begins_anew() -> None:
    """A liar withholds what lies before it, which once made the broker read everything anew."""
    cells = short_memory_above()
    cells["leaf"].losses.append(
        lambda sender, _, send: sender == B2 and isinstance(send.message, Regained)
    )
    cells.run(200)
    publish_above(cells, 1, 6, 500)
    cells.stop("leaf", "b1")
    for number in range(7, 17):
        publish_above(cells, number, 1, 50)
    cells.start("leaf", "b1", wiped=True)
    cells.run(20_000)
    for number in range(17, 27):
        publish_above(cells, number, 1, 50)
    held = cells["leaf"].ledger("b1")
    assert (held.base, held.next) == (9, 27)
    cells.detach("leaf", "b1")  # as after an epoch of the child
    cells.attach("leaf", "b1")
    cells.run(12_000)
    assert (held.base, held.next) == (9, 27)


def test_reader_is_told_of_a_gap_though_a_liar_claims_what_a_broker_lost() -> None:
    """That broker tries for ever to get it from the liar; readers do not wait for that."""
    cells = short_memory_above()
    cells["leaf"].losses.append(
        lambda sender, _, send: sender == B2 and isinstance(send.message, Regained | Vote)
    )
    cells.run(200)
    cells.stop("leaf", "b1")
    for number in range(1, 17):
        publish_above(cells, number, 1, 50)
    cells.start("leaf", "b1", wiped=True)
    cells.run(20_000)
    assert read_late(cells, 12_000) == bodies(9, 8)
    assert [gap[1:] for gap in cells["leaf"].lost("alice")] == [(1, 8)]


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_wiped_broker_reads_anew_what_a_liar_brought_in_part(policy: str) -> None:
    cells = tree(policy)
    cells["leaf"].losses.append(
        lambda sender, _, send: (
            sender == B2
            and (
                isinstance(send.message, Vote)
                or (isinstance(send.message, Regained) and send.message.first < 4)
            )
        )
    )
    publish_above(cells, 1, 6, 500)
    cells.stop("leaf", "b1")
    cells.start("leaf", "b1", wiped=True)
    cells.run(20_000)
    held = cells["leaf"].ledger("b1")
    assert (held.base, held.next) == (1, 7)
    assert read_late(cells) == bodies(1, 6)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_child_that_was_wiped_as_a_whole_gets_everything_from_the_parent(policy: str) -> None:
    cells = tree(policy)
    publish_above(cells, 1, 6, 500)
    for broker in ("b1", "b2", "b3"):
        cells.stop("leaf", broker)
    for broker in ("b1", "b2", "b3"):
        cells.start("leaf", broker, wiped=True)
    cells["top"].publish(*bodies(7, 2))
    assert read_late(cells, 4000) == bodies(1, 8)
    assert cells["leaf"].got("bob") == bodies(1, 8)


@pytest.mark.parametrize("restarted", [("b1",), ("b1", "b2"), ("b1", "b2", "b3")])
@pytest.mark.parametrize("policy", ["ab", "ab+history", "total"])
def test_reader_that_joins_while_the_child_restarts_begins_at_the_end(
    policy: str, restarted: tuple[str, ...]
) -> None:
    """It would take what was published before for new, and what has expired for lost."""
    limits = Limits(retained_publications=8, window=4, segment=4)
    cells = TreeNetwork(
        CellPlan("top", Policy.named(policy, limits=limits, alpha=2), n=4),
        CellPlan("leaf", relay_of(policy), parent="top"),
    )
    cells["top"].publisher()
    for number in range(1, 21):
        cells["top"].publish(*bodies(number, 1))
        cells.run(60)
    for broker in restarted:
        cells.stop("leaf", broker)
        cells.start("leaf", broker, wiped=True)
    if len(restarted) < 3:
        cells["leaf"].losses.append(lambda sender, *_: sender == B3)  # it counts on the others
    cells["leaf"].subscribe("alice", None)
    cells.run(12_000)
    assert subscriber(cells, "alice").joined(ORDERS)
    cells["top"].publish(*bodies(21, 2))
    cells.run(4000)
    assert cells["leaf"].got("alice") == bodies(21, 2)
    assert cells["leaf"].lost("alice") == []


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_reader_of_the_past_that_joins_while_the_child_restarts_knows_the_end(policy: str) -> None:
    cells = tree(policy)
    cells["top"].publish(*bodies(1, 6))
    cells.run(1500)
    for broker in ("b1", "b2", "b3"):
        cells.stop("leaf", broker)
        cells.start("leaf", broker, wiped=True)
    cells["leaf"].subscribe("alice", start=0)
    cells.run(4000)
    assert list(subscriber(cells, "alice").ends(ORDERS).values()) == [7]
    assert cells["leaf"].got("alice") == bodies(1, 6)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_hole_of_one_broker_is_filled_by_the_others(policy: str) -> None:
    limits = Limits(retained_publications=4, window=4, segment=4)
    cells = TreeNetwork(
        CellPlan("top", Policy.named(policy, limits=limits), n=4),
        CellPlan("leaf", relay_of(policy), parent="top"),
    )
    cells["top"].publisher()
    publish_above(cells, 1, 3, 1500)
    cells.detach("leaf", "b1")
    cells["leaf"].cut_off(B1)
    for number in range(4, 20):
        publish_above(cells, number, 1, 60)
    cells.attach("leaf", "b1")
    cells.run(2000)
    held = cells["leaf"].ledger("b1")
    assert [len(hole) for hole in held.holes] == [held.whole_from - 4]
    for other in (B2, B3):
        cells["leaf"].connect(B1, other)
    cells.run(6000)
    assert (held.holes, held.base, held.next) == ((), 1, 20)
    cells.stop("leaf", "b2")
    assert read_late(cells) == bodies(1, 19)


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_reader_is_told_of_a_gap_where_one_broker_lost_a_number_and_another_lies_about_it(
    policy: str,
) -> None:
    """Only one of 2f+1 tells the truth, and everyone that may hold the number has voted."""
    limits = Limits(retained_publications=4, window=4, segment=4)
    cells = TreeNetwork(
        CellPlan("top", Policy.named(policy, limits=limits), n=4),
        CellPlan("leaf", relay_of(policy), parent="top"),
    )
    cells["top"].publisher()
    cells["top"].publish(*bodies(1, 3))
    cells.run(1500)
    cells["leaf"].subscribe("alice", start=0)
    cells.run(500)
    cells.detach("leaf", "b1")
    cells["leaf"].cut_off(B1)
    cells["leaf"].cut_off(NodeId("alice"))
    for number in range(4, 20):
        cells["top"].publish(*bodies(number, 1))
        cells.run(60)
    cells.attach("leaf", "b1")
    cells.run(2000)
    held = cells["leaf"].ledger("b1")
    (hole,) = held.holes
    cells["leaf"].corrupt("b2", "alter", "contents")
    for broker in (B1, B2, B3):
        cells["leaf"].connect(NodeId("alice"), broker)
    cells.run(20_000)
    (stream,) = cells["leaf"].broker("b1").streams()
    assert cells["leaf"].got("alice") == [*bodies(1, 3), *bodies(hole.stop, 20 - hole.stop)]
    assert cells["leaf"].lost("alice") == [(stream, hole.start, hole.stop - 1)]


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_child_that_was_away_for_too_long_announces_the_gap(policy: str) -> None:
    limits = Limits(retained_publications=4, window=4, segment=4)
    above = Policy.named(policy, limits=limits)
    cells = TreeNetwork(
        CellPlan("top", above, n=4), CellPlan("leaf", relay_of(policy), parent="top")
    )
    cells["top"].publisher()
    cells["leaf"].subscribe(start=0)
    publish_above(cells, 1, 3, 500)
    for broker in ("b1", "b2", "b3"):
        cells.detach("leaf", broker)
    for number in range(4, 20):
        publish_above(cells, number, 1, 60)
    for broker in ("b1", "b2", "b3"):
        cells.attach("leaf", broker)
    cells.run(3000)
    got, lost = cells["leaf"].got(), cells["leaf"].lost()
    assert got[:3] == bodies(1, 3)
    assert got[-1] == b"p19"
    assert len(lost) == 1
    assert 3 + (lost[0][2] - lost[0][1] + 1) + len(got[3:]) == 19
    # A reader that comes later gets the same, also what lies before the gap.
    assert read_late(cells, 3000) == got
    assert cells["leaf"].lost("alice") == lost


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_receipt_of_a_child_is_signed_by_its_brokers(policy: str) -> None:
    cells = tree(policy)
    publish_above(cells, 1, 3, 500)
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
    publish_above(cells, 1, 3, 500)
    stream = cells["leaf"].delivered[BOB][0].stream
    cells.stop("leaf", "b1")
    cells["leaf"].start_broker("b1")
    broker = cells["leaf"].broker("b1")
    effects = broker.handle(Relayed(stream, 1, digests(b"other"), (b"other",)), T0)
    assert reasons(effects) == [DropReason.CONFLICT]
    cells.attach("leaf", "b1")
    cells.run(1000)
    assert cells["leaf"].got() == bodies(1, 3)


def test_uplink_of_a_long_order_reads_what_the_child_retains() -> None:
    limits = Limits(retained_publications=8, window=8, segment=8)
    cells = TreeNetwork(
        CellPlan("top", Policy.named("total"), n=4),
        CellPlan("leaf", Policy.named("relay-total", limits=limits), parent="top"),
    )
    for broker in ("b1", "b2", "b3"):
        cells.stop("leaf", broker)
    cells["top"].publisher()
    publish_above(cells, 1, 100, 1000)
    sent = contents_for(cells, "leaf-b1")
    for broker in ("b1", "b2", "b3"):
        cells.start("leaf", broker, wiped=True)
    cells["leaf"].subscribe(start=0)
    cells.run(3000)
    assert cells["leaf"].got() == bodies(93, 8)
    assert len(sent) <= 2 * 8


def test_liar_that_names_streams_without_end_is_bounded() -> None:
    cells = tree()
    publish_above(cells, 1, 1, 500)
    reader = cells["leaf"].machines[BOB]
    for number in range(2000):
        stream = Stream(ORDERS, NodeId(f"invented-{number}"), 2)
        reader.handle(vote(B1, 1, b"x", stream=stream), T0)
    assert reader.sizes()["orders: named"] == 256 + MAX_ENDED
    publish_above(cells, 2, 1, 500)
    assert cells["leaf"].got() == bodies(1, 2)


def test_channel_made_anew_takes_the_same_streams_again() -> None:
    cells = tree()
    publish_above(cells, 1, 3, 500)
    leaf = cells["leaf"]
    without = next_epoch(leaf.manifest, channels=())
    anew = next_epoch(without, channels=leaf.manifest.channels)
    broker = leaf.broker("b1")
    for manifest in (without, anew):
        broker.adopt(manifest, manifest.keyring(identity_in("leaf", "b1")))
    stream = leaf.delivered[BOB][0].stream
    assert broker.served(stream) is None
    broker.handle(Relayed(stream, 1, digests(b"p1"), (b"p1",)), T0)
    assert broker.streams()[stream].next == 2


def test_relayed_events_for_other_channels_are_ignored() -> None:
    cells = tree()
    top = cells["top"].broker("b1")
    for event in (
        Relayed(Stream(ORDERS, ALICE, 2), 1, digests(b"p1"), (b"p1",)),
        RelayedGap(Stream(ORDERS, ALICE, 2), 1, 3),
        Relayed(Stream(Channel("nowhere"), ALICE, 2), 1, digests(b"p1"), (b"p1",)),
    ):
        assert top.handle(event, T0) == []
    assert top.streams() == {}


def lone_broker(**limits: int) -> TreeNetwork:
    """A child of a single broker, whose uplink is not there."""
    policy = Policy.named("relay", limits=Limits(**limits))
    cells = TreeNetwork(
        CellPlan("top", Policy.named("ab"), n=4),
        CellPlan("leaf", policy, n=1, f=0, parent="top"),
    )
    cells.detach("leaf", "b1")
    return cells


def followed(broker: Broker, at: int = 0) -> list[Cursor]:
    """Where a broker lets its uplink go on."""
    broker.handle(Attach(ORDERS), Millis(at))
    for _ in range(PATIENT_TICKS):
        for effect in broker.handle(TimerFired(RecoveryTick()), Millis(at)):
            if isinstance(effect, Follow):
                return list(effect.cursors)
    raise AssertionError("the uplink still waits")


def test_uplink_goes_on_behind_what_is_held_and_what_has_expired() -> None:
    broker = lone_broker(retained_ms=1000)["leaf"].broker("b1")
    mine, other = Stream(ORDERS, ALICE, 2), Stream(ORDERS, BOB, 2)
    broker.handle(Relayed(mine, 1, digests(b"p1"), (b"p1",)), T0)
    # Of this one nothing was ever held: the parent may have something again.
    broker.handle(RelayedGap(other, 1, 10), T0)
    assert followed(broker) == [Cursor(mine, 2)]
    for at in range(0, 5000, 100):
        broker.handle(TimerFired(Sweep()), Millis(at))
    served = broker.served(mine)
    assert served is not None
    assert len(served.carrier.ledger) == 0
    assert followed(broker, 5000) == [Cursor(mine, 2)]


def answers(broker: Broker, at: int, *cursors: Cursor) -> bool:
    """Whether a broker tells a reader what it holds."""
    asked = Receive(BOB, Subscribe(ORDERS, cursors, bodies=True))
    return bool(messages(broker.handle(asked, Millis(at)), Positions))


def test_broker_tells_where_to_begin_once_it_holds_what_the_parent_held() -> None:
    broker = lone_broker()["leaf"].broker("b1")
    mine, lost = Stream(ORDERS, ALICE, 2), Stream(ORDERS, BOB, 2)
    assert not answers(broker, 0)
    assert answers(broker, 1000, Cursor(mine, 1))  # that reader has begun
    broker.handle(Attach(ORDERS), T0)
    broker.handle(ParentEnds(ORDERS, (Cursor(mine, 3), Cursor(lost, 5))), T0)
    broker.handle(Relayed(mine, 1, digests(b"p1"), (b"p1",)), T0)
    broker.handle(RelayedGap(lost, 1, 4), T0)
    assert not answers(broker, 2000)
    broker.handle(Relayed(mine, 2, digests(b"p2"), (b"p2",)), T0)
    assert answers(broker, 3000)
    broker.handle(Attach(ORDERS), T0)  # an uplink for other channels as well
    assert not answers(broker, 4000)
    broker.handle(ParentEnds(ORDERS), T0)
    assert answers(broker, 5000)


@pytest.mark.parametrize("told", [(), (ParentEnds(ORDERS, (Cursor(STREAM, 9),)),)])
def test_broker_that_does_not_get_what_the_parent_held_answers_after_a_while(
    told: tuple[ParentEnds, ...],
) -> None:
    """The parent is out of reach, or a lying publisher left its stream unfinished there."""
    broker = lone_broker()["leaf"].broker("b1")
    for event in (TimerFired(RecoveryTick()), *told):
        broker.handle(event, T0)
    assert not answers(broker, T0 + PATIENCE_MS - 1)
    assert answers(broker, T0 + PATIENCE_MS)
    broker.handle(Attach(ORDERS), Millis(T0 + 2 * PATIENCE_MS))
    assert not answers(broker, T0 + 3 * PATIENCE_MS - 1)
    assert answers(broker, T0 + 3 * PATIENCE_MS)


def test_uplink_waits_only_so_long_for_the_other_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = lone_broker()["leaf"].broker("b1")
    monkeypatch.setattr(Recovery, "is_filling", lambda *_: True)
    broker.handle(Attach(ORDERS), T0)
    said = [broker.handle(TimerFired(RecoveryTick()), T0) for _ in range(PATIENT_TICKS + 1)]
    at = [tick for tick, effects in enumerate(said) if Follow(ORDERS) in effects]
    assert at == [PATIENT_TICKS]


def test_lives_of_a_relayed_publisher_are_bounded() -> None:
    broker = lone_broker(streams_per_publisher=2)["leaf"].broker("b1")
    for incarnation in (2, 4, 6):
        stream = Stream(ORDERS, ALICE, incarnation)
        broker.handle(Relayed(stream, 1, digests(b"p1"), (b"p1",)), T0)
    assert [stream.incarnation for stream in broker.streams()] == [4, 6]
    assert broker.handle(Relayed(Stream(ORDERS, ALICE, 2), 2, digests(b"p2"), (b"p2",)), T0) == []
    fresh = lone_broker(streams_per_publisher=2)["leaf"].broker("b1")
    said = [
        fresh.handle(Relayed(Stream(ORDERS, ALICE, life), 1, digests(b"p1"), (b"p1",)), T0)
        for life in (6, 4, 2)
    ]
    assert said[2] == []
    assert [stream.incarnation for stream in fresh.streams()] == [6, 4]
    assert [stream.incarnation for stream in broker.streams()] == [4, 6]
