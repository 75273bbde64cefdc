"""The planner process of a streaming source, which connects to Spark before it loads PySpark.

Spark starts a Python process for every streaming source. It waits ten seconds for the connection
and ten more for the secret, and no setting changes that. PySpark connects after it has loaded
itself, NumPy and Arrow: 0.4 s of processor time, and on a busy machine more than ten seconds. This
program connects first, after 0.02 s, and passes the connection to PySpark.

`pipeline.interpreter` makes Spark run it instead of `python -m MODULE`.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

#: The module that Spark wants to run.
MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
#: Spark's answer to a correct secret.
WELCOME = (2).to_bytes(4, "big") + b"ok"


def connect() -> socket.socket:
    """Connect to Spark, and send the secret if it is a TCP connection."""
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    if path is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return connection
    ipv6 = os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true"
    port = int(os.environ["PYTHON_WORKER_FACTORY_PORT"])
    connection = socket.create_connection(("::1" if ipv6 else "127.0.0.1", port))
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    connection.sendall(len(secret).to_bytes(4, "big") + secret)
    answer = connection.recv(len(WELCOME), socket.MSG_WAITALL)
    if answer != WELCOME:
        sys.exit(f"Spark did not accept the secret: it answered {answer!r}")
    return connection


def main() -> None:
    """Connect to Spark, load PySpark, and run its module."""
    connection = connect()
    # `python -m` does this as well.
    sys.path.insert(0, os.getcwd())
    import runpy

    from pyspark import util

    def connected(conn_info: str | int | None, auth_secret: str | None) -> tuple[Any, ...]:
        """Return the existing connection, once."""
        util.local_connect_and_auth = connect_again
        size = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
        return connection.makefile("rwb", size), connection

    connect_again = util.local_connect_and_auth
    util.local_connect_and_auth = connected
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
