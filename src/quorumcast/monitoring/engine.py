"""The alarm engine: applies the rules to the signals of all hosts. Buckets in, alarms out.

`absorb` takes the buckets that Spark aggregated; they hold absolute values, so absorbing one twice
changes nothing. The rules are evaluated at the end of each new bucket, in order of time, so that a
backlog raises the same alarms as real time; `elapse` evaluates them when there are no signals.

A *condition* is a rule that holds for a host and an item. An alarm is raised once when it begins,
and cleared once when it ends. The conditions of a silent host stay open. Everything that hosts can
feed is bounded (MAX_SERIES, MAX_HOSTS, MAX_OPEN, buckets by age); the excess counts as `ignored`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from quorumcast.monitoring.rules import (
    FORGET_S,
    Absence,
    HostRule,
    Logs,
    Rule,
    Rules,
    Sequence,
    Threshold,
    Together,
)

MAX_SERIES = 50_000
MAX_HOSTS = 10_000
MAX_OPEN = 10_000
#: Buckets of each series that the report draws.
DRAWN = 60
#: The host of an alarm about several hosts.
SEVERAL = "*"


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """One signal of one host, aggregated over one bucket; `start` in seconds since 1970."""

    start: int
    host: str
    signal: str
    item: str
    count: int
    total: float
    least: float
    most: float
    last: float
    #: The newest time of a row in the bucket.
    heard: float


class Alarm(msgspec.Struct, frozen=True):
    """An alarm that was raised or cleared: a row of the channel `alarms`."""

    time: float
    id: str
    state: str
    rule: str
    severity: str
    host: str
    item: str
    value: float
    text: str


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """A rule that holds for a host and an item."""

    rule: str
    host: str
    item: str
    since: float
    value: float
    text: str
    #: Copied from the rule at the beginning, so that the alarm is cleared as it was raised even if
    #: the rule has changed.
    severity: str = "warning"
    quiet: bool = False


class SeriesKey(NamedTuple):
    """The identity of a time series."""

    host: str
    signal: str
    item: str


class EngineState(msgspec.Struct):
    """The durable state of an engine."""

    now: float = 0.0
    #: The length of the buckets; buckets of another length are discarded.
    bucket_s: int = 0
    heard: dict[str, float] = {}
    buckets: list[Bucket] = []
    open: list[Condition] = []
    #: When conditions began, and when they last held, as (rule, host, time).
    began: list[tuple[str, str, float]] = []
    held: list[tuple[str, str, float]] = []
    #: Rows and conditions beyond a limit.
    ignored: int = 0


class AlarmEngine:
    """Applies rules to the signals of all hosts."""

    def __init__(self, rules: Rules, state: EngineState | None = None) -> None:
        state = state or EngineState()
        self.rules = rules
        #: The time up to which rules have been evaluated.
        self.now = state.now
        self.heard: dict[str, float] = dict(state.heard)
        self.ignored = state.ignored
        #: Buckets by series and start, the oldest first.
        self.series: dict[SeriesKey, dict[int, Bucket]] = {}
        known = {rule.name for rule in rules.rule}
        #: Conditions that hold, by (rule, host, item).
        self.open: dict[tuple[str, str, str], Condition] = {
            (c.rule, c.host, c.item): c for c in state.open if c.rule in known
        }
        #: Conditions of removed rules, whose alarms are still to be cleared.
        self._orphaned = [c for c in state.open if c.rule not in known]
        self._began = [begin for begin in state.began if begin[0] in known]
        self._held = {(rule, host): time for rule, host, time in state.held if rule in known}
        for bucket in state.buckets if state.bucket_s == rules.bucket_s else ():
            self._put(bucket)

    @property
    def state(self) -> EngineState:
        """The state to save."""
        return EngineState(
            now=self.now,
            bucket_s=self.rules.bucket_s,
            heard=self.heard,
            buckets=[bucket for line in self.series.values() for bucket in line.values()],
            open=[*self.open.values(), *self._orphaned],
            began=self._began,
            held=[(rule, host, time) for (rule, host), time in self._held.items()],
            ignored=self.ignored,
        )

    @property
    def alarms(self) -> list[Condition]:
        """Open alarms, the newest first."""
        shown = [c for c in self.open.values() if not c.quiet]
        return sorted(shown, key=lambda c: -c.since)

    # --------------------------------------------------------------------- input

    def absorb(self, buckets: Iterable[Bucket]) -> list[Alarm]:
        """Add buckets, evaluate the rules and return the alarms."""
        ends: set[int] = set()
        for bucket in buckets:
            if self._put(bucket):
                ends.add(bucket.start + self.rules.bucket_s)
        alarms: list[Alarm] = []
        newest = max(self.heard.values(), default=0.0)
        for end in sorted(ends):
            # An unfinished bucket is evaluated with the rows so far.
            if end >= self.now:
                alarms += self._evaluate(float(end), min(end, newest))
        self._forget()
        return alarms

    def elapse(self, now: float) -> list[Alarm]:
        """Evaluate the rules at `now`; all buckets up to then must have been absorbed."""
        return self._evaluate(now, now) if now > self.now else []

    def _put(self, bucket: Bucket) -> bool:
        series = SeriesKey(bucket.host, bucket.signal, bucket.item)
        crowded = series not in self.series and len(self.series) >= MAX_SERIES
        if crowded or (bucket.host not in self.heard and len(self.heard) >= MAX_HOSTS):
            self.ignored += bucket.count
            return False
        self.series.setdefault(series, {})[bucket.start] = bucket
        self.heard[bucket.host] = max(self.heard.get(bucket.host, 0.0), bucket.heard)
        return True

    def _forget(self) -> None:
        """Delete what neither a rule nor the report needs."""
        step = self.rules.bucket_s
        horizon = self.now - max(self.rules.longest_s, DRAWN * step) - step
        for series, line in list(self.series.items()):
            for start in [start for start in line if start < horizon]:
                del line[start]
            if not line:
                del self.series[series]
        for host in [h for h, time in self.heard.items() if time < self.now - FORGET_S]:
            del self.heard[host]

    # ------------------------------------------------------------------ evaluation

    def _evaluate(self, now: float, alarm_time: float) -> list[Alarm]:
        """Apply all rules at `now`; the alarms carry `alarm_time`."""
        self.now = now
        alarms = _alarms(self._orphaned, alarm_time, "cleared")
        self._orphaned = []
        for rule in self.rules.rule:
            if isinstance(rule, Threshold | Absence | Logs):
                alarms += self._update(rule, self._host_conditions(rule, now), alarm_time)
        for condition in self.open.values():
            self._held[condition.rule, condition.host] = now
        for rule in self.rules.rule:
            if isinstance(rule, Together):
                alarms += self._update(rule, self._together(rule, now), alarm_time)
            elif isinstance(rule, Sequence):
                alarms += self._update(rule, self._sequence(rule), alarm_time)
        self._prune(now)
        return alarms

    def _host_conditions(self, rule: HostRule, now: float) -> Iterator[Condition]:
        """Yield the conditions of a rule about single hosts."""
        if isinstance(rule, Absence):
            for host, time in self.heard.items():
                if time < now - rule.after_s and fnmatchcase(host, rule.hosts):
                    text = f"{host} has said nothing for {now - time:.0f} s"
                    yield Condition(rule.name, host, "", now, now - time, text)
            return
        for series, line in self.series.items():
            if series.signal != rule.signal or not fnmatchcase(series.host, rule.hosts):
                continue
            window = [b for start, b in line.items() if now - rule.over_s <= start < now]
            if isinstance(rule, Logs):
                count = sum(bucket.count for bucket in window)
                if count >= rule.at_least:
                    text = f"{count} lines on {series.host} within {rule.over_s} s"
                    yield Condition(rule.name, series.host, "", now, count, text)
            elif fnmatchcase(series.item, rule.items):
                found = self._crossed(rule, series, line, window, now)
                if found is not None:
                    yield found
        if isinstance(rule, Threshold) and rule.aggregate not in _COUNTS:
            yield from self._kept_while_silent(rule, now)

    def _kept_while_silent(self, rule: Threshold, now: float) -> Iterator[Condition]:
        """Yield open conditions of silent hosts whose series have been deleted."""
        for (name, host, item), condition in self.open.items():
            if name != rule.name or SeriesKey(host, rule.signal, item) in self.series:
                continue
            silent = self.heard.get(host, now) < now - self.rules.bucket_s
            if silent and fnmatchcase(host, rule.hosts) and fnmatchcase(item, rule.items):
                yield condition

    def _crossed(
        self,
        rule: Threshold,
        series: SeriesKey,
        line: dict[int, Bucket],
        window: list[Bucket],
        now: float,
    ) -> Condition | None:
        key = (rule.name, series.host, series.item)
        if not window:
            # Without data an open condition stays open. A count without data is 0.
            return None if rule.aggregate in _COUNTS else self.open.get(key)
        needs_window = (rule.aggregate, rule.above is None) in _NEEDS_WINDOW
        if needs_window and key not in self.open and min(line) > now - rule.over_s:
            return None  # the window is not full yet: a peak is not a mean
        value = _aggregated(rule.aggregate, window)
        bound = rule.above if rule.above is not None else rule.below
        crossed = value > bound if rule.above is not None else value < bound  # type: ignore[operator]
        if not crossed:
            return None
        word = "above" if rule.above is not None else "below"
        item = f" of {series.item}" if series.item else ""
        text = (
            f"{rule.aggregate} {rule.signal}{item} on {series.host} is {value:g} over "
            f"{rule.over_s} s, {word} {bound:g}"
        )
        return Condition(rule.name, series.host, series.item, now, value, text)

    def _together(self, rule: Together, now: float) -> Iterator[Condition]:
        hosts = sorted(
            host
            for (name, host), time in self._held.items()
            if name == rule.of and time >= now - rule.within_s
        )
        if len(hosts) >= rule.at_least:
            text = f"{rule.of!r} on {len(hosts)} hosts: {', '.join(hosts[:10])}"
            yield Condition(rule.name, SEVERAL, "", now, len(hosts), text)

    def _sequence(self, rule: Sequence) -> Iterator[Condition]:
        for (name, host, _), later in list(self.open.items()):
            if name != rule.then:
                continue
            kept = [c for c in self.open.values() if (c.rule, c.host) == (rule.name, host)]
            if kept:  # it lasts as long as the second condition
                yield from kept
                continue
            for first, other, time in self._began:
                soon = time <= later.since <= time + rule.within_s
                if first == rule.first and other != host and soon:
                    text = f"{rule.first!r} on {other}, then {rule.then!r} on {host}"
                    since = later.since
                    yield Condition(rule.name, host, other, since, since - time, text)
                    break

    def _update(self, rule: Rule, holding: Iterable[Condition], alarm_time: float) -> list[Alarm]:
        """Open the conditions that began and close those that ended."""
        found = {(c.rule, c.host, c.item): c for c in holding}
        begun: list[Condition] = []
        for key, condition in found.items():
            if key not in self.open:
                if len(self.open) >= MAX_OPEN:
                    self.ignored += 1
                    continue
                self.open[key] = msgspec.structs.replace(
                    condition, severity=rule.severity, quiet=rule.quiet
                )
                self._began.append((rule.name, condition.host, condition.since))
                begun.append(self.open[key])
        over = [key for key in self.open if key[0] == rule.name and key not in found]
        ended = [self.open.pop(key) for key in over]
        return _alarms(begun, alarm_time, "raised") + _alarms(ended, alarm_time, "cleared")

    def _prune(self, now: float) -> None:
        longest = max(
            (r.within_s for r in self.rules.rule if isinstance(r, Together | Sequence)), default=0
        )
        self._began = [begin for begin in self._began if begin[2] >= now - longest]
        self._held = {key: time for key, time in self._held.items() if time >= now - longest}


def _alarms(conditions: Iterable[Condition], time: float, state: str) -> list[Alarm]:
    """Return the alarms of conditions; those of quiet rules have none."""
    return [
        Alarm(time, f"{c.rule}/{c.host}/{c.item}/{c.since:.0f}", state,
              c.rule, c.severity, c.host, c.item, c.value, c.text)
        for c in conditions
        if not c.quiet
    ]  # fmt: skip


#: Aggregates that are 0 without data.
_COUNTS = ("sum", "count")
#: (aggregate, whether `below`) pairs that a single value cannot decide.
_NEEDS_WINDOW = {("mean", False), ("mean", True), ("min", False), ("max", True)}


def _aggregated(aggregate: str, window: list[Bucket]) -> float:
    count = sum(bucket.count for bucket in window)
    match aggregate:
        case "mean":
            return sum(bucket.total for bucket in window) / max(count, 1)
        case "min":
            return min(bucket.least for bucket in window)
        case "max":
            return max(bucket.most for bucket in window)
        case "last":
            return max(window, key=lambda bucket: bucket.start).last
        case "sum":
            return sum(bucket.total for bucket in window)
        case _:
            return count
