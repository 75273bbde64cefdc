"""The simulated network: real sealed packets over links that delay, lose, duplicate and reorder.

Links are kept (`connect`), or dialed once and hung up when a machine asks for it. Two nodes that
dial each other share one call, where the runtime makes two and keeps one. A connection is made with
fresh nonces, exactly as in the runtime: both ends derive a `Session` from their pairwise key, and
every packet is sealed and opened by the production code. So that code, and no model of it, must
detect packets that an attacker on the wire altered, replayed or forged.

In the *safety phase* `Weather` gives the rates of loss, duplication, reordering and attacks;
`calm()` ends all of them. Each direction of a link may have its own latency and loss
(`LinkWeather`), which may change with time; the latency stays after `calm()`. A partition makes
nodes unreachable: packets are lost at once and sessions break shortly after. Healing lets both ends
reconnect.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from quorumcast.core.ids import NodeId, holder
from quorumcast.core.limits import MAX_DIALED
from quorumcast.core.machine import DialFailure
from quorumcast.core.message import Message
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import MAC_SIZE
from quorumcast.crypto.session import (
    NONCE_SIZE,
    PROTOCOL,
    Family,
    Hello,
    Parcel,
    Refusal,
    Session,
    encode_parcel,
    make_session,
)
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.kernel.scheduler import Scheduler

#: Longest time until a partitioned link breaks.
NOTICE_MS = 15
#: Time before the ends of a broken link reconnect.
RECONNECT_MS = 10
#: Time after which an unanswered dialed call fails.
UNANSWERED_MS = 50
#: Jitter of the calm network.
CALM_JITTER_MS = 2


class LinkWeather(msgspec.Struct, frozen=True):
    """Conditions of one direction of a link from a time on, in place of the `Weather`."""

    sender: NodeId
    receiver: NodeId
    latency_ms: int
    jitter_ms: int = 0
    loss: int = 0
    since_ms: int = 0


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of the network; rates are in packets per thousand."""

    latency_ms: int = 1
    jitter_ms: int = 2
    loss: int = 0
    duplication: int = 0
    reordering: int = 0
    #: Packets of which an attacker on the wire also sends a copy with one bit flipped.
    corruption: int = 0
    #: Packets after which an attacker on the wire sends an old frame again.
    replay: int = 0
    #: Directions of links whose frames an attacker also sends back to the sender.
    reflected: tuple[tuple[NodeId, NodeId], ...] = ()
    #: Directions of links with other conditions; the latest that has begun is in force.
    links: tuple[LinkWeather, ...] = ()


class Sealed(msgspec.Struct, eq=False):
    """The contents of one sealed packet, and whether its receiver has accepted it."""

    sender: NodeId
    messages: list[bytes]
    taken: bool = False


#: Number of frames of a connection that an attacker on the wire remembers.
RECORDED = 16


class SimulatedLink(msgspec.Struct, eq=False):
    """The connection between two nodes, made by `caller`."""

    caller: NodeId
    callee: NodeId
    #: Whether the ends reconnect after each break.
    is_kept: bool = True
    #: Ends that have dialed and do not know the result yet.
    waiting: dict[NodeId, None] = {}
    #: Grows with every break: packets of an earlier connection never arrive.
    generation: int = 0
    #: Whether a greeting is under way: two at once would leave the ends with different keys.
    greeting: bool = False
    #: The live session of each end.
    sessions: dict[NodeId, Session] = {}
    #: Arrival time of the last packet towards each end; TCP keeps order.
    arrivals: dict[NodeId, int] = {}
    #: The last greeting, and the last frames towards each end, for an attacker that replays.
    hello: tuple[Hello, bytes] | None = None
    recorded: dict[NodeId, deque[tuple[bytes, Sealed]]] = {}

    def peer(self, end: NodeId) -> NodeId:
        """The other end."""
        return self.callee if end == self.caller else self.caller


class Network:
    """All links of the world."""

    def __init__(
        self,
        scheduler: Scheduler,
        keyrings: Mapping[NodeId, Keyring],
        family: Family,
        weather: Weather,
    ) -> None:
        self._scheduler = scheduler
        self._family = family
        self._rng = scheduler.fork("network")
        self._keyrings = keyrings
        self.weather = weather
        self._is_calm = False
        #: Conditions in force on the directions of links that have their own.
        self._on_link: dict[tuple[NodeId, NodeId], LinkWeather] = {}
        for change in weather.links:
            if change.since_ms:
                scheduler.after(change.since_ms, partial(self._change, change))
            else:
                self._change(change)
        self._nodes: dict[NodeId, SimulatedNode] = {}
        self._links: dict[tuple[NodeId, NodeId], SimulatedLink] = {}
        #: Pairs that cannot reach each other for now.
        self._cut: dict[tuple[NodeId, NodeId], None] = {}
        #: One side of the partition.
        self._inside: dict[NodeId, None] = {}
        #: Links that each node has dialed, open or under way.
        self._dialed: defaultdict[NodeId, dict[NodeId, None]] = defaultdict(dict)
        #: Largest number of dialed links per node.
        self.dialed_links = MAX_DIALED
        self.packets = 0
        self.messages = 0
        self.refused: Counter[Refusal] = Counter()
        #: (Sender, receiver) of packets that were accepted although they had been altered on the
        #: way: MACs cover messages, digests in these cover contents.
        self.altered: dict[tuple[NodeId, NodeId], None] = {}
        #: Called with (node behind, node ahead) when two nodes of different epochs meet.
        self.on_mismatch: Callable[[NodeId, NodeId], None] | None = None
        #: Called with (receiver, sender) when sequence numbers show that packets were lost.
        self.on_lost: Callable[[NodeId, NodeId], None] | None = None
        #: Called when a session accepts a packet that was not sealed for it.
        self.on_breach: Callable[[NodeId, NodeId, str], None] = lambda receiver, sender, how: None

    # ------------------------------------------------------------ links

    def add(self, node: SimulatedNode) -> None:
        """Add a node."""
        self._nodes[node.id] = node

    def connect(self, caller: NodeId, callee: NodeId) -> None:
        """Keep a link between two nodes from now on, through all breaks."""
        link = SimulatedLink(caller, callee)
        self._links[caller, callee] = self._links[callee, caller] = link
        self._scheduler.after(self._rng.randrange(RECONNECT_MS), lambda: self._greet(link))

    def talk(self, one: NodeId, other: NodeId) -> bool:
        """Whether there is a session between two nodes."""
        link = self._links.get((one, other))
        return link is not None and bool(link.sessions)

    def dial(self, caller: NodeId, callee: NodeId) -> None:
        """Call a node once, unless the two have a link or one is being made."""
        link = self._links.get((caller, callee))
        if link is not None:
            if not link.is_kept and caller not in link.sessions:
                link.waiting[caller] = None
            return
        directory = self._keyrings[caller].directory
        known = holder(callee) in directory.keys and directory.address(callee) is not None
        if not known or callee == caller:
            self._tell_unreachable(caller, callee, DialFailure.UNKNOWN)
        elif len(self._dialed[caller]) >= self.dialed_links:
            self._tell_unreachable(caller, callee, DialFailure.OVER_LIMIT)
        else:
            self._dialed[caller][callee] = None
            link = SimulatedLink(caller, callee, is_kept=False)
            link.waiting[caller] = None
            self._links[caller, callee] = self._links[callee, caller] = link
            if (caller in self._inside) != (callee in self._inside):
                self._cut[caller, callee] = self._cut[callee, caller] = None
            self._greet(link)

    def _tell_unreachable(self, caller: NodeId, callee: NodeId, reason: DialFailure) -> None:
        node = self._nodes[caller]

        def tell() -> None:
            link = self._links.get((caller, callee))
            if link is None or caller not in link.sessions:  # the peer may have called meanwhile
                node.unreachable(callee, reason)

        node.after(0, tell)

    def hangup(self, end: NodeId, peer: NodeId) -> None:
        """End a dialed link after what is on its way to the peer, or call it off."""
        link = self._links.get((end, peer))
        if link is None or link.is_kept:
            return
        link.waiting.pop(end, None)
        self._dialed[end].pop(peer, None)
        if link.greeting:
            link.generation += 1
            link.greeting = False
        node = self._nodes[end]
        if link.sessions.pop(end, None) is not None:
            node.after(0, lambda: node.disconnected(peer))
        on_its_way_ms = link.arrivals.get(peer, 0) - self._scheduler.now
        delay_ms = max(on_its_way_ms, self._latency(end, peer))
        self._scheduler.after(delay_ms, partial(self._hung_up, link, peer))

    def _hung_up(self, link: SimulatedLink, end: NodeId) -> None:
        """An end learns that its peer has hung up."""
        peer, is_open = link.peer(end), link.sessions.pop(end, None) is not None
        dials_again = link.waiting.pop(peer, 0) is None
        self._give_up(link, DialFailure.NO_ANSWER)
        if is_open:
            self._nodes[end].disconnected(peer)
        if dials_again:
            self.dial(peer, end)

    def _give_up(self, link: SimulatedLink, reason: DialFailure) -> None:
        """A dialed link is over; ends that still wait for it are told why."""
        if self._links.get((link.caller, link.callee)) is link:
            del self._links[link.caller, link.callee], self._links[link.callee, link.caller]
            self._dialed[link.caller].pop(link.callee, None)
            waiting, link.waiting = link.waiting, {}
            for end in waiting:
                self._tell_unreachable(end, link.peer(end), reason)

    def links_of(self, node: NodeId) -> list[SimulatedLink]:
        """Every link that a node has, in the order in which they were made."""
        return [link for (a, _), link in self._links.items() if a == node]

    def _reachable(self, link: SimulatedLink) -> bool:
        return (
            self._nodes[link.caller].up
            and link.callee in self._nodes
            and self._nodes[link.callee].up
            and (link.caller, link.callee) not in self._cut
            and (link.callee, link.caller) not in self._cut
        )

    def _greet(self, link: SimulatedLink) -> None:
        over = link.is_kept and (self._nodes[link.caller].left or self._nodes[link.callee].left)
        if link.sessions or link.greeting or over:
            return
        if not self._reachable(link):
            self._again(link, RECONNECT_MS)
            return
        link.greeting = True
        generation = link.generation
        caller, callee = self._keyrings[link.caller], self._keyrings[link.callee]
        hello = Hello(
            PROTOCOL,
            caller.instance,
            caller.epoch,
            link.caller,
            link.callee,
            self._rng.randbytes(NONCE_SIZE),
        )
        nonce = self._rng.randbytes(NONCE_SIZE)

        def called() -> None:
            if link.generation != generation or not self._reachable(link):
                link.greeting = False
                self._again(link, RECONNECT_MS)
                return
            if caller.epoch != callee.epoch or not (link.is_kept or callee.knows(link.caller)):
                self._refused(link, caller, callee)
                return
            if self.weather.replay:
                self._replay_greeting(link, hello, nonce)
            link.waiting.pop(link.callee, None)
            link.sessions[link.callee] = self._session(callee, link.caller, hello, nonce, False)
            delay_ms = self._latency(link.callee, link.caller)
            # No packet overtakes the answer to the greeting.
            link.arrivals = {link.caller: self._scheduler.now + delay_ms}
            self._scheduler.after(delay_ms, welcomed)
            self._nodes[link.callee].connected(link.caller)

        def welcomed() -> None:
            link.greeting = False
            if link.generation != generation:
                if link.is_kept:
                    self._greet(link)
                return
            link.waiting.pop(link.caller, None)
            link.sessions[link.caller] = self._session(caller, link.callee, hello, nonce, True)
            self._nodes[link.caller].connected(link.callee)

        self._scheduler.after(self._latency(link.caller, link.callee), called)

    def _refused(self, link: SimulatedLink, caller: Keyring, callee: Keyring) -> None:
        """Refuse a call from a node that is unknown or in another epoch."""
        link.greeting = False
        if link.is_kept:
            self._again(link, 2 * RECONNECT_MS)
        else:
            is_ahead = caller.epoch > callee.epoch
            reason = DialFailure.NO_ANSWER if is_ahead else DialFailure.REFUSED
            delay_ms = self._latency(link.callee, link.caller)
            self._scheduler.after(delay_ms, partial(self._give_up, link, reason))
        if caller.epoch != callee.epoch and self.on_mismatch is not None:
            late = link.caller if caller.epoch < callee.epoch else link.callee
            self.on_mismatch(late, link.peer(late))

    def _again(self, link: SimulatedLink, after_ms: int) -> None:
        """Reconnect after a delay if the link is kept; a dialed link fails."""
        if link.is_kept:
            self._scheduler.after(after_ms, lambda: self._greet(link))
        else:
            give_up = partial(self._give_up, link, DialFailure.NO_ANSWER)
            self._scheduler.after(UNANSWERED_MS, give_up)

    def _session(
        self, keyring: Keyring, peer: NodeId, hello: Hello, nonce: bytes, is_caller: bool
    ) -> Session:
        secret = keyring.secret(peer)
        factory, family = keyring.factory, self._family
        return make_session(secret, factory, hello, nonce, family, caller=is_caller)

    def _replay_greeting(self, link: SimulatedLink, hello: Hello, nonce: bytes) -> None:
        """Replay the previous greeting, or its answer, with the packets of that connection.

        Each end has drawn a fresh nonce since, so it must accept none of them.
        """
        before, link.hello = link.hello, (hello, nonce)
        recorded, link.recorded = link.recorded, {}
        if before is None:
            return
        for end, peer, greeting in (
            (link.callee, link.caller, (before[0], nonce)),
            (link.caller, link.callee, (hello, before[1])),
        ):
            fooled = self._session(self._keyrings[end], peer, *greeting, end == link.caller)
            for frame, _ in recorded.get(end, ()):
                if not isinstance(fooled.open(frame), Refusal):
                    self.on_breach(end, peer, "takes packets of an earlier connection")

    def break_link(self, link: SimulatedLink) -> None:
        """End a connection; both ends notice, and reconnect if the link is kept."""
        link.generation += 1
        ends = list(link.sessions)
        link.sessions.clear()
        if not link.is_kept:
            self._give_up(link, DialFailure.NO_ANSWER)
        for end, peer in ((link.caller, link.callee), (link.callee, link.caller)):
            if end in ends:
                self._nodes[end].disconnected(peer)
        if link.is_kept:
            self._again(link, RECONNECT_MS + self._rng.randrange(RECONNECT_MS))

    def break_all(self, node: NodeId) -> None:
        """End all connections of a crashed node."""
        for link in self.links_of(node):
            self.break_link(link)

    def partition(self, side: Sequence[NodeId]) -> None:
        """Cut these nodes off from all others; replaces an earlier partition."""
        self._cut.clear()
        self._inside = inside = dict.fromkeys(side)
        for (a, b), link in self._links.items():
            if (a in inside) != (b in inside):
                self._cut[a, b] = None
                if a == link.caller:
                    self._scheduler.after(
                        self._rng.randrange(NOTICE_MS), partial(self._notice, link)
                    )

    def mute(self, sender: NodeId, receivers: Sequence[NodeId]) -> None:
        """Lose all packets from one node to these, in this direction only; links do not break."""
        self._cut.update({(sender, receiver): None for receiver in receivers})

    def _notice(self, link: SimulatedLink) -> None:
        if (link.caller, link.callee) in self._cut and link.sessions:
            self.break_link(link)

    def heal(self) -> None:
        """End the partition."""
        self._cut.clear()
        self._inside = {}

    def calm(self) -> None:
        """End all loss, reordering, attacks and partitions; only latency remains."""
        self.heal()
        self.weather = Weather(latency_ms=self.weather.latency_ms, jitter_ms=CALM_JITTER_MS)
        self._is_calm = True
        for change in list(self._on_link.values()):
            self._change(change)

    # ---------------------------------------------------------- packets

    def _change(self, change: LinkWeather) -> None:
        """Put conditions of a link into force; after `calm()`, only their latency."""
        if self._is_calm:
            jitter = min(change.jitter_ms, CALM_JITTER_MS)
            change = msgspec.structs.replace(change, jitter_ms=jitter, loss=0)
        self._on_link[change.sender, change.receiver] = change

    def _on(self, sender: NodeId, receiver: NodeId) -> Weather | LinkWeather:
        return self._on_link.get((sender, receiver), self.weather)

    def _latency(self, sender: NodeId, receiver: NodeId) -> int:
        weather = self._on(sender, receiver)
        return weather.latency_ms + self._rng.randrange(weather.jitter_ms + 1)

    def _strikes(self, per_mille: int) -> bool:
        return per_mille > 0 and self._rng.randrange(1000) < per_mille

    def transmit(self, sender: NodeId, receiver: NodeId, parcels: list[Parcel]) -> None:
        """Seal these messages into one packet and send it, if there is a session."""
        link = self._links.get((sender, receiver))
        session = link.sessions.get(sender) if link is not None else None
        if link is None or session is None:
            return
        frame, sealed = session.seal(parcels), Sealed(sender, [raw for raw, _ in parcels])
        self.packets += 1
        self.messages += len(parcels)
        if (sender, receiver) in self._cut or self._strikes(self._on(sender, receiver).loss):
            return
        latency = partial(self._latency, sender, receiver)
        arrival = self._scheduler.now + latency()
        if not self._strikes(self.weather.reordering):
            arrival = max(arrival, link.arrivals.get(receiver, 0))
        link.arrivals[receiver] = max(arrival, link.arrivals.get(receiver, 0))
        self.carry(link, sender, receiver, frame, arrival - self._scheduler.now, sealed)
        if self._strikes(self.weather.duplication):
            self.carry(link, sender, receiver, frame, latency() * 2, sealed)
        if self._strikes(self.weather.corruption):
            corrupted = self._corrupted(frame)
            self.carry(link, sender, receiver, corrupted, latency(), sealed, altered=True)
        if self._strikes(self.weather.replay) and link.recorded.get(receiver):
            again, then = self._rng.choice(link.recorded[receiver])
            self.carry(link, sender, receiver, again, latency(), then)
        if self._strikes(self.weather.replay):
            # In the name of another peer, with which the receiver has a session.
            other = self._rng.choice(self.links_of(receiver))
            self.carry(other, other.peer(receiver), receiver, frame, 0, sealed)
        if (sender, receiver) in self.weather.reflected:
            self.carry(link, receiver, sender, frame, 0)
        if self.weather.replay:
            link.recorded.setdefault(receiver, deque(maxlen=RECORDED)).append((frame, sealed))

    def _corrupted(self, frame: bytes) -> bytes:
        at = self._rng.randrange(len(frame))
        return frame[:at] + bytes([frame[at] ^ (1 << self._rng.randrange(8))]) + frame[at + 1 :]

    def carry(
        self,
        link: SimulatedLink,
        sender: NodeId,
        receiver: NodeId,
        frame: bytes,
        delay_ms: int,
        sealed: Sealed | None = None,
        *,
        altered: bool = False,
    ) -> None:
        """Deliver bytes after a delay; an attacker may call this with bytes of its own."""
        generation = link.generation

        def arrive() -> None:
            session = link.sessions.get(receiver)
            if link.generation != generation or session is None:
                return
            before = session.received
            opened = session.open(frame)
            self._scheduler.note(frame[:20] + receiver.encode())
            if isinstance(opened, Refusal):
                self.refused[opened] += 1
            else:
                self._verify(sender, receiver, [message for message, _ in opened], sealed)
                if altered:
                    self.altered[sender, receiver] = None
                if self.on_lost is not None and session.received > before + 1:
                    self.on_lost(receiver, sender)
                self._nodes[receiver].receive(sender, opened)

        self._scheduler.after(delay_ms, arrive)

    def _verify(
        self,
        sender: NodeId,
        receiver: NodeId,
        messages: Sequence[Message],
        sealed: Sealed | None,
    ) -> None:
        """Check that an accepted packet is the one that the peer sealed, and is accepted once."""
        if sealed is None or sealed.sender != sender:
            self.on_breach(receiver, sender, "takes a packet that its peer did not send")
        elif sealed.taken:
            self.on_breach(receiver, sender, "takes a packet twice")
        elif self.weather.corruption and sealed.messages != [
            encode_parcel(message)[0] for message in messages
        ]:
            self.on_breach(receiver, sender, "takes a packet with other messages in it")
        else:
            sealed.taken = True

    def forge(self, sender: NodeId, receiver: NodeId, parcels: list[Parcel]) -> None:
        """Send a packet in another node's name, as an attacker without keys."""
        link = self._links.get((sender, receiver))
        session = link.sessions.get(receiver) if link is not None else None
        if link is None or session is None:
            return
        forger = Session(_no_mac, _no_mac, self._family)
        # Sequence numbers are readable on the wire.
        forger._sent = session._received
        self.carry(link, sender, receiver, forger.seal(parcels), 0)

    def impersonate(self, stolen: Keyring, broker: NodeId, parcels: list[Parcel]) -> None:
        """Call a broker with stolen keys of an old epoch, in their owner's name."""
        keyring, name = self._keyrings[broker], stolen.identity.name
        nonces = self._rng.randbytes(NONCE_SIZE), self._rng.randbytes(NONCE_SIZE)
        hello = Hello(PROTOCOL, keyring.instance, keyring.epoch, name, broker, nonces[0])
        thief = self._session(stolen, broker, hello, nonces[1], True)
        link = self._links[name, broker] = SimulatedLink(name, broker)
        link.sessions[broker] = self._session(keyring, name, hello, nonces[1], False)
        self._nodes[broker].connected(name)
        self.carry(link, name, broker, thief.seal(parcels), 1)

    def link(self, a: NodeId, b: NodeId) -> SimulatedLink | None:
        """The link between two nodes, if they have one."""
        return self._links.get((a, b))


def _no_mac(data: bytes) -> bytes:
    return b"\0" * MAC_SIZE
