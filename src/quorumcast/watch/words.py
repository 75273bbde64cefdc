"""Words: what publishers show of a run, and what brokers say of it, must agree.

Correct brokers are ready for the same runs; so once this broker is, it knows what the others ought
to say, and what the publisher ought to have shown. That they say it is certain only once so many
are ready that all will be, whatever the publisher does. Votes of f+1 brokers are what at least one
correct broker was shown: who votes otherwise lies, or the publisher told brokers different things.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from quorumcast.broadcast.messages import Echo, Ready
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.crypto.digest import root
from quorumcast.manifest.manifest import Manifest
from quorumcast.watch.observation import Kind, Notes, remember
from quorumcast.watch.turnout import Links, Place, Turnout


def outvoted(said: Mapping[NodeId, bytes], sender: NodeId, enough: int) -> list[NodeId]:
    """Who is found out, by what has just been said, to say something else than enough others."""
    word, words = said[sender], list(said.values())
    if words.count(word) == enough:
        return [who for who, other in said.items() if other != word]
    others = [other for other in words if other != word]
    return [sender] if any(others.count(other) >= enough for other in others) else []


class Words:
    """What was said of runs, and by whom."""

    def __init__(
        self, manifest: Manifest, others: tuple[NodeId, ...], links: Links, notes: Notes
    ) -> None:
        self._brokers = manifest.broker_ids
        self._one_correct = manifest.quorums.one_correct
        #: With so many readies every correct broker will be ready.
        self._all_will = manifest.quorums.ready_accept
        self._notes = notes
        self._turnouts = {
            kind: Turnout(kind.__name__, others, links, notes) for kind in (Echo, Ready)
        }
        #: The runs that publishers showed this broker.
        self._shown: OrderedDict[Place, bytes] = OrderedDict()
        #: The run that this broker is ready for at a first number, and what others said there.
        self._vouched: OrderedDict[Place, bytes] = OrderedDict()
        self._said: OrderedDict[tuple[NodeId, type, Place], bytes] = OrderedDict()
        #: What each broker voted for last, where correct ones may differ.
        self._voted: OrderedDict[tuple[NodeId, Place], bytes] = OrderedDict()

    def sweep(self, now: Millis) -> None:
        """What has not been said by now is not going to be."""
        for turnout in self._turnouts.values():
            turnout.sweep(now)

    def shown(self, stream: Stream, first: int, digests: bytes) -> None:
        """The publisher itself has shown a run."""
        remember(self._shown, (stream, first), root(first, digests))

    def said(self, now: Millis, sender: NodeId, word: Echo | Ready) -> None:
        """A broker speaks of a run."""
        place = (word.stream, word.first)
        key = (sender, type(word), place)
        before = self._said.get(key)
        name = type(word).__name__
        if before is not None and before != word.run:
            self._notes.add(now, Kind.CONTRADICTS, sender, "itself", name, *place)
        remember(self._said, key, word.run)
        truth = self._vouched.get(place)
        if truth is not None and truth != word.run:
            self._notes.add(now, Kind.CONTRADICTS, sender, "others", name, *place)
        self._turnouts[type(word)].spoke(now, sender, place)
        if isinstance(word, Ready):
            self._count_readies(now, place)
            return
        echoes = {
            broker: run
            for broker in self._brokers
            if (run := self._said.get((broker, Echo, place))) is not None
        }
        if list(echoes.values()).count(word.run) < self._one_correct:
            return
        # One of them is correct, and was shown this run.
        shown = self._shown.get(place)
        if shown is not None and shown != word.run:
            publisher = word.stream.publisher
            self._notes.add(now, Kind.CONTRADICTS, publisher, "shown", "Publish", *place)

    def _count_readies(self, now: Millis, place: Place) -> None:
        own = self._vouched.get(place)
        said = [self._said.get((broker, Ready, place)) for broker in self._brokers]
        if own is not None and 1 + said.count(own) >= self._all_will:
            self._turnouts[Ready].enough(now, place)

    def vouched(self, now: Millis, ready: Ready) -> None:
        """This broker is ready for a run, and so ought the others to be."""
        place = (ready.stream, ready.first)
        if place in self._vouched:
            return
        remember(self._vouched, place, ready.run)
        shown = self._shown.get(place)
        if shown is not None and shown != ready.run:
            publisher = ready.stream.publisher
            self._notes.add(now, Kind.CONTRADICTS, publisher, "others", "Publish", *place)
        self._turnouts[Echo].enough(now, place)
        self._count_readies(now, place)
        for kind in self._turnouts:
            for broker in self._brokers:
                said = self._said.get((broker, kind, place))
                if said is not None and said != ready.run:
                    self._notes.add(now, Kind.CONTRADICTS, broker, "others", kind.__name__, *place)

    def voted(self, now: Millis, sender: NodeId, place: Place, digest: bytes) -> bool:
        """A broker votes for contents on which correct ones may differ; are these f+1 now?"""
        remember(self._voted, (sender, place), digest)
        votes = {
            broker: vote
            for broker in self._brokers
            if (vote := self._voted.get((broker, place))) is not None
        }
        for broker in outvoted(votes, sender, self._one_correct):
            self._notes.add(now, Kind.CONTRADICTS, broker, "others", "Vote", *place)
        return list(votes.values()).count(digest) == self._one_correct
