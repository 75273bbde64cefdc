"""The result of an evaluation, as `--json` prints it: one `ScenarioResult` per scenario."""

from __future__ import annotations

import msgspec

from quorumcast.traces.form import Parameter


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What runs that are counted together have in common."""

    source: str
    system: str
    #: As headers have them; what a seed drew is left out.
    parameters: dict[str, Parameter]
    fault: str = ""

    def __hash__(self) -> int:
        return hash((self.source, self.system, frozenset(self.parameters.items()), self.fault))


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """From the first sending to acceptance, in milliseconds.

    Mean, deviation and the two ends are exact; percentiles are within 0.05 %.
    """

    count: int
    mean: float | None = None
    deviation: float | None = None
    least: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    most: float | None = None


class Second(msgspec.Struct, frozen=True):
    """One second of what was measured; the mean of subscribers and runs."""

    second: int
    publications_per_s: float
    mean_ms: float | None


class ChannelLine(msgspec.Struct, frozen=True):
    """How far subscriptions to a channel were fulfilled."""

    channel: str
    publications: int
    owed: int
    delivered: int
    coverage: float | None


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one node did, in all runs of the scenario."""

    node: str
    role: str
    messages_sent: int = 0
    bytes_sent: int = 0
    #: As far as others sent them: what got lost on the way is counted.
    messages_received: int = 0
    bytes_received: int = 0
    #: Votes for publications to subscribers, and passed down a chain.
    forwarded: int = 0
    passed_on: int = 0
    #: Mean place in chains, from 1.
    place: float | None = None


class Spread(msgspec.Struct, frozen=True):
    """How something is spread over nodes (Pulsarcast §5.3)."""

    total: int
    mean: float
    deviation: float
    p95: float
    p99: float


class MessageLine(msgspec.Struct, frozen=True):
    """All messages of a type."""

    message: str
    messages: int
    bytes: int


class Cost(msgspec.Struct, frozen=True):
    """What a fault costs: this scenario's figures to those without the fault."""

    rate: float | None
    mean_latency: float | None
    p99_latency: float | None
    messages: float | None
    bytes: float | None


class Beside(msgspec.Struct, frozen=True):
    """A figure of a document for the same scenario, and ours to it."""

    document: str
    figure: str
    unit: str
    theirs: float
    ours: float | None
    ratio: float | None


class ScenarioResult(msgspec.Struct, kw_only=True):
    """One scenario."""

    name: str
    scenario: Scenario
    runs: int
    seeds: list[int]
    #: Measured, after warm-up, in all runs.
    seconds: float
    publications: int
    events: int
    owed: int
    delivered: int
    coverage: float | None
    #: Accepted more than once, and accepted without being owed.
    repeated: int
    unowed: int
    #: By the subscriber that accepted least, mean of the runs.
    publications_per_s: float
    events_per_s: float
    latency: Latency
    by_history: int
    by_history_share: float | None
    #: Deliveries by the number of messages, one after another, from publisher to subscriber.
    hops: dict[int, int]
    mean_hops: float | None
    messages_per_delivery: float | None
    bytes_per_delivery: float | None
    #: Of the contents that were delivered.
    contents_bytes: int
    series: list[Second]
    #: Latency in milliseconds and how many deliveries it was, coarsely, for a picture.
    histogram: list[tuple[float, int]]
    channels: list[ChannelLine]
    nodes: list[NodeLine]
    messages: list[MessageLine]
    sent_by_node: Spread | None
    received_by_node: Spread | None
    bytes_by_node: Spread | None
    cost: Cost | None = None
    beside: list[Beside] = msgspec.field(default_factory=list)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    traces: int
    rows: int
    #: How far percentiles may be off, in proportion; everything else is exact.
    accuracy: float
    lines: list[ScenarioResult]
