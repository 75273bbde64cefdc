"""The observer takes whatever can be sent, by whomever, in any order, and does not break."""

from __future__ import annotations

import enum
import typing
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    BOB,
    CAROL,
    ORDERS,
    STREAM,
    Cell,
    digests,
    is_sendable,
)

from quorumcast.cell.messages import CellMessage
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import Receive
from quorumcast.core.message import Message
from quorumcast.manifest.policy import Policy
from quorumcast.watch.observer import Observer

SENDERS = (ALICE, BOB, CAROL, B1, B2, B3, NodeId("nobody"))
NUMBERS = (0, 1, 2, 64, 10**6, 2**61)
WORDS = (digests(b"a"), digests(b"b"), digests(b"a") + digests(b"b"), b"m" * 16, b"")
SAMPLES: dict[Any, tuple[Any, ...]] = {
    Stream: (STREAM, STREAM.history, Stream(Channel("nowhere"), BOB, 2)),
    Channel: (ORDERS, Channel("nowhere")),
    NodeId: SENDERS,
    str: ("", "because"),
    int: NUMBERS,
    bytes: WORDS,
    bool: (False, True),
    type(None): (None,),
}


def anything(of: Any) -> st.SearchStrategy[Any]:
    """Values of a type, as they stand in messages."""
    if of in SAMPLES:
        return st.sampled_from(SAMPLES[of])
    origin, parts = typing.get_origin(of), typing.get_args(of)
    if origin is Annotated:
        return anything(parts[0])
    if origin is tuple:
        return st.lists(anything(parts[0]), max_size=3).map(tuple)
    if parts:
        return st.one_of(*map(anything, parts))
    if issubclass(of, enum.Enum):
        return st.sampled_from(list(of))
    hints = typing.get_type_hints(of, include_extras=True)
    return st.builds(of, **{name: anything(hint) for name, hint in hints.items()})


OBSERVERS = ((B1, "broker"), (ALICE, "publisher"), (BOB, "subscriber"))
MESSAGES = {kind.__name__: anything(kind) for kind in typing.get_args(CellMessage)}


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "chain", "total"])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(SENDERS),
            st.one_of(*MESSAGES.values()).filter(is_sendable),
            st.sampled_from(((), (b"a",), (b"a", b"b"))),
        ),
        max_size=30,
    )
)
def test_observer_survives_whatever_is_sent(
    policy: str, mail: list[tuple[NodeId, Message, tuple[bytes, ...]]]
) -> None:
    manifest = Cell(Policy.parse(policy)).manifest
    # All roles observe the same mail, because drawing it takes far longer than observing it.
    for me, role in OBSERVERS:
        observer = Observer(manifest, me, role)
        now = 0
        for sender, message, bodies in mail:
            now += 200
            observer.on_event(Receive(sender, message, bodies), Millis(now))
        observer.close(Millis(now))
        noted = {row.accused for row in observer.notes.take(all_=True)}
        assert noted >= {s for s, _, _ in mail}, role
