"""Subscribers that want some rows: what a broker votes for, and what it sends them.

Subscribers that ask for the same form a group: a run is evaluated once for all of them, and decoded
once for all groups. Where nothing matches there is nothing to send but that fact. It is told with
the next match, or after `COVERED` numbers, or `COVER_MS` after it was known: so subscribers never
stay far behind, and a broker that omits rows contradicts what others say in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.ledger import StoredRun
from quorumcast.broadcast.messages import Matches
from quorumcast.cell.serving.known_filters import KnownFilters
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.core.ids import DIGEST_SIZE, Channel, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import Effect, Send, SetTimer, Timer

if TYPE_CHECKING:
    from quorumcast.matching.filter import Filter
    from quorumcast.matching.selection import OpenedRun, Selected

#: Numbers without a match after which subscribers are told so, and the time after which they are.
COVERED = 256
COVER_MS = 250


class CoverageDue(Timer, frozen=True, tag=True):
    """Tell subscribers where nothing matched."""


class Span(msgspec.Struct):
    """Numbers without a match that subscribers were not told of yet."""

    first: int
    stop: int


class FilterGroup:
    """Subscribers of one channel that want the same rows."""

    __slots__ = ("filter", "quiet", "readers")

    def __init__(self, filter_: Filter) -> None:
        self.filter = filter_
        #: Whether each of them wants contents.
        self.readers: dict[NodeId, bool] = {}
        #: At most one span per stream, of less than COVERED numbers.
        self.quiet: dict[Stream, Span] = {}

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


class FilteredReaders:
    """The groups of all channels of one broker."""

    __slots__ = ("_due", "_groups", "known", "looked_at", "sent")

    def __init__(self) -> None:
        self.known = KnownFilters()
        #: By channel and predicate id; none is empty.
        self._groups: dict[Channel, dict[bytes, FilterGroup]] = {}
        #: Whether CoverageDue is set.
        self._due = False
        #: Rows looked at, and publications of which a part was sent, for people to read.
        self.looked_at = self.sent = 0

    def __contains__(self, channel: object) -> bool:
        return channel in self._groups

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        groups = [group for found in self._groups.values() for group in found.values()]
        quiet = sum(len(group.quiet) for group in groups)
        return {**self.known.sizes(), "groups": len(groups), "quiet": quiet}

    def groups(self, channel: Channel) -> Iterable[FilterGroup]:
        """The groups of a channel."""
        return self._groups.get(channel, {}).values()

    # -------------------------------------------------------------- members

    def enter(self, reader: NodeId, channel: Channel, filter_: Filter, *, bodies: bool) -> None:
        """A subscriber wants these rows from now on."""
        groups = self._groups.setdefault(channel, {})
        if filter_.id not in groups or reader not in groups[filter_.id].readers:
            self.leave(reader, channel)
            groups = self._groups.setdefault(channel, {})
        groups.setdefault(filter_.id, FilterGroup(filter_)).readers[reader] = bodies

    def leave(self, reader: NodeId, channel: Channel) -> None:
        """A subscriber wants no rows of a channel, or everything."""
        groups = self._groups.get(channel, {})
        for name, group in list(groups.items()):
            group.readers.pop(reader, None)
            if not group.readers:
                del groups[name]
        if not groups:
            self._groups.pop(channel, None)

    def disconnected(self, reader: NodeId) -> None:
        """A subscriber cannot be reached; it will subscribe again."""
        self.known.forget(reader)
        for channel in list(self._groups):
            self.leave(reader, channel)

    # ---------------------------------------------------------------- votes

    def votes(
        self, served: ServedStream, vouch: Vouch, held: StoredRun | None, now: Millis
    ) -> list[Effect]:
        """The votes of all groups for a run that this broker vouches for."""
        if held is None or held.digests != vouch.digests:
            # What is not held cannot be evaluated; subscribers ask for it when it is.
            return []
        paying = {
            group.filter.id: tuple([r for r in group.readers if self.known.may_ask(r, now)])
            for group in self.groups(vouch.stream.channel)
        }
        effects: list[Effect] = []
        opened: OpenedRun | None = None
        for group in self.groups(vouch.stream.channel):
            payers = paying[group.filter.id]
            if not payers:
                continue  # they ask again when they can pay
            if opened is None:
                opened = _opened(served, group.filter, held)
            selected = self._select(opened, group.filter, payers)
            effects += self._tell(group, vouch.stream, held, selected)
        return effects + self._await_coverage()

    def _select(self, opened: OpenedRun, filter_: Filter, payers: tuple[NodeId, ...]) -> Selected:
        selected = opened.select(filter_)
        self.looked_at += selected.rows_looked_at
        self.sent += len(selected.places)
        work_us = len(selected.votes) // DIGEST_SIZE + filter_.work_us(selected.rows_looked_at)
        self.known.spend(payers, work_us)
        return selected

    def _tell(
        self, group: FilterGroup, stream: Stream, held: StoredRun, selected: Selected
    ) -> list[Effect]:
        count = len(held.digests) // DIGEST_SIZE
        stop = held.first + count
        effects: list[Effect] = []
        quiet = group.quiet.get(stream)
        if quiet is not None and (quiet.stop != held.first or stop - quiet.first > MAX_RUN):
            effects += group.send(_coverage(group.filter, stream, quiet), None)
            quiet = None
        first = held.first if quiet is None else quiet.first
        if not selected.places and stop - first < COVERED:
            group.quiet[stream] = Span(first, stop)
            return effects
        group.quiet.pop(stream, None)
        return effects + group.send(_matches(group.filter, stream, first, held, selected), selected)

    def _await_coverage(self) -> list[Effect]:
        if self._due or not any(
            group.quiet for groups in self._groups.values() for group in groups.values()
        ):
            return []
        self._due = True
        return [SetTimer(CoverageDue(), COVER_MS)]

    def cover(self, sayable: Callable[[Stream], int]) -> list[Effect]:
        """Tell everybody where nothing matched, as far as that may be said."""
        self._due = False
        effects: list[Effect] = []
        for groups in self._groups.values():
            for group in groups.values():
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
        filter_: Filter,
        stream: Stream,
        held: StoredRun,
        *,
        bodies: bool,
    ) -> Send:
        """A vote for what one subscriber asked for once more."""
        selected = self._select(_opened(served, filter_, held), filter_, (reader,))
        told = _matches(filter_, stream, held.first, held, selected)
        contents = tuple([selected.body(place) for place in selected.places]) if bodies else ()
        return Send((reader,), told, contents)


def _opened(served: ServedStream, filter_: Filter, held: StoredRun) -> OpenedRun:
    # Not at the top: brokers without predicates start without Arrow.
    from quorumcast.matching.selection import OpenedRun

    labelled = served.entry.policy.total
    return OpenedRun(filter_.schema, held.digests, held.bodies, labelled=labelled)


def _coverage(filter_: Filter, stream: Stream, quiet: Span) -> Matches:
    return Matches(stream, quiet.first, quiet.stop - quiet.first, filter_.id)


def _matches(
    filter_: Filter, stream: Stream, first: int, held: StoredRun, selected: Selected
) -> Matches:
    """The vote for a run, and for numbers right before it at which nothing matches."""
    before = held.first - first
    count = before + len(held.digests) // DIGEST_SIZE
    places = tuple([before + place for place in selected.places])
    votes = selected.votes
    values = b"".join([votes[p * DIGEST_SIZE : (p + 1) * DIGEST_SIZE] for p in selected.places])
    return Matches(stream, first, count, filter_.id, places, values)
