"""What is to be measured, and what came out.

Who misbehaves: f brokers, the first of them the one from which the first subscriber gets its
contents, so that a lie hurts most; or, where the fault is a client's, one more client, the *guest*.
Its events and what it accepts are not counted: nothing is promised to a liar.
"""

from __future__ import annotations

import msgspec

from quorumcast.bench.events import check_size
from quorumcast.cell.subscribing.fetching import first_source
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import largest_f
from quorumcast.crypto.digest import hasher
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.digests import choose_digest

#: What becomes of processes, beside the catalogue: kill -9 of f brokers after a third of the run,
#: for good or until a moment later.
CRASH, CRASH_RECOVER = "crash", "crash-recover"
CRASHES = (CRASH, CRASH_RECOVER)
#: `--fault lie`: what a lying broker does, in order of preference; the first that a policy
#: withstands (FIT-Broker §5.2.3 and §5.3).
LIE = "lie"
LIES = ("lie-in-ordering", "lie-to-subscribers", "alter")
#: With these the publishers skip another broker, as in Freeman §7.3.4.
WITH_SKIPPING = ("drop", "alter")
SKIP = "skip-broker"
#: Whom or what these aim at, where the catalogue would draw: what hurts a subscriber most.
AIMS = {"drop-kind": ("Vote",), "censor-node": ("subscriber-1",)}

#: Un-accepted publications that a publisher keeps under way, unless told otherwise.
WINDOW = 512
#: … and events, where the client packs them into publications by itself.
NATURAL_WINDOW = 32_768
#: Seconds without progress after which what has not come is lost, unless told otherwise.
PROMISED_S, UNPROMISED_S = 60.0, 4.0


def lie_of(policy: str) -> str:
    """The lie that is told of this policy's brokers; none where only crashes are feared."""
    if Policy.named(policy).crash_only:
        return ""
    return next((lie for lie in LIES if policy in CATALOGUE[lie].valid_under), "")


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the benchmark."""

    policy: str = "ab+history"
    alpha: int = 100
    brokers: int = 4
    f: int | None = None
    publishers: int = 1
    subscribers: int = 1
    channels: int = 1
    #: Bytes per event.
    size: int = 56
    #: Events per publication; 0 is natural batching of single `post` calls.
    batch: int = 1
    seconds: float = 5.0
    warmup: float = 1.0
    #: Events per second and publisher; 0 publishes as fast as subscribers accept.
    rate: float = 0.0
    #: Events that a publisher keeps un-accepted on a channel; 0 chooses.
    window: int = 0
    #: What goes wrong, by the catalogue's name, or one of CRASHES.
    fault: str = ""
    #: Whether publishers skip a broker where WITH_SKIPPING says so.
    skip: bool = True
    #: The role of one more client that is not counted; where the fault is a client's, its role.
    guest: str = ""
    #: How many clients flood (`bench.flooder`), with what, and at how many seats each.
    flooders: int = 0
    flood: str = ""
    flood_seats: int = 1
    digest: str = "auto"
    tls: bool = False
    #: Whether brokers have on disk what they vouch for; with total order, the publications too.
    durable: bool = False
    trace: str = ""
    #: Where everybody notes what others do, in a directory of each run's own.
    observe: str = ""
    #: Without progress for so long after the end, what has not come is lost; 0 chooses.
    patience: float = 0.0

    def check(self) -> None:
        """Refuse what cannot be measured, in a sentence."""
        check_size(self.size)
        for name in ("brokers", "publishers", "subscribers", "channels"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be 1 or more")
        if self.batch < 0 or self.rate < 0 or self.window < 0:
            raise UsageError("--batch, --rate and --window must be 0 or more")
        if self.seconds <= 0 or self.warmup < 0:
            raise UsageError("--seconds must be more than 0 and --warmup 0 or more")
        self.channel_policy()
        hasher(choose_digest(self.digest))
        if self.fault and self.fault not in CRASHES and self.fault not in CATALOGUE:
            known = ", ".join((*CRASHES, LIE, *CATALOGUE))
            raise UsageError(f"there is no fault {self.fault!r}; choose one of {known}")

    def channel_policy(self) -> Policy:
        """The policy of every channel of the run."""
        usual = Limits()
        window = max(usual.window, 2 * self.alpha)
        limits = Limits(
            window=window,
            vote_window=max(usual.vote_window, window),
            retained_publications=max(usual.retained_publications, window),
        )
        return Policy.named(self.policy, alpha=self.alpha, journal=self.durable, limits=limits)

    def tolerated(self) -> int:
        """f: as given, or the most that this policy tolerates with so many brokers."""
        if self.f is not None:
            return self.f
        policy = self.channel_policy()
        return largest_f(policy.protection, self.brokers, policy.broadcast)

    def events_under_way(self) -> int:
        """The window in events."""
        if self.window:
            return self.window
        return self.batch * WINDOW if self.batch else NATURAL_WINDOW

    @property
    def patience_s(self) -> float:
        """How long to wait for what may come: longer for what is promised on a busy machine."""
        return self.patience or (PROMISED_S if self.promises_delivery() else UNPROMISED_S)

    def promises_delivery(self) -> bool:
        """Whether the policy promises that everything arrives although this goes wrong."""
        if not self.fault:
            return True
        policy = self.channel_policy()
        if self.fault in CRASHES:
            return policy.live
        if self.skips and policy.may_split and not policy.has_history:
            return False
        return self.policy in CATALOGUE[self.fault].valid_under

    # ------------------------------------------------------------- who is who

    def channel_name(self, index: int) -> str:
        """A channel of the run."""
        return f"bench-{index + 1}"

    def lane(self, publisher: int, channel: int) -> int:
        """Every publisher has a lane of its own on every channel; a guest's come last."""
        return publisher * self.channels + channel

    @property
    def counted_lanes(self) -> int:
        """Lanes of correct publishers."""
        return self.publishers * self.channels

    @property
    def lanes(self) -> int:
        """Lanes in all."""
        return self.lane(self.publishers + (self.guest_role == Role.PUBLISHER.value), 0)

    @property
    def guest_role(self) -> str:
        """The role of one more client, if there is one."""
        entry = CATALOGUE.get(self.fault)
        if entry is None or entry.role is Role.BROKER:
            return self.guest
        return str(entry.role.value)

    def workers(self) -> list[tuple[str, int]]:
        """Role and index of every client process; a guest, and those that flood, come last."""
        found = [("publisher", index) for index in range(self.publishers)]
        found += [("subscriber", index) for index in range(self.subscribers)]
        if self.guest_role == Role.PUBLISHER.value:
            found.append(("publisher", self.publishers))
        elif self.guest_role == Role.SUBSCRIBER.value:
            found.append(("subscriber", self.subscribers))
        return found + [("flooder", index) for index in range(self.flooders)]

    def name_of(self, role: str, index: int) -> str:
        """The client that a process is."""
        return f"{role}-{index + 1}"

    def is_guest(self, role: str, index: int) -> bool:
        """Whether a process is not counted."""
        return index >= (self.publishers if role == "publisher" else self.subscribers)

    @property
    def skips(self) -> bool:
        """Whether publishers leave out some brokers."""
        return self.skip and self.fault in WITH_SKIPPING

    def liars(self, brokers: list[str]) -> list[str]:
        """The brokers that misbehave, or that are killed: as many as are tolerated."""
        entry = CATALOGUE.get(self.fault)
        if not self.fault or (entry is not None and entry.role is not Role.BROKER):
            return []
        return self._from_the_source(brokers)[: self._misbehaving()]

    def skipped(self, brokers: list[str]) -> list[str]:
        """The brokers that publishers leave out."""
        count = self._misbehaving()
        return self._from_the_source(brokers)[count : 2 * count] if self.skips else []

    def aims(self, brokers: list[str]) -> list[str]:
        """Whom or what lying brokers aim at; empty: they choose for themselves."""
        # Freeman's altering broker changes contents, and lies to the skipped brokers as well.
        skipped = [*self.skipped(brokers), *(["contents"] if self.fault == "alter" else [])]
        return skipped if self.skips else list(AIMS.get(self.fault, ()))

    def _misbehaving(self) -> int:
        return max(self.tolerated(), 1)

    def _from_the_source(self, brokers: list[str]) -> list[str]:
        names = [NodeId(broker) for broker in brokers]
        start = names.index(first_source(NodeId(self.name_of("subscriber", 0)), names))
        return brokers[start:] + brokers[:start]


class WorkerResult(msgspec.Struct, kw_only=True):
    """What a publisher or subscriber process has to say at the end."""

    role: str
    name: str
    accepted: int = 0
    duplicated: int = 0
    altered: int = 0
    disordered: int = 0
    gaps: int = 0
    by_history: int = 0
    evidence: int = 0
    suspicions: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    #: Sampled latencies in nanoseconds, after the warm-up.
    latencies_ns: list[int] = msgspec.field(default_factory=list)
    failure: str = ""


class LatencySample(msgspec.Struct, frozen=True):
    """From `post` to acceptance, in milliseconds; None where nothing was accepted."""

    p50: float | None = None
    p99: float | None = None
    mean: float | None = None


class BenchReport(msgspec.Struct, kw_only=True):
    """What a run measured. Rates and processor time are of the time between warm-up and end."""

    policy: str
    alpha: int
    brokers: int
    f: int
    publishers: int
    subscribers: int
    channels: int
    size: int
    batch: int
    fault: str
    seconds: float
    publications_per_s: float
    events_per_s: float
    latency_ms: LatencySample
    #: Processor time of all processes per event accepted by a subscriber.
    cpu_us_per_event: float | None
    cpu_us_per_event_by_role: dict[str, float]
    published: int
    #: Events accepted by the subscriber that accepted least.
    delivered: int
    lost: int
    duplicated: int
    altered: int
    disordered: int
    #: Publications that came by history and not by the fast path.
    by_history: int
    suspicions: dict[str, dict[str, int]]
    evidence: int
    trace: str = ""
    observe: str = ""

    def sound(self, plan: BenchPlan) -> bool:
        """Whether the cell kept what it promises under this plan."""
        if self.duplicated or self.altered or self.disordered:
            return False
        return self.lost == 0 or not plan.promises_delivery()
