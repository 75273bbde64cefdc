"""The oracle of a cell's checkers: the true course of a run, recorded outside the machines.

`CellFacts` records what applications asked for (submissions, subscriptions), which nodes are
correct, and what correct subscribers accepted. Checkers compare the machines' claims with it. One
subscription, from `Join` to `Leave` or crash, is a *reader*: liveness is promised to readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from quorumcast.broadcast.application import (
    Acknowledged,
    Deliver,
    DeliverGap,
    Join,
    Leave,
    Passed,
    Prove,
    Proven,
    Recall,
    Recalled,
    Renewed,
    Select,
    Submit,
)
from quorumcast.broadcast.messages import Ack, Matches
from quorumcast.core.cuts import head_of, looks_cut
from quorumcast.core.ids import (
    CELL,
    Channel,
    Millis,
    NodeId,
    Stream,
    holder,
    total_order,
)
from quorumcast.core.labels import label, unlabel
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.machine import Accuse, Effect, Event, Record, Send
from quorumcast.core.quorum import accept_votes
from quorumcast.core.statements import Basis, Evidence, Signed, parse_statement
from quorumcast.manifest.manifest import EVERYONE, Manifest
from quorumcast.sim.cell.adversary import CellAdversary
from quorumcast.sim.cell.judges.readers import OwedPast, Reader
from quorumcast.sim.cell.judges.twin import RowTwin
from quorumcast.sim.kernel import judging as kernel


def may_publish(manifest: Manifest, node: NodeId, channel: Channel) -> bool:
    """Whether the manifest lets a client publish; independent of the brokers' own check."""
    rights = [{*entry.publishers} for entry in manifest.channels if entry.name == channel]
    return _is_client(manifest, node) and any({EVERYONE, node} & names for names in rights)


def may_subscribe(manifest: Manifest, node: NodeId, channel: Channel) -> bool:
    """Whether the manifest lets a client subscribe; independent of the brokers' own check."""
    rights = [{*entry.subscribers} for entry in manifest.channels if entry.name == channel]
    return _is_client(manifest, node) and any({EVERYONE, node} & names for names in rights)


def _is_client(manifest: Manifest, node: NodeId) -> bool:
    return any(client.id == node for client in manifest.clients)


#: The time in which brokers have learned how far a subscriber is, although messages get lost.
TOLD_MS = 800


class CellFacts(kernel.Facts):
    """The facts that checkers of a cell read."""

    events = frozenset((Submit, Join, Select, Leave, Prove, Recall))
    effects = kernel.Facts.effects | {
        *(Deliver, DeliverGap, Passed, Acknowledged, Renewed, Proven, Recalled),
        Matches,
    }

    adversary: CellAdversary
    # The world sets these, since they read machines and disks.
    #: The time.
    clock: Callable[[], int]
    #: What correct brokers that are up, or one of them, hold of a number, or of a position.
    bodies_held: Callable[[Stream, int, NodeId | None], list[bytes]]
    #: The last number of a stream, or position of a channel, that correct brokers have.
    ordered: Callable[[Stream], int]
    #: Whether a broker holds a number of a stream.
    holds: Callable[[NodeId, Stream, int], bool]
    #: The durable records of a node by kind and owner, and by place in that order.
    on_disk: Callable[[NodeId, type[Record], str], Mapping[int, Record]]
    #: Last time at which a broker crashed, after which it knows nothing of subscribers; -1: never.
    forgot_at = -1

    #: Whether nobody is faulty and no link breaks: nodes and links are slow at most.
    is_honest = False

    def __init__(self, manifest: Manifest, adversary: CellAdversary) -> None:
        super().__init__(adversary)
        self.manifest = manifest
        #: The manifest of every epoch so far.
        self.manifests = {manifest.epoch: manifest}
        #: The oldest epoch in which a correct broker may still be.
        self._oldest_epoch = manifest.epoch
        #: The epoch in which a channel was created, if another one had its name before.
        self.created: dict[Channel, int] = {}
        #: What was published on deleted channels whose names are used again, by digest.
        self.erased: dict[bytes, tuple[Stream, int]] = {}
        #: The last number of a stream that may have been discarded by limits of earlier epochs.
        self._discarded: dict[Stream, int] = {}
        #: (Sender, receiver) of packets that were accepted with altered contents.
        self.altered: Collection[tuple[NodeId, NodeId]] = ()
        #: Submissions of each publisher's application: contents and time, by stream.
        self.published: dict[Stream, list[tuple[bytes, int]]] = {}
        #: The largest number of publications that were submitted at once.
        self.longest_submission = 0
        #: Number of submissions in the publisher's present life; on resuming it submits all again.
        self._submitted: dict[Stream, int] = {}
        #: The current incarnation of each publisher.
        self.incarnations: dict[NodeId, int] = {}
        #: Streams whose publisher has crashed since.
        self.ended: dict[Stream, None] = {}
        #: The last number acknowledged to the publisher, by stream.
        self.acknowledged: dict[Stream, int] = {}
        #: The last number that each correct broker acknowledged.
        self.held: dict[tuple[Stream, NodeId], int] = {}
        #: The last number that each correct broker acknowledged as settled by a history.
        self.settled: dict[tuple[Stream, NodeId], int] = {}
        #: All readers of correct subscribers.
        self.readers: list[Reader] = []
        self._current: dict[tuple[NodeId, Channel], Reader] = {}
        #: Brokers of a rolling restart that remain; the first has not caught up yet.
        self.restarting: tuple[NodeId, ...] = ()
        #: Number of disks that each broker has lost without being faulty.
        self.lost_disks: dict[NodeId, int] = {}
        #: A publisher that goes on while promises are awaited.
        self.restless = NodeId("")
        #: Whether the plan lets brokers lose more than the rest of the cell can replace.
        self.gaps_allowed = False
        #: Brokers that will be faulty once f is larger, and are honest until then.
        self.honest_yet: dict[NodeId, None] = {}
        #: Last time at which more than f brokers had lost their contents; -1: never.
        self.lost_at = -1
        #: Last restart of a broker that a lying publisher kept from catching up; -1: never.
        self.held_up_at = -1
        #: The highest number of each stream that any correct subscriber accepted.
        self.reached: dict[Stream, int] = {}
        #: The position at which each publication was accepted.
        self.places: dict[tuple[Stream, int], int] = {}
        #: Evidence that each correct node has reported since it started, by node and accused.
        self.evidence: dict[NodeId, dict[NodeId, Evidence]] = {}
        #: Evaluates predicates plainly.
        self.twin = RowTwin(manifest.hash)

    def disk_of(self, node: NodeId) -> int:
        """The number of disks that a node has lost."""
        return self.lost_disks.get(node, 0)

    # ------------------------------------------------------------- cells

    def cells(self) -> Sequence[Manifest]:
        """The present manifest of every cell; the first is the cell of the publishers."""
        return (self.manifest,)

    def manifest_of(self, node: NodeId) -> Manifest:
        """The present manifest of the cell in which a node serves, publishes or subscribes."""
        return self.manifest

    def manifests_of(self, node: NodeId) -> Collection[Manifest]:
        """The manifests of all epochs of that cell so far."""
        return self.manifests.values()

    def lost_before(self, node: NodeId) -> int:
        """Last time at which a node's cell, or one above it, may have lost contents; -1: never."""
        return self.lost_at

    def lost_contents(self, node: NodeId, now: Millis) -> None:
        """More than f brokers of a node's cell have lost their contents by now."""
        self.lost_at = now

    def renew(self, manifest: Manifest) -> None:
        """Take note of the next epoch's manifest."""
        self.manifest = self.manifests[manifest.epoch] = manifest

    def leave_epochs_before(self, epoch: int) -> None:
        """All correct brokers are in this epoch or a later one, and go by its limits.

        If these retain more than earlier ones, what was discarded before does not come back.
        """
        if epoch > self._oldest_epoch:
            for entry in self.manifest.channels:
                for stream in (*self.published, total_order(entry.name)):
                    if stream.channel == entry.name:
                        publisher = stream.publisher
                        self._discarded[stream] = self._beyond_limits(stream, publisher)
            self._oldest_epoch = epoch

    def retained(self, channel: Channel, node: NodeId) -> int:
        """The smallest number of retained publications by which brokers before a node may go."""
        epochs = [m for epoch, m in self.manifests.items() if epoch >= self._oldest_epoch]
        entries = [found for epoch in epochs if (found := epoch.channel(channel)) is not None]
        return min(entry.policy.limits.retained_publications for entry in entries)

    def replace_channel(self, channel: Channel, last: int) -> None:
        """A channel was created under the name of a deleted one, whose publications are gone.

        `last` is the last position of the deleted one.
        """
        self.created[channel] = self.manifest.epoch
        entry = self.manifest.channel(channel)
        total = entry is not None and entry.policy.total
        for stream in [stream for stream in self.published if stream.channel == channel]:
            for number, (body, _) in enumerate(self.published.pop(stream), 1):
                contents = label(stream, number) + body if total else body
                self.erased[self.manifest.hash(contents)] = (stream, number)
            self.acknowledged.pop(stream, None)
            self.reached.pop(stream, None)
        for reader in self.readers:
            if reader.channel == channel and reader.past is not None:
                reader.past.acknowledged.clear()
        self._discarded[total_order(channel)] = last
        self.places = {at: n for at, n in self.places.items() if at[0].channel != channel}

    def signed_in(self, statements: Sequence[Signed]) -> Manifest:
        """The manifest of the latest epoch in which one of these statements was signed."""
        found = [parse_statement(signed.payload) for signed in statements]
        latest = max((said.epoch for said in found if said is not None), default=-1)
        return self.manifests.get(latest, self.manifest)

    # ---------------------------------------------------------- watching

    def started(self, node: NodeId, incarnation: int) -> None:
        """A publisher's machine has been made."""
        for stream in self.published:
            if stream.publisher == node:
                self._submitted[stream] = 0
                if stream.line is None:
                    self.ended[stream] = None
        self.incarnations[node] = incarnation

    def stopped(self, node: NodeId, now: Millis) -> None:
        """Take note of a crash: the node's readers and streams end."""
        for key in [key for key in self._current if key[0] == node]:
            self._current.pop(key).left_at = now
        if node in self.incarnations:
            self.started(node, self.incarnations[node])

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """Record an event before the machine handles it."""
        match event:
            case Submit(channel=channel, bodies=bodies):
                stream = Stream(channel, node, self.incarnations[node])
                known = self.published.setdefault(stream, [])
                submitted = self._submitted.get(stream, 0)
                known.extend((body, now) for body in bodies[len(known) - submitted :])
                self._submitted[stream] = submitted + len(bodies)
                self.longest_submission = max(self.longest_submission, len(bodies))
            case Join(channel=channel) if self.adversary.is_correct(node):
                reader = Reader(
                    node, channel, now, start=event.start, until=event.until, where=event.where
                )
                entry = self.manifest_of(node).channel(channel)
                reader.carried = "" if entry is None else entry.carried
                if event.start is not None:
                    reader.past = self.owed_past(node, channel)
                self.readers.append(reader)
                self._current[node, channel] = reader
            case Select(channel=channel, where=where):
                if selecting := self.reader(node, channel):
                    selecting.select(where)
            case Recall(channel=channel, first=first, count=count):
                if channel_reader := self.reader(node, channel):
                    channel_reader.recalling |= dict.fromkeys(range(first, first + count))
            case Prove(stream=stream, number=number):
                if stream_reader := self.reader(node, stream.channel):
                    stream_reader.proving[stream, number] = None
            case Leave(channel=channel):
                left = self._current.pop((node, channel), None)
                if left is not None:
                    left.left_at = now
            case _:
                pass

    def owed_past(self, node: NodeId, channel: Channel) -> OwedPast:
        """What a reader of the past is owed that joins now."""
        safe = {s: upto for s, upto in self.acknowledged.items() if s.channel == channel}
        return OwedPast(safe, {key: upto for key, upto in self.held.items() if key[0] in safe})

    def answered(self, node: NodeId, channel: Channel, silent: Collection[NodeId]) -> None:
        """A subscriber that has not begun has heard from all brokers but these."""
        reader = self._current.get((node, channel))
        if reader is not None and reader.past is not None and reader.standing_at is None:
            heard = [name for name in self.manifest_of(node).broker_ids if name not in silent]
            reader.past.answered = dict.fromkeys(heard)

    def begun(
        self, node: NodeId, channel: Channel, now: Millis, ends: Mapping[Stream, int] | None = None
    ) -> None:
        """A subscriber has learned where its streams begin: later publications are due to it.

        `ends`: the next number of each stream that its application is to read from the past.
        """
        reader = self._current.get((node, channel))
        if reader is not None and reader.standing_at is None:
            reader.standing_at = now
            reader.before = self.reached.copy()
            reader.ordered = self.ordered(total_order(channel))
            reader.retained = self.retained(channel, node)
            reader.discarded = self._discarded.copy()
            if reader.past is not None:
                reader.past.ends = dict(ends or {})
                reader.past.lost_at = self.lost_before(node)
                reader.past.unreliable = self._unreliable(channel, node)
                self._note_end(reader)

    def _unreliable(self, channel: Channel, node: NodeId) -> dict[NodeId, None]:
        """Brokers that are faulty, or have lost contents and may not have got them back."""
        entry = self.manifest_of(node).channel(channel)
        found = dict.fromkeys((*self.adversary.faulty, *self.restarting[:1]))
        if entry is None or not (entry.policy.total and entry.policy.journal):
            found |= self.adversary.lossy  # no journal has the contents
        brokers = {name: None for m in self.manifests_of(node) for name in m.broker_ids}
        return {name: None for name in found if name in brokers}

    def _note_end(self, reader: Reader) -> None:
        """Note whether a reader of the past has come to its end."""
        past = reader.past
        if past is not None and reader.standing_at is not None and not past.concluded:
            past.concluded = all(
                reader.upto(stream) >= end - 1 for stream, end in past.ends.items()
            )

    def reader(self, node: NodeId, channel: Channel) -> Reader | None:
        """The current reader of a subscriber on a channel."""
        return self._current.get((node, channel))

    def present(self) -> list[Reader]:
        """All current readers without an end."""
        return [reader for reader in self._current.values() if not reader.until]

    def record(self, node: NodeId, effect: Effect) -> None:
        """Record an effect of a correct node, after the checkers have seen it."""
        self.progress += isinstance(effect, Deliver | DeliverGap | Passed | Acknowledged)
        match effect:
            case Deliver(stream=stream, number=number, digest=digest):
                reader = self.reader(node, stream.channel)
                if reader is not None:
                    reader.accepted.setdefault(stream, []).append((number, digest))
                    reader.numbers.setdefault(stream, {})[number] = None
                    reader.parts.pop(stream, None)
                    self._note_body(reader, effect)
                    self.reached[stream] = max(number, self.reached.get(stream, 0))
                    if effect.position:
                        self.places[stream, number] = effect.position
                        reader.position, reader.placed = effect.position, (stream, number)
                    self._note_end(reader)
            case Passed(stream=stream, upto=upto):
                reader = self.reader(node, stream.channel)
                if reader is not None:
                    self._note_passed(reader, stream, upto)
                    self._note_end(reader)
            case Send(message=Matches(stream=stream, first=first, count=count)):
                if stream.publisher == CELL:
                    self._note_places(stream, range(first, first + count), node)
            case DeliverGap(stream=stream, first=first, upto=upto):
                reader = self.reader(node, stream.channel)
                if reader is not None:
                    reader.gaps.setdefault(stream, []).append((first, upto))
                    excused = min(upto, self.let_go(stream, node, reader))
                    if first <= excused:
                        reader.excused.setdefault(stream, []).append((first, excused))
                    self._note_end(reader)
            case Renewed(stream=stream, former=former):
                self.incarnations[node] = stream.incarnation
                if former in self.published:
                    self.published[stream] = self.published.pop(former)
            case Recalled(channel=channel, position=position):
                if channel_reader := self.reader(node, channel):
                    channel_reader.recalling.pop(position, None)
            case Proven(receipt=receipt):
                if stream_reader := self.reader(node, receipt.stream.channel):
                    stream_reader.proving.pop((receipt.stream, receipt.number), None)
            case Acknowledged(stream=stream, upto=upto):
                self.acknowledged[stream] = max(upto, self.acknowledged.get(stream, 0))
            case Accuse(evidence=evidence):
                self.evidence.setdefault(node, {})[holder(evidence.accused)] = evidence
                super().record(node, effect)
            case _:
                super().record(node, effect)

    def _note_body(self, reader: Reader, effect: Deliver) -> None:
        """Note the contents that a reader of a channel with columns was handed."""
        entry = self.manifest_of(reader.node).channel(effect.stream.channel)
        if effect.cut:
            reader.parts[effect.stream] = effect.body
        elif entry is not None and entry.schema:
            before = label(effect.stream, effect.number) if effect.position else b""
            stream, number = effect.place
            reader.whole.setdefault(stream, {})[number] = before + effect.body

    def _note_passed(self, reader: Reader, stream: Stream, upto: int) -> None:
        """Nothing more matches up to this number: as if all of it had been accepted."""
        if stream.publisher == CELL:
            self._note_places(stream, range(reader.upto(stream) + 1, upto + 1))
        else:
            self.reached[stream] = max(upto, self.reached.get(stream, 0))
        reader.passed[stream] = max(upto, reader.passed.get(stream, 0))

    def _note_places(
        self, order: Stream, positions: Sequence[int], broker: NodeId | None = None
    ) -> None:
        """Learn from correct brokers what is at these positions, which nobody may be handed."""
        for position in positions:
            for body in self.bodies_held(order, position, broker):
                found = unlabel(head_of(body) if looks_cut(body) else body)
                if found is not None:
                    publisher, incarnation = NodeId(found[0].publisher), found[0].incarnation
                    stream = Stream(order.channel, publisher, incarnation)
                    self.places.setdefault((stream, found[0].number), position)

    # --------------------------------------------------------- retention

    def stalled(self, node: NodeId, now: Millis) -> None:
        """The application of a subscriber takes nothing from now on.

        Publishers wait for it if it has caught up, and if brokers have had the time to learn that.
        """
        for (name, channel), reader in self._current.items():
            if name != node or reader.start is not None or reader.standing_at is None:
                continue
            told = now - TOLD_MS
            reader.waited_for = reader.standing_at < told and not any(
                reader.upto(stream) < number
                for stream, published in self.published.items()
                if stream.channel == channel and self.adversary.is_correct(stream.publisher)
                for number, (_, when) in enumerate(published, 1)
                if reader.standing_at < when < told
            )

    def _is_waited_for(self, reader: Reader, stream: Stream) -> bool:
        """Whether correct brokers hold publishers up rather than discard what this reader lacks.

        Its allowance cannot be used up before so much time has passed. Where f brokers are enough
        for a publisher to go on, they may know nothing of the reader.
        """
        manifest = self.manifest_of(reader.node)
        entry = manifest.channel(stream.channel)
        if entry is None or reader.standing_at is None or not reader.waited_for:
            return False
        wait_ms = entry.policy.limits.wait_ms
        since = reader.standing_at
        return (
            self.clock() - since < wait_ms
            and self.forgot_at < since
            and manifest.quorums.responders > manifest.f
            and self.adversary.is_correct(stream.publisher)
        )

    def let_go(self, stream: Stream, node: NodeId, reader: Reader | None = None) -> int:
        """The last number that correct brokers before a node may have discarded by now.

        They keep the newest `retained_publications` over all lives of a publisher, even of a lying
        one. On channels without total order they may also have lost publications from before too
        many of them restarted.
        """
        entry = self.manifest_of(node).channel(stream.channel)
        if entry is None:
            return MAX_NUMBER  # the channel was deleted
        if stream.publisher == CELL:
            return self._beyond_limits(stream, node)
        if self.gaps_allowed:
            return MAX_NUMBER
        lost_at = self.lost_before(node)
        lost = sum(when <= lost_at for _, when in self.published.get(stream, ()))
        if reader is not None and self._is_waited_for(reader, stream):
            return lost
        return max(self._beyond_limits(stream, node), lost)

    def _beyond_limits(self, stream: Stream, node: NodeId) -> int:
        """The last number that retention may have removed before a node by now."""
        discarded = self._discarded.get(stream, 0)
        retained = self.retained(stream.channel, node)
        if stream.publisher == CELL:
            return max(discarded, self.ordered(stream) - retained)
        lives = (stream, *self.later_lives(stream))
        if self.adversary.is_correct(stream.publisher):
            top = sum(len(self.published.get(life, ())) for life in lives)
        else:
            entry = self.manifest_of(stream.publisher).channel(stream.channel)
            window = 0 if entry is None else entry.policy.limits.window
            top = sum(self._top_of_liar(life) + window for life in lives)
        return max(discarded, top - retained)

    def _top_of_liar(self, stream: Stream) -> int:
        """The last number of a lying publisher's stream that subscribers or brokers have.

        All subscribers may lag behind the brokers. Numbers that were never published do not count:
        a publisher that skips numbers must not make brokers discard anything.
        """
        held = min(self.ordered(stream), len(self.published.get(stream, ())))
        return max(self.reached.get(stream, 0), held)

    def later_lives(self, stream: Stream) -> list[Stream]:
        """Later streams of the same publisher on the channel: retention counts them as well."""
        return [
            other
            for other in self.published
            if (other.channel, other.publisher) == (stream.channel, stream.publisher)
            and other.incarnation > stream.incarnation
        ]

    def had_gone(self, reader: Reader, stream: Stream, number: int) -> bool:
        """Whether brokers no longer had to retain a number when a reader began."""
        entry = self.manifest_of(reader.node).channel(stream.channel)
        if entry is None or reader.standing_at is None:
            return False
        lives = (stream, *self.later_lives(stream))
        place, discarded = number, reader.discarded.get(stream, 0)
        top = sum(when <= reader.standing_at for life in lives for _, when in self.published[life])
        if entry.policy.total:
            place, top = self.places.get((stream, number), 0), reader.ordered
            discarded = reader.discarded.get(total_order(stream.channel), 0)
        return place <= max(discarded, top - reader.retained)

    def was_lost(self, stream: Stream, number: int, node: NodeId) -> bool:
        """Whether brokers before a node may have lost a number since it was published."""
        published = self.published.get(stream, ())
        when = published[number - 1][1] if number <= len(published) else 0
        lies = not self.adversary.is_correct(stream.publisher)
        return when <= max(self.lost_before(node), self.held_up_at if lies else -1)

    def kept(self, stream: Stream) -> int:
        """The last number that correct brokers spread among each other without the publisher.

        Enough brokers must hold it finally to convince the others. Fewer may have acknowledged it:
        where n = 2f+1, or where only a history would have settled it, a publication acknowledged
        right before its publisher crashed may reach only some subscribers.
        """
        manifest = self.manifest_of(stream.publisher)
        entry = manifest.channel(stream.channel)
        if entry is None or not entry.policy.live:
            return 0
        policy, quorums = entry.policy, manifest.quorums
        final = self.settled if policy.has_history else self.held
        holders = sorted(
            final.get((stream, broker), 0)
            for broker in manifest.broker_ids
            if self.adversary.is_correct(broker) and broker not in self.adversary.lossy
        )
        needed = quorums.one_correct
        if policy.crash_only:
            needed = 1
        elif policy.basis is Basis.FORWARDED:
            needed = accept_votes(quorums, policy.protection, policy.broadcast)
        return holders[-needed] if len(holders) >= needed else 0

    def missing(self, reader: Reader, stream: Stream, first: int, upto: int) -> list[int]:
        """Numbers that a reader has not accepted and that retention does not excuse."""
        got = reader.numbers.get(stream, {})
        order = total_order(stream.channel)
        lacking = [n for n in range(first, upto + 1) if n not in got]
        if reader.is_filtered:
            lacking = [n for n in lacking if not self.is_passed(reader, stream, n)]
        if not lacking or not (reader.excused.get(stream) or reader.excused.get(order)):
            return lacking
        return [n for n in lacking if not self._is_excused(reader, stream, order, n)]

    def is_passed(self, reader: Reader, stream: Stream, number: int) -> bool:
        """Whether a reader with predicates was told of a number that nothing matches there."""
        entry = self.manifest_of(reader.node).channel(stream.channel)
        if entry is None:
            return False
        place = (stream, number)
        if entry.policy.total:
            place = (total_order(stream.channel), self._latest_place(stream, number))
        if place[1] > reader.upto(place[0]):
            return False
        asked = [reader.where_at(*place)]
        if entry.policy.total and (stream, number) not in self.places:
            asked = reader.asked_ever
        there = self.contents(stream, number)
        return any(
            where and not any(self.twin.result(entry, where, body).matches for body in there)
            for where in asked
        )

    def _latest_place(self, stream: Stream, number: int) -> int:
        """The position of a number, or the last one that it can have.

        Where nobody was handed it, brokers may have dropped it before it could be looked up.
        """
        known = self.places.get((stream, number))
        if known is not None:
            return known
        later = [place for (s, n), place in self.places.items() if s == stream and n > number]
        is_ordered = number <= self.acknowledged.get(stream, 0)
        last = self.ordered(total_order(stream.channel)) if is_ordered else MAX_NUMBER
        return min(later, default=last)

    def contents(self, stream: Stream, number: int) -> list[bytes]:
        """What was published under a number; several if nobody knows which of them is accepted."""
        if stream.publisher == CELL:
            return self.bodies_held(stream, number, None)
        entry = self.manifest_of(stream.publisher).channel(stream.channel)
        total = entry is not None and entry.policy.total
        if self.adversary.is_correct(stream.publisher):
            bodies = [body for body, _ in self.published.get(stream, ())[number - 1 : number]]
            return [label(stream, number) + body for body in bodies] if total else bodies
        if not total:
            return self.bodies_held(stream, number, None)
        place = self.places.get((stream, number))
        return [] if place is None else self.bodies_held(total_order(stream.channel), place, None)

    def known_to(self, broker: NodeId, stream: Stream, number: int) -> list[bytes]:
        """The publication that a broker holds under a number, or holds rows of."""
        return self.bodies_held(stream, number, broker)

    def asked_by(self, node: NodeId, channel: Channel) -> tuple[str, ...]:
        """What a subscriber asks for; () if it wants everything, or does not subscribe."""
        reader = self.reader(node, channel)
        return () if reader is None else reader.asked

    def _is_excused(self, reader: Reader, stream: Stream, order: Stream, number: int) -> bool:
        if reader.is_excused(stream, number):
            return True
        if order not in reader.excused:
            return False
        place = self.places.get((stream, number))
        # A publication at an unknown position may be among the discarded positions.
        return place is None or reader.is_excused(order, place)

    def on_ack(self, broker: NodeId, ack: Ack) -> None:
        """Record a broker's acknowledgement."""
        if self.adversary.is_correct(broker) or broker in self.honest_yet:
            key = (ack.stream, broker)
            self.held[key] = max(self.held.get(key, 0), ack.upto, ack.settled)
            self.settled[key] = max(self.settled.get(key, 0), ack.settled)

    def settled_by_any(self, stream: Stream) -> int:
        """The last number that some correct broker acknowledged as settled by a history."""
        settled = [upto for (known, _), upto in self.settled.items() if known == stream]
        entry = self.manifest_of(stream.publisher).channel(stream.channel)
        return max(settled, default=0) if entry is not None and entry.policy.has_history else 0

    def deliveries(self) -> int:
        accepted = (reader.accepted.values() for reader in self.readers)
        return sum(len(numbers) for streams in accepted for numbers in streams)

    def subscriptions(self) -> tuple[int, int]:
        return len(self.readers), sum(reader.is_filtered for reader in self.readers)
