"""The subscriber: joins channels at every broker, counts their votes, repairs what does not come.

Every broker sends votes; one of them, the *source*, sends the bodies as well. One mechanism repairs
losses of every kind: saying again what it wants (`Subscribe` with cursors) whenever it stops making
progress, which makes brokers replay. Bodies that do not come with votes are pulled from brokers
that voted for them; a source that withholds them is replaced.

Histories are accepted like publications, on a lane of their own; what they name and votes did not
decide is settled by them, pulled, and reported to the brokers as missed.
"""

from __future__ import annotations

from itertools import pairwise

from quorumcast.agents.interest import Interest
from quorumcast.agents.refusals import Refusals, channel_entry
from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.chain import is_chain
from quorumcast.broadcast.signed_history import read_history
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Deliver,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Gap,
    Join,
    Leave,
    Prove,
    Receive,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    Timer,
    TimerFired,
)
from quorumcast.core.messages import (
    Attest,
    Checkpoint,
    Contents,
    Missed,
    Positions,
    Pull,
    Refuse,
    Unsubscribe,
    Vote,
)
from quorumcast.core.quorum import Broadcast, receipt_votes
from quorumcast.core.statements import SegmentStatement, parse_statement
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest

REFRESH_MS = 250
#: Refreshes without any news after which a subscriber asks whether it missed the last word.
QUIET_TICKS = 8
PULL_MS = 40
#: Pulls in a row after which another broker is made the source.
PULLS_BEFORE_CHANGE = 3
#: Refreshes during which a broker may lag before it is suspected of silence.
SILENT_TICKS = 6


class Refresh(Timer, frozen=True, tag=True):
    """See whether a channel makes progress."""

    channel: Channel


class PullDue(Timer, frozen=True, tag=True):
    """Bodies of this stream have been lacking for a while."""

    stream: Stream


class Subscriber:
    """The machine of a subscriber."""

    __slots__ = (
        "_interests",
        "_keyring",
        "_manifest",
        "_me",
        "_pulling",
        "_refusals",
        "_up",
    )

    def __init__(self, manifest: Manifest, keyring: Keyring) -> None:
        self._manifest = manifest
        self._keyring = keyring
        self._me = keyring.identity.name
        #: One interest per channel joined.
        self._interests: dict[Channel, Interest] = {}
        #: Brokers that can be reached, in the order in which they came.
        self._up: dict[NodeId, None] = {}
        #: Streams for which PullDue is set, and the number that was lacking then.
        self._pulling: dict[Stream, int] = {}
        self._refusals = Refusals()

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch: other clients, rights, keys and channels, the same brokers."""
        self._manifest = manifest
        self._keyring.adopt(keyring)
        self._refusals.clear()
        for interest in self._interests.values():
            interest.adopt(manifest)
        return []

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=Vote() as message):
                return self._on_vote(event, message)
            case Receive(message=Positions() as message):
                return self._on_positions(event.sender, message)
            case Receive(message=Contents() as message):
                return self._on_contents(event, message)
            case Receive(message=Checkpoint() as message):
                return self._on_checkpoint(event.sender, message)
            case Receive(message=Refuse() as message):
                return self._on_refuse(event.sender, message)
            case Receive():
                return [Drop(DropReason.UNEXPECTED, event.sender)]
            case TimerFired(timer=Refresh(channel=channel)):
                return self._on_refresh(channel)
            case TimerFired(timer=PullDue(stream=stream)):
                return self._on_pull_due(stream)
            case Connected(peer=peer):
                return self._on_connected(peer)
            case Disconnected(peer=peer):
                return self._on_disconnected(peer)
            case Join(channel=channel):
                return self._on_join(channel)
            case Leave(channel=channel):
                return self._on_leave(channel)
            case Prove():
                return self._on_prove(event)
            case _:
                return []

    def sizes(self) -> dict[str, int]:
        sizes = {"interests": len(self._interests), "pulling": len(self._pulling)}
        for interest in self._interests.values():
            for name, size in interest.sizes().items():
                sizes[f"{interest.channel}: {name}"] = size
        return sizes

    def joined(self, channel: Channel) -> bool:
        """Whether the beginnings of a channel's streams are known: nothing after it is missed."""
        interest = self._interests.get(channel)
        return interest is not None and interest.begun

    # ------------------------------------------------- joining and leaving

    def _on_join(self, channel: Channel) -> list[Effect]:
        entry = channel_entry(self._manifest, channel)
        if channel in self._interests:
            return []
        interest = self._interests[channel] = Interest(self._manifest, entry, self._keyring)
        self._choose_source(interest)
        return [*self._ask_all(interest), SetTimer(Refresh(channel), REFRESH_MS)]

    def _on_leave(self, channel: Channel) -> list[Effect]:
        if self._interests.pop(channel, None) is None:
            return []
        self._refusals.forget(channel)
        return [
            Send(tuple(self._up), Unsubscribe(channel)),
            CancelTimer(Refresh(channel)),
        ]

    def _on_connected(self, peer: NodeId) -> list[Effect]:
        if peer not in self._manifest.broker_ids:
            return []
        self._up[peer] = None
        effects: list[Effect] = []
        for interest in self._interests.values():
            interest.forget(peer)
            interest.lagging.pop(peer, None)
            if interest.source is None:
                self._choose_source(interest)
            effects.append(Send((peer,), interest.subscribe_to(peer)))
        return effects

    def _on_disconnected(self, peer: NodeId) -> list[Effect]:
        self._up.pop(peer, None)
        effects: list[Effect] = []
        for interest in self._interests.values():
            if interest.source == peer:
                effects += self._change_source(interest)
        return effects

    def _choose_source(self, interest: Interest) -> None:
        """Spread the subscribers over the brokers."""
        up = [broker for broker in self._manifest.broker_ids if broker in self._up]
        if up:
            interest.source = up[sum(self._me.encode()) % len(up)]

    def _change_source(self, interest: Interest) -> list[Effect]:
        brokers = [b for b in self._manifest.broker_ids if b in self._up or b == interest.source]
        old = interest.source
        if old is None or len(brokers) < 2:
            interest.source = None if old not in self._up else old
            return []
        interest.source = brokers[(brokers.index(old) + 1) % len(brokers)]
        interest.withheld = 0
        return [
            Send((broker,), interest.subscribe_to(broker))
            for broker in (old, interest.source)
            if broker in self._up
        ]

    def _ask_all(self, interest: Interest) -> list[Effect]:
        interest.requested = {s: a.next for s, a in interest.acceptors.items()}
        return [Send((broker,), interest.subscribe_to(broker)) for broker in self._up]

    # --------------------------------------------------------------- votes

    def _interest(self, stream: Stream, sender: NodeId) -> Interest | None:
        if sender not in self._manifest.broker_ids:
            return None
        return self._interests.get(stream.channel)

    def _on_vote(self, event: Receive, vote: Vote) -> list[Effect]:
        stream, sender = vote.stream, event.sender
        interest = self._interest(stream, sender)
        if interest is None:
            return [Drop(DropReason.UNKNOWN_CHANNEL, sender)]
        if len(vote.digests) % DIGEST_SIZE:
            return [Drop(DropReason.BAD_RUN, sender)]
        acceptor = interest.acceptors.get(stream)
        if acceptor is None:
            return self._on_unknown_stream(interest, sender, vote)
        chained = interest.chained(stream.lane)
        if chained != bool(vote.order) or (chained and not self._is_chain(vote.order)):
            return [Drop(DropReason.BAD_CHAIN, sender)]
        effects = acceptor.vote(sender, vote.first, vote.digests, event.bodies, vote.order)
        for voucher in vote.vouchers:
            if voucher.reader != self._me or voucher.author not in vote.order:
                continue
            if self._vouched(voucher.author, voucher.mac, vote):
                effects += acceptor.vote(voucher.author, vote.first, vote.digests, (), vote.order)
            else:
                # The sender cannot verify what it passes on: its author may be to blame as well.
                effects += [
                    Drop(DropReason.BAD_VOUCHER, sender),
                    Suspect(voucher.author, Suspicion.BAD_VOUCHER, stream, vote.first),
                    Suspect(sender, Suspicion.BAD_VOUCHER, stream, vote.first),
                ]
        return effects + self._advance(interest, acceptor)

    def _on_unknown_stream(self, interest: Interest, sender: NodeId, vote: Vote) -> list[Effect]:
        """Whoever votes names the stream; on a chain the MACs of the others do so as well."""
        authors = [
            voucher.author
            for voucher in vote.vouchers[: self._manifest.quorums.chain_reach]
            if voucher.author in self._manifest.broker_ids
            and self._vouched(voucher.author, voucher.mac, vote)
        ]
        # A list, not a generator: each of them is to be counted.
        if any([interest.name(broker, vote.stream) for broker in (sender, *authors)]):  # noqa: C419
            return self._ask_all(interest)
        return [Drop(DropReason.UNKNOWN_STREAM, sender)]

    def _is_chain(self, order: tuple[NodeId, ...]) -> bool:
        return is_chain(self._manifest.quorums, self._manifest.broker_ids, order)

    def _vouched(self, author: NodeId, mac: bytes, vote: Vote) -> bool:
        return self._keyring.vouched(author, mac, vote.stream, vote.first, vote.digests, vote.order)

    def _advance(self, interest: Interest, acceptor: Acceptor) -> list[Effect]:
        """Deliver what is due, settle what histories name, see to bodies that are lacking."""
        stream = acceptor.stream
        if stream.lane is Lane.HISTORY:
            data = interest.acceptors.get(stream.data)
            if data is not None and data.crowded:
                # They wait in the window of their own lane until a refresh finds room.
                return []
            effects = self._settle(interest, acceptor.deliver())
        else:
            effects = acceptor.deliver()
        if stream not in self._pulling and acceptor.lacking(1):
            effects.append(self._await_bodies(acceptor, PULL_MS))
        if effects and interest.behind(stream):
            effects += self._ask_all(interest)
        return effects

    def _settle(self, interest: Interest, accepted: list[Effect]) -> list[Effect]:
        effects: list[Effect] = []
        for effect in accepted:
            if not isinstance(effect, Deliver):
                effects.append(effect)
                continue
            found = read_history(effect.body, effect.stream)
            data = interest.acceptors.get(effect.stream.data)
            if found is None or data is None:
                continue
            missed = data.settle(found[1].first, found[1].digests)
            if missed:
                notice = Missed(data.stream, missed[0], missed[-1] - missed[0] + 1)
                effects.append(Send(tuple(self._up), notice))
            effects += self._advance(interest, data)
            if missed and data.lacking(1):
                # The fast path has failed already: there is nothing to wait for.
                effects += self._pull(interest, data)
        return effects

    # -------------------------------------------------------------- bodies

    def _await_bodies(self, acceptor: Acceptor, after_ms: int) -> SetTimer:
        self._pulling[acceptor.stream] = acceptor.next
        return SetTimer(PullDue(acceptor.stream), after_ms)

    def _on_pull_due(self, stream: Stream) -> list[Effect]:
        waited_for = self._pulling.pop(stream, 0)
        interest = self._interests.get(stream.channel)
        acceptor = None if interest is None else interest.acceptors.get(stream)
        if interest is None or acceptor is None:
            return []
        if acceptor.next > waited_for or not acceptor.lacking(1):
            # Bodies do come; another number has been lacking for a shorter while.
            interest.pulls[stream] = 0
            return [self._await_bodies(acceptor, PULL_MS)] if acceptor.lacking(1) else []
        return self._pull(interest, acceptor)

    def _pull(self, interest: Interest, acceptor: Acceptor) -> list[Effect]:
        stream = acceptor.stream
        lacking = acceptor.lacking(MAX_RUN)
        pulls = interest.pulls[stream] = interest.pulls.get(stream, 0) + 1
        effects: list[Effect] = []
        # Those who voted for it first, then anybody: what a history names others hold as well.
        voters = [broker for broker in acceptor.voters(lacking[0]) if broker in self._up]
        holders = voters + [broker for broker in self._up if broker not in voters]
        if holders:
            first = lacking[0]
            last = next((a for a, b in pairwise(lacking) if b != a + 1), None)
            count = (lacking[-1] if last is None else last) - first + 1
            holder = holders[(pulls - 1) % len(holders)]
            effects.append(Send((holder,), Pull(stream, first, min(count, MAX_RUN))))
        source = interest.source
        if acceptor.voted(source, lacking[0]) and not interest.chained(stream.lane):
            # The body should have come with its vote. (On a chain the last broker sends bodies.)
            interest.withheld += 1
        if source is not None and interest.withheld >= PULLS_BEFORE_CHANGE:
            if source in voters:
                effects.append(Suspect(source, Suspicion.WITHHOLDS, stream, lacking[0]))
            effects += self._change_source(interest)
        elif pulls % PULLS_BEFORE_CHANGE == 0:
            effects += self._change_source(interest)
        effects.append(self._await_bodies(acceptor, PULL_MS * min(2 + pulls, 16)))
        return effects

    def _on_contents(self, event: Receive, message: Contents) -> list[Effect]:
        interest = self._interest(message.stream, event.sender)
        acceptor = None if interest is None else interest.acceptors.get(message.stream)
        if interest is None or acceptor is None:
            return [Drop(DropReason.UNKNOWN_STREAM, event.sender)]
        effects = acceptor.contents(event.sender, message.first, message.digests, event.bodies)
        return effects + self._advance(interest, acceptor)

    # ------------------------------------------------------ staying in touch

    def _on_positions(self, broker: NodeId, message: Positions) -> list[Effect]:
        interest = self._interests.get(message.channel)
        if interest is None or broker not in self._manifest.broker_ids:
            return [Drop(DropReason.UNKNOWN_CHANNEL, broker)]
        anew, effects = interest.on_positions(broker, message)
        effects = [e for e in effects if not (isinstance(e, Gap) and e.stream.lane is Lane.HISTORY)]
        return effects + (self._ask_all(interest) if anew and interest.acceptors else [])

    def _on_refresh(self, channel: Channel) -> list[Effect]:
        interest = self._interests.get(channel)
        if interest is None:
            return []
        effects: list[Effect] = [SetTimer(Refresh(channel), REFRESH_MS)]
        if not interest.begun:
            return effects + [
                Send((broker,), interest.subscribe_to(broker))
                for broker in self._up
                if not interest.answered(broker)
            ]
        effects += self._notice_silence(interest)
        for stream, acceptor in list(interest.acceptors.items()):
            if stream.lane is Lane.HISTORY and acceptor.stuck:
                effects += self._advance(interest, acceptor)
        moved = any(a.next != interest.seen.get(s) for s, a in interest.acceptors.items())
        stuck = any(a.stuck for a in interest.acceptors.values())
        interest.seen = {s: a.next for s, a in interest.acceptors.items()}
        interest.ticks = 0 if moved else interest.ticks + 1
        # Stuck: at once, then ever more rarely. Quiet: now and then, for the last word may be lost.
        due = interest.ticks & (interest.ticks - 1) == 0 or interest.ticks % QUIET_TICKS == 0
        if not moved and ((stuck and due) or interest.ticks % QUIET_TICKS == 0):
            effects += self._ask_all(interest)
        for archive in interest.archives.values():
            for number in archive.pending:
                effects.append(Send(tuple(self._up), Attest(archive.stream, number)))
        return effects

    def _notice_silence(self, interest: Interest) -> list[Effect]:
        """A broker that does not vote on what others have long voted on is suspected."""
        if interest.entry.policy.broadcast is Broadcast.CHAIN:
            return []
        effects: list[Effect] = []
        for broker in self._manifest.broker_ids:
            lagging = interest.lagging
            stream = interest.silent_on(broker)
            if stream is None:
                lagging.pop(broker, None)
                continue
            lagging[broker] = lagging.get(broker, 0) + 1
            if lagging[broker] == SILENT_TICKS:
                number = interest.seen[stream] - 1
                effects.append(Suspect(broker, Suspicion.SILENT, stream, number))
        return effects

    def _on_refuse(self, broker: NodeId, refuse: Refuse) -> list[Effect]:
        return self._refusals.hear(self._manifest, self._interests, broker, refuse)

    # ------------------------------------------------------------- receipts

    def _on_prove(self, event: Prove) -> list[Effect]:
        interest = self._interests.get(event.stream.channel)
        archive = None if interest is None else interest.archives.get(event.stream)
        if interest is None or archive is None or not archive.want(event.number, event.contents):
            return []
        effects = archive.prove(interest.acceptors[event.stream], self._receipt_votes(interest))
        if effects:
            return effects
        return [Send(tuple(self._up), Attest(event.stream, event.number))]

    def _on_checkpoint(self, broker: NodeId, message: Checkpoint) -> list[Effect]:
        statement = parse_statement(message.statement.payload)
        if not isinstance(statement, SegmentStatement):
            return [Drop(DropReason.BAD_RUN, broker)]
        interest = self._interest(statement.stream, broker)
        archive = None if interest is None else interest.archives.get(statement.stream)
        if interest is None or archive is None:
            return [Drop(DropReason.UNKNOWN_STREAM, broker)]
        effects = archive.file(broker, statement, message.statement)
        acceptor = interest.acceptors[statement.stream]
        return effects + archive.prove(acceptor, self._receipt_votes(interest))

    def _receipt_votes(self, interest: Interest) -> int:
        return receipt_votes(self._manifest.quorums, interest.entry.policy.protection)
