"""The Python that Spark starts on this machine: ours, with a planner that calls early."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import sys

from quorumcast.pipeline import planner
from quorumcast.pipeline.archive import caches
from quorumcast.traces.drafts import replacing

_WRAPPER = """#!/bin/sh
# Spark waits ten seconds for the planner of a stream, however busy the machine is.
[ "$*" = "-m {module}" ] && exec {python} -P {planner}
exec {python} "$@"
"""


def prepare_python() -> str:
    """The path of an interpreter for `PYSPARK_PYTHON`; the plain one if there is no room for it."""
    text = _WRAPPER.format(
        module=planner.MODULE,
        python=shlex.quote(sys.executable),
        planner=shlex.quote(planner.__file__),
    )
    wrapper = caches() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with contextlib.suppress(OSError):
        if not wrapper.is_file():
            wrapper.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(wrapper) as draft:
                draft.write_text(text)
                draft.chmod(0o755)
        return str(wrapper)
    return sys.executable
