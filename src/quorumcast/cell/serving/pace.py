"""Publishers that wait for slow subscribers, where a channel asks for it (`wait_ms`).

Guarantee: a subscriber that has caught up once, and from then on is never so far behind that
publishers wait for it longer than its *allowance*, gets every publication that its publisher got
acknowledged. Its allowance is `wait_ms`, of which it regains a tenth of the time. A subscriber that
has used it up is not waited for until it has caught up again, and gets a gap; with every such lapse
it regains its allowance half as fast. So a lying subscriber, or one that does not read, holds a
publisher up for `wait_ms`, and ever more rarely from then on.

How: subscribers report the numbers that they have reached (`Reached`, and the cursors of
`Subscribe`). Retention counts all lives of a publisher together, so this does as well. A broker
gives credit only for what it can retain beside everything that the slowest subscriber has not
accepted. Where contents are large it refuses runs beyond that. Nobody waits for a subscriber that

- has not caught up yet: one that reads the past does not stop the present,
- has unsubscribed, or was disconnected `wait_ms` ago,
- discards what its queue has no room for: its machine accepts everything, so it never falls behind.

Each broker counts for itself, by its own clock. A publisher goes on when n-f brokers give credit,
so f brokers that withhold it hold up no more than f silent ones, and f that give it early do not
bring the publisher further than the others.

Source: Freeman §6.2, §6.4.1 (`isBusy`, `WAIT`). There one subscriber can stop everybody (ADR 0030).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quorumcast.broadcast.ledger import Ledger
from quorumcast.cell.serving.served_stream import Place, ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import Channel, Millis, NodeId, holder
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, SetTimer, Timer

#: The time between two looks at subscribers that publishers wait for.
PACE_MS = 50
#: A client regains a REGAIN-th of the time, and half as much after every lapse.
REGAIN = 10
MAX_LAPSES = 16
#: All streams of one publisher on one channel.
Lives = Sequence[ServedStream]


class PaceTick(Timer, frozen=True, tag=True):
    """Charge the subscribers that publishers wait for."""


class Allowance:
    """How long publishers have waited for one client on one channel; its seats share it."""

    __slots__ = ("_at", "lapsed", "lapses", "spent")

    def __init__(self, now: Millis) -> None:
        #: Milliseconds that were used up and are not regained.
        self.spent = 0
        #: Up to when the client has regained some.
        self._at = now
        #: How often it was used up; and whether the client has not caught up since.
        self.lapses = 0
        self.lapsed = False

    def regain(self, now: Millis) -> None:
        """Regain what is due."""
        rate = REGAIN << self.lapses
        gained = (now - self._at) // rate
        self.spent = max(0, self.spent - gained)
        self._at = Millis(self._at + gained * rate)

    def spend(self, span: int, now: Millis) -> None:
        """Publishers have waited so long; nothing is regained in that time."""
        self._at = Millis(min(self._at + span, now))
        self.regain(now)
        self.spent += span

    def lapse(self) -> None:
        """It is used up."""
        self.lapsed = True
        self.lapses = min(self.lapses + 1, MAX_LAPSES)


class Pace:
    """The subscribers that publishers wait for at one broker."""

    __slots__ = (
        "_allowances",
        "_gone",
        "_held_up",
        "_readers",
        "_served",
        "_ticked_at",
        "_ticking",
        "_waited",
    )

    def __init__(
        self,
        served: ServedStreams,
        readers: Callable[[Channel], Sequence[NodeId]],
    ) -> None:
        self._served = served
        self._readers = readers
        #: Only entitled subscribers, by channel and client.
        self._allowances: dict[tuple[Channel, NodeId], Allowance] = {}
        #: Subscribers that were disconnected, and when; only those that are waited for.
        self._gone: dict[NodeId, Millis] = {}
        #: Clients for which publishers have waited since the last look, by channel, with `wait_ms`.
        self._held_up: dict[tuple[Channel, NodeId], int] = {}
        #: Whether there was one at the last look.
        self._waited = False
        #: Whether PaceTick is set, and since when.
        self._ticking = False
        self._ticked_at = Millis(0)

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            "followed": sum(len(served.reached) for served in self._served.all()),
            "allowances": len(self._allowances),
            "gone": len(self._gone),
            "held_up": len(self._held_up),
        }

    def waited(self) -> dict[Channel, dict[NodeId, int]]:
        """Milliseconds that each client has used up of its allowance, for people to read."""
        found: dict[Channel, dict[NodeId, int]] = {}
        for (channel, client), allowance in self._allowances.items():
            found.setdefault(channel, {})[client] = allowance.spent
        return found

    def begin_epoch(self, clients: Iterable[NodeId]) -> None:
        """Forget the clients that are not in this epoch."""
        known = frozenset(clients)
        for key in [key for key in self._allowances if key[1] not in known]:
            del self._allowances[key]

    # ---------------------------------------------------------------- subscribers

    def opened(self, served: ServedStream, now: Millis) -> None:
        """A stream has begun: subscribers that are there follow it from here."""
        wait_ms = served.entry.policy.limits.wait_ms
        if not wait_ms:
            return
        channel, ledger = served.stream.channel, served.carrier.ledger
        for reader in self._readers(channel):
            allowance = self._allowances.get((channel, holder(reader)))
            if allowance is None or not (allowance.lapsed or _is_poor(allowance, wait_ms, now)):
                served.reached.setdefault(reader, Place(ledger.next, ledger.end_bytes))

    def follow(
        self, served: ServedStream, reader: NodeId, number: int, now: Millis
    ) -> list[ServedStream]:
        """A subscriber has accepted everything before a number; returns whom this lets go on."""
        limits = served.entry.policy.limits
        if not limits.wait_ms:
            return []
        ledger = served.carrier.ledger
        number = min(number, ledger.next)
        place = served.reached.get(reader)
        self._gone.pop(reader, None)
        if place is not None:
            if number <= place.number:
                return []
            lives = self._lives_of(served)
            if _holds_up(lives, reader):
                # Otherwise one that reports right before each look would cost time for ever.
                self._held_up[served.stream.channel, holder(reader)] = limits.wait_ms
            _move(place, ledger, number)
            served.refused_for.pop(reader, None)
            return [life for life in lives if life.limit < MAX_NUMBER]
        allowance = self._allowances.get((served.stream.channel, holder(reader)))
        if ledger.next - number > limits.window:
            return []
        if allowance is not None:
            if _is_poor(allowance, limits.wait_ms, now):
                return []
            allowance.lapsed = False
        before = ledger.end_bytes - ledger.size(number, ledger.next)
        served.reached[reader] = Place(number, before)
        return []

    def leave(self, reader: NodeId, channel: Channel) -> list[ServedStream]:
        """Wait no longer for a subscriber; returns whom this lets go on."""
        found: list[ServedStream] = []
        for (name, _), lives in self._served.by_owner().items():
            if name == channel and reader in _followers(lives.values()):
                _drop(lives.values(), reader)
                found += [served for served in lives.values() if served.limit < MAX_NUMBER]
        return found

    def disconnected(self, reader: NodeId, now: Millis) -> list[Effect]:
        """A subscriber cannot be reached; it may come back in time."""
        if not any(reader in served.reached for served in self._served.all()):
            return []
        self._gone[reader] = now
        return self._watch(now)

    # ---------------------------------------------------------------- publishers

    def restrain(self, served: ServedStream, now: Millis) -> list[Effect]:
        """Set how far the publisher may go for the sake of its subscribers."""
        limits = served.entry.policy.limits
        if not limits.wait_ms:
            served.limit = MAX_NUMBER
            return []
        lives = self._lives_of(served)
        room = min((_room(lives, reader) for reader in _followers(lives)), default=limits.window)
        if room >= limits.window:
            served.limit = MAX_NUMBER
            return []
        served.limit = max(served.carrier.upto, served.carrier.ledger.next - 1 + max(0, room))
        return self._watch(now)

    def refuse(
        self, served: ServedStream, first: int, bodies: Bodies, now: Millis
    ) -> list[Effect] | None:
        """The refusal of a run that would displace contents which some subscriber has not accepted.

        Credit counts publications; this counts their bytes.
        """
        limits, ledger = served.entry.policy.limits, served.carrier.ledger
        if not limits.wait_ms or first + len(bodies) <= ledger.next:
            return None
        quota, size = ledger.quota, sum(map(len, bodies))
        if quota.held_bytes + quota.unsettled_bytes + size <= limits.retained_bytes:
            return None
        lives = self._lives_of(served)
        for reader in _followers(lives):
            unread = _unread_bytes(lives, reader)
            if unread and unread + size > limits.retained_bytes:
                served.refused_for[reader] = None
        if not served.refused_for:
            return None
        return [Drop(DropReason.OVER_LIMIT, served.stream.publisher), *self._watch(now)]

    # ---------------------------------------------------------------------- time

    def _watch(self, now: Millis) -> list[Effect]:
        if self._ticking:
            return []
        self._ticking, self._ticked_at = True, now
        return [SetTimer(PaceTick(), PACE_MS)]

    def tick(self, now: Millis) -> list[ServedStream]:
        """Charge those that publishers wait for; returns the streams that may go on."""
        # A broker that stood still itself must not charge anybody for that.
        span = min(now - self._ticked_at, 2 * PACE_MS)
        self._ticking = False
        held_up, self._held_up = self._held_up, {}
        free: list[ServedStream] = []
        for (channel, _), streams in self._served.by_owner().items():
            lives = list(streams.values())
            wait_ms = lives[0].entry.policy.limits.wait_ms
            for reader in _followers(lives):
                if not wait_ms or now - self._gone.get(reader, now) >= wait_ms:
                    _drop(lives, reader)
                elif _holds_up(lives, reader):
                    held_up[channel, holder(reader)] = wait_ms
            free += [served for served in lives if served.limit < MAX_NUMBER]
        for (channel, client), wait_ms in held_up.items():
            self._charge(channel, client, wait_ms, span, now)
        self._waited = bool(held_up)
        followed = _followers(self._served.all())
        self._gone = {reader: at for reader, at in self._gone.items() if reader in followed}
        return free

    def go_on(self, now: Millis) -> list[Effect]:
        """Set the timer again while there is somebody to look at."""
        return self._watch(now) if self._gone or self._waited else []

    def _charge(
        self, channel: Channel, client: NodeId, wait_ms: int, span: int, now: Millis
    ) -> None:
        allowance = self._allowances.setdefault((channel, client), Allowance(now))
        allowance.spend(span, now)
        if allowance.spent < wait_ms:
            return
        allowance.lapse()
        lives = [served for served in self._served.all() if served.stream.channel == channel]
        for reader in [one for one in _followers(lives) if holder(one) == client]:
            _drop(lives, reader)

    def _lives_of(self, served: ServedStream) -> Lives:
        stream = served.stream
        return list(self._served.of((stream.channel, stream.publisher)).values())


def _is_poor(allowance: Allowance, wait_ms: int, now: Millis) -> bool:
    """Whether a client has used up most of its allowance."""
    allowance.regain(now)
    return 2 * allowance.spent > wait_ms


def _followers(lives: Iterable[ServedStream]) -> dict[NodeId, None]:
    """The subscribers that are waited for in any of these streams."""
    return {reader: None for served in lives for reader in served.reached}


def _drop(lives: Iterable[ServedStream], reader: NodeId) -> None:
    for served in lives:
        served.reached.pop(reader, None)
        served.refused_for.pop(reader, None)


def _move(place: Place, ledger: Ledger, number: int) -> None:
    """Note that a subscriber has accepted everything before a number."""
    if number == ledger.next:
        place.before = ledger.end_bytes
    else:
        place.before = max(place.before, ledger.gone_bytes) + ledger.size(place.number, number)
    place.number = number


def _unread(lives: Lives, reader: NodeId) -> int:
    """Publications that a subscriber has not accepted."""
    ledgers = [(served.carrier.ledger.next, served.reached.get(reader)) for served in lives]
    return sum(end - place.number for end, place in ledgers if place is not None)


def _unread_bytes(lives: Lives, reader: NodeId) -> int:
    """Bytes of what is held of these.

    A difference of two totals: to add up sizes for each subscriber with every run would let a
    client with many seats hold up the broker.
    """
    ledgers = [(served.carrier.ledger, served.reached.get(reader)) for served in lives]
    return sum(
        ledger.end_bytes - max(place.before, ledger.gone_bytes)
        for ledger, place in ledgers
        if place is not None
    )


def _room(lives: Lives, reader: NodeId) -> int:
    """Publications that the publisher may send beyond what is held, for one subscriber's sake.

    Two streams of a publisher may both get as much, so one window stays free.
    """
    served = lives[0]
    limits, quota = served.entry.policy.limits, served.carrier.ledger.quota
    unread = _unread(lives, reader)
    room = limits.retained_publications - limits.window - unread
    if unread and 2 * (quota.held_bytes + quota.unsettled_bytes) > limits.retained_bytes:
        # By the mean size of what is not accepted; `refuse` is exact.
        size = _unread_bytes(lives, reader)
        room = min(room, (limits.retained_bytes * 3 // 4 - size) // max(1, size // unread))
    return room


def _holds_up(lives: Lives, reader: NodeId) -> bool:
    """Whether the publisher of these streams waits for a subscriber."""
    served = lives[0]
    refused = any(reader in life.refused_for for life in lives)
    return refused or _room(lives, reader) < served.entry.policy.limits.window
