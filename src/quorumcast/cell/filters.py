"""Predicates of subscribers: what a channel can be asked for, and what brokers answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumcast.broadcast.messages import Matches
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, split_digests
from quorumcast.core.machine import Bodies
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    from quorumcast.matching.filter import Filter


def filter_of(entry: ChannelEntry, where: tuple[str, ...]) -> Filter | None:
    """What these predicates ask of a channel; None for everything. Raises `UsageError`."""
    if not where:
        return None
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
    # Not at the top: who has no predicates starts without Arrow.
    from quorumcast.matching.filter import make_filter

    return make_filter(where, entry.arrow_schema(), "the predicate")


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
