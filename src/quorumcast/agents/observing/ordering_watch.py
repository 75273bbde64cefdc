"""What a broker notices of others in total order: leaders, voters, and where they say they are."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from quorumcast.agents.observing.log_parts import LogParts
from quorumcast.agents.observing.observation import MAX_REMEMBERED, Kind, Notes, remember
from quorumcast.agents.observing.sequences import Sequences
from quorumcast.agents.observing.showings import Showings
from quorumcast.agents.observing.standings import Standings, log_stream
from quorumcast.agents.observing.turnout import MENDED, PATIENCE_MS, Links, Turnout, bucket_of
from quorumcast.core.ids import Millis, NodeId, Stream, holder
from quorumcast.core.messages import (
    Accept,
    Ack,
    AnyMessage,
    Batch,
    Fetched,
    Item,
    LogPart,
    Offer,
    Propose,
    Standing,
    StateHead,
    Stop,
    Write,
)
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import OfferStatement, Signed, canonical
from quorumcast.crypto.identity import signature_holds
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.epochs import first_regency, within_epoch
from quorumcast.ordering.patience import SILENCE_MS
from quorumcast.ordering.sequencer import TICK_MS

#: A broker that has held an offer for so long, and sees nothing ordered, gives its leader up within
#: a tick, or has done so because others did.
TIRED_MS = SILENCE_MS - TICK_MS
#: Leaders given up that are remembered until it is clear whether they proposed anything.
MAX_GIVEN_UP = 64
#: How often a publisher's signatures are looked at.
LOOK_MS = 10
#: The reason of what others decided and the leader did not show this broker.
UNSHOWN = "unshown"

#: A log, a regency and a number.
_Instance = tuple[Protection, int, int]


class _GivenUp(msgspec.Struct, frozen=True):
    """A leader that was given up, and had proposed nothing of what this broker holds."""

    at: int
    leader: NodeId
    log: Protection
    regency: int
    #: How far the leader said that it had decided.
    decided: int


class OrderingWatch:
    """The part of an observer that looks at consensus."""

    __slots__ = (
        "_cell",
        "_decided_upto",
        "_epoch",
        "_f",
        "_given_up",
        "_highest",
        "_is_new",
        "_keep",
        "_keys",
        "_lacking",
        "_latest_offer",
        "_links",
        "_looked_at",
        "_me",
        "_members",
        "_notes",
        "_offered",
        "_offers",
        "_open",
        "_ordered_at",
        "_own",
        "_parts",
        "_proposed",
        "_quorate",
        "_quorum",
        "_sequences",
        "_showings",
        "_standings",
        "_turnouts",
        "_values",
        "_waiting",
    )

    def __init__(
        self,
        manifest: Manifest,
        me: NodeId,
        links: Links,
        sequences: Sequences,
        notes: Notes,
        keep: Callable[[Signed], None],
    ) -> None:
        #: Takes what is signed and contradicts something else.
        self._keep = keep
        self._me = me
        self._members = manifest.broker_ids
        self._f = manifest.f
        self._cell = manifest.cell
        self._epoch = manifest.epoch
        self._keys = manifest.directory()
        self._looked_at: dict[tuple[NodeId, int], int] = {}
        self._links = links
        self._sequences = sequences
        self._notes = notes
        self._showings = Showings("Offer", links, notes)
        others = tuple(member for member in self._members if member != me)
        self._turnouts = {
            kind: Turnout(kind.__name__, others, links, notes) for kind in (Write, Accept)
        }
        #: So many others must have spoken for it to be enough, or so many with this broker itself;
        #: one of them is correct.
        self._quorum = max(manifest.f + 1, len(self._members) - manifest.f - 1)
        self._quorate = max(manifest.f + 1, len(self._members) - manifest.f)
        #: What this broker said itself.
        self._own: OrderedDict[tuple[type, Stream, int], None] = OrderedDict()
        #: What each member voted for: by kind, log, regency and instance.
        self._values: OrderedDict[tuple[type, Protection, int, int], dict[NodeId, bytes]] = (
            OrderedDict()
        )
        #: What was proposed and is not known here: who proposed it, when, and in which instance.
        self._lacking: OrderedDict[Item, tuple[NodeId, int, _Instance]] = OrderedDict()
        #: The first version of each offer.
        self._offered: OrderedDict[tuple[Stream, int], Offer] = OrderedDict()
        #: When each offer came that has not been proposed since.
        self._offers: OrderedDict[tuple[Stream, int], int] = OrderedDict()
        self._latest_offer: tuple[Stream, int] | None = None
        #: Whether it was not waiting before.
        self._is_new = False
        #: When each offer came that this broker has not seen ordered.
        self._waiting: OrderedDict[tuple[Stream, int], int] = OrderedDict()
        #: What was decided last, and when, by log.
        self._decided_upto: dict[Protection, int] = {}
        self._ordered_at: dict[Protection, int] = {}
        #: When each instance was proposed by the leader of a regency that others have not decided.
        self._proposed: OrderedDict[_Instance, int] = OrderedDict()
        #: So many instances a new leader may have to fill with nothing: those left open before it.
        self._open = 2 * max(
            (c.policy.limits.pipeline for c in manifest.channels if c.policy.total), default=0
        )
        #: The highest instance that was proposed in each regency by its leader.
        self._highest: OrderedDict[tuple[Protection, int], int] = OrderedDict()
        self._given_up: deque[_GivenUp] = deque(maxlen=MAX_GIVEN_UP)
        self._standings = Standings(manifest.f, links, notes)
        self._parts = LogParts(manifest, notes)

    def on_message(self, sender: NodeId, message: AnyMessage, now: Millis) -> None:
        """Something of another broker or of a publisher."""
        if sender not in self._members and not isinstance(message, Offer):
            return
        match message:
            case Write() | Accept():
                self._on_vote(sender, message, now)
            case Propose():
                self._on_propose(sender, message, now)
            case Standing():
                self._standings.hear(sender, message, now)
            case Stop():
                self._standings.stopped(sender, message, now)
            case Offer():
                self._on_offer(sender, message, now)
            case LogPart(batches=batches):
                self._parts.handed(sender, message, now)
                for batch in batches:
                    self._ordered(batch)
            case Fetched(batch=batch):
                self._ordered(batch)
            case StateHead():
                self._standings.handed(sender, message, now)
                self._offers.clear()
                self._waiting.clear()
                self._lacking.clear()
            case _:
                pass

    def _on_offer(self, sender: NodeId, offer: Offer, now: Millis) -> None:
        stream, first = offer.stream, offer.first
        self._latest_offer = (stream, first)
        self._is_new = (stream, first) not in self._waiting
        self._compare(offer, now)
        if sender == stream.publisher:
            self._look_at_signature(sender, offer, now)
            self._showings.shown(now, (stream, first))
        elif self._may_look(stream.publisher, now) and self._holds(self._signed(offer)):
            self._showings.due(now, (stream, first))
        for memory in (self._offers, self._waiting):
            memory.setdefault((stream, first), now)
            if len(memory) > MAX_REMEMBERED:
                memory.popitem(last=False)

    def _compare(self, offer: Offer, now: Millis) -> None:
        """Two versions of one offer, both signed, prove that their publisher lies."""
        place = (offer.stream, offer.first)
        self._lacking.pop(offer.item, None)
        known = self._offered.get(place)
        if known is None:
            remember(self._offered, place, offer)
        elif known.digests != offer.digests and self._may_look(offer.stream.publisher, now, 2):
            versions = [self._signed(known), self._signed(offer)]
            if all(map(self._holds, versions)):
                for version in versions:
                    self._keep(version)

    def _look_at_signature(self, sender: NodeId, offer: Offer, now: Millis) -> None:
        """Brokers need not look at signatures of publishers that they hear themselves.

        One every few milliseconds is enough to find out who sends false ones.
        """
        if offer.signature and self._may_look(sender, now):
            kind = Kind.CAME if self._holds(self._signed(offer)) else Kind.CONTRADICTS
            self._notes.add(now, kind, sender, "signature", "Offer", offer.stream, offer.first)

    def _may_look(self, publisher: NodeId, now: Millis, versions: int = 1) -> bool:
        """Whether it is time to look at a signature again, or at those of two versions."""
        if now - self._looked_at.get((publisher, versions), -1000) < LOOK_MS:
            return False
        if holder(publisher) in self._keys:
            self._looked_at[publisher, versions] = now
        return True

    def _signed(self, offer: Offer) -> Signed:
        statement = OfferStatement(
            cell=self._cell, stream=offer.stream, first=offer.first, digests=offer.digests
        )
        return Signed(offer.stream.publisher, canonical(statement), offer.signature)

    def _holds(self, signed: Signed) -> bool:
        key = self._keys.get(holder(signed.signer))
        return key is not None and signature_holds(signed, key.verify_key)

    def on_own(self, message: AnyMessage, now: Millis) -> None:
        """Something that this node sends."""
        match message:
            case Propose(batch=batch):
                self._ordered(batch)
            case Write() | Accept():
                self._count(self._me, message, now)
            case Stop(log=log, regency=regency):
                self._on_own_stop(log, regency, now)
            case Ack(stream=stream, upto=upto):
                for memory in (self._offers, self._waiting):
                    for place in [p for p in memory if p[0] == stream and p[1] <= upto]:
                        del memory[place]
            case _:
                pass

    def forget(self, peer: NodeId) -> None:
        """A new session: whoever restarts begins anew."""
        self._standings.forget(peer)

    def on_drop(self, sender: NodeId) -> None:
        """What came last was ignored."""
        if self._latest_offer is not None:
            self._offers.pop(self._latest_offer, None)
            if self._is_new:
                self._waiting.pop(self._latest_offer, None)
            self._latest_offer = None

    def sweep(self, now: Millis) -> None:
        """What has not come by now is missing."""
        for turnout in self._turnouts.values():
            turnout.sweep(now)
        self._showings.sweep(now)
        told: _Instance | None = None
        while self._lacking:
            item, (leader, since, instance) = next(iter(self._lacking.items()))
            if now - since < PATIENCE_MS:
                break
            del self._lacking[item]
            if leader in self._links.up_since and instance != told:
                # Whoever proposes something holds it, and hands it over when asked.
                state = "" if self._links.owed(leader, since) else MENDED
                self._notes.add(
                    now, Kind.MISSING, leader, state, "Propose", item.stream, item.first
                )
                told = instance
        while self._given_up and now - self._given_up[0].at >= PATIENCE_MS:
            one = self._given_up.popleft()
            # A leader far away may have proposed before it knew that it was given up.
            if self._highest.get((one.log, one.regency), 0) <= one.decided:
                stream = log_stream(one.log)
                self._notes.add(now, Kind.GAVE_UP, one.leader, "idle", "Stop", stream, one.regency)

    # ------------------------------------------------------------------ votes

    def _on_vote(self, sender: NodeId, vote: Write | Accept, now: Millis) -> None:
        stream, name = log_stream(vote.log), type(vote).__name__
        votes = self._values.setdefault((type(vote), vote.log, vote.regency, vote.instance), {})
        if len(self._values) > MAX_REMEMBERED:
            self._values.popitem(last=False)
        before = votes.get(sender)
        if before is not None and before != vote.value:
            self._notes.add(now, Kind.CONTRADICTS, sender, "itself", name, stream, vote.instance)
        votes.setdefault(sender, vote.value)
        if self._is_its_leader_s(vote, sender):
            self._sequences.led(now, sender, stream, vote.regency, vote.instance)
        agreed = [value for value in votes.values() if value == vote.value]
        if len(agreed) > self._f:
            # One of them is correct and was shown that value by the leader of this regency.
            leader = self._members[vote.regency % len(self._members)]
            for other, value in votes.items():
                if value != vote.value:
                    reason = "leading" if other == leader else "others"
                    self._notes.add(
                        now, Kind.CONTRADICTS, other, reason, name, stream, vote.instance
                    )
        self._count(sender, vote, now)

    def _is_its_leader_s(self, vote: Write | Accept, voter: NodeId) -> bool:
        """Whether a leader votes for what it wants decided, and has said all of it to us.

        Of what it knew before it repeats votes alone, be it that it restarted. Of which epochs
        there are others, and who leads there, this observer does not know.
        """
        standing = self._standings.of(vote.log, voter)
        known = self._standings.known(vote.log, voter)
        return (
            voter == self._members[vote.regency % len(self._members)]
            and isinstance(vote, Accept) == (vote.log is Protection.CRASH)
            and within_epoch(vote.regency) == vote.regency - first_regency(self._epoch)
            and standing is not None
            and standing.regency == vote.regency
            and known is not None
            and vote.instance > known
        )

    def _count(self, voter: NodeId, vote: Write | Accept, now: Millis) -> None:
        place = (log_stream(vote.log), vote.instance)
        if voter == self._me:
            remember(self._own, (type(vote), *place), None)
        turnout = self._turnouts[type(vote)]
        enough = self._quorum + ((type(vote), *place) in self._own)
        if turnout.spoke(now, voter, place) >= min(enough, self._quorate):
            turnout.enough(now, place)
            if isinstance(vote, Accept):
                self._decided(vote, now)

    def _decided(self, vote: Accept, now: Millis) -> None:
        """So many accept a batch that it is decided; its leader ought to have shown it."""
        if vote.instance > self._decided_upto.get(vote.log, 0):
            self._decided_upto[vote.log] = vote.instance
            self._ordered_at[vote.log] = now
        leader = self._members[vote.regency % len(self._members)]
        instance = (vote.log, vote.regency, vote.instance)
        for item in [item for item, entry in self._lacking.items() if entry[2] == instance]:
            del self._lacking[item]  # others hold it, and have it from somebody
        shown = self._proposed.pop(instance, None)
        if shown is None and leader != self._me and self._links.owed(leader, now):
            stream = log_stream(vote.log)
            self._notes.add(now, Kind.MISSING, leader, UNSHOWN, "Propose", stream, vote.instance)

    # ---------------------------------------------------------------- leaders

    def _on_propose(self, sender: NodeId, message: Propose, now: Millis) -> None:
        log = log_stream(message.log)
        self._sequences.proposed(now, sender, log, message.regency, message.instance)
        instance = (message.log, message.regency, message.instance)
        if sender == self._members[message.regency % len(self._members)]:
            remember(self._proposed, instance, now)
            led = (message.log, message.regency)
            remember(self._highest, led, max(message.instance, self._highest.get(led, 0)))
            if not message.batch:
                left_open = self._open if message.regency else 0  # the first has no predecessor
                self._sequences.proposed_nothing(now, sender, log, message, left_open)
        for item in message.batch:
            place = (item.stream, item.first)
            self._showings.due(now, place)
            known = self._offered.get(place)
            if (known is None or known.item != item) and item not in self._lacking:
                remember(self._lacking, item, (sender, now, instance))
            since = self._offers.pop((item.stream, item.first), None)
            if since is not None:
                late = bucket_of(now - since)
                self._notes.add(now, Kind.CAME, sender, "", "Propose", log, bucket=late)

    def _ordered(self, batch: Batch) -> None:
        for item in batch:
            self._offers.pop((item.stream, item.first), None)
            self._lacking.pop(item, None)

    def _on_own_stop(self, log: Protection, regency: int, now: Millis) -> None:
        leader = self._members[(regency - 1) % len(self._members)]
        standing = self._standings.of(log, leader)
        if (
            leader != self._me
            and standing is not None
            and not self._standings.may_have_restarted(log, leader, regency - 1)
            and self._proposes_nothing(log, regency - 1, leader, standing, now)
        ):
            self._given_up.append(_GivenUp(now, leader, log, regency - 1, standing.decided))

    def _proposes_nothing(
        self, log: Protection, regency: int, leader: NodeId, standing: Standing, now: Millis
    ) -> bool:
        """Whether a leader that is up to date, and holds what this broker does, leaves it.

        Half of its patience ago this broker has passed on what it holds.
        """
        held = now - min(self._waiting.values(), default=now)
        return (
            held >= TIRED_MS
            and now - self._ordered_at.get(log, 0) >= TIRED_MS
            and self._links.awake(leader, now, TIRED_MS)
            # Who has restarted does not lead again in the same regency.
            and self._links.sessions.get(leader) == 1
            and (standing.regency, standing.synced, standing.fresh) == (regency, True, False)
            # Nobody leads before it knows that enough are awake, which it may not have heard.
            and (self._links.calm(now) or len(standing.awake) >= len(self._members) - self._f - 1)
        )
