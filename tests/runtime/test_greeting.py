"""How two nodes meet, without sockets: who is welcome, and what the others are told."""

import msgspec
import pytest
from tests.runtime.world import keyring

from quorumcast.cell.messages import CELL_FAMILY, Refuse
from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Farewell, Hello, Welcome, encode_parcel
from quorumcast.manifest.build import next_epoch
from quorumcast.runtime.links.greeting import (
    Greeter,
    decode_greeting,
    encode_greeting,
    sentence_of,
)
from quorumcast.testing.cells import CellSetup

CELL = CellSetup()
BROKER = NodeId("broker-1")


def greeter(name: str) -> Greeter:
    return Greeter(keyring(CELL, name), CELL_FAMILY)


def test_greeting_both_honest_sessions_open_each_others_packets() -> None:
    alice, broker = greeter("alice"), greeter("broker-1")
    hello = alice.hello(BROKER)
    answer = broker.answer(hello)
    assert not isinstance(answer, Farewell)
    welcome, called = answer
    calling = alice.conclude(hello, welcome)
    assert calling is not None
    assert called.open(calling.seal([])) == []
    assert calling.open(called.seal([])) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": 99}, "speaks protocol 1 and you speak 99"),
        ({"instance": "elsewhere"}, "belongs to 'test', which is not"),
        ({"epoch": 0}, "yours is epoch 0: fetch the current manifest"),
        ({"epoch": 7}, "give broker-1 the current manifest"),
        ({"to": NodeId("broker-2")}, "this is broker-1 and not the node that you called"),
        ({"sender": NodeId("mallory")}, "does not list you"),
        ({"sender": NodeId("m" * 1000)}, "does not list you"),
        ({"sender": BROKER}, "use your own identity"),
        ({"nonce": b""}, "a nonce of 16 bytes"),
    ],
)
def test_answer_greeting_that_cannot_be_accepted_is_a_farewell_in_one_sentence(
    changes: dict[str, object], words: str
) -> None:
    hello = msgspec.structs.replace(greeter("alice").hello(BROKER), **changes)
    answer = greeter("broker-1").answer(hello)
    assert isinstance(answer, Farewell)
    assert words in answer.reason
    assert answer.epoch == 1


def test_conclude_answer_of_another_node_gives_no_session() -> None:
    alice = greeter("alice")
    hello = alice.hello(BROKER)
    thief = Keyring(
        CELL.identities[NodeId("broker-2")], CELL.manifest, keyring(CELL, "alice").factory
    )
    impostor = Greeter(thief, CELL_FAMILY)
    answer = impostor.answer(msgspec.structs.replace(hello, to=NodeId("broker-2")))
    assert not isinstance(answer, Farewell)
    assert alice.conclude(hello, answer[0]) is None
    assert alice.conclude(hello, Welcome(b"short", b"")) is None


def test_conclude_other_epoch_gives_no_session() -> None:
    later = next_epoch(CELL.manifest).keyring(CELL.identities[BROKER])
    alice = greeter("alice")
    hello = alice.hello(BROKER)
    answer = Greeter(later, CELL_FAMILY).answer(msgspec.structs.replace(hello, epoch=2))
    assert not isinstance(answer, Farewell)
    assert alice.conclude(hello, answer[0]) is None


def test_session_packet_of_an_earlier_greeting_does_not_open() -> None:
    alice, broker = greeter("alice"), greeter("broker-1")
    recorded = None
    for _ in range(2):
        hello = alice.hello(BROKER)
        answer = broker.answer(hello)
        assert not isinstance(answer, Farewell)
        session = alice.conclude(hello, answer[0])
        assert session is not None
        if recorded is not None:
            assert not isinstance(answer[1].open(recorded), list)
        recorded = session.seal([encode_parcel(_refuse())])


def _refuse() -> Refuse:

    return Refuse(Channel("c"), "no")


@pytest.mark.parametrize("junk", [b"", b"\x00", b"\xc1", b"GET / HTTP/1.1", b"\x95" * 500])
def test_decode_greeting_junk_is_none(junk: bytes) -> None:
    assert decode_greeting(junk) is None


def test_decode_greeting_round_trip() -> None:
    hello = greeter("alice").hello(BROKER)
    assert decode_greeting(encode_greeting(hello)) == hello
    assert isinstance(hello, Hello)


def test_sentence_of_farewell_from_a_stranger_is_short_and_printable() -> None:
    said = sentence_of(Farewell("\x1b[31m" + "x" * 5000 + "\n"))
    assert "\x1b" not in said
    assert "\n" not in said
    assert len(said) <= 300
