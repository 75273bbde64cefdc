"""The rules file: the conditions that raise alarms, in TOML.

    threshold   an aggregate of a signal over a window is above or below a bound
    absence     a host has sent nothing for some time
    logs        enough lines of a level, or that match a pattern, in a window
    together    the same rule holds on several hosts within some time
    sequence    a rule holds on one host, and soon afterwards another one on another host

The last two refer to other rules by name; a `quiet` rule raises no alarm and serves only them. The
TOML parser gives no line numbers for valid values, so `_Lines` searches the text for those of
errors.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.lines import SEVERITIES

AGGREGATES = ("mean", "min", "max", "last", "sum", "count")
ALARM_SEVERITIES = ("info", "warning", "critical")
#: Limit that keeps evaluation fast and the report readable.
MAX_RULES = 200
DEFAULT_RULES = "default_rules.toml"
#: A host is forgotten after this time; no window is longer.
FORGET_S = 7 * 24 * 3600

#: Prefix of the signals that count the log lines of a rule.
RULE_SIGNAL = "rule:"


class _Rule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    name: str
    severity: str = "warning"
    #: Whether the rule raises no alarm of its own.
    quiet: bool = False


class Threshold(_Rule, frozen=True, kw_only=True, tag="threshold"):
    """An aggregate of a signal over a window crosses a bound."""

    signal: str
    above: float | None = None
    below: float | None = None
    aggregate: str = "mean"
    over_s: int = 60
    #: Shell patterns of hosts and items: "web-*".
    hosts: str = "*"
    items: str = "*"


class Absence(_Rule, frozen=True, kw_only=True, tag="absence"):
    """A host sends nothing."""

    after_s: int = 60
    hosts: str = "*"


class Logs(_Rule, frozen=True, kw_only=True, tag="logs"):
    """Enough log lines in a window."""

    pattern: str = ""
    #: The least severe level that counts.
    level: str = ""
    at_least: int = 1
    over_s: int = 60
    hosts: str = "*"

    @property
    def signal(self) -> str:
        """The name of the signal that counts the lines."""
        return f"{RULE_SIGNAL}{self.name}"


class Together(_Rule, frozen=True, kw_only=True, tag="together"):
    """A rule holds on several hosts."""

    of: str
    at_least: int = 2
    within_s: int = 60


class Sequence(_Rule, frozen=True, kw_only=True, tag="sequence"):
    """A rule holds on one host, then another rule on another host."""

    first: str
    then: str
    within_s: int = 60


Rule: TypeAlias = Threshold | Absence | Logs | Together | Sequence
HostRule: TypeAlias = Threshold | Absence | Logs


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rules file."""

    #: Length of the buckets of signals; windows of rules are multiples of it.
    bucket_s: int = 10
    #: Later rows do not count.
    late_s: int = 60
    rule: tuple[Rule, ...] = ()

    @property
    def longest_s(self) -> int:
        """The longest window of all rules."""
        return max((r.over_s for r in self.rule if isinstance(r, Threshold | Logs)), default=0)

    @property
    def logs(self) -> tuple[Logs, ...]:
        """The rules about log lines."""
        return tuple(rule for rule in self.rule if isinstance(rule, Logs))

    @property
    def signals(self) -> set[str]:
        """The signals of all threshold rules."""
        return {rule.signal for rule in self.rule if isinstance(rule, Threshold)}


def read_rules(path: Path | None) -> Rules:
    """Return the rules in a file, or the default rules."""
    if path is None:
        return parse_rules(default_rules(), DEFAULT_RULES)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"{path} cannot be read ({reason}); 'quorumcast pipeline monitor rules' prints rules "
            "to begin with"
        ) from None
    return parse_rules(text, str(path))


def default_rules() -> str:
    """Return the text of the default rules."""
    return (files(__package__) / DEFAULT_RULES).read_text(encoding="utf-8")


def parse_rules(text: str, name: str) -> Rules:
    """Parse rules; `name` is the name of the file in error messages."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {_lower(str(error))}; correct it") from None
    except RecursionError:
        raise UsageError(f"{name} has values within values without end; correct it") from None
    where = _Lines(name, text)
    try:
        rules = msgspec.convert(found, Rules)
    except msgspec.ValidationError as error:
        raise where.error_of(str(error)) from None
    _check(rules, where)
    return rules


# --------------------------------------------------------------------------- checks


def _check(rules: Rules, where: _Lines) -> None:
    if not 1 <= rules.bucket_s <= FORGET_S:
        raise where.error(None, "bucket_s", f"is 1 or more, and at most {FORGET_S}")
    if not 0 <= rules.late_s <= FORGET_S:
        raise where.error(None, "late_s", f"is 0 or more, and at most {FORGET_S}")
    if len(rules.rule) > MAX_RULES:
        raise where.error(MAX_RULES, "name", f"is one rule too many: at most {MAX_RULES}")
    names: dict[str, Rule] = {}
    for index, rule in enumerate(rules.rule):
        if not rule.name.strip():
            raise where.error(index, "name", "is empty: give the rule one")
        if rule.name in names:
            raise where.error(index, "name", f"{rule.name!r} is taken: choose another one")
        names[rule.name] = rule
        if rule.severity not in ALARM_SEVERITIES:
            raise where.error(index, "severity", _choose(ALARM_SEVERITIES))
        for field, sentence in _errors(rule, rules.bucket_s):
            raise where.error(index, field, sentence)
    for index, rule in enumerate(rules.rule):
        for field, named in _references(rule):
            other = names.get(named)
            if other is None:
                raise where.error(index, field, f"names {named!r}, and there is no such rule")
            if isinstance(other, Together | Sequence):
                raise where.error(
                    index, field, f"names {named!r}, which is not about single hosts itself"
                )


def _references(rule: Rule) -> Iterator[tuple[str, str]]:
    if isinstance(rule, Together):
        yield "of", rule.of
    if isinstance(rule, Sequence):
        yield "first", rule.first
        yield "then", rule.then


def _errors(rule: Rule, bucket_s: int) -> Iterator[tuple[str, str]]:
    """Yield the errors of a single rule: a field and the rest of the sentence."""
    if isinstance(rule, Threshold | Logs) and (rule.over_s < 1 or rule.over_s % bucket_s):
        yield "over_s", f"is a multiple of bucket_s, which is {bucket_s}"
    if isinstance(rule, Threshold | Logs) and rule.over_s > FORGET_S:
        yield "over_s", f"is at most {FORGET_S}"
    if isinstance(rule, Threshold):
        for field, bound in (("above", rule.above), ("below", rule.below)):
            if bound is not None and not math.isfinite(bound):
                yield field, "is a number that values can be on either side of"
        if (rule.above is None) == (rule.below is None):
            yield "name", f"{rule.name!r} needs one of 'above' and 'below'"
        if rule.aggregate not in AGGREGATES:
            yield "aggregate", _choose(AGGREGATES)
    if isinstance(rule, Absence) and not 1 <= rule.after_s < FORGET_S:
        yield "after_s", f"is 1 or more, and less than {FORGET_S}, when a host is forgotten"
    if isinstance(rule, Logs):
        if not rule.pattern and not rule.level:
            yield "name", f"{rule.name!r} needs a 'pattern', a 'level' or both"
        if rule.level and rule.level not in SEVERITIES:
            yield "level", _choose(SEVERITIES)
        try:
            re.compile(rule.pattern)
        except re.error as error:
            yield "pattern", f"is not a regular expression ({error})"
    if isinstance(rule, Logs | Together) and rule.at_least < 1:
        yield "at_least", "is 1 or more"
    if isinstance(rule, Together | Sequence) and not 1 <= rule.within_s <= FORGET_S:
        yield "within_s", f"is 1 or more, and at most {FORGET_S}"


def _choose(choices: tuple[str, ...]) -> str:
    return f"is one of {', '.join(choices)}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


class _Lines:
    """The line numbers of the fields in a rules file."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        #: Line numbers by (rule, field); the header of a rule has field "".
        self._lines: dict[tuple[int | None, str], int] = {}
        rule: int | None = None
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(r"\s*\[\[\s*rule\s*\]\]", line):
                rule = 0 if rule is None else rule + 1
                self._lines[rule, ""] = number
            elif found := re.match(r"\s*\"?([\w-]+)\"?\s*=", line):
                self._lines.setdefault((rule, found[1]), number)

    def error(self, rule: int | None, field: str, sentence: str) -> UsageError:
        """Return an error about a field of a rule, or of the whole file."""
        line = self._lines.get((rule, field)) or self._lines.get((rule, "")) or 1
        return UsageError(f"{self._name}, line {line}: {field!r} {sentence}")

    def error_of(self, message: str) -> UsageError:
        """Turn a validation error of msgspec into one with a line number."""
        what, _, place = message.rpartition(" - at ")
        index = re.search(r"\$\.rule\[(\d+)\]", place)
        rule = int(index[1]) if index else None
        field = re.search(r"\.(\w+)`?$", place)
        named = re.search(r"field `(\w+)`", what)
        key = named[1] if named else field[1] if field else ""
        line = self._lines.get((rule, key)) or self._lines.get((rule, "")) or 1
        about = f"{key!r}: " if key and not named else ""
        text = _lower((what or message).replace("`", "'"))
        return UsageError(f"{self._name}, line {line}: {about}{text}")
