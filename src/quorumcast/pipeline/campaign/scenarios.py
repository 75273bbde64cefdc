"""What a Spark task does with its seeds: run each, and make a row of what came of it.

A scenario that raises is a verdict like another: it ends neither its task nor the campaign.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pyarrow as pa

from quorumcast.sim.kernel.plan import Plan
from quorumcast.sim.shrink import encode_plan, shrink
from quorumcast.sim.systems import find, perform, planted

OK, VIOLATED, RAISED = "ok", "violated", "raised"
#: The property that a scenario breaks which raises before its run has begun.
RAISING = "Raised"

RESULT_COLUMNS = pa.schema(
    [
        ("seed", pa.int64()),
        ("policy", pa.string()),
        ("adversary", pa.string()),
        ("brokers", pa.int32()),
        ("f", pa.int32()),
        ("publishers", pa.int32()),
        ("subscribers", pa.int32()),
        ("channels", pa.int32()),
        ("acts", pa.int32()),
        ("verdict", pa.string()),
        ("property", pa.string()),
        ("detail", pa.string()),
        ("simulated_ms", pa.int64()),
        ("messages", pa.int64()),
        ("packets", pa.int64()),
        ("deliveries", pa.int64()),
        ("faults_injected", pa.int64()),
        ("suspicions", pa.int64()),
        ("false_suspicions", pa.int64()),
        ("false_accusations", pa.int64()),
        ("evidence", pa.int64()),
        ("steps", pa.int64()),
        ("trace_hash", pa.string()),
        ("took_ms", pa.int64()),
    ]
)
_COUNTED = (
    "simulated_ms",
    "messages",
    "packets",
    "deliveries",
    "faults_injected",
    "suspicions",
    "false_suspicions",
    "false_accusations",
    "evidence",
    "steps",
    "trace_hash",
)

#: Smaller seeds that are tried with a failure's policy and adversary.
SEARCHED = 20
#: Runs that making one failure small may cost.
SHRINKING_RUNS = 80

Row = dict[str, Any]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which scenarios a campaign runs."""

    system: str = "cell"
    policy: str | None = None
    adversary: str | None = None
    #: A known-bad variant that is planted; the name.
    variant: str = ""

    def check(self, start: int) -> None:
        """Refuse unknown names, in a sentence."""
        self.draw(start)
        self.planted()

    def draw(self, seed: int) -> Plan:
        """The plan of a seed."""
        return find(self.system).draw(seed, self.policy, self.adversary)

    def planted(self) -> AbstractContextManager[None]:
        """Production code with the variant's mistake, if there is one."""
        return planted(self.variant, self.system)


def run_seed(seed: int, wanted: Wanted) -> Row:
    """One scenario as a row."""
    started = time.perf_counter()
    row: Row = dict.fromkeys(RESULT_COLUMNS.names)
    row |= {"seed": seed, "policy": wanted.policy or "", "adversary": wanted.adversary or ""}
    row |= {"verdict": OK, "property": "", "detail": ""}
    try:
        plan = wanted.draw(seed)
        row |= _configuration(plan)
        outcome = perform(plan)
        row |= {name: getattr(outcome, name) for name in _COUNTED}
        if outcome.violations:
            first = outcome.violations[0]
            row |= {"verdict": VIOLATED, "property": first.property, "detail": first.detail}
    except Exception as error:  # whatever it is: the seed that leads to it is worth knowing
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        row |= {"verdict": RAISED, "property": RAISING, "detail": said}
    row["took_ms"] = round((time.perf_counter() - started) * 1000)
    return row


def _configuration(plan: Plan) -> Row:
    told = {"policy": plan.kind, "adversary": plan.adversary, "acts": len(plan.acts)}
    return told | {k: v for k, v in plan.parameters().items() if k in RESULT_COLUMNS.names}


def run_seeds(
    batches: Iterator[pa.RecordBatch], wanted: Wanted, told: Callable[[bool], None]
) -> Iterator[pa.RecordBatch]:
    """Rows for the seeds of a task; `told` hears of each whether it was bad."""
    with wanted.planted():
        for batch in batches:
            rows = []
            for seed in batch.column(0).to_pylist():
                rows.append(run_seed(seed, wanted))
                told(rows[-1]["verdict"] != OK)
            yield pa.RecordBatch.from_pylist(rows, schema=RESULT_COLUMNS)


# ---------------------------------------------------------------------- failures

FAILURE_COLUMNS = pa.schema(
    [
        ("seed", pa.int64()),
        ("policy", pa.string()),
        ("adversary", pa.string()),
        ("property", pa.string()),
        ("detail", pa.string()),
        #: Seeds of the campaign that fail in the same way.
        ("count", pa.int64()),
        ("acts", pa.int64()),
        ("acts_left", pa.int64()),
        ("runs", pa.int64()),
        #: The shrunk plan; empty where there is none.
        ("plan", pa.binary()),
    ]
)


def investigate(row: Row, campaign: Wanted) -> Row:
    """Look for a smaller seed that fails in the same way, then for a shorter plan."""
    chosen = {"policy": row["policy"], "adversary": row["adversary"]}
    wanted = msgspec.structs.replace(campaign, **chosen)
    found: Row = {**row, "acts_left": 0, "acts": 0, "runs": 0, "plan": b""}
    with wanted.planted():
        for seed in range(min(row["seed"], SEARCHED)):
            found["runs"] += 1
            smaller = run_seed(seed, wanted)
            if smaller["property"] == row["property"]:
                found |= {"seed": seed, "detail": smaller["detail"]}
                break
        if row["property"] == RAISING:
            return found
        plan = wanted.draw(found["seed"])
        shrunk = shrink(plan, row["property"], SHRINKING_RUNS)
    if shrunk is None:
        # The first violation of the seed decides what it is called; this one comes only with it.
        return found
    first = next(v for v in shrunk.outcome.violations if v.property == row["property"])
    return found | {
        "detail": first.detail,
        "acts": len(plan.acts),
        "acts_left": len(shrunk.plan.acts),
        "runs": found["runs"] + shrunk.runs,
        "plan": encode_plan(shrunk.plan),
    }


def investigate_all(
    batches: Iterator[pa.RecordBatch], campaign: Wanted
) -> Iterator[pa.RecordBatch]:
    """Failures made small."""
    for batch in batches:
        rows = [investigate(row, campaign) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=FAILURE_COLUMNS)
