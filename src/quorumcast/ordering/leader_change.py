"""Leader change (Mod-SMaRt): the timeouts that start it, STOP, STOP-DATA and SYNC.

    a broker whose timeout ran out ──Stop──▶ all   f+1 Stops make others join, n-f make all move
    everyone ──StopData──▶ new leader              signed: how far I am, what I accepted and wrote
    new leader ──Sync──▶ all                       n-f or more of these signed statements

Everybody draws the same conclusion from the statements in a Sync (`conclude`):

    a value v accepted in regency r is kept if
      A1  each broker of a quorum accepted nothing in the instance, or something in a regency
          before r, or v in r, and
      A2  f+1 brokers (one, where brokers only crash) wrote v in r or later, so v is no invention;
    an instance is empty if a quorum accepted nothing in it;
    otherwise more statements are needed.

Why a decided value survives: a quorum accepted v in r, so every quorum of A1 shares a correct
broker with it, whose statement is about v in r or about a later regency: A1 fails for other values
of r or earlier, and the instance does not count as empty. In later regencies no
correct broker wrote anything but v, for the same reason, so A2 fails for other values. Only the
leader of a regency may send its Sync: two brokers with different conclusions would not accept one
another's proposals.

Source: FIT-Broker §4.4.3 and Mod-SMaRt; the rule is that of PBFT without signatures on the fast
path (Castro and Liskov 2002). Ours: only these statements are signed, so ordering costs no
signature per instance. FIT-Broker's crash-mode election (appendix B) has no such phase and can lose
a decided batch; here crash and Byzantine logs both use this one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Drop, DropReason, Effect, Persist, Send, Suspect, Suspicion
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Claim, Signed, StopStatement, canonical, parse_stop
from quorumcast.core.tally import reached_by
from quorumcast.crypto.keyring import Keyring
from quorumcast.ordering.consensus import Conclusion, Consensus, LogRecord
from quorumcast.ordering.execution import Execution
from quorumcast.ordering.genesis import Genesis
from quorumcast.ordering.messages import Fetch, Standing, Stop, StopData, Sync

#: How long nothing may be ordered while offers wait; doubled with every request for another
#: leader until something is ordered, so that in a slow network some leader has time enough.
LEADER_TIMEOUT_MS = 600
MAX_LEADER_TIMEOUT_MS = 8 * LEADER_TIMEOUT_MS
#: A new leader waits this long for more statements than n-f if these bind it to what it lacks.
STATEMENTS_MS = 300
#: After this time in which no order took half of the leader timeout, the timeout is halved.
CALM_MS = 10_000
#: How long one offer may wait while others are ordered.
CENSORSHIP_TIMEOUT_MS = 6000
#: Most offers forwarded to the leader at a time: while nothing is ordered, and while other offers
#: are (the leader has most of them then).
FORWARDED, FORWARDED_BESIDE = 64, 4


def conclude(quorums: OrderQuorums, statements: Sequence[StopStatement]) -> Conclusion | None:
    """What follows from the statements of n-f or more brokers; None if more are needed.

    Every instance that a statement names is looked at, however far it is: brokers may be many
    instances apart. What only a liar names is not kept, though it may take more statements to see
    that; a value that is kept was written by a correct broker, so it is not far beyond the others.
    """
    if len(statements) < quorums.responders:
        return None
    low = max(
        reached_by((statement.decided for statement in statements), quorums.anchored),
        reached_by((statement.stable for statement in statements), quorums.believe),
    )
    claims = [{claim.instance: claim for claim in stated.claims} for stated in statements]
    named = {i for found in claims for i, claim in found.items() if claim.value and i > low}
    values: dict[int, bytes] = {}

    def settle(instance: int) -> bool:
        if instance not in values:
            about = [found.get(instance) for found in claims]
            value = _value_of(quorums, statements, about, instance)
            if value is None:
                return False
            values[instance] = value
        return True

    if not all(map(settle, named)):
        return None
    last = max((instance for instance, value in values.items() if value), default=low)
    bound = range(low + 1, last + 1)
    if not all(map(settle, bound)):
        return None
    return Conclusion(low, {instance: values[instance] for instance in bound})


def _value_of(
    quorums: OrderQuorums,
    statements: Sequence[StopStatement],
    claims: Sequence[Claim | None],
    instance: int,
) -> bytes | None:
    # A broker that has forgotten what it did in this instance says nothing about it.
    heard = [
        claim or Claim(instance)
        for statement, claim in zip(statements, claims, strict=True)
        if statement.blind < instance
    ]
    accepted = sorted(
        {(claim.regency, claim.value) for claim in heard if claim.value}, reverse=True
    )
    for regency, value in accepted:
        agree = sum(
            not claim.value
            or claim.regency < regency
            or (claim.regency, claim.value) == (regency, value)
            for claim in heard
        )
        proof = sum(any(v == value and r >= regency for v, r in claim.written) for claim in heard)
        if agree >= quorums.decide and proof >= quorums.believe:
            return value
    if sum(not claim.value for claim in heard) >= quorums.decide:
        return b""
    return None


def _claims(statement: StopStatement, values: Collection[tuple[int, bytes]]) -> bool:
    """Whether a broker says that it accepted one of these values."""
    return any((claim.instance, claim.value) in values for claim in statement.claims)


def read_stop(
    keyring: Keyring, members: Sequence[NodeId], log: Protection, signed: Signed
) -> StopStatement | None:
    """A member's statement, if it is one and the signature holds."""
    statement = parse_stop(signed.payload)
    if (
        statement is None
        or statement.broker != signed.signer
        or statement.broker not in members
        or (statement.cell, statement.log) != (keyring.instance, log)
        or len({claim.instance for claim in statement.claims}) != len(statement.claims)
        or not keyring.signature_holds(signed)
    ):
        return None
    return statement


class Moved(LogRecord, frozen=True, tag=True):
    """This broker has left all regencies before this one for good."""

    regency: int


class LeaderChange:
    """This broker's part in the leader changes of one log."""

    __slots__ = (
        "_consensus",
        "_durable",
        "_genesis",
        "_keyring",
        "_me",
        "_pending",
        "_quorums",
        "_requested",
        "_statements",
        "_stops",
        "_sync",
        "entered_at",
        "moved",
    )

    def __init__(
        self,
        consensus: Consensus,
        quorums: OrderQuorums,
        keyring: Keyring,
        genesis: Genesis,
        *,
        durable: bool,
    ) -> None:
        self._consensus = consensus
        self._quorums = quorums
        self._keyring = keyring
        self._me = keyring.identity.name
        self._durable = durable
        self._genesis = genesis
        #: The highest regency that each member asks for, and that this broker asks for.
        self._stops: dict[NodeId, int] = {}
        self._requested = 0
        #: The statements that the leader of this regency has received; one per member.
        self._statements: dict[NodeId, tuple[Signed, StopStatement]] = {}
        #: What the leader concludes, while it lacks batches to propose.
        self._pending: tuple[Conclusion, Sync] | None = None
        #: The Sync of this regency, if this broker leads it.
        self._sync: Sync | None = None
        #: When this broker entered the regency or, later, sent or got its Sync.
        self.entered_at = Millis(0)
        #: On a durable log: the newest regency whose `Moved` is on disk.
        self.moved = 0

    @property
    def _log(self) -> Protection:
        return self._consensus.log

    # ----------------------------------------------------------------- Stop

    def request(self, now: Millis) -> list[Effect]:
        """Ask for the next leader."""
        return self._request(self._consensus.regency + 1, now)

    def _request(self, regency: int, now: Millis) -> list[Effect]:
        if regency <= self._requested:
            return []
        self._requested = self._stops[self._me] = regency
        return [Send(self._consensus.peers, Stop(self._log, regency)), *self._maybe_enter(now)]

    def on_stop(self, sender: NodeId, message: Stop, now: Millis) -> list[Effect]:
        """A member asks for another leader."""
        self._stops[sender] = max(message.regency, self._stops.get(sender, 0))
        joined = reached_by(self._stops.values(), self._quorums.believe)
        effects = self._request(joined, now) if joined > self._consensus.regency else []
        return effects + self._maybe_enter(now)

    def _maybe_enter(self, now: Millis) -> list[Effect]:
        regency = reached_by(self._stops.values(), self._quorums.responders)
        return self.enter(regency, now) if regency > self._consensus.regency else []

    def enter(self, regency: int, now: Millis) -> list[Effect]:
        """Leave the present regency for good, and send the new leader a statement."""
        self._consensus.enter(regency)
        self.entered_at = now
        self._statements.clear()
        self._sync = None
        self._pending = None
        if self._durable:
            return [Persist(Moved(self._log, regency))]
        return self.send_stop_data(now)

    # ------------------------------------------------------------- StopData

    def send_stop_data(self, now: Millis) -> list[Effect]:
        """Tell the leader what this broker accepted and wrote; again with whatever is new."""
        consensus, keyring = self._consensus, self._keyring
        # It is not needed any more, or this broker does not know what it did.
        if consensus.synced or consensus.late or consensus.decided < consensus.blind:
            return []
        # After a crash before that is on disk, it could contradict its statement.
        if self._durable and consensus.regency > self.moved:
            return []
        statement = StopStatement(
            cell=keyring.instance,
            log=self._log,
            broker=self._me,
            regency=consensus.regency,
            decided=consensus.decided,
            stable=consensus.stable,
            blind=max(consensus.forgotten, consensus.blind),
            claims=consensus.claims(),
            log_id=self._genesis.log_id,
        )
        message = StopData(self._log, keyring.identity.sign(canonical(statement)))
        if consensus.leader == self._me:
            return self.on_stop_data(self._me, message, now)
        return [Send((consensus.leader,), message)]

    def on_stop_data(self, sender: NodeId, message: StopData, now: Millis) -> list[Effect]:
        """A member's statement, for the leader that this broker is."""
        consensus = self._consensus
        statement = read_stop(self._keyring, consensus.members, self._log, message.statement)
        if statement is None or statement.broker != sender:
            return [Drop(DropReason.BAD_SIGNATURE, sender)]
        if not self._genesis.is_same_log(statement):
            return [Drop(DropReason.OTHER_LOG, sender)]
        if statement.regency != consensus.regency or consensus.leader != self._me:
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        if self._sync is not None:
            return [Send((sender,), self._sync)] if sender != self._me else []
        self._statements[sender] = (message.statement, statement)
        self._choose()
        return self.maybe_lead(now)

    def _choose(self) -> None:
        """Choose the statements to show: all so far, or those that bind to nothing unknown.

        One broker alone may have accepted what its publisher gave to nobody else, and keep it back.
        Where brokers only crash, all would wait for that broker; any n-f statements will do.
        """
        stated = list(self._statements.values())
        found = self._concluded(stated)
        if found is None:
            return
        self._pending = found
        unknown = {(i, value) for i, value in found[0].values.items() if self._lacks(i, value)}
        others = [(signed, said) for signed, said in stated if not _claims(said, unknown)]
        if unknown and (chosen := self._concluded(others)) is not None:
            self._pending = chosen

    def _concluded(
        self, stated: Sequence[tuple[Signed, StopStatement]]
    ) -> tuple[Conclusion, Sync] | None:
        conclusion = conclude(self._quorums, [statement for _, statement in stated])
        if conclusion is None:
            return None
        shown = tuple([signed for signed, _ in stated])
        return conclusion, Sync(self._log, self._consensus.regency, shown)

    def _lacks(self, instance: int, value: bytes) -> bool:
        """Whether this leader would have to propose something that it does not hold."""
        return value != b"" and not self._consensus.holds(instance, value)

    def _waits(self, conclusion: Conclusion, now: Millis) -> bool:
        """Whether this leader lacks what it is bound to, and other statements may still come."""
        lacks = any(self._lacks(i, value) for i, value in conclusion.values.items())
        missing = len(self._statements) < len(self._consensus.members)
        return lacks and missing and now - self.entered_at < STATEMENTS_MS

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

    def maybe_lead(self, now: Millis) -> list[Effect]:
        """Send the Sync and lead, once every batch is here that must be proposed."""
        if self._pending is None:
            return []
        lacking = self.lacking()
        if lacking:
            return [Send(self._consensus.peers, Fetch(self._log, tuple(lacking)))]
        if self._waits(self._pending[0], now):
            return []
        conclusion, self._sync = self._pending
        self._pending = None
        self.entered_at = now
        return [Send(self._consensus.peers, self._sync), *self._consensus.synchronise(conclusion)]

    # ----------------------------------------------------------------- Sync

    def on_sync(self, sender: NodeId, message: Sync, now: Millis) -> list[Effect]:
        """A new leader shows the statements that justify its proposals."""
        consensus = self._consensus
        leader = consensus.members[message.regency % len(consensus.members)]
        stale = message.regency < consensus.regency or (
            message.regency == consensus.regency and consensus.synced
        )
        if sender != leader or stale:
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        shown = [
            read_stop(self._keyring, consensus.members, self._log, s) for s in message.statements
        ]
        known = {stated.broker: stated for stated in shown if stated is not None}
        if not all(map(self._genesis.is_same_log, known.values())):
            # The leader may not know the id of the log yet, and so cannot tell: no suspicion.
            return [Drop(DropReason.OTHER_LOG, sender)]
        conclusion = (
            None
            if len(known) != len(shown) or any(s.regency != message.regency for s in known.values())
            else conclude(self._quorums, list(known.values()))
        )
        if conclusion is None:
            return [Drop(DropReason.BAD_RUN, sender), Suspect(sender, Suspicion.FALSE_STATEMENT)]
        effects: list[Effect] = []
        if message.regency > consensus.regency:
            effects += self.enter(message.regency, now)
        self.entered_at = now
        return effects + consensus.synchronise(conclusion)

    # -------------------------------------------------------- retransmission

    def retransmit(self, now: Millis) -> list[Effect]:
        """Send again what may have got lost."""
        effects: list[Effect] = []
        if self._requested > self._consensus.regency:
            effects.append(Send(self._consensus.peers, Stop(self._log, self._requested)))
        return effects + self.maybe_lead(now) + self.send_stop_data(now)

    def on_standing(self, sender: NodeId, standing: Standing) -> list[Effect]:
        """Send the Sync to a member that has not got it."""
        behind = standing.regency < self._consensus.regency or not standing.synced
        if self._sync is not None and behind:
            return [Send((sender,), self._sync)]
        return []

    def on_moved(self, record: Moved, now: Millis) -> list[Effect]:
        """The new regency is on disk: now the statement may leave."""
        self.moved = max(self.moved, record.regency)
        return self.send_stop_data(now)

    def restore(self, record: Moved) -> None:
        """Enter the regency that the disk names."""
        if record.regency < self._consensus.first:
            return
        self.moved = max(self.moved, record.regency)
        if record.regency > self._consensus.regency:
            self._consensus.enter(record.regency)


class LeaderTimeout:
    """When a broker forwards its offers to the leader, and when it asks for another leader.

    After half of the timeout it forwards what waits, which the publisher may have kept from the
    leader; and, while others are ordered, a little of what has waited for a whole timeout. It
    forwards nothing that the leader has proposed, and nothing more until the leader has had time to
    take it: offers are large, and a leader that is merely slow would get slower with each of them.

    The timeout is doubled with every request for another leader. An order does not take that back:
    where orders take longer than the shortest timeout, every other leader would be replaced. It is
    halved after `CALM_MS` in which nothing waited for half of it.

    A broker that is behind what others say they have decided gives them the longest timeout to send
    it: a late broker must not unseat a leader that works. If nothing comes, those others may have
    crashed, the leader among them, and only a leader change gets the rest decided.
    """

    __slots__ = (
        "_change",
        "_consensus",
        "_execution",
        "_forwarded_at",
        "_since",
        "_strained_at",
        "_timeout_ms",
    )

    def __init__(self, consensus: Consensus, execution: Execution, change: LeaderChange) -> None:
        self._consensus = consensus
        self._execution = execution
        self._change = change
        self._timeout_ms = LEADER_TIMEOUT_MS
        #: When something last waited for half of the timeout, or the timeout was changed.
        self._strained_at = Millis(0)
        #: When something was last ordered, or another leader asked for.
        self._since = Millis(0)
        #: When something was last forwarded.
        self._forwarded_at = Millis(0)

    def reset(self, now: Millis) -> None:
        """Something was ordered."""
        self._since = now
        if now - self._strained_at > CALM_MS and self._timeout_ms > LEADER_TIMEOUT_MS:
            self._timeout_ms //= 2
            self._strained_at = now

    def check(self, now: Millis, *, behind: bool) -> list[Effect]:
        """Time has passed; this broker is behind what others have decided, or not."""
        synced = self._consensus.synced
        oldest = self._execution.oldest
        if synced and oldest is None:
            return []
        began = self._change.entered_at
        waited = now - max(self._since, began, oldest or Millis(0))
        passed_over = 0 if oldest is None or behind else now - max(oldest, began)
        timeout_ms = MAX_LEADER_TIMEOUT_MS if behind else self._timeout_ms
        effects: list[Effect] = []
        if waited > timeout_ms // 2:
            self._strained_at = now
        if synced and waited > timeout_ms // 2:
            if now - self._forwarded_at >= timeout_ms // 2:
                effects += self._forward(FORWARDED, now, now)
            if self._execution.oldest is None:
                return effects  # all that waited had a forged signature, and was dropped
        elif synced and min(passed_over, now - self._forwarded_at) > LEADER_TIMEOUT_MS:
            effects += self._forward(FORWARDED_BESIDE, Millis(now - LEADER_TIMEOUT_MS), now)
        if waited > timeout_ms or passed_over > CENSORSHIP_TIMEOUT_MS:
            self._timeout_ms = min(2 * self._timeout_ms, MAX_LEADER_TIMEOUT_MS)
            self._since = now
            effects += self._change.request(now)
        return effects

    def _forward(self, most: int, before: Millis, now: Millis) -> list[Effect]:
        """Forward offers that came before a moment and that the leader has not proposed."""
        self._forwarded_at = now
        leader = self._consensus.leader
        # Also if this broker leads: offers with a forged signature are dropped.
        waiting = self._execution.offers.genuine(most)
        if leader not in self._consensus.peers:
            return []
        proposed = self._consensus.proposed()
        forwarded: list[Effect] = [
            Send((leader,), held.offer, held.bodies)
            for held in waiting
            if held.arrived <= before and held.offer.item not in proposed
        ]
        manifest = self._execution.epochs.waiting
        return forwarded if manifest is None else [*forwarded, Send((leader,), *manifest)]
