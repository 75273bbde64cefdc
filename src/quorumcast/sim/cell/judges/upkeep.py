"""Upkeep: correct brokers converge, and not only subscribers.

At the end of a run, every correct broker that is up

- has executed as much of each log as any other broker;
- has nothing on disk of channels with total order that were deleted, and nothing in memory or on
  disk of a deleted channel whose name another channel has now;
- retains no more than the limits of the present epoch say;
- holds, on channels without total order, every publication on whose digest enough *other* correct
  brokers agree finally (`peers_needed`), as far as it can fetch them without a hole.

A broker never takes a publication that contradicts its journal, unless the cell has settled it.
Publications that it dropped by retention or has no room for do not count, nor do streams that were
displaced by later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.journal import Attested, Vouched
from quorumcast.cell.serving.recovering.holdings import peers_needed, recoverable
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.core.ids import CELL, EPOCHS, Channel, NodeId, Stream, split_digests
from quorumcast.core.tally import Tally
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.log import Held
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.past import Placed
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.kernel.node import SimulatedNode


class Upkeep:
    """The liveness property that correct brokers converge."""

    name = "Upkeep"

    def __init__(self, nodes: Mapping[NodeId, SimulatedNode]) -> None:
        self._nodes = nodes

    def pending(self, facts: CellFacts) -> str | None:
        """The first broker that lags, and its lag, or None."""
        for manifest in facts.cells():
            brokers = {
                name: self._nodes[name].machine
                for name in manifest.broker_ids
                if facts.adversary.is_correct(name) and self._nodes[name].up
            }
            machines = {n: m for n, m in brokers.items() if isinstance(m, Broker)}
            lag = (
                self._executed(machines)
                or self._deleted(facts, machines)
                or self._replaced(facts, machines)
                or self._retained(facts, machines)
                or self._held(facts, manifest, machines)
            )
            if lag is not None:
                return lag
        return None

    def _executed(self, brokers: Mapping[NodeId, Broker]) -> str | None:
        reach: dict[str, tuple[int, NodeId]] = {}
        for name, broker in brokers.items():
            for log, standing in broker.logs().items():
                reach[log] = max(reach.get(log, (0, name)), (standing.executed, name))
        for name, broker in brokers.items():
            for log, standing in broker.logs().items():
                most, leader = reach[log]
                if standing.executed != most:
                    return f"{name} has executed {standing.executed} of {log}, {leader} has {most}"
        return None

    def _deleted(self, facts: CellFacts, brokers: Mapping[NodeId, Broker]) -> str | None:
        for name in brokers:
            if len(facts.manifests_of(name)) == 1:
                continue
            manifest = facts.manifest_of(name)
            for record in self._nodes[name].disk.durable:
                match record:
                    case Stored(offer=Offer(stream=Stream(channel=channel))):
                        pass
                    case Placed(channel=channel) | Held(channel=channel):
                        pass
                    case _:
                        continue
                if channel != EPOCHS.channel and manifest.channel(channel) is None:
                    return f"{name} keeps {record.owner} {record.place} of a deleted channel"
        return None

    def _replaced(self, facts: CellFacts, brokers: Mapping[NodeId, Broker]) -> str | None:
        """A broker that holds publications of a deleted channel under the name of a new one."""
        for name, broker in brokers.items() if facts.erased else ():
            held: list[bytes] = []
            for stream in broker.streams():
                served = broker.served(stream)
                if served is not None and stream.channel in facts.created:
                    ledger = served.carrier.ledger
                    held += split_digests(ledger.digests(ledger.base, len(ledger)) or b"")
            for record in self._nodes[name].disk.durable:
                match record:
                    case Stored(offer=Offer(digests=digests)) | Placed(digests=digests):
                        held += split_digests(digests)
                    case _:
                        pass
            for digest in held:
                if digest in facts.erased:
                    stream, number = facts.erased[digest]
                    return f"{name} keeps {stream} {number} of a channel that was deleted"
        return None

    def _retained(self, facts: CellFacts, brokers: Mapping[NodeId, Broker]) -> str | None:
        """A broker that keeps more than an epoch with lower limits lets it."""
        for name, broker in brokers.items():
            if len(facts.manifests_of(name)) == 1:
                continue
            kept: Counter[tuple[Channel, NodeId]] = Counter()
            for stream in broker.streams():
                served = broker.served(stream)
                if served is not None:
                    kept[stream.channel, stream.publisher] += len(served.carrier.ledger)
            for (channel, publisher), count in kept.items():
                entry = facts.manifest_of(name).channel(channel)
                if entry is None:
                    continue
                # With total order whole runs are dropped, and a run has at most a submission.
                # Where brokers settle, as much again may wait to be settled.
                most = entry.policy.limits.retained_publications
                most += facts.longest_submission if publisher == CELL else 0
                most += most if entry.policy.settles and publisher != CELL else 0
                if count > most:
                    return f"{name} retains {count} on {channel} of {publisher}, at most {most} may"
        return None

    def _held(
        self, facts: CellFacts, manifest: Manifest, brokers: Mapping[NodeId, Broker]
    ) -> str | None:
        quorums = manifest.quorums
        for stream in facts.published:
            entry = manifest.channel(stream.channel)
            if entry is None or not recoverable(entry):
                continue
            copies = {name: broker.served(stream) for name, broker in brokers.items()}
            before = peers_needed(quorums, entry.policy)
            after = peers_needed(quorums, entry.policy, after=True)
            for name, broker in brokers.items():
                others = [copy for other, copy in copies.items() if other != name and copy]
                if broker.has_ended(stream):
                    continue
                decided = self._decided(others, before)
                mine = copies[name]
                if mine is not None and mine.carrier.ledger.begun:
                    ahead, end = self._decided(others, after), mine.carrier.ledger.next
                    decided |= {number: ahead[number] for number in ahead if number >= end}
                for number in self._missing(mine, decided):
                    if entry.policy.settles or self._may_take(
                        name, stream, number, decided[number]
                    ):
                        return f"{name} does not hold {stream} {number}, which others are sure of"
        return None

    def _may_take(self, broker: NodeId, stream: Stream, number: int, digest: bytes | None) -> bool:
        """Whether a broker's journal holds no other digest for this number."""
        for record in self._nodes[broker].disk.durable:
            if isinstance(record, Vouched | Attested) and record.stream == stream:
                vouched = dict(enumerate(split_digests(record.digests), record.first))
                if vouched.get(number, digest) != digest:
                    return False
        return True

    def _missing(self, mine: ServedStream | None, decided: dict[int, bytes | None]) -> list[int]:
        """The numbers next to this broker's range that others have finally and it lacks.

        A broker extends its range number by number at both ends. It stops at a number on which an
        equivocating publisher split the brokers, unless the cell settles it.
        """
        top = max((number for number, digest in decided.items() if digest), default=0)
        base, end, floor = top + 1, top + 1, 1
        if mine is not None:
            ledger = mine.carrier.ledger
            floor = ledger.floor
            if ledger.begun:
                base, end = ledger.base, ledger.next
                # Later incarnations of the publisher may have used up the room for this stream.
                floor = floor if ledger.room else base
        return [n for n in (base - 1, end) if floor <= n <= top and decided.get(n)]

    def _decided(self, copies: list[ServedStream], needed: int) -> dict[int, bytes | None]:
        """The digest on which `needed` copies agree, by number; None where they do not agree."""
        words: dict[int, Tally[bytes]] = {}
        for copy in copies:
            carrier = copy.carrier
            for number in range(carrier.final_from, carrier.final + 1):
                digest = carrier.ledger.digest(number)
                if digest is not None:
                    words.setdefault(number, Tally()).vote(NodeId(str(id(copy))), digest)
        return {number: tally.leader(needed) for number, tally in words.items()}
