"""The subscribing role of a node: one subscriber machine, its driver, and open subscriptions.

Several `Subscription`s may share a channel; the machine joins each channel once, for the rows that
any of them wants (`readers`).

Back-pressure: while the queue of a subscription is full, the role is *suspended*. The machine gets
no messages and its timers are stopped, so that it does not suspect brokers for our own delay.
`node.Node` decides whether sockets are read meanwhile. There is one exception: an application that
awaits a recall or a receipt takes nothing from its queue until the answer arrives, so the machine
still gets messages that can be part of such an answer.

A subscription to a pattern follows the manifest. It joins a new channel from its first publication,
and a channel that it has just gained the right to read from now on (from the oldest publication, if
the subscription began with "earliest"). It leaves deleted channels, and those that it may no longer
read, without an error. If several subscriptions join a channel at once, the earliest start counts,
because they share the machine's subscription to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from quorumcast.broadcast.application import (
    Deliver,
    DeliverGap,
    Join,
    Leave,
    Passed,
    Prove,
    Proven,
    Recall,
    Recalled,
    Refused,
    Select,
    Waive,
)
from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Checkpoint, Positions
from quorumcast.cell.subscribing.recalling import RecallDue
from quorumcast.cell.subscribing.subscriber import Subscriber as SubscriberMachine
from quorumcast.client.arguments import Where
from quorumcast.client.publishing.outgoing import DescribeBrokers, MakeDriver
from quorumcast.client.readers import ChannelReaders, Reselection
from quorumcast.client.selecting import Filters
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.statements import Receipt
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Opened
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.patterns import is_pattern
from quorumcast.manifest.rights import matching_channels
from quorumcast.named.ranges import spans
from quorumcast.runtime.telemetry import Telemetry

RECEIPT_TIMEOUT_S = 30.0
#: Positions in one recall.
MAX_RECALLED = 256
#: Drop reason in `telemetry.drops`: messages that arrived while the role was suspended.
SUSPENDED = "held-back"
#: Packets kept while suspended: those that were read before the sockets were paused.
MAX_KEPT = 1024
#: Messages that can be part of a recall or a receipt.
ANSWERS = (Contents, Checkpoint, Positions)


class Incoming:
    """The subscriptions of a node, and the machine that serves them."""

    def __init__(
        self,
        manifest: Manifest,
        keyring: Keyring,
        make_driver: MakeDriver,
        telemetry: Telemetry,
        *,
        on_refused: Callable[[Refused], None],
        on_suspended: Callable[[], None],
        on_undecodable: Callable[[Deliver], None],
        describe_brokers: DescribeBrokers,
    ) -> None:
        self._machine = SubscriberMachine(manifest, keyring)
        self._manifest = manifest
        self._me = keyring.identity.name
        self._telemetry = telemetry
        self._on_suspended = on_suspended
        self._on_undecodable = on_undecodable
        self._describe_brokers = describe_brokers
        self._all: list[Subscription] = []
        #: The same by channel; one to a pattern is listed under each of its channels.
        self._subscriptions: dict[Channel, ChannelReaders] = {}
        #: Channels of which other rows may be wanted than were asked for, and changes of
        #: subscriptions; brokers are asked in the next turn of the event loop.
        self._reselected: dict[Channel, None] = {}
        self._changes: list[Reselection] = []
        self._select_due: asyncio.Handle | None = None
        self._proofs: dict[tuple[Stream, int], list[asyncio.Future[Receipt]]] = {}
        self._recalls: dict[tuple[Channel, int], list[asyncio.Future[Recalled]]] = {}
        self._recalling = asyncio.Semaphore(2)
        #: Whether a subscription's queue is full.
        self.suspended = False
        #: Whether the node has paused its sockets: then few packets arrive, and they are kept.
        self.paused = False
        #: Packets that arrived after the sockets were paused, at most MAX_KEPT.
        self._kept: list[tuple[NodeId, Opened]] = []
        #: Whether messages were dropped while suspended.
        self._missed = False
        self.driver = make_driver(
            "subscriber",
            self._machine,
            {
                Deliver: self._on_deliver,
                DeliverGap: self._on_gap,
                Passed: self._on_passed,
                Proven: self._on_proven,
                Recalled: self._on_recalled,
                Refused: on_refused,
            },
        )

    # -------------------------------------------------------------- subscriptions

    def add(self, subscription: Subscription) -> None:
        """Open a subscription: join its channels."""
        taken = [c for c in subscription.channels if c in self._subscriptions]
        ends = any(s.until for channel in taken for s in self._subscriptions[channel].all)
        if taken and (subscription.start is not None or ends):
            raise UsageError(
                f"this node has subscribed to {taken[0]!r} already; to begin elsewhere, "
                "connect a second node"
            )
        subscription.open(self)
        self._all.append(subscription)
        for channel in subscription.channels:
            self._join(subscription, channel, subscription.start)

    def _join(self, subscription: Subscription, channel: Channel, start: int | None) -> None:
        readers = self._subscriptions.get(channel)
        if readers is None:
            readers = self._subscriptions[channel] = ChannelReaders(channel, subscription)
            since_us = 0 if start is None else subscription.since_us
            self.driver.feed(
                Join(channel, start, since_us, subscription.until, where=readers.where)
            )
        elif readers.add(subscription):
            self._select_soon(channel)
        self._check_joined(channel)

    def _leave(self, subscription: Subscription, channel: Channel) -> None:
        readers = self._subscriptions[channel]
        readers.remove(subscription)
        if readers.all:
            self._select_soon(channel)
            return
        del self._subscriptions[channel]
        self.driver.feed(Leave(channel))
        left = UsageError(f"this node has left {channel!r}: subscribe again")
        self._fail_recalls(left, channel)

    async def change(self, subscription: Subscription, where: Where, filters: Filters) -> None:
        """Let a subscription select other rows from now on."""
        done = asyncio.get_running_loop().create_future()
        self._changes.append(Reselection(subscription, where, filters, done))
        self._select_soon(*filters)
        await asyncio.shield(done)

    def _select_soon(self, *channels: Channel) -> None:
        """Ask brokers for what is wanted now, once for all that happens in this turn.

        Not at once, because the effects of one event may be half carried out: what is still to be
        delivered was selected by what was asked for before.
        """
        self._reselected.update(dict.fromkeys(channels))
        if self._select_due is None:
            self._select_due = asyncio.get_running_loop().call_soon(self._select)

    def _select(self) -> None:
        self._select_due = None
        changes, self._changes = self._changes, []
        channels, self._reselected = self._reselected, {}
        for change in changes:
            change.subscription.select(change.where, change.filters)
        for channel in channels:
            readers = self._subscriptions.get(channel)
            if readers is None:
                continue
            if readers.select():
                try:
                    self.driver.feed(Select(channel, readers.where))
                except UsageError as error:  # a channel that was made anew has other columns
                    self.fail(error, channel)
            self._check_joined(channel)
        for change in changes:
            if is_pattern(change.subscription.channel) and change.subscription in self._all:
                self._update_channels(change.subscription, None)
            if not change.done.done():
                change.done.set_result(None)

    def adopt(self, manifest: Manifest) -> None:
        """Adopt a new epoch: channels may have more columns, and patterns other channels."""
        before, self._manifest = self._manifest, manifest
        # The machine joins a channel once, so subscriptions that want old data must join first.
        for subscription in sorted(self._all, key=lambda s: (s.start is None, s.since_us)):
            if is_pattern(subscription.channel):
                self._update_channels(subscription, before)
            for channel in subscription.channels:
                subscription.adopt(manifest.channel(channel))
        for readers in self._subscriptions.values():
            readers.adopt()

    def _update_channels(self, subscription: Subscription, before: Manifest | None) -> None:
        """Follow the manifest, with the one before it; None if the predicate has changed."""
        matching = matching_channels(self._manifest, self._me, subscription.channel)
        found = subscription.suiting(matching)
        names = {entry.name for entry in found}
        for channel in subscription.channels:
            if channel not in names:
                subscription.detach(channel)
                self._leave(subscription, channel)
        for entry in found:
            if entry.name not in subscription.channels:
                whole = before is not None and (
                    before.channel(entry.name) is None or subscription.start == 0
                )
                subscription.attach(entry)
                self._join(subscription, entry.name, 0 if whole else None)

    def subscription_closed(self, subscription: Subscription) -> None:
        """Remove a subscription that its application has closed."""
        self._all.remove(subscription)
        for channel in subscription.channels:
            self._leave(subscription, channel)
        self.queue_changed()

    def _check_joined(self, channel: Channel) -> None:
        readers = self._subscriptions.get(channel)
        waiting = [s for s in readers.present if s.awaits(channel)] if readers is not None else []
        if waiting and self._machine.joined(channel):
            ends, dropped = self._machine.ends(channel), self._machine.dropped(channel)
            for subscription in waiting:
                subscription.established(channel, ends, dropped)

    def _on_deliver(self, effect: Deliver) -> None:
        self._telemetry.publications += 1
        readers = self._subscriptions.get(effect.stream.channel)
        if readers is not None:
            readers.deliver(effect)

    def _on_gap(self, effect: DeliverGap) -> None:
        readers = self._subscriptions.get(effect.stream.channel)
        for subscription in readers.present if readers is not None else ():
            subscription.gap(effect)

    def _on_passed(self, effect: Passed) -> None:
        readers = self._subscriptions.get(effect.stream.channel)
        for subscription in readers.present if readers is not None else ():
            subscription.passed(effect.stream, effect.upto)

    def describe_brokers(self, channel: Channel | None = None) -> str:
        """Which brokers have reported what they hold of a channel; without one, the connected."""
        if channel is None:
            return self._describe_brokers("connected", None)
        return self._describe_brokers("answered", self._machine.silent(channel))

    def undecodable(self, delivered: Deliver) -> None:
        """Report contents that violate the schema of their channel."""
        self._on_undecodable(delivered)

    def ignored(self, reason: str, publications: int) -> None:
        """Count publications that do not reach the application."""
        self._telemetry.drops[reason] += publications

    # ------------------------------------------------------------------- messages

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Pass messages to the machine, unless the role is suspended."""
        if self.suspended:
            if self.awaits:
                answers = [item for item in opened if type(item[0]) in ANSWERS]
                self._missed |= len(answers) < len(opened)
                self._telemetry.drops[SUSPENDED] += len(opened) - len(answers)
                self._pass_on(peer, answers)
            elif self.paused and len(self._kept) < MAX_KEPT:
                self._kept.append((peer, opened))
            else:
                self._missed = True
                self._telemetry.drops[SUSPENDED] += len(opened)
            return
        self._pass_on(peer, opened)

    def _pass_on(self, peer: NodeId, opened: Opened) -> None:
        self.driver.receive(peer, opened)
        for message, _ in opened:
            if type(message) is Positions:
                self._check_joined(message.channel)

    def queue_changed(self) -> None:
        """Suspend the role while a queue is full; resume it when none is."""
        full = any(s.full for s in self._all)
        if full and not self.suspended:
            self.suspended = True
            self.driver.hold(RecallDue)
            self._on_suspended()
        elif not full and self.suspended:
            self.suspended = False
            self.driver.release()
            self._on_suspended()

    @property
    def awaits(self) -> bool:
        """Whether the application awaits a recall or a receipt."""
        return bool(self._recalls or self._proofs)

    def _awaits_changed(self) -> None:
        if self.suspended:
            self._on_suspended()

    def catch_up(self, peers: Iterable[NodeId]) -> None:
        """After a suspension: process kept packets, and request again what was dropped."""
        kept, self._kept = self._kept, []
        for peer, opened in kept:
            self.receive(peer, opened)
        if self._missed and not self.suspended:
            self._missed = False
            for peer in peers:
                self.driver.peer_up(peer)

    # ------------------------------------------------------------------- receipts

    async def prove(self, delivered: Deliver) -> Receipt:
        """Request signed statements about a publication from brokers; return them as a receipt."""
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
        """The next position of a joined channel, as far as is known."""
        return self._machine.end(channel)

    def oldest(self, channel: Channel) -> int:
        """The oldest position of a joined channel that brokers still hold."""
        return self._machine.oldest(channel)

    async def recall(self, channel: Channel, positions: Iterable[int]) -> list[Recalled]:
        """Fetch old positions of a joined channel again.

        There is no timeout: if too few brokers are available, the answer comes when they are back.
        """
        found: list[Recalled] = []
        wanted = list(positions)
        for index in range(0, len(wanted), MAX_RECALLED):
            async with self._recalling:
                found += await self._recall_some(channel, wanted[index : index + MAX_RECALLED])
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
            abandoned: list[int] = []
            for position, future in futures.items():
                future.cancel()
                waiting = self._recalls.get((channel, position), [])
                if future in waiting:
                    waiting.remove(future)
                    if not waiting:
                        del self._recalls[channel, position]
                        abandoned.append(position)
            # Otherwise abandoned recalls would use up the room of those that are still wanted.
            for first, last in spans(abandoned):
                self.driver.feed(Waive(channel, first, last - first + 1))
            self._awaits_changed()

    def _on_recalled(self, effect: Recalled) -> None:
        for future in self._recalls.pop((effect.channel, effect.position), ()):
            if not future.done():
                future.set_result(effect)

    # --------------------------------------------------------------------- ending

    def fail(self, error: Exception, channel: Channel | None = None) -> None:
        """End all subscriptions, or those of one channel, with an error."""
        for subscription in list(self._all):
            # A pattern loses channels by the manifest, not by refusals, once it is established.
            if channel in (None, subscription.channel) or subscription.awaits(channel):
                subscription.fail(error)
        if channel is None:
            _fail_all((f for waiting in self._proofs.values() for f in waiting), error)
        self._fail_recalls(error, channel)

    def _fail_recalls(self, error: Exception, channel: Channel | None) -> None:
        """Fail the recalls of one channel, or all."""
        for (name, _), waiting in self._recalls.items():
            if channel in (None, name):
                _fail_all(waiting, error)

    def close(self) -> None:
        """Close every subscription."""
        for subscription in list(self._all):
            subscription.close()


def _fail_all(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
