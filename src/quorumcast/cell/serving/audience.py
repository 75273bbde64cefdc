"""A broker's audience: the subscribers of each channel, and what is sent to them.

A subscriber asks one broker for bodies and the others for votes alone, so contents travel once. It
may repeat its subscription at any time: replays repair losses of every kind. They are limited to
`REPLAYS` per `REPLAYS_MS`; a subscription beyond that is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.broadcast.contract import Carrier, Vouch
from quorumcast.broadcast.ledger import StoredRun
from quorumcast.broadcast.messages import Pull
from quorumcast.cell.messages import Subscribe, Vote
from quorumcast.cell.serving.filtered_readers import OPEN_US, FilteredReaders
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_FRAME_BYTES
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, Send
from quorumcast.manifest.manifest import ChannelEntry

#: Replays that a subscriber gets per REPLAYS_MS. Joining takes two in quick succession: one for the
#: positions of the streams, one from there on.
REPLAYS = 4
REPLAYS_MS = 20
#: Pulls, and requests for signatures, that a subscriber may make in the same time.
PULLS = 32
ATTESTS = 64
#: Reports of what it has reached, likewise.
REPORTS = 64
#: Reads per cursor of one replay; a read ends where the chain changes or a frame is full. A replay
#: ends after REPLAY_BYTES: what does not fit into the outbox of a subscriber would be lost.
REPLAY_READS = 8
REPLAY_BYTES = MAX_FRAME_BYTES // 4
#: The same for a replay with an end, in small runs that can be used while the next ones come.
EXCERPT_READS = 64
EXCERPT_BYTES = 1024 * 1024


class AudienceMember:
    """One subscriber of a channel."""

    __slots__ = ("behind", "bodies", "whole")

    def __init__(self) -> None:
        #: Whether it wants the contents of publications.
        self.bodies = False
        #: Whether it wants all rows.
        self.whole = True
        #: Publications that its last request for a stream asked for, beyond what one replay
        #: contains; of those streams of which there are any.
        self.behind: dict[Stream, int] = {}

    def note(self, stream: Stream, behind: int) -> None:
        """Note how many publications of a stream the next request will ask for."""
        if behind > 0:
            self.behind[stream] = behind
        else:
            self.behind.pop(stream, None)


class Audience:
    """The subscribers of one broker."""

    __slots__ = ("_asked", "_me", "_readers", "filtered")

    def __init__(self, me: NodeId) -> None:
        self._me = me
        #: The subscribers of each channel; only entitled ones.
        self._readers: dict[Channel, dict[NodeId, AudienceMember]] = {}
        #: Since when, and how often since then, a node asked for replays of a channel, or for
        #: another kind of answer.
        self._asked: dict[tuple[NodeId, Channel | type], tuple[Millis, int]] = {}
        #: Those of the subscribers that want some rows.
        self.filtered = FilteredReaders()

    def readers(self, channel: Channel) -> tuple[NodeId, ...]:
        """The subscribers of a channel right now."""
        return tuple(self._readers.get(channel, ()))

    def channels(self) -> dict[Channel, dict[NodeId, int]]:
        """How many publications each subscriber of each channel is behind, for people to read.

        A subscriber that is behind repeats its subscription whenever it has made progress.
        """
        return {
            channel: {name: sum(reader.behind.values()) for name, reader in readers.items()}
            for channel, readers in self._readers.items()
        }

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            "subscribers": sum(map(len, self._readers.values())),
            "served": len(self._asked),
            "behind": sum(
                len(reader.behind)
                for readers in self._readers.values()
                for reader in readers.values()
            ),
            **self.filtered.sizes(),
        }

    def learn(self, reader: NodeId, entry: ChannelEntry, asked: Subscribe, now: Millis) -> bool:
        """Note which rows a subscriber wants; False if it asks for too much work.

        Raises `UsageError` if it cannot have them.
        """
        known = self.filtered.known
        try:
            return known.learn(reader, entry, asked, now)
        except UsageError:
            self.leave(reader, asked.channel)
            raise

    def enter(self, reader: NodeId, asked: Subscribe) -> None:
        """Add a subscriber, unless it wants an excerpt."""
        if asked.until:
            return
        readers = self._readers.setdefault(asked.channel, {})
        entered = readers.setdefault(reader, AudienceMember())
        entered.bodies = asked.bodies
        if not asked.few:
            entered.behind.clear()  # until `replay` has found out
        known = self.filtered.known.get(reader, asked.channel)
        entered.whole = known is None
        if known is not None:
            self.filtered.enter(reader, asked.channel, known, bodies=asked.bodies)
        elif asked.channel in self.filtered:
            self.filtered.leave(reader, asked.channel)

    def may_ask(self, reader: NodeId, what: Channel | type, limit: int, now: Millis) -> bool:
        """Whether a node has asked for this less often than `limit` within REPLAYS_MS."""
        since, count = self._asked.get((reader, what), (now, 0))
        if now - since >= REPLAYS_MS:
            since, count = now, 0
        self._asked[reader, what] = (since, count + 1)
        return count < limit

    def leave(self, reader: NodeId, channel: Channel) -> None:
        """Remove a subscriber from a channel."""
        self._readers.get(channel, {}).pop(reader, None)
        self.filtered.leave(reader, channel)
        self.filtered.known.forget(reader, channel)

    def disconnected(self, peer: NodeId) -> None:
        """Remove a node that cannot be reached; it will subscribe again."""
        for readers in self._readers.values():
            readers.pop(peer, None)
        self.filtered.disconnected(peer)

    def forget(self, ended: Iterable[Stream]) -> None:
        """Streams have ended: nobody is behind on them any more."""
        for stream in ended:
            for reader in self._readers.get(stream.channel, {}).values():
                reader.note(stream.data, 0)

    # ---------------------------------------------------------------- votes

    def votes(self, served: ServedStream, vouch: Vouch, now: Millis) -> list[Effect]:
        """The votes for a run that this broker vouches for."""
        readers = self._readers.get(vouch.stream.channel)
        if not readers:
            return []
        count = len(vouch.digests) // DIGEST_SIZE
        held = served.ledger(vouch.stream.lane).read(vouch.first, count, MAX_FRAME_BYTES // 2)
        bodies = held.bodies if held is not None and held.digests == vouch.digests else ()
        if vouch.order:
            return self._chain_votes(served.carrier.fast, vouch, readers, bodies)
        effects: list[Effect] = []
        if vouch.stream.channel in self.filtered and vouch.stream.lane is Lane.DATA:
            effects = self.filtered.votes(served, vouch, held, now)
            readers = {name: reader for name, reader in readers.items() if reader.whole}
        vote = Vote(vouch.stream, vouch.first, vouch.digests)
        full = tuple([name for name, reader in readers.items() if reader.bodies])
        bare = tuple([name for name, reader in readers.items() if not reader.bodies])
        if full:
            effects.append(Send(full, vote, bodies))
        return [*effects, Send(bare, vote)] if bare else effects

    def _chain_votes(
        self, chain: Carrier, vouch: Vouch, readers: Iterable[NodeId], bodies: Bodies
    ) -> list[Effect]:
        # Only the last broker of a chain sends to subscribers, so it always sends the bodies.
        stream, first, digests, order = vouch.stream, vouch.first, vouch.digests, vouch.order
        return [
            Send((reader,), Vote(stream, first, digests, order, chain.vouchers_for(reader)), bodies)
            for reader in readers
        ]

    def replay(
        self,
        served: ServedStream,
        reader: NodeId,
        stream: Stream,
        first: int,
        asked: Subscribe,
        now: Millis,
    ) -> list[Effect]:
        """Vote again, from a number on, for what is held."""
        ledger = served.ledger(stream.lane)
        first = max(first, ledger.base)
        # Numbers that the journal does not hold yet are sent when it does.
        end = served.sayable(stream.lane)
        stop = min(first + served.entry.policy.limits.replayed, end)
        reads, size, left = REPLAY_READS, MAX_FRAME_BYTES // 4, REPLAY_BYTES
        if asked.until:
            stop, reads, size = min(stop, asked.until), EXCERPT_READS, EXCERPT_BYTES
            left = EXCERPT_READS * EXCERPT_BYTES
        known = None
        if stream.lane is Lane.DATA:
            known = self.filtered.known.get(reader, stream.channel)
        # On a chain the last broker is the source, whatever the subscriber chose.
        bodies = asked.bodies or served.entry.policy.chained or known is not None
        read = ledger.read if bodies else ledger.read_digests
        effects: list[Effect] = []
        for _ in range(reads):
            if known is not None and not self.filtered.known.work.may_ask(reader, OPEN_US, now):
                break  # it asks again when it can pay
            held = read(first, stop - first, size)
            if held is None or held.first >= stop or left <= 0:
                break
            if known is not None:
                again = self.filtered.vote_again(
                    served, reader, known, stream, held, now, bodies=asked.bodies
                )
                if again is None:
                    break  # it asks again when it can pay
                effects.append(Send((reader,), *again))
                left -= sum(map(len, again[1]))
                first = held.first + again[0].count
                continue
            left -= sum(map(len, held.bodies))
            first = held.first + len(held.digests) // DIGEST_SIZE
            vote = self._vote_again(served, stream, held)
            if vote is not None:
                full = asked.bodies or held.order[-1:] == (self._me,)
                effects.append(Send((reader,), vote, held.bodies if full else ()))
        if not asked.until and stream.lane is Lane.DATA:
            self._readers[stream.channel][reader].note(stream, end - first)
        return effects

    def _vote_again(self, served: ServedStream, stream: Stream, held: StoredRun) -> Vote | None:
        if stream.lane is Lane.HISTORY or not served.entry.policy.chained:
            return Vote(stream, held.first, held.digests)
        # A run that a history settled has no chain, so there is no vote for it.
        return Vote(stream, held.first, held.digests, held.order) if held.order else None

    def answer(self, served: ServedStream, reader: NodeId, pull: Pull, now: Millis) -> list[Effect]:
        """Vote again, with contents, for what a subscriber's predicate makes of a range."""
        stream = pull.stream
        known = self.filtered.known.get(reader, stream.channel)
        if known is None or known.filter.id != pull.where or stream.lane is not Lane.DATA:
            return [Drop(DropReason.OTHER_PREDICATE, reader)]
        count = min(pull.count, served.sayable(stream.lane) - pull.first)
        held = served.ledger(stream.lane).read(pull.first, count, MAX_FRAME_BYTES // 2)
        if held is None or held.first != pull.first:
            return [Drop(DropReason.NOT_HELD, reader)]
        again = self.filtered.vote_again(served, reader, known, stream, held, now, bodies=True)
        if again is None:
            return [Drop(DropReason.OVER_LIMIT, reader)]
        return [Send((reader,), *again)]
