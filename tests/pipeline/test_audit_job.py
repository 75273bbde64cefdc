"""The audit on Spark: tables in, verdicts out; labels by the simulator; the score."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, CAROL, Cell, identity_of
from typer.testing import CliRunner

from quorumcast.cli.main import command_tree, main
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Connected
from quorumcast.core.statements import Basis
from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.audit.job import audit, contested, features, read_tables
from quorumcast.pipeline.audit.labelling import label_runs
from quorumcast.pipeline.audit.score import compared, score, wrongly_named
from quorumcast.pipeline.audit.sifting import (
    BEYOND,
    INCOMPLETE,
    NO_MANIFEST,
    STRANGERS,
    UNREADABLE,
    limit_per_observer,
)
from quorumcast.pipeline.audit.tables import CELLS, DOCUMENTS, LABELS, OBSERVATIONS, VERDICTS
from quorumcast.runtime.observations import ObservationLog, write_table
from quorumcast.sim.cell import system as cell_system
from quorumcast.sim.cell.labels.labelled import adversary_of
from quorumcast.watch.observation import (
    BY_OBSERVER,
    CELL_COLUMNS,
    COLUMNS,
    DOCUMENT_COLUMNS,
)

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


def write_log(
    directory: Path,
    node: str,
    observations: Sequence[tuple[object, ...]],
    documents: Sequence[tuple[object, ...]] = (),
) -> None:
    """What a node writes, into the directories that are its own."""
    for table, kinds, rows in (
        ("observations", COLUMNS, observations),
        ("documents", DOCUMENT_COLUMNS, documents),
    ):
        columns = {name: [row[place] for row in rows] for place, name in enumerate(kinds)}
        if rows:
            write_table(directory / table / f"{BY_OBSERVER}{node}" / "a.parquet", kinds, columns)


def write_cell(directory: Path, *runs: str) -> None:
    """What whoever makes runs keeps."""
    cell: dict[str, list[object]] = {"run": [*runs], "data": [SIGNED] * len(runs)}
    write_table(directory / "cells" / "a.parquet", CELL_COLUMNS, cell)


def audited(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What the command says of a log."""
    assert main(["pipeline", "audit", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def standings(found: dict[str, Any], run: str = "r") -> set[tuple[str, str]]:
    verdicts = [verdict for verdict in found["verdicts"] if verdict["run"] == run]
    return {(verdict["node"], verdict["standing"]) for verdict in verdicts}


def test_equal_observations_are_summed_per_part_of_the_run(
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


@pytest.mark.parametrize("strained", [(BOB,), (BOB, CAROL)])
def test_timeout_observations_during_overload_do_not_count(
    spark: SparkSession, strained: tuple[str, ...]
) -> None:
    def at(second: int, observer: str, kind: str, reason: str = "") -> tuple[object, ...]:
        return row(
            observer, B1, kind=kind, reason=reason, t_ms=1000 * second, until_ms=1000 * second
        )

    rows = [at(10, who, "strained") for who in strained]
    rows += [at(second, BOB, "missing") for second in (4, 5, 15, 16)]
    rows += [at(6, CAROL, "suspect", "without-history"), at(6, CAROL, "suspect", "dissent")]
    rows += [at(6, B2, "refused", "bad-mac"), at(6, ALICE, "heard")]
    found = features(spark.createDataFrame(rows, OBSERVATIONS)).collect()
    missing = sum(r["count"] for r in found if r["kind"] == "missing")
    suspected = {r["reason"] for r in found if r["kind"] == "suspect"}
    if len(strained) == 1:
        # One of four may be a liar.
        assert (missing, suspected) == (4, {"without-history", "dissent"})
    else:
        assert (missing, suspected) == (2, {"dissent"})
    assert not [r for r in found if r["kind"] == "strained"]


def test_only_contested_statements_reach_the_judge(spark: SparkSession) -> None:
    rows = [
        # What a node says is the manifest is no document of the audit's.
        document(BOB, "manifest", SIGNED),
        document(BOB, "statement", statement(B1, b"one")),
        document(CAROL, "statement", statement(B1, b"one")),
        document(BOB, "statement", b"rubbish"),
        document(BOB, "receipt", b"{}"),
        document(BOB, "statement", statement(B2, b"one"), run="other"),
        document(CAROL, "statement", statement(B2, b"two"), run="other"),
    ]
    found = contested(spark.createDataFrame(rows, DOCUMENTS)).collect()
    assert sorted((r["run"], r["kind"]) for r in found) == [("other", "statement")] * 2


def test_verdicts_on_several_runs_at_once(spark: SparkSession) -> None:
    observations = [row(BOB, B1), row(CAROL, B1), row(BOB, B2, run="other")]
    documents = [
        document(BOB, "statement", statement(B1, b"one"), run="other"),
        document(CAROL, "statement", statement(B1, b"two"), run="other"),
        document("", "manifest", b"{}"),
    ]
    # In the third run no broker contradicts itself, and the publisher splits them.
    cell = Cell(Policy.named("ab"))
    kept = msgspec.json.encode(sign_manifest(cell.manifest, identity_of("operator")))
    sides = ((B1, b"one"), (B2, b"one"), (B3, b"other"), (B4, b"other"))
    split = [
        document(BOB, "statement", msgspec.json.encode(signed), run="split")
        for broker, body in sides
        for _, signed in [cell.segment(NodeId(broker), 1, body, basis=Basis.FORWARDED)]
    ]
    assert contested(spark.createDataFrame(split[:2], DOCUMENTS)).collect() == []
    observations.append(row(BOB, B1, kind="heard", reason="", run="split"))
    found = audit(
        spark.createDataFrame(observations, OBSERVATIONS),
        spark.createDataFrame([*documents, *split], DOCUMENTS),
        spark.createDataFrame([("r", SIGNED), ("other", SIGNED), ("split", kept)], CELLS),
    ).collect()
    assert {(r["node"], r["standing"]) for r in found if r["run"] == "split"} == {
        ("alice", "suspected")
    }
    named = {
        (r["run"], r["node"], r["standing"])
        for r in found
        if r["standing"] in ("proven", "suspected") and r["run"] != "split"
    }
    # In the other run the proof takes the one broker that may lie; a single accuser is no suspect.
    assert named == {("r", B1, "suspected"), ("other", B1, "proven")}


def test_score_counts_wrongly_named_and_missed_nodes(spark: SparkSession) -> None:
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
    # 11: an equivocating broker, of a chain.
    label_runs(spark, 1, tmp_path / "runs", start=11)
    answer = CliRunner().invoke(
        command_tree(),
        ["pipeline", "audit", str(tmp_path / "runs"), "--score", "--json",
         "--output", str(tmp_path / "found"), "--html", str(tmp_path / "audit.html")],
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    result = json.loads(answer.stdout)
    assert result["runs"] == 1
    assert result["left_out"] == {}
    assert result["score"]["named_wrongly"] == 0
    assert result["score"]["proven_precision"] == 1.0
    proofs = sorted((tmp_path / "found" / "evidence").glob("*.evidence"))
    proven = [row for row in result["verdicts"] if row["proof"]]
    assert len(proofs) == len(proven)
    for proof, verdict in zip(proofs, sorted(proven, key=lambda r: r["run"]), strict=True):
        manifest = tmp_path / "found" / "manifests" / f"{verdict['run']}.json"
        verified = CliRunner().invoke(command_tree(), ["verify", str(proof), "-m", str(manifest)])
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
        (["file:///nowhere"], "holds no observations"),
        (["nowhere", "--lying-clients", "-1"], "0 or more"),
        (["nowhere", "--html", "no/such/page.html"], "in a directory that exists"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    spark: SparkSession, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "audit", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_label_of_a_system_without_observers_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unobserved = msgspec.structs.replace(cell_system.SYSTEM, labelled=None)
    monkeypatch.setattr(cell_system, "SYSTEM", unobserved)
    arguments = ["pipeline", "audit", "--label", "1", "--output", str(tmp_path / "runs")]
    assert main([*arguments, "--system", "cell"]) == 2
    assert "the system 'cell' has no observers" in capsys.readouterr().err
    assert main([*arguments, "--system", "nowhere"]) == 2
    assert "there is no system 'nowhere'" in capsys.readouterr().err


def test_observer_comes_from_the_directory_and_bad_text_is_left_out(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    # Bob's rows say that two others, and two who do not exist, accuse b1 as well.
    invented = [row(who, B1) for who in (BOB, CAROL, ALICE, "x", "y")]
    write_log(log, BOB, [*invented, row(BOB, B1, run="heard")])
    inner = log / "observations" / f"{BY_OBSERVER}{BOB}"
    for node in (CAROL, "z", f"{ALICE}#65"):
        write_log(log, "z", [row("z", B1)])
        write_log(inner, node, [row(node, B1)])
    # In the other run somebody who really exists speaks.
    # In the third run one of two accusers writes text that is not UTF-8.
    write_log(log, CAROL, [row(CAROL, B1, run="heard"), row(CAROL, B1, run="text")])
    bad = dict(zip(COLUMNS, row(BOB, B1, run="text"), strict=True)) | {"reason": b"\xff\xfe"}
    kinds = {**COLUMNS, "reason": "binary"}
    write_table(inner / "b.parquet", kinds, {name: [value] for name, value in bad.items()})
    write_cell(log, "r", "heard", "text")
    found = audited(capsys, log)
    assert standings(found, "r") == {(BOB, "disputed"), (B1, "disputed")}
    assert (B1, "suspected") in standings(found, "heard")
    assert standings(found, "text") == {(CAROL, "disputed"), (B1, "disputed")}
    assert found["left_out"] == {STRANGERS: 1, INCOMPLETE: 4}


def test_manifest_in_documents_of_a_node_is_ignored(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    shown = [document("", "manifest", data, run) for data in (SIGNED, b"{}") for run in ("r", "q")]
    write_log(log, BOB, [row(BOB, B1)], shown)
    assert main(["pipeline", "audit", str(log)]) == 2
    assert "name the cell's with -m" in capsys.readouterr().err
    # Nor does a run that a node invents keep others from being judged.
    write_cell(log, "r")
    found = audited(capsys, log)
    assert found["runs"] == 1
    assert found["left_out"] == {NO_MANIFEST: 2}


def test_rubbish_of_a_node_neither_stops_the_audit_nor_affects_others(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, far = tmp_path / "log", 2**63 - 1

    def lacking(column: str) -> tuple[object, ...]:
        pairs = zip(COLUMNS, row(BOB, B2), strict=True)
        return tuple(None if name == column else value for name, value in pairs)

    late = [
        row(who, B1, kind="came", reason="", message="Vote", number=40, t_ms=t, until_ms=t)
        for who in (ALICE, CAROL)
        for t in range(1000, 9001, 1000)
    ]
    for node in (ALICE, CAROL):
        write_log(log, node, [one for one in late if one[3] == node] + [row(node, B1)])
    junk = [
        *(lacking(name) for name in COLUMNS if name != "observer"),
        *(row(BOB, B2, count=count) for count in (far, far, 0, -1)),
        row(BOB, B2, t_ms=far, until_ms=far),
        row(BOB, B2, t_ms=-far, until_ms=1),
        row(BOB, B2, until_ms=far),
        row(BOB, B2, reason="x" * 5000),
    ]
    shown = [
        *(("r", BOB, kind, "", None) for kind in ("evidence", "statement", "manifest")),
        (None, BOB, "evidence", "", b"{}"),
        ("r", BOB, None, "", b"{}"),
        *(document(BOB, kind, b"{}") for kind in ("evidence", "statement", "")),
        document(BOB, "evidence", bytes(2_000_000)),
    ]
    # Within bounds, and far from what everybody else says of when the run was.
    own = [row(BOB, B2), row(BOB, B2, t_ms=0, until_ms=2**47, count=2**32)]
    write_log(log, BOB, [*junk, *own], shown)
    for name, data in (("b", b"PAR1 no table PAR1"), ("c", b"")):
        (log / "documents" / f"{BY_OBSERVER}{BOB}" / f"{name}.parquet").write_bytes(data)
    write_cell(log, "r")
    found = audited(capsys, log, "--html", tmp_path / "audit.html")
    # B1 is the one that may be faulty, so Bob's word against b2 is held against him alone.
    assert standings(found) == {(B1, "suspected"), (BOB, "disputed")}
    assert found["left_out"] == {INCOMPLETE: len(COLUMNS) - 1 + 5, BEYOND: 9, UNREADABLE: 2}
    slots = features(spark.createDataFrame([*late, *own], OBSERVATIONS)).where("kind = 'came'")
    assert {r["slot"] for r in slots.collect()} == set(range(8))


def test_many_statements_of_one_signer_are_compared_in_linear_time(
    spark: SparkSession,
) -> None:
    # Each set of what was said in a window over all of them was once copied into every row.
    plan = contested(spark.createDataFrame([], DOCUMENTS))._jdf.queryExecution().toString()
    assert "collect_set" not in plan


def test_rows_beyond_the_limit_of_an_observer_are_dropped(spark: SparkSession) -> None:
    rows = [row(BOB, B2, run=run, number=n) for run in ("r", "s") for n in range(50)]
    rows += [row(ALICE, B1, number=n) for n in range(10)]
    kept = limit_per_observer(spark.createDataFrame(rows, OBSERVATIONS), 10).collect()
    counts = Counter((one["run"], one["observer"]) for one in kept)
    assert counts == {("r", BOB): 10, ("s", BOB): 10, ("r", ALICE): 10}
    assert {tuple(one) for one in kept} <= set(rows)


def test_observations_written_by_a_node_are_read_with_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    nodes = {NodeId(name) for name in ("broker-1", "a:b+c", "ünï", "carol#1", "100%")}
    for node in nodes:
        log = ObservationLog(tmp_path / "log", CELL.manifest, node, "subscriber")
        log.on_handled(Connected(B1), [], Millis(1))
        log.close()
    observations, documents, cells = read_tables(spark, [tmp_path / "log"])
    assert {r["observer"] for r in observations.collect()} == nodes
    assert documents.isEmpty()
    assert cells.isEmpty()


def test_run_names_cannot_escape_the_output_directory(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, log = tmp_path / "a" / "here", tmp_path / "log"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    runs = ("../../../escaped", "..", "long " * 200, "a;b $(c)")
    for node, body in ((BOB, b"one"), (CAROL, b"two")):
        shown = [document(node, "statement", statement(B1, body), run) for run in runs]
        write_log(log, node, [row(node, B2, run=run) for run in runs], shown)
    write_cell(log, *runs)
    found = audited(capsys, log, "--html", "page.html")
    assert len([v for v in found["verdicts"] if v["proof"]]) == len(runs)
    assert [path.name for path in here.iterdir()] == ["page.html"]
    assert "--output writes the proof" in Path("page.html").read_text()
    found = audited(capsys, log, "--output", "found", "--html", "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "log"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["here"]
    assert len(list(Path("found/evidence").iterdir())) == len(runs)
    commands = re.findall("<code>quorumcast (.+?)</code>", Path("page.html").read_text())
    assert len(commands) == len(runs)
    for command in commands:
        assert main(shlex.split(command)) == 0, command
    capsys.readouterr()
    found = audited(capsys, log, "--output", f"file://{tmp_path}/elsewhere")
    assert sorted(path.name for path in here.iterdir()) == ["found", "page.html"]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["verdicts"]
