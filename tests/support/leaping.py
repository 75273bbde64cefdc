"""An event loop whose clock leaps to the next timer instead of waiting for it.

A cell in memory has no sockets, files or threads: when nothing is ready to run, only a timer can go
on, and it may as well expire now. So a test waits for no timeout, and a busy machine cannot make
one expire early.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.runtime.world import PATIENCE_S

T = TypeVar("T")


class LeapingSelector(selectors.DefaultSelector):
    """Adds up the time that it was asked to wait, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        #: How far the clock of the loop is ahead of that of the machine.
        self.leapt_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.leapt_s += max(timeout, 0)
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    """For everything that happens in one thread."""

    def __init__(self) -> None:
        self._leaping = LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return super().time() + self._leaping.leapt_s

    def run_in_executor(self, *_: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError("another thread takes its time: run this on a common loop")


def leap(main: Coroutine[Any, Any, T], timeout_s: float = PATIENCE_S) -> T:
    """Run on such a loop; a test that hangs has failed as soon as nothing but time goes on."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await main

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(bounded())
