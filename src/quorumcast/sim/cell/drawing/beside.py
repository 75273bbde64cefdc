"""What happens beside the adversary: several things at once, as far as the fault model goes.

Most mistakes show only where two things meet: a restart and a lie, a slow link and a full window, a
crash and a reader of the past. So nearly every scenario gets some of these, whatever its adversary
is. Those that make brokers faulty choose among the scene's victims, and are left out where the
victims have their part already.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quorumcast.sim.cell.drawing.clients import (
    draw_crashes,
    draw_late_readers,
    draw_lives,
    draw_questions,
)
from quorumcast.sim.cell.drawing.liars import draw_intruder, draw_lying_brokers, draw_lying_clients
from quorumcast.sim.cell.drawing.scene import Scene
from quorumcast.sim.cell.drawing.world import (
    draw_amnesia,
    draw_crash,
    draw_crash_recover,
    draw_cuts,
    draw_isolation,
    draw_partitions,
    draw_pauses,
    draw_theft,
)
from quorumcast.sim.cell.harm import RETAINING, applicable

#: Ingredients of the adversary that has several of them.
SEVERAL = 3


class Ingredient(msgspec.Struct, frozen=True):
    """Something that may happen beside an adversary: once in so many scenarios."""

    draw: Callable[[Scene], None]
    once_in: int
    fits: Callable[[Scene], bool] = lambda scene: True


def _victims_are_free(scene: Scene) -> bool:
    """Whether no broker is faulty yet, and restarts leave enough others with what they hold."""
    restarted = not scene.policy.total and any(
        act.what == "crash" and act.node in scene.names for act in scene.acts
    )
    return not (restarted or scene.doomed or any(name in scene.liars for name in scene.names))


def _may_forget(scene: Scene) -> bool:
    return _victims_are_free(scene) and applicable("amnesia", scene.policy)


def _may_restart(scene: Scene) -> bool:
    """Whether brokers keep their word across restarts, and enough others what these held.

    Without total order a journal keeps no contents: with f liars beside them, restarts would lose
    more than the model allows for.
    """
    return scene.policy.journal and (scene.policy.total or _victims_are_free(scene))


def _may_be_robbed(scene: Scene) -> bool:
    return not scene.bystanders and applicable("theft", scene.policy)


INGREDIENTS = (
    Ingredient(draw_questions, 2),
    Ingredient(draw_lying_clients, 4),
    Ingredient(draw_lying_brokers, 4, _victims_are_free),
    Ingredient(draw_crash_recover, 4, _may_restart),
    Ingredient(draw_isolation, 5),
    Ingredient(draw_partitions, 8),
    Ingredient(draw_cuts, 8),
    Ingredient(draw_pauses, 8),
    Ingredient(draw_crashes, 8),
    Ingredient(draw_lives, 8),
    Ingredient(draw_late_readers, 6),
    Ingredient(draw_crash, 12, _victims_are_free),
    Ingredient(draw_amnesia, 12, _may_forget),
    Ingredient(draw_theft, 10, _may_be_robbed),
    Ingredient(draw_intruder, 3),
)


def draw_beside(scene: Scene) -> None:
    """Some of the ingredients that fit."""
    rng = scene.rng
    if scene.adversary in RETAINING:
        # Brokers forget there without being faulty, and whoever else is away or lies is too much.
        draw_questions(scene)
        return
    chosen = [one for one in INGREDIENTS if rng.randrange(one.once_in) == 0]
    if scene.adversary == "several":
        chosen += rng.sample(INGREDIENTS, SEVERAL)
    for ingredient in chosen:
        if ingredient.fits(scene):
            ingredient.draw(scene)
