"""The plan of a benchmark run, and its report.

A plan's fault is committed by f brokers, the first of them the one that sends contents to the first
subscriber, so that the fault costs most; or, if it is a client's fault, by one *extra client*.
What an extra client publishes and accepts is not counted: a faulty client is promised nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import msgspec

from quorumcast.bench.events import check_size
from quorumcast.cell.subscribing.fetching import first_source
from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import largest_f
from quorumcast.crypto.digest import REPRODUCTION_HASHERS, hasher
from quorumcast.crypto.mac import REPRODUCTION_MACS, mac_factory
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy, like_of
from quorumcast.manifest.trees import full_tree
from quorumcast.runtime.digests import choose_digest
from quorumcast.runtime.links.wan import LinkDelays, WanPlan
from quorumcast.traces.form import ProcessUse

#: Faults beside the catalogue: kill -9 of f brokers after a third of the run, for good or with a
#: restart soon after.
CRASH, CRASH_RECOVER = "crash", "crash-recover"
CRASHES = (CRASH, CRASH_RECOVER)
#: `--fault lie` is the first of LIES that the policy withstands (FIT-Broker §5.2.3 and §5.3).
LIE = "lie"
LIES = ("lie-in-ordering", "lie-to-subscribers", "alter")
#: With these faults of a broker, publishers skip another broker besides (Freeman §7.3.4).
WITH_SKIPPING = ("drop", "alter")
SKIP = "skip-broker"
#: Targets of faults that would otherwise draw one: what costs a subscriber most.
FAULT_TARGETS = {"drop-kind": ("Vote",), "censor-node": ("subscriber-1",)}

#: Where there are flooders: a channel with a column, for floods of predicates.
FLOOD_ROWS, FLOOD_COLUMN = "rows", "price"

#: Default window: publications that a publisher has posted and not all subscribers accepted.
WINDOW = 512
#: The same in events, where the client packs events into publications by itself.
NATURAL_WINDOW = 16_384
#: Bytes in the windows of all publishers, at most: what processor caches do not hold measures the
#: memory of the machine.
IN_FLIGHT_BYTES = 16 * 1024 * 1024
#: Both are so many times as large where subscribers poll: what waits for a poll is in the window.
POLLED = 4
#: Default of `stall_timeout` where the policy promises delivery (the machine may be busy), and
#: where it does not.
PROMISED_S, UNPROMISED_S = 60.0, 4.0
#: What may be said of a link, and the field of its delays.
LINK_VALUES = {"latency": "latency_ms", "jitter": "jitter_ms", "loss": "loss_percent"}
#: The largest percentage of packets that are lost.
MOST_LOSS = 50
#: Bytes of settled publications that a broker retains at most, and of others besides.
RETAINED_BYTES = 1024 * 1024 * 1024
#: Suspicions: for each suspect, how often each reason was given.
Suspicions = dict[str, dict[str, int]]


def lie_of(policy: str) -> str:
    """The fault that `--fault lie` means for a policy; empty if it tolerates only crashes."""
    if Policy.named(policy).crash_only:
        return ""
    return next((lie for lie in LIES if like_of(policy) in CATALOGUE[lie].valid_under), "")


def parse_link(text: str, every: LinkDelays) -> tuple[str, LinkDelays]:
    """A link as "NAME:NAME", and its delays; those that are not named are those of every link."""
    link, _, values = text.partition("=")
    named = [value.rpartition("=") for value in values.split(",")]
    found = {LINK_VALUES.get(name or "latency", ""): number for name, _, number in named}
    is_clear = "" not in found and len(found) == len(named) and link.count(":") == 1
    if is_clear and all(one.replace(".", "", 1).isdecimal() for one in found.values()):
        numbers = {field: float(number) for field, number in found.items()}
        delays = msgspec.structs.replace(every, **numbers)
        if _is_possible(delays):
            return link, delays
    raise UsageError(
        f"{text!r} is no link; write --link broker-1:broker-2=40 or, with its own jitter and loss, "
        f"--link broker-1:broker-2=40,jitter=5,loss=1 (milliseconds, and 0 to {MOST_LOSS} percent)"
    )


def _is_possible(delays: LinkDelays) -> bool:
    values = msgspec.structs.astuple(delays)
    return all(0 <= value < math.inf for value in values) and delays.loss_percent <= MOST_LOSS


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the benchmark."""

    policy: str = "ab+history"
    #: Publications between histories, and the most of an adaptive α; None is the usual one.
    alpha: int | None = None
    alpha_max: int = 0
    brokers: int = 4
    f: int | None = None
    #: Cells, each the parent of the next (`bench.tree`): publishers are clients of the first one,
    #: subscribers of the last.
    levels: int = 1
    publishers: int = 1
    subscribers: int = 1
    channels: int = 1
    #: Bytes per event.
    size: int = 56
    #: Events per publication; 0 is natural batching of single `post` calls.
    batch: int = 1
    seconds: float = 5.0
    warmup: float = 1.0
    #: Events that each publisher publishes, without warm-up; 0 publishes for `seconds`.
    events: int = 0
    #: Events per second and publisher; 0 publishes as fast as subscribers accept.
    rate: float = 0.0
    #: Events on a channel that a publisher has posted and not all accepted; 0 is the default.
    window: int = 0
    #: Seconds between two polls of a subscriber; 0 takes what arrives at once.
    poll_every: float = 0.0
    #: A fault of the catalogue, or one of CRASHES.
    fault: str = ""
    #: With CRASH_RECOVER: seconds until the first crash and from each to the next; 0 is one crash.
    crash_every: float = 0.0
    #: The percentage of messages that the fault affects, where it can choose.
    percent: int = 100
    #: Whether publishers skip a broker where WITH_SKIPPING says so.
    skip: bool = True
    #: The role of an honest extra client; if the fault is a client's, there is one anyway.
    extra_client: str = ""
    #: How many clients flood (`bench.flooder`), with which messages, and at how many seats each.
    flooders: int = 0
    flood: str = ""
    flood_seats: int = 1
    #: The one-way delay of every link in milliseconds, its jitter, and the percentage of packets
    #: that are lost (`runtime.links.wan`); and those of single links, as "NAME:NAME=80,jitter=5".
    latency: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    links: tuple[str, ...] = ()
    digest: str = "auto"
    #: A broken digest or MAC makes the run's cell one for reproducing figures.
    mac: str = "blake2b"
    tls: bool = False
    #: Whether brokers write what they vote for to disk first; with total order, contents too.
    durable: bool = False
    trace: str = ""
    #: Directory for the observations of all nodes; each run makes its own directory in it.
    observe: str = ""
    #: Seconds without progress after which missing events count as lost; 0 is the default.
    stall_timeout: float = 0.0

    def check(self) -> None:
        """Raise UsageError if this cannot be measured."""
        check_size(self.size)
        for name in ("brokers", "publishers", "subscribers", "channels"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be 1 or more")
        if min(self.batch, self.rate, self.window, self.events) < 0:
            raise UsageError("--batch, --rate, --window and --events must be 0 or more")
        if self.poll_every < 0 or self.crash_every < 0:
            raise UsageError("--poll-every and --crash-every must be 0 or more")
        if self.crash_every and (self.fault != CRASH_RECOVER or self.crash_every >= self.seconds):
            raise UsageError(
                f"--crash-every is for --fault {CRASH_RECOVER}, and less than --seconds"
            )
        if self.seconds <= 0 or self.warmup < 0:
            raise UsageError("--seconds must be more than 0 and --warmup 0 or more")
        if not 1 <= self.percent <= 100:
            raise UsageError("--percent is 1 to 100")
        if self.percent < 100 and self.fault not in CATALOGUE:
            raise UsageError("--percent is for a fault of 'quorumcast faults list'; name it")
        self.wan()
        self.channel_policy()
        hasher(choose_digest(self.digest), reproduction=True)
        mac_factory(self.mac, reproduction=True)
        if self.fault and self.fault not in CRASHES and self.fault not in CATALOGUE:
            known = (*CRASHES, LIE, *CATALOGUE)
            raise UsageError(f"there is no fault {self.fault!r}; {did_you_mean(self.fault, known)}")

    def channel_policy(self) -> Policy:
        """The policy of every channel of the run."""
        usual = Limits()
        window = max(usual.window, 2 * max(self.alpha or 0, self.alpha_max))
        limits = Limits(
            # Retention counts per publisher and channel, and all brokers are on one machine.
            retained_bytes=min(usual.retained_bytes, RETAINED_BYTES // self.counted_lanes),
            window=window,
            vote_window=max(usual.vote_window, window),
            retained_publications=max(usual.retained_publications, window),
        )
        return Policy.named(
            self.policy, self.alpha, self.alpha_max, journal=self.durable, limits=limits
        )

    def algorithms(self) -> dict[str, Any]:
        """The fields of the manifest about algorithms."""
        digest = choose_digest(self.digest)
        broken = digest in REPRODUCTION_HASHERS or self.mac in REPRODUCTION_MACS
        return {"digest": digest, "mac": self.mac, "reproduction": broken or msgspec.UNSET}

    def wan(self) -> WanPlan | None:
        """The delays of all links; None for links without any."""
        every = LinkDelays(latency_ms=self.latency, jitter_ms=self.jitter, loss_percent=self.loss)
        if not _is_possible(every):
            raise UsageError(
                f"--latency and --jitter must be 0 or more, and --loss from 0 to {MOST_LOSS}"
            )
        links: dict[str, LinkDelays] = {}
        for text in self.links:
            link, delays = parse_link(text, every)
            if link in links:
                raise UsageError(f"--link names {link} twice; give it all its delays at once")
            links[link] = delays
        return WanPlan(every=every, links=links) if self.weather else None

    @property
    def weather(self) -> str:
        """The delays of links, for people; empty for links without any."""
        parts = (
            f"{self.latency:g} ms" if self.latency else "",
            f"jitter {self.jitter:g} ms" if self.jitter else "",
            f"loss {self.loss:g} %" if self.loss else "",
            *self.links,
        )
        return ", ".join(part for part in parts if part)

    def tolerated(self) -> int:
        """f: as given, or the largest that this policy tolerates with so many brokers."""
        if self.f is not None:
            return self.f
        policy = self.channel_policy()
        return largest_f(policy.protection, self.brokers, policy.broadcast)

    def cell_parameters(self) -> dict[str, Any]:
        """The fields that the report and the header of a trace copy."""
        names = ("policy", "brokers", "publishers", "subscribers", "channels", "size", "batch")
        copied = {name: getattr(self, name) for name in names}
        policy = self.channel_policy()
        alpha = {"alpha": policy.alpha, "alpha_max": policy.alpha_max}
        return copied | alpha | {"f": self.tolerated()}

    def events_under_way(self) -> int:
        """The window in events."""
        if self.window:
            return self.window
        usual = self.batch * WINDOW if self.batch else NATURAL_WINDOW
        share = IN_FLIGHT_BYTES // (self.size * self.counted_lanes)
        polled = POLLED if self.poll_every else 1
        return max(polled * min(usual, share), 4 * self.batch, 1)

    @property
    def stall_timeout_s(self) -> float:
        """Seconds without progress after which missing events count as lost."""
        return self.stall_timeout or (PROMISED_S if self.promises_delivery() else UNPROMISED_S)

    def promises_delivery(self) -> bool:
        """Whether the policy promises that all events arrive in spite of the fault."""
        if not self.fault:
            return True
        policy = self.channel_policy()
        if self.fault in CRASHES:
            return policy.live
        if self.skips and policy.may_split and not policy.has_history:
            return False
        return like_of(self.policy) in CATALOGUE[self.fault].valid_under

    def events_on(self, channel: int) -> int:
        """Of the events of a publisher, those on one channel; 0 if there is no fixed number."""
        return (self.events + self.channels - 1 - channel) // self.channels if self.events else 0

    # --------------------------------------------------------------- processes

    def cells(self) -> tuple[str, ...]:
        """The directories of the cells, parents first, below that of the run."""
        return tuple(full_tree(self.levels, 1)) if self.levels > 1 else ("",)

    def cell_of(self, role: str) -> str:
        """The directory of the cell to which clients of this role belong."""
        return self.cells()[-1 if role == "subscriber" else 0]

    def channel_name(self, index: int) -> str:
        """The name of a channel."""
        return f"bench-{index + 1}"

    def cell_channels(self) -> dict[str, Policy | ChannelEntry]:
        """All channels of the cell."""
        policy = self.channel_policy()
        found: dict[str, Policy | ChannelEntry] = {
            self.channel_name(i): policy for i in range(self.channels)
        }
        if self.flooders:
            schema = ((FLOOD_COLUMN, "int64"),)
            found[FLOOD_ROWS] = ChannelEntry(
                Channel(FLOOD_ROWS), Policy.named("ab+history"), schema=schema
            )
        return found

    def lane(self, publisher: int, channel: int) -> int:
        """The number of a lane: one publisher's events on one channel; the extra client's last."""
        return publisher * self.channels + channel

    @property
    def counted_lanes(self) -> int:
        """Lanes of correct publishers."""
        return self.publishers * self.channels

    @property
    def lanes(self) -> int:
        """Lanes in all."""
        return self.lane(self.publishers + (self.extra_client_role == Role.PUBLISHER.value), 0)

    @property
    def extra_client_role(self) -> str:
        """The role of the extra client; empty if there is none."""
        entry = CATALOGUE.get(self.fault)
        if entry is None or entry.role is Role.BROKER:
            return self.extra_client
        return str(entry.role.value)

    def workers(self) -> list[tuple[str, int]]:
        """Role and index of every client process; the extra client and flooders come last."""
        counts = {"publisher": self.publishers, "subscriber": self.subscribers}
        found = [(role, index) for role, count in counts.items() for index in range(count)]
        if self.extra_client_role in counts:
            found.append((self.extra_client_role, counts[self.extra_client_role]))
        return found + [("flooder", index) for index in range(self.flooders)]

    def name_of(self, role: str, index: int) -> str:
        """The name of a client."""
        return f"{role}-{index + 1}"

    def is_extra(self, role: str, index: int) -> bool:
        """Whether a process is the extra client."""
        return index >= (self.publishers if role == "publisher" else self.subscribers)

    @property
    def skips(self) -> bool:
        """Whether publishers skip some brokers."""
        return self.skip and self.fault in WITH_SKIPPING

    @property
    def fault_label(self) -> str:
        """The fault as headers of traces name it."""
        share = f" at {self.percent} %" if self.percent < 100 else ""
        return f"{self.fault}{share}{' and skipping' if self.skips else ''}"

    def faulty_brokers(self, brokers: list[str]) -> list[str]:
        """The brokers that misbehave or are killed: f of them, and at least one."""
        entry = CATALOGUE.get(self.fault)
        if not self.fault or (entry is not None and entry.role is not Role.BROKER):
            return []
        return self._from_source_on(brokers)[: max(self.tolerated(), 1)]

    def skipped_brokers(self, brokers: list[str]) -> list[str]:
        """The brokers that publishers skip."""
        count = max(self.tolerated(), 1)
        return self._from_source_on(brokers)[count : 2 * count] if self.skips else []

    def fault_targets(self, brokers: list[str]) -> list[str]:
        """The targets of the brokers' fault; empty if the fault draws its own."""
        if not self.skips:
            return list(FAULT_TARGETS.get(self.fault, ()))
        # Freeman's altering broker changes contents, and lies to the skipped brokers as well.
        return self.skipped_brokers(brokers) + ["contents"] * (self.fault == "alter")

    def _from_source_on(self, brokers: list[str]) -> list[str]:
        """The brokers, starting with the one that sends contents to the first subscriber."""
        names = [NodeId(broker) for broker in brokers]
        start = names.index(first_source(NodeId(self.name_of("subscriber", 0)), names))
        return brokers[start:] + brokers[:start]


class ClientResult(msgspec.Struct, kw_only=True):
    """What a process with one or more clients found; written when it ends."""

    duplicated: int = 0
    altered: int = 0
    disordered: int = 0
    gaps: int = 0
    by_history: int = 0
    evidence: int = 0
    suspicions: Suspicions = msgspec.field(default_factory=dict)
    #: Sampled latencies in nanoseconds, after the warm-up.
    latencies_ns: list[int] = msgspec.field(default_factory=list)
    #: Why the process gave up; empty if it did not.
    failure: str = ""


class WorkerResult(ClientResult, kw_only=True):
    """What a publisher or subscriber process found."""

    role: str
    name: str
    accepted: int = 0


class LatencySample(msgspec.Struct, frozen=True):
    """From `post` to acceptance, in milliseconds; None where nothing was accepted."""

    p50: float | None = None
    p99: float | None = None
    mean: float | None = None
    deviation: float | None = None
    p90: float | None = None
    p999: float | None = None
    most: float | None = None


class BenchReport(msgspec.Struct, kw_only=True):
    """What a run measured. Rates and processor time are those between WARM and STOP."""

    policy: str
    alpha: int
    #: The upper end of an adaptive α; 0 for a fixed α.
    alpha_max: int
    brokers: int
    f: int
    publishers: int
    subscribers: int
    channels: int
    size: int
    batch: int
    fault: str
    #: The percentage of messages that the fault affected.
    percent: int
    seconds: float
    publications_per_s: float
    events_per_s: float
    latency_ms: LatencySample
    #: Processor time of all processes per event accepted by a subscriber.
    cpu_us_per_event: float | None
    cpu_us_per_event_by_role: dict[str, float]
    #: Processor time and memory of each process, by node.
    processes: dict[str, ProcessUse] = {}
    published: int
    #: Events accepted by the subscriber that accepted least.
    delivered: int
    #: The share of deliveries: every event that was posted is due to every subscriber.
    coverage: float | None = None
    lost: int
    duplicated: int
    altered: int
    disordered: int
    #: Publications that came by history and not by the fast path.
    by_history: int
    suspicions: Suspicions
    evidence: int
    #: Suspicions of correct nodes, by reason.
    correct_suspected: dict[str, int] = msgspec.field(default_factory=dict)
    trace: str = ""
    observe: str = ""
    #: The delays that were put into the links.
    weather: str = ""

    def sound(self, plan: BenchPlan) -> bool:
        """Whether the cell kept what it promises under this plan.

        Without a fault, nobody is to be suspected.
        """
        wrong = self.duplicated or self.altered or self.disordered
        calm = bool(plan.fault) or not self.correct_suspected
        return not wrong and calm and (self.lost == 0 or not plan.promises_delivery())


def totals(reports: Iterable[object], *counters: str) -> dict[str, Any]:
    """The sum of each of these counters over several reports or results."""
    found = list(reports)
    return {name: sum(getattr(report, name) for report in found) for name in counters}


def median_latency(reports: Iterable[BenchReport]) -> float | None:
    """The median of several runs' median latencies."""
    found = [report.latency_ms.p50 for report in reports if report.latency_ms.p50 is not None]
    return median(found) if found else None


def suspicions_of_correct(suspicions: Suspicions, faulty: Iterable[str]) -> dict[str, int]:
    """How often each reason was given for suspecting a node that is not faulty."""
    liars = frozenset(faulty)
    wrong = [reasons for suspect, reasons in suspicions.items() if suspect not in liars]
    return dict(sum(map(Counter, wrong), Counter[str]()))


def merge_suspicions(parts: Iterable[Mapping[Any, Mapping[str, int]]]) -> Suspicions:
    """Suspicions of several nodes or runs, added up."""
    total: dict[str, Counter[str]] = {}
    for suspicions in parts:
        for suspect, reasons in suspicions.items():
            total.setdefault(suspect, Counter()).update(reasons)
    return {suspect: dict(reasons) for suspect, reasons in total.items()}
