"""Liveness: what must have come true once the network is calm and everyone recoverable is back.

The world runs a safety phase with all its misfortunes, then calms down, and these promises get a
bounded time to come true. `pending` is asked again and again; the run ends early when nothing is
pending, and whatever still is when time is up becomes a violation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Machine
from quorumcast.faults.catalogue import CATALOGUE
from quorumcast.faults.contract import Trace
from quorumcast.manifest.policy import Policy
from quorumcast.sim.blame import Lies
from quorumcast.sim.facts import Facts, Reader
from quorumcast.sim.order import Durability


class Promise(Protocol):
    """One property that comes true in the end."""

    @property
    def name(self) -> str:
        """The property's name in PROTOCOLS."""
        ...

    def pending(self, facts: Facts) -> str | None:
        """What is still missing, if anything."""
        ...


def _first_due(facts: Facts, reader: Reader, stream: Stream) -> int | None:
    """The first number that this reader must accept of a stream, if anybody does."""
    first = reader.first(stream)
    if reader.standing_at is None:
        return first
    for number, (_, when) in enumerate(facts.published.get(stream, ()), 1):
        if when > reader.standing_at:
            return number if first is None else min(first, number)
    return first


def _correct_streams(facts: Facts) -> list[Stream]:
    return [
        stream
        for stream in facts.published
        if stream not in facts.ended
        and facts.adversary.is_correct(stream.publisher)
        and facts.manifest.may_publish(stream.publisher, stream.channel)
    ]


class Validity:
    """What a correct publisher publishes is accepted by every standing subscriber (LC1)."""

    name = "Validity"

    def pending(self, facts: Facts) -> str | None:
        for stream in _correct_streams(facts):
            for reader in facts.present():
                if reader.channel != stream.channel:
                    continue
                if not facts.manifest.may_subscribe(reader.node, reader.channel):
                    continue
                due = _first_due(facts, reader, stream)
                if due is None:
                    continue
                first, count = reader.first(stream), len(facts.published[stream])
                if first is None or first > due:
                    return f"{reader} has not accepted {stream} {due}"
                if reader.upto(stream) < count:
                    return f"{reader} has not accepted {stream} {reader.upto(stream) + 1}"
        return None


class Past:
    """Whoever asks for everything that is held gets all of it, from the first one on, with no gap.

    True where brokers retain everything, and restart one after the other at most.
    """

    name = "Retention"

    def pending(self, facts: Facts) -> str | None:
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
                if reader.gaps.get(stream):
                    return f"{reader} was told of a gap in {stream}: {reader.gaps[stream]}"
                accepted = [number for number, _ in reader.accepted.get(stream, ())]
                safe = facts.acknowledged.get(stream, 0)
                if accepted[:safe] != list(range(1, safe + 1)):
                    return f"{reader} got {len(accepted)} of {safe} on {stream} from the oldest on"
        return None


class Extracts:
    """Whoever reads a part of an order gets that part, with no gap, and nothing beyond it."""

    name = "Excerpt"

    def pending(self, facts: Facts) -> str | None:
        for reader in facts.readers:
            if not reader.until:
                continue
            if reader.gaps:
                return f"{reader} was told of a gap in what it reads: {reader.gaps}"
            wanted = reader.until - (reader.start or 1)
            got = sum(map(len, reader.accepted.values()))
            stayed = reader.left_at is None
            if got > wanted or (stayed and (got, reader.position) != (wanted, reader.until - 1)):
                return f"{reader} got {got} of {wanted} publications before {reader.until}"
        return None


class Standing:
    """Every subscriber gets to know where its streams begin."""

    name = "Subscription"

    def pending(self, facts: Facts) -> str | None:
        for reader in facts.present():
            if reader.standing_at is None and facts.manifest.may_subscribe(
                reader.node, reader.channel
            ):
                return f"{reader} still does not know where its streams begin"
        return None


class AllAcknowledged:
    """A correct publisher learns that everything it published is safe."""

    name = "Acknowledged"

    def pending(self, facts: Facts) -> str | None:
        for stream in _correct_streams(facts):
            told, count = facts.acknowledged.get(stream, 0), len(facts.published[stream])
            if told < count:
                return f"{stream.publisher} was told that {told} of {count} are safe on {stream}"
        return None


class Totality:
    """If one correct subscriber accepts it, all do (LC2), whatever the publisher is up to.

    With history a lying publisher can leave correct subscribers apart by what it never accounted
    for: at most 2α publications (Fairness). Bracha leaves none apart.
    """

    def __init__(self, policy: Policy) -> None:
        self._slack = 2 * policy.alpha_ceiling
        self.name = "Fairness" if self._slack else "Totality"

    def pending(self, facts: Facts) -> str | None:
        reach: dict[Stream, tuple[int, Reader]] = {}
        present = facts.present()
        for reader in facts.readers:
            for stream in reader.accepted:
                upto = reader.upto(stream)
                if upto > reach.get(stream, (0, reader))[0]:
                    reach[stream] = (upto, reader)
        for stream, (upto, leader) in reach.items():
            if facts.adversary.faulty.get(stream.publisher) == "publisher-flood":
                # Whoever opens more streams than brokers keep displaces its own, and nobody else's.
                continue
            for reader in present:
                if reader.channel != stream.channel or reader is leader:
                    continue
                due = _first_due(facts, reader, stream)
                if due is None:
                    continue
                reached = max(reader.upto(stream), due - 1)
                if upto - reached > self._slack:
                    return f"{leader} accepted {stream} up to {upto}, {reader} only {reached}"
        return None


class CompleteBlame:
    """A provable lie told to a correct subscriber ends in evidence; some others in suspicion."""

    name = "Complete blame"

    def __init__(
        self, policy: Policy, told: Collection[NodeId], dubious: Collection[NodeId] = ()
    ) -> None:
        self._policy = policy.name
        #: Whose provable lies reached correct nodes while the network was calm …
        self._told = told
        #: … and whose wrong contents did.
        self._dubious = dubious

    def pending(self, facts: Facts) -> str | None:
        for node, how in facts.adversary.faulty.items():
            entry = CATALOGUE.get(how)
            if entry is None or not (node in self._told or node in self._dubious):
                continue
            provable = entry.trace is Trace.EVIDENCE and self._policy in entry.provable_under
            if provable and node in self._told and not facts.convicted(node):
                return f"{node} did {how!r} and nobody can prove it"
            if entry.trace is not Trace.NOTHING and not (
                facts.suspected(node) or facts.convicted(node)
            ):
                return f"{node} did {how!r} and nobody suspects it"
        return None


class Boundedness:
    """No container that a peer can feed grows past its limit."""

    name = "Boundedness"

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = bounds

    def check(self, facts: Facts, node: NodeId, machine: Machine) -> None:
        """Compare the sizes that a machine reports with the limits."""
        for what, size in machine.sizes().items():
            limit = self._bounds.get(what.rpartition("/")[2].rpartition(" ")[2])
            if limit is None:
                facts.violate(self.name, f"{node}: {what!r} has no limit to compare with")
            elif size > limit:
                facts.violate(self.name, f"{node}: {what!r} holds {size}, at most {limit} may")


def promised(policy: Policy, *, valid: bool, lies: Lies) -> list[Promise]:
    """What this channel promises in the end; `valid`: the adversary leaves validity intact."""
    result: list[Promise] = []
    if valid:
        result += [Standing(), Validity(), AllAcknowledged(), Past()]
    if valid and policy.total:
        result += [Durability(), Extracts()]
    if policy.name in ("brb", "ab+history", "chain+history", "total", "total-crash"):
        result.append(Totality(policy))
    result.append(CompleteBlame(policy, lies.told, lies.dubious))
    return result
