"""The result of an evaluation, as `--json` prints it: one `ScenarioResult` per scenario."""

from __future__ import annotations

import msgspec

from quorumcast.traces.form import Parameter


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters that runs have in common if they are counted together."""

    source: str
    system: str
    #: As in the headers, without what a seed drew.
    parameters: dict[str, Parameter]
    fault: str = ""

    def __hash__(self) -> int:
        return hash((self.source, self.system, frozenset(self.parameters.items()), self.fault))


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from first sending to acceptance; percentiles have an error of 0.05 %."""

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
    """One measured second; means over subscribers and runs."""

    second: int
    publications_per_s: float
    mean_ms: float | None


class ChannelLine(msgspec.Struct, frozen=True):
    """The deliveries and the messages of one channel."""

    channel: str
    publications: int
    owed: int
    delivered: int
    coverage: float | None
    #: Sent by all nodes; messages that name no channel, as those of a log, are not among them.
    messages: int
    bytes: int


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of one node, in all runs of the scenario."""

    node: str
    role: str
    messages_sent: int = 0
    bytes_sent: int = 0
    #: As sent by others, including messages that were lost.
    messages_received: int = 0
    bytes_received: int = 0
    #: Publications voted for towards subscribers, and passed on along a chain.
    forwarded: int = 0
    passed_on: int = 0
    #: Mean place in chains, from 1.
    place: float | None = None
    #: Processor seconds in the measured time of all runs, and the largest resident memory at the
    #: end of one; None where nodes are no processes.
    cpu_s: float | None = None
    memory_mb: float | None = None


class Spread(msgspec.Struct, frozen=True):
    """The distribution of a figure over nodes (Pulsarcast §5.3)."""

    total: float
    mean: float
    deviation: float
    p95: float
    p99: float


class MessageLine(msgspec.Struct, frozen=True):
    """All messages of one type."""

    message: str
    messages: int
    bytes: int


class Cost(msgspec.Struct, frozen=True):
    """The cost of a fault: figures as multiples of those without the fault."""

    rate: float | None
    mean_latency: float | None
    p99_latency: float | None
    messages: float | None
    bytes: float | None


class Beside(msgspec.Struct, frozen=True):
    """A figure of a paper for the same scenario, and ours as a multiple of it."""

    document: str
    figure: str
    unit: str
    theirs: float
    ours: float | None
    ratio: float | None


class ScenarioResult(msgspec.Struct, kw_only=True):
    """The figures of one scenario."""

    name: str
    scenario: Scenario
    runs: int
    seeds: list[int]
    #: Measured time after the warm-up, of all runs.
    seconds: float
    publications: int
    events: int
    owed: int
    delivered: int
    #: The share of what is owed, counted from what was published.
    coverage: float | None
    #: The same counted from what applications injected (Pulsarcast §5.3); None if events per
    #: publication differ.
    coverage_of_injected: float | None
    #: Acceptances beyond the first, and of publications that the node was not owed.
    repeated: int
    unowed: int
    #: Rates of the slowest subscriber, as means over runs.
    publications_per_s: float
    events_per_s: float
    latency: Latency
    by_history: int
    by_history_share: float | None
    #: Deliveries by hops: successive messages from publisher to subscriber.
    hops: dict[int, int]
    mean_hops: float | None
    messages_per_delivery: float | None
    bytes_per_delivery: float | None
    #: Size of the delivered contents.
    contents_bytes: int
    series: list[Second]
    #: Latency in milliseconds and number of deliveries, coarsely, for a chart.
    histogram: list[tuple[float, int]]
    channels: list[ChannelLine]
    nodes: list[NodeLine]
    messages: list[MessageLine]
    sent_by_node: Spread | None
    received_by_node: Spread | None
    bytes_by_node: Spread | None
    #: Processors in use, and megabytes of resident memory, over the processes of all runs.
    processors_by_node: Spread | None
    memory_by_node: Spread | None
    cost: Cost | None = None
    beside: list[Beside] = msgspec.field(default_factory=list)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of all scenarios."""

    traces: int
    rows: int
    #: The largest relative error of percentiles; all other figures are exact.
    accuracy: float
    lines: list[ScenarioResult]
