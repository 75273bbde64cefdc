"""The broker: composes the streams that it serves, and their protocols, with its subscribers.

It adds what belongs to neither: rights, acknowledgements, signed segments, and the rule that the
journal holds whatever the broker vouches for before it does, so that a restarted broker never
contradicts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from quorumcast.broadcast.contract import RetransmitRuns, Vouch
from quorumcast.broadcast.messages import (
    ChainRun,
    Contents,
    Custom,
    Echo,
    Open,
    Outlived,
    Publish,
    Pull,
    Ready,
    highest_number,
)
from quorumcast.broadcast.relayed import RelayEvent
from quorumcast.cell.accusations import Accusations, RepeatAccusations, SavedEvidence
from quorumcast.cell.messages import (
    Accusation,
    Attest,
    Checkpoint,
    Finish,
    Missed,
    Positions,
    Reached,
    Regain,
    Regained,
    Subscribe,
    Survey,
    Taken,
    Unsubscribe,
)
from quorumcast.cell.serving.admission import Admission
from quorumcast.cell.serving.audience import PULLS, REPORTS, Audience
from quorumcast.cell.serving.filtered_readers import CoverageDue, PredicateWork
from quorumcast.cell.serving.journal import (
    Attested,
    Ended,
    Journal,
    Released,
    Settled,
    Vouched,
    VouchedAgainstEcho,
)
from quorumcast.cell.serving.journal_writer import JournalWriter
from quorumcast.cell.serving.known_filters import ReadOn
from quorumcast.cell.serving.membership import Membership
from quorumcast.cell.serving.pace import Pace, PaceTick
from quorumcast.cell.serving.recovering.holdings import answer_peer
from quorumcast.cell.serving.recovering.recovery import Recovery, RecoveryTick
from quorumcast.cell.serving.relays import Relays
from quorumcast.cell.serving.requests import Requests
from quorumcast.cell.serving.retransmission import Retransmission, RetransmissionTick
from quorumcast.cell.serving.sequencers import LogStatus, Sequencers
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams, StreamStatus, Sweep, WrittenTotals
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.machine import (
    Accuse,
    ArchiveReader,
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Persisted,
    Receive,
    Record,
    Restored,
    Send,
    Storage,
    Suspect,
    Suspicion,
    TimerFired,
)
from quorumcast.core.message import Message
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View
from quorumcast.ordering.consensus import Voted
from quorumcast.ordering.execution import Decided, Snapshot
from quorumcast.ordering.genesis import Lived
from quorumcast.ordering.leader_change import Moved
from quorumcast.ordering.log import Held
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.past import Placed

#: Every kind of record that a broker asks its driver to keep.
RECORDS: tuple[type[Record], ...] = (
    Vouched,
    VouchedAgainstEcho,
    Attested,
    Released,
    Settled,
    Ended,
    Voted,
    Stored,
    Placed,
    Held,
    Moved,
    Decided,
    Snapshot,
    Lived,
)


#: Messages that a broker may repeat and have answered, or passed on, again: within a budget.
_ANSWERED = frozenset({Echo, Pull, ChainRun})


class Broker:
    """The machine of a broker."""

    __slots__ = (
        "_accusations",
        "_admission",
        "_audience",
        "_dispatch",
        "_journal",
        "_pace",
        "_recovery",
        "_relays",
        "_requests",
        "_retransmission",
        "_sequencers",
        "_served",
        "_view",
        "_writer",
        "membership",
    )

    def __init__(
        self,
        manifest: Manifest,
        keyring: Keyring,
        older: Collection[Protection] = (),
        proof: tuple[Signed, ...] = (),
        *,
        life: bytes,
        signed: bytes = b"",
    ) -> None:
        # `life` is drawn by the driver whenever a broker starts; no two are alike. `signed` is the
        # manifest as its operator signed it.
        view = self._view = View(manifest, keyring, signed)
        self._accusations = Accusations(view)
        self._audience = Audience(view.me)
        self._admission = Admission(view, self._audience)
        self._journal = Journal()
        self._served = ServedStreams(view, self._audience.readers, life, self._journal.released)
        self._pace = Pace(self._served, self._audience.readers)
        self._sequencers = Sequencers(view, self._served, older, life=life)
        self.membership = Membership(view, self._sequencers, proof)
        self._retransmission = Retransmission()
        self._recovery = Recovery(view, self._served, self._journal)
        self._relays = Relays(view, self._served, self._journal, self._recovery)
        self._writer = JournalWriter(view, self._journal, self._served)
        self._requests = Requests(
            self._served,
            self._audience,
            self._admission,
            self._writer,
            self._recovery,
            self._sequencers,
            self._relays,
        )
        self._dispatch: dict[type, Callable[[Receive, Millis], list[Effect]]] = {
            Publish: self._on_stream,
            ChainRun: self._on_stream,
            Echo: self._on_stream,
            Ready: self._on_stream,
            Custom: self._on_stream,
            Open: self._on_stream,
            Contents: self._on_stream,
            Pull: self._on_pull,
            Subscribe: self._on_subscribe,
            Unsubscribe: self._on_leave,
            Missed: self._on_missed,
            Reached: self._on_reached,
            Finish: self._on_leave,
            Survey: self._on_recovery,
            Regain: self._on_recovery,
            Positions: self._on_recovery,
            Regained: self._on_recovery,
            Attest: self._requests.on_attest,
            Accusation: self._accusations.on_accusation,
        }

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch: other clients, rights, keys, channels, a broker more or less."""
        self._view.adopt(manifest, keyring, self.membership.next_manifest)
        effects: list[Effect] = []
        for served, said in self._served.recount():
            effects += self._finish(served, said) if said else []
        effects += self._sequencers.begin_epoch()
        self.membership.begin_epoch()
        self._accusations.begin_epoch()
        self._recovery.begin_anew()
        self._pace.begin_epoch(client.id for client in manifest.clients)
        return effects + self._served.shrink(0) + self._served.watch_ages()

    def read_from(self, archive: ArchiveReader) -> None:
        """Read archived records here: what the channels of durable logs retain."""
        self._sequencers.read_from(archive)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self._served.now = now
        if isinstance(event, Receive) and not isinstance(event.message, Taken):
            return self._handle(event, now)  # nearly all there is
        moved = self.membership.handle(event, now)
        if moved is not None:
            return self._positioned(moved)
        match event:
            case Connected(peer=peer):
                watch = self._served.watch_ages() + self._accusations.connected(peer)
                return [*watch, *self._recovery.connected(peer), *self._handle(event, now)]
            case RelayEvent():
                served, effects = self._relays.handle(event)
                if served is not None:
                    effects = self._finish(served, effects)
                return effects + self._note_endings()
            case SavedEvidence(evidence=evidence):
                return self._accusations.on_saved(evidence)
            case TimerFired(timer=Sweep()):
                return self._sweep(now)
            case TimerFired(timer=CoverageDue()):
                return self._audience.filtered.cover(self._served.sayable)
            case TimerFired(timer=ReadOn()):
                again, effects = self._requests.read_on()
                return effects if again is None else effects + self._on_subscribe(again, now)
            case TimerFired(timer=PaceTick()):
                return self._go_on(self._pace.tick(now)) + self._pace.go_on(now)
            case TimerFired(timer=RepeatAccusations()):
                return self._accusations.repeat()
            case TimerFired(timer=RecoveryTick()):
                return self._positioned(self._recovery.tick()) + self._relays.tick()
            case _:
                return self._handle(event, now)

    def _handle(self, event: Event, now: Millis) -> list[Effect]:
        if self._ordered(event):
            if isinstance(event, Receive) and (refusal := self._admission.may_not_offer(event)):
                return refusal
            effects = self._sequencers.handle(event, now)
            if effects is not None:
                return self._positioned(effects) + self.membership.look(event)
        match event:
            case Receive(sender=sender, message=message):
                act = self._dispatch.get(type(message))
                return [Drop(DropReason.UNEXPECTED, sender)] if act is None else act(event, now)
            case TimerFired(timer=RetransmitRuns(stream=stuck)):
                self._retransmission.want(stuck)
                return self._repeat(now)
            case TimerFired(timer=RetransmissionTick()):
                self._retransmission.tick()
                return self._repeat(now)
            case TimerFired(timer=timer):
                stream: Stream | None = getattr(timer, "stream", None)
                served = None if stream is None else self._served.get(stream.data)
                if served is None:
                    return []
                return self._finish(served, served.carrier.handle(event, now))
            case Connected():
                return self.membership.look(event)
            case Disconnected(peer=peer):
                self._audience.disconnected(peer)
                self._admission.disconnected(peer)
                self._recovery.disconnected(peer)
                return self._pace.disconnected(peer, now)
            case Storage(full=full):
                self._admission.disk_full = full
                return []
            case Restored(record=Vouched() | Attested() | Released() | Settled() as record):
                # Also of a channel that is not in this epoch: it may come back in a later one.
                self._journal.remember(record)
                return []
            case Restored(record=Ended() as record):
                self._served.remember(record)
                return []
            case Persisted(record=Vouched() as record):
                self._journal.synced(record)
                self._served.synced(record)
                return []
            case Persisted(record=Attested() as record):
                self._journal.synced(record)
                return self._positioned(self._recovery.journaled(record))
            case _:
                return []

    def _repeat(self, now: Millis) -> list[Effect]:
        """Let streams retransmit, in turn, within the budget of this tick."""
        effects: list[Effect] = []
        while (stream := self._retransmission.next(now)) is not None:
            served = self._served.get(stream.data)
            if served is not None:
                said = served.carrier.handle(TimerFired(RetransmitRuns(stream)), now)
                self._retransmission.spend(said)
                effects += self._finish(served, said)
        return effects + self._retransmission.wait()

    def _sweep(self, now: Millis) -> list[Effect]:
        """Remove what is not retained, and end streams of which nothing is left."""
        effects = self._served.sweep(now)
        for served in self._served.all():
            if served.carrier.ledger.quota.emptied and served.entry.policy.log is None:
                effects += self._end_exhausted(served.stream)
        return effects

    def sizes(self) -> dict[str, int]:
        sizes = {"streams": len(self._served), **self._audience.sizes(), **self._admission.sizes()}
        sizes |= self._recovery.sizes() | self.membership.sizes() | self._sequencers.sizes()
        sizes |= self._accusations.sizes() | self._pace.sizes()
        sizes["journaled"] = len(self._journal)
        sizes["repeating"] = len(self._retransmission)
        sizes["addresses"] = self._journal.addresses
        sizes["echoes"] = self._journal.echoes
        sizes["ended"] = self._served.remembered
        sizes["complaints"] = sum(served.complaints for served in self._served.all())
        for served in self._served.all():
            for name, size in served.carrier.sizes().items():
                sizes[f"{served.stream}/{name}"] = size
        return sizes

    def streams(self) -> dict[Stream, StreamStatus]:
        """What this broker holds of every stream, for people to read."""
        return self._served.status()

    def served(self, stream: Stream) -> ServedStream | None:
        """What this broker keeps of a stream, for checkers to read."""
        return self._served.get(stream)

    def has_ended(self, stream: Stream) -> bool:
        """Whether a stream is over here."""
        return self._served.over(stream)

    def logs(self) -> dict[str, LogStatus]:
        """The leader of each log and the progress of this broker, for people to read."""
        return self._sequencers.status()

    def catching_up(self) -> list[str]:
        """What this broker still waits for before others may restart, for people to read."""
        return [*self._recovery.lacking(), *self._sequencers.late()]

    def publishers(self) -> dict[Channel, list[NodeId]]:
        """The publishers of each channel, for people to read."""
        return self._admission.publishers()

    def subscribers(self) -> dict[Channel, dict[NodeId, int]]:
        """How many publications each subscriber of each channel is behind, for people to read."""
        return self._audience.channels()

    def predicate_work(self) -> dict[Channel, PredicateWork]:
        """What was done for the predicates of each channel, for people to read."""
        return self._audience.filtered.work()

    def waited(self) -> dict[Channel, dict[NodeId, int]]:
        """How long publishers have waited for each client lately, in ms, for people to read."""
        return self._pace.waited()

    def written(self) -> dict[Channel, WrittenTotals]:
        """What was written on each channel since this broker started, for people to read."""
        return self._served.written()

    # ---------------------------------------------------------- total order

    def _ordered(self, event: Event) -> bool:
        """Whether an event may concern a log: all but messages of subscribers and fifo streams."""
        return bool(self._sequencers.all()) and (
            not isinstance(event, Receive)
            or type(event.message) not in self._dispatch
            or isinstance(event.message, Open)
        )

    def _positioned(self, effects: list[Effect]) -> list[Effect]:
        """Turn positions into votes and signed statements."""
        out: list[Effect] = []
        grown: dict[Stream, ServedStream] = {}
        for effect in effects:
            served = self._served.get(effect.stream.data) if isinstance(effect, Vouch) else None
            if served is None or not isinstance(effect, Vouch):
                out.append(effect)
                continue
            out += self._audience.votes(served, effect, self._served.now)
            grown[served.stream] = served
        for served in grown.values():
            statements = served.notary.newly_whole(served.carrier)
            if statements and (readers := self._audience.readers(served.stream.channel)):
                out += [Send(readers, Checkpoint(signed)) for signed in statements]
        return out

    # -------------------------------------------------------------- streams

    def _on_stream(self, event: Receive, now: Millis) -> list[Effect]:
        """Hand a message of a publisher or broker about a stream to the stream's carrier."""
        message, sender = event.message, event.sender
        stream: Stream = message.stream  # type: ignore[attr-defined]
        data = stream.data
        own = sender == data.publisher
        if not own and sender not in self._view.brokers:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        if not self._view.may_publish(data.publisher, data.channel):
            known = self._view.channel(data.channel) is not None
            reason = DropReason.NO_RIGHT if known else DropReason.UNKNOWN_CHANNEL
            return self._admission.refuse(sender, data.channel, reason)
        if own and (refusal := self._admission.may_not_publish(sender, data.channel)):
            return refusal
        served = self._served.get(data)
        if served is None and own and isinstance(message, Open):
            newest = self._served.newest(data)
            # A stream that other brokers know continues: only this broker does not know it.
            if newest >> 1 > data.life and message.base == message.fresh == 1:
                answer = Send((sender,), Outlived(data, newest))
                return [Drop(DropReason.OUTLIVED, sender), answer]
        if served is None or (own and served.introducer != sender):
            entry = self._view.channel(data.channel)
            # Ordered channels are not served here: a liar could make this broker tell a publisher
            # that nothing is held. Resumed streams exist only in a log; here such an incarnation
            # would be later than all lives to come.
            if entry is None or entry.policy.total or data.line is not None:
                return [Drop(DropReason.UNKNOWN_STREAM, sender)]
            known = served is not None
            served = self._served.open(data, entry, sender)
            if served is None:
                return [Drop(DropReason.UNKNOWN_STREAM, sender)]
            if not known:
                self._pace.opened(served, now)
        if stream.lane is Lane.HISTORY and not served.entry.policy.has_history:
            return [Drop(DropReason.UNEXPECTED, sender)]
        if highest_number(message) > MAX_NUMBER:
            return [Drop(DropReason.OUT_OF_WINDOW, sender)]
        if served.closed and not isinstance(message, Pull):
            return [Drop(DropReason.UNKNOWN_STREAM, sender)]
        if (
            self._journal
            and _would_vouch(served, message)
            and self._journal.contradicted_by(
                event, data, self._view.hash, whole_runs=served.entry.policy.whole_runs
            )
        ):
            # A publisher is suspected only for messages of its own.
            blame = [Suspect(sender, Suspicion.EQUIVOCATION, data)] if own else []
            return [Drop(DropReason.CONFLICT, sender), *blame]
        if isinstance(message, Open):
            return self._on_open(served, event, message, now)
        if type(message) in _ANSWERED and not self._may_answer(served, event, stream.lane, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        told = isinstance(message, Publish | ChainRun)
        if own and isinstance(message, Publish | ChainRun) and stream.lane is Lane.DATA:
            waits = self._pace.refuse(served, message.first, event.bodies, now)
            if waits is not None:
                return waits
        return self._finish(served, served.carrier.handle(event, now), stream.lane, told=told)

    def _may_answer(self, served: ServedStream, event: Receive, lane: Lane, now: Millis) -> bool:
        """Whether a peer's message is within the budget for repeated messages.

        Pulls of brokers count, echoes of runs that are delivered, and chain runs that came before:
        each broker further down the chain verifies those again.
        """
        carrier, message = served.lane(lane), event.message
        if isinstance(message, ChainRun):
            count = len(message.digests) // DIGEST_SIZE
            if message.first + count > carrier.ledger.next:
                return True
        if isinstance(message, Echo) and not carrier.is_done(message.first):
            return True
        return self._retransmission.may_answer(event.sender, now)

    def _on_open(
        self, served: ServedStream, event: Receive, opened: Open, now: Millis
    ) -> list[Effect]:
        """A publisher names the first number that it can repeat; peers may have what it cannot."""
        lane = opened.stream.lane
        ledger = served.ledger(lane)
        base = ledger.base
        if not ledger.begun and served.entry.policy.settles:
            allowed = self._recovery.may_begin(opened)
            if allowed is None and event.sender == served.stream.publisher:
                ledger.unrepeated = opened.base
                asked = self._recovery.left_out(served.stream)
                return self._finish(served, [], lane, told=True) + asked
            event = event if allowed is None else Receive(event.sender, allowed)
        effects = self._finish(served, served.carrier.handle(event, now), lane, told=True)
        if ledger.base > base or ledger.left_behind:
            effects += self._recovery.left_out(served.stream)
        return effects

    def _on_recovery(self, event: Receive, now: Millis) -> list[Effect]:
        """Answer a peer's request of state transfer, or use its answer."""
        message, sender = event.message, event.sender
        if sender not in self._view.brokers:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        match message:
            case Survey() | Regain():
                if not self._audience.may_ask(sender, type(message), PULLS, now):
                    return [Drop(DropReason.OVER_LIMIT, sender)]
                return answer_peer(self._served, sender, message)
            case _:
                return self._positioned(self._recovery.on_answer(event)) + self._note_endings()

    def _note_endings(self) -> list[Effect]:
        """Forget what is kept beside streams that have ended."""
        endings = self._served.take_endings()
        self._audience.forget(endings)
        return self._writer.note_endings(endings)

    def _finish(
        self,
        served: ServedStream,
        effects: list[Effect],
        lane: Lane = Lane.DATA,
        *,
        told: bool = False,
    ) -> list[Effect]:
        """Turn a carrier's effects into votes, signed statements and acknowledgements."""
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Vouch):
                out += self._vouch(served, effect)
            elif isinstance(effect, Accuse):
                out += self._accusations.found(effect.evidence)
            else:
                out += self._writer.write_first(served, effect)
        statements = served.notary.newly_whole(served.carrier)
        if statements and (readers := self._audience.readers(served.stream.channel)):
            for signed in statements:
                out += self._writer.send_signed(served, signed, readers)
        out += self._pace.restrain(served, self._served.now)
        out += served.ack(lane, told=told)
        if served.entry.policy.journal:
            out += self._writer.release(served)
        quota = served.carrier.ledger.quota
        if quota.crowded or (lane is Lane.HISTORY and served.ledger(lane).quota.crowded):
            self._served.relieve(served.stream)
        if quota.emptied:
            out += self._end_exhausted(served.stream)
        return out

    def _end_exhausted(self, stream: Stream) -> list[Effect]:
        """End streams of which retention has left nothing."""
        self._served.end_exhausted(stream)
        self._served.end_unclaimed(stream, self._journal.publisher_streams(stream))
        return self._note_endings()

    def _vouch(self, served: ServedStream, vouch: Vouch) -> list[Effect]:
        votes = self._audience.votes(served, vouch, self._served.now)
        if not served.entry.policy.journal:
            return votes
        record = Vouched(vouch.stream, vouch.first, vouch.digests)
        return self._writer.write(served, record, votes)

    # ---------------------------------------------------------- subscribers

    def _on_subscribe(self, event: Receive, now: Millis) -> list[Effect]:
        message, sender = event.message, event.sender
        if not isinstance(message, Subscribe):
            return []
        entered, effects = self._requests.on_subscribe(sender, message, now)
        return effects + self._follow(sender, message) if entered else effects

    def _follow(self, reader: NodeId, told: Subscribe | Reached) -> list[Effect]:
        """Note how far a subscriber is, and let publishers go on that waited for it."""
        free: dict[Stream, ServedStream] = {}
        for cursor in told.cursors:
            served = self._served.get(cursor.stream)
            if served is not None and cursor.stream.channel == told.channel:
                moved = self._pace.follow(served, reader, cursor.next, self._served.now)
                free |= {life.stream: life for life in moved}
        return self._go_on(free.values())

    def _go_on(self, streams: Iterable[ServedStream]) -> list[Effect]:
        return [effect for served in streams for effect in self._finish(served, [])]

    def _on_reached(self, event: Receive, now: Millis) -> list[Effect]:
        message, sender = event.message, event.sender
        if not isinstance(message, Reached):
            return []
        if refusal := self._admission.may_not_listen(sender, message.channel):
            return refusal
        if sender not in self._audience.readers(message.channel):
            return [Drop(DropReason.UNEXPECTED, sender)]
        if not self._audience.may_ask(sender, Reached, REPORTS, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        return self._follow(sender, message)

    def _on_leave(self, event: Receive, now: Millis) -> list[Effect]:
        match event.message:
            case Unsubscribe(channel=channel):
                self._audience.leave(event.sender, channel)
                return self._go_on(self._pace.leave(event.sender, channel))
            case Finish(channel=channel):
                self._admission.finish(event.sender, channel)
            case _:
                pass
        return []

    def _on_pull(self, event: Receive, now: Millis) -> list[Effect]:
        if event.sender in self._view.brokers:
            return self._on_stream(event, now)
        return self._requests.on_pull(event, now)

    def _on_missed(self, event: Receive, now: Millis) -> list[Effect]:
        message, sender = event.message, event.sender
        if not isinstance(message, Missed):
            return []
        if refusal := self._admission.may_not_listen(sender, message.stream.channel):
            return refusal
        served = self._served.with_lane(message.stream)
        if served is None:
            return [Drop(DropReason.UNKNOWN_STREAM, sender)]
        if not served.note_missed(sender, message.first, message.first + message.count - 1):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        return self._finish(served, [])


def _would_vouch(served: ServedStream, message: Message) -> bool:
    """Whether the message alone can make this broker vouch for what it contains."""
    if isinstance(message, Contents):
        return served.carrier.would_echo_contents(message.first)
    return isinstance(message, Publish | ChainRun)
