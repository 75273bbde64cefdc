"""The planner of a stream as Spark starts it, except that it calls Spark back before it loads.

Spark starts a Python process for every streaming source, waits ten seconds for its call and ten
more for its secret, and no setting changes that. PySpark calls when it has loaded itself, NumPy and
Arrow. That is 0.4 s of processor time, and on a busy machine more than ten seconds. This program
calls first, after 0.02 s, and hands the connection to PySpark once that is loaded.

`pipeline.interpreter` has Spark run it in place of `python -m MODULE`.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

#: What Spark starts in this way.
MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
#: What Spark answers to its secret.
WELCOME = (2).to_bytes(4, "big") + b"ok"


def connect() -> socket.socket:
    """Call Spark where it listens, and tell the secret where it asks for one."""
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    if path is not None:
        called = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        called.connect(path)
        return called
    ipv6 = os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true"
    port = int(os.environ["PYTHON_WORKER_FACTORY_PORT"])
    called = socket.create_connection(("::1" if ipv6 else "127.0.0.1", port))
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    called.sendall(len(secret).to_bytes(4, "big") + secret)
    answer = called.recv(len(WELCOME), socket.MSG_WAITALL)
    if answer != WELCOME:
        sys.exit(f"Spark did not accept the secret: it answered {answer!r}")
    return called


def main() -> None:
    """Call Spark, load PySpark, and plan."""
    called = connect()
    # What `python -m` has, and a program has not.
    sys.path.insert(0, os.getcwd())
    import runpy

    from pyspark import util

    def connected(conn_info: str | int | None, auth_secret: str | None) -> tuple[Any, ...]:
        """The connection that there is, in place of a new one."""
        util.local_connect_and_auth = make_another
        size = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
        return called.makefile("rwb", size), called

    make_another = util.local_connect_and_auth
    util.local_connect_and_auth = connected
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
