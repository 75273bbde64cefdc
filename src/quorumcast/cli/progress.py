"""A progress display on standard error: one updated line on a terminal, else a line at times."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Self

#: Update interval on a terminal; elsewhere, time until the first line and interval of the others.
#: Work that ends before the first update shows nothing.
TERMINAL_S, QUIET_S, LINE_S = 0.25, 2.0, 20.0

#: The stage of commands that ask status pages: a paused broker lets them wait for five seconds.
WAITING = "waiting for status pages of brokers"


class ProgressDisplay:
    """Shows the present stage of some work while its `with` block runs.

    The work sets the stage by calling the display, or `look` returns it at each update.
    """

    def __init__(self, stage: str = "", look: Callable[[], str] | None = None) -> None:
        self._stage = stage
        self._look = look
        self._shown = ""
        self._over = threading.Event()
        self._terminal = sys.stderr.isatty()
        # A thread updates the display, so it also works while the main thread is busy.
        self._thread = threading.Thread(target=self._update, daemon=True)

    def __call__(self, stage: str) -> None:
        """Set the stage."""
        self._stage = stage

    def say(self, sentence: str) -> None:
        """Print a line that stays."""
        self._clear()
        print(sentence, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._clear()

    def _clear(self) -> None:
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = ""

    def _update(self) -> None:
        wait = TERMINAL_S if self._terminal else QUIET_S
        while not self._over.wait(wait):
            stage = self._stage if self._look is None else self._look()
            if stage != self._shown:
                start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
                print(f"{start}{stage}", end=end, file=sys.stderr, flush=True)
                self._shown = stage
            wait = TERMINAL_S if self._terminal else LINE_S
