"""Publishing exactly once, across crashes of the publishing program.

An ordinary publisher begins a new stream each time it starts, so a program that crashed cannot know
which of its last publications arrived. A *resumed* publisher names its stream by a name and an
epoch. Each run of the program submits the same publications from the first one on. Publications
that are already ordered are not ordered again:

    async with node.publisher("orders", resume=Resumption("import", epoch=7, at=DAY)) as orders:
        for batch in batches:                  # the same batches in every run
            await orders.publish(batch)

Leaving the block waits until the whole stream is ordered, by this run or an earlier one. Every run
must produce the same bytes, so the time of publications is given and not read from a clock, and
each call is one publication. If a number was ordered with other contents, an error is raised and
nothing more is published.

It requires total order: the ordered state remembers how far each stream is (`ordering.state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from quorumcast.client.arguments import time_of_resumed
from quorumcast.client.options import PublisherOptions, Resumption
from quorumcast.client.publishing.packing import Packer
from quorumcast.client.publishing.publisher import Publisher
from quorumcast.core.envelope import microseconds_of
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    import pyarrow as pa


def check_resumable(entry: ChannelEntry, *, urgent: bool) -> None:
    """Refuse a channel without total order, and urgent publications."""
    if not entry.policy.total:
        raise UsageError(
            f"channel {entry.name!r} cannot be resumed, because it has no total order: publish on "
            "one with the policy 'total' or 'total-crash'"
        )
    if urgent:
        raise UsageError("a resumed publisher keeps its order: leave out 'urgent'")


class ResumedStreams(Protocol):
    """The part of the publishing role that a resumed publisher needs."""

    def room(self, channel: Channel, urgent: bool, resumed: int) -> int:
        """The number of publications that the machine accepts now."""

    def submit(
        self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool, resumed: int
    ) -> int:
        """Publish these contents; return the number of the last publication."""

    def describe_brokers(self, channel: Channel, urgent: bool, resumed: int) -> str:
        """Which brokers have acknowledged everything, and which have not."""

    def conclude(self, publisher: ResumedPublisher) -> None:
        """Ask whether the whole stream is ordered; `publisher.concluded` is called once it is."""

    def release(self, publisher: ResumedPublisher) -> None:
        """Remove the publisher."""


class _ResumedHost:
    """The `PublisherHost` of one resumed stream."""

    def __init__(self, node: ResumedStreams, resumed: int) -> None:
        self._node = node
        self._resumed = resumed

    def room(self, channel: Channel, urgent: bool) -> int:
        return self._node.room(channel, urgent, self._resumed)

    def submit(self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool) -> int:
        return self._node.submit(channel, bodies, urgent, self._resumed)

    def describe_brokers(self, channel: Channel, urgent: bool) -> str:
        return self._node.describe_brokers(channel, urgent, self._resumed)

    def publisher_closed(self, publisher: Publisher) -> None:
        if isinstance(publisher, ResumedPublisher):
            self._node.release(publisher)


class ResumedPublisher(Publisher):
    """Publishes a resumed stream; made by `Node.publisher(…, resume=…)`."""

    def __init__(
        self,
        node: ResumedStreams,
        packer: Packer,
        options: PublisherOptions,
        resume: Resumption,
    ) -> None:
        self.resume = resume
        self._at_us = microseconds_of(resume.at)
        packer.now_us = lambda: self._at_us
        self._node = node
        self._ending: asyncio.Future[None] | None = None
        #: Whether the node still has the stream.
        self._open = True
        #: Whether the whole stream is known to be ordered.
        self._concluded = False
        # The options of batching and buffering do not apply: each call is one publication.
        kept = PublisherOptions(
            options.channel, timeout_s=options.timeout_s, valid_for_s=options.valid_for_s
        )
        super().__init__(_ResumedHost(node, resume.incarnation), packer, kept)

    def post(self, event: bytes | bytearray | memoryview | Mapping[str, object]) -> None:
        """Publish an event as one publication, without waiting."""
        self.post_batch(self._packer.as_batch([self._packer.admit(event)]))

    def post_batch(self, batch: pa.RecordBatch, at: datetime | None = None) -> None:
        """Publish a record batch as one publication, without waiting; `at` is its time."""
        self._at_us = time_of_resumed(self.resume.at if at is None else at)
        super().post_batch(batch)

    async def close(self) -> None:
        """Wait until the whole stream is ordered, then close."""
        if self._concluded:
            return
        self._check_open()  # raises if other contents were ordered
        try:
            await self.flush()
            self._ending = asyncio.get_running_loop().create_future()
            self._node.conclude(self)
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._ending
            except TimeoutError:
                brokers = self._host.describe_brokers(self.channel, False)
                raise TimeoutError(
                    f"the order of {self.resume.name!r} on {self.channel!r} was not confirmed "
                    f"within {self._timeout_s:g} s; {brokers}"
                ) from None
            self._concluded = True
        finally:
            self._end()

    def abandon(self) -> None:
        """Close without waiting; another run may resume the stream."""
        self._end()

    def concluded(self) -> None:
        """Handle the confirmation that the whole stream is ordered."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def contradicted(self, number: int) -> None:
        """Handle a report that other contents (or, for number 0, a later epoch) were ordered."""
        which = f"{self.resume.name!r}, epoch {self.resume.epoch}, on channel {self.channel!r}"
        if not number:
            error = UsageError(
                f"a later epoch has been published than {which}: this one can no longer be resumed"
            )
        else:
            error = UsageError(
                f"publication {number} of {which} was published with other contents before: "
                "publish the same contents in every run, or use another name"
            )
        self.fail(error)
        self._end()

    def _end(self) -> None:
        if self._open:
            self._open = False
            super()._end()

    def fail(self, error: Exception) -> None:
        super().fail(error)
        if self._ending is not None and not self._ending.done():
            self._ending.set_exception(error)
