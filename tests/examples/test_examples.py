"""Every example runs to its end and prints what its reader is meant to see."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.world import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
SRC = Path(__file__).parents[2] / "src"

SAYS = {
    "publish_subscribe.py": "alice: 4 pears",
    "sync_client.py": "order 3",
    "named_subscription.py": "failed: order 5, after 3 attempts",
    "arrow_batches.py": "publication 1: 3,000 trades",
    "verify_receipt.py": "forged: the contents do not have the digest that was signed",
}
TESTS = ["test_lying_broker.py"]
#: Run by `test_spark`.
SPARK = ["spark_table.py"]


def run_python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
        cwd=EXAMPLES.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.runtime
@pytest.mark.parametrize("name", SAYS)
def test_example_script_runs_and_says(name: str) -> None:
    assert SAYS[name] in run_python(str(EXAMPLES / name))


def test_example_test_of_a_consumer_passes(tmp_path: Path) -> None:
    plugin = [] if _installed() else ["-p", "quorumcast.testing.plugin"]
    arguments = ["-m", "pytest", "-p", "no:cacheprovider", *plugin]
    output = run_python(*arguments, f"--rootdir={tmp_path}", str(EXAMPLES / TESTS[0]))
    assert "1 passed" in output


def _installed() -> bool:
    from importlib.metadata import entry_points

    return any(entry.name == "quorumcast" for entry in entry_points(group="pytest11"))


def test_example_in_the_folder_is_run_by_a_test() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted([*SAYS, *TESTS, *SPARK])
