"""What newcomers run first: the demonstration to its end, and the notebook."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.scheduling import ROOT
from typer.testing import CliRunner

from quorumcast.cli.main import command_tree

pytestmark = pytest.mark.runtime


@pytest.fixture(autouse=True)
def _lent(spark: SparkSession) -> Iterator[None]:
    """Both stop the session that they have begun, as they should; here it is that of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession, "stop", lambda session: session.catalog.clearCache())
        yield


def test_demo_loses_nothing_and_ends_with_an_audit_that_names_the_liar(
    tmp_path: Path,
) -> None:
    brief = ("--seconds", "6", "--rate", "400", "--dir", str(tmp_path / "cell"), "--json")
    shown = CliRunner().invoke(command_tree(), ["demo", *brief])
    assert shown.exit_code == 0, shown.output
    summary = json.loads(shown.stdout)
    assert summary["ok"]
    assert (summary["lost"], summary["duplicated"], summary["altered"]) == (0, 0, 0)
    assert set(summary["accepted"]) == {"carol", "dave", "erin"}
    trades = summary["trades"]
    assert trades["accepted"] == trades["matching"] > 0
    assert trades["irrelevant"] == trades["duplicated"] == 0
    assert "omits" in summary["suspicions"]["broker-3"]
    assert summary["evidence"]["valid"]
    assert summary["receipt"]["valid"]
    found = summary["spark"]
    assert found["table"]["rows"] == found["table"]["distinct"] == summary["published"]
    assert found["evaluation"]["coverage"] == 1.0
    assert set(found["audit"]["named"]) == set(summary["liars"]) == {"broker-3"}
    for part in ("evaluation", "audit"):
        assert Path(found[part]["file"]).read_text().startswith("<!doctype html>")


def test_notebook_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((ROOT / "examples" / "spark_notebook.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert all(not c.get("outputs") for c in notebook["cells"]), "outputs are not committed"
    exec("\n\n".join(cells), {})
    said = capsys.readouterr().out
    assert "30,000 rows, 30 publications" in said
    assert "broker-3" in said
