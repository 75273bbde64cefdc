"""Observations: rows in which one node notes what it observed of another.

A row names the `observer` and its `role`, the `accused`, the `kind` and `reason`, the type of the
`message`, the stream, the first and last time, and a count. Equal observations within SPAN_MS are
one row, so that a faulty peer cannot fill a disk by repetition. Above MAX_DIFFERENT rows in a span,
further observations are counted without their stream.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, TypeVar

import msgspec

from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.tally import Tally

#: Length of the spans within which equal observations are counted together.
SPAN_MS = 250
#: Rows of a span with a stream; further observations are counted without it.
MAX_DIFFERENT = 2048

#: The columns of the table and their Arrow types.
COLUMNS = {
    "run": "string",
    "t_ms": "int64",
    "until_ms": "int64",
    "observer": "string",
    "role": "string",
    "kind": "string",
    "accused": "string",
    "reason": "string",
    "message": "string",
    "channel": "string",
    "publisher": "string",
    "incarnation": "int64",
    "lane": "int8",
    "number": "int64",
    "count": "int64",
}

#: The columns of the documents that observers keep: statements, evidence, receipts.
DOCUMENT_COLUMNS = {
    "run": "string",
    "observer": "string",
    "kind": "string",
    "subject": "string",
    "data": "binary",
}
#: The columns of the manifests of runs. The driver of a run writes them, not its nodes.
CELL_COLUMNS = {"run": "string", "data": "binary"}
#: The columns of labels: which faults each node of a run really committed.
LABEL_COLUMNS = {
    "run": "string",
    "source": "string",
    "policy": "string",
    "adversary": "string",
    "node": "string",
    "fault": "string",
    "status": "string",
    "deeds": "int64",
    "towards": "string",
}

#: Prefix of the directories in which nodes write; the name of the node that wrote them follows.
BY_OBSERVER = "observer="


#: Most keys in each memory that peers can feed; a tally under a key has a vote per node at most.
MAX_REMEMBERED = 4096

_K = TypeVar("_K")
_V = TypeVar("_V")


def tally_at(memory: OrderedDict[_K, Tally[bytes]], key: _K) -> Tally[bytes]:
    """Return the votes under a key; above MAX_REMEMBERED keys, evict the oldest."""
    if key not in memory:
        remember(memory, key, Tally())
    return memory[key]


def remember(memory: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    """Store a value; above MAX_REMEMBERED keys, evict the oldest."""
    memory[key] = value
    if len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)


def forget(peer: NodeId, *memories: MutableMapping[tuple[NodeId, Any], Any]) -> None:
    """Delete everything about a peer: its session is new, or packets were lost."""
    for memory in memories:
        for key in [key for key in memory if key[0] == peer]:
            del memory[key]


#: Reasons of LINK rows: a session ended, or packets were lost.
DOWN, LOST = "down", "lost"
#: The reason of HEARD rows about messages that came with contents.
CONTENTS = "contents"


class Kind(enum.Enum):
    """The kinds of observations."""

    #: The observer itself was overloaded.
    STRAINED = "strained"
    #: A link came up, went down, or lost packets.
    LINK = "link"
    #: The machine reported a suspicion.
    SUSPECT = "suspect"
    #: The machine dropped a message of the accused.
    REFUSED = "refused"
    #: Messages of one type arrived.
    HEARD = "heard"
    #: An expected message came, at most `number` milliseconds after a quorum had sent it.
    CAME = "came"
    #: An expected message never came, although the link was up all the time.
    MISSING = "missing"
    #: A number decreased within a session.
    BACKWARDS = "backwards"
    #: A message contradicts what the cell decided, or another message of its sender.
    CONTRADICTS = "contradicts"
    #: A message names a number that no other node is near.
    BOASTS = "boasts"
    #: A leader proposed an empty batch without need.
    PASSES_OVER = "passes-over"


class Observation(msgspec.Struct, frozen=True):
    """One row, without its run."""

    t_ms: int
    until_ms: int
    observer: NodeId
    role: str
    kind: str
    accused: NodeId
    reason: str
    message: str
    channel: str
    publisher: str
    incarnation: int
    lane: int
    number: int
    count: int


_Key = tuple[Kind, NodeId, str, str, Stream | None, int]


class Notes:
    """The observations of one node; equal ones within a span are counted together."""

    __slots__ = ("_began", "_counts", "_done", "_observer", "_role", "behind_ms")

    def __init__(self, observer: NodeId, role: str) -> None:
        self._observer = observer
        self._role = role
        #: First time, last time, first number and count of each observation in this span.
        self._counts: dict[_Key, list[int]] = {}
        self._began = 0
        #: Rows of spans that are over.
        self._done: list[Observation] = []
        #: Added to the observer's clock to get the time of a row.
        self.behind_ms = 0

    def add(
        self,
        now: Millis,
        kind: Kind,
        accused: NodeId,
        reason: str = "",
        message: str = "",
        stream: Stream | None = None,
        number: int = 0,
        count: int = 1,
        *,
        bucket: int = 0,
    ) -> None:
        """Add an observation; those of different `bucket`s are counted separately."""
        at = now + self.behind_ms
        if at - self._began >= SPAN_MS:
            self._end_span(at)
        key = (kind, accused, reason, message, stream, bucket)
        entry = self._counts.get(key)
        if entry is None:
            if len(self._counts) >= MAX_DIFFERENT:
                key = (kind, accused, reason, message, None, bucket)
            entry = self._counts.setdefault(key, [at, at, bucket or number, 0])
        entry[1] = at
        entry[3] += count

    def _end_span(self, now: int) -> None:
        for (kind, accused, reason, message, stream, _), entry in self._counts.items():
            first, last, number, count = entry
            self._done.append(
                Observation(
                    t_ms=first,
                    until_ms=last,
                    observer=self._observer,
                    role=self._role,
                    kind=kind.value,
                    accused=accused,
                    reason=reason,
                    message=message,
                    channel=stream.channel if stream else "",
                    publisher=stream.publisher if stream else "",
                    incarnation=stream.incarnation if stream else 0,
                    lane=int(stream.lane) if stream else 0,
                    number=number,
                    count=count,
                )
            )
        self._counts.clear()
        self._began = now

    def take(self, *, all_: bool = False) -> list[Observation]:
        """Return the rows of finished spans; with `all_`, of the current span as well."""
        if all_:
            self._end_span(self._began)
        done, self._done = self._done, []
        return done


def columns_of(run: str, rows: list[Observation], shift_ms: int = 0) -> dict[str, list[object]]:
    """Return rows as columns of the table; `shift_ms` is added to their times."""
    columns: dict[str, list[object]] = {name: [] for name in COLUMNS}
    for row in rows:
        columns["run"].append(run)
        columns["t_ms"].append(row.t_ms + shift_ms)
        columns["until_ms"].append(row.until_ms + shift_ms)
        for name in row.__struct_fields__[2:]:
            columns[name].append(getattr(row, name))
    return columns
