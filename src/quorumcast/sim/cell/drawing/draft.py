"""A scenario while it is drawn: its cell, and the acts and faults so far.

Each ingredient of a scenario adds to a `Draft`. The fault model is enforced in one place: only the
f brokers in `corruptible` may become faulty. So any number of ingredients can be combined.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import Protection
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry
from quorumcast.manifest.policy import POLICY_NAMES, Policy, like_of
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.harm import ADVERSARIES, BY_NAME, JOURNALED, LONG, applicable, entry_of
from quorumcast.sim.cell.plan import small_limits
from quorumcast.sim.kernel.plan import Act, Corruption

ORDERS, QUOTES = Channel("orders"), Channel("quotes")


class Draft(msgspec.Struct):
    """The parts of a plan that have been drawn."""

    seed: int
    rng: random.Random
    adversary: str
    policy: Policy
    brokers: tuple[NodeId, ...]
    #: The f brokers that may be faulty.
    corruptible: list[NodeId]
    publishers: tuple[NodeId, ...] = ()
    subscribers: tuple[NodeId, ...] = ()
    #: Subscribers that other ingredients leave alone.
    extra_subscribers: tuple[NodeId, ...] = ()
    channels: tuple[ChannelEntry, ...] = ()
    #: Whether the safety phase is long enough for leader changes and log truncation.
    long: bool = False
    #: Whether brokers retain little, so that streams outgrow it many times.
    short_retention: bool = False
    safety_ms: int = 0
    acts: list[Act] = []
    corruptions: list[Corruption] = []
    doomed: list[tuple[NodeId, str]] = []
    gaps_allowed: bool = False
    newcomers: int = 0
    #: Publishers that resume their streams after a crash.
    resuming: tuple[NodeId, ...] = ()
    #: What subscribers may ask for; acts `select` name these by their places from 1 on.
    predicates: tuple[tuple[str, ...], ...] = ()

    @property
    def f(self) -> int:
        """The number of brokers that may be faulty."""
        return len(self.corruptible)

    @property
    def clients(self) -> tuple[NodeId, ...]:
        """All publishers and subscribers."""
        return (*self.publishers, *self.subscribers)

    @property
    def correct(self) -> list[NodeId]:
        """Brokers that are never faulty."""
        return [name for name in self.brokers if name not in self.corruptible]

    @property
    def corrupted(self) -> list[NodeId]:
        """Nodes that have a fault so far."""
        return [corruption.node for corruption in self.corruptions]

    def random_time(self, first_ms: int = 0) -> int:
        """A random time in the safety phase."""
        return self.rng.randrange(min(first_ms, self.safety_ms - 1), self.safety_ms)

    def act(
        self,
        at_ms: int,
        what: str,
        node: NodeId = NodeId(""),  # noqa: B008  (a plain string)
        channel: Channel = Channel(""),  # noqa: B008
        amount: int = 0,
        peers: Sequence[NodeId] = (),
    ) -> None:
        """Add an act."""
        self.acts.append(Act(at_ms, what, node, channel, amount, tuple(peers)))

    def corrupt(
        self,
        node: NodeId,
        fault: str,
        at_ms: int = 0,
        percent: int = 100,
        victims: Sequence[str] = (),
        plot: str = "",
    ) -> None:
        """Add a fault of a node."""
        self.corruptions.append(Corruption(node, fault, at_ms, percent, tuple(victims), plot))

    def writable(self, publisher: NodeId) -> list[Channel]:
        """Channels that a publisher may publish on."""
        return [c.name for c in self.channels if {EVERYONE, publisher} & {*c.publishers}]

    def readable(self, subscriber: NodeId) -> list[Channel]:
        """Channels that a subscriber may read."""
        return [c.name for c in self.channels if {EVERYONE, subscriber} & {*c.subscribers}]


# ------------------------------------------------------------ the cell of a scenario

#: Numbers of brokers and f to draw from.
SIZES = {
    Protection.CRASH: ((2, 1), (2, 1), (3, 2), (3, 1)),
    Protection.TRUSTED: ((3, 1), (3, 1), (5, 2), (4, 1)),
    Protection.BYZANTINE: ((4, 1), (4, 1), (4, 1), (7, 2), (5, 1)),
}


@cache
def _pairs(policy: str | None, adversary: str | None) -> tuple[tuple[str, str], ...]:
    """Every policy with each adversary that it claims to withstand; None stands for all."""
    return tuple(
        (rules.name, a)
        for rules in map(Policy.named, POLICY_NAMES if policy is None else (policy,))
        for a in (ADVERSARIES if adversary is None else (adversary,))
        if applicable(a, rules) and (a == adversary or a not in BY_NAME)
    )


def start_draft(seed: int, policy: str | None, adversary: str | None) -> Draft:
    """Draw the cell, its clients and the length of the safety phase."""
    rng = random.Random(f"scenario {seed}")
    pairs = _pairs(policy, adversary)
    if not pairs:
        raise UsageError(f"policy {policy!r} does not claim to withstand {adversary!r}")
    # A generator of its own, so that naming both replays what was drawn with neither named.
    policy_name, adversary = random.Random(f"pair {seed}").choice(pairs)
    short = adversary != "members" and rng.randrange(3) == 0
    rules = draw_policy(rng, policy_name, short=short, journal=adversary in JOURNALED)
    sizes = SIZES[rules.protection]
    if rules.total and rules.crash_only:
        sizes = SIZES[Protection.TRUSTED]  # 2f+1, since a majority must be left
    count, f = rng.choice(sizes)
    brokers = broker_names(count)
    draft = Draft(seed, rng, adversary, rules, brokers, rng.sample(brokers, f))
    draft.short_retention = short
    entry = entry_of(adversary)
    # If a client is faulty, there must be a correct one beside it.
    correct = entry is None or entry.role is Role.BROKER
    draft.publishers = PUBLISHERS[: rng.choice((1, 1, 2, 2, 3) if correct else (1, 2, 2, 3))]
    draft.subscribers = SUBSCRIBERS[: rng.choice((1, 2, 2, 3) if correct else (2, 2, 3))]
    slow = entry is not None and bool(entry.only_under)
    draft.long = slow or adversary in LONG or (rules.total and rng.randrange(3) == 0)
    draft.safety_ms = rng.randrange(1200, 3000) if draft.long else rng.randrange(250, 700)
    _draw_channels(draft)
    return draft


def draw_policy(rng: random.Random, name: str, *, short: bool, journal: bool) -> Policy:
    """A policy with drawn α and limits, which are so small that streams reach them."""
    alpha = rng.choice((2, 4, 8) if short else (4, 4, 8, 16, 32))
    limits = _short_limits(rng) if short else small_limits()
    most = min(limits.window, limits.retained_publications // 2)
    adaptive = like_of(name).endswith("history") and 2 * alpha <= most and rng.randrange(3) == 0
    return Policy.named(
        name,
        alpha=alpha,
        alpha_max=2 * alpha if adaptive else 0,
        journal=journal or rng.randrange(4) == 0,
        limits=limits,
    )


def _short_limits(rng: random.Random) -> Limits:
    """Limits so small that every stream outgrows retention, and every window fills soon."""
    window = rng.choice((8, 16))
    return Limits(
        retained_publications=rng.choice((16, 24, 32)),
        cached_bytes=256,
        window=window,
        publisher_buffer=1024,
        vote_window=rng.choice((window, 2 * window, 64)),
        segment=rng.choice((4, 8)),
        kept_segments=4,
        replay=rng.choice((8, 16)),
        pipeline=rng.choice((1, 2, 3)),
        checkpoint=rng.choice((2, 4, 6)),
    )


def _draw_channels(draft: Draft) -> None:
    orders = channel_entry(ORDERS, draft.policy)
    draft.channels = (orders,)
    if draft.rng.randrange(2) == 0:
        # The last publisher and the last subscriber have no right to the second channel.
        few = (
            draft.publishers[:-1] or draft.publishers,
            draft.subscribers[:-1] or draft.subscribers,
        )
        draft.channels = (orders, channel_entry(QUOTES, draft.policy, *few))
