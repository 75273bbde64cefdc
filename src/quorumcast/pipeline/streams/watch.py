"""What the driver knows of the channels: from where to where they are held, and how full they are.

n-f brokers were asked for every answer, and f+1 of them agree on it
(`cell.subscribing.interest`): a lying broker can neither hold a query back nor send it beyond the
end.
"""

from __future__ import annotations

import asyncio
import logging

import pyarrow as pa

from quorumcast.client.arguments import EARLIEST
from quorumcast.client.events import Batch
from quorumcast.client.rights import matching_channels
from quorumcast.core.envelope import time_of
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.streams.lines import LINES
from quorumcast.pipeline.streams.options import Offsets, SourceOptions
from quorumcast.pipeline.streams.rows import check_columns

Positions = dict[str, int]
#: Publications that are looked at to tell how large those to come are.
SAMPLES = 8
#: Where nothing is known yet, samples are taken from so many.
FIRST_WINDOW = 64
#: Brokers that answer now may be behind those of before, but not for so long.
BEHIND_S = 30.0
_LOOK_S = 0.2

_log = logging.getLogger("quorumcast.spark")


class Watch:
    """The driver's view of the channels of one query."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._line = LINES.take(options.access)
        #: What `ends` said last, and what it had heard.
        self._ends: Positions | None = None
        self._heard: Positions = {}
        #: Events and bytes of a publication, by channel, as far as they are known.
        self._means: dict[str, tuple[float, float]] = {}

    def close(self) -> None:
        """Watch no more."""
        self._line.close()

    def channels(self) -> list[str]:
        """What is read in this epoch, sorted; a sentence if it is not what the query began with."""
        node, options = self._line.node, self._options
        names = list(options.channels)
        if options.pattern:
            found = matching_channels(node.manifest, node.name, options.pattern)
            names = sorted(entry.name for entry in found if entry.policy.total)
        for name in names:
            check_columns(name, node.manifest.channel(name), options, self._schema)
        return names

    # ------------------------------------------------------------------ where things are

    def ends(self) -> Positions:
        """The position that comes next on each channel."""
        found = self._line.thread.run(self._bounds(self.channels()))
        self._heard = {name: end for name, (_, end) in found.items()}
        # What was there once is there: brokers that answer now may be behind those of before.
        before = self._ends or {}
        self._ends = {name: max(end, before.get(name, 1)) for name, end in self._heard.items()}
        return dict(self._ends)

    def held(self, start: Positions) -> Positions:
        """Offsets at which the channels have been, or a sentence.

        A channel that was never so far is not the one that the query has read: it is one of another
        cell, or was made anew, or its brokers have all lost their memory. To wait until it is
        there would be to pass over everything on it.
        """
        ahead = [name for name, end in self._heard.items() if start.get(name, end) > end]
        if not ahead:
            return start
        kept = dict(start)
        for name, (oldest, end) in self._line.thread.run(self._behind(ahead, start)).items():
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
            self._ends = {**(self._ends or {}), name: end}
        return kept

    async def _behind(self, names: list[str], start: Positions) -> dict[str, tuple[int, int]]:
        """Those of the channels that do not come as far as this."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BEHIND_S
        while True:
            found = await self._bounds(names)
            behind = {name: found[name] for name in names if found[name][1] < start[name]}
            if not behind or loop.time() >= deadline:
                return behind
            await asyncio.sleep(_LOOK_S)

    def last_ends(self) -> Positions | None:
        """What was last heard of them."""
        return self._ends

    def starting(self) -> Positions:
        """Where a new query begins."""
        names, offsets = self.channels(), self._options.starting
        if offsets.since_us:
            return self._line.thread.run(self._since(names, offsets.since_us))
        found = self._line.thread.run(self._bounds(names))
        if not offsets.positions:
            place = 0 if offsets.word == EARLIEST else 1
            return {name: found[name][place] for name in names}
        return self._checked("startingOffsets", offsets, found)

    def ending(self) -> Positions:
        """Where a batch read ends."""
        found = self._line.thread.run(self._bounds(self.channels()))
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
        """Offsets with the channels that have come to match the pattern since."""
        new = [name for name in self.channels() if name not in start]
        found = self._line.thread.run(self._bounds(new)) if new else {}
        return dict(sorted({**start, **{name: found[name][0] for name in new}}.items()))

    async def _bounds(self, names: list[str]) -> dict[str, tuple[int, int]]:
        """The oldest position that is held and the one that comes next, by channel."""
        found = await asyncio.gather(*(self._bounds_of(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _bounds_of(self, name: str) -> tuple[int, int]:
        # An excerpt of nothing: brokers say where the channel stands, and send no more.
        subscription = self._line.node.subscribe(name, start=EARLIEST, until=1)
        try:
            await subscription.wait_joined(self._options.access.timeout_s)
            return min(subscription.oldest, subscription.end), subscription.end
        except TimeoutError:
            raise await self._unreachable() from None
        finally:
            subscription.close()

    async def _unreachable(self) -> UsageError:
        node, patience_s = self._line.node, self._options.access.timeout_s
        try:
            await node.wait_connected(0)
        except UsageError as error:
            return error
        return UsageError(
            f"too few brokers of the cell {node.manifest.cell!r} answered within {patience_s:g} s: "
            "see 'quorumcast status', and raise the option 'timeout' if they are only slow"
        )

    async def _since(self, names: list[str], since_us: int) -> Positions:
        bounds = await self._bounds(names)
        return {name: await self._first_since(name, since_us, bounds[name][1]) for name in names}

    async def _first_since(self, name: str, since_us: int, end: int) -> int:
        """The position of the first publication that was stamped then or later."""
        subscription = self._line.node.subscribe(
            name, start=time_of(since_us), until=end, queue=16, expired=True
        )
        nonsense: list[int] = []
        self._line.node.on_undecodable = lambda item: nonsense.append(item.position)
        try:
            async with asyncio.timeout(self._options.access.timeout_s):
                while items := await subscription.take(1):
                    if isinstance(items[0], Batch):
                        return min([items[0].position or end, *nonsense])
                return min([end, *nonsense])
        except TimeoutError:
            raise await self._unreachable() from None
        finally:
            self._line.node.on_undecodable = None
            subscription.close()

    # -------------------------------------------------------------- how much at a time

    def limited(self, start: Positions, ends: Positions) -> Positions:
        """Where a micro-batch ends that keeps to the limits, as nearly as can be told beforehand.

        How many events a publication has is in its contents alone, so a few are looked at. Every
        channel with something new goes on by one publication at least.
        """
        open_ = {name: end - start[name] for name, end in ends.items() if end > start[name]}
        for name, publications in open_.items():
            self._look(name, start[name], publications)
        share = 1.0
        for place, most in enumerate((self._options.max_events, self._options.max_bytes)):
            expected = sum(count * self._means[name][place] for name, count in open_.items())
            if most and expected > most:
                share = min(share, most / expected)
        stops = {name: start[name] + max(1, int(count * share)) for name, count in open_.items()}
        return dict(sorted({**start, **stops}.items()))

    def _look(self, name: str, first: int, publications: int) -> None:
        """See how large the publications from here on are."""
        window = min(publications, FIRST_WINDOW)
        if name in self._means:
            events, size = self._means[name]
            wanted = [
                2 * most / mean
                for most, mean in (
                    (self._options.max_events, events),
                    (self._options.max_bytes, size),
                )
                if most
            ]
            window = min(publications, max(1, int(min(wanted))))
        step = max(1, window // SAMPLES)
        sample = list(range(first, first + window, step))[:SAMPLES]
        found = self._line.thread.run(self._recall(name, sample))
        batches = [batch for batch in found if isinstance(batch, Batch)]
        if batches:
            events = sum(map(len, batches)) / len(batches)
            size = sum(batch.size for batch in batches) / len(batches)
            self._means[name] = (max(events, 1.0), max(size, 1.0))
        self._means.setdefault(name, (1.0, 1.0))

    async def _recall(self, name: str, positions: list[int]) -> list[object]:
        subscription = self._line.node.subscribe(name, start=EARLIEST, until=1, expired=True)
        try:
            async with asyncio.timeout(self._options.access.timeout_s):
                await subscription.wait_joined()
                return list((await subscription.recall(positions)).values())
        except TimeoutError:
            raise await self._unreachable() from None
        finally:
            subscription.close()
