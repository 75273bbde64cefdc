"""Traces of simulated runs: the same files as those of real processes, in virtual time.

One directory per seed. What was owed is known exactly: to every correct subscriber that is still
there at the end, what correct publishers sent after its subscription stood.
"""

from __future__ import annotations

from pathlib import Path

from quorumcast import __version__
from quorumcast.broadcast.application import Deliver
from quorumcast.cell.tracing import CELL_NOTES
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Event, Send
from quorumcast.sim.cell.run import CellRun
from quorumcast.traces.form import SIMULATOR, Header, Listening, place_for, write_header
from quorumcast.traces.notes import watch_effect
from quorumcast.traces.recorder import NodeRecorder, TraceWriter

NS_PER_MS = 1_000_000


class Tracer:
    """Watches a world and writes down what its nodes do."""

    def __init__(self, run: CellRun, directory: Path) -> None:
        self._plan = plan = run.plan
        self._world = world = run.world
        self._directory = place_for(directory)
        self._run = f"{plan.policy.name} {plan.adversary} {plan.seed}"
        scheduler = world.scheduler
        self._writer = TraceWriter(
            self._directory / "run.parquet",
            self._run,
            lambda: scheduler.now * NS_PER_MS,
            oldest_ns=None,
        )
        self._recorders: dict[NodeId, NodeRecorder] = {}
        world.watch(self)

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """Nothing that is written down."""

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        """A node has carried out this effect."""
        if isinstance(effect, Send | Deliver):
            recorder = self._recorders.get(node)
            if recorder is None:
                recorder = self._recorders[node] = self._writer.recorder(self._role(node), node)
            watch_effect(recorder, CELL_NOTES, node, effect)

    def _role(self, node: NodeId) -> str:
        if node in self._plan.publishers:
            return "publisher"
        return "subscriber" if node in self._plan.subscribers else "broker"

    def close(self) -> None:
        """Write the rest and the header."""
        self._writer.close()
        plan, facts, adversary = self._plan, self._world.facts, self._world.adversary
        publishers = tuple(str(name) for name in plan.publishers if adversary.is_correct(name))
        # What is sent in the very millisecond in which a subscription stands may be too early.
        listening = [
            Listening(reader.node, reader.channel, reader.standing_at * NS_PER_MS + 1)
            for reader in facts.present()
            if reader.standing_at is not None
        ]
        header = Header(
            run=self._run,
            source=SIMULATOR,
            version=__version__,
            policy=plan.policy.name,
            alpha=plan.policy.alpha,
            brokers=plan.brokers,
            f=plan.f,
            publishers=publishers,
            subscribers=len(plan.subscribers),
            channels=len(plan.channels),
            size=0,
            batch=1,
            fault="" if plan.adversary == "none" else plan.adversary,
            durable=plan.policy.journal,
            seed=plan.seed if isinstance(plan.seed, int) else None,
            listening=tuple(listening),
            faulty=tuple(map(str, adversary.faulty)),
            upto_ns=self._world.scheduler.now * NS_PER_MS + 1,
            events=sum(
                len(published)
                for stream, published in facts.published.items()
                if stream.publisher in publishers
            ),
        )
        write_header(self._directory, header)
