"""A probe: measures its host, follows log files, receives syslog, and publishes all of it.

Delivery guarantees while the cell is slow or unreachable:

    measurements   at most `buffer` rows wait; newer ones are dropped and counted
    files          at least once: the position in a file is saved after the cell acknowledged the
                   lines, and duplicates have the same `origin`
    syslog         TCP applies backpressure; datagrams beyond the buffer are dropped and counted, as
                   are messages that a stopping probe cannot deliver in time

The number of dropped rows is a measurement itself (`probe.dropped`, with the source as item).
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
from msgspec import structs

from quorumcast.client import BufferFull, Node, Publisher
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest.schema import arrow_schema
from quorumcast.monitoring.channels import HOST, LOGS, METRICS, Names, check_channel
from quorumcast.monitoring.follow import LogFile, LogPositions
from quorumcast.monitoring.host import HostSampler, Measurement
from quorumcast.monitoring.lines import URGENT, WARNING, LogLine, line_of_file
from quorumcast.monitoring.syslog import SyslogListener, local_now, parse_syslog

#: Pause after a read of a file that found nothing new.
POLL_S = 0.25
#: Limit of syslog messages in one publication.
MAX_MESSAGES = 1024
#: Time that a stopping probe waits for acknowledgements.
STOP_TIMEOUT_S = 5.0


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a probe."""

    host: str
    names: Names = Names.under()
    metrics: bool = True
    interval_s: float = 5.0
    files: tuple[Path, ...] = ()
    from_start: bool = False
    #: The file of saved positions.
    state: Path | None = None
    syslog: tuple[str, int] | None = None
    #: Limit of waiting measurements, and of waiting syslog messages.
    buffer: int = 10_000

    def check(self) -> None:
        """Raise `UsageError` if a setting is invalid."""
        if not re.fullmatch(HOST, self.host):
            raise UsageError(
                f"--host is {self.host!r}: give a name of 1 to {MAX_NAME} letters, digits, dots, "
                "hyphens and underscores"
            )
        if not (self.metrics or self.files or self.syslog):
            raise UsageError("this probe has nothing to do; add --metrics, --logs or --syslog")
        if self.files and self.state is None:
            raise UsageError("a probe that follows files must know where to keep their positions")
        if not self.interval_s >= 0.1:
            raise UsageError("--interval is a number of seconds, 0.1 or more")
        if self.buffer < 1:
            raise UsageError("--buffer is 1 or more")


class HostProbe:
    """A probe on a connected node; `stop` ends `run`."""

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
        #: Random prefix of the origins of this process.
        self._instance = secrets.token_hex(4)
        self._received = 0
        #: Published rows by source, and dropped measurements.
        self.published: Counter[str] = Counter()
        self._dropped = 0
        #: Set once all sources have been started.
        self.ready = asyncio.Event()

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped rows, by source."""
        return {
            "metrics": self._dropped,
            "syslog": self._listener.dropped,
            "connections": self._listener.refused,
        }

    @property
    def address(self) -> tuple[str, int]:
        """The address of the syslog listener."""
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
                work.append(self._receive_syslog(logs))
            work += [self._follow(file, positions, logs) for file, positions in followed]
        try:
            await self._until_stopped(work)
        finally:
            await self._listener.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await asyncio.gather(*(made.close() for made in publishers))

    async def _until_stopped(self, work: list[Coroutine[Any, Any, None]]) -> None:
        """Run all tasks until `stop`; an error of one ends the probe."""
        tasks = [asyncio.create_task(part) for part in work]
        stopping = asyncio.create_task(self._stopping.wait())
        self.ready.set()
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            # Publications under way may still be acknowledged and their position saved.
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
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
        reported: dict[str, int] = {}
        due = time.monotonic()
        while not self._stopping.is_set():
            # psutil may wait for a slow disk and must not block the event loop.
            found = await asyncio.to_thread(sampler.sample, time.monotonic())
            lost = self.dropped
            found += [
                ("probe.dropped", where, count - reported.get(where, 0))
                for where, count in lost.items()
            ]
            batch = metric_batch(self._settings.host, datetime.now(UTC), found)
            try:
                publisher.post_batch(batch)
                reported = lost
                self.published["metrics"] += batch.num_rows
            except BufferFull:
                self._dropped += batch.num_rows
            due = max(due + self._settings.interval_s, time.monotonic())
            await self._pause(due - time.monotonic())

    # ---------------------------------------------------------------------- lines

    def _followed(self) -> list[tuple[LogFile, LogPositions]]:
        """Return the files to follow, at their saved positions."""
        settings = self._settings
        if settings.state is None or not settings.files:
            return []
        positions = LogPositions(settings.state)
        return [
            (LogFile(path, positions.get(path), from_start=settings.from_start), positions)
            for path in (path.absolute() for path in settings.files)
        ]

    async def _follow(
        self, file: LogFile, positions: LogPositions, logs: tuple[Publisher, Publisher]
    ) -> None:
        path, kept, trouble = file.path, None, ""
        try:
            while not self._stopping.is_set():
                found = await asyncio.to_thread(file.read)
                now = datetime.now(UTC)
                lines = [line_of_file(str(path), origin, raw, now) for origin, raw in found]
                if file.trouble not in ("", trouble):
                    origin = f"{self._instance}@{now.isoformat()}"
                    text = f"{path} cannot be read: {file.trouble}"
                    lines.append(LogLine(now, str(path), origin, WARNING, text))
                trouble = file.trouble
                await self._publish(lines, logs, "logs")
                if file.position is not None and file.position != kept:
                    kept = file.position
                    await asyncio.to_thread(positions.keep, path, kept)
                if not found:
                    await self._pause(POLL_S)
        finally:
            file.close()

    async def _receive_syslog(self, logs: tuple[Publisher, Publisher]) -> None:
        try:
            while not self._stopping.is_set():
                await self._publish_syslog(await self._listener.take(MAX_MESSAGES, POLL_S), logs)
            # Devices do not retransmit messages that were received.
            await self._listener.close()
            while messages := await self._listener.take(MAX_MESSAGES, 0.0):
                await self._publish_syslog(messages, logs)
        finally:
            self._listener.give_up()

    async def _publish_syslog(
        self, messages: list[bytes], logs: tuple[Publisher, Publisher]
    ) -> None:
        first, self._received = self._received, self._received + len(messages)
        now = local_now()
        lines = [
            parse_syslog(raw, f"{self._instance}.{number}", now)
            for number, raw in enumerate(messages, first)
        ]
        try:
            await self._publish(lines, logs, "syslog")
        except BaseException:
            # The acknowledgement may have been lost; count the messages as dropped.
            self._listener.lose(len(messages))
            raise

    async def _publish(
        self, lines: Sequence[LogLine], logs: tuple[Publisher, Publisher], source: str
    ) -> None:
        """Publish lines and wait for the acknowledgement; severe lines are urgent."""
        severe = [line for line in lines if line.severity <= URGENT]
        others = [line for line in lines if line.severity > URGENT]
        publishing = []
        for publisher, part in zip(logs, (others, severe), strict=True):
            rows = [{"host": self._settings.host, **structs.asdict(line)} for line in part]
            if rows:
                batch = pa.RecordBatch.from_pylist(rows, arrow_schema(LOGS))
                publishing.append(publisher.publish(batch))
        await asyncio.gather(*publishing)
        self.published[source] += len(lines)


def metric_batch(host: str, now: datetime, found: Sequence[Measurement]) -> pa.RecordBatch:
    """Return measurements as a publication."""
    rows = [
        {"time": now, "host": host, "metric": metric, "item": item, "value": float(value)}
        for metric, item, value in found
    ]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(METRICS))
