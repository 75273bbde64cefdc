"""PROPOSE, WRITE, ACCEPT: one batch per instance, several instances at once.

    leader ──Propose──▶ all ──Write──▶ all ──Accept──▶ all: decided at a quorum of Accepts

A broker writes a value only if it holds everything in it, writes one value per instance and
regency, and accepts the value that a quorum wrote. Any two quorums share a correct broker, so no
two values are decided in one regency; `leader_change` sees to that across regencies. Where brokers
only crash nobody needs to write: a broker accepts what the leader proposed, and a majority decides.

On a durable log a vote is on disk before it leaves, and counts for its broker itself only then. A
broker that lost its disk takes no part up to `blind`: it might contradict itself.

Source: FIT-Broker §4.4.2 (its WEAK and STRONG), appendix A. Ours: quorums of ⌈(n+f+1)/2⌉ for both
(the document decides at f+1 STRONGs, which a leader change can undo), digests instead of batches
in the votes, and a window of instances instead of one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_WRITTEN
from quorumcast.core.machine import (
    Drop,
    DropReason,
    Effect,
    Persist,
    Record,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Claim
from quorumcast.core.tally import Tally
from quorumcast.crypto.digest import Hasher
from quorumcast.ordering.messages import Accept, Batch, Item, Offer, Propose, Write

#: Values written in one instance that a broker remembers; older ones only help to prove.
KEPT_VALUES = MAX_WRITTEN
#: A vote: in which regency, and for which value.
Vote = tuple[int, bytes]


class Conclusion(msgspec.Struct, frozen=True):
    """What a new leader must propose before anything of its own (`leader_change.conclude`)."""

    #: Enough brokers have decided everything up to here.
    low: int
    #: For every instance from low+1 on that may have been decided: its value, b"" if empty.
    values: dict[int, bytes]


class Slot:
    """One instance."""

    __slots__ = (
        "accepted",
        "accepts",
        "batches",
        "decided",
        "proposed",
        "sent",
        "writes",
        "written",
    )

    def __init__(self) -> None:
        #: What the leader proposed: regency and value.
        self.proposed: Vote = (-1, b"")
        #: Batches known for this instance, by value; at most KEPT_VALUES and the decided one.
        self.batches: dict[bytes, Batch] = {}
        #: The last vote of each member.
        self.writes: Tally[Vote] = Tally()
        self.accepts: Tally[Vote] = Tally()
        #: What this broker itself wrote (value → last regency), and accepted last.
        self.written: dict[bytes, int] = {}
        self.accepted: Vote = (-1, b"")
        #: Votes of this broker that have left, for retransmission.
        self.sent: list[Write | Accept] = []
        self.decided = b""

    def wrote(self, regency: int) -> bool:
        """Whether this broker has written in a regency."""
        return regency in self.written.values()

    def keep(self, value: bytes, batch: Batch) -> None:
        """Know a batch; what was neither written nor decided gives way."""
        self.batches[value] = batch
        if len(self.batches) > KEPT_VALUES:
            for stale in list(self.batches):
                if stale not in (*self.written, value, self.decided, self.proposed[1]):
                    del self.batches[stale]
                    break


_encode = msgspec.msgpack.Encoder().encode


def value_of(hash_: Hasher, batch: tuple[Item, ...]) -> bytes:
    """The digest that stands for a batch."""
    return hash_(_encode(batch))


class LogRecord(Record, frozen=True, tag=True):
    """A record that belongs to one log."""

    log: Protection

    @property
    def owner(self) -> str:
        """Whose record it is."""
        return self.log.value


class InstanceRecord(LogRecord, frozen=True, tag=True):
    """A record about one instance of a log; the newest one of its kind counts."""

    instance: int

    @property
    def place(self) -> int:
        """The instance: a later record about it replaces this one."""
        return self.instance


class Voted(InstanceRecord, frozen=True, tag=True):
    """What this broker wrote and accepted in one instance, and must not contradict."""

    regency: int
    accepted: Vote
    written: tuple[tuple[bytes, int], ...]
    batches: tuple[Batch, ...]


class Consensus:
    """This broker's part in every instance of one log."""

    __slots__ = (
        "_durable",
        "_hash",
        "_holds",
        "_kept",
        "_me",
        "_quorums",
        "blind",
        "conclusion",
        "decided",
        "first",
        "forgotten",
        "late",
        "log",
        "members",
        "peers",
        "regency",
        "slots",
        "stable",
        "synced",
        "window",
    )

    def __init__(
        self,
        log: Protection,
        me: NodeId,
        members: tuple[NodeId, ...],
        quorums: OrderQuorums,
        hash_: Hasher,
        *,
        durable: bool,
        window: int,
        holds: Callable[[Batch], bool],
        kept: int | None = None,
        first: int = 0,
    ) -> None:
        self.log = log
        self._me = me
        self.members = members
        self.peers = tuple(member for member in members if member != me)
        self._quorums = quorums
        self._hash = hash_
        self._durable = durable
        #: Instances that may be under way at once.
        self.window = window
        #: Instances that may pile up beyond the forgotten ones, for want of a stable checkpoint.
        self._kept = kept
        #: Whether everything in a batch is here and genuine.
        self._holds = holds
        #: The regency in which its epoch began: nothing that was said before it counts.
        self.first = first
        self.regency = first
        #: Whether the leader of this regency has shown on what its proposals rest.
        self.synced = True
        #: What the leader must propose first.
        self.conclusion = Conclusion(0, {})
        #: Instances beyond `forgotten`; at most a few checkpoints' worth and the window.
        self.slots: dict[int, Slot] = {}
        #: Every instance up to this one is decided; only grows.
        self.decided = 0
        #: A quorum has a checkpoint here; only grows.
        self.stable = 0
        #: Slots up to here are gone: a quorum has a checkpoint beyond.
        self.forgotten = 0
        #: This broker forgot what it did up to here, and takes no part.
        self.blind = 0
        #: Nor does it while it does not know in which instance its epoch began.
        self.late = False

    @property
    def leader(self) -> NodeId:
        """Who proposes in this regency."""
        return self.members[self.regency % len(self.members)]

    @property
    def leads(self) -> bool:
        """Whether this broker may propose."""
        return self.synced and self.leader == self._me

    @property
    def horizon(self) -> int:
        """The last instance that may be under way.

        Checkpoints that do not become stable hold it up: a liar could otherwise, while a correct
        broker is slow, vote and deny all checkpoints, and what the others keep would never end.
        """
        reach = self.decided + self.window
        return reach if self._kept is None else min(reach, self.forgotten + self._kept)

    def slot(self, instance: int) -> Slot:
        """The slot of an instance in the window."""
        return self.slots.setdefault(instance, Slot())

    # ------------------------------------------------------------ proposing

    def propose(self, instance: int, batch: Batch) -> list[Effect]:
        """The leader's part."""
        message = Propose(self.log, self.regency, instance, batch)
        return [Send(self.peers, message), *self._on_value(self._me, instance, batch)]

    def on_propose(self, sender: NodeId, message: Propose) -> list[Effect]:
        """What the leader wants decided."""
        if message.regency != self.regency or not self.synced or sender != self.leader:
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        return self._on_value(sender, message.instance, message.batch)

    def _on_value(self, sender: NodeId, instance: int, batch: Batch) -> list[Effect]:
        if not max(self.forgotten, self.conclusion.low) < instance <= self.horizon:
            return [Drop(DropReason.OUT_OF_WINDOW, sender)]
        value = value_of(self._hash, batch)
        bound = self.conclusion.values.get(instance)
        if bound is not None and value != (bound or value_of(self._hash, ())):
            return self._lied(sender)
        slot = self.slot(instance)
        if slot.proposed[0] == self.regency and slot.proposed[1] != value:
            return self._lied(sender)
        slot.proposed = (self.regency, value)
        slot.keep(value, batch)
        return self.consider(instance)

    def _lied(self, sender: NodeId) -> list[Effect]:
        return [Drop(DropReason.CONFLICT, sender), Suspect(sender, Suspicion.EQUIVOCATION)]

    def consider(self, instance: int) -> list[Effect]:
        """Vote for what was proposed, once everything in it is here.

        Also for what is decided already, if a new leader proposes it again: others may lack it.
        """
        slot = self.slots[instance]
        regency, value = slot.proposed
        if (
            regency != self.regency
            or not self.synced
            or self._mute(instance)
            or slot.wrote(regency)
            or slot.decided not in (b"", value)
            or not (slot.decided or self._holds(slot.batches[value]))
        ):
            return []
        slot.written[value] = regency
        if len(slot.written) > KEPT_VALUES:
            del slot.written[min(slot.written, key=slot.written.__getitem__)]
        if self._quorums.byzantine:
            return self._cast(instance, slot, Write(self.log, regency, instance, value))
        slot.accepted = (regency, value)
        return self._cast(instance, slot, Accept(self.log, regency, instance, value))

    def _mute(self, instance: int) -> bool:
        """Whether this broker must say nothing there."""
        return self.late or instance <= self.blind

    def holds(self, instance: int, value: bytes) -> bool:
        """Whether this broker could vote for a value there: it holds everything in it."""
        slot = self.slot(instance)
        known = value in slot.batches and self._holds(slot.batches[value])
        return known or slot.decided == value

    def waiting(self) -> list[tuple[int, Batch]]:
        """Proposals of this regency that have not been voted for, and why: something is lacking."""
        # Asked with every offer: nothing waits outside the window, and many slots lie behind it.
        window = range(self.decided + 1, self.decided + self.window + 1)
        return [
            (instance, slot.batches[slot.proposed[1]])
            for instance in window
            if (slot := self.slots.get(instance)) is not None
            and slot.proposed[0] == self.regency
            and not slot.wrote(self.regency)
            and not slot.decided
        ]

    def awaits(self, offer: Offer) -> bool:
        """Whether a proposal of this regency waits for this run."""
        return any(offer.item in batch for _, batch in self.waiting())

    # --------------------------------------------------------------- voting

    def _cast(self, instance: int, slot: Slot, vote: Write | Accept) -> list[Effect]:
        """A vote leaves, and counts for this broker itself, once it is safe to."""
        if not self._durable:
            return [Send(self.peers, vote), *self._count_own(slot, vote)]
        return [Persist(self._record(instance, slot), (Send(self.peers, vote),))]

    def _record(self, instance: int, slot: Slot) -> Voted:
        batches = tuple([slot.batches[v] for v in slot.written if v in slot.batches])
        return Voted(
            self.log, instance, self.regency, slot.accepted, tuple(slot.written.items()), batches
        )

    def on_persisted(self, record: Voted) -> list[Effect]:
        """A vote of ours is safe: now it counts."""
        slot = self.slots.get(record.instance)
        if slot is None or record.regency < self.first:
            return []
        regency, value = record.accepted
        if regency == record.regency:
            vote: Write | Accept = Accept(self.log, regency, record.instance, value)
        else:
            regency = record.regency
            value = next((v for v, r in record.written if r == regency), b"")
            vote = Write(self.log, regency, record.instance, value)
        return self._count_own(slot, vote)

    def _count_own(self, slot: Slot, vote: Write | Accept) -> list[Effect]:
        if not any(old.regency > vote.regency for old in slot.sent):
            slot.sent = [old for old in slot.sent if old.regency == vote.regency] + [vote]
        return self.on_vote(self._me, vote)

    def on_vote(self, sender: NodeId, vote: Write | Accept) -> list[Effect]:
        """A member's vote; its first one in a regency stands."""
        if sender not in self.members:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        if vote.regency < self.first:
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        if not self.forgotten < vote.instance <= self.horizon + self.window:
            return [Drop(DropReason.OUT_OF_WINDOW, sender)]
        slot = self.slot(vote.instance)
        votes = slot.writes if isinstance(vote, Write) else slot.accepts
        earlier = votes.vote_of(sender) or (-1, b"")
        if earlier[0] == vote.regency and earlier[1] != vote.value:
            return self._lied(sender)
        if earlier[0] >= vote.regency:
            return []
        votes.revote(sender, (vote.regency, vote.value))
        return self._progress(vote.instance, slot)

    def _progress(self, instance: int, slot: Slot) -> list[Effect]:
        effects = self._maybe_accept(instance, slot) if self._quorums.byzantine else []
        if not slot.decided:
            won = slot.accepts.leader(self._quorums.decide)
            if won is not None:
                self.decide(instance, won[1])
        return effects

    def _maybe_accept(self, instance: int, slot: Slot) -> list[Effect]:
        won = slot.writes.leader(self._quorums.decide)
        if (
            won is None
            or won[0] != self.regency
            or slot.accepted[0] >= self.regency
            or not self.synced
            or self._mute(instance)
        ):
            return []
        slot.accepted = won
        return self._cast(instance, slot, Accept(self.log, won[0], instance, won[1]))

    # ------------------------------------------------------------- deciding

    def decide(self, instance: int, value: bytes, batch: Batch | None = None) -> None:
        """A value is decided: by a quorum, or because enough others report it."""
        known = self.slots.get(instance)
        if instance > self.decided:
            known = self.slot(instance)
            known.decided = value
        if batch is not None and known is not None and known.decided == value:
            known.keep(value, batch)
        while (following := self.slots.get(self.decided + 1)) is not None and following.decided:
            self.decided += 1

    def batch(self, instance: int) -> Batch | None:
        """The batch that was decided in an instance, if it is known."""
        slot = self.slots.get(instance)
        return None if slot is None else slot.batches.get(slot.decided)

    def named(self) -> set[Item]:
        """Every run in a batch that this broker knows of."""
        batches = [batch for slot in self.slots.values() for batch in slot.batches.values()]
        return {item for batch in batches for item in batch}

    def proposed(self) -> set[Item]:
        """Every run that the leader of this regency has proposed, as far as this broker knows."""
        slots = [slot for slot in self.slots.values() if slot.proposed[0] == self.regency]
        return {item for slot in slots for item in slot.batches.get(slot.proposed[1], ())}

    def claims(self) -> tuple[Claim, ...]:
        """What this broker accepted and wrote, instance by instance."""
        return tuple(
            Claim(instance, max(slot.accepted[0], 0), slot.accepted[1], tuple(slot.written.items()))
            for instance, slot in sorted(self.slots.items())
            if slot.written or slot.accepted[1]
        )

    # ------------------------------------------------------------ regencies

    def enter(self, regency: int) -> None:
        """Move to a regency, whose leader has to send its Sync first."""
        self.regency = regency
        self.synced = False
        self.conclusion = Conclusion(0, {})

    def synchronise(self, conclusion: Conclusion) -> list[Effect]:
        """The leader has sent its Sync: this follows from it."""
        self.synced = True
        self.conclusion = conclusion
        effects: list[Effect] = []
        for instance, slot in list(self.slots.items()):
            effects += self._progress(instance, slot)
        return effects

    def retransmit(self) -> list[Effect]:
        """Send again what may have got lost."""
        effects: list[Effect] = []
        for instance in range(self.decided + 1, self.horizon + 1):
            slot = self.slots.get(instance)
            if slot is None:
                continue
            if self.leads and slot.proposed[0] == self.regency:
                batch = slot.batches[slot.proposed[1]]
                effects.append(Send(self.peers, Propose(self.log, self.regency, instance, batch)))
            effects += [Send(self.peers, vote) for vote in slot.sent]
        return effects

    def follow(self, before: Consensus, upto: int) -> None:
        """Go on after an earlier epoch, of which everything up to an instance stands.

        Of these instances this broker keeps what was decided; all votes were that epoch's.
        """
        self.forgotten = self.decided = before.forgotten
        for instance, old in sorted(before.slots.items()):
            if instance <= upto and old.decided in old.batches:
                self.decide(instance, old.decided, old.batches[old.decided])

    def begin(self, instance: int) -> None:
        """It has turned out in which instance the epoch began: consensus goes on after it."""
        self.late = False
        self.decided = max(self.decided, instance)
        if self.regency == self.first:
            self.conclusion = Conclusion(instance, {})

    # ------------------------------------------------- remembering, forgetting

    def restore(self, record: Voted) -> None:
        """What the disk says this broker did."""
        if record.instance <= self.forgotten or record.regency < self.first:
            return
        slot = self.slot(record.instance)
        slot.accepted = record.accepted
        slot.written = dict(record.written)
        for batch in record.batches:
            slot.batches[value_of(self._hash, batch)] = batch
        for value, regency in record.written:
            if self._quorums.byzantine and regency == record.regency:
                slot.sent.append(Write(self.log, regency, record.instance, value))
                slot.writes.revote(self._me, (regency, value))
        if record.accepted[0] == record.regency:
            slot.sent.append(Accept(self.log, record.regency, record.instance, record.accepted[1]))
            slot.accepts.revote(self._me, record.accepted)
        if record.regency > self.regency:
            self.enter(record.regency)

    def forget(self, upto: int) -> None:
        """Nobody needs to know any more what this broker did up to here."""
        self.forgotten = max(self.forgotten, upto)
        for instance in [i for i in self.slots if i <= upto]:
            del self.slots[instance]

    def skip_to(self, instance: int) -> None:
        """Go on after a state that was fetched from others."""
        self.decided = max(self.decided, instance)
        self.forget(instance)
        while (slot := self.slots.get(self.decided + 1)) is not None and slot.decided:
            self.decided += 1

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            "slots": len(self.slots),
            "slot_batches": max((len(slot.batches) for slot in self.slots.values()), default=0),
        }
