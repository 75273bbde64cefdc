"""Brokers that promised contents and send votes without them.

A subscriber asks one broker, its source, to send contents with its votes. Sessions keep order. So
once the source has answered, all its later votes must carry contents, whatever was lost before or
after. Votes that were waiting for the source's disk at that time are an exception. The last broker
of a chain sends contents without being asked, because no other broker votes to the subscriber.
"""

from __future__ import annotations

from collections import deque

import msgspec

from quorumcast.broadcast.messages import Matches
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.manifest.manifest import Manifest
from quorumcast.watch.observation import Kind, Notes, forget
from quorumcast.watch.turnout import BUCKETS, OVERDUE_MS, LinkHistory

#: Unanswered requests that are remembered per broker and channel.
MAX_REQUESTS = 16


class _Promise(msgspec.Struct):
    """Contents that a broker was asked for."""

    #: The time of the request; once it is answered, the time of the answer.
    since: int
    #: Answers up to and including the one to this request; 0 once it is answered.
    answers_left: int


class Sources:
    """The brokers that this node asked to send contents, by channel."""

    def __init__(self, manifest: Manifest, links: LinkHistory, notes: Notes) -> None:
        self._manifest = manifest
        self._links = links
        self._notes = notes
        #: Times of unanswered Subscribe messages, with contents or without.
        self._requests: dict[tuple[NodeId, Channel], deque[int]] = {}
        self._promises: dict[tuple[NodeId, Channel], _Promise] = {}

    def on_new_session(self, peer: NodeId) -> None:
        """Forget the requests of the previous session."""
        forget(peer, self._promises, self._requests)

    def on_subscribe(self, now: Millis, peer: NodeId, channel: Channel, *, bodies: bool) -> None:
        """This node asks a broker for votes, with contents or without."""
        key = (peer, channel)
        requests = self._requests.setdefault(key, deque(maxlen=MAX_REQUESTS))
        while requests and now - requests[0] >= OVERDUE_MS:
            requests.popleft()  # it was lost, or it would have been answered
        requests.append(now)
        if not bodies:
            self.release(*key)
        elif key not in self._promises:
            self._promises[key] = _Promise(now, len(requests))

    def release(self, peer: NodeId, channel: Channel) -> None:
        """Stop expecting contents from a broker."""
        self._promises.pop((peer, channel), None)

    def on_answer(self, now: Millis, peer: NodeId, channel: Channel) -> None:
        """A broker answers its oldest unanswered request."""
        key = (peer, channel)
        if self._requests.get(key):
            self._requests[key].popleft()
        promise = self._promises.get(key)
        if promise is not None and promise.answers_left:
            promise.answers_left -= 1
            if not promise.answers_left:
                promise.since = now

    def on_vote(self, now: Millis, peer: NodeId, vote: Vote | Matches, bodies: int) -> None:
        """A broker votes for something, and sends this many bodies with the vote."""
        promise = self._promises.get((peer, vote.stream.channel)) or _Promise(now, 1)
        since = promise.since
        clear_ms = now - max(since, self._links.clear_since.get(peer, now))
        is_end_of_chain = isinstance(vote, Vote) and vote.order[-1:] == (peer,)
        # Without an answer the request may have been lost, if the link loses packets.
        was_heard = clear_ms >= OVERDUE_MS // 2 and not self._links.loss_reason(peer, since)
        entry = self._manifest.channel(vote.stream.channel)
        disk_ms = OVERDUE_MS // 2 if entry is None or entry.policy.needs_store else 0
        is_promised = not promise.answers_left and now - since >= disk_ms
        if is_end_of_chain or is_promised or was_heard:
            self._notes.add(
                now, Kind.CAME if bodies else Kind.MISSING, peer, "", "Contents", vote.stream,
                vote.first, bucket=BUCKETS[0] if bodies else 0,
            )  # fmt: skip
