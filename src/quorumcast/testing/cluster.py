"""A real cell on this machine: one process per broker, on free ports, in a directory of its own.

The cluster starts, stops, kills and restarts its brokers; a broker counts as started when it says
that it listens. Used by tests, the benchmark, the demonstration and `quorumcast up`.
"""

from __future__ import annotations

import http.client
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest import build
from quorumcast.manifest.files import sign_manifest, write_identity, write_manifest
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.trees import PlannedCell
from quorumcast.runtime.broker.broker import BrokerSettings
from quorumcast.runtime.broker.identities import next_identity, with_certificates
from quorumcast.runtime.broker.process import encode_settings
from quorumcast.runtime.links.tls import make_certificate
from quorumcast.runtime.store.contract import SQLITE
from quorumcast.runtime.store.directory import store_files
from quorumcast.testing.bed import TIMEOUT_S, Bed, free_ports
from quorumcast.testing.cells import CHANNELS, CLIENTS, CellSetup

#: The timeout for one answer of a status page; then it is asked again.
ANSWER_S = 10.0


class LocalCluster(Bed):
    """Broker processes on this machine.

    >>> with LocalCluster(channels={"orders": "ab+history"}) as cluster:        # doctest: +SKIP
    ...     node = await connect(cluster.manifest_path, cluster.identity_path("alice"))
    """

    def __init__(
        self,
        *,
        brokers: int = 4,
        f: int | None = None,
        clients: Sequence[str] = CLIENTS,
        channels: Mapping[str, str | Policy | ChannelEntry] = CHANNELS,
        directory: Path | None = None,
        tls: bool = False,
        host: str = "127.0.0.1",
        store: str = SQLITE,
        allow_faults: bool = True,
        trace: Path | None = None,
        observe: Path | None = None,
        arrow: bool = False,
        log_level: str = "info",
        cell: PlannedCell | None = None,
    ) -> None:
        """`cell` is one of a tree (`testing.tree`), in place of what else makes a manifest."""
        super().__init__(directory, arrow=arrow or bool(trace or observe))
        self.plan: CellSetup | PlannedCell = cell or CellSetup(
            brokers=brokers,
            f=f,
            clients=clients,
            channels=channels,
            ports=free_ports(brokers),
            host=host,
            repeatable=False,
        )
        self.manifest: Manifest = self.plan.manifest
        if tls:
            self.manifest = with_certificates(self.manifest, self.plan.identities)
        self._allow_faults = allow_faults
        self._store = store
        self._trace = trace
        self._observe = observe
        self._log_level = log_level
        self._status_ports: dict[NodeId, int] = {}
        self.manifest_path = self.directory / "manifest.json"
        self.write_manifest(self.manifest)
        for name, identity in self.plan.identities.items():
            write_identity(self.identity_path(name), identity)
        write_identity(self.directory / "operator.identity", self.plan.operator)

    def write_manifest(self, manifest: Manifest) -> None:
        """Sign a manifest and write it where all nodes read it."""
        self.manifest = manifest
        write_manifest(self.manifest_path, sign_manifest(manifest, self.plan.operator))

    def identity_path(self, name: str) -> Path:
        """The identity file of a node."""
        return self.directory / f"{name}.identity"

    # -------------------------------------------------------------------- members

    def add_broker(self, name: str) -> None:
        """Write the next epoch with one more broker, and start its process."""
        identity = Identity.generate(NodeId(name))
        write_identity(self.identity_path(name), identity)
        (port,) = free_ports(1)
        self.write_manifest(
            build.add_broker(self.manifest, identity.name, identity, "127.0.0.1", port)
        )
        self.start_broker(name)

    def remove_broker(self, name: str) -> None:
        """Write the next epoch without a broker, whose process ends by itself (`wait_left`)."""
        self.write_manifest(build.remove_broker(self.manifest, NodeId(name)))

    def wait_left(self, name: str, timeout_s: float = TIMEOUT_S) -> int:
        """Wait until a removed broker has ended; returns its exit code."""
        return self._processes.pop(name).wait(timeout_s)

    def rotate_broker(self, name: str) -> None:
        """Write the next epoch with new keys for a broker."""
        identity = Identity.generate(NodeId(name))
        write_identity(next_identity(self.identity_path(name)), identity)
        entry = self.manifest.broker(name)
        certificate = make_certificate(identity) if entry and entry.certificate else ""
        self.write_manifest(
            build.rotate(self.manifest, identity.name, identity, certificate=certificate)
        )

    def wait_for_epoch(self, *names: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until these brokers, or all that run, have adopted the manifest's epoch."""
        wanted, epoch = names or self._running(), self.manifest.epoch
        self.wait_until(
            lambda: all(self.status(name)["epoch"] >= epoch for name in wanted),
            f"epoch {epoch} was not taken",
            timeout_s,
        )

    # ------------------------------------------------------------------ processes

    @property
    def brokers(self) -> list[NodeId]:
        """The brokers of the manifest."""
        return list(self.manifest.broker_ids)

    def start(self) -> None:
        """Start every broker and wait until all of them listen."""
        self.await_started(self.begin_start())

    def begin_start(self) -> dict[NodeId, int]:
        """Start every broker; `await_started` takes what this returns."""
        return {broker: self._spawn(broker) for broker in self.brokers}

    def await_started(self, pipes: dict[NodeId, int]) -> None:
        """Wait until all brokers listen."""
        for broker, pipe in pipes.items():
            self._wait_ready(broker, pipe)

    def start_broker(self, name: str) -> None:
        """Start one broker and wait until it listens."""
        self._wait_ready(NodeId(name), self._spawn(NodeId(name)))

    def _spawn(self, broker: NodeId) -> int:
        def settings(ready: int) -> list[str]:
            return [
                encode_settings(
                    BrokerSettings(
                        manifest=self.manifest_path,
                        identity=self.identity_path(broker),
                        http_port=self._status_ports.get(broker, 0),
                        allow_faults=self._allow_faults,
                        evidence=self.directory / "evidence",
                        data=self.directory / "data",
                        store=self._store,
                        trace=self._trace,
                        observe=self._observe,
                        ready_fd=ready,
                        lifeline_fd=self.lifeline,
                        log_level=self._log_level,
                    )
                )
            ]

        return self.spawn_announced(broker, "quorumcast.runtime.broker.process", settings)

    def _wait_ready(self, broker: NodeId, pipe: int) -> None:
        self._status_ports[broker] = int(self.wait_announced(broker, pipe))

    def stop_broker(self, name: str) -> int:
        """SIGTERM, and its exit code; kill -9 if that does not help in time."""
        return self.end(name)

    def restart(self, name: str) -> None:
        """Start a broker again that was stopped or killed."""
        if self.running(name):
            self.stop_broker(name)
        self.start_broker(name)

    def reload(self) -> None:
        """Tell every broker to read its manifest file again."""
        for process in self._processes.values():
            process.send_signal(signal.SIGHUP)

    # --------------------------------------------------------------------- status

    def status_url(self, name: str) -> str:
        """The address of a broker's status page."""
        return f"http://127.0.0.1:{self._status_ports[NodeId(name)]}"

    def status(self, name: str) -> dict[str, Any]:
        """The status of a broker."""
        result: dict[str, Any] = json.loads(self._request(name, "GET", "/status"))
        return result

    def metrics(self, name: str) -> str:
        """The Prometheus metrics of a broker."""
        return self._request(name, "GET", "/metrics").decode()

    def make_lie(self, name: str, fault: str, **options: Any) -> None:
        """Install a fault of the catalogue in a broker."""
        self._request(name, "POST", "/faults", {"name": fault, **options})

    def cut_links(self, name: str) -> None:
        """Break every link of a broker, as a bad network would."""
        self._request(name, "DELETE", "/links")

    def wipe(self, name: str) -> None:
        """Remove the store of a stopped broker."""
        for path in store_files(self.directory / "data", name):
            path.unlink()

    def make_honest(self, name: str) -> None:
        """Remove all faults from a broker."""
        self._request(name, "DELETE", "/faults")

    def _request(
        self, name: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> bytes:
        """The answer of a broker; every request here may safely be repeated."""
        request = urllib.request.Request(
            self.status_url(name) + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                    result: bytes = answer.read()
                    return result
            except urllib.error.HTTPError as error:
                raise UsageError(json.load(error).get("error", str(error))) from None
            except (OSError, http.client.HTTPException) as error:
                if not self.running(name) or time.monotonic() > deadline:
                    raise UsageError(f"{name} does not answer ({error}); is it running?") from None
                time.sleep(0.05)

    def wait_for_links(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until every running broker is connected to every other running one."""
        running = self._running()

        def linked() -> bool:
            states = [self.status(broker)["brokers"] for broker in running]
            return all(state[other]["up"] for state in states for other in running)

        self.wait_until(linked, "the brokers did not find each other", timeout_s)

    def wait_executed(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until every running broker has executed all that any of them has, in each log.

        A publication is acknowledged when n-f brokers have executed it, so another broker may
        answer a reader before it has executed it.
        """
        running = self._running()
        furthest = self._executed(running, max)

        def together() -> bool:
            least = self._executed(running, min)
            return all(least[log] >= place for log, place in furthest.items())

        self.wait_until(together, "the brokers did not come to one place", timeout_s)

    def _executed(
        self, brokers: Sequence[NodeId], choose: Callable[[list[int]], int]
    ) -> dict[str, int]:
        """The position that brokers have executed in each log: the lowest or the highest."""
        views = [self.status(broker)["logs"] for broker in brokers]
        logs = {log for view in views for log in view}
        return {
            log: choose([view[log]["executed"] if log in view else 0 for view in views])
            for log in logs
        }

    def _running(self) -> list[NodeId]:
        return [broker for broker in self.brokers if self.running(broker)]
