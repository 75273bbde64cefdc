"""What faulty nodes really did, message by message: the labels that an audit is measured by.

A record is put around a fault and compares what the honest machine inside was about to say with
what is said instead. Each difference towards a correct node that can be reached is a *deed*:
something dropped, altered, added or delayed. Nothing here depends on what anybody noticed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from quorumcast.core.ids import Lane, Millis, NodeId, Stream
from quorumcast.core.machine import Bodies, Effect, Send
from quorumcast.core.messages import AnyMessage
from quorumcast.faults.base import stream_of
from quorumcast.faults.contract import Fault, Later


class Deed(enum.Enum):
    """What was done to a message."""

    DROPPED = "dropped"
    ALTERED = "altered"
    ADDED = "added"
    #: So late that no weather explains it.
    DELAYED = "delayed"
    #: Said after what followed it about the same stream.
    REORDERED = "reordered"


class DeedKey(msgspec.Struct, frozen=True):
    """Who did what to which messages, towards whom."""

    node: NodeId
    fault: str
    deed: Deed
    message: str
    towards: NodeId
    publisher: str
    #: Whether it is about histories, or about what was published.
    history: bool


class Committed(msgspec.Struct):
    """How often, from when to when."""

    count: int = 0
    first_ms: int = 0
    last_ms: int = 0


#: The longest that a packet takes in the worst weather; less than this nobody can tell from it.
LATE_MS = 30

_Word = tuple[AnyMessage, Bodies]


class Deeds:
    """Everything that faulty nodes did in one run."""

    __slots__ = ("_put_off", "_reached", "done")

    def __init__(self, reached: Callable[[NodeId, NodeId], bool]) -> None:
        #: Whether a peer is correct and can be reached by a node.
        self._reached = reached
        self.done: dict[DeedKey, Committed] = {}
        #: What is put off: until when, what, and about what.
        self._put_off: list[tuple[int, Send, tuple[NodeId, type, Stream | None]]] = []

    def around(self, node: NodeId, fault: Fault) -> Fault:
        """The same fault, on record."""
        return _Recorded(node, fault, self)

    def compare(
        self, node: NodeId, fault: str, wanted: list[Effect], done: list[Effect | Later], now: int
    ) -> None:
        """What was to be done, and what was done instead."""
        intended, said, delayed = _by_peer(wanted), _by_peer(done), _by_peer(_later(done))
        due = {id(later.effect): now + later.after_ms for later in done if isinstance(later, Later)}
        self._overtake(node, fault, done, due, now)
        for peer in dict.fromkeys((*intended, *said, *delayed)):
            if not self._reached(node, peer):
                continue
            extra = list(said.get(peer, ()))
            late = list(delayed.get(peer, ()))
            lacking: list[_Word] = []
            for word in intended.get(peer, ()):
                if word in extra:
                    extra.remove(word)
                elif word in late:
                    late.remove(word)
                    if _delay_of(done, word, peer) >= LATE_MS:
                        self._add(node, fault, Deed.DELAYED, word, peer, now)
                else:
                    lacking.append(word)
            altered = min(len(lacking), len(extra))
            for word in lacking[:altered]:
                self._add(node, fault, Deed.ALTERED, word, peer, now)
            for word in lacking[altered:]:
                self._add(node, fault, Deed.DROPPED, word, peer, now)
            for word in (*extra[altered:], *late):
                self._add(node, fault, Deed.ADDED, word, peer, now)

    def _overtake(
        self,
        node: NodeId,
        fault: str,
        done: list[Effect | Later],
        due: dict[int, int],
        now: int,
    ) -> None:
        """Note what is put off until after something that follows it."""
        self._put_off = [entry for entry in self._put_off if entry[0] > now]
        for one in done:
            effect = one.effect if isinstance(one, Later) else one
            if not isinstance(effect, Send):
                continue
            at = due.get(id(effect), now)
            about = (node, type(effect.message), stream_of(effect.message))
            for entry in [e for e in self._put_off if e[0] > at and e[2] == about]:
                for peer in entry[1].to:
                    if peer in effect.to and self._reached(node, peer):
                        word = (entry[1].message, entry[1].bodies)
                        self._add(node, fault, Deed.REORDERED, word, peer, now)
                self._put_off.remove(entry)
            if at > now:
                self._put_off.append((at, effect, about))

    def _add(
        self, node: NodeId, fault: str, deed: Deed, word: _Word, peer: NodeId, now: int
    ) -> None:
        stream = stream_of(word[0]) or getattr(word[0], "stream", None)
        about = stream if isinstance(stream, Stream) else None
        key = DeedKey(
            node=node,
            fault=fault,
            deed=deed,
            message=type(word[0]).__name__,
            towards=peer,
            publisher=about.publisher if about else "",
            history=about is not None and about.lane is Lane.HISTORY,
        )
        committed = self.done.setdefault(key, Committed(first_ms=now))
        committed.count += 1
        committed.last_ms = now


class _Recorded:
    """A fault whose deeds are written down."""

    __slots__ = ("_deeds", "_fault", "_node")

    def __init__(self, node: NodeId, fault: Fault, deeds: Deeds) -> None:
        self._node = node
        self._fault = fault
        self._deeds = deeds

    @property
    def name(self) -> str:
        return self._fault.name

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        done = self._fault.tamper(list(effects), now)
        self._deeds.compare(self._node, self.name, effects, done, now)
        return done


def _later(effects: list[Effect | Later]) -> list[Effect | Later]:
    return [effect.effect for effect in effects if isinstance(effect, Later)]


def _by_peer(effects: list[Effect] | list[Effect | Later]) -> dict[NodeId, list[_Word]]:
    words: dict[NodeId, list[_Word]] = {}
    for effect in effects:
        if isinstance(effect, Send):
            for peer in effect.to:
                words.setdefault(peer, []).append((effect.message, effect.bodies))
    return words


def _delay_of(done: list[Effect | Later], word: _Word, peer: NodeId) -> int:
    return max(
        (
            one.after_ms
            for one in done
            if isinstance(one, Later)
            and isinstance(one.effect, Send)
            and (one.effect.message, one.effect.bodies) == word
            and peer in one.effect.to
        ),
        default=0,
    )
