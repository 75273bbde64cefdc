"""Liveness properties (*promises*): they must hold once the network is calm and nodes are back up.

A run has a safety phase with fault injection, then a liveness phase in which the network is calm
and every recoverable node is up. The promises get a bounded time to come true. `pending` is polled:
the run ends early when nothing is pending, and a promise still pending at the end is a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from quorumcast.core.ids import NodeId, holder
from quorumcast.core.statements import EvidenceKind
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Footprint
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.judges.blame import Lies
from quorumcast.sim.cell.judges.checkers import flaw_of
from quorumcast.sim.cell.judges.due import correct_streams, demanded, first_due
from quorumcast.sim.cell.judges.facts import CellFacts, may_subscribe
from quorumcast.sim.cell.judges.filtering import Coverage
from quorumcast.sim.cell.judges.order import Durability
from quorumcast.sim.kernel.judging import Promise
from quorumcast.sim.kernel.node import SimulatedNode


class Validity:
    """Every standing subscriber accepts every publication of a correct publisher (LC1).

    A gap is excused only where retention explains it.
    """

    name = "Validity"

    def pending(self, facts: CellFacts) -> str | None:
        for stream, count in correct_streams(facts):
            for reader in facts.present():
                if reader.channel != stream.channel:
                    continue
                manifest = facts.manifest_of(reader.node)
                if not may_subscribe(manifest, reader.node, reader.channel):
                    continue
                due = first_due(facts, reader, stream)
                missing = [] if due is None else facts.missing(reader, stream, due, count)
                if missing:
                    return f"{reader} has not accepted {stream} {missing[0]}"
        return None


class RetainedPast:
    """A subscriber that starts at the oldest publication gets all that brokers must retain.

    It holds where brokers restart one after the other at most.
    """

    name = "Retention"

    def pending(self, facts: CellFacts) -> str | None:
        if facts.restarting:
            return f"{facts.restarting[0]} was restarted and has not caught up"
        for reader in facts.present():
            if reader.start != 0:
                continue
            for stream, published in facts.published.items():
                if stream.channel != reader.channel or not published:
                    continue
                if not facts.adversary.is_correct(stream.publisher):
                    continue
                safe = min(facts.acknowledged.get(stream, 0), demanded(facts, stream))
                if stream in facts.ended:
                    safe = min(safe, facts.kept(stream))
                for number in facts.missing(reader, stream, 1, safe):
                    if facts.was_lost(stream, number, reader.node):
                        continue
                    if not facts.had_gone(reader, stream, number):
                        return f"{reader} reads from the oldest on and lacks {stream} {number}"
        return None


class Extracts:
    """A subscriber to a range of positions gets exactly that range, without a gap."""

    name = "Excerpt"

    def pending(self, facts: CellFacts) -> str | None:
        for reader in facts.readers:
            if not reader.until:
                continue
            lost = sum(upto - first + 1 for gaps in reader.excused.values() for first, upto in gaps)
            if lost < sum(
                upto - first + 1 for gaps in reader.gaps.values() for first, upto in gaps
            ):
                return f"{reader} was told of a gap in what it reads: {reader.gaps}"
            wanted = reader.until - (reader.start or 1) - lost
            got = sum(map(len, reader.accepted.values()))
            stayed = reader.left_at is None
            reached = max([reader.turned, *(u for g in reader.gaps.values() for _, u in g)])
            if reader.asked and got <= wanted:
                got = wanted  # `Completeness` counts what was passed
            if got > wanted or (stayed and (got, reached) != (wanted, reader.until - 1)):
                return f"{reader} got {got} of {wanted} publications before {reader.until}"
        return None


class SubscriptionsStand:
    """Every subscriber learns where its streams begin."""

    name = "Subscription"

    def pending(self, facts: CellFacts) -> str | None:
        for reader in facts.present():
            if reader.standing_at is None and may_subscribe(
                facts.manifest_of(reader.node), reader.node, reader.channel
            ):
                return f"{reader} still does not know where its streams begin"
        return None


class Answers:
    """A subscriber that recalls a position gets it, or learns that it is no longer retained."""

    name = "Recall"

    def pending(self, facts: CellFacts) -> str | None:
        for reader in facts.present():
            for position in reader.recalling:
                return f"{reader} wants position {position} once more and has no answer"
        return None


class ReceiptsComplete:
    """A subscriber that asks for a receipt of a correct publisher's latest publication gets one."""

    name = "Receipt"

    def pending(self, facts: CellFacts) -> str | None:
        for reader in facts.present():
            for stream, number in reader.proving:
                if stream in facts.ended or not facts.adversary.is_correct(stream.publisher):
                    continue
                if number == (facts.ordered(stream) or len(facts.published.get(stream, ()))):
                    return f"{reader} has no receipt of {stream} {number}"
        return None


class AllAcknowledged:
    """A correct publisher learns that everything it published is safe."""

    name = "Acknowledged"

    def pending(self, facts: CellFacts) -> str | None:
        for stream, count in correct_streams(facts):
            told = facts.acknowledged.get(stream, 0)
            if told < count:
                return f"{stream.publisher} was told that {told} of {count} are safe on {stream}"
        return None


class Totality:
    """If one correct subscriber accepts a publication, all do (LC2), even if its publisher lies.

    With histories, correct subscribers may differ on the publications that a lying publisher never
    put into a history: at most 2α (Fairness). With Bracha's broadcast they do not differ.
    """

    def __init__(self, policy: Policy) -> None:
        self._slack = 2 * policy.alpha_ceiling
        self.name = "Fairness" if self._slack else "Totality"

    def pending(self, facts: CellFacts) -> str | None:
        present = facts.present()
        for stream, reached in facts.reached.items():
            upto = reached
            if stream.publisher == facts.restless:
                upto = min(reached, demanded(facts, stream))
            if facts.adversary.faulty.get(stream.publisher) == "publisher-flood":
                # A publisher with more streams than brokers keep displaces its own streams.
                continue
            accepted = dict.fromkeys(n for r in facts.readers for n in r.numbers.get(stream, ()))
            for reader in present:
                due = first_due(facts, reader, stream) if reader.channel == stream.channel else None
                if due is None:
                    continue
                lacking = [
                    number
                    for number in facts.missing(reader, stream, due, upto)
                    if number in accepted and not facts.was_lost(stream, number, reader.node)
                ]
                if len(lacking) > self._slack:
                    return f"{reader} has not accepted {stream} {lacking[0]}, which others have"
        return None


class CompleteBlame:
    """A provable lie to a correct subscriber ends in evidence, some other lies in suspicion."""

    name = "Complete blame"

    def __init__(
        self,
        policy: Callable[[NodeId], Policy],
        told: Collection[NodeId],
        dubious: Collection[NodeId] = (),
    ) -> None:
        #: The policy of a node's cell.
        self._policy = policy
        #: Brokers whose provable lies reached correct nodes while the network was calm.
        self._told = told
        #: Nodes whose wrong contents did.
        self._dubious = dubious

    def pending(self, facts: CellFacts) -> str | None:
        for node, how in facts.adversary.faulty.items():
            entry = CATALOGUE.get(how)
            if entry is None or not (node in self._told or node in self._dubious):
                continue
            policy = self._policy(node)
            if policy.relayed and policy.total:
                continue  # its log is in another cell: no statement about a position convicts
            is_evidence = entry.trace is Footprint.EVIDENCE
            provable = is_evidence and policy.like in entry.provable_under
            if provable and node in self._told and not facts.convicted(node):
                return f"{node} did {how!r} and nobody can prove it"
            if entry.trace is not Footprint.NOTHING and not (
                facts.suspected(node) or facts.convicted(node)
            ):
                return f"{node} did {how!r} and nobody suspects it"
        return None


class SharedEvidence:
    """Evidence that a correct node holds reaches every correct broker, where operators look.

    A node holds what it has reported since its last start, if the present manifest proves it. For
    statements of an earlier epoch against an outvoted broker that is not demanded: subscribers do
    not have the signed manifest that other brokers need to verify them.
    """

    name = "Shared evidence"

    def __init__(self, nodes: Mapping[NodeId, SimulatedNode]) -> None:
        self._nodes = nodes

    def pending(self, facts: CellFacts) -> str | None:
        told = {(node, holder(accuse.evidence.accused)) for node, accuse in facts.accusations}
        for node, held in facts.evidence.items():
            if not self._nodes[node].up:
                continue
            manifest = facts.manifest_of(node)
            for accused, evidence in held.items():
                across = evidence.kind is not EvidenceKind.OUTVOTED
                if flaw_of(evidence, manifest, any_epoch=across):
                    continue
                for broker in manifest.broker_ids:
                    is_due = facts.adversary.is_correct(broker) and self._nodes[broker].up
                    if is_due and (broker, accused) not in told:
                        return f"{node} can prove that {accused} lied, and {broker} was not told"
        return None


def promised(
    policy: Policy,
    *,
    valid: bool,
    lies: Lies,
    policy_of: Callable[[NodeId], Policy] | None = None,
) -> list[Promise[CellFacts]]:
    """The liveness properties of a policy; `valid`: the adversary leaves validity intact.

    `policy_of` is the policy of a node's own cell, where there are several.
    """
    result: list[Promise[CellFacts]] = []
    if valid:
        result += [
            SubscriptionsStand(),
            Coverage(),
            Validity(),
            AllAcknowledged(),
            RetainedPast(),
            ReceiptsComplete(),
        ]
    if valid and policy.total:
        result += [Durability(), Extracts(), Answers()]
    if policy.has_totality:
        result.append(Totality(policy))
    result.append(CompleteBlame(policy_of or (lambda node: policy), lies.told, lies.dubious))
    return result
