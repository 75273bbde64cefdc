"""A broker process from inside: what strangers, operators and a full disk cannot do to it."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.world import PATIENCE_S, RawPeer, keyring, plan, run, until

from quorumcast.cell.messages import Accusation
from quorumcast.cell.serving.journal import Vouched
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, Channel, Millis, NodeId, Stream
from quorumcast.core.machine import (
    Accuse,
    Effect,
    Event,
    Persist,
    Persisted,
    Receive,
    Storage,
    TimerFired,
)
from quorumcast.core.statements import Evidence, EvidenceKind, HistoryStatement, canonical
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.session import Farewell
from quorumcast.manifest.build import add_client, remove_client
from quorumcast.manifest.files import sign_manifest, write_manifest
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.broker import broker, misbehaviour
from quorumcast.runtime.broker.broker import BrokerNode, BrokerSettings
from quorumcast.runtime.broker.control import FaultOrder
from quorumcast.runtime.broker.http import HttpRequest
from quorumcast.runtime.broker.misbehaviour import MisbehaviourLog
from quorumcast.runtime.store import store
from quorumcast.runtime.store.store import DiskStore
from quorumcast.runtime.telemetry import Telemetry
from quorumcast.testing.bed import free_ports
from quorumcast.testing.cells import CellSetup

BROKER = NodeId("broker-1")


def with_broker(
    tmp_path: Path,
    act: Callable[[BrokerNode, CellSetup], Coroutine[Any, Any, None]],
    policy: Policy | None = None,
    **settings: Any,
) -> None:
    cell = plan(1) if policy is None else plan(1, channels={"events": policy})
    path = tmp_path / "manifest.json"
    write_manifest(path, sign_manifest(cell.manifest, cell.operator))
    made = BrokerSettings(manifest=path, identity=tmp_path / "unread", **settings)

    async def main() -> None:
        node = BrokerNode(made, cell.manifest, cell.identities[BROKER])
        await node.start()
        try:
            await act(node, cell)
        finally:
            await node.stop()

    run(main())


def test_broker_strangers_with_a_high_epoch_do_not_make_it_read_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the file has changed; then the word is as good as any."""
    monkeypatch.setattr(broker, "READ_AGAIN_S", 3600.0)  # longer than this may take

    async def act(node: BrokerNode, cell: CellSetup) -> None:
        def boast() -> None:
            stranger = RawPeer(cell.manifest.brokers[0].port, keyring(cell, "alice"))
            hello = msgspec.structs.replace(stranger.greeter.hello(BROKER), epoch=10**6)
            assert isinstance(stranger.hello(hello), Farewell)
            stranger.wait_closed()
            stranger.close()

        loop = asyncio.get_running_loop()
        for _ in range(10):
            await loop.run_in_executor(None, boast)
        assert node._renewing is not None
        assert node._renewing.when() - loop.time() > 1800
        node.read_manifest()  # ends the pause
        following = msgspec.structs.replace(cell.manifest, epoch=2)
        write_manifest(node.settings.manifest, sign_manifest(following, cell.operator))
        await loop.run_in_executor(None, boast)
        await until(lambda: node.manifest.epoch == 2)

    with_broker(tmp_path, act)


#: Starts a broker and prints whether it can evaluate predicates when it begins to listen.
STARTING = """
import asyncio, sys
from pathlib import Path
from quorumcast.manifest.files import sign_manifest, write_manifest
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.broker.broker import BrokerNode, BrokerSettings
from quorumcast.runtime.links.transport import Transport
from quorumcast.testing.cells import CellSetup

async def main(path, port, policy, *columns):
    schema = tuple((column, "int64") for column in columns)
    entry = ChannelEntry("prices", Policy.named(policy), schema=schema)
    cell = CellSetup(brokers=1, ports=[int(port)], channels={"prices": entry})
    write_manifest(Path(path), sign_manifest(cell.manifest, cell.operator))
    name = cell.manifest.broker_ids[0]
    settings = BrokerSettings(manifest=Path(path), identity=Path(path))
    node = BrokerNode(settings, cell.manifest, cell.identities[name])
    def watched(*arguments):
        print("quorumcast.matching.indexing.index" in sys.modules)
        return listen(*arguments)
    listen, Transport.listen = Transport.listen, watched
    await node.start()
    await node.stop()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("channel", "loaded"),
    [(("ab", "price"), "True"), (("ab",), "False"), (("chain", "price"), "False")],
)
def test_broker_loads_matching_before_it_listens_if_subscribers_may_have_predicates(
    channel: tuple[str, ...], loaded: str, tmp_path: Path
) -> None:
    port = str(free_ports(1)[0])
    done = subprocess.run(
        [sys.executable, "-c", STARTING, str(tmp_path / "manifest.json"), port, *channel],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.strip() == loaded


def test_broker_evidence_that_the_disk_does_not_take_is_counted_and_nothing_ends(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("where a directory should be")
    evidence = Evidence(
        kind=EvidenceKind.CONFLICT, accused=NodeId("alice"), against=(), witnesses=(), note=""
    )

    async def act(node: BrokerNode, cell: CellSetup) -> None:
        node.driver.carry_out([Accuse(evidence)])
        assert node.telemetry.accusations[NodeId("alice")] == 1
        assert node.telemetry.drops["evidence-not-saved"] == 1
        assert not node.driver.stopped

    with_broker(tmp_path, act, evidence=blocked / "evidence")


def test_broker_evidence_of_an_earlier_life_is_kept_beside_the_new(tmp_path: Path) -> None:
    notes = ["first", "second", "second"]

    async def act(node: BrokerNode, cell: CellSetup) -> None:
        evidence = Evidence(
            kind=EvidenceKind.CONFLICT, accused=NodeId("alice"), against=(), note=notes.pop(0)
        )
        node.driver.carry_out([Accuse(evidence)])

    for life in range(3):
        (tmp_path / f"life-{life}").mkdir()
        with_broker(tmp_path / f"life-{life}", act, evidence=tmp_path / "evidence")
    found = sorted((tmp_path / "evidence").iterdir())
    assert [path.name for path in found] == [
        "broker-1-alice-2.evidence", "broker-1-alice.evidence",
    ]  # fmt: skip
    said = [msgspec.json.decode(path.read_bytes(), type=Evidence).note for path in found]
    assert said == ["second", "first"]


def two_histories(cell: CellSetup, liar: str) -> Evidence:
    """Proof that a publisher has contradicted itself."""
    stream = Stream(Channel("events"), NodeId(liar), 1)
    against = [
        cell.identities[NodeId(liar)].sign(
            canonical(
                HistoryStatement(
                    cell=cell.manifest.cell,
                    epoch=1,
                    stream=stream.history,
                    index=1,
                    first=1,
                    digests=bytes([value]) * DIGEST_SIZE,
                )
            )
        )
        for value in range(2)
    ]
    return Evidence(kind=EvidenceKind.CONFLICT, accused=NodeId(liar), against=tuple(against))


def test_broker_evidence_is_read_again_and_verified_until_the_liar_has_left(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "evidence"
    shown: list[dict[NodeId, int]] = []

    async def lie(node: BrokerNode, cell: CellSetup) -> None:
        for liar in ("alice", "bob"):
            evidence = two_histories(cell, liar)
            node.driver.feed(Receive(NodeId("bob"), Accusation(evidence)))
        file = directory / "broker-1-bob.evidence"
        content = file.read_bytes()
        file.write_bytes(content.replace(b'"accused":"bob"', b'"accused":"alice"'))

    async def start_again(node: BrokerNode, cell: CellSetup) -> None:
        shown.append(node.control.status().accusations)

    async def remove(node: BrokerNode, cell: CellSetup) -> None:
        shown.append(node.control.status().accusations)
        following = remove_client(cell.manifest, NodeId("alice"))
        write_manifest(node.settings.manifest, sign_manifest(following, cell.operator))
        node.read_manifest()
        await until(lambda: node.manifest.epoch == 2)
        shown.append(node.control.status().accusations)

    for act in (lie, start_again, remove):
        with_broker(tmp_path, act, evidence=directory)
        (tmp_path / "manifest.json").unlink()
    alice = NodeId("alice")
    assert shown == [{alice: 1}, {alice: 1}, {}]
    assert len(list(directory.iterdir())) == 2


def test_evidence_of_clients_does_not_hide_that_of_a_broker_whose_name_theirs_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misbehaviour, "MAX_FILES", 4)
    for name in ("broker-2", "broker-2-2", "broker-2-17"):
        write_evidence(tmp_path, name, "broker-2")
    for name in ("broker-2-spy", "broker-2-spy-2", "broker-2-+3", "broker-20"):
        write_evidence(tmp_path, name, "spy")
    log = MisbehaviourLog(BROKER, Telemetry(), tmp_path)
    found = [one.accused for one in log.saved([NodeId("broker-2")])]
    assert found == ["broker-2"] * 3 + ["spy"]


def write_evidence(directory: Path, name: str, accused: str) -> None:
    found = Evidence(kind=EvidenceKind.CONFLICT, accused=NodeId(accused), against=())
    (directory / f"broker-1-{name}.evidence").write_bytes(msgspec.json.encode(found))


def test_broker_reads_evidence_within_bounds_whatever_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MisbehaviourLog(BROKER, Telemetry(), tmp_path)
    assert MisbehaviourLog(BROKER, Telemetry(), None).saved([BROKER]) == []
    assert MisbehaviourLog(BROKER, Telemetry(), tmp_path / "none").saved([BROKER]) == []
    good = Evidence(kind=EvidenceKind.CONFLICT, accused=NodeId("alice"), against=())
    data = msgspec.json.encode(good)
    for name in ("alice", "alice-2", "broker-2"):
        (tmp_path / f"broker-1-{name}.evidence").write_bytes(data)
    os.mkfifo(tmp_path / "broker-1-a.evidence")  # to open it would wait forever
    (tmp_path / "broker-1-b.evidence").mkdir()
    (tmp_path / "broker-1-c.evidence").symlink_to(tmp_path / "gone")
    for name, nonsense in {"d": b"", "e": b"\xff{", "f": b"[" * 10_000, "g": b"{}"}.items():
        (tmp_path / f"broker-1-{name}.evidence").write_bytes(nonsense)
    for name in ("broker-2-alice.evidence", "broker-1-alice.json"):
        (tmp_path / name).write_bytes(data)
    with (tmp_path / "broker-1-h.evidence").open("wb") as file:
        file.truncate(10**12)
    assert log.saved([NodeId("broker-2")]) == [good] * 3
    monkeypatch.setattr(misbehaviour, "MAX_FILES", 1)  # that of a broker comes first
    (tmp_path / "broker-1-broker-2.evidence").write_bytes(data.replace(b"alice", b"broker-2"))
    assert [one.accused for one in log.saved([NodeId("broker-2")])] == ["broker-2"]
    monkeypatch.setattr(misbehaviour, "MAX_READ_BYTES", len(data) - 1)
    assert log.saved([]) == []


JOURNAL = Policy.named("ab", journal=True)


def test_broker_full_disk_is_told_to_the_machine_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.01)
    record = Vouched(Stream(Channel("events"), NodeId("alice"), 1), 1, bytes(10**6))

    async def act(node: BrokerNode, cell: CellSetup) -> None:
        heard: list[Event] = []
        handle = node.driver._handle

        def listen(event: Event, now: Millis) -> list[Effect]:
            if not isinstance(event, TimerFired):  # that is the machine's own business
                heard.append(event)
            return handle(event, now)

        node.driver._handle = listen
        assert isinstance(node._store, DiskStore)
        limit = node._store._database._connection.execute
        limit("PRAGMA max_page_count=10")
        node.driver.carry_out([Persist(record)])
        await until(lambda: Storage(full=True) in heard)
        shown = node.control.status().store
        assert shown is not None
        assert shown.full == 1
        assert shown.waiting_bytes > 10**6
        page = node.control.routes()["GET", "/metrics"](
            HttpRequest("GET", "/metrics", {}, b"")
        ).body
        assert b"quorumcast_store_full 1.0" in page
        limit("PRAGMA max_page_count=100000")
        await until(lambda: Persisted(record) in heard)
        assert heard == [Storage(full=True), Storage(full=False), Persisted(record)]
        shown = node.control.status().store
        assert shown is not None
        assert shown.full == shown.waiting_bytes == 0

    with_broker(tmp_path, act, JOURNAL, data=tmp_path / "data")


def test_broker_manifest_file_of_the_present_epoch_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "quorumcast.runtime.broker.broker.note", lambda what, **_: said.append(what)
    )

    async def act(node: BrokerNode, cell: CellSetup) -> None:
        said.clear()
        os.utime(node.settings.manifest)
        node.read_manifest()  # the cell has adopted it already
        assert said == []
        text = node.settings.manifest.read_text()
        node.settings.manifest.write_text(text.replace('"epoch": 1', '"epoch": 0'))
        node.read_manifest()
        assert said == ["keeps its manifest"]

    with_broker(tmp_path, act)


def test_broker_manifest_file_of_an_older_epoch_is_no_warning_and_a_second_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, int]] = []

    def hear(what: str, level: int = logging.INFO, **_: object) -> None:
        said.append((what, level))

    monkeypatch.setattr("quorumcast.runtime.broker.broker.note", hear)

    async def act(node: BrokerNode, cell: CellSetup) -> None:
        first = node.settings.manifest.read_bytes()

        def write(client: str) -> None:
            new = add_client(cell.manifest, NodeId(client), Identity.generate(NodeId(client)))
            write_manifest(node.settings.manifest, sign_manifest(new, cell.operator))
            node.read_manifest()

        write("erin")
        await until(lambda: node.manifest.epoch == 2)
        said.clear()
        node.settings.manifest.write_bytes(first)
        node.read_manifest()
        assert said == [("has an older manifest file", logging.INFO)]
        write("frank")  # another epoch 2
        assert said[1:] == [("keeps its manifest", logging.WARNING)]
        assert node.manifest.client(NodeId("frank")) is None

    with_broker(tmp_path, act)


def test_broker_two_with_one_store_are_refused(tmp_path: Path) -> None:
    async def act(node: BrokerNode, cell: CellSetup) -> None:
        with pytest.raises(UsageError, match="another broker has it open"):
            BrokerNode(node.settings, cell.manifest, cell.identities[BROKER])

    with_broker(tmp_path, act, JOURNAL, data=tmp_path / "data")


def test_broker_without_a_place_for_its_store_is_one_sentence(tmp_path: Path) -> None:
    async def act(node: BrokerNode, cell: CellSetup) -> None:
        raise AssertionError("it must not start")

    (tmp_path / "a file").write_text("where a directory should be")
    with pytest.raises(UsageError, match="say where to keep it with --data"):
        with_broker(tmp_path, act, JOURNAL)
    with pytest.raises(UsageError, match="there can be no store in"):
        with_broker(tmp_path, act, JOURNAL, data=tmp_path / "a file" / "data")


def test_broker_fault_asked_for_twice_replaces_the_first(tmp_path: Path) -> None:
    async def act(node: BrokerNode, cell: CellSetup) -> None:
        for percent in (10, 100):
            node.control.install(FaultOrder("alter", percent=percent))
            node.control.install(FaultOrder("drop"))
        assert [fault.name for fault in node.driver.faults] == ["alter", "drop"]
        assert node.driver.faults[0].context.percent == 100  # type: ignore[attr-defined]

    with_broker(tmp_path, act, allow_faults=True)


@pytest.mark.parametrize("module", ["quorumcast.runtime.broker.process", "quorumcast.client"])
def test_process_loads_prometheus_only_when_somebody_asks_for_metrics(module: str) -> None:
    code = f"import sys, {module}; print('prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == "False\n"
