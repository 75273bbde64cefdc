"""What a node counts, cheap enough for the hot path: plain integers in plain dictionaries.

Nothing here is a metric object: a `dict` increment costs tens of nanoseconds, a labelled Prometheus
counter more than a microsecond. `metrics` turns the numbers into Prometheus families when somebody
asks for `/metrics`, and `snapshot` into JSON for `/status`. Every key comes from an enumeration or
the manifest, never from what a peer sent: no peer can make them grow.
"""

from __future__ import annotations

import resource
import time
from collections import Counter

from quorumcast.core.ids import NodeId


class Telemetry:
    """The counters of one node."""

    __slots__ = (
        "accusations",
        "bytes_in",
        "bytes_out",
        "dropped",
        "drops",
        "messages_in",
        "messages_out",
        "met",
        "packets_in",
        "packets_out",
        "publications",
        "started",
        "suspicions",
    )

    def __init__(self) -> None:
        #: Everything ignored, by reason: `Refusal`, `DropReason` or one of `link.LinkDrop`.
        self.drops: Counter[str] = Counter()
        #: Of these, what the machine would not have.
        self.dropped = 0
        #: Suspicions voiced by the machine, by (node, reason); nodes are those of the manifest.
        self.suspicions: Counter[tuple[NodeId, str]] = Counter()
        #: Accusations with proof, by node.
        self.accusations: Counter[NodeId] = Counter()
        self.packets_in = 0
        self.packets_out = 0
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        #: Publications that this node vouched for (broker) or delivered (subscriber).
        self.publications = 0
        self.started = time.monotonic()
        #: When each other broker was first linked to, on the clock of `started`.
        self.met: dict[NodeId, float] = {}

    def meet(self, broker: NodeId) -> None:
        """A link to a broker is open; the first one counts."""
        self.met.setdefault(broker, time.monotonic())

    def met_s_ago(self, broker: NodeId) -> float | None:
        """Since when this node has known a broker; None if they never met."""
        at = self.met.get(broker)
        return None if at is None else round(time.monotonic() - at, 3)

    def traffic(self) -> dict[str, int]:
        """The plain counters by name."""
        return {
            "packets_in": self.packets_in,
            "packets_out": self.packets_out,
            "messages_in": self.messages_in,
            "messages_out": self.messages_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "publications": self.publications,
        }

    @property
    def uptime_s(self) -> float:
        """Since when this node has been running."""
        return round(time.monotonic() - self.started, 3)

    def suspicions_by_node(self) -> dict[NodeId, dict[str, int]]:
        """How often each node was suspected, by reason."""
        found: dict[NodeId, dict[str, int]] = {}
        for (node, reason), count in self.suspicions.items():
            found.setdefault(node, {})[reason] = count
        return found


class Rates:
    """Publications, messages and bytes per second since the last time somebody asked."""

    __slots__ = ("_at", "_last", "_latest", "_telemetry")

    #: Asked again sooner than this, it repeats its last answer.
    SHORTEST_S = 0.2

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._at = time.monotonic()
        self._last = telemetry.traffic()
        self._latest: dict[str, float] = dict.fromkeys(self._last, 0.0)

    def sample(self) -> dict[str, float]:
        """Per second, by counter."""
        now = time.monotonic()
        elapsed = now - self._at
        if elapsed >= self.SHORTEST_S:
            current = self._telemetry.traffic()
            self._latest = {
                name: round((value - self._last[name]) / elapsed, 1)
                for name, value in current.items()
            }
            self._at, self._last = now, current
        return self._latest


def rss_bytes() -> int:
    """Resident memory of this process."""
    import psutil  # clients are never asked

    return int(psutil.Process().memory_info().rss)


def cpu_seconds() -> float:
    """Processor time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
