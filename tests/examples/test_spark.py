"""A job on a cluster of two workers."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.java import java_options
from tests.support.scheduling import ROOT

from quorumcast import sync
from quorumcast.testing import LocalCluster

EXAMPLES, SRC = ROOT / "examples", ROOT / "src"

#: Three Java processes start one after the other, on a machine that may be busy.
TIMEOUT_S = 900

pytestmark = [
    pytest.mark.slow,
    pytest.mark.runtime,
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.spark,
]


def run(*arguments: str | Path, **environment: str) -> str:
    process = subprocess.Popen(
        [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": java_options(),
            **environment,
        },
        start_new_session=True,
    )
    try:
        said, complained = process.communicate(timeout=TIMEOUT_S - 10)
    finally:
        # Nothing of a cluster may outlive its test.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said + complained
    return said


@pytest.mark.walk
def test_submitted_job_reads_a_channel_on_two_workers(tmp_path: Path) -> None:
    with LocalCluster(channels={"orders": "total"}, directory=tmp_path / "cell") as cell:
        with (
            sync.connect(cell.manifest_path, cell.identity_path("alice"), timeout_s=60) as alice,
            alice.publisher("orders") as orders,
        ):
            for number in range(50):
                orders.publish(f"order {number}".encode())
        cell.wait_executed()
        said = run(
            EXAMPLES / "spark_cluster.sh",
            "spark-submit",
            EXAMPLES / "spark_table.py",
            cell.directory,
            "bob",
            "orders",
            tmp_path / "orders.parquet",
        )
    assert "50 rows of orders" in said
