"""Conditions and alarms: what the rules make of the signals of all hosts.

Pure: buckets in, alarms out. `absorb` takes what Spark counted; values are absolute, so taking the
same bucket twice changes nothing. Then the rules are evaluated at the end of each bucket that came,
in order of time, so that a backlog raises what it would have raised when it was new.

A *condition* is a rule that holds for a host (and an item). When one begins, an alarm is raised,
once; when it ends, the alarm is cleared. Of a host that says nothing, conditions stay as they are,
except that it says nothing. `elapse` is for the time that passes without any signal at all.

What can be fed from outside is bounded: `MAX_SERIES` series, `MAX_HOSTS` hosts, `MAX_OPEN` open
conditions, as many buckets of each as the longest window or the report needs. What finds no room
is counted.
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
#: In the place of a host, where an alarm is about several.
SEVERAL = "*"


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """One signal of one host, counted up over one bucket; `start` in seconds since 1970."""

    start: int
    host: str
    signal: str
    item: str
    count: int
    total: float
    least: float
    most: float
    last: float
    #: The newest time of a row in it.
    heard: float


class Alarm(msgspec.Struct, frozen=True):
    """Something to tell people; the columns of the channel."""

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
    """A rule that holds."""

    rule: str
    host: str
    item: str
    since: float
    value: float
    text: str
    #: As its rule was when it began: the alarm is cleared as it was raised, whatever has become of
    #: the rule since.
    severity: str = "warning"
    quiet: bool = False


class Series(NamedTuple):
    """What tells one line of a diagram from another."""

    host: str
    signal: str
    item: str


class Memory(msgspec.Struct):
    """Everything that a watch must remember; what is kept on disk."""

    now: float = 0.0
    #: How long the buckets are; others cannot be compared with them.
    bucket_s: int = 0
    heard: dict[str, float] = {}
    buckets: list[Bucket] = []
    open: list[Condition] = []
    #: When conditions began and when they last held: (rule, host, time).
    began: list[tuple[str, str, float]] = []
    held: list[tuple[str, str, float]] = []
    #: Rows of signals for which there was no room.
    ignored: int = 0


class Watch:
    """Applies rules to signals."""

    def __init__(self, rules: Rules, memory: Memory | None = None) -> None:
        memory = memory or Memory()
        self.rules = rules
        #: The time up to which rules have been evaluated.
        self.now = memory.now
        self.heard: dict[str, float] = dict(memory.heard)
        self.ignored = memory.ignored
        #: Buckets by series and start, the oldest first.
        self.series: dict[Series, dict[int, Bucket]] = {}
        known = {rule.name for rule in rules.rule}
        #: Conditions that hold, by (rule, host, item).
        self.open: dict[tuple[str, str, str], Condition] = {
            (c.rule, c.host, c.item): c for c in memory.open if c.rule in known
        }
        #: Conditions of rules that are gone, whose alarms are still to be cleared.
        self._gone = [c for c in memory.open if c.rule not in known]
        self._began = [one for one in memory.began if one[0] in known]
        self._held = {(rule, host): time for rule, host, time in memory.held if rule in known}
        for bucket in memory.buckets if memory.bucket_s == rules.bucket_s else ():
            self._put(bucket)

    @property
    def memory(self) -> Memory:
        """What to keep."""
        return Memory(
            now=self.now,
            bucket_s=self.rules.bucket_s,
            heard=self.heard,
            buckets=[bucket for line in self.series.values() for bucket in line.values()],
            open=[*self.open.values(), *self._gone],
            began=self._began,
            held=[(rule, host, time) for (rule, host), time in self._held.items()],
            ignored=self.ignored,
        )

    @property
    def alarms(self) -> list[Condition]:
        """Open alarms, the newest first."""
        loud = [c for c in self.open.values() if not c.quiet]
        return sorted(loud, key=lambda c: -c.since)

    # ------------------------------------------------------------------ what comes

    def absorb(self, buckets: Iterable[Bucket]) -> list[Alarm]:
        """Take what was counted and say what follows from it."""
        ends: set[int] = set()
        for bucket in buckets:
            if self._put(bucket):
                ends.add(bucket.start + self.rules.bucket_s)
        alarms: list[Alarm] = []
        newest = max(self.heard.values(), default=0.0)
        for end in sorted(ends):
            # A bucket that is not over yet is evaluated as far as it is known.
            if end >= self.now:
                alarms += self._evaluate(float(end), min(end, newest))
        self._forget()
        return alarms

    def elapse(self, now: float) -> list[Alarm]:
        """Time has passed, and everything that was sent until then has been absorbed."""
        return self._evaluate(now, now) if now > self.now else []

    def _put(self, bucket: Bucket) -> bool:
        series = Series(bucket.host, bucket.signal, bucket.item)
        crowded = series not in self.series and len(self.series) >= MAX_SERIES
        if crowded or (bucket.host not in self.heard and len(self.heard) >= MAX_HOSTS):
            self.ignored += bucket.count
            return False
        self.series.setdefault(series, {})[bucket.start] = bucket
        self.heard[bucket.host] = max(self.heard.get(bucket.host, 0.0), bucket.heard)
        return True

    def _forget(self) -> None:
        """Let go of what no rule and no report will look at."""
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

    def _evaluate(self, now: float, told: float) -> list[Alarm]:
        """Apply all rules at a time; `told` is the time that alarms carry."""
        self.now = now
        alarms = _alarms(self._gone, told, "cleared")
        self._gone = []
        for rule in self.rules.rule:
            if isinstance(rule, Threshold | Absence | Logs):
                alarms += self._settle(rule, self._hold(rule, now), told)
        for condition in self.open.values():
            self._held[condition.rule, condition.host] = now
        for rule in self.rules.rule:
            if isinstance(rule, Together):
                alarms += self._settle(rule, self._together(rule, now), told)
            elif isinstance(rule, Sequence):
                alarms += self._settle(rule, self._sequence(rule), told)
        self._prune(now)
        return alarms

    def _hold(self, rule: HostRule, now: float) -> Iterator[Condition]:
        """The conditions of a rule about single hosts."""
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
            yield from self._carried(rule, now)

    def _carried(self, rule: Threshold, now: float) -> Iterator[Condition]:
        """What held of hosts that have been silent for so long that their series are forgotten."""
        for (name, host, item), condition in self.open.items():
            if name != rule.name or Series(host, rule.signal, item) in self.series:
                continue
            silent = self.heard.get(host, now) < now - self.rules.bucket_s
            if silent and fnmatchcase(host, rule.hosts) and fnmatchcase(item, rule.items):
                yield condition

    def _crossed(
        self,
        rule: Threshold,
        series: Series,
        line: dict[int, Bucket],
        window: list[Bucket],
        now: float,
    ) -> Condition | None:
        key = (rule.name, series.host, series.item)
        if not window:
            # Nothing is known: what held goes on holding. Counts of nothing are 0.
            return None if rule.aggregate in _COUNTS else self.open.get(key)
        lasting = (rule.aggregate, rule.above is None) in _LASTING
        if lasting and key not in self.open and min(line) > now - rule.over_s:
            return None  # too young: a peak is not a mean
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

    def _settle(self, rule: Rule, holding: Iterable[Condition], told: float) -> list[Alarm]:
        """Open what began and close what ended."""
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
        return _alarms(begun, told, "raised") + _alarms(ended, told, "cleared")

    def _prune(self, now: float) -> None:
        longest = max(
            (r.within_s for r in self.rules.rule if isinstance(r, Together | Sequence)), default=0
        )
        self._began = [one for one in self._began if one[2] >= now - longest]
        self._held = {key: time for key, time in self._held.items() if time >= now - longest}


def _alarms(conditions: Iterable[Condition], told: float, state: str) -> list[Alarm]:
    """What people are told of conditions."""
    return [
        Alarm(
            told,
            f"{condition.rule}/{condition.host}/{condition.item}/{condition.since:.0f}",
            state,
            condition.rule,
            condition.severity,
            condition.host,
            condition.item,
            condition.value,
            condition.text,
        )
        for condition in conditions
        if not condition.quiet
    ]


#: Aggregates that are 0 where nothing came.
_COUNTS = ("sum", "count")
#: (aggregate, whether below): those that one value cannot decide need a whole window.
_LASTING = {("mean", False), ("mean", True), ("min", False), ("max", True)}


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
