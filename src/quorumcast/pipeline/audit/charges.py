"""Charges: which observations say that somebody is faulty, what it did, and who else may have.

Most of what nodes note of each other happens to correct nodes as well: packets get lost, brokers
restart, publishers repeat themselves. A rule is here only if a correct node does not do this to a
correct observer, however bad the weather: either because the protocol forbids it (two votes for one
number), or because it would have to happen again and again, and more than to anybody else (votes
that never come). `at_least` leaves room for the little that does happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from quorumcast.agents.observing.sequences import HOLLOW, VOTED_FIRST
from quorumcast.agents.observing.turnout import MENDED
from quorumcast.core.ids import NodeId, holder
from quorumcast.core.quorum import Protection
from quorumcast.faults.diagnosis import Clause
from quorumcast.manifest.manifest import Manifest
from quorumcast.pipeline.audit.thresholds import SURE


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """Equal observations of one run, added up."""

    observer: str
    role: str
    accused: str
    kind: str
    reason: str = ""
    message: str = ""
    channel: str = ""
    publisher: str = ""
    lane: int = 0
    bucket: int = 0
    #: Which part of the run it fell into, where that matters.
    slot: int = 0
    count: int = 1
    number: int = 0
    t_ms: int = 0
    until_ms: int = 0


class Charge(msgspec.Struct, frozen=True):
    """One of `clause` is faulty: the accused did this to the observer, or another one lies."""

    accused: str
    observer: str
    deed: str
    why: str
    clause: Clause
    count: int
    t_ms: int
    until_ms: int
    #: Whose streams it is about; CELL: what is ordered, which any publisher's lies disturb.
    publishers: frozenset[str] = frozenset()
    #: Whether it is so much that one witness is enough, if it need not lie.
    strong: bool = False
    #: Whether the protocol forbids it, whatever happens.
    firm: bool = False

    @property
    def sure(self) -> bool:
        """Whether one of its clause lies for certain: weather does not look like this."""
        return (self.firm and self.count >= SURE) or (self.strong and self.deed == "dropped")


def accusers_of(charges: Iterable[Charge]) -> dict[str, set[str]]:
    """Who accuses whom."""
    by: dict[str, set[str]] = {}
    for charge in charges:
        by.setdefault(charge.accused, set()).add(holder(charge.observer))
    return by


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Observations that a correct node does not give cause for."""

    kind: str
    deed: str
    why: str
    reasons: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    at_least: int = 1
    #: … and this share of all that came from the accused of this kind, in so many parts of the run:
    #: a single loss may be of many things.
    share: float = 0.0
    parts: int = 1
    #: Only where it was not made good later; only where no such message came at all.
    for_good: bool = False
    unheard: bool = False
    #: Whether a publisher that tells brokers different things may be behind it.
    publisher: bool = False
    #: … even where it is settled in the end, if anybody has noticed that it does.
    always: bool = False
    #: Whether the stream's publisher has signed it, whoever passed it on.
    signed: bool = False
    #: Whether it is only about clients, or only about what the observer itself published.
    of_clients: bool = False
    own: bool = False
    #: Only where publishers sign no histories, by which brokers correct themselves.
    unaccounted: bool = False
    #: So many must say so, where one may not have been told what the others were.
    by: int = 1
    #: … and not where the observer has too many streams to remember all of them.
    uncrowded: bool = False

    def covers(self, feature: Feature) -> bool:
        """Whether this rule is about such observations."""
        return (
            feature.kind == self.kind
            and (not self.reasons or feature.reason in self.reasons)
            and (not self.messages or feature.message in self.messages)
            and (not self.roles or feature.role in self.roles)
        )


_VOTES = ("Write", "Accept", "Propose")
#: Messages of which everybody knows who says them to whom.
_OUT_OF_PLACE = (
    "Accept", "ChainRun", "Checkpoint", "Contents", "Echo", "Open", "Propose", "Publish", "Pull",
    "Ready", "Standing", "Subscribe", "Survey", "Taken", "Vote", "Write",
)  # fmt: skip

RULES = (
    Rule(kind="suspect", reasons=("dissent",), deed="altered", publisher=True,
         why="voted for other contents than were accepted"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("subscriber",), deed="equivocated",
         publisher=True, why="voted for two contents at one number"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("subscriber",), deed="equivocated",
         at_least=2, unaccounted=True, why="voted for two contents at one number"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("broker",), deed="equivocated",
         messages=("Publish", *_VOTES), why="sent two versions of one thing"),
    Rule(kind="suspect", reasons=("equivocation",), roles=("broker",), deed="equivocated",
         messages=("Offer",), signed=True, why="signed two versions of one thing"),
    Rule(kind="suspect", reasons=("bad-body",), deed="altered", at_least=2, share=0.05,
         why="sent contents that do not match their digest"),
    Rule(kind="suspect", reasons=("false-statement",), deed="altered", publisher=True,
         why="signed what others contradict"),
    Rule(kind="suspect", reasons=("without-history",), deed="dropped",
         why="publishes and does not account for it"),
    # Histories go to every broker: what one alone misses came late to all, while chains broke.
    Rule(kind="missing", messages=("History",), reasons=("",), deed="dropped", at_least=3,
         for_good=True, by=2, why="publishes and does not account for it"),
    Rule(kind="missing", messages=("Pull",), reasons=("",), deed="dropped",
         why="votes and does not hand over the contents"),
    Rule(kind="missing", messages=("Contents",), deed="dropped", at_least=2, parts=2,
         why="votes without the contents that it agreed to send"),
    Rule(kind="missing", messages=("Contents",), deed="dropped", at_least=4, share=0.2,
         why="votes without the contents that it agreed to send"),
    Rule(kind="missing", messages=("Offer", "Publish"), reasons=("",), deed="dropped", at_least=3,
         why="let others show what it should have shown itself"),
    Rule(kind="missing", messages=("Offer", "Publish"), deed="dropped", at_least=8, unheard=True,
         why="let others show what it should have shown itself"),
    Rule(kind="missing", messages=("Offer", "Publish"), deed="dropped", at_least=15, share=0.1,
         parts=2, why="let others show what it should have shown itself"),
    Rule(kind="missing", messages=("Propose",), reasons=("",), deed="forged", at_least=2,
         publisher=True, always=True, why="proposed what it cannot hand over"),
    Rule(kind="refused", reasons=("bad-body",), deed="altered", at_least=2,
         why="sent contents that do not match their digest"),
    Rule(kind="refused", reasons=("bad-run",), deed="forged", at_least=2,
         why="sent what is malformed or signed by somebody else"),
    Rule(kind="refused", reasons=("wrong-sender",), deed="forged",
         why="spoke in another's name"),
    Rule(kind="refused", reasons=("no-right",), deed="forged", at_least=3, of_clients=True,
         why="used a channel to which it has no right"),
    Rule(kind="refused", reasons=("conflict",), messages=_VOTES,
         deed="equivocated", why="said two different things of one"),
    Rule(kind="refused", reasons=("unknown-channel",), messages=("Open", "Publish", "Subscribe"),
         deed="forged", at_least=2, of_clients=True, why="used a channel that does not exist"),
    # Not Positions: whoever is asked twice, because it was slow, answers twice.
    Rule(kind="refused", reasons=("unexpected-message",), deed="flooded", at_least=2,
         messages=_OUT_OF_PLACE, why="sent messages that nobody in its place sends"),
    Rule(kind="refused", reasons=("unexpected-message",), deed="flooded", by=2,
         messages=_OUT_OF_PLACE, why="sent messages that nobody in its place sends"),
    Rule(kind="refused", reasons=("unknown-stream",), messages=("Contents",),
         deed="flooded", at_least=3, why="spoke of streams that do not exist"),
    Rule(kind="refused", reasons=("unknown-stream",), messages=("Pull",), of_clients=True,
         uncrowded=True, deed="flooded", at_least=2, by=2,
         why="asked for streams that do not exist"),
    Rule(kind="refused", reasons=("unknown-stream",), messages=("Open", "Publish"),
         of_clients=True, deed="flooded", at_least=15, share=0.2,
         why="opened more streams than it may"),
    Rule(kind="refused", reasons=("over-limit",), messages=("Offer",),
         deed="flooded", at_least=3, of_clients=True, why="offered more than it may"),
    Rule(kind="refused", reasons=("out-of-turn",), messages=("Publish",), at_least=40,
         share=0.5, deed="dropped", why="left numbers out"),
    Rule(kind="contradicts", reasons=("itself",), deed="equivocated",
         why="said two different things of one"),
    Rule(kind="contradicts", reasons=("others",), deed="altered", at_least=2,
         messages=("Ready", "Accept", "LogPart", "Standing", "StateHead"),
         why="said something else than what was decided"),
    Rule(kind="contradicts", reasons=("digests",), deed="altered",
         why="sent contents that do not match their digest"),
    Rule(kind="contradicts", reasons=("signature",), deed="forged", at_least=2,
         why="sent signatures that do not hold"),
    Rule(kind="contradicts", reasons=("leading",), messages=("Write",),
         deed="equivocated", at_least=2, why="proposed different things to different brokers"),
    Rule(kind="contradicts", reasons=("others",), messages=("Vote",), deed="altered",
         at_least=2, publisher=True, why="voted otherwise than f+1 others"),
    Rule(kind="contradicts", reasons=("others",), messages=("Echo",), deed="altered",
         at_least=2, publisher=True, always=True,
         why="echoed something else than what was delivered"),
    Rule(kind="contradicts", reasons=("others", "shown"), messages=("Publish",),
         deed="equivocated", at_least=2, why="showed different brokers different publications"),
    Rule(kind="contradicts", reasons=("accepted",), messages=("Checkpoint",), deed="altered",
         publisher=True, why="signed something else than what was accepted"),
    Rule(kind="boasts", reasons=("unsent",), deed="misled", at_least=2, own=True,
         why="acknowledged what was never sent"),
    Rule(kind="boasts", reasons=("credit", "ahead", "regency", "missed"), deed="misled",
         why="named numbers that nobody is near"),
    Rule(kind="boasts", reasons=("impatient",), deed="flooded", at_least=3,
         why="asked for other leaders all the time"),
    Rule(kind="boasts", reasons=("behind",), deed="misled", at_least=8, parts=2,
         why="claimed to know nothing long after the others"),
    Rule(kind="heard", reasons=("fresh", "unsynced"), messages=("Standing",), at_least=8,
         share=0.8, deed="misled", why="claimed to have just woken up, all the time"),
    Rule(kind="passes-over", reasons=(HOLLOW,), messages=("Propose",), deed="dropped", at_least=2,
         why="proposed nothing, again and again"),
    Rule(kind="backwards", reasons=(VOTED_FIRST,), messages=("Propose",), deed="dropped",
         why="voted as leader for what it had not proposed"),
    Rule(kind="backwards", reasons=("",), messages=("Vote",), deed="reordered", at_least=3,
         why="voted in another order than that of the numbers"),
    Rule(kind="backwards", reasons=("",), messages=("Ack",), deed="reordered",
         why="acknowledged less than before"),
    Rule(kind="backwards", reasons=("repeated",), deed="flooded", at_least=5,
         why="repeated itself word by word, unasked"),
    Rule(kind="backwards", reasons=("decided", "fresh", "synced"), deed="misled",
         why="took back what it said of how far it is"),
)  # fmt: skip

#: What makes a publisher doubtful, beside these.
_DOUBTS = (
    Rule(kind="missing", messages=("Offer", "Publish"), deed="dropped", why=""),
    Rule(kind="skipped", messages=("Publish",), deed="dropped", why=""),
)


class Case:
    """One cell, and what its nodes noted of each other."""

    def __init__(self, manifest: Manifest, features: Iterable[Feature]) -> None:
        self.manifest = manifest
        self.features = [f for f in features if f.observer != f.accused]
        self._unsettled = {
            channel.name for channel in manifest.channels if channel.policy.may_split
        }
        self._accounted = {c.name for c in manifest.channels if c.policy.has_history}
        self.clients = {client.id for client in manifest.clients}
        self.publishers = {feature.publisher for feature in self.features} & self.clients
        #: … and those of them who publish where publishers are not trusted.
        self.doubtful = {
            publisher
            for channel in manifest.channels
            if channel.policy.protection is Protection.BYZANTINE
            for publisher in self.publishers
            if manifest.may_publish(NodeId(publisher), channel.name)
        }
        crowding = [
            feature
            for feature in self.features
            if feature.reason == "unknown-stream" and feature.message in ("Open", "Publish")
        ]
        #: Publishers of so many streams that some had to give way: of those nobody can be ready.
        self.flooding = {feature.accused for feature in crowding}
        #: … and at whom: it cannot tell a stream that was never there from one that gave way.
        self.crowded = {feature.observer for feature in crowding}
        #: Publishers of whom somebody says, be it once, what correct ones give no cause for; and
        #: who says so where nothing gets lost.
        self.doubted: set[str] = set()
        self.doubts: dict[str, set[str]] = {}
        self._liars: set[str] = set()
        for feature in self.features:
            for rule in (*RULES, *_DOUBTS):
                if rule.covers(feature) and self.concerns(rule, feature):
                    accused = feature.publisher if rule.signed else feature.accused
                    self.doubted |= {accused} & self.publishers
                    if feature.reason != MENDED:
                        self.doubts.setdefault(accused, set()).add(feature.observer)
        #: How many messages of a kind came from a node, and how many things that were due.
        self.heard: Counter[tuple[str, str, str]] = Counter()
        self._came: Counter[tuple[str, str, str]] = Counter()
        for feature in self.features:
            key = (feature.observer, feature.accused, feature.message)
            if feature.kind == "heard" and not feature.reason:
                self.heard[key] += feature.count
            elif feature.kind == "came":
                self._came[key] += feature.count

    def doubt(self, liars: Iterable[str]) -> None:
        """These are known to lie."""
        self._liars |= self.publishers.intersection(liars)
        self.doubted |= self._liars

    def concerns(self, rule: Rule, feature: Feature) -> bool:
        """Whether an observation is about such nodes as the rule is about."""
        if rule.of_clients and holder(feature.accused) not in self.clients:
            return False
        if rule.signed and holder(feature.publisher) not in self.clients:
            return False
        if rule.uncrowded and feature.observer in self.crowded:
            return False
        if rule.unaccounted and feature.channel in self._accounted:
            return False
        return not rule.own or feature.publisher == feature.observer

    def settles(self, feature: Feature) -> bool:
        """Whether correct brokers agree on what this is about, whoever published it."""
        return feature.channel not in self._unsettled or bool(feature.lane)

    def made_good(self, missing: Feature) -> bool:
        """Whether what was missing came later."""
        about = (missing.observer, missing.accused, missing.message)
        return any(
            f.kind == "came" and (f.observer, f.accused, f.message) == about
            for f in self.features
            if f.until_ms > missing.until_ms
        )

    def due(self, rule: Rule, group: Sequence[Feature]) -> float:
        """The share of messages that a rule wants, as a number of them."""
        first = group[0]
        keys = [(first.observer, first.accused, m) for m in {f.message for f in group}]
        return rule.share * sum(max(self.heard[key], self._came[key]) for key in keys)

    def charge(
        self,
        features: Sequence[Feature],
        deed: str,
        why: str,
        *,
        publisher: bool = False,
        always: bool = False,
    ) -> Charge:
        """The charge that features of one observer against one node amount to."""
        first = features[0]
        publishers: set[str] = set()
        unsettled = not any(self.settles(f) for f in features)
        if publisher and (always or unsettled):
            # A lie about a second publisher's stream would have to be a second publisher's.
            publishers = {f.publisher for f in features}
        if not unsettled:
            publishers &= self.doubted
        if first.message == "Propose":
            # What a leader alone says of a publisher is no excuse: it need not propose it.
            by_others = {p for p in publishers if self.doubts.get(p, set()) - {first.accused}}
            publishers &= by_others | self._liars
        clause = {first.accused, first.observer}
        if len(publishers) == 1:
            clause |= publishers & self.clients
        return Charge(
            accused=first.accused,
            observer=first.observer,
            deed=deed,
            why=why,
            clause=frozenset(clause),
            count=sum(f.count for f in features),
            t_ms=min(f.t_ms for f in features),
            until_ms=max(f.until_ms for f in features),
            publishers=frozenset(f.publisher for f in features),
        )

    def charge_each(
        self, features: Sequence[Feature], deed: str, why: str, *, always: bool = False
    ) -> list[Charge]:
        """One per publisher: each of them may have kept its own publications from the accused.

        One or two things beside many are no charge of their own.
        """
        least = min(3, sum(feature.count for feature in features))
        return [
            self.charge(group, deed, why, publisher=True, always=always)
            for group in by_publisher(features)
            if sum(feature.count for feature in group) >= least
        ]

    def pairs(self, features: Iterable[Feature]) -> list[list[Feature]]:
        """Features by observer and accused."""
        grouped: dict[tuple[str, str], list[Feature]] = {}
        for feature in features:
            grouped.setdefault((feature.observer, feature.accused), []).append(feature)
        return list(grouped.values())


def by_publisher(features: Iterable[Feature]) -> list[list[Feature]]:
    """Features by whose streams they are about."""
    grouped: dict[str, list[Feature]] = {}
    for feature in features:
        grouped.setdefault(feature.publisher, []).append(feature)
    return list(grouped.values())


def firm_charges(case: Case) -> list[Charge]:
    """What the protocol forbids."""
    found: list[Charge] = []
    for rule in RULES:
        covered = [f for f in case.features if rule.covers(f) and case.concerns(rule, f)]
        if rule.signed:
            covered = [msgspec.structs.replace(f, accused=f.publisher) for f in covered]
        if rule.for_good:
            covered = [f for f in covered if not case.made_good(f)]
        if rule.unheard:
            covered = [f for f in covered if not case.heard[f.observer, f.accused, f.message]]
        saying = {(f.accused, f.observer) for f in covered}
        by = Counter(accused for accused, _ in saying)
        for features in case.pairs(f for f in covered if by[f.accused] >= rule.by):
            found += [
                case.charge(
                    group, rule.deed, rule.why, publisher=rule.publisher, always=rule.always
                )
                for group in (by_publisher(features) if rule.publisher else [features])
                if sum(f.count for f in group) >= max(rule.at_least, case.due(rule, group))
                and len({f.slot for f in group}) >= rule.parts
            ]
    return [msgspec.structs.replace(charge, firm=True) for charge in found]
