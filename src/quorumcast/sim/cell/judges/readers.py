"""Readers: one subscription of one subscriber each, as applications and checkers see it.

A reader with predicates is told which publications have rows that match (`Deliver`), and how far
nothing did (`Passed`). Numbers before what it is told, back to what it was told before, are passed
as well: its subscriber machine says that nothing matches there.
"""

from __future__ import annotations

import msgspec

from quorumcast.core.ids import CELL, Channel, Digest, NodeId, Stream, total_order
from quorumcast.sim.cell.judges.twin import within


class OwedPast(msgspec.Struct, eq=False):
    """What a reader of the past is owed, and what it was told of its end.

    `replay` and batch reads of Spark end where the subscriber says that the channel ended.
    """

    #: What was acknowledged when the reader joined: the last number of each stream.
    acknowledged: dict[Stream, int]
    #: The last number of each stream that each correct broker had acknowledged by then.
    held: dict[tuple[Stream, NodeId], int]
    #: Brokers whose answers came before the subscriber settled where its streams begin and end.
    answered: dict[NodeId, None] = {}
    #: Brokers that may have denied what they had acknowledged.
    unreliable: dict[NodeId, None] = {}
    #: The next number of each stream that is to be read, as the application was told.
    ends: dict[Stream, int] = {}
    #: Last time by then at which more than f brokers had lost their contents; -1: never.
    lost_at: int = -1
    #: Whether the application has got everything before `ends`, and so has ended.
    concluded: bool = False


class Reader(msgspec.Struct, eq=False):
    """One subscription of one subscriber to one channel, from `Join` to `Leave` or crash."""

    node: NodeId
    channel: Channel
    joined_at: int
    #: Time at which the subscriber learned where its streams begin; None: not yet.
    standing_at: int | None = None
    #: The last number that any reader had accepted of each stream by then.
    before: dict[Stream, int] = {}
    left_at: int | None = None
    #: Requested start: None for the next publication, 0 for the oldest, else a position.
    start: int | None = None
    #: End of the requested range of positions, exclusive; 0: no end.
    until: int = 0
    #: Accepted numbers and digests of each stream, in order.
    accepted: dict[Stream, list[tuple[int, Digest]]] = msgspec.field(default_factory=dict)
    #: The same without digests.
    numbers: dict[Stream, dict[int, None]] = msgspec.field(default_factory=dict)
    gaps: dict[Stream, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    #: The parts of the gaps that retention explains.
    excused: dict[Stream, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    #: The last accepted position of a totally ordered channel.
    position: int = 0
    #: The publication accepted there.
    placed: tuple[Stream, int] | None = None
    #: The last position that brokers had ordered when the reader began.
    ordered: int = 0
    #: The number of publications that brokers retained for certain when the reader began, and the
    #: last number of each stream that earlier limits had discarded.
    retained: int = 0
    discarded: dict[Stream, int] = msgspec.field(default_factory=dict)
    #: Recalled positions without an answer.
    recalling: dict[int, None] = msgspec.field(default_factory=dict)
    #: Requested receipts that have not come.
    proving: dict[tuple[Stream, int], None] = msgspec.field(default_factory=dict)
    #: Whether publishers have to wait for it: it had caught up when its application stopped.
    waited_for: bool = False
    #: The predicates in force; none for everything that its cell has.
    where: tuple[str, ...] = ()
    #: The rows that its cell carries on of a channel of another cell; "" for all.
    carried: str = ""
    #: Predicates before these, and the last number of each stream for which they were in force.
    earlier: list[tuple[tuple[str, ...], dict[Stream, int]]] = []
    #: The last number of each stream up to which nothing more matched, as it was told.
    passed: dict[Stream, int] = {}
    #: What came of the last publication of each stream, if it was a cut.
    parts: dict[Stream, bytes] = {}
    #: What it accepted whole, as brokers hold it, on channels with columns.
    whole: dict[Stream, dict[int, bytes]] = {}
    #: Set if it begins in the past.
    past: OwedPast | None = None

    def upto(self, stream: Stream) -> int:
        """The last number accepted or announced as lost."""
        accepted = self.accepted.get(stream)
        last = accepted[-1][0] if accepted else 0
        if stream.publisher == CELL:
            last = self.position
        last = max(last, self.passed.get(stream, 0))
        return max([last, *(upto for _, upto in self.gaps.get(stream, ()))])

    @property
    def turned(self) -> int:
        """The last position of a totally ordered channel whose turn was over, gaps aside."""
        return max(self.position, self.passed.get(total_order(self.channel), 0))

    @property
    def asked(self) -> tuple[str, ...]:
        """The predicates that decide what it gets of each publication; none for everything."""
        return within(self.carried, self.where)

    @property
    def asked_ever(self) -> list[tuple[str, ...]]:
        """The present predicates, and all before them."""
        return [self.asked, *(within(self.carried, where) for where, _ in self.earlier)]

    @property
    def is_filtered(self) -> bool:
        """Whether it gets, or got, some rows only."""
        return any(self.asked_ever)

    def select(self, where: tuple[str, ...]) -> None:
        """It asks for other rows of everything that it has not been told of."""
        known = dict.fromkeys((*self.accepted, *self.gaps, *self.passed, total_order(self.channel)))
        self.earlier.append((self.where, {stream: self.upto(stream) for stream in known}))
        self.where = where

    def where_at(self, stream: Stream, number: int) -> tuple[str, ...]:
        """The predicates in force when it was told of a number."""
        for where, upto in self.earlier:
            if number <= upto.get(stream, 0):
                return within(self.carried, where)
        return self.asked

    def first(self, stream: Stream) -> int | None:
        """The first number that this reader knows of."""
        accepted = self.accepted.get(stream)
        numbers = [accepted[0][0]] if accepted else []
        numbers += [first for first, _ in self.gaps.get(stream, ())]
        return min(numbers) if numbers else None

    def is_excused(self, stream: Stream, number: int) -> bool:
        """Whether this number was announced as lost and brokers were allowed to discard it."""
        return any(first <= number <= upto for first, upto in self.excused.get(stream, ()))

    def __str__(self) -> str:
        return f"{self.node} (on {self.channel} since {self.joined_at} ms)"
