"""A word that leaves before the journal holds it is reported, and nothing else is."""

import pytest

from quorumcast.broadcast.messages import Ack, Echo
from quorumcast.cell.messages import Checkpoint, Regained, Vote
from quorumcast.cell.serving.journal import Attested, Vouched, VouchedAgainstEcho
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import Persist, Record, Send
from quorumcast.core.message import Message
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Basis, SegmentStatement, Signed, canonical
from quorumcast.crypto.digest import root
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.consensus import Voted
from quorumcast.ordering.messages import Accept, Write
from quorumcast.sim.cell.cells import channel_entry, make_simulated_cell
from quorumcast.sim.cell.judges.journaling import Journaled
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import Weather

B1, PUB, SUB = NodeId("broker-1"), NodeId("pub-1"), NodeId("sub-1")
STREAM = Stream(Channel("orders"), PUB, 1)
ONE, OTHER = b"1" * 32, b"2" * 32
LOG = Protection.BYZANTINE
VOTED = Voted(LOG, 3, 1, (1, ONE), ((ONE, 1),), ())


def segment(digests: bytes) -> Signed:
    """A statement on the first numbers of the stream; checkers leave signatures to others."""
    said = SegmentStatement(
        cell="sim",
        epoch=1,
        broker=B1,
        stream=STREAM,
        first=1,
        count=len(digests) // 32,
        root=root(1, digests),
        basis=Basis.SETTLED,
    )
    return Signed(B1, canonical(said), b"")


def says(
    message: Message | Persist,
    *disk: Record,
    policy: str = "brb",
    journal: bool = True,
    settled: int = 0,
    lies: bool = False,
) -> list[str]:
    """What the checker says if a broker with this on its disk sends or writes something."""
    rules = Policy.named(policy, journal=journal)
    cell = make_simulated_cell(4, 1, [channel_entry("orders", rules)])
    world = CellWorld(cell, 1, Weather(), [Journaled()])
    world.add_brokers()
    if lies:
        world.adversary.declare(PUB, "a lie")
    for record in disk:
        world.nodes[B1].disk.write(record, lambda: None)
    world.scheduler.run_until(10, 100)
    (monitor,) = world._watchers
    monitor.on_effect(B1, Send((PUB,), Ack(STREAM, settled, 9, settled)), Millis(10))
    effect = message if isinstance(message, Persist) else Send((SUB,), message)
    monitor.on_effect(B1, effect, Millis(10))
    return [violation.property for violation in world.facts.violations]


@pytest.mark.parametrize(
    ("message", "record", "policy"),
    [
        (Vote(STREAM, 2, ONE), Vouched(STREAM, 1, OTHER + ONE), "brb"),
        (Regained(STREAM, 1, ONE), Attested(STREAM, 1, ONE), "brb"),
        (Echo(STREAM, 1, root(1, ONE)), Vouched(STREAM, 1, ONE), "brb"),
        (Write(LOG, 1, 3, ONE), VOTED, "total"),
        (Accept(LOG, 1, 3, ONE), VOTED, "total"),
    ],
)
def test_word_that_the_disk_does_not_hold_is_reported(
    message: Message, record: Record, policy: str
) -> None:
    assert says(message, policy=policy) == ["Journal"]
    assert says(message, record, policy=policy) == []
    assert says(message, policy=policy, journal=False) == []


def test_word_that_contradicts_the_disk_is_reported() -> None:
    assert says(Vote(STREAM, 1, ONE), Vouched(STREAM, 1, OTHER)) == ["Journal"]
    assert says(Echo(STREAM, 1, root(1, ONE)), Vouched(STREAM, 1, OTHER)) == ["Journal"]
    assert says(Accept(LOG, 2, 3, ONE), VOTED, policy="total") == ["Journal"]


def test_what_histories_have_settled_otherwise_need_not_be_on_the_disk() -> None:
    assert says(Vote(STREAM, 1, ONE), policy="ab+history", settled=1, lies=True) == []
    assert says(Vote(STREAM, 2, ONE), policy="ab+history", settled=1, lies=True) == ["Journal"]
    assert says(Vote(STREAM, 1, ONE), policy="ab+history", settled=1) == ["Journal"]


def test_signature_that_the_disk_does_not_hold_is_reported() -> None:
    signed, other = Checkpoint(segment(ONE + ONE)), Attested(STREAM, 1, ONE + OTHER)
    assert says(signed, Attested(STREAM, 1, ONE + ONE), policy="ab+history") == []
    assert says(signed, policy="ab+history", settled=2) == ["Journal"]
    assert says(signed, other, policy="ab+history", settled=2) == ["Journal"]
    assert says(signed, other, policy="ab+history", settled=2, lies=True) == []
    assert says(signed, other, policy="ab+history", settled=1, lies=True) == ["Journal"]


@pytest.mark.parametrize("kind", [Vouched, Attested])
def test_record_that_replaces_a_longer_or_other_one_is_reported(
    kind: type[Vouched | Attested],
) -> None:
    held = kind(STREAM, 1, ONE + OTHER)
    assert says(Persist(kind(STREAM, 1, ONE + OTHER + ONE)), held) == []
    assert says(Persist(kind(STREAM, 2, ONE)), held) == []
    assert says(Persist(kind(STREAM, 1, ONE)), held) == ["Journal"]
    assert says(Persist(kind(STREAM, 1, ONE)), held, policy="ab", lies=True) == ["Journal"]
    assert says(Persist(kind(STREAM, 1, OTHER + ONE)), held) == ["Journal"]
    assert says(Persist(kind(STREAM, 1, OTHER + ONE)), held, policy="ab", lies=True) == []


def test_echo_of_a_liars_run_is_replaced_by_no_other_run() -> None:
    held = Vouched(STREAM, 1, ONE + OTHER)
    for digests in (ONE, OTHER + ONE):
        assert says(Persist(Vouched(STREAM, 1, digests)), held, lies=True) == ["Journal"]
        assert says(Persist(VouchedAgainstEcho(STREAM, 1, digests)), held, lies=True) == []


def test_segment_of_a_liars_stream_is_replaced_by_no_shorter_one() -> None:
    held = Attested(STREAM, 1, ONE + OTHER)
    assert says(Persist(Attested(STREAM, 1, OTHER + ONE)), held, lies=True) == []
    assert says(Persist(Attested(STREAM, 1, ONE)), held, lies=True) == ["Journal"]
