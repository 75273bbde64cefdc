"""The alarm engine with durable state, and an outbox of alarms to be published.

    book.bin            the engine's state, and the alarms of the last step
    alarms/NUMBER.json  the alarms of one step, for the query that publishes them

Replacing `book.bin` commits a step together with its alarms; the alarm file is written afterwards.
After a crash in between, the next start writes that file again. So each alarm is published exactly
once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.engine import Alarm, AlarmEngine, EngineState
from quorumcast.monitoring.rules import Rules
from quorumcast.traces.drafts import replacing

T = TypeVar("T")

#: Recent alarms that the report shows.
SHOWN = 200


class _Saved(msgspec.Struct):
    """The contents of `book.bin`."""

    turn: int = 0
    memory: EngineState = msgspec.field(default_factory=EngineState)
    alarms: list[Alarm] = []
    recent: list[Alarm] = []


class DurableEngine:
    """An alarm engine that several threads use; each step is on disk before the next."""

    def __init__(self, directory: Path, rules: Rules) -> None:
        self.alarms = directory / "alarms"
        self.alarms.mkdir(parents=True, exist_ok=True)
        self._path = directory / "book.bin"
        self._lock = threading.Lock()
        saved = _Saved()
        try:
            saved = msgspec.msgpack.decode(self._path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError:
            raise UsageError(
                f"{self._path} is damaged; remove it to begin without the alarms that are open"
            ) from None
        self.engine = AlarmEngine(rules, saved.memory)
        #: The newest alarms, raised and cleared, oldest first.
        self.recent: deque[Alarm] = deque(saved.recent, SHOWN)
        #: Alarms of this process that the command has not printed yet.
        self.unshown: deque[Alarm] = deque(maxlen=SHOWN)
        self._steps = saved.turn
        self._write_alarms(saved.alarms)

    def apply(self, step: Callable[[AlarmEngine], list[Alarm]]) -> list[Alarm]:
        """Perform a step of the engine; its state and alarms are on disk afterwards."""
        with self._lock:
            alarms = step(self.engine)
            self._steps += 1
            self.recent.extend(alarms)
            self.unshown.extend(alarms)
            saved = _Saved(self._steps, self.engine.state, alarms, list(self.recent))
            with replacing(self._path) as draft:
                draft.write_bytes(msgspec.msgpack.encode(saved))
            self._write_alarms(alarms)
            return alarms

    def read(self, look: Callable[[AlarmEngine, list[Alarm]], T]) -> T:
        """Call `look` with the engine and the newest alarms, under the lock."""
        with self._lock:
            return look(self.engine, list(self.recent))

    def _write_alarms(self, alarms: list[Alarm]) -> None:
        if alarms:
            with replacing(self.alarms / f"{self._steps:012d}.json") as draft:
                draft.write_bytes(b"\n".join(map(msgspec.json.encode, alarms)))
