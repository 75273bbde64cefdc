"""Drawing a plan of a tree from a seed: levels, cells, and an adversary in every one of them.

The ingredients of a cell's scenarios are used where they fit: a `Draft` has the brokers of all
cells, and `corruptible` has f of each, so whatever makes these faulty does so in all cells at once.
Trees have two to four levels, as chains and with two children.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import POLICY_NAMES, RELAYED_NAMES, Policy
from quorumcast.sim.cell.aimed import AIMED
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.drawing import clients, world
from quorumcast.sim.cell.drawing.draft import ORDERS, QUOTES, Draft, draw_policy
from quorumcast.sim.cell.drawing.extras import Ingredient, add_some
from quorumcast.sim.cell.drawing.faults import draw_fault
from quorumcast.sim.cell.drawing.links import draw_links
from quorumcast.sim.cell.harm import entry_of, faults_of
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import MAX_STEPS
from quorumcast.sim.tree.plan import ROOT, Branch, TreePlan, cell_name_of, uplink_of
from quorumcast.sim.tree.rows import draw_rows
from quorumcast.sim.tree.run import ALIKE

#: The cells below the root in the trees that are drawn, by name; a letter is a level.
SHAPES = (
    ("a",),
    ("a", "b"),
    ("a", "aa"),
    ("a", "aa", "ab"),
    ("a", "b", "aa"),
    ("a", "b", "aa", "bb"),
    ("a", "aa", "aaa"),
    ("a", "aa", "aaa", "aab"),
)
#: Brokers and f of a cell below the root.
SIZES = ((3, 1), (3, 1), (3, 1), (3, 1), (4, 1), (5, 2))
BROKERS, F = 4, 1
#: Time without progress after which promises are broken, and the addition for each level and
#: each millisecond of the slowest link.
PATIENCE_MS, PATIENCE_PER_LEVEL_MS, PATIENCE_PER_MS = 14_000, 4_000, 60


class TreeDraft(Draft):
    """A scenario of a tree while it is drawn; as a `Draft` it has the nodes of all cells."""

    branches: tuple[Branch, ...] = ()

    def subtree(self, name: str) -> list[NodeId]:
        """All nodes of a cell and of those below it, and its uplinks."""
        inside = [branch for branch in self.branches if branch.name.startswith(name)]
        found = [node for one in inside for node in (*one.broker_names, *one.uplinks)]
        return [*found, *(s for s in self.subscribers if cell_name_of(s).startswith(name))]


# ------------------------------------------------------------------ ingredients


def _nothing(draft: TreeDraft) -> None:
    """Nothing but the extras."""


def draw_liars(draft: TreeDraft) -> None:
    """f brokers of every cell lie at once, each in its own way."""
    rng = draft.rng
    faults = faults_of(Role.BROKER, draft.policy), faults_of(Role.BROKER, Policy.named(ALIKE))
    for broker in draft.corruptible:
        known = faults[cell_name_of(broker) != ROOT]
        for fault in rng.sample(known, rng.choice((1, 1, 2))):
            victims = (rng.choice(draft.subscribers),) if fault == "censor-node" else ()
            start = rng.choice((0, 0, draft.random_time()))
            draft.corrupt(broker, fault, start, rng.choice((100, 100, 60, 25)), victims)


def draw_lying_uplinks(draft: TreeDraft) -> None:
    """Brokers that may be faulty are bad clients of their parent cells."""
    faults = faults_of(Role.SUBSCRIBER, draft.policy)
    for broker in draft.corruptible:
        if cell_name_of(broker) != ROOT:
            percent = draft.rng.choice((100, 50))
            draft.corrupt(uplink_of(broker), draft.rng.choice(faults), 0, percent)


def draw_restarts(draft: TreeDraft) -> None:
    """f brokers of every cell crash and restart, again and again."""
    rng = draft.rng
    for broker in draft.corruptible:
        at = rng.randrange(draft.safety_ms // 2)
        if cell_name_of(broker) == ROOT and not draft.policy.journal:
            draft.doomed.append((broker, "amnesia"))
        while at < draft.safety_ms:
            down = rng.randrange(10, 150)
            draft.act(at, "crash", broker)
            draft.act(at + down, "restart", broker)
            at += down + rng.randrange(60, 250)


def draw_cut_off(draft: TreeDraft) -> None:
    """A cell and what is below it are cut off for a while, perhaps longer than is retained."""
    rng = draft.rng
    at = rng.randrange(draft.safety_ms // 2)
    while at < draft.safety_ms:
        name = rng.choice(draft.branches).name
        draft.act(at, "partition", peers=draft.subtree(name))
        length = rng.choice((rng.randrange(20, 200), rng.randrange(200, 900)))
        draft.act(at + length, "heal")
        at += length + rng.randrange(20, 300)


def draw_blackout(draft: TreeDraft) -> None:
    """All brokers of a cell below the root crash at once, without memory of what they relayed."""
    rng = draft.rng
    for branch in rng.sample(draft.branches, rng.randrange(1, len(draft.branches) + 1)):
        at, down = draft.random_time(50), rng.randrange(1, 150)
        for broker in branch.broker_names:
            late = rng.choice((0, 0, rng.randrange(60), rng.randrange(60, 600)))
            draft.act(at, "crash", broker)
            draft.act(at + down + late, "restart", broker)


def draw_rolling(draft: TreeDraft) -> None:
    """The brokers of a cell below the root restart one after the other."""
    rng = draft.rng
    branch, at = rng.choice(draft.branches), draft.random_time(50)
    for broker in rng.sample(branch.broker_names, branch.brokers):
        down = rng.randrange(5, 60)
        draft.act(at, "crash", broker)
        draft.act(at + down, "restart", broker)
        at += down + rng.choice((5, 40, 200))


def draw_latecomers(draft: TreeDraft) -> None:
    """f brokers of every cell lie, and readers of all levels read the past at any time."""
    clients.draw_late_readers(draft)
    draw_liars(draft)


def draw_conspiracy(draft: TreeDraft) -> None:
    """A publisher and brokers of all levels tell one story to some nodes, another to the rest."""
    rng = draft.rng
    root = [broker for broker in draft.correct if cell_name_of(broker) == ROOT]
    misled = rng.sample(root, rng.randrange(1, len(root)))
    some = [node for node in (*draft.subscribers, *_uplinks(draft)) if rng.randrange(2)]
    percent = rng.choice((100, 40))
    draft.corrupt(draft.publishers[-1], "equivocating-publisher", 0, percent, misled, "plot")
    for broker in draft.corruptible:
        draft.corrupt(broker, "two-faced", 0, 100, (*misled, *some), "plot")


def _uplinks(draft: TreeDraft) -> list[NodeId]:
    return [uplink for branch in draft.branches for uplink in branch.uplinks]


#: The ingredient of each adversary; every other name is a fault.
HARMS: dict[str, Callable[[TreeDraft], None]] = {
    "none": _nothing,
    "liars": draw_liars,
    "uplinks": draw_lying_uplinks,
    "crash": world.draw_crash,
    "crash-recover": draw_restarts,
    "amnesia": world.draw_amnesia,
    "cut-off": draw_cut_off,
    "blackout": draw_blackout,
    "rolling": draw_rolling,
    "latecomers": draw_latecomers,
    "conspiracy": draw_conspiracy,
    "partition": world.draw_partitions,
    "disconnect": world.draw_cuts,
    "pause": world.draw_pauses,
    "restarting-clients": clients.draw_client_crashes,
    "lives": clients.draw_incarnations,
    "several": _nothing,
}
#: Every name that `--adversary` takes.
ADVERSARIES = (*HARMS, *CATALOGUE, *AIMED)


def _may_corrupt(draft: TreeDraft) -> bool:
    """Whether no broker is faulty yet, and the policy withstands brokers that lie."""
    faulty = draft.doomed or any(node in draft.brokers for node in draft.corrupted)
    return not (faulty or draft.policy.crash_only)


EXTRAS: tuple[Ingredient[TreeDraft], ...] = (
    Ingredient(clients.draw_requests, 2),
    Ingredient(clients.draw_late_readers, 4),
    Ingredient(clients.draw_client_crashes, 8),
    Ingredient(draw_liars, 3, _may_corrupt),
    Ingredient(draw_restarts, 5, _may_corrupt),
    Ingredient(world.draw_amnesia, 8, _may_corrupt),
    Ingredient(draw_lying_uplinks, 6),
    Ingredient(draw_cut_off, 5),
    Ingredient(draw_rolling, 8),
    Ingredient(world.draw_cuts, 8),
    Ingredient(world.draw_pauses, 8),
)


# ------------------------------------------------------------------------ the draw


def withstands(adversary: str, policy: Policy) -> bool:
    """Whether a tree whose root has this policy claims to withstand an adversary."""
    entry = entry_of(adversary)
    if adversary == "conspiracy":
        return not policy.trusts_publishers
    if adversary in ("liars", "latecomers", "amnesia"):
        return not policy.crash_only
    if entry is None:
        return True
    if entry.only_under and policy.like not in entry.only_under:
        return False
    if entry.role is Role.PUBLISHER:
        return not policy.trusts_publishers
    return entry.role is not Role.BROKER or entry.benign or not policy.crash_only


@cache
def _roots(kind: str) -> tuple[Policy, ...]:
    """The policies that the root of a kind of tree may have."""
    rules = map(Policy.named, POLICY_NAMES)
    return tuple(policy for policy in rules if policy.total == (kind == "relay-total"))


@cache
def _drawn_names(kind: str) -> tuple[str, ...]:
    """What seeds draw from: one plan in two has an adversary of its own, the others a fault."""
    faults = {
        fault: None
        for policy in _roots(kind)
        for role in (Role.BROKER, Role.PUBLISHER)
        for fault in faults_of(role, policy)
    }
    often = max(1, len(faults) // len(HARMS))
    return (*HARMS, *faults, *(name for name in HARMS for _ in range(often - 1)))


def draw(seed: int, policy: str | None = None, adversary: str | None = None) -> TreePlan:
    """The plan of a seed; `policy` is that of the channels below the root."""
    if policy is not None and policy not in RELAYED_NAMES:
        known = did_you_mean(policy, RELAYED_NAMES)
        raise UsageError(f"there is no tree of the kind {policy!r}; {known}")
    if adversary is not None and adversary not in ADVERSARIES:
        known = did_you_mean(adversary, ADVERSARIES)
        raise UsageError(f"there is no adversary {adversary!r} of a tree; {known}")
    # Generators of their own, so that naming both replays what was drawn with neither named.
    kinds = [kind for kind in RELAYED_NAMES if policy in (None, kind)]
    if adversary is not None:
        kinds = [k for k in kinds if any(withstands(adversary, root) for root in _roots(k))]
    if not kinds:
        raise UsageError(f"no tree of the kind {policy!r} claims to withstand {adversary!r}")
    kind = random.Random(f"tree kind {seed}").choice(kinds)
    harm = adversary or random.Random(f"tree adversary {seed}").choice(_drawn_names(kind))
    roots = [root.name for root in _roots(kind) if withstands(harm, root)]
    draft = _start(seed, random.Random(f"tree root {seed}").choice(roots), harm)
    weather = _draw_weather(draft)
    clients.draw_readers(draft)
    clients.draw_workload(draft)
    if harm in HARMS:
        HARMS[harm](draft)
    else:
        draw_fault(draft, harm)
    if harm != "none":
        add_some(draft, EXTRAS)
    clients.draw_resumptions(draft)
    draft.branches = draw_rows(draft, draft.branches)
    return _plan(draft, weather)


def _start(seed: int, name: str, adversary: str) -> TreeDraft:
    rng = random.Random(f"tree {seed}")
    short = rng.randrange(3) == 0
    journal = adversary == "crash-recover"
    policy = draw_policy(rng, name, short=short, journal=journal)
    branches = tuple(_draw_branch(rng, cell, short) for cell in rng.choice(SHAPES))
    top = broker_names(BROKERS)
    below = [branch.broker_names for branch in branches]
    corruptible = rng.sample(top, F)
    for branch in branches:
        corruptible += rng.sample(branch.broker_names, branch.f)
    draft = TreeDraft(
        seed, rng, adversary, policy, (*top, *(b for names in below for b in names)), corruptible
    )
    draft.branches, draft.short_retention = branches, short
    entry = entry_of(adversary)
    lone = entry is None or entry.role is Role.BROKER
    draft.publishers = PUBLISHERS[: rng.choice((1, 1, 2)) if lone else 2]
    readers = list(SUBSCRIBERS[: rng.randrange(2)])
    for branch in branches:
        is_leaf = not any(other.name[:-1] == branch.name for other in branches)
        readers += branch.readers[: rng.choice((1, 1, 2)) if is_leaf else rng.randrange(2)]
    draft.subscribers = tuple(readers)
    draft.safety_ms = rng.randrange(1200, 2500) if policy.total else rng.randrange(300, 900)
    names = (ORDERS, QUOTES) if rng.randrange(4) == 0 else (ORDERS,)
    draft.channels = tuple(channel_entry(channel, policy) for channel in names)
    return draft


def _draw_branch(rng: random.Random, name: str, short: bool) -> Branch:
    brokers, f = rng.choice(SIZES)
    retained = rng.choice((0, 16, 24, 32)) if short else 0
    journal = rng.randrange(4) == 0
    return Branch(name=name, brokers=brokers, f=f, retained=retained, journal=journal)


def _draw_weather(draft: TreeDraft) -> Weather:
    rng = draft.rng
    rough = rng.randrange(2)
    home = rng.choice((ROOT, *(branch.name for branch in draft.branches)))
    members = [broker for broker in draft.brokers if cell_name_of(broker) == home]
    others = (*draft.clients, *_uplinks(draft))
    return Weather(
        latency_ms=rng.choice((0, 1, 1, 3, 10)),
        jitter_ms=rng.choice((0, 2, 5, 20)),
        loss=rng.choice((0, 10, 50, 150)) * rough,
        duplication=rng.choice((0, 20, 100)) * rough,
        reordering=rng.choice((0, 20, 100)) * rough,
        links=draw_links(
            random.Random(f"tree links {draft.seed}"),
            members,
            [client for client in others if cell_name_of(client) == home],
            draft.safety_ms,
        ),
    )


def _plan(draft: TreeDraft, weather: Weather) -> TreePlan:
    rng = draft.rng
    slowest_ms = max((link.latency_ms for link in weather.links), default=0)
    levels = max(len(branch.name) for branch in draft.branches)
    return TreePlan(
        seed=draft.seed,
        policy=draft.policy,
        brokers=BROKERS,
        f=F,
        branches=draft.branches,
        weather=weather,
        publishers=draft.publishers,
        subscribers=draft.subscribers,
        channels=draft.channels,
        acts=tuple(sorted(draft.acts, key=lambda act: act.at_ms)),
        corruptions=tuple(draft.corruptions),
        doomed=tuple(dict.fromkeys(draft.doomed)),
        calm_at_ms=draft.safety_ms,
        patience_ms=PATIENCE_MS + PATIENCE_PER_LEVEL_MS * levels + PATIENCE_PER_MS * slowest_ms,
        sync_ms=rng.choice((0, 2, 5, 20)),
        coalesce_ms=rng.choice((0, 0, 1, 3)),
        finale=rng.choice((1, 3)),
        adversary=draft.adversary,
        resuming=draft.resuming,
        predicates=draft.predicates,
        max_steps=6 * MAX_STEPS,
    )
