"""Turns exceptions of Spark, which have pages of Java traces, into one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from quorumcast.core.errors import UsageError

#: Modules of the exceptions of Spark, raised in Python and in Java.
_THEIRS = ("pyspark.", "py4j.")
_JAVA = re.compile(r"^(?:: |Caused by: )?((?:[\w$]+\.)+[\w$]+): (.+)$", re.MULTILINE)
#: The message of an exception in a Python function, below its traceback.
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)$", re.MULTILINE)


@contextmanager
def sentences() -> Iterator[None]:
    """Raise `UsageError` for exceptions of Spark; all commands that start Spark use it."""
    from quorumcast.pipeline.session import reason_of

    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(_THEIRS):
            raise
        raise UsageError(f"Spark refuses: {reason_of(error) or _first(str(error))}") from None


def _first(text: str) -> str:
    """The sentence for an exception, with its cause."""
    if raised := _PYTHON.findall(text):
        return str(raised[-1])
    found = _JAVA.findall(text)
    if not found:
        return text.strip().partition("\n")[0]
    said, (cause, behind) = found[0][1], found[-1]
    return said if len(found) == 1 else f"{said} ({cause.rpartition('.')[2]}: {behind})"
