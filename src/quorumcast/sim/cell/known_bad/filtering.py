"""Known-bad variants of content subscriptions: rows are left out, added, or believed too easily.

Subscriber 1 wants some rows of a busy channel, and subscriber 2 others, or everything.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from quorumcast.broadcast import filtered
from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.filtered import FilteredAcceptor
from quorumcast.broadcast.messages import Matches
from quorumcast.cell.serving.filtered_readers import FilteredReaders, Span
from quorumcast.cell.subscribing import archive
from quorumcast.cell.subscribing.fetching import first_source
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core import cuts
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, Millis
from quorumcast.core.machine import Effect, Receive, Send
from quorumcast.faults.cell.base import Tampering
from quorumcast.manifest.policy import Policy
from quorumcast.matching import cut
from quorumcast.matching import filter as filters
from quorumcast.matching.columns import BatchView, Bools
from quorumcast.matching.indexing import index
from quorumcast.sim.cell.cells import broker_names
from quorumcast.sim.cell.known_bad.plans import (
    B2,
    B3,
    PUB1,
    SUB1,
    SUB2,
    Rewritten,
    SeededPlan,
    joins,
    mount,
    seeded_plan,
)
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.rows import COLUMNS
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.known_bad import Patch, Variant
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

#: The broker that sends subscriber 1 the contents.
SOURCE = first_source(SUB1, broker_names(4))


def rows_plan(
    policy: str,
    *corruptions: Corruption,
    wanted: Sequence[tuple[str, ...]] = (("size > 0",), ("price <> 1.5",)),
    acts: Sequence[Act] = (),
    publications: int = 40,
    **others: Any,
) -> SeededPlan:
    """A busy publisher of rows; the subscribers want the first and the second of `wanted`."""
    rules = Policy.named(policy, alpha=4, limits=small_limits())
    asks = [Act(0, "select", SUB1, ORDERS, 1), Act(0, "select", SUB2, ORDERS, 2)]
    work = [Act(60 + 6 * n, "submit", PUB1, ORDERS, 1) for n in range(publications)]
    fields = {"calm_at_ms": 350, "patience_ms": 2500, **others}
    plan = seeded_plan("rows", rules, [*asks, *joins(ORDERS), *work, *acts], corruptions, **fields)

    def planned(seed: int) -> CellPlan:
        bare = plan(seed)
        channels = tuple(replace(entry, schema=COLUMNS) for entry in bare.channels)
        return replace(bare, channels=channels, predicates=tuple(wanted))

    return planned


# ------------------------------------------------------------------ attacks


def omit(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Vote that nothing matches, whatever does."""
    message = send.message
    if not isinstance(message, Matches):
        return [send]
    return [Send(send.to, replace(message, places=(), values=b""))]


def _with_cuts(send: Send, alter: Any) -> Rewritten:
    if not isinstance(send.message, Matches):
        return [send]
    bodies = tuple(alter(body) if cuts.looks_cut(body) else body for body in send.bodies)
    return [replace(send, bodies=bodies)]


def move_rows(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Send the rows of a cut under other numbers."""

    def moved(body: bytes) -> bytes:
        first, end = _numbers(body)
        numbers = np.frombuffer(body[first:end], "<u4") + 1
        return body[:first] + numbers.astype("<u4").tobytes() + body[end:]

    return _with_cuts(send, moved)


def rename_publication(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Send the rows of a cut as rows of another publication."""
    return _with_cuts(send, lambda body: body[:8] + bytes(DIGEST_SIZE - 1) + b"?" + body[40:])


# -------------------------------------------------------------- the mistakes


def _numbers(body: bytes) -> tuple[int, int]:
    """Where the numbers of rows are in a cut."""
    count, head = struct.unpack_from("<II", body, 44)
    first = 56 + head + -head % 8
    return first, first + 4 * count


def _hashed(covered: bytes) -> bytes:
    return hashlib.blake2b(covered, digest_size=DIGEST_SIZE).digest()


def _without_numbers(body: bytes) -> bytes:
    first, end = _numbers(body)
    return _hashed(body[:first] + body[end:])


def _without_publication(body: bytes) -> bytes:
    return _hashed(body[:8] + body[40:])


_deliver, _settle = Acceptor.deliver, FilteredAcceptor.settle
_make, _on_matches = FilteredAcceptor.__init__, Subscriber._on_matches


def _jump(self: Any, awaited: Any = ()) -> list[Effect]:
    """Go on with the next result that is there, as if nothing matched before it."""
    if isinstance(self, FilteredAcceptor):
        there = [span.first for span in self._ranges.all() if self._held(span) is not None]
        self.skip_to(min(there, default=self.next))
    return _deliver(self, awaited)


def _believe_one_liar(
    self: Any, stream: Any, first: Any, rule: Any, *others: Any, **more: Any
) -> None:
    """Pass numbers over at f votes."""

    def loose(tally: Any, value: Any) -> bool:
        nothing = not value[0].strip(NOTHING[:1])
        return bool(rule(tally, value)) or (nothing and tally.count(value) >= 1)

    _make(self, stream, first, loose, *others, **more)


def _count_any(self: Any, event: Receive, said: Matches) -> list[Effect]:
    """Count votes on whatever predicate as votes on the present one."""
    interest = self._interests.get(said.stream.channel)
    acceptor = None if interest is None else interest.acceptors.get(said.stream)
    if acceptor is not None and acceptor.where:
        said = replace(said, where=acceptor.where)
    return _on_matches(self, replace(event, message=said), said)


def _number_matches(self: Any, group: Any, stream: Any, held: Any, selected: Any) -> list[Effect]:
    """Give what matches numbers of its own, which each broker counts for itself."""
    if not selected.places:
        return []
    first = group.quiet.get(stream, Span(1, 1)).stop
    places = tuple(range(len(selected.places)))
    group.quiet[stream] = Span(first + len(places), first + len(places))
    values = b"".join(map(selected.vote, selected.places))
    told = Matches(stream, first, len(places), group.filter.id, places, values)
    found: list[Effect] = group.send(told, selected)
    return found


class _ViewWithNaN(BatchView):
    """Takes NaN for a value like any other."""

    __slots__ = ()

    def _find_present(self, column: int) -> Bools | None:
        array = self.array(column)
        if not array.null_count:
            return None
        return np.array([value.is_valid for value in array], np.bool_)


def _settle_by_a_word(self: Any, first: int, digests: bytes) -> list[int]:
    """Take a broker's word for what comes of a publication that a history named."""
    missed: list[int] = _settle(self, first, digests)
    for number in missed:
        span = self._ranges.get(number)
        said = [value[0] for value in span.tally.votes().values()]
        if said:
            span.decided, span.by_history = min(said), True
    return missed


# -------------------------------------------------------------- the variants

#: The modules that know how the digest of a cut is made.
DIGESTS = (cuts, cut, filtered, archive)
_ROUGH = Weather(latency_ms=1, jitter_ms=20, loss=150, reordering=100)
_FAR = Weather(latency_ms=20, jitter_ms=0)
_CHANGES = [Act(90 + 40 * n, "select", SUB1, ORDERS, 1 + n % 2) for n in range(6)]

FILTERING_VARIANTS: tuple[Variant, ...] = (
    Variant(
        "link-ignored", "a subscriber takes it that nothing matches where it has heard nothing",
        [Patch(Acceptor, "deliver", _jump)],
        rows_plan("ab", weather=_ROUGH), ("Completeness", "Validity"),
    ),
    Variant(
        "nothing-at-f", "f votes suffice for a subscriber to pass a number over",
        [Patch(FilteredAcceptor, "__init__", _believe_one_liar)],
        rows_plan("ab", mount(B2, omit)), ("Completeness",),
    ),
    Variant(
        "predicate-unbound", "votes on other predicates count",
        [Patch(Subscriber, "_on_matches", _count_any)],
        rows_plan("ab", wanted=(("TRUE",), ("FALSE",)), acts=_CHANGES, weather=_FAR),
        ("Completeness", "Relevance by row"),
    ),
    Variant(
        "cut-without-indices", "the digest of a cut does not cover the numbers of its rows",
        [Patch(owner, "digest_of_cut", _without_numbers) for owner in DIGESTS],
        rows_plan("ab", mount(SOURCE, move_rows)), ("Completeness", "Relevance by row"),
    ),
    Variant(
        "cut-without-publication", "the digest of a cut does not cover that of its publication",
        [Patch(owner, "digest_of_cut", _without_publication) for owner in DIGESTS],
        rows_plan("ab", mount(SOURCE, rename_publication)), ("Authenticity",),
    ),
    Variant(
        "counter-per-broker", "a broker numbers what matches by counting it",
        [Patch(FilteredReaders, "_tell", _number_matches),
         Patch(FilteredReaders, "_await_coverage", lambda self: [])],
        rows_plan("ab"), ("Sound results", "Completeness", "Coverage"),
    ),
    Variant(
        "index-nan", "predicates are evaluated as if NaN were a value",
        [Patch(owner, "BatchView", _ViewWithNaN) for owner in (filters, index)],
        rows_plan("ab"), ("Sound results", "Completeness", "Relevance by row"),
    ),
    Variant(
        "settled-ignored", "a broker's word stands for what a history named",
        [Patch(FilteredAcceptor, "settle", _settle_by_a_word)],
        rows_plan("ab+history", mount(B2, omit),
                  acts=[Act(62, "mute", B3, peers=(SUB1,)), Act(340, "heal")]),
        ("Completeness",),
    ),
)  # fmt: skip
