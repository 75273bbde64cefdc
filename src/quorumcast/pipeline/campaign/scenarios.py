"""The work of a Spark task: runs each seed and returns a row with its verdict.

A scenario that raises has the verdict `raised`; it ends neither its task nor the campaign.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pyarrow as pa

from quorumcast.cell import CELL_SYSTEM
from quorumcast.sim.kernel.plan import Plan
from quorumcast.sim.shrink import encode_plan, shrink
from quorumcast.sim.systems import find, perform, planted

OK, VIOLATED, RAISED = "ok", "violated", "raised"
#: The property of a scenario that raised an exception.
RAISING = "Raised"

#: Counters of an outcome.
_COUNTERS = (
    "simulated_ms", "messages", "packets", "deliveries", "faults_injected", "suspicions",
    "false_suspicions", "false_accusations", "evidence", "steps",
)  # fmt: skip
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
        *((name, pa.int64()) for name in _COUNTERS),
        ("trace_hash", pa.string()),
        ("took_ms", pa.int64()),
    ]
)

#: Seeds from 0 that are tried with the policy and adversary of a failure.
SMALL_SEEDS = 20
#: Limit of runs to shrink one failure.
MAX_SHRINKING_RUNS = 80

Row = dict[str, Any]


class ScenarioChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of scenarios: system, policy, adversary and variant."""

    system: str = CELL_SYSTEM
    policy: str | None = None
    adversary: str | None = None
    #: The name of a known-bad variant to plant, or "".
    variant: str = ""

    def check(self, start: int) -> None:
        """Raise `UsageError` for unknown names."""
        self.draw(start)
        self.planted()

    def draw(self, seed: int) -> Plan:
        """Return the plan of a seed."""
        return find(self.system).draw(seed, self.policy, self.adversary)

    def planted(self) -> AbstractContextManager[None]:
        """Return a context in which the variant is planted."""
        return planted(self.variant, self.system)


def run_seed(seed: int, choice: ScenarioChoice) -> Row:
    """Run one scenario and return its row."""
    started = time.perf_counter()
    row: Row = dict.fromkeys(RESULT_COLUMNS.names)
    row |= {"seed": seed, "policy": choice.policy or "", "adversary": choice.adversary or ""}
    row |= {"verdict": OK, "property": "", "detail": ""}
    try:
        plan = choice.draw(seed)
        row |= {"policy": plan.kind, "adversary": plan.adversary, "acts": len(plan.acts)}
        row |= {k: v for k, v in plan.parameters().items() if k in row}
        outcome = perform(plan)
        row |= {name: getattr(outcome, name) for name in (*_COUNTERS, "trace_hash")}
        if outcome.violations:
            first = outcome.violations[0]
            row |= {"verdict": VIOLATED, "property": first.property, "detail": first.detail}
    except Exception as error:  # any exception is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        row |= {"verdict": RAISED, "property": RAISING, "detail": detail}
    row["took_ms"] = round((time.perf_counter() - started) * 1000)
    return row


def run_seeds(
    batches: Iterator[pa.RecordBatch], choice: ScenarioChoice, report: Callable[[bool], None]
) -> Iterator[pa.RecordBatch]:
    """Yield rows for the seeds of a task; call `report` with whether each failed."""
    with choice.planted():
        for batch in batches:
            rows = []
            for seed in batch.column(0).to_pylist():
                rows.append(run_seed(seed, choice))
                report(rows[-1]["verdict"] != OK)
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
        #: The shrunk plan, or empty.
        ("plan", pa.binary()),
    ]
)


def investigate(row: Row, campaign: ScenarioChoice) -> Row:
    """Search for a smaller seed with the same violation, then shrink its plan."""
    # A system without policies names itself as the kind of its runs.
    policy = None if row["policy"] == campaign.system else row["policy"]
    choice = msgspec.structs.replace(campaign, policy=policy, adversary=row["adversary"])
    found: Row = {**row, "acts_left": 0, "acts": 0, "runs": 0, "plan": b""}
    with choice.planted():
        for seed in range(min(row["seed"], SMALL_SEEDS)):
            found["runs"] += 1
            smaller = run_seed(seed, choice)
            if smaller["property"] == row["property"]:
                found |= {"seed": seed, "detail": smaller["detail"]}
                break
        if row["property"] == RAISING:
            return found
        plan = choice.draw(found["seed"])
        shrunk = shrink(plan, row["property"], MAX_SHRINKING_RUNS)
    if shrunk is None:
        # A rerun of the plan reports another property first.
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
    batches: Iterator[pa.RecordBatch], campaign: ScenarioChoice
) -> Iterator[pa.RecordBatch]:
    """Yield the investigated failures."""
    for batch in batches:
        rows = [investigate(row, campaign) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=FAILURE_COLUMNS)
