"""What faulty nodes really did, message by message: the labels that an audit is measured by.

A record is put around a fault and compares what the honest machine inside was about to say with
what is said instead. Each difference towards a correct node that can be reached is a *deed*:
something dropped, altered, added or delayed. Nothing here depends on what anybody noticed.

A publisher is free to publish what it likes, on as many streams as it may have: other contents than
its machine's are a lie only where two correct nodes were shown different ones. These are kept as
*versions*, by who was shown which. What it keeps from a node is a deed towards that node only if
the node learns from others that there is such a run, or stream, before it is shown it after all: of
what is nowhere nobody can say who has it. On a chain, too, who gets nothing, or gets it late,
cannot tell whether its neighbour kept it or the one *before*; nor can who waits in vain to be told
what became of it. What a node does not ask is no deed: it need not want to know. And a word that
tells how far a node is, and is soon followed by one that says as much, is late and not missing.

A leader is as free to propose what it likes, and votes for it: if it tells brokers different things
of one instance, no broker can say which of them is the altered one. These are versions, too.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterator

import msgspec

from quorumcast.broadcast.messages import Ack, ChainRun, Contents, Echo, Open, Publish, Ready
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.messages import Checkpoint, Positions, Vote
from quorumcast.cell.serving.desks import MAX_UNUSED
from quorumcast.core.ids import Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import parse_statement
from quorumcast.faults.cell.base import stream_of
from quorumcast.faults.cell.tally import REQUESTS, Word, by_peer, changes, later
from quorumcast.faults.contract import Fault, Later
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.messages import Accept, Offer, Propose, Standing, Write
from quorumcast.sim.cell.labels.hearsay import Hearsay, Run
from quorumcast.watch.turnout import PATIENCE_MS


class Deed(enum.Enum):
    """What was done to a message."""

    DROPPED = "dropped"
    ALTERED = "altered"
    ADDED = "added"
    #: Said later; nobody can tell that from distance.
    DELAYED = "delayed"
    #: Said after what followed it about the same stream, where correct nodes keep the order.
    REORDERED = "reordered"


class DeedKey(msgspec.Struct, frozen=True):
    """Who did what to which messages, towards whom."""

    node: NodeId
    fault: str
    deed: Deed
    message: str
    towards: NodeId
    publisher: str
    #: Whether it is about histories, or about what was published.
    history: bool
    #: On a chain, who may have been late, or kept it back, itself; "": nobody.
    before: str = ""


class Difference(msgspec.Struct, frozen=True):
    """A publisher or leader showed two correct nodes, or one of them twice, different things."""

    node: NodeId
    one: NodeId
    other: NodeId
    #: Whether it signed them, so that whoever holds both can prove it.
    signed: bool


#: Who showed what: the kind of message, the stream or log and regency, and the number.
_Place = tuple[NodeId, str, object, int]
#: When something was done, to which word, about which run, and on which channel it is awaited.
_Done = tuple[int, Message, Run | None, Channel | None]
#: Messages by which publishers show their runs.
_SHOWN = (Publish, ChainRun, Offer)
#: What is said once of one thing, and again only if it may have got lost.
_SAID_ONCE = (Accept, ChainRun, Echo, Offer, Open, Propose, Publish, Ready, Vote, Write)
#: What correct nodes say in the order of its numbers; of the rest nobody can tell what was first.
_IN_ORDER = (Ack, ChainRun, Propose, Publish, Standing, Vote)
#: What a broker tells whoever listens to a channel.
_TO_LISTENERS = (Checkpoint, Contents, Positions, Vote)
#: Words that tell how far a node is: the next one includes what the last one said.
_INCLUDED = (Ack, Positions, Standing)
#: What may be the doing of whoever comes before on a chain.
_IN_TIME = (Deed.DELAYED, Deed.REORDERED)


class Deeds:
    """Everything that faulty nodes did in one run."""

    __slots__ = (
        "_before",
        "_done",
        "_manifest",
        "_opened",
        "_proposed",
        "_put_off",
        "_reached",
        "_said",
        "_versions",
        "heard",
    )

    def __init__(self, reached: Callable[[NodeId, NodeId], bool], manifest: Manifest) -> None:
        self._manifest = manifest
        #: Who is before a node on the chain of a stream.
        self._before: dict[tuple[NodeId, Stream | None], str] = {}
        #: The streams that a publisher opened beside its own, by peer and channel.
        self._opened: dict[tuple[NodeId, NodeId, str], set[Stream]] = {}
        #: What publishers showed of each run of theirs, and leaders of each instance, and to whom.
        self._versions: dict[_Place, dict[bytes, dict[NodeId, None]]] = {}
        #: Whether a peer is correct and can be reached by a node.
        self._reached = reached
        #: When each deed was done, to which words, which run a publisher kept back, or a broker did
        #: not pass on, if it did, and on which channel who lacks it listens for it.
        self._done: dict[DeedKey, list[_Done]] = {}
        #: The runs that each leader proposed, and so has.
        self._proposed: set[tuple[NodeId, Stream, int]] = set()
        #: When each node said to each peer how far it is.
        self._said: dict[tuple[NodeId, NodeId, type], list[tuple[int, Message]]] = {}
        #: What reached whom.
        self.heard = Hearsay()
        #: What is put off: until when, what, and about what.
        self._put_off: list[tuple[int, Send, tuple[NodeId, type, Stream | None]]] = []

    def around(self, node: NodeId, fault: Fault) -> Fault:
        """The same fault, on record."""
        return _Recorded(node, fault, self)

    def compare(
        self, node: NodeId, fault: str, wanted: list[Effect], done: list[Effect | Later], now: int
    ) -> None:
        """What was to be done, and what was done instead."""
        intended, said, delayed = by_peer(wanted), by_peer(done), by_peer(later(done))
        due = {id(later.effect): now + later.after_ms for later in done if isinstance(later, Later)}
        self._overtake(node, fault, done, due, now)
        torn = self._tear(node, said)
        for peer, words in said.items():
            for message, _ in words:
                if isinstance(message, Propose):
                    items = [(node, item.stream, item.first) for item in message.batch]
                    self._proposed.update(items)
                if isinstance(message, _INCLUDED):
                    self._said.setdefault((node, peer, type(message)), []).append((now, message))
        for change in changes(intended, said, delayed):
            peer = change.peer
            if not self._reached(node, peer):
                continue
            for word in change.put_off:
                self._add(node, fault, Deed.DELAYED, word, peer, now)
            for word in (*said.get(peer, ()), *delayed.get(peer, ())):
                self._show(node, word, peer)
            for word, instead in change.altered:
                if self._led(node, instead[0]) not in torn and not self._is_version(
                    node, word, instead
                ):
                    self._add(node, fault, Deed.ALTERED, word, peer, now)
            for word in change.dropped:
                self._add(node, fault, Deed.DROPPED, word, peer, now)
            for word in change.added:
                if not self._may_open(node, word, peer):
                    self._add(node, fault, Deed.ADDED, word, peer, now)

    def _may_open(self, node: NodeId, word: Word, peer: NodeId) -> bool:
        """Whether a publisher speaks of one of the streams that it may have at the same time."""
        message = word[0]
        if not isinstance(message, Open | Publish) or message.stream.publisher != node:
            return False
        channel = message.stream.channel
        entry = self._manifest.channel(channel)
        opened = self._opened.setdefault((node, peer, channel), set())
        opened.add(message.stream.data)
        return entry is not None and len(opened) < MAX_UNUSED

    def _show(self, node: NodeId, word: Word, peer: NodeId) -> None:
        message, bodies = word
        self._before_on_chain(node, message)
        if not isinstance(message, _SHOWN) or message.stream.publisher != node:
            return
        stream = message.stream
        shown = [(type(message).__name__, message.first, message.digests)]
        if stream.lane is Lane.HISTORY:
            # What is signed is the number of the history, not that of its publication.
            read = [read_history(body, stream) for body in bodies]
            shown = [
                ("History", found[1].index, found[1].first.to_bytes(8, "big") + found[1].digests)
                for found in read
                if found is not None
            ]
        for kind, number, said in shown:
            place = (node, kind, stream, number)
            self._versions.setdefault(place, {}).setdefault(said, {})[peer] = None

    def _before_on_chain(self, node: NodeId, message: Message) -> str:
        """Who hands a node what it passes on, if it does so on a chain."""
        if not isinstance(message, ChainRun | Vote) or node not in message.order:
            return ""
        before = (message.stream.publisher, *message.order)[message.order.index(node)]
        self._before[node, message.stream.data] = before
        return before

    def _led(self, node: NodeId, message: Message) -> _Place | None:
        """What a leader says of an instance."""
        if not isinstance(message, Propose | Write):
            return None
        members = self._manifest.broker_ids
        if members[message.regency % len(members)] != node:
            return None
        return (node, type(message).__name__, (message.log, message.regency), message.instance)

    def _tear(self, node: NodeId, said: dict[NodeId, list[Word]]) -> set[_Place | None]:
        """The instances of which a leader tells different things at the same time."""
        torn: set[_Place | None] = set()
        told: dict[_Place, dict[bytes, list[NodeId]]] = {}
        for peer, words in said.items():
            for message, _ in words:
                place = self._led(node, message)
                if place is not None and self._reached(node, peer):
                    versions = told.setdefault(place, {})
                    versions.setdefault(msgspec.json.encode(message), []).append(peer)
        for place, versions in told.items():
            if len(versions) > 1:
                torn.add(place)
                for version, peers in versions.items():
                    shown = self._versions.setdefault(place, {}).setdefault(version, {})
                    shown.update(dict.fromkeys(peers))
        return torn

    def _is_version(self, node: NodeId, word: Word, instead: Word) -> bool:
        """Whether a publisher says something else of its own, and nothing is wrong with that."""
        (before, _), (after, bodies) = word, instead
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
        """How often publishers showed different things to the same two."""
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

    def _overtake(
        self,
        node: NodeId,
        fault: str,
        done: list[Effect | Later],
        due: dict[int, int],
        now: int,
    ) -> None:
        """Note what is put off until after something that follows it."""
        self._put_off = [entry for entry in self._put_off if entry[0] > now]
        for one in done:
            effect = one.effect if isinstance(one, Later) else one
            if not isinstance(effect, Send) or not isinstance(effect.message, _IN_ORDER):
                continue
            at = due.get(id(effect), now)
            about = (node, type(effect.message), stream_of(effect.message))
            overtaken = [e for e in self._put_off if e[0] > at and e[2] == about]
            for entry in [e for e in overtaken if _says_less(e[1].message, effect.message)]:
                for peer in entry[1].to:
                    if peer in effect.to and self._reached(node, peer):
                        word = (entry[1].message, entry[1].bodies)
                        self._add(node, fault, Deed.REORDERED, word, peer, now)
                self._put_off.remove(entry)
            if at > now:
                self._put_off.append((at, effect, about))

    def _add(
        self, node: NodeId, fault: str, deed: Deed, word: Word, peer: NodeId, now: int
    ) -> None:
        if deed in (Deed.DROPPED, *_IN_TIME) and isinstance(word[0], REQUESTS):
            return
        to_broker = peer in self._manifest.broker_ids
        if deed is Deed.DROPPED and to_broker and not self._must_have(node, word[0]):
            return  # a broker that does not have what another one asks for says nothing either
        about = _about(word[0])
        channel = self._channel_for(word[0], about, peer)
        if deed is not Deed.ADDED and channel and not self.heard.listens(peer, channel):
            return  # nobody cares
        before = ""
        if deed is Deed.DROPPED or deed in _IN_TIME:
            before = self._before_on_chain(node, word[0]) or self._before.get((node, about), "")
        key = DeedKey(
            node=node,
            fault=fault,
            deed=deed,
            message=type(word[0]).__name__,
            towards=peer,
            publisher=about.publisher if about else "",
            history=about is not None and about.lane is Lane.HISTORY,
            before=before,
        )
        message, run = word[0], None
        if deed is Deed.DROPPED and isinstance(message, Open | Publish | ChainRun | Offer):
            first = 0 if isinstance(message, Open) else message.first
            if message.stream.publisher == node or isinstance(message, Offer):
                run = (message.stream, first)
        awaited = channel if deed is Deed.DROPPED else None
        self._done.setdefault(key, []).append((now, message, run, awaited))

    def _must_have(self, node: NodeId, message: Message) -> bool:
        """Whether the others can know that a node has what it does not hand over."""
        if isinstance(message, Offer) and message.stream.publisher != node:
            return (node, message.stream, message.first) in self._proposed
        return not isinstance(message, Contents)

    def _channel_for(self, message: Message, about: Stream | None, peer: NodeId) -> Channel | None:
        """The channel that a subscriber must listen to for this to be for it."""
        if not isinstance(message, _TO_LISTENERS) or peer in self._manifest.broker_ids:
            return None
        if isinstance(message, Positions):
            return message.channel
        return None if about is None else about.channel

    def done(self, end: int) -> dict[DeedKey, int]:
        """How often each deed was done, as far as whom it was done to can tell."""
        found: dict[DeedKey, int] = {}
        for key, times in self._told_apart():
            plain = key.deed in (Deed.ALTERED, Deed.ADDED)
            counted = [
                message
                for t, message, run, awaited in times
                if (plain or self.heard.is_clear(key.node, key.towards, t))
                and (awaited is None or self.heard.stays(key.towards, awaited, t))
                and (run is None or self._is_missed(key, run, t, end))
            ]
            if key.deed is Deed.DROPPED:
                # Who lacks one thing lacks it once, however often it might have been told.
                once = [message for message in counted if isinstance(message, _SAID_ONCE)]
                counted = [m for m in counted if not isinstance(m, _SAID_ONCE)]
                counted += dict.fromkeys(once)
            if counted:
                found[key] = found.get(key, 0) + len(counted)
        return found

    def _told_apart(self) -> Iterator[tuple[DeedKey, list[_Done]]]:
        """Deeds, and those that are only late apart from what never came."""
        for key, times in self._done.items():
            if key.deed is not Deed.DROPPED:
                yield key, times
                continue
            late: list[_Done] = []
            never: list[_Done] = []
            for one in times:
                (late if self._is_included(key, one[0], one[1]) else never).append(one)
            yield key, never
            yield msgspec.structs.replace(key, deed=Deed.DELAYED), late

    def _is_included(self, key: DeedKey, at: int, message: Message) -> bool:
        """Whether a node soon says as much again to the same peer."""
        said = self._said.get((key.node, key.towards, type(message)), [])
        begin = bisect_right(said, at, key=lambda one: one[0])
        end = bisect_right(said, at + PATIENCE_MS, key=lambda one: one[0])
        return any(_includes(said[place][1], message) for place in range(begin, end))

    def _is_missed(self, key: DeedKey, run: Run, at: int, end: int) -> bool:
        if run[0].publisher == key.node:
            return self.heard.is_missed(key.towards, run, end)
        return not self.heard.has(key.towards, run, at)


class _Recorded:
    """A fault whose deeds are written down."""

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


def _about(message: Message) -> Stream | None:
    """The stream that a message speaks of."""
    stream = stream_of(message) or getattr(message, "stream", None)
    if isinstance(message, Checkpoint):
        statement = parse_statement(message.statement.payload)
        stream = None if statement is None else statement.stream
    return stream if isinstance(stream, Stream) else None


def _says_less(message: Message, than: Message) -> bool:
    """Whether it can be told that it comes too late: equal acknowledgements have no order."""
    return not isinstance(message, Ack) or not isinstance(than, Ack) or message.upto < than.upto


def _includes(later: Message, message: Message) -> bool:
    """Whether a later word says as much of the same stream, channel or log."""
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
