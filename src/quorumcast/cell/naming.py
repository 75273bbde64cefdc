"""The choice of streams where there are more than a message can name.

One identity may have any number of lives, at any of its seats. If the list were cut off, its lives
would hide the streams of all others. So each identity names its newest life, then each its second
newest, and so on until the list is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, zip_longest
from typing import Protocol, TypeVar

from quorumcast.core.ids import NodeId, Stream, holder
from quorumcast.core.limits import MAX_STREAMS_NAMED


class Named(Protocol):
    """A value about one stream."""

    @property
    def stream(self) -> Stream: ...


N = TypeVar("N", bound=Named)


def name_in_turn(found: Sequence[N]) -> tuple[N, ...]:
    """As many of these as a message can name, identities in turn; their order is kept."""
    if len(found) <= MAX_STREAMS_NAMED:
        return tuple(found)
    by_identity: dict[NodeId, list[int]] = {}
    for place, named in enumerate(found):
        by_identity.setdefault(holder(named.stream.publisher), []).append(place)
    for places in by_identity.values():
        places.sort(key=lambda place: -found[place].stream.life)
    rounds = zip_longest(*by_identity.values())
    in_turn = (place for turn in rounds for place in turn if place is not None)
    return tuple([found[place] for place in sorted(islice(in_turn, MAX_STREAMS_NAMED))])
