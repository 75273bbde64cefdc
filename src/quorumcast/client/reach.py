"""Which brokers a node can reach, and waiting until they are enough."""

from __future__ import annotations

import asyncio

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.links.contract import Links, Trouble

#: So often troubles are looked at while nothing happens.
_LOOK_S = 0.25
#: After this long brokers that refuse are taken at their word.
_PATIENCE_S = 1.0


def refused_for_good(manifest: Manifest, troubles: dict[NodeId, Trouble]) -> bool:
    """Whether so many brokers refuse that the others are fewer than n-f."""
    refused = [trouble for trouble in troubles.values() if trouble.refused]
    return len(refused) >= manifest.quorums.one_correct


class Reach:
    """The brokers that are connected, in the order in which they came."""

    __slots__ = ("_changed", "up")

    def __init__(self) -> None:
        self.up: dict[NodeId, None] = {}
        self._changed = asyncio.Event()

    def gain(self, broker: NodeId) -> None:
        """It is connected."""
        self.up[broker] = None
        self._changed.set()

    def lose(self, broker: NodeId) -> None:
        """It is not any more."""
        self.up.pop(broker, None)

    async def wait(self, manifest: Manifest, links: Links, timeout_s: float) -> None:
        """Until n-f brokers are connected, or a sentence that names the others and why."""
        needed = manifest.quorums.responders
        loop = asyncio.get_running_loop()
        started = loop.time()
        while len(self.up) < needed:
            self._changed.clear()
            waited = loop.time() - started
            troubles = links.troubles()
            # Nothing but a new manifest helps against refusals: do not wait for the time-out.
            hopeless = waited > _PATIENCE_S and refused_for_good(manifest, troubles)
            if waited >= timeout_s or hopeless:
                raise UsageError(self._unreachable(manifest, troubles, needed))
            try:
                async with asyncio.timeout(min(timeout_s - waited, _LOOK_S)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _unreachable(self, manifest: Manifest, troubles: dict[NodeId, Trouble], needed: int) -> str:
        missing = [
            f"{broker}: {troubles.get(broker, Trouble()).sentence}"
            for broker in manifest.broker_ids
            if broker not in self.up
        ]
        return (
            f"only {len(self.up)} of {len(manifest.brokers)} brokers can be reached and "
            f"{needed} are needed ({'; '.join(missing)}); start them, or check the addresses in "
            "the manifest"
        )
