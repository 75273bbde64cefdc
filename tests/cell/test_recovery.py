"""State transfer without total order: whose words a broker takes, and what it does about liars."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from tests.support.cells import (
    AB,
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    ORDERS,
    STREAM,
    T0,
    Cell,
    bodies,
    chain_run,
    contents,
    digests,
    life_of,
    limited,
    messages,
    publish,
    reasons,
    suspects,
)

from quorumcast.broadcast.history import HistoryFetch
from quorumcast.broadcast.messages import Cursor, Open, Pull, Ready
from quorumcast.cell.messages import Position, Positions, Regain, Regained, Subscribe, Survey, Vote
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.journal import Attested, Journal, Settled, Vouched
from quorumcast.cell.serving.recovering.holdings import GRACE, MOVING_GRACE, UNANSWERED, Holdings
from quorumcast.cell.serving.recovering.recovery import (
    CHUNK,
    IDLE_MS,
    IDLE_TICKS,
    RANGE_TICKS,
    SLICE,
    TICK_MS,
    RecoveryTick,
)
from quorumcast.cell.serving.served_streams import StreamStatus
from quorumcast.core.ids import Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_STREAMS_NAMED, Limits
from quorumcast.core.machine import (
    Connected,
    Drop,
    DropReason,
    Effect,
    Persist,
    Persisted,
    Receive,
    Restored,
    Send,
    SetTimer,
    TimerFired,
)
from quorumcast.crypto.digest import root
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy

PEERS = (B2, B3, B4)
DIRECT = Policy.named("direct")
#: Asked for with contents and without.
WITH, WITHOUT = True, False


def restarted(policy: Policy = AB, base: int = 4, end: int = 6) -> Broker:
    """Broker 1 without its memory: its publisher goes on at `base`, its peers are at `end`."""
    broker = Cell(policy).broker(B1)
    for peer in PEERS:
        assert messages(broker.handle(Connected(peer), T0), Survey) == [Survey(ORDERS, life_of(B1))]
    broker.handle(Receive(ALICE, Open(STREAM, base, base)), T0)
    for peer in PEERS:
        told = Positions(ORDERS, (Position(STREAM, 1, end),))
        broker.handle(Receive(peer, told), T0)
    return broker


def tick(broker: Broker, times: int = 1) -> list[Effect]:
    return [e for _ in range(times) for e in broker.handle(TimerFired(RecoveryTick()), T0)]


def recalls(effects: list[Effect]) -> list[tuple[NodeId, int, int, bool]]:
    return [
        (peer, effect.message.first, effect.message.count, effect.message.bodies)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Regain)
        for peer in effect.to
    ]


def surveyed(effects: list[Effect]) -> list[NodeId]:
    sent = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Survey)]
    return [peer for effect in sent for peer in effect.to]


def recalled(peer: NodeId, first: int, *run: bytes, full: bool = True) -> Receive:
    return Receive(peer, Regained(STREAM, first, digests(*run)), run if full else ())


def held(broker: Broker) -> tuple[int, int]:
    status = broker.streams()[STREAM]
    return status.base, status.next


class Counting(Holdings):
    """Counts how often a stream was looked up."""

    looks = 0

    def of(self, stream: Stream) -> Mapping[NodeId, Position]:
        Counting.looks += 1
        return super().of(stream)


def many(count: int, end: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, list[Stream]]:
    """Broker 1, whose peers are at `end` in so many streams that it does not know."""
    monkeypatch.setattr("quorumcast.cell.serving.recovering.recovery.Holdings", Counting)
    broker = Cell(Policy.named("ab", limits=Limits(streams_per_publisher=count))).broker(B1)
    streams = [Stream(ORDERS, ALICE, 2 * number) for number in range(1, count + 1)]
    told = Positions(ORDERS, tuple(Position(stream, 1, end) for stream in streams))
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, told), T0)
    return broker, streams


def test_broker_looks_at_so_many_streams_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of them a tick would hold up everything else."""
    broker, _ = many(8 * SLICE, 1, monkeypatch)
    for _ in range(10):
        Counting.looks = 0
        tick(broker)
        assert SLICE <= Counting.looks <= 16 * SLICE


def test_broker_looks_at_all_streams_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumcast.cell.serving.recovering.recovery.SLICE", 8)
    broker, streams = many(24, 2, monkeypatch)
    asked: dict[Stream, None] = {}
    for _ in range(6 * GRACE):
        effects = tick(broker)
        assert SetTimer(RecoveryTick(), TICK_MS) in effects or broker.catching_up() == []
        while regains := [m for m in messages(effects, Regain) if isinstance(m, Regain)]:
            stream = regains[0].stream
            asked[stream] = None
            word = Regained(stream, 1, digests(b"x"))
            effects = [
                effect
                for peer in PEERS
                for effect in broker.handle(Receive(peer, word, (b"x",)), T0)
            ]
    assert asked.keys() == dict.fromkeys(streams).keys()
    assert broker.catching_up() == []


def test_broker_that_lacks_histories_is_catching_up() -> None:
    """It may hold every publication; how the histories of them ended it cannot say yet."""
    broker = restarted(Policy.named("ab+history", alpha=4), base=1)
    broker.handle(publish(1, *bodies(1, 5)), T0)
    assert held(broker) == (1, 6)
    assert broker.catching_up() == [f"publications of {STREAM}"]


@pytest.mark.parametrize(("base", "waits"), [(1, True), (6, False)])
def test_broker_beside_a_chain_is_catching_up_until_histories_are_settled(
    base: int, waits: bool
) -> None:
    broker = restarted(Policy.named("chain+history", alpha=4), base=base)
    assert recalls(tick(broker, GRACE + 2)) == []  # a chain is not repaired
    assert broker.catching_up() == ([f"publications of {STREAM}"] if waits else [])


def test_broker_asks_all_for_digests_and_one_for_contents() -> None:
    asked = recalls(tick(restarted()))
    assert sorted(asked) == [(B2, 1, 3, True), (B3, 1, 3, False), (B4, 1, 3, False)]


@pytest.mark.parametrize(
    ("policy", "needed"), [(Policy.named("direct-crash"), 1), (DIRECT, 2), (AB, 3)]
)
def test_broker_takes_what_enough_peers_vouch_for(policy: Policy, needed: int) -> None:
    broker = restarted(policy)
    tick(broker)
    for words, peer in enumerate(PEERS[:needed], 1):
        assert held(broker) == (4, 4)
        broker.handle(recalled(peer, 1, *bodies(1, 3), full=words == 1), T0)
    assert held(broker) == (1, 4)
    assert broker.catching_up() != []  # peers have two more, which its publisher may send


def test_broker_with_everything_has_caught_up() -> None:
    broker = restarted(end=4)
    assert broker.catching_up() == [f"publications of {STREAM}"]
    tick(broker)
    for peer in PEERS:
        broker.handle(recalled(peer, 1, *bodies(1, 3)), T0)
    assert broker.catching_up() == []
    told = broker.handle(Receive(BOB, Subscribe(ORDERS, (), True)), T0)
    assert messages(told, Positions) == [Positions(ORDERS, (Position(STREAM, 1, 4),), bodies=True)]


def test_broker_that_expects_more_does_not_make_subscribers_give_it_up() -> None:
    broker = restarted()
    told = broker.handle(Receive(BOB, Subscribe(ORDERS, (), True)), T0)
    assert messages(told, Positions) == [Positions(ORDERS, (Position(STREAM, 1, 4),), bodies=True)]


def test_broker_outvotes_a_lying_peer_and_asks_another_for_the_contents() -> None:
    broker = restarted(DIRECT)
    tick(broker)
    broker.handle(recalled(B2, 1, b"x", b"y", b"z"), T0)
    broker.handle(recalled(B3, 1, *bodies(1, 3), full=False), T0)
    broker.handle(recalled(B4, 1, *bodies(1, 3), full=False), T0)
    assert held(broker) == (4, 4)
    assert (B3, 1, 3, WITH) in recalls(tick(broker))
    broker.handle(recalled(B3, 1, *bodies(1, 3)), T0)
    assert held(broker) == (1, 4)
    served = broker.served(STREAM)
    assert served is not None
    assert served.carrier.ledger.digests(1, 3) == digests(*bodies(1, 3))


def test_broker_contents_of_another_digest_are_held_against_their_sender() -> None:
    broker = restarted(DIRECT)
    tick(broker)
    message = Regained(STREAM, 1, digests(*bodies(1, 3)))
    effects = broker.handle(Receive(B2, message, (b"x", b"y", b"z")), T0)
    assert reasons(effects) == [DropReason.BAD_BODY]
    assert suspects(effects) == [B2]


def test_broker_silent_peers_are_asked_again_and_what_nobody_answers_is_given_up() -> None:
    broker = restarted(end=4)
    for _ in range(4 * RANGE_TICKS * CHUNK):
        if not broker.catching_up():
            break
        tick(broker)
    assert broker.catching_up() == []
    assert held(broker) == (4, 4)


def test_broker_words_that_differ_are_enough_for_the_part_on_which_they_agree() -> None:
    """A lying publisher told one correct broker something else: number 1 is nobody's to decide."""
    broker = restarted(end=4)
    stories = {B2: (b"p1", b"p2", b"p3"), B3: (b"p1", b"p2", b"p3"), B4: (b"other", b"p2", b"p3")}
    for _ in range(40 * RANGE_TICKS):
        for peer, first, count, full in recalls(tick(broker)):
            run = stories[peer][first - 1 : first - 1 + count]
            broker.handle(recalled(peer, first, *run, full=full), T0)
    assert held(broker) == (2, 4)


def test_broker_large_contents_come_in_smaller_ranges_newest_first() -> None:
    broker = restarted(DIRECT)
    tick(broker)
    effects = broker.handle(recalled(B2, 1, b"p1"), T0)
    assert {(first, count) for _, first, count, _ in recalls(effects)} == {(3, 1)}


def test_broker_stream_that_nobody_opens_begins_where_enough_peers_end() -> None:
    broker = Cell(DIRECT).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        told = Positions(ORDERS, (Position(STREAM, 1, 4),))
        broker.handle(Receive(peer, told), T0)
    assert recalls(tick(broker, GRACE - 1)) == []  # its publisher may be about to come
    tick(broker, 2)
    for peer in PEERS[:2]:
        broker.handle(recalled(peer, 1, *bodies(1, 3)), T0)
    assert held(broker) == (1, 4)


def test_broker_stream_of_which_one_peer_has_not_heard_yet_is_waited_for_and_asked_about() -> None:
    broker = Cell(AB).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        known = () if peer == B4 else (Position(STREAM, 1, 4),)
        broker.handle(Receive(peer, Positions(ORDERS, known)), T0)
    assert broker.catching_up() == [f"publications of {STREAM}"]
    assert messages(tick(broker), Survey) == [Survey(ORDERS, life_of(B1))] * 3
    tick(broker, UNANSWERED)
    assert broker.catching_up() == []  # it may be the liar that speaks of it


def test_broker_waits_for_a_peer_that_is_slow_as_long_as_it_comes_closer() -> None:
    """If the next broker restarted before, nobody would have what that one retained."""
    broker = Cell(AB).broker(B1)
    broker.handle(Receive(ALICE, Open(STREAM, 6, 6)), T0)
    broker.handle(publish(6, b"f"), T0)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    for reached in range(1, 6):
        for peer in PEERS:
            known = Position(STREAM, 1, reached if peer == B4 else 7)
            broker.handle(Receive(peer, Positions(ORDERS, (known,))), T0)
        for _ in range(UNANSWERED - 2):
            assert f"publications of {STREAM}" in broker.catching_up()
            tick(broker)
    tick(broker, 2)
    assert f"publications of {STREAM}" not in broker.catching_up()  # it may be the liar


def test_broker_stream_that_one_peer_alone_speaks_of_is_nothing_to_wait_for() -> None:
    broker = Cell(AB).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        known = (Position(STREAM, 1, 4),) if peer == B4 else ()
        broker.handle(Receive(peer, Positions(ORDERS, known)), T0)
    assert broker.catching_up() == []


def small_cell(account: tuple[Position, ...]) -> Broker:
    """Broker 1 of 2f+1 without its memory: broker 2 gives this account, broker 3 knows nothing."""
    broker = Cell(DIRECT, n=3).broker(B1)
    for peer, known in ((B2, account), (B3, ())):
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, Positions(ORDERS, known)), T0)
    return broker


def test_broker_of_a_smallest_cell_waits_for_what_one_peer_alone_remembers() -> None:
    """Two of three acknowledged, one of them forgot: the third may get it from the publisher."""
    account = (Position(STREAM, 1, 4),)
    broker = small_cell(account)
    assert broker.catching_up() == [f"publications of {STREAM}"]
    assert messages(tick(broker), Survey) == [Survey(ORDERS, life_of(B1))] * 2
    for peer in (B2, B3):
        broker.handle(Receive(peer, Positions(ORDERS, account)), T0)
    tick(broker, GRACE + 1)
    for peer in (B2, B3):
        broker.handle(recalled(peer, 1, *bodies(1, 3)), T0)
    assert (held(broker), broker.catching_up()) == ((1, 4), [])


def test_broker_liar_that_names_ever_new_streams_is_waited_for_once() -> None:
    broker = small_cell((Position(STREAM, 1, 4),))
    for n in range(UNANSWERED):
        assert broker.catching_up() != []
        asked = messages(tick(broker), Survey)
        invented = Position(Stream(ORDERS, ALICE, n + 2), 1, 9)
        told = ((B2, (Position(STREAM, 1, 4), invented)), (B3, ()))
        for peer, known in told if asked else ():
            broker.handle(Receive(peer, Positions(ORDERS, known)), T0)
    assert broker.catching_up() == []


def test_broker_that_fell_behind_goes_on_and_votes_for_what_others_vouch_for() -> None:
    broker = Cell(DIRECT).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    broker.handle(publish(1, *bodies(1, 2)), T0)
    broker.handle(Receive(BOB, Subscribe(ORDERS, (), True)), T0)
    for peer in PEERS:
        broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, 1, 5),))), T0)
    tick(broker, GRACE + 2)
    effects = broker.handle(recalled(B2, 3, b"p3", b"p4"), T0)
    effects += broker.handle(recalled(B3, 3, b"p3", b"p4"), T0)
    assert messages(effects, Vote) == [Vote(STREAM, 3, digests(b"p3", b"p4"))]
    assert held(broker) == (1, 5)


def test_broker_that_its_publisher_shows_a_little_now_and_then_asks_the_others() -> None:
    broker = Cell(DIRECT).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, 1, 100),))), T0)
    for number in range(1, MOVING_GRACE + 1):
        broker.handle(publish(number, b"p%d" % number), T0)
        assert recalls(tick(broker)) == []
    first = MOVING_GRACE + 1
    asked = {(first, count) for _, first, count, _ in recalls(tick(broker))}
    assert asked == {(first, 100 - first)}
    broker.handle(publish(first, b"p%d" % first), T0)
    rest = bodies(first, 100 - first)
    answers = [
        effect for peer in PEERS for effect in broker.handle(recalled(peer, first, *rest), T0)
    ]
    assert recalls(answers) == [], "its publisher was quicker, and may go on"
    assert recalls(tick(broker, 2)) == []


def test_broker_that_comes_by_itself_where_others_were_asks_for_nothing() -> None:
    broker = Cell(DIRECT).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, 1, 9),))), T0)
    for number in range(1, 9):
        broker.handle(publish(number, b"p%d" % number), T0)
        assert recalls(tick(broker)) == []
    assert recalls(tick(broker, MOVING_GRACE)) == []


def test_broker_with_a_journal_takes_nothing_before_the_disk_has_it() -> None:
    broker = restarted(Policy.named("direct", journal=True))
    tick(broker)
    broker.handle(recalled(B2, 1, *bodies(1, 3)), T0)
    (record,) = [
        effect.record
        for effect in broker.handle(recalled(B3, 1, *bodies(1, 3)), T0)
        if isinstance(effect, Persist)
    ]
    assert record == Attested(STREAM, 1, digests(*bodies(1, 3)))
    assert held(broker) == (4, 4)
    broker.handle(Persisted(record), T0)
    assert held(broker) == (1, 4)


def test_broker_takes_the_newest_of_what_it_asked_for_if_there_is_less_room_by_now() -> None:
    """Its publisher goes on while the disk is busy."""
    few = limited("direct", retained_publications=4)
    broker = restarted(replace(few, journal=True))
    tick(broker)
    broker.handle(recalled(B2, 1, *bodies(1, 3)), T0)
    effects = broker.handle(recalled(B3, 1, *bodies(1, 3)), T0)
    broker.handle(publish(4, *bodies(4, 2)), T0)
    (record,) = [e.record for e in effects if isinstance(e, Persist)]
    broker.handle(Persisted(record), T0)
    assert held(broker) == (2, 6)


def test_broker_whose_disk_does_not_answer_gets_back_what_needs_none() -> None:
    """A channel without a journal must not wait for the disk of another one."""
    kept, quotes = Policy.named("direct", journal=True), Channel("quotes")
    cell, other = Cell(kept), Stream(quotes, ALICE, 1)
    both = (*cell.manifest.channels, ChannelEntry(quotes, DIRECT))
    broker = Broker(replace(cell.manifest, channels=both), cell.keyring(B1), life=life_of(B1))
    for stream in (STREAM, other):
        broker.handle(Receive(ALICE, Open(stream, 4, 4)), T0)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        for stream in (STREAM, other):
            told = Positions(stream.channel, (Position(stream, 1, 4),))
            broker.handle(Receive(peer, told), T0)
    tick(broker)
    records: list[object] = []
    for stream in (STREAM, other):
        for peer in (B2, B3):
            word = Regained(stream, 1, digests(*bodies(1, 3)))
            effects = broker.handle(Receive(peer, word, bodies(1, 3)), T0)
            records += [effect.record for effect in effects if isinstance(effect, Persist)]
    assert [(s.base, s.next) for s in broker.streams().values()] == [(4, 4), (1, 4)]
    assert broker.sizes()["regained"] == 3
    assert recalls(tick(broker, GRACE)) == []  # nothing more of the one that waits
    (record,) = records
    assert isinstance(record, Attested)
    broker.handle(Persisted(record), T0)
    assert held(broker) == (1, 4)


def test_broker_counts_its_own_journal_and_never_contradicts_it() -> None:
    for mine, expected in ((b"p1", (1, 4)), (b"other", (2, 4))):
        broker = Cell(Policy.named("ab", journal=True)).broker(B1)
        for number, body in enumerate((mine, b"p2", b"p3"), 1):
            broker.handle(Restored(Vouched(STREAM, number, digests(body))), T0)
        for peer in (B2, B3):
            broker.handle(Connected(peer), T0)
            broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, 1, 4),))), T0)
        broker.handle(Receive(ALICE, Open(STREAM, 4, 4)), T0)
        for _ in range(40 * RANGE_TICKS):
            asked = tick(broker)
            for peer, first, count, full in recalls(asked):
                run = bodies(first, count)
                for effect in broker.handle(recalled(peer, first, *run, full=full), T0):
                    if isinstance(effect, Persist):
                        broker.handle(Persisted(effect.record), T0)
        # Two peers and its own word are three; against its own word it takes nothing.
        assert held(broker) == expected


@pytest.mark.parametrize("name", ["ab+history", "brb"])
def test_broker_takes_what_the_cell_has_settled_otherwise_than_its_journal_says(name: str) -> None:
    """A liar told it something else, which no subscriber can have accepted."""
    broker = Cell(Policy.named(name, journal=True)).broker(B1)
    said = Vouched(STREAM, 1, digests(b"p1", b"lie", b"p3"))
    broker.handle(Restored(said), T0)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, 1, 4),))), T0)
    tick(broker, GRACE + 2)
    effects = [e for peer in PEERS for e in broker.handle(recalled(peer, 1, *bodies(1, 3)), T0)]
    (record,) = [effect.record for effect in effects if isinstance(effect, Persist)]
    assert record == Attested(STREAM, 1, digests(*bodies(1, 3)))
    broker.handle(Persisted(record), T0)
    assert held(broker) == (1, 4)
    again = Journal()
    again.remember(said)
    again.remember(record)
    assert again.digests(STREAM, 2, 1) == [digests(b"p2")]


def test_broker_alone_in_its_cell_whose_own_word_is_enough_expects_nothing_of_others() -> None:
    """Its journal names what it lost, and nobody has the contents."""
    broker = Cell(Policy.named("ab", journal=True), n=1, f=0).broker(B1)
    broker.handle(Restored(Vouched(STREAM, 1, digests(b"a", b"b"))), T0)
    broker.handle(Receive(ALICE, Open(STREAM, 1, 3)), T0)
    asked = Receive(BOB, Subscribe(ORDERS, (), WITH))
    assert messages(broker.handle(asked, T0), Positions) == [
        Positions(ORDERS, (Position(STREAM, 3, 3),), bodies=True)
    ]


def test_broker_journal_does_not_say_otherwise_than_the_broker_did_meanwhile() -> None:
    """Peers are sure of p3, while the publisher, a liar, told this broker something else."""
    broker = Cell(Policy.named("ab", journal=True)).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    broker.handle(publish(1, *bodies(1, 2)), T0)
    for peer in PEERS:
        broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, 1, 4),))), T0)
    tick(broker, GRACE + 2)
    effects = broker.handle(publish(3, b"other"), T0)
    for peer in PEERS:
        effects += broker.handle(recalled(peer, 3, b"p3"), T0)
    records = [effect.record for effect in effects if isinstance(effect, Persist)]
    assert records == [Vouched(STREAM, 3, digests(b"other"))]


def test_broker_whose_stream_was_once_ahead_of_its_peers_does_not_ask_for_ever() -> None:
    broker = Cell(AB).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    broker.handle(Receive(ALICE, Open(STREAM, 4, 4)), T0)
    broker.handle(publish(4, *bodies(4, 2)), T0)
    pauses: list[int] = []
    for _ in range(10):
        pauses += [e.after_ms for e in tick(broker) if isinstance(e, SetTimer)]
        for peer in PEERS:
            broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, 4, 6),))), T0)
    assert pauses.count(IDLE_MS) >= 4


def test_broker_beside_a_silent_one_asks_the_others_again_and_again() -> None:
    """It never knows what the silent one holds, and the others go on meanwhile."""
    broker = Cell(AB).broker(B1)
    asked: list[NodeId] = []
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    for _ in range(2):
        for peer in (B2, B3):
            broker.handle(Receive(peer, Positions(ORDERS, ())), T0)
        asked += surveyed(tick(broker, IDLE_TICKS))
    assert broker.catching_up() == [f"what the other brokers hold of {ORDERS!r}"]
    assert (asked.count(B2), asked.count(B3)) == (2, 2)


def test_broker_liar_that_names_many_streams_costs_nothing() -> None:
    """What one peer alone speaks of can never be had: it is not looked at again and again."""
    holdings = Holdings(Cell(AB).view(B1))
    invented = [Position(Stream(ORDERS, ALICE, n), 1, 9) for n in range(2, MAX_STREAMS_NAMED + 2)]
    for peer in PEERS:
        holdings.replace(peer, Positions(ORDERS, (Position(STREAM, 1, 4),)))
    holdings.replace(B2, Positions(ORDERS, (*invented, Position(STREAM, 1, 5))))
    assert (len(holdings), holdings.streams()) == (MAX_STREAMS_NAMED + 1, [STREAM])
    assert holdings.of(STREAM)[B2].next == 5
    holdings.replace(B2, Positions(ORDERS, ()))
    assert list(holdings.of(STREAM)) == [B3, B4]


def test_broker_answers_brokers_only_and_only_what_it_is_sure_of() -> None:
    broker = Cell(Policy.named("ab+history", alpha=4)).broker(B1)
    broker.handle(publish(1, *bodies(1, 3)), T0)
    assert messages(broker.handle(Receive(B2, Survey(ORDERS)), T0), Positions) == [
        Positions(ORDERS, ())
    ]  # no history has settled it
    assert reasons(broker.handle(Receive(B2, Regain(STREAM, 1, 3)), T0)) == [DropReason.NOT_HELD]
    assert reasons(broker.handle(Receive(BOB, Survey(ORDERS)), T0)) == [DropReason.WRONG_SENDER]
    sure = Cell(AB).broker(B1)
    sure.handle(publish(1, *bodies(1, 3)), T0)
    answer = sure.handle(Receive(B2, Regain(STREAM, 2, 2, bodies=True)), T0)
    assert answer == [Send((B2,), Regained(STREAM, 2, digests(b"p2", b"p3")), (b"p2", b"p3"))]


def test_broker_is_asked_only_so_often() -> None:
    broker = Cell(AB).broker(B1)
    answers = [broker.handle(Receive(B2, Survey(ORDERS)), Millis(0)) for _ in range(100)]
    assert sum(bool(messages(answer, Positions)) for answer in answers) == 32


def test_broker_what_nobody_asked_for_is_dropped() -> None:
    broker = Cell(AB).broker(B1)
    unasked = broker.handle(Receive(B2, Positions(ORDERS, ())), T0)
    assert reasons(unasked) == [DropReason.UNEXPECTED]
    assert reasons(broker.handle(recalled(B2, 1, b"p1"), T0)) == [DropReason.DUPLICATE]


def test_broker_of_a_log_asks_nobody() -> None:
    broker = Cell(Policy.named("total")).broker(B1)
    assert messages(broker.handle(Connected(B2), T0), Survey) == []


@pytest.mark.parametrize("name", ["ab", "brb", "chain"])
def test_broker_that_its_publisher_skipped_goes_on_when_f_plus_1_brokers_agree(name: str) -> None:
    """An honest publisher forgot what n-f brokers hold; a lying one erases nothing."""
    broker = begun(Policy.named(name))
    broker.handle(Receive(ALICE, Open(STREAM, 6, 6)), T0)
    assert held(broker) == (1, 3)
    assert {peer for peer, first, *_ in recalls(tick(broker)) if first == 3} == set(PEERS)
    broker.handle(recalled(B2, 3, b"false", *bodies(4, 2)), T0)
    assert held(broker) == (1, 3)
    broker.handle(recalled(B3, 3, *bodies(3, 3)), T0)
    assert held(broker) == (1, 3)
    effects = broker.handle(recalled(B4, 3, *bodies(3, 3)), T0)
    assert held(broker) == (1, 6)
    vote = Vote(STREAM, 3, digests(*bodies(3, 3)))
    assert messages(effects, Vote) == ([] if name == "chain" else [vote])


def test_broker_leaves_out_what_its_peers_no_longer_retain() -> None:
    broker = begun(AB, base=9, end=12)
    broker.handle(Receive(ALICE, Open(STREAM, 12, 12)), T0)
    asked = recalls(tick(broker, 2))
    assert (held(broker), {first for _, first, *_ in asked}) == ((9, 9), {9})


def begun(policy: Policy, base: int = 1, end: int = 6) -> Broker:
    """Broker 1 holds numbers 1 and 2; its peers hold base … end-1, and bob listens."""
    cell = Cell(policy)
    broker = cell.broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    broker.handle(Receive(BOB, Subscribe(ORDERS, (), bodies=False)), T0)
    run = bodies(1, 2)
    if policy.name == "chain":
        order = (B1, B2, B3)
        vouchers = cell.vouchers(ALICE, (B1, B2), 1, run, order)
        broker.handle(chain_run(ALICE, 1, run, order, vouchers), T0)
    else:
        broker.handle(publish(1, *run), T0)
        for peer in PEERS if policy.name == "brb" else ():
            broker.handle(Receive(peer, Ready(STREAM, 1, root(1, digests(*run)))), T0)
    for peer in PEERS:
        broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, base, end),))), T0)
    return broker


@pytest.mark.parametrize("name", ["brb", "ab+history", "chain+history"])
def test_broker_that_holds_nothing_begins_later_only_where_f_plus_1_peers_are(name: str) -> None:
    """Otherwise brokers that a liar has begin far ahead could not help to deliver the rest."""
    broker = Cell(Policy.named(name)).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    told = Positions(ORDERS, (Position(STREAM, 1, 6),))
    broker.handle(Receive(B2, told), T0)
    asked = broker.handle(Receive(ALICE, Open(STREAM, 6, 6)), T0)
    assert held(broker) == (1, 1)
    assert len(messages(asked, Survey)) == 1  # of the one that has answered
    broker.handle(Receive(B2, told), T0)
    broker.handle(Receive(B3, told), T0)
    tick(broker)
    assert held(broker) == (6, 6)
    broker.handle(Receive(ALICE, Open(STREAM, 1000, 1000)), T0)
    assert held(broker) == (6, 6)


@pytest.mark.parametrize("name", ["brb", "ab+history"])
@pytest.mark.parametrize(("upto", "begins"), [(5, 6), (4, 1)])
def test_broker_begins_where_its_journal_says_that_everything_before_is_settled(
    name: str, upto: int, begins: int
) -> None:
    """More than f brokers restarted: too few peers are left that know of it."""
    broker = Cell(Policy.named(name, journal=True)).broker(B1)
    broker.handle(Restored(Settled(STREAM, upto)), T0)
    for peer in PEERS:
        known = (Position(STREAM, 1, 6),) if peer == B4 else ()
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, Positions(ORDERS, known)), T0)
    broker.handle(Receive(ALICE, Open(STREAM, 6, 6)), T0)
    tick(broker)
    assert held(broker) == (begins, begins)


@pytest.mark.parametrize(("peers", "settled"), [(PEERS[:1], 0), (PEERS[:2], 2)])
def test_broker_goes_on_where_f_plus_1_peers_have_settled_what_it_holds_and_histories_are_gone(
    peers: tuple[NodeId, ...], settled: int
) -> None:
    """All had restarted, and the publisher repeats no history that was settled before."""
    broker = Cell(Policy.named("ab+history", alpha=1)).broker(B1)
    broker.handle(publish(1, *bodies(1, 2)), T0)
    for peer in PEERS:
        known = (Position(STREAM, 3, 3), Position(STREAM.history, 3, 3))
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, Positions(ORDERS, known if peer in peers else ())), T0)
    tick(broker, GRACE - 1)
    assert broker.streams()[STREAM].settled == 0  # a history may still come
    tick(broker, 2)  # the history lane first
    assert broker.streams()[STREAM] == StreamStatus(str(STREAM), 1, 3, settled)
    served = broker.served(STREAM)
    assert served is not None
    assert served.ledger(Lane.HISTORY).next == settled + 1
    # It cannot tell whether what it holds is what was settled.
    assert named(broker.handle(Receive(B2, Survey(ORDERS, b"")), T0)) == (
        [Position(STREAM, 3, 3), Position(STREAM.history, 3, 3)] if settled else []
    )


def test_broker_begins_where_its_publisher_says_if_nobody_knows_of_the_stream() -> None:
    broker = Cell(Policy.named("brb")).broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
    broker.handle(Receive(ALICE, Open(STREAM, 6, 6)), T0)
    tick(broker)
    assert held(broker) == (1, 1)
    for peer in PEERS:
        broker.handle(Receive(peer, Positions(ORDERS, ())), T0)
    tick(broker)
    assert held(broker) == (6, 6)


def test_broker_asks_those_that_hold_it_before_it_leaves_anything_out() -> None:
    """One peer lags and another lies about where it begins: two still have what is lacking."""
    broker = begun(AB)
    for peer, base, end in ((B2, 1, 6), (B3, 1, 7), (B4, 6, 7)):
        while peer not in surveyed(tick(broker)):
            pass
        broker.handle(Receive(peer, Positions(ORDERS, (Position(STREAM, base, end),))), T0)
    asked = recalls(tick(broker, GRACE + 1))
    assert held(broker) == (1, 3)
    assert {first for _, first, *_ in asked} == {3}


def told_over(broker: Broker, *peers: NodeId, end: int = 6) -> None:
    for peer in peers:
        broker.handle(Connected(peer), T0)
        told = Positions(ORDERS, (Position(STREAM, end, end, over=True),))
        broker.handle(Receive(peer, told), T0)


def named(effects: list[Effect]) -> list[Position]:
    return [
        position
        for message in messages(effects, Positions)
        if isinstance(message, Positions)
        for position in message.positions
    ]


def answer(broker: Broker) -> list[Position]:
    return named(broker.handle(Receive(BOB, Subscribe(ORDERS, (), bodies=False)), T0))


def test_broker_that_lacks_a_life_that_is_over_learns_it_from_f_plus_1_peers() -> None:
    """Otherwise a subscriber takes it that this broker may hold all of it, and waits."""
    broker = Cell(AB).broker(B1)
    broker.handle(Receive(ALICE, Open(STREAM, 1, 1)), T0)
    told_over(broker, B2, end=900)
    assert answer(broker) == [Position(STREAM, 1, 1)]
    told_over(broker, B3)
    assert answer(broker) == [Position(STREAM, 6, 6, over=True)]
    assert broker.handle(publish(1, b"a"), T0) == [Drop(DropReason.UNKNOWN_STREAM, ALICE)]


def test_broker_with_part_of_a_life_that_is_over_keeps_it_and_says_that_nothing_more_comes() -> (
    None
):
    broker = Cell(AB).broker(B1)
    broker.handle(publish(1, b"a", b"b"), T0)
    told_over(broker, B2, B3)
    assert answer(broker) == [Position(STREAM, 1, 3, over=True)]


def test_broker_that_had_less_of_a_life_that_is_over_learns_where_it_ended() -> None:
    broker = Cell(limited("ab", retained_publications=4, window=4, segment=4)).broker(B1)
    broker.handle(publish(1, b"a", b"b"), T0)
    broker.handle(publish(1, *bodies(1, 4), stream=Stream(ORDERS, ALICE, 9)), T0)
    assert answer(broker)[0] == Position(STREAM, 3, 3, over=True)
    told_over(broker, B2, B3)
    assert answer(broker)[0] == Position(STREAM, 6, 6, over=True)
    told = named(broker.handle(Receive(B2, Survey(ORDERS, life_of(B2))), T0))
    assert told[0] == Position(STREAM, 6, 6, over=True)


@pytest.mark.parametrize("name", ["ab+history", "chain+history"])
def test_broker_gets_back_histories_before_those_that_it_began_with(name: str) -> None:
    """It votes on them, so a reader of the past does not wait for a broker that is silent."""
    broker = Cell(Policy.named(name, alpha=4)).broker(B1)
    told = Positions(ORDERS, (Position(STREAM, 9, 9), Position(STREAM.history, 1, 3)))
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, told), T0)
    broker.handle(Receive(ALICE, Open(STREAM, 9, 9)), T0)
    broker.handle(Receive(ALICE, Open(STREAM.history, 3, 3)), T0)
    assert answer(broker) == [Position(STREAM, 9, 9), Position(STREAM.history, 1, 3)]
    assert broker.catching_up() == [f"publications of {STREAM.history}"]
    assert sorted(recalls(tick(broker)))[0] == (B2, 1, 2, WITH)
    run = (b"h1", b"h2")
    for peer in (B2, B3):
        broker.handle(Receive(peer, Regained(STREAM.history, 1, digests(*run)), run), T0)
    assert broker.catching_up() == []
    cursors = (Cursor(STREAM.history, 1),)
    effects = broker.handle(Receive(BOB, Subscribe(ORDERS, cursors, bodies=False)), T0)
    assert messages(effects, Vote) == [Vote(STREAM.history, 1, digests(*run))]


def test_broker_of_a_chain_that_comes_late_fetches_histories_and_then_what_they_name() -> None:
    """Peers no longer hold the first publications, so neither they nor the chain bring them."""
    cell = Cell(limited("chain+history", alpha=4, retained_publications=8))
    broker = late(cell, Position(STREAM, 5, 13), Position(STREAM.history, 1, 4))
    asked = messages(tick(broker, GRACE + 1), Regain)
    assert {(a.stream, a.first, a.count) for a in asked if isinstance(a, Regain)} == {
        (STREAM.history, 1, 3)
    }
    run = tuple(cell.history(n, 4 * n - 3, *bodies(4 * n - 3, 4)) for n in (1, 2, 3))
    for peer in (B2, B3):
        broker.handle(Receive(peer, Regained(STREAM.history, 1, digests(*run)), run), T0)
    pulls = messages(broker.handle(TimerFired(HistoryFetch(STREAM)), T0), Pull)
    assert pulls == [Pull(STREAM, 5, 8)]
    broker.handle(contents(B2, 5, *bodies(5, 8)), T0)
    assert broker.streams()[STREAM] == StreamStatus(str(STREAM), 5, 13, 12)


def test_broker_of_a_chain_that_comes_late_begins_where_peers_are_if_histories_are_gone() -> None:
    cell = Cell(Policy.named("chain+history", alpha=4))
    broker = late(cell, Position(STREAM, 9, 9), Position(STREAM.history, 3, 3))
    tick(broker, GRACE)
    assert held(broker) == (1, 1)
    tick(broker)
    assert broker.streams()[STREAM] == StreamStatus(str(STREAM), 9, 9, 8)


def late(cell: Cell, *told: Position) -> Broker:
    """Broker 1, to which a publisher opens a stream that its peers have had for long."""
    broker = cell.broker(B1)
    for peer in PEERS:
        broker.handle(Connected(peer), T0)
        broker.handle(Receive(peer, Positions(ORDERS, told)), T0)
    for lane in (STREAM, STREAM.history):
        broker.handle(Receive(ALICE, Open(lane, 1, 1)), T0)
    return broker
