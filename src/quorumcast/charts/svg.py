"""Small charts as SVG text, without scripts or libraries.

Colours are CSS classes (`s0` … `s5` for series) and `currentColor`, so that a chart fits light and
dark pages. Every mark has a `title` as tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

from quorumcast.charts.formatting import amount

WIDTH = 540
SERIES_COLOURS = 6

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 40
#: Approximate width of a letter in labels.
_LETTER = 6.6
#: Letters shown of a bar's name.
_LONGEST = 34


class Series(msgspec.Struct, frozen=True):
    """A curve: its points, sorted by x."""

    name: str
    points: Sequence[tuple[float, float]]


def ticks(least: float, most: float, about: int = 5) -> list[float]:
    """Return round numbers within a range."""
    span = most - least
    if span <= 0:
        return [least]
    step = 10.0 ** math.floor(math.log10(span / about))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= about)
    first = math.ceil(least / step - 1e-9)
    return [(first + i) * step for i in range(int((most - first * step) / step + 1e-9) + 1)]


def decades(least: float, most: float) -> list[float]:
    """Return the powers of ten within a range."""
    first, last = math.ceil(math.log10(least) - 1e-9), math.floor(math.log10(most) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


def _text(x: float, y: float, text: str, anchor: str = "middle", css: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(text)}</text>'
    )


def _frame(height: int, label: str, inside: Sequence[str]) -> str:
    body = "".join(inside)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def lines(
    series: Sequence[Series], *, x_label: str, y_label: str, logarithmic: bool = False
) -> str:
    """Draw curves; y starts at zero, and x is logarithmic or has whole numbers as ticks."""
    height = 300
    points = [point for each in series for point in each.points]
    if not points:
        return ""
    x_least, x_most = min(x for x, _ in points), max(x for x, _ in points)
    y_marks = ticks(0.0, max(max(y for _, y in points), 1e-9))
    y_most = max(y_marks[-1], max(y for _, y in points))
    right, bottom = WIDTH - _RIGHT, height - _BOTTOM

    def across(x: float) -> float:
        if logarithmic:
            share = math.log(x / x_least) / (math.log(x_most / x_least) or 1.0)
        else:
            share = (x - x_least) / ((x_most - x_least) or 1.0)
        return _LEFT + share * (right - _LEFT)

    def up(y: float) -> float:
        return bottom - y / y_most * (bottom - _TOP)

    marks = []
    for y in y_marks:
        marks.append(f'<path class="grid" d="M{_LEFT} {up(y):.1f}H{right}"/>')
        marks.append(_text(_LEFT - 8, up(y) + 4, amount(y), "end"))
    whole = [x for x in ticks(x_least, x_most, 8) if x == int(x)]
    for x in decades(x_least, x_most) if logarithmic else whole:
        marks.append(f'<path class="tick" d="M{across(x):.1f} {bottom}v5"/>')
        marks.append(_text(across(x), bottom + 18, amount(x)))
    marks.append(f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>')
    marks.append(_text((_LEFT + right) / 2, height - 6, x_label, css="label"))
    marks.append(
        f'<text class="label" text-anchor="middle" '
        f'transform="translate(13 {(bottom + _TOP) / 2:.0f}) rotate(-90)">{escape(y_label)}</text>'
    )
    for index, each in enumerate(series):
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in each.points)
        css = f"s{index % SERIES_COLOURS}"
        dashed = " dashed" if index >= SERIES_COLOURS else ""
        title = f"<title>{escape(each.name)}</title>"
        marks.append(f'<path class="line {css}{dashed}" d="M{path}">{title}</path>')
        if len(each.points) == 1:
            x, y = each.points[0]
            marks.append(f'<circle class="{css}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="3"/>')
    return _frame(height, f"{y_label} by {x_label}", marks)


class Bar(msgspec.Struct, frozen=True):
    """One bar, and the note behind it."""

    name: str
    value: float
    note: str = ""
    colour: int = 0
    #: A value on the same scale, drawn as a line for comparison.
    mark: float | None = None


def bars(shown: Sequence[Bar], *, label: str) -> str:
    """Draw horizontal bars between their names and notes."""
    if not shown:
        return ""
    row, most = 26, max(max(bar.value, bar.mark or 0.0) for bar in shown) or 1.0
    names = min(max(len(bar.name) for bar in shown), _LONGEST) * _LETTER + 12
    notes = max(len(bar.note) for bar in shown) * _LETTER + 12
    room = max(WIDTH - names - notes, 120.0)
    marks = []
    for index, bar in enumerate(shown):
        y = 4 + index * row
        length = max(bar.value / most * room, 1.0)
        title = f"<title>{escape(bar.name)}: {escape(bar.note)}</title>"
        short = bar.name if len(bar.name) <= _LONGEST else f"{bar.name[: _LONGEST - 1]}…"
        marks.append(_text(names - 8, y + 15, short, "end"))
        marks.append(
            f'<rect class="s{bar.colour % SERIES_COLOURS}" x="{names:.1f}" y="{y}" rx="2" '
            f'width="{length:.1f}" height="{row - 8}">{title}</rect>'
        )
        end = length
        if bar.mark is not None:
            at = bar.mark / most * room
            if length <= at <= length + len(bar.note) * _LETTER + 12:
                end = at  # not through the note
            marks.append(f'<path class="mark" d="M{names + at:.1f} {y - 2}v{row - 4}"/>')
        marks.append(_text(names + end + 6, y + 14, bar.note, "start", "value"))
    return _frame(8 + len(shown) * row, label, marks)
