"""The uplink: what a subscriber of the parent delivers, as events for a broker of the child."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, ORDERS, T0, digest, digests
from tests.support.rows import COLUMNS
from tests.support.tree_network import CellPlan, identity_in, manifest_of

from quorumcast.broadcast.application import Deliver, DeliverGap, Join, Leave, Refused
from quorumcast.broadcast.messages import Cursor
from quorumcast.broadcast.relayed import Attach, Follow, ParentEnds, Relayed, RelayedGap
from quorumcast.cell.messages import Position, Positions, Subscribe, Unsubscribe
from quorumcast.cell.subscribing.uplink import RUN_BYTES, Uplink
from quorumcast.core.ids import Channel, Millis, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.limits import MAX_RUN, Limits
from quorumcast.core.machine import (
    Connected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy

COPIES = Channel("copies")
LIMITS = Limits(retained_publications=10, window=8, segment=8)
#: alice's stream in the parent, and in the child, whose channel has another name.
THERE, HERE = Stream(ORDERS, ALICE, 2), Stream(COPIES, ALICE, 2)


def manifests(policy: str = "ab") -> tuple[Manifest, Manifest]:
    """Parent and child."""
    name = "relay-total" if policy == "total" else "relay"
    plans = (
        CellPlan("top", Policy.named(policy), n=4),
        CellPlan(
            "leaf",
            Policy.named(name, limits=LIMITS),
            parent="top",
            channel=ORDERS if policy == "total" else COPIES,
        ),
    )
    return manifest_of(plans[0], plans), manifest_of(plans[1], plans)


def uplink(policy: str = "ab") -> Uplink:
    parent, child = manifests(policy)
    return Uplink(child, parent, parent.keyring(identity_in("top", "leaf-b1")))


class Told:
    """A subscriber that says what a test wants it to."""

    def __init__(self, *says: Effect) -> None:
        self.says = list(says)
        self.heard: list[Event] = []

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self.heard.append(event)
        said, self.says = self.says, []
        return said

    def joined(self, channel: Channel) -> bool:
        return False


def handed_on(*says: Effect) -> list[Effect]:
    """What an uplink makes of these."""
    made = uplink()
    made._subscriber = Told(*says)  # type: ignore[assignment]
    return made.handle(Connected(B2), T0)[:-1]  # without `Attach`


def deliver(number: int, body: bytes = b"x", stream: Stream = THERE) -> Deliver:
    return Deliver(stream, number, digest(body), body, (B1, B2, B3))


def test_first_link_to_the_parent_asks_where_to_go_on() -> None:
    made = uplink()
    assert made.parent[0] == "top"
    assert made.handle(Connected(B1), T0) == [Attach(COPIES)]
    assert made.handle(Connected(B2), T0) == []


def test_consecutive_publications_are_one_run() -> None:
    other = msgspec.structs.replace(THERE, incarnation=4)
    assert handed_on(
        deliver(1, b"a"), deliver(2, b"b"), deliver(4, b"d"), deliver(5, b"e", other)
    ) == [
        Relayed(HERE, 1, digests(b"a", b"b"), (b"a", b"b")),
        Relayed(HERE, 4, digests(b"d"), (b"d",)),
        Relayed(msgspec.structs.replace(HERE, incarnation=4), 5, digests(b"e"), (b"e",)),
    ]


def test_run_fits_into_a_message() -> None:
    effects = handed_on(*(deliver(number) for number in range(1, MAX_RUN + 3)))
    assert [len(e.bodies) for e in effects if isinstance(e, Relayed)] == [MAX_RUN, 2]
    large = b"x" * (RUN_BYTES // 2)
    effects = handed_on(*(deliver(number, large) for number in range(1, 4)))
    assert [len(e.bodies) for e in effects if isinstance(e, Relayed)] == [1, 1, 1]


def test_gaps_stand_in_their_place_and_the_rest_is_handed_on() -> None:
    suspect = Suspect(B2, Suspicion.DISSENT, THERE, 1)
    drop = Drop(DropReason.BAD_RUN, B3)
    assert handed_on(
        deliver(1), suspect, DeliverGap(THERE, 2, 4), deliver(5), Refused(ORDERS, "no"), drop
    ) == [
        suspect,
        Relayed(HERE, 1, digests(b"x"), (b"x",)),
        RelayedGap(HERE, 2, 4),
        Refused(COPIES, "no"),
        drop,
        Relayed(HERE, 5, digests(b"x"), (b"x",)),
    ]


def test_position_is_relayed_with_its_label() -> None:
    made = uplink("total")
    contents = label(THERE, 7) + b"x"
    placed = Deliver(THERE, 7, digest(contents), b"x", (B1, B2), position=3)
    made._subscriber = Told(placed)  # type: ignore[assignment]
    relayed = made.handle(Connected(B2), T0)[0]
    assert relayed == Relayed(total_order(ORDERS), 3, digests(contents), (contents,))


def test_follow_goes_on_from_cursors_under_the_parents_name() -> None:
    made = uplink()
    told = made._subscriber = Told()  # type: ignore[assignment]
    cursors = (Cursor(HERE, 9),)
    made.handle(Follow(COPIES, cursors), T0)
    made.handle(Follow(Channel("nowhere"), cursors), T0)
    assert told.heard == [Leave(ORDERS), Join(ORDERS, start=0, cursors=(Cursor(THERE, 9),))]


def subscribed(effects: list[Effect]) -> list[tuple[Cursor, ...]]:
    return [
        e.message.cursors
        for e in effects
        if isinstance(e, Send) and isinstance(e.message, Subscribe)
    ]


def say_positions(made: Uplink, *positions: Position, join: int = 0) -> list[Effect]:
    """All brokers of the parent report the same."""
    effects: list[Effect] = []
    for broker in (B1, B2, B3, B4):
        said = Positions(ORDERS, positions, join)
        effects += made.handle(Receive(broker, said), T0)
    return effects


def linked(policy: str = "ab") -> Uplink:
    made = uplink(policy)
    for broker in (B1, B2, B3, B4):
        made.handle(Connected(broker), T0)
    return made


@pytest.mark.parametrize(("oldest", "cursor", "gap"), [(3, 9, None), (12, 9, (9, 11))])
def test_cursor_that_the_parent_no_longer_holds_is_a_gap(
    oldest: int, cursor: int, gap: tuple[int, int] | None
) -> None:
    made = linked()
    made.handle(Follow(COPIES, (Cursor(HERE, cursor),)), T0)
    effects = say_positions(made, Position(THERE, oldest, 20))
    gaps = [(e.first, e.upto) for e in effects if isinstance(e, RelayedGap)]
    assert gaps == ([] if gap is None else [gap])
    assert subscribed(effects)[-1] == (Cursor(THERE, max(oldest, cursor)),)
    assert made.joined(COPIES)


def told_ends(effects: list[Effect]) -> list[ParentEnds]:
    return [e for e in effects if isinstance(e, ParentEnds)]


def test_broker_is_told_once_where_the_parents_streams_end() -> None:
    made, other = linked(), msgspec.structs.replace(THERE, incarnation=4)
    assert told_ends(made.handle(Follow(COPIES, (Cursor(HERE, 20),)), T0)) == []
    ends = told_ends(say_positions(made, Position(THERE, 3, 20), Position(other, 1, 5)))
    # Nothing is to come of the stream that the broker has up to its end.
    assert ends == [ParentEnds(COPIES, (Cursor(msgspec.structs.replace(HERE, incarnation=4), 5),))]
    assert told_ends(made.handle(Connected(B1), T0)) == []


def test_broker_is_told_the_end_of_an_order_that_is_read_and_not_of_one_that_is_probed() -> None:
    made, order = linked("total"), total_order(ORDERS)
    made.handle(Follow(ORDERS), T0)
    assert told_ends(say_positions(made, Position(order, 1, 1001))) == []
    ends = told_ends(say_positions(made, Position(order, 1, 1003), join=1))
    assert ends == [ParentEnds(ORDERS, (Cursor(order, 1003),))]


def test_cursor_that_the_parent_has_not_reached_again_is_kept() -> None:
    made = linked()
    made.handle(Follow(COPIES, (Cursor(HERE, 30),)), T0)
    effects = say_positions(made, Position(THERE, 3, 20))
    assert not [e for e in effects if isinstance(e, RelayedGap | Refused)]
    assert subscribed(effects)[-1] == (Cursor(THERE, 30),)


def test_new_order_is_read_from_where_the_child_retains_it() -> None:
    made, order = linked("total"), total_order(ORDERS)
    made.handle(Follow(ORDERS), T0)
    assert not made.joined(ORDERS)
    say_positions(made, Position(order, 1, 1001))
    effects = say_positions(made, Position(order, 1, 1001), join=1)
    assert subscribed(effects)[-1] == (Cursor(order, 1001 - LIMITS.retained_publications),)
    assert made.joined(ORDERS)


def test_positions_that_come_while_the_end_is_asked_for_are_left_out() -> None:
    made = uplink("total")
    made._subscriber = Told()  # type: ignore[assignment]
    made.handle(Follow(ORDERS), T0)
    placed = Deliver(THERE, 7, digest(b"x"), b"x", (B1, B2), position=3)
    told = made._subscriber = Told(placed, DeliverGap(total_order(ORDERS), 1, 2))  # type: ignore[assignment]
    assert made.handle(Connected(B2), T0) == [Attach(ORDERS)]
    assert told.says == []


def adopt(made: Uplink, parent: Manifest, *channels: ChannelEntry, epoch: int = 2) -> list[Effect]:
    """What an uplink does in an epoch of its parent that has these channels."""
    later = msgspec.structs.replace(parent, epoch=epoch, channels=channels)
    return made.adopt(later, later.keyring(identity_in("top", NodeId("leaf-b1"))))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (None, "which cell 'top' does not have"),
        ({"policy": Policy.named("total")}, "make it with 'relay-total'"),
        ({"schema": COLUMNS}, "has other columns than 'orders' of cell 'top'"),
    ],
)
def test_channel_that_no_longer_fits_the_parent_is_left_until_it_fits_again(
    changes: dict[str, Any] | None, sentence: str
) -> None:
    made = linked()
    parent, _ = manifests()
    made.handle(Follow(COPIES, (Cursor(HERE, 9),)), T0)
    say_positions(made, Position(THERE, 3, 20))
    assert made.joined(COPIES)
    entries = () if changes is None else (msgspec.structs.replace(parent.channels[0], **changes),)
    effects = adopt(made, parent, *entries)
    assert [e.message for e in effects if isinstance(e, Send)] == [Unsubscribe(ORDERS)]
    (refused,) = [e for e in effects if isinstance(e, Refused)]
    assert refused.channel == COPIES
    assert sentence in refused.reason
    assert not made.joined(COPIES)
    assert made.handle(Follow(COPIES), T0) == []
    assert adopt(made, parent, *parent.channels, epoch=3) == [Attach(COPIES)]
    made.handle(Follow(COPIES, (Cursor(HERE, 9),)), T0)
    say_positions(made, Position(THERE, 3, 20), join=1)
    assert made.joined(COPIES)


def test_channel_that_no_longer_fits_the_parent_holds_up_no_other() -> None:
    parent, child = manifests()
    twins = [
        msgspec.structs.replace(manifest.channels[0], name=Channel(name))
        for manifest, name in ((parent, "others"), (child, "twins"))
    ]
    origin = twins[1].origin
    assert origin
    twins[1] = msgspec.structs.replace(
        twins[1], origin=msgspec.structs.replace(origin, channel=Channel("others"))
    )
    parent = msgspec.structs.replace(parent, channels=(*parent.channels, twins[0]))
    child = msgspec.structs.replace(child, channels=(*child.channels, twins[1]))
    made = Uplink(child, parent, parent.keyring(identity_in("top", NodeId("leaf-b1"))))
    for broker in (B1, B2, B3, B4):
        made.handle(Connected(broker), T0)
    for channel in (COPIES, Channel("twins")):
        made.handle(Follow(channel, (Cursor(HERE, 9),)), T0)
    say_positions(made, Position(THERE, 3, 20))
    effects = adopt(made, parent, parent.channels[0])
    assert [e.channel for e in effects if isinstance(e, Refused)] == [Channel("twins")]
    assert made.joined(COPIES)


def test_channel_that_the_parent_lacks_at_first_is_refused_until_it_is_there() -> None:
    parent, child = manifests()
    empty = msgspec.structs.replace(parent, channels=())
    made = Uplink(child, empty, empty.keyring(identity_in("top", NodeId("leaf-b1"))))
    (refused,) = made.handle(Connected(B1), T0)
    assert isinstance(refused, Refused)
    assert "which cell 'top' does not have" in refused.reason
    assert adopt(made, parent, *parent.channels) == [Attach(COPIES)]
