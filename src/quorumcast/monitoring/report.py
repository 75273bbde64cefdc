"""The report: one self-contained HTML page, rewritten while the job runs.

All names, items and texts are escaped, because publishers, devices and log lines choose them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import msgspec

from quorumcast.monitoring.engine import Alarm, AlarmEngine, Bucket, SeriesKey
from quorumcast.monitoring.signals import DISSENT, DRAWN_SIGNALS, LINES
from quorumcast.traces.drafts import replacing

#: Limits of the page.
MAX_HOSTS, MAX_ALARMS = 200, 100
#: Refresh interval of the browser.
REFRESH_S = 10
_WIDTH, _HEIGHT = 120, 24
_SEVERE = ("emergency", "alert", "critical", "error")

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem;
       color: #222; background: #fff }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1rem; margin: 1.8rem 0 .4rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8883;
         vertical-align: middle }
td.n { font-variant-numeric: tabular-nums } .muted { color: #777 }
.critical { color: #b00020; font-weight: 600 } .warning { color: #9a5b00 } .ok { color: #1b6e3c }
svg { vertical-align: middle } polyline { fill: none; stroke: #3367b0; stroke-width: 1.3 }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #161616 } .critical { color: #ff7b88 } .warning { color: #e5a94b }
  .ok { color: #6fc58f } polyline { stroke: #7faaf0 } .muted { color: #999 }
}
"""


class ReportFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the job."""

    cell: str
    now: float
    stored: int
    #: Unread publications, by channel.
    lag: Mapping[str, int]
    #: Failed queries that are being restarted, with the reason.
    troubles: Mapping[str, str] = {}
    #: Whether the page refreshes itself.
    running: bool


def write_report(
    path: Path, engine: AlarmEngine, recent: Sequence[Alarm], facts: ReportFacts
) -> None:
    """Replace the page atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(page(engine, recent, facts), encoding="utf-8")


def page(engine: AlarmEngine, recent: Sequence[Alarm], facts: ReportFacts) -> str:
    """Return the page as HTML."""
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_S}">' if facts.running else ""
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(facts.cell)}: monitoring</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(facts.cell)}</h1>",
            f'<p class="muted">{_summary(engine, facts)}</p>',
            "<h2>Open alarms</h2>",
            _open_alarms(engine, facts.now),
            "<h2>Hosts</h2>",
            _hosts(engine, facts.now),
            "<h2>Brokers that voted otherwise</h2>",
            _dissent(engine),
            "<h2>Latest alarms</h2>",
            _recent(recent),
            "</body></html>\n",
        ]
    )


def _summary(engine: AlarmEngine, facts: ReportFacts) -> str:
    behind = sum(facts.lag.values())
    lag = ", ".join(f"{escape(name)} {count:,}" for name, count in facts.lag.items() if count)
    parts = [
        _clock(facts.now),
        f"{len(engine.heard):,} hosts",
        f"{facts.stored:,} rows stored",
        f"behind by {behind:,} publications ({lag})" if behind else "everything is read",
    ]
    parts += [
        f'<span class="critical">{escape(name)} waits: {escape(why)}</span>'
        for name, why in facts.troubles.items()
    ]
    if engine.ignored:
        parts.append(f"<b>{engine.ignored:,} signals found no room</b>")
    return " · ".join(parts)


def _open_alarms(engine: AlarmEngine, now: float) -> str:
    rows = [
        (
            f'<span class="{c.severity}">{c.severity}</span>',
            escape(c.rule),
            escape(c.host),
            escape(c.text),
            _ago(now - c.since),
        )
        for c in engine.alarms[:MAX_ALARMS]
    ]
    more = len(engine.alarms) - len(rows)
    note = f'<p class="muted">and {more:,} more</p>' if more > 0 else ""
    if not rows:
        return '<p class="ok">None.</p>'
    return _table(("severity", "rule", "host", "what", "since"), rows) + note


def _hosts(engine: AlarmEngine, now: float) -> str:
    if not engine.heard:
        return "<p>None has been heard yet.</p>"
    troubled = Counter(condition.host for condition in engine.alarms)
    names = sorted(engine.heard, key=lambda host: (-troubled[host], host))
    lines: dict[tuple[str, str], list[tuple[SeriesKey, dict[int, Bucket]]]] = {}
    for series, line in engine.series.items():
        lines.setdefault((series.host, series.signal), []).append((series, line))
    rows = []
    for host in names[:MAX_HOSTS]:
        drawn = [_cell(lines.get((host, signal), [])) for signal in DRAWN_SIGNALS]
        severe = sum(
            bucket.count
            for series, line in lines.get((host, LINES), [])
            if series.item in _SEVERE
            for bucket in line.values()
        )
        rows.append(
            (
                escape(host),
                _ago(now - engine.heard[host]),
                f'<span class="critical">{troubled[host]}</span>' if troubled[host] else "0",
                f"{severe:,}",
                *drawn,
            )
        )
    more = len(names) - len(rows)
    note = f'<p class="muted">and {more:,} more hosts</p>' if more > 0 else ""
    head = ("host", "heard", "alarms", "error lines", *DRAWN_SIGNALS)
    return _table(head, rows) + note


def _cell(lines: Sequence[tuple[SeriesKey, dict[int, Bucket]]]) -> str:
    """Return a sparkline and the newest value, of the item with the highest newest value."""
    if not lines:
        return '<span class="muted">–</span>'

    def newest(line: dict[int, Bucket]) -> float:
        return line[max(line)].last

    series, line = max(lines, key=lambda found: newest(found[1]))
    title = f' title="{escape(series.item)}"' if series.item else ""
    values = [bucket.total / max(bucket.count, 1) for _, bucket in sorted(line.items())]
    return f"<span{title}>{sparkline(values)} {_number(newest(line))}</span>"


def sparkline(values: Sequence[float]) -> str:
    """Return a small chart, scaled to its own range."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = _WIDTH / max(len(values) - 1, 1)
    points = " ".join(
        f"{i * step:.1f},{_HEIGHT - 2 - (value - low) / span * (_HEIGHT - 4):.1f}"
        for i, value in enumerate(values)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{_number(low)} to {_number(high)}"><polyline points="{points}"/></svg>'
    )


def _dissent(engine: AlarmEngine) -> str:
    counts: Counter[str] = Counter()
    for series, line in engine.series.items():
        if series.signal == DISSENT:
            counts[series.item] += sum(bucket.count for bucket in line.values())
    if not counts:
        return '<p class="ok">None.</p>'
    rows = [(escape(broker), f"{count:,}") for broker, count in counts.most_common()]
    return _table(("broker", "rows of late on which it voted otherwise"), rows)


def _recent(recent: Sequence[Alarm]) -> str:
    if not recent:
        return "<p>None.</p>"
    rows = [
        (_clock(a.time), a.state, escape(a.rule), escape(a.host), escape(a.text))
        for a in list(recent)[: -MAX_ALARMS - 1 : -1]
    ]
    return _table(("time", "", "rule", "host", "what"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(
        "<tr>" + "".join(f'<td class="n">{cell}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _number(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}"
