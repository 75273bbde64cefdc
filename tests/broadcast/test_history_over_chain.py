"""Histories of a chain in a cell with more brokers than 3f+1: who must have echoed them.

Counter-example with n = 6, f = 1 and echoes at ⌈(n+f+1)/2⌉ = 4: the chain b1 b2 b3 brings contents
x to one subscriber; b4 b5 b6, which are in no chain, and the liar b3 echo a history that names y;
the other subscriber learns y. With n-f = 5 echoes one of b1 and b2 must agree, and does not.
"""

from __future__ import annotations

import itertools

import pytest
from tests.support.cells import B2, B3, B4, B5, B6, LANE, STREAM, T0, Cell

from quorumcast.broadcast.bracha import Bracha
from quorumcast.broadcast.messages import Echo
from quorumcast.core.machine import Receive
from quorumcast.core.quorum import Quorums
from quorumcast.manifest.policy import Policy

VALUE = b"v" * 32


@pytest.mark.parametrize(("n", "f"), [(n, f) for f in (1, 2) for n in range(3 * f + 1, 9)])
def test_echoes_over_chain_include_a_correct_broker_of_every_chain(n: int, f: int) -> None:
    quorums = Quorums(n, f)
    for chain in itertools.combinations(range(quorums.chain_pool), quorums.chain_length):
        for liars in itertools.combinations(range(n), f):
            correct = set(chain) - set(liars)
            # The echoes that avoid the chain's correct brokers as far as they can.
            avoiding = [broker for broker in range(n) if broker not in correct]
            assert len(avoiding) < quorums.echo_over_chain


def test_history_over_chain_is_not_ready_at_the_usual_echoes() -> None:
    bracha = Bracha(LANE, Cell(Policy.named("chain+history", alpha=2), n=6).around())
    said = []
    for broker in (B2, B3, B4, B5, B6):
        bracha.handle(Receive(broker, Echo(LANE, 1, VALUE)), T0)
        said.append(not bracha.would_echo_contents(1))
    assert said == [False, False, False, False, True]


def test_history_over_authenticated_broadcast_is_ready_at_the_usual_echoes() -> None:
    bracha = Bracha(LANE, Cell(Policy.named("ab+history", alpha=2), n=6).around())
    said = []
    for broker in (B2, B3, B4, B5):
        bracha.handle(Receive(broker, Echo(STREAM.history, 1, VALUE)), T0)
        said.append(not bracha.would_echo_contents(1))
    assert said == [False, False, False, True]
