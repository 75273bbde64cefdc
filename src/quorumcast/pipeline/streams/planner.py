"""Plans the offsets of a query on the driver: the bounds of channels, and limits of micro-batches.

Each bound is backed by f+1 of n-f answers (`cell.subscribing.interest`). So a lying broker can
neither hold a query back nor send it beyond the end of a channel.
"""

from __future__ import annotations

import asyncio
import logging

import pyarrow as pa

from quorumcast.client.arguments import EARLIEST
from quorumcast.client.events import Batch, Gap
from quorumcast.core.envelope import time_of
from quorumcast.core.errors import UsageError
from quorumcast.manifest.retention import retention_sentence
from quorumcast.manifest.rights import matching_channels
from quorumcast.pipeline.streams.connections import POOL
from quorumcast.pipeline.streams.options import Offsets, SourceOptions
from quorumcast.pipeline.streams.rows import check_columns

Positions = dict[str, int]
#: Publications that are sampled to estimate the size of the next ones.
SAMPLES = 8
#: The range of the first sample.
FIRST_WINDOW = 64
#: Time for the brokers that answer to catch up with those that answered before.
CATCHUP_S = 30.0
_POLL_S = 0.2

_log = logging.getLogger("quorumcast.spark")


class OffsetPlanner:
    """Plans the offsets of one query."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._pooled = POOL.take(options.access)
        #: The last result of `ends`, and the ends that brokers reported then.
        self.last_ends: Positions | None = None
        self._reported_ends: Positions = {}
        #: Most events and bytes of a micro-batch; 0 is no limit.
        self._limits = (options.max_events, options.max_bytes)
        #: Mean events and bytes of a publication, by channel.
        self._means: dict[str, tuple[float, float]] = {}

    def close(self) -> None:
        """Disconnect from the cell."""
        self._pooled.close()

    def channels(self) -> list[str]:
        """Return the channels of this epoch; raise `UsageError` if their columns changed."""
        node, options = self._pooled.node, self._options
        names = list(options.channels)
        if options.pattern:
            found = matching_channels(node.manifest, node.name, options.pattern)
            names = sorted(entry.name for entry in found if entry.policy.total)
        for name in names:
            check_columns(name, node.manifest.channel(name), options, self._schema)
        return names

    # ------------------------------------------------------------------------- bounds

    def ends(self) -> Positions:
        """Return the end of each channel: its next position."""
        found = self._pooled.thread.run(self._bounds(self.channels()))
        self._reported_ends = {name: end for name, (_, end) in found.items()}
        # An end never decreases: the brokers that answer now may lag behind earlier ones.
        before = self.last_ends or {}
        self.last_ends = {
            name: max(end, before.get(name, 1)) for name, end in self._reported_ends.items()
        }
        return dict(self.last_ends)

    def check_reached(self, start: Positions) -> Positions:
        """Return offsets that the channels have reached, or raise `UsageError`.

        A checkpoint beyond the end of a channel is from another cell, or the channel was created
        again, or all brokers lost their state. Waiting for that position would skip everything
        before it.
        """
        ahead = [name for name, end in self._reported_ends.items() if start.get(name, end) > end]
        if not ahead:
            return start
        kept = dict(start)
        for name, (oldest, end) in self._pooled.thread.run(self._find_behind(ahead, start)).items():
            what = (
                f"the checkpoint of this query is at position {start[name]} of {name!r}, which "
                f"has positions up to {end - 1}: it is of another cell, or the channel was made "
                "anew, or its brokers have lost what they held"
            )
            if self._options.fail_on_data_loss:
                raise UsageError(
                    f"{what}; begin with a new checkpoint, or set failOnDataLoss to 'false' to go "
                    "on with the oldest position that is held"
                )
            _log.warning("%s; failOnDataLoss is 'false', so it goes on with %d", what, oldest)
            kept[name] = oldest
            self.last_ends = {**(self.last_ends or {}), name: end}
        return kept

    async def _find_behind(self, names: list[str], start: Positions) -> dict[str, tuple[int, int]]:
        """Return the bounds of the channels that do not reach these offsets in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CATCHUP_S
        while True:
            found = await self._bounds(names)
            behind = {name: found[name] for name in names if found[name][1] < start[name]}
            if not behind or loop.time() >= deadline:
                return behind
            await asyncio.sleep(_POLL_S)

    def starting(self) -> Positions:
        """Return the offsets at which a new query starts."""
        names, offsets = self.channels(), self._options.starting
        if offsets.since_us:
            return self._pooled.thread.run(self._since(names, offsets.since_us))
        found = self._pooled.thread.run(self._bounds(names))
        if not offsets.positions:
            if offsets.word == EARLIEST:
                return self._oldest(found)
            return {name: end for name, (_, end) in found.items()}
        return self._checked("startingOffsets", offsets, found)

    def ending(self) -> Positions:
        """Return the offsets at which a batch read ends."""
        found = self._pooled.thread.run(self._bounds(self.channels()))
        if not self._options.ending.positions:
            return {name: end for name, (_, end) in found.items()}
        return self._checked("endingOffsets", self._options.ending, found)

    def _checked(
        self, option: str, offsets: Offsets, found: dict[str, tuple[int, int]]
    ) -> Positions:
        for name, position in offsets.positions:
            end = found[name][1]
            if position > end:
                raise UsageError(
                    f"option {option!r} says {position} for {name!r}, which has positions up to "
                    f"{end - 1}: give {end} or less"
                )
        return dict(offsets.positions)

    def complete(self, start: Positions) -> Positions:
        """Add the channels that match the pattern and are not in the offsets yet."""
        new = [name for name in self.channels() if name not in start]
        found = self._pooled.thread.run(self._bounds(new)) if new else {}
        return dict(sorted({**start, **self._oldest(found)}.items()))

    def _oldest(self, found: dict[str, tuple[int, int]]) -> Positions:
        """Return the oldest position of each channel; log what is gone before it."""
        for name, (oldest, _) in found.items():
            entry = self._pooled.node.manifest.channel(name)
            if oldest > 1 and entry is not None:
                _log.warning(
                    "positions 1 to %d of %r are gone: %s; the query starts with position %d",
                    oldest - 1,
                    name,
                    retention_sentence(entry),
                    oldest,
                )
        return {name: oldest for name, (oldest, _) in found.items()}

    async def _bounds(self, names: list[str]) -> dict[str, tuple[int, int]]:
        """Return the oldest retained position and the end, by channel."""
        found = await asyncio.gather(*(self._bounds_of(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _bounds_of(self, name: str) -> tuple[int, int]:
        # An empty excerpt: brokers report the bounds and send nothing else.
        subscription = self._pooled.node.subscribe(name, start=EARLIEST, until=1)
        try:
            await subscription.wait_joined(self._options.access.timeout_s)
            return min(subscription.oldest, subscription.end), subscription.end
        except TimeoutError:
            raise await self._unreachable() from None
        finally:
            subscription.close()

    async def _unreachable(self) -> UsageError:
        node, timeout_s = self._pooled.node, self._options.access.timeout_s
        try:
            await node.wait_connected(0)
        except UsageError as error:
            return error
        return UsageError(
            f"too few brokers of the cell {node.manifest.cell!r} answered within {timeout_s:g} s: "
            "see 'quorumcast status', and raise the option 'timeout' if they are only slow"
        )

    async def _since(self, names: list[str], since_us: int) -> Positions:
        bounds = await self._bounds(names)
        return {name: await self._first_since(name, since_us, bounds[name][1]) for name in names}

    async def _first_since(self, name: str, since_us: int, end: int) -> int:
        """Return the first position with this timestamp or a later one; log what is gone of them.

        What is gone before the oldest position is logged only if it may be of that time.
        """
        subscription = self._pooled.node.subscribe(
            name, start=time_of(since_us), until=end, queue=16, expired=True
        )
        undecodable: list[int] = []
        gone: list[Gap] = []
        position = end
        self._pooled.node.on_undecodable = lambda item: undecodable.append(item.position)
        try:
            async with asyncio.timeout(self._options.access.timeout_s):
                while items := await subscription.take(1):
                    if isinstance(items[0], Batch):
                        position = items[0].position or end
                        break
                    gone.append(items[0])
        except TimeoutError:
            raise await self._unreachable() from None
        finally:
            self._pooled.node.on_undecodable = None
            subscription.close()
        position = min([position, *undecodable])
        for gap in (*subscription.dropped, *gone):
            _log.warning("%s; the query starts with position %d", gap, position)
        return position

    # ------------------------------------------------------------ size of micro-batches

    def limited(self, start: Positions, ends: Positions) -> Positions:
        """Return the end of a micro-batch that approximately respects the limits.

        Only the contents say how many events a publication has, so a sample of them is read. Every
        channel with new publications advances by at least one.
        """
        open_ = {name: end - start[name] for name, end in ends.items() if end > start[name]}
        for name, publications in open_.items():
            self._sample(name, start[name], publications)
        share = 1.0
        for index, most in enumerate(self._limits):
            expected = sum(count * self._means[name][index] for name, count in open_.items())
            if most and expected > most:
                share = min(share, most / expected)
        stops = {name: start[name] + max(1, int(count * share)) for name, count in open_.items()}
        return dict(sorted({**start, **stops}.items()))

    def _sample(self, name: str, first: int, publications: int) -> None:
        """Estimate the size of the publications from `first` on."""
        window = min(publications, FIRST_WINDOW)
        if name in self._means:
            means = zip(self._limits, self._means[name], strict=True)
            wanted = [2 * most / mean for most, mean in means if most]
            window = min(publications, max(1, int(min(wanted))))
        step = max(1, window // SAMPLES)
        sample = list(range(first, first + window, step))[:SAMPLES]
        found = self._pooled.thread.run(self._recall(name, sample))
        batches = [batch for batch in found if isinstance(batch, Batch)]
        if batches:
            events = sum(map(len, batches)) / len(batches)
            size = sum(batch.size for batch in batches) / len(batches)
            self._means[name] = (max(events, 1.0), max(size, 1.0))
        self._means.setdefault(name, (1.0, 1.0))

    async def _recall(self, name: str, positions: list[int]) -> list[object]:
        subscription = self._pooled.node.subscribe(name, start=EARLIEST, until=1, expired=True)
        try:
            async with asyncio.timeout(self._options.access.timeout_s):
                await subscription.wait_joined()
                return list((await subscription.recall(positions)).values())
        except TimeoutError:
            raise await self._unreachable() from None
        finally:
            subscription.close()
