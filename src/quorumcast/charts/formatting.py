"""Formats numbers for the report: at least three digits, and a dash for None."""

from __future__ import annotations

NOTHING = "–"


def amount(value: float | None) -> str:
    """Format a number with at least three significant digits."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """Format a share; 100 % and 0 % only if they are exact."""
    if share is None:
        return NOTHING
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(max(share * 100, 0.01), 99.99) if 0 < share < 1 else share * 100:.2f}%"


def times(factor: float | None) -> str:
    """Format a factor."""
    return NOTHING if factor is None else f"× {amount(factor)}"
