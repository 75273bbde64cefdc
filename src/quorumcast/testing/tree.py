"""A real tree of cells on this machine: one `LocalCluster` per cell."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.trees import PlannedCell, Shape, TreeDesign, make_tree, tree_sizes
from quorumcast.runtime.broker.parents import write_parents
from quorumcast.testing.bed import free_ports
from quorumcast.testing.cells import CHANNELS, CLIENTS, channel_entry
from quorumcast.testing.cluster import LocalCluster

#: A root and one child.
PAIR: Shape = {"root": "", "cell-1": "root"}


class LocalTree:
    """Broker processes of several cells; `tree["cell-1"]` is one of them.

    >>> with LocalTree(channels={"orders": "ab+history"}) as tree:              # doctest: +SKIP
    ...     alice = await connect(tree["root"].manifest_path, …)
    """

    def __init__(
        self,
        *,
        shape: Shape = PAIR,
        channels: Mapping[str, str | Policy | ChannelEntry] = CHANNELS,
        f: int = 1,
        clients: Sequence[str] = CLIENTS,
        directory: Path | None = None,
        idle: Collection[str] = (),
        fields: dict[str, Any] | None = None,
        log_level: str = "info",
    ) -> None:
        """Cells in `idle` are made and not started."""
        plan = TreeDesign(
            shape=shape,
            channels=tuple(channel_entry(name, policy) for name, policy in channels.items()),
            f=f,
            clients=tuple(clients),
            fields=fields or {},
        )
        plan = replace(plan, ports=free_ports(sum(tree_sizes(plan).values())))
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="quorumcast-tree-"))
        self._idle = frozenset(idle)
        self.planned: dict[str, PlannedCell] = make_tree(plan)
        self.cells: dict[str, LocalCluster] = {}
        for name, cell in self.planned.items():
            place = self.directory / name
            self.cells[name] = LocalCluster(cell=cell, directory=place, log_level=log_level)
            if cell.parent:
                above = self.planned[cell.parent]
                signed = sign_manifest(above.manifest, above.operator)
                write_parents(place, signed, cell.uplinks)

    def __getitem__(self, cell: str) -> LocalCluster:
        return self.cells[cell]

    def __enter__(self) -> Self:
        try:
            running = [cell for name, cell in self.cells.items() if name not in self._idle]
            started = [(cell, cell.begin_start()) for cell in running]
            for cell, pipes in started:
                cell.await_started(pipes)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop every process, children first; remove the directory if it was ours."""
        with contextlib.ExitStack() as stack:
            for cell in self.cells.values():
                stack.callback(cell.stop)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)
