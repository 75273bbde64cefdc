"""The fast acceptor and its plain twin are given the same words and must say the same."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from tests.broadcast.plain_acceptance import PlainAcceptor

from quorumcast.broadcast.acceptance import Acceptor, rule_for
from quorumcast.broadcast.application import Deliver
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Effect, Suspect
from quorumcast.core.quorum import Broadcast, Protection, Quorums
from quorumcast.crypto.digest import hasher

HASH = hasher("sha256")
BROKERS = tuple(NodeId(f"b{i}") for i in range(1, 5))
STREAM = Stream(Channel("orders"), NodeId("alice"), 1)
QUORUMS = Quorums(4, 1)

Either = Acceptor | PlainAcceptor
Step = Callable[[Either], list[Effect]]

#: Which contents a broker means at a number: mostly the true one, or the same lie all along.
versions = st.one_of(
    st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 2]), min_size=1, max_size=6),
    st.builds(lambda version, count: [version] * count, st.integers(0, 2), st.integers(1, 8)),
)
firsts = st.integers(1, 14)


def body(number: int, version: int) -> bytes:
    return b"%d.%d" % (number, version)


def run(first: int, chosen: list[int]) -> tuple[bytes, tuple[bytes, ...]]:
    bodies = tuple(body(first + i, version) for i, version in enumerate(chosen))
    return b"".join(map(HASH, bodies)), bodies


def vote(broker: NodeId, first: int, chosen: list[int], full: bool, order: int) -> Step:
    digests, bodies = run(first, chosen)
    way = (BROKERS[:3], BROKERS[1:])[order - 1] if order else ()
    return lambda acceptor: acceptor.vote(broker, first, digests, bodies if full else (), way)


def contents(broker: NodeId, first: int, chosen: list[int]) -> Step:
    digests, bodies = run(first, chosen)
    return lambda acceptor: acceptor.contents(broker, first, digests, bodies)


def settle(first: int, count: int) -> Step:
    digests, _ = run(first, [0] * count)

    def step(acceptor: Either) -> list[Effect]:
        acceptor.settle(first, digests)
        return []

    return step


def skip(number: int) -> Step:
    def step(acceptor: Either) -> list[Effect]:
        acceptor.skip_to(number)
        return []

    return step


def steps(orders: tuple[int, ...]) -> st.SearchStrategy[list[Step]]:
    brokers = st.sampled_from(BROKERS)
    return st.lists(
        st.one_of(
            st.builds(vote, brokers, firsts, versions, st.booleans(), st.sampled_from(orders)),
            st.builds(vote, brokers, firsts, versions, st.booleans(), st.sampled_from(orders)),
            st.builds(contents, brokers, firsts, versions),
            st.builds(settle, firsts, st.integers(1, 6)),
            st.builds(skip, st.integers(1, 4)),
        ),
        max_size=40,
    )


def said(effects: list[Effect]) -> list[Effect]:
    return sorted((e for e in effects if isinstance(e, Deliver | Suspect)), key=repr)


def check(rule: tuple[Protection, Broadcast], given_steps: list[Step]) -> None:
    fast = Acceptor(STREAM, 1, rule_for(QUORUMS, *rule, BROKERS), HASH, Limits())
    plain = PlainAcceptor(STREAM, 1, rule_for(QUORUMS, *rule, BROKERS), HASH, Limits())
    for step in given_steps:
        assert said(step(fast)) == said(step(plain))
        assert said(fast.deliver()) == said(plain.deliver())
        assert (fast.next, fast.stuck, fast.lacking(20)) == (
            plain.next,
            plain.stuck,
            plain.lacking(20),
        )
        assert fast.last_vote == plain.last_vote
        assert fast.sizes()["pending_bytes"] == plain.sizes()["pending_bytes"]


@given(steps((0,)))
def test_acceptor_of_votes_agrees_with_its_plain_twin(given_steps: list[Step]) -> None:
    check((Protection.BYZANTINE, Broadcast.AUTHENTICATED), given_steps)


@given(steps((1, 1, 1, 2)))
def test_acceptor_of_chains_agrees_with_its_plain_twin(given_steps: list[Step]) -> None:
    check((Protection.BYZANTINE, Broadcast.CHAIN), given_steps)
