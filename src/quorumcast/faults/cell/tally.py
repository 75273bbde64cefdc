"""A tally of what faults did: what the honest machine wanted to say, against what was said instead.

Each word that did not go to a peer as it was meant, and when, is a deed towards that peer. It is
what a faulty process can tell of itself, so that real runs have labels. The simulator, which sees
everybody, is more exact (`sim.cell.labels`): here what is kept back again counts again, and nobody
asks whether the peer could have noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Attest, Missed, Regain, Subscribe, Survey
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.machine import Bodies, Effect, Send
from quorumcast.core.message import Message
from quorumcast.faults.contract import Later
from quorumcast.ordering.messages import ChunkQuery, Fetch, LogQuery

#: What is asked, and who does not ask, or not now, need not want to know.
REQUESTS = (Attest, ChunkQuery, Fetch, LogQuery, Missed, Pull, Regain, Subscribe, Survey)
#: What brokers may differ on when a publisher lies, unless it is settled.
ABOUT_STREAMS = ("Vote", "Contents", "Echo", "Ready", "ChainRun", "Ack", "Checkpoint")
#: Fewer deeds than this of one kind towards one node are slight: that many happen to anybody's
#: packets, and who misses one vote, one answer and one proposal has noticed nothing three times.
SLIGHT = 3
#: Different deeds that are told apart; a liar may make up streams without end.
MAX_DEEDS = 4096

#: What was said to somebody.
Word = tuple[Message, Bodies]


class TalliedDeed(msgspec.Struct, frozen=True):
    """To whom, with which messages, about whose publications or histories."""

    message: str
    towards: NodeId
    publisher: str = ""
    history: bool = False


class DeedTally:
    """How often each deed was done."""

    __slots__ = ("deeds",)

    def __init__(self) -> None:
        self.deeds: Counter[TalliedDeed] = Counter()

    def compare(self, wanted: Sequence[Effect], done: Sequence[Effect | Later]) -> None:
        """What was to be done, and what is done instead."""
        for change in changes(by_peer(wanted), by_peer(done), by_peer(later(done))):
            for message, _ in change.dropped:  # what is only put off nobody can tell from distance
                if not isinstance(message, REQUESTS):
                    self._add(message, change.peer)
            for message, _ in (*(before for before, _ in change.altered), *change.added):
                self._add(message, change.peer)

    def _add(self, message: Message, peer: NodeId) -> None:
        deed = TalliedDeed(type(message).__name__, peer)
        stream = getattr(message, "stream", None)
        if isinstance(stream, Stream):
            history = stream.lane is Lane.HISTORY
            deed = TalliedDeed(deed.message, peer, stream.publisher, history)
        if deed in self.deeds or len(self.deeds) < MAX_DEEDS:
            self.deeds[deed] += 1


class Change(msgspec.Struct, frozen=True):
    """What one peer is told otherwise than was meant."""

    peer: NodeId
    put_off: list[Word]
    #: What was to be said, and what is said instead.
    altered: list[tuple[Word, Word]]
    dropped: list[Word]
    #: Now or later.
    added: list[Word]


def changes(
    intended: Mapping[NodeId, Sequence[Word]],
    said: Mapping[NodeId, Sequence[Word]],
    delayed: Mapping[NodeId, Sequence[Word]],
) -> Iterator[Change]:
    """By peer: what was to be said, against what is said now and what will be."""
    for peer in dict.fromkeys((*intended, *said, *delayed)):
        extra, late = list(said.get(peer, ())), list(delayed.get(peer, ()))
        put_off: list[Word] = []
        lacking: list[Word] = []
        for word in intended.get(peer, ()):
            if word in extra:
                extra.remove(word)
            elif word in late:
                late.remove(word)
                put_off.append(word)
            else:
                lacking.append(word)
        altered = list(zip(lacking, extra, strict=False))
        yield Change(
            peer=peer,
            put_off=put_off,
            altered=altered,
            dropped=lacking[len(altered) :],
            added=[*extra[len(altered) :], *late],
        )


def later(effects: Sequence[Effect | Later]) -> list[Effect]:
    """What is put off."""
    return [effect.effect for effect in effects if isinstance(effect, Later)]


def by_peer(effects: Sequence[Effect | Later]) -> dict[NodeId, list[Word]]:
    """What is said now, to whom."""
    words: dict[NodeId, list[Word]] = {}
    for effect in effects:
        if isinstance(effect, Send):
            for peer in effect.to:
                words.setdefault(peer, []).append((effect.message, effect.bodies))
    return words
