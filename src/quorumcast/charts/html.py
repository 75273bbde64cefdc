"""Self-contained HTML pages with tables and charts, for light and dark screens and for paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from quorumcast.charts.svg import SERIES_COLOURS, Series

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


def document(title: str, parts: Iterable[str]) -> str:
    """Return a page with these parts."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_COLOURS}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def section(title: str, text: str, inside: str) -> str:
    """Return a titled part of a page; nothing if nothing is inside."""
    if not inside:
        return ""
    return f'<h2>{escape(title)}</h2><p class="faint">{escape(text)}</p>{inside}'


def table(head: Cells, rows: Iterable[Cells], *, words: int = 1, bad: Sequence[int] = ()) -> str:
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


def legend(curves: Sequence[Series]) -> str:
    """Return the names and colours of curves."""
    entries = "".join(
        f'<li><i class="s{i % SERIES_COLOURS}{" dashed" if i >= SERIES_COLOURS else ""}"></i>'
        f"{escape(curve.name)}</li>"
        for i, curve in enumerate(curves)
    )
    return f'<ul class="legend">{entries}</ul>'
