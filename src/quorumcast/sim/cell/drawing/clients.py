"""What applications do: subscribe, publish, read the past, want receipts, crash and come back."""

from __future__ import annotations

import random

from quorumcast.core.ids import NodeId
from quorumcast.sim.cell.drawing.scene import ORDERS, Scene

#: Publications of one submission, and where streams outlast what is retained.
AMOUNTS, LARGE_AMOUNTS = (1, 1, 1, 2, 3, 8), (4, 8, 8, 16, 24)


def draw_readers(scene: Scene) -> None:
    """Subscribers that come, come late, leave and return."""
    rng = scene.rng
    for index, subscriber in enumerate(scene.subscribers):
        for channel in scene.readable(subscriber):
            late = index > 0 and rng.randrange(3) == 0
            joins = scene.moment() if late else rng.randrange(20)
            scene.act(joins, "join", subscriber, channel)
            if index > 0 and rng.randrange(5) == 0:
                leaves = joins + rng.randrange(50, 300)
                scene.act(leaves, "leave", subscriber, channel)
                if rng.randrange(2):
                    scene.act(leaves + rng.randrange(1, 100), "join", subscriber, channel)


def draw_workload(scene: Scene) -> None:
    """Publications at any time; in large amounts where streams are to outlast what is retained."""
    rng = scene.rng
    start = rng.choice((0, 60, 60))
    for publisher in scene.publishers:
        for channel in scene.writable(publisher):
            submissions = rng.randrange(15, 50) if scene.long else rng.randrange(4, 16)
            for _ in range(submissions // 2 if scene.brief else submissions):
                at = start + rng.randrange(max(1, scene.safety_ms - start))
                amount = rng.choice(LARGE_AMOUNTS if scene.brief else AMOUNTS)
                scene.act(at, "submit", publisher, channel, amount)


def draw_late_readers(scene: Scene) -> None:
    """Subscribers that want the past, all that is held or, where there is one order, a part."""
    rng = scene.rng
    for reader in scene.subscribers:
        for _ in range(rng.randrange(3)):
            what = rng.choice(("read", "extract") if scene.policy.total else ("read",))
            scene.act(scene.moment(), what, reader, ORDERS, rng.randrange(1, 80))
    scene.act(scene.safety_ms, "read", scene.subscribers[-1], ORDERS)


def draw_questions(scene: Scene) -> None:
    """Subscribers that want receipts, and positions of an order once more, all the time."""
    rng = scene.rng
    for reader in scene.subscribers:
        for channel in scene.readable(reader):
            for _ in range(rng.randrange(4)):
                scene.act(scene.moment(), "prove", reader, channel)
            for _ in range(rng.randrange(4) if scene.policy.total else 0):
                scene.act(scene.moment(), "recall", reader, channel, rng.randrange(1, 60))


def draw_crashes(scene: Scene) -> None:
    """Publishers and subscribers crash once and come back."""
    rng = scene.rng
    for client in scene.clients:
        if rng.randrange(3) == 0:
            continue
        back = _crash(scene, client, scene.moment(60))
        if client in scene.subscribers:
            scene.act(back + 1, "join", client, ORDERS)


def draw_lives(scene: Scene) -> None:
    """Publishers that crash again and again, and publish in between, while a reader is cut off."""
    rng = scene.rng
    lonely = rng.choice(scene.subscribers)
    cut = scene.moment() // 2
    scene.act(cut, "partition", peers=(lonely,))
    scene.act(rng.randrange(cut, scene.safety_ms), "heal")
    for publisher in scene.publishers:
        for _ in range(rng.randrange(2, 9)):
            back = _crash(scene, publisher, scene.moment(60))
            for channel in scene.writable(publisher):
                amount = rng.choice(LARGE_AMOUNTS if scene.brief else AMOUNTS)
                scene.act(back + rng.randrange(1, 40), "submit", publisher, channel, amount)


def draw_resumptions(scene: Scene) -> None:
    """Publishers that go on with their streams after a crash: an order must not care.

    Drawn apart from the rest.
    """
    rng = random.Random(f"resuming {scene.seed}")
    if not scene.policy.total or rng.randrange(3):
        return
    scene.resuming = tuple(name for name in scene.publishers if name not in scene.liars)
    for publisher in scene.resuming:
        for _ in range(rng.randrange(3)):
            at = rng.randrange(60, scene.safety_ms)
            scene.act(at, "crash", publisher)
            scene.act(at + rng.randrange(1, 60), "restart", publisher)


def _crash(scene: Scene, client: NodeId, at_ms: int) -> int:
    """A crash, and when the client is back."""
    back = at_ms + scene.rng.randrange(1, 80)
    scene.act(at_ms, "crash", client)
    scene.act(back, "restart", client)
    return back
