"""Subscribers that want some rows: the votes and contents that a broker sends them.

Subscribers that ask for the same form a group: a run is evaluated once for all of them, and decoded
once for all groups. Where nothing matches there is nothing to send but that fact. It is told with
the next match, or after `COVERED` numbers, or `COVER_MS` after it was known: so subscribers never
stay far behind, and a broker that omits rows contradicts what others say in time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.ledger import StoredRun
from quorumcast.broadcast.messages import Matches
from quorumcast.cell.results import KnownResults
from quorumcast.cell.serving.known_filters import KnownFilter, KnownFilters
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.work import MOST_US
from quorumcast.core.ids import DIGEST_SIZE, Channel, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import Bodies, Effect, Send, SetTimer, Timer

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumcast.matching.filter import Filter
    from quorumcast.matching.selection import OpenedRun, Selected

#: Numbers without a match after which subscribers are told so, and the time after which they are.
COVERED = 256
COVER_MS = 250
#: Microseconds that it takes to cut out rows and send them, and bytes of a cut that take another.
CUT_US, CUT_BYTES = 50, 128
#: Microseconds that it takes to decode a publication, and bytes of one that take another.
OPEN_US, OPEN_BYTES = 40, 1024
#: Work that is done at once for a run, for all groups: full accounts of many clients add up. The
#: other groups ask again.
RUN_US = MOST_US


class CoverageDue(Timer, frozen=True, tag=True):
    """Tell subscribers where nothing matched."""


class Span(msgspec.Struct):
    """Numbers without a match that subscribers were not told of yet."""

    first: int
    stop: int


class PredicateWork(msgspec.Struct):
    """The work of a broker for the predicates of a channel; counts are since its start."""

    #: Predicates of different subscribers, and subscribers that have any.
    predicates: int = 0
    subscribers: int = 0
    #: Rows on which the predicates of each group were evaluated.
    rows_looked_at: int = 0
    #: What went to groups: rows, publications cut, and publications that went whole.
    rows_sent: int = 0
    cuts: int = 0
    whole: int = 0


class FilterGroup:
    """Subscribers of one channel that want the same rows."""

    __slots__ = ("filter", "finder", "plain", "quiet", "readers")

    def __init__(self, known: KnownFilter) -> None:
        self.filter = known.filter
        #: Finds the rows that match of a costly filter, which is not in the index of all groups;
        #: and whether it does so plainly.
        self.finder = known.finder if known.filter.is_costly else None
        self.plain = self.finder is not None and known.plain
        #: Whether each of them wants contents.
        self.readers: dict[NodeId, bool] = {}
        #: At most one span per stream, of less than COVERED numbers.
        self.quiet: dict[Stream, Span] = {}

    def work_us(self, rows: int) -> int:
        """About how long it takes to find the matching ones of so many rows, in microseconds."""
        return self.filter.work_us(rows, plain=self.plain)

    def send(self, told: Matches, selected: Selected | None) -> list[Effect]:
        """One vote to all: with what matches to those that want contents."""
        full = tuple([name for name, bodies in self.readers.items() if bodies])
        bare = tuple([name for name, bodies in self.readers.items() if not bodies])
        if selected is None or not selected.places:
            return [Send((*full, *bare), told)]
        effects: list[Effect] = []
        if full:
            bodies = tuple([selected.body(place) for place in selected.places])
            effects.append(Send(full, told, bodies))
        return [*effects, Send(bare, told)] if bare else effects


class ChannelGroups:
    """The groups of one channel, whose predicates are evaluated together on the same columns."""

    __slots__ = ("by_id", "indexed", "schema")

    def __init__(self, schema: pa.Schema) -> None:
        # Not at the top: brokers without predicates start without Arrow.
        from quorumcast.matching.indexing.filter_set import FilterSet

        self.schema = schema
        #: By predicate id; none is without readers.
        self.by_id: dict[bytes, FilterGroup] = {}
        #: The filters of groups that could pay lately, but costly ones.
        self.indexed = FilterSet()

    def enter(self, reader: NodeId, known: KnownFilter, *, bodies: bool) -> None:
        """A subscriber is in the group of its filter, and in no other."""
        name = known.filter.id
        group = self.by_id.get(name)
        if group is None or reader not in group.readers:
            self.leave(reader)
        if name not in self.by_id:
            self.by_id[name] = FilterGroup(known)
        self.by_id[name].readers[reader] = bodies

    def select(self, opened: OpenedRun, paying: Collection[bytes]) -> dict[bytes, Selected]:
        """The selections of these groups from a run, by id."""
        chosen: dict[bytes, Selected] = {}
        new: list[Filter] = []
        for name, group in self.by_id.items():
            if group.finder is not None:
                if name in paying:
                    chosen[name] = opened.select(group.finder)
            elif name not in paying:
                self.indexed.discard(name)
            elif name not in self.indexed:
                new.append(group.filter)
        if new:
            self.indexed.add(*new)
        return {**opened.select_all(self.indexed), **chosen} if len(self.indexed) else chosen

    def leave(self, reader: NodeId) -> None:
        """A subscriber is in no group."""
        for name, group in list(self.by_id.items()):
            group.readers.pop(reader, None)
            if not group.readers:
                del self.by_id[name]
                self.indexed.discard(name)


class FilteredReaders:
    """The groups of all channels of one broker."""

    __slots__ = ("_channels", "_done", "_due", "_results", "known")

    def __init__(self) -> None:
        self.known = KnownFilters()
        #: Only channels with a group.
        self._channels: dict[Channel, ChannelGroups] = {}
        #: Whether CoverageDue is set.
        self._due = False
        self._results = KnownResults()
        #: Of channels that had predicates since the start.
        self._done: dict[Channel, PredicateWork] = {}

    def __contains__(self, channel: object) -> bool:
        return channel in self._channels

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        groups = self._groups()
        return {
            **self.known.sizes(),
            "groups": len(groups),
            "quiet": sum(len(group.quiet) for group in groups),
            "results": len(self._results),
        }

    def work(self) -> dict[Channel, PredicateWork]:
        """The work for the predicates of each channel, for people to read."""
        found = dict(self._done)
        for channel, there in self._channels.items():
            groups = there.by_id.values()
            found[channel] = msgspec.structs.replace(
                found[channel],
                predicates=sum(len(group.filter.predicates) for group in groups),
                subscribers=sum(len(group.readers) for group in groups),
            )
        return found

    def _groups(self) -> list[FilterGroup]:
        return [group for there in self._channels.values() for group in there.by_id.values()]

    # -------------------------------------------------------------- members

    def enter(self, reader: NodeId, channel: Channel, known: KnownFilter, *, bodies: bool) -> None:
        """A subscriber wants these rows from now on."""
        there = self._channels.get(channel)
        if there is None or there.schema != known.filter.schema:
            # The channel has more columns than it had: who asked before asks again.
            there = self._channels[channel] = ChannelGroups(known.filter.schema)
            self._done.setdefault(channel, PredicateWork())
        there.enter(reader, known, bodies=bodies)

    def leave(self, reader: NodeId, channel: Channel) -> None:
        """A subscriber wants no rows of a channel, or everything."""
        there = self._channels.get(channel)
        if there is not None:
            there.leave(reader)
            if not there.by_id:
                del self._channels[channel]

    def disconnected(self, reader: NodeId) -> None:
        """A subscriber cannot be reached; it will subscribe again."""
        self.known.forget(reader)
        for channel in list(self._channels):
            self.leave(reader, channel)

    # ---------------------------------------------------------------- votes

    def votes(
        self, served: ServedStream, vouch: Vouch, held: StoredRun | None, now: Millis
    ) -> list[Effect]:
        """The votes of all groups for a run that this broker vouches for."""
        if held is None or held.digests != vouch.digests:
            # What is not held cannot be evaluated; subscribers ask for it when it is.
            return []
        there = self._channels[vouch.stream.channel]
        opened = _opened(served, there.schema, held)
        #: By the id of the group: what it costs, and who pays for it.
        paid: dict[bytes, tuple[int, tuple[NodeId, ...]]] = {}
        left_us = RUN_US
        for name, group in there.by_id.items():
            work_us = group.work_us(opened.effort)
            if work_us > left_us:
                continue
            if payers := self._payers(group, work_us, now):
                paid[name], left_us = (work_us, payers), left_us - work_us
        chosen = there.select(opened, paid)
        self._results.note(vouch.stream, held, chosen)
        effects: list[Effect] = []
        for name, (work_us, payers) in paid.items():
            group, selected = there.by_id[name], chosen[name]
            self._charge(vouch.stream, payers, work_us, selected)
            effects += self._tell(group, vouch.stream, held, selected)
        return effects + self._await_coverage()

    def _payers(self, group: FilterGroup, work_us: int, now: Millis) -> tuple[NodeId, ...]:
        """The subscribers that can pay for this work; the others ask again when they can."""
        share_us = work_us // len(group.readers)
        return tuple([r for r in group.readers if self.known.work.may_ask(r, share_us, now)])

    def _charge(
        self, stream: Stream, payers: tuple[NodeId, ...], work_us: int, selected: Selected
    ) -> None:
        """Note work, and let those pay for it for whom it was done."""
        done = self._done.setdefault(stream.channel, PredicateWork())
        done.rows_looked_at += selected.rows_looked_at
        for place in selected.places:
            rows = selected.rows(place)
            done.cuts += rows is not None
            done.whole += rows is None
            done.rows_sent += (selected.total(place) or 0) if rows is None else len(rows)
        cut_us = CUT_US * len(selected.places) + selected.cut_bytes // CUT_BYTES
        self.known.work.spend(payers, work_us + cut_us)

    def _tell(
        self, group: FilterGroup, stream: Stream, held: StoredRun, selected: Selected
    ) -> list[Effect]:
        effects: list[Effect] = []
        quiet = group.quiet.get(stream)
        if quiet is not None and (quiet.stop != held.first or held.stop - quiet.first > MAX_RUN):
            effects += group.send(_coverage(group.filter, stream, quiet), None)
            quiet = None
        first = held.first if quiet is None else quiet.first
        if not selected.places and held.stop - first < COVERED:
            group.quiet[stream] = Span(first, held.stop)
            return effects
        group.quiet.pop(stream, None)
        return effects + group.send(_matches(group.filter, stream, first, held, selected), selected)

    def _await_coverage(self) -> list[Effect]:
        if self._due or not any(group.quiet for group in self._groups()):
            return []
        self._due = True
        return [SetTimer(CoverageDue(), COVER_MS)]

    def cover(self, sayable: Callable[[Stream], int]) -> list[Effect]:
        """Tell everybody where nothing matched, as far as that may be said."""
        self._due = False
        effects: list[Effect] = []
        for group in self._groups():
            for stream, quiet in list(group.quiet.items()):
                # Zero if the stream is over: nobody waits for more of it.
                stop = min(quiet.stop, sayable(stream))
                if stop > quiet.first:
                    said = Span(quiet.first, stop)
                    effects += group.send(_coverage(group.filter, stream, said), None)
                if 0 < stop < quiet.stop:
                    quiet.first = max(quiet.first, stop)
                else:
                    del group.quiet[stream]
        return effects + self._await_coverage()

    def vote_again(
        self,
        served: ServedStream,
        reader: NodeId,
        known: KnownFilter,
        stream: Stream,
        held: StoredRun,
        now: Millis,
        *,
        bodies: bool,
    ) -> tuple[Matches, Bodies] | None:
        """A vote for the beginning of what one subscriber asked for once more.

        It is as long as the subscriber can pay; None if it can pay nothing.
        """
        work = self.known.work
        if not work.may_ask(reader, 0, now):
            return None
        result = self._results.find(known.filter.id, stream, held)
        if result is not None:
            work.spend((reader,), CUT_US * (1 + len(result.places)))
            places, values = tuple(result.places), b"".join(result.values)
            told = Matches(stream, held.first, result.count, known.filter.id, places, values)
            return told, tuple(result.bodies) if bodies else ()
        # Opening all, half, a quarter … of a run takes twice as long as opening it.
        open_us = 2 * (OPEN_US * len(held.bodies) + sum(map(len, held.bodies)) // OPEN_BYTES)
        if not work.may_ask(reader, open_us, now):
            return None
        work.spend((reader,), open_us)
        while True:
            opened = _opened(served, known.filter.schema, held)
            work_us, one = known.work_us(opened.effort), len(held.bodies) == 1
            # A run that takes more than a full account is taken in parts: others wait less.
            if (one or work_us <= MOST_US) and work.may_ask(reader, work_us, now):
                break
            if one:
                return None
            held = _first_half(held)
        selected = opened.select(known.finder)
        self._charge(stream, (reader,), work_us, selected)
        told = _matches(known.filter, stream, held.first, held, selected)
        contents = tuple([selected.body(place) for place in selected.places]) if bodies else ()
        return told, contents


def _first_half(held: StoredRun) -> StoredRun:
    count = len(held.bodies) // 2
    digests = held.digests[: count * DIGEST_SIZE]
    return msgspec.structs.replace(held, digests=digests, bodies=held.bodies[:count])


def _opened(served: ServedStream, schema: pa.Schema, held: StoredRun) -> OpenedRun:
    # Not at the top: brokers without predicates start without Arrow.
    from quorumcast.matching.selection import OpenedRun

    labelled = served.entry.policy.total
    return OpenedRun(schema, held.digests, held.bodies, labelled=labelled)


def _coverage(filter_: Filter, stream: Stream, quiet: Span) -> Matches:
    return Matches(stream, quiet.first, quiet.stop - quiet.first, filter_.id)


def _matches(
    filter_: Filter, stream: Stream, first: int, held: StoredRun, selected: Selected
) -> Matches:
    """The vote for a run, and for numbers right before it at which nothing matches."""
    places = tuple([held.first - first + place for place in selected.places])
    values = b"".join(map(selected.vote, selected.places))
    return Matches(stream, first, held.stop - first, filter_.id, places, values)
