"""Adversaries of leader changes that work together: each leader in turn plays a part.

A *part* says what happens while a certain broker leads. Parts are put together with `both`,
`any_of` and `by_nature` (one part for a leader that may be faulty, another for a correct one, to
which only the network and the scheduler can do harm). A *script* is a part for each leader in turn:
a new one costs a line in `SCRIPTS`.

Brokers lead in manifest order. A leader is replaced after about `LEADER_TIMEOUT_MS` in which
nothing was ordered, so turns are that long, and a little longer each time.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.ordering.leader_change import LEADER_TIMEOUT_MS
from quorumcast.sim.cell.drawing.scene import Scene
from quorumcast.sim.cell.harm import applicable


class Turn(msgspec.Struct, frozen=True):
    """The time in which a broker leads, more or less."""

    leader: NodeId
    at_ms: int
    until_ms: int


Part = Callable[[Scene, Turn], None]


# --------------------------------------------------------------- combinators


def both(*parts: Part) -> Part:
    """All of these."""

    def play(scene: Scene, turn: Turn) -> None:
        for part in parts:
            part(scene, turn)

    return play


def any_of(*parts: Part) -> Part:
    """One of these."""
    return lambda scene, turn: scene.rng.choice(parts)(scene, turn)


def by_nature(faulty: Part, correct: Part) -> Part:
    """What a leader that may be faulty does by itself, and what is done to a correct one."""
    return lambda scene, turn: (faulty if turn.leader in scene.victims else correct)(scene, turn)


def lies(*faults: str) -> Part:
    """A faulty leader commits one of these, from before its turn on; `fault:aim` aims it."""

    def play(scene: Scene, turn: Turn) -> None:
        fault, _, aim = scene.rng.choice(faults).partition(":")
        if not applicable(fault, scene.policy):
            # Where nobody lies, the network may still keep what it says from some.
            is_unheard_by_some(scene, turn)
            return
        scene.lie(turn.leader, fault, max(0, turn.at_ms - 50), victims=(aim,) if aim else ())

    return play


# --------------------------------------------------------------------- parts


def nothing(scene: Scene, turn: Turn) -> None:
    """Leads as it should."""


def is_cut_off(scene: Scene, turn: Turn) -> None:
    """Nobody hears it, and it hears nobody."""
    scene.act(_within(scene, turn), "partition", peers=(turn.leader,))
    scene.act(turn.until_ms + scene.rng.randrange(400), "heal")


def is_unheard_by_some(scene: Scene, turn: Turn) -> None:
    """What it says is lost on the way to some: they see nothing of the batch that others hold."""
    others = [name for name in scene.names if name != turn.leader]
    deaf = scene.rng.sample(others, scene.rng.randrange(1, len(others)))
    scene.act(_within(scene, turn), "mute", turn.leader, peers=deaf)
    scene.act(turn.until_ms + scene.rng.randrange(200), "heal")


def stands_still(scene: Scene, turn: Turn) -> None:
    """It does everything at once when others have long gone on."""
    scene.act(_within(scene, turn), "pause", turn.leader)
    scene.act(turn.until_ms + scene.rng.randrange(20, 500), "resume", turn.leader)


def is_late(scene: Scene, turn: Turn) -> None:
    """It comes back in the middle of its turn, from before it."""
    scene.act(max(0, turn.at_ms - scene.rng.randrange(100, 500)), "pause", turn.leader)
    scene.act(_within(scene, turn), "resume", turn.leader)


def dies(scene: Scene, turn: Turn) -> None:
    """It crashes and comes back with its disk, if it has one."""
    if not scene.policy.journal:
        stands_still(scene, turn)
        return
    scene.act(_within(scene, turn), "crash", turn.leader, amount=scene.rng.randrange(3))
    scene.act(turn.until_ms + scene.rng.randrange(200), "restart", turn.leader)


def loses_a_follower(scene: Scene, turn: Turn) -> None:
    """Somebody else is away during this turn, and needs what was decided meanwhile."""
    follower = scene.rng.choice([name for name in scene.names if name != turn.leader])
    scene.act(_within(scene, turn), "pause", follower)
    scene.act(turn.until_ms + scene.rng.randrange(300), "resume", follower)


def _within(scene: Scene, turn: Turn) -> int:
    return scene.rng.randrange(
        turn.at_ms, max(turn.at_ms + 1, turn.until_ms - LEADER_TIMEOUT_MS // 2)
    )


shows_to_some = by_nature(lies("show-to-some", "equivocating-leader"), is_unheard_by_some)
shows_and_dies = both(shows_to_some, by_nature(nothing, dies))
lies_about_it = by_nature(
    lies("false-stop-data:nothing", "false-stop-data:newer", "false-stop-data:invention",
         "false-sync", "double-vote"),
    is_unheard_by_some,
)  # fmt: skip
says_it_late = by_nature(lies("late-words", "slow-leader"), is_late)
is_away = any_of(is_cut_off, stands_still, dies)
anything = any_of(
    nothing, shows_and_dies, lies_about_it, says_it_late, is_away, loses_a_follower, shows_to_some
)

#: A part for each leader in turn; whoever leads after the last one leads as it should.
SCRIPTS: tuple[tuple[Part, ...], ...] = (
    (shows_and_dies, lies_about_it, says_it_late),
    (shows_and_dies, says_it_late, lies_about_it),
    (both(shows_to_some, lies_about_it), is_away, is_late),
    (is_cut_off, both(shows_to_some, lies_about_it), stands_still),
    (shows_and_dies, both(is_late, loses_a_follower), shows_and_dies),
    (anything, anything, anything, anything),
    (anything, anything, anything, anything),
)


def draw_leaders(scene: Scene) -> None:
    """A script, whose first leaders are those that may be faulty as often as not."""
    rng = scene.rng
    script = rng.choice(SCRIPTS)
    if rng.randrange(2):
        leaders = scene.names[: max(len(script), scene.f)]
        scene.victims = rng.sample(leaders, scene.f)
    at = rng.randrange(50, 400)
    for place, part in enumerate(script):
        length = LEADER_TIMEOUT_MS + rng.randrange(100, 400)
        part(scene, Turn(scene.names[place % len(scene.names)], at, at + length))
        at += length
    scene.safety_ms = max(scene.safety_ms, at)
