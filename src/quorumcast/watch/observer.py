"""The observer of one machine: notes what the machine's peers do.

It sees only the events and effects of the machine, so it runs beside any machine, in the simulator
and in a process. It notes

- messages that were due and came late or never (`turnout`, `results`, `inquiries`, `sources`),
- messages that do not fit earlier ones of the session (`sequences`),
- numbers that no other node is near (`claims`),
- messages that contradict each other or a decision (`run_votes`, `ordering_watch`, `standings`),
- what the machine itself suspects or drops.

It judges nobody: the audit does, because observers may lie as well. It also keeps *documents*:
signed statements, evidence and receipts, which convince anybody who holds the manifest.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from quorumcast.broadcast.application import Acknowledged, Deliver, Passed, Proven
from quorumcast.broadcast.messages import Ack, ChainRun, Contents, Echo, Matches, Publish, Ready
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
from quorumcast.watch.claims import FAR_AHEAD, PositionClaims
from quorumcast.watch.inquiries import Inquiries
from quorumcast.watch.observation import CONTENTS, DOWN, LOST, Kind, Notes, remember
from quorumcast.watch.ordering_watch import OrderingWatch
from quorumcast.watch.results import ResultsWatch
from quorumcast.watch.run_votes import RunVotes
from quorumcast.watch.sequences import Sequences
from quorumcast.watch.sources import Sources
from quorumcast.watch.turnout import CumulativeTurnout, LinkHistory

#: Time between two searches for overdue messages.
SWEEP_MS = 100
#: Limit of the documents of one observer.
MAX_DOCUMENTS = 20_000
#: Messages that only brokers send. The machine drops those of clients, and so does the observer.
BROKER_MESSAGES = (Vote, Matches, Ack, Echo, Ready, Positions, Checkpoint)


class Document(msgspec.Struct, frozen=True):
    """A signed statement, evidence or a receipt, and the node that it is about."""

    kind: str
    subject: str
    data: bytes


class Observer:
    """The observer of one machine."""

    def __init__(self, manifest: Manifest, me: NodeId, role: str) -> None:
        self._manifest = manifest
        self._one_correct = manifest.quorums.one_correct
        channels = manifest.channels
        self._chained = {c.name for c in channels if c.policy.chained}
        #: Channels on which a publisher can make correct brokers differ.
        self._splitting = {c.name for c in channels if c.policy.may_split}
        self.notes = Notes(me, role)
        self._links = links = LinkHistory()
        others = tuple(broker for broker in manifest.broker_ids if broker != me)
        self._votes = CumulativeTurnout("Vote", others, links, self.notes)
        self._acks = CumulativeTurnout("Ack", others, links, self.notes)
        for broker in others:
            self._acks.on_answer(broker)  # acknowledgements come without a request
        self._sequences = Sequences(self.notes)
        self._order = OrderingWatch(manifest, links, self._sequences, self.notes, self._keep_signed)
        self._inquiries = Inquiries(links, self.notes)
        self._run_votes = RunVotes(manifest, others, links, self.notes)
        #: The sender and the type of the message that the machine is handling.
        self._handling: tuple[NodeId, str] = (me, "")
        #: The highest number that this node sent on each of its own streams.
        self._sent: OrderedDict[Stream, int] = OrderedDict()
        self._claims = PositionClaims(manifest.quorums, self.notes)
        self._sources = Sources(manifest, links, self.notes)
        self._results = ResultsWatch(others, links, self.notes, self._claims, self._sources)
        #: All documents so far, to keep each once.
        self._kept: dict[bytes, None] = {}
        self._documents: list[Document] = []
        self._swept_at = 0

    # ------------------------------------------------------- events and effects

    def on_event(self, event: Event, now: Millis) -> None:
        """The machine is about to handle this event."""
        self._results.settle()
        self.maybe_sweep(now)
        if isinstance(event, Receive):
            self._on_receive(event, now)
        elif isinstance(event, Connected):
            self._links.on_connected(event.peer, now)
            self._sequences.forget(event.peer)
            self._order.on_new_session(event.peer)
            self._votes.on_new_session(event.peer)
            self._results.turnout.on_new_session(event.peer)
            self._sources.on_new_session(event.peer)
            self.notes.add(now, Kind.LINK, event.peer, "up")
        elif isinstance(event, Disconnected):
            self._links.on_disconnected(event.peer)
            self.notes.add(now, Kind.LINK, event.peer, DOWN)

    def maybe_sweep(self, now: Millis) -> None:
        """Search for overdue messages, at most once per SWEEP_MS."""
        if now - self._swept_at >= SWEEP_MS:
            self._sweep(now)

    def on_lost(self, peer: NodeId, now: Millis) -> None:
        """Packets of a peer were lost."""
        self._links.on_lost(peer, now)
        self._sequences.forget(peer)
        self.notes.add(now, Kind.LINK, peer, LOST)

    def on_effect(self, effect: Effect, now: Millis) -> None:
        """The machine returned this effect."""
        if isinstance(effect, Drop):
            self._results.on_drop(effect)
        self._results.settle()
        match effect:
            case Send():
                self._on_send(effect, now)
            case Persist():
                for later in effect.then:
                    self.on_effect(later, now)
            case Deliver():
                self._on_deliver(effect, now)
            case Passed(stream=stream, upto=upto):
                self._results.on_quorum(now, stream, upto)
            case Acknowledged(stream=stream, upto=upto):
                self._acks.on_quorum(now, stream, upto)
            case Suspect(node=node, reason=reason, stream=stream, number=number):
                self.notes.add(
                    now, Kind.SUSPECT, node, reason.value, self._handling[1], stream, number
                )
            case Drop(reason=drop, sender=sender):
                name = self._handling[1] if sender == self._handling[0] else ""
                self.notes.add(now, Kind.REFUSED, sender, drop.value, name)
            case Accuse(evidence=evidence):
                self._keep("evidence", evidence.accused, msgspec.json.encode(evidence))
            case Proven(receipt=receipt):
                data = msgspec.json.encode(receipt)
                self._keep("receipt", receipt.stream.publisher, data)
            case _:
                pass

    def close(self, now: Millis) -> None:
        """Judge what is still open: no event will follow."""
        self._results.settle()
        self._sweep(now)
        self._claims.sweep(now, final=True)

    @property
    def connected(self) -> list[NodeId]:
        """The peers whose links are up."""
        return list(self._links.up_since)

    def take_documents(self) -> list[Document]:
        """Return the documents since the last call."""
        taken, self._documents = self._documents, []
        return taken

    def _sweep(self, now: Millis) -> None:
        self._swept_at = now
        self._votes.sweep(now)
        self._results.turnout.sweep(now)
        self._acks.sweep(now)
        self._run_votes.sweep(now)
        self._order.sweep(now)
        self._inquiries.sweep(now)
        self._claims.sweep(now)

    # --------------------------------------------------------- received messages

    def _on_receive(self, event: Receive, now: Millis) -> None:
        sender, message = event.sender, event.message
        name = type(message).__name__
        self._handling = (sender, name)
        self._links.on_heard(sender, now)
        self.notes.add(now, Kind.HEARD, sender, CONTENTS if event.bodies else "", name)
        self._inquiries.on_received(now, sender, message)
        if isinstance(message, BROKER_MESSAGES) and sender not in self._manifest.broker_ids:
            return
        match message:
            case Vote():
                self._on_vote(sender, message, now)
                self._sources.on_vote(now, sender, message, len(event.bodies))
            case Matches():
                self._results.on_message(now, sender, message, len(event.bodies))
            case Ack():
                self._on_ack(sender, message, now)
            case Echo() | Ready():
                self._run_votes.on_message(now, sender, message)
            case Positions():
                self._votes.on_answer(sender, message.channel)
                self._results.turnout.on_answer(sender, message.channel)
                self._sources.on_answer(now, sender, message.channel)
                self._claims.on_positions(now, sender, message)
            case Checkpoint(statement=signed):
                self._on_statement(sender, signed)
            case Publish(stream=stream, first=first, digests=digests):
                if stream.lane is Lane.HISTORY:
                    self._on_histories(stream, event.bodies)
                if sender == stream.publisher:
                    self._run_votes.on_publish(stream, first, digests)
                    self._claims.on_reached(stream, first + len(digests) // DIGEST_SIZE - 1)
            case ChainRun(stream=stream, first=first, digests=digests):
                # A broker that forwards it may have changed its stream and numbers.
                if sender == stream.publisher:
                    self._claims.on_reached(stream, first + len(digests) // DIGEST_SIZE - 1)
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
        self._claims.on_reached(stream, last)
        if stream.channel in self._splitting:
            for number, digest in enumerate(split_digests(vote.digests), vote.first):
                backed = self._run_votes.on_vote(now, sender, (stream, number), digest)
                if backed and stream.channel not in self._chained:
                    self._votes.on_correct_broker(now, stream, number)
        self._votes.on_report(sender, stream.channel)
        reached = self._votes.on_progress(now, sender, stream, last)
        if stream.lane is Lane.HISTORY and reached == self._one_correct:
            # One of them is correct, so all correct brokers deliver it.
            self._votes.on_quorum(now, stream, last)

    def _on_deliver(self, effect: Deliver, now: Millis) -> None:
        stream, number = effect.place
        if stream.channel in self._results:
            self._results.on_quorum(now, stream, number)
        elif stream.lane is Lane.DATA and stream.channel not in self._chained:
            self._votes.on_quorum(now, stream, number)

    def _on_ack(self, sender: NodeId, ack: Ack, now: Millis) -> None:
        sent = self._sent.get(ack.stream.data, 0)
        lane = ack.stream.lane
        is_resumed = ack.stream.line is not None  # an earlier incarnation may have sent it
        if lane is Lane.DATA and not is_resumed and max(ack.upto, ack.settled) > sent:
            self.notes.add(now, Kind.BOASTS, sender, "unsent", "Ack", ack.stream, ack.upto)
        if ack.credit > sent + FAR_AHEAD * FAR_AHEAD:
            self.notes.add(now, Kind.BOASTS, sender, "credit", "Ack", ack.stream, ack.credit)
        if lane is Lane.DATA:
            self._acks.on_progress(now, sender, ack.stream, ack.upto)
        elif self._acks.on_progress(now, sender, ack.stream, ack.settled) == self._one_correct:
            # One of them is correct, so all correct brokers will settle it.
            self._acks.on_quorum(now, ack.stream, ack.settled)
        self._sequences.on_ack(now, sender, ack)

    # ------------------------------------------------------------- sent messages

    def _on_send(self, send: Send, now: Millis) -> None:
        message = send.message
        self._inquiries.on_sent(now, send.to, message)
        match message:
            case Ready():
                self._run_votes.on_own_ready(now, message)
            case Subscribe(channel=channel, bodies=bodies):
                if self._results.on_subscribe(message):
                    self._votes.begin_anew(channel)
                for peer in send.to:
                    self._sources.on_subscribe(now, peer, channel, bodies=bodies)
            case Unsubscribe(channel=channel):
                for peer in send.to:
                    self._sources.release(peer, channel)
                    self._votes.on_unsubscribe(peer, channel)
                    self._results.turnout.on_unsubscribe(peer, channel)
            case (
                Publish(stream=stream, first=first, digests=digests)
                | ChainRun(stream=stream, first=first, digests=digests)
                | Offer(stream=stream, first=first, digests=digests)
            ):
                last = first + len(digests) // DIGEST_SIZE - 1
                known = self._sent.get(stream.data, 0)
                if stream.lane is Lane.DATA:
                    remember(self._sent, stream.data, max(known, last))
                self._order.on_own_message(message)
            case _:
                self._order.on_own_message(message)

    # --------------------------------------------------------------- documents

    def _on_statement(self, sender: NodeId, signed: Signed) -> None:
        statement = parse_statement(signed.payload)
        if isinstance(statement, SegmentStatement) and statement.broker == sender:
            self._keep("statement", sender, msgspec.json.encode(signed))

    def _on_histories(self, stream: Stream, bodies: tuple[bytes, ...]) -> None:
        for body in bodies:
            found = read_history(body, stream)
            if found is not None:
                self._keep("statement", stream.publisher, msgspec.json.encode(found[0]))

    def _keep_signed(self, signed: Signed) -> None:
        self._keep("statement", signed.signer, msgspec.json.encode(signed))

    def _keep(self, kind: str, subject: str, data: bytes) -> None:
        if data not in self._kept and len(self._kept) < MAX_DOCUMENTS:
            self._kept[data] = None
            self._documents.append(Document(kind, subject, data))
