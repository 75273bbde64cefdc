"""The header of a traced run: what `quorumcast pipeline evaluate` has to know of the plan."""

from __future__ import annotations

import uuid

from quorumcast import __version__
from quorumcast.bench.plan import BenchPlan
from quorumcast.runtime.digests import choose_digest
from quorumcast.traces.form import BENCH, Header, Listening


def header_of(plan: BenchPlan, brokers: list[str]) -> Header:
    """The scenario of a plan. Everybody listens to everything before anything is published."""
    listening = [
        Listening(plan.name_of("subscriber", index), plan.channel_name(channel))
        for index in range(plan.subscribers)
        for channel in range(plan.channels)
    ]
    guests = [plan.name_of(*worker) for worker in plan.workers() if plan.is_guest(*worker)]
    return Header(
        run=uuid.uuid4().hex,
        source=BENCH,
        version=__version__,
        policy=plan.policy,
        alpha=plan.channel_policy().alpha,
        brokers=plan.brokers,
        f=plan.tolerated(),
        publishers=tuple(plan.name_of("publisher", index) for index in range(plan.publishers)),
        subscribers=plan.subscribers,
        channels=plan.channels,
        size=plan.size,
        batch=plan.batch,
        rate=plan.rate,
        fault=plan.fault,
        skipping=plan.skips,
        durable=plan.durable,
        tls=plan.tls,
        digest=choose_digest(plan.digest),
        listening=tuple(listening),
        faulty=(*plan.liars(brokers), *guests),
    )
