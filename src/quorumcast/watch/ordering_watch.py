"""What a broker notices of others in total order: leaders, voters, and where they say they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from quorumcast.core.ids import Millis, NodeId, Stream, holder
from quorumcast.core.message import Message
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import OfferStatement, Signed, canonical
from quorumcast.crypto.identity import signature_holds
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.epochs import first_regency, within_epoch
from quorumcast.ordering.messages import (
    Accept,
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
from quorumcast.watch.observation import MAX_REMEMBERED, Kind, Notes, remember
from quorumcast.watch.sequences import Sequences
from quorumcast.watch.standings import LogParts, Standings, log_stream
from quorumcast.watch.turnout import MENDED, PATIENCE_MS, Links, Showings

#: How often a publisher's signatures are looked at.
LOOK_MS = 10
#: A log, a regency and a number.
_Instance = tuple[Protection, int, int]


class OrderingWatch:
    """The part of an observer that looks at consensus."""

    def __init__(
        self,
        manifest: Manifest,
        links: Links,
        sequences: Sequences,
        notes: Notes,
        keep: Callable[[Signed], None],
    ) -> None:
        #: Takes what is signed and contradicts something else.
        self._keep = keep
        self._members = manifest.broker_ids
        self._one_correct = manifest.quorums.one_correct
        self._cell = manifest.cell
        self._epoch = manifest.epoch
        self._keys = manifest.keys
        self._looked_at: dict[tuple[NodeId, int], int] = {}
        self._links = links
        self._sequences = sequences
        self._notes = notes
        self._showings = Showings("Offer", links, notes)
        #: What each member voted for: by kind, log, regency and instance.
        self._values: OrderedDict[tuple[type, Protection, int, int], dict[NodeId, bytes]] = (
            OrderedDict()
        )
        #: What was proposed and is not known here: who proposed it, when, and in which instance.
        self._lacking: OrderedDict[Item, tuple[NodeId, int, _Instance]] = OrderedDict()
        #: The first version of each offer.
        self._offered: OrderedDict[tuple[Stream, int], Offer] = OrderedDict()
        #: So many instances a new leader may have to fill with nothing: those left open before it.
        self._open = 2 * max(
            (c.policy.limits.pipeline for c in manifest.channels if c.policy.total), default=0
        )
        self._standings = Standings(manifest.quorums, links, notes)
        self._parts = LogParts(manifest, notes)

    def on_message(self, sender: NodeId, message: Message, now: Millis) -> None:
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
                self._lacking.clear()
            case _:
                pass

    def _on_offer(self, sender: NodeId, offer: Offer, now: Millis) -> None:
        stream, first = offer.stream, offer.first
        self._compare(offer, now)
        if sender == stream.publisher:
            self._look_at_signature(sender, offer, now)
            self._showings.shown(now, (stream, first))
        elif self._may_look(stream.publisher, now) and self._holds(self._signed(offer)):
            self._showings.enough(now, (stream, first))

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

    def on_own(self, message: Message, now: Millis) -> None:
        """Something that this node sends."""
        match message:
            case Propose(batch=batch):
                self._ordered(batch)
            case _:
                pass

    def forget(self, peer: NodeId) -> None:
        """A new session: whoever restarts begins anew."""
        self._standings.forget(peer)

    def sweep(self, now: Millis) -> None:
        """What has not come by now is missing."""
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
        if self._is_leader_vote(vote, sender):
            self._sequences.led(now, sender, stream, vote.regency, vote.instance)
        agreed = [value for value in votes.values() if value == vote.value]
        if len(agreed) >= self._one_correct:
            # One of them is correct and was shown that value by the leader of this regency.
            leader = self._members[vote.regency % len(self._members)]
            for other, value in votes.items():
                if value != vote.value:
                    reason = "leading" if other == leader else "others"
                    self._notes.add(
                        now, Kind.CONTRADICTS, other, reason, name, stream, vote.instance
                    )
        if isinstance(vote, Accept) and len(agreed) >= self._one_correct:
            # It is decided: others hold what is in it, and have it from somebody.
            instance = (vote.log, vote.regency, vote.instance)
            for item in [item for item, entry in self._lacking.items() if entry[2] == instance]:
                del self._lacking[item]

    def _is_leader_vote(self, vote: Write | Accept, voter: NodeId) -> bool:
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

    # ---------------------------------------------------------------- leaders

    def _on_propose(self, sender: NodeId, message: Propose, now: Millis) -> None:
        log = log_stream(message.log)
        self._sequences.proposed(sender, log, message.regency, message.instance)
        instance = (message.log, message.regency, message.instance)
        if not message.batch and sender == self._members[message.regency % len(self._members)]:
            left_open = self._open if message.regency else 0  # the first has no predecessor
            self._sequences.proposed_nothing(now, sender, log, message, left_open)
        for item in message.batch:
            place = (item.stream, item.first)
            self._showings.enough(now, place)
            known = self._offered.get(place)
            if (known is None or known.item != item) and item not in self._lacking:
                remember(self._lacking, item, (sender, now, instance))

    def _ordered(self, batch: Batch) -> None:
        for item in batch:
            self._lacking.pop(item, None)
