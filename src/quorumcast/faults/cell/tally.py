"""A tally of a fault's deeds: messages of the honest machine, against messages sent instead.

A *deed* is one deviation from the protocol towards one peer: a message that was dropped, altered or
added. A faulty process keeps this tally of itself, so that runs of real processes have labels. The
simulator's labels (`sim.cell.labels`) are more exact, because the simulator sees every node. This
tally counts dropped retransmissions again, and does not ask whether the peer could have noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Attest, Missed, Reached, Regain, Subscribe, Survey
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.machine import Bodies, Effect, Send
from quorumcast.core.message import Message
from quorumcast.faults.contract import Later
from quorumcast.ordering.messages import ChunkQuery, Fetch, LogQuery, PastQuery

#: Requests and reports. Dropping or delaying one is no deed: a correct node need not ask or tell.
REQUESTS = (
    Attest, ChunkQuery, Fetch, LogQuery, Missed, PastQuery, Pull, Reached, Regain, Subscribe,
    Survey,
)  # fmt: skip
#: Messages on which correct brokers may differ if the publisher equivocates, until it is settled.
ABOUT_STREAMS = ("Vote", "Matches", "Contents", "Echo", "Ready", "ChainRun", "Ack", "Checkpoint")
#: Fewer deeds than this of one kind towards one node are slight: packet loss does as much. Kinds
#: are not added up, since one missing vote, answer and proposal are each too few to notice.
SLIGHT = 3
#: Distinct deeds that are counted; a liar may invent streams without end.
MAX_DEEDS = 4096


class SentMessage(NamedTuple):
    """A message to one peer, with the contents that travel beside it."""

    message: Message
    bodies: Bodies


class TalliedDeed(msgspec.Struct, frozen=True):
    """A kind of message, the peer, and the publisher whose publications or history it is about."""

    message: str
    towards: NodeId
    publisher: str = ""
    history: bool = False


class DeedTally:
    """The number of times each deed was done."""

    __slots__ = ("deeds",)

    def __init__(self) -> None:
        self.deeds: Counter[TalliedDeed] = Counter()

    def compare(self, wanted: Sequence[Effect], done: Sequence[Effect | Later]) -> None:
        """Count the deeds among `done`, the effects carried out instead of `wanted`."""
        for change in changes(by_peer(wanted), by_peer(done), by_peer(delayed_effects(done))):
            for message, _ in change.dropped:  # delays do not count: they look like a slow network
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
    """Differences between the messages meant for one peer and those it is sent."""

    peer: NodeId
    delayed: list[SentMessage]
    #: Pairs of the message meant and the one sent instead.
    altered: list[tuple[SentMessage, SentMessage]]
    dropped: list[SentMessage]
    #: Messages that the honest machine did not send, whether they go out now or later.
    added: list[SentMessage]


def changes(
    intended: Mapping[NodeId, Sequence[SentMessage]],
    sent: Mapping[NodeId, Sequence[SentMessage]],
    sent_later: Mapping[NodeId, Sequence[SentMessage]],
) -> Iterator[Change]:
    """The change towards each peer, from the messages meant, sent now and scheduled for later."""
    for peer in dict.fromkeys((*intended, *sent, *sent_later)):
        extra, late = list(sent.get(peer, ())), list(sent_later.get(peer, ()))
        delayed: list[SentMessage] = []
        lacking: list[SentMessage] = []
        for meant in intended.get(peer, ()):
            if meant in extra:
                extra.remove(meant)
            elif meant in late:
                late.remove(meant)
                delayed.append(meant)
            else:
                lacking.append(meant)
        altered = list(zip(lacking, extra, strict=False))
        yield Change(
            peer=peer,
            delayed=delayed,
            altered=altered,
            dropped=lacking[len(altered) :],
            added=[*extra[len(altered) :], *late],
        )


def delayed_effects(effects: Sequence[Effect | Later]) -> list[Effect]:
    """The effects that are scheduled for later."""
    return [effect.effect for effect in effects if isinstance(effect, Later)]


def by_peer(effects: Sequence[Effect | Later]) -> dict[NodeId, list[SentMessage]]:
    """The messages that are sent now, by peer."""
    sent: dict[NodeId, list[SentMessage]] = {}
    for effect in effects:
        if isinstance(effect, Send):
            for peer in effect.to:
                sent.setdefault(peer, []).append(SentMessage(effect.message, effect.bodies))
    return sent
