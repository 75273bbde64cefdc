"""Predicates of subscribers: what a channel can be asked for, and what brokers answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from quorumcast.broadcast.messages import Matches
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, split_digests
from quorumcast.core.machine import Bodies
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    from quorumcast.matching.filter import Filter

#: Characters of predicates that are read at once, which takes some milliseconds.
READ_AT_ONCE = 2048


def filter_of(entry: ChannelEntry, where: tuple[str, ...]) -> Filter | None:
    """The filter of these predicates on a channel; None for everything. Raises `UsageError`.

    A channel may carry on only some rows of another cell's channel. Then its subscribers ask for
    rows in any case, of those that there are.
    """
    if not where and not entry.carried:
        return None
    reading = FilterReading(entry, where)
    while not reading.read_on():
        pass
    return reading.filter


class FilterReading:
    """Reads what predicates ask of a channel, a part at a time. Raises `UsageError`."""

    def __init__(self, entry: ChannelEntry, where: tuple[str, ...]) -> None:
        self.filter: Filter | None = None
        self._steps = _steps(entry, where)

    def read_on(self, characters: int = READ_AT_ONCE) -> bool:
        """Read about so many characters; whether that was all."""
        while characters > 0:
            try:
                characters -= next(self._steps)
            except StopIteration as end:
                self.filter = end.value
                return True
        return False


def _steps(entry: ChannelEntry, where: tuple[str, ...]) -> Generator[int, None, Filter]:
    """Read one predicate after another; yields how long the next one is."""
    if entry.policy.chained:
        raise UsageError(
            f"channel {entry.name!r} has the policy {entry.policy.name!r}, and on a chain brokers "
            "vote for whole publications only: leave out the predicate, and filter what comes"
        )
    if not entry.schema:
        raise UsageError(
            f"channel {entry.name!r} carries bytes, which have no columns to compare: leave out "
            "the predicate, or make a channel with a schema"
        )
    # Not at the top: nodes without predicates start without Arrow.
    from quorumcast.matching.filter import filter_steps

    schema = entry.arrow_schema()
    if not entry.carried:
        return (yield from filter_steps(where, schema, "the predicate"))
    if where:
        yield from filter_steps(where, schema, "the predicate")
    within = tuple([f"({entry.carried}) AND ({text})" for text in where]) or (entry.carried,)
    return (yield from filter_steps(within, schema, f"what channel {entry.name!r} carries on"))


def check_carried(entry: ChannelEntry, above: ChannelEntry) -> None:
    """Refuse a relayed channel that is to carry on rows that its parent does not have."""
    if filter_of(entry, ()) is None and not above.carried:
        return
    filter_of(above, (entry.carried,) if entry.carried else ())
    # Not at the top: nodes without predicates start without Arrow.
    from quorumcast.matching.covering import covers
    from quorumcast.matching.predicate import parse_predicate

    if above.carried:
        schema, who = above.arrow_schema(), f"what channel {entry.name!r} carries on"
        there = parse_predicate(above.carried, schema, who)
        if not covers(there, parse_predicate(entry.carried or "TRUE", schema, who)):
            raise UsageError(
                f"channel {entry.name!r} is to carry on rows where {entry.carried or 'TRUE'}, and "
                f"{above.name!r} of its parent has only those where {above.carried}: ask for a "
                "part of them, as in that predicate AND another"
            )


def takes_predicates(entry: ChannelEntry) -> bool:
    """Whether subscribers of a channel may ask for some rows."""
    return bool(entry.schema) and not entry.policy.chained


def load_matching() -> None:
    """Load what evaluates predicates, and Arrow with it.

    That takes half a second, for which the first predicate would otherwise stop a broker.
    """
    import quorumcast.matching.filter
    import quorumcast.matching.indexing.filter_set
    import quorumcast.matching.selection  # noqa: F401


def results_of(said: Matches, bodies: Bodies) -> tuple[bytes, Bodies] | None:
    """A vote for each number of a run, and the bodies if they came; None if it makes no sense."""
    places, values = said.places, split_digests(said.values)
    if len(said.values) != len(places) * DIGEST_SIZE or (bodies and len(bodies) != len(places)):
        return None
    if not places:
        return NOTHING * said.count, ()
    votes = [NOTHING] * said.count
    contents = [b""] * said.count
    before = -1
    for i, place in enumerate(places):
        if not before < place < said.count or values[i] == NOTHING:
            return None
        before, votes[place] = place, values[i]
        if bodies:
            contents[place] = bodies[i]
    return b"".join(votes), tuple(contents) if bodies else ()
