"""Lines are shared only where nobody could see another order; else scripts would hide mistakes.

Three brokers; messages are "x" and "y", and carol is a client.
"""

from __future__ import annotations

from tests.support.cells import B1, B2, B3, CAROL
from tests.support.transcript import Transcript

from quorumcast.core.ids import NodeId

BROKERS = (B1, B2, B3)


def made() -> Transcript:
    return Transcript(lambda node: [broker for broker in BROKERS if broker != node])


def others(node: NodeId) -> list[NodeId]:
    return [broker for broker in BROKERS if broker != node]


def test_nodes_that_do_the_same_share_a_line() -> None:
    transcript = made()
    for node in (B2, B1):
        transcript.send(10, node, others(node), "x")
        transcript.send(10, node, [CAROL], "y")
    assert transcript.lines() == ["   10 b1 b2 > brokers: x", "   10 b1 b2 > carol: y"]


def test_node_that_sends_in_another_order_has_a_line_of_its_own() -> None:
    transcript = made()
    for text in ("x", "y"):
        transcript.send(10, B1, [CAROL], text)
    for text in ("y", "x"):
        transcript.send(10, B2, [CAROL], text)
    assert transcript.lines() == [
        "   10 b1 > carol: x",
        "   10 b1 b2 > carol: y",
        "   10 b2 > carol: x",
    ]


def test_order_that_no_reader_sees_is_not_shown() -> None:
    transcript = made()
    for reader in (B1, B2, B3):
        transcript.send(10, CAROL, [reader], "x")
        transcript.send(10, CAROL, [reader], "y")
    assert transcript.lines() == ["   10 carol > brokers: x", "   10 carol > brokers: y"]


def test_what_a_node_does_by_itself_stays_between_its_messages() -> None:
    transcript = made()
    transcript.send(10, B1, [B2], "x")
    transcript.act(10, B1, "writes")
    transcript.send(10, B1, [B3], "x")
    transcript.act(10, B2, "writes")
    transcript.send(10, B2, [B3], "x")
    assert transcript.lines() == [
        "   10 b1 > b2: x",
        "   10 b1 b2 writes",
        "   10 b1 b2 > b3: x",
    ]


def test_message_that_is_sent_twice_is_printed_twice() -> None:
    transcript = made()
    for _ in range(2):
        transcript.send(10, B1, [CAROL], "x")
    assert transcript.lines() == ["   10 b1 > carol: x"] * 2


def test_nothing_is_shared_across_time_and_what_is_hidden_is_counted() -> None:
    transcript = made()
    transcript.send(10, B1, [CAROL], "x")
    transcript.send(20, B2, [CAROL], "x")
    transcript.hide("Ack", 3)
    assert transcript.lines() == [
        "   10 b1 > carol: x",
        "   20 b2 > carol: x",
        "      (not shown: 3 Ack)",
    ]
