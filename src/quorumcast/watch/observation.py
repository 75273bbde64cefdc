"""Observations: what one node noticed of another, as rows of one small table.

A row says who (`observer`, in which `role`) noticed what (`kind`, `reason`, about which `message`)
of whom (`accused`), on which stream, from when until when, and how often. Equal rows of one span of
time are one row with a count, so a liar cannot fill a disk by repeating itself; once too many
different ones have come within a span, the rest lose their stream.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TypeVar

import msgspec

from quorumcast.core.ids import Millis, NodeId, Stream

#: Equal observations are counted together for so long.
SPAN_MS = 250
#: Different observations within a span, before they lose their streams.
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


#: … and those of the documents that observers keep: statements, evidence, receipts.
DOCUMENT_COLUMNS = {
    "run": "string",
    "observer": "string",
    "kind": "string",
    "subject": "string",
    "data": "binary",
}
#: … and those of the manifests by which runs are judged: whoever makes runs keeps them, no node.
CELL_COLUMNS = {"run": "string", "data": "binary"}
#: … and of what each node of a labelled run is and did.
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

#: How the directories are called in which nodes write; a file is the word of its directory's node.
BY_OBSERVER = "observer="


#: Things that are remembered of peers, of each kind.
MAX_REMEMBERED = 4096

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(memory: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    """Keep what was heard last."""
    memory[key] = value
    if len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)


#: The reasons of rows about links that ended, or lost packets.
DOWN, LOST = "down", "lost"


class Kind(enum.Enum):
    """What was noticed."""

    #: The observer itself had more to do than it could.
    STRAINED = "strained"
    #: A link came up, went down, or lost packets.
    LINK = "link"
    #: The machine suspects the accused.
    SUSPECT = "suspect"
    #: The machine ignored something that the accused sent.
    REFUSED = "refused"
    #: How many messages of a kind came from the accused.
    HEARD = "heard"
    #: It said what others had said already, so many milliseconds after enough had (`number`).
    CAME = "came"
    #: It never said what enough others said, although it could be heard all the time.
    MISSING = "missing"
    #: It said something earlier after something later, in one session, without having been asked.
    BACKWARDS = "backwards"
    #: It said something else than what the cell went by, or than itself.
    CONTRADICTS = "contradicts"
    #: It claims to be where nobody is.
    BOASTS = "boasts"
    #: As leader it proposed nothing where there was nothing to fill.
    PASSES_OVER = "passes-over"


class Observation(msgspec.Struct, frozen=True):
    """One row, without the run."""

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
    """Counts equal observations of one node together."""

    __slots__ = ("_began", "_counts", "_done", "_observer", "_role", "behind_ms")

    def __init__(self, observer: NodeId, role: str) -> None:
        self._observer = observer
        self._role = role
        #: First time, last time, first number and count of what was noticed in this span.
        self._counts: dict[_Key, list[int]] = {}
        self._began = 0
        #: Rows of spans that are over.
        self._done: list[Observation] = []
        #: How far the observer's clock is behind that of the rows.
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
        """Something was noticed; those of different `bucket`s are counted apart."""
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
        """The rows of spans that are over; with `all_` those of the present one, too."""
        if all_:
            self._end_span(self._began)
        done, self._done = self._done, []
        return done


def columns_of(run: str, rows: list[Observation], shift_ms: int = 0) -> dict[str, list[object]]:
    """Rows as the columns of the table; `shift_ms` is added to their times."""
    columns: dict[str, list[object]] = {name: [] for name in COLUMNS}
    for row in rows:
        columns["run"].append(run)
        columns["t_ms"].append(row.t_ms + shift_ms)
        columns["until_ms"].append(row.until_ms + shift_ms)
        for name in row.__struct_fields__[2:]:
            columns[name].append(getattr(row, name))
    return columns
