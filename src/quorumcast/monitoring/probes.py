"""A probe: measures its host, follows logs, listens to syslog, and publishes what it finds.

What may be lost, and what not:

    measurements   at most `buffer` wait for the cell; newer ones are dropped and counted
    files          a file is read on only when the cell has what was read before, and where it was
                   left is kept afterwards: nothing is lost, and what comes twice has one `origin`
    syslog         TCP waits; datagrams that find no room are dropped and counted, and so is what a
                   probe that is stopped could not hand over in time

What was lost since the last measurement is one itself (`probe.dropped`, with where as item). A cell
that is away for a while is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from quorumcast.client import BufferFull, Node, Publisher
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest.schema import arrow_schema
from quorumcast.monitoring.channels import HOST, LOGS, METRICS, Names, check_channel
from quorumcast.monitoring.follow import LogFile, Places
from quorumcast.monitoring.host import HostSampler, Measurement
from quorumcast.monitoring.lines import URGENT, WARNING, LogLine, line_of_file
from quorumcast.monitoring.syslog import SyslogListener, local_now, parse_syslog

#: How often a file is looked at that had nothing new.
LOOK_S = 0.25
#: Syslog messages in one publication.
MOST_MESSAGES = 1024
#: How long a probe that is stopped waits for what it has published.
LAST_WAIT_S = 5.0


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe does."""

    host: str
    names: Names = Names.under()
    metrics: bool = True
    interval_s: float = 5.0
    files: tuple[Path, ...] = ()
    from_start: bool = False
    #: Where the places of files are kept.
    state: Path | None = None
    syslog: tuple[str, int] | None = None
    #: Measurements, and syslog messages, that may wait.
    buffer: int = 10_000

    def check(self) -> None:
        """Refuse what makes no sense."""
        if not re.fullmatch(HOST, self.host):
            raise UsageError(
                f"--host is {self.host!r}: give a name of 1 to {MAX_NAME} letters, digits, dots, "
                "hyphens and underscores"
            )
        if not (self.metrics or self.files or self.syslog):
            raise UsageError("this probe has nothing to do; add --metrics, --logs or --syslog")
        if self.files and self.state is None:
            raise UsageError("a probe that follows files must know where to keep their places")
        if not self.interval_s >= 0.1:
            raise UsageError("--interval is a number of seconds, 0.1 or more")
        if self.buffer < 1:
            raise UsageError("--buffer is 1 or more")


class Probe:
    """One probe on a connected node; `run` ends when `stop` was called."""

    def __init__(self, node: Node, settings: ProbeSettings) -> None:
        settings.check()
        names = settings.names
        if settings.metrics:
            check_channel(node.manifest, names.metrics, METRICS)
        if settings.files or settings.syslog:
            check_channel(node.manifest, names.logs, LOGS)
        self._node = node
        self._settings = settings
        self._stopping = asyncio.Event()
        self._listener = SyslogListener(settings.buffer)
        #: Tells this life's syslog messages from those of others.
        self._life = secrets.token_hex(4)
        self._received = 0
        #: Rows that were published, and dropped, by where they came from.
        self.published: Counter[str] = Counter()
        self._dropped = 0
        #: Set once everything that is asked for has begun.
        self.ready = asyncio.Event()

    @property
    def dropped(self) -> dict[str, int]:
        """What was lost, by where it came from."""
        return {
            "metrics": self._dropped,
            "syslog": self._listener.dropped,
            "connections": self._listener.refused,
        }

    @property
    def address(self) -> tuple[str, int]:
        """Where syslog listens."""
        return self._listener.address

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Measure and read until stopped."""
        settings, names = self._settings, self._settings.names
        followed = self._followed()
        publishers: list[Publisher] = []

        def publisher(channel: str, *, urgent: bool = False) -> Publisher:
            made = self._node.publisher(channel, buffer=settings.buffer, urgent=urgent)
            publishers.append(made)
            return made

        work: list[Coroutine[Any, Any, None]] = []
        if settings.metrics:
            work.append(self._measure(publisher(names.metrics)))
        if settings.files or settings.syslog:
            logs = (publisher(names.logs), publisher(names.logs, urgent=True))
            if settings.syslog is not None:
                await self._listener.listen(*settings.syslog)
                work.append(self._hear(logs))
            work += [self._follow(file, places, logs) for file, places in followed]
        try:
            await self._until_stopped(work)
        finally:
            await self._listener.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WAIT_S):
                    await asyncio.gather(*(made.close() for made in publishers))

    async def _until_stopped(self, work: list[Coroutine[Any, Any, None]]) -> None:
        """Run all of it; what one of them raises ends the probe."""
        tasks = [asyncio.create_task(one) for one in work]
        stopping = asyncio.create_task(self._stopping.wait())
        self.ready.set()
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            # What is being published may still be acknowledged, and its place kept.
            await asyncio.wait(tasks, timeout=LAST_WAIT_S)
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # ------------------------------------------------------------------ measuring

    async def _measure(self, publisher: Publisher) -> None:
        sampler = HostSampler()
        told: dict[str, int] = {}
        due = time.monotonic()
        while not self._stopping.is_set():
            # psutil may wait for a slow disk: not on the loop that keeps the links alive.
            found = await asyncio.to_thread(sampler.sample, time.monotonic())
            lost = self.dropped
            found += [
                ("probe.dropped", where, count - told.get(where, 0))
                for where, count in lost.items()
            ]
            batch = metric_batch(self._settings.host, datetime.now(UTC), found)
            try:
                publisher.post_batch(batch)
                told = lost
                self.published["metrics"] += batch.num_rows
            except BufferFull:
                self._dropped += batch.num_rows
            due = max(due + self._settings.interval_s, time.monotonic())
            await self._pause(due - time.monotonic())

    # ---------------------------------------------------------------------- lines

    def _followed(self) -> list[tuple[LogFile, Places]]:
        """The files to follow, where they were left; refuses those that cannot be read."""
        settings = self._settings
        if settings.state is None or not settings.files:
            return []
        places, paths = Places(settings.state), [path.absolute() for path in settings.files]
        return [
            (LogFile(path, places.get(path), from_start=settings.from_start), places)
            for path in paths
        ]

    async def _follow(
        self, file: LogFile, places: Places, logs: tuple[Publisher, Publisher]
    ) -> None:
        path, kept, trouble = file.path, None, ""
        try:
            while not self._stopping.is_set():
                found = await asyncio.to_thread(file.read)
                now = datetime.now(UTC)
                lines = [line_of_file(str(path), origin, raw, now) for origin, raw in found]
                if file.trouble not in ("", trouble):
                    lines.append(self._about(path, file.trouble, now))
                trouble = file.trouble
                await self._publish(lines, logs, "logs")
                if file.place is not None and file.place != kept:
                    kept = file.place
                    await asyncio.to_thread(places.keep, path, kept)
                if not found:
                    await self._pause(LOOK_S)
        finally:
            file.close()

    def _about(self, path: Path, trouble: str, now: datetime) -> LogLine:
        """What people are told about a file in the place of its lines."""
        origin = f"{self._life}@{now.isoformat()}"
        return LogLine(now, str(path), origin, WARNING, f"{path} cannot be read: {trouble}")

    async def _hear(self, logs: tuple[Publisher, Publisher]) -> None:
        try:
            while not self._stopping.is_set():
                await self._pass_on(await self._listener.take(MOST_MESSAGES, LOOK_S), logs)
            # Nobody sends again what was taken in.
            await self._listener.close()
            while messages := await self._listener.take(MOST_MESSAGES, 0.0):
                await self._pass_on(messages, logs)
        finally:
            self._listener.give_up()

    async def _pass_on(self, messages: list[bytes], logs: tuple[Publisher, Publisher]) -> None:
        first, self._received = self._received, self._received + len(messages)
        now = local_now()
        lines = [
            parse_syslog(raw, f"{self._life}.{number}", now)
            for number, raw in enumerate(messages, first)
        ]
        try:
            await self._publish(lines, logs, "syslog")
        except BaseException:
            # The cell may have them and not have said so.
            self._listener.lose(len(messages))
            raise

    async def _publish(
        self, lines: Sequence[LogLine], logs: tuple[Publisher, Publisher], whence: str
    ) -> None:
        """Publish and wait until the cell has it; what is severe overtakes the rest."""
        severe = [line for line in lines if line.severity <= URGENT]
        others = [line for line in lines if line.severity > URGENT]
        await asyncio.gather(
            *(
                publisher.publish(log_batch(self._settings.host, part))
                for publisher, part in zip(logs, (others, severe), strict=True)
                if part
            )
        )
        self.published[whence] += len(lines)


def metric_batch(host: str, now: datetime, found: Sequence[Measurement]) -> pa.RecordBatch:
    """Measurements as a publication of the channel."""
    rows = [
        {"time": now, "host": host, "metric": metric, "item": item, "value": float(value)}
        for metric, item, value in found
    ]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(METRICS))


def log_batch(host: str, lines: Sequence[LogLine]) -> pa.RecordBatch:
    """Lines as a publication of the channel."""
    rows = [{"host": host, **msgspec.structs.asdict(line)} for line in lines]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(LOGS))
