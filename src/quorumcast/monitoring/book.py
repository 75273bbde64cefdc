"""The book: what a watch remembers, on disk, and the alarms that wait to be published.

    book.bin            everything that the watch remembers, and the alarms of the last turn
    alarms/NUMBER.json  the alarms of one turn, for the query that publishes them

A turn is committed when `book.bin` is replaced, with its alarms inside; only then are they written
out. Whoever dies in between writes them out at the next start, under the same name and with the
same contents. So an alarm is written once, whatever happens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.rules import Rules
from quorumcast.monitoring.watch import Alarm, Memory, Watch
from quorumcast.traces.drafts import replacing

T = TypeVar("T")

#: Alarms that the report and the command show.
SHOWN = 200


class _Page(msgspec.Struct):
    """The file."""

    turn: int = 0
    memory: Memory = msgspec.field(default_factory=Memory)
    alarms: list[Alarm] = []
    recent: list[Alarm] = []


class Book:
    """A watch that survives its process; one thread at a time turns its pages."""

    def __init__(self, directory: Path, rules: Rules) -> None:
        self.alarms = directory / "alarms"
        self.alarms.mkdir(parents=True, exist_ok=True)
        self._path = directory / "book.bin"
        self._lock = threading.Lock()
        page = _Page()
        try:
            page = msgspec.msgpack.decode(self._path.read_bytes(), type=_Page)
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError:
            raise UsageError(
                f"{self._path} is damaged; remove it to begin without the alarms that are open"
            ) from None
        self.watch = Watch(rules, page.memory)
        #: The newest alarms, raised and cleared, in order.
        self.recent: deque[Alarm] = deque(page.recent, SHOWN)
        #: Alarms that this process has raised or cleared and nobody has shown yet.
        self.untold: deque[Alarm] = deque(maxlen=SHOWN)
        self._turn = page.turn
        self._write_out(page.alarms)

    def turn(self, step: Callable[[Watch], list[Alarm]]) -> list[Alarm]:
        """Let the watch make a step; what it remembers and raises is on disk afterwards."""
        with self._lock:
            alarms = step(self.watch)
            self._turn += 1
            self.recent.extend(alarms)
            self.untold.extend(alarms)
            page = _Page(self._turn, self.watch.memory, alarms, list(self.recent))
            with replacing(self._path) as draft:
                draft.write_bytes(msgspec.msgpack.encode(page))
            self._write_out(alarms)
            return alarms

    def read(self, look: Callable[[Watch, list[Alarm]], T]) -> T:
        """Look at the watch and the newest alarms while nobody changes them."""
        with self._lock:
            return look(self.watch, list(self.recent))

    def _write_out(self, alarms: list[Alarm]) -> None:
        if alarms:
            with replacing(self.alarms / f"{self._turn:012d}.json") as draft:
                draft.write_bytes(b"\n".join(map(msgspec.json.encode, alarms)))
