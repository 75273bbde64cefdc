"""One scenario in the making: what is settled so far, and what is going to happen.

Every ingredient takes a `Scene` and adds to it. The fault model is kept in one place: `victims` are
the f brokers that may be faulty, and whatever makes a broker faulty chooses among them. So any
number of ingredients fit together.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from quorumcast.core.ids import Channel, NodeId
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import broker_names
from quorumcast.sim.kernel.plan import Act, Corruption

ORDERS, QUOTES = Channel("orders"), Channel("quotes")


class Scene:
    """A plan's parts, as they are drawn."""

    __slots__ = (
        "acts",
        "adversary",
        "brief",
        "bystanders",
        "channels",
        "corruptions",
        "doomed",
        "f",
        "gaps_allowed",
        "long",
        "names",
        "newcomers",
        "policy",
        "publishers",
        "resuming",
        "rng",
        "safety_ms",
        "seed",
        "subscribers",
        "victims",
    )

    def __init__(
        self,
        seed: int,
        rng: random.Random,
        adversary: str,
        policy: Policy,
        brokers: int,
        f: int,
    ) -> None:
        self.seed = seed
        self.rng = rng
        self.adversary = adversary
        self.policy = policy
        self.names = broker_names(brokers)
        self.f = f
        #: The brokers that may be faulty; nothing may make any other broker so.
        self.victims: list[NodeId] = rng.sample(self.names, f)
        self.publishers: tuple[NodeId, ...] = ()
        self.subscribers: tuple[NodeId, ...] = ()
        #: Subscribers to whom nothing else happens.
        self.bystanders: tuple[NodeId, ...] = ()
        self.channels: tuple[ChannelEntry, ...] = ()
        #: Whether it takes long enough for leaders to change and for logs to be forgotten.
        self.long = False
        #: Whether brokers retain little, and streams are many times longer.
        self.brief = False
        self.safety_ms = 0
        self.acts: list[Act] = []
        self.corruptions: list[Corruption] = []
        self.doomed: list[tuple[NodeId, str]] = []
        self.gaps_allowed = False
        self.newcomers = 0
        #: Publishers that go on with their streams when they have crashed.
        self.resuming: tuple[NodeId, ...] = ()

    @property
    def clients(self) -> tuple[NodeId, ...]:
        """All publishers and subscribers."""
        return (*self.publishers, *self.subscribers)

    @property
    def correct(self) -> list[NodeId]:
        """Brokers that are never faulty."""
        return [name for name in self.names if name not in self.victims]

    @property
    def liars(self) -> list[NodeId]:
        """Nodes that misbehave by themselves, as far as this is settled."""
        return [corruption.node for corruption in self.corruptions]

    def moment(self, first_ms: int = 0) -> int:
        """Some time in the safety phase."""
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
        """Let something happen."""
        self.acts.append(Act(at_ms, what, node, channel, amount, tuple(peers)))

    def lie(
        self,
        node: NodeId,
        fault: str,
        at_ms: int = 0,
        percent: int = 100,
        victims: Sequence[str] = (),
        plot: str = "",
    ) -> None:
        """Let a node misbehave."""
        self.corruptions.append(Corruption(node, fault, at_ms, percent, tuple(victims), plot))

    def writable(self, publisher: NodeId) -> list[Channel]:
        """Channels that a publisher may publish on."""
        return [c.name for c in self.channels if {EVERYONE, publisher} & {*c.publishers}]

    def readable(self, subscriber: NodeId) -> list[Channel]:
        """Channels that a subscriber may read."""
        return [c.name for c in self.channels if {EVERYONE, subscriber} & {*c.subscribers}]
