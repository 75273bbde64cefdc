"""The audit on Spark: tables in, verdicts out; labels by the simulator; the score."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.support.cells import B1, B2, BOB, CAROL, Cell, identity_of
from typer.testing import CliRunner

from quorumcast.agents.observation import COLUMNS, DOCUMENT_COLUMNS
from quorumcast.cli.main import app, main
from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.audit.job import audit, contested, features
from quorumcast.pipeline.audit.labelling import label_runs
from quorumcast.pipeline.audit.labels import adversary_of
from quorumcast.pipeline.audit.score import compared, score, wrongly_named
from quorumcast.pipeline.audit.tables import DOCUMENTS, LABELS, OBSERVATIONS, VERDICTS
from quorumcast.runtime.observations import write_table

CELL = Cell(Policy.named("brb"))
SIGNED = msgspec.json.encode(sign_manifest(CELL.manifest, identity_of("operator")))


def row(observer: str, accused: str, **more: object) -> tuple[object, ...]:
    usual = {
        "run": "r", "t_ms": 1000, "until_ms": 1100, "observer": observer, "role": "subscriber",
        "kind": "suspect", "accused": accused, "reason": "dissent", "message": "Vote",
        "channel": "orders", "publisher": "alice", "incarnation": 1, "lane": 0, "number": 1,
        "count": 1,
    }  # fmt: skip
    return tuple({**usual, **more}[name] for name in COLUMNS)


def statement(broker: str, body: bytes) -> bytes:
    return msgspec.json.encode(CELL.segment(broker, 1, body)[1])  # type: ignore[arg-type]


def document(observer: str, kind: str, data: bytes, run: str = "r") -> tuple[object, ...]:
    return run, observer, kind, "", data


def test_equal_observations_are_added_up_and_parts_of_the_run_told_apart(
    spark: SparkSession,
) -> None:
    rows = [
        row(BOB, B1, count=2),
        row(BOB, B1, count=3, t_ms=5000, until_ms=9000),
        row(BOB, B1, kind="came", reason="", number=40, t_ms=1000),
        row(BOB, B1, kind="came", reason="", number=40, t_ms=8900),
    ]
    found = features(spark.createDataFrame(rows, OBSERVATIONS)).collect()
    suspected = [r for r in found if r["kind"] == "suspect"]
    assert [(r["count"], r["t_ms"], r["until_ms"]) for r in suspected] == [(5, 1000, 9000)]
    assert sorted((r["bucket"], r["slot"]) for r in found if r["kind"] == "came") == [
        (40, 0), (40, 7),
    ]  # fmt: skip


def test_only_statements_that_contradict_something_reach_the_judge(spark: SparkSession) -> None:
    rows = [
        document("", "manifest", SIGNED),
        document(BOB, "statement", statement(B1, b"one")),
        document(CAROL, "statement", statement(B1, b"one")),
        document(BOB, "statement", b"rubbish"),
        document(BOB, "receipt", b"{}"),
        document(BOB, "statement", statement(B2, b"one"), run="other"),
        document(CAROL, "statement", statement(B2, b"two"), run="other"),
    ]
    found = contested(spark.createDataFrame(rows, DOCUMENTS)).collect()
    assert sorted((r["run"], r["kind"]) for r in found) == [
        ("other", "statement"), ("other", "statement"), ("r", "manifest"),
    ]  # fmt: skip


def test_verdicts_on_two_runs_at_once(spark: SparkSession) -> None:
    observations = [row(BOB, B1), row(CAROL, B1), row(BOB, B2, run="other")]
    documents = [
        *(document("", "manifest", SIGNED, run) for run in ("r", "other")),
        document(BOB, "statement", statement(B1, b"one"), run="other"),
        document(CAROL, "statement", statement(B1, b"two"), run="other"),
        # What a node says is the manifest is not believed.
        document(BOB, "manifest", b"{}"),
    ]
    found = audit(
        spark.createDataFrame(observations, OBSERVATIONS),
        spark.createDataFrame(documents, DOCUMENTS),
    ).collect()
    named = {(r["run"], r["node"], r["standing"]) for r in found if r["standing"] != "disputed"}
    # In the other run the proof takes the one broker that may lie; a single accuser is no suspect.
    assert named == {("r", B1, "suspected"), ("other", B1, "proven")}


def test_score_counts_what_is_wrong_and_what_is_missed(spark: SparkSession) -> None:
    labels = [
        ("r", "simulator", "ab", "alter", node, fault, status, 1, "")
        for node, fault, status in (
            ("b1", "alter", "plain"), ("b2", "alter", "plain"), ("b3", "", "correct"),
            ("b4", "crash", "world"),
        )
    ]  # fmt: skip
    verdicts = [
        ("r", node, standing, 1.0, "altered", "", "", 1, 0, 0, "", "")
        for node, standing in (("b1", "proven"), ("b3", "suspected"), ("b2", "disputed"))
    ]
    labelled = spark.createDataFrame(labels, LABELS)
    judged = spark.createDataFrame(verdicts, VERDICTS)
    result = score([r.asDict() for r in compared(judged, labelled).collect()], 1)
    assert (result["precision"], result["recall"]) == (0.5, 0.5)
    assert (result["named_wrongly"], result["proven_wrongly"]) == (1, 0)
    assert [r["node"] for r in wrongly_named(judged, labelled).collect()] == ["b3"]


def test_labelled_runs_are_audited_and_scored_by_the_command(
    spark: SparkSession, tmp_path: Path
) -> None:
    # 12 and 13: equivocating and counterfeiting brokers.
    label_runs(spark, 2, tmp_path / "runs", start=11)
    answer = CliRunner().invoke(
        app,
        ["pipeline", "audit", str(tmp_path / "runs"), "--score", "--json",
         "--output", str(tmp_path / "found"), "--html", str(tmp_path / "audit.html")],
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    result = json.loads(answer.stdout)
    assert result["runs"] == 2
    assert result["score"]["named_wrongly"] == 0
    assert result["score"]["proven_precision"] in (1.0, None)
    proofs = sorted((tmp_path / "found" / "evidence").glob("*.evidence"))
    proven = [row for row in result["verdicts"] if row["proof"]]
    assert len(proofs) == len(proven)
    for proof, verdict in zip(proofs, sorted(proven, key=lambda r: r["run"]), strict=True):
        manifest = tmp_path / "found" / "manifests" / f"{verdict['run']}.json"
        verified = CliRunner().invoke(app, ["verify", str(proof), "-m", str(manifest)])
        assert verified.exit_code == 0, verified.output
    page = (tmp_path / "audit.html").read_text()
    assert all(row["node"] in page for row in result["verdicts"])
    assert "http" not in page.replace("<!doctype html>", "")


def test_every_fault_has_its_turn() -> None:
    drawn = {adversary_of(seed) for seed in range(500)}
    assert len(drawn) > 55


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--observe"),
        (["--label", "5"], "--output"),
        (["nowhere"], "holds no observations"),
        (["nowhere", "--lying-clients", "-1"], "0 or more"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    spark: SparkSession, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "audit", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_run_without_a_manifest_is_one_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = dict(zip(COLUMNS, ([value] for value in row(BOB, B1)), strict=True))
    write_table(tmp_path / "log" / "observations" / "a.parquet", COLUMNS, columns)
    nothing: dict[str, list[object]] = {name: [] for name in DOCUMENT_COLUMNS}
    write_table(tmp_path / "log" / "documents" / "a.parquet", DOCUMENT_COLUMNS, nothing)
    assert main(["pipeline", "audit", str(tmp_path / "log")]) == 2
    assert "name the cell's with -m" in capsys.readouterr().err
