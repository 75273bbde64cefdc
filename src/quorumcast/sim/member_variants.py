"""Mistakes about epochs that change the brokers, and the runs that expose them."""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.agents.membership import Membership
from quorumcast.core.statements import Signed
from quorumcast.manifest.manifest import Manifest
from quorumcast.sim.known_bad import Patch, Variant
from quorumcast.sim.scenario import draw


def _believable(self: Membership, following: Manifest, words: Iterable[Signed]) -> bool:
    """The epoch was decided; nothing is said about who can tell others what came before it."""
    return len(tuple(words)) >= self._manifest.quorums.one_correct


MEMBER_VARIANTS: tuple[Variant, ...] = (
    Variant(
        name="lone-move",
        mistake="a broker takes an epoch with f+1 words, also of brokers that leave with it",
        patches=(Patch(Membership, "_learnable", _believable),),
        # Only the broker that is removed and one other have executed the epoch.
        attack=lambda seed: draw(3 + seed, "total", "members"),
        caught_by=("Validity",),
        seeds=1,
    ),
)
