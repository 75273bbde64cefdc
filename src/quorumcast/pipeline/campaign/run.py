"""A campaign: simulates many seeds on Spark, writes a table of results, and shrinks failures.

    DIR/results/         Parquet: a row for each seed, sorted by seed
    DIR/failures.json    the failure modes, with the commands that replay them
    DIR/failures/        shrunk plans for `quorumcast sim --plan`

Small tasks keep all cores busy and show progress. A scenario depends only on its seed, policy and
adversary, so the results do not depend on the distribution of tasks. A *failure mode* is a violated
property under one policy; each is investigated once.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.campaign.scenarios import (
    FAILURE_COLUMNS,
    OK,
    RAISED,
    RESULT_COLUMNS,
    Row,
    ScenarioChoice,
    investigate_all,
    run_seeds,
)
from quorumcast.pipeline.lazy import sql
from quorumcast.sim.campaign import replay_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULTS, FAILURES = "results", "failures"
_PARTS = "parts"
#: Seeds per task: a few seconds of work.
CHUNK = 8
#: Failure modes that are investigated, in all and per property.
MAX_INVESTIGATED, MAX_PER_PROPERTY = 12, 3
#: Rows per file of results.
ROWS_PER_FILE = 200_000
POLL_S = 0.5
#: The largest number of Spark's `range`.
MAX_SEED = 2**63 - 1
_SUMMED = (
    "simulated_ms", "messages", "packets", "deliveries", "faults_injected", "evidence",
    "false_accusations",
)  # fmt: skip

#: Receives the finished scenarios, the failed ones, and the seconds so far.
Progress = Callable[[int, int, float], None]


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """The scenarios of a campaign."""

    scenarios: int
    start: int = 0
    choice: ScenarioChoice = ScenarioChoice()

    def check(self) -> None:
        """Raise `UsageError` if the campaign cannot be run."""
        if self.scenarios < 1 or self.start < 0:
            raise UsageError("--scenarios is 1 or more and --start 0 or more")
        if self.start + self.scenarios > MAX_SEED:
            raise UsageError(f"seeds end at {MAX_SEED:,}: begin earlier or run fewer")
        self.choice.check(self.start)


class FailureMode(msgspec.Struct, frozen=True, kw_only=True):
    """A failure mode, and the commands that replay it."""

    property: str
    detail: str
    policy: str
    adversary: str
    seed: int
    #: Seeds of the campaign that failed in this way.
    count: int
    #: The command that replays the seed.
    replay: str
    #: The file of the shrunk plan, its command, and its acts before and after shrinking.
    plan: str = ""
    replay_plan: str = ""
    acts: int = 0
    acts_left: int = 0


class CampaignResult(msgspec.Struct, kw_only=True):
    """The result of a campaign."""

    output: str
    scenarios: int
    start: int
    variant: str
    seconds: float
    scenarios_per_s: float
    violations: int
    raised: int
    simulated_s: float
    messages: int
    packets: int
    deliveries: int
    faults_injected: int
    evidence: int
    false_accusations: int
    policies: dict[str, int]
    adversaries: dict[str, int]
    properties: dict[str, int]
    failures: list[FailureMode]
    #: Failure modes that were not investigated.
    others: int


def prepare_directory(path: Path) -> None:
    """Create an empty directory for a campaign."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is there already; choose another directory with --output")
    path.mkdir(parents=True, exist_ok=True)


def run_campaign(
    spark: SparkSession,
    campaign: Campaign,
    path: Path,
    progress: Progress | None = None,
    stage: Callable[[str], None] = lambda sentence: None,
) -> CampaignResult:
    """Run all scenarios, then investigate the failures; `stage` receives progress messages."""
    campaign.check()
    prepare_directory(path)
    started = time.monotonic()
    _run_all(spark, campaign, path / _PARTS, progress)
    seconds = time.monotonic() - started
    parts = spark.read.parquet(str(path / _PARTS))
    files = -(-campaign.scenarios // ROWS_PER_FILE)
    parts.repartitionByRange(files, "seed").sortWithinPartitions("seed").write.parquet(
        str(path / RESULTS)
    )
    shutil.rmtree(path / _PARTS)
    groups = grouped(spark.read.parquet(str(path / RESULTS)))
    modes = failure_modes(groups)
    if modes:
        stage(f"looking into {len(choose_modes(modes))} of {len(modes)} ways to fail")
    failures, others = _failures(spark, campaign, modes, path)
    report = _report(campaign, groups, path, seconds, failures, others)
    (path / f"{FAILURES}.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(failures), indent=2) + b"\n"
    )
    return report


def _run_all(
    spark: SparkSession, campaign: Campaign, path: Path, progress: Progress | None
) -> None:
    from pyspark import InheritableThread
    from pyspark.sql.pandas.types import from_arrow_schema

    context = spark.sparkContext
    done, bad = context.accumulator(0), context.accumulator(0)
    choice = campaign.choice

    def tell(was_bad: bool) -> None:
        done.add(1)
        bad.add(int(was_bad))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_seeds(batches, choice, tell)

    first, count = campaign.start, campaign.scenarios
    seeds = spark.range(first, first + count, 1, -(-count // CHUNK))
    rows = seeds.mapInArrow(run, from_arrow_schema(RESULT_COLUMNS))
    errors: list[BaseException] = []
    tag = f"campaign-{time.monotonic_ns()}"

    def write() -> None:
        spark.addTag(tag)
        try:
            rows.write.parquet(str(path))
        except BaseException as error:
            errors.append(error)

    started = time.monotonic()
    thread = InheritableThread(target=write, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            if progress is not None:
                progress(done.value, bad.value, time.monotonic() - started)
    except BaseException:
        spark.interruptTag(tag)
        thread.join()
        raise
    if errors:
        raise errors[0]


# ---------------------------------------------------------------------- failures


def _failures(
    spark: SparkSession, campaign: Campaign, known: list[Row], path: Path
) -> tuple[list[FailureMode], int]:
    """Return the investigated failure modes, and the number of others."""
    from pyspark.sql.pandas.types import from_arrow_schema

    chosen = choose_modes(known)
    if not chosen:
        return [], 0
    choice = campaign.choice

    def investigate_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return investigate_all(batches, choice)

    columns = ("property", "policy", "adversary", "seed", "detail", "count")
    frame = spark.createDataFrame(
        [tuple(row[name] for name in columns) for row in chosen],
        "property string, policy string, adversary string, seed long, detail string, count long",
    )
    found = (
        frame.repartition(len(chosen), *columns)
        .mapInArrow(investigate_rows, from_arrow_schema(FAILURE_COLUMNS))
        .orderBy(sql.desc("count"), "seed")
        .collect()
    )
    (path / FAILURES).mkdir()
    return [_failure(row.asDict(), path, choice) for row in found], len(known) - len(chosen)


def failure_modes(groups: list[Row]) -> list[Row]:
    """Return the failure modes by property and policy, the most frequent first."""
    modes: dict[tuple[str, str], Row] = {}
    for row in sorted(groups, key=lambda row: int(row["seed"])):
        if row["verdict"] == OK:
            continue
        known = modes.setdefault((row["property"], row["policy"]), {**row, "count": 0})
        known["count"] += row["count"]
    return sorted(modes.values(), key=lambda row: (-row["count"], row["seed"]))


def choose_modes(known: list[Row]) -> list[Row]:
    """Choose the failure modes to investigate; the limit per property leaves room for others."""
    chosen: list[Row] = []
    for row in known:
        alike = sum(other["property"] == row["property"] for other in chosen)
        if alike < MAX_PER_PROPERTY and len(chosen) < MAX_INVESTIGATED:
            chosen.append(row)
    return chosen


def _failure(row: Row, path: Path, choice: ScenarioChoice) -> FailureMode:
    planted = f" --variant {choice.variant}" if choice.variant else ""
    plan = ""
    if row["plan"]:
        name = f"{row['property']}-{row['policy']}-{row['adversary']}-{row['seed']}"
        file = path / FAILURES / f"{re.sub(r'[^A-Za-z0-9.+-]', '-', name)}.json"
        file.write_bytes(bytes(row["plan"]))
        plan = str(file)
    copied = ("property", "detail", "policy", "adversary", "seed", "count", "acts", "acts_left")
    return FailureMode(
        **{name: row[name] for name in copied},
        replay=replay_command(
            choice.system, row["seed"], row["policy"], row["adversary"], choice.variant
        ),
        plan=plan,
        replay_plan=f"quorumcast sim --plan {plan}{planted}" if plan else "",
    )


def grouped(results: DataFrame) -> list[Row]:
    """Sum the results by policy, adversary, verdict and property."""
    return [
        row.asDict()
        for row in results.groupBy("policy", "adversary", "verdict", "property")
        .agg(
            sql.count("*").alias("count"),
            sql.min("seed").alias("seed"),
            sql.min_by("detail", "seed").alias("detail"),
            *(sql.coalesce(sql.sum(name), sql.lit(0)).alias(name) for name in _SUMMED),
        )
        .collect()
    ]


def _report(
    campaign: Campaign,
    groups: list[Row],
    path: Path,
    seconds: float,
    failures: list[FailureMode],
    others: int,
) -> CampaignResult:
    bad = [row for row in groups if row["verdict"] != OK]
    scenarios = sum(row["count"] for row in groups)
    totals: dict[str, Any] = {name: sum(row[name] for row in groups) for name in _SUMMED}
    return CampaignResult(
        output=str(path),
        scenarios=scenarios,
        start=campaign.start,
        variant=campaign.choice.variant,
        seconds=round(seconds, 2),
        scenarios_per_s=round(scenarios / seconds, 2),
        violations=sum(row["count"] for row in bad),
        raised=sum(row["count"] for row in bad if row["verdict"] == RAISED),
        simulated_s=round(totals.pop("simulated_ms") / 1000, 1),
        **totals,
        policies=_counts("policy", groups),
        adversaries=_counts("adversary", groups),
        properties=_counts("property", bad),
        failures=failures,
        others=others,
    )


def _counts(column: str, groups: list[Row]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in groups:
        counts[row[column]] += row["count"]
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
