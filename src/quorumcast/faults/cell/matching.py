"""Faults about predicates: brokers that vote for other results, and subscribers that cost work.

A result has only MACs behind it, so a lie about it leaves suspicion. A broker changes rows where it
has the contents; in a vote without contents it claims a digest that nobody else has, which is what
a cut with other rows looks like from outside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from quorumcast.broadcast.messages import Matches
from quorumcast.cell.messages import Subscribe
from quorumcast.core.ids import Channel, Digest, Millis, NodeId, Stream, split_digests
from quorumcast.core.limits import MAX_PREDICATE_TEXT, MAX_RUN
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.base import Tampering, other_digest, result_digest
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    from quorumcast.matching.cut import OpenedBody

#: Numbers of which a broker remembers what it said to subscribers with other predicates.
REMEMBERED = 1024
#: How far ahead a broker claims to know that nothing matches.
AHEAD = (1, 16, 256, MAX_RUN)
#: Patterns of a costly predicate: nearly as many as a broker evaluates (`cell.serving`).
PATTERNS = 100


class ResultAt(NamedTuple):
    """What matches at one number of a vote: a value, and contents if they are sent."""

    value: Digest
    body: bytes = b""


#: What matches, by the place in the run.
Results = dict[int, ResultAt]


class ResultLie(Tampering):
    """A fault that changes votes for results, and nothing else."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        said = send.message
        if not isinstance(said, Matches) or not self.context.hits():
            return [send]
        return self.lie(send, said)

    def lie(self, send: Send, said: Matches) -> Sequence[Effect | Later]:
        """What is sent instead of a vote."""
        told = self.results(said, _results(send, said))
        bodies = tuple(told[place].body for place in sorted(told)) if send.bodies else ()
        return [Send(send.to, _with(said, told), bodies)]

    def results(self, said: Matches, results: Results) -> Results:
        """The results that it votes for."""
        raise NotImplementedError


class OmitMatches(ResultLie):
    """Says that nothing matches."""

    def results(self, said: Matches, results: Results) -> Results:
        return {}


class OmitRows(ResultLie):
    """Leaves out the last of the rows that match, wherever there are any."""

    def results(self, said: Matches, results: Results) -> Results:
        told: Results = {}
        for place, result in results.items():
            opened = _opened(self.context, said.stream.channel, result)
            if opened is None:
                told[place] = ResultAt(other_digest(result.value), result.body)
            elif (body := _without_a_row(opened)) is not None:
                told[place] = ResultAt(result_digest(body, self.context), body)
        return told


class PadRows(ResultLie):
    """Adds a row that does not match, and contents where nothing matches."""

    def results(self, said: Matches, results: Results) -> Results:
        told: Results = {}
        for place, result in results.items():
            opened = _opened(self.context, said.stream.channel, result)
            body = None if opened is None else _with_a_row_more(opened)
            if body is None:
                told[place] = ResultAt(other_digest(result.value), result.body)
            else:
                told[place] = ResultAt(result_digest(body, self.context), body)
        if len(told) < said.count:
            place = next(place for place in range(said.count) if place not in told)
            padding = b"padding %d" % (said.first + place)
            told[place] = ResultAt(self.context.manifest.hash(padding), padding)
        return told


class FalseCoverage(ResultLie):
    """Says that nothing matches in numbers that it does not hold."""

    def lie(self, send: Send, said: Matches) -> Sequence[Effect | Later]:
        count = self.context.rng.choice(AHEAD)
        ahead = Matches(said.stream, said.first + said.count, count, said.where)
        return [send, Send(send.to, ahead)]


class OtherPredicate(ResultLie):
    """Votes for the results of another subscriber's predicate, or of the opposite one."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        #: What it said lately of each number, by predicate; None: nothing matches.
        self._said: OrderedDict[tuple[Stream, int], dict[bytes, ResultAt | None]] = OrderedDict()

    def results(self, said: Matches, results: Results) -> Results:
        told: Results = {}
        for place in range(said.count):
            number = said.first + place
            by_predicate = self._said.setdefault((said.stream, number), {})
            by_predicate[said.where] = results.get(place)
            others = [found for where, found in by_predicate.items() if where != said.where]
            other = others[0] if others else _opposite(number, results.get(place))
            if other is not None:
                told[place] = other
        while len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        return told


class StalePredicate(ResultLie):
    """Keeps voting under the first predicate that each subscriber had."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._first: dict[tuple[NodeId, Channel], bytes] = {}

    def lie(self, send: Send, said: Matches) -> Sequence[Effect | Later]:
        told: dict[bytes, list[NodeId]] = {}
        for reader in send.to:
            first = self._first.setdefault((reader, said.stream.channel), said.where)
            told.setdefault(first, []).append(reader)
        return [
            replace(send, to=tuple(readers), message=replace(said, where=where))
            for where, readers in told.items()
        ]


def _results(send: Send, said: Matches) -> Results:
    bodies = send.bodies or (b"",) * len(said.places)
    # Another fault of this node may have left other numbers of values and bodies.
    results = zip(said.places, split_digests(said.values), bodies, strict=False)
    return {place: ResultAt(value, body) for place, value, body in results}


def _with(said: Matches, results: Results) -> Matches:
    """The vote with these results."""
    places = tuple(sorted(results))
    values = b"".join(results[place].value for place in places)
    return replace(said, places=places, values=values)


def _opposite(number: int, result: ResultAt | None) -> ResultAt | None:
    if result is not None:
        return None
    body = b"the opposite at %d" % number
    return ResultAt(other_digest(Digest(body)), body)


# -------------------------------------------------------------------- rows


def _opened(context: FaultContext, channel: Channel, result: ResultAt) -> OpenedBody | None:
    """The rows of a result; None if its contents are not sent, or make no sense."""
    entry = context.manifest.channel(channel)
    if not result.body or entry is None or not entry.schema:
        return None
    # Not at the top: brokers without predicates start without Arrow.
    from quorumcast.matching.cut import open_body

    labelled = entry.policy.total
    return open_body(entry.arrow_schema(), result.value, result.body, labelled=labelled)


def _without_a_row(opened: OpenedBody) -> bytes | None:
    """Contents that lack a row; None if it was the only one."""
    import numpy as np

    from quorumcast.matching.cut import cut_out

    left = min(opened.batch.num_rows - 1, opened.total // 2)
    cuts = cut_out(opened, [np.arange(left, dtype=np.uint32)]) if left else [None]
    return None if cuts[0] is None else cuts[0].encode()


def _with_a_row_more(opened: OpenedBody) -> bytes | None:
    """A cut with its last row once more, at another place; None for a whole publication."""
    import numpy as np

    from quorumcast.matching.cut import RowCut

    if opened.cut is None:
        return None
    rows = opened.cut.rows
    lacking = np.setdiff1d(np.arange(opened.total, dtype=np.uint32), rows)
    padded = np.sort(np.append(rows, lacking[:1])).astype(np.uint32)
    places = np.minimum(np.arange(len(padded)), len(rows) - 1).astype(np.uint32)
    head, total = opened.head, opened.total
    return RowCut(opened.publication, head, total, padded, opened.batch, places).encode()


# -------------------------------------------------------------- subscribers


class PredicateFlood(Tampering):
    """Asks for other rows with every message that it sends."""

    _count = 0

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not self.context.hits():
            return [send]
        self._count += 1
        return [send, *_asking(self.context, send.to, lambda entry: _another(entry, self._count))]


class CostlyPredicate(Tampering):
    """Asks for rows with a predicate that takes as much work as it can."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if isinstance(send.message, Subscribe) and self.context.hits():
            return [send, *_asking(self.context, send.to, _costly)]
        return [send]


def _asking(
    context: FaultContext, to: tuple[NodeId, ...], where: Callable[[ChannelEntry], str]
) -> list[Send]:
    """What asks brokers for rows of every channel that has columns."""
    return [
        Send(to, Subscribe(entry.name, (), bodies=True, where=(where(entry),)))
        for entry in context.manifest.channels
        if entry.schema
    ]


def _another(entry: ChannelEntry, number: int) -> str:
    """A predicate for each number."""
    name, kind = entry.schema[0]
    if kind == "string":
        return f"{_quoted(name)} = '{number}'"
    if kind.startswith(("int", "uint", "float")):
        return f"{_quoted(name)} > {number % 100}.{number}"
    return f"{_quoted(name)} IS NULL" + " " * (number % MAX_PREDICATE_TEXT)


def _costly(entry: ChannelEntry) -> str:
    """The predicate that takes longest, for its length."""
    texts = [name for name, kind in entry.schema if kind == "string"]
    name = _quoted(texts[0] if texts else entry.schema[0][0])
    test = f"{name} LIKE '%{{:x}}_'" if texts else f"{name} <> {name}"
    joined = " OR ".join(test.format(number) for number in range(PATTERNS))
    return joined if len(joined) <= MAX_PREDICATE_TEXT else f"{name} IS NULL"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
