"""Which publications promises are about."""

from __future__ import annotations

from quorumcast.core.ids import Stream
from quorumcast.sim.cell.judges.facts import CellFacts, may_publish
from quorumcast.sim.cell.judges.readers import Reader

#: Publications of a restless publisher may be under way for so long.
UNDER_WAY_MS = 2000


def demanded(facts: CellFacts, stream: Stream) -> int:
    """The last publication of a stream that promises are about."""
    published = facts.published.get(stream, ())
    if stream.publisher != facts.restless:
        return len(published)
    return sum(when <= facts.clock() - UNDER_WAY_MS for _, when in published)


def first_due(facts: CellFacts, reader: Reader, stream: Stream) -> int | None:
    """The first number of a stream that this reader must accept if any reader does.

    A lying publisher's numbers may have been accepted before its application submitted them.
    """
    first = reader.first(stream)
    if reader.standing_at is None:
        return first
    for number, (_, when) in enumerate(facts.published.get(stream, ()), 1):
        if when > reader.standing_at and number > reader.before.get(stream, 0):
            return number if first is None else min(first, number)
    return first


def correct_streams(facts: CellFacts) -> list[tuple[Stream, int]]:
    """Streams of correct publishers, each with the last number that is due to subscribers.

    A crashed publisher no longer retransmits. Of its stream the acknowledged part is due, as far as
    brokers forward it without the publisher (`CellFacts.kept`). Nothing is due if too many brokers
    restarted since, because then no broker may know of the stream.
    """
    found: list[tuple[Stream, int]] = []
    for stream in facts.published:
        if not facts.adversary.is_correct(stream.publisher):
            continue
        publisher = stream.publisher
        if not may_publish(facts.manifest_of(publisher), publisher, stream.channel):
            continue
        if stream not in facts.ended:
            found.append((stream, demanded(facts, stream)))
        elif facts.lost_at < 0 and not facts.gaps_allowed:
            found.append((stream, min(facts.acknowledged.get(stream, 0), facts.kept(stream))))
    return found
