"""The Python that Spark starts: the planner of a stream calls before it loads anything."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quorumcast.pipeline import early_planner
from quorumcast.pipeline.interpreter import prepare_python

#: A PySpark that does not load before the file `gate` has been written, as on a busy machine.
PYSPARK = "import os; open('gate').read()"
UTIL = "def local_connect_and_auth(where, secret): ..."
RUNNER = """
from pyspark.util import local_connect_and_auth

if __name__ == "__main__":
    file, connection = local_connect_and_auth("", "secret")
    file.write(b"planned")
    file.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where that PySpark is."""
    package = tmp_path / "pyspark"
    (package / "sql" / "streaming").mkdir(parents=True)
    (package / "__init__.py").write_text(PYSPARK)
    (package / "util.py").write_text(UTIL)
    (package / "sql" / "streaming" / "python_streaming_source_runner.py").write_text(RUNNER)
    os.mkfifo(tmp_path / "gate")
    return tmp_path


def test_planner_calls_spark_before_it_loads_and_plans_over_that_connection(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as spark:
        port = str(spark.getsockname()[1])
        where = {"PYTHON_WORKER_FACTORY_PORT": port, "PYTHON_WORKER_FACTORY_SECRET": "secret"}
        command = [prepare_python(), "-m", early_planner.MODULE]
        with subprocess.Popen(command, cwd=folder, env={**os.environ, **where}) as process:
            connection, _ = spark.accept()
            with connection, connection.makefile("rb") as said:
                assert said.read(10) == b"\0\0\0\6secret"
                connection.sendall(early_planner.WELCOME)
                (folder / "gate").write_text("load")
                assert said.read() == b"planned"
        assert process.returncode == 0


def test_planner_calls_a_socket_of_the_file_system_where_spark_listens_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its path may not be long
    with socket.socket(socket.AF_UNIX) as spark:
        spark.bind("spark")
        spark.listen()
        monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_PATH", "spark")
        with early_planner.connect() as called:
            connection, _ = spark.accept()
            with connection:
                called.sendall(b"here")
                assert connection.recv(4) == b"here"


def test_everything_else_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import sys; print(sys.executable, *sys.argv[1:])")
    command = [prepare_python(), "-m", "module", "a b"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == f"{sys.executable} a b\n"


def test_without_room_for_another_interpreter_it_is_the_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert prepare_python() == sys.executable
