"""The HTML report: one self-contained file, for light and dark screens and for paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from msgspec.structs import replace

from quorumcast.pipeline.evaluation.formatting import NOTHING, amount, percent, times
from quorumcast.pipeline.evaluation.model import Evaluation, ScenarioResult, Spread
from quorumcast.pipeline.evaluation.svg import SERIES_COLOURS, Bar, Series, bars, lines

#: With more scenarios, charts with a curve for each are left out.
MOST_CURVES = 12
_LATENCIES = ("mean", "deviation", "p50", "p90", "p99", "most")

_STYLE = """
:root { color-scheme: light dark; --back: #fcfcfb; --text: #1d2329; --faint: #5c6670;
  --rule: #dde1e4; --card: #ffffff; --bad: #b3261e;
  --c0: #2166ac; --c1: #d6711f; --c2: #2e8b57; --c3: #9a4f96; --c4: #b3452c; --c5: #6b7785; }
@media (prefers-color-scheme: dark) { :root { --back: #14181c; --text: #e4e8eb; --faint: #9aa5ae;
  --rule: #313a42; --card: #1b2127; --bad: #ff8a80;
  --c0: #6aaeea; --c1: #f0a35e; --c2: #68c793; --c3: #cf93cb; --c4: #ec8a72; --c5: #a3b0bc; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 38px 0 6px; }
h3 { font-size: 15px; margin: 0 0 8px; }
p { margin: 4px 0 12px; max-width: 76ch; } .faint { color: var(--faint); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 13.5px; }
th, td { padding: 5px 8px; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { color: var(--faint); font-weight: 600; vertical-align: bottom; }
th.t, td.t { text-align: left; }
tr.bad td { color: var(--bad); }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 16px;
  align-items: start; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 14px 16px; margin: 12px 0; overflow-x: auto; }
.grid2 .card { margin: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; margin: 6px 0 0;
  padding: 0; list-style: none; }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: middle; }
details { border: 1px solid var(--rule); border-radius: 8px; padding: 8px 14px; margin: 8px 0;
  background: var(--card); }
summary { cursor: pointer; font-weight: 600; }
svg { display: block; width: 100%; height: auto; font-size: 12px; }
svg text { fill: var(--text); } svg text.label, svg text.value { fill: var(--faint); }
svg .grid { stroke: var(--rule); fill: none; } svg .axis, svg .tick { stroke: var(--faint);
  fill: none; }
svg .mark { stroke: var(--text); stroke-width: 2; fill: none; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .dashed { stroke-dasharray: 3 3; }
@media print { .card, details { break-inside: avoid; } }
"""
_COLOURS = "".join(
    f"svg rect.s{i}, svg circle.s{i} {{ fill: var(--c{i}); }} "
    f"svg .line.s{i} {{ stroke: var(--c{i}); }} "
    f".legend i.s{i} {{ background: var(--c{i}); color: var(--c{i}); }}\n"
    for i in range(SERIES_COLOURS)
)
_COLOURS += ".legend i.dashed { background: none; border-top: 3px dotted; }\n"

Cells = Sequence[str]


def page(evaluation: Evaluation) -> str:
    """Return the report."""
    shown, common = _short_names(evaluation.lines)
    parts = [
        _head(evaluation, common),
        _section(
            "Figures",
            "Latency in milliseconds, from the first sending of a publication to its acceptance by "
            "a subscriber; publications per second as accepted by the subscriber that accepted "
            "least; the share that came by history; messages and bytes per delivery, not sealed.",
            _figures(shown),
        ),
        _pictures(shown),
        _section(
            "What faults cost",
            "Figures to those of the same scenario without the fault.",
            _costs(shown),
        ),
        _section(
            "Beside the documents",
            "The same scenarios in Freeman §7.3 and FIT-Broker §5.2. Their brokers had a machine "
            "each; the ratio says where each stands, not who is faster by how much.",
            _documents(shown),
        ),
        _section(
            "Messages and bytes by node",
            "How they are spread over the nodes of a scenario, as in Pulsarcast §5.5.",
            _spreads(shown),
        ),
        '<h2>Scenario by scenario</h2><p class="faint">Nodes, messages and channels.</p>',
        *map(_details, shown),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Quorumcast evaluation</title><style>{_STYLE}{_COLOURS}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


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


def _section(title: str, text: str, inside: str) -> str:
    if not inside:
        return ""
    return f'<h2>{escape(title)}</h2><p class="faint">{escape(text)}</p>{inside}'


def _table(head: Cells, rows: Iterable[Cells], *, words: int = 1, bad: Sequence[int] = ()) -> str:
    """Return a table whose first `words` columns are text and the others numbers."""

    def cells(tag: str, row: Cells) -> str:
        return "".join(
            f"<{tag}{' class=t' if i < words else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )

    body = "".join(
        f"<tr{' class=bad' if i in bad else ''}>{cells('td', row)}</tr>"
        for i, row in enumerate(rows)
    )
    if not body:
        return ""
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
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
    return _table(head, rows, bad=bad)


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
    return f"<h3>Distribution of latency</h3>{picture}{_legend(curves)}" if picture else ""


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
    return f"<h3>{title}</h3>{picture}{_legend(curves)}"


def _legend(curves: Sequence[Series]) -> str:
    entries = "".join(
        f'<li><i class="s{i % SERIES_COLOURS}{" dashed" if i >= SERIES_COLOURS else ""}"></i>'
        f"{escape(curve.name)}</li>"
        for i, curve in enumerate(curves)
    )
    return f'<ul class="legend">{entries}</ul>'


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
    return _table(head, rows)


def _documents(shown: Sequence[ScenarioResult]) -> str:
    head = ["document", "our scenario", "figure", "unit", "theirs", "ours", "ratio"]
    rows = [
        [row.document, line.name, row.figure, row.unit, amount(row.theirs), amount(row.ours),
         times(row.ratio)]
        for line in shown
        for row in line.beside
    ]  # fmt: skip
    return _table(head, rows, words=4)


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
    return _table(head, rows, words=2)


def _details(line: ScenarioResult) -> str:
    nodes = _table(
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
    messages = _table(
        ["message", "messages", "bytes", "per delivery"],
        [
            [row.message, amount(row.messages), amount(row.bytes),
             amount(row.messages / line.delivered) if line.delivered else NOTHING]
            for row in line.messages
        ],
    )  # fmt: skip
    channels = _table(
        ["channel", "publications", "deliveries owed", "delivered", "coverage"],
        [
            [row.channel, amount(row.publications), amount(row.owed), amount(row.delivered),
             percent(row.coverage)]
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
