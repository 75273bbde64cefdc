"""Traces of simulated runs: the same files as those of real processes, in virtual time.

A system says by its `Tracing` what is its own. Without a word of it, a trace has all messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Event
from quorumcast.core.version import __version__
from quorumcast.sim.kernel.run import Run
from quorumcast.traces.form import SIMULATOR, Header, place_for, write_header
from quorumcast.traces.recorder import Notes, Recorder, TraceWriter, note_hooks

NS_PER_MS = 1_000_000


class Tracing(msgspec.Struct, frozen=True, kw_only=True):
    """What traces say of a system beside its messages."""

    notes: Notes = {}
    #: The role of a node in a run.
    role: Callable[[Any, NodeId], str] = lambda run, node: "node"
    #: Completes the header of a run that is over: parameters, publishers, listening, events.
    header: Callable[[Any, Header], Header] = lambda run, header: header
    #: Notes of a run that is over, which no effect tells.
    conclude: Callable[[Any, Callable[[NodeId], Recorder]], None] = lambda run, recorder_of: None


class Tracer:
    """Watches a run and writes down what its nodes do."""

    def __init__(self, run: Run[Any, Any], tracing: Tracing, directory: Path) -> None:
        self._run = run
        self._tracing = tracing
        self._directory = place_for(directory)
        plan, scheduler = run.plan, run.world.scheduler
        self._name = f"{plan.kind} {plan.adversary} {plan.seed}"
        self._writer = TraceWriter(
            self._directory / "run.parquet",
            self._name,
            lambda: scheduler.now * NS_PER_MS,
            oldest_ns=None,
        )
        #: What takes notes, by node and type of effect.
        self._hooks: dict[NodeId, dict[type, Callable[[Any], None]]] = {}
        run.world.watch(self)

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        """Nothing that is written down."""

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        """A node has carried out this effect."""
        hooks = self._hooks.get(node)
        if hooks is None:
            recorder = self._recorder(node)
            hooks = self._hooks[node] = note_hooks(recorder, self._tracing.notes, node)
        hook = hooks.get(type(effect))
        if hook is not None:
            hook(effect)

    def _recorder(self, node: NodeId) -> Recorder:
        return self._writer.recorder(self._tracing.role(self._run, node), node)

    def close(self) -> None:
        """Write the rest and the header."""
        self._tracing.conclude(self._run, self._recorder)
        self._writer.close()
        plan, world = self._run.plan, self._run.world
        header = Header(
            run=self._name,
            source=SIMULATOR,
            version=__version__,
            system=plan.system,
            drawn=plan.parameters(),
            fault="" if plan.adversary == "none" else plan.adversary,
            seed=plan.seed if isinstance(plan.seed, int) else None,
            faulty=tuple(map(str, world.adversary.faulty)),
            upto_ns=world.scheduler.now * NS_PER_MS + 1,
        )
        write_header(self._directory, self._tracing.header(self._run, header))
