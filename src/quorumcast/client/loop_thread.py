"""An event loop in a background thread, on which the blocking client is built."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from quorumcast import client
from quorumcast.client.arguments import check_timeout

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self, name: str = "quorumcast") -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._main, args=(started,), name=name, daemon=True)
        self._thread.start()
        self.loop = started.result()

    def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async def main() -> None:
            self._ended = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._ended.wait()

        client.run(main())

    def run(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout_s: float | None = None,
        overdue: Callable[[float], str] | None = None,
    ) -> T:
        """Run a coroutine in the loop and wait for its result; `overdue` explains a time-out."""
        try:
            check_timeout(timeout_s)
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(_run(coroutine, timeout_s, overdue), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the loop and wait for its result."""

        async def run() -> T:
            return function()

        return self.run(run())

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()


async def _run(
    coroutine: Coroutine[Any, Any, T],
    timeout_s: float | None,
    overdue: Callable[[float], str] | None,
) -> T:
    # The time runs in the loop: a time-out in the other thread could come while the coroutine
    # returns, and what it has taken from a queue would be lost.
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if timeout_s is None or overdue is None or not limit.expired():
            raise  # of the coroutine itself, which explains it
        raise TimeoutError(overdue(timeout_s)) from None


class ClosesOnExit:
    """Base of context managers that close on exit."""

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
