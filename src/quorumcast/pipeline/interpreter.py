"""The Python interpreter that Spark starts on this machine, with a planner that connects early."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import sys

from quorumcast.pipeline import early_planner
from quorumcast.pipeline.archive import caches, write_program

_WRAPPER = """#!/bin/sh
# Spark waits ten seconds for the planner of a stream, however busy the machine is.
[ "$*" = "-m {module}" ] && exec {python} -P {planner}
exec {python} "$@"
"""


def prepare_python() -> str:
    """Return an interpreter for `PYSPARK_PYTHON`; the plain one if none can be written."""
    text = _WRAPPER.format(
        module=early_planner.MODULE,
        python=shlex.quote(sys.executable),
        planner=shlex.quote(early_planner.__file__),
    )
    wrapper = caches() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with contextlib.suppress(OSError):
        if not wrapper.is_file():
            write_program(wrapper, text)
        return str(wrapper)
    return sys.executable
