"""The broker: composes desks (streams and their protocols) with an audience (subscribers).

The broker itself adds what belongs to neither: rights, acknowledgements, signed segments, and the
promise to never contradict, after a restart, what it wrote to its journal before it vouched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from quorumcast.broadcast.bracha import BrachaRetry
from quorumcast.broadcast.contract import Vouch, answer_pull
from quorumcast.broadcast.messages import (
    ChainRun,
    Contents,
    Echo,
    Open,
    Outlived,
    Publish,
    Pull,
    Ready,
)
from quorumcast.cell.messages import (
    Attest,
    Checkpoint,
    Finish,
    Missed,
    Positions,
    Regain,
    Regained,
    Subscribe,
    Survey,
    Taken,
    Unsubscribe,
)
from quorumcast.cell.serving.admission import Admission
from quorumcast.cell.serving.audience import ATTESTS, PULLS, Audience
from quorumcast.cell.serving.desk import Desk
from quorumcast.cell.serving.desks import Desks, StreamStatus
from quorumcast.cell.serving.holdings import desk_of, testify
from quorumcast.cell.serving.membership import Membership
from quorumcast.cell.serving.pledges import (
    Attested,
    Ended,
    Pledge,
    Pledges,
    Released,
    Settled,
    Vouched,
    erase,
    shorten,
)
from quorumcast.cell.serving.recovery import Recovery, RecoveryTick
from quorumcast.cell.serving.retention import Retention, Sweep
from quorumcast.cell.serving.retransmission import Retransmission, RetransmissionTick
from quorumcast.cell.serving.sequencers import LogStatus, Sequencers
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_NUMBER, MAX_RUN
from quorumcast.core.machine import (
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Persist,
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
from quorumcast.core.statements import SegmentStatement, Signed, parse_statement
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View
from quorumcast.ordering.birth import Lived
from quorumcast.ordering.consensus import Voted
from quorumcast.ordering.execution import Decided, Snapshot
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.succession import Moved

#: Every kind of record that a broker asks its driver to keep.
RECORDS: tuple[type[Record], ...] = (
    Vouched,
    Attested,
    Released,
    Settled,
    Ended,
    Voted,
    Stored,
    Moved,
    Decided,
    Snapshot,
    Lived,
)


#: What a peer may say again, and have answered or passed on again. All messages are looked up here.
_ANSWERED = frozenset({Echo, Pull, ChainRun})


class Broker:
    """The machine of a broker."""

    __slots__ = (
        "_admission",
        "_audience",
        "_desks",
        "_dispatch",
        "_pledges",
        "_recovery",
        "_retention",
        "_retransmission",
        "_sequencers",
        "_view",
        "membership",
    )

    #: How streams are kept.
    desks: type[Desks] = Desks
    #: How what was lost is fetched from peers.
    recovery: type[Recovery] = Recovery
    #: How total order is kept.
    sequencers: type[Sequencers] = Sequencers

    def __init__(
        self,
        manifest: Manifest,
        keyring: Keyring,
        older: Collection[Protection] = (),
        words: tuple[Signed, ...] = (),
        *,
        life: bytes,
    ) -> None:
        # A life is drawn by the driver whenever a broker starts; no two are alike.
        view = self._view = View(manifest, keyring)
        self._audience = Audience(view.me)
        self._admission = Admission(view, self._audience)
        self._pledges = Pledges()
        self._desks = type(self).desks(view, self._audience.readers, life, self._pledges.released)
        self._sequencers = type(self).sequencers(view, self._desks, older, life=life)
        #: Which epoch it goes by, and what shows it to others.
        self.membership = Membership(view, self._sequencers, words)
        self._retention = Retention(view, self._desks)
        self._retransmission = Retransmission()
        self._recovery = type(self).recovery(view, self._desks, self._pledges)
        self._dispatch: dict[type, Callable[[Receive, Millis], list[Effect]]] = {
            Publish: self._on_stream,
            ChainRun: self._on_stream,
            Echo: self._on_stream,
            Ready: self._on_stream,
            Open: self._on_stream,
            Contents: self._on_stream,
            Pull: self._on_pull,
            Subscribe: self._on_subscribe,
            Unsubscribe: self._on_unsubscribe,
            Missed: self._on_missed,
            Finish: self._on_finish,
            Survey: self._on_recovery,
            Regain: self._on_recovery,
            Positions: self._on_recovery,
            Regained: self._on_recovery,
            Attest: self._on_attest,
        }

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch: other clients, rights, keys, channels, a broker more or less."""
        self._view.adopt(manifest, keyring)
        effects: list[Effect] = []
        for desk, said in self._desks.recount():
            effects += self._finish(desk, said) if said else []
        effects += self._sequencers.begin_epoch()
        self.membership.begin_epoch()
        self._recovery.begin_anew()
        return effects + self._retention.watch()

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        if isinstance(event, Receive) and not isinstance(event.message, Taken):
            return self._handle(event, now)  # nearly all there is
        moved = self.membership.handle(event, now)
        if moved is not None:
            return self._positioned(moved)
        match event:
            case Connected(peer=peer):
                watch = self._retention.watch()
                return [*watch, *self._recovery.connected(peer), *self._handle(event, now)]
            case TimerFired(timer=Sweep()):
                return self._sweep(now)
            case TimerFired(timer=RecoveryTick()):
                return self._positioned(self._recovery.tick())
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
            case TimerFired(timer=BrachaRetry(stream=stuck)):
                self._retransmission.want(stuck)
                return self._repeat(now)
            case TimerFired(timer=RetransmissionTick()):
                self._retransmission.tick()
                return self._repeat(now)
            case TimerFired(timer=timer):
                stream: Stream | None = getattr(timer, "stream", None)
                desk = None if stream is None else self._desks.get(stream.data)
                if desk is None:
                    return []
                return self._finish(desk, desk.carrier.handle(event, now))
            case Connected():
                return self.membership.look(event)
            case Disconnected(peer=peer):
                self._audience.lose(peer)
                self._admission.lose(peer)
                self._recovery.disconnected(peer)
                return []
            case Storage(full=full):
                self._admission.disk_full = full
                return []
            case Restored(record=Vouched() | Attested() | Released() | Settled() as record):
                # Also of a channel that is not in this epoch: it may come back in a later one.
                self._pledges.remember(record)
                return []
            case Restored(record=Ended() as record):
                self._desks.remember(record)
                return []
            case Persisted(record=Vouched() as record):
                desk = self._desks.get(record.stream.data)
                if desk is not None:
                    desk.written(record)
                return []
            case Persisted(record=Attested() as record):
                return self._positioned(self._recovery.journaled(record))
            case _:
                return []

    def _repeat(self, now: Millis) -> list[Effect]:
        """Let streams repeat themselves, in turn, as long as there is a budget for it."""
        effects: list[Effect] = []
        while (stream := self._retransmission.next(now)) is not None:
            desk = self._desks.get(stream.data)
            if desk is not None:
                said = desk.carrier.handle(TimerFired(BrachaRetry(stream)), now)
                self._retransmission.spend(said)
                effects += self._finish(desk, said)
        return effects + self._retransmission.wait()

    def _sweep(self, now: Millis) -> list[Effect]:
        """Let go of what is too old, and of streams of which nothing is left."""
        effects = self._retention.sweep(now)
        for desk in self._desks.all():
            if desk.carrier.ledger.quota.emptied and not desk.entry.policy.total:
                effects += self._end_exhausted(desk.stream)
        return effects

    def sizes(self) -> dict[str, int]:
        sizes = {"streams": len(self._desks), **self._audience.sizes(), **self._admission.sizes()}
        sizes |= self._recovery.sizes() | self.membership.sizes() | self._sequencers.sizes()
        sizes["pledges"] = len(self._pledges)
        sizes["repeating"] = len(self._retransmission)
        sizes["addresses"] = self._pledges.addresses
        sizes["ended"] = self._desks.remembered
        sizes["complaints"] = sum(desk.complaints for desk in self._desks.all())
        for desk in self._desks.all():
            for name, size in desk.carrier.sizes().items():
                sizes[f"{desk.stream}/{name}"] = size
        return sizes

    def streams(self) -> dict[Stream, StreamStatus]:
        """What this broker holds of every stream, for people to look at."""
        return self._desks.status()

    def desk(self, stream: Stream) -> Desk | None:
        """What this broker keeps of a stream, for checkers to look at."""
        return self._desks.get(stream)

    def has_ended(self, stream: Stream) -> bool:
        """Whether a stream has given way to later ones here."""
        return self._desks.over(stream)

    def logs(self) -> dict[str, LogStatus]:
        """Who leads each log and how far this broker is in it, for people to look at."""
        return self._sequencers.status()

    def catching_up(self) -> list[str]:
        """What this broker still waits for before others may restart, for people to look at."""
        return [*self._recovery.lacking(), *self._sequencers.late()]

    def publishers(self) -> dict[Channel, list[NodeId]]:
        """Who publishes on what, for people to look at."""
        return self._admission.publishers()

    def subscribers(self) -> dict[Channel, list[NodeId]]:
        """Who listens to what, for people to look at."""
        return self._audience.channels()

    # ---------------------------------------------------------- total order

    def _ordered(self, event: Event) -> bool:
        """Whether this may concern a log: everything but what subscribers and fifo streams say."""
        return bool(self._sequencers.all()) and (
            not isinstance(event, Receive)
            or type(event.message) not in self._dispatch
            or isinstance(event.message, Open)
        )

    def _positioned(self, effects: list[Effect]) -> list[Effect]:
        """Turn positions into votes and signed statements."""
        out: list[Effect] = []
        grown: dict[Stream, Desk] = {}
        for effect in effects:
            desk = self._desks.get(effect.stream.data) if isinstance(effect, Vouch) else None
            if desk is None or not isinstance(effect, Vouch):
                out.append(effect)
                continue
            out += self._audience.votes(desk, effect)
            grown[desk.stream] = desk
        for desk in grown.values():
            statements = desk.notary.newly_whole(desk.carrier)
            if statements and (readers := self._audience.readers(desk.stream.channel)):
                out += [Send(readers, Checkpoint(signed)) for signed in statements]
        return out

    # -------------------------------------------------------------- streams

    def _on_stream(self, event: Receive, now: Millis) -> list[Effect]:
        """A message of publisher or brokers about a stream: its carrier knows what to do."""
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
        desk = self._desks.get(data)
        if desk is None and own and isinstance(message, Open):
            newest = self._desks.newest(data)
            # One that has been under way goes on: only this broker does not know it.
            if newest >> 1 > data.life and message.base == message.fresh == 1:
                answer = Send((sender,), Outlived(data, newest))
                return [Drop(DropReason.OUTLIVED, sender), answer]
        if desk is None or (own and desk.introducer != sender):
            entry = self._view.channel(data.channel)
            # What is ordered is not carried here: a liar could have this broker tell a publisher
            # that nothing is held. Only in a log streams are resumed; here one would be later than
            # all lives to come.
            if entry is None or entry.policy.total or data.line is not None:
                return [Drop(DropReason.UNKNOWN_STREAM, sender)]
            desk = self._desks.open(data, entry, sender)
            if desk is None:
                return [Drop(DropReason.UNKNOWN_STREAM, sender)]
        if stream.lane is Lane.HISTORY and not desk.entry.policy.has_history:
            return [Drop(DropReason.UNEXPECTED, sender)]
        if _highest(message) > MAX_NUMBER:
            return [Drop(DropReason.OUT_OF_WINDOW, sender)]
        if desk.closed and not isinstance(message, Pull):
            return [Drop(DropReason.UNKNOWN_STREAM, sender)]
        if (
            self._pledges
            and _would_vouch(desk, message)
            and self._pledges.broken_by(event, data, whole_runs=desk.entry.policy.whole_runs)
        ):
            # Only what the publisher said itself is held against it.
            blame = [Suspect(sender, Suspicion.EQUIVOCATION, data)] if own else []
            return [Drop(DropReason.CONFLICT, sender), *blame]
        if isinstance(message, Open):
            return self._on_open(desk, event, message, now)
        if type(message) in _ANSWERED and not self._may_answer(desk, event, stream.lane, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        told = isinstance(message, Publish | ChainRun)
        return self._finish(desk, desk.carrier.handle(event, now), stream.lane, told=told)

    def _may_answer(self, desk: Desk, event: Receive, lane: Lane, now: Millis) -> bool:
        """Whether a peer may have this answered; an echo is, if it is about what is done.

        A run that comes by a chain once more is passed on, and every broker further down verifies
        it again.
        """
        carrier, word = desk.lane(lane), event.message
        if isinstance(word, ChainRun) and (
            word.first + len(word.digests) // DIGEST_SIZE > carrier.ledger.next
        ):
            return True
        if isinstance(word, Echo) and not carrier.is_done(word.first):
            return True
        return self._retransmission.may_answer(event.sender, now)

    def _on_open(self, desk: Desk, event: Receive, opened: Open, now: Millis) -> list[Effect]:
        """A publisher says from where on it can repeat a stream; peers may have what it cannot."""
        lane = opened.stream.lane
        ledger = desk.ledger(lane)
        base = ledger.base
        if not ledger.begun and desk.entry.policy.settles:
            word = self._recovery.may_begin(opened)
            if word is None and event.sender == desk.stream.publisher:
                ledger.unrepeated = opened.base
                asked = self._recovery.left_out(desk.stream)
                return self._finish(desk, [], lane, told=True) + asked
            event = event if word is None else Receive(event.sender, word)
        effects = self._finish(desk, desk.carrier.handle(event, now), lane, told=True)
        if ledger.base > base or ledger.left_behind:
            effects += self._recovery.left_out(desk.stream)
        return effects

    def _on_recovery(self, event: Receive, now: Millis) -> list[Effect]:
        """What brokers ask one another so that nobody goes without what the others retain."""
        message, sender = event.message, event.sender
        if sender not in self._view.brokers:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        match message:
            case Survey() | Regain():
                if not self._audience.may_ask(sender, type(message), PULLS, now):
                    return [Drop(DropReason.OVER_LIMIT, sender)]
                return testify(self._desks, sender, message)
            case _:
                return self._positioned(self._recovery.hear(event)) + self._note_endings()

    def _finish(
        self, desk: Desk, effects: list[Effect], lane: Lane = Lane.DATA, *, told: bool = False
    ) -> list[Effect]:
        """Turn a carrier's word into votes, signed statements and acknowledgements."""
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Vouch):
                out += self._vouch(desk, effect)
            else:
                out += self._journaled(desk, effect)
        statements = desk.notary.newly_whole(desk.carrier)
        if statements and (readers := self._audience.readers(desk.stream.channel)):
            for signed in statements:
                out += self._testify(desk, signed, readers)
        out += desk.ack(lane, told=told)
        if desk.entry.policy.journal:
            out += self._release(desk)
        quota = desk.carrier.ledger.quota
        if quota.crowded or (lane is Lane.HISTORY and desk.ledger(lane).quota.crowded):
            self._desks.relieve(desk.stream)
        if quota.emptied:
            out += self._end_exhausted(desk.stream)
        return out

    def _end_exhausted(self, stream: Stream) -> list[Effect]:
        """End streams of which retention has left nothing."""
        self._desks.end_exhausted(stream)
        self._desks.end_unclaimed(stream, self._pledges.lives(stream))
        return self._note_endings()

    def _note_endings(self) -> list[Effect]:
        """The journal remembers which streams there were, and nothing more of them."""
        effects: list[Effect] = []
        for ended in self._desks.take_endings():
            entry = self._view.channel(ended.channel)
            if entry is not None and entry.policy.journal:
                effects += [Persist(self._desks.ended(ended)), *erase(ended)]
            for lane in (ended, ended.history):
                self._pledges.forget(lane, MAX_NUMBER + 1)
        return effects

    def _release(self, desk: Desk) -> list[Effect]:
        """Keep the journal as short as what is retained, and up to date about what is settled."""
        effects: list[Effect] = []
        for stream, carrier in desk.lanes() if desk.entry.policy.settles else ():
            if carrier.settled > desk.settled[stream.lane]:
                desk.settled[stream.lane] = carrier.settled
                effects.append(Persist(Settled(stream, carrier.settled)))
        longest = max(MAX_RUN, desk.entry.policy.limits.segment)
        for stream, below in desk.released():
            self._pledges.forget(stream, below)
            effects += [Persist(Released(stream, below)), *shorten(stream, below, longest)]
        return effects

    def _vouch(self, desk: Desk, vouch: Vouch) -> list[Effect]:
        votes = self._audience.votes(desk, vouch)
        if desk.entry.policy.journal:
            return self._pledge(desk, Vouched(vouch.stream, vouch.first, vouch.digests), votes)
        return votes

    def _pledge(self, desk: Desk, pledge: Pledge, then: Sequence[Effect]) -> list[Effect]:
        """Say something once the journal holds what it binds this broker to."""
        record = self._pledges.whole(pledge, desk.ledger(pledge.stream.lane))
        if record is None:
            return list(then)
        desk.writing(record)
        return [Persist(record, tuple(then))]

    def _journaled(self, desk: Desk, effect: Effect) -> list[Effect]:
        """On a chain the MACs that travel on vouch as well, and in Bracha's broadcast echoes do.

        So does what rests on an echo of ours: a broker that is ready has counted it.
        """
        if not desk.entry.policy.journal or not isinstance(effect, Send):
            return [effect]
        pledges: list[Pledge] = []
        match effect.message:
            case ChainRun(first=first, digests=digests):
                pledges = [Vouched(desk.stream, first, digests)]
            case Echo(stream=stream, first=first, run=run) if self._pledges.may_not_echo(
                stream, first, run
            ):
                # It is ready for what the others have echoed, and does not take back its own echo.
                return []
            case Echo() | Ready() as word:
                pledges = desk.echoed(word)
            case _:
                pass
        if not pledges:
            return [effect]
        # The disk keeps the order: once it has the last of them, it has them all.
        *others, last = pledges
        first_ones = [done for pledge in others for done in self._pledge(desk, pledge, ())]
        return [*first_ones, *self._pledge(desk, last, (effect,))]

    # ---------------------------------------------------------- subscribers

    def _on_subscribe(self, event: Receive, now: Millis) -> list[Effect]:
        message, sender = event.message, event.sender
        if not isinstance(message, Subscribe):
            return []
        channel = message.channel
        if refusal := self._admission.may_not_enter(sender, channel):
            return refusal
        if not self._audience.enter(sender, message, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        held = self._desks.positions(channel, self._recovery.expects, message.since)
        positions = Positions(channel, held)
        effects: list[Effect] = [Send((sender,), positions)]
        for stream, first in {cursor.stream: cursor.next for cursor in message.cursors}.items():
            desk = desk_of(self._desks, stream)
            if desk is not None and stream.channel == channel:
                effects += self._audience.replay(desk, sender, stream, first, message)
        return effects

    def _on_unsubscribe(self, event: Receive, now: Millis) -> list[Effect]:
        if isinstance(event.message, Unsubscribe):
            self._audience.leave(event.sender, event.message.channel)
        return []

    def _on_finish(self, event: Receive, now: Millis) -> list[Effect]:
        if isinstance(event.message, Finish):
            self._admission.finish(event.sender, event.message.channel)
        return []

    def _on_pull(self, event: Receive, now: Millis) -> list[Effect]:
        message, sender = event.message, event.sender
        if not isinstance(message, Pull):
            return []
        if sender in self._view.brokers:
            return self._on_stream(event, now)
        if refusal := self._admission.may_not_listen(sender, message.stream.channel):
            return refusal
        if not self._audience.may_ask(sender, Pull, PULLS, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        desk = desk_of(self._desks, message.stream)
        if desk is None:
            return [Drop(DropReason.UNKNOWN_STREAM, sender)]
        return answer_pull(desk.ledger(message.stream.lane), event, message)

    def _on_missed(self, event: Receive, now: Millis) -> list[Effect]:
        message, sender = event.message, event.sender
        if not isinstance(message, Missed):
            return []
        if refusal := self._admission.may_not_listen(sender, message.stream.channel):
            return refusal
        desk = desk_of(self._desks, message.stream)
        if desk is None:
            return [Drop(DropReason.UNKNOWN_STREAM, sender)]
        if not desk.note_missed(sender, message.first, message.first + message.count - 1):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        return self._finish(desk, [])

    def _on_attest(self, event: Receive, now: Millis) -> list[Effect]:
        message, sender = event.message, event.sender
        if not isinstance(message, Attest):
            return []
        if refusal := self._admission.may_not_listen(sender, message.stream.channel):
            return refusal
        if not self._audience.may_ask(sender, Attest, ATTESTS, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        desk = desk_of(self._desks, message.stream)
        signed = (
            None
            if desk is None
            else desk.notary.attest(desk.carrier, message.number, message.first)
        )
        if desk is None or signed is None:
            return [Drop(DropReason.NOT_HELD, sender)]
        return self._testify(desk, signed, (sender,))

    def _testify(self, desk: Desk, signed: Signed, readers: tuple[NodeId, ...]) -> list[Effect]:
        """A signed statement leaves only once the journal holds what it says.

        A broker that signed, forgot and signed otherwise would be convicted by its own words.
        """
        testimony = Send(readers, Checkpoint(signed))
        statement = parse_statement(signed.payload)
        if not desk.entry.policy.journal or not isinstance(statement, SegmentStatement):
            return [testimony]
        digests = desk.carrier.ledger.digests(statement.first, statement.count) or b""
        return self._pledge(desk, Attested(desk.stream, statement.first, digests), (testimony,))


def _would_vouch(desk: Desk, message: Message) -> bool:
    """Whether a broker would vouch for what a message brings on the word of its sender."""
    if isinstance(message, Contents):
        return desk.carrier.would_echo_contents(message.first)
    return isinstance(message, Publish | ChainRun)


def _highest(message: Message) -> int:
    """The highest number that a message about a stream names."""
    match message:
        case Open(base=base, fresh=fresh):
            return max(base, fresh)
        case Publish() | ChainRun() | Echo() | Ready() | Contents() | Pull():
            return message.first
        case _:
            return 0
