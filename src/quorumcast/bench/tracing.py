"""The header of a traced run: what `quorumcast pipeline evaluate` has to know of the plan."""

from __future__ import annotations

import uuid

import msgspec

from quorumcast.bench.plan import BenchPlan
from quorumcast.cell import CELL_SYSTEM
from quorumcast.cell.tracing import CellParameters
from quorumcast.core.version import __version__
from quorumcast.runtime.digests import choose_digest
from quorumcast.traces.form import BENCH, Header, Listening


def fault_of(plan: BenchPlan) -> str:
    """What goes wrong, in words."""
    return f"{plan.fault} and skipping" if plan.skips else plan.fault


def header_of(plan: BenchPlan, brokers: list[str]) -> Header:
    """The scenario of a plan. Everybody listens to everything before anything is published."""
    listening = [
        Listening(plan.name_of("subscriber", index), plan.channel_name(channel))
        for index in range(plan.subscribers)
        for channel in range(plan.channels)
    ]
    guests = [plan.name_of(*worker) for worker in plan.workers() if plan.is_guest(*worker)]
    parameters = CellParameters(
        policy=plan.policy,
        alpha=plan.channel_policy().alpha,
        brokers=plan.brokers,
        f=plan.tolerated(),
        publishers=plan.publishers,
        subscribers=plan.subscribers,
        channels=plan.channels,
        size=plan.size,
        batch=plan.batch,
        rate=plan.rate,
        durable=plan.durable,
        tls=plan.tls,
        digest=choose_digest(plan.digest),
    )
    return Header(
        run=uuid.uuid4().hex,
        source=BENCH,
        version=__version__,
        system=CELL_SYSTEM,
        parameters=msgspec.to_builtins(parameters),
        fault=fault_of(plan),
        publishers=tuple(plan.name_of("publisher", index) for index in range(plan.publishers)),
        listening=tuple(listening),
        faulty=(*plan.liars(brokers), *guests),
    )
