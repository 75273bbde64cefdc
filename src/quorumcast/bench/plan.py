"""What is to be measured, and what came out."""

from __future__ import annotations

import msgspec

from quorumcast.bench.events import check_size
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import largest_f
from quorumcast.crypto.digest import hasher
from quorumcast.faults.catalogue import CATALOGUE, names
from quorumcast.faults.contract import Role
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.digests import choose_digest

#: `--fault kill`: kill -9 of f brokers in the middle of the run, and a restart.
KILL = "kill"
#: With these the publishers skip another broker, as in Freeman §7.3.4.
WITH_SKIPPING = ("drop", "alter")
SKIP = "skip-broker"

#: Un-accepted publications that a publisher keeps under way, unless told otherwise.
WINDOW = 512
#: … and events, where the client packs them into publications by itself.
NATURAL_WINDOW = 32_768


class Plan(msgspec.Struct, frozen=True, kw_only=True):
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
    #: A broker's fault by the catalogue's name, or KILL.
    fault: str = ""
    digest: str = "auto"
    tls: bool = False
    trace: str = ""
    #: Without progress for so long after the end, what has not come is lost.
    patience: float = 4.0

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
        if self.fault and self.fault != KILL:
            entry = CATALOGUE.get(self.fault)
            if entry is None or entry.role is not Role.BROKER:
                known = ", ".join((*names(Role.BROKER), KILL))
                raise UsageError(f"brokers have no fault {self.fault!r}; choose one of {known}")

    def channel_policy(self) -> Policy:
        """The policy of every channel of the run."""
        window = max(Limits().window, 2 * self.alpha)
        return Policy.named(self.policy, alpha=self.alpha, limits=Limits(window=window))

    def tolerated(self) -> int:
        """f: as given, or the most that this policy tolerates with so many brokers."""
        if self.f is not None:
            return self.f
        return largest_f(self.channel_policy().protection, self.brokers)

    def events_under_way(self) -> int:
        """The window in events."""
        if self.window:
            return self.window
        return self.batch * WINDOW if self.batch else NATURAL_WINDOW

    def promises_delivery(self) -> bool:
        """Whether the policy promises that everything arrives although this goes wrong."""
        if not self.fault:
            return True
        if self.fault == KILL:
            return self.policy != "chain"
        if self.fault in WITH_SKIPPING and self.policy in ("ab", "chain"):
            return False
        return self.policy in CATALOGUE[self.fault].valid_under

    # ------------------------------------------------------------- who is who

    def publisher_name(self, index: int) -> str:
        """The client that publisher process `index` is."""
        return f"publisher-{index + 1}"

    def subscriber_name(self, index: int) -> str:
        """The client that subscriber process `index` is."""
        return f"subscriber-{index + 1}"

    def channel_name(self, index: int) -> str:
        """A channel of the run."""
        return f"bench-{index + 1}"

    def lane(self, publisher: int, channel: int) -> int:
        """Every publisher has a lane of its own on every channel."""
        return publisher * self.channels + channel

    @property
    def lanes(self) -> int:
        """Lanes in all."""
        return self.publishers * self.channels

    def liars(self, brokers: list[str]) -> list[str]:
        """The brokers that misbehave, or that are killed: as many as are tolerated."""
        return brokers[: max(self.tolerated(), 1)] if self.fault else []

    def skipped(self, brokers: list[str]) -> list[str]:
        """The brokers that publishers leave out."""
        if self.fault not in WITH_SKIPPING:
            return []
        count = max(self.tolerated(), 1)
        return brokers[count : 2 * count]


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


class Latency(msgspec.Struct, frozen=True):
    """From `post` to acceptance, in milliseconds; None where nothing was accepted."""

    p50: float | None = None
    p99: float | None = None
    mean: float | None = None


class Report(msgspec.Struct, kw_only=True):
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
    latency_ms: Latency
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
