"""Bracha's reliable broadcast: all correct subscribers accept the same run, or none does.

Guarantees with 3f+1 brokers, up to f of them and the publisher lying: agreement, and totality: if
one correct node accepts, every one does (LC2).

    publisher ──Publish──▶ brokers ──Echo──▶ brokers ──Ready──▶ brokers
                                                      └──Vote──▶ subscribers

A broker echoes the first run that it is sent at a number; is ready at ⌈(n+f+1)/2⌉ echoes (two runs
cannot both gather as many) or f+1 readies (one of them is a correct broker's); and a run is
delivered at ⌈(n+f+1)/2⌉ readies. An instance is named by the first number of its run: a correct
broker's echoes never overlap, so neither can two delivered runs.

A publisher may crash when n-f brokers have acknowledged a run, f of them liars: too few correct
ones are left for the echo quorum. So a broker that the run never reached also echoes what f+1
others echo, once it has the contents: one of them is correct and got the run from the publisher.
What was acknowledged is then delivered without the publisher.

Source: Freeman §3.2 (algorithms 4–6). Ours: echo and ready carry one digest of the run; a broker
that lacks the contents pulls them from one that echoed; f+1 echoes of others count as the
publisher's run; a broker that is stuck retransmits, and one that is done answers it. A broker is
stuck if nothing was delivered for twice as long as runs have taken lately: after a fixed time,
brokers of a busy machine would spend that time on retransmissions.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from quorumcast.broadcast.contract import (
    Carrier,
    CarrierContext,
    RetransmitRuns,
    Vouch,
    check_run,
    dropped,
)
from quorumcast.broadcast.messages import Contents, Echo, Open, Publish, Pull, Ready
from quorumcast.broadcast.sender import RUNS_UNDER_WAY
from quorumcast.core.ids import Digest, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_FRAME_BYTES, MAX_RUN
from quorumcast.core.machine import (
    Bodies,
    Drop,
    DropReason,
    Effect,
    Receive,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    TimerFired,
)
from quorumcast.core.tally import Ballot, Tally
from quorumcast.crypto.digest import root

RETRY_MS = 150
#: The longest pause, where brokers are slow or have repeated themselves without success.
LONGEST_RETRY_MS = 8 * RETRY_MS
#: Instances repeated in one go when stuck.
RETRY_BURST = 32


class Instance:
    """One run on its way: who echoed what, who is ready for what, and the contents seen."""

    __slots__ = ("contents", "echoed", "echoes", "pulled", "readies", "ready", "since", "waited")

    def __init__(self, since: Millis) -> None:
        #: When it was first heard of.
        self.since = since
        self.echoes: Tally[bytes] = Tally()
        self.readies: Tally[bytes] = Tally()
        #: What we echoed; set once (algorithm 5, line 8).
        self.echoed: bytes | None = None
        #: What we are ready for; set once (algorithm 5, lines 16 and 24).
        self.ready: bytes | None = None
        #: Contents by run digest: the publisher's first, or what was pulled for `ready`.
        self.contents: dict[bytes, tuple[list[Digest], tuple[bytes, ...]]] = {}
        #: How often the contents were asked for.
        self.pulled = 0
        #: Whether a whole retry interval has passed since it began.
        self.waited = False


class Delivered(msgspec.Struct):
    """A run that was delivered lately, and who has said what of it."""

    value: bytes
    #: How many publications it has.
    count: int
    echoed: list[NodeId]
    ready: list[NodeId]


class Bracha(Carrier):
    """The broker side of Bracha's broadcast for one stream."""

    __slots__ = (
        "_delivered",
        "_done",
        "_expected",
        "_heard_at",
        "_instances",
        "_just_delivered",
        "_now",
        "_pending_bytes",
        "_published",
        "_retrying",
        "_seen",
        "_taken_ms",
        "_tries",
        "_vouched",
    )

    def __init__(self, stream: Stream, context: CarrierContext) -> None:
        super().__init__(stream, context)
        self.ledger.wait_for_settling()
        #: Runs not delivered yet, by first number; all lie within the window above ledger.next,
        #: or are vouched for and wait for enough readies.
        self._instances: dict[int, Instance] = {}
        #: Those of them that came from the publisher; at most RUNS_UNDER_WAY.
        self._published: dict[int, None] = {}
        #: Those of them that are vouched for, in order.
        self._vouched: dict[int, None] = {}
        #: Bytes of contents in _instances.
        self._pending_bytes = 0
        #: Runs delivered lately, by first number, for those still stuck.
        self._done: OrderedDict[int, Delivered] = OrderedDict()
        #: Contents of the runs that the last `_advance` delivered, by first number.
        self._just_delivered: dict[int, tuple[list[Digest], Bodies]] = {}
        #: The next number that the publisher should send us, and when it sent the last one.
        self._expected = 1
        self._heard_at = Millis(-RETRY_MS)
        #: Last number of the last run that gathered enough readies in order.
        self._delivered = 0
        #: Whether RetransmitRuns is set, `_delivered` when it was due last, and how often in a row
        #: it was due since then.
        self._retrying = False
        self._seen = 0
        self._tries = 0
        #: How long runs have taken lately until they were delivered.
        self._taken_ms = 0
        self._now = Millis(0)

    @property
    def upto(self) -> int:
        return max(self._expected, self.ledger.next) - 1

    @property
    def settled(self) -> int:
        return self._delivered

    @property
    def final(self) -> int:
        return min(self._delivered, self.ledger.next - 1)

    @property
    def spare(self) -> int:
        return self.settled + 1

    @property
    def credit(self) -> int:
        return self.ledger.next - 1 + self._policy.limits.window

    @property
    def _echo_quorum(self) -> int:
        if self.stream.lane is Lane.HISTORY and self._policy.chained:
            return self._view.quorums.echo_over_chain
        return self._view.quorums.echo

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        self._now = now
        match event:
            case Receive(message=Open() as message):
                return self._on_open(event, message)
            case Receive(message=Publish() as message):
                effects = self._on_publish(event, message)
            case Receive(message=Echo() as message):
                effects = self._on_echo(event, message)
            case Receive(message=Ready() as message):
                effects = self._on_ready(event, message)
            case Receive(message=Contents() as message):
                effects = self._on_contents(event, message)
            case Receive(message=Pull() as message):
                return self._on_pull(event, message)
            case Receive():
                return dropped(event, DropReason.UNEXPECTED)
            case TimerFired(timer=RetransmitRuns()):
                effects = self._on_retry()
            case _:
                return []
        effects += self._advance()
        if self._instances and not self._retrying:
            self._retrying = True
            pause_ms = max(RETRY_MS, 2 * self._taken_ms) << max(0, min(self._tries, 8) - 2)
            retry = RetransmitRuns(self.stream)
            effects.append(SetTimer(retry, min(pause_ms, LONGEST_RETRY_MS)))
        return effects

    def echoed(self, first: int) -> tuple[bytes, Bodies] | None:
        if first in self._just_delivered:
            # Contents that came last: the run was echoed and delivered in the same turn, and
            # retention may have removed part of it before it is in the journal.
            digests, bodies = self._just_delivered[first]
            return b"".join(digests), bodies
        if first in self._done:
            # If retention has removed part of the run since then, the journal has it.
            count = self._done[first].count
            held = self.ledger.read(first, count, MAX_FRAME_BYTES)
            if held is None or held.first != first or len(held.bodies) != count:
                return None
            return held.digests, held.bodies
        instance = self._instances.get(first)
        if instance is None or instance.echoed is None:
            return None
        # It votes for what it is ready for, although it may have echoed another run.
        said = instance.ready if first in self._vouched else instance.echoed
        found = None if said is None else instance.contents.get(said)
        return None if found is None else (b"".join(found[0]), found[1])

    @property
    def waits(self) -> bool:
        return super().waits or self._pending_bytes > 0

    @property
    def is_under_way(self) -> bool:
        """Whether f+1 brokers echo a run that is not delivered: not this one alone got it."""
        enough = self._view.quorums.one_correct
        return any(i.echoes.leader(enough) is not None for i in self._instances.values())

    def begin_at(self, number: int, history: int = 1) -> None:
        self.ledger.begin_at(number)
        self._go_on()

    @property
    def front(self) -> int:
        # After what it knows to be delivered. Peers that have restarted since do not repeat their
        # readies, and it would wait for ever for those of numbers that it holds.
        return max(self.final + 1, self.ledger.base)

    def resume(self, number: int) -> None:
        self.ledger.skip_to(number)
        self._go_on()

    def recover(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        """Write what others delivered, right before what is held or from what is delivered on."""
        if first > self.final and first <= self.ledger.next:
            known = min(len(digests), self.ledger.next - first)
            if known and self.ledger.digests(first, known) != b"".join(digests[:known]):
                return False
            self.ledger.extend(digests[known:], bodies[known:])
            self._deliver_upto(first + len(digests) - 1)
            return True
        at_base = first + len(digests) == self.ledger.base
        return at_base and self.ledger.prepend(digests, bodies)

    def sizes(self) -> dict[str, int]:
        return {
            "ledger": len(self.ledger),
            "instances": len(self._instances),
            "instance_bytes": self._pending_bytes,
            "done": len(self._done),
        }

    def recount(self) -> list[Effect]:
        # Brokers that stay said in this epoch what they say now.
        brokers = self._view.brokers
        effects: list[Effect] = []
        for first in sorted(self._instances):
            instance = self._instances[first]
            instance.echoes.retain(brokers)
            instance.readies.retain(brokers)
            # With a broker less, what is there may be enough.
            effects += self._maybe_ready(first, instance)
        return effects + self._advance()

    # ------------------------------------------------------------- messages

    def _on_open(self, event: Receive, message: Open) -> list[Effect]:
        if event.sender != self.stream.publisher:
            return dropped(event, DropReason.WRONG_SENDER)
        if self.ledger.join(message.base, message.fresh, trusted=False):
            self._go_on()
        return self._advance()

    def _go_on(self) -> None:
        """Leave out what lies before the ledger."""
        self._deliver_upto(self.ledger.next - 1)

    def _deliver_upto(self, number: int) -> None:
        """Everything up to a number is delivered, as others report."""
        self._expected = max(self._expected, number + 1)
        self._delivered = max(self._delivered, number)
        self.ledger.settle(self._delivered)
        for first in sorted(first for first in self._instances if first <= number):
            instance = self._instances[first]
            found = None if instance.ready is None else instance.contents.get(instance.ready)
            if found is None or instance.ready is None or first + len(found[0]) > self.ledger.next:
                self._forget(first)
            else:
                # Others may still ask how it ended.
                self._retire(first, instance.ready, len(found[0]))

    def _on_publish(self, event: Receive, run: Publish) -> list[Effect]:
        if event.sender != self.stream.publisher:
            return dropped(event, DropReason.WRONG_SENDER)
        expected = max(self._expected, self.ledger.next)
        if run.first > expected:
            return dropped(event, DropReason.OUT_OF_TURN)
        digests = check_run(self._view, event, run.digests)
        if isinstance(digests, DropReason):
            return dropped(event, digests)
        value = root(run.first, run.digests)
        if run.first < expected:
            return self._on_repeated_publish(event, run, value)
        instance = self._instance(run.first)
        if instance is None or len(self._published) >= RUNS_UNDER_WAY:
            return dropped(event, DropReason.OUT_OF_WINDOW)
        if instance.ready not in (None, value):
            return self._conflict(event, run.first)
        if self.ledger.quota.refuses(len(digests), sum(map(len, event.bodies))):
            return dropped(event, DropReason.OVER_LIMIT)
        self._keep(instance, value, digests, event.bodies)
        self._expected = run.first + len(digests)
        self._heard_at = self._now
        self._published[run.first] = None
        if instance.ready is not None:
            return self._say_ready(run.first, instance, value)
        return self._echo(run.first, instance, value)

    def _on_repeated_publish(self, event: Receive, run: Publish, value: bytes) -> list[Effect]:
        said = self._said(run.first)
        if said is not None and said != value:
            return self._conflict(event, run.first)
        return dropped(event, DropReason.DUPLICATE)

    def _said(self, first: int) -> bytes | None:
        """What this broker echoed at a number, or what was delivered there."""
        instance = self._instances.get(first)
        if instance is None:
            return self._done[first].value if first in self._done else None
        return instance.echoed

    def spoke_for(self, first: int, value: bytes) -> bool:
        """Whether this broker echoed the same run at a number, or delivered it."""
        return self._said(first) == value

    def _conflict(self, event: Receive, first: int) -> list[Effect]:
        return [
            Drop(DropReason.CONFLICT, event.sender),
            Suspect(event.sender, Suspicion.EQUIVOCATION, self.stream, first),
        ]

    def _echo(self, first: int, instance: Instance, value: bytes) -> list[Effect]:
        if instance.echoed is not None:
            return []
        instance.echoed = value
        instance.echoes.vote(self._view.me, value)
        effects: list[Effect] = [Send(self._view.peers, Echo(self.stream, first, value))]
        return effects + self._maybe_ready(first, instance)

    def _on_echo(self, event: Receive, echo: Echo) -> list[Effect]:
        if echo.first in self._done and event.sender in self._view.brokers:
            # A late echo is as normal as a late ready; only a stuck broker repeats its echo.
            if _note(self._done[echo.first].echoed, event.sender):
                return []
            return self._answer_straggler(event.sender, echo.first)
        return self._count(event, echo)

    def _on_ready(self, event: Receive, ready: Ready) -> list[Effect]:
        if ready.first in self._done and event.sender in self._view.brokers:
            if _note(self._done[ready.first].ready, event.sender):
                return []
            return dropped(event, DropReason.DUPLICATE)
        return self._count(event, ready)

    def _count(self, event: Receive, vote: Echo | Ready) -> list[Effect]:
        if event.sender not in self._view.brokers:
            return dropped(event, DropReason.WRONG_SENDER)
        instance = self._instance(vote.first)
        if instance is None:
            return dropped(event, DropReason.OUT_OF_WINDOW)
        tally = instance.echoes if isinstance(vote, Echo) else instance.readies
        match tally.vote(event.sender, vote.run):
            case Ballot.COUNTED:
                return self._maybe_ready(vote.first, instance)
            case Ballot.REPEATED:
                return dropped(event, DropReason.DUPLICATE)
            case Ballot.CONFLICTING:
                return self._conflict(event, vote.first)

    def _on_contents(self, event: Receive, run: Contents) -> list[Effect]:
        instance, value = self._instances.get(run.first), root(run.first, run.digests)
        if instance is None or (instance.ready or instance.echoed) in instance.contents:
            return dropped(event, DropReason.DUPLICATE)
        if instance.ready is None and not self._may_echo(run.first, instance, value):
            return dropped(event, DropReason.DUPLICATE)
        digests = check_run(self._view, event, run.digests)
        if isinstance(digests, DropReason):
            return [
                Drop(digests, event.sender),
                Suspect(event.sender, Suspicion.BAD_BODY, self.stream, run.first),
            ]
        wanted = instance.ready or value
        if value != wanted:
            return dropped(event, DropReason.BAD_RUN)
        crowded = self.ledger.quota.refuses(len(digests), sum(map(len, event.bodies)))
        if crowded and run.first != self.ledger.next:
            # It is pulled again when its turn comes.
            return dropped(event, DropReason.OVER_LIMIT)
        self._keep(instance, wanted, digests, event.bodies)
        if instance.ready is not None:
            return self._say_ready(run.first, instance, wanted)
        self._expected = run.first + len(digests)
        return self._echo(run.first, instance, value)

    def _may_echo(self, first: int, instance: Instance, value: bytes) -> bool:
        """Whether f+1 others echo a run that comes next here and never came from the publisher.

        Not histories: a broker echoes these only if they agree with what it forwarded.
        """
        return (
            self.stream.lane is Lane.DATA
            and first == max(self._expected, self.ledger.next)
            and instance.echoes.count(value) >= self._view.quorums.one_correct
        )

    def is_done(self, first: int) -> bool:
        return first in self._done

    def would_echo_contents(self, first: int) -> bool:
        # Not of a run that the cell has decided.
        instance = self._instances.get(first)
        return instance is None or instance.ready is None

    def _on_pull(self, event: Receive, pull: Pull) -> list[Effect]:
        """Another broker asks for the run that starts here, and how it ended."""
        if event.sender not in self._view.brokers:
            return dropped(event, DropReason.WRONG_SENDER)
        effects: list[Effect] = []
        if pull.first in self._done:
            done = self._done[pull.first]
            effects.append(Send((event.sender,), Ready(self.stream, pull.first, done.value)))
            held = self.ledger.read(pull.first, done.count, MAX_FRAME_BYTES // 2)
            if held is not None and held.first == pull.first:
                answer = Contents(self.stream, held.first, held.digests)
                effects.append(Send((event.sender,), answer, held.bodies))
            return effects
        instance = self._instances.get(pull.first)
        said = None if instance is None else instance.ready or instance.echoed
        if instance is None or said is None or said not in instance.contents:
            return dropped(event, DropReason.NOT_HELD)
        digests, bodies = instance.contents[said]
        answer = Contents(self.stream, pull.first, b"".join(digests))
        return [Send((event.sender,), answer, bodies)]

    # ------------------------------------------------------------- progress

    def _maybe_ready(self, first: int, instance: Instance) -> list[Effect]:
        if instance.ready is not None:
            return []
        value = instance.echoes.leader(self._echo_quorum)
        if value is None:
            value = instance.readies.leader(self._view.quorums.ready_join)
        if value is None:
            return []
        instance.ready = value
        if value not in instance.contents:
            # An echo says that its broker has the run, and a journal holds what an echo binds it
            # to. Some correct broker that spoke for the run has it as well.
            if first >= self._expected and self._now - self._heard_at < RETRY_MS:
                return []  # the publisher is late here, not silent; a retry asks for the rest
            return self._pull(first, instance, value)
        return self._say_ready(first, instance, value)

    def _say_ready(self, first: int, instance: Instance, value: bytes) -> list[Effect]:
        effects: list[Effect] = []
        if instance.echoed is None:
            # Bracha (1987) echoes here as well: otherwise a broker that has the run from others
            # would never echo, and brokers that lost echoes would wait for ever.
            instance.echoed = value
            instance.echoes.vote(self._view.me, value)
            effects.append(Send(self._view.peers, Echo(self.stream, first, value)))
        instance.readies.vote(self._view.me, value)
        effects.append(Send(self._view.peers, Ready(self.stream, first, value)))
        return effects

    def _pull(self, first: int, instance: Instance, value: bytes) -> list[Effect]:
        sources = instance.echoes.voters(value) + instance.readies.voters(value)
        sources = [broker for broker in sources if broker != self._view.me]
        if not sources:
            return []
        source = sources[instance.pulled % len(sources)]
        instance.pulled += 1
        # The count is not known before the contents are; the answer says it.
        return [Send((source,), Pull(self.stream, first, MAX_RUN))]

    def _advance(self) -> list[Effect]:
        """Vouch for what is ready, in order; retire what enough brokers are ready for."""
        effects: list[Effect] = []
        self._just_delivered.clear()
        while (instance := self._instances.get(self.ledger.next)) is not None:
            found = None if instance.ready is None else instance.contents.get(instance.ready)
            if found is None:
                break
            digests, bodies = found
            taken = self.ledger.take(self.ledger.next, digests, bodies)
            effects.append(Vouch(self.stream, taken.first, taken.digests))
            self._vouched[taken.first] = None
            # No run starts inside another: only liars speak of those, and they would never end.
            for inside in self._instances.keys() & range(taken.first + 1, self.ledger.next):
                self._forget(inside)
        while self._vouched:
            first = next(iter(self._vouched))
            instance = self._instances[first]
            if instance.ready is None:
                break
            if instance.readies.count(instance.ready) < self._view.quorums.ready_accept:
                break
            self._just_delivered[first] = instance.contents[instance.ready]
            count = len(instance.contents[instance.ready][0])
            self._delivered = max(self._delivered, first + count - 1)
            taken_ms = min(self._now - instance.since, LONGEST_RETRY_MS)
            self._taken_ms += (taken_ms - self._taken_ms) // 4
            self._retire(first, instance.ready, count)
        self.ledger.settle(self._delivered)
        return effects

    def _retire(self, first: int, value: bytes, count: int) -> None:
        instance = self._instances[first]
        self._forget(first)
        echoed, ready = instance.echoes.voters(value), instance.readies.voters(value)
        self._done[first] = Delivered(value, count, echoed, ready)
        while len(self._done) > self._policy.limits.window:
            self._done.popitem(last=False)

    def _on_retry(self) -> list[Effect]:
        self._retrying = False
        effects: list[Effect] = []
        if any(i.waited and first > self.ledger.next for first, i in self._instances.items()):
            # Later runs wait for one that we may never have heard of: ask for that one as well.
            self._instance(self.ledger.next)
        is_stuck = self._delivered == self._seen
        self._seen, self._tries = self._delivered, self._tries + 1 if is_stuck else 0
        for first in sorted(self._instances)[:RETRY_BURST]:
            instance = self._instances[first]
            if instance.waited and is_stuck:
                effects += self._repeat(first, instance)
            instance.waited = True
        return effects

    def _repeat(self, first: int, instance: Instance) -> list[Effect]:
        peers = self._view.peers
        effects: list[Effect] = []
        if instance.echoed is not None:
            effects.append(Send(peers, Echo(self.stream, first, instance.echoed)))
        if instance.ready is not None:
            if instance.ready not in instance.contents:
                return effects + self._pull(first, instance, instance.ready)
            effects.append(Send(peers, Ready(self.stream, first, instance.ready)))
        # We heard of the run but cannot finish it: ask the others, one at a time, how it ended.
        asked = peers[instance.pulled % len(peers)] if peers else None
        instance.pulled += 1
        if asked is not None:
            effects.append(Send((asked,), Pull(self.stream, first, MAX_RUN)))
        return effects

    def _answer_straggler(self, peer: NodeId, first: int) -> list[Effect]:
        # Only a broker that is not done repeats itself, so two brokers never answer each other
        # for ever.
        return [Send((peer,), Ready(self.stream, first, self._done[first].value))]

    def _keep(
        self, instance: Instance, value: bytes, digests: list[Digest], bodies: tuple[bytes, ...]
    ) -> None:
        if value not in instance.contents:
            instance.contents[value] = (digests, bodies)
            self._count_pending(sum(map(len, bodies)))

    def _forget(self, first: int) -> None:
        instance = self._instances.pop(first, None)
        self._vouched.pop(first, None)
        self._published.pop(first, None)
        if instance is not None:
            for _, bodies in instance.contents.values():
                self._count_pending(-sum(map(len, bodies)))

    def _count_pending(self, size: int) -> None:
        self._pending_bytes += size
        self.ledger.quota.pending_bytes += size

    def give_up(self) -> None:
        # Nothing is echoed here any more.
        for first in list(self._instances):
            self._forget(first)
        self.ledger.cut(self._delivered)
        self._expected = self.ledger.next

    def _instance(self, first: int) -> Instance | None:
        instance = self._instances.get(first)
        if instance is None and self._in_window(first):
            instance = self._instances[first] = Instance(self._now)
        return instance

    def _in_window(self, first: int) -> bool:
        window = self._policy.limits.window
        return (
            self.ledger.next <= first <= self.ledger.next + window
            and len(self._instances) <= 2 * window
        )


def _note(members: list[NodeId], member: NodeId) -> bool:
    """Add a member; False if it is there already."""
    if member in members:
        return False
    members.append(member)
    return True
