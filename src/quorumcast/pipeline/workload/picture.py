"""Draws a workload as SVG: events and subscribers by topic, and subscriptions by node.

These are the three figures of Pulsarcast §5.2.2. The file is self-contained.
"""

from __future__ import annotations

import math
from html import escape

from quorumcast.pipeline.workload.describe import Description

WIDTH, HEIGHT = 420, 260
LEFT, BOTTOM, TOP = 46, 70, 34
INK, BAR, GRID = "#222", "#3b6ea5", "#ddd"
#: Topics that are drawn; more bars would be too narrow.
MOST_BARS = 40


def picture(description: Description) -> str:
    """Return the picture as SVG."""
    topics = description.topics[:MOST_BARS]
    names = [topic.topic for topic in topics]
    panels = [
        _panel("events per topic (logarithmic)", names, [t.events for t in topics], log=True),
        _panel("subscribers per topic", names, [t.subscribers for t in topics]),
        _panel(
            "nodes with so many subscriptions",
            [str(amount) for amount, _ in description.subscriptions_per_node.histogram],
            [nodes for _, nodes in description.subscriptions_per_node.histogram],
        ),
    ]
    drawn = [panel for panel in panels if panel]
    body = "".join(
        f'<g transform="translate({index * WIDTH},24)">{panel}</g>'
        for index, panel in enumerate(drawn)
    )
    header = description.header
    title = escape(
        f"{header.name}: {description.events:,} events, {header.topics:,} topics, "
        f"{header.nodes:,} nodes, {description.subscriptions:,} subscriptions, "
        f"{description.deliveries:,} deliveries"
    )
    width, height = max(1, len(drawn)) * WIDTH, HEIGHT + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10" fill="{INK}">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="12" y="18" font-size="13">{title}</text>{body}</svg>\n'
    )


def _panel(title: str, names: list[str], values: list[int], *, log: bool = False) -> str:
    if not values or not max(values):
        return ""
    across, up = WIDTH - LEFT - 12, HEIGHT - TOP - BOTTOM
    floor = HEIGHT - BOTTOM

    def height(value: float) -> float:
        if log:
            # Doubled, so that the bar of a single event is visible.
            return up * math.log10(value * 2) / math.log10(max(values) * 2) if value else 0.0
        return up * value / max(values)

    parts = [f'<text x="{LEFT}" y="{TOP - 12}" font-size="11">{escape(title)}</text>']
    for tick in _ticks(max(values), log=log):
        y = floor - height(tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + across}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
            f'<text x="{LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{tick:,}</text>'
        )
    step = across / len(values)
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        x, tall = LEFT + index * step, height(value)
        middle = x + step / 2
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{floor - tall:.1f}" width="{step * 0.8:.1f}" '
            f'height="{tall:.1f}" fill="{BAR}"><title>{escape(name)}: {value:,}</title></rect>'
            f'<text transform="translate({middle + 3:.1f},{floor + 6}) rotate(-60)" '
            f'text-anchor="end">{escape(name[:14])}</text>'
        )
    return "".join(parts)


def _ticks(most: int, *, log: bool) -> list[int]:
    if log:
        return [10**power for power in range(int(math.log10(most)) + 1)]
    step = 10 ** int(math.log10(most))
    step = step if most / step >= 3 else max(1, step // 5 if most / step < 1.5 else step // 2)
    return list(range(0, most + 1, step))
