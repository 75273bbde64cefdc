"""STOP, STOP-DATA, SYNC: how brokers leave a leader and agree on what the next one must propose.

    impatient ──Stop──▶ all       f+1 Stops make others join, n-f make everyone move
    everyone ──StopData──▶ leader  signed: so far I am, this I stand by
    leader ──Sync──▶ all           the words it rests on; everybody draws the same conclusion

A Sync is valid by the words in it, and only the leader of its regency may show one: two brokers
with different conclusions would not take one another's proposals.
"""

from __future__ import annotations

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Persist, Send, Suspect, Suspicion
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Signed, StopStatement
from quorumcast.crypto.keyring import Keyring
from quorumcast.ordering.birth import Birth
from quorumcast.ordering.consensus import Consensus, LogRecord
from quorumcast.ordering.messages import Fetch, Standing, Stop, StopData, Sync
from quorumcast.ordering.regency import Conclusion, conclude, read_word, sign_word


class Moved(LogRecord, frozen=True, tag=True):
    """This broker has left all regencies before this one for good."""

    regency: int

    @property
    def place(self) -> int:
        """Later records at the same place replace earlier ones."""
        return 0


class Succession:
    """This broker's part in the changes of leader of one log."""

    __slots__ = (
        "_birth",
        "_consensus",
        "_durable",
        "_keyring",
        "_me",
        "_pending",
        "_quorums",
        "_stops",
        "_sync",
        "_wanted",
        "_words",
        "entered_at",
        "moved",
        "stable",
    )

    def __init__(
        self,
        consensus: Consensus,
        quorums: OrderQuorums,
        keyring: Keyring,
        birth: Birth,
        *,
        durable: bool,
    ) -> None:
        self._birth = birth
        self._consensus = consensus
        self._quorums = quorums
        self._keyring = keyring
        self._me = keyring.identity.name
        self._durable = durable
        #: The highest regency that each member asks for.
        self._stops: dict[NodeId, int] = {}
        self._wanted = 0
        #: The words that the leader of this regency has heard; one per member.
        self._words: dict[NodeId, tuple[Signed, StopStatement]] = {}
        #: What the leader concludes, while it lacks batches to propose.
        self._pending: tuple[Conclusion, Sync] | None = None
        #: The Sync of this regency, if this broker leads it.
        self._sync: Sync | None = None
        self.entered_at = Millis(0)
        #: On a durable log: the disk says that earlier regencies are left for good.
        self.moved = 0
        #: A quorum has a checkpoint here.
        self.stable = 0

    @property
    def _log(self) -> Protection:
        return self._consensus.log

    # ----------------------------------------------------------------- Stop

    def complain(self, now: Millis) -> list[Effect]:
        """This broker has lost patience with its leader."""
        return self._want(self._consensus.regency + 1, now)

    def _want(self, regency: int, now: Millis) -> list[Effect]:
        if regency <= self._wanted:
            return []
        self._wanted = self._stops[self._me] = regency
        return [Send(self._consensus.peers, Stop(self._log, regency)), *self._move(now)]

    def on_stop(self, sender: NodeId, message: Stop, now: Millis) -> list[Effect]:
        """A member has lost patience."""
        self._stops[sender] = max(message.regency, self._stops.get(sender, 0))
        joined = self._rank(self._quorums.believe)
        effects = self._want(joined, now) if joined > self._consensus.regency else []
        return effects + self._move(now)

    def _rank(self, rank: int) -> int:
        asked = sorted(self._stops.values(), reverse=True)
        return asked[rank - 1] if len(asked) >= rank else 0

    def _move(self, now: Millis) -> list[Effect]:
        regency = self._rank(self._quorums.responders)
        return self.enter(regency, now) if regency > self._consensus.regency else []

    def enter(self, regency: int, now: Millis) -> list[Effect]:
        """Leave the present regency for good; say what this broker stands by."""
        self._consensus.enter(regency)
        self.entered_at = now
        self._words.clear()
        self._sync = None
        self._pending = None
        if self._durable:
            return [Persist(Moved(self._log, regency))]
        return self.give_word(now)

    # ------------------------------------------------------------- StopData

    def give_word(self, now: Millis) -> list[Effect]:
        """What this broker stands by, for the leader; said again with whatever is new."""
        consensus = self._consensus
        if consensus.synced or consensus.late or consensus.decided < consensus.blind:
            return []
        if self._durable and consensus.regency > self.moved:
            return []  # a word that is forgotten might be contradicted
        signed = sign_word(
            self._keyring,
            self._log,
            consensus.regency,
            consensus.decided,
            self.stable,
            max(consensus.forgotten, consensus.blind),
            consensus.claims(),
            self._birth.known,
        )
        message = StopData(self._log, signed)
        if consensus.leader == self._me:
            return self.on_stop_data(self._me, message, now)
        return [Send((consensus.leader,), message)]

    def on_stop_data(self, sender: NodeId, message: StopData, now: Millis) -> list[Effect]:
        """A member's word, for the leader that this broker is."""
        consensus = self._consensus
        word = read_word(self._keyring, consensus.members, self._log, message.statement)
        if word is None or word.broker != sender:
            return [Drop(DropReason.BAD_SIGNATURE, sender)]
        if not self._birth.believes(word):
            return [Drop(DropReason.OTHER_LOG, sender)]
        if word.regency != consensus.regency or consensus.leader != self._me:
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        if self._sync is not None:
            return [Send((sender,), self._sync)] if sender != self._me else []
        self._words[sender] = (message.statement, word)
        conclusion = conclude(self._quorums, [w for _, w in self._words.values()])
        if conclusion is None:
            return []
        statements = tuple([signed for signed, _ in self._words.values()])
        self._pending = (conclusion, Sync(self._log, consensus.regency, statements))
        return self.begin(now)

    def lacking(self) -> list[bytes]:
        """Values that this leader must propose and does not know."""
        if self._pending is None:
            return []
        return [
            value for instance in self._pending[0].values for value in self.lacking_at(instance)
        ]

    def lacking_at(self, instance: int) -> tuple[bytes, ...]:
        """The value that this leader must propose in an instance and does not know, if any."""
        if self._pending is None:
            return ()
        value = self._pending[0].values.get(instance, b"")
        known = self._consensus.slot(instance).batches
        return (value,) if value and value not in known else ()

    def begin(self, now: Millis) -> list[Effect]:
        """Show the words and lead, as soon as everything is here that must be proposed."""
        if self._pending is None:
            return []
        lacking = self.lacking()
        if lacking:
            return [Send(self._consensus.peers, Fetch(self._log, tuple(lacking)))]
        conclusion, self._sync = self._pending
        self._pending = None
        self.entered_at = now
        return [Send(self._consensus.peers, self._sync), *self._consensus.synchronise(conclusion)]

    # ----------------------------------------------------------------- Sync

    def on_sync(self, sender: NodeId, message: Sync, now: Millis) -> list[Effect]:
        """A new leader shows on what its proposals rest."""
        consensus = self._consensus
        leader = consensus.members[message.regency % len(consensus.members)]
        stale = message.regency < consensus.regency or (
            message.regency == consensus.regency and consensus.synced
        )
        if sender != leader or stale:
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        words = [
            read_word(self._keyring, consensus.members, self._log, s) for s in message.statements
        ]
        known = {word.broker: word for word in words if word is not None}
        if not all(self._birth.believes(word) for word in known.values()):
            # Perhaps its leader did not know better: it is no reason to suspect it.
            return [Drop(DropReason.OTHER_LOG, sender)]
        conclusion = (
            None
            if len(known) != len(words) or any(w.regency != message.regency for w in known.values())
            else conclude(self._quorums, list(known.values()))
        )
        if conclusion is None:
            return [Drop(DropReason.BAD_RUN, sender), Suspect(sender, Suspicion.FALSE_STATEMENT)]
        effects: list[Effect] = []
        if message.regency > consensus.regency:
            effects += self.enter(message.regency, now)
        self.entered_at = now
        return effects + consensus.synchronise(conclusion)

    # --------------------------------------------------------------- repeating

    def repeat(self, now: Millis) -> list[Effect]:
        """Say again what may have got lost."""
        effects: list[Effect] = []
        if self._wanted > self._consensus.regency:
            effects.append(Send(self._consensus.peers, Stop(self._log, self._wanted)))
        return effects + self.begin(now) + self.give_word(now)

    def on_standing(self, sender: NodeId, standing: Standing) -> list[Effect]:
        """A member that does not know this regency is shown the way into it."""
        behind = standing.regency < self._consensus.regency or not standing.synced
        if self._sync is not None and behind:
            return [Send((sender,), self._sync)]
        return []

    def on_moved(self, record: Moved, now: Millis) -> list[Effect]:
        """The disk has it: now the word may leave."""
        self.moved = max(self.moved, record.regency)
        return self.give_word(now)

    def restore(self, record: Moved) -> None:
        """What the disk says."""
        if record.regency < self._consensus.first:
            return
        self.moved = max(self.moved, record.regency)
        if record.regency > self._consensus.regency:
            self._consensus.enter(record.regency)
