"""Ground truth about faulty nodes, message by message: the labels that an audit is measured by.

A recorder compares the messages that the machine of a faulty node wanted to send with those sent
instead. Each difference towards a correct, reachable node is a *deed*: a message dropped, altered,
added, delayed or reordered. Some differences are no deeds, since correct nodes cannot object:

- A publisher may publish anything, on as many streams as it is allowed. Contents other than its
  machine's are a lie only if two correct nodes were shown different ones (*equivocation*). These
  *versions* are kept with the nodes that were shown each.
- A run withheld by its publisher is a deed only if the victim learns from others that the run (or
  stream) exists before the publisher sends it after all.
- On a chain, a node that receives a run late or never cannot tell whether its neighbour withheld
  the run or the node *before* that neighbour. The same holds for missing acknowledgements.
- A request not sent is no deed: a correct node need not ask.
- A cumulative progress message that is soon followed by one that includes it is late, not missing.
- A leader may propose anything and vote for it. If it sends brokers different values for one
  instance, no broker can tell which one was altered: these are versions, too.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterator

import msgspec

from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Echo,
    Matches,
    Open,
    Publish,
    Ready,
)
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.messages import Checkpoint, Positions, Vote
from quorumcast.cell.serving.served_streams import MAX_UNUSED
from quorumcast.core.ids import Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import parse_statement
from quorumcast.faults.cell.base import stream_of
from quorumcast.faults.cell.tally import REQUESTS, SentMessage, by_peer, changes, delayed_effects
from quorumcast.faults.contract import Fault, Later
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.messages import Accept, Offer, Propose, Standing, Write
from quorumcast.sim.cell.labels.knowledge import Knowledge, RunStart
from quorumcast.watch.turnout import OVERDUE_MS


class Deed(enum.Enum):
    """The way in which a message was tampered with."""

    DROPPED = "dropped"
    ALTERED = "altered"
    ADDED = "added"
    #: Sent later. Nobody can tell this from a slow network.
    DELAYED = "delayed"
    #: Sent after a later message about the same stream, where correct nodes keep the order.
    REORDERED = "reordered"


class DeedKey(msgspec.Struct, frozen=True):
    """A deed of one node, on one kind of message, towards one peer."""

    node: NodeId
    fault: str
    deed: Deed
    message: str
    towards: NodeId
    publisher: str
    #: Whether the message is about histories rather than publications.
    history: bool
    #: The predecessor on the chain, which may be the one that delayed or withheld; "": none.
    before: str = ""


class Difference(msgspec.Struct, frozen=True):
    """An equivocation: a publisher or leader showed two correct nodes different versions.

    The two nodes may be the same one, shown both.
    """

    node: NodeId
    one: NodeId
    other: NodeId
    #: Whether both versions are signed, so that they prove the lie to anybody.
    signed: bool


#: A place for one value: speaker, kind of message, stream or (log, regency), and number.
_Place = tuple[NodeId, str, object, int]


class _Occurrence(msgspec.Struct, frozen=True):
    """One time that a deed was done."""

    at: int
    message: Message
    #: The run that was withheld, if the deed counts only once the victim misses it.
    run: RunStart | None
    #: The channel whose subscribers expect the message, if the victim must be one of them.
    awaited_on: Channel | None


class _Deferred(msgspec.Struct, frozen=True):
    """A message that a fault holds back until `due`."""

    due: int
    send: Send
    #: Speaker, kind and stream: messages of one topic keep their order in a correct node.
    topic: tuple[NodeId, type, Stream | None]


#: Messages by which publishers show their runs.
_SHOWN = (Publish, ChainRun, Offer)
#: Messages sent once about one thing; a repetition is a retransmission.
_SENT_ONCE = (Accept, ChainRun, Echo, Offer, Open, Propose, Publish, Ready, Vote, Matches, Write)
#: Messages that correct nodes send in the order of their numbers.
_IN_ORDER = (Ack, ChainRun, Matches, Propose, Publish, Standing, Vote)
#: Messages from brokers to the subscribers of a channel.
_TO_SUBSCRIBERS = (Checkpoint, Contents, Matches, Positions, Vote)
#: Progress messages: each includes the one before.
_CUMULATIVE = (Ack, Positions, Standing)
#: Deeds that may be due to the predecessor on a chain.
_IN_TIME = (Deed.DELAYED, Deed.REORDERED)


class Deeds:
    """All deeds and equivocations of faulty nodes in one run."""

    __slots__ = (
        "_before",
        "_deferred",
        "_done",
        "_manifest",
        "_opened",
        "_progress",
        "_proposed",
        "_reached",
        "_versions",
        "knowledge",
    )

    def __init__(self, reached: Callable[[NodeId, NodeId], bool], manifest: Manifest) -> None:
        self._manifest = manifest
        #: Predecessor of a node on the chain of a stream.
        self._before: dict[tuple[NodeId, Stream | None], str] = {}
        #: Streams that a publisher opened beside its machine's own, by publisher, peer and channel.
        self._opened: dict[tuple[NodeId, NodeId, str], set[Stream]] = {}
        #: Versions of each run or instance, with the peers that were shown each.
        self._versions: dict[_Place, dict[bytes, dict[NodeId, None]]] = {}
        #: Whether a peer (second) is correct and connected to a node (first).
        self._reached = reached
        #: Every deed, in order of time.
        self._done: dict[DeedKey, list[_Occurrence]] = {}
        #: Runs that each leader proposed, and so must have.
        self._proposed: set[tuple[NodeId, Stream, int]] = set()
        #: Progress messages with their times, by sender, receiver and kind.
        self._progress: dict[tuple[NodeId, NodeId, type], list[tuple[int, Message]]] = {}
        #: Knowledge of the correct nodes, from which follows which deeds they could notice.
        self.knowledge = Knowledge()
        #: Messages held back now.
        self._deferred: list[_Deferred] = []

    def around(self, node: NodeId, fault: Fault) -> Fault:
        """The same fault, with its deeds recorded here."""
        return _Recorded(node, fault, self)

    def compare(
        self, node: NodeId, fault: str, wanted: list[Effect], done: list[Effect | Later], now: int
    ) -> None:
        """Record the deeds among `done`, the effects carried out instead of `wanted`."""
        intended, sent = by_peer(wanted), by_peer(done)
        delayed = by_peer(delayed_effects(done))
        due = {id(later.effect): now + later.after_ms for later in done if isinstance(later, Later)}
        self._record_reordering(node, fault, done, due, now)
        equivocal = self._record_leader_equivocation(node, sent)
        for peer, messages in sent.items():
            for message, _ in messages:
                if isinstance(message, Propose):
                    items = [(node, item.stream, item.first) for item in message.batch]
                    self._proposed.update(items)
                if isinstance(message, _CUMULATIVE):
                    times = self._progress.setdefault((node, peer, type(message)), [])
                    times.append((now, message))
        for change in changes(intended, sent, delayed):
            peer = change.peer
            if not self._reached(node, peer):
                continue
            for meant in change.delayed:
                self._add(node, fault, Deed.DELAYED, meant, peer, now)
            for shown in (*sent.get(peer, ()), *delayed.get(peer, ())):
                self._record_version(node, shown, peer)
            for meant, instead in change.altered:
                if self._leader_place(
                    node, instead.message
                ) not in equivocal and not self._is_version(node, meant, instead):
                    self._add(node, fault, Deed.ALTERED, meant, peer, now)
            for meant in change.dropped:
                self._add(node, fault, Deed.DROPPED, meant, peer, now)
            for extra in change.added:
                if not self._may_open(node, extra.message, peer):
                    self._add(node, fault, Deed.ADDED, extra, peer, now)

    def _may_open(self, node: NodeId, message: Message, peer: NodeId) -> bool:
        """Whether a publisher speaks of one of the streams that it may have at the same time."""
        if not isinstance(message, Open | Publish) or message.stream.publisher != node:
            return False
        channel = message.stream.channel
        entry = self._manifest.channel(channel)
        opened = self._opened.setdefault((node, peer, channel), set())
        opened.add(message.stream.data)
        return entry is not None and len(opened) < MAX_UNUSED

    def _record_version(self, node: NodeId, shown: SentMessage, peer: NodeId) -> None:
        """Note which version of its own run a publisher shows to a peer."""
        message = shown.message
        self._before_on_chain(node, message)
        if not isinstance(message, _SHOWN) or message.stream.publisher != node:
            return
        stream = message.stream
        versions = [(type(message).__name__, message.first, message.digests)]
        if stream.lane is Lane.HISTORY:
            # The signature covers the index of the history, not the number of its publication.
            read = [read_history(body, stream) for body in shown.bodies]
            versions = [
                ("History", found[1].index, found[1].first.to_bytes(8, "big") + found[1].digests)
                for found in read
                if found is not None
            ]
        for kind, number, version in versions:
            place = (node, kind, stream, number)
            self._versions.setdefault(place, {}).setdefault(version, {})[peer] = None

    def _before_on_chain(self, node: NodeId, message: Message) -> str:
        """The predecessor from which a node has a chained message; "" if it is not chained."""
        if not isinstance(message, ChainRun | Vote) or node not in message.order:
            return ""
        before = (message.stream.publisher, *message.order)[message.order.index(node)]
        self._before[node, message.stream.data] = before
        return before

    def _leader_place(self, node: NodeId, message: Message) -> _Place | None:
        """The instance that a message is about, if its sender leads the message's regency."""
        if not isinstance(message, Propose | Write):
            return None
        members = self._manifest.broker_ids
        if members[message.regency % len(members)] != node:
            return None
        return (node, type(message).__name__, (message.log, message.regency), message.instance)

    def _record_leader_equivocation(
        self, node: NodeId, sent: dict[NodeId, list[SentMessage]]
    ) -> set[_Place | None]:
        """Note and return the instances for which a leader sends different values at once."""
        equivocal: set[_Place | None] = set()
        told: dict[_Place, dict[bytes, list[NodeId]]] = {}
        for peer, messages in sent.items():
            for message, _ in messages:
                place = self._leader_place(node, message)
                if place is not None and self._reached(node, peer):
                    versions = told.setdefault(place, {})
                    versions.setdefault(msgspec.json.encode(message), []).append(peer)
        for place, versions in told.items():
            if len(versions) > 1:
                equivocal.add(place)
                for version, peers in versions.items():
                    shown = self._versions.setdefault(place, {}).setdefault(version, {})
                    shown.update(dict.fromkeys(peers))
        return equivocal

    def _is_version(self, node: NodeId, meant: SentMessage, instead: SentMessage) -> bool:
        """Whether a publisher sends a well-formed other version of a run of its own."""
        before, (after, bodies) = meant.message, instead
        if (
            not isinstance(before, _SHOWN)
            or not isinstance(after, _SHOWN)
            or before.stream != after.stream
            or after.stream.publisher != node
            or before.digests == after.digests
            or after.digests != b"".join(map(self._manifest.hash, bodies))
        ):
            return False
        return not isinstance(after, Offer) or all(
            body.startswith(label(after.stream, number))
            for number, body in enumerate(bodies, after.first)
        )

    def differences(self) -> dict[Difference, int]:
        """The number of places at which each pair of nodes was shown different versions."""
        found: dict[Difference, int] = {}
        for (node, kind, _, _), versions in self._versions.items():
            signed = kind in ("Offer", "History")
            pairs = {
                (min(one, other), max(one, other))
                for said, peers in versions.items()
                for also_said, others in versions.items()
                if said < also_said
                for one in peers
                for other in others
            }
            for one, other in sorted(pairs):
                difference = Difference(node, one, other, signed)
                found[difference] = found.get(difference, 0) + 1
        return found

    def _record_reordering(
        self,
        node: NodeId,
        fault: str,
        done: list[Effect | Later],
        due: dict[int, int],
        now: int,
    ) -> None:
        """Record each deferred message that a later message of the same topic overtakes."""
        self._deferred = [held for held in self._deferred if held.due > now]
        for one in done:
            effect = one.effect if isinstance(one, Later) else one
            if not isinstance(effect, Send) or not isinstance(effect.message, _IN_ORDER):
                continue
            at = due.get(id(effect), now)
            topic = (node, type(effect.message), stream_of(effect.message))
            overtaken = [
                held
                for held in self._deferred
                if held.due > at
                and held.topic == topic
                and _is_ordered_before(held.send.message, effect.message)
            ]
            for held in overtaken:
                for peer in held.send.to:
                    if peer in effect.to and self._reached(node, peer):
                        late = SentMessage(held.send.message, held.send.bodies)
                        self._add(node, fault, Deed.REORDERED, late, peer, now)
                self._deferred.remove(held)
            if at > now:
                self._deferred.append(_Deferred(at, effect, topic))

    def _add(
        self, node: NodeId, fault: str, deed: Deed, about: SentMessage, peer: NodeId, now: int
    ) -> None:
        message = about.message
        if deed in (Deed.DROPPED, *_IN_TIME) and isinstance(message, REQUESTS):
            return
        to_broker = peer in self._manifest.broker_ids
        if deed is Deed.DROPPED and to_broker and not self._must_have(node, message):
            return  # a correct broker that lacks the contents does not answer either
        stream = _stream_about(message)
        channel = self._awaited_channel(message, stream, peer)
        if deed is not Deed.ADDED and channel and not self.knowledge.is_joined(peer, channel):
            return  # the peer does not expect the message
        before = ""
        if deed is Deed.DROPPED or deed in _IN_TIME:
            before = self._before_on_chain(node, message) or self._before.get((node, stream), "")
        key = DeedKey(
            node=node,
            fault=fault,
            deed=deed,
            message=type(message).__name__,
            towards=peer,
            publisher=stream.publisher if stream else "",
            history=stream is not None and stream.lane is Lane.HISTORY,
            before=before,
        )
        run = None
        if deed is Deed.DROPPED and isinstance(message, Open | Publish | ChainRun | Offer):
            first = 0 if isinstance(message, Open) else message.first
            if message.stream.publisher == node or isinstance(message, Offer):
                run = RunStart(message.stream, first)
        awaited_on = channel if deed is Deed.DROPPED else None
        self._done.setdefault(key, []).append(_Occurrence(now, message, run, awaited_on))

    def _must_have(self, node: NodeId, message: Message) -> bool:
        """Whether the others can know that a node has the contents it does not hand over."""
        if isinstance(message, Offer) and message.stream.publisher != node:
            return (node, message.stream, message.first) in self._proposed
        return not isinstance(message, Contents)

    def _awaited_channel(
        self, message: Message, stream: Stream | None, peer: NodeId
    ) -> Channel | None:
        """The channel that a client must be subscribed to in order to expect a message."""
        if not isinstance(message, _TO_SUBSCRIBERS) or peer in self._manifest.broker_ids:
            return None
        if isinstance(message, Positions):
            return message.channel
        return None if stream is None else stream.channel

    def done(self, end: int) -> dict[DeedKey, int]:
        """The number of times each deed was done such that its victim could notice."""
        found: dict[DeedKey, int] = {}
        for key, occurrences in self._split_late():
            conspicuous = key.deed in (Deed.ALTERED, Deed.ADDED)
            counted = [
                one.message
                for one in occurrences
                if (conspicuous or self.knowledge.is_lossless(key.node, key.towards, one.at))
                and (
                    one.awaited_on is None
                    or self.knowledge.stays_joined(key.towards, one.awaited_on, one.at)
                )
                and (one.run is None or self._is_missed(key, one.run, one.at, end))
            ]
            if key.deed is Deed.DROPPED:
                # A dropped retransmission is not a second deed.
                once = [message for message in counted if isinstance(message, _SENT_ONCE)]
                counted = [m for m in counted if not isinstance(m, _SENT_ONCE)]
                counted += dict.fromkeys(once)
            if counted:
                found[key] = found.get(key, 0) + len(counted)
        return found

    def _split_late(self) -> Iterator[tuple[DeedKey, list[_Occurrence]]]:
        """All deeds; dropped messages that a later one includes are listed as delayed."""
        for key, occurrences in self._done.items():
            if key.deed is not Deed.DROPPED:
                yield key, occurrences
                continue
            late: list[_Occurrence] = []
            never: list[_Occurrence] = []
            for one in occurrences:
                (late if self._is_included(key, one) else never).append(one)
            yield key, never
            yield msgspec.structs.replace(key, deed=Deed.DELAYED), late

    def _is_included(self, key: DeedKey, dropped: _Occurrence) -> bool:
        """Whether the node soon sent the same peer a message that includes the dropped one."""
        sent = self._progress.get((key.node, key.towards, type(dropped.message)), [])
        begin = bisect_right(sent, dropped.at, key=lambda one: one[0])
        end = bisect_right(sent, dropped.at + OVERDUE_MS, key=lambda one: one[0])
        return any(_includes(sent[place][1], dropped.message) for place in range(begin, end))

    def _is_missed(self, key: DeedKey, run: RunStart, at: int, end: int) -> bool:
        """Whether the victim noticed that a withheld run is missing."""
        if run.stream.publisher == key.node:
            return self.knowledge.misses(key.towards, run, end)
        return not self.knowledge.has_from_publisher(key.towards, run, at)


class _Recorded:
    """A fault whose deeds are recorded."""

    __slots__ = ("_deeds", "_fault", "_node")

    def __init__(self, node: NodeId, fault: Fault, deeds: Deeds) -> None:
        self._node = node
        self._fault = fault
        self._deeds = deeds

    @property
    def name(self) -> str:
        return self._fault.name

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        done = self._fault.tamper(list(effects), now)
        self._deeds.compare(self._node, self.name, effects, done, now)
        return done


def _stream_about(message: Message) -> Stream | None:
    """The stream that a message is about."""
    stream = stream_of(message) or getattr(message, "stream", None)
    if isinstance(message, Checkpoint):
        statement = parse_statement(message.statement.payload)
        stream = None if statement is None else statement.stream
    return stream if isinstance(stream, Stream) else None


def _is_ordered_before(message: Message, after: Message) -> bool:
    """Whether receivers can tell that a message belongs before another; equal acks are equal."""
    return not isinstance(message, Ack) or not isinstance(after, Ack) or message.upto < after.upto


def _includes(later: Message, message: Message) -> bool:
    """Whether a later progress message covers an earlier one on the same stream, channel or log."""
    match later, message:
        case Ack(), Ack():
            return (
                later.stream == message.stream
                and later.upto >= message.upto
                and later.settled >= message.settled
            )
        case Positions(), Positions():
            return later.channel == message.channel
        case Standing(), Standing():
            return later.log is message.log
        case _:
            return False
