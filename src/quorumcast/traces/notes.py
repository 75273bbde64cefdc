"""What is noted of a node: the messages that it sends, and what becomes of publications.

`watch_effect` is all that a driver needs. It takes each effect that is carried out, after faults
have changed it. Messages are counted for every system; a system says by its `Notes` which of its
effects are about publications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
        ...

    def sent(self, message: str, to: tuple[NodeId, ...], size: int) -> None:
        """A message of this type and size went to each of these."""
        ...


#: How effects of a system become notes of publications, by type of effect; for a `Send`, by type of
#: message. Each function takes the recorder, the node and the effect.
Notes = Mapping[type, Callable[[Recorder, NodeId, Any], None]]


def watched(notes: Notes) -> Iterable[type]:
    """The types of effects that `watch_effect` wants to see."""
    return (Send, *(kind for kind in notes if issubclass(kind, Effect)))


def watch_effect(recorder: Recorder, notes: Notes, me: NodeId, effect: Effect) -> None:
    """Note an effect that a node is about to carry out."""
    kind: type = type(effect)
    if isinstance(effect, Send):
        raw, bodies = encode_parcel(effect.message, effect.bodies)
        kind = type(effect.message)
        recorder.sent(kind.__name__, effect.to, len(raw) + sum(map(len, bodies)))
    note = notes.get(kind)
    if note is not None:
        note(recorder, me, effect)
