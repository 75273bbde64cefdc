"""The HTML report: one self-contained file, for light and dark screens and for paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from msgspec.structs import replace

from quorumcast.charts.formatting import NOTHING, amount, percent, times
from quorumcast.charts.html import Cells, document, legend, section, table
from quorumcast.charts.svg import Bar, Series, bars, lines
from quorumcast.pipeline.evaluation.model import Evaluation, ScenarioResult, Spread

#: With more scenarios, charts with a curve for each are left out.
MOST_CURVES = 12
_LATENCIES = ("mean", "deviation", "p50", "p90", "p99", "most")


def page(evaluation: Evaluation) -> str:
    """Return the report."""
    shown, common = _short_names(evaluation.lines)
    parts = [
        _head(evaluation, common),
        section(
            "Figures",
            "Latency in milliseconds, from the first sending of a publication to its acceptance by "
            "a subscriber; publications per second as accepted by the subscriber that accepted "
            "least; the share that came by history; messages and bytes per delivery, not sealed.",
            _figures(shown),
        ),
        _pictures(shown),
        section(
            "What faults cost",
            "Figures to those of the same scenario without the fault.",
            _costs(shown),
        ),
        section(
            "Beside the documents",
            "The same scenarios in Freeman §7.3 and FIT-Broker §5.2. Their brokers had a machine "
            "each; the ratio says where each stands, not who is faster by how much.",
            _documents(shown),
        ),
        section(
            "Messages and bytes by node",
            "How they are spread over the nodes of a scenario, as in Pulsarcast §5.5.",
            _spreads(shown),
        ),
        '<h2>Scenario by scenario</h2><p class="faint">Nodes, messages and channels.</p>',
        *map(_details, shown),
    ]
    return document("Quorumcast evaluation", parts)


def _short_names(found: Sequence[ScenarioResult]) -> tuple[list[ScenarioResult], list[str]]:
    """Return the scenarios with names of what differs, and what all names have in common."""
    words = [line.name.split(", ") for line in found]
    common = [word for word in words[0] if all(word in each for each in words)]
    if len(found) < 2 or any(set(each) <= set(common) for each in words):
        return list(found), []
    names = [", ".join(word for word in each if word not in common) for each in words]
    return [replace(line, name=name) for line, name in zip(found, names, strict=True)], common


def _head(evaluation: Evaluation, common: Sequence[str]) -> str:
    delivered = sum(line.delivered for line in evaluation.lines)
    owed = sum(line.owed for line in evaluation.lines)
    return (
        "<h1>Quorumcast evaluation</h1>"
        f'<p class="faint">{evaluation.rows:,} rows of {evaluation.traces:,} traces, '
        f"{len(evaluation.lines):,} scenarios; {delivered:,} of {owed:,} deliveries that were owed "
        f"({percent(delivered / owed if owed else None)}). Percentiles are within "
        f"{evaluation.accuracy:.2%}, all other figures exact."
        f"{' All scenarios: ' + escape(', '.join(common)) + '.' if common else ''}</p>"
    )


def _figures(shown: Sequence[ScenarioResult]) -> str:
    head = ["scenario", "runs", "publ./s", "events/s", "mean", "dev.", "50 %", "90 %", "99 %",
            "max.", "coverage", "history", "hops", "messages", "bytes"]  # fmt: skip
    rows = [
        [
            line.name,
            f"{line.runs:,}",
            amount(line.publications_per_s),
            amount(line.events_per_s),
            *(amount(getattr(line.latency, name)) for name in _LATENCIES),
            percent(line.coverage),
            percent(line.by_history_share),
            amount(line.mean_hops),
            amount(line.messages_per_delivery),
            amount(line.bytes_per_delivery),
        ]
        for line in shown
    ]
    bad = [i for i, line in enumerate(shown) if line.delivered < line.owed]
    return table(head, rows, bad=bad)


def _pictures(shown: Sequence[ScenarioResult]) -> str:
    cards = [_rates(shown), _tails(shown), _traffic(shown)]
    if len(shown) <= MOST_CURVES:
        cards += [_distribution(shown), _over_time(shown, rate=True), _over_time(shown, rate=False)]
    inside = "".join(f'<div class="card">{card}</div>' for card in cards if card)
    return f'<h2>Pictures</h2><div class="grid2">{inside}</div>'


def _rates(shown: Sequence[ScenarioResult]) -> str:
    found = []
    for line in shown:
        theirs = next((row.theirs for row in line.beside if row.unit in ("publications/s",)), None)
        note = f"{amount(line.publications_per_s)}/s"
        found.append(Bar(line.name, line.publications_per_s, note, 0, theirs))
    told = any(bar.mark is not None for bar in found)
    title = "Publications per second" + (" (line: Freeman)" if told else "")
    return _bar_chart(title, found)


def _bar_chart(title: str, found: Sequence[Bar]) -> str:
    return f"<h3>{title}</h3>{bars(found, label=title)}" if found else ""


def _tails(shown: Sequence[ScenarioResult]) -> str:
    found = [
        Bar(line.name, line.latency.p99, f"{amount(line.latency.p50)} · {amount(line.latency.p99)}",
            1, line.latency.p50)
        for line in shown
        if line.latency.p99 is not None
    ]  # fmt: skip
    return _bar_chart("Latency: median (line) and 99 % (bar), ms", found)


def _traffic(shown: Sequence[ScenarioResult]) -> str:
    found = [
        Bar(line.name, line.bytes_per_delivery, f"{amount(line.bytes_per_delivery)} B", 2)
        for line in shown
        if line.bytes_per_delivery is not None
    ]
    return _bar_chart("Bytes sent by all nodes per delivery", found)


def _distribution(shown: Sequence[ScenarioResult]) -> str:
    """Draw the cumulative distribution of latency."""
    curves = []
    for line in shown:
        total, seen, points = sum(count for _, count in line.histogram), 0, []
        for lowest, count in line.histogram:
            points.append((lowest, seen / total * 100))
            seen += count
        if points:
            points.append((max(line.latency.most or 0.0, points[-1][0]), 100.0))
        curves.append(Series(line.name, points))
    picture = lines(curves, x_label="milliseconds", y_label="% of deliveries", logarithmic=True)
    return f"<h3>Distribution of latency</h3>{picture}{legend(curves)}" if picture else ""


def _over_time(shown: Sequence[ScenarioResult], *, rate: bool) -> str:
    curves = []
    for line in shown:
        points = [
            (float(second.second), value)
            for second in line.series
            if (value := second.publications_per_s if rate else second.mean_ms) is not None
        ]
        curves.append(Series(line.name, points))
    title = "Publications per second, over time" if rate else "Mean latency, over time"
    unit = "publications/s" if rate else "milliseconds"
    if not any(len(curve.points) > 1 for curve in curves):
        return ""
    picture = lines(curves, x_label="seconds after the warm-up", y_label=unit)
    return f"<h3>{title}</h3>{picture}{legend(curves)}"


def _costs(shown: Sequence[ScenarioResult]) -> str:
    head = ["scenario", "rate", "mean latency", "99 % latency", "messages", "bytes", "coverage"]
    rows = [
        [
            line.name,
            percent(line.cost.rate),
            times(line.cost.mean_latency),
            times(line.cost.p99_latency),
            times(line.cost.messages),
            times(line.cost.bytes),
            percent(line.coverage),
        ]
        for line in shown
        if line.cost is not None
    ]
    return table(head, rows)


def _documents(shown: Sequence[ScenarioResult]) -> str:
    head = ["document", "our scenario", "figure", "unit", "theirs", "ours", "ratio"]
    rows = [
        [row.document, line.name, row.figure, row.unit, amount(row.theirs), amount(row.ours),
         times(row.ratio)]
        for line in shown
        for row in line.beside
    ]  # fmt: skip
    return table(head, rows, words=4)


def _spreads(shown: Sequence[ScenarioResult]) -> str:
    head = ["scenario", "figure", "total", "mean", "deviation", "95 %", "99 %"]

    def row(line: ScenarioResult, figure: str, spread: Spread) -> Cells:
        values = (spread.total, spread.mean, spread.deviation, spread.p95, spread.p99)
        return [line.name, figure, *map(amount, values)]

    rows = [
        row(line, figure, spread)
        for line in shown
        for figure, spread in (
            ("messages sent", line.sent_by_node),
            ("messages received", line.received_by_node),
            ("bytes sent", line.bytes_by_node),
            ("processors", line.processors_by_node),
            ("memory, MB", line.memory_by_node),
        )
        if spread is not None and spread.total
    ]
    return table(head, rows, words=2)


def _details(line: ScenarioResult) -> str:
    nodes = table(
        ["node", "role", "messages sent", "bytes sent", "messages received", "bytes received",
         "forwarded", "passed on", "place in chain", "processor s", "MB"],
        [
            [node.node, node.role, amount(node.messages_sent), amount(node.bytes_sent),
             amount(node.messages_received), amount(node.bytes_received), amount(node.forwarded),
             amount(node.passed_on), amount(node.place), amount(node.cpu_s),
             amount(node.memory_mb)]
            for node in line.nodes
        ],
        words=2,
    )  # fmt: skip
    messages = table(
        ["message", "messages", "bytes", "per delivery"],
        [
            [row.message, amount(row.messages), amount(row.bytes),
             amount(row.messages / line.delivered) if line.delivered else NOTHING]
            for row in line.messages
        ],
    )  # fmt: skip
    channels = table(
        ["channel", "publications", "deliveries owed", "delivered", "coverage", "messages",
         "bytes"],
        [
            [row.channel, amount(row.publications), amount(row.owed), amount(row.delivered),
             percent(row.coverage), amount(row.messages), amount(row.bytes)]
            for row in line.channels
        ],
    )  # fmt: skip
    hops = ", ".join(f"{hop}: {count:,}" for hop, count in line.hops.items()) or NOTHING
    return (
        f"<details><summary>{escape(line.name)}</summary>"
        f'<p class="faint">{amount(line.seconds)} s measured; {line.publications:,} publications, '
        f"{line.events:,} events; "
        f"{line.delivered:,} of {line.owed:,} deliveries, {line.by_history:,} by history, "
        f"{line.repeated:,} repeated, {line.unowed:,} not owed; deliveries by hops: {hops}.</p>"
        f"{nodes}{messages}{channels}</details>"
    )
