"""The subscribing role of a node: one subscriber machine, its driver, and the open `Subscription`s.

Several `Subscription`s may share a channel; the machine joins it once. While the queue of any of
them is full the role is *held*: its machine hears nothing and its clock stands still, so that
nobody is suspected of our own slowness. `node.Node` decides what happens to the sockets meanwhile.
An application that waits for an answer (a recall, a receipt) takes nothing from its queue until it
has it: while one does, the machine hears answers all the same, and nothing else.

A subscription to a pattern follows the epochs: it joins a channel that is made later from its first
publication on, one that it only now has the right to from then on (from the oldest, if that is how
it began itself), and it leaves those that are gone, or that it may not read any more, without an
error. Of several that gain a channel at once the one that begins earliest decides: they share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from quorumcast.broadcast.application import (
    Deliver,
    Gap,
    Join,
    Leave,
    Prove,
    Proven,
    Recall,
    Recalled,
    Refused,
    Waive,
)
from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Checkpoint, Positions
from quorumcast.cell.subscribing import subscriber as agent
from quorumcast.cell.subscribing.recalling import RecallDue
from quorumcast.client.outgoing import MakeDriver
from quorumcast.client.rights import matching_channels
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.statements import Receipt
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Opened
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.patterns import is_pattern
from quorumcast.named.ranges import spans
from quorumcast.runtime.telemetry import Telemetry

RECEIPT_TIMEOUT_S = 30.0
#: Positions recalled at once.
MOST_RECALLED = 256
#: What a held subscriber did not hear, in `telemetry.drops`.
HELD = "held-back"
#: Packets kept while held; a paused socket delivers at most what one read had brought.
MAX_KEPT = 1024


#: What recalls and receipts are made of.
ANSWERS = (Contents, Checkpoint, Positions)


class Incoming:
    """What a node subscribes to."""

    def __init__(
        self,
        manifest: Manifest,
        keyring: Keyring,
        make_driver: MakeDriver,
        telemetry: Telemetry,
        *,
        on_refused: Callable[[Refused], None],
        on_held: Callable[[], None],
        on_undecodable: Callable[[Deliver], None],
    ) -> None:
        self._machine = agent.Subscriber(manifest, keyring)
        self._manifest = manifest
        self._me = keyring.identity.name
        self._telemetry = telemetry
        self._on_held = on_held
        self._on_undecodable = on_undecodable
        self._all: list[Subscription] = []
        #: The same by channel; those to a pattern under each of their channels.
        self._subscriptions: dict[Channel, list[Subscription]] = {}
        self._proofs: dict[tuple[Stream, int], list[asyncio.Future[Receipt]]] = {}
        self._recalls: dict[tuple[Channel, int], list[asyncio.Future[Recalled]]] = {}
        self._recalling = asyncio.Semaphore(2)
        #: Whether a subscription's queue is full.
        self.held = False
        #: Whether the sockets are paused while held: then little more comes, and it is kept.
        self.paused = False
        #: Packets that were read already when the sockets were paused; heard after the hold.
        self._kept: list[tuple[NodeId, Opened]] = []
        #: Whether messages were dropped since the hold began.
        self._missed = False
        self.driver = make_driver(
            "subscriber",
            self._machine,
            {
                Deliver: self._on_deliver,
                Gap: self._on_gap,
                Proven: self._on_proven,
                Recalled: self._on_recalled,
                Refused: on_refused,
            },
        )

    # -------------------------------------------------------------- subscriptions

    def add(self, subscription: Subscription) -> None:
        """Join its channels."""
        taken = [c for c in subscription.channels if self._subscriptions.get(c)]
        ends = any(s.until for channel in taken for s in self._subscriptions[channel])
        if taken and (subscription.start is not None or ends):
            raise UsageError(
                f"this node listens to {taken[0]!r} already; to begin elsewhere, "
                "connect a second node"
            )
        self._all.append(subscription)
        for channel in subscription.channels:
            self._join(subscription, channel, subscription.start)

    def _join(self, subscription: Subscription, channel: Channel, start: int | None) -> None:
        present = self._subscriptions.setdefault(channel, [])
        present.append(subscription)
        if len(present) == 1:
            since_us = 0 if start is None else subscription.since_us
            self.driver.feed(Join(channel, start, since_us, subscription.until))
        self._check_joined(channel)

    def _leave(self, subscription: Subscription, channel: Channel) -> None:
        present = self._subscriptions[channel]
        present.remove(subscription)
        if not present:
            del self._subscriptions[channel]
            self.driver.feed(Leave(channel))
            left = UsageError(f"this node listens to {channel!r} no more: subscribe again")
            self._fail_recalls(left, channel)

    def adopt(self, manifest: Manifest) -> None:
        """Go on in a new epoch: channels may have more columns, and patterns other channels."""
        before, self._manifest = self._manifest, manifest
        # The machine joins a channel once: whoever wants its past must come first.
        for subscription in sorted(self._all, key=lambda s: (s.start is None, s.since_us)):
            if is_pattern(subscription.channel):
                self._follow(subscription, before)
            for channel in subscription.channels:
                subscription.adopt(manifest.channel(channel))

    def _follow(self, subscription: Subscription, before: Manifest) -> None:
        found = matching_channels(self._manifest, self._me, subscription.channel)
        names = {entry.name for entry in found}
        for channel in subscription.channels:
            if channel not in names:
                subscription.detach(channel)
                self._leave(subscription, channel)
        for entry in found:
            if entry.name not in subscription.channels:
                whole = before.channel(entry.name) is None or subscription.start == 0
                subscription.attach(entry)
                self._join(subscription, entry.name, 0 if whole else None)

    def subscription_closed(self, subscription: Subscription) -> None:
        """Its application listens no more."""
        self._all.remove(subscription)
        for channel in subscription.channels:
            self._leave(subscription, channel)
        self.queue_changed()

    def _check_joined(self, channel: Channel) -> None:
        waiting = [s for s in self._subscriptions.get(channel, ()) if s.awaits(channel)]
        if waiting and self._machine.joined(channel):
            for subscription in waiting:
                subscription.stands(channel, self._machine.ends(channel))

    def _on_deliver(self, effect: Deliver) -> None:
        self._telemetry.publications += 1
        for subscription in self._subscriptions.get(effect.stream.channel, ()):
            subscription.deliver(effect)

    def _on_gap(self, effect: Gap) -> None:
        for subscription in self._subscriptions.get(effect.stream.channel, ()):
            subscription.gap(effect)

    def undecodable(self, delivered: Deliver) -> None:
        """A publisher sent what the schema does not allow."""
        self._on_undecodable(delivered)

    def ignored(self, reason: str, publications: int) -> None:
        """An application will not see these, for this reason."""
        self._telemetry.drops[reason] += publications

    # ------------------------------------------------------------------- messages

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Messages for the machine, which hears none while it is held."""
        if self.held:
            if self.awaits:
                answers = [said for said in opened if type(said[0]) in ANSWERS]
                self._missed |= len(answers) < len(opened)
                self._telemetry.drops[HELD] += len(opened) - len(answers)
                self._hear(peer, answers)
            elif self.paused and len(self._kept) < MAX_KEPT:
                self._kept.append((peer, opened))
            else:
                self._missed = True
                self._telemetry.drops[HELD] += len(opened)
            return
        self._hear(peer, opened)

    def _hear(self, peer: NodeId, opened: Opened) -> None:
        self.driver.receive(peer, opened)
        for message, _ in opened:
            if type(message) is Positions:
                self._check_joined(message.channel)

    def queue_changed(self) -> None:
        """Hold the machine while a queue is full; let it go on when none is."""
        full = any(s.full for s in self._all)
        if full and not self.held:
            self.held = True
            self.driver.hold(RecallDue)
            self._on_held()
        elif not full and self.held:
            self.held = False
            self.driver.release()
            self._on_held()

    @property
    def awaits(self) -> bool:
        """Whether the application waits for an answer."""
        return bool(self._recalls or self._proofs)

    def _awaits_changed(self) -> None:
        if self.held:
            self._on_held()

    def go_on(self, peers: Iterable[NodeId]) -> None:
        """After a hold: hear what was kept, and ask again if anything was dropped."""
        kept, self._kept = self._kept, []
        for peer, opened in kept:
            self.receive(peer, opened)
        if self._missed and not self.held:
            self._missed = False
            for peer in peers:
                self.driver.peer_up(peer)

    # ------------------------------------------------------------------- receipts

    async def prove(self, delivered: Deliver) -> Receipt:
        """Ask the brokers to sign for a publication."""
        stream, number, contents = delivered.provable
        key = (stream, number)
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        waiting = self._proofs.setdefault(key, [])
        waiting.append(future)
        self._awaits_changed()
        try:
            self.driver.feed(Prove(stream, number, contents))
            async with asyncio.timeout(RECEIPT_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise UsageError(
                f"no receipt of publication {number} of {stream}: too few "
                "brokers still hold its segment; ask sooner after it arrives"
            ) from None
        finally:
            waiting.remove(future)
            if not waiting and self._proofs.get(key) is waiting:
                del self._proofs[key]
            self._awaits_changed()

    def _on_proven(self, effect: Proven) -> None:
        for future in self._proofs.get((effect.receipt.stream, effect.receipt.number), ()):
            if not future.done():
                future.set_result(effect.receipt)

    # ------------------------------------------------------------------- recalls

    def end(self, channel: Channel) -> int:
        """The position that comes next on a channel that is listened to, as far as is known."""
        return self._machine.end(channel)

    def oldest(self, channel: Channel) -> int:
        """The oldest position of a channel that is listened to and still held."""
        return self._machine.oldest(channel)

    async def recall(self, channel: Channel, positions: Iterable[int]) -> list[Recalled]:
        """Positions of the past of a channel that is listened to, once more.

        As long as it takes: a cell without enough brokers answers when they are back.
        """
        found: list[Recalled] = []
        wanted = list(positions)
        for index in range(0, len(wanted), MOST_RECALLED):
            async with self._recalling:
                found += await self._recall_some(channel, wanted[index : index + MOST_RECALLED])
        return found

    async def _recall_some(self, channel: Channel, positions: list[int]) -> list[Recalled]:
        loop = asyncio.get_running_loop()
        futures: dict[int, asyncio.Future[Recalled]] = {p: loop.create_future() for p in positions}
        for position, future in futures.items():
            self._recalls.setdefault((channel, position), []).append(future)
        self._awaits_changed()
        try:
            for first, last in spans(positions):
                self.driver.feed(Recall(channel, first, last - first + 1))
            return list(await asyncio.gather(*futures.values()))
        finally:
            waived: list[int] = []
            for position, future in futures.items():
                future.cancel()
                waiting = self._recalls.get((channel, position), [])
                if future in waiting:
                    waiting.remove(future)
                    if not waiting:
                        del self._recalls[channel, position]
                        waived.append(position)
            # Or what nobody waits for would leave no room for what somebody does.
            for first, last in spans(waived):
                self.driver.feed(Waive(channel, first, last - first + 1))
            self._awaits_changed()

    def _on_recalled(self, effect: Recalled) -> None:
        for future in self._recalls.pop((effect.channel, effect.position), ()):
            if not future.done():
                future.set_result(effect)

    # --------------------------------------------------------------------- ending

    def fail(self, error: Exception, channel: Channel | None = None) -> None:
        """Nothing more will come (on this channel)."""
        for subscription in list(self._all):
            # A pattern is told by the manifest what it may read; only its beginning can fail.
            if channel in (None, subscription.channel) or subscription.awaits(channel):
                subscription.fail(error)
        if channel is None:
            _fail_all((f for waiting in self._proofs.values() for f in waiting), error)
        self._fail_recalls(error, channel)

    def _fail_recalls(self, error: Exception, channel: Channel | None) -> None:
        """Those of one channel, or of all."""
        for (name, _), waiting in self._recalls.items():
            if channel in (None, name):
                _fail_all(waiting, error)

    def close(self) -> None:
        """End every subscription."""
        for subscription in list(self._all):
            subscription.close()


def _fail_all(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
