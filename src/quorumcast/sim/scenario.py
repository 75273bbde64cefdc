"""From a seed to a whole configuration: cell, policy, weather, workload and adversary.

Everything is drawn, so that a campaign over many seeds visits combinations that nobody would write
down. `policy` and `adversary` narrow the draw. An adversary is the name of a fault in the
catalogue, or something that the world does: see `WORLD`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.quorum import Protection
from quorumcast.faults.catalogue import CATALOGUE
from quorumcast.faults.contract import Role
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.sim import steps
from quorumcast.sim.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.drawing.links import draw_links
from quorumcast.sim.harm import ACCOMPLICES, JOURNALED, TOTAL_WORLD, WORLD, applicable
from quorumcast.sim.network import Weather
from quorumcast.sim.plan import Act, Corruption, Outcome, Plan, perform, small_limits

#: Every name that `--adversary` takes.
ADVERSARIES = (*WORLD, *CATALOGUE)

#: How much longer promises may take for each millisecond of latency on the slowest link.
PATIENCE_PER_MS = 40

ORDERS, QUOTES = Channel("orders"), Channel("quotes")
SIZES = {
    Protection.CRASH: ((2, 1), (2, 1), (3, 2), (3, 1)),
    Protection.TRUSTED: ((3, 1), (3, 1), (5, 2), (4, 1)),
    Protection.BYZANTINE: ((4, 1), (4, 1), (4, 1), (7, 2), (5, 1)),
}


class Draw:
    """One scenario in the making."""

    def __init__(self, seed: int, policy: str | None, adversary: str | None) -> None:
        self.seed = seed
        self.rng = random.Random(f"scenario {seed}")
        rng = self.rng
        policies = POLICY_NAMES if policy is None else (policy,)
        pairs = [
            (p, a)
            for p in policies
            for a in (ADVERSARIES if adversary is None else (adversary,))
            if applicable(a, p)
        ]
        if not pairs:
            raise UsageError(f"policy {policy!r} does not claim to withstand {adversary!r}")
        # Drawn apart from the rest, so that naming both replays what was drawn with neither named.
        self.policy_name, self.adversary = random.Random(f"pair {seed}").choice(pairs)
        journal = self.adversary in JOURNALED or rng.randrange(4) == 0
        alpha = rng.choice((4, 4, 8, 16, 32))
        self.policy = Policy.named(
            self.policy_name,
            alpha=alpha,
            alpha_max=rng.choice((0, 0, 2 * alpha)) if self.policy_name.endswith("history") else 0,
            journal=journal,
            limits=small_limits(),
        )
        sizes = SIZES[self.policy.protection]
        if self.policy_name == "total-crash":
            sizes = SIZES[Protection.TRUSTED]  # a majority of 2f+1 must be left
        self.brokers, self.f = rng.choice(sizes)
        self.names = broker_names(self.brokers)
        entry = CATALOGUE.get(self.adversary)
        honest = entry is None or entry.role is Role.BROKER
        # Where a client lies there is another one to whom promises are made.
        self.publishers = PUBLISHERS[: rng.choice((1, 1, 2, 2, 3) if honest else (1, 2, 2, 3))]
        self.subscribers = SUBSCRIBERS[: rng.choice((1, 2, 2, 3) if honest else (2, 2, 3))]
        #: Whether it takes long enough for leaders to change and for logs to be forgotten.
        slow = entry is not None and bool(entry.only_under)
        self.long = slow or self.adversary in (*TOTAL_WORLD, "members")
        self.safety_ms = rng.randrange(1200, 3000) if self.long else rng.randrange(250, 700)
        self.acts: list[Act] = []
        self.corruptions: list[Corruption] = []
        self.doomed: list[tuple[NodeId, str]] = []
        self.gaps_allowed = False
        self.newcomers = 0
        self.victims = rng.sample(self.names, self.f)

    def plan(self) -> Plan:
        """Draw the rest."""
        rng = self.rng
        channels = self._channels()
        self._readers(channels)
        self._workload(channels)
        weather = self._weather()
        self._harm()
        # Brokers that forget one after the other need publishers that do not lie meanwhile.
        lies = self.adversary in WORLD and self.adversary != "rolling"
        if lies and not self.corruptions and rng.randrange(3) == 0:
            self._second_adversary()
        resuming = self._resuming()
        return Plan(
            seed=self.seed,
            policy=self.policy,
            brokers=self.brokers,
            f=self.f,
            weather=weather,
            publishers=self.publishers,
            subscribers=self.subscribers,
            channels=channels,
            acts=tuple(sorted(self.acts, key=lambda act: act.at_ms)),
            corruptions=tuple(self.corruptions),
            doomed=tuple(self.doomed),
            calm_at_ms=self.safety_ms,
            patience_ms=(15_000 if self.long or self.adversary == "rolling" else 6000)
            + PATIENCE_PER_MS * max((link.latency_ms for link in weather.links), default=0),
            sync_ms=rng.choice((0, 2, 5, 20)),
            coalesce_ms=rng.choice((0, 0, 1, 3)),
            finale=rng.choice((1, 3)),
            adversary=self.adversary,
            gaps_allowed=self.gaps_allowed,
            newcomers=self.newcomers,
            resuming=resuming,
        )

    def _resuming(self) -> tuple[NodeId, ...]:
        if not self.policy.total:
            return ()
        liars = {corruption.node for corruption in self.corruptions}
        honest = tuple(name for name in self.publishers if name not in liars)
        acts = steps.draw_lives(self.seed, honest, self.safety_ms)
        self.acts += acts or []
        return () if acts is None else honest

    def _channels(self) -> tuple[ChannelEntry, ...]:
        orders = channel_entry(ORDERS, self.policy)
        if self.rng.randrange(3):
            return (orders,)
        # The last publisher and the last subscriber have no right to the second channel.
        few = (self.publishers[:-1] or self.publishers, self.subscribers[:-1] or self.subscribers)
        return (orders, channel_entry(QUOTES, self.policy, *few))

    def _readers(self, channels: tuple[ChannelEntry, ...]) -> None:
        rng = self.rng
        for index, subscriber in enumerate(self.subscribers):
            for channel in channels:
                if EVERYONE not in channel.subscribers and subscriber not in channel.subscribers:
                    continue
                late = index > 0 and rng.randrange(3) == 0
                joins = rng.randrange(self.safety_ms) if late else rng.randrange(20)
                self.acts.append(Act(joins, "join", subscriber, channel.name))
                if index > 0 and rng.randrange(5) == 0:
                    leaves = joins + rng.randrange(50, 300)
                    self.acts.append(Act(leaves, "leave", subscriber, channel.name))
                    if rng.randrange(2):
                        back = leaves + rng.randrange(1, 100)
                        self.acts.append(Act(back, "join", subscriber, channel.name))

    def _workload(self, channels: tuple[ChannelEntry, ...]) -> None:
        rng = self.rng
        start = rng.choice((0, 60, 60))
        for publisher in self.publishers:
            for channel in channels:
                if EVERYONE not in channel.publishers and publisher not in channel.publishers:
                    continue
                for _ in range(rng.randrange(15, 50) if self.long else rng.randrange(4, 16)):
                    at = start + rng.randrange(max(1, self.safety_ms - start))
                    amount = rng.choice((1, 1, 1, 2, 3, 8))
                    self.acts.append(Act(at, "submit", publisher, channel.name, amount))

    def _weather(self) -> Weather:
        rng = self.rng
        wire = self.adversary == "wire"
        rough = rng.randrange(2)
        return Weather(
            latency_ms=rng.choice((0, 1, 1, 3, 10)),
            jitter_ms=rng.choice((0, 2, 5, 20)),
            loss=rng.choice((0, 10, 50, 150)) * rough,
            duplication=rng.choice((0, 20, 100)) * rough + 100 * wire,
            reordering=rng.choice((0, 20, 100)) * rough + 50 * wire,
            corruption=100 * wire,
            replay=100 * wire,
            reflected=self._reflected() if wire else (),
            # Drawn apart from the rest.
            links=draw_links(
                random.Random(f"links {self.seed}"),
                self.names,
                (*self.publishers, *self.subscribers),
                self.safety_ms,
            ),
        )

    def _reflected(self) -> tuple[tuple[NodeId, NodeId], ...]:
        pairs = [(one, other) for one in self.names for other in self.names if one != other]
        return tuple(self.rng.sample(pairs, self.rng.randrange(len(pairs))))

    # ------------------------------------------------------------- harm

    def _harm(self) -> None:
        entry = CATALOGUE.get(self.adversary)
        if entry is not None:
            self._corrupt(self.adversary)
            return
        match self.adversary:
            case "blackout":
                self._black_out()
            case "pause":
                for _ in range(self.rng.randrange(1, 4)):
                    self._pause(self.rng.sample(self.names, self.rng.randrange(1, self.brokers)))
            case "wiped":
                self._wipe()
            case "members":
                self._change_members()
            case "crash":
                for victim in self.victims:
                    self.doomed.append((victim, "crash"))
                    self.acts.append(Act(self.rng.randrange(self.safety_ms), "stop", victim))
            case "rolling":
                self._roll()
            case "latecomers":
                self._come_late()
            case "crash-recover":
                self._crash_recover()
            case "amnesia":
                for victim in self.victims:
                    self.doomed.append((victim, "amnesia"))
                    at = self.rng.randrange(self.safety_ms)
                    self.acts.append(Act(at, "wipe", victim))
                    self.acts.append(Act(at + self.rng.randrange(1, 100), "restart", victim))
            case "twin":
                everyone = (*self.names, *self.publishers, *self.subscribers)
                for victim in self.victims:
                    self.doomed.append((victim, "twin"))
                    peers = tuple(p for p in everyone if p != victim and self.rng.randrange(2))
                    at = self.rng.choice((0, self.rng.randrange(self.safety_ms)))
                    self.acts.append(Act(at, "twin", victim, peers=peers))
            case "partition":
                self._partitions()
            case "disconnect":
                self._cuts()
            case "restarting-clients":
                self._restart_clients()
            case "conspiracy":
                self._conspire()
            case "wire":
                for _ in range(5):
                    at = self.rng.randrange(self.safety_ms)
                    reader = self.rng.choice(self.subscribers)
                    self.acts.append(Act(at, "forge", reader, ORDERS))
            case _:
                pass

    def _roll(self) -> None:
        """Somebody who comes when all have restarted wants to read everything."""
        order = tuple(self.rng.sample(self.names, self.brokers))
        begin, pause = self.rng.randrange(self.safety_ms), self.rng.choice((5, 20, 60))
        self.acts.append(Act(begin, "roll", self.subscribers[-1], ORDERS, pause, order))

    def _come_late(self) -> None:
        self.acts += steps.draw_late_readers(
            self.rng, self.subscribers, ORDERS, self.policy, self.safety_ms
        )
        faults = [
            name
            for name, entry in CATALOGUE.items()
            if entry.role is Role.BROKER and applicable(name, self.policy_name)
        ]
        if faults:
            self._corrupt(self.rng.choice(faults))

    def _corrupt(self, fault: str) -> None:
        rng = self.rng
        entry = CATALOGUE[fault]
        start = rng.choice((0, 0, rng.randrange(self.safety_ms)))
        percent = rng.choice((100, 100, 60, 25))
        match entry.role:
            case Role.BROKER:
                aimed: tuple[str, ...] = ()
                if fault == "censor-node":
                    aimed = (rng.choice((*self.publishers, *self.subscribers)),)
                if self.long:
                    self._shake(fault)
                for victim in self.victims:
                    self.corruptions.append(Corruption(victim, fault, start, percent, aimed))
            case Role.PUBLISHER:
                liar = self.publishers[-1]
                self.corruptions.append(Corruption(liar, fault, start, percent))
                # A lying publisher is worst with lying brokers at its side (Freeman §7.3.4).
                if rng.randrange(2):
                    accomplice = rng.choice(ACCOMPLICES)
                    for victim in self.victims:
                        self.corruptions.append(Corruption(victim, accomplice, start, percent))
            case Role.SUBSCRIBER:
                self.corruptions.append(Corruption(self.subscribers[-1], fault, start, percent))

    def _conspire(self) -> None:
        """One publisher, f brokers; some of the others and some readers get the other story."""
        rng = self.rng
        others = [broker for broker in self.names if broker not in self.victims]
        misled = tuple(rng.sample(others, rng.randrange(1, len(others))))
        readers = tuple(reader for reader in self.subscribers if rng.randrange(2))
        percent = rng.choice((100, 40))
        liar = self.publishers[-1]
        self.corruptions.append(
            Corruption(liar, "equivocating-publisher", 0, percent, misled, "plot")
        )
        for victim in self.victims:
            self.corruptions.append(
                Corruption(victim, "two-faced", 0, 100, (*misled, *readers), "plot")
            )

    def _second_adversary(self) -> None:
        """A lying client beside what the world does."""
        names = [
            name
            for name, entry in CATALOGUE.items()
            if entry.role is not Role.BROKER
            and (entry.role is Role.PUBLISHER or len(self.subscribers) > 1)
            and applicable(name, self.policy_name)
        ]
        if not names:
            return
        fault = self.rng.choice(names)
        publisher = CATALOGUE[fault].role is Role.PUBLISHER
        liar = self.publishers[-1] if publisher else self.subscribers[-1]
        self.corruptions.append(Corruption(liar, fault, 0, self.rng.choice((100, 50))))

    def _crash_recover(self) -> None:
        """Broker after broker goes down and comes back, never more than f at a time."""
        at = self.rng.randrange(self.safety_ms // 2)
        rolling = bool(self.rng.randrange(2))
        # Journals keep a broker's word, not the contents: once more than f brokers have lost
        # theirs, what a subscriber still lacks may be gone, and is then announced as a gap.
        self.gaps_allowed = rolling and not self.policy.total
        while at < self.safety_ms:
            down = self.rng.randrange(10, 120)
            for victim in self.rng.sample(self.names, self.f) if rolling else self.victims:
                torn = self.rng.randrange(3) if self.policy.total else 0
                self.acts.append(Act(at, "crash", victim, amount=torn))
                self.acts.append(Act(at + down, "restart", victim))
            at += down + self.rng.randrange(60, 250)

    def _shake(self, fault: str) -> None:
        """Liars lead first, and correct brokers stand still now and then: leaders change."""
        if fault.endswith("leader") and self.rng.randrange(3):
            self.victims = list(self.names[: self.f])
        correct = [name for name in self.names if name not in self.victims]
        for _ in range(self.rng.randrange(3)):
            self._pause([self.rng.choice(correct)])

    def _pause(self, victims: Sequence[NodeId]) -> None:
        at = self.rng.randrange(self.safety_ms)
        length = self.rng.choice((50, 300, 800, 1500))
        for victim in victims:
            self.acts.append(Act(at + self.rng.randrange(20), "pause", victim))
            self.acts.append(Act(at + 20 + self.rng.randrange(length), "resume", victim))

    def _black_out(self) -> None:
        """All at once, with torn disks; sometimes amid a leader change, or with liars."""
        rng = self.rng
        if self.policy.protection is Protection.BYZANTINE and rng.randrange(2):
            liars = [n for n, e in CATALOGUE.items() if e.only_under and e.role is Role.BROKER]
            fault = rng.choice(liars)
            self.corruptions += [Corruption(victim, fault) for victim in self.victims]
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(50, self.safety_ms)
            if rng.randrange(2):
                # Its leader's silence has just been noticed.
                before = max(0, at - rng.randrange(600, 900))
                self.acts.append(Act(before, "pause", rng.choice(self.names)))
            down = rng.randrange(1, 150)
            for name in self.names:
                late = rng.choice((0, 0, rng.randrange(60), rng.randrange(60, 900)))
                self.acts.append(Act(at, "crash", name, amount=rng.randrange(6)))
                self.acts.append(Act(at + down + late, "restart", name))

    def _change_members(self) -> None:
        """One step after the other, and something else that goes wrong at the same time."""
        rng = self.rng
        acts, added = steps.draw_steps(rng, self.names, self.f, self.policy, self.safety_ms)
        self.acts += acts
        self.newcomers = max(added, 1)
        also = rng.choice(("nothing", "crash", "cut", "pause", "lie"))
        if also == "lie" and not steps.hands_on(self.policy):
            # There who is new counts like one that forgot: f of them are enough.
            return
        if also == "crash" and not steps.outlives_restarts(self.policy):
            return
        if also == "crash":
            self._crash_recover()
        elif also == "cut":
            self._partitions()
        elif also == "pause":
            self._pause(rng.sample(self.names, rng.randrange(1, self.brokers)))
        elif also == "lie" and self.policy.protection is Protection.BYZANTINE:
            fault = rng.choice(("silent", "drop", "alter", "equivocate", "lie-acks"))
            self.corruptions += [Corruption(victim, fault) for victim in self.victims]

    def _wipe(self) -> None:
        """Late, so that the log is no longer there to learn from; of two victims one lies."""
        rng = self.rng
        wiped = self.victims[:1]
        self.doomed += [(victim, "amnesia") for victim in wiped]
        for victim in wiped:
            for _ in range(rng.randrange(1, 3)):
                at = rng.randrange(self.safety_ms // 3, self.safety_ms)
                self.acts.append(Act(at, rng.choice(("wipe", "damage")), victim))
                self.acts.append(Act(at + rng.randrange(1, 600), "restart", victim))
        for liar in self.victims[1:]:
            fault = rng.choice(("false-state", "false-standing", "withhold-offers", "silent"))
            self.corruptions.append(Corruption(liar, fault))

    def _partitions(self) -> None:
        everyone = [*self.names, *self.publishers, *self.subscribers]
        at = self.rng.randrange(self.safety_ms // 2)
        while at < self.safety_ms:
            side = tuple(node for node in everyone if self.rng.randrange(3) == 0)
            length = self.rng.randrange(20, 200)
            self.acts.append(Act(at, "partition", peers=side))
            self.acts.append(Act(at + length, "heal"))
            at += length + self.rng.randrange(20, 200)

    def _cuts(self) -> None:
        clients = (*self.publishers, *self.subscribers)
        for _ in range(self.rng.randrange(5, 40)):
            at = self.rng.randrange(self.safety_ms)
            broker = self.rng.choice(self.names)
            others = [node for node in (*self.names, *clients) if node != broker]
            self.acts.append(Act(at, "cut", broker, peers=(self.rng.choice(others),)))

    def _restart_clients(self) -> None:
        for client in (*self.publishers, *self.subscribers):
            if self.rng.randrange(3) == 0:
                continue
            at = self.rng.randrange(60, self.safety_ms)
            self.acts.append(Act(at, "crash", client))
            back = at + self.rng.randrange(1, 80)
            self.acts.append(Act(back, "restart", client))
            if client in self.subscribers:
                self.acts.append(Act(back + 1, "join", client, ORDERS))


def draw(seed: int, policy: str | None = None, adversary: str | None = None) -> Plan:
    """The plan that a seed stands for."""
    if policy is not None and policy not in POLICY_NAMES:
        raise UsageError(f"there is no policy {policy!r}; choose one of {', '.join(POLICY_NAMES)}")
    if adversary is not None and adversary not in ADVERSARIES:
        raise UsageError(
            f"there is no adversary {adversary!r}; choose one of {', '.join(ADVERSARIES)}"
        )
    return Draw(seed, policy, adversary).plan()


def run_scenario(
    seed: int, policy: str | None = None, adversary: str | None = None, trace: Path | None = None
) -> Outcome:
    """Draw a plan and carry it out; with a directory for traces, leave one there."""
    place = trace / f"seed-{seed}" if trace is not None else None
    return perform(draw(seed, policy, adversary), place)
