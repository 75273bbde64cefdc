"""A broker's counters in the text format of Prometheus.

Imported when `/metrics` is first asked for: loading the Prometheus library takes a sixth of a
broker's start.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.filtered_readers import PredicateWork
from quorumcast.cell.serving.sequencers import LogStatus
from quorumcast.cell.serving.served_streams import WrittenTotals
from quorumcast.core.envelope import events_of
from quorumcast.core.ids import Channel, Lane, NodeId, Stream, holder
from quorumcast.core.version import __version__
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.broker.uplinks import UplinkStatus
from quorumcast.runtime.links.fairness import Load
from quorumcast.runtime.store.contract import StoreStatus
from quorumcast.runtime.telemetry import LATENCIES_S, Telemetry, cpu_seconds, rss_bytes

#: Counters of each peer: name, help text, field of `Load`.
_COSTS = (
    ("cpu_seconds", "processor time spent on an identity", "cpu_s"),
    ("request_seconds", "of this, for its requests", "requests_s"),
    ("pauses", "how often its requests were paused", "paused"),
    ("disconnections", "how often it was disconnected", "disconnected"),
)

#: Gauges of each log: field of `LogStatus`, help text.
_PROGRESS = {
    "regency": "leader changes in this epoch",
    "decided": "batches decided",
    "executed": "batches executed",
    "checkpoint": "batches covered by the last stable checkpoint",
}
#: What is done for the predicates of a channel: field of `PredicateWork`, help text.
_PREDICATE_GAUGES = {
    "predicates": "predicates of subscribers",
    "subscribers": "subscribers with predicates",
}
_PREDICATE_COUNTERS = {
    "rows_looked_at": "rows on which predicates were evaluated, once per group of subscribers",
    "rows_sent": "rows sent because they match, once per group of subscribers",
    "cuts": "publications of which some rows were sent",
    "whole": "publications sent whole to subscribers with predicates",
}
#: Publications per stream, streams per channel, and bytes of a stream that are looked at to count
#: events.
MAX_SAMPLED = 64
MAX_SAMPLED_STREAMS = 16
MAX_SAMPLED_BYTES = 1 << 20


class ChannelMetrics(msgspec.Struct, frozen=True):
    """What one broker knows of a channel."""

    publications: int
    size: int
    #: Mean number of events in a sample of the newest publications; None without any. An exact
    #: count would take work for every publication, and brokers handle whole runs.
    sampled_events: float | None
    #: Publications that each subscriber is behind, by client.
    lags: dict[NodeId, int]
    predicates: PredicateWork


def channel_metrics(manifest: Manifest, machine: Broker) -> dict[Channel, ChannelMetrics]:
    """The metrics of each channel of the manifest."""
    written, subscribers = machine.written(), machine.subscribers()
    predicates = machine.predicate_work()
    streams: dict[Channel, list[Stream]] = {}
    for stream in machine.streams():
        streams.setdefault(stream.channel, []).append(stream)
    found: dict[Channel, ChannelMetrics] = {}
    for entry in manifest.channels:
        total = written.get(entry.name, WrittenTotals())
        lags: dict[NodeId, int] = {}
        for seat, lag in subscribers.get(entry.name, {}).items():
            lags[holder(seat)] = max(lag, lags.get(holder(seat), 0))
        newest = streams.get(entry.name, [])[-MAX_SAMPLED_STREAMS:]
        found[entry.name] = ChannelMetrics(
            total.publications,
            total.size,
            _sampled_events(machine, newest, labelled=entry.policy.total),
            lags,
            predicates.get(entry.name, PredicateWork()),
        )
    return found


def _sampled_events(machine: Broker, streams: Iterable[Stream], *, labelled: bool) -> float | None:
    events: list[int] = []
    for stream in streams:
        served = machine.served(stream)
        if served is not None:
            ledger = served.ledger(Lane.DATA)
            first = max(ledger.base, ledger.next - MAX_SAMPLED)
            run = ledger.read(first, MAX_SAMPLED, MAX_SAMPLED_BYTES)
            events += [events_of(body, labelled) for body in run.bodies] if run else []
    return sum(events) / len(events) if events else None


class Collector(msgspec.Struct, eq=False):
    """What one answer shows."""

    telemetry: Telemetry
    epoch: int
    #: Whether there is a link to each other node of the manifest, by role and name.
    peers: dict[tuple[str, NodeId], bool]
    channels: dict[Channel, ChannelMetrics]
    logs: dict[str, LogStatus]
    sizes: dict[str, int]
    load: dict[NodeId, Load]
    store: StoreStatus | None
    catching_up: list[str]
    uplinks: list[UplinkStatus]

    def collect(self) -> Iterable[Metric]:
        """Every metric family of this broker."""
        yield from self._process()
        yield from self._conduct()
        yield from self._channels()
        yield from self._predicates()
        yield from self._logs()
        connected = GaugeMetricFamily(
            "quorumcast_peer_up", "whether there is a link", labels=["role", "peer"]
        )
        for key, up in self.peers.items():
            connected.add_metric(list(key), up)
        yield connected
        yield from self._uplinks()
        for name, about, field in _COSTS:
            family = CounterMetricFamily(f"quorumcast_peer_{name}", about, labels=["peer"])
            yield _filled(family, {peer: getattr(load, field) for peer, load in self.load.items()})
        sizes = GaugeMetricFamily(
            "quorumcast_container_size", "what is kept for peers", labels=["container"]
        )
        yield _filled(sizes, by_container(self.sizes))
        store = {} if self.store is None else msgspec.structs.asdict(self.store)
        for name, value in store.items():
            yield GaugeMetricFamily(f"quorumcast_store_{name}", name.replace("_", " "), value=value)

    def _process(self) -> Iterable[Metric]:
        """The broker process as a whole."""
        python = platform.python_version()
        build = GaugeMetricFamily(
            "quorumcast_build_info", "the version that runs", labels=["version", "python"]
        )
        build.add_metric([__version__, python], 1)
        yield build
        yield GaugeMetricFamily("quorumcast_epoch", "the adopted epoch", value=self.epoch)
        for name, value in self.telemetry.traffic().items():
            yield CounterMetricFamily(f"quorumcast_{name}", name.replace("_", " "), value=value)
        waits = len(self.catching_up)
        yield GaugeMetricFamily("quorumcast_catching_up", "what it still waits for", value=waits)
        yield GaugeMetricFamily("quorumcast_rss_bytes", "resident memory", value=rss_bytes())
        yield CounterMetricFamily("quorumcast_cpu_seconds", "processor time", value=cpu_seconds())

    def _conduct(self) -> Iterable[Metric]:
        """What peers did wrong."""
        telemetry = self.telemetry
        drops = CounterMetricFamily("quorumcast_drops", "ignored, by reason", labels=["reason"])
        yield _filled(drops, telemetry.drops)
        suspicions = CounterMetricFamily(
            "quorumcast_suspicions", "suspicions voiced", labels=["node", "reason"]
        )
        for (node, reason), count in telemetry.suspicions.items():
            suspicions.add_metric([node, reason], count)
        yield suspicions
        accusations = CounterMetricFamily("quorumcast_accusations", "lies proven", labels=["node"])
        yield _filled(accusations, telemetry.accusations)

    def _channels(self) -> Iterable[Metric]:
        channels = self.channels
        publications = CounterMetricFamily(
            "quorumcast_channel_publications", "publications written", labels=["channel"]
        )
        yield _filled(publications, {name: one.publications for name, one in channels.items()})
        size = CounterMetricFamily(
            "quorumcast_channel_bytes", "bytes of publications written", labels=["channel"]
        )
        yield _filled(size, {name: one.size for name, one in channels.items()})
        events = GaugeMetricFamily(
            "quorumcast_channel_sampled_events_per_publication",
            "mean over a sample of the newest publications: an estimate",
            labels=["channel"],
        )
        means = {name: one.sampled_events for name, one in channels.items()}
        yield _filled(events, {name: mean for name, mean in means.items() if mean is not None})
        lags = GaugeMetricFamily(
            "quorumcast_subscriber_lag",
            "publications that a subscriber is behind",
            labels=["channel", "subscriber"],
        )
        for name, one in channels.items():
            for subscriber, lag in one.lags.items():
                lags.add_metric([name, subscriber], lag)
        yield lags
        latency = HistogramMetricFamily(
            "quorumcast_vote_latency_seconds",
            "from a publisher's time stamp to the vote of this broker",
            labels=["channel"],
        )
        bounds = [*map(str, LATENCIES_S), "+Inf"]
        for channel, histogram in self.telemetry.latency.items():
            buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
            latency.add_metric([channel], buckets, histogram.sum_s)
        yield latency

    def _predicates(self) -> Iterable[Metric]:
        """What subscribers' predicates cost, and what they select."""
        for names, kind in (
            (_PREDICATE_GAUGES, GaugeMetricFamily),
            (_PREDICATE_COUNTERS, CounterMetricFamily),
        ):
            for name, about in names.items():
                family = kind(f"quorumcast_filtered_{name}", about, labels=["channel"])
                work = {
                    channel: getattr(one.predicates, name) for channel, one in self.channels.items()
                }
                yield _filled(family, work)

    def _uplinks(self) -> Iterable[Metric]:
        linked = GaugeMetricFamily(
            "quorumcast_uplink_up", "whether there is a link", labels=["parent", "peer"]
        )
        accepted = CounterMetricFamily(
            "quorumcast_uplink_publications", "accepted from a parent cell", labels=["parent"]
        )
        for uplink in self.uplinks:
            accepted.add_metric([uplink.parent], uplink.accepted)
            for peer, trouble in uplink.brokers.items():
                linked.add_metric([uplink.parent, peer], not trouble)
        yield linked
        yield accepted

    def _logs(self) -> Iterable[Metric]:
        leader = GaugeMetricFamily(
            "quorumcast_log_leader", "1 for the leader", labels=["log", "leader"]
        )
        for log, status in self.logs.items():
            leader.add_metric([log, status.leader], 1)
        yield leader
        for name, about in _PROGRESS.items():
            family = GaugeMetricFamily(f"quorumcast_log_{name}", about, labels=["log"])
            yield _filled(family, {log: getattr(one, name) for log, one in self.logs.items()})


def by_container(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes by container, over all streams: every restart of a publisher begins a stream."""
    found: dict[str, int] = {}
    for name, size in sizes.items():
        _, of_stream, rest = name.partition("@")  # in no name of a node or channel
        container = f"stream/{rest.partition('/')[2]}" if of_stream else name
        found[container] = found.get(container, 0) + size
    return found


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[Any, float]) -> Metric:
    """A family with one label, and a sample for each of its values."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def exposition(collector: Collector) -> bytes:
    """The body of an answer to `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
