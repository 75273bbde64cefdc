"""Silence: who says nothing more to somebody until the run is over, although the link is up.

Who stands still says nothing either, but goes on after a while; who stops loses its links.
"""

from __future__ import annotations

from quorumcast.agents.observing.inquiries import AGAIN
from quorumcast.agents.observing.observation import DOWN, Kind
from quorumcast.pipeline.audit.charges import Case, Charge
from quorumcast.pipeline.audit.thresholds import ANSWERABLE, SILENT_MS, SILENT_SHARE

WHY = "has fallen silent"


class Silences:
    """When nodes last heard of each other; each one's own word."""

    def __init__(self, case: Case) -> None:
        self._began: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._heard: dict[tuple[str, str], int] = {}
        self._lost = lost(case)
        for f in case.features:
            self._began[f.observer] = min(f.t_ms, self._began.get(f.observer, f.t_ms))
            self._ended[f.observer] = max(f.until_ms, self._ended.get(f.observer, 0))
            if f.kind == Kind.HEARD.value:
                pair = (f.observer, f.accused)
                self._heard[pair] = max(f.until_ms, self._heard.get(pair, 0))

    def is_long(self, observer: str, accused: str, since: int) -> bool:
        """Whether nothing came from then on to the end, or until the link broke, and for long."""
        pair, ended = (observer, accused), self._ended[observer]
        until = min(ended, self._lost.get(pair, ended))
        whole = ended - self._began[observer]
        return self._heard.get(pair, 0) < since and until - since >= max(
            SILENT_MS, SILENT_SHARE * whole
        )


def lost(case: Case) -> dict[tuple[str, str], int]:
    """When a node first lost another one, as it says itself."""
    return {
        (f.observer, f.accused): f.t_ms
        for f in case.features
        if (f.kind, f.reason) == (Kind.LINK.value, DOWN)
    }


def deaf_to_requests(case: Case) -> list[Charge]:
    """Brokers that do not answer what they must, asked again, and say nothing else either."""
    silences = Silences(case)
    asked = [f for f in case.features if (f.kind, f.reason) == (Kind.UNANSWERED.value, AGAIN)]
    return [
        case.charge(late, "dropped", WHY)
        for pair in case.pairs(f for f in asked if f.message in ANSWERABLE)
        if (late := [f for f in pair if silences.is_long(f.observer, f.accused, f.t_ms)])
    ]
