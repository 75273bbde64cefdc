"""Structured logs: one JSON object per line, from the standard library's logging."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

#: Where the runtime logs; `extra={"fields": {...}}` adds members to the object.
log = logging.getLogger("quorumcast")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, node, message and the record's own fields."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging(node: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send the runtime's logs to standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(node))
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False


def note(message: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log one line with fields."""
    log.log(level, message, extra={"fields": fields})
