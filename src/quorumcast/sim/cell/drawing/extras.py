"""Extra ingredients: further faults and events beside a scenario's adversary.

Most bugs show only where two things meet: a restart and a lie, a slow link and a full window. So
nearly every scenario gets some extras. Those that make brokers faulty are left out if the brokers
that may be faulty have a fault already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from quorumcast.sim.cell.drawing import clients, faults, world
from quorumcast.sim.cell.drawing.draft import Draft
from quorumcast.sim.cell.harm import RETAINING, applicable

#: Number of extras that the adversary "several" has for certain.
SEVERAL = 3


D = TypeVar("D", bound=Draft)


class Ingredient(msgspec.Struct, Generic[D], frozen=True):
    """An extra that is added to one scenario in `once_in`, if it fits."""

    draw: Callable[[D], None]
    once_in: int
    fits: Callable[[D], bool] = lambda draft: True


def add_some(draft: D, ingredients: Sequence[Ingredient[D]]) -> None:
    """Add some of the ingredients that fit."""
    rng = draft.rng
    chosen = [one for one in ingredients if rng.randrange(one.once_in) == 0]
    if draft.adversary == "several":
        chosen += rng.sample(ingredients, SEVERAL)
    for ingredient in chosen:
        if ingredient.fits(draft):
            ingredient.draw(draft)


def may_corrupt(draft: Draft) -> bool:
    """Whether no broker is faulty yet, and no restart has made a broker lose its contents."""
    restarted = not draft.policy.total and any(
        act.what == "crash" and act.node in draft.brokers for act in draft.acts
    )
    return not (restarted or draft.doomed or any(name in draft.corrupted for name in draft.brokers))


def _may_forget(draft: Draft) -> bool:
    return may_corrupt(draft) and applicable("amnesia", draft.policy)


def _may_restart(draft: Draft) -> bool:
    """Whether brokers have journals, and restarts lose no more contents than the model allows.

    Without total order a journal keeps no contents, so there must be no faulty brokers beside.
    """
    return draft.policy.journal and (draft.policy.total or may_corrupt(draft))


def _may_steal_key(draft: Draft) -> bool:
    return not draft.extra_subscribers and applicable("theft", draft.policy)


INGREDIENTS: tuple[Ingredient[Draft], ...] = (
    Ingredient(clients.draw_requests, 2),
    Ingredient(faults.draw_faulty_clients, 4),
    Ingredient(faults.draw_faulty_brokers, 4, may_corrupt),
    Ingredient(world.draw_crash_recover, 4, _may_restart),
    Ingredient(world.draw_isolation, 5),
    Ingredient(world.draw_partitions, 8),
    Ingredient(world.draw_cuts, 8),
    Ingredient(world.draw_pauses, 8),
    Ingredient(clients.draw_client_crashes, 8),
    Ingredient(clients.draw_incarnations, 8),
    Ingredient(clients.draw_late_readers, 6),
    Ingredient(world.draw_crash, 12, may_corrupt),
    Ingredient(world.draw_amnesia, 12, _may_forget),
    Ingredient(world.draw_theft, 10, _may_steal_key),
    Ingredient(faults.draw_intruder, 3),
)


def draw_extras(draft: Draft) -> None:
    """Add some of the extras that fit."""
    if draft.adversary in RETAINING:
        # Correct brokers lose contents there, so further faults would be too much.
        clients.draw_requests(draft)
    else:
        add_some(draft, INGREDIENTS)
