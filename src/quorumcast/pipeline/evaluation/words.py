"""Figures as people read them: three digits that count, and a dash where there is nothing."""

from __future__ import annotations

NOTHING = "–"


def amount(value: float | None) -> str:
    """A number with at least three digits that count."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """A share; 100 % and 0 % are said only where they are exact."""
    if share is None:
        return NOTHING
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(max(share * 100, 0.01), 99.99) if 0 < share < 1 else share * 100:.2f}%"


def times(factor: float | None) -> str:
    """A factor."""
    return NOTHING if factor is None else f"× {amount(factor)}"
