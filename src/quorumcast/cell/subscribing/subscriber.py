"""The subscriber: joins channels at every broker, counts their votes, repairs what does not come.

Losses of every kind are repaired by one mechanism: whenever a channel makes no progress, the
subscriber repeats its subscription with cursors, and brokers replay from there. `fetching` pulls
bodies that do not come with votes, `receipts` asks for signatures.

Histories are accepted like publications, on a lane of their own. They settle numbers that votes did
not decide; those are pulled, and reported to the brokers as missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.application import (
    Deliver,
    DeliverGap,
    Join,
    Leave,
    Prove,
    Recall,
    Refused,
    Select,
    Waive,
)
from quorumcast.broadcast.chain import is_chain
from quorumcast.broadcast.messages import Contents, Cursor, Matches
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.accusations import Accusations, RepeatAccusations
from quorumcast.cell.filters import results_of
from quorumcast.cell.messages import (
    Checkpoint,
    Missed,
    Positions,
    Reached,
    Refuse,
    Subscribe,
    Unsubscribe,
    Vote,
)
from quorumcast.cell.refusals import Refusals, channel_entry
from quorumcast.cell.subscribing.excerpt import ALL_VOTES_MS, Excerpt, SkippedBrokers, VotesDue
from quorumcast.cell.subscribing.fetching import Fetcher, PullDue
from quorumcast.cell.subscribing.interest import Interest
from quorumcast.cell.subscribing.recalling import RecallDue, Recaller, positioned
from quorumcast.cell.subscribing.receipts import Receipts
from quorumcast.cell.subscribing.silence import LOOK_MS
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import (
    DIGEST_SIZE,
    Channel,
    Lane,
    Millis,
    NodeId,
    Stream,
    total_order,
)
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    Timer,
    TimerFired,
)
from quorumcast.core.statements import SegmentStatement, parse_statement
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View

REFRESH_MS = LOOK_MS
#: Streams whose replays are used up, or that begin, within this time are asked for together:
#: brokers answer few requests of a subscriber at a time.
ASK_SOON_MS = 10


class Refresh(Timer, frozen=True, tag=True):
    """Look whether a channel makes progress."""

    channel: Channel


class AskSoon(Timer, frozen=True, tag=True):
    """Ask for some of a channel's streams."""

    channel: Channel


class Subscriber:
    """The machine of a subscriber."""

    __slots__ = (
        "_accusations",
        "_fetcher",
        "_heard",
        "_interests",
        "_joins",
        "_recaller",
        "_receipts",
        "_refusals",
        "_skipped",
        "_up",
        "_view",
    )

    def __init__(self, manifest: Manifest, keyring: Keyring) -> None:
        view = self._view = View(manifest, keyring)
        self._accusations = Accusations(view)
        #: One interest per channel joined.
        self._interests: dict[Channel, Interest] = {}
        #: How often new votes of each broker were seen (`silence`).
        self._heard: dict[NodeId, int] = {}
        #: How many subscriptions there were.
        self._joins = 0
        #: Brokers that can be reached, in the order in which they came.
        self._up: dict[NodeId, None] = {}
        self._fetcher = Fetcher(view, self._up)
        self._recaller = Recaller(view, self._up)
        self._receipts = Receipts(view, self._up, self._fetcher, self._accusations)
        self._refusals = Refusals()
        self._skipped = SkippedBrokers()

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch: other clients, rights, keys, channels, a broker more or less."""
        self._view.adopt(manifest, keyring)
        self._accusations.begin_epoch()
        self._refusals.clear()
        for gone in [peer for peer in self._up if peer not in manifest.broker_ids]:
            del self._up[gone]
        self._recaller.recount()
        effects: list[Effect] = []
        for interest in self._interests.values():
            interest.recount()
            effects += interest.take_lost()
            if interest.source.broker is None:
                self._fetcher.choose_source(interest)
            try:
                if interest.rebind():
                    effects += self._ask_all(interest)
            except UsageError as error:
                effects.append(Refused(interest.channel, str(error)))
            for acceptor in list(interest.acceptors.values()):
                effects += self._advance(interest, acceptor)
        return effects

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=Vote() as message):
                return self._on_vote(event, message)
            case Receive(message=Matches() as message):
                return self._on_matches(event, message)
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
            case TimerFired(timer=Refresh(channel=channel), late_ms=late_ms):
                return self._on_refresh(channel, late_ms)
            case TimerFired(timer=AskSoon(channel=channel)):
                return self._on_ask_soon(channel)
            case TimerFired(timer=PullDue(stream=stream)):
                return self._fetcher.on_pull_due(self._interests.get(stream.channel), stream)
            case TimerFired(timer=RecallDue(channel=channel)):
                return self._on_recall_due(channel)
            case TimerFired(timer=VotesDue(channel=channel)):
                return self._on_votes_due(channel)
            case TimerFired(timer=RepeatAccusations()):
                return self._accusations.repeat()
            case Connected(peer=peer):
                return self._on_connected(peer)
            case Disconnected(peer=peer):
                return self._on_disconnected(peer)
            case Join():
                return self._on_join(event)
            case Select():
                return self._on_select(event)
            case Leave(channel=channel):
                return self._on_leave(channel)
            case Prove(stream=stream):
                return self._receipts.on_prove(self._interests.get(stream.channel), event)
            case Recall(channel=channel):
                return self._recaller.on_recall(self._interests.get(channel), event)
            case Waive():
                return self._recaller.on_waive(event)
            case _:
                return []

    def sizes(self) -> dict[str, int]:
        sizes = {
            "interests": len(self._interests),
            **self._accusations.sizes(),
            **self._fetcher.sizes(),
            **self._recaller.sizes(),
        }
        for interest in self._interests.values():
            for name, size in interest.sizes().items():
                sizes[f"{interest.channel}: {name}"] = size
        return sizes

    def joined(self, channel: Channel) -> bool:
        """Whether the beginnings of a channel's streams are known: nothing after them is missed."""
        interest = self._interests.get(channel)
        return interest is not None and interest.begun

    def silent(self, channel: Channel) -> list[NodeId]:
        """Brokers that have not reported what they hold of a channel."""
        interest = self._interests.get(channel)
        reports = () if interest is None else interest.reports
        return [broker for broker in self._view.brokers if broker not in reports]

    def ends(self, channel: Channel) -> dict[Stream, int]:
        """The ends of streams that were not read to their end when the channel began."""
        interest = self._interests.get(channel)
        return {} if interest is None else dict(interest.ends)

    def dropped(self, channel: Channel) -> list[DeliverGap]:
        """The numbers before a beginning in the past that brokers had dropped by then."""
        interest = self._interests.get(channel)
        return [] if interest is None else sorted(interest.dropped, key=lambda gap: gap.stream)

    def end(self, channel: Channel) -> int:
        """The next position in a channel's order, as far as is known."""
        interest = self._interests.get(channel)
        return 1 if interest is None else interest.end

    def oldest(self, channel: Channel) -> int:
        """The first position of a channel's order that enough brokers may still hold."""
        interest = self._interests.get(channel)
        if interest is None:
            return 1
        reports = interest.reports
        return max(1, reports.oldest(total_order(channel), without=reports.silent()))

    # ------------------------------------------------- joining and leaving

    def _on_join(self, join: Join) -> list[Effect]:
        channel = join.channel
        entry = channel_entry(self._view.manifest, channel)
        if channel in self._interests:
            return []
        excerpt = None
        if join.until:
            excerpt = Excerpt(join.until, entry.policy.limits, self._skipped)
        interest = Interest(
            self._view,
            entry,
            join.start,
            join.since,
            excerpt,
            join=self._joins,
            heard=self._heard,
            cursors=join.cursors,
            where=join.where,
        )
        self._joins += 1
        self._interests[channel] = interest
        self._fetcher.choose_source(interest)
        return [*self._ask_all(interest), SetTimer(Refresh(channel), REFRESH_MS)]

    def _on_select(self, select: Select) -> list[Effect]:
        interest = self._interests.get(select.channel)
        if interest is None:
            return []
        interest.select(select.where)
        return self._ask_all(interest)

    def _on_leave(self, channel: Channel) -> list[Effect]:
        if self._interests.pop(channel, None) is None:
            return []
        self._refusals.forget(channel)
        return [
            Send(tuple(self._up), Unsubscribe(channel)),
            CancelTimer(Refresh(channel)),
            CancelTimer(AskSoon(channel)),
            *self._recaller.forget(channel),
        ]

    def _on_connected(self, peer: NodeId) -> list[Effect]:
        if peer not in self._view.brokers:
            return []
        self._up[peer] = None
        self._skipped.connected(peer)
        effects: list[Effect] = self._accusations.connected(peer)
        for interest in self._interests.values():
            interest.reconnected(peer)
            if interest.source.broker is None:
                self._fetcher.choose_source(interest)
            effects.append(Send((peer,), interest.subscribe_to(peer)))
        return effects

    def _on_disconnected(self, peer: NodeId) -> list[Effect]:
        if peer in self._up:
            del self._up[peer]
            self._skipped.disconnected(peer)
        effects: list[Effect] = []
        for interest in self._interests.values():
            if interest.source.broker == peer:
                effects += self._fetcher.change_source(interest)
            for acceptor in interest.acceptors.values() if interest.excerpt else ():
                # Positions do not wait for its vote any longer.
                effects += self._advance(interest, acceptor)
        return effects

    def _ask_all(self, interest: Interest, few: Collection[Stream] = ()) -> list[Effect]:
        """Ask all brokers again, for everything or for a few streams."""
        interest.asked_again(few)
        return [Send((broker,), interest.subscribe_to(broker, few)) for broker in self._up]

    # --------------------------------------------------------------- votes

    def _interest(self, stream: Stream, sender: NodeId) -> Interest | None:
        if sender not in self._view.brokers:
            return None
        return self._interests.get(stream.channel)

    def _on_vote(self, event: Receive, vote: Vote) -> list[Effect]:
        stream, sender = vote.stream, event.sender
        interest = self._interest(stream, sender)
        if interest is None:
            return [Drop(DropReason.UNKNOWN_CHANNEL, sender)]
        if len(vote.digests) % DIGEST_SIZE:
            return [Drop(DropReason.BAD_RUN, sender)]
        chained = interest.chained(stream.lane)
        if chained != bool(vote.order) or (chained and not self._is_chain(vote.order)):
            return [Drop(DropReason.BAD_CHAIN, sender)]
        acceptor = interest.acceptors.get(stream)
        if acceptor is None:
            return self._on_new_stream(interest, event, vote, self._authors(sender, vote))
        if acceptor.where:
            return [Drop(DropReason.OTHER_PREDICATE, sender)]
        interest.source.sent(sender, event.bodies)
        effects = acceptor.vote(sender, vote.first, vote.digests, event.bodies, vote.order)
        for voucher in vote.vouchers:
            if voucher.reader != self._view.me or voucher.author not in vote.order:
                continue
            if self._vouched(voucher.author, voucher.mac, vote):
                effects += acceptor.vote(voucher.author, vote.first, vote.digests, (), vote.order)
            else:
                # Only the reader can verify it, so any broker after its author may have broken it.
                passed = vote.order[vote.order.index(voucher.author) :]
                among = tuple(dict.fromkeys((*passed, sender)))
                effects += [
                    Drop(DropReason.BAD_VOUCHER, sender),
                    Suspect(voucher.author, Suspicion.BAD_VOUCHER, stream, vote.first, among),
                    Suspect(sender, Suspicion.BAD_VOUCHER, stream, vote.first, among),
                ]
        return effects + self._advance(interest, acceptor)

    def _on_matches(self, event: Receive, said: Matches) -> list[Effect]:
        """A vote for what our predicates make of a run."""
        sender = event.sender
        interest = self._interest(said.stream, sender)
        if interest is None:
            return [Drop(DropReason.UNKNOWN_CHANNEL, sender)]
        acceptor = interest.acceptors.get(said.stream)
        if acceptor is None:
            return self._on_new_stream(interest, event, said, (sender,))
        if said.where != acceptor.where or not said.where:
            return [Drop(DropReason.OTHER_PREDICATE, sender)]
        votes = results_of(said, event.bodies)
        if votes is None:
            return [Drop(DropReason.BAD_RUN, sender)]
        interest.source.sent(sender, event.bodies)
        return acceptor.vote(sender, said.first, *votes) + self._advance(interest, acceptor)

    def _authors(self, sender: NodeId, vote: Vote) -> tuple[NodeId, ...]:
        """The brokers of which a message is a vote: on a chain not its sender alone."""
        authors = [
            voucher.author
            for voucher in vote.vouchers[: self._view.quorums.chain_reach]
            if voucher.author in self._view.brokers
            and self._vouched(voucher.author, voucher.mac, vote)
        ]
        return (sender, *authors)

    def _on_new_stream(
        self,
        interest: Interest,
        event: Receive,
        vote: Vote | Matches,
        authors: tuple[NodeId, ...],
    ) -> list[Effect]:
        """Votes on a stream that is not followed: it is once enough brokers have named it."""
        if not interest.may_follow(vote.stream):
            return [Drop(DropReason.UNKNOWN_STREAM, event.sender)]
        if _fits(interest, vote):
            interest.new.votes.keep(event)
        is_followed = [interest.name(author, vote.stream) for author in authors]
        return self._follow(interest) if any(is_followed) else []

    def _follow(self, interest: Interest) -> list[Effect]:
        """Count the votes with which new streams began, and ask for what they leave out."""
        effects = interest.take_lost()
        votes, few = interest.new.take(interest.acceptors)
        for event in votes:
            match event.message:
                case Vote() as vote:
                    effects += self._on_vote(event, vote)
                case Matches() as said:
                    effects += self._on_matches(event, said)
                case _:
                    pass
        return effects + (self._ask_soon(interest, few) if few else [])

    def _is_chain(self, order: tuple[NodeId, ...]) -> bool:
        return is_chain(self._view.quorums, self._view.brokers, order)

    def _vouched(self, author: NodeId, mac: bytes, vote: Vote) -> bool:
        keyring = self._view.keyring
        return keyring.vouched(author, mac, vote.stream, vote.first, vote.digests, vote.order)

    def _advance(self, interest: Interest, acceptor: Acceptor) -> list[Effect]:
        """Deliver what is due, settle what histories name, await missing bodies."""
        stream = acceptor.stream
        if stream.lane is Lane.HISTORY:
            data = interest.acceptors.get(stream.data)
            if data is not None and data.crowded:
                # Histories wait in the window of their own lane until a refresh finds room.
                return []
            effects = self._settle(interest, acceptor.deliver())
        elif interest.excerpt is not None:
            effects = self._read_on(interest, interest.excerpt, acceptor)
        else:
            before = acceptor.next
            effects = acceptor.deliver()
            if interest.entry.policy.total:
                interest.spans.note(acceptor.next - before, effects)
                effects = [*map(positioned, effects), *self._ask_span(interest, acceptor)]
        effects += self._fetcher.watch(interest, acceptor)
        effects += self._tell(interest, interest.telling.due(acceptor))
        if effects and interest.behind(stream):
            effects += self._ask_soon(interest, (stream,))
        return effects

    def _ask_soon(self, interest: Interest, few: Iterable[Stream]) -> list[Effect]:
        """Ask for some streams, together with others for which there is reason to in a moment."""
        is_set = bool(interest.to_ask)
        interest.to_ask |= dict.fromkeys(few)
        return [] if is_set else [SetTimer(AskSoon(interest.channel), ASK_SOON_MS)]

    def _on_ask_soon(self, channel: Channel) -> list[Effect]:
        interest = self._interests.get(channel)
        if interest is None or not interest.to_ask:
            return []
        few = [*interest.to_ask]  # `_end` takes out those that are over
        interest.to_ask.clear()
        return self._ask_all(interest, few)

    def _tell(self, interest: Interest, reached: tuple[Cursor, ...]) -> list[Effect]:
        """Tell all brokers how far this subscriber is."""
        if not (reached and self._up):
            return []
        return [Send(tuple(self._up), Reached(interest.channel, reached))]

    def _read_on(self, interest: Interest, excerpt: Excerpt, acceptor: Acceptor) -> list[Effect]:
        """Deliver what all brokers have voted on, and ask for the next span in time."""
        before = acceptor.next
        due = excerpt.keep(acceptor.deliver(excerpt.awaited(self._view.brokers)))
        excerpt.note(acceptor.next - before, due)
        effects = [positioned(effect) for effect in due]
        if excerpt.blocks(acceptor):
            effects.append(SetTimer(VotesDue(interest.channel), ALL_VOTES_MS))
        return effects + self._ask_span(interest, acceptor)

    def _ask_span(self, interest: Interest, acceptor: Acceptor) -> list[Effect]:
        """Ask all brokers for the next span of a total order, if it is time."""
        effects: list[Effect] = []
        while (span := interest.next_span(acceptor)) is not None:
            cursors = (Cursor(acceptor.stream, span[0]),)
            for broker in self._up:
                bodies = broker == interest.source.broker
                asked = Subscribe(
                    interest.channel,
                    cursors,
                    bodies,
                    until=span[1],
                    join=interest.join,
                    where=interest.where,
                )
                effects.append(Send((broker,), asked))
        return effects

    def _on_votes_due(self, channel: Channel) -> list[Effect]:
        interest = self._interests.get(channel)
        acceptor = None if interest is None else interest.acceptors.get(total_order(channel))
        if interest is None or interest.excerpt is None or acceptor is None:
            return []
        interest.excerpt.time_over(acceptor, self._view.brokers)
        return self._advance(interest, acceptor)

    def _settle(self, interest: Interest, accepted: list[Effect]) -> list[Effect]:
        effects: list[Effect] = []
        settled: dict[Stream, Acceptor] = {}
        for effect in accepted:
            if not isinstance(effect, Deliver):
                effects.append(effect)
                continue
            found = read_history(effect.body, effect.stream)
            data = interest.acceptors.get(effect.stream.data)
            if found is None or data is None:
                continue
            interest.note_history(data.stream, found[1].first)
            missed = data.settle(found[1].first, found[1].digests)
            if missed:
                notice = Missed(data.stream, missed[0], missed[-1] - missed[0] + 1)
                effects.append(Send(tuple(self._up), notice))
                settled[data.stream] = data
            effects += self._advance(interest, data)
        for data in settled.values():
            if data.lacking(1):
                # The fast path has failed: do not wait for the source. Several histories may have
                # come at once; what they name is requested together.
                effects += self._fetcher.pull(interest, data)
        return effects

    def _on_contents(self, event: Receive, message: Contents) -> list[Effect]:
        interest = self._interest(message.stream, event.sender)
        acceptor = None if interest is None else interest.acceptors.get(message.stream)
        if interest is None or acceptor is None:
            return [Drop(DropReason.UNKNOWN_STREAM, event.sender)]
        recalled, effects = self._recaller.on_contents(
            interest, event.sender, message, event.bodies
        )
        if recalled:
            return [positioned(effect) for effect in effects]
        effects = acceptor.contents(event.sender, message.first, message.digests, event.bodies)
        effects += self._advance(interest, acceptor)
        return effects + self._receipts.on_contents(interest, message, event.bodies)

    def _on_recall_due(self, channel: Channel) -> list[Effect]:
        interest = self._interests.get(channel)
        late, effects = self._recaller.on_due(interest, channel)
        return effects + (self._ask_all(interest) if late and interest is not None else [])

    # ------------------------------------------------------ positions and refreshes

    def _on_positions(self, broker: NodeId, message: Positions) -> list[Effect]:
        interest = self._interests.get(message.channel)
        if interest is None or broker not in self._view.brokers:
            return [Drop(DropReason.UNKNOWN_CHANNEL, broker)]
        self._refusals.served(message.channel, broker)
        return self._informed(interest, *interest.on_positions(broker, message))

    def _informed(self, interest: Interest, anew: bool, effects: list[Effect]) -> list[Effect]:
        """The effects of new positions; cursors are sent anew if there are new streams."""
        effects = [
            e for e in effects if not (isinstance(e, DeliverGap) and e.stream.lane is Lane.HISTORY)
        ]
        effects += interest.take_lost()
        if not anew or not interest.acceptors or interest.finished:
            return effects
        return effects + (self._follow(interest) if interest.new.fresh else self._ask_all(interest))

    def _on_refresh(self, channel: Channel, late_ms: int) -> list[Effect]:
        interest = self._interests.get(channel)
        if interest is None:
            return []
        effects: list[Effect] = [SetTimer(Refresh(channel), REFRESH_MS)]
        if not interest.begun:
            effects += self._informed(interest, *interest.wait_no_longer())
            return effects + [
                Send((broker,), interest.subscribe_to(broker))
                for broker in self._up
                if broker not in interest.reports and interest.is_repeated
            ]
        interest.end_displaced()
        effects += [*interest.take_lost(), *interest.notice_silence(late_ms)]
        for stream, acceptor in list(interest.acceptors.items()):
            if stream.lane is Lane.HISTORY and acceptor.stuck:
                effects += self._advance(interest, acceptor)
        for gap in interest.give_up_unnamed():
            effects += [gap, *self._advance(interest, interest.acceptors[gap.stream])]
        few = interest.refresh()
        if few is not None:
            effects += self._ask_all(interest, few)
        effects += self._tell(interest, interest.telling.refresh(interest.acceptors.values()))
        return effects + self._receipts.refresh(interest)

    def _on_refuse(self, broker: NodeId, refuse: Refuse) -> list[Effect]:
        if refuse.listening is False:
            return []  # it is about publishing, by another machine of this node
        return self._refusals.on_refuse(self._view, self._interests, broker, refuse)

    def _on_checkpoint(self, broker: NodeId, message: Checkpoint) -> list[Effect]:
        statement = parse_statement(message.statement.payload)
        if not isinstance(statement, SegmentStatement):
            return [Drop(DropReason.BAD_RUN, broker)]
        interest = self._interest(statement.stream, broker)
        return self._receipts.on_statement(interest, broker, statement, message.statement)


def _fits(interest: Interest, vote: Vote | Matches) -> bool:
    """Whether a vote is about what is wanted: runs, or what the present predicates select."""
    wanted = interest.filter.id if interest.filter and vote.stream.lane is Lane.DATA else b""
    return wanted == (vote.where if isinstance(vote, Matches) else b"")
