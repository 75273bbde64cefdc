"""Observations of total order: votes, proposals and offers.

- Two votes of one member for different values of one instance contradict each other.
- If f+1 members vote for a value, the leader proposed it to a correct member. A member with another
  vote lies; if that member is the leader, it equivocated.
- A leader holds the contents of every item that it proposes, and sends them when asked.
- A publisher sends its offers to every broker. Two signed versions of an offer prove equivocation.

`standings` checks what members report about their progress, and state transfer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from quorumcast.core.ids import Millis, NodeId, Stream, holder
from quorumcast.core.message import Message
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import OfferStatement, Signed, canonical
from quorumcast.core.tally import Ballot, Tally
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
from quorumcast.watch.observation import Kind, Notes, remember, tally_at
from quorumcast.watch.sequences import Sequences
from quorumcast.watch.standings import LogParts, Standings, log_stream
from quorumcast.watch.turnout import MENDED, OVERDUE_MS, LinkHistory, PublisherTurnout

#: Least time between two verified signatures of one publisher: verification is expensive.
VERIFY_EVERY_MS = 10
#: A log, a regency and an instance.
_Instance = tuple[Protection, int, int]


class _Lacking(msgspec.Struct, frozen=True):
    """A proposal of contents that this broker does not hold."""

    leader: NodeId
    since: int
    instance: _Instance


class OrderingWatch:
    """The part of an observer that follows consensus."""

    def __init__(
        self,
        manifest: Manifest,
        links: LinkHistory,
        sequences: Sequences,
        notes: Notes,
        keep: Callable[[Signed], None],
    ) -> None:
        #: Stores a signed statement as a document.
        self._keep = keep
        self._members = manifest.broker_ids
        self._one_correct = manifest.quorums.one_correct
        self._cell = manifest.cell
        self._epoch = manifest.epoch
        self._keys = manifest.keys
        #: When a signature of a publisher was last verified, by the number of versions compared.
        self._verified_at: dict[tuple[NodeId, int], int] = {}
        self._links = links
        self._sequences = sequences
        self._notes = notes
        self._offers = PublisherTurnout("Offer", links, notes)
        #: The first vote of each member, by kind, log, regency and instance.
        self._votes: OrderedDict[tuple[type, Protection, int, int], Tally[bytes]] = OrderedDict()
        #: Proposed items whose contents this broker does not hold.
        self._lacking: OrderedDict[Item, _Lacking] = OrderedDict()
        #: The first version of each offer, by stream and first number.
        self._offered: OrderedDict[tuple[Stream, int], Offer] = OrderedDict()
        #: The most instances that a new leader may have to fill with empty batches.
        self._max_left_open = 2 * max(
            (terms.pipeline for terms in manifest.logs.values()), default=0
        )
        self._standings = Standings(manifest.quorums, links, notes)
        self._parts = LogParts(manifest, notes)

    def on_message(self, sender: NodeId, message: Message, now: Millis) -> None:
        """A broker or publisher sends a message about total order."""
        if sender not in self._members and not isinstance(message, Offer):
            return
        match message:
            case Write() | Accept():
                self._on_vote(sender, message, now)
            case Propose():
                self._on_propose(sender, message, now)
            case Standing():
                self._standings.on_standing(sender, message, now)
            case Stop():
                self._standings.on_stop(sender, message, now)
            case Offer():
                self._on_offer(sender, message, now)
            case LogPart(batches=batches):
                self._parts.on_log_part(sender, message, now)
                for batch in batches:
                    self._on_batch(batch)
            case Fetched(batch=batch):
                self._on_batch(batch)
            case StateHead():
                self._standings.on_state_head(sender, message, now)
                self._lacking.clear()
            case _:
                pass

    def _on_offer(self, sender: NodeId, offer: Offer, now: Millis) -> None:
        stream, first = offer.stream, offer.first
        self._compare_versions(offer, now)
        if sender == stream.publisher:
            self._check_signature(sender, offer, now)
            self._offers.on_publisher_message(now, (stream, first))
        elif self._may_verify(stream.publisher, now) and self._holds(self._signed(offer)):
            self._offers.on_quorum(now, (stream, first))

    def _compare_versions(self, offer: Offer, now: Millis) -> None:
        """Keep two signed versions of one offer: they prove that their publisher equivocated."""
        place = (offer.stream, offer.first)
        self._lacking.pop(offer.item, None)
        known = self._offered.get(place)
        if known is None:
            remember(self._offered, place, offer)
        elif known.digests != offer.digests and self._may_verify(offer.stream.publisher, now, 2):
            versions = [self._signed(known), self._signed(offer)]
            if all(map(self._holds, versions)):
                for version in versions:
                    self._keep(version)

    def _check_signature(self, sender: NodeId, offer: Offer, now: Millis) -> None:
        """Verify a sample of the offers that publishers send themselves: brokers need not."""
        if offer.signature and self._may_verify(sender, now):
            kind = Kind.CAME if self._holds(self._signed(offer)) else Kind.CONTRADICTS
            self._notes.add(now, kind, sender, "signature", "Offer", offer.stream, offer.first)

    def _may_verify(self, publisher: NodeId, now: Millis, versions: int = 1) -> bool:
        """Whether another signature, or those of two versions, may be verified now."""
        if now - self._verified_at.get((publisher, versions), -1000) < VERIFY_EVERY_MS:
            return False
        if holder(publisher) in self._keys:
            self._verified_at[publisher, versions] = now
        return True

    def _signed(self, offer: Offer) -> Signed:
        statement = OfferStatement(
            cell=self._cell, stream=offer.stream, first=offer.first, digests=offer.digests
        )
        return Signed(offer.stream.publisher, canonical(statement), offer.signature)

    def _holds(self, signed: Signed) -> bool:
        key = self._keys.get(holder(signed.signer))
        return key is not None and signature_holds(signed, key.verify_key)

    def on_own_message(self, message: Message) -> None:
        """This node sends a message."""
        if isinstance(message, Propose):
            self._on_batch(message.batch)

    def on_new_session(self, peer: NodeId) -> None:
        """Forget a peer's reports: it may have restarted."""
        self._standings.on_new_session(peer)

    def sweep(self, now: Millis) -> None:
        """Note the offers and the proposed contents that have not come in time."""
        self._offers.sweep(now)
        noted: _Instance | None = None
        while self._lacking:
            item, lacking = next(iter(self._lacking.items()))
            leader, since = lacking.leader, lacking.since
            if now - since < OVERDUE_MS:
                break
            del self._lacking[item]
            if leader in self._links.up_since and lacking.instance != noted:
                # A leader holds what it proposes, and sends it when asked.
                reason = "" if self._links.is_complete(leader, since) else MENDED
                self._notes.add(
                    now, Kind.MISSING, leader, reason, "Propose", item.stream, item.first
                )
                noted = lacking.instance

    # ------------------------------------------------------------------ votes

    def _on_vote(self, sender: NodeId, vote: Write | Accept, now: Millis) -> None:
        stream, name = log_stream(vote.log), type(vote).__name__
        votes = tally_at(self._votes, (type(vote), vote.log, vote.regency, vote.instance))
        if votes.vote(sender, vote.value) is Ballot.CONFLICTING:
            self._notes.add(now, Kind.CONTRADICTS, sender, "itself", name, stream, vote.instance)
        if self._is_leader_vote(vote, sender):
            self._sequences.on_leader_vote(now, sender, stream, vote.regency, vote.instance)
        if votes.count(vote.value) < self._one_correct:
            return
        # One of these members is correct and got that value from the leader of this regency.
        leader = self._members[vote.regency % len(self._members)]
        for other, value in votes.votes().items():
            if value != vote.value:
                reason = "leading" if other == leader else "others"
                self._notes.add(now, Kind.CONTRADICTS, other, reason, name, stream, vote.instance)
        if isinstance(vote, Accept):
            # The instance is decided, so other brokers hold the contents.
            instance = (vote.log, vote.regency, vote.instance)
            for item in [i for i, entry in self._lacking.items() if entry.instance == instance]:
                del self._lacking[item]

    def _is_leader_vote(self, vote: Write | Accept, voter: NodeId) -> bool:
        """Whether a leader votes for an instance that it must have proposed to us.

        For an instance that it knew when our view of it became complete, a leader may repeat its
        vote alone, for example after a restart. Leaders of other epochs are unknown here.
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
        self._sequences.on_proposal(sender, log, message.regency, message.instance)
        instance = (message.log, message.regency, message.instance)
        if not message.batch and sender == self._members[message.regency % len(self._members)]:
            # The leader of regency 0 has no predecessor.
            left_open = self._max_left_open if message.regency else 0
            self._sequences.on_empty_proposal(now, sender, log, message, left_open)
        for item in message.batch:
            place = (item.stream, item.first)
            self._offers.on_quorum(now, place)
            known = self._offered.get(place)
            if (known is None or known.item != item) and item not in self._lacking:
                remember(self._lacking, item, _Lacking(sender, now, instance))

    def _on_batch(self, batch: Batch) -> None:
        """A batch can be fetched from another node than its leader."""
        for item in batch:
            self._lacking.pop(item, None)
