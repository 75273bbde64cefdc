"""Publishing exactly once, across the death of whoever publishes.

A publisher by the clock begins a new stream with each life: what it published in its last moments
it may publish twice. One that *resumes* names its stream itself, by a name and an epoch, submits
the same publications from the first on whenever it is run again, and whatever has been ordered
already is not ordered again:

    async with node.publisher("orders", resume=Resumption("import", epoch=7, at=DAY)) as orders:
        for batch in batches:                  # the same batches in every life
            await orders.publish(batch)

Leaving the block waits until all of it stands in the order, as whichever life brought it there.
What is published again must be the same to the byte, so its time is given and not read from a
clock, and each call is one publication. Contents that differ from what was ordered under the same
number are refused, and nothing more is published.

Only channels with a total order have a memory for this: `ordering.state` says for how long.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

import msgspec
import pyarrow as pa

from quorumcast.client.packing import Packer
from quorumcast.client.publishing import Publisher
from quorumcast.core.envelope import microseconds_of
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import MAX_LINE, MAX_LINE_EPOCH, Channel, resumable
from quorumcast.core.publication import batch_of_payloads, batch_of_rows
from quorumcast.manifest.manifest import ChannelEntry


class Resumption(msgspec.Struct, frozen=True):
    """The stream to go on with: epochs of one name follow one another, and only the last counts."""

    name: str
    epoch: int
    #: When its publications are said to have been made, unless each says so itself.
    at: datetime

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a publisher that resumes needs a name: give the same in every life")
        if type(self.epoch) is not int or not 0 <= self.epoch <= MAX_LINE_EPOCH:
            raise UsageError(
                f"epoch is {self.epoch!r}: give a whole number from 0 to {MAX_LINE_EPOCH:,}"
            )
        _check_time(self.at)

    @property
    def incarnation(self) -> int:
        """What tells its stream apart."""
        line = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big") & MAX_LINE
        return resumable(line, self.epoch)


def check_resumable(entry: ChannelEntry, *, urgent: bool) -> None:
    """Refuse a channel whose brokers remember nothing of its streams."""
    if not entry.policy.total:
        raise UsageError(
            f"channel {entry.name!r} cannot be resumed, because it has no total order: publish on "
            "one with the policy 'total' or 'total-crash'"
        )
    if urgent:
        raise UsageError("a publisher that resumes keeps its order: leave out 'urgent'")


def _check_time(at: datetime) -> int:
    if at.utcoffset() is None:
        raise UsageError(f"at is {at.isoformat()} without a time zone; say which, such as UTC")
    if microseconds_of(at) < 0:
        raise UsageError(f"at is {at.isoformat()}: give a time from 1970 on")
    return microseconds_of(at)


class Resumer(Protocol):
    """What a publisher that resumes needs of its node."""

    def room(self, channel: Channel, urgent: bool, resumed: int) -> int:
        """How many more publications the machine takes now."""
        ...

    def submit(
        self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool, resumed: int
    ) -> int:
        """Publish these contents; the number of the last one."""
        ...

    def conclude(self, publisher: ResumedPublisher) -> None:
        """Everything has been submitted; it is told what came of it."""
        ...

    def release(self, publisher: ResumedPublisher) -> None:
        """It publishes no more."""
        ...


class _Outlet:
    """A node's outlet for one stream of an application's choice."""

    def __init__(self, node: Resumer, resumed: int) -> None:
        self._node = node
        self._resumed = resumed

    def room(self, channel: Channel, urgent: bool) -> int:
        return self._node.room(channel, urgent, self._resumed)

    def submit(self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool) -> int:
        return self._node.submit(channel, bodies, urgent, self._resumed)

    def publisher_closed(self, publisher: Publisher) -> None:
        if isinstance(publisher, ResumedPublisher):
            self._node.release(publisher)


class ResumedPublisher(Publisher):
    """Goes on with a stream on one channel; made by `Node.publisher(…, resume=…)`."""

    def __init__(
        self,
        node: Resumer,
        channel: Channel,
        packer: Packer,
        resume: Resumption,
        *,
        timeout_s: float | None = None,
        valid_for_s: float | None = None,
    ) -> None:
        self.resume = resume
        self._at_us = microseconds_of(resume.at)
        packer.now_us = lambda: self._at_us
        self._node = node
        self._ending: asyncio.Future[None] | None = None
        #: Whether the node still has its stream, and whether all of it stands in the order.
        self._open = True
        self._concluded = False
        super().__init__(
            _Outlet(node, resume.incarnation),
            channel,
            packer,
            timeout_s=timeout_s,
            valid_for_s=valid_for_s,
        )

    def post(self, event: bytes | bytearray | memoryview | Mapping[str, object]) -> None:
        """Publish an event as one publication, without waiting."""
        admitted = self._packer.admit(event)
        if isinstance(admitted, bytes):
            self.post_batch(batch_of_payloads([admitted]))
        else:
            self.post_batch(batch_of_rows([admitted], self._packer.schema))

    def post_batch(self, batch: pa.RecordBatch, at: datetime | None = None) -> None:
        """Publish a record batch as one publication, without waiting; `at` is its time."""
        self._at_us = _check_time(self.resume.at if at is None else at)
        super().post_batch(batch)

    async def close(self) -> None:
        """Wait until everything stands in the order, then publish no more."""
        if self._concluded:
            return
        self._check_open()  # what was acknowledged may have turned out to be something else
        try:
            await self.flush()
            self._ending = asyncio.get_running_loop().create_future()
            self._node.conclude(self)
            async with asyncio.timeout(self._timeout_s):
                await self._ending
            self._concluded = True
        finally:
            self._end()

    def abandon(self) -> None:
        """Publish no more, and wait for nothing; another life may go on."""
        self._end()

    def concluded(self) -> None:
        """All of it stands in the order."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def contradicted(self, number: int) -> None:
        """Brokers have ordered something else."""
        which = f"{self.resume.name!r}, epoch {self.resume.epoch}, on channel {self.channel!r}"
        if not number:
            error = UsageError(
                f"a later epoch has been published than {which}: whoever resumes this one is late"
            )
        else:
            error = UsageError(
                f"publication {number} of {which} was published with other contents before: what "
                "is published again must be the same; use another name for what is not"
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
