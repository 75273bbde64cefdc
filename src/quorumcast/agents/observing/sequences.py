"""Sequences: what one node says of one thing comes in the order of its numbers.

Sessions keep order, and show what they lose. So a broker that votes for 7 and then for 9 has left 8
out, one that acknowledges less than it did has taken something back, and a leader under which
instance 9 comes before 8 has held 8 back. What is before the first thing heard in a session, or
since something got lost, nobody can tell.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.agents.observing.observation import Kind, Notes, remember
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.messages import Ack, ChainRun, Propose, Vote

#: The reason of proposals with nothing in them.
HOLLOW = "hollow"
#: … and of those that come after the leader's own votes for them, or not at all.
VOTED_FIRST = "voted-first"
#: Gaps that are remembered of one broker's votes for one stream.
MAX_GAPS = 16


class Sequences:
    """How far each peer has come in this session."""

    __slots__ = (
        "_acks",
        "_began",
        "_chained",
        "_hollow",
        "_notes",
        "_proposals",
        "_publications",
        "_replayed",
        "_votes",
    )

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._votes: OrderedDict[tuple[NodeId, Stream], int] = OrderedDict()
        #: … and with which number their votes began.
        self._began: OrderedDict[tuple[NodeId, Stream], int] = OrderedDict()
        #: How far votes went since a broker last said what it holds, and what they left out: first
        #: and last numbers, at most MAX_GAPS of a stream.
        self._replayed: OrderedDict[
            tuple[NodeId, Stream], tuple[int, tuple[tuple[int, int], ...]]
        ] = OrderedDict()
        self._acks: OrderedDict[tuple[NodeId, Stream], int] = OrderedDict()
        self._publications: OrderedDict[tuple[NodeId, Stream], int] = OrderedDict()
        #: The chain by which a broker passed something on last, and how far it was.
        self._chained: OrderedDict[tuple[NodeId, Stream], tuple[tuple[NodeId, ...], int]] = (
            OrderedDict()
        )
        #: The regency in which a leader proposes, and the highest instance.
        self._proposals: OrderedDict[tuple[NodeId, Stream], tuple[int, int]] = OrderedDict()
        #: The regency in which a leader proposed nothing, the last such instance, and their number.
        self._hollow: OrderedDict[tuple[NodeId, Stream], tuple[int, int, int]] = OrderedDict()

    def forget(self, peer: NodeId) -> None:
        """Something got lost, or everything begins anew."""
        for memory in (
            self._votes, self._began, self._replayed, self._acks, self._publications,
            self._proposals, self._chained,
        ):  # fmt: skip
            for key in [key for key in memory if key[0] == peer]:
                del memory[key]

    def reached(self, peer: NodeId, stream: Stream) -> int:
        """How far a broker's votes went."""
        return self._votes.get((peer, stream), 0)

    def has_voted(self, peer: NodeId, stream: Stream, first: int, last: int) -> bool:
        """Whether a broker has voted for these numbers, as far as it left none out."""
        return self._began.get((peer, stream), last + 1) <= first and last <= self.reached(
            peer, stream
        )

    def voted(
        self, now: Millis, peer: NodeId, stream: Stream, first: int, last: int, *, free: bool
    ) -> None:
        """A broker votes for a run; it is `free` to begin anywhere if it was asked to."""
        top = self.reached(peer, stream)
        if top and not free:
            if last <= top:
                self._notes.add(now, Kind.BACKWARDS, peer, "", "Vote", stream, first)
            elif first > top + 1:
                self._notes.add(now, Kind.SKIPPED, peer, "", "Vote", stream, top + 1)
        remember(self._votes, (peer, stream), max(last, top))
        remember(self._began, (peer, stream), min(first, self._began.get((peer, stream), first)))

    def voted_again(
        self, now: Millis, peer: NodeId, stream: Stream, first: int, last: int, *, note: bool
    ) -> None:
        """A broker votes for a run, perhaps because it was asked to vote again.

        Also then it votes in the order of the numbers, from wherever it was asked to, and goes on
        with what is new. What it left out since it said what it holds it does not come back to.
        """
        top, gaps = self._replayed.get((peer, stream), (0, ()))
        if note and any(first <= end and begin <= last for begin, end in gaps):
            self._notes.add(now, Kind.BACKWARDS, peer, "", "Vote", stream, first)
        if top and first > top + 1:
            gaps = (*gaps, (top + 1, first - 1))[-MAX_GAPS:]
        remember(self._replayed, (peer, stream), (max(last, top), gaps))

    def begin_anew(self, peer: NodeId, channel: Channel) -> None:
        """A broker says what it holds; what follows begins wherever it was asked to begin."""
        for key in [k for k in self._replayed if k[0] == peer and k[1].channel == channel]:
            del self._replayed[key]

    def passed_on(self, now: Millis, peer: NodeId, message: ChainRun | Vote, last: int) -> None:
        """A broker passes on a run; what came by another chain meanwhile it need not know."""
        key = (peer, message.stream)
        order, top = self._chained.get(key, ((), 0))
        if order != message.order:
            top = 0
        if top and message.first > top + 1:
            name = type(message).__name__
            self._notes.add(now, Kind.SKIPPED, peer, "", name, message.stream, top + 1)
        remember(self._chained, key, (message.order, max(last, top)))

    def published(self, now: Millis, peer: NodeId, stream: Stream, first: int, last: int) -> None:
        """A publisher sends a run."""
        top = self._publications.get((peer, stream), 0)
        if top and first > top + 1:
            self._notes.add(now, Kind.SKIPPED, peer, "", "Publish", stream, top + 1)
        remember(self._publications, (peer, stream), max(last, top))

    def acknowledged(self, now: Millis, peer: NodeId, ack: Ack) -> None:
        """A broker says how far it is."""
        before = self._acks.get((peer, ack.stream), 0)
        if ack.upto < before:
            self._notes.add(now, Kind.BACKWARDS, peer, "", "Ack", ack.stream, ack.upto)
        remember(self._acks, (peer, ack.stream), max(ack.upto, before))

    def proposed(self, now: Millis, peer: NodeId, log: Stream, regency: int, instance: int) -> None:
        """A leader proposes; what it repeats is as far as it was before."""
        led, top = self._proposals.get((peer, log), (regency, 0))
        if led != regency:
            top = 0
        if top and instance > top + 1:
            self._notes.add(now, Kind.SKIPPED, peer, "", "Propose", log, top + 1)
        remember(self._proposals, (peer, log), (regency, max(instance, top)))

    def led(self, now: Millis, peer: NodeId, log: Stream, regency: int, instance: int) -> None:
        """A leader votes in its own regency: nobody does so for what it has yet to propose."""
        led, top = self._proposals.get((peer, log), (regency, 0))
        if led < regency or (led == regency and instance > top):
            self._notes.add(now, Kind.BACKWARDS, peer, VOTED_FIRST, "Propose", log, instance)

    def proposed_nothing(
        self, now: Millis, peer: NodeId, log: Stream, message: Propose, left_open: int
    ) -> None:
        """A leader proposes an empty batch.

        It has to where its predecessors `left_open` an instance, and nowhere else: whoever has
        nothing to propose waits.
        """
        regency, instance = message.regency, message.instance
        led, last, count = self._hollow.get((peer, log), (regency, 0, 0))
        if led != regency:
            last = count = 0
        if instance > last:
            remember(self._hollow, (peer, log), (regency, instance, count + 1))
            if count >= left_open:
                self._notes.add(now, Kind.PASSES_OVER, peer, HOLLOW, "Propose", log, instance)
