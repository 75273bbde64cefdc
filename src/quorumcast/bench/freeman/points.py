"""What is measured: his policies and figures, and the points of the short suite and the sweep.

The short suite runs SHORT for some seconds each. The sweep runs every point of PARTS with his fixed
number of publications:

    four, seven           throughput and latency over publishers (§7.3.1, §7.3.2)
    topics, seven-topics  the same with four topics for each publisher (§7.3.3)
    drop, alter           one broker misbehaves, publishers skip another (§7.3.4)
    percent               the broker misbehaves in a part of its messages only (§6.7)
    latency               each publisher at 100 publications per second: latency without queues
    alpha                 throughput over α, and latency over α while histories repair (§8.1)
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quorumcast.bench.plan import BenchPlan
from quorumcast.manifest.policy import ALPHA as USUAL_ALPHA
from quorumcast.manifest.policy import ALPHA_MAX


class Line(msgspec.Struct, frozen=True):
    """A policy of his, by the name that his figures give it."""

    name: str
    policy: str
    alpha: int = 0


LINES = (
    Line("AB", "ab"),
    Line("AB α=10", "ab+history", 10),
    Line("AB α=100", "ab+history", 100),
    Line("BRB", "brb"),
    Line("Chain", "chain"),
    Line("Chain α=10", "chain+history", 10),
    Line("Chain α=100", "chain+history", 100),
)
AB, CHAIN = LINES[0], LINES[4]
#: Lines of which nothing arrives with a liar and a skipped broker, so that one point is enough.
SPLIT = (AB, CHAIN)


class Figures(msgspec.Struct, frozen=True):
    """What he measured at the highest throughput: figures 7.1 to 7.8."""

    publishers: int | None = None
    publications_per_s: int | None = None
    mean_ms: float | None = None
    deviation_ms: float | None = None
    p99_ms: float | None = None


#: His figures by policy, α and brokers.
FIGURES: dict[tuple[str, int, int], Figures] = {
    ("ab", 0, 4): Figures(12, 11_000, 0.7, 1.0, 2.4),
    ("ab+history", 10, 4): Figures(10, None, 2.3, 6.0, 33.9),
    ("brb", 0, 4): Figures(1, 850, 29.5, 14.7, 64.1),
    ("chain", 0, 4): Figures(1, 1_750, 1.7, 0.4, 3.4),
    ("chain+history", 10, 4): Figures(1, None, 2.4, 0.9, 5.8),
    ("ab", 0, 7): Figures(None, 7_400),
}

#: Publications of each publisher, and of one that publishes at a rate.
EVENTS, PACED_EVENTS = 50_000, 2_000
PUBLISHERS = (1, 2, 4, 6, 8, 10, 12, 14)
TOPICS = 4
PERCENTS = (25, 50, 75)
FAULTS = ("drop", "alter")
LIGHT_RATE = 100.0
ALPHAS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
#: The rate at which latency over α is measured while histories repair what a broker drops.
REPAIR_RATE = 400.0

FOUR, SEVEN, TOPICS_4, TOPICS_7 = "four", "seven", "topics", "seven-topics"
PERCENT, LATENCY, ALPHA, SHORT_PART = "percent", "latency", "alpha", "short"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of settings."""

    part: str
    line: Line
    brokers: int = 4
    topics: int = 1
    publishers: int = 1
    #: The upper end of an adaptive α.
    alpha_max: int = 0
    fault: str = ""
    percent: int = 100
    #: Publications per second of each publisher; 0 is as fast as subscribers accept.
    rate: float = 0.0

    def plan(self, base: BenchPlan) -> BenchPlan:
        """The plan of a run; `base` has what is the same in all of them."""
        events = min(base.events, PACED_EVENTS) if self.rate else base.events
        return msgspec.structs.replace(
            base,
            policy=self.line.policy,
            alpha=self.line.alpha or None,
            alpha_max=self.alpha_max,
            brokers=self.brokers,
            f=None,
            channels=self.topics,
            publishers=self.publishers,
            fault=self.fault,
            percent=self.percent,
            rate=self.rate,
            events=events,
        )

    @property
    def figures(self) -> Figures:
        """His figures for this; empty where he gives none."""
        if self.part in FAULTS and self.line in SPLIT:
            return Figures(publications_per_s=0)  # "failed to deliver any publications"
        if self.fault or self.topics > 1:
            return Figures()
        return FIGURES.get((self.line.policy, self.line.alpha, self.brokers), Figures())

    def __str__(self) -> str:
        words = [f"{self.part}: {self.line.name}", f"{self.brokers} brokers"]
        words += [f"{self.topics} topics"] * (self.topics > 1)
        words.append(f"{self.publishers} publisher{'s' * (self.publishers > 1)}")
        words += [f"{self.fault} {self.percent} %"] * bool(self.fault)
        return ", ".join(words)


#: The short suite.
SHORT = (
    *(Point(part=SHORT_PART, line=line) for line in LINES),
    Point(part=SHORT_PART, line=AB, brokers=7),
    Point(part=SHORT_PART, line=LINES[2], brokers=7),
)


def _over_publishers(part: str, brokers: int, topics: int) -> Iterator[Point]:
    for line in LINES:
        for count in PUBLISHERS:
            yield Point(part=part, line=line, brokers=brokers, topics=topics, publishers=count)


def _misbehaving(fault: str) -> Iterator[Point]:
    for line in LINES:
        for count in PUBLISHERS[:1] if line in SPLIT else PUBLISHERS:
            yield Point(part=fault, line=line, publishers=count, fault=fault)


def _percentages() -> Iterator[Point]:
    for fault in FAULTS:
        for line in LINES:
            for percent in PERCENTS:
                yield Point(part=PERCENT, line=line, fault=fault, percent=percent)


def _light() -> Iterator[Point]:
    for line in LINES:
        for count in PUBLISHERS:
            yield Point(part=LATENCY, line=line, publishers=count, rate=LIGHT_RATE)


def _alphas() -> Iterator[Point]:
    for fast in SPLIT:
        yield Point(part=ALPHA, line=fast)
        policy = f"{fast.policy}+history"
        for alpha in ALPHAS:
            line = Line(f"{fast.name} α={alpha}", policy, alpha)
            yield Point(part=ALPHA, line=line)
            yield Point(part=ALPHA, line=line, fault="drop", rate=REPAIR_RATE)
        adaptive = Line(f"{fast.name} α={USUAL_ALPHA}…{ALPHA_MAX}", policy, USUAL_ALPHA)
        yield Point(part=ALPHA, line=adaptive, alpha_max=ALPHA_MAX)


PARTS: dict[str, tuple[Point, ...]] = {
    FOUR: tuple(_over_publishers(FOUR, 4, 1)),
    ALPHA: tuple(_alphas()),
    "drop": tuple(_misbehaving("drop")),
    "alter": tuple(_misbehaving("alter")),
    PERCENT: tuple(_percentages()),
    LATENCY: tuple(_light()),
    TOPICS_4: tuple(_over_publishers(TOPICS_4, 4, TOPICS)),
    SEVEN: tuple(_over_publishers(SEVEN, 7, 1)),
    TOPICS_7: tuple(_over_publishers(TOPICS_7, 7, TOPICS)),
}
