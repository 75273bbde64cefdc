"""Where bodies come from: what pulls have to make up for, and for how long. n = 4, f = 1.

bob's source is b4 at first, as in `test_subscriber`.
"""

from tests.agents.test_subscriber import DUE, subscriber
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

from quorumcast.agents.fetching import (
    PULL_MS,
    PULLS_BEFORE_CHANGE,
    RANGES_AT_ONCE,
    PullDue,
    first_source,
)
from quorumcast.agents.subscriber import Subscriber
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, SetTimer
from quorumcast.core.messages import Pull, Subscribe

OTHERS = (B1, B2, B3)


def votes_alone(made: Subscriber, number: int, *bodies: bytes) -> list[Effect]:
    """Three brokers vote; the source does not."""
    return feed(made.handle, *(vote(broker, number, *bodies) for broker in OTHERS))


def sources(effects: list[Effect]) -> list[NodeId]:
    return [s.to[0] for s in sent(effects, Subscribe) if s.message.bodies]  # type: ignore[union-attr]


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
