"""What is noted of a node: the messages that it sends, and what becomes of publications.

`note_hooks` is all that a driver needs: it calls these with each effect that it carries out, after
faults have changed it. Messages are counted for every system; a system says by its `Notes` which of
its effects are about publications.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Effect, Send
from quorumcast.crypto.session import encode_parcel


class Recorder(Protocol):
    """Who takes the notes of one node."""

    def note(
        self,
        kind: str,
        stream: Stream,
        first: int,
        count: int,
        peer: str,
        *,
        place: int = 0,
        hops: int = 0,
        by_history: bool = False,
        size: int = 0,
    ) -> None:
        """Something of this kind happened just now to publications first … first+count-1."""

    def sent(self, message: str, to: tuple[NodeId, ...], size: int) -> None:
        """A message of this type and size went to each of these."""


#: How effects of a system become notes of publications, by type of effect; for a `Send`, by type of
#: message. Each function takes the recorder, the node and the effect.
Notes = Mapping[type, Callable[[Recorder, NodeId, Any], None]]


def note_hooks(recorder: Recorder, notes: Notes, me: NodeId) -> dict[type, Callable[[Any], None]]:
    """What a driver calls with each effect that this node carries out, by type of effect."""
    hooks: dict[type, Callable[[Any], None]] = {
        kind: partial(note, recorder, me)
        for kind, note in notes.items()
        if issubclass(kind, Effect)
    }
    return {**hooks, Send: partial(_note_send, recorder, notes, me)}


def _note_send(recorder: Recorder, notes: Notes, me: NodeId, send: Send) -> None:
    raw, bodies = encode_parcel(send.message, send.bodies)
    kind = type(send.message)
    recorder.sent(kind.__name__, send.to, len(raw) + sum(map(len, bodies)))
    note = notes.get(kind)
    if note is not None:
        note(recorder, me, send)
