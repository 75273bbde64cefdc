"""The demonstration to its end, the notebook, and a job on a cluster of two workers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.support.together import ROOT

from quorumcast import sync
from quorumcast.pipeline.archive import archive_options
from quorumcast.pipeline.java import prepare_java
from quorumcast.pipeline.session import BRIEF_JAVA, LOCAL_JAVA
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


@cache
def java_options() -> str:
    """For Java processes that live for a moment: few threads, and classes that are loaded already.

    A session takes the archive of classes by itself; the processes around it do not.
    """
    archive = archive_options(prepare_java())
    return f"{LOCAL_JAVA} {BRIEF_JAVA} {archive if 'SharedArchiveFile' in archive else ''}"


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


def test_demo_ends_with_a_table_an_evaluation_and_an_audit_that_names_the_liar(
    tmp_path: Path,
) -> None:
    brief = ("--seconds", "6", "--rate", "400", "--dir", tmp_path / "cell", "--json")
    summary = json.loads(run(sys.executable, "-m", "quorumcast", "demo", *brief))
    assert summary["ok"]
    found = summary["spark"]
    assert found["table"]["rows"] == found["table"]["distinct"] == summary["published"]
    assert found["evaluation"]["coverage"] == 1.0
    assert set(found["audit"]["named"]) == set(summary["liars"]) == {"broker-3"}
    for part in ("evaluation", "audit"):
        assert Path(found[part]["file"]).read_text().startswith("<!doctype html>")


def test_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "spark_notebook.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert all(not c.get("outputs") for c in notebook["cells"]), "outputs are not committed"
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join(cells))
    # The liar's word counts where it is heard, however late.
    patient = tmp_path / "spark-defaults.conf"
    patient.write_text("spark.python.daemon.module tests.support.worker_daemon\n")
    paths = f"{SRC}{os.pathsep}{ROOT}"
    said = run(sys.executable, script, SPARK_CONF_DIR=str(tmp_path), PYTHONPATH=paths)
    assert "30,000 rows, 30 publications" in said
    assert "broker-3" in said


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
