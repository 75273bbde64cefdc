"""Contradictions in what publishers and brokers say of one run of a broadcast.

Correct brokers become ready for the same runs. So once this broker is ready for a run, it knows
which run the others must echo and be ready for, and which one the publisher must have sent. Their
Ready is due only once so many are ready that every correct broker will be, whatever the publisher
does. Where a publisher can make correct brokers differ, equal votes of f+1 brokers show a run that
at least one correct broker was sent: a broker with another vote lies, or the publisher equivocates.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.broadcast.messages import Echo, Ready
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.tally import Tally
from quorumcast.crypto.digest import root
from quorumcast.manifest.manifest import Manifest
from quorumcast.watch.observation import Kind, Notes, remember, tally_at
from quorumcast.watch.turnout import LinkHistory, Place, Turnout


def outvoted(votes: Tally[bytes], sender: NodeId, enough: int) -> list[NodeId]:
    """Return the members that the sender's vote shows to vote against `enough` others."""
    vote = votes.votes()[sender]
    if votes.count(vote) == enough:
        return [member for member, other in votes.votes().items() if other != vote]
    others = [other for other in votes.values() if other != vote]
    return [sender] if any(votes.count(other) >= enough for other in others) else []


class RunVotes:
    """The digest of each run as publishers sent it and as brokers echoed it or voted for it."""

    def __init__(
        self, manifest: Manifest, others: tuple[NodeId, ...], links: LinkHistory, notes: Notes
    ) -> None:
        self._brokers = manifest.broker_ids
        self._one_correct = manifest.quorums.one_correct
        #: With this many readies every correct broker becomes ready.
        self._ready_accept = manifest.quorums.ready_accept
        self._notes = notes
        self._turnouts = {
            kind: Turnout(kind.__name__, others, links, notes) for kind in (Echo, Ready)
        }
        #: The runs that publishers sent to this broker.
        self._published: OrderedDict[Place, bytes] = OrderedDict()
        #: The runs that this broker is ready for.
        self._own_ready: OrderedDict[Place, bytes] = OrderedDict()
        #: The last Echo and Ready of each broker.
        self._received: OrderedDict[tuple[type, Place], Tally[bytes]] = OrderedDict()
        #: The last Vote of each broker, on channels where correct brokers may differ.
        self._votes: OrderedDict[Place, Tally[bytes]] = OrderedDict()

    def sweep(self, now: Millis) -> None:
        """Note the Echo and Ready messages that have not come in time."""
        for turnout in self._turnouts.values():
            turnout.sweep(now)

    def on_publish(self, stream: Stream, first: int, digests: bytes) -> None:
        """The publisher itself sends a run."""
        remember(self._published, (stream, first), root(first, digests))

    def on_message(self, now: Millis, sender: NodeId, message: Echo | Ready) -> None:
        """A broker echoes a run or is ready for it."""
        place = (message.stream, message.first)
        received = tally_at(self._received, (type(message), place))
        before = received.vote_of(sender)
        name = type(message).__name__
        if before is not None and before != message.run:
            self._notes.add(now, Kind.CONTRADICTS, sender, "itself", name, *place)
        received.revote(sender, message.run)
        own = self._own_ready.get(place)
        if own is not None and own != message.run:
            self._notes.add(now, Kind.CONTRADICTS, sender, "others", name, *place)
        self._turnouts[type(message)].on_message(now, sender, place)
        if isinstance(message, Ready):
            self._count_readies(now, place)
            return
        if received.count(message.run) < self._one_correct:
            return
        # One of these brokers is correct, and the publisher sent it this run.
        published = self._published.get(place)
        if published is not None and published != message.run:
            publisher = message.stream.publisher
            self._notes.add(now, Kind.CONTRADICTS, publisher, "shown", "Publish", *place)

    def _count_readies(self, now: Millis, place: Place) -> None:
        own = self._own_ready.get(place)
        readies = self._received.get((Ready, place), Tally[bytes]())
        if own is not None and 1 + readies.count(own) >= self._ready_accept:
            self._turnouts[Ready].on_quorum(now, place)

    def on_own_ready(self, now: Millis, ready: Ready) -> None:
        """This broker becomes ready for a run, so the others must as well."""
        place = (ready.stream, ready.first)
        if place in self._own_ready:
            return
        remember(self._own_ready, place, ready.run)
        published = self._published.get(place)
        if published is not None and published != ready.run:
            publisher = ready.stream.publisher
            self._notes.add(now, Kind.CONTRADICTS, publisher, "others", "Publish", *place)
        self._turnouts[Echo].on_quorum(now, place)
        self._count_readies(now, place)
        for kind in self._turnouts:
            received = self._received.get((kind, place), Tally[bytes]())
            for broker in self._brokers:
                if received.vote_of(broker) not in (None, ready.run):
                    self._notes.add(now, Kind.CONTRADICTS, broker, "others", kind.__name__, *place)

    def on_vote(self, now: Millis, sender: NodeId, place: Place, digest: bytes) -> bool:
        """A broker votes where correct ones may differ; return whether f+1 brokers agree now."""
        votes = tally_at(self._votes, place)
        votes.revote(sender, digest)
        for broker in outvoted(votes, sender, self._one_correct):
            self._notes.add(now, Kind.CONTRADICTS, broker, "others", "Vote", *place)
        return votes.count(digest) == self._one_correct
