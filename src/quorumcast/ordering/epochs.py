"""Epochs in a log: the next manifest is ordered like any other decision.

It travels as an offer on a stream of the cell itself (`EPOCHS`), whose number is the epoch and
whose one body is the manifest file. Unlike other offers it has no publisher's signature: the
operator's is inside, and brokers vote only for a manifest that may follow their own. It fills a
batch alone. Epochs that were never decided may be left out, if the one after them is one step
(`manifest.successor`) from the present one.

Whoever executes it at instance i makes a checkpoint and executes nothing more in its epoch:
decisions after i that others make before they execute i are discarded, and offered again. Consensus
goes on at i+1 with the brokers of the new epoch and in a regency that no earlier epoch can have had
(`first_regency`): messages and records of earlier epochs cannot be taken for new ones.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumcast.core.ids import EPOCHS, Millis
from quorumcast.core.limits import MAX_MANIFEST_BYTES
from quorumcast.core.machine import Bodies, DropReason
from quorumcast.crypto.digest import Hasher
from quorumcast.ordering.messages import Batch, Item, Offer

#: Manifests of later epochs that are kept: the operator may be faster than the cell, but should
#: never sign two for one epoch. There is more room for those that a leader or the log names.
MANIFESTS = 4
MAX_MANIFESTS = 4 * MANIFESTS
_SHIFT = 32


def first_regency(epoch: int) -> int:
    """The regency in which an epoch begins; it needs no synchronisation."""
    return (epoch - 1) << _SHIFT


def within_epoch(regency: int) -> int:
    """How many leaders there were before in its epoch, for display."""
    return regency & ((1 << _SHIFT) - 1)


def epoch_item(batch: Batch) -> Item | None:
    """The manifest in a batch, if it holds one."""
    return next((item for item in batch if item.stream == EPOCHS), None)


class Epochs:
    """Manifests that wait to be ordered in one log, or have just been."""

    __slots__ = ("_follows", "_hash", "_held", "_since", "present")

    def __init__(self, hash_: Hasher, follows: Callable[[bytes], int], present: int) -> None:
        self._hash = hash_
        #: The epoch of a manifest that may follow the present one; 0 if it may not.
        self._follows = follows
        #: The present epoch of this broker.
        self.present = present
        #: What may follow, by digest; at most MAX_MANIFESTS.
        self._held: dict[bytes, tuple[Offer, Bodies]] = {}
        #: Since when something has waited.
        self._since = Millis(0)

    def __len__(self) -> int:
        return len(self._held)

    def offer(self, data: bytes) -> Offer:
        """A manifest as it travels."""
        # Epoch 1 is never above the present one, so `add` refuses what may not follow.
        return Offer(EPOCHS, self._follows(data) or 1, self._hash(data))

    def add(
        self, offer: Offer, bodies: Bodies, now: Millis, *, named: bool = False
    ) -> DropReason | None:
        """Keep a manifest until it is ordered, if it may follow the present one.

        One that is *named* was proposed or decided, and is needed.
        """
        if offer.digests in self._held:
            return DropReason.DUPLICATE
        if offer.first <= self.present:
            return DropReason.OUT_OF_WINDOW
        if len(bodies) != 1 or len(bodies[0]) > MAX_MANIFEST_BYTES:
            return DropReason.BAD_RUN
        if self._hash(bodies[0]) != offer.digests:
            return DropReason.BAD_BODY
        if len(self._held) >= (MAX_MANIFESTS if named else MANIFESTS):
            return DropReason.OVER_LIMIT
        if self._follows(bodies[0]) != offer.first:
            return DropReason.NO_RIGHT
        self._since = self._since if self._held else now
        self._held[offer.digests] = (offer, bodies)
        return None

    def lacks(self, item: Item) -> bool:
        """Whether this broker needs a manifest that it has not got."""
        return item.first > self.present and item.digests not in self._held

    def versions(self, number: int) -> list[tuple[Offer, Bodies]]:
        """Every manifest of an epoch: a broker that asks for one may need any of them."""
        return [held for held in self._held.values() if held[0].first == number]

    def manifest(self, digest: bytes) -> bytes | None:
        """The manifest that a digest stands for."""
        held = self._held.get(digest)
        return None if held is None else held[1][0]

    @property
    def waiting(self) -> tuple[Offer, Bodies] | None:
        """What this broker would propose: the newest epoch, in the version received first."""
        return max(self._held.values(), key=lambda held: held[0].first, default=None)

    @property
    def oldest(self) -> Millis | None:
        """When the first of those that wait arrived; None if none waits."""
        return self._since if self._held else None

    def begin(self, epoch: int) -> None:
        """This broker is in that epoch now."""
        self.present = epoch
        self._held.clear()

    def may_propose(self, batch: Batch) -> bool:
        """Whether a batch with a manifest is one that correct leaders propose."""
        return len(batch) == 1 and batch[0].first > self.present
