"""The observer: watches one machine from outside and notes what its peers do.

It sees the events that the machine takes and the effects that it asks for, and nothing else, so it
runs beside any machine in the simulator and in a process. It says what a correct node cannot help
noticing: votes that never came while others did, came late or in the wrong order, contradict what
was accepted or what the same node said before, numbers that nobody else is at, questions that were
not answered, whatever the machine itself suspects or ignores. It judges nobody: that is the audit's
business, which knows that observers may lie as well.

Beside rows it keeps *documents*: signed statements, evidence and receipts. They convince whoever
holds the manifest, whoever shows them.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from quorumcast.broadcast.application import Acknowledged, Deliver, Proven
from quorumcast.broadcast.messages import Ack, ChainRun, Contents, Echo, Publish, Ready
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.messages import Checkpoint, Missed, Positions, Subscribe, Unsubscribe, Vote
from quorumcast.core.ids import DIGEST_SIZE, Lane, Millis, NodeId, Stream, split_digests
from quorumcast.core.machine import (
    Accuse,
    Connected,
    Disconnected,
    Drop,
    Effect,
    Event,
    Persist,
    Receive,
    Send,
    Suspect,
)
from quorumcast.core.statements import SegmentStatement, Signed, parse_statement
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.messages import Offer
from quorumcast.watch.claims import FAR_AHEAD, Claims
from quorumcast.watch.inquiries import Inquiries
from quorumcast.watch.observation import (
    DOWN,
    LOST,
    Kind,
    Notes,
    remember,
)
from quorumcast.watch.ordering_watch import OrderingWatch
from quorumcast.watch.sequences import Sequences
from quorumcast.watch.sources import Sources
from quorumcast.watch.turnout import Links, Progress
from quorumcast.watch.words import Words

#: How often what has not come is looked for.
SWEEP_MS = 100
#: Documents that are kept.
MAX_DOCUMENTS = 20_000
#: What only brokers say. Whoever else does is refused, and its word is not held against theirs.
OF_BROKERS = (Vote, Ack, Echo, Ready, Positions, Checkpoint)


class Document(msgspec.Struct, frozen=True):
    """Something signed: a statement, evidence or a receipt, and whom it is about."""

    kind: str
    subject: str
    data: bytes


class Observer:
    """What one node notices."""

    def __init__(self, manifest: Manifest, me: NodeId, role: str) -> None:
        self._manifest = manifest
        self._one_correct = manifest.quorums.one_correct
        channels = manifest.channels
        self._chained = {c.name for c in channels if c.policy.chained}
        #: Channels on which a publisher can make correct brokers differ.
        self._splitting = {c.name for c in channels if c.policy.may_split}
        self.notes = Notes(me, role)
        self._links = links = Links()
        others = tuple(broker for broker in manifest.broker_ids if broker != me)
        self._votes = Progress("Vote", others, links, self.notes)
        self._acks = Progress("Ack", others, links, self.notes)
        for broker in others:
            self._acks.agreed(broker)  # nobody needs to ask for these
        self._sequences = Sequences(self.notes)
        self._order = OrderingWatch(manifest, links, self._sequences, self.notes, self._keep_signed)
        self._inquiries = Inquiries(links, self.notes)
        self._words = Words(manifest, others, links, self.notes)
        #: Who is speaking, and with which message.
        self._hearing: tuple[NodeId, str] = (me, "")
        #: How far this node's own streams go.
        self._sent: OrderedDict[Stream, int] = OrderedDict()
        self._claims = Claims(manifest.quorums, self.notes)
        self._sources = Sources(manifest, links, self.notes)
        self._filed: dict[bytes, None] = {}
        self._documents: list[Document] = []
        self._swept = 0

    # ------------------------------------------------------------ what happens

    def on_event(self, event: Event, now: Millis) -> None:
        """The machine is about to take this event."""
        self.look(now)
        if isinstance(event, Receive):
            self._on_receive(event, now)
        elif isinstance(event, Connected):
            self._links.up(event.peer, now)
            self._sequences.forget(event.peer)
            self._order.forget(event.peer)
            self._votes.forget(event.peer)
            self._sources.forget(event.peer)
            self.notes.add(now, Kind.LINK, event.peer, "up")
        elif isinstance(event, Disconnected):
            self._links.down(event.peer)
            self.notes.add(now, Kind.LINK, event.peer, DOWN)

    def look(self, now: Millis) -> None:
        """Look for what has not come, now and then."""
        if now - self._swept >= SWEEP_MS:
            self._sweep(now)

    def on_lost(self, peer: NodeId, now: Millis) -> None:
        """Packets of a peer are missing between those that came."""
        self._links.lost(peer, now)
        self._sequences.forget(peer)
        self.notes.add(now, Kind.LINK, peer, LOST)

    def on_effect(self, effect: Effect, now: Millis) -> None:
        """The machine asks for this."""
        match effect:
            case Send():
                self._on_send(effect, now)
            case Persist():
                for one in effect.then:
                    self.on_effect(one, now)
            case Deliver():
                self._on_deliver(effect, now)
            case Acknowledged(stream=stream, upto=upto):
                self._acks.enough(now, stream, upto)
            case Suspect(node=node, reason=reason, stream=stream, number=number):
                self.notes.add(
                    now, Kind.SUSPECT, node, reason.value, self._hearing[1], stream, number
                )
            case Drop(reason=drop, sender=sender):
                named = self._hearing[1] if sender == self._hearing[0] else ""
                self.notes.add(now, Kind.REFUSED, sender, drop.value, named)
            case Accuse(evidence=evidence):
                self._keep("evidence", evidence.accused, msgspec.json.encode(evidence))
            case Proven(receipt=receipt):
                data = msgspec.json.encode(receipt)
                self._keep("receipt", receipt.stream.publisher, data)
            case _:
                pass

    def close(self, now: Millis) -> None:
        """Nothing more will happen."""
        self._sweep(now)
        self._claims.sweep(now, last=True)

    @property
    def connected(self) -> list[NodeId]:
        """Whose links are up."""
        return list(self._links.up_since)

    def take_documents(self) -> list[Document]:
        """The documents that have come since the last time."""
        taken, self._documents = self._documents, []
        return taken

    def _sweep(self, now: Millis) -> None:
        self._swept = now
        self._votes.sweep(now)
        self._acks.sweep(now)
        self._words.sweep(now)
        self._order.sweep(now)
        self._inquiries.sweep(now)
        self._claims.sweep(now)

    # ------------------------------------------------------------- what is said

    def _on_receive(self, event: Receive, now: Millis) -> None:
        sender, message = event.sender, event.message
        name = type(message).__name__
        self._hearing = (sender, name)
        self._links.heard(sender, now)
        self.notes.add(now, Kind.HEARD, sender, message=name)
        self._inquiries.told(now, sender, message)
        if isinstance(message, OF_BROKERS) and sender not in self._manifest.broker_ids:
            return
        match message:
            case Vote():
                self._on_vote(sender, message, now)
                self._sources.voted(now, sender, message, len(event.bodies))
            case Ack():
                self._on_ack(sender, message, now)
            case Echo() | Ready():
                self._words.said(now, sender, message)
            case Positions():
                self._votes.agreed(sender, message.channel)
                self._sources.answered(now, sender, message.channel)
                self._claims.hear(now, sender, message)
            case Checkpoint(statement=signed):
                self._on_statement(sender, signed)
            case Publish(stream=stream, first=first, digests=digests):
                if stream.lane is Lane.HISTORY:
                    self._on_histories(stream, event.bodies)
                if sender == stream.publisher:
                    self._words.shown(stream, first, digests)
                    self._claims.reach(stream, first + len(digests) // DIGEST_SIZE - 1)
            case ChainRun(stream=stream, first=first, digests=digests):
                # Whoever passes it on may have changed whose it is, and its numbers.
                if sender == stream.publisher:
                    self._claims.reach(stream, first + len(digests) // DIGEST_SIZE - 1)
            case Contents(stream=stream, first=first, digests=digests):
                if digests != b"".join(map(self._manifest.hash, event.bodies)):
                    self.notes.add(
                        now, Kind.CONTRADICTS, sender, "digests", "Contents", stream, first
                    )
            case Missed(stream=stream, first=first, count=count):
                if count > FAR_AHEAD * FAR_AHEAD:
                    self.notes.add(now, Kind.BOASTS, sender, "missed", "Missed", stream, first)
            case _:
                self._order.on_message(sender, message, now)

    def _on_vote(self, sender: NodeId, vote: Vote, now: Millis) -> None:
        stream, last = vote.stream, vote.first + len(vote.digests) // DIGEST_SIZE - 1
        self._claims.reach(stream, last)
        if stream.channel in self._splitting:
            for number, digest in enumerate(split_digests(vote.digests), vote.first):
                backed = self._words.voted(now, sender, (stream, number), digest)
                if backed and stream.channel not in self._chained:
                    self._votes.backed(now, stream, number)
        self._votes.tells(sender, stream.channel)
        told = self._votes.spoke(now, sender, stream, last)
        if stream.lane is Lane.HISTORY and told == self._one_correct:
            # One of them is correct, so all that are correct deliver it.
            self._votes.enough(now, stream, last)

    def _on_deliver(self, effect: Deliver, now: Millis) -> None:
        stream, number = effect.place
        if stream.lane is Lane.DATA and stream.channel not in self._chained:
            self._votes.enough(now, stream, number)

    def _on_ack(self, sender: NodeId, ack: Ack, now: Millis) -> None:
        sent = self._sent.get(ack.stream.data, 0)
        lane = ack.stream.lane
        is_resumed = ack.stream.line is not None  # an earlier life may have sent it
        if lane is Lane.DATA and not is_resumed and max(ack.upto, ack.settled) > sent:
            self.notes.add(now, Kind.BOASTS, sender, "unsent", "Ack", ack.stream, ack.upto)
        if ack.credit > sent + FAR_AHEAD * FAR_AHEAD:
            self.notes.add(now, Kind.BOASTS, sender, "credit", "Ack", ack.stream, ack.credit)
        if lane is Lane.DATA:
            self._acks.spoke(now, sender, ack.stream, ack.upto)
        elif self._acks.spoke(now, sender, ack.stream, ack.settled) == self._one_correct:
            # One of them is correct, so all that are correct will settle it.
            self._acks.enough(now, ack.stream, ack.settled)
        self._sequences.acknowledged(now, sender, ack)

    # ------------------------------------------------------------ what is sent

    def _on_send(self, send: Send, now: Millis) -> None:
        message = send.message
        self._inquiries.asked(now, send.to, message)
        match message:
            case Ready():
                self._words.vouched(now, message)
            case Subscribe(channel=channel, bodies=bodies):
                for peer in send.to:
                    self._sources.ask(now, peer, channel, bodies=bodies)
            case Unsubscribe(channel=channel):
                for peer in send.to:
                    self._sources.release(peer, channel)
                    self._votes.forget(peer, channel)
            case (
                Publish(stream=stream, first=first, digests=digests)
                | ChainRun(stream=stream, first=first, digests=digests)
                | Offer(stream=stream, first=first, digests=digests)
            ):
                last = first + len(digests) // DIGEST_SIZE - 1
                known = self._sent.get(stream.data, 0)
                if stream.lane is Lane.DATA:
                    remember(self._sent, stream.data, max(known, last))
                self._order.on_own(message, now)
            case _:
                self._order.on_own(message, now)

    # --------------------------------------------------------------- documents

    def _on_statement(self, sender: NodeId, signed: Signed) -> None:
        statement = parse_statement(signed.payload)
        if not isinstance(statement, SegmentStatement) or statement.broker != sender:
            return
        self._keep("statement", sender, msgspec.json.encode(signed))

    def _on_histories(self, stream: Stream, bodies: tuple[bytes, ...]) -> None:
        for body in bodies:
            found = read_history(body, stream)
            if found is not None:
                self._keep("statement", stream.publisher, msgspec.json.encode(found[0]))

    def _keep_signed(self, signed: Signed) -> None:
        self._keep("statement", signed.signer, msgspec.json.encode(signed))

    def _keep(self, kind: str, subject: str, data: bytes) -> None:
        if data not in self._filed and len(self._filed) < MAX_DOCUMENTS:
            self._filed[data] = None
            self._documents.append(Document(kind, subject, data))
