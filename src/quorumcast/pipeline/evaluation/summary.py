"""Turns sums into figures per scenario, for any system; `cells` has what is specific to cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quorumcast.cell import CELL_SYSTEM
from quorumcast.pipeline.evaluation import cells
from quorumcast.pipeline.evaluation.figures import DELIVERY, LATENCY, NOBODY, SECOND, TRAFFIC, sums
from quorumcast.pipeline.evaluation.histogram import ACCURACY, middle, percentile
from quorumcast.pipeline.evaluation.model import (
    ChannelLine,
    Cost,
    Evaluation,
    Latency,
    MessageLine,
    NodeLine,
    Scenario,
    ScenarioResult,
    Second,
    Spread,
)
from quorumcast.pipeline.evaluation.runs import Trace
from quorumcast.traces.form import SIMULATOR, Header, ProcessUse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Bars of the coarse histogram per doubling of the latency.
BARS_PER_DOUBLING = 4

Sums = list[dict[str, Any]]


def evaluate(spark: SparkSession, traces: Sequence[Trace]) -> Evaluation:
    """Evaluate traces."""
    return summarize(traces, sums(spark, traces))


def summarize(traces: Sequence[Trace], found: Sums) -> Evaluation:
    """Combine sums by scenario, and compare scenarios."""
    by_run: dict[str, Sums] = {}
    for row in found:
        by_run.setdefault(row["run"], []).append(row)
    groups: dict[Scenario, list[Header]] = {}
    for trace in traces:
        groups.setdefault(scenario_of(trace.header), []).append(trace.header)
    lines = [
        _Group(scenario, headers, by_run).line()
        for scenario, headers in sorted(groups.items(), key=_order)
    ]
    _compare(lines)
    for line in lines:
        line.beside = cells.beside(line)
    return Evaluation(
        traces=len(traces), rows=sum(trace.rows for trace in traces), accuracy=ACCURACY, lines=lines
    )


def _order(group: tuple[Scenario, list[Header]]) -> tuple[Any, ...]:
    scenario = group[0]
    # Numbers before texts: they do not compare with each other.
    parameters = [
        (name, isinstance(value, str), value) for name, value in scenario.parameters.items()
    ]
    return scenario.source, scenario.system, parameters, scenario.fault


def scenario_of(header: Header) -> Scenario:
    """Return the scenario of a run."""
    return Scenario(
        source=header.source, system=header.system, parameters=header.parameters, fault=header.fault
    )


def name_of(scenario: Scenario) -> str:
    """Return the name of a scenario in the report."""
    if scenario.system == CELL_SYSTEM:
        words = cells.words(cells.cell_of(scenario.parameters))
    else:
        words = [scenario.system]
        for name, value in scenario.parameters.items():
            if not isinstance(value, bool):
                words.append(f"{name}={value}")
            elif value:
                words.append(name)
    if scenario.fault:
        words.append(scenario.fault)
    return ("simulated " if scenario.source == SIMULATOR else "") + ", ".join(words)


class _Group:
    """The sums of all runs of one scenario."""

    def __init__(self, scenario: Scenario, headers: list[Header], by_run: dict[str, Sums]) -> None:
        self.scenario = scenario
        self.headers = headers
        rows = [row for header in headers for row in by_run.get(header.run, [])]
        self.traffic = [row for row in rows if row["part"] == TRAFFIC]
        self.latencies = [row for row in rows if row["part"] == LATENCY]
        everything = [row for row in rows if row["part"] == DELIVERY]
        owed: Counter[tuple[str, str, str]] = Counter()
        for row in everything:
            owed[row["run"], row["channel"], row["node"]] += row["owed"]
        #: The number of publications, by run and channel.
        self.published: dict[tuple[str, str], int] = {}
        for (run, channel, _), count in owed.items():
            self.published[run, channel] = max(self.published.get((run, channel), 0), count)
        self.deliveries = [row for row in everything if row["node"] != NOBODY]
        self.seconds = [row for row in rows if row["part"] == SECOND and row["second"] is not None]

    def line(self) -> ScenarioResult:
        """Return all figures."""
        owed = _sum(self.deliveries, "owed")
        delivered = _sum(self.deliveries, "delivered")
        times = _sum(self.deliveries, "times")
        by_history = _sum(self.deliveries, "by_history")
        publications = sum(self.published.values())
        events = sum(header.events for header in self.headers)
        rate = self._rate()
        hops = self._hops()
        sent = [row for row in self.traffic if row["kind"] == "sent"]
        messages, bytes_ = _sum(sent, "messages"), _sum(sent, "bytes")
        nodes = self._nodes()
        accepted = sum(row["accepted"] or 0 for row in self.deliveries)
        return ScenarioResult(
            name=name_of(self.scenario),
            scenario=self.scenario,
            runs=len(self.headers),
            seeds=[header.seed for header in self.headers if header.seed is not None],
            seconds=round(sum(map(_seconds_of, self.headers)), 6),
            publications=publications,
            events=events,
            owed=owed,
            delivered=delivered,
            coverage=_ratio(delivered, owed),
            coverage_of_injected=self._coverage_of_injected(owed, delivered, publications, events),
            repeated=times - accepted,
            unowed=accepted - delivered,
            publications_per_s=round(rate, 3),
            events_per_s=round(rate * (_ratio(events, publications) or 0.0), 3),
            latency=self._latency(),
            by_history=by_history,
            by_history_share=_ratio(by_history, delivered),
            hops=hops,
            mean_hops=_ratio(sum(hop * count for hop, count in hops.items()), sum(hops.values())),
            messages_per_delivery=_ratio(messages, delivered),
            bytes_per_delivery=_ratio(bytes_, delivered),
            contents_bytes=_sum(self.deliveries, "bytes"),
            series=self._series(),
            histogram=self._coarse(),
            channels=self._channels(),
            nodes=nodes,
            messages=_by_message(sent),
            sent_by_node=_spread([node.messages_sent for node in nodes]),
            received_by_node=_spread([node.messages_received for node in nodes]),
            bytes_by_node=_spread([node.bytes_sent for node in nodes]),
            processors_by_node=_spread([use.processors for use in self._uses()]),
            memory_by_node=_spread([use.memory_mb for use in self._uses()]),
        )

    def _coverage_of_injected(
        self, owed: int, delivered: int, publications: int, events: int
    ) -> float | None:
        """Return the share of deliveries that would be due if everything injected was published."""
        batch = self.scenario.parameters.get("batch", 1)
        if not isinstance(batch, int) or not publications:
            return None
        # Each publication is owed to as many subscribers as those that were published.
        return _ratio(delivered, owed * (_ratio(events, batch) or 0.0) / publications)

    # ---------------------------------------------------------------- time

    def _rate(self) -> float:
        """Return the rate of acceptances of the slowest subscriber, as a mean over runs."""
        rates = []
        for header in self.headers:
            nodes = {listening.node: 0 for listening in header.listening}
            for row in self.seconds:
                if row["run"] == header.run:
                    nodes[row["node"]] += row["delivered"]
            if nodes:
                rates.append(min(nodes.values()) / _seconds_of(header))
        return sum(rates) / len(rates) if rates else 0.0

    def _series(self) -> list[Second]:
        """Return the whole seconds; each is a mean over the runs that lasted that long."""
        lengths = {header.run: int(_seconds_of(header)) for header in self.headers}
        listeners = {
            header.run: len({listening.node for listening in header.listening})
            for header in self.headers
        }
        counts: Counter[int] = Counter()
        weighted: Counter[int] = Counter()
        measured: Counter[int] = Counter()
        for row in self.seconds:
            second = row["second"]
            if second < lengths[row["run"]]:
                counts[second] += row["delivered"]
                measured[second] += row["count"]
                weighted[second] += (row["mean"] or 0.0) * row["count"]
        result = []
        for second in range(max(lengths.values())):
            heard = sum(listeners[run] for run, length in lengths.items() if second < length)
            mean = weighted[second] / measured[second] / 1e6 if measured[second] else None
            result.append(Second(second, counts[second] / heard if heard else 0.0, mean))
        return result

    def _latency(self) -> Latency:
        parts = [row for row in self.deliveries if row["count"]]
        count = _sum(parts, "count")
        if not count:
            return Latency(count=0)
        mean = math.fsum(row["mean"] * row["count"] for row in parts) / count
        # The variance within each part, and of the parts' means around the total mean.
        squares = math.fsum(
            row["count"] * (row["variance"] + (row["mean"] - mean) ** 2) for row in parts
        )
        buckets = self._buckets()

        def at(share: float) -> float:
            found = percentile(buckets, share)
            return _ms(0.0 if found is None else min(max(found, least), most))

        least, most = min(row["least"] for row in parts), max(row["most"] for row in parts)
        return Latency(
            count=count,
            mean=_ms(mean),
            deviation=_ms(math.sqrt(squares / count)),
            least=_ms(least),
            p50=at(0.5),
            p90=at(0.9),
            p99=at(0.99),
            p999=at(0.999),
            most=_ms(most),
        )

    def _buckets(self) -> Counter[int]:
        buckets: Counter[int] = Counter()
        for row in self.latencies:
            if row["bucket"] is not None:
                buckets[row["bucket"]] += row["count"]
        return buckets

    def _coarse(self) -> list[tuple[float, int]]:
        """Return a few bars of logarithmic width, by their lower ends."""
        bars: Counter[int] = Counter()
        for lowest, count in self._buckets().items():
            bars[math.floor(math.log2(max(middle(lowest), 1.0)) * BARS_PER_DOUBLING)] += count
        if not bars:
            return []
        return [
            (_ms(2 ** (bar / BARS_PER_DOUBLING)), bars[bar])
            for bar in range(min(bars), max(bars) + 1)
        ]

    # --------------------------------------------------------------- nodes

    def _hops(self) -> dict[int, int]:
        hops: Counter[int] = Counter()
        for header in self.headers:
            rows = [row for row in self.deliveries if row["run"] == header.run]
            if header.system == CELL_SYSTEM:
                mine = [row for row in self.traffic if row["run"] == header.run]
                hops.update(
                    cells.hops(
                        cells.cell_of(header.parameters),
                        delivered=_sum(rows, "delivered"),
                        by_history=_sum(rows, "by_history"),
                        chain=max((row["place"] for row in mine), default=0),
                    )
                )
                continue
            for row in rows:
                hops[row["hops"] or 0] += row["delivered"]
        return {hop: count for hop, count in sorted(hops.items()) if hop and count}

    def _channels(self) -> list[ChannelLine]:
        names = sorted({channel for _, channel in self.published})
        lines = []
        for name in names:
            rows = [row for row in self.deliveries if row["channel"] == name]
            owed, delivered = _sum(rows, "owed"), _sum(rows, "delivered")
            published = sum(n for (_, channel), n in self.published.items() if channel == name)
            sent = [row for row in self.traffic if row["kind"] == "sent" and row["channel"] == name]
            traffic = _sum(sent, "messages"), _sum(sent, "bytes")
            coverage = _ratio(delivered, owed)
            lines.append(ChannelLine(name, published, owed, delivered, coverage, *traffic))
        return lines

    def _uses(self, node: str = "") -> list[ProcessUse]:
        """Return what the processes of one node, or of all, used in each run."""
        return [
            use
            for header in self.headers
            for name, use in header.processes.items()
            if node in ("", name)
        ]

    def _nodes(self) -> list[NodeLine]:
        roles: dict[str, str] = {
            listening.node: "subscriber"
            for header in self.headers
            for listening in header.listening
        }
        roles |= {row["node"]: row["role"] for row in self.traffic}
        counts: dict[str, Counter[str]] = {node: Counter() for node in roles}
        for row in self.traffic:
            mine = counts[row["node"]]
            if row["kind"] == "sent":
                mine["messages_sent"] += row["messages"]
                mine["bytes_sent"] += row["bytes"]
                peer = counts.setdefault(row["peer"], Counter())
                peer["messages_received"] += row["messages"]
                peer["bytes_received"] += row["bytes"]
                continue
            mine["forwarded" if row["kind"] == "forwarded" else "passed_on"] += row["count"]
            if row["place"]:
                mine["placed"] += row["count"]
                mine["places"] += row["count"] * row["place"]
        lines = []
        for node, mine in counts.items():
            place = _ratio(mine.pop("places", 0), mine.pop("placed", 0))
            uses = self._uses(node)
            lines.append(
                NodeLine(
                    node=node,
                    role=roles.get(node, ""),
                    place=place,
                    cpu_s=round(math.fsum(use.cpu_s for use in uses), 3) if uses else None,
                    memory_mb=max((use.memory_mb for use in uses), default=None),
                    **mine,
                )
            )
        return sorted(lines, key=lambda line: (line.role, len(line.node), line.node))


def _compare(lines: list[ScenarioResult]) -> None:
    """Add the cost of faults to scenarios that were traced without the fault as well."""
    honest = {line.scenario: line for line in lines if not line.scenario.fault}
    for line in lines:
        if line.scenario.fault:
            same = msgspec.structs.replace(line.scenario, fault="")
            if same in honest:
                line.cost = _cost(line, honest[same])


def _cost(line: ScenarioResult, honest: ScenarioResult) -> Cost:
    return Cost(
        rate=_ratio(line.publications_per_s, honest.publications_per_s),
        mean_latency=_ratio(line.latency.mean, honest.latency.mean),
        p99_latency=_ratio(line.latency.p99, honest.latency.p99),
        messages=_ratio(line.messages_per_delivery, honest.messages_per_delivery),
        bytes=_ratio(line.bytes_per_delivery, honest.bytes_per_delivery),
    )


def _by_message(sent: Sums) -> list[MessageLine]:
    messages: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for row in sent:
        messages[row["message"]] += row["messages"]
        sizes[row["message"]] += row["bytes"]
    most_first = sorted(messages.items(), key=lambda entry: (-entry[1], entry[0]))
    return [MessageLine(name, count, sizes[name]) for name, count in most_first]


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)

    def at(share: float) -> float:
        return float(ordered[max(math.ceil(share * len(ordered)), 1) - 1])

    return Spread(sum(ordered), mean, math.sqrt(variance), at(0.95), at(0.99))


def _seconds_of(header: Header) -> float:
    return (header.upto_ns - header.from_ns) / 1e9


def _sum(rows: Iterable[dict[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _ms(ns: float) -> float:
    return ns / 1e6
