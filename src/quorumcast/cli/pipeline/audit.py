"""`quorumcast pipeline audit`: finds nodes that lied, with victims, times and certainty."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from quorumcast.cell import CELL_SYSTEM
from quorumcast.cli.common import console, print_json, table
from quorumcast.cli.options import JsonOption, MasterOption
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError
from quorumcast.manifest.paths import manifest_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorumcast.pipeline.audit.sifting import Census

EXAMPLE = "pipeline audit log --html audit.html"

#: Verdicts in the table.
SHOWN = 40


class AuditOptions(msgspec.Struct, kw_only=True):
    """By what nodes are judged, and what is written."""

    manifest: Annotated[
        Path | None,
        typer.Option("--manifest", "-m", help="Judge by this one, not by those of the runs."),
    ] = None
    lying_clients: Annotated[
        int, typer.Option(help="How many clients may lie together; brokers: f of the manifest.")
    ] = 1
    output: Annotated[
        str, typer.Option(metavar="DIR", help="Write verdicts, proofs and labelled runs here.")
    ] = ""
    html: Annotated[Path | None, typer.Option(help="Write a page for people.")] = None
    score: Annotated[
        bool, typer.Option("--score", help="Compare with the labels: precision and recall.")
    ] = False


def audit(
    given: AuditOptions,
    directories: Annotated[
        list[str] | None, typer.Argument(help="What brokers, clients or 'bench' observed.")
    ] = None,
    label: Annotated[
        int, typer.Option(metavar="N", help="Simulate N labelled runs into --output first.")
    ] = 0,
    start: Annotated[int, typer.Option(help="The first seed of labelled runs.")] = 0,
    system: Annotated[
        str, typer.Option(help="What --label simulates: cell, or yours as package.module:NAME.")
    ] = CELL_SYSTEM,
    master: MasterOption = None,
    json_: JsonOption = False,
) -> None:
    """Judge nodes by what others observed: which altered, dropped, reordered or lied.

    proven: there is evidence that 'quorumcast verify' accepts; suspected: every explanation of the
    observations contains the node; disputed: two nodes contradict each other; measured: the node
    was late, which is no verdict. Exit code 1 with --score if a correct node was named.
    """
    from quorumcast.pipeline.audit.labelling import label_runs, labeller
    from quorumcast.pipeline.session import spark_session

    places = list(directories or [])
    _check(given, places, label)
    if label:
        labeller(system)  # a system without observers is refused before Spark is started
    spark = spark_session("quorumcast audit", master=master)
    if label:
        with _progress(spark, f"{label:,} runs"):
            label_runs(spark, label, given.output, start=start, system=system)
        places.append(given.output)
        if not given.score and not directories:
            _say_labelled(label, given.output, json_)
            return
    _audit(spark, given, places, json_)


def _check(given: AuditOptions, places: list[str], label: int) -> None:
    if label < 0 or given.lying_clients < 0:
        raise UsageError("--label and --lying-clients are 0 or more")
    if label and not given.output:
        raise UsageError("--label needs --output: a directory for the runs")
    if not places and not label:
        raise UsageError(
            "name a directory that brokers, clients or 'quorumcast bench' wrote with --observe"
        )
    html = given.html
    if html is not None and (html.is_dir() or not html.resolve().parent.is_dir()):
        raise UsageError(f"{html} cannot be written: name a file in a directory that exists")


def _say_labelled(count: int, output: str, json_: bool) -> None:
    if json_:
        print_json({"runs": count, "output": output})
    else:
        console().print(
            f"{count:,} labelled runs in {output}; now: quorumcast pipeline audit {output} --score",
            markup=False,
        )


def _audit(spark: SparkSession, given: AuditOptions, places: list[str], json_: bool) -> None:
    from quorumcast.pipeline.audit.job import audit as judge
    from quorumcast.pipeline.audit.job import given_manifests, read_tables, run_manifests
    from quorumcast.pipeline.audit.report import page, write_proofs
    from quorumcast.pipeline.audit.sifting import census

    tables = read_tables(spark, places)
    path = None if given.manifest is None else manifest_path(given.manifest)
    manifests = given_manifests(path) if path else []
    verdicts = judge(*tables, manifests=manifests, lying_clients=given.lying_clients)
    with _progress(spark, "observations"):
        # Only verdicts are cached, not observations. They are sorted later: Spark would first have
        # to read all of them once more to sort them.
        verdicts = verdicts.cache()
        counted = census(*tables, manifests)
        _check_manifests(counted)
        rows = [row.asDict() for row in verdicts.toLocalIterator()]
    runs = counted.runs
    rows.sort(key=lambda row: (_ORDER[row["standing"]], row["run"], row["node"]))
    # Proofs are files for 'quorumcast verify'; elsewhere they are in the table of verdicts.
    output = given.output
    directory = "" if "://" in output else output
    if directory:
        write_proofs(Path(directory), rows, run_manifests(tables[2]))
    if output:
        # The working directory of Java may differ from ours.
        place = Path(directory).absolute() if directory else output
        ordered = verdicts.orderBy("run", "standing", "node", "deed")
        ordered.write.mode("overwrite").parquet(f"{place}/verdicts")
    if given.html is not None:
        text = page(rows, directory=directory, manifest=str(path or ""), runs=runs)
        given.html.write_text(text, encoding="utf-8")
    scored = _scored(spark, places, verdicts, runs) if given.score else None
    if json_:
        found: dict[str, Any] = {"runs": runs, "verdicts": rows, "left_out": counted.left_out}
        print_json({**found, "score": scored} if scored else found)
    else:
        _print(rows, runs)
        for flaw, count in counted.left_out.items():
            console().print(f"  left out: {count:,} {flaw}", markup=False)
        if scored:
            _print_score(scored)
    if scored and (scored["named_wrongly"] or scored["proven_wrongly"]):
        raise typer.Exit(1)


_ORDER = {"proven": 0, "suspected": 1, "disputed": 2, "measured": 3}


def _check_manifests(counted: Census) -> None:
    """Refuse to audit if no run has a signed manifest; single runs without one are left out."""
    if counted.unknown_run and not counted.runs:
        raise UsageError(
            f"there is no manifest for the run {counted.unknown_run!r}; name the cell's with -m"
        )


def _scored(spark: SparkSession, places: list[str], verdicts: Any, runs: int) -> dict[str, Any]:
    from quorumcast.pipeline.audit.job import read_labels
    from quorumcast.pipeline.audit.score import compared, missed, score, wrongly_named

    labels = read_labels(spark, places).cache()
    rows = [row.asDict() for row in compared(verdicts, labels).collect()]
    result = score(rows, runs)
    columns = ("run", "node", "fault")
    result["wrong"] = [
        r.asDict() for r in wrongly_named(verdicts, labels).select(*columns).take(20)
    ]
    result["missed"] = [r.asDict() for r in missed(verdicts, labels).select(*columns).take(50)]
    return result


def _print(rows: list[dict[str, Any]], runs: int) -> None:
    from quorumcast.pipeline.audit.report import when

    out = console()
    named = any(row["standing"] in ("proven", "suspected") for row in rows)
    if not named:
        out.print(f"nobody is named in {runs:,} run{'' if runs == 1 else 's'}")
    shown = table("run", "who", "standing", "score", "did what", "towards", "when", "why")
    for row in rows[:SHOWN]:
        shown.add_row(
            *(row["run"], row["node"], row["standing"], f"{row['score']:.2f}"),
            *(row["deed"], row["towards"], when(row), row["reasons"]),
        )
    if rows:
        out.print(shown)
    if len(rows) > SHOWN:
        out.print(f"… and {len(rows) - SHOWN:,} more; --json or --output has them all")


def _print_score(scored: dict[str, Any]) -> None:
    out = console()
    out.print(
        f"precision {scored['precision']} ({scored['named_wrongly']} of {scored['named']} named "
        f"wrongly; {scored['proven_wrongly']} of {scored['proven']} proven wrongly), "
        f"recall {scored['recall']} ({scored['plain_named']} of {scored['plain']} whose deeds are "
        f"plain; {scored['plain_proven']} of them proven) in {scored['runs']:,} runs"
    )
    for status, counts in scored["by_status"].items():
        described = ", ".join(f"{count} {standing}" for standing, count in counts.items())
        out.print(f"  {status}: {described}", markup=False)
    for title in ("wrong", "missed"):
        for row in scored[title]:
            out.print(f"  {title}: {row['node']} in {row['run']}", markup=False)


def _progress(spark: SparkSession, what: str) -> ProgressDisplay:
    """A display of the completed tasks of Spark."""
    from py4j.protocol import Py4JError

    tracker = spark.sparkContext.statusTracker()

    def look() -> str:
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Py4JError:
            return what  # the job itself reports what is wrong
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        total = sum(stage.numTasks for stage in stages if stage is not None)
        return f"{what}: {done:,} of {total:,} tasks" if total else what

    return ProgressDisplay(look=look)
