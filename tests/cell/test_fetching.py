"""Where bodies come from: what pulls have to make up for, and for how long. n = 4, f = 1.

bob's source is b4 at first, as in `test_subscriber`.
"""

from tests.cell.test_subscriber import DUE, subscriber
from tests.support.cells import (
    B1,
    B2,
    B3,
    B4,
    STREAM,
    T0,
    contents,
    delivered,
    feed,
    messages,
    sent,
    suspects,
    vote,
)

from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Subscribe
from quorumcast.cell.subscribing.fetching import (
    LATE_LOOKS,
    PULL_MS,
    PULLS_BEFORE_CHANGE,
    RANGES_AT_ONCE,
    PullDue,
    first_source,
)
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, SetTimer

OTHERS = (B1, B2, B3)


def votes_alone(made: Subscriber, number: int, *bodies: bytes) -> list[Effect]:
    """Three brokers vote; the source does not."""
    return feed(made.handle, *(vote(broker, number, *bodies) for broker in OTHERS))


def sources(effects: list[Effect]) -> list[NodeId]:
    return [s.to[0] for s in sent(effects, Subscribe) if s.message.bodies]  # type: ignore[attr-defined]


def test_first_source_subscribers_are_spread_over_the_brokers() -> None:
    brokers = (B1, B2, B3, B4)
    assert first_source(NodeId("bob"), brokers) == B4
    assert {first_source(NodeId(name), brokers) for name in "abcd"} == set(brokers)


def test_fetcher_silent_source_is_replaced_although_pulls_bring_everything() -> None:
    """Otherwise everything would come a pull late for ever."""
    made = subscriber()
    effects: list[Effect] = []
    for number in range(1, PULLS_BEFORE_CHANGE + 1):
        votes_alone(made, number, b"a")
        effects += made.handle(DUE, T0)
        got = made.handle(contents(B1, number, b"a"), T0)
        assert delivered(got) == [(number, b"a")]
        made.handle(DUE, T0)
    assert sources(effects) == [B1]
    assert suspects(effects) == []


def test_fetcher_source_that_brings_some_bodies_is_kept() -> None:
    """A body that got lost now and then is no reason to change the source."""
    made = subscriber()
    effects: list[Effect] = []
    for number in range(1, 4 * PULLS_BEFORE_CHANGE, 2):
        votes_alone(made, number, b"lost")
        effects += made.handle(DUE, T0)
        made.handle(contents(B1, number, b"lost"), T0)
        made.handle(vote(B4, number + 1, b"came", full=True), T0)
        assert delivered(votes_alone(made, number + 1, b"came")) == [(number + 1, b"came")]
        effects += made.handle(DUE, T0)
    assert len(messages(effects, Pull)) == 2 * PULLS_BEFORE_CHANGE
    assert sources(effects) == []


def always_late(made: Subscriber, source: NodeId, first: int, looks: int) -> list[Effect]:
    """The source's bodies come, and each only after the others have voted for the next one."""
    votes_alone(made, first, b"a")
    effects: list[Effect] = []
    for number in range(first, first + looks):
        votes_alone(made, number + 1, b"a")
        came = made.handle(vote(source, number, b"a", full=True), T0)
        assert delivered(came) == [(number, b"a")]
        effects += made.handle(DUE, T0)
    return effects


def test_fetcher_source_whose_bodies_always_come_last_is_replaced_without_suspicion() -> None:
    """No pull is ever needed, and yet everything waits for it."""
    made = subscriber()
    assert sources(always_late(made, B4, 1, LATE_LOOKS - 1)) == []
    effects = always_late(made, B4, LATE_LOOKS, 1)
    assert sources(effects) == [B1]
    assert messages(effects, Pull) == []
    assert suspects(effects) == []


def test_fetcher_source_that_is_in_time_at_one_look_is_given_as_many_again() -> None:
    made = subscriber()
    always_late(made, B4, 1, LATE_LOOKS - 1)
    made.handle(vote(B4, LATE_LOOKS, b"a", full=True), T0)
    assert made.handle(DUE, T0) == []
    assert sources(always_late(made, B4, LATE_LOOKS + 1, LATE_LOOKS - 1)) == []
    assert sources(always_late(made, B4, 2 * LATE_LOOKS, 1)) == [B1]


def test_fetcher_where_every_source_is_late_it_is_replaced_ever_more_rarely() -> None:
    """Large bodies on thin links come after the votes, whoever sends them."""
    made = subscriber()
    effects = always_late(made, B4, 1, LATE_LOOKS * (1 + 2 + 4) - 1)
    assert sources(effects) == [B1, B2]
    assert sources(always_late(made, B4, LATE_LOOKS * (1 + 2 + 4), 1)) == [B3]


def test_fetcher_next_body_is_awaited_as_soon_as_the_last_pull_is_answered() -> None:
    """Not only when the pull would have been repeated."""
    made = subscriber()
    votes_alone(made, 1, b"a")
    made.handle(DUE, T0)
    votes_alone(made, 2, b"b")
    assert SetTimer(PullDue(STREAM), PULL_MS) in made.handle(contents(B1, 1, b"a"), T0)


def test_fetcher_many_holes_are_pulled_at_the_same_time_from_one_broker() -> None:
    made = subscriber()
    last = 2 * RANGES_AT_ONCE + 4
    for number in range(1, last):
        if number % 2 == 0:
            made.handle(vote(B4, number, b"a", full=True), T0)
        votes_alone(made, number, b"a")
    pulls = sent(made.handle(DUE, T0), Pull)
    assert [pull.message for pull in pulls] == [
        Pull(STREAM, 1 + 2 * place, 1) for place in range(RANGES_AT_ONCE)
    ]
    assert len({pull.to for pull in pulls}) == 1
