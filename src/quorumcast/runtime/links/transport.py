"""All links of one node: which connections are made, accepted and replaced.

Nothing here depends on a system: the directory lists the nodes and the links to keep, a `Handshake`
authenticates, the listener handles messages. Each peer has at most one open link: a newer
authenticated one replaces the older, since a killed peer reconnects before TCP notices its end.

Other links are made on demand (`dial`) and end on demand (`hangup`). Of two nodes that dial each
other at the same time, one whose own call is still unanswered when the peer's link opens cancels
its call: the peer cannot have opened that one yet. If both calls were answered, both ends keep the
link that the node with the smaller name dialed.

Messages that are sent during one turn of the event loop are written at its end: one packet, one MAC
and one system call per peer. Outboxes are bounded in bytes per identity and in messages per link,
unfinished frames (`inbox`) in bytes per identity, unauthenticated connections (`strangers`) in
number, time and bytes, and processor time is shared (`fairness`). A link whose outbox is full and
whose peer reads nothing is closed; the protocols repair what the peer missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId, holder
from quorumcast.core.machine import Bodies, DialFailure
from quorumcast.core.message import Message
from quorumcast.crypto.directory import Address, Directory, is_kept
from quorumcast.crypto.session import encode_parcel
from quorumcast.runtime.links.contract import Handshake, Listener, Trouble
from quorumcast.runtime.links.dialer import Call, Dialer, connect
from quorumcast.runtime.links.fairness import Account, Classifier, Fairness, Load, Piece
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.link import Link, LinkDrop, Phase
from quorumcast.runtime.links.schemes import ListeningSocket, listen
from quorumcast.runtime.links.strangers import Strangers
from quorumcast.runtime.logs import note
from quorumcast.runtime.telemetry import Telemetry

#: The pause between two calls to peers that claim a newer epoch.
ASK_PAUSE_S = 0.5


class Transport:
    """Links over TCP or another transport (`schemes`), with or without TLS."""

    def __init__(
        self,
        directory: Directory,
        greeter: Handshake,
        listener: Listener,
        *,
        limits: TransportLimits | None = None,
        classifier: Callable[[], Classifier] | None = None,
        telemetry: Telemetry | None = None,
        rng: random.Random | None = None,
        on_other_epoch: Callable[[int], None] | None = None,
        on_proof: Callable[[bytes], None] | None = None,
    ) -> None:
        self._directory = directory
        self._greeter = greeter
        self._listener = listener
        self._limits = limits or TransportLimits()
        #: Makes a classifier for each link; None on nodes whose peers have no budget (clients).
        self._classifier = classifier
        self._fairness = Fairness(self._disconnect, is_broker=self._is_broker, limits=self._limits)
        self.telemetry = telemetry or Telemetry()
        self._rng = rng or random.Random()
        self._on_other_epoch = on_other_epoch
        self._on_proof = on_proof
        #: The call to a peer that claims a newer epoch; one at a time, as anybody can claim that.
        self._asking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        #: Open links; one per peer, all of them nodes of the directory.
        self._open: dict[NodeId, Link] = {}
        #: Incoming connections that are not authenticated yet.
        self._strangers: Strangers[Link] = Strangers(self._limits, self._is_broker)
        #: Identities whose outbox was full, until `_close_stalled` has looked at their links.
        self._crowded: set[NodeId] = set()
        #: Links to keep: they are called again whenever they break.
        self._dialers: dict[NodeId, Dialer] = {}
        #: Links that were dialed, open or under way; at most `dialed_links`.
        self._calls: dict[NodeId, Call] = {}
        #: Peers whose link was hung up in this turn, until the listener has been told.
        self._hung_up: set[NodeId] = set()
        self._server: ListeningSocket | None = None
        #: Links with something in their outbox, each once.
        self._waiting: list[Link] = []
        self._flush_scheduled = False
        self._paused = False
        self._closing = False

    def _is_broker(self, node: NodeId) -> bool:
        return self._directory.is_broker(node)

    # ------------------------------------------------------------------- start

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections at this address."""
        try:
            self._server = await listen(self._incoming, host, port, tls)
        except OSError as error:
            reason, advice = _cannot_listen(error)
            raise UsageError(
                f"{self._greeter.name} cannot listen on {host}:{port}: {reason}; "
                + advice.format(title=self._directory.title)
            ) from None

    def call_peers(self) -> None:
        """Start to keep the links that the directory wants this node to make."""
        for peer in self._directory.calls(self._greeter.name):
            address = self._directory.address(peer)
            if address is not None:
                make_link = functools.partial(self.outgoing, peer)
                self._dialers[peer] = Dialer(make_link, address, self._limits, self._rng)

    def _incoming(self) -> Link:
        return Link(self, self._greeter, self._listener.receive)

    def outgoing(self, peer: NodeId) -> Link:
        """A new link to a peer, yet to be connected."""
        return Link(self, self._greeter, self._listener.receive, peer)

    # ---------------------------------------------------------- links on demand

    def dial(self, peer: NodeId) -> None:
        """Call a peer once, unless there is a link, or one is kept or under way."""
        directory, me = self._directory, self._greeter.name
        if peer in self._open or peer in self._calls or is_kept(directory, me, peer):
            return
        address = directory.address(peer)
        if address is None or holder(peer) not in directory.keys or peer == me:
            self._loop.call_soon(self._tell_unreachable, peer, DialFailure.UNKNOWN)
        elif len(self._calls) >= self._limits.dialed_links:
            self._loop.call_soon(self._tell_unreachable, peer, DialFailure.OVER_LIMIT)
        elif not self._closing:
            self._calls[peer] = Call(self.outgoing(peer), address, self._limits, self._call_failed)

    def _tell_unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        self._tell_hung_up(peer)
        if peer not in self._open:  # the peer may have called meanwhile
            self._listener.unreachable(peer, reason)

    def _call_failed(self, call: Call, trouble: Trouble) -> None:
        peer = call.link.peer
        if self._calls.get(peer) is call:
            del self._calls[peer]
            note("cannot reach a peer", level=logging.DEBUG, peer=peer, reason=trouble.sentence)
            reason = DialFailure.REFUSED if trouble.refused else DialFailure.NO_ANSWER
            self._tell_unreachable(peer, reason)

    def hangup(self, peer: NodeId) -> None:
        """End a link or a call, unless the link is one that is kept."""
        if is_kept(self._directory, self._greeter.name, peer):
            self.telemetry.drops[LinkDrop.KEPT.value] += 1
            return
        call, link = self._calls.pop(peer, None), self._open.pop(peer, None)
        if link is not None:
            link.hang_up(f"{self._greeter.name} hung up")
            self._hung_up.add(peer)
            self._loop.call_soon(self._tell_hung_up, peer)
        elif call is not None:
            call.stop()

    def _tell_hung_up(self, peer: NodeId) -> None:
        """Tell the listener that a link was hung up, before the next one to that peer opens."""
        if peer in self._hung_up:
            self._hung_up.remove(peer)
            self._listener.peer_down(peer)

    def _has_crossed(self, link: Link) -> bool:
        """Whether the peer's call and our own call to it were both answered."""
        call = self._calls.get(link.peer)
        if call is None or call.link is link or call.link.phase is not Phase.OPEN:
            return False
        # A greeting that was under way when our link opened is complete within this time.
        return self._loop.time() - call.link.opened_at < self._limits.greeting_timeout_s

    # ------------------------------------------------------------------ sending

    def send(self, to: tuple[NodeId, ...], message: Message, bodies: Bodies) -> None:
        """Encode once, put into each peer's outbox, flush at the end of this turn."""
        raw, _ = parcel = encode_parcel(message, bodies)
        size = len(raw)
        if bodies:
            size += sum(map(len, bodies))
        links = self._open
        limits = self._limits
        for peer in to:
            link = links.get(peer)
            if link is None:
                self.telemetry.drops[LinkDrop.NOT_CONNECTED.value] += 1
                continue
            account, outbox = link.account, link.outbox
            if account is None:
                continue  # never so: an open link has one
            # An empty outbox takes one message of any size.
            waiting = account.outbox_bytes
            if waiting and (
                waiting + size > limits.outbox_bytes or len(outbox) >= limits.outbox_messages
            ):
                self._overflow(link)
                continue
            # As `Link.enter_outbox`, without the call: this is the hot path.
            outbox.append(parcel)
            link.outbox_bytes += size
            account.outbox_bytes = waiting + size
            if not link.listed:
                link.listed = True
                self._waiting.append(link)
        if not self._flush_scheduled and self._waiting:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what waits for every peer."""
        self._flush_scheduled = False
        waiting, self._waiting = self._waiting, []
        for link in waiting:
            link.listed = False
            if link.answer_bytes and link.account is not None:
                self._flush_answers(link, link.account)
            else:
                link.flush()

    def _flush_answers(self, link: Link, account: Account) -> None:
        """Write what waits, and charge the peer for the answers to its requests."""
        share = link.answer_bytes / link.outbox_bytes if link.outbox_bytes else 0.0
        begin = time.thread_time()
        link.flush()
        self._fairness.answered(account, time.thread_time() - begin, share)

    def _overflow(self, link: Link) -> None:
        """Drop a message for which there is no room; look later whether the peer reads at all."""
        self.telemetry.drops[LinkDrop.OUTBOX_FULL.value] += 1
        name = holder(link.peer)
        if name not in self._crowded:
            self._crowded.add(name)
            self._loop.call_later(self._limits.stall_timeout_s, self._close_stalled, name)

    def _close_stalled(self, name: NodeId) -> None:
        """Close those links of an identity on which nothing was read for a while."""
        self._crowded.discard(name)
        before = self._loop.time() - self._limits.stall_timeout_s
        for link in self._links_of(name):
            if link.full_since is not None and link.full_since <= before:
                self.telemetry.drops[LinkDrop.DEAF.value] += 1
                reason = f"{link.peer} has read nothing for {self._limits.stall_timeout_s:g} s"
                note("closed a link", level=logging.WARNING, peer=link.peer, reason=reason)
                link.abort(reason)

    def _links_of(self, name: NodeId) -> list[Link]:
        return [link for link in self._open.values() if holder(link.peer) == name]

    def _disconnect(self, name: NodeId, reason: str) -> None:
        """Close the links of an identity whose requests cost too much."""
        for link in self._links_of(name):
            self.telemetry.drops[LinkDrop.OVER_BUDGET.value] += 1
            link.abort(reason)

    # ------------------------------------------------------- what links tell us

    def connection_made(self, link: Link) -> bool:
        """Register a new connection; False if this node is closing."""
        if self._paused:
            link.pause_reading()
        if link.phase is Phase.CALLING:
            return True
        if self._closing:
            return False
        self._strangers.enter(link)
        return True

    def refusal(self, peer: NodeId) -> str:
        """Why a peer is refused for now, in a sentence; empty if it is not."""
        return self._fairness.refusal(peer)

    def greeted(self, link: Link) -> None:
        """A peer has named itself, without proof."""
        self._strangers.claim(link)

    def arrived(self, link: Link) -> None:
        """A link has read bytes."""
        if link.classifier is not None and link.account is not None:
            self._fairness.arrived(link.account, link)
            return
        while link.work() is not Piece.NOTHING:
            pass
        link.release()

    def link_open(self, link: Link) -> None:
        """A peer is authenticated: its link replaces an older one, unless two calls crossed."""
        self._strangers.leave(link)
        self._tell_hung_up(link.peer)
        crossed = self._has_crossed(link)
        if crossed and self._greeter.name < link.peer:
            link.close(f"{link.peer} has answered our own call")
            return
        call = self._calls.get(link.peer)
        if call is not None and call.link is not link:
            del self._calls[link.peer]
            call.stop()
        link.account = self._fairness.account(link.peer)
        link.classifier = None if self._classifier is None else self._classifier()
        older = self._open.get(link.peer)
        self._open[link.peer] = link
        if older is not None:
            self._replace(older, link, crossed=crossed)
            self._listener.peer_down(link.peer)
        if self._directory.is_broker(link.peer):
            self.telemetry.meet(link.peer)
        self._listener.peer_up(link.peer)

    def _replace(self, older: Link, link: Link, *, crossed: bool) -> None:
        """End the older link to a peer."""
        if crossed:
            older.close(f"{link.peer} has called as well")
            return
        note(
            f"{link.peer} connected from {link.address} while its link from {older.address} "
            "was open: unless that one was lost, two processes use one identity",
            level=logging.WARNING,
            peer=link.peer,
        )
        older.displace()

    def link_closed(self, link: Link) -> None:
        """A socket is gone."""
        self._strangers.leave(link)
        other_epoch = link.farewell_epoch
        if link.proof and self._on_proof is not None and not self._closing:
            self._on_proof(link.proof)
        if self._open.get(link.peer) is link:
            del self._open[link.peer]
            if link.peer in self._calls:
                del self._calls[link.peer]
            self._listener.peer_down(link.peer)
        if other_epoch > self._greeter.epoch and self._on_other_epoch is not None:
            self._ask(link)
            self._on_other_epoch(other_epoch)

    def _ask(self, link: Link) -> None:
        """Call back a peer that called from a newer epoch: its refusal carries the proof.

        The caller was not authenticated, so at most one such call is made at a time.
        """
        address = self._directory.address(link.peer)
        busy = self._asking is not None and not self._asking.done()
        if address is None or busy or self._closing or link.peer in self._dialers:
            return
        if self._on_proof is not None:
            self._asking = self._loop.create_task(self._call_once(link.peer, address))

    async def _call_once(self, peer: NodeId, address: Address) -> None:
        link = self.outgoing(peer)
        with contextlib.suppress(OSError, TimeoutError, UsageError):
            async with asyncio.timeout(self._limits.greeting_timeout_s):
                await connect(link, address)
                await link.gone.wait()
        link.abort("asked for its epoch")
        await asyncio.sleep(ASK_PAUSE_S)

    def link_ready(self, link: Link) -> None:
        """A socket takes bytes again: flush what waited."""
        if link.outbox and not link.listed:
            link.listed = True
            self._waiting.append(link)
            if not self._flush_scheduled:
                self._flush_scheduled = True
                self._loop.call_soon(self.flush)

    # ------------------------------------------------------------------- status

    def peers(self) -> list[NodeId]:
        """Peers with an open link."""
        return list(self._open)

    def troubles(self) -> dict[NodeId, Trouble]:
        """Why peers of links to keep have no open link."""
        return {
            peer: dialer.trouble for peer, dialer in self._dialers.items() if peer not in self._open
        }

    def load(self) -> dict[NodeId, Load]:
        """What each identity has cost so far."""
        return self._fairness.load()

    def sizes(self) -> dict[str, int]:
        """How much each container that peers can fill holds."""
        return {
            "links.open": len(self._open),
            "links.dialed": len(self._calls),
            "links.strangers": len(self._strangers),
            "links.outbox_messages": sum(len(link.outbox) for link in self._open.values()),
            "links.outbox_bytes": sum(link.outbox_bytes for link in self._open.values()),
            "links.inbox_bytes": self._fairness.inbox_bytes(),
        }

    # --------------------------------------------------------- pauses and ending

    def pause_reading(self) -> None:
        """Take nothing from any peer for a while."""
        self._paused = True
        for link in self._open.values():
            link.pause_reading()

    def resume_reading(self) -> None:
        """Take what peers send again."""
        self._paused = False
        for link in self._open.values():
            link.resume_reading()

    def cut(self) -> None:
        """For tests: break every link as a bad network would; they are made again."""
        for link in list(self._open.values()):
            link.abort("cut on request")

    def renew(self, directory: Directory, greeter: Handshake) -> None:
        """Go on to a new epoch: end every link, and greet anew with the new keys."""
        if self._closing:
            return
        self.flush()
        self._directory = directory
        self._greeter = greeter
        self._fairness.retain(directory.keys)
        self._stop_calling()
        for link in self._all():
            link.close(f"{self._greeter.name} took epoch {greeter.epoch}")
        for peer in list(self._open):
            del self._open[peer]
            self._listener.peer_down(peer)
        self.call_peers()

    def _stop_calling(self) -> None:
        """Stop all calls; open links stay."""
        for dialer in self._dialers.values():
            dialer.stop()
        self._dialers = {}
        calls, self._calls = self._calls, {}
        for peer, call in calls.items():
            if not call.link.was_open:
                call.stop()
                self._listener.unreachable(peer, DialFailure.NO_ANSWER)

    def _all(self) -> list[Link]:
        """Open links, and incoming ones that are not authenticated yet."""
        return [*self._open.values(), *self._strangers.all()]

    def leave(self, epoch: int) -> None:
        """That epoch does not list us: end all links, and answer greetings with its proof."""
        self.flush()
        self._greeter.leave(epoch)
        self._stop_calling()
        for link in self._all():
            link.close(f"{self._greeter.name} left with epoch {epoch}")

    async def close(self) -> None:
        """Write what waits, end every link, listen no more."""
        self._closing = True
        if self._asking is not None:
            self._asking.cancel()
        if self._server is not None:
            self._server.close()
        calling: list[Dialer | Call] = [*self._dialers.values(), *self._calls.values()]
        for one in calling:
            one.stop()
        self.flush()
        await self._close_links()
        for one in calling:
            await one.stopped()

    async def _close_links(self) -> None:
        links: Mapping[Link, object] = dict.fromkeys(self._all())
        for link in links:
            link.close(f"{self._greeter.name} stopped")
        for link in links:
            await link.gone.wait()


#: Why an address cannot be listened on, and what helps; {title} is that of the directory.
_LISTEN_ERRORS = {
    errno.EADDRINUSE: (
        "another program already uses that port",
        "stop it, or choose other ports with 'quorumcast init --base-port'",
    ),
    errno.EADDRNOTAVAIL: (
        "this machine does not have that address",
        "run the node on the machine that is named in the {title}",
    ),
    errno.EACCES: ("this user may not use that port", "choose one above 1023 in the {title}"),
}


def _cannot_listen(error: OSError) -> tuple[str, str]:
    unknown = (error.strerror or str(error), "check its address in the {title}")
    return _LISTEN_ERRORS.get(error.errno or 0, unknown)
