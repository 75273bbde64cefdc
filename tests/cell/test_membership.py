"""When a broker goes by another manifest: enough words, one step at a time, and no lures."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from tests.support.cells import B1, B2, B3, B4, T0, Cell

from quorumcast.cell.messages import Taken
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.membership import REMIND_MS, Adopt, EpochProof, NewManifest, Remind
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.machine import Connected, Drop, DropReason, Receive, Send, SetTimer, TimerFired
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import EpochStatement, Signed, canonical
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.build import add_broker, add_client, remove_broker, repeatable_seeds
from quorumcast.manifest.files import manifest_digest, sign_manifest
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.sequencer import Tick

OPERATOR = Identity(NodeId("operator"), repeatable_seeds("cells")("operator"))
NEW = Identity(NodeId("new"), repeatable_seeds("cells")("new"))


def written(manifest: Manifest, operator: Identity = OPERATOR) -> bytes:
    """A manifest file."""
    signed = sign_manifest(
        msgspec.structs.replace(manifest, operator=operator.verify_key), operator
    )
    return msgspec.json.encode(signed)


def word(cell: Cell, broker: NodeId, manifest: Manifest, signer: NodeId | None = None) -> Signed:
    """A broker's word on an epoch, perhaps signed by another."""
    statement = EpochStatement(
        cell=manifest.cell, broker=broker, epoch=manifest.epoch, digest=manifest_digest(manifest)
    )
    signed = cell.keyring(signer or broker).identity.sign(canonical(statement))
    return msgspec.structs.replace(signed, signer=broker)


def hear(cell: Cell, broker: Broker, sender: NodeId, manifest: Manifest) -> list[object]:
    return list(broker.handle(Receive(sender, Taken(word(cell, sender, manifest))), T0))


def made(policy: str = "ab") -> tuple[Cell, Broker, Manifest]:
    cell = Cell(Policy.named(policy))
    return cell, cell.broker(B1), add_broker(cell.manifest, NEW.name, NEW, "localhost", 9000)


def test_epoch_with_the_same_brokers_is_taken_at_once_where_there_is_no_log() -> None:
    cell, broker, _ = made()
    data = written(add_client(cell.manifest, NEW.name, NEW))
    assert broker.handle(NewManifest(data), T0) == [Adopt(data)]


def test_epoch_with_other_brokers_waits_until_enough_go_by_the_present_one() -> None:
    cell, broker, following = made()
    data = written(following)
    assert broker.handle(NewManifest(data), T0) == [SetTimer(Remind(2), REMIND_MS)]
    assert hear(cell, broker, B2, cell.manifest) == []
    assert hear(cell, broker, B2, cell.manifest) == []
    assert hear(cell, broker, B3, cell.manifest) == [Adopt(data)]
    # It has said so; saying it again would make the driver do it twice.
    assert hear(cell, broker, B4, cell.manifest) == []


def test_broker_that_waits_for_the_others_words_says_its_own_again() -> None:
    """One may have been lost, and links of the present epoch are made only once."""
    cell, broker, following = made()
    broker.handle(NewManifest(written(following)), T0)
    assert broker.handle(TimerFired(Remind(2)), T0) == [
        Send((B2, B3, B4), Taken(word(cell, B1, cell.manifest))),
        SetTimer(Remind(2), REMIND_MS),
    ]
    broker.adopt(following, following.keyring(cell.keyring(B1).identity))
    assert broker.handle(TimerFired(Remind(2)), T0) == []


def test_broker_that_has_gone_further_counts_among_those_that_go_by_the_present_epoch() -> None:
    """It had our word and the other's, and left before we had its own; the fourth is silent."""
    cell, broker, following = made()
    data, theirs = written(following), (word(cell, B2, following),)
    broker.handle(NewManifest(data), T0)
    assert broker.handle(EpochProof(data, theirs), T0) == []
    assert broker.handle(EpochProof(data, (word(cell, B2, following, signer=B4),)), T0) == []
    assert hear(cell, broker, B3, cell.manifest) == [Adopt(data)]


def test_word_on_another_manifest_of_the_present_epoch_does_not_count() -> None:
    cell, broker, following = made()
    broker.handle(NewManifest(written(following)), T0)
    other = msgspec.structs.replace(cell.manifest, clients=())
    assert hear(cell, broker, B2, other) == [Drop(DropReason.CONFLICT, B2)]
    assert hear(cell, broker, B3, cell.manifest) == []


def test_epoch_statement_that_its_sender_did_not_sign_is_refused() -> None:
    cell, broker, _ = made()
    stolen = word(cell, B2, cell.manifest, signer=B3)
    refused = [Drop(DropReason.BAD_SIGNATURE, B2)]
    assert broker.handle(Receive(B2, Taken(stolen)), T0) == refused
    theirs = word(cell, B3, cell.manifest)
    assert broker.handle(Receive(B2, Taken(theirs)), T0) == refused


def test_epoch_statements_kept_for_later_epochs_are_bounded_per_broker() -> None:
    cell, broker, following = made()
    for epoch in (7, 3, 9):
        far = msgspec.structs.replace(following, epoch=epoch)
        assert hear(cell, broker, B2, far) == []
    assert hear(cell, broker, B2, cell.manifest) == []
    assert broker.sizes()["epoch_statements"] == 3


def test_epoch_that_lowers_f_is_taken_with_as_many_words_as_before() -> None:
    cell = Cell(Policy.named("total"), n=7, f=2)
    broker = cell.broker(B1)
    following = msgspec.structs.replace(cell.manifest, epoch=2, f=1)
    words = tuple(word(cell, name, following) for name in cell.manifest.broker_ids[1:6])
    data = written(following)
    # Two of three might lie: one broker alone would know what was decided.
    assert broker.handle(EpochProof(data, words[:3]), T0) == []
    assert broker.handle(EpochProof(data, words), T0) == [Adopt(data, words)]


def test_logs_that_have_decided_different_manifests_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, broker, _ = made("total")
    membership = broker.membership
    logs = {Protection.BYZANTINE: SimpleNamespace(passed=b"one")}
    monkeypatch.setattr(type(membership._sequencers), "all", lambda self: logs)
    assert not membership.torn
    logs[Protection.CRASH] = SimpleNamespace(passed=None)
    assert not membership.torn
    logs[Protection.CRASH] = SimpleNamespace(passed=b"other")
    assert membership.torn


def test_words_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, broker, following = made("total")
    data = written(following)
    monkeypatch.setattr(type(broker.membership._sequencers), "passed", data)
    broker.handle(TimerFired(Tick(Protection.BYZANTINE)), T0)
    hear(cell, broker, B2, following)
    verified: list[Signed] = []

    def verify(keyring: Keyring, signed: Signed) -> bool:
        verified.append(signed)
        return True

    monkeypatch.setattr(Keyring, "signature_holds", verify)
    for _ in range(5):
        broker.handle(TimerFired(Tick(Protection.BYZANTINE)), T0)
    assert verified == []


@pytest.mark.parametrize("policy", ["ab", "total"])
@pytest.mark.parametrize("epoch", [2, 5])
def test_passage_with_words_of_f_plus_1_brokers_is_taken_however_far(
    policy: str, epoch: int
) -> None:
    cell, broker, following = made(policy)
    far = msgspec.structs.replace(following, epoch=epoch)
    words = word(cell, B2, far), word(cell, B3, far), word(cell, B4, far)
    assert broker.handle(EpochProof(written(far), words), T0) == [Adopt(written(far), words)]


@pytest.mark.parametrize(("policy", "enough"), [("direct-crash", 1), ("total-crash", 2)])
def test_passage_where_brokers_only_crash_takes_one_known_broker(policy: str, enough: int) -> None:
    """B3 and B4 were removed while B1 was away, so B2 is the only one left that it knows.

    Into a log it takes f+1 statements besides, also of brokers that it does not know.
    """
    cell, broker, far = made(policy)
    far = remove_broker(remove_broker(far, B3), B4)
    statement = EpochStatement(
        cell=far.cell, broker=NEW.name, epoch=far.epoch, digest=manifest_digest(far)
    )
    words = word(cell, B2, far), NEW.sign(canonical(statement))
    data = written(far)
    assert broker.handle(EpochProof(data, words[1:]), T0) == []
    assert broker.handle(EpochProof(data, words[: enough - 1]), T0) == []
    effects = broker.handle(EpochProof(data, words[:enough]), T0)
    assert [(e.data, set(e.statements)) for e in effects if isinstance(e, Adopt)] == [
        (data, set(words[:enough]))
    ]


@pytest.mark.parametrize(
    ("present", "later"),
    [(("direct-crash",), ("direct-crash", "ab")), (("direct-crash", "ab"), ("direct-crash",))],
)
def test_passage_where_brokers_may_lie_on_one_channel_takes_f_plus_1_known_brokers(
    present: tuple[str, ...], later: tuple[str, ...]
) -> None:
    cell = Cell(Policy.named("direct-crash"))
    channels = [
        tuple(ChannelEntry(Channel(name), Policy.named(name), ("*",), ("*",)) for name in names)
        for names in (present, later)
    ]
    cell.manifest = msgspec.structs.replace(cell.manifest, channels=channels[0])
    far = msgspec.structs.replace(cell.manifest, epoch=5, channels=channels[1])
    broker, data = cell.broker(B1), written(far)
    words = word(cell, B2, far), word(cell, B3, far)
    assert broker.handle(EpochProof(data, words[:1]), T0) == []
    assert broker.handle(EpochProof(data, words), T0) == [Adopt(data, words)]


def test_passage_into_a_log_that_too_few_have_executed_waits() -> None:
    cell, broker, following = made("total")
    words = word(cell, B2, following), word(cell, B3, following)
    assert broker.handle(EpochProof(written(following), words), T0) == []


def test_passage_one_liar_lures_nobody_away() -> None:
    cell, broker, following = made("total")
    data, mine = written(following), word(cell, B4, following)
    other = msgspec.structs.replace(following, clients=())
    for words in (
        (mine,),
        (mine, mine),
        (mine, word(cell, B3, following, signer=B4)),
        (mine, word(cell, B3, other)),
        (mine, Signed(B3, b"nonsense", b"")),
    ):
        assert broker.handle(EpochProof(data, words), T0) == []
    thief = Identity(NodeId("operator"), b"t" * 32)
    enough = word(cell, B2, following), word(cell, B3, following)
    assert broker.handle(EpochProof(written(following, thief), enough), T0) == []
    assert broker.handle(EpochProof(b"nonsense", enough), T0) == []
    assert broker.handle(EpochProof(written(cell.manifest), enough), T0) == []


def test_adopted_epoch_is_told_to_whoever_connects_and_votes_of_the_old_go() -> None:
    cell, broker, following = made()
    data = written(following)
    words = word(cell, B2, following), word(cell, B3, following)
    broker.handle(EpochProof(data, words), T0)
    broker.adopt(following, following.keyring(cell.keyring(B1).identity))
    assert {signed.signer for signed in broker.membership.statements} == {B1, B2, B3}
    said = broker.handle(Connected(NEW.name), T0)
    assert sum("Taken" in repr(effect) for effect in said) == 1
