"""The uplink: a broker of a child cell as a subscriber of its parent cell.

It wraps a `Subscriber` of the parent. What that accepts becomes `Relayed` for the broker's own
machine, and what the parent no longer holds becomes `RelayedGap`; everything else that a subscriber
says goes to the driver as it is. Uplink and broker are two machines of one process. Each has links
and timers of its own, because the two cells have different members, epochs and keys. The driver of
each hands every `RelayEvent` that comes out as an effect to the other as an event.

    uplink ──Attach──▶ broker       the parent can be reached
    uplink ◀──Follow── broker       go on from these numbers
    uplink ──ParentEnds──▶ broker   joined: the parent's streams end before these numbers
    uplink ──Relayed─▶ broker       accepted by the parent's thresholds, in order, none twice
    uplink ──RelayedGap──▶ broker   lost: the parent no longer holds it

A channel may carry on only some rows (`ChannelOrigin.where`). Then the uplink asks the parent for
those, and hands on results: at each number nothing, a cut or the whole publication. All brokers of
the child ask for the same, so they hold and vouch for the same.

A channel may not fit an epoch of the parent: it is gone, or has another kind of policy, other
columns or fewer rows. The uplink leaves it and says so (`Refused`). Once an epoch fits again, it
asks where to go on (`Attach`).

Of a total order that is new to the broker it reads no more than the broker retains: a durable order
may have any number of positions. To learn of the end it joins twice, the first time only to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from quorumcast.broadcast.application import Deliver, DeliverGap, Join, Leave, Passed, Refused
from quorumcast.broadcast.messages import Cursor
from quorumcast.broadcast.relayed import Attach, Follow, ParentEnds, Relayed, RelayedGap
from quorumcast.cell.filters import check_carried
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, Channel, Millis, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import Connected, Effect, Event
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import CellKey, ChannelEntry, Manifest
from quorumcast.manifest.origins import check_origin

#: Contents of one run, unless a single publication is larger.
RUN_BYTES = 1024 * 1024


class Uplink:
    """The machine of one broker's subscriptions to one parent cell."""

    __slots__ = (
        "_attached",
        "_child",
        "_entries",
        "_here",
        "_joining",
        "_manifest",
        "_misfits",
        "_probed",
        "_subscriber",
        "_there",
    )

    def __init__(self, child: Manifest, parent: Manifest, keyring: Keyring) -> None:
        # `keyring` is that of the broker's identity in the parent cell, where it is a client. Its
        # name may be another there.
        self._child = child
        self._manifest = parent
        self._subscriber = Subscriber(parent, keyring)
        #: Whether the parent was reached, and the broker asked where to go on.
        self._attached = False
        #: Channels of the parent that were joined to learn where their order ends.
        self._probed: dict[Channel, None] = {}
        #: Channels of the parent that were joined, of which the broker was not told the ends yet.
        self._joining: dict[Channel, None] = {}
        entries = child.parents.get(self.parent, ())
        #: Channels of the child that come from the parent, their names there, and the reverse.
        self._entries = {entry.name: entry for entry in entries}
        self._there = {entry.name: entry.origin.channel for entry in entries if entry.origin}
        self._here = {there: here for here, there in self._there.items()}
        #: Channels of the child that do not fit the parent's epoch and are not joined, and why.
        self._misfits = self._find_misfits()

    def _find_misfits(self) -> dict[Channel, str]:
        misfits: dict[Channel, str] = {}
        for name, entry in self._entries.items():
            try:
                check_origin(self._child, entry, self._manifest)
                above = self._manifest.channel(self._there[name])
                if above is not None:
                    check_carried(entry, above)
            except UsageError as error:
                misfits[name] = str(error)
        return misfits

    @property
    def parent(self) -> CellKey:
        """The cell that this uplink leads to."""
        return self._manifest.key

    def joined(self, channel: Channel) -> bool:
        """Whether the parent's brokers have said where a channel of the child goes on."""
        there = self._there.get(channel)
        return there is not None and there not in self._probed and self._subscriber.joined(there)

    def adopt(self, manifest: Manifest, keyring: Keyring) -> list[Effect]:
        """Go on in a new epoch of the parent, with the channels that fit it."""
        self._manifest = manifest
        before, self._misfits = self._misfits, self._find_misfits()
        effects: list[Effect] = []
        for name, reason in self._misfits.items():
            effects += [*self._leave(name), Refused(name, reason)]
        effects += self._handed_on(self._subscriber.adopt(manifest, keyring))
        return effects + [Attach(name) for name in before if name not in self._misfits]

    def _leave(self, name: Channel) -> list[Effect]:
        there = self._there[name]
        self._probed.pop(there, None)
        self._joining.pop(there, None)
        return self._subscriber.handle(Leave(there), Millis(0))  # at whatever time

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        if isinstance(event, Follow):
            return self._on_follow(event, now)
        effects = self._handed_on(self._subscriber.handle(event, now))
        if isinstance(event, Connected) and not self._attached:
            self._attached = True
            effects += [Refused(name, reason) for name, reason in self._misfits.items()]
            effects += [Attach(name) for name in self._there if name not in self._misfits]
        for there in [there for there in self._probed if self._subscriber.joined(there)]:
            effects += self._on_end(there, self._subscriber.end(there), now)
        for there in [there for there in self._joining if self._subscriber.joined(there)]:
            effects += self._on_joined(there)
        return effects

    def sizes(self) -> dict[str, int]:
        return self._subscriber.sizes()

    def _on_follow(self, event: Follow, now: Millis) -> list[Effect]:
        entry = self._entries.get(event.channel)
        if entry is None or entry.name in self._misfits:
            return []
        there = self._there[entry.name]
        cursors = tuple(Cursor(replace(c.stream, channel=there), c.next) for c in event.cursors)
        if entry.policy.total and not cursors:
            self._probed[there] = None
            return self._join(Join(there), now)
        self._probed.pop(there, None)
        self._joining[there] = None
        return self._join(Join(there, start=0, cursors=cursors, where=_asked(entry)), now)

    def _on_end(self, there: Channel, end: int, now: Millis) -> list[Effect]:
        """Read what the broker retains of an order that ends there now."""
        del self._probed[there]
        self._joining[there] = None
        entry = self._entries[self._here[there]]
        start = end - entry.policy.limits.retained_publications
        return self._join(Join(there, start=max(start, 0), where=_asked(entry)), now)

    def _on_joined(self, there: Channel) -> list[Effect]:
        """Tell the broker where the parent's streams end, and what it has dropped of new ones.

        A life of which nothing is left may have readers below, who are told what they missed of it.
        """
        del self._joining[there]
        dropped = self._handed_on(self._subscriber.dropped(there))
        ends = self._subscriber.ends(there).items()
        here = tuple(Cursor(self._stream_here(stream), end) for stream, end in ends)
        return [*dropped, ParentEnds(self._here[there], here)]

    def _join(self, join: Join, now: Millis) -> list[Effect]:
        effects = self._subscriber.handle(Leave(join.channel), now)
        return self._handed_on([*effects, *self._subscriber.handle(join, now)])

    # ------------------------------------------------------- what was accepted

    def _handed_on(self, effects: Iterable[Effect]) -> list[Effect]:
        """Effects of the subscriber, where what it delivers is for the broker."""
        out: list[Effect] = []
        run: RelayedRun | None = None
        for effect in effects:
            if isinstance(effect, Deliver | DeliverGap | Passed) and (
                effect.stream.channel in self._probed
            ):
                continue
            for result in _results(effect):
                if run is None or not run.takes(result):
                    out += [] if run is None else [run.relayed()]
                    run = RelayedRun(self._stream_here(result.stream), result)
                run.add(result)
            match effect:
                case Deliver() | Passed():
                    pass
                case DeliverGap(first=first, upto=upto):
                    out += [] if run is None else [run.relayed()]
                    run = None
                    out.append(RelayedGap(self._stream_here(effect.stream), first, upto))
                case Refused(channel=there):
                    out.append(replace(effect, channel=self._here.get(there, there)))
                case _:
                    out.append(effect)
        return out if run is None else [*out, run.relayed()]

    def _stream_here(self, stream: Stream) -> Stream:
        """The stream of the child that carries on one of the parent."""
        return replace(stream, channel=self._here[stream.channel])


class RelayedResult(NamedTuple):
    """The value and the contents for which the parent's brokers vouch at one number."""

    stream: Stream
    number: int
    value: bytes
    body: bytes


class RelayedRun:
    """Results of consecutive numbers, which become one `Relayed`."""

    __slots__ = ("_bodies", "_first", "_here", "_size", "_stream", "_values")

    def __init__(self, here: Stream, first: RelayedResult) -> None:
        self._here = here
        self._stream, self._first = first.stream, first.number
        self._values: list[bytes] = []
        self._bodies: list[bytes] = []
        #: Bytes of values and bodies: at most RUN_BYTES, unless there is one result.
        self._size = 0

    def takes(self, result: RelayedResult) -> bool:
        """Whether a result can be the next one of this run."""
        count = len(self._values)
        due = result.stream == self._stream and result.number == self._first + count
        return due and count < MAX_RUN and self._size + len(result.body) <= RUN_BYTES

    def add(self, result: RelayedResult) -> None:
        """Take the next result."""
        self._values.append(result.value)
        self._bodies.append(result.body)
        self._size += DIGEST_SIZE + len(result.body)

    def relayed(self) -> Relayed:
        """The event for the broker."""
        return Relayed(self._here, self._first, b"".join(self._values), tuple(self._bodies))


def _asked(entry: ChannelEntry) -> tuple[str, ...]:
    """The predicates that a channel asks its parent for."""
    return (entry.carried,) if entry.carried else ()


def _results(effect: Effect) -> Iterator[RelayedResult]:
    match effect:
        case Deliver():
            stream, number = effect.place
            yield RelayedResult(stream, number, effect.cut or effect.digest, effect.provable[2])
        case Passed(stream=stream, first=first, upto=upto):
            for number in range(first, upto + 1):
                yield RelayedResult(stream, number, NOTHING, b"")
        case _:
            pass
