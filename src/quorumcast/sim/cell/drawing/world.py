"""What the world does to nodes and links: crashes, lost disks, pauses, partitions, cut links."""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.entry import Role
from quorumcast.ordering.leader_change import LEADER_TIMEOUT_MS
from quorumcast.sim.cell.cells import SUBSCRIBERS
from quorumcast.sim.cell.drawing.scene import ORDERS, Scene
from quorumcast.sim.cell.harm import entry_of, faults_of

# ------------------------------------------------------------------- brokers


def draw_crash(scene: Scene) -> None:
    """f brokers stop for good."""
    for victim in scene.victims:
        scene.doomed.append((victim, "crash"))
        scene.act(scene.moment(), "stop", victim)


def draw_crash_recover(scene: Scene) -> None:
    """Broker after broker goes down and comes back, never more than f at a time."""
    rng = scene.rng
    at = rng.randrange(scene.safety_ms // 2)
    rolling = bool(rng.randrange(2))
    while at < scene.safety_ms:
        down = rng.randrange(10, 120)
        for victim in rng.sample(scene.names, scene.f) if rolling else scene.victims:
            torn = rng.randrange(3) if scene.policy.total else 0
            scene.act(at, "crash", victim, amount=torn)
            scene.act(at + down, "restart", victim)
        at += down + rng.randrange(60, 250)


def draw_amnesia(scene: Scene) -> None:
    """f brokers stop and come back without their disks."""
    for victim in scene.victims:
        scene.doomed.append((victim, "amnesia"))
        at = scene.moment()
        scene.act(at, "wipe", victim)
        scene.act(at + scene.rng.randrange(1, 100), "restart", victim)


def draw_twins(scene: Scene) -> None:
    """f brokers run as two honest copies with one key."""
    rng = scene.rng
    for victim in scene.victims:
        scene.doomed.append((victim, "twin"))
        others = (*scene.names, *scene.clients)
        peers = tuple(p for p in others if p != victim and rng.randrange(2))
        scene.act(rng.choice((0, scene.moment())), "twin", victim, peers=peers)


def draw_blackout(scene: Scene) -> None:
    """All at once, with torn disks; sometimes amid a leader change, or with liars."""
    rng = scene.rng
    if not scene.policy.trusts_publishers and rng.randrange(2):
        ordering = [f for f in faults_of(Role.BROKER, scene.policy) if _is_about_order(f)]
        fault = rng.choice(ordering)
        for victim in scene.victims:
            scene.lie(victim, fault)
    for _ in range(rng.randrange(1, 4)):
        at = scene.moment(50)
        if rng.randrange(2):
            # Its leader's silence has just been noticed.
            scene.act(max(0, at - rng.randrange(600, 900)), "pause", rng.choice(scene.names))
        down = rng.randrange(1, 150)
        for name in scene.names:
            late = rng.choice((0, 0, rng.randrange(60), rng.randrange(60, 900)))
            scene.act(at, "crash", name, amount=rng.randrange(6))
            scene.act(at + down + late, "restart", name)


def _is_about_order(fault: str) -> bool:
    entry = entry_of(fault)
    return entry is not None and bool(entry.only_under)


def draw_pauses(scene: Scene) -> None:
    """Brokers, also more than f, stand still for a while."""
    for _ in range(scene.rng.randrange(1, 4)):
        pause(scene, scene.rng.sample(scene.names, scene.rng.randrange(1, len(scene.names))))


def pause(scene: Scene, nodes: Sequence[NodeId]) -> None:
    """Let these stand still at about the same time."""
    rng = scene.rng
    at, length = scene.moment(), rng.choice((50, 300, 800, 1500))
    for node in nodes:
        scene.act(at + rng.randrange(20), "pause", node)
        scene.act(at + 20 + rng.randrange(length), "resume", node)


def draw_rolling(scene: Scene) -> None:
    """Somebody who comes when all have restarted wants to read everything."""
    rng = scene.rng
    order = tuple(rng.sample(scene.names, len(scene.names)))
    begin, rest = scene.moment(), rng.choice((5, 20, 60))
    scene.act(begin, "roll", scene.subscribers[-1], ORDERS, rest, order)


def draw_wiped(scene: Scene) -> None:
    """Late, so that the log is no longer there to learn from; of two victims one lies."""
    rng = scene.rng
    wiped = scene.victims[0]
    scene.doomed.append((wiped, "amnesia"))
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(scene.safety_ms // 3, scene.safety_ms)
        scene.act(at, rng.choice(("wipe", "damage")), wiped)
        scene.act(at + rng.randrange(1, 600), "restart", wiped)
    for liar in scene.victims[1:]:
        fault = rng.choice(("false-state", "false-standing", "withhold-offers", "silent"))
        scene.lie(liar, fault)


def draw_retelling(scene: Scene) -> None:
    """Every broker restarts with its disk, one by one, while a publisher changes its story.

    Somebody who comes when all have restarted wants to read everything.
    """
    rng = scene.rng
    scene.lie(scene.publishers[-1], "retell", 0, rng.choice((100, 40)))
    order = rng.sample(scene.names, len(scene.names))
    begin = rng.randrange(scene.safety_ms // 4, scene.safety_ms)
    scene.act(begin, "cycle", scene.subscribers[-1], ORDERS, rng.choice((5, 20, 60)), order)


# --------------------------------------------------------------------- links


def draw_partitions(scene: Scene) -> None:
    """The network falls apart and heals, again and again."""
    rng = scene.rng
    everyone = (*scene.names, *scene.clients)
    at = rng.randrange(scene.safety_ms // 2)
    while at < scene.safety_ms:
        side = tuple(node for node in everyone if rng.randrange(3) == 0)
        length = rng.randrange(20, 200)
        scene.act(at, "partition", peers=side)
        scene.act(at + length, "heal")
        at += length + rng.randrange(20, 200)


def draw_isolation(scene: Scene) -> None:
    """Partitions, mutes and one-way cuts, most of them longer than brokers wait for a leader."""
    rng = scene.rng
    everyone = (*scene.names, *scene.clients)
    at = rng.randrange(scene.safety_ms // 3)
    while at < scene.safety_ms:
        longest = min(3 * LEADER_TIMEOUT_MS, scene.safety_ms)
        length = rng.choice((rng.randrange(20, 200), rng.randrange(longest // 2, longest)))
        kind = rng.choice(("partition", "alone", "mute", "one-way"))
        if kind == "partition":
            side = tuple(node for node in everyone if rng.randrange(3) == 0)
            scene.act(at, "partition", peers=side)
        elif kind == "alone":
            scene.act(at, "partition", peers=(rng.choice(everyone),))
        else:
            speaker = rng.choice(everyone)
            others = [node for node in everyone if node != speaker]
            deaf = others if kind == "mute" else rng.sample(others, rng.randrange(1, len(others)))
            scene.act(at, "mute", speaker, peers=deaf)
        scene.act(at + length, "heal")
        at += length + rng.randrange(20, 300)


def draw_cuts(scene: Scene) -> None:
    """Links break, again and again."""
    rng = scene.rng
    for _ in range(rng.randrange(5, 40)):
        broker = rng.choice(scene.names)
        others = [node for node in (*scene.names, *scene.clients) if node != broker]
        scene.act(scene.moment(), "cut", broker, peers=(rng.choice(others),))


def draw_theft(scene: Scene) -> None:
    """Keys of a client that is gone are stolen, and the thief calls with them in the next epoch.

    The operator has replaced them, or those of somebody else: what two nodes share is made anew.
    """
    owner, stranger = SUBSCRIBERS[-1], SUBSCRIBERS[-2]
    scene.bystanders = (owner,)
    stopped = scene.moment() // 2
    scene.act(stopped, "stop", owner)
    free = stranger not in scene.subscribers
    rotated = scene.rng.choice((owner, stranger)) if free else owner
    scene.act(stopped + 10, "rotate", rotated)
    for _ in range(scene.rng.randrange(1, 4)):
        scene.act(scene.rng.randrange(stopped, scene.safety_ms) + 20, "steal", owner, ORDERS)


def draw_forgeries(scene: Scene) -> None:
    """An attacker on the wire speaks for brokers without their keys."""
    for _ in range(5):
        reader = scene.rng.choice(scene.subscribers)
        scene.act(scene.moment(), "forge", reader, ORDERS)
