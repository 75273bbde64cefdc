"""Checks the address of a Spark master before Spark starts.

Spark itself answers an invalid address with pages of Java, and an unreachable master after a
minute.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import closing

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import LAST_PORT

_COUNT = r"(\*|[1-9]\d*)"
_LOCAL = rf"local(\[{_COUNT}(,\s*[1-9]\d*)?\])?"
_CLUSTER_HERE = r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]"
_HOST = r"(?:\[[0-9a-fA-F:]+\]|[^\s:,/\[\]]+):\d{1,5}"
_STANDALONE = rf"spark://({_HOST}(?:,{_HOST})*)"
_ELSEWHERE = r"yarn|k8s://\S+"
#: Time for a master to answer.
ANSWER_TIMEOUT_S = 5.0


def check_master(master: str) -> None:
    """Raise `UsageError` for an invalid or unreachable master."""
    if re.fullmatch(f"{_LOCAL}|{_CLUSTER_HERE}|{_ELSEWHERE}", master):
        return
    standalone = re.fullmatch(_STANDALONE, master)
    if standalone is None:
        raise UsageError(
            f"{master!r} is no master of Spark: give local[2], local[*] for all cores, "
            "spark://HOST:PORT, yarn or k8s://…"
        )
    # Of several masters, one is active and the others stand by.
    if not any(map(_answers, standalone.group(1).split(","))):
        raise UsageError(
            f"no Spark answers at {master}: start a master there, correct the address, or leave "
            "--master and SPARK_MASTER out to use this machine"
        )


def cores_of(master: str) -> int | None:
    """Return the number of parallel tasks if Spark runs on this machine, else None."""
    here = re.fullmatch(_LOCAL, master)
    if here is not None:
        count = here.group(2) or "1"
        return os.cpu_count() or 1 if count == "*" else int(count)
    cluster = re.fullmatch(_CLUSTER_HERE, master)
    return int(cluster.group(1)) * int(cluster.group(2)) if cluster is not None else None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if int(port) > LAST_PORT:
        return False
    try:
        with closing(socket.create_connection((host.strip("[]"), int(port)), ANSWER_TIMEOUT_S)):
            return True
    except (OSError, UnicodeError):
        return False
