"""The brokers that a node is connected to: waiting for enough of them, and telling the loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.links.contract import Links, Trouble

#: Interval at which connection errors are checked while waiting.
_POLL_S = 0.25
#: Time after which refusals by brokers count as final.
_REFUSAL_FINAL_S = 1.0
#: Time after which too few brokers count as a loss: a new epoch renews all links at once.
_LOSS_S = 2.0


def too_many_refuse(manifest: Manifest, troubles: dict[NodeId, Trouble]) -> bool:
    """Whether more than f brokers refuse this client, so that n-f can never answer."""
    refused = [trouble for trouble in troubles.values() if trouble.refused]
    return len(refused) >= manifest.quorums.one_correct


class ConnectedBrokers:
    """The connected brokers, in the order in which they connected."""

    __slots__ = ("_changed", "up")

    def __init__(self) -> None:
        self.up: dict[NodeId, None] = {}
        self._changed = asyncio.Event()

    def add(self, broker: NodeId) -> None:
        """Add a broker that has connected."""
        self.up[broker] = None
        self._changed.set()

    def remove(self, broker: NodeId) -> None:
        """Remove a broker that has disconnected."""
        self.up.pop(broker, None)

    async def wait(self, manifest: Manifest, links: Links, timeout_s: float) -> None:
        """Wait until n-f brokers are connected; `UsageError` names the missing ones and why."""
        needed = manifest.quorums.responders
        loop = asyncio.get_running_loop()
        started = loop.time()
        while len(self.up) < needed:
            self._changed.clear()
            waited = loop.time() - started
            troubles = links.troubles()
            # Only a new manifest can end refusals, so waiting for the timeout would be in vain.
            hopeless = waited > _REFUSAL_FINAL_S and too_many_refuse(manifest, troubles)
            if waited >= timeout_s or hopeless:
                raise UsageError(self._unreachable(manifest, troubles, needed))
            try:
                async with asyncio.timeout(min(timeout_s - waited, _POLL_S)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def describe(
        self, manifest: Manifest, links: Links, verb: str, missing: Sequence[NodeId]
    ) -> str:
        """Which brokers have done what `verb` says, and why the missing ones have not."""
        done = [broker for broker in manifest.broker_ids if broker not in missing]
        troubles = links.troubles()
        lacking = [
            f"{broker} ({troubles.get(broker, Trouble()).sentence})"
            if broker not in self.up
            else broker
            for broker in missing
        ]
        return (
            f"{verb}: {', '.join(done) or 'no broker'}; missing: {', '.join(lacking) or 'none'}; "
            f"needed: {manifest.quorums.responders} of {len(manifest.brokers)}"
        )

    def _unreachable(self, manifest: Manifest, troubles: dict[NodeId, Trouble], needed: int) -> str:
        reached = f"{len(self.up)} of {len(manifest.brokers)} brokers can be reached"
        why = "; ".join(self._reasons(manifest, troubles))
        if too_many_refuse(manifest, troubles):  # they say what helps
            return f"only {reached} and {needed} are needed; {why}"
        return (
            f"only {reached} and {needed} are needed ({why}); start them (on this machine with "
            "'quorumcast up' or 'quorumcast tree up'), or check the addresses in the manifest"
        )

    def _reasons(self, manifest: Manifest, troubles: dict[NodeId, Trouble]) -> Iterator[str]:
        """Why brokers are missing; those that refuse for the same reason share a sentence."""
        missing: dict[str, list[NodeId]] = {}
        for broker in manifest.broker_ids:
            if broker not in self.up:
                sentence = troubles.get(broker, Trouble()).sentence
                missing.setdefault(sentence.removeprefix(f"{broker} refused: "), []).append(broker)
        for sentence, brokers in missing.items():
            yield f"{', '.join(brokers)}: {sentence}"


class ReachReporter:
    """Tells the application when too few brokers are connected, and when enough are again.

    Each loss and each return is told once, as a sentence.
    """

    __slots__ = ("_cell", "_describe_brokers", "_tell", "_timer", "_told", "_was_connected")

    def __init__(
        self, cell: str, tell: Callable[[str], None], describe_brokers: Callable[[], str]
    ) -> None:
        self._cell = cell
        self._tell = tell
        self._describe_brokers = describe_brokers
        #: Whether enough brokers were connected at some time.
        self._was_connected = False
        #: Whether the present loss was told.
        self._told = False
        self._timer: asyncio.TimerHandle | None = None

    def changed(self, enough: bool) -> None:
        """Handle that a broker has connected or disconnected; also called at the beginning."""
        if not enough:
            if self._timer is None and not self._told:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_LOSS_S, self._tell_loss)
            return
        self.stop()
        back = "is back" if self._was_connected else "is reached"
        self._was_connected = True
        if self._told:
            self._told = False
            self._tell(f"cell {self._cell!r} {back}; {self._describe_brokers()}")

    def _tell_loss(self) -> None:
        self._timer, self._told = None, True
        what = "is lost" if self._was_connected else "cannot be reached yet (is it running?)"
        self._tell(f"cell {self._cell!r} {what}; {self._describe_brokers()}; trying again")

    def stop(self) -> None:
        """Tell no loss that has not been told."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
