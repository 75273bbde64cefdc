"""The blocking client: the same nodes, with an event loop in a background thread.

    with quorumcast.sync.connect("cell", "alice") as node:
        with node.publisher("orders") as orders:
            orders.publish(b"payload")
        with node.subscribe("orders") as orders:
            for event in orders:
                print(event.payload)

Posted events are passed to the loop in bulk, and a subscription takes all waiting publications at
once, so the switch between threads costs once per burst and not once per event.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from quorumcast import client
from quorumcast.broadcast.application import Deliver
from quorumcast.client.arguments import Where
from quorumcast.client.events import Batch, BufferFull, Event, Gap, GapError
from quorumcast.client.loop_thread import ClosesOnExit, LoopThread
from quorumcast.client.named.subscription import Delivery, NamedSubscription
from quorumcast.client.node import Node
from quorumcast.client.options import (
    NamedSubscriptionOptions,
    PublisherOptions,
    SubscriptionOptions,
    takes,
)
from quorumcast.client.publishing.publisher import Publishable, Publisher, Publishers
from quorumcast.client.subscription import Subscription
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.machine import Suspect
from quorumcast.core.statements import Evidence, Receipt
from quorumcast.crypto.identity import Identity
from quorumcast.faults.contract import Fault
from quorumcast.manifest.manifest import Manifest
from quorumcast.named.state import SubscriptionState
from quorumcast.runtime.telemetry import Telemetry

T = TypeVar("T")


class SyncPublisher:
    """A blocking publisher."""

    #: Events that may wait to be passed to the loop.
    BUFFER = 65_536

    def __init__(self, thread: LoopThread, publisher: Publisher) -> None:
        self._thread = thread
        self._publisher = publisher
        #: Events that are posted here and not passed to the publisher in the loop.
        self._unpassed: deque[Any] = deque()
        self._scheduled = False

    def publish(self, event: Publishable, timeout_s: float | None = None) -> None:
        """Publish and wait until enough brokers hold it."""
        self._thread.run(self._publish(event), timeout_s, self._publisher.overdue)

    async def _publish(self, event: Publishable) -> None:
        await self._pass_all()
        await self._publisher.publish(event)

    def post(self, event: bytes | bytearray | memoryview | Mapping[str, object]) -> None:
        """Publish without waiting; `BufferFull` if there is no room."""
        if len(self._unpassed) >= self.BUFFER:
            raise BufferFull(f"{self.BUFFER:,} events wait: call 'ready()' before posting more")
        if type(event) is not bytes:
            event = self._publisher.admit(event)
        self._unpassed.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._thread.loop.call_soon_threadsafe(self._pass)

    def post_batch(self, batch: pa.RecordBatch) -> None:
        """Publish a record batch as one publication, without waiting for acknowledgement."""

        async def post() -> None:
            await self._pass_all()
            self._publisher.post_batch(batch)

        self._thread.run(post())

    def _pass(self) -> None:
        self._scheduled = False
        self._pass_some()
        if self._unpassed:  # the publisher's buffer is full
            self._scheduled = True
            task = self._thread.loop.create_task(self._pass_all())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _pass_all(self) -> None:
        while self._unpassed:
            await self._publisher.ready()
            self._pass_some()
        self._scheduled = False

    def _pass_some(self) -> None:
        unpassed, post = self._unpassed, self._publisher.post
        with contextlib.suppress(BufferFull):
            while unpassed:
                post(unpassed[0])
                unpassed.popleft()

    def ready(self, timeout_s: float | None = None) -> None:
        """Wait until `post` has room again."""
        self._thread.run(self._pass_all(), timeout_s, self._publisher.overdue)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything posted so far is acknowledged."""

        async def flush() -> None:
            await self._pass_all()
            await self._publisher.flush()

        self._thread.run(flush(), timeout_s, self._publisher.overdue)

    @property
    def channel(self) -> Channel:
        """The channel."""
        return self._publisher.channel

    @property
    def urgent(self) -> bool:
        """Whether its publications overtake those of the node's other publishers."""
        return self._publisher.urgent

    @property
    def pending(self) -> int:
        """Events posted and not yet acknowledged."""
        return len(self._unpassed) + self._publisher.pending

    def close(self) -> None:
        """Wait until everything posted is acknowledged, then close."""

        async def close() -> None:
            await self._pass_all()
            await self._publisher.close()

        self._thread.run(close())

    def __enter__(self) -> SyncPublisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._thread.run(self._publisher.__aexit__(kind))


class SyncPublishers(Mapping[Channel, SyncPublisher]):
    """Blocking publishers of all channels that match a pattern, as `Publishers`."""

    def __init__(self, thread: LoopThread, publishers: Publishers) -> None:
        self._thread = thread
        self._publishers = publishers
        self._open: dict[Channel, SyncPublisher] = {}

    def __getitem__(self, channel: str) -> SyncPublisher:
        name = Channel(channel)
        if name not in self._open:
            made = self._thread.call(lambda: self._publishers[name])
            self._open[name] = SyncPublisher(self._thread, made)
        return self._open[name]

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._publishers)

    def __len__(self) -> int:
        return len(self._publishers)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything posted so far is acknowledged, on all channels."""
        for publisher in self._open.values():
            publisher.flush(timeout_s)

    def close(self) -> None:
        """Wait until everything posted is acknowledged, then close all."""
        self.__exit__(None, None, None)

    def __enter__(self) -> SyncPublishers:
        return self

    def __exit__(self, *details: Any) -> None:
        with contextlib.ExitStack() as stack:  # the others close as well if one fails
            for publisher in self._open.values():
                stack.callback(publisher.__exit__, *details)


class SyncSubscription(ClosesOnExit):
    """A blocking iterator of accepted events."""

    def __init__(self, thread: LoopThread, subscription: Subscription) -> None:
        self._thread = thread
        self._subscription = subscription
        #: Items that are taken from the subscription and were not returned yet.
        self._items: deque[Batch | Gap] = deque()

    def __iter__(self) -> SyncSubscription:
        return self

    def __next__(self) -> Event:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Event:
        """The next event; `TimeoutError` if none comes in time, `StopIteration` at the end."""
        subscription = self._subscription
        while True:
            for event in subscription.rows:
                return event
            subscription.rows = iter(self.next_batch(timeout_s).events())

    def next_batch(self, timeout_s: float | None = None) -> Batch:
        """The next publication as a whole."""
        item = self._next_item(timeout_s)
        if item is None:
            raise StopIteration
        if isinstance(item, Gap):
            raise GapError(item)
        return item

    def _next_item(self, timeout_s: float | None = None) -> Batch | Gap | None:
        if not self._items:
            subscription = self._subscription
            waiting = self._thread.run(subscription.take(), timeout_s, subscription.overdue)
            self._items.extend(waiting)
        return self._items.popleft() if self._items else None

    def items(self) -> Iterator[Event | Gap]:
        """Events, and gaps as items instead of exceptions."""
        while True:
            yield from self._subscription.rows
            item = self._next_item()
            if item is None:
                return
            if isinstance(item, Gap):
                yield item
            else:
                self._subscription.rows = iter(item.events())

    def batches(self) -> Iterator[Batch]:
        """Whole publications."""
        while True:
            try:
                batch = self.next_batch()
            except StopIteration:
                return
            yield batch

    def take(self, most: int = 1024, timeout_s: float | None = None) -> list[Batch | Gap]:
        """At least one item, and all others that wait, up to `most`; empty at the end."""
        self._give_back()
        subscription = self._subscription
        return self._thread.run(subscription.take(most), timeout_s, subscription.overdue)

    def poll(
        self, n: int | None = None, *, at_least: int | None = None, timeout_s: float | None = None
    ) -> list[Event]:
        """Up to `n` events that wait, or all of them, as `Subscription.poll`."""
        self._give_back()
        return self._thread.run(self._subscription.poll(n, at_least=at_least, timeout_s=timeout_s))

    def held(self, timeout_s: float | None = None) -> Iterator[Batch | Gap]:
        """Everything up to the end that the channel had when the subscription was established."""
        self._give_back()
        found = self._subscription.held()
        overdue = self._subscription.overdue
        while (item := self._thread.run(anext(found, None), timeout_s, overdue)) is not None:
            yield item

    def _give_back(self) -> None:
        if self._items:
            self._thread.call(lambda: self._subscription.give_back(self._items))

    def change(self, where: Where, timeout_s: float | None = None) -> None:
        """Select other rows; None for all. As `Subscription.change`."""
        self._thread.run(self._subscription.change(where), timeout_s)

    def recall(
        self, positions: Iterable[int], timeout_s: float | None = None
    ) -> dict[int, Batch | Gap | None]:
        """Fetch single old positions, as `Subscription.recall`."""
        subscription = self._subscription
        return self._thread.run(subscription.recall(positions), timeout_s, subscription.overdue)

    @property
    def channel(self) -> Channel:
        """The channel or pattern that was subscribed to."""
        return self._subscription.channel

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The present channels."""
        return self._subscription.channels

    @property
    def waiting(self) -> int:
        """Publications and gaps in the queue."""
        return len(self._items) + self._subscription.waiting

    @property
    def full(self) -> bool:
        """Whether the node should stop reading, as in `Subscription.full`."""
        return self._subscription.full

    @property
    def where(self) -> Where:
        """The predicate on rows; None for all."""
        return self._subscription.where

    @property
    def ends(self) -> dict[Stream, int]:
        """The last number of each stream when it was established, as in `Subscription.ends`."""
        return self._subscription.ends

    @property
    def unread(self) -> dict[Stream, int]:
        """Streams that `held` has not read completely, with the last number of each."""
        return self._subscription.unread

    @property
    def end(self) -> int:
        """On a channel with total order: the next position, as far as is known."""
        return self._subscription.end

    @property
    def oldest(self) -> int:
        """On a channel with total order: the oldest position that brokers hold."""
        return self._subscription.oldest

    @property
    def position(self) -> int | None:
        """With total order: where to begin to go on from here, as in `Subscription.position`."""
        self._give_back()
        return self._subscription.position

    @property
    def dropped(self) -> list[Gap]:
        """What brokers had dropped when it was established, as in `Subscription.dropped`."""
        return list(self._subscription.dropped)

    @property
    def undecodable(self) -> int:
        """Publications skipped because their contents violate the schema."""
        return self._subscription.undecodable

    @property
    def expired(self) -> int:
        """Publications skipped because they had expired."""
        return self._subscription.expired

    @property
    def discarded(self) -> int:
        """Publications discarded because the queue was full; a `Gap` covers each."""
        return self._subscription.discarded

    def receipt(self, item: Event | Batch) -> Receipt:
        """Signed statements that prove to a third party that the cell accepted it."""
        return self._thread.run(item.receipt())

    def close(self) -> None:
        """Leave the channels and drop the queue."""
        self._items.clear()
        self._thread.call(self._subscription.close)


class SyncNamedSubscription(ClosesOnExit):
    """A blocking iterator of the deliveries of a named subscription."""

    def __init__(self, thread: LoopThread, subscription: NamedSubscription, node: Node) -> None:
        self._thread = thread
        self._subscription = subscription
        self._node = node

    @property
    def dropped(self) -> list[Gap]:
        """The positions that brokers had dropped when this use began it with "earliest"."""
        return list(self._subscription.dropped)

    def __iter__(self) -> SyncNamedSubscription:
        return self

    def __next__(self) -> Delivery:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Delivery:
        """The next delivery; `TimeoutError` if none comes in time."""
        item = self._thread.run(
            self._subscription.next(),
            timeout_s,
            lambda late_s: f"no delivery within {late_s:g} s; {self._node.describe_brokers()}",
        )
        if isinstance(item, Gap):
            raise GapError(item)
        return item

    def poll(
        self, n: int | None = None, *, at_least: int | None = None, timeout_s: float | None = None
    ) -> list[Delivery]:
        """The next deliveries with `n` events or a few more, as `NamedSubscription.poll`."""
        return self._thread.run(self._subscription.poll(n, at_least=at_least, timeout_s=timeout_s))

    @property
    def name(self) -> str:
        """Its name."""
        return self._subscription.name

    @property
    def lag(self) -> int:
        """Publications from the oldest unsettled one to the end of the channel."""
        return self._subscription.lag

    @property
    def position(self) -> int:
        """The newest operation that this consumer has read of the companion channel."""
        return self._subscription.position

    def state(self) -> SubscriptionState:
        """The state after the newest operation that this consumer has read, for inspection."""
        return self._subscription.state()

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery."""
        self._thread.run(delivery.ack())

    def nack(self, delivery: Delivery) -> None:
        """Return a delivery for redelivery."""
        self._thread.run(delivery.nack())

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all acknowledgements so far are ordered."""
        self._thread.run(
            self._subscription.flush(),
            timeout_s,
            lambda late_s: (
                f"acknowledgements not ordered in {late_s:g} s; {self._node.describe_brokers()}"
            ),
        )

    def close(self) -> None:
        """Write pending acknowledgements, and return the other deliveries."""
        self._thread.run(self._subscription.close())


class SyncNode(ClosesOnExit):
    """A connected client."""

    def __init__(self, thread: LoopThread, node: Node, *, owns_thread: bool = False) -> None:
        self._thread = thread
        self._node = node
        self._owns_thread = owns_thread

    @property
    def name(self) -> NodeId:
        """Our node id."""
        return self._node.name

    @property
    def identity(self) -> Identity:
        """Our identity."""
        return self._node.identity

    @property
    def manifest(self) -> Manifest:
        """The manifest of the newest epoch that this node knows."""
        return self._node.manifest

    @property
    def connected(self) -> list[NodeId]:
        """The connected brokers."""
        return self._node.connected

    @property
    def telemetry(self) -> Telemetry:
        """What this node counts."""
        return self._node.telemetry

    @property
    def on_suspect(self) -> Callable[[Suspect], None] | None:
        """Gets each suspicion; called in the thread of this node."""
        return self._node.on_suspect

    @on_suspect.setter
    def on_suspect(self, handler: Callable[[Suspect], None] | None) -> None:
        self._node.on_suspect = handler

    @property
    def on_evidence(self) -> Callable[[Evidence], None] | None:
        """Gets each proof of misbehaviour; called in the thread of this node."""
        return self._node.on_evidence

    @on_evidence.setter
    def on_evidence(self, handler: Callable[[Evidence], None] | None) -> None:
        self._node.on_evidence = handler

    @property
    def on_undecodable(self) -> Callable[[Deliver], None] | None:
        """Gets contents that violate the schema; called in the thread of this node."""
        return self._node.on_undecodable

    @on_undecodable.setter
    def on_undecodable(self, handler: Callable[[Deliver], None] | None) -> None:
        self._node.on_undecodable = handler

    @property
    def suspicions(self) -> dict[NodeId, dict[str, int]]:
        """Counts of suspicions by node and reason."""
        return {node: dict(reasons) for node, reasons in list(self._node.suspicions.items())}

    @property
    def evidence(self) -> list[Evidence]:
        """Proofs of misbehaviour that a third party can verify."""
        return list(self._node.evidence)

    def faults(self, role: str) -> tuple[Fault, ...]:
        """What a role, "publisher" or "subscriber", does wrong."""
        return self._node.faults(role)

    def set_faults(self, role: str, faults: tuple[Fault, ...]) -> None:
        """Let a role misbehave from now on, for tests (`testing.make_client_lie`)."""
        self._thread.call(lambda: self._node.set_faults(role, faults))

    @takes(PublisherOptions)
    def publisher(self, options: PublisherOptions) -> SyncPublisher:
        """A publisher of a channel: `with node.publisher("orders") as orders`."""
        made = self._thread.call(lambda: options.call(self._node.publisher))
        return SyncPublisher(self._thread, made)

    @takes(PublisherOptions)
    def publishers(self, options: PublisherOptions) -> SyncPublishers:
        """Publishers of all channels that match a pattern, by channel: `node.publishers("**")`."""
        return SyncPublishers(self._thread, options.call(self._node.publishers))

    @takes(SubscriptionOptions)
    def subscribe(self, options: SubscriptionOptions) -> SyncSubscription:
        """An established subscription to a channel: `with node.subscribe("orders") as orders`."""

        async def subscribe() -> Subscription:
            return await options.call(self._node.subscribe).__aenter__()

        return SyncSubscription(self._thread, self._thread.run(subscribe()))

    @takes(NamedSubscriptionOptions)
    def subscribe_as(self, options: NamedSubscriptionOptions) -> SyncNamedSubscription:
        """An open named subscription, whose state the cell keeps."""

        async def opened() -> NamedSubscription:
            return await options.call(self._node.subscribe_as).__aenter__()

        return SyncNamedSubscription(self._thread, self._thread.run(opened()), self._node)

    def close(self) -> None:
        """Disconnect."""
        self._thread.run(self._node.close())
        if self._owns_thread:
            self._thread.stop()


def connect(
    manifest: str | Path,
    identity: str | Path,
    *,
    timeout_s: float = 30.0,
    seat: int = 0,
    observe: str | Path | None = None,
    on_reach: Callable[[str], None] | None = None,
) -> SyncNode:
    """Connect to a cell; see `quorumcast.client.connect`.

    `on_reach` is called in a thread of this node.
    """
    thread = LoopThread()
    try:
        node = thread.run(
            client.connect(
                manifest,
                identity,
                timeout_s=timeout_s,
                seat=seat,
                observe=observe,
                on_reach=on_reach,
            )
        )
    except BaseException:
        thread.stop()
        raise
    return SyncNode(thread, node, owns_thread=True)
