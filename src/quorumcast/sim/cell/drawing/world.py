"""Faults of nodes and links that involve no lies: crashes, lost disks, pauses, partitions."""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.entry import Role
from quorumcast.ordering.leader_change import LEADER_TIMEOUT_MS
from quorumcast.sim.cell.cells import SUBSCRIBERS
from quorumcast.sim.cell.drawing.draft import ORDERS, Draft
from quorumcast.sim.cell.harm import entry_of, faults_of

# ------------------------------------------------------------------- brokers


def draw_crash(draft: Draft) -> None:
    """f brokers stop for good."""
    for broker in draft.corruptible:
        draft.doomed.append((broker, "crash"))
        draft.act(draft.random_time(), "stop", broker)


def draw_crash_recover(draft: Draft) -> None:
    """Brokers crash and restart, at most f at a time."""
    rng = draft.rng
    at = rng.randrange(draft.safety_ms // 2)
    any_broker = bool(rng.randrange(2))
    while at < draft.safety_ms:
        down = rng.randrange(10, 120)
        for broker in rng.sample(draft.brokers, draft.f) if any_broker else draft.corruptible:
            torn = rng.randrange(3) if draft.policy.total else 0
            draft.act(at, "crash", broker, amount=torn)
            draft.act(at + down, "restart", broker)
        at += down + rng.randrange(60, 250)


def draw_amnesia(draft: Draft) -> None:
    """f brokers crash and restart without their disks."""
    for broker in draft.corruptible:
        draft.doomed.append((broker, "amnesia"))
        at = draft.random_time()
        draft.act(at, "wipe", broker)
        draft.act(at + draft.rng.randrange(1, 100), "restart", broker)


def draw_twins(draft: Draft) -> None:
    """f brokers run as two honest copies with one key."""
    rng = draft.rng
    for broker in draft.corruptible:
        draft.doomed.append((broker, "twin"))
        others = (*draft.brokers, *draft.clients)
        peers = tuple(p for p in others if p != broker and rng.randrange(2))
        draft.act(rng.choice((0, draft.random_time())), "twin", broker, peers=peers)


def draw_blackout(draft: Draft) -> None:
    """All brokers crash at once with torn writes, sometimes amid a leader change or with liars."""
    rng = draft.rng
    if not draft.policy.trusts_publishers and rng.randrange(2):
        entries = {name: entry_of(name) for name in faults_of(Role.BROKER, draft.policy)}
        fault = rng.choice([name for name, entry in entries.items() if entry and entry.only_under])
        for broker in draft.corruptible:
            draft.corrupt(broker, fault)
    for _ in range(rng.randrange(1, 4)):
        at = draft.random_time(50)
        if rng.randrange(2):
            # Perhaps the leader, whose silence the others have just noticed.
            draft.act(max(0, at - rng.randrange(600, 900)), "pause", rng.choice(draft.brokers))
        down = rng.randrange(1, 150)
        for name in draft.brokers:
            late = rng.choice((0, 0, rng.randrange(60), rng.randrange(60, 900)))
            draft.act(at, "crash", name, amount=rng.randrange(6))
            draft.act(at + down + late, "restart", name)


def draw_pauses(draft: Draft) -> None:
    """Brokers, perhaps more than f, are paused for a while."""
    for _ in range(draft.rng.randrange(1, 4)):
        pause(draft, draft.rng.sample(draft.brokers, draft.rng.randrange(1, len(draft.brokers))))


def pause(draft: Draft, nodes: Sequence[NodeId]) -> None:
    """Pause these nodes at about the same time."""
    rng = draft.rng
    at, length = draft.random_time(), rng.choice((50, 300, 800, 1500))
    for node in nodes:
        draft.act(at + rng.randrange(20), "pause", node)
        draft.act(at + 20 + rng.randrange(length), "resume", node)


def draw_lag(draft: Draft) -> None:
    """Nodes of all roles are paused for a while, or for half of each moment."""
    rng = draft.rng
    nodes = [*draft.brokers, *draft.clients]
    for _ in range(rng.randrange(1, 5)):
        pause(draft, rng.sample(nodes, rng.randrange(1, len(nodes))))
    for node in rng.sample(nodes, rng.randrange(len(nodes))):
        at, moment = draft.random_time(), rng.choice((10, 60, 200))
        for start in range(at, min(at + rng.choice((500, 2000)), draft.safety_ms), 2 * moment):
            draft.act(start, "pause", node)
            draft.act(start + moment, "resume", node)


def draw_rolling(draft: Draft) -> None:
    """Brokers restart without their disks, one by one; a subscriber then reads everything."""
    rng = draft.rng
    order = tuple(rng.sample(draft.brokers, len(draft.brokers)))
    begin, rest = draft.random_time(), rng.choice((5, 20, 60))
    draft.act(begin, "roll", draft.subscribers[-1], ORDERS, rest, order)


def draw_wiped(draft: Draft) -> None:
    """A broker loses its disk late, when the others have truncated the log; a second one lies."""
    rng = draft.rng
    wiped = draft.corruptible[0]
    draft.doomed.append((wiped, "amnesia"))
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(draft.safety_ms // 3, draft.safety_ms)
        draft.act(at, rng.choice(("wipe", "damage")), wiped)
        draft.act(at + rng.randrange(1, 600), "restart", wiped)
    for broker in draft.corruptible[1:]:
        fault = rng.choice(("false-state", "false-standing", "withhold-offers", "silent"))
        draft.corrupt(broker, fault)


def draw_retelling(draft: Draft) -> None:
    """Brokers restart with their disks, one by one, while a publisher sends them other contents.

    A subscriber then reads everything.
    """
    rng = draft.rng
    draft.corrupt(draft.publishers[-1], "retell", 0, rng.choice((100, 40)))
    order = rng.sample(draft.brokers, len(draft.brokers))
    begin = rng.randrange(draft.safety_ms // 4, draft.safety_ms)
    draft.act(begin, "cycle", draft.subscribers[-1], ORDERS, rng.choice((5, 20, 60)), order)


# --------------------------------------------------------------------- links


def draw_partitions(draft: Draft) -> None:
    """The network is partitioned and heals, repeatedly."""
    rng = draft.rng
    everyone = (*draft.brokers, *draft.clients)
    at = rng.randrange(draft.safety_ms // 2)
    while at < draft.safety_ms:
        draft.act(at, "partition", peers=[node for node in everyone if rng.randrange(3) == 0])
        length = rng.randrange(20, 200)
        draft.act(at + length, "heal")
        at += length + rng.randrange(20, 200)


def draw_isolation(draft: Draft) -> None:
    """Partitions and one-way losses, most of them longer than the leader timeout."""
    rng = draft.rng
    everyone = (*draft.brokers, *draft.clients)
    at = rng.randrange(draft.safety_ms // 3)
    while at < draft.safety_ms:
        longest = min(3 * LEADER_TIMEOUT_MS, draft.safety_ms)
        length = rng.choice((rng.randrange(20, 200), rng.randrange(longest // 2, longest)))
        kind = rng.choice(("partition", "alone", "mute", "one-way"))
        if kind == "partition":
            draft.act(at, "partition", peers=[node for node in everyone if rng.randrange(3) == 0])
        elif kind == "alone":
            draft.act(at, "partition", peers=(rng.choice(everyone),))
        else:
            sender = rng.choice(everyone)
            others = [node for node in everyone if node != sender]
            some = others if kind == "mute" else rng.sample(others, rng.randrange(1, len(others)))
            draft.act(at, "mute", sender, peers=some)
        draft.act(at + length, "heal")
        at += length + rng.randrange(20, 300)


def draw_cuts(draft: Draft) -> None:
    """Links break, repeatedly."""
    rng = draft.rng
    for _ in range(rng.randrange(5, 40)):
        broker = rng.choice(draft.brokers)
        others = [node for node in (*draft.brokers, *draft.clients) if node != broker]
        draft.act(draft.random_time(), "cut", broker, peers=(rng.choice(others),))


def draw_theft(draft: Draft) -> None:
    """Stolen keys of a stopped client are used in the next epoch.

    The operator has replaced these keys or another client's; either renews all pairwise secrets.
    """
    owner, stranger = SUBSCRIBERS[-1], SUBSCRIBERS[-2]
    draft.extra_subscribers = (owner,)
    stopped = draft.random_time() // 2
    draft.act(stopped, "stop", owner)
    free = stranger not in draft.subscribers
    rotated = draft.rng.choice((owner, stranger)) if free else owner
    draft.act(stopped + 10, "rotate", rotated)
    for _ in range(draft.rng.randrange(1, 4)):
        draft.act(draft.rng.randrange(stopped, draft.safety_ms) + 20, "steal", owner, ORDERS)


def draw_forgeries(draft: Draft) -> None:
    """An attacker on the wire forges votes of brokers without their keys."""
    for _ in range(5):
        reader = draft.rng.choice(draft.subscribers)
        draft.act(draft.random_time(), "forge", reader, ORDERS)
