"""History: a fast protocol for every publication, Bracha for the digests of every α of them.

Guarantees: with the usual α most of the speed of the fast protocol (authenticated broadcast or
chain), and Bracha's totality: what one correct subscriber accepts all do, at most 2α publications
later (Fairness).

    publisher ──Publish──▶ brokers              every publication, the fast way
    publisher ──Publish on the history lane──▶ Bracha ──Vote──▶ subscribers      every α

A history is a statement, signed by the publisher, of the digests since the last one. A broker
echoes it only if it agrees with everything that the broker itself forwarded, and only once the
broker holds the bodies, fetched from its peers if need be: so f+1 correct brokers hold every body
that a delivered history names. Beyond 2α publications since the last delivered history a broker
takes no fast ones (Freeman's BLOCKED; its credit says so). Two different histories with one index,
both signed, are evidence against their publisher.

Why a broker may correct itself to a delivered history: let q be the quorum of echoes and of votes.
At least q-f correct brokers echoed d, held it then, and never vote for d'. So d' gets at most
n-(q-f) votes, fewer than q: no subscriber has accepted it. On a chain the same follows from n-f
echoes (`Quorums.echo_over_chain`).

Source: Freeman §5.8, §6.2; Jehl-Meling §3.1. Ours: digests instead of the publications themselves
(bodies are pulled), a number space of its own instead of negative numbers, and a history for the
tail when the publisher falls idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq

from quorumcast.broadcast.bracha import Bracha
from quorumcast.broadcast.contract import Carrier, CarrierContext, Vouch, check_run, dropped
from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Open, Publish, Pull
from quorumcast.broadcast.sender import RUNS_UNDER_WAY
from quorumcast.broadcast.signed_history import (
    Covered,
    Seen,
    end_of,
    is_ours,
    named_in,
    read_history,
)
from quorumcast.core.ids import DIGEST_SIZE, Digest, Lane, Millis, Stream, split_digests
from quorumcast.core.limits import MAX_RUN
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
    Timer,
    TimerFired,
)
from quorumcast.core.statements import HistoryStatement, Signed
from quorumcast.crypto.digest import root

#: How long a broker waits for the fast path before it fetches what a history names.
FETCH_MS = 40
#: Fetches in a row that are put off as long as the fast path moves.
PATIENCE = 8
#: The longest pause between two fetches, if the answers of all peers fit nothing.
LONGEST_FETCH_MS = 64 * FETCH_MS
#: Ends of histories that are kept: of all that may be under way.
ENDS = 2 * RUNS_UNDER_WAY
#: Histories that may wait for publications at a time, and how often 2α numbers they may name
#: together. On a chain histories, which come straight from the publisher, overtake publications.
WAITING = 128
WAITING_NAMES = 4
#: Bytes that a history may take besides its digests: names, numbers and the signature.
OVERHEAD = 1024


class HistoryFetch(Timer, frozen=True, tag=True):
    """Fetch what histories name and this broker lacks."""

    stream: Stream


class History(Carrier):
    """A fast carrier together with Bracha for its histories, for one stream."""

    __slots__ = (
        "_asked",
        "_bracha",
        "_covered",
        "_ends",
        "_fast",
        "_fetching",
        "_first_asked",
        "_floor",
        "_in_vain",
        "_learned",
        "_moves",
        "_put_off",
        "_seen",
        "_waiting",
    )

    def __init__(self, stream: Stream, context: CarrierContext, fast: Carrier) -> None:
        super().__init__(stream, context, fast.ledger)
        self._fast = fast
        self._bracha = Bracha(stream.history, context)
        self.ledger.wait_for_settling()
        #: Histories not echoed yet because publications are lacking, by index; at most WAITING.
        self._waiting: dict[int, tuple[Receive, HistoryStatement]] = {}
        #: Digests that the ledger lacks or contradicts, from histories that will be delivered.
        self._learned: dict[int, Digest] = {}
        #: The last number of each history that is or will be delivered, by index; at most ENDS.
        self._ends: dict[int, int] = {}
        #: The first signed history seen per index; at most REMEMBERED.
        self._seen = Seen(stream)
        #: Nothing up to this number has to be settled any more: it was, and stays so when the
        #: history lane skips histories, or it lies before the number where this broker began.
        self._floor = 0
        #: The numbers that histories cover without a gap.
        self._covered = Covered()
        #: Requests for what is lacking so far; the next one goes to the next peer.
        self._asked = 0
        #: The first number asked for last, and how often in a row it was the same.
        self._first_asked = 0
        self._in_vain = 0
        #: Whether HistoryFetch is set.
        self._fetching = False
        #: Whether the fast path has brought something since then.
        self._moves = False
        #: How often in a row fetching was put off for that.
        self._put_off = 0

    @property
    def fast(self) -> Carrier:
        return self._fast

    @property
    def histories(self) -> Carrier:
        return self._bracha

    @property
    def upto(self) -> int:
        return self._fast.upto

    @property
    def settled(self) -> int:
        return max(self._ends.get(self._bracha.settled, 0), self._floor)

    @property
    def final(self) -> int:
        lacking = min(self._learned, default=self.ledger.next)
        return min(self.settled, self.ledger.next - 1, lacking - 1)

    @property
    def final_from(self) -> int:
        return max(self.ledger.base, self._covered.first)

    @property
    def spare(self) -> int:
        return self.settled + 1

    @property
    def credit(self) -> int:
        return min(self._fast.credit, self.settled + 2 * self._policy.alpha_ceiling)

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        match event:
            case TimerFired(timer=HistoryFetch()):
                self._fetching = False
                effects = self._fetch() if self._is_stuck() else []
            case TimerFired():
                effects = self._through_bracha(event, now)
            case _:
                effects = self._on_message(event, now)
        effects += self._retry_waiting(now)
        if (self._waiting or self._learned) and not self._fetching:
            self._fetching, self._moves = True, False
            effects.append(SetTimer(HistoryFetch(self.stream), self._pause_ms()))
        if not (self._waiting or self._learned):
            self._in_vain = 0  # what is lacking later is fetched as soon as ever
        return effects

    def begin_at(self, number: int, history: int = 1) -> None:
        self.ledger.begin_at(number)
        self._raise_floor(number - 1)
        self._covered.begin(number)
        self._bracha.begin_at(history)

    def resume(self, number: int) -> None:
        # It may hold what lies before already, and perhaps not what was settled.
        if number > min(self.ledger.next, self.settled + 1):
            self.ledger.skip_to(number)
            self._raise_floor(number - 1)
            self._covered.begin(number)
            self._forget_gone()

    def give_up(self) -> None:
        self._waiting.clear()
        self.ledger.cut(self.final)
        self._learned.clear()
        self._bracha.give_up()

    def recover(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        """Write what others have settled: after what is held, or right before `final_from`."""
        if first == self.ledger.next:
            self.ledger.extend(digests, bodies)
            self.ledger.settle(self.ledger.next - 1)
            self._forget_learned(range(first, self.ledger.next))
            return True
        return first + len(digests) == self.final_from and self._prepend(first, digests, bodies)

    def recover_histories(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        """Write histories that others delivered, and learn what they name."""
        after = first > self._bracha.final
        if not self._bracha.recover(first, digests, bodies):
            return False
        if after:
            for index in range(first, first + len(digests)):
                self._learn(index)
            self._raise_floor(self.settled)
        return True

    def expire(self, now: Millis, retained_ms: int) -> list[Effect]:
        return super().expire(now, retained_ms) + self._bracha.expire(now, retained_ms)

    def sizes(self) -> dict[str, int]:
        return {
            **self._fast.sizes(),
            **{f"history_{name}": size for name, size in self._bracha.sizes().items()},
            "waiting": len(self._waiting),
            "learned": len(self._learned),
            "ends": len(self._ends),
            "seen": len(self._seen),
        }

    def recount(self) -> list[Effect]:
        return self._learn_ready(self._bracha.recount())

    def _prepend(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        """Write what lies right before `final_from`; False if not all of it may be retained.

        The ledger may hold the last of these numbers by the fast path, and perhaps with contents
        that were not settled.
        """
        lacked = max(0, self.ledger.base - first)
        for number, digest, body in zip(
            range(first + lacked, self.final_from), digests[lacked:], bodies[lacked:], strict=True
        ):
            if self.ledger.digest(number) != digest:
                self.ledger.correct(number, digest, body)
        self._covered.upto = max(self._covered.upto, self.final_from - 1)
        if lacked and not self.ledger.prepend(digests[:lacked], bodies[:lacked]):
            self._covered.first = self.ledger.base
            return False
        self._covered.first = first
        self._forget_learned(range(first, first + len(digests)))
        return True

    def _on_message(self, event: Receive, now: Millis) -> list[Effect]:
        message = event.message
        if isinstance(message, Open):
            return self._on_open(event, message, now)
        if message.stream.lane is Lane.HISTORY:  # type: ignore[attr-defined]
            return self._on_history_lane(event, now)
        return self._on_data_lane(event, now)

    # ------------------------------------------------------------ data lane

    def _on_open(self, event: Receive, message: Open, now: Millis) -> list[Effect]:
        if message.stream.lane is Lane.HISTORY:
            return self._through_bracha(event, now)
        before, begun = self.ledger.next, self.ledger.begun
        effects = self._fast.handle(event, now)
        if self.ledger.next > before:
            self._forget_gone()
            if not begun:
                # Only a broker that holds nothing believes the publisher about where to begin;
                # otherwise one that skips numbers could publish for ever without a history.
                self._raise_floor(self.ledger.base - 1)
        return effects

    def _on_data_lane(self, event: Receive, now: Millis) -> list[Effect]:
        message = event.message
        if isinstance(message, Contents):
            return self._on_contents(event, message)
        if isinstance(message, Publish | ChainRun) and self._blocked(message):
            refusal: list[Effect] = [Drop(DropReason.BLOCKED, event.sender)]
            if event.sender == self.stream.publisher:
                # What others pass on in its name is not its doing until its MAC says so.
                refusal.append(Suspect(event.sender, Suspicion.WITHOUT_HISTORY, self.stream))
            return refusal
        before = self.ledger.next
        effects = self._fast.handle(event, now)
        if self.ledger.next > before:
            self._moves = True
            self._forget_learned(range(before, self.ledger.next))
        return effects

    def _blocked(self, run: Publish | ChainRun) -> bool:
        """No more than 2α publications beyond what is settled (Freeman §6.2, line 21)."""
        last = run.first + len(run.digests) // DIGEST_SIZE - 1
        return last > self.settled + 2 * self._policy.alpha_ceiling

    def _on_contents(self, event: Receive, run: Contents) -> list[Effect]:
        """Bodies that were fetched: taken if a history names their digests."""
        before, bodies = self.ledger.next, event.bodies
        digests = split_digests(run.digests)[: len(bodies)]
        corrected, wrong = self._correct(run.first, digests, bodies)
        fresh: list[Digest] = []
        if not wrong and run.first <= before < run.first + len(digests):
            offset = before - run.first
            named = self._named(before, len(digests) - offset)
            fresh = digests[offset:][: _common(digests[offset:], named)]
            bodies = bodies[offset:][: len(fresh)]
            right = _common(list(map(self._view.hash, bodies)), fresh)
            wrong = before + right if right < len(fresh) else 0
            fresh, bodies = fresh[:right], bodies[:right]
            self.ledger.extend(fresh, bodies)
        effects: list[Effect] = []
        if wrong:
            effects += [
                Drop(DropReason.BAD_BODY, event.sender),
                Suspect(event.sender, Suspicion.BAD_BODY, self.stream, wrong),
            ]
        self._forget_learned(range(run.first, run.first + len(event.bodies)))
        if fresh and not self._policy.chained:
            # This broker answers with it from now on, so the journal must hold it. On a chain it
            # cannot vouch without the MACs that come with a number.
            effects.append(Vouch(self.stream, before, b"".join(fresh)))
        if fresh or corrected:
            effects += self._fetch()  # waiting for the timer here it would never catch up
        return effects

    def _correct(self, first: int, digests: list[Digest], bodies: Bodies) -> tuple[bool, int]:
        """Overrule what is held otherwise; whether something was, and the number of a wrong body.

        Only what the cell has settled overrules what this broker vouched for; a history that merely
        waits is no more than its publisher's claim.
        """
        corrected, held = False, range(first, self.ledger.next)
        for number, digest, body in zip(held, digests, bodies, strict=False):
            if self._learned.get(number) == digest:
                if self._view.hash(body) != digest:
                    return corrected, number
                self.ledger.correct(number, digest, body)
                corrected = True
        return corrected, 0

    # --------------------------------------------------------- history lane

    def _on_history_lane(self, event: Receive, now: Millis) -> list[Effect]:
        match event.message:
            case Publish() as message:
                return self._on_history(event, message, now)
            case Echo() as message:
                return self._through_bracha(event, now) + self._compare(event, message)
            case Contents() as message:
                return self._on_rival(event, message) + self._through_bracha(event, now)
            case _:
                return self._through_bracha(event, now)

    def _on_history(self, event: Receive, message: Publish, now: Millis) -> list[Effect]:
        if event.sender != self.stream.publisher:
            return dropped(event, DropReason.WRONG_SENDER)
        if message.first > self._bracha.upto + WAITING:
            # Far ones would push those out that the next one must follow.
            return dropped(event, DropReason.OUT_OF_TURN)
        run = check_run(self._view, event, message.digests)
        if isinstance(run, DropReason):
            # Before the signature: an attacker on the wire may have altered the contents.
            return dropped(event, run)
        found = self._read(event, message.first)
        if found is None:
            return dropped(event, DropReason.BAD_RUN)
        signed, statement = found
        if not is_ours(self._view.keyring, signed, statement):
            return dropped(event, DropReason.BAD_SIGNATURE)
        accusation = self._seen.add(signed, statement, self._bracha.settled)
        if accusation:
            return accusation
        if self._contradicts(statement):
            return [
                Drop(DropReason.CONFLICT, event.sender),
                Suspect(event.sender, Suspicion.EQUIVOCATION, self.stream, statement.first),
            ]
        if self._must_wait(statement):
            if self._may_wait(statement):
                self._waiting[statement.index] = (event, statement)
            return []
        return self._through_bracha(event, now)

    def _contradicts(self, statement: HistoryStatement) -> bool:
        """Whether a history denies what this broker forwarded, or leaves out or repeats numbers."""
        before = self._end_before(statement)
        if before is not None and statement.first != before + 1:
            return True
        if end_of(statement) - statement.first >= 2 * self._policy.alpha_ceiling:
            return True
        return not self._agrees(statement)

    def _agrees(self, statement: HistoryStatement) -> bool:
        """Whether a history names what this broker holds of its numbers."""
        first = max(statement.first, self.ledger.base)
        count = min(end_of(statement) + 1, self.ledger.next) - first
        if count <= 0:
            return True
        return self.ledger.digests(first, count) == named_in(statement, range(first, first + count))

    def _end_before(self, statement: HistoryStatement) -> int | None:
        """Where the history before ends: the delivered one, or the one seen while it is not yet."""
        before = statement.index - 1
        if not before:
            return 0
        end = self._ends.get(before)
        if end is None and (held := self._held(before)) is not None:
            end = end_of(held[1])  # as after a restart
        return self._seen.end(before) if end is None else end

    def _held(self, index: int) -> tuple[Signed, HistoryStatement] | None:
        """A history that is delivered, or ready to be, if this broker still holds it."""
        held = self._bracha.ledger.read(index, 1, 1)
        if held is None or held.first != index:
            return None
        return read_history(held.bodies[0], self.stream)

    def _must_wait(self, statement: HistoryStatement) -> bool:
        """Whether what a history names, or the one before it, is not here.

        Of the first history that this broker knows of, nobody can tell it what it must follow.
        """
        if statement.first < self.ledger.base or end_of(statement) >= self.ledger.next:
            return True
        is_first = statement.index <= self._bracha.ledger.base
        return not is_first and self._end_before(statement) is None

    def _read(self, event: Receive, index: int) -> tuple[Signed, HistoryStatement] | None:
        """The history that is the one body of a message, if it is no larger than it must be."""
        most = 2 * self._policy.alpha_ceiling * DIGEST_SIZE + OVERHEAD
        if len(event.bodies) != 1 or len(event.bodies[0]) > most:
            return None
        found = read_history(event.bodies[0], self.stream)
        return found if found is not None and found[1].index == index else None

    def _may_wait(self, statement: HistoryStatement) -> bool:
        waiting = [len(known.digests) for _, known in self._waiting.values()]
        most = WAITING_NAMES * 2 * self._policy.alpha_ceiling * DIGEST_SIZE
        return len(waiting) < WAITING and sum(waiting) + len(statement.digests) <= most

    def _retry_waiting(self, now: Millis) -> list[Effect]:
        """Go on with the histories whose publications have come, in their order."""
        effects: list[Effect] = []
        for index in sorted(self._waiting):
            event, statement = self._waiting[index]
            if index > self._bracha.settled and self._must_wait(statement):
                break  # those after it follow it
            del self._waiting[index]
            if index > self._bracha.settled and not self._contradicts(statement):
                effects += self._through_bracha(event, now)
        return effects

    def _through_bracha(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        return self._learn_ready(self._bracha.handle(event, now))

    def _raise_floor(self, number: int) -> None:
        """Nothing up to a number has to be settled any more."""
        self._floor = max(self._floor, number)
        self.ledger.settle(self._floor)

    def _learn_ready(self, effects: list[Effect]) -> list[Effect]:
        """Learn the histories for which Bracha becomes ready here, and pass its effects on."""
        for effect in effects:
            if isinstance(effect, Vouch):
                self._learn(effect.first)
        self._raise_floor(self.settled)
        return effects

    def _learn(self, index: int) -> None:
        """A history will be delivered: note what it names and this broker has not got."""
        found = self._held(index)
        if found is None:
            return
        signed, statement = found
        self._seen.add(signed, statement, self._bracha.settled)
        self._covered.add(statement)
        self._ends[statement.index] = end_of(statement)
        while len(self._ends) > ENDS:
            del self._ends[min(self._ends)]
        expired = end_of(statement) - self.ledger.quota.most
        if self.ledger.next <= expired:
            # Nobody holds what lies up to there any longer; waiting for it would be for ever.
            self.ledger.skip_to(expired + 1)
            self._forget_gone()
        if end_of(statement) < self.ledger.next and self._agrees(statement):
            return  # the usual case
        for number, digest in enumerate(split_digests(statement.digests), statement.first):
            if number >= self.ledger.base and self.ledger.digest(number) != digest:
                self._learned[number] = digest

    # ------------------------------------------------------------- fetching

    def _is_stuck(self) -> bool:
        """Whether the fast path does not bring what is lacking, or does it too slowly.

        On a busy machine it is late, and what is fetched besides makes it later.
        """
        put_off = self._moves and self._put_off < PATIENCE and not self._denied()
        self._put_off = self._put_off + 1 if put_off else 0
        return not put_off

    def _denied(self) -> bool:
        """Whether histories contradict what is held, which the fast path cannot mend."""
        return min(self._learned, default=self.ledger.next) < self.ledger.next

    def _named(self, first: int, count: int) -> list[Digest | None]:
        """What histories name at these numbers: those that wait, overruled by those that do not."""
        named: list[Digest | None] = [None] * count
        for index in sorted(self._waiting):
            statement = self._waiting[index][1]
            start = max(first, statement.first)
            stop = min(first + count, end_of(statement) + 1)
            if start < stop:
                digests = split_digests(named_in(statement, range(start, stop)))
                named[start - first : stop - first] = digests
        for number in range(first, first + count) if self._learned else ():
            named[number - first] = self._learned.get(number, named[number - first])
        return named

    def _fetch(self) -> list[Effect]:
        """Ask the next peer for what is lacking, and forget what is not lacking any longer."""
        ledger, peers = self.ledger, self._view.peers
        self._learned = {
            n: d
            for n, d in self._learned.items()
            if n >= ledger.next or (n >= ledger.base and ledger.digest(n) != d)
        }
        ends = [*self._learned]
        for _, statement in self._waiting.values():
            if end_of(statement) >= ledger.next:
                ends += [max(statement.first, ledger.next), end_of(statement)]
        first = min(ends, default=ledger.next + 1)
        if first > ledger.next or not peers:
            return []  # what comes before it is not there, and a ledger has no holes
        count = min(max(ends) - first + 1, MAX_RUN)
        self._in_vain = self._in_vain + 1 if first == self._first_asked else 0
        self._first_asked = first
        peer = peers[self._asked % len(peers)]
        self._asked += 1
        return [Send((peer,), Pull(self.stream, first, count))]

    def _pause_ms(self) -> int:
        """The time until the next fetch: twice as long after each round of all peers in vain.

        A lying publisher's history may name what nobody holds.
        """
        rounds = self._in_vain // max(1, len(self._view.peers))
        return min(FETCH_MS << min(rounds, 16), LONGEST_FETCH_MS)

    def _forget_learned(self, numbers: range) -> None:
        """Forget which of these are here by now; a look at all that is lacking costs too much."""
        for number in numbers if self._learned else ():
            if number in self._learned and self.ledger.digest(number) == self._learned[number]:
                del self._learned[number]
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Forget what lies before the ledger: this broker has dropped it, and does not lack it."""
        base = self.ledger.base
        # Histories are learned in their order, so the lowest numbers come first.
        for number in [*takewhile(lambda number: number < base, self._learned)]:
            del self._learned[number]

    # ------------------------------------------------------------- evidence

    def _compare(self, event: Receive, echo: Echo) -> list[Effect]:
        """A peer echoes another history than the one we saw: ask to see it."""
        if event.sender == self._view.me or self._bracha.spoke_for(echo.first, echo.run):
            return []  # the usual case
        seen = self._seen.body(echo.first)
        if seen is None:
            return []
        digest = self._view.hash(seen)
        if root(echo.first, digest) == echo.run:
            return []
        return [Send((event.sender,), Pull(self.stream.history, echo.first, 1))]

    def _on_rival(self, event: Receive, run: Contents) -> list[Effect]:
        found = self._read(event, run.first)
        if found is None or run.first not in self._seen or not is_ours(self._view.keyring, *found):
            return []
        return self._seen.add(*found, self._bracha.settled)


def _common(one: Sequence[bytes], other: Sequence[bytes | None]) -> int:
    """How many of the first elements are equal."""
    return [*map(eq, one, other), False].index(False)
