"""How far something is, on standard error: in place on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

#: How often it is looked at on a terminal, and elsewhere at first and from then on. What is over
#: before the first look is not spoken of.
TERMINAL_S, QUIET_S, LINE_S = 0.25, 2.0, 20.0


class Progress:
    """What is being done, for as long as it lasts; called with what it is by now.

    Where the work itself says nothing, `look` is asked.
    """

    def __init__(self, doing: str = "", look: Callable[[], str] | None = None) -> None:
        self._doing = doing
        self._look = look
        self._shown = ""
        self._over = threading.Event()
        self._terminal = sys.stderr.isatty()
        # Looked at from the side: work that says nothing for long is shown as well.
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, doing: str) -> None:
        """This far by now."""
        self._doing = doing

    def say(self, sentence: str) -> None:
        """Something that is to stay there."""
        self._clear()
        print(sentence, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._clear()

    def _clear(self) -> None:
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = ""

    def _watch(self) -> None:
        wait = TERMINAL_S if self._terminal else QUIET_S
        while not self._over.wait(wait):
            doing = self._doing if self._look is None else self._look()
            if doing != self._shown:
                start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
                print(f"{start}{doing}", end=end, file=sys.stderr, flush=True)
                self._shown = doing
            wait = TERMINAL_S if self._terminal else LINE_S
