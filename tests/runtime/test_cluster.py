"""Real broker processes: restarts, epochs, TLS, lies on request, users' mistakes."""

import asyncio
import contextlib
import json
import re
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow.parquet as pq
import pytest
from tests.runtime.world import PATIENCE_S, eventually, run, until

import quorumcast
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_WAIT_MS, MIN_WAIT_MS, Limits
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import add_client, next_epoch
from quorumcast.manifest.files import write_identity
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.broker.broker import BrokerSettings
from quorumcast.runtime.broker.process import decode_settings, encode_settings
from quorumcast.testing import LocalCluster, MemoryCell, make_client_honest, make_client_lie
from quorumcast.traces.recorder import Recorder

pytestmark = [pytest.mark.runtime]


def waiting_policy(wait_ms: int) -> Policy:
    """Publishers wait so long for subscribers; what the channel retains is soon outgrown."""
    limits = Limits(retained_publications=512, window=128, segment=128, wait_ms=wait_ms)
    return Policy.named("ab", limits=limits)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    channels: dict[str, str | Policy] = {
        "events": "ab+history",
        "brb": "brb",
        "patient": waiting_policy(MAX_WAIT_MS),
        "brief": waiting_policy(MIN_WAIT_MS),
        "lies": Policy.named("ab+history", alpha=4),
    }
    with LocalCluster(channels=channels) as cluster:
        yield cluster


async def connect(cluster: LocalCluster, name: str) -> quorumcast.Node:
    return await quorumcast.connect(
        cluster.manifest_path, cluster.identity_path(name), timeout_s=PATIENCE_S
    )


async def publish_many(node: quorumcast.Node, channel: str, count: int) -> None:
    async with node.publisher(channel, batching=False) as outbox:
        for number in range(count):
            await outbox.ready()
            outbox.post(b"%d" % number)


async def read_many(inbox: quorumcast.Subscription, count: int) -> tuple[int, int]:
    """The number of events that came, and of those that are in gaps."""
    came = lost = 0
    while came + lost < count:
        for item in await inbox.take():
            if isinstance(item, quorumcast.Gap):
                lost += item.upto - item.first + 1
            else:
                came += len(item.payloads)
    return came, lost


@contextlib.asynccontextmanager
async def pair(
    cluster: LocalCluster,
) -> AsyncIterator[
    tuple[quorumcast.Node, quorumcast.Node, quorumcast.Publisher, quorumcast.Subscription]
]:
    """alice publishes, bob subscribes."""
    async with (
        await connect(cluster, "alice") as alice,
        await connect(cluster, "bob") as bob,
        bob.subscribe("events") as sub,
        alice.publisher("events") as pub,
    ):
        yield alice, bob, pub, sub


def test_cluster_kill_9_and_restart_of_f_brokers_nothing_lost_nothing_twice() -> None:
    count = 3000

    async def main(cluster: LocalCluster) -> None:
        loop = asyncio.get_running_loop()
        async with pair(cluster) as (alice, bob, pub, sub):
            got: list[bytes] = []

            async def read() -> None:
                while len(got) < count:
                    got.append((await anext(sub)).payload)

            async def disturb() -> None:
                for name in ("broker-1", "broker-3"):
                    await loop.run_in_executor(None, cluster.kill, name)
                    await until(lambda name=name: name not in bob.connected)  # type: ignore[misc]
                    await loop.run_in_executor(None, cluster.restart, name)
                    await until(
                        lambda name=name: name in bob.connected and name in alice.connected  # type: ignore[misc]
                    )

            reading = asyncio.ensure_future(read())
            disturbing = asyncio.ensure_future(disturb())
            for i in range(count):
                if i % 10 or disturbing.done():
                    pub.post(b"%d" % i)
                else:
                    await pub.publish(b"%d" % i)
                    await asyncio.sleep(0.005)
            await disturbing
            await pub.flush()
            await reading
            assert got == [b"%d" % i for i in range(count)]

    with LocalCluster() as cluster:
        run(main(cluster))


def test_cluster_tls_between_all_parties() -> None:
    async def main(cluster: LocalCluster) -> None:
        async with pair(cluster) as (_alice, _bob, pub, sub):
            await pub.publish(b"secret")
            assert (await anext(sub)).payload == b"secret"

    with LocalCluster(tls=True, channels={"events": "brb"}) as cluster:
        run(main(cluster))


def shown_certificate(cluster: LocalCluster, broker: str) -> bytes:
    """The certificate that a broker shows in a handshake, in DER."""
    entry = cluster.manifest.broker(broker)
    assert entry is not None
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((entry.host, entry.port), PATIENCE_S) as plain,
        anybody.wrap_socket(plain) as link,
    ):
        return link.getpeercert(binary_form=True) or b""


def test_cluster_renewed_certificate_is_shown_without_a_restart() -> None:
    async def main(cluster: LocalCluster) -> None:
        async with pair(cluster) as (_alice, bob, pub, sub):
            pid = cluster.pid("broker-2")
            before = await asyncio.to_thread(shown_certificate, cluster, "broker-2")
            await asyncio.to_thread(cluster.rotate_broker, "broker-2")
            await asyncio.to_thread(cluster.wait_for_epoch)
            entry = cluster.manifest.broker("broker-2")
            assert entry is not None
            shown = await asyncio.to_thread(shown_certificate, cluster, "broker-2")
            assert shown == ssl.PEM_cert_to_DER_cert(entry.certificate) != before
            assert cluster.pid("broker-2") == pid
            # Clients trust nothing but the new certificate, and connect to all brokers.
            await bob.wait_connected(PATIENCE_S)
            await until(lambda: len(bob.connected) == len(cluster.brokers))
            await pub.publish(b"secret")
            assert (await anext(sub)).payload == b"secret"

    with LocalCluster(tls=True, channels={"events": "brb"}) as cluster:
        run(main(cluster))


def test_cluster_new_epoch_is_taken_without_restart_and_lets_a_new_client_in() -> None:
    async def main(cluster: LocalCluster) -> None:
        async with pair(cluster) as (alice, bob, pub, sub):
            await pub.publish(b"before")
            assert (await anext(sub)).payload == b"before"
            pids = [cluster.pid(broker) for broker in cluster.brokers]
            erin = Identity.generate(NodeId("erin"))
            write_identity(cluster.identity_path("erin"), erin)
            cluster.write_manifest(add_client(cluster.manifest, erin.name, erin))
            cluster.reload()
            async with await connect(cluster, "erin") as newcomer:
                async with newcomer.publisher("events") as own:
                    await own.publish(b"from erin")
                await pub.publish(b"after")
                assert {(await anext(sub)).payload for _ in range(2)} == {
                    b"from erin",
                    b"after",
                }
            assert alice.manifest.epoch == bob.manifest.epoch == 2
            assert pids == [cluster.pid(broker) for broker in cluster.brokers]

    with LocalCluster() as cluster:
        run(main(cluster))


def test_cluster_manifest_that_is_not_newer_or_forged_changes_nothing(
    cluster: LocalCluster,
) -> None:
    signed = cluster.manifest_path.read_bytes()
    try:
        cluster.manifest_path.write_bytes(signed.replace(b'"epoch": 1', b'"epoch": 7'))
        cluster.reload()
        log = cluster.log_path("broker-1")
        assert eventually(lambda: "keeps its manifest" in log.read_text())
        assert cluster.status("broker-1")["epoch"] == 1
    finally:
        cluster.manifest_path.write_bytes(signed)


def test_cluster_lies_on_request_and_status_tells(cluster: LocalCluster) -> None:
    cluster.wait_for_links()
    cluster.make_lie("broker-2", "alter", percent=100, victims=["contents"])

    async def main() -> None:
        async with pair(cluster) as (_alice, bob, pub, sub):
            for i in range(20):
                await pub.publish(b"%d" % i)
            assert [(await anext(sub)).payload for _ in range(20)] == [b"%d" % i for i in range(20)]
            await until(lambda: "dissent" in bob.suspicions.get(NodeId("broker-2"), ()))
            # Whoever is slow may be suspected of that, and of nothing else.
            others = [why for node, why in bob.suspicions.items() if node != "broker-2"]
            assert {reason for why in others for reason in why} <= {"silent", "withholds-body"}
            # The liar may invent streams, and n-f brokers acknowledge: this one may be the last.
            assert await asyncio.to_thread(eventually, told)

    def told() -> bool:
        status = cluster.status("broker-1")
        positions = [stream["next"] for stream in status["streams"]]
        return 21 in positions and sorted(status["clients"]) == ["alice", "bob"]

    run(main())
    status = cluster.status("broker-2")
    assert status["faults"] == ["alter"]
    assert "quorumcast_publications_total" in cluster.metrics("broker-2")
    cluster.make_honest("broker-2")
    assert cluster.status("broker-2")["faults"] == []
    with pytest.raises(UsageError, match="there is no fault 'nonsense'"):
        cluster.make_lie("broker-2", "nonsense")


def test_cluster_broker_that_may_not_lie_refuses_to() -> None:
    with LocalCluster(brokers=1, f=0, allow_faults=False, channels={"c": "direct"}) as cluster:
        with pytest.raises(UsageError, match="start it with --allow-faults"):
            cluster.make_lie("broker-1", "alter")
        assert cluster.stop_broker("broker-1") == 0


async def refused(cluster: LocalCluster, why: str) -> None:
    """`connect` always says that it cannot, and given enough time why."""
    said, timeout_s = "", 0.5
    while not re.search(why, said):
        with pytest.raises(UsageError) as caught:
            await quorumcast.connect(
                cluster.manifest_path, cluster.identity_path("alice"), timeout_s=timeout_s
            )
        said, timeout_s = str(caught.value), 2 * timeout_s
        assert re.match("only 0 of 4 brokers can be reached and 3 are needed", said)


def test_connect_brokers_down_is_one_sentence_that_names_them(cluster: LocalCluster) -> None:
    other = LocalCluster()
    try:
        run(refused(other, r"broker-1: 127.0.0.1:\d+ refuses connections; .*broker-4: 127.0.0.1"))
    finally:
        other.stop()


def test_connect_unknown_identity_and_wrong_cell_are_told_before_the_timeout(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A manifest of the same addresses, but of another cell and operator."""
    other = LocalCluster(directory=tmp_path / "other")
    ports = [broker.port for broker in cluster.manifest.brokers]
    brokers = tuple(
        msgspec.structs.replace(broker, port=port)
        for broker, port in zip(other.manifest.brokers, ports, strict=True)
    )
    other.write_manifest(msgspec.structs.replace(other.manifest, cell="other", brokers=brokers))

    async def main() -> None:
        with pytest.raises(UsageError, match=r"broker-\d(, broker-\d)+: it belongs to 'test'"):
            await quorumcast.connect(other.manifest_path, other.identity_path("alice"))
        with pytest.raises(UsageError, match="other keys than epoch 1"):
            await quorumcast.connect(cluster.manifest_path, other.identity_path("alice"))
        same_name = msgspec.structs.replace(other.manifest, cell="test")
        other.write_manifest(same_name)
        await refused(other, "does not hold the key of broker-1")

    try:
        run(main())
    finally:
        other.stop()


def test_connect_takes_a_directory_and_a_name_like_the_command_line(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cell").symlink_to(cluster.directory)
    (tmp_path / "alice").mkdir()  # is no identity, and must not hide the one of the cell

    async def main() -> None:
        async with await quorumcast.connect("cell", "alice", timeout_s=PATIENCE_S) as node:
            assert (node.name, len(node.connected) >= 3) == ("alice", True)
        with pytest.raises(UsageError, match=r"no identity 'nobody'; cell 'test' has the clients"):
            await quorumcast.connect("cell", "nobody")
        with pytest.raises(UsageError, match=r"who are you\? name an identity"):
            await quorumcast.connect("cell", "")

    run(main())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"identity": "alice.identity"}, "is a client of the cell 'test' and not a broker"),
        ({"identity": "nobody.identity"}, "there is no identity"),
        ({"manifest": "nowhere.json"}, "there is no manifest"),
        ({}, "another program already uses that port"),
    ],
)
def test_process_users_mistake_is_one_sentence_and_exit_code_2(
    cluster: LocalCluster, change: dict[str, str], words: str
) -> None:
    files = {"manifest": "manifest.json", "identity": "broker-1.identity", **change}
    settings = BrokerSettings(
        manifest=cluster.directory / files["manifest"],
        identity=cluster.directory / files["identity"],
        log_level="error",
    )
    assert decode_settings(encode_settings(settings)) == settings
    done = subprocess.run(
        [sys.executable, "-m", "quorumcast.runtime.broker.process", encode_settings(settings)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_cluster_supervisor_that_dies_takes_its_brokers_along(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from quorumcast.testing import LocalCluster\n"
        "c = LocalCluster(brokers=1, f=0, channels={'c': 'direct'}, directory=Path(sys.argv[1]))\n"
        "c.start(); print(c.pid('broker-1'), flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "d")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.communicate()
    assert eventually(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_cluster_next_epoch_of_a_broker_left_behind_is_taken_when_peers_say_so() -> None:
    with LocalCluster() as cluster:
        cluster.write_manifest(next_epoch(cluster.manifest))
        # No signal: the file is looked at every second, and a newer caller makes it sooner.
        assert eventually(lambda: all(cluster.status(b)["epoch"] == 2 for b in cluster.brokers))
        cluster.wait_for_links()


def test_cluster_journal_is_written_before_votes_and_read_after_kill_9() -> None:
    policy = Policy.named("ab", journal=True)

    async def publish(cluster: LocalCluster, count: int) -> None:
        async with pair(cluster) as (_, _, pub, sub):
            for i in range(count):
                await pub.publish(b"%d" % i)
            assert [(await anext(sub)).payload for _ in range(count)] == [
                b"%d" % i for i in range(count)
            ]

    with LocalCluster(channels={"events": policy}) as cluster:
        run(publish(cluster, 20))
        # n-f brokers acknowledged: this one may be the last.
        assert eventually(lambda: 21 in [s["next"] for s in cluster.status("broker-1")["streams"]])
        assert eventually(lambda: cluster.status("broker-1")["store"]["waiting_bytes"] == 0)
        cluster.kill("broker-1")
        path = cluster.directory / "data" / "broker-1.store"
        with contextlib.closing(sqlite3.connect(path)) as store:
            rows = store.execute("SELECT kind, count(*) FROM records GROUP BY kind").fetchall()
        assert len(rows) == 1
        assert rows[0][0] == "Vouched"
        assert rows[0][1] >= 1
        cluster.restart("broker-1")
        run(publish(cluster, 20))
        assert cluster.status("broker-1")["store"]["full"] == 0


def test_cluster_logs_are_json_lines(cluster: LocalCluster) -> None:
    lines = cluster.log_path("broker-4").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records[0]["message"] == "listens"
    assert all({"time", "level", "node", "message"} <= record.keys() for record in records)


def test_sync_client_over_real_brokers(cluster: LocalCluster) -> None:
    with (
        quorumcast.sync.connect(str(cluster.directory), "carol") as carol,
        quorumcast.sync.connect(cluster.manifest_path, cluster.identity_path("dave")) as dave,
        dave.subscribe("brb") as sub,
        carol.publisher("brb") as pub,
    ):
        pub.publish(b"one", timeout_s=PATIENCE_S)
        for i in range(2000):
            pub.post(b"%d" % i)
        pub.flush(timeout_s=PATIENCE_S)
        assert sub.next(PATIENCE_S).payload == b"one"
        got = [sub.next(PATIENCE_S).payload for _ in range(2000)]
        assert got == [b"%d" % i for i in range(2000)]


def test_clients_note_what_brokers_do_before_the_first_word(tmp_path: Path) -> None:
    async def main(cluster: LocalCluster) -> None:
        path = cluster.manifest_path
        async with (
            await quorumcast.connect(
                path, cluster.identity_path("alice"), observe=tmp_path / "log"
            ) as alice,
            alice.subscribe("events") as sub,
            alice.publisher("events") as pub,
        ):
            await pub.publish(b"x")
            await anext(sub)

    with LocalCluster(channels={"events": "ab"}) as cluster:
        run(main(cluster))
    rows = pq.read_table(tmp_path / "log" / "observations", partitioning=None).to_pylist()
    assert {row["observer"] for row in rows} == {"alice"}
    for role, message in (("publisher", "Ack"), ("subscriber", "Vote")):
        own = [row for row in rows if row["role"] == role]
        heard = {row["accused"] for row in own if row["message"] == message}
        up = {row["accused"] for row in own if (row["kind"], row["reason"]) == ("link", "up")}
        assert len(heard) >= 3
        assert heard <= up


def test_trace_notes_what_was_published_forwarded_and_accepted(tmp_path: Path) -> None:
    recorder = Recorder.to_file(tmp_path / "clients.parquet", "client", NodeId("clients"))

    async def main(cluster: LocalCluster) -> None:
        path = cluster.manifest_path
        async with (
            await quorumcast.connect(
                path, cluster.identity_path("alice"), recorder=recorder
            ) as alice,
            await quorumcast.connect(path, cluster.identity_path("bob"), recorder=recorder) as bob,
            bob.subscribe("events") as sub,
            alice.publisher("events") as pub,
        ):
            for _ in range(5):
                await pub.publish(b"x")
                await anext(sub)

    with LocalCluster(trace=tmp_path, channels={"events": "ab"}) as cluster:
        run(main(cluster))
    recorder.close()

    def rows(node: str) -> list[dict[str, Any]]:
        pieces = sorted(tmp_path.glob(f"{node}*.parquet"))
        return sorted(pq.read_table(pieces).to_pylist(), key=lambda row: row["t_ns"])

    clients = rows("clients")
    accepted = {row["number"]: row["t_ns"] for row in clients if row["kind"] == "accepted"}
    # Some brokers are sent a publication later than others: the first time counts.
    sent = [row for row in reversed(clients) if row["kind"] == "published"]
    published = {row["number"]: row["t_ns"] for row in sent}
    assert accepted.keys() == published.keys() == {1, 2, 3, 4, 5}
    # One broker may have heard of the subscription late, or of the end early: a quorum had not.
    forwarders: Counter[int] = Counter()
    peers: set[str] = set()
    for broker in cluster.brokers:
        forwarded = [row for row in rows(broker) if row["kind"] == "forwarded"]
        forwarders.update({row["number"] for row in forwarded})
        peers.update(row["peer"] for row in forwarded)
        assert all(row["t_ns"] > published[row["number"]] for row in forwarded)
    assert peers == {"bob"}
    assert forwarders.keys() == published.keys()
    assert min(forwarders.values()) >= 3


def test_cluster_publishers_wait_for_a_subscriber_that_reads_again_in_time(
    cluster: LocalCluster,
) -> None:
    """On channels of which nobody waits, it lost a third of what was acknowledged."""
    count = 3000

    def waits() -> bool:
        return bool(cluster.status("broker-1")["waited_ms"].get("patient"))

    async def main() -> tuple[int, int]:
        async with (
            await connect(cluster, "alice") as alice,
            await connect(cluster, "bob") as bob,
            bob.subscribe("patient", queue=128) as inbox,
        ):
            publishing = asyncio.create_task(publish_many(alice, "patient", count))
            assert await asyncio.to_thread(eventually, waits)
            assert not publishing.done()
            found = await read_many(inbox, count)
            await publishing
            return found

    assert run(main()) == (count, 0)


def test_cluster_publishers_wait_no_longer_for_a_subscriber_that_does_not_read(
    cluster: LocalCluster,
) -> None:
    count = 3000

    async def main() -> tuple[int, int]:
        async with (
            await connect(cluster, "alice") as alice,
            await connect(cluster, "bob") as bob,
            bob.subscribe("brief", queue=128) as inbox,
        ):
            await publish_many(alice, "brief", count)
            return await read_many(inbox, count)

    assert sum(run(main())) == count
    # It has caught up since, and may have regained some of what it used up.
    assert cluster.status("broker-1")["waited_ms"]["brief"]["bob"] <= MIN_WAIT_MS + 100


def test_cluster_publisher_that_equivocates_is_convicted_and_another_one_served(
    cluster: LocalCluster,
) -> None:
    async def main() -> None:
        async with (
            await connect(cluster, "alice") as alice,
            await connect(cluster, "bob") as bob,
            bob.subscribe("lies") as inbox,
        ):
            make_client_lie(alice, "equivocating-publisher")
            lies, truth = alice.publisher("lies"), bob.publisher("lies")
            for number in range(30):
                lies.post(b"lie %d" % number)
                await truth.publish(b"%d" % number)
            mine: list[bytes] = []
            while len(mine) < 30:
                event = await anext(inbox)
                mine += [event.payload] if event.publisher == "bob" else []
            assert mine == [b"%d" % number for number in range(30)]

            def convicted() -> bool:
                return all("alice" in cluster.status(one)["accusations"] for one in cluster.brokers)

            assert await asyncio.to_thread(eventually, convicted)

    run(main())


def test_cluster_subscriber_that_claims_to_read_nothing_delays_publishers_only_for_its_time(
    cluster: LocalCluster,
) -> None:
    async def main() -> tuple[int, int]:
        async with (
            await connect(cluster, "alice") as alice,
            await connect(cluster, "bob") as bob,
            bob.subscribe("brief") as inbox,
        ):
            make_client_lie(bob, "never-reads")
            await publish_many(alice, "brief", 3000)
            return await read_many(inbox, 3000)

    assert run(main()) == (3000, 0)  # it lied: it reads everything


def test_client_lies_only_as_clients_can() -> None:
    async def main() -> None:
        async with MemoryCell() as cell:
            alice = await cell.connect("alice")
            with pytest.raises(UsageError, match="'alter' is a broker's fault; a publisher or sub"):
                make_client_lie(alice, "alter")
            make_client_lie(alice, "skip-broker", victims=["broker-1"])
            async with alice.publisher("events") as outbox:
                await outbox.publish(b"one")
                assert cell.broker("broker-1").machine.sizes()["streams"] == 0
                make_client_honest(alice)
                await outbox.publish(b"two")
                await until(lambda: cell.broker("broker-1").machine.sizes()["streams"] == 1)

    run(main())
