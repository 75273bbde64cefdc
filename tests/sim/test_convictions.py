"""Every way to convict an honest broker by what it signed: none of them holds in court.

A cell of honest brokers lives, stops, forgets and lives again, perhaps with a publisher that tells
another story each time. Somebody keeps every statement that any broker ever signed, and tries all
of them against one another. n = 4, f = 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import combinations

import msgspec
import pytest

from quorumcast.broadcast.application import Prove, Proven, Submit
from quorumcast.cell.messages import Checkpoint
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.core.ids import CELL, Channel, NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Accuse, Effect, Send
from quorumcast.core.statements import (
    Evidence,
    EvidenceKind,
    Receipt,
    SegmentStatement,
    Signed,
    canonical,
    parse_statement,
)
from quorumcast.crypto.evidence import Court
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import channel_entry, make_simulated_cell
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import Weather

ORDERS = Channel("orders")
B1, B2, B3, B4 = FOUR = tuple(NodeId(f"broker-{n}") for n in (1, 2, 3, 4))
PUB, SUB, LATER = NodeId("pub-1"), NodeId("sub-1"), NodeId("sub-2")
SETTLING = ("direct", "brb", "ab+history", "chain+history", "total")
FORWARDING = ("ab", "chain")

pytestmark = pytest.mark.sim


class Trial:
    """A cell without liars among its brokers, and whoever keeps all that they sign."""

    def __init__(self, policy: str, *, journal: bool = False) -> None:
        limits = Limits(segment=2, retained_publications=64, window=32)
        made = Policy.named(policy, journal=journal, limits=limits, alpha=2)
        cell = make_simulated_cell(4, 1, [channel_entry(ORDERS, made)])
        self.world = CellWorld(cell, 1, Weather(latency_ms=2, jitter_ms=0), ())
        self.world.watch(self)
        self.statements: dict[Signed, None] = {}
        self.receipts: list[Receipt] = []
        self.accused: list[NodeId] = []
        self.world.add_brokers()
        for reader in (SUB, LATER):
            self.world.add_subscriber(reader)
        # The same incarnation in each life: it wants brokers to contradict themselves.
        self.world.add(PUB, self._publisher, cell.manifest.broker_ids)
        self.run(500)
        self.world.join(SUB, ORDERS)
        self.run(1500)

    def _publisher(self) -> Publisher:
        cell = self.world.cell
        self.world.facts.started(PUB, 2)
        return Publisher(cell.manifest, cell.keyrings[PUB], 2)

    def on_event(self, node: NodeId, event: object, now: int) -> None:
        """Nothing to see."""

    def on_effect(self, node: NodeId, effect: Effect, now: int) -> None:
        match effect:
            case Send(message=Checkpoint(statement=signed)):
                self.statements[signed] = None
            case Proven(receipt=receipt):
                self.receipts.append(receipt)
            case Accuse(evidence=evidence):
                self.accused.append(evidence.accused)
            case _:
                pass

    def run(self, for_ms: int) -> None:
        self.world.scheduler.run_until(self.world.scheduler.now + for_ms)

    def publish(self, story: str, count: int = 6) -> None:
        for number in range(1, count + 1):
            body = f"{story} {number}".encode()
            self.world.nodes[PUB].feed(Submit(ORDERS, (body,)))
            self.run(60)
        self.run(3000)

    def stop(self, *nodes: NodeId, wipe: bool = True) -> None:
        for node in nodes:
            self.world.nodes[node].crash(wipe=wipe)
            self.world.network.break_all(node)

    def start(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.world.nodes[node].restart()
        self.run(4000)

    def tell_another_story(self, *brokers: NodeId, wipe: bool = True) -> None:
        """Brokers and publisher begin a new life, and the publisher says something else."""
        self.stop(*brokers, wipe=wipe)
        self.stop(PUB)
        self.start(*brokers, PUB)
        self.world.leave(SUB, ORDERS)
        self.world.join(LATER, ORDERS)
        self.run(1500)

    def prove(self, reader: NodeId, number: int, body: str) -> None:
        """Get a receipt of the ordered publication at a position that is its number as well."""
        contents = label(Stream(ORDERS, PUB, 2), number) + body.encode()
        self.world.nodes[reader].feed(Prove(total_order(ORDERS), number, contents))
        self.run(3000)

    @property
    def court(self) -> Court:
        m = self.world.cell.manifest
        return Court(m.cell, m.broker_ids, m.quorums, m.keys, m.hash)

    def segments(self) -> list[tuple[Signed, SegmentStatement]]:
        parsed = [(signed, parse_statement(signed.payload)) for signed in self.statements]
        return [(signed, said) for signed, said in parsed if isinstance(said, SegmentStatement)]

    def contradictions(self) -> int:
        """Pairs of statements on one range with different contents, whoever signed them."""
        return sum(
            (one.stream, one.first, one.count) == (other.stream, other.first, other.count)
            and one.root != other.root
            for (_, one), (_, other) in combinations(self.segments(), 2)
        )

    def convicted(self) -> list[Evidence]:
        """All evidence that holds, of whatever statements there are."""
        segments = self.segments()
        attempts = [
            Evidence(kind=EvidenceKind.CONFLICT, accused=one.broker, against=(first, second))
            for (first, one), (second, other) in combinations(segments, 2)
            if one.broker == other.broker
        ]
        everything = tuple(self.statements)
        attempts += [
            Evidence(
                kind=EvidenceKind.OUTVOTED,
                accused=said.broker,
                against=(signed,),
                witnesses=everything,
            )
            for signed, said in segments
        ]
        return [attempt for attempt in attempts if self.court.why_evidence_fails(attempt) is None]


def restart_all(trial: Trial) -> None:
    trial.tell_another_story(*FOUR)


def restart_all_but_one(trial: Trial) -> None:
    trial.tell_another_story(*FOUR[1:])


def restart_two(trial: Trial) -> None:
    trial.tell_another_story(B1, B2)


@pytest.mark.parametrize("again", [restart_all, restart_all_but_one, restart_two])
@pytest.mark.parametrize("policy", [*SETTLING, *FORWARDING])
def test_brokers_that_forgot_and_signed_otherwise_are_not_convicted(
    policy: str, again: Callable[[Trial], None]
) -> None:
    trial = Trial(policy)
    trial.publish("one story")
    again(trial)
    trial.publish("another story")
    assert trial.statements
    assert trial.convicted() == []
    assert not set(trial.accused) & set(FOUR)


@pytest.mark.parametrize("policy", SETTLING)
def test_trial_has_statements_that_contradict_one_another(policy: str) -> None:
    """Or the tests above would show nothing."""
    trial = Trial(policy)
    trial.publish("one story")
    restart_all(trial)
    trial.publish("another story")
    assert trial.contradictions() > 0


@pytest.mark.parametrize("victims", [FOUR, FOUR[1:], (B1,)])
@pytest.mark.parametrize("policy", ["direct", "brb", "ab+history", "total", "ab"])
def test_brokers_whose_disks_were_restored_from_a_backup_are_not_convicted(
    policy: str, victims: tuple[NodeId, ...]
) -> None:
    """An old journal knows only part of what its broker vouched for."""
    trial = Trial(policy, journal=True)
    trial.publish("one story", 2)
    disks = {name: trial.world.nodes[name].disk for name in victims}
    backup = {name: copy.deepcopy(disk._kept) for name, disk in disks.items()}
    trial.publish("one story", 6)
    trial.stop(*victims, wipe=False)
    for name, disk in disks.items():
        disk._kept = backup[name]
    trial.tell_another_story(*victims, wipe=False)
    trial.publish("one story", 2)
    trial.publish("another story", 6)
    assert trial.statements
    assert trial.convicted() == []
    assert not set(trial.accused) & set(FOUR)


@pytest.mark.parametrize("policy", ["brb", "ab+history", "total"])
def test_brokers_that_restart_with_their_disks_sign_nothing_else(policy: str) -> None:
    trial = Trial(policy, journal=True)
    trial.publish("one story")
    trial.tell_another_story(*FOUR, wipe=False)
    trial.publish("another story")
    settled = {said.stream.publisher for _, said in trial.segments()}
    assert settled == {CELL if policy == "total" else PUB}
    assert trial.contradictions() == 0


def test_receipts_of_two_logs_both_hold_and_name_different_log_ids() -> None:
    """One position, two contents, and nobody lied."""
    trial = Trial("total")
    trial.publish("one story", 3)
    trial.prove(SUB, 3, "one story 3")
    restart_all(trial)
    trial.publish("another story", 3)
    trial.prove(LATER, 3, "another story 3")
    before, after = trial.receipts
    assert (before.stream, before.number) == (after.stream, after.number)
    assert before.contents != after.contents
    for receipt in (before, after):
        assert trial.court.why_receipt_fails(receipt, 2) is None
    log_ids = {
        said.log_id
        for receipt in (before, after)
        for signed in receipt.statements
        if isinstance(said := parse_statement(signed.payload), SegmentStatement)
    }
    assert len(log_ids) == 2
    assert b"" not in log_ids


def test_receipt_of_statements_about_two_logs_does_not_hold() -> None:
    trial = Trial("total")
    trial.publish("one story", 3)
    trial.prove(SUB, 3, "one story 3")
    (receipt,) = trial.receipts
    first, second, *_ = receipt.statements
    other = msgspec.structs.replace(read(second), log_id=b"x" * 32)
    keyring = trial.world.cell.keyrings[second.signer]
    mixed = msgspec.structs.replace(
        receipt, statements=(first, keyring.identity.sign(canonical(other)))
    )
    assert trial.court.why_receipt_fails(mixed, 2) is not None


def read(signed: Signed) -> SegmentStatement:
    said = parse_statement(signed.payload)
    assert isinstance(said, SegmentStatement)
    return said
