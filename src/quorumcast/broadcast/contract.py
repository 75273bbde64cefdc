"""What a broker expects of every broadcast protocol, and the checks that all of them share.

A *carrier* is the broker side of one protocol for one stream. It takes the messages of publisher
and brokers about that stream and answers with effects; `Vouch` among them says that this broker now
vouches for a run, and the broker turns it into votes for the subscribers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import eq

import msgspec

from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.messages import Contents, Open, Pull, Voucher
from quorumcast.core.cuts import is_result
from quorumcast.core.ids import (
    DIGEST_SIZE,
    Channel,
    Digest,
    Millis,
    NodeId,
    Stream,
    split_digests,
)
from quorumcast.core.limits import MAX_FRAME_BYTES
from quorumcast.core.machine import (
    Bodies,
    Drop,
    DropReason,
    Effect,
    Receive,
    Send,
    Timer,
    TimerFired,
)
from quorumcast.crypto.digest import Hasher
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View


class Vouch(Effect, frozen=True):
    """A protocol tells its broker: these publications may be vouched for."""

    stream: Stream
    first: int
    digests: bytes
    order: tuple[NodeId, ...] = ()


class RetransmitRuns(Timer, frozen=True, tag=True):
    """Some run of this stream is not delivered yet: send again what was said of it.

    The broker lets streams retransmit in turn, within a budget.
    """

    stream: Stream


class CarrierContext(msgspec.Struct, frozen=True):
    """What a carrier knows: its cell, its channel's policy, and the subscribers."""

    view: View
    policy: Policy
    #: Who subscribes to a channel at this broker right now.
    readers: Callable[[Channel], Sequence[NodeId]]


class Carrier(ABC):
    """The broker side of a broadcast protocol for one stream: all that a broker asks of it.

    Defaults suit a protocol that settles nothing among brokers, sends nothing that binds it before
    it vouches, and leaves it to others to bring back what a broker lost. One that echoes before it
    vouches overrides `echoed`, `is_done`, `waits`, `recount` and `give_up` (see `bracha`).
    """

    __slots__ = ("_policy", "_view", "ledger", "stream")

    #: The id of the log that the numbers are positions of; b"" if it is no log.
    log_id: bytes = b""

    def __init__(
        self, stream: Stream, context: CarrierContext, ledger: Ledger | None = None
    ) -> None:
        self.stream = stream
        #: What this carrier vouches for: one digest per number below ledger.next.
        self.ledger = Ledger(context.policy.limits) if ledger is None else ledger
        self._view = context.view
        self._policy = context.policy

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        """Take one event that concerns this stream; by default a request for contents."""
        match event:
            case Receive(message=Pull() as message):
                return answer_pull(self.ledger, event, message)
            case Receive():
                return dropped(event, DropReason.UNEXPECTED)
            case _:
                return []

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""

    def recount(self) -> list[Effect]:
        """Brokers may have come or gone with a new epoch: votes of those that left do not count."""
        return []

    # ---------------------------------------------------------------- progress

    @property
    def upto(self) -> int:
        """Every number up to this one has reached this broker."""
        return self.ledger.next - 1

    @property
    def settled(self) -> int:
        """Every number up to this one is known to correct brokers alike (0 if not promised)."""
        return 0

    @property
    def final(self) -> int:
        """Up to this number this broker vouches for good: it may sign."""
        return self.upto

    @property
    def final_from(self) -> int:
        """The first number of which that is true."""
        return self.ledger.base

    @property
    @abstractmethod
    def credit(self) -> int:
        """The publisher may send numbers up to this one."""

    @property
    def waits(self) -> bool:
        """Whether something is held that waits to be settled."""
        return self.ledger.unsettled > 0

    @property
    def is_under_way(self) -> bool:
        """Whether the cell may be about to settle more than this broker holds."""
        return False

    # ------------------------------------------------------------------- lanes

    @property
    def fast(self) -> Carrier:
        """The carrier of the publications themselves."""
        return self

    @property
    def histories(self) -> Carrier | None:
        """The carrier of the history lane, if there is one."""
        return None

    # ---------------------------------------------------------- what it binds to

    def echoed(self, first: int) -> tuple[bytes, Bodies] | None:
        """The run at a number that this broker echoes: its digests and its bodies."""
        return None

    def would_echo_contents(self, first: int) -> bool:
        """Whether contents at a number would be echoed although another broker sent them."""
        return False

    def is_done(self, first: int) -> bool:
        """Whether the run at a number was delivered lately, and stragglers are told so."""
        return False

    def vouchers_for(self, reader: NodeId) -> tuple[Voucher, ...]:
        """MACs of other brokers for a subscriber, over the run vouched for just now."""
        return ()

    # --------------------------------------------------- retention and recovery

    @property
    def spare(self) -> int:
        """The protocol needs nothing below this number any longer: it may expire."""
        return self.ledger.next

    def expire(self, now: Millis, retained_ms: int) -> list[Effect]:
        """Drop what is too old."""
        self.ledger.expire(now, retained_ms, self.spare)
        return []

    def give_up(self) -> None:  # noqa: B027 - most protocols have nothing to give up
        """Give up what is not settled, for good."""

    def begin_at(self, number: int, history: int = 1) -> None:  # noqa: B027
        """Begin where an earlier life retained the stream, and its histories, from."""

    @property
    def front(self) -> int:
        """The number from which on this carrier recovers from its peers."""
        return self.ledger.next

    def resume(self, number: int) -> None:  # noqa: B027
        """Go on at a number up to which enough others are: what lies before comes from them."""

    def recover(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        """Write what enough others vouch for, right before or right after what is held."""
        return False

    def recover_histories(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        """The same for histories."""
        return False


def check_run(view: View, event: Receive, digests: bytes) -> list[Digest] | DropReason:
    """The digests of a run whose bodies match them, or why it is no run."""
    bodies = event.bodies
    parts = split_digests(digests)
    if len(digests) % DIGEST_SIZE or len(parts) != len(bodies):
        return DropReason.BAD_RUN
    if sum(map(len, bodies)) > MAX_FRAME_BYTES // 2:
        # It must fit into a frame again, with whatever MACs travel with it then.
        return DropReason.OVER_LIMIT
    return parts if match(parts, bodies, view.hash) else DropReason.BAD_BODY


def match(digests: Sequence[Digest], bodies: Bodies, hash_: Hasher) -> bool:
    """Whether contents are what their digests say."""
    return len(digests) == len(bodies) and all(map(eq, map(hash_, bodies), digests))


def match_results(values: Sequence[Digest], bodies: Bodies, hash_: Hasher) -> bool:
    """The same for what predicates made of publications."""
    return len(values) == len(bodies) and all(
        is_result(body, value) or hash_(body) == value
        for body, value in zip(bodies, values, strict=True)
    )


def dropped(event: Receive, reason: DropReason) -> list[Effect]:
    """The answer to a message that is ignored."""
    return [Drop(reason, event.sender)]


def answer_pull(ledger: Ledger, event: Receive, pull: Pull) -> list[Effect]:
    """Send what is held of a range."""
    held = ledger.read(pull.first, pull.count, MAX_FRAME_BYTES // 2)
    if held is None or held.first != pull.first:
        return dropped(event, DropReason.NOT_HELD)
    answer = Contents(pull.stream, held.first, held.digests)
    return [Send((event.sender,), answer, held.bodies)]


class Forwarder(Carrier):
    """The broker side of a fast protocol, which forwards each number once, with one digest.

    What it forwards is final at once, it settles nothing among brokers (histories do), and it takes
    as much beyond what it holds as the window allows. A protocol adds how it takes runs.
    """

    __slots__ = ()

    @property
    def credit(self) -> int:
        return self.upto + self._policy.limits.window

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=Open(base=base, fresh=fresh)):
                if event.sender != self.stream.publisher:
                    return dropped(event, DropReason.WRONG_SENDER)
                self.ledger.join(base, fresh, trusted=self._policy.trusts_publishers)
                return []
            case _:
                return super().handle(event, now)

    def _crowded(self, first: int, bodies: Bodies) -> bool:
        """Whether so much waits for histories that a new run has to wait as well."""
        is_new = first + len(bodies) > self.ledger.next
        return is_new and self.ledger.quota.refuses(len(bodies), sum(map(len, bodies)))

    def begin_at(self, number: int, history: int = 1) -> None:
        self.ledger.begin_at(number)

    def resume(self, number: int) -> None:
        self.ledger.skip_to(number)

    def recover(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        if first == self.ledger.next:
            self.ledger.extend(digests, bodies)
            return True
        at_base = first + len(digests) == self.ledger.base
        return at_base and self.ledger.prepend(digests, bodies)

    def sizes(self) -> dict[str, int]:
        return {"ledger": len(self.ledger)}
