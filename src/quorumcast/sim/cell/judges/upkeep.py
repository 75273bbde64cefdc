"""Upkeep: brokers, and not only subscribers, end up with what they should have.

In the end every correct broker that is up has executed as much of each log as any other, and holds
every publication of a channel without total order that enough *other* correct brokers are sure of
and agree on: as many as it needs to take their word (`Holdings.needed`), and as far as it can get
without a hole. What contradicts its journal it never takes, unless the cell has settled it. What it
has itself let go of by retention or has no room for, and streams that have given way to later ones,
are its own business.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.desk import Desk
from quorumcast.cell.serving.holdings import recoverable, words_needed
from quorumcast.cell.serving.pledges import Attested, Vouched
from quorumcast.core.ids import NodeId, Stream, split_digests
from quorumcast.core.tally import Tally
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.kernel.node import SimulatedNode


class Upkeep:
    """A promise about the brokers themselves."""

    name = "Upkeep"

    def __init__(self, nodes: Mapping[NodeId, SimulatedNode]) -> None:
        self._nodes = nodes

    def pending(self, facts: CellFacts) -> str | None:
        """What is still missing, if anything."""
        brokers = {
            name: self._nodes[name].machine
            for name in facts.manifest.broker_ids
            if facts.adversary.is_correct(name) and self._nodes[name].up
        }
        machines = {n: m for n, m in brokers.items() if isinstance(m, Broker)}
        return self._executed(machines) or self._held(facts, machines)

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

    def _held(self, facts: CellFacts, brokers: Mapping[NodeId, Broker]) -> str | None:
        quorums = facts.manifest.quorums
        for stream in facts.published:
            entry = facts.manifest.channel(stream.channel)
            if entry is None or not recoverable(entry):
                continue
            desks = {name: broker.desk(stream) for name, broker in brokers.items()}
            before = words_needed(quorums, entry.policy)
            after = words_needed(quorums, entry.policy, after=True)
            for name, broker in brokers.items():
                others = [desk for other, desk in desks.items() if other != name and desk]
                if broker.has_ended(stream):
                    continue
                decided = self._decided(others, before)
                mine = desks[name]
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
        """Whether a broker's disk does not say that it vouched for something else."""
        for record in self._nodes[broker].disk.durable:
            if isinstance(record, Vouched | Attested) and record.stream == stream:
                vouched = dict(enumerate(split_digests(record.digests), record.first))
                if vouched.get(number, digest) != digest:
                    return False
        return True

    def _missing(self, mine: Desk | None, decided: dict[int, bytes | None]) -> list[int]:
        """Numbers that others are sure of and this broker could have got, and has not.

        It gets them one after the other, on from what it holds and back from there: a number that a
        lying publisher told brokers differently of, where nothing settles it, is as far as it gets.
        """
        top = max((number for number, digest in decided.items() if digest), default=0)
        base, end, floor = top + 1, top + 1, 1
        if mine is not None:
            ledger = mine.carrier.ledger
            floor = ledger.floor
            if ledger.begun:
                base, end = ledger.base, ledger.next
                # A publisher that told it more of a later life leaves less room for earlier ones.
                floor = floor if ledger.room else base
        return [n for n in (base - 1, end) if floor <= n <= top and decided.get(n)]

    def _decided(self, desks: list[Desk], needed: int) -> dict[int, bytes | None]:
        """Of every number that any of these is sure of, on what enough agree, if they do."""
        words: dict[int, Tally[bytes]] = {}
        for desk in desks:
            carrier = desk.carrier
            for number in range(carrier.final_from, carrier.final + 1):
                digest = carrier.ledger.digest(number)
                if digest is not None:
                    words.setdefault(number, Tally()).vote(NodeId(str(id(desk))), digest)
        return {number: tally.leader(needed) for number, tally in words.items()}
