"""The HTTP interface of a broker: status, metrics, and faults on request.

    GET /status     JSON: time, peers, streams, logs, suspicions, drops, faults, rates, memory, disk
    GET /metrics    the same for Prometheus
    GET /healthz    200 while the process is alive
    GET /readyz     200 if it is linked to a quorum and has caught up; 503 and the reason if not
    GET /faults     the catalogue and what is installed
    POST /faults    {"name": "alter", "percent": 50, "victims": ["bob"]}
    DELETE /faults  all of them, or ?name=alter
    DELETE /links   break every link, those to parents as well, as a bad network would

Faults and cut links are for tests and demonstrations: both are refused unless the broker was
started with `--allow-faults`.
"""

from __future__ import annotations

import os
import random
import time
from http import HTTPStatus
from typing import Protocol

import msgspec

from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.filtered_readers import PredicateWork
from quorumcast.cell.serving.sequencers import LogStatus
from quorumcast.cell.serving.served_streams import StreamStatus
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, holder
from quorumcast.core.version import __version__
from quorumcast.crypto.keyring import Keyring
from quorumcast.faults.cell.catalogue import CATALOGUE, check_fault, make_fault
from quorumcast.faults.cell.entry import FaultContext, Role
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.broker.http import (
    Handler,
    HttpRequest,
    Response,
    error_response,
    json_response,
)
from quorumcast.runtime.broker.uplinks import Uplinks, UplinkStatus
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.fairness import Load
from quorumcast.runtime.links.transport import Transport
from quorumcast.runtime.logs import note
from quorumcast.runtime.store.contract import StoreStatus
from quorumcast.runtime.store.directory import DiskStatus
from quorumcast.runtime.telemetry import Rates, Telemetry, cpu_seconds, rss_bytes

#: Things that a broker lacks, named by `/readyz`.
MAX_REASONS = 3


class FaultOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault to install."""

    name: str
    percent: int = 100
    victims: tuple[str, ...] = ()
    seed: int = 0


class PeerStatus(msgspec.Struct, frozen=True):
    """The link from one broker to another."""

    up: bool
    #: Why there is no link; "" if there is one.
    trouble: str
    #: Seconds since the first link between the two; None if there never was one.
    met_s_ago: float | None


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What `/status` shows, in this order."""

    node: NodeId
    version: str
    pid: int
    time: float
    cell: str
    epoch: int
    f: int
    brokers: dict[NodeId, PeerStatus]
    clients: list[NodeId]
    #: Publishers and subscribers by channel.
    users: dict[str, dict[Channel, list[NodeId]]]
    #: How long publishers waited for each client lately, by channel.
    waited_ms: dict[Channel, dict[NodeId, int]]
    #: Predicates and what is done for them, by channel.
    predicates: dict[Channel, PredicateWork]
    streams: list[StreamStatus]
    #: By the protection of the log.
    logs: dict[str, LogStatus]
    catching_up: list[str]
    #: The links to parent cells, for channels that come from there.
    uplinks: list[UplinkStatus]
    load: dict[NodeId, Load]
    sizes: dict[str, int]
    store: StoreStatus | None
    disk: DiskStatus | None
    faults: list[str]
    #: Per second, by the names of `traffic`.
    rates: dict[str, float]
    uptime_s: float
    rss_bytes: int
    cpu_s: float
    traffic: dict[str, int]
    drops: dict[str, int]
    #: By node and reason.
    suspicions: dict[NodeId, dict[str, int]]
    accusations: dict[NodeId, int]


class Controlled(Protocol):
    """What the status page needs of its broker."""

    manifest: Manifest
    keyring: Keyring
    telemetry: Telemetry
    driver: Driver
    machine: Broker

    transport: Transport
    uplinks: Uplinks

    @property
    def name(self) -> NodeId:
        """The broker's own name."""

    def store_status(self) -> StoreStatus | None:
        """The state of its store; None if no channel needs one."""

    def disk_status(self) -> DiskStatus | None:
        """The state of its data directory; None if it has none."""


class Control:
    """The handlers of one broker's status page."""

    def __init__(self, node: Controlled, *, allow_faults: bool) -> None:
        self._node = node
        self._allow_faults = allow_faults
        self._rates = Rates(node.telemetry)

    def routes(self) -> dict[tuple[str, str], Handler]:
        """The handlers by method and path."""
        return {
            ("GET", "/status"): self._on_status,
            ("GET", "/metrics"): self._on_metrics,
            ("GET", "/healthz"): lambda request: json_response({"alive": True}),
            ("GET", "/readyz"): self._on_ready,
            ("GET", "/faults"): self._on_list_faults,
            ("POST", "/faults"): self._on_add_fault,
            ("DELETE", "/faults"): self._on_clear_faults,
            ("DELETE", "/links"): self._on_cut_links,
        }

    def _on_status(self, request: HttpRequest) -> Response:
        shown = msgspec.to_builtins(self.status())
        # Readers look into both without asking whether they are there.
        return json_response({**shown, "store": shown["store"] or {}, "disk": shown["disk"] or {}})

    def status(self) -> BrokerStatus:
        """What `/status` shows."""
        node, machine, telemetry = self._node, self._node.machine, self._node.telemetry
        up, troubles = set(node.transport.peers()), node.transport.troubles()
        manifest = node.manifest
        return BrokerStatus(
            node=node.name,
            version=__version__,
            pid=os.getpid(),
            time=time.time(),
            cell=manifest.cell,
            epoch=manifest.epoch,
            f=manifest.f,
            brokers={
                peer: PeerStatus(
                    peer in up or peer == node.name,
                    troubles[peer].sentence if peer in troubles else "",
                    telemetry.met_s_ago(peer),
                )
                for peer in manifest.broker_ids
            },
            clients=sorted(up - set(manifest.broker_ids)),
            users={
                "publishers": machine.publishers(),
                "subscribers": {name: list(there) for name, there in machine.subscribers().items()},
            },
            waited_ms=machine.waited(),
            predicates=machine.predicate_work(),
            streams=list(machine.streams().values()),
            logs=machine.logs(),
            catching_up=machine.catching_up(),
            uplinks=node.uplinks.status(),
            load=node.transport.load(),
            sizes=self._sizes(),
            store=node.store_status(),
            disk=node.disk_status(),
            faults=[fault.name for fault in node.driver.faults],
            rates=self._rates.sample(),
            uptime_s=telemetry.uptime_s,
            rss_bytes=rss_bytes(),
            cpu_s=round(cpu_seconds(), 3),
            traffic=telemetry.traffic(),
            drops=dict(telemetry.drops),
            suspicions=telemetry.suspicions_by_node(),
            accusations=dict(telemetry.accusations),
        )

    def _sizes(self) -> dict[str, int]:
        """How much each container that peers can fill holds."""
        node = self._node
        return {**node.machine.sizes(), **node.transport.sizes(), **node.uplinks.sizes()}

    def _on_metrics(self, request: HttpRequest) -> Response:
        from quorumcast.runtime.broker.metrics import Collector, channel_metrics, exposition

        node = self._node
        up = {holder(peer) for peer in node.transport.peers()}
        brokers, clients = node.manifest.brokers, node.manifest.clients
        peers = {("broker", one.id): one.id in up for one in brokers if one.id != node.name}
        collector = Collector(
            node.telemetry,
            node.manifest.epoch,
            peers | {("client", one.id): one.id in up for one in clients},
            channel_metrics(node.manifest, node.machine),
            node.machine.logs(),
            self._sizes(),
            node.transport.load(),
            node.store_status(),
            node.machine.catching_up(),
            node.uplinks.status(),
        )
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(HTTPStatus.OK, exposition(collector), content_type)

    def _on_ready(self, request: HttpRequest) -> Response:
        node, up = self._node, set(self._node.transport.peers())
        linked = 1 + len(up.intersection(node.manifest.broker_ids))
        needed, waits = node.manifest.quorums.responders, node.machine.catching_up()
        if linked < needed:
            reason = f"{node.name} is linked to too few brokers: {linked} of {needed}, with itself"
        elif waits:
            reason = f"{node.name} is catching up: {', '.join(waits[:MAX_REASONS])}"
        else:
            return json_response({"ready": True})
        status = HTTPStatus.SERVICE_UNAVAILABLE
        return json_response({"ready": False, "error": reason}, status)

    def _on_list_faults(self, request: HttpRequest) -> Response:
        return json_response(
            {
                "allowed": self._allow_faults,
                "installed": [fault.name for fault in self._node.driver.faults],
                "catalogue": {
                    entry.name: entry.description
                    for entry in CATALOGUE.values()
                    if entry.role is Role.BROKER
                },
            }
        )

    def _on_add_fault(self, request: HttpRequest) -> Response:
        if not self._allow_faults:
            return self._forbidden()
        try:
            order = msgspec.convert(request.json(), FaultOrder)
        except msgspec.ValidationError as error:
            raise UsageError(f"this does not describe a fault ({error})") from None
        self.install(order)
        return self._on_list_faults(request)

    def install(self, order: FaultOrder) -> None:
        """Make this broker misbehave from now on; a fault that it has already is replaced."""
        node = self._node
        check_fault(order.name, Role.BROKER)
        context = FaultContext(
            node.name,
            node.manifest,
            node.keyring,
            random.Random(order.seed),
            percent=order.percent,
            victims=order.victims,
        )
        others = [fault for fault in node.driver.faults if fault.name != order.name]
        node.driver.faults = (*others, make_fault(order.name, context))
        note("misbehaves on request", fault=order.name)

    def _on_clear_faults(self, request: HttpRequest) -> Response:
        if not self._allow_faults:
            return self._forbidden()
        names = request.query.get("name")
        driver = self._node.driver
        driver.faults = tuple(fault for fault in driver.faults if names and fault.name not in names)
        note("misbehaves no more", still=[fault.name for fault in driver.faults])
        return self._on_list_faults(request)

    def _on_cut_links(self, request: HttpRequest) -> Response:
        if not self._allow_faults:
            return self._forbidden()
        self._node.transport.cut()
        self._node.uplinks.cut()
        note("cut its links on request")
        return json_response({"cut": True})

    def _forbidden(self) -> Response:
        return error_response(
            f"{self._node.name} does not lie on request: start it with --allow-faults",
            HTTPStatus.FORBIDDEN,
        )
